/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The calls that read a manager or drain it: tables and their changes, batches, exports, events and
 * fills. A mirror of the device's tables is kept by applying the changes. */
#include "support/sim_manager.h"

#include <string.h>

#define MAX_ENTRIES MODEL_MAX_REQUESTS
#define MAX_EXPORT (MAX_ENTRIES * MODEL_MAX_COLUMNS)
#define MAX_BATCH_TOKENS 4096

static bool has_group(const sim *self, int32_t group) {
    return group >= 0 && group < self->model.num_groups;
}

/* ---- tables ---------------------------------------------------------------------------------- */

pkv_status sim_call_common_prefix(sim *self, pkv_request handle, int32_t group) {
    int32_t slot = model_find_request(&self->model, handle);
    int32_t num_blocks = -1;
    model_statuses allowed =
        (slot < 0 ? MODEL_STALE : 0) | (has_group(self, group) ? 0 : MODEL_INVALID);
    pkv_status status;

    sim_say(self->log, "get_num_common_prefix_blocks {%u, %u} group %d", handle.index,
            handle.generation, group);
    status =
        sim_judge(self, pkv_get_num_common_prefix_blocks(self->manager, handle, group, &num_blocks),
                  allowed != 0 ? allowed : MODEL_OK);
    if (allowed == 0) {
        sim_expect_equal(
            self->log, "common prefix", num_blocks,
            model_num_common_prefix_blocks(&self->model, &self->model.requests[slot], group));
    }
    return status;
}

/* I23: after all changes were taken, the mirror shows what the host's tables show. */
static void compare_mirror(sim *self, int32_t group) {
    for (int32_t i = 0; i < MODEL_MAX_REQUESTS && !self->log->has_failed; i++) {
        const model_request *request = &self->model.requests[i];
        const model_table *table = &request->tables[group];
        for (int32_t column = 0; request->is_open && column < table->num_blocks; column++) {
            pkv_block_id cell = self->mirror[group][request->row][column];
            if (cell != table->ids[column]) {
                sim_problem(self->log, "I23: mirror, group %d, row %d, column %d: %d, not %d",
                            group, request->row, column, cell, table->ids[column]);
            }
        }
    }
}

pkv_status sim_call_take_updates(sim *self, int32_t group, int32_t capacity) {
    static pkv_table_update updates[SIM_MAX_UPDATES];
    int32_t num_updates = -1;
    pkv_status status;

    sim_say(self->log, "take_table_updates group %d capacity %d", group, capacity);
    status = sim_judge(
        self, pkv_take_table_updates(self->manager, group, updates, capacity, &num_updates),
        has_group(self, group) ? MODEL_OK | MODEL_MORE : MODEL_INVALID);
    if (!has_group(self, group)) {
        return status;
    }
    if (num_updates < 0 || num_updates > capacity ||
        (status == PKV_MORE && num_updates != capacity)) {
        sim_problem(self->log, "%d updates for a capacity of %d, status %s", num_updates, capacity,
                    pkv_status_name(status));
        return status;
    }
    for (int32_t i = 0; i < num_updates; i++) {
        const pkv_table_update *update = &updates[i];
        if (update->row < 1 || update->row > self->model.max_rows || update->column < 0 ||
            update->column >= self->model.widths[group] || update->block_id < 0 ||
            update->block_id >= self->model.pool.num_blocks) {
            sim_problem(self->log, "I21: update of row %d, column %d to block %d", update->row,
                        update->column, update->block_id);
            return status;
        }
        sim_digest(self->counts, (uint64_t)update->row << 32 | (uint64_t)update->column);
        self->mirror[group][update->row][update->column] = update->block_id;
    }
    if (status == PKV_OK) {
        compare_mirror(self, group);
    }
    return status;
}

pkv_status sim_call_mark_dirty(sim *self) {
    sim_say(self->log, "mark_tables_dirty");
    memset(self->mirror, 0x77, sizeof self->mirror);
    return sim_judge(self, pkv_mark_tables_dirty(self->manager), MODEL_OK);
}

/* ---- drains ---------------------------------------------------------------------------------- */

pkv_status sim_call_take_events(sim *self, int32_t capacity) {
    static pkv_event events[MODEL_MAX_EVENTS];
    static model_event expected[MODEL_MAX_EVENTS];
    int32_t num_events = -1;
    int32_t num_expected;
    uint64_t num_dropped = 0;
    uint64_t num_expected_dropped;
    pkv_status status = model_pool_take_events(&self->model.pool, expected, capacity, &num_expected,
                                               &num_expected_dropped);

    sim_say(self->log, "take_events capacity %d", capacity);
    status =
        sim_judge(self, pkv_take_events(self->manager, events, capacity, &num_events, &num_dropped),
                  MODEL_STATUS(status));
    sim_expect_equal(self->log, "number of events", num_events, num_expected);
    sim_expect_equal(self->log, "dropped events", (int64_t)num_dropped,
                     (int64_t)num_expected_dropped);
    if (!self->log->has_failed) {
        sim_compare_events(self->log, &self->consumer, &self->model.pool, events, expected,
                           num_events, num_dropped);
    }
    if (status == PKV_OK && !self->log->has_failed) {
        sim_compare_consumer(self->log, &self->consumer, &self->model.pool);
    }
    return status;
}

pkv_status sim_call_take_fills(
    sim *self, int32_t group, int32_t capacity, pkv_block_id *ids, int32_t *num_fills) {
    static pkv_block_id own_ids[MODEL_MAX_BLOCKS];
    pkv_block_id *out = ids != NULL ? ids : own_ids;
    int32_t count = -1;
    int32_t num_left = has_group(self, group) ? model_pool_num_fills(&self->model.pool, group) : 0;
    pkv_status status;

    sim_say(self->log, "take_fills group %d capacity %d", group, capacity);
    status = sim_judge(self, pkv_take_fills(self->manager, group, out, capacity, &count),
                       !has_group(self, group) ? MODEL_INVALID
                       : num_left > capacity   ? MODEL_MORE
                                               : MODEL_OK);
    if (!has_group(self, group)) {
        return status;
    }
    sim_expect_equal(self->log, "number of fills", count,
                     num_left < capacity ? num_left : capacity);
    for (int32_t i = 0; i < count && !self->log->has_failed; i++) {
        sim_digest(self->counts, (uint64_t)out[i]);
        if (!model_pool_take_fill(&self->model.pool, group, out[i])) {
            sim_problem(self->log, "I10: fill of block %d, which did not wait for it", out[i]);
        }
    }
    if (num_fills != NULL) {
        *num_fills = count;
    }
    return status;
}

/* ---- batches --------------------------------------------------------------------------------- */

static void translate(const sim *self,
                      const pkv_batch_entry *entries,
                      int32_t num_entries,
                      model_entry *translated) {
    for (int32_t i = 0; i < num_entries; i++) {
        translated[i] = (model_entry){model_find_request(&self->model, entries[i].request),
                                      entries[i].num_computed_tokens, entries[i].num_new_tokens};
    }
}

static void compare_ints(
    sim *self, const char *what, const int32_t *library, const int32_t *model, int64_t count) {
    for (int64_t i = 0; i < count && library != NULL && !self->log->has_failed; i++) {
        if (library[i] != model[i]) {
            sim_problem(self->log, "%s[%lld]: library %d, model %d", what, (long long)i, library[i],
                        model[i]);
        }
    }
}

static void compare_batch(sim *self, const pkv_batch *library, const pkv_batch *model) {
    int32_t num_requests =
        model->num_requests > model->padded_requests ? model->num_requests : model->padded_requests;
    int32_t num_tokens =
        model->num_tokens > model->padded_tokens ? model->num_tokens : model->padded_tokens;

    compare_ints(self, "rows", library->rows, model->rows, num_requests);
    compare_ints(self, "seq_lens", library->seq_lens, model->seq_lens, num_requests);
    compare_ints(self, "query_start_loc", library->query_start_loc, model->query_start_loc,
                 num_requests + 1);
    for (int32_t i = 0; i < num_tokens && library->slot_mapping != NULL && !self->log->has_failed;
         i++) {
        if (library->slot_mapping[i] != model->slot_mapping[i]) {
            sim_problem(self->log, "slot_mapping[%d]: library %lld, model %lld", i,
                        (long long)library->slot_mapping[i], (long long)model->slot_mapping[i]);
        }
    }
}

pkv_status sim_call_batch_build(sim *self,
                                int32_t group,
                                const pkv_batch_entry *entries,
                                int32_t num_entries,
                                pkv_batch *batch) {
    static int32_t rows[MAX_BATCH_TOKENS];
    static int32_t seq_lens[MAX_BATCH_TOKENS];
    static int32_t query_start_loc[MAX_BATCH_TOKENS + 1];
    static int64_t slot_mapping[MAX_BATCH_TOKENS];
    model_entry translated[MAX_ENTRIES];
    pkv_batch expected = *batch;
    model_statuses allowed;
    pkv_status status;

    sim_say(self->log, "batch_build group %d entries %d capacity %d x %d padded %d x %d", group,
            num_entries, batch->max_requests, batch->max_tokens, batch->padded_requests,
            batch->padded_tokens);
    translate(self, entries, num_entries, translated);
    expected.rows = batch->rows != NULL ? rows : NULL;
    expected.seq_lens = batch->seq_lens != NULL ? seq_lens : NULL;
    expected.query_start_loc = batch->query_start_loc != NULL ? query_start_loc : NULL;
    expected.slot_mapping = batch->slot_mapping != NULL ? slot_mapping : NULL;
    allowed = model_batch_build(&self->model, group, translated, num_entries, &expected);
    status = sim_judge(self, pkv_batch_build(self->manager, group, entries, num_entries, batch),
                       allowed);
    if (status == PKV_OK || status == PKV_ERROR_LIMIT) {
        sim_expect_equal(self->log, "num_requests", batch->num_requests, expected.num_requests);
        sim_expect_equal(self->log, "num_tokens", batch->num_tokens, expected.num_tokens);
    }
    if (status == PKV_OK && !self->log->has_failed) {
        compare_batch(self, batch, &expected);
    }
    return status;
}

pkv_status sim_call_export_padded(sim *self,
                                  int32_t group,
                                  const pkv_batch_entry *entries,
                                  int32_t num_entries,
                                  int64_t row_stride) {
    static pkv_block_id library[MAX_EXPORT];
    static pkv_block_id model[MAX_EXPORT];
    model_entry translated[MAX_ENTRIES];
    pkv_block_id fill = -1;
    pkv_status status;

    sim_say(self->log, "export_padded group %d entries %d stride %lld", group, num_entries,
            (long long)row_stride);
    translate(self, entries, num_entries, translated);
    memset(library, 0x55, sizeof library);
    memset(model, 0x55, sizeof model);
    status = sim_judge(
        self,
        pkv_export_padded(self->manager, group, entries, num_entries, library, row_stride, fill),
        model_export_padded(&self->model, group, translated, num_entries, model, row_stride, fill));
    if (memcmp(library, model, sizeof library) != 0) {
        sim_problem(self->log, "the padded table differs, or an error wrote into it");
    }
    return status;
}

pkv_status sim_call_export_csr(sim *self,
                               int32_t group,
                               const pkv_batch_entry *entries,
                               int32_t num_entries,
                               bool skip_leading_null,
                               int32_t capacity) {
    static pkv_block_id indices[MAX_EXPORT];
    static pkv_block_id expected_indices[MAX_EXPORT];
    int32_t indptr[MAX_ENTRIES + 1];
    int32_t expected_indptr[MAX_ENTRIES + 1];
    int32_t last_page_len[MAX_ENTRIES];
    int32_t expected_last_page_len[MAX_ENTRIES];
    model_entry translated[MAX_ENTRIES];
    int32_t num_indices = -1;
    int32_t expected_num_indices = -1;
    model_statuses allowed;
    pkv_status status;

    sim_say(self->log, "export_csr group %d entries %d capacity %d skip %d", group, num_entries,
            capacity, skip_leading_null);
    translate(self, entries, num_entries, translated);
    allowed = model_export_csr(&self->model, group, translated, num_entries, skip_leading_null,
                               expected_indptr, expected_indices, capacity, expected_last_page_len,
                               &expected_num_indices);
    status = sim_judge(self,
                       pkv_export_csr(self->manager, group, entries, num_entries, skip_leading_null,
                                      indptr, indices, capacity, last_page_len, &num_indices),
                       allowed);
    if (status == PKV_OK || status == PKV_ERROR_LIMIT) {
        sim_expect_equal(self->log, "num_indices", num_indices, expected_num_indices);
    }
    if (status == PKV_OK && !self->log->has_failed) {
        compare_ints(self, "indptr", indptr, expected_indptr, num_entries + 1);
        compare_ints(self, "indices", indices, expected_indices, num_indices);
        compare_ints(self, "last_page_len", last_page_len, expected_last_page_len, num_entries);
    }
    return status;
}
