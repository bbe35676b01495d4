/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The checker of a manager: walks everything, the pool included, and names the first invariant of
 * docs/invariants.md that does not hold. It leaves everything as it was. */
#include "manager/manager.h"

#define BROKEN(manager, ...) pkvi_fail((manager)->error, PKV_ERROR_CORRUPT, __VA_ARGS__)

/* I13: rows and requests pair one to one, and leased and free rows add up. */
static pkv_status check_rows(const pkv_manager *manager) {
    const struct pkvi_row_map *rows = &manager->rows;
    int32_t num_leased = 0;
    int32_t num_owners = 0;

    for (int32_t row = 0; row <= rows->max_rows; row++) {
        int32_t owner = rows->owner_of[row];

        if ((owner < 0) != (rows->storage_of[row] < 0) || (row == PKV_NULL_ROW && owner >= 0)) {
            return BROKEN(manager, "I13: row %d has an owner without storage, or is row 0", row);
        }
        if (owner < 0) {
            continue;
        }
        num_leased++;
        if (owner >= manager->requests.max_requests || !manager->requests.requests[owner].is_open ||
            manager->requests.requests[owner].row != row) {
            return BROKEN(manager, "I13: row %d and its owner do not agree", row);
        }
    }
    for (int32_t i = 0; i < manager->requests.max_requests; i++) {
        const struct pkvi_request *request = &manager->requests.requests[i];
        num_owners += request->is_open && request->row != PKV_NULL_ROW ? 1 : 0;
    }
    if (num_leased != rows->num_leased || num_owners != num_leased ||
        num_leased + rows->num_free_rows != rows->max_rows ||
        num_leased + rows->num_held + rows->num_free_storages != rows->num_storages) {
        return BROKEN(manager, "I13: rows or storages do not add up");
    }
    return PKV_OK;
}

/* I30: what is written without a look is the request's alone, or carries its own key. */
static bool may_be_written(const pkv_manager *manager,
                           int32_t g,
                           const struct pkvi_request *request,
                           int32_t column) {
    pkv_block_id block = pkvi_manager_cells(manager, g, request->row)[column];
    bool is_settled = column < pkvi_manager_row(manager, g, request->row)->num_cached;
    bool is_keyed = manager->pool->states[block].is_keyed;

    if ((int64_t)column * manager->groups[g].block_size < request->look_until ||
        (is_settled && is_keyed)) {
        return true;
    }
    return !is_keyed && pkvi_manager_num_owners(manager, block) == 1;
}

/* I14, I15, I21, I30 for the table of one row. */
static pkv_status check_table(const pkv_manager *manager, int32_t g, int32_t row_number) {
    const struct pkvi_group *group = &manager->groups[g];
    const struct pkvi_table_row *row = pkvi_manager_row(manager, g, row_number);
    const pkv_block_id *cells = pkvi_manager_cells(manager, g, row_number);
    const struct pkvi_request *request =
        &manager->requests.requests[manager->rows.owner_of[row_number]];

    if (row->num_blocks < 0 || row->num_blocks > group->table.width || row->num_cached < 0 ||
        row->num_cached > row->num_blocks || row->first_new < 0 ||
        row->first_new > row->num_blocks || row->num_hits > row->num_blocks) {
        return BROKEN(manager, "I14: counts of row %d in group %d", row_number, g);
    }
    if (row->dirty_begin < 0 || row->dirty_begin > row->dirty_end ||
        row->dirty_end > row->num_blocks) {
        return BROKEN(manager, "I21: dirty interval of row %d in group %d", row_number, g);
    }
    for (int32_t i = 0; i < row->num_blocks; i++) {
        if (!pkvi_pool_has_block(manager->pool, cells[i])) {
            return BROKEN(manager, "I11: row %d names block %d", row_number, cells[i]);
        }
        if (cells[i] == PKV_NULL_BLOCK) {
            continue;
        }
        if (manager->pool->states[cells[i]].group != (uint32_t)g) {
            return BROKEN(manager, "I12: block %d is not of group %d", cells[i], g);
        }
        if (!may_be_written(manager, g, request, i)) {
            return BROKEN(manager, "I30: block %d in column %d of row %d is keyed or shared",
                          cells[i], i, row_number);
        }
        if (i < row->num_cached && pkvi_manager_is_foreign(manager, g, request, i)) {
            return BROKEN(manager, "I15: block %d in column %d of row %d has a foreign key",
                          cells[i], i, row_number);
        }
    }
    return PKV_OK;
}

/* Add `delta` to the references of every block that a storage names. */
static void count_cells(const pkv_manager *manager, int32_t storage, int32_t delta) {
    for (int32_t g = 0; g < manager->num_groups; g++) {
        const struct pkvi_table *table = &manager->groups[g].table;
        const pkv_block_id *cells = pkvi_table_cells(table, storage);

        for (int32_t i = 0; i < table->rows[storage].num_blocks; i++) {
            struct pkvi_block_state *state = &manager->pool->states[cells[i]];
            if (cells[i] != PKV_NULL_BLOCK) {
                state->ref_cnt = (state->ref_cnt + (uint32_t)delta) & (uint32_t)PKV_MAX_REF_CNT;
            }
        }
    }
}

/* The references of holders beside the tables. */
static void count_holders(const pkv_manager *manager, int32_t delta) {
    for (const struct pkvi_holder *holder = manager->holders; holder; holder = holder->next) {
        (void)holder->count(holder, delta);
    }
}

static void count_all(const pkv_manager *manager, int32_t delta) {
    for (int32_t row = 1; row <= manager->rows.max_rows; row++) {
        if (manager->rows.storage_of[row] >= 0) {
            count_cells(manager, manager->rows.storage_of[row], delta);
        }
    }
    for (int32_t i = 0; i < manager->rows.num_held; i++) {
        count_cells(manager, manager->rows.held[i].storage, delta);
    }
    count_holders(manager, delta);
    for (int32_t i = 0; i < manager->copies.num_pending; i++) {
        pkv_block_id source = manager->copies.source_of[manager->copies.targets[i]];
        struct pkvi_block_state *state = &manager->pool->states[source];
        state->ref_cnt = (state->ref_cnt + (uint32_t)delta) & (uint32_t)PKV_MAX_REF_CNT;
    }
}

/* I11: taking away the references of tables and of pending copies leaves none; they are put back at
 * once. */
static pkv_status check_references(const pkv_manager *manager) {
    pkv_block_id culprit = PKV_NULL_BLOCK;

    count_all(manager, -1);
    for (pkv_block_id block = 1; block < manager->pool->num_blocks; block++) {
        if (manager->pool->states[block].ref_cnt != 0) {
            culprit = block;
        }
    }
    count_all(manager, 1);
    return culprit == PKV_NULL_BLOCK
               ? PKV_OK
               : BROKEN(manager,
                        "I11: block %d has %u references, which are not those of tables and swaps",
                        culprit, manager->pool->states[culprit].ref_cnt);
}

/* I20. */
static pkv_status check_held(const pkv_manager *manager) {
    const struct pkvi_row_map *rows = &manager->rows;

    if (rows->num_held < 0 || rows->num_held > rows->max_held) {
        return BROKEN(manager, "I20: %d held tables", rows->num_held);
    }
    for (int32_t i = 0; i < rows->num_held; i++) {
        if (rows->held[i].step <= manager->pool->log.completed_step) {
            return BROKEN(manager, "I20: a held table waits for a completed step");
        }
    }
    return PKV_OK;
}

/* I12: no block stands twice in one row, unless the caller gave one key to two blocks. A visited
 * block is marked in its reference count, above what anything allows, and unmarked at once. */
static pkv_status check_distinct(const pkv_manager *manager, int32_t row) {
    const uint32_t mark = PKVI_OWNER_MARK;
    pkv_block_id culprit = PKV_NULL_BLOCK;

    if (manager->requests.requests[manager->rows.owner_of[row]].has_caller_keys) {
        return PKV_OK;
    }
    for (int32_t g = 0; g < manager->num_groups; g++) {
        const pkv_block_id *cells = pkvi_manager_cells(manager, g, row);
        int32_t num_blocks = pkvi_manager_row(manager, g, row)->num_blocks;

        for (int32_t i = 0; i < num_blocks; i++) {
            struct pkvi_block_state *state = &manager->pool->states[cells[i]];
            if (cells[i] != PKV_NULL_BLOCK) {
                culprit = (state->ref_cnt & mark) != 0 ? cells[i] : culprit;
                state->ref_cnt = (state->ref_cnt | mark) & (uint32_t)PKV_MAX_REF_CNT;
            }
        }
        for (int32_t i = 0; i < num_blocks; i++) {
            struct pkvi_block_state *state = &manager->pool->states[cells[i]];
            state->ref_cnt = state->ref_cnt & (mark - 1) & (uint32_t)PKV_MAX_REF_CNT;
        }
    }
    return culprit == PKV_NULL_BLOCK
               ? PKV_OK
               : BROKEN(manager, "I12: block %d stands twice in row %d", culprit, row);
}

/* Everything that is said of rows; blocks in flight do not count as shared. */
static pkv_status check_all_rows(const pkv_manager *manager) {
    pkv_status status = PKV_OK;

    count_holders(manager, -1);
    for (int32_t row = 1; row <= manager->rows.max_rows && status == PKV_OK; row++) {
        for (int32_t g = 0; g < manager->num_groups && manager->rows.storage_of[row] >= 0; g++) {
            status = status == PKV_OK ? check_table(manager, g, row) : status;
        }
        if (status == PKV_OK && manager->rows.storage_of[row] >= 0) {
            status = check_distinct(manager, row);
        }
    }
    count_holders(manager, 1);
    return status;
}

pkv_status pkv_manager_check(const pkv_manager *manager) {
    pkv_status status;

    if (manager == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    status = pkvi_pool_check(manager->pool, manager->error);
    if (status == PKV_OK) {
        status = pkvi_request_map_check(&manager->requests, manager->error);
    }
    if (status == PKV_OK) {
        status = check_rows(manager);
    }
    if (status == PKV_OK) {
        status = pkvi_copy_list_check(&manager->copies, manager->pool, manager->error);
    }
    if (status == PKV_OK) {
        status = check_all_rows(manager);
    }
    if (status == PKV_OK) {
        status = check_held(manager);
    }
    return status == PKV_OK ? check_references(manager) : status;
}
