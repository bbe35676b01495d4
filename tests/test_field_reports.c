/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Goal: failures that were seen in KV-cache managers in the field do not happen here. Method: each
 * is reduced to the smallest case that showed it; the name of a test is what must hold instead.
 * This file has the prefix cache, its boundary and its identity; capacity, windows, and what is
 * counted are in test_field_capacity.c and test_field_windows.c. docs/testing.md lists the
 * symptoms. */
#include "support/fixture.h"

#include <string.h>

/* ---- the boundary of a hit ------------------------------------------------------------------- */

static void whole_prompt_cached_leaves_a_token_to_compute(void **state) {
    const struct {
        int32_t block_size, num_tokens, hit;
    } cases[] = {{16, 16, 0}, {16, 32, 16}, {16, 48, 32}, {16, 33, 32},
                 {1, 1, 0},   {1, 2, 1},    {1, 32, 31},  {4, 4096, 4092}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pkv_manager *manager = make_small_manager(2051, cases[i].block_size);
        pkv_request first = open_prompt(manager, "0..%d", cases[i].num_tokens - 1);
        pkv_request second = open_prompt(manager, "0..%d", cases[i].num_tokens - 1);

        admit(manager, first);
        assert_int_equal(admit(manager, second), cases[i].hit);
        assert_true(cases[i].hit < cases[i].num_tokens);
    }
}

static void logits_of_every_prompt_token_are_computed_though_the_prompt_is_cached(void **state) {
    pkv_manager *manager = make_small_manager(31, 16);
    const pkv_request_args skip = {.skip_cache_read = true};
    pkv_request first = open_prompt_as(manager, &skip, "0..32");
    pkv_request second = open_prompt_as(manager, &skip, "0..32");

    (void)state;
    assert_int_equal(admit(manager, first), 0);
    assert_int_equal(find_hit(manager, second), 0);
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..32")), 32);
    assert_int_equal(admit(manager, second), 0);
    assert_string_equal(table_text(manager, first, 0), "1 2 3");
    assert_string_equal(hit_text(manager, open_prompt(manager, "0..32"), 0), "1 2");
}

static void block_that_changed_hands_is_not_found_by_its_old_prompt(void **state) {
    pkv_manager *manager = make_small_manager(3, 16);
    pkv_request first = open_prompt(manager, "0..31");
    pkv_request second = open_prompt(manager, "100..131");

    (void)state;
    admit(manager, first);
    end_request(manager, first);
    admit(manager, second);
    end_request(manager, second);
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..32")), 0);
    assert_int_equal(find_hit(manager, open_prompt(manager, "100..132")), 32);
    assert_int_equal(stats_of(manager).num_distinct_keys, 2);
}

static void hit_that_goes_between_lookup_and_allocation_is_reported(void **state) {
    pkv_manager *manager = make_small_manager(67, 16);
    pkv_request first = open_prompt(manager, "0..511");
    pkv_request second = open_prompt(manager, "0..511 9");
    pkv_slots_args args = slots_of(0, 1);
    pkv_block_id last;

    (void)state;
    admit(manager, first);
    end_request(manager, first);
    assert_int_equal(find_hit(manager, second), 512);
    last = 32;
    assert_int_equal(pkv_evict_blocks(manager, &last, 1), PKV_OK);
    args.num_new_computed_tokens = 512;
    assert_int_equal(pkv_allocate_slots(manager, second, &args, NULL), PKV_NOT_FOUND);
    assert_int_equal(num_free_blocks(manager), 66);
    assert_int_equal(stats_of(manager).num_rows, 0);
    assert_int_equal(admit(manager, second), 496);
}

static void request_preempted_at_any_length_resumes_with_all_its_tokens(void **state) {
    (void)state;
    for (int32_t preempted_at = 15; preempted_at <= 34; preempted_at++) {
        pkv_manager *manager = make_small_manager(31, 16);
        pkv_request request = open_prompt(manager, "0..%d", preempted_at - 1);

        admit(manager, request);
        assert_int_equal(pkv_free(manager, request), PKV_OK);
        admit(manager, request);
        for (int32_t length = preempted_at; length <= 40; length++) {
            assert_int_equal(info_of(manager, request).num_tokens, length);
            assert_int_equal(num_table_blocks(manager, request, 0), (length + 15) / 16);
            append_tokens(manager, request, "%d", length);
            assert_int_equal(allocate(manager, request, length, 1), PKV_OK);
        }
    }
}

static void refused_allocation_leaves_its_hits_as_they_were(void **state) {
    pkv_manager *manager = make_small_manager(9, 16);
    pkv_request cached = open_prompt(manager, "0..31");
    pkv_request others = open_prompt(manager, "1000..1047");
    pkv_request second = open_prompt(manager, "0..95");
    const pkv_request all[] = {others, second};
    pkv_slots_args args = slots_of(0, 64);
    const char *before;

    (void)state;
    /* Five blocks are free, and two of them are the hits. */
    admit(manager, cached);
    end_request(manager, cached);
    admit(manager, others);
    assert_string_equal(queue_text(manager), "6 7 8 2 1");
    assert_int_equal(find_hit(manager, second), 32);

    before = remember_state(manager, all, 2);
    args.num_new_computed_tokens = 32;
    assert_int_equal(pkv_allocate_slots(manager, second, &args, NULL), PKV_NO_FREE_BLOCKS);
    assert_string_equal(state_text(manager, all, 2), before);
    args.num_new_tokens = 48;
    assert_int_equal(pkv_allocate_slots(manager, second, &args, NULL), PKV_OK);
    assert_string_equal(table_text(manager, second, 0), "1 2 6 7 8");
}

/* ---- identity -------------------------------------------------------------------------------- */

static void engineered_collision_is_a_counted_miss(void **state) {
    const pkv_request_args args = {.has_caller_keys = true};
    const pkv_block_key victim = {0xdead, 0xbeef, 111};
    const pkv_block_key forged = {0xdead, 0xbeef, 112};
    pkv_manager_config config = small_config(11, 16);

    (void)state;
    for (int32_t with_tokens = 0; with_tokens < 2; with_tokens++) {
        pkv_manager *manager;
        pkv_request first, second;

        config.store_tokens = with_tokens == 1;
        manager = make_manager(&config);
        first = open_prompt_as(manager, &args, "16*5 1");
        second = open_prompt_as(manager, &args, "16*6 1");
        assert_int_equal(pkv_request_append_keys(manager, first, &victim, 1), PKV_OK);
        /* With tokens stored, even a key that is forged whole gets no foreign block. */
        assert_int_equal(
            pkv_request_append_keys(manager, second, with_tokens ? &victim : &forged, 1), PKV_OK);
        admit(manager, first);
        assert_int_equal(find_hit(manager, second), 0);
        assert_int_equal(stats_of(manager).num_collisions_rejected, 1);
    }
}

static void cached_prefix_is_invisible_to_other_tenants(void **state) {
    pkv_manager *manager = make_small_manager(31, 16);
    const pkv_request_args tenants[] = {{.salt = "a", .salt_size = 1},
                                        {.salt = "b", .salt_size = 1},
                                        {.salt = "aa", .salt_size = 2},
                                        {.salt = NULL, .salt_size = 0}};

    (void)state;
    for (int32_t i = 0; i < 4; i++) {
        assert_int_equal(admit(manager, open_prompt_as(manager, &tenants[i], "0..32")), 0);
    }
    assert_int_equal(stats_of(manager).num_distinct_keys, 8);
    for (int32_t i = 0; i < 4; i++) {
        char expected[16];
        pkv_request again = open_prompt_as(manager, &tenants[i], "0..32");

        strcpy(expected, ids_text((const int32_t[]){3 * i + 1, 3 * i + 2}, 2));
        assert_string_equal(hit_text(manager, again, 0), expected);
    }
}

static void adapter_never_reads_what_another_adapter_wrote(void **state) {
    pkv_manager *manager = make_small_manager(31, 16);

    (void)state;
    for (uint64_t writer = 0; writer < 3; writer++) {
        const pkv_request_args args = {.adapter_id = writer};

        assert_int_equal(admit(manager, open_prompt_as(manager, &args, "0..32")), 0);
        for (uint64_t reader = 0; reader < 3; reader++) {
            const pkv_request_args other = {.adapter_id = reader};

            assert_int_equal(find_hit(manager, open_prompt_as(manager, &other, "0..32")),
                             reader <= writer ? 32 : 0);
        }
    }
}

static void image_never_reads_the_entry_of_another_image(void **state) {
    pkv_manager *manager = make_small_manager(61, 16);
    pkv_media image = {.offset = 8, .num_tokens = 64};
    const pkv_request_args args = {.media = &image, .num_media = 1};

    (void)state;
    memset(image.digest, 1, sizeof image.digest);
    admit(manager, open_prompt_as(manager, &args, "0..7 64*9 0..7 1"));
    assert_int_equal(find_hit(manager, open_prompt_as(manager, &args, "0..7 64*9 0..7 1")), 80);
    memset(image.digest, 2, sizeof image.digest);
    assert_int_equal(find_hit(manager, open_prompt_as(manager, &args, "0..7 64*9 0..7 1")), 0);
}

static void keys_of_any_value_come_back_as_they_went_in(void **state) {
    const pkv_request_args args = {.has_caller_keys = true};
    const uint64_t values[] = {0, 1, UINT64_C(1) << 63, UINT64_MAX};
    pkv_manager *manager = make_small_manager(101, 1);
    pkv_request request = open_prompt_as(manager, &args, "0..64");
    pkv_block_key keys[64], read[64];

    (void)state;
    for (int32_t i = 0; i < 64; i++) {
        keys[i] = (pkv_block_key){values[i / 16], values[i / 4 % 4], values[i % 4]};
    }
    assert_int_equal(pkv_request_append_keys(manager, request, keys, 64), PKV_OK);
    assert_int_equal(pkv_request_get_keys(manager, request, 0, 64, read), PKV_OK);
    assert_memory_equal(read, keys, sizeof keys);
    admit(manager, request);
    assert_int_equal(stats_of(manager).num_distinct_keys, 64);
    for (int32_t i = 0; i < 64; i++) {
        assert_true(keys_are_equal(manager_block_of(manager, 1 + i).key, keys[i]));
    }
    assert_int_equal(find_hit(manager, request), 64);
}

/* ---- sharing --------------------------------------------------------------------------------- */

static void prompts_that_diverge_inside_a_block_share_none_of_it(void **state) {
    pkv_manager *manager = make_small_manager(31, 16);
    pkv_request first = open_prompt(manager, "0..31");
    pkv_request second = open_prompt(manager, "0..25 6*99");

    (void)state;
    admit(manager, first);
    assert_int_equal(admit(manager, second), 16);
    assert_string_equal(table_text(manager, first, 0), "1 2");
    assert_string_equal(table_text(manager, second, 0), "1 3");
}

static void table_with_one_block_in_two_places_cannot_be_built(void **state) {
    pkv_pool *pool = make_small_pool(11, 16);
    const pkv_block_key keys[] = {{5, 5, 5}, {5, 5, 5}, {9, 9, 9}};
    const pkv_block_id hits[] = {5, 5, 9};
    pkv_block_id block_ids[10];
    const char *before;

    (void)state;
    assert_int_equal(pkv_pool_get_new_blocks(pool, 10, block_ids), PKV_OK);
    assert_int_equal(pkv_pool_cache_blocks(pool, 0, hits + 1, keys + 1, NULL, 2), PKV_OK);
    before = remember_pool_state(pool);
    assert_int_equal(pkv_pool_acquire(pool, 0, hits, keys, 3, 0, NULL), PKV_ERROR_INVALID_ARGUMENT);
    assert_string_equal(pool_state_text(pool), before);
}

static void every_reader_of_a_prompt_gets_the_same_blocks(void **state) {
    pkv_manager *manager = make_small_manager(301, 16);
    pkv_request readers[63];

    (void)state;
    admit(manager, open_prompt(manager, "0..64"));
    for (int32_t round = 0; round < 4; round++) {
        for (int32_t i = 0; i < 50; i++) {
            readers[i] = open_prompt(manager, "0..64");
            assert_int_equal(admit(manager, readers[i]), 64);
            assert_int_equal(strncmp(table_text(manager, readers[i], 0), "1 2 3 4 ", 8), 0);
        }
        assert_string_equal(refs_text(manager, 1, 4), "51 51 51 51");
        for (int32_t i = 0; i < 50; i++) {
            end_request(manager, readers[i]);
        }
    }
    assert_string_equal(refs_text(manager, 1, 4), "1 1 1 1");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        fixture_test(whole_prompt_cached_leaves_a_token_to_compute),
        fixture_test(logits_of_every_prompt_token_are_computed_though_the_prompt_is_cached),
        fixture_test(block_that_changed_hands_is_not_found_by_its_old_prompt),
        fixture_test(hit_that_goes_between_lookup_and_allocation_is_reported),
        fixture_test(request_preempted_at_any_length_resumes_with_all_its_tokens),
        fixture_test(refused_allocation_leaves_its_hits_as_they_were),
        fixture_test(engineered_collision_is_a_counted_miss),
        fixture_test(cached_prefix_is_invisible_to_other_tenants),
        fixture_test(adapter_never_reads_what_another_adapter_wrote),
        fixture_test(image_never_reads_the_entry_of_another_image),
        fixture_test(keys_of_any_value_come_back_as_they_went_in),
        fixture_test(prompts_that_diverge_inside_a_block_share_none_of_it),
        fixture_test(table_with_one_block_in_two_places_cannot_be_built),
        fixture_test(every_reader_of_a_prompt_gets_the_same_blocks),
    };

    return cmocka_run_group_tests_name("field reports: cache", tests, NULL, NULL);
}
