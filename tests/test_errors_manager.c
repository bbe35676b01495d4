/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Goal: bad input to a manager's verbs gets a status that says what is wrong, a text, and changes
 * nothing. Method: two requests hold blocks and one waits; after each refused call the whole state
 * (queue, reference counts, keys, tables, rows) is compared with what it was before. Handles,
 * opening and configuration are in test_errors_requests.c. */
#include "support/fixture.h"

#include <string.h>

/* ---- helpers --------------------------------------------------------------------------------- */

static pkv_manager *manager;
static pkv_request requests[3]; /* 0 and 1 hold [1 2 3 4] and [1 2 3 5], 2 waits */
static const char *before;

static void make_manager_in_use(void) {
    pkv_manager_config config = small_config(11, 16);

    config.event_capacity = 64;
    config.max_model_len = 160;
    manager = make_manager(&config);
    requests[0] = open_prompt(manager, COMMON " 7*3");
    requests[1] = open_prompt(manager, COMMON " 5*3");
    requests[2] = open_prompt(manager, COMMON " 6*3");
    admit(manager, requests[0]);
    admit(manager, requests[1]);
    before = remember_state(manager, requests, 3);
}

static void refused(pkv_status actual, pkv_status expected) {
    assert_string_equal(pkv_status_name(actual), pkv_status_name(expected));
    assert_true(expected > PKV_OK || pkv_manager_last_error(manager)[0] != '\0');
    assert_string_equal(state_text(manager, requests, 3), before);
}

static void invalid(pkv_status actual) {
    refused(actual, PKV_ERROR_INVALID_ARGUMENT);
}

static pkv_status allocate_args(int32_t index, pkv_slots_args args) {
    return pkv_allocate_slots(manager, requests[index], &args, NULL);
}

/* ---- allocate -------------------------------------------------------------------------------- */

static void allocate_negative_counts(void **state) {
    const size_t members[] = {
        offsetof(pkv_slots_args, num_computed_tokens),
        offsetof(pkv_slots_args, num_new_tokens),
        offsetof(pkv_slots_args, num_new_computed_tokens),
        offsetof(pkv_slots_args, num_external_computed_tokens),
        offsetof(pkv_slots_args, num_lookahead_tokens),
        offsetof(pkv_slots_args, num_in_flight_tokens),
        offsetof(pkv_slots_args, num_watermark_blocks),
        offsetof(pkv_slots_args, num_reserved_blocks),
    };
    const int32_t values[] = {-1, INT32_MIN};

    (void)state;
    make_manager_in_use();
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        for (size_t k = 0; k < 2; k++) {
            pkv_slots_args args = slots_of(55, 1);

            memcpy((char *)&args + members[i], &values[k], sizeof values[k]);
            invalid(allocate_args(0, args));
        }
    }
}

static void allocate_nothing(void **state) {
    (void)state;
    make_manager_in_use();
    invalid(allocate_args(0, slots_of(55, 0)));
    invalid(allocate_args(2, slots_of(0, 0)));
    invalid(pkv_allocate_slots(manager, requests[0], NULL, NULL));
}

static void allocate_counts_that_contradict_each_other(void **state) {
    pkv_slots_args args = slots_of(55, 1);

    (void)state;
    make_manager_in_use();
    /* A hit for a request that has blocks; computed tokens for one that has none. */
    args.num_new_computed_tokens = 16;
    invalid(allocate_args(0, args));
    invalid(allocate_args(2, slots_of(16, 1)));
    /* More computed tokens than its four blocks hold. */
    invalid(allocate_args(0, slots_of(65, 1)));
    invalid(allocate_args(0, slots_of(INT32_MAX, INT32_MAX)));
}

static void allocate_a_hit_that_does_not_exist_is_not_found(void **state) {
    const int32_t hits[] = {1, 15, 17, 47, 49, 54, 64, 1000, INT32_MAX};

    (void)state;
    make_manager_in_use();
    for (size_t i = 0; i < sizeof hits / sizeof hits[0]; i++) {
        pkv_slots_args args = slots_of(0, 1);
        pkv_status status;

        args.num_new_computed_tokens = hits[i];
        status = allocate_args(2, args);
        assert_true(status == PKV_NOT_FOUND || status == PKV_ERROR_INVALID_ARGUMENT);
        assert_string_equal(state_text(manager, requests, 3), before);
    }
}

static void allocate_huge_counts_are_capped_not_overflowed(void **state) {
    pkv_slots_args args = slots_of(55, INT32_MAX);
    pkv_slots slots = make_slots();

    (void)state;
    make_manager_in_use();
    /* Ten blocks are what max_model_len needs; five are free and six are missing. */
    args.num_lookahead_tokens = INT32_MAX;
    args.num_external_computed_tokens = INT32_MAX;
    assert_int_equal(pkv_allocate_slots(manager, requests[0], &args, &slots), PKV_NO_FREE_BLOCKS);
    assert_int_equal(slots.num_missing_blocks, 1);
    args.num_watermark_blocks = INT32_MAX;
    args.num_reserved_blocks = INT32_MAX;
    refused(pkv_allocate_slots(manager, requests[0], &args, &slots), PKV_NO_FREE_BLOCKS);
    assert_int_equal(slots.num_missing_blocks, INT32_MAX);
    args.num_in_flight_tokens = INT32_MAX;
    refused(pkv_allocate_slots(manager, requests[0], &args, &slots), PKV_NO_FREE_BLOCKS);
}

static void allocate_beyond_the_row_is_a_limit(void **state) {
    pkv_manager_config config = small_config(31, 16);
    pkv_slots_args args = slots_of(0, 55);

    (void)state;
    config.max_blocks_per_request = 4;
    manager = make_manager(&config);
    for (int32_t i = 0; i < 3; i++) {
        const pkv_request_args request_args = {.max_num_tokens = 64};

        requests[i] = open_prompt_as(manager, &request_args, COMMON " 7*3");
    }
    before = remember_state(manager, requests, 3);
    args.num_lookahead_tokens = 10;
    refused(allocate_args(0, args), PKV_ERROR_LIMIT);
    assert_non_null(strstr(pkv_manager_last_error(manager), "max_blocks_per_request"));
    args.num_lookahead_tokens = 9;
    assert_int_equal(allocate_args(0, args), PKV_OK);
}

static void allocate_output_without_size_is_invalid(void **state) {
    pkv_slots slots = {.struct_size = 0};
    pkv_slots_args args = slots_of(55, 1);

    (void)state;
    make_manager_in_use();
    invalid(pkv_allocate_slots(manager, requests[0], &args, &slots));
}

/* ---- lookups, commits, drops ----------------------------------------------------------------- */

static void computed_blocks_bad_arguments(void **state) {
    pkv_block_id block_ids[4] = {-7, -7, -7, -7};
    int32_t num_blocks = -1;

    (void)state;
    make_manager_in_use();
    invalid(pkv_get_computed_blocks(manager, requests[2], NULL));
    invalid(pkv_get_computed_block_ids(manager, requests[2], 1, block_ids, 4, &num_blocks));
    invalid(pkv_get_computed_block_ids(manager, requests[2], -1, block_ids, 4, &num_blocks));
    invalid(pkv_get_computed_block_ids(manager, requests[2], 0, NULL, 4, &num_blocks));
    invalid(pkv_get_computed_block_ids(manager, requests[2], 0, block_ids, -1, &num_blocks));
    invalid(pkv_get_computed_block_ids(manager, requests[2], 0, block_ids, 4, NULL));
    refused(pkv_get_computed_block_ids(manager, requests[2], 0, block_ids, 2, &num_blocks),
            PKV_ERROR_LIMIT);
    assert_int_equal(num_blocks, 3);
    assert_int_equal(block_ids[0], -7);
}

static void cache_blocks_bad_counts(void **state) {
    (void)state;
    make_manager_in_use();
    append_tokens(manager, requests[0], "40*9");
    before = remember_state(manager, requests, 3);
    invalid(pkv_cache_blocks(manager, requests[0], -1));
    invalid(pkv_cache_blocks(manager, requests[0], 96));
    /* It has 95 tokens now, but blocks for 64. */
    invalid(pkv_cache_blocks(manager, requests[0], 95));
    invalid(pkv_cache_blocks(manager, requests[0], 65));
    invalid(pkv_cache_blocks(manager, requests[2], 16));
    invalid(pkv_remove_skipped_blocks(manager, requests[0], -1));
    assert_int_equal(pkv_cache_blocks(manager, requests[0], 64), PKV_OK);
    assert_string_equal(keyed_columns_text(manager, requests[0], 0), "0 1 2 3");
}

static void evict_blocks_bad_ids(void **state) {
    const pkv_block_id too_large[] = {1, 2, 11};
    const pkv_block_id negative[] = {1, -1};

    (void)state;
    make_manager_in_use();
    invalid(pkv_evict_blocks(manager, too_large, 3));
    invalid(pkv_evict_blocks(manager, negative, 2));
    invalid(pkv_evict_blocks(manager, NULL, 1));
    invalid(pkv_evict_blocks(manager, negative, -1));
    assert_string_equal(keyed_text(manager), "1 2 3");
}

/* ---- readers --------------------------------------------------------------------------------- */

static void readers_of_tables_bad_arguments(void **state) {
    const pkv_block_id *table;
    int32_t count;

    (void)state;
    make_manager_in_use();
    invalid(pkv_get_block_table(manager, requests[0], 1, &table, &count));
    invalid(pkv_get_block_table(manager, requests[0], -1, &table, &count));
    invalid(pkv_get_block_table(manager, requests[0], 0, NULL, &count));
    invalid(pkv_get_block_table(manager, requests[0], 0, &table, NULL));
    invalid(pkv_get_new_block_ids(manager, requests[0], 1, &table, &count));
    invalid(pkv_get_new_block_ids(manager, requests[0], 0, NULL, &count));
    invalid(pkv_get_new_block_ids(manager, requests[0], 0, &table, NULL));
    invalid(pkv_get_num_common_prefix_blocks(manager, requests[0], 1, &count));
    invalid(pkv_get_num_common_prefix_blocks(manager, requests[0], 0, NULL));
}

static void drains_bad_arguments(void **state) {
    pkv_table_update update;
    pkv_block_id block_id;
    pkv_event event;
    int32_t count;

    (void)state;
    make_manager_in_use();
    invalid(pkv_take_table_updates(manager, 1, &update, 1, &count));
    invalid(pkv_take_table_updates(manager, 0, NULL, 1, &count));
    invalid(pkv_take_table_updates(manager, 0, &update, -1, &count));
    invalid(pkv_take_table_updates(manager, 0, &update, 1, NULL));
    invalid(pkv_take_fills(manager, 1, &block_id, 1, &count));
    invalid(pkv_take_fills(manager, 0, NULL, 1, &count));
    invalid(pkv_take_fills(manager, 0, &block_id, -1, &count));
    invalid(pkv_take_fills(manager, 0, &block_id, 1, NULL));
    invalid(pkv_take_events(manager, NULL, 1, &count, NULL));
    invalid(pkv_take_events(manager, &event, -1, &count, NULL));
    invalid(pkv_take_events(manager, &event, 1, NULL, NULL));
    /* Nothing was drained by a refused call. */
    assert_int_equal(pkv_take_events(manager, &event, 1, &count, NULL), PKV_MORE);
    assert_int_equal(event.sequence_number, 0);
    assert_int_equal(pkv_take_table_updates(manager, 0, &update, 1, &count), PKV_MORE);
    assert_int_equal(count, 1);
}

static void stats_bad_arguments(void **state) {
    pkv_stats stats = {.struct_size = 0};
    char text[16];
    size_t size;

    (void)state;
    make_manager_in_use();
    invalid(pkv_get_stats(manager, NULL));
    invalid(pkv_get_stats(manager, &stats));
    assert_int_equal(pkv_format_prometheus(NULL, NULL, text, sizeof text, &size),
                     PKV_ERROR_INVALID_ARGUMENT);
    stats = stats_of(manager);
    assert_int_equal(pkv_format_prometheus(&stats, NULL, NULL, sizeof text, &size),
                     PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_format_prometheus(&stats, NULL, text, sizeof text, NULL),
                     PKV_ERROR_INVALID_ARGUMENT);
}

/* ---- batches --------------------------------------------------------------------------------- */

static void batch_build_bad_arguments(void **state) {
    pkv_batch batch = {.struct_size = sizeof batch, .max_requests = 4, .max_tokens = 64};
    pkv_batch bad;
    pkv_batch_entry entries[2];

    (void)state;
    make_manager_in_use();
    entries[0] = (pkv_batch_entry){requests[0], 54, 1};
    entries[1] = (pkv_batch_entry){requests[1], 52, 1};
    invalid(pkv_batch_build(manager, 0, entries, 2, NULL));
    invalid(pkv_batch_build(manager, 0, NULL, 2, &batch));
    invalid(pkv_batch_build(manager, 0, entries, -1, &batch));
    invalid(pkv_batch_build(manager, 1, entries, 2, &batch));
    bad = batch;
    bad.struct_size = 0;
    invalid(pkv_batch_build(manager, 0, entries, 2, &bad));
    bad = batch;
    bad.padded_requests = -1;
    invalid(pkv_batch_build(manager, 0, entries, 2, &bad));
    bad = batch;
    bad.padded_tokens = -1;
    invalid(pkv_batch_build(manager, 0, entries, 2, &bad));
    entries[1].num_new_tokens = -1;
    invalid(pkv_batch_build(manager, 0, entries, 2, &batch));
    entries[1] = (pkv_batch_entry){requests[1], INT32_MAX, INT32_MAX};
    invalid(pkv_batch_build(manager, 0, entries, 2, &batch));
    entries[1] = (pkv_batch_entry){{99, 1}, 0, 1};
    refused(pkv_batch_build(manager, 0, entries, 2, &batch), PKV_ERROR_STALE_HANDLE);
    entries[1] = (pkv_batch_entry){requests[2], 0, 1};
    invalid(pkv_batch_build(manager, 0, entries, 2, &batch));
}

static void exports_bad_arguments(void **state) {
    pkv_block_id table[16];
    int32_t indptr[3], last_page_len[2], num_indices;
    pkv_batch_entry entries[2];

    (void)state;
    make_manager_in_use();
    entries[0] = (pkv_batch_entry){requests[0], 54, 1};
    entries[1] = (pkv_batch_entry){requests[1], 52, 1};
    memset(table, 0x7b, sizeof table);
    invalid(pkv_export_padded(manager, 0, entries, 2, NULL, 8, 0));
    invalid(pkv_export_padded(manager, 1, entries, 2, table, 8, 0));
    invalid(pkv_export_padded(manager, 0, NULL, 2, table, 8, 0));
    refused(pkv_export_padded(manager, 0, entries, 2, table, 3, 0), PKV_ERROR_LIMIT);
    invalid(pkv_export_padded(manager, 0, entries, 2, table, -8, 0));
    invalid(pkv_export_csr(manager, 0, entries, 2, false, NULL, table, 16, last_page_len,
                           &num_indices));
    invalid(pkv_export_csr(manager, 0, entries, 2, false, indptr, NULL, 16, last_page_len,
                           &num_indices));
    invalid(pkv_export_csr(manager, 0, entries, 2, false, indptr, table, -1, last_page_len,
                           &num_indices));
    invalid(pkv_export_csr(manager, 0, entries, 2, false, indptr, table, 16, NULL, &num_indices));
    invalid(pkv_export_csr(manager, 0, entries, 2, false, indptr, table, 16, last_page_len, NULL));
    entries[1].request.generation += 1;
    refused(pkv_export_padded(manager, 0, entries, 2, table, 8, 0), PKV_ERROR_STALE_HANDLE);
    assert_int_equal(table[0], 0x7b7b7b7b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        fixture_test(allocate_negative_counts),
        fixture_test(allocate_nothing),
        fixture_test(allocate_counts_that_contradict_each_other),
        fixture_test(allocate_a_hit_that_does_not_exist_is_not_found),
        fixture_test(allocate_huge_counts_are_capped_not_overflowed),
        fixture_test(allocate_beyond_the_row_is_a_limit),
        fixture_test(allocate_output_without_size_is_invalid),
        fixture_test(computed_blocks_bad_arguments),
        fixture_test(cache_blocks_bad_counts),
        fixture_test(evict_blocks_bad_ids),
        fixture_test(readers_of_tables_bad_arguments),
        fixture_test(drains_bad_arguments),
        fixture_test(stats_bad_arguments),
        fixture_test(batch_build_bad_arguments),
        fixture_test(exports_bad_arguments),
    };

    return cmocka_run_group_tests_name("errors of the manager", tests, NULL, NULL);
}
