/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Steps that can be undone: completing, failing, withdrawing one request, and tables that wait for
 * a step. Which blocks a step published stands in pool/publish_log.h.
 *
 * The one idea: vLLM V1 publishes blocks when they are scheduled; this takes a publication back
 * when its content will never be computed. */
#include "manager/manager.h"

/* Return the tables of held rows that `step` releases, in the order in which they were freed:
 * those waiting for steps <= step, or, after a failure, those waiting for steps >= step. */
static void return_held(pkv_manager *manager, uint64_t step, bool is_failure) {
    struct pkvi_row_map *rows = &manager->rows;
    int32_t num_kept = 0;

    for (int32_t i = 0; i < rows->num_held; i++) {
        struct pkvi_held_table held = rows->held[i];

        if (is_failure ? held.step < step : held.step > step) {
            rows->held[num_kept++] = held;
            continue;
        }
        pkvi_manager_release_storage(manager, held.storage);
        pkvi_storage_return(rows, held.storage);
    }
    rows->num_held = num_kept;
}

/* The lowest column of a row, not below `least`, whose publication by a step >= `step` is to be
 * undone; num_cached when there is none. The search cannot stop early: columns published by
 * pkv_cache_blocks, or by others and hit, do not rise by step. */
static int32_t first_undone(
    const pkv_manager *manager, int32_t g, int32_t row, int32_t least, uint64_t step) {
    const pkv_block_id *cells = pkvi_manager_cells(manager, g, row);
    int32_t num_cached = pkvi_manager_row(manager, g, row)->num_cached;

    for (int32_t i = least; i < num_cached; i++) {
        if (cells[i] != PKV_NULL_BLOCK &&
            pkvi_publish_log_step(&manager->pool->log, cells[i]) >= step) {
            return i;
        }
    }
    return num_cached;
}

/* Let the columns from `first` on be offered for publication again. Others may hold their
 * blocks. */
static void unsettle(pkv_manager *manager, int32_t g, int32_t row_number, int32_t first) {
    struct pkvi_table_row *row = pkvi_manager_row(manager, g, row_number);
    int32_t owner = manager->rows.owner_of[row_number];

    if (first < row->num_cached) {
        pkvi_manager_look_until(&manager->requests.requests[owner],
                                (int64_t)row->num_cached * manager->groups[g].block_size);
        row->num_cached = first;
    }
}

static void withdraw(pkv_manager *manager, pkv_block_id block) {
    pkvi_pool_forget(manager->pool, block);
    manager->counters.num_keys_withdrawn++;
}

/* Check a step that is to be undone. */
static pkv_status check_undo(const pkv_manager *manager, uint64_t step) {
    if (step == 0 || step <= manager->pool->log.completed_step) {
        return PKVI_INVALID(manager, "step %llu is 0 or complete already",
                            (unsigned long long)step);
    }
    return PKV_OK;
}

pkv_status pkv_step_complete(pkv_manager *manager, uint64_t step) {
    if (manager == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    if (step == 0) {
        return PKVI_INVALID(manager, "step 0 is never tracked");
    }
    if (pkvi_child_index_is_on(&manager->pool->children)) {
        pkvi_child_index_add_completed(&manager->pool->children, &manager->pool->log, step);
    }
    pkvi_publish_log_complete(&manager->pool->log, step);
    return_held(manager, step, false);
    PKVI_CHECK_AFTER(manager);
    return PKV_OK;
}

pkv_status pkv_step_fail(pkv_manager *manager, uint64_t step) {
    pkv_block_id block;
    pkv_status status;

    if (manager == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    status = check_undo(manager, step);
    if (status != PKV_OK) {
        return status;
    }
    for (int32_t row = 1; row <= manager->rows.max_rows; row++) {
        for (int32_t g = 0; g < manager->num_groups && manager->rows.storage_of[row] >= 0; g++) {
            unsettle(manager, g, row, first_undone(manager, g, row, 0, step));
        }
    }
    while ((block = pkvi_publish_log_last(&manager->pool->log, step)) != PKV_NULL_BLOCK) {
        withdraw(manager, block);
    }
    return_held(manager, step, true);
    if (manager->pool->log.newest_step >= step) {
        manager->pool->log.newest_step = step - 1;
    }
    PKVI_CHECK_AFTER(manager);
    return PKV_OK;
}

/* Refuse when a block that this row published since `step` has another owner by now. */
static pkv_status check_own(const pkv_manager *manager, int32_t g, int32_t row, uint64_t step) {
    const pkv_block_id *cells = pkvi_manager_cells(manager, g, row);
    const struct pkvi_table_row *table_row = pkvi_manager_row(manager, g, row);

    for (int32_t i = first_undone(manager, g, row, table_row->num_hits, step);
         i < table_row->num_cached; i++) {
        const struct pkvi_block_state *state = &manager->pool->states[cells[i]];
        if (pkvi_publish_log_step(&manager->pool->log, cells[i]) >= step && state->ref_cnt > 1) {
            return pkvi_fail(manager->error, PKV_ERROR_BUSY,
                             "block %d was hit by another request: free that one first", cells[i]);
        }
    }
    return PKV_OK;
}

/* Withdraw what this row published since `step`, newest first. */
static void withdraw_own(pkv_manager *manager, int32_t g, int32_t row, uint64_t step) {
    const pkv_block_id *cells = pkvi_manager_cells(manager, g, row);
    const struct pkvi_table_row *table_row = pkvi_manager_row(manager, g, row);
    int32_t first = first_undone(manager, g, row, table_row->num_hits, step);

    for (int32_t i = table_row->num_cached - 1; i >= first; i--) {
        if (pkvi_publish_log_step(&manager->pool->log, cells[i]) >= step) {
            withdraw(manager, cells[i]);
        }
    }
    unsettle(manager, g, row, first);
}

pkv_status pkv_unschedule(pkv_manager *manager, pkv_request handle, uint64_t step) {
    struct pkvi_request *request;
    pkv_status status = PKV_OK;

    request = pkvi_manager_request(manager, handle, &status);
    if (request == NULL) {
        return status;
    }
    status = check_undo(manager, step);
    if (status != PKV_OK || request->row == PKV_NULL_ROW) {
        return status;
    }
    for (int32_t g = 0; g < manager->num_groups && status == PKV_OK; g++) {
        status = check_own(manager, g, request->row, step);
    }
    for (int32_t g = 0; g < manager->num_groups && status == PKV_OK; g++) {
        withdraw_own(manager, g, request->row, step);
    }
    PKVI_CHECK_AFTER(manager);
    return status;
}

pkv_status pkv_free_after(pkv_manager *manager, pkv_request handle, uint64_t step) {
    struct pkvi_row_map *rows;
    struct pkvi_request *request;
    pkv_status status = PKV_OK;

    if (manager == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    rows = &manager->rows;
    request = pkvi_manager_request(manager, handle, &status);
    if (request == NULL) {
        return status;
    }
    if (step <= manager->pool->log.completed_step || request->row == PKV_NULL_ROW) {
        return pkv_free(manager, handle);
    }
    if (rows->num_held == rows->max_held) {
        return PKV_NO_FREE_ROWS;
    }
    rows->held[rows->num_held].step = step;
    rows->held[rows->num_held].storage = pkvi_row_return(rows, request->row, true);
    rows->num_held++;
    request->row = PKV_NULL_ROW;
    manager->counters.num_frees++;
    PKVI_CHECK_AFTER(manager);
    return PKV_OK;
}
