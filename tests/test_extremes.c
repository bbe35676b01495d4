/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Goal: numbers at the ends of what they may be are either served or refused, and no count comes
 * round. Method: pools and managers as large as one call needs, made without the fixture, which
 * fills all memory; and generations that are turned by hand. */
#include "support/fixture.h"

#include <stdlib.h>

#include "manager/manager.h"

static pkv_block_id *ids_of(int32_t count, pkv_block_id block) {
    pkv_block_id *ids = malloc((size_t)count * sizeof *ids);

    assert_non_null(ids);
    for (int32_t i = 0; i < count; i++) {
        ids[i] = block;
    }
    return ids;
}

/* ---- the pool -------------------------------------------------------------------------------- */

static void touch_of_a_long_list_counts_owners_and_not_its_length(void **state) {
    pkv_pool *pool = make_small_pool(5, 16);
    int32_t count = PKV_MAX_REF_CNT + 1;
    pkv_block_id *nulls = ids_of(count, PKV_NULL_BLOCK);
    pkv_block_id *threes = ids_of(count, 3);

    (void)state;
    assert_int_equal(pkv_pool_touch(pool, nulls, count), PKV_OK);
    assert_int_equal(pkv_pool_touch(pool, threes, count), PKV_ERROR_LIMIT);
    assert_string_equal(pool_queue_text(pool), "1 2 3 4");
    assert_string_equal(pool_refs_text(pool, 1, 4), "0 0 0 0");

    threes[count - 1] = 2;
    assert_int_equal(pkv_pool_touch(pool, threes, count), PKV_OK);
    assert_string_equal(pool_queue_text(pool), "1 4");
    assert_string_equal(pool_refs_text(pool, 1, 4), "0 1 8388607 0");
    threes[0] = 1;
    threes[1] = 3;
    assert_int_equal(pkv_pool_touch(pool, threes, 2), PKV_ERROR_LIMIT);
    assert_string_equal(pool_queue_text(pool), "1 4");
    assert_string_equal(pool_refs_text(pool, 1, 4), "0 1 8388607 0");
    free(nulls);
    free(threes);
}

static void cache_blocks_of_more_tokens_than_an_event_can_say_is_refused(void **state) {
    const pkv_pool_config config = {
        .struct_size = sizeof config, .num_blocks = 4, .block_size = 1 << 30, .event_capacity = 4};
    const pkv_block_key keys[] = {{1, 0, 0}, {2, 0, 0}};
    pkv_pool *pool = make_pool(&config);
    pkv_block_id ids[2];
    pkv_event event;
    int32_t num_events;

    (void)state;
    assert_int_equal(pkv_pool_get_new_blocks(pool, 2, ids), PKV_OK);
    assert_int_equal(pkv_pool_cache_blocks(pool, 0, ids, keys, NULL, 2),
                     PKV_ERROR_INVALID_ARGUMENT);
    assert_string_equal(pool_keyed_text(pool), "");
    assert_int_equal(pkv_pool_cache_blocks(pool, 0, ids, keys, NULL, 1), PKV_OK);
    assert_int_equal(pkv_pool_take_events(pool, &event, 1, &num_events, NULL), PKV_OK);
    assert_int_equal(event.num_tokens, 1 << 30);
}

/* ---- owners of one block in a manager -------------------------------------------------------- */

#define LONG_TOKENS (1 << 20)

/* A request whose blocks of one token all have the same key. */
static pkv_request open_of_one_key(pkv_manager *manager, int32_t num_tokens) {
    int32_t *token_ids = calloc((size_t)num_tokens, sizeof *token_ids);
    pkv_block_key *keys = calloc((size_t)num_tokens, sizeof *keys);
    const pkv_request_args args = {.struct_size = sizeof args,
                                   .token_ids = token_ids,
                                   .num_tokens = num_tokens,
                                   .max_num_tokens = num_tokens,
                                   .has_caller_keys = true};
    pkv_request request;

    assert_true(token_ids != NULL && keys != NULL);
    assert_int_equal(pkv_request_open(manager, &args, &request), PKV_OK);
    assert_int_equal(pkv_request_append_keys(manager, request, keys, num_tokens), PKV_OK);
    free(token_ids);
    free(keys);
    return request;
}

static void one_key_for_millions_of_columns_is_refused_before_the_count_comes_round(void **state) {
    const pkv_manager_config config = {.struct_size = sizeof config,
                                       .num_blocks = LONG_TOKENS + 64,
                                       .max_model_len = LONG_TOKENS,
                                       .block_size = 1,
                                       .max_rows = 5,
                                       .max_total_tokens = 5 * LONG_TOKENS};
    pkv_manager *manager;
    pkv_request request;

    (void)state;
    assert_int_equal(pkv_manager_create(&config, &manager), PKV_OK);
    request = open_of_one_key(manager, 2);
    assert_int_equal(allocate(manager, request, 0, 1), PKV_OK);
    /* Three rows of 2^20 - 1 hits fit below 2^22, a fourth would not. */
    for (int32_t i = 1; i <= 4; i++) {
        pkv_slots_args args = slots_of(0, 1);

        request = open_of_one_key(manager, LONG_TOKENS - 1);
        args.num_new_computed_tokens = find_hit(manager, request);
        assert_int_equal(args.num_new_computed_tokens, LONG_TOKENS - 2);
        assert_int_equal(pkv_allocate_slots(manager, request, &args, NULL),
                         i <= 3 ? PKV_OK : PKV_ERROR_LIMIT);
    }
    assert_int_equal(info_of(manager, request).row, PKV_NULL_ROW);
    assert_int_equal(manager_block_of(manager, 1).ref_cnt, 1 + 3 * (LONG_TOKENS - 2));
    assert_int_equal(pkv_manager_check(manager), PKV_OK);
    pkv_manager_destroy(manager);
}

/* ---- lengths --------------------------------------------------------------------------------- */

static void length_beyond_the_largest_position_is_refused_though_blocks_hold_it(void **state) {
    const pkv_manager_config config = {.struct_size = sizeof config,
                                       .num_blocks = 2049,
                                       .max_model_len = INT32_MAX,
                                       .block_size = 1 << 20,
                                       .max_rows = 1,
                                       .max_requests = 1,
                                       .max_total_tokens = 16};
    const int32_t token_ids[16] = {0};
    const pkv_request_args args = {
        .struct_size = sizeof args, .token_ids = token_ids, .num_tokens = 16, .max_num_tokens = 16};
    pkv_batch batch = {.struct_size = sizeof batch, .max_requests = 1};
    pkv_batch_entry entry = {{0, 0}, INT32_MAX - 1, 1};
    pkv_block_id table[2048];
    int32_t indptr[2], last_page_len, num_indices, seq_len;
    pkv_manager *manager;

    (void)state;
    batch.seq_lens = &seq_len;
    assert_int_equal(pkv_manager_create(&config, &manager), PKV_OK);
    assert_int_equal(pkv_request_open(manager, &args, &entry.request), PKV_OK);
    assert_int_equal(allocate(manager, entry.request, 0, INT32_MAX), PKV_OK);
    assert_int_equal(num_table_blocks(manager, entry.request, 0), 2048);

    assert_int_equal(pkv_batch_build(manager, 0, &entry, 1, &batch), PKV_OK);
    assert_int_equal(seq_len, INT32_MAX);
    entry.num_computed_tokens = INT32_MAX;
    assert_int_equal(pkv_batch_build(manager, 0, &entry, 1, &batch), PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_export_csr(manager, 0, &entry, 1, false, indptr, table, 2048,
                                    &last_page_len, &num_indices),
                     PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_export_padded(manager, 0, &entry, 1, table, 2048, 0),
                     PKV_ERROR_INVALID_ARGUMENT);
    assert_true(stats_of(manager).num_live_slots == INT32_MAX);
    pkv_manager_destroy(manager);
}

/* ---- handles --------------------------------------------------------------------------------- */

static void generation_that_comes_round_finds_nothing_of_its_older_bearer(void **state) {
    pkv_manager *manager = make_small_manager(31, 16);
    pkv_request older, younger;

    (void)state;
    admit(manager, open_prompt(manager, COMMON " 7*3"));
    older = open_prompt(manager, COMMON " 7*3");
    assert_int_equal(find_hit(manager, older), 48);
    end_request(manager, older);

    /* 2^32 - 1 opens later the same handle stands for another prompt. */
    manager->requests.requests[older.index].generation--;
    younger = open_prompt(manager, "100..150");
    assert_memory_equal(&younger, &older, sizeof older);
    assert_int_equal(find_hit(manager, younger), 0);
    end_request(manager, younger);

    /* The generation after the largest is 1, since 0 is never valid. */
    manager->requests.requests[younger.index].generation = UINT32_MAX;
    assert_int_equal(open_prompt(manager, "7").generation, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        fixture_test(touch_of_a_long_list_counts_owners_and_not_its_length),
        fixture_test(cache_blocks_of_more_tokens_than_an_event_can_say_is_refused),
        fixture_test(one_key_for_millions_of_columns_is_refused_before_the_count_comes_round),
        fixture_test(length_beyond_the_largest_position_is_refused_though_blocks_hold_it),
        fixture_test(generation_that_comes_round_finds_nothing_of_its_older_bearer),
    };

    return cmocka_run_group_tests_name("extremes", tests, NULL, NULL);
}
