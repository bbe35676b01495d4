/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The scheduling verbs beside allocate: free, commit, drop what a window has passed, evict, reset;
 * and the helpers that they share with allocate and with steps. */
#include "manager/manager.h"

/* How far a commit reads the index ahead. */
#define COMMIT_AHEAD 16

/* ---- shared helpers -------------------------------------------------------------------------- */

void pkvi_manager_release_storage(pkv_manager *manager, int32_t storage) {
    for (int32_t g = 0; g < manager->num_groups; g++) {
        struct pkvi_table *table = &manager->groups[g].table;
        struct pkvi_table_row *row = &table->rows[storage];

        (void)pkvi_pool_release(manager->pool, pkvi_table_cells(table, storage), row->num_blocks,
                                true);
        *row = (struct pkvi_table_row){0, 0, 0, 0, 0, 0};
    }
    pkvi_copy_list_cancel_freed(&manager->copies, manager->pool);
}

/* Let rows be copied from a block that was published: at once where its content is there and no copy
 * is still to bring it, or when its step completes. Of step 0 nothing tells when that is, so it is
 * never a source. */
static void note_child(pkv_manager *manager,
                       int32_t g,
                       const struct pkvi_request *request,
                       int32_t column,
                       uint64_t step,
                       bool is_computed) {
    struct pkvi_child_index *children = &manager->pool->children;
    pkv_block_id block = pkvi_manager_cells(manager, g, request->row)[column];

    pkvi_child_index_note(
        children, block,
        pkvi_child_index_hash(
            g, column == 0 ? NULL : pkvi_request_key(&manager->requests, request, column - 1)));
    if (step == 0 && is_computed && manager->copies.source_of[block] == PKV_NULL_BLOCK) {
        pkvi_child_index_add(children, block);
    }
}

/* Publish blocks [row->num_cached, full) of one group, in one call. Null blocks, those that
 * retention leaves out and, after an undone step, those that kept their key are passed over, yet
 * count as settled. */
static void commit_group(pkv_manager *manager,
                         int32_t g,
                         const struct pkvi_request *request,
                         int32_t full,
                         uint64_t step,
                         bool is_computed) {
    const struct pkvi_group *group = &manager->groups[g];
    struct pkvi_table_row *row = pkvi_manager_row(manager, g, request->row);
    const pkv_block_id *cells = pkvi_manager_cells(manager, g, request->row);
    bool with_tokens = manager->pool->stored_tokens != NULL;
    int32_t first = row->num_cached;
    struct pkvi_publication call = {0};
    struct pkvi_key_cursor cursor;
    struct pkvi_key_cursor ahead;
    struct pkvi_index_home homes[COMMIT_AHEAD];
    int32_t num_ahead = first;

    call.group = g;
    call.step = step;
    call.request.index = (uint32_t)pkvi_request_index(&manager->requests, request);
    call.request.generation = request->generation;
    call.adapter_id = request->adapter_id;
    if (first > 0) {
        call.parent = pkvi_request_key(&manager->requests, request, first * group->key_stride - 1);
    }
    call.first_token = first * group->block_size;
    call.num_tokens = (full - first) * group->block_size;
    cursor = pkvi_request_keys(&manager->requests, request, group->key_stride, first, with_tokens);
    ahead = cursor;
    pkvi_pool_begin(manager->pool, &call);
    for (int32_t i = first; i < full; i++, pkvi_key_cursor_advance(&cursor)) {
        for (; num_ahead < full && num_ahead < i + COMMIT_AHEAD; num_ahead++) {
            homes[num_ahead % COMMIT_AHEAD] =
                pkvi_prefix_index_approach(manager->pool->index, g, pkvi_key_cursor_key(&ahead));
            pkvi_key_cursor_advance(&ahead);
        }
        if (cells[i] != PKV_NULL_BLOCK && !manager->pool->states[cells[i]].is_keyed &&
            pkvi_group_retains(group, request, i)) {
            pkvi_pool_publish(manager->pool, &call, cells[i], pkvi_key_cursor_key(&cursor),
                              homes[i % COMMIT_AHEAD], pkvi_key_cursor_tokens(&cursor));
            if (pkvi_child_index_is_on(&manager->pool->children)) {
                note_child(manager, g, request, i, step, is_computed);
            }
        }
    }
    pkvi_pool_end(manager->pool, &call);
    row->num_cached = full;
    row->num_hits = row->num_hits < first ? row->num_hits : first;
}

/* Where publication must stop: a column whose content is still another's, since the request has not
 * written into it since it was cut there. */
static int32_t stop_at_foreign(const pkv_manager *manager,
                               int32_t g,
                               const struct pkvi_request *request,
                               int32_t full) {
    int32_t block_size = manager->groups[g].block_size;

    for (int32_t i = pkvi_manager_row(manager, g, request->row)->num_cached;
         i < full && (int64_t)i * block_size < request->look_until; i++) {
        if (pkvi_manager_is_foreign(manager, g, request, i)) {
            return i;
        }
    }
    return full;
}

void pkvi_manager_commit(pkv_manager *manager,
                         struct pkvi_request *request,
                         int32_t num_tokens,
                         uint64_t step,
                         bool is_computed) {
    if (!manager->pool->is_caching || pkvi_manager_is_loading(request)) {
        return;
    }
    for (int32_t g = 0; g < manager->num_groups; g++) {
        const struct pkvi_group *group = &manager->groups[g];
        const struct pkvi_table_row *row = pkvi_manager_row(manager, g, request->row);
        int32_t full;
        int32_t num_keyed;

        /* The common step fills no block; a product tells without a division. */
        if (num_tokens < ((int64_t)row->num_cached + 1) * group->block_size) {
            continue;
        }
        full = pkvi_group_committable_tokens(group, manager->num_groups, num_tokens) /
               group->block_size;
        num_keyed = request->num_keys / group->key_stride;

        full = full < num_keyed ? full : num_keyed;
        full = stop_at_foreign(manager, g, request, full);
        if (full > row->num_cached) {
            commit_group(manager, g, request, full, step, is_computed);
        }
    }
}

/* From the newest skipped block back to the first that was dropped before. */
void pkvi_manager_remove_skipped(pkv_manager *manager, int32_t row_number, int64_t num_processed) {
    for (int32_t g = 0; g < manager->num_groups; g++) {
        struct pkvi_table_row *row = pkvi_manager_row(manager, g, row_number);
        pkv_block_id *cells = pkvi_manager_cells(manager, g, row_number);
        int64_t skipped = pkvi_group_num_skipped_blocks(&manager->groups[g], num_processed);
        int32_t end = skipped < row->num_blocks ? (int32_t)skipped : row->num_blocks;
        int32_t begin = end;

        while (begin > 0 && cells[begin - 1] != PKV_NULL_BLOCK) {
            begin--;
        }
        (void)pkvi_pool_release(manager->pool, cells + begin, end - begin, true);
        for (int32_t i = begin; i < end; i++) {
            cells[i] = PKV_NULL_BLOCK;
        }
        pkvi_table_mark(row, begin, end);
    }
    pkvi_copy_list_cancel_freed(&manager->copies, manager->pool);
}

/* Change the references of every held table by `delta`; returns how many blocks have none after
 * that. */
static int32_t count_held(const pkv_manager *manager, int32_t delta) {
    struct pkvi_block_state *states = manager->pool->states;
    int32_t count = 0;

    for (int32_t h = 0; h < manager->rows.num_held; h++) {
        int32_t storage = manager->rows.held[h].storage;
        for (int32_t g = 0; g < manager->num_groups; g++) {
            const struct pkvi_table *table = &manager->groups[g].table;
            const pkv_block_id *cells = pkvi_table_cells(table, storage);
            for (int32_t i = 0; i < table->rows[storage].num_blocks; i++) {
                struct pkvi_block_state *state = &states[cells[i]];
                if (cells[i] != PKV_NULL_BLOCK) {
                    state->ref_cnt = (state->ref_cnt + (uint32_t)delta) & (uint32_t)PKV_MAX_REF_CNT;
                    count += state->ref_cnt == 0 ? 1 : 0;
                }
            }
        }
    }
    return count;
}

/* Drop the references on trial: a block that runs out of owners is pending. */
int32_t pkvi_manager_count_pending(const pkv_manager *manager) {
    int32_t count = count_held(manager, -1);

    for (const struct pkvi_holder *holder = manager->holders; holder; holder = holder->next) {
        count += holder->count(holder, -1);
    }
    (void)count_held(manager, 1);
    for (const struct pkvi_holder *holder = manager->holders; holder; holder = holder->next) {
        (void)holder->count(holder, 1);
    }
    return count;
}

/* ---- public verbs ---------------------------------------------------------------------------- */

pkv_status pkv_cache_blocks(pkv_manager *manager, pkv_request handle, int32_t num_computed_tokens) {
    struct pkvi_request *request;
    pkv_status status = PKV_OK;

    request = pkvi_manager_request(manager, handle, &status);
    if (request == NULL) {
        return status;
    }
    if (num_computed_tokens < 0 || num_computed_tokens > request->num_tokens) {
        return PKVI_INVALID(manager, "the request has %d tokens", request->num_tokens);
    }
    for (int32_t g = 0; g < manager->num_groups; g++) {
        int32_t num_blocks = request->row == PKV_NULL_ROW
                                 ? 0
                                 : pkvi_manager_row(manager, g, request->row)->num_blocks;
        if (num_computed_tokens > (int64_t)num_blocks * manager->groups[g].block_size) {
            return PKVI_INVALID(manager, "the request holds %d blocks only", num_blocks);
        }
    }
    if (request->row != PKV_NULL_ROW) {
        pkvi_manager_commit(manager, request, num_computed_tokens, 0, true);
    }
    PKVI_CHECK_AFTER(manager);
    return PKV_OK;
}

pkv_status pkv_remove_skipped_blocks(pkv_manager *manager,
                                     pkv_request handle,
                                     int32_t num_processed_tokens) {
    struct pkvi_request *request;
    pkv_status status = PKV_OK;

    request = pkvi_manager_request(manager, handle, &status);
    if (request == NULL) {
        return status;
    }
    if (num_processed_tokens < 0) {
        return PKVI_INVALID(manager, "num_processed_tokens is negative");
    }
    if (request->row != PKV_NULL_ROW) {
        pkvi_manager_remove_skipped(manager, request->row, num_processed_tokens);
    }
    PKVI_CHECK_AFTER(manager);
    return PKV_OK;
}

pkv_status pkv_free(pkv_manager *manager, pkv_request handle) {
    struct pkvi_request *request;
    pkv_status status = PKV_OK;

    request = pkvi_manager_request(manager, handle, &status);
    if (request == NULL) {
        return status;
    }
    if (request->row != PKV_NULL_ROW) {
        pkvi_manager_release_storage(manager, manager->rows.storage_of[request->row]);
        (void)pkvi_row_return(&manager->rows, request->row, false);
        request->row = PKV_NULL_ROW;
        manager->counters.num_frees++;
    }
    PKVI_CHECK_AFTER(manager);
    return PKV_OK;
}

/* A shared block lost its key, so that a write into a settled column may meet another owner. */
static void look_at_settled(pkv_manager *manager) {
    for (int32_t row = 1; row <= manager->rows.max_rows; row++) {
        for (int32_t g = 0; g < manager->num_groups && manager->rows.storage_of[row] >= 0; g++) {
            pkvi_manager_look_until(&manager->requests.requests[manager->rows.owner_of[row]],
                                    (int64_t)pkvi_manager_row(manager, g, row)->num_cached *
                                        manager->groups[g].block_size);
        }
    }
}

pkv_status pkv_evict_blocks(pkv_manager *manager,
                            const pkv_block_id *block_ids,
                            int32_t num_blocks) {
    pkv_status status;

    if (manager == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    status = pkv_pool_evict_blocks(manager->pool, block_ids, num_blocks);
    if (status != PKV_OK) {
        return pkvi_fail(manager->error, status, "%s", pkv_pool_last_error(manager->pool));
    }
    for (int32_t i = 0; i < num_blocks; i++) {
        if (manager->pool->states[block_ids[i]].ref_cnt > 1) {
            look_at_settled(manager);
            break;
        }
    }
    PKVI_CHECK_AFTER(manager);
    return PKV_OK;
}

pkv_status pkv_reset_prefix_cache(pkv_manager *manager) {
    pkv_status status;

    if (manager == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    for (const struct pkvi_holder *holder = manager->holders; holder; holder = holder->next) {
        if (holder->num_open > 0) {
            return pkvi_fail(manager->error, PKV_ERROR_BUSY, "%d swaps are open", holder->num_open);
        }
    }
    status = pkv_pool_reset_prefix_cache(manager->pool);
    if (status != PKV_OK) {
        return pkvi_fail(manager->error, status, "%s", pkv_pool_last_error(manager->pool));
    }
    PKVI_CHECK_AFTER(manager);
    return PKV_OK;
}
