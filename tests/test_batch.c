/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Goal: what leaves the manager as plain arrays (batches, padded tables, index pointers, table
 * updates, fills) says the same as its block tables. Method: small batches by hand, then a mirror
 * of the device's table that is kept by updates alone. */
#include "support/fixture.h"

#include <string.h>

#define MAX_ENTRIES 8
#define MAX_TOKENS 256

/* Arrays of a batch, filled with a value that nothing writes. */
typedef struct batch_arrays {
    pkv_batch batch;
    int32_t rows[MAX_ENTRIES], seq_lens[MAX_ENTRIES], query_start_loc[MAX_ENTRIES + 1];
    int64_t slot_mapping[MAX_TOKENS];
} batch_arrays;

static pkv_batch *batch_init(batch_arrays *arrays) {
    memset(arrays, 0x7b, sizeof *arrays);
    memset(&arrays->batch, 0, sizeof arrays->batch);
    arrays->batch.struct_size = sizeof arrays->batch;
    arrays->batch.max_requests = MAX_ENTRIES;
    arrays->batch.max_tokens = MAX_TOKENS;
    arrays->batch.rows = arrays->rows;
    arrays->batch.seq_lens = arrays->seq_lens;
    arrays->batch.query_start_loc = arrays->query_start_loc;
    arrays->batch.slot_mapping = arrays->slot_mapping;
    return &arrays->batch;
}

/* Three requests of blocks of 4: tables [1 2 3], [4] and [5 6], with 9, 2 and 5 tokens. */
static void open_three(pkv_manager *manager, pkv_request requests[3]) {
    requests[0] = open_prompt(manager, "0..8");
    requests[1] = open_prompt(manager, "100 101");
    requests[2] = open_prompt(manager, "200..204");
    for (int32_t i = 0; i < 3; i++) {
        assert_int_equal(admit(manager, requests[i]), 0);
    }
    assert_string_equal(table_text(manager, requests[0], 0), "1 2 3");
    assert_string_equal(table_text(manager, requests[2], 0), "5 6");
}

/* ---- pkv_batch_build ------------------------------------------------------------------------- */

static void batch_lists_entries_in_their_order(void **state) {
    pkv_manager *manager = make_small_manager(21, 4);
    pkv_request requests[3];
    batch_arrays arrays;
    pkv_batch *batch = batch_init(&arrays);

    (void)state;
    open_three(manager, requests);
    {
        /* A chunk of a prefill, a whole prefill, and a decode, in another order than opened. */
        const pkv_batch_entry entries[] = {
            {requests[2], 1, 3}, {requests[1], 0, 2}, {requests[0], 8, 1}};

        assert_int_equal(pkv_batch_build(manager, 0, entries, 3, batch), PKV_OK);
    }
    assert_int_equal(batch->num_requests, 3);
    assert_int_equal(batch->num_tokens, 6);
    for (int32_t i = 0; i < 3; i++) {
        assert_int_equal(arrays.rows[i], info_of(manager, requests[2 - i]).row);
    }
    assert_string_equal(ids_text(arrays.seq_lens, 3), "4 2 9");
    assert_string_equal(ids_text(arrays.query_start_loc, 4), "0 3 5 6");
    assert_string_equal(slots_text(arrays.slot_mapping, 6), "21 22 23 16 17 12");
    assert_int_equal(arrays.seq_lens[3], 0x7b7b7b7b);
    assert_true(arrays.slot_mapping[6] == INT64_C(0x7b7b7b7b7b7b7b7b));
}

static void batch_is_padded_with_the_null_row(void **state) {
    pkv_manager *manager = make_small_manager(21, 4);
    pkv_request requests[3];
    batch_arrays arrays;
    pkv_batch *batch = batch_init(&arrays);
    pkv_batch_entry entry;

    (void)state;
    open_three(manager, requests);
    entry = (pkv_batch_entry){requests[1], 0, 2};
    batch->padded_requests = 4;
    batch->padded_tokens = 5;
    assert_int_equal(pkv_batch_build(manager, 0, &entry, 1, batch), PKV_OK);
    assert_int_equal(batch->num_requests, 1);
    assert_int_equal(batch->num_tokens, 2);
    assert_int_equal(arrays.rows[0], info_of(manager, requests[1]).row);
    assert_string_equal(ids_text(arrays.rows + 1, 3), "0 0 0");
    assert_string_equal(ids_text(arrays.seq_lens, 4), "2 0 0 0");
    assert_string_equal(ids_text(arrays.query_start_loc, 5), "0 2 2 2 2");
    assert_string_equal(slots_text(arrays.slot_mapping, 5), "16 17 -1 -1 -1");
    assert_int_equal(arrays.rows[4], 0x7b7b7b7b);
    assert_int_equal(arrays.query_start_loc[5], 0x7b7b7b7b);
    assert_true(arrays.slot_mapping[5] == INT64_C(0x7b7b7b7b7b7b7b7b));
}

static void batch_of_nothing_is_padding_only(void **state) {
    pkv_manager *manager = make_small_manager(21, 4);
    batch_arrays arrays;
    pkv_batch *batch = batch_init(&arrays);

    (void)state;
    batch->padded_requests = 2;
    batch->padded_tokens = 3;
    assert_int_equal(pkv_batch_build(manager, 0, NULL, 0, batch), PKV_OK);
    assert_int_equal(batch->num_requests, 0);
    assert_int_equal(batch->num_tokens, 0);
    assert_string_equal(ids_text(arrays.query_start_loc, 3), "0 0 0");
    assert_string_equal(slots_text(arrays.slot_mapping, 3), "-1 -1 -1");
}

static void batch_arrays_that_are_not_wanted_may_be_null(void **state) {
    pkv_manager *manager = make_small_manager(21, 4);
    pkv_request requests[3];
    batch_arrays arrays;
    pkv_batch *batch = batch_init(&arrays);
    pkv_batch_entry entry;

    (void)state;
    open_three(manager, requests);
    entry = (pkv_batch_entry){requests[0], 0, 9};
    batch->rows = NULL;
    batch->seq_lens = NULL;
    batch->query_start_loc = NULL;
    batch->slot_mapping = NULL;
    assert_int_equal(pkv_batch_build(manager, 0, &entry, 1, batch), PKV_OK);
    assert_int_equal(batch->num_tokens, 9);

    /* Without an array its capacity says nothing. */
    batch->max_requests = 0;
    batch->max_tokens = 0;
    assert_int_equal(pkv_batch_build(manager, 0, &entry, 1, batch), PKV_OK);
    batch->slot_mapping = arrays.slot_mapping;
    assert_int_equal(pkv_batch_build(manager, 0, &entry, 1, batch), PKV_ERROR_LIMIT);
    batch->max_tokens = 9;
    assert_int_equal(pkv_batch_build(manager, 0, &entry, 1, batch), PKV_OK);
    assert_string_equal(slots_text(arrays.slot_mapping, 9), "4 5 6 7 8 9 10 11 12");
}

static void batch_too_large_for_its_arrays_tells_the_need(void **state) {
    pkv_manager *manager = make_small_manager(21, 4);
    pkv_request requests[3];
    batch_arrays arrays;
    pkv_batch *batch = batch_init(&arrays);

    (void)state;
    open_three(manager, requests);
    {
        const pkv_batch_entry entries[] = {
            {requests[0], 0, 9}, {requests[1], 0, 2}, {requests[2], 0, 5}};

        batch->max_tokens = 15;
        assert_int_equal(pkv_batch_build(manager, 0, entries, 3, batch), PKV_ERROR_LIMIT);
        assert_int_equal(batch->num_requests, 3);
        assert_int_equal(batch->num_tokens, 16);
        assert_true(arrays.slot_mapping[0] == INT64_C(0x7b7b7b7b7b7b7b7b));
        batch->max_tokens = 16;
        batch->max_requests = 2;
        assert_int_equal(pkv_batch_build(manager, 0, entries, 3, batch), PKV_ERROR_LIMIT);
        assert_int_equal(arrays.rows[0], 0x7b7b7b7b);
        batch->max_requests = 3;
        batch->padded_requests = 4;
        assert_int_equal(pkv_batch_build(manager, 0, entries, 3, batch), PKV_ERROR_LIMIT);
        batch->padded_requests = 3;
        assert_int_equal(pkv_batch_build(manager, 0, entries, 3, batch), PKV_OK);
    }
}

static void batch_of_a_later_caller_is_served_while_its_fields_are_zero(void **state) {
    pkv_manager *manager = make_small_manager(21, 4);
    struct {
        pkv_batch known;
        uint64_t later;
    } batch = {.known = {.struct_size = sizeof batch}};

    (void)state;
    assert_int_equal(pkv_batch_build(manager, 0, NULL, 0, &batch.known), PKV_OK);
    batch.later = 1;
    assert_int_equal(pkv_batch_build(manager, 0, NULL, 0, &batch.known), PKV_ERROR_UNSUPPORTED);
    batch.known.struct_size = sizeof batch.known - 1;
    assert_int_equal(pkv_batch_build(manager, 0, NULL, 0, &batch.known),
                     PKV_ERROR_INVALID_ARGUMENT);
    /* An error leaves the counts alone. */
    batch.known = (pkv_batch){
        .struct_size = sizeof batch.known, .num_requests = 7, .num_tokens = 7, .max_tokens = -1};
    assert_int_equal(pkv_batch_build(manager, 0, NULL, 0, &batch.known),
                     PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(batch.known.num_requests, 7);
    assert_int_equal(batch.known.num_tokens, 7);
}

static void batch_beyond_the_blocks_is_refused(void **state) {
    pkv_manager *manager = make_small_manager(21, 4);
    pkv_request requests[3];
    pkv_request waiting;
    batch_arrays arrays;
    pkv_batch *batch = batch_init(&arrays);

    (void)state;
    open_three(manager, requests);
    waiting = open_prompt(manager, "0..8");
    {
        const pkv_batch_entry too_long = {requests[1], 2, 3};
        const pkv_batch_entry no_blocks = {waiting, 0, 1};
        const pkv_batch_entry negative = {requests[0], -1, 2};
        const pkv_batch_entry good = {requests[0], 8, 1};

        assert_int_equal(pkv_batch_build(manager, 0, &too_long, 1, batch),
                         PKV_ERROR_INVALID_ARGUMENT);
        assert_int_equal(pkv_batch_build(manager, 0, &no_blocks, 1, batch),
                         PKV_ERROR_INVALID_ARGUMENT);
        assert_int_equal(pkv_batch_build(manager, 0, &negative, 1, batch),
                         PKV_ERROR_INVALID_ARGUMENT);
        assert_int_equal(pkv_batch_build(manager, 1, &good, 1, batch), PKV_ERROR_INVALID_ARGUMENT);
        assert_int_equal(arrays.rows[0], 0x7b7b7b7b);
        assert_int_equal(pkv_batch_build(manager, 0, &good, 1, batch), PKV_OK);
    }
}

static void batch_slots_of_dropped_blocks_are_not_written(void **state) {
    const pkv_group_config groups[] = {full_group(4), window_group(4, 4)};
    pkv_manager *manager = make_hybrid_manager(41, groups, 2);
    pkv_request request = open_prompt(manager, "0..11");
    batch_arrays arrays;
    pkv_batch *batch = batch_init(&arrays);
    pkv_batch_entry entry;

    (void)state;
    admit(manager, request);
    append_tokens(manager, request, "12 13");
    assert_int_equal(allocate(manager, request, 12, 2), PKV_OK);
    assert_string_equal(table_text(manager, request, 1), "0 0 6 8");
    entry = (pkv_batch_entry){request, 6, 8};
    assert_int_equal(pkv_batch_build(manager, 1, &entry, 1, batch), PKV_OK);
    assert_string_equal(slots_text(arrays.slot_mapping, 8), "-1 -1 24 25 26 27 32 33");
    assert_int_equal(pkv_batch_build(manager, 0, &entry, 1, batch), PKV_OK);
    assert_string_equal(slots_text(arrays.slot_mapping, 8), "10 11 12 13 14 15 28 29");
}

static void slot_of_every_position_is_block_times_size_plus_offset(void **state) {
    const pkv_group_config groups[] = {full_group(32), full_group(8)};
    pkv_manager *manager = make_hybrid_manager(121, groups, 2);
    pkv_request request = open_prompt(manager, "0..199");

    (void)state;
    admit(manager, request);
    for (int32_t group = 0; group < 2; group++) {
        const pkv_block_id *table;
        int32_t num_blocks;
        int32_t block_size = groups[group].block_size;

        assert_int_equal(pkv_get_block_table(manager, request, group, &table, &num_blocks), PKV_OK);
        for (int32_t first = 0; first < 200; first += 7) {
            batch_arrays arrays;
            pkv_batch *batch = batch_init(&arrays);
            const pkv_batch_entry entry = {request, first, 200 - first};

            assert_int_equal(pkv_batch_build(manager, group, &entry, 1, batch), PKV_OK);
            assert_int_equal(batch->num_tokens, 200 - first);
            for (int32_t position = first; position < 200; position++) {
                int64_t slot = arrays.slot_mapping[position - first];

                assert_int_equal(slot, pkv_compute_slot(table, block_size, position));
                assert_int_equal(slot / block_size, table[position / block_size]);
                assert_int_equal(slot % block_size, position % block_size);
            }
        }
    }
}

static void slot_of_the_largest_pool_does_not_overflow(void **state) {
    const pkv_block_id table[2] = {PKV_MAX_BLOCKS - 1, PKV_NULL_BLOCK};

    (void)state;
    assert_true(pkv_compute_slot(table, 4096, 4095) == INT64_C(4096) * PKV_MAX_BLOCKS - 1);
    assert_true(pkv_compute_slot(table, 4096, 4096) == PKV_NO_SLOT);
}

/* ---- exports --------------------------------------------------------------------------------- */

static void export_padded_is_in_entry_order_with_fill(void **state) {
    pkv_manager *manager = make_small_manager(21, 4);
    pkv_request requests[3];
    pkv_block_id table[3 * 4];

    (void)state;
    open_three(manager, requests);
    {
        const pkv_batch_entry entries[] = {
            {requests[2], 4, 1}, {requests[1], 0, 2}, {requests[0], 4, 3}};

        assert_int_equal(pkv_export_padded(manager, 0, entries, 3, table, 4, -7), PKV_OK);
        /* The third entry uses 7 of its 9 tokens, hence two of its three blocks. */
        assert_string_equal(ids_text(table, 12), "5 6 -7 -7 4 -7 -7 -7 1 2 -7 -7");

        memset(table, 0x7b, sizeof table);
        assert_int_equal(pkv_export_padded(manager, 0, entries, 3, table, 1, 0), PKV_ERROR_LIMIT);
        assert_int_equal(table[0], 0x7b7b7b7b);
    }
}

static void export_csr_is_what_flashinfer_takes(void **state) {
    pkv_manager *manager = make_small_manager(21, 4);
    pkv_request requests[3];
    int32_t indptr[4], last_page_len[3], num_indices;
    pkv_block_id indices[8];

    (void)state;
    open_three(manager, requests);
    {
        const pkv_batch_entry entries[] = {
            {requests[0], 8, 1}, {requests[1], 0, 0}, {requests[2], 0, 4}};

        assert_int_equal(pkv_export_csr(manager, 0, entries, 3, false, indptr, indices, 8,
                                        last_page_len, &num_indices),
                         PKV_OK);
        assert_int_equal(num_indices, 4);
        assert_string_equal(ids_text(indptr, 4), "0 3 3 4");
        assert_string_equal(ids_text(indices, 4), "1 2 3 5");
        assert_string_equal(ids_text(last_page_len, 3), "1 0 4");

        memset(indices, 0x7b, sizeof indices);
        assert_int_equal(pkv_export_csr(manager, 0, entries, 3, false, indptr, indices, 3,
                                        last_page_len, &num_indices),
                         PKV_ERROR_LIMIT);
        assert_int_equal(num_indices, 4);
        assert_int_equal(indices[0], 0x7b7b7b7b);
    }
}

static void export_csr_leaves_out_leading_nulls_on_request(void **state) {
    const pkv_group_config group = window_group(4, 4);
    pkv_manager *manager = make_hybrid_manager(41, &group, 1);
    pkv_request request = open_prompt(manager, "0..11");
    int32_t indptr[2], last_page_len[1], num_indices;
    pkv_block_id indices[8];
    pkv_batch_entry entry;

    (void)state;
    admit(manager, request);
    append_tokens(manager, request, "12 13");
    assert_int_equal(allocate(manager, request, 12, 2), PKV_OK);
    assert_string_equal(table_text(manager, request, 0), "0 0 3 4");
    entry = (pkv_batch_entry){request, 12, 2};

    assert_int_equal(pkv_export_csr(manager, 0, &entry, 1, false, indptr, indices, 8, last_page_len,
                                    &num_indices),
                     PKV_OK);
    assert_string_equal(ids_text(indices, num_indices), "0 0 3 4");
    assert_int_equal(pkv_export_csr(manager, 0, &entry, 1, true, indptr, indices, 8, last_page_len,
                                    &num_indices),
                     PKV_OK);
    assert_string_equal(ids_text(indptr, 2), "0 2");
    assert_string_equal(ids_text(indices, num_indices), "3 4");
    assert_int_equal(last_page_len[0], 2);
}

/* A length in the last block of no blocks would make a kernel count below zero. */
static void export_csr_of_nulls_alone_has_no_last_block(void **state) {
    const pkv_group_config group = window_group(4, 1);
    pkv_manager *manager = make_hybrid_manager(41, &group, 1);
    pkv_request request = open_prompt(manager, "0..7");
    pkv_batch_entry entry = {request, 8, 0};
    int32_t indptr[2], last_page_len[1], num_indices;

    (void)state;
    admit(manager, request);
    assert_int_equal(pkv_remove_skipped_blocks(manager, request, 8), PKV_OK);
    assert_int_equal(
        pkv_export_csr(manager, 0, &entry, 1, true, indptr, NULL, 0, last_page_len, &num_indices),
        PKV_OK);
    assert_string_equal(ids_text(indptr, 2), "0 0");
    assert_int_equal(last_page_len[0], 0);
}

/* ---- table updates --------------------------------------------------------------------------- */

#define MIRROR_ROWS 5
#define MIRROR_COLUMNS 64

static pkv_block_id mirror[MIRROR_ROWS][MIRROR_COLUMNS];

static void mirror_apply(const pkv_table_update *updates, int32_t num_updates) {
    for (int32_t i = 0; i < num_updates; i++) {
        assert_in_range(updates[i].row, 1, MIRROR_ROWS - 1);
        assert_in_range(updates[i].column, 0, MIRROR_COLUMNS - 1);
        mirror[updates[i].row][updates[i].column] = updates[i].block_id;
    }
}

/* Take all updates in portions of 3. Returns how many there were. */
static int32_t mirror_update(pkv_manager *manager, int32_t group) {
    pkv_table_update updates[3];
    int32_t num_updates = 0;
    int32_t total = 0;
    pkv_status status;

    do {
        status = pkv_take_table_updates(manager, group, updates, 3, &num_updates);
        mirror_apply(updates, num_updates);
        total += num_updates;
    } while (status == PKV_MORE);
    assert_int_equal(status, PKV_OK);
    return total;
}

static void assert_mirror_equals(const pkv_manager *manager, pkv_request request, int32_t group) {
    const pkv_block_id *table;
    int32_t num_blocks;

    assert_int_equal(pkv_get_block_table(manager, request, group, &table, &num_blocks), PKV_OK);
    assert_memory_equal(mirror[info_of(manager, request).row], table,
                        (size_t)num_blocks * sizeof *table);
}

static pkv_manager *make_mirrored_manager(int32_t num_blocks) {
    const pkv_group_config group = window_group(4, 12);
    pkv_manager_config config = small_config(num_blocks, 4);

    config.groups = &group;
    config.num_groups = 1;
    config.max_rows = MIRROR_ROWS - 1;
    config.max_model_len = MIRROR_COLUMNS * 4;
    memset(mirror, 0x7b, sizeof mirror);
    return make_manager(&config);
}

static void table_updates_keep_a_mirror_equal(void **state) {
    pkv_manager *manager = make_mirrored_manager(41);
    pkv_request requests[3];

    (void)state;
    for (int32_t i = 0; i < 3; i++) {
        requests[i] = open_prompt(manager, "%d..%d", 1000 * i, 1000 * i + 9 + i);
        admit(manager, requests[i]);
    }
    assert_int_equal(mirror_update(manager, 0), 9);
    assert_int_equal(mirror_update(manager, 0), 0);
    for (int32_t round = 0; round < 120; round++) {
        pkv_request request = requests[round % 3];
        int32_t num_tokens = info_of(manager, request).num_tokens;

        append_tokens(manager, request, "%d", round);
        assert_int_equal(allocate(manager, request, num_tokens, 1), PKV_OK);
        if (round == 60) {
            assert_int_equal(pkv_free(manager, request), PKV_OK);
            admit(manager, request);
        }
        if (round % 5 == 0) {
            mirror_update(manager, 0);
            for (int32_t i = 0; i < 3; i++) {
                assert_mirror_equals(manager, requests[i], 0);
            }
        }
    }
}

static void table_updates_of_a_freed_row_are_not_sent(void **state) {
    pkv_manager *manager = make_mirrored_manager(41);
    pkv_request request = open_prompt(manager, "0..19");

    (void)state;
    admit(manager, request);
    assert_int_equal(pkv_free(manager, request), PKV_OK);
    assert_int_equal(mirror_update(manager, 0), 0);
}

static void table_updates_after_mark_dirty_rebuild_a_lost_mirror(void **state) {
    pkv_manager *manager = make_mirrored_manager(41);
    pkv_request first = open_prompt(manager, "0..19");
    pkv_request second = open_prompt(manager, "100..111");

    (void)state;
    admit(manager, first);
    admit(manager, second);
    mirror_update(manager, 0);
    memset(mirror, 0x7b, sizeof mirror);
    assert_int_equal(pkv_mark_tables_dirty(manager), PKV_OK);
    assert_int_equal(mirror_update(manager, 0), 8);
    assert_mirror_equals(manager, first, 0);
    assert_mirror_equals(manager, second, 0);
}

static void table_updates_of_an_engine_that_never_drains_stay_bounded(void **state) {
    pkv_manager *manager = make_mirrored_manager(41);
    pkv_request request = open_prompt(manager, "0");

    (void)state;
    assert_int_equal(allocate(manager, request, 0, 1), PKV_OK);
    for (int32_t num_tokens = 1; num_tokens < 200; num_tokens++) {
        append_tokens(manager, request, "%d", num_tokens);
        assert_int_equal(allocate(manager, request, num_tokens, 1), PKV_OK);
    }
    /* One interval a row: never more cells than the row has blocks. */
    assert_int_equal(mirror_update(manager, 0), 50);
    assert_mirror_equals(manager, request, 0);
}

/* ---- fills ----------------------------------------------------------------------------------- */

static void zero_on_free_batches_wait_until_the_fills_were_taken(void **state) {
    pkv_manager_config config = small_config(21, 4);
    pkv_manager *manager;
    pkv_request request;
    batch_arrays arrays;
    pkv_batch *batch = batch_init(&arrays);
    pkv_batch_entry entry;
    pkv_block_id fills[8];
    pkv_block_id table[4];
    int32_t num_fills, indptr[2], last_page_len[1], num_indices;

    (void)state;
    config.zero_on_free = true;
    manager = make_manager(&config);
    request = open_prompt(manager, "0..8");
    admit(manager, request);
    entry = (pkv_batch_entry){request, 0, 9};
    assert_int_equal(pkv_batch_build(manager, 0, &entry, 1, batch), PKV_ERROR_BUSY);
    assert_int_equal(arrays.rows[0], 0x7b7b7b7b);
    assert_int_equal(pkv_export_padded(manager, 0, &entry, 1, table, 4, 0), PKV_ERROR_BUSY);
    assert_int_equal(
        pkv_export_csr(manager, 0, &entry, 1, false, indptr, table, 4, last_page_len, &num_indices),
        PKV_ERROR_BUSY);

    assert_int_equal(pkv_take_fills(manager, 0, fills, 2, &num_fills), PKV_MORE);
    assert_int_equal(pkv_batch_build(manager, 0, &entry, 1, batch), PKV_ERROR_BUSY);
    assert_int_equal(pkv_take_fills(manager, 0, fills + 2, 6, &num_fills), PKV_OK);
    assert_string_equal(ids_text(fills, 3), "1 2 3");
    assert_int_equal(pkv_batch_build(manager, 0, &entry, 1, batch), PKV_OK);
}

static void fills_name_each_group_its_own_blocks(void **state) {
    const pkv_group_config groups[] = {full_group(16), window_group(16, 32)};
    pkv_manager_config config = small_config(21, 16);
    pkv_manager *manager;
    pkv_block_id fills[8];
    int32_t num_fills;

    (void)state;
    config.groups = groups;
    config.num_groups = 2;
    config.fill_new_blocks = true;
    manager = make_manager(&config);
    admit(manager, open_prompt(manager, "0..39"));
    assert_int_equal(pkv_take_fills(manager, 1, fills, 8, &num_fills), PKV_OK);
    assert_string_equal(ids_text(fills, num_fills), "4 5 6");
    assert_int_equal(pkv_take_fills(manager, 0, fills, 8, &num_fills), PKV_OK);
    assert_string_equal(ids_text(fills, num_fills), "1 2 3");
    /* A hit is no new block. */
    admit(manager, open_prompt(manager, "0..39"));
    assert_int_equal(pkv_take_fills(manager, 0, fills, 8, &num_fills), PKV_OK);
    assert_string_equal(ids_text(fills, num_fills), "7");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        fixture_test(batch_lists_entries_in_their_order),
        fixture_test(batch_is_padded_with_the_null_row),
        fixture_test(batch_of_nothing_is_padding_only),
        fixture_test(batch_arrays_that_are_not_wanted_may_be_null),
        fixture_test(batch_too_large_for_its_arrays_tells_the_need),
        fixture_test(batch_of_a_later_caller_is_served_while_its_fields_are_zero),
        fixture_test(batch_beyond_the_blocks_is_refused),
        fixture_test(batch_slots_of_dropped_blocks_are_not_written),
        fixture_test(slot_of_every_position_is_block_times_size_plus_offset),
        fixture_test(slot_of_the_largest_pool_does_not_overflow),
        fixture_test(export_padded_is_in_entry_order_with_fill),
        fixture_test(export_csr_is_what_flashinfer_takes),
        fixture_test(export_csr_leaves_out_leading_nulls_on_request),
        fixture_test(export_csr_of_nulls_alone_has_no_last_block),
        fixture_test(table_updates_keep_a_mirror_equal),
        fixture_test(table_updates_of_a_freed_row_are_not_sent),
        fixture_test(table_updates_after_mark_dirty_rebuild_a_lost_mirror),
        fixture_test(table_updates_of_an_engine_that_never_drains_stay_bounded),
        fixture_test(zero_on_free_batches_wait_until_the_fills_were_taken),
        fixture_test(fills_name_each_group_its_own_blocks),
    };

    return cmocka_run_group_tests_name("batch", tests, NULL, NULL);
}
