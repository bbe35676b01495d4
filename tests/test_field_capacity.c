/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Goal: no reference is lost or dropped twice, the pool's books always add up, and whoever asks for
 * more than there is gets an answer instead of an abort or a queue that stands still for ever.
 * Method: as in test_field_reports.c. */
#include "support/fixture.h"

#include <stdio.h>
#include <string.h>

#include "base/paged.h"

/* Numbers of a seed, for walks that are the same on every machine. */
static uint32_t next_random(uint64_t *seed) {
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*seed >> 33);
}

/* ---- references ------------------------------------------------------------------------------ */

static void block_named_twice_in_one_free_is_refused_or_counted(void **state) {
    pkv_pool *pool = make_small_pool(5, 16);
    const pkv_block_id list[] = {1, 1, 1};
    pkv_block_id block_id;
    const char *before;

    (void)state;
    /* Held once, twice, three times: as many releases as owners, or none at all. */
    assert_int_equal(pkv_pool_get_new_blocks(pool, 1, &block_id), PKV_OK);
    before = remember_pool_state(pool);
    assert_int_equal(pkv_pool_free_blocks(pool, list, 2), PKV_ERROR_INVALID_ARGUMENT);
    assert_string_equal(pool_state_text(pool), before);
    assert_int_equal(pkv_pool_touch(pool, list, 1), PKV_OK);
    before = remember_pool_state(pool);
    assert_int_equal(pkv_pool_free_blocks(pool, list, 3), PKV_ERROR_INVALID_ARGUMENT);
    assert_string_equal(pool_state_text(pool), before);
    assert_int_equal(pkv_pool_free_blocks(pool, list, 2), PKV_OK);
    assert_string_equal(pool_queue_text(pool), "1 2 3 4");
    assert_int_equal(pkv_pool_free_blocks(pool, list, 1), PKV_ERROR_INVALID_ARGUMENT);
}

static void two_branches_of_one_prefix_add_up_after_every_step_of_a_walk(void **state) {
    pkv_manager *manager = make_small_manager(41, 32);
    pkv_request branches[4];
    uint64_t seed = 3;

    (void)state;
    /* Five shared blocks, then a tail of its own for each branch. */
    for (int32_t i = 0; i < 4; i++) {
        branches[i] = open_prompt(manager, "0..159 %d*%d", 40 + 32 * i, 1000 + i);
    }
    for (int32_t step = 0; step < 10000; step++) {
        pkv_request branch = branches[next_random(&seed) % 4];
        int32_t num_held = 0;
        int32_t num_idle = 0;

        if (info_of(manager, branch).row == PKV_NULL_ROW) {
            admit(manager, branch);
        } else {
            assert_int_equal(pkv_free(manager, branch), PKV_OK);
        }
        for (pkv_block_id block = 1; block < 41; block++) {
            pkv_block_info info = manager_block_of(manager, block);

            num_held += info.ref_cnt > 0 ? 1 : 0;
            num_idle += info.is_free ? 1 : 0;
        }
        assert_int_equal(num_held + num_idle, 40);
        assert_int_equal(num_idle, num_free_blocks(manager));
    }
}

static void block_that_two_drops_reach_is_freed_once(void **state) {
    const pkv_group_config group = window_group(512, 64);
    pkv_manager *manager = make_hybrid_manager(11, &group, 1);
    pkv_request request = open_prompt(manager, "0..1099");

    (void)state;
    assert_int_equal(allocate(manager, request, 0, 1100), PKV_OK);
    assert_string_equal(queue_text(manager), "4 5 6 7 8 9 10");
    /* 576 tokens are out of sight, then 640: block 1 goes only with its last token. */
    assert_int_equal(pkv_remove_skipped_blocks(manager, request, 576 + 63), PKV_OK);
    assert_string_equal(queue_text(manager), "4 5 6 7 8 9 10 1");
    assert_int_equal(pkv_remove_skipped_blocks(manager, request, 640 + 63), PKV_OK);
    assert_string_equal(queue_text(manager), "4 5 6 7 8 9 10 1");
    assert_int_equal(pkv_remove_skipped_blocks(manager, request, 1023 + 63), PKV_OK);
    assert_string_equal(queue_text(manager), "4 5 6 7 8 9 10 1");
    assert_int_equal(pkv_remove_skipped_blocks(manager, request, 1024 + 63), PKV_OK);
    assert_string_equal(queue_text(manager), "4 5 6 7 8 9 10 1 2");
    assert_int_equal(pkv_free(manager, request), PKV_OK);
    assert_int_equal(num_free_blocks(manager), 10);
}

static void lookup_that_leads_to_nothing_pins_nothing(void **state) {
    pkv_manager *manager = make_small_manager(65, 16);
    pkv_request first = open_prompt(manager, "0..999");
    pkv_request second = open_prompt(manager, "0..999");
    const char *before;

    (void)state;
    admit(manager, first);
    end_request(manager, first);
    before = remember_state(manager, &second, 1);
    assert_int_equal(find_hit(manager, second), 992);
    assert_string_equal(state_text(manager, &second, 1), before);
    assert_int_equal(pkv_request_close(manager, second), PKV_OK);
    assert_int_equal(pkv_reset_prefix_cache(manager), PKV_OK);
}

static void reserved_drafts_never_lose_the_last_block(void **state) {
    pkv_manager *manager = make_small_manager(101, 16);
    pkv_request request = open_prompt(manager, "0..16");
    int32_t num_computed = 17;
    int32_t most_slots = 24;
    uint64_t seed = 31616;

    (void)state;
    assert_int_equal(allocate(manager, request, 0, 17), PKV_OK);
    for (int32_t round = 0; round < 100; round++) {
        int32_t num_accepted = (int32_t)(next_random(&seed) % 8);
        pkv_slots_args args = slots_of(num_computed, 1 + 7);

        append_tokens(manager, request, "%d", round);
        assert_int_equal(pkv_allocate_slots(manager, request, &args, NULL), PKV_OK);
        most_slots = num_computed + 8 > most_slots ? num_computed + 8 : most_slots;
        assert_int_equal(num_table_blocks(manager, request, 0), (most_slots + 15) / 16);
        if (num_accepted > 0) {
            append_tokens(manager, request, "%d*%d", num_accepted, round);
        }
        num_computed += 1 + num_accepted;
        assert_int_equal(info_of(manager, request).num_tokens, num_computed);
    }
    assert_int_equal(pkv_free(manager, request), PKV_OK);
    assert_int_equal(num_free_blocks(manager), 100);
}

/* ---- capacity -------------------------------------------------------------------------------- */

static void request_larger_than_the_pool_is_told_so_by_an_empty_pool(void **state) {
    const pkv_group_config groups[] = {full_group(16), window_group(16, 32)};

    (void)state;
    for (int32_t num_groups = 1; num_groups <= 2; num_groups++) {
        pkv_manager *manager = make_hybrid_manager(9, groups, num_groups);
        pkv_request large = open_prompt(manager, "0..199");
        /* Half of the blocks go to the window, whose sequence may be in flight whole. */
        pkv_request fits = open_prompt(manager, "0..%d", 128 / num_groups - 1);
        pkv_request over = open_prompt(manager, "0..%d", 128 / num_groups);
        pkv_slots_args args = slots_of(0, 1);

        args.full_sequence_must_fit = true;
        assert_int_equal(pkv_allocate_slots(manager, large, &args, NULL), PKV_NEVER_FITS);
        assert_int_equal(pkv_allocate_slots(manager, over, &args, NULL), PKV_NEVER_FITS);
        assert_int_equal(pkv_allocate_slots(manager, fits, &args, NULL), PKV_OK);
    }
}

static void only_request_that_fills_the_pool_is_refused_and_stays_whole(void **state) {
    pkv_manager *manager = make_small_manager(5, 16);
    pkv_request request = open_prompt(manager, "0..59");
    int32_t token_ids[65];
    const char *before;

    (void)state;
    assert_int_equal(allocate(manager, request, 0, 60), PKV_OK);
    for (int32_t length = 60; length < 64; length++) {
        append_tokens(manager, request, "%d", length);
        assert_int_equal(allocate(manager, request, length, 1), PKV_OK);
    }
    append_tokens(manager, request, "64");
    before = remember_state(manager, &request, 1);
    assert_int_equal(allocate(manager, request, 64, 1), PKV_NO_FREE_BLOCKS);
    assert_string_equal(state_text(manager, &request, 1), before);
    assert_string_equal(table_text(manager, request, 0), "1 2 3 4");
    assert_int_equal(pkv_request_get_tokens(manager, request, 0, 65, token_ids), PKV_OK);
    assert_int_equal(token_ids[64], 64);
    assert_int_equal(pkv_free(manager, request), PKV_OK);
    assert_int_equal(num_free_blocks(manager), 4);
}

static void nothing_evictable_is_an_answer_and_a_failed_step_returns_all_blocks(void **state) {
    pkv_manager *manager = make_small_manager(5, 16);
    pkv_request request = open_prompt(manager, "0..63");

    (void)state;
    assert_int_equal(allocate_in_step(manager, request, 0, 64, 1), PKV_OK);
    append_tokens(manager, request, "64");
    assert_int_equal(allocate_in_step(manager, request, 64, 1, 2), PKV_NO_FREE_BLOCKS);
    assert_string_equal(table_text(manager, request, 0), "1 2 3 4");

    assert_int_equal(pkv_step_fail(manager, 1), PKV_OK);
    assert_int_equal(pkv_free(manager, request), PKV_OK);
    assert_string_equal(queue_text(manager), "4 3 2 1");
    assert_string_equal(keyed_text(manager), "");
}

/* Index slots that a lookup of 64 blocks, its admission and its end read, a block. */
static double probes_per_block(int32_t block_size, int32_t num_cached_blocks) {
    pkv_manager_config config = small_config(5001, block_size);
    pkv_request request;
    pkv_manager *manager;
    uint64_t num_probed;

    config.max_model_len = 65 * block_size;
    config.max_total_tokens = 0;
    manager = make_manager(&config);
    for (int32_t i = 0; i < num_cached_blocks / 64; i++) {
        request = open_prompt(manager, "%d*%d", 64 * block_size, i);
        assert_int_equal(allocate(manager, request, 0, 64 * block_size), PKV_OK);
        end_request(manager, request);
    }
    num_probed = stats_of(manager).num_index_slots_probed;
    request = open_prompt(manager, "%d*%d 7", 64 * block_size, 0);
    assert_int_equal(admit(manager, request), num_cached_blocks > 0 ? 64 * block_size : 0);
    end_request(manager, request);
    return (double)(stats_of(manager).num_index_slots_probed - num_probed) / 64;
}

static void work_of_a_lookup_depends_neither_on_the_cache_nor_on_the_block_size(void **state) {
    const int32_t block_sizes[] = {16, 64, 128};

    (void)state;
    for (int32_t i = 0; i < 3; i++) {
        assert_true(probes_per_block(block_sizes[i], 64) <= 4.0);
        assert_true(probes_per_block(block_sizes[i], 2560) <= 4.0);
        assert_true(probes_per_block(block_sizes[i], 4992) <= 4.0);
    }
}

static void any_free_blocks_serve_a_sequence(void **state) {
    pkv_manager *manager = make_small_manager(10, 16);
    pkv_request singles[9];
    pkv_request request = open_prompt(manager, "0..63");
    pkv_slots_args args = slots_of(0, 64);
    const char *before;

    (void)state;
    for (int32_t i = 0; i < 9; i++) {
        singles[i] = open_prompt(manager, "%d", 1000 + i);
        admit(manager, singles[i]);
    }
    /* Three scattered blocks are too few, and nothing is taken of them; four are enough. */
    for (int32_t i = 0; i < 6; i += 2) {
        end_request(manager, singles[i]);
    }
    before = remember_state(manager, &request, 1);
    assert_int_equal(pkv_allocate_slots(manager, request, &args, NULL), PKV_NO_FREE_BLOCKS);
    assert_string_equal(state_text(manager, &request, 1), before);
    end_request(manager, singles[6]);
    assert_int_equal(pkv_allocate_slots(manager, request, &args, NULL), PKV_OK);
    assert_string_equal(table_text(manager, request, 0), "7 5 3 1");
}

static void fragmentation_is_the_rest_of_last_blocks_only(void **state) {
    pkv_manager *manager = make_small_manager(17, 16);
    const pkv_request_args args = {.max_num_tokens = 100};
    pkv_stats stats;

    (void)state;
    admit(manager, open_prompt_as(manager, &args, "0..99"));
    stats = stats_of(manager);
    assert_int_equal(stats.num_external_slots, 0);
    assert_int_equal(stats.num_live_slots, 100);
    assert_int_equal(stats.num_reserved_slots, 0);
    assert_int_equal(stats.num_internal_slots, 12);
}

/* ---- what the kernels are told --------------------------------------------------------------- */

static void offset_of_the_last_block_is_right_beyond_32_bits(void **state) {
    /* 64,000 blocks of 32 heads, 16 tokens and 128 elements, and the largest pool of all. */
    const struct {
        int32_t num_blocks, num_heads, block_size, head_size;
    } cases[] = {{64000, 32, 16, 128}, {65536, 32, 16, 128}, {PKV_MAX_BLOCKS, 8, 16, 256}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pkv_block_id table[2] = {PKV_NULL_BLOCK, cases[i].num_blocks - 1};
        int32_t block_size = cases[i].block_size;
        const int64_t stride[4] = {(int64_t)cases[i].num_heads * block_size * cases[i].head_size,
                                   (int64_t)block_size * cases[i].head_size, cases[i].head_size, 1};
        int64_t position = 2 * block_size - 1;
        struct pkvi_place place = pkvi_place_of_position(table, block_size, position);
        int64_t element = pkvi_place_element(place, cases[i].num_heads - 1, stride);
        struct pkvi_place same =
            pkvi_place_of_slot(pkv_compute_slot(table, block_size, position), block_size);

        /* The last token of the last head of the last block: one head short of the end. */
        assert_true(element == (int64_t)cases[i].num_blocks * stride[0] - cases[i].head_size);
        assert_true(same.physical_block_number == place.physical_block_number);
        assert_true(same.physical_block_offset == place.physical_block_offset);
    }
}

static void index_pointers_start_at_zero_and_never_fall(void **state) {
    pkv_manager *manager = make_small_manager(41, 16);
    pkv_batch_entry entries[4];
    int32_t indptr[5], last_page_len[4], num_indices;
    pkv_block_id indices[16];

    (void)state;
    for (int32_t i = 0; i < 4; i++) {
        pkv_request request = open_prompt(manager, "%d*%d", 1 + 17 * i, i);

        admit(manager, request);
        entries[i] = (pkv_batch_entry){request, 0, i == 2 ? 0 : 1 + 17 * i};
    }
    assert_int_equal(pkv_export_csr(manager, 0, entries, 4, false, indptr, indices, 16,
                                    last_page_len, &num_indices),
                     PKV_OK);
    assert_string_equal(ids_text(indptr, 5), "0 1 3 3 7");
    assert_string_equal(ids_text(last_page_len, 4), "1 2 0 4");
    assert_int_equal(num_indices, 7);
}

static void table_covers_hits_that_were_found_elsewhere(void **state) {
    pkv_manager *manager = make_small_manager(61, 16);
    pkv_request cached = open_prompt(manager, "0..63");
    pkv_request request = open_prompt(manager, "0..199");
    pkv_slots_args args = slots_of(0, 72);
    int64_t slot_mapping[200];
    pkv_batch batch = {.struct_size = sizeof batch,
                       .max_requests = 1,
                       .max_tokens = 200,
                       .slot_mapping = slot_mapping};

    (void)state;
    /* 64 tokens are cached here, 128 elsewhere; the longer one decides. */
    admit(manager, cached);
    assert_int_equal(find_hit(manager, request), 64);
    args.num_new_computed_tokens = 64;
    args.num_external_computed_tokens = 64;
    assert_int_equal(pkv_allocate_slots(manager, request, &args, NULL), PKV_OK);
    assert_int_equal(num_table_blocks(manager, request, 0), 13);
    for (int32_t first = 0; first < 200; first++) {
        const pkv_batch_entry entry = {request, first, 200 - first};

        assert_int_equal(pkv_batch_build(manager, 0, &entry, 1, &batch), PKV_OK);
        assert_int_equal(batch.num_tokens, 200 - first);
        for (int32_t i = 0; i < batch.num_tokens; i++) {
            assert_true(slot_mapping[i] >= 16);
        }
    }
}

/* ---- what is counted and announced ----------------------------------------------------------- */

static void one_of_two_copies_evicted_is_announced_with_one_left(void **state) {
    const pkv_request_args skip = {.skip_cache_read = true};
    pkv_manager_config config = small_config(11, 16);
    pkv_manager *manager;
    pkv_request first, second;
    pkv_event events[16];

    (void)state;
    config.event_capacity = 16;
    manager = make_manager(&config);
    first = open_prompt(manager, "0..47");
    second = open_prompt_as(manager, &skip, "0..47");
    admit(manager, first);
    admit(manager, second);
    take_events(manager, events, 16);

    evict_columns(manager, first, 0, "2");
    assert_int_equal(take_events(manager, events, 16), 1);
    assert_int_equal(events[0].remaining_copies, 1);
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..48")), 48);
    evict_columns(manager, second, 0, "2");
    assert_int_equal(take_events(manager, events, 16), 1);
    assert_int_equal(events[0].remaining_copies, 0);
}

static void blocks_computed_again_after_a_preemption_are_no_first_time_hits(void **state) {
    pkv_manager *manager = make_small_manager(31, 16);
    uint64_t seed = 25780;

    (void)state;
    for (int32_t round = 0; round < 50; round++) {
        char tokens[512];
        size_t size = 0;
        pkv_request request;

        for (int32_t i = 0; i < 40; i++) {
            size += (size_t)snprintf(tokens + size, sizeof tokens - size, "%u ",
                                     next_random(&seed) % 100000);
        }
        request = open_prompt(manager, "%s", tokens);
        assert_int_equal(admit(manager, request), 0);
        assert_int_equal(pkv_free(manager, request), PKV_OK);
        assert_int_equal(admit(manager, request), 32);
        end_request(manager, request);
    }
    assert_int_equal(stats_of(manager).num_lookups, 50);
    assert_int_equal(stats_of(manager).num_hit_tokens, 0);
    assert_int_equal(stats_of(manager).num_resumes, 50);
    assert_int_equal(stats_of(manager).num_resume_hit_tokens, 50 * 32);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        fixture_test(block_named_twice_in_one_free_is_refused_or_counted),
        fixture_test(two_branches_of_one_prefix_add_up_after_every_step_of_a_walk),
        fixture_test(block_that_two_drops_reach_is_freed_once),
        fixture_test(lookup_that_leads_to_nothing_pins_nothing),
        fixture_test(reserved_drafts_never_lose_the_last_block),
        fixture_test(request_larger_than_the_pool_is_told_so_by_an_empty_pool),
        fixture_test(only_request_that_fills_the_pool_is_refused_and_stays_whole),
        fixture_test(nothing_evictable_is_an_answer_and_a_failed_step_returns_all_blocks),
        fixture_test(work_of_a_lookup_depends_neither_on_the_cache_nor_on_the_block_size),
        fixture_test(any_free_blocks_serve_a_sequence),
        fixture_test(fragmentation_is_the_rest_of_last_blocks_only),
        fixture_test(offset_of_the_last_block_is_right_beyond_32_bits),
        fixture_test(index_pointers_start_at_zero_and_never_fall),
        fixture_test(table_covers_hits_that_were_found_elsewhere),
        fixture_test(one_of_two_copies_evicted_is_announced_with_one_left),
        fixture_test(blocks_computed_again_after_a_preemption_are_no_first_time_hits),
    };

    return cmocka_run_group_tests_name("field reports: capacity", tests, NULL, NULL);
}
