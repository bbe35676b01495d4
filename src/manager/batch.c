/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* What leaves the manager as plain arrays: block tables, their changes, batches, exports for other
 * kernels, fills and events. Nothing here changes which block belongs to whom. */
#include "manager/manager.h"

#include "base/paged.h"

/* ---- tables ---------------------------------------------------------------------------------- */

/* Check handle, group and outputs of a reader of one table. */
static const struct pkvi_request *table_reader(const pkv_manager *manager,
                                               pkv_request handle,
                                               int32_t group,
                                               bool has_outputs,
                                               pkv_status *status) {
    const struct pkvi_request *request;

    if (manager == NULL) {
        *status = PKV_ERROR_INVALID_ARGUMENT;
        return NULL;
    }
    request = pkvi_manager_request(manager, handle, status);
    if (request == NULL) {
        return NULL;
    }
    if (!pkvi_manager_has_group(manager, group) || !has_outputs) {
        *status = PKVI_INVALID(manager, "there is no group %d, or an output is NULL", group);
        return NULL;
    }
    *status = PKV_OK;
    return request;
}

pkv_status pkv_get_block_table(const pkv_manager *manager,
                               pkv_request handle,
                               int32_t group,
                               const pkv_block_id **block_ids,
                               int32_t *num_blocks) {
    pkv_status status;
    const struct pkvi_request *request =
        table_reader(manager, handle, group, block_ids != NULL && num_blocks != NULL, &status);

    if (request == NULL) {
        return status;
    }
    *block_ids = NULL;
    *num_blocks = 0;
    if (request->row != PKV_NULL_ROW) {
        *block_ids = pkvi_manager_cells(manager, group, request->row);
        *num_blocks = pkvi_manager_row(manager, group, request->row)->num_blocks;
    }
    return PKV_OK;
}

pkv_status pkv_get_new_block_ids(const pkv_manager *manager,
                                 pkv_request handle,
                                 int32_t group,
                                 const pkv_block_id **block_ids,
                                 int32_t *num_blocks) {
    pkv_status status;
    const struct pkvi_request *request =
        table_reader(manager, handle, group, block_ids != NULL && num_blocks != NULL, &status);

    if (request == NULL) {
        return status;
    }
    *block_ids = NULL;
    *num_blocks = 0;
    if (request->row != PKV_NULL_ROW) {
        const struct pkvi_table_row *row = pkvi_manager_row(manager, group, request->row);
        *block_ids = pkvi_manager_cells(manager, group, request->row) + row->first_new;
        *num_blocks = row->num_blocks - row->first_new;
    }
    return PKV_OK;
}

/* Whether the owners of a block may be others than different rows: tables that wait for a step,
 * open swaps, or one row twice, by keys of the caller. */
static bool has_other_owners(const pkv_manager *manager) {
    for (const struct pkvi_holder *holder = manager->holders; holder; holder = holder->next) {
        if (holder->num_open > 0) {
            return true;
        }
    }
    return manager->rows.num_held > 0 || manager->requests.num_caller_keyed > 0;
}

/* Whether every leased row has `block` in `column`. As many owners as rows say so at once where
 * only rows own blocks. */
static bool is_common(const pkv_manager *manager, int32_t g, int32_t column, pkv_block_id block) {
    const struct pkvi_row_map *rows = &manager->rows;
    int32_t num_owners = pkvi_manager_num_owners(manager, block);

    if (num_owners < rows->num_leased) {
        return false;
    }
    if (!has_other_owners(manager)) {
        return num_owners == rows->num_leased;
    }
    for (int32_t row = 1; row <= rows->max_rows; row++) {
        if (rows->storage_of[row] >= 0 &&
            (column >= pkvi_manager_row(manager, g, row)->num_blocks ||
             pkvi_manager_cells(manager, g, row)[column] != block)) {
            return false;
        }
    }
    return true;
}

pkv_status pkv_get_num_common_prefix_blocks(const pkv_manager *manager,
                                            pkv_request handle,
                                            int32_t group,
                                            int32_t *num_blocks) {
    pkv_status status;
    const struct pkvi_request *request =
        table_reader(manager, handle, group, num_blocks != NULL, &status);
    const struct pkvi_table_row *row;
    const pkv_block_id *cells;

    if (request == NULL) {
        return status;
    }
    *num_blocks = 0;
    if (request->row == PKV_NULL_ROW || !manager->pool->is_caching ||
        pkvi_group_is_windowed(&manager->groups[group])) {
        return PKV_OK;
    }
    row = pkvi_manager_row(manager, group, request->row);
    cells = pkvi_manager_cells(manager, group, request->row);
    while (*num_blocks < row->num_blocks &&
           is_common(manager, group, *num_blocks, cells[*num_blocks])) {
        ++*num_blocks;
    }
    return PKV_OK;
}

pkv_status pkv_take_table_updates(pkv_manager *manager,
                                  int32_t group,
                                  pkv_table_update *updates,
                                  int32_t capacity,
                                  int32_t *num_updates) {
    if (manager == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    if (!pkvi_manager_has_group(manager, group) || num_updates == NULL || capacity < 0 ||
        (capacity > 0 && updates == NULL)) {
        return PKVI_INVALID(manager, "no such group, a NULL array, or a negative capacity");
    }
    return pkvi_table_take_updates(&manager->groups[group].table, &manager->rows, updates, capacity,
                                   num_updates);
}

pkv_status pkv_mark_tables_dirty(pkv_manager *manager) {
    if (manager == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    for (int32_t row = 1; row <= manager->rows.max_rows; row++) {
        for (int32_t g = 0; g < manager->num_groups && manager->rows.storage_of[row] >= 0; g++) {
            struct pkvi_table_row *table_row = pkvi_manager_row(manager, g, row);
            pkvi_table_mark(table_row, 0, table_row->num_blocks);
        }
    }
    return PKV_OK;
}

/* ---- batches --------------------------------------------------------------------------------- */

/* Check the entries of a batch against what their requests hold; count tokens. */
static pkv_status check_entries(const pkv_manager *manager,
                                int32_t group,
                                const pkv_batch_entry *entries,
                                int32_t num_entries,
                                int64_t *num_tokens) {
    *num_tokens = 0;
    if (!pkvi_manager_has_group(manager, group) || num_entries < 0 ||
        (num_entries > 0 && entries == NULL)) {
        return PKVI_INVALID(manager, "no such group, entries is NULL or num_entries negative");
    }
    if (manager->zero_on_free && pkvi_fill_list_has(&manager->pool->fills, group)) {
        return pkvi_fail(manager->error, PKV_ERROR_BUSY,
                         "zero_on_free: take the fills of group %d first", group);
    }
    if (pkvi_copy_list_has(&manager->copies, manager->pool, group)) {
        return pkvi_fail(manager->error, PKV_ERROR_BUSY, "take the copies of group %d first",
                         group);
    }
    for (int32_t i = 0; i < num_entries; i++) {
        pkv_status status = PKV_OK;
        const struct pkvi_request *request =
            pkvi_manager_request(manager, entries[i].request, &status);
        int64_t length = (int64_t)entries[i].num_computed_tokens + entries[i].num_new_tokens;
        int64_t room = 0;

        if (request == NULL) {
            return status;
        }
        if (request->row != PKV_NULL_ROW) {
            room = (int64_t)pkvi_manager_row(manager, group, request->row)->num_blocks *
                   manager->groups[group].block_size;
        }
        /* Blocks may hold more than any position says, where block sizes are huge. */
        room = room < INT32_MAX ? room : INT32_MAX;
        if (entries[i].num_computed_tokens < 0 || entries[i].num_new_tokens < 0 || length > room) {
            return PKVI_INVALID(manager, "entry %d: %lld tokens do not fit into blocks for %lld", i,
                                (long long)length, (long long)room);
        }
        *num_tokens += entries[i].num_new_tokens;
    }
    if (*num_tokens > INT32_MAX) {
        return PKVI_INVALID(manager, "the batch has more than INT32_MAX tokens");
    }
    return PKV_OK;
}

/* Slots of the positions [first, first + count), block by block. */
static void write_slots(
    const pkv_block_id *cells, int32_t block_size, int32_t first, int32_t count, int64_t *slots) {
    while (count > 0) {
        struct pkvi_place place = pkvi_place_of_position(cells, block_size, first);
        int32_t room = block_size - (int32_t)place.physical_block_offset;
        int32_t run = count < room ? count : room;
        int64_t slot = place.physical_block_number * block_size + place.physical_block_offset;

        for (int32_t i = 0; i < run; i++) {
            slots[i] = place.physical_block_number == PKV_NULL_BLOCK ? PKV_NO_SLOT : slot + i;
        }
        slots += run;
        first += run;
        count -= run;
    }
}

/* Fill what lies behind the real requests and tokens, as far as the batch asks. */
static void pad_batch(pkv_batch *batch) {
    for (int32_t i = batch->num_requests; i < batch->padded_requests; i++) {
        if (batch->rows != NULL) {
            batch->rows[i] = PKV_NULL_ROW;
        }
        if (batch->seq_lens != NULL) {
            batch->seq_lens[i] = 0;
        }
        if (batch->query_start_loc != NULL) {
            batch->query_start_loc[i + 1] = batch->num_tokens;
        }
    }
    for (int32_t i = batch->num_tokens; batch->slot_mapping != NULL && i < batch->padded_tokens;
         i++) {
        batch->slot_mapping[i] = PKV_NO_SLOT;
    }
}

/* The arrays of a batch are written in place, so it is read in place, too: what a later version put
 * behind the fields of this one must be zero. */
static pkv_status check_batch_struct(const pkv_manager *manager, const pkv_batch *batch) {
    pkv_batch own;
    pkv_status status = batch == NULL || batch->struct_size < sizeof *batch
                            ? PKV_ERROR_INVALID_ARGUMENT
                            : pkvi_read_struct(&own, sizeof own, sizeof own, batch);

    if (status != PKV_OK) {
        return pkvi_fail(manager->error, status,
                         "batch is NULL, its struct_size is not set, or a later field is set");
    }
    if (batch->max_requests < 0 || batch->max_tokens < 0 || batch->padded_requests < 0 ||
        batch->padded_tokens < 0) {
        return PKVI_INVALID(manager, "a capacity or padding of the batch is negative");
    }
    return PKV_OK;
}

/* A NULL array is not wanted, so its capacity does not matter. */
static pkv_status check_batch(const pkv_manager *manager, const pkv_batch *batch) {
    bool has_requests =
        batch->rows != NULL || batch->seq_lens != NULL || batch->query_start_loc != NULL;

    if ((has_requests && (batch->num_requests > batch->max_requests ||
                          batch->padded_requests > batch->max_requests)) ||
        (batch->slot_mapping != NULL &&
         (batch->num_tokens > batch->max_tokens || batch->padded_tokens > batch->max_tokens))) {
        return pkvi_fail(manager->error, PKV_ERROR_LIMIT,
                         "the batch has room for %d requests and %d tokens", batch->max_requests,
                         batch->max_tokens);
    }
    return PKV_OK;
}

pkv_status pkv_batch_build(const pkv_manager *manager,
                           int32_t group,
                           const pkv_batch_entry *entries,
                           int32_t num_entries,
                           pkv_batch *batch) {
    int64_t num_tokens;
    int32_t at = 0;
    pkv_status status;

    if (manager == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    status = check_batch_struct(manager, batch);
    if (status == PKV_OK) {
        status = check_entries(manager, group, entries, num_entries, &num_tokens);
    }
    if (status != PKV_OK) {
        return status;
    }
    batch->num_requests = num_entries;
    batch->num_tokens = (int32_t)num_tokens;
    status = check_batch(manager, batch);
    if (status != PKV_OK) {
        return status;
    }
    if (batch->query_start_loc != NULL) {
        batch->query_start_loc[0] = 0;
    }
    for (int32_t i = 0; i < num_entries; i++) {
        const pkv_batch_entry *entry = &entries[i];
        int32_t row = manager->requests.requests[entry->request.index].row;

        if (batch->rows != NULL) {
            batch->rows[i] = row;
        }
        if (batch->seq_lens != NULL) {
            batch->seq_lens[i] = entry->num_computed_tokens + entry->num_new_tokens;
        }
        if (batch->slot_mapping != NULL && entry->num_new_tokens > 0) {
            write_slots(pkvi_manager_cells(manager, group, row), manager->groups[group].block_size,
                        entry->num_computed_tokens, entry->num_new_tokens,
                        batch->slot_mapping + at);
        }
        at += entry->num_new_tokens;
        if (batch->query_start_loc != NULL) {
            batch->query_start_loc[i + 1] = at;
        }
    }
    pad_batch(batch);
    return PKV_OK;
}

/* Blocks of an entry that a kernel reads, and where its cells are. */
static int32_t entry_blocks(const pkv_manager *manager,
                            int32_t group,
                            const pkv_batch_entry *entry,
                            const pkv_block_id **cells) {
    int32_t row = manager->requests.requests[entry->request.index].row;
    int64_t length = (int64_t)entry->num_computed_tokens + entry->num_new_tokens;

    *cells = row == PKV_NULL_ROW ? NULL : pkvi_manager_cells(manager, group, row);
    return (int32_t)pkvi_num_columns(length, manager->groups[group].block_size);
}

pkv_status pkv_export_padded(const pkv_manager *manager,
                             int32_t group,
                             const pkv_batch_entry *entries,
                             int32_t num_entries,
                             pkv_block_id *table,
                             int64_t row_stride,
                             pkv_block_id fill) {
    const pkv_block_id *cells;
    int64_t num_tokens;
    pkv_status status;

    if (manager == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    status = check_entries(manager, group, entries, num_entries, &num_tokens);
    if (status != PKV_OK) {
        return status;
    }
    if (row_stride < 0 || (num_entries > 0 && row_stride > 0 && table == NULL)) {
        return PKVI_INVALID(manager, "table is NULL or row_stride is negative");
    }
    for (int32_t i = 0; i < num_entries; i++) {
        int32_t count = entry_blocks(manager, group, &entries[i], &cells);
        if (count > row_stride) {
            return pkvi_fail(manager->error, PKV_ERROR_LIMIT, "row_stride must be at least %d",
                             count);
        }
    }
    for (int32_t i = 0; i < num_entries; i++) {
        int32_t count = entry_blocks(manager, group, &entries[i], &cells);
        for (int64_t column = 0; column < row_stride; column++) {
            table[i * row_stride + column] = column < count ? cells[column] : fill;
        }
    }
    return PKV_OK;
}

/* Leading null blocks of an entry that an export leaves out. */
static int32_t leading_null(const pkv_block_id *cells, int32_t count, bool skip_leading_null) {
    int32_t num_null = 0;

    while (skip_leading_null && num_null < count && cells[num_null] == PKV_NULL_BLOCK) {
        num_null++;
    }
    return num_null;
}

pkv_status pkv_export_csr(const pkv_manager *manager,
                          int32_t group,
                          const pkv_batch_entry *entries,
                          int32_t num_entries,
                          bool skip_leading_null,
                          int32_t *indptr,
                          pkv_block_id *indices,
                          int32_t capacity,
                          int32_t *last_page_len,
                          int32_t *num_indices) {
    const pkv_block_id *cells;
    int64_t num_tokens;
    int64_t total = 0;
    pkv_status status;

    if (manager == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    status = check_entries(manager, group, entries, num_entries, &num_tokens);
    if (status != PKV_OK) {
        return status;
    }
    if (indptr == NULL || num_indices == NULL || capacity < 0 ||
        (capacity > 0 && indices == NULL) || (num_entries > 0 && last_page_len == NULL)) {
        return PKVI_INVALID(manager, "an array is NULL or capacity is negative");
    }
    for (int32_t i = 0; i < num_entries; i++) {
        int32_t count = entry_blocks(manager, group, &entries[i], &cells);
        total += count - leading_null(cells, count, skip_leading_null);
    }
    if (total > INT32_MAX) {
        return PKVI_INVALID(manager, "the export has more than INT32_MAX indices");
    }
    *num_indices = (int32_t)total;
    if (total > capacity) {
        return pkvi_fail(manager->error, PKV_ERROR_LIMIT, "capacity must be %d", *num_indices);
    }
    indptr[0] = 0;
    for (int32_t i = 0; i < num_entries; i++) {
        int32_t count = entry_blocks(manager, group, &entries[i], &cells);
        int32_t length = entries[i].num_computed_tokens + entries[i].num_new_tokens;
        int32_t first = leading_null(cells, count, skip_leading_null);

        for (int32_t column = first; column < count; column++) {
            indices[indptr[i] + column - first] = cells[column];
        }
        indptr[i + 1] = indptr[i] + count - first;
        last_page_len[i] =
            count == first ? 0 : length - (count - 1) * manager->groups[group].block_size;
    }
    return PKV_OK;
}

/* ---- drains ---------------------------------------------------------------------------------- */

pkv_status pkv_take_fills(pkv_manager *manager,
                          int32_t group,
                          pkv_block_id *block_ids,
                          int32_t capacity,
                          int32_t *num_fills) {
    pkv_status status;

    if (manager == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    status = pkv_pool_take_fills(manager->pool, group, block_ids, capacity, num_fills);
    return status >= PKV_OK
               ? status
               : pkvi_fail(manager->error, status, "%s", pkv_pool_last_error(manager->pool));
}

pkv_status pkv_take_events(pkv_manager *manager,
                           pkv_event *events,
                           int32_t capacity,
                           int32_t *num_events,
                           uint64_t *num_dropped) {
    pkv_status status;

    if (manager == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    status = pkv_pool_take_events(manager->pool, events, capacity, num_events, num_dropped);
    return status >= PKV_OK
               ? status
               : pkvi_fail(manager->error, status, "%s", pkv_pool_last_error(manager->pool));
}
