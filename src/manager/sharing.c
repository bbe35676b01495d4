/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Fork, truncate, and the copies that pkv_allocate_slots needs where blocks have several owners.
 *
 * The one idea: a request remembers up to which token its blocks may have other owners and not its
 * own keys (look_until); a write behind that, which nearly every decode step is, looks at no block.
 * What was hit or published carries the request's own key and may be written as it is; where
 * pkv_evict_blocks takes the key of a shared block, everybody looks again. */
#include <pagedkv/sharing.h>

#include <string.h>

#include "manager/manager.h"

/* ---- copy on write --------------------------------------------------------------------------- */

bool pkvi_manager_is_foreign(const pkv_manager *manager,
                             int32_t g,
                             const struct pkvi_request *request,
                             int32_t column) {
    const struct pkvi_group *group = &manager->groups[g];
    pkv_block_id block = pkvi_manager_cells(manager, g, request->row)[column];
    int64_t key = ((int64_t)column + 1) * group->key_stride - 1;

    return block != PKV_NULL_BLOCK && manager->pool->states[block].is_keyed &&
           (key >= request->num_keys ||
            !pkvi_key_equal(&manager->pool->index->entries[block].key,
                            pkvi_request_key(&manager->requests, request, (int32_t)key)));
}

void pkvi_manager_look_until(struct pkvi_request *request, int64_t end) {
    if (end > request->look_until) {
        request->look_until = end < INT32_MAX ? (int32_t)end : INT32_MAX;
    }
}

/* Whether a write into that column needs a copy: the block has other owners, and what is written is
 * not what its key says. */
static bool needs_copy(const pkv_manager *manager,
                       int32_t g,
                       const struct pkvi_request *request,
                       int32_t column) {
    pkv_block_id block = pkvi_manager_cells(manager, g, request->row)[column];

    return block != PKV_NULL_BLOCK && pkvi_manager_num_owners(manager, block) > 1 &&
           (!manager->pool->states[block].is_keyed ||
            pkvi_manager_is_foreign(manager, g, request, column));
}

/* Columns of the tokens [first, end) that must be looked at. */
static int32_t end_of_look(const pkv_manager *manager,
                           int32_t g,
                           const struct pkvi_request *request,
                           int64_t first,
                           int64_t end) {
    const struct pkvi_table_row *row = pkvi_manager_row(manager, g, request->row);
    int64_t look_until = request->look_until;
    int64_t columns;

    if (first >= look_until) {
        return 0;
    }
    columns = pkvi_group_blocks_for(&manager->groups[g], end < look_until ? end : look_until);
    return columns < row->num_blocks ? (int32_t)columns : row->num_blocks;
}

int32_t pkvi_manager_count_copies(const pkv_manager *manager,
                                  int32_t g,
                                  const struct pkvi_request *request,
                                  int64_t first,
                                  int64_t end) {
    int32_t last = end_of_look(manager, g, request, first, end);
    int32_t count = 0;

    for (int32_t i = (int32_t)(first / manager->groups[g].block_size); i < last; i++) {
        count += needs_copy(manager, g, request, i) ? 1 : 0;
    }
    return count;
}

/* Where every group has one block size and the write went through all that was to be looked at,
 * what lies behind its first column is the request's alone now. */
static void lower_look(const pkv_manager *manager,
                       int32_t g,
                       struct pkvi_request *request,
                       int64_t first,
                       int64_t end) {
    const struct pkvi_group *group = &manager->groups[g];
    int32_t column = (int32_t)(first / group->block_size);

    if (manager->num_groups > 1 || end < request->look_until ||
        (int64_t)column * group->block_size >= request->look_until) {
        return;
    }
    for (int32_t i = column; i < pkvi_manager_row(manager, g, request->row)->num_blocks &&
                             (int64_t)i * group->block_size < request->look_until;
         i++) {
        pkv_block_id block = pkvi_manager_cells(manager, g, request->row)[i];
        if (block != PKV_NULL_BLOCK && (manager->pool->states[block].is_keyed ||
                                        pkvi_manager_num_owners(manager, block) != 1)) {
            return;
        }
    }
    request->look_until = column * group->block_size;
}

int32_t pkvi_manager_make_writable(
    pkv_manager *manager, int32_t g, struct pkvi_request *request, int64_t first, int64_t end) {
    pkv_block_id *cells = pkvi_manager_cells(manager, g, request->row);
    int32_t last = end_of_look(manager, g, request, first, end);
    int32_t count = 0;

    for (int32_t i = (int32_t)(first / manager->groups[g].block_size); i < last; i++) {
        if (needs_copy(manager, g, request, i)) {
            pkv_block_id target;

            pkvi_pool_take(manager->pool, g, 1, &target);
            pkvi_copy_list_add(&manager->copies, manager->pool, cells[i], target);
            cells[i] = target;
            pkvi_table_mark(pkvi_manager_row(manager, g, request->row), i, i + 1);
            count++;
        } else if (pkvi_manager_is_foreign(manager, g, request, i)) {
            pkvi_pool_forget(manager->pool, cells[i]);
        }
    }
    if (last > 0) {
        lower_look(manager, g, request, first, end);
    }
    return count;
}

/* ---- fork ------------------------------------------------------------------------------------ */

/* Columns of the first tokens, and the first of them that the next token can see. */
static int32_t end_of_fork(const struct pkvi_group *group, int32_t num_tokens) {
    return (int32_t)pkvi_group_blocks_for(group, num_tokens);
}

static int32_t begin_of_fork(const struct pkvi_group *group, int32_t num_tokens) {
    int64_t skipped = pkvi_group_num_skipped_blocks(group, num_tokens);
    int32_t end = end_of_fork(group, num_tokens);

    return skipped < end ? (int32_t)skipped : end;
}

/* Whether the blocks that tokens at or behind position `num_tokens` see are still there. */
static pkv_status check_window(const pkv_manager *manager,
                               const struct pkvi_request *request,
                               int32_t num_tokens,
                               int32_t position) {
    for (int32_t g = 0; g < manager->num_groups; g++) {
        const pkv_block_id *cells = pkvi_manager_cells(manager, g, request->row);
        const struct pkvi_group *group = &manager->groups[g];
        int32_t end = end_of_fork(group, num_tokens);

        for (int32_t i = begin_of_fork(group, position); i < end && pkvi_group_is_windowed(group);
             i++) {
            if (cells[i] == PKV_NULL_BLOCK) {
                return PKVI_INVALID(manager,
                                    "column %d of group %d was dropped behind the window and would "
                                    "be needed again",
                                    i, g);
            }
        }
    }
    return PKV_OK;
}

/* Take the owners back that share_blocks added before column `stopped` of group `last`; the parent
 * stays one, so no block comes free. */
static void unshare_blocks(pkv_manager *manager,
                           const struct pkvi_request *parent,
                           int32_t last,
                           int32_t num_tokens,
                           int64_t stopped) {
    for (int32_t g = 0; g <= last; g++) {
        const pkv_block_id *cells = pkvi_manager_cells(manager, g, parent->row);
        int32_t begin = begin_of_fork(&manager->groups[g], num_tokens);
        int32_t end = g < last ? end_of_fork(&manager->groups[g], num_tokens) : (int32_t)stopped;

        (void)pkvi_pool_release(manager->pool, cells + begin, end - begin, false);
    }
}

/* Add an owner to each block that a fork shares, in every group or in none. Returns whether none had
 * as many as it may have. */
static bool share_blocks(pkv_manager *manager,
                         const struct pkvi_request *parent,
                         int32_t num_tokens) {
    for (int32_t g = 0; g < manager->num_groups; g++) {
        int32_t end = end_of_fork(&manager->groups[g], num_tokens);
        int64_t stopped =
            pkvi_manager_add_owners(manager, pkvi_manager_cells(manager, g, parent->row),
                                    begin_of_fork(&manager->groups[g], num_tokens), end);

        if (stopped < end) {
            unshare_blocks(manager, parent, g, num_tokens, stopped);
            return false;
        }
    }
    return true;
}

/* Give the child a row with the parent's cells; their references are counted already. */
static void begin_child(pkv_manager *manager,
                        struct pkvi_request *parent,
                        struct pkvi_request *child,
                        int32_t num_tokens) {
    int64_t end = 0;

    child->row = pkvi_row_lease(&manager->rows, pkvi_request_index(&manager->requests, child));
    child->num_allocations = 1;
    manager->rows.num_live[child->row] = num_tokens;
    for (int32_t g = 0; g < manager->num_groups; g++) {
        const struct pkvi_group *group = &manager->groups[g];
        const struct pkvi_table_row *from = pkvi_manager_row(manager, g, parent->row);
        struct pkvi_table_row *row = pkvi_manager_row(manager, g, child->row);
        pkv_block_id *cells = pkvi_manager_cells(manager, g, child->row);
        int32_t begin = begin_of_fork(group, num_tokens);

        row->num_blocks = end_of_fork(group, num_tokens);
        memset(cells, 0, (size_t)begin * sizeof *cells);
        memcpy(cells + begin, pkvi_manager_cells(manager, g, parent->row) + begin,
               (size_t)(row->num_blocks - begin) * sizeof *cells);
        row->num_cached = num_tokens / group->block_size;
        row->num_cached = row->num_cached < from->num_cached ? row->num_cached : from->num_cached;
        row->num_hits = row->num_cached;
        row->first_new = row->num_blocks;
        pkvi_table_mark(row, 0, row->num_blocks);
        if (end < (int64_t)row->num_blocks * group->block_size) {
            end = (int64_t)row->num_blocks * group->block_size;
        }
    }
    pkvi_manager_look_until(parent, end);
    pkvi_manager_look_until(child, end);
}

pkv_status pkv_fork(pkv_manager *manager,
                    pkv_request parent_handle,
                    int32_t num_computed_tokens,
                    pkv_request *child) {
    struct pkvi_request *parent;
    pkv_request handle;
    pkv_status status = PKV_OK;

    parent = pkvi_manager_request(manager, parent_handle, &status);
    if (parent == NULL) {
        return status;
    }
    if (parent->row != PKV_NULL_ROW && pkvi_manager_is_loading(parent)) {
        return pkvi_fail(manager->error, PKV_ERROR_BUSY, "a swap-in of the parent is open");
    }
    if (child == NULL || num_computed_tokens < 0 || num_computed_tokens > parent->num_tokens) {
        return PKVI_INVALID(manager, "child is NULL, or the parent has %d tokens only",
                            parent->num_tokens);
    }
    for (int32_t g = 0; g < manager->num_groups && num_computed_tokens > 0; g++) {
        int32_t num_blocks =
            parent->row == PKV_NULL_ROW ? 0 : pkvi_manager_row(manager, g, parent->row)->num_blocks;
        if (num_computed_tokens > (int64_t)num_blocks * manager->groups[g].block_size) {
            return PKVI_INVALID(manager, "the parent holds %d blocks only", num_blocks);
        }
    }
    if (num_computed_tokens > 0) {
        status = check_window(manager, parent, num_computed_tokens, num_computed_tokens);
        if (status == PKV_OK && manager->rows.num_free_rows == 0) {
            status = PKV_NO_FREE_ROWS;
        }
    }
    if (status == PKV_OK) {
        status = pkvi_request_fork(&manager->requests, parent, manager->error, &handle);
    }
    if (status != PKV_OK) {
        return status;
    }
    if (num_computed_tokens > 0) {
        if (!share_blocks(manager, parent, num_computed_tokens)) {
            pkvi_request_close(&manager->requests, pkvi_request_get(&manager->requests, handle));
            return pkvi_fail(manager->error, PKV_ERROR_LIMIT,
                             "the caller's keys give a block more than %u owners",
                             pkvi_manager_most_owners(manager));
        }
        begin_child(manager, parent, pkvi_request_get(&manager->requests, handle),
                    num_computed_tokens);
    }
    manager->counters.num_forks++;
    *child = handle;
    PKVI_CHECK_AFTER(manager);
    return PKV_OK;
}

/* ---- truncate -------------------------------------------------------------------------------- */

/* Give back the columns behind the cut. */
static void cut_row(pkv_manager *manager, const struct pkvi_request *request, int32_t num_tokens) {
    for (int32_t g = 0; g < manager->num_groups; g++) {
        const struct pkvi_group *group = &manager->groups[g];
        struct pkvi_table_row *row = pkvi_manager_row(manager, g, request->row);
        const pkv_block_id *cells = pkvi_manager_cells(manager, g, request->row);
        int32_t num_full = num_tokens / group->block_size;
        int32_t end = end_of_fork(group, num_tokens);

        if (end < row->num_blocks) {
            (void)pkvi_pool_release(manager->pool, cells + end, row->num_blocks - end, true);
            row->num_blocks = end;
        }
        row->num_cached = row->num_cached < num_full ? row->num_cached : num_full;
        row->num_hits = row->num_hits < num_full ? row->num_hits : num_full;
        row->first_new = row->first_new < end ? row->first_new : end;
        row->dirty_end = row->dirty_end < end ? row->dirty_end : end;
        row->dirty_begin = row->dirty_begin < row->dirty_end ? row->dirty_begin : row->dirty_end;
    }
    pkvi_copy_list_cancel_freed(&manager->copies, manager->pool);
    if (manager->rows.num_live[request->row] > num_tokens) {
        manager->rows.num_live[request->row] = num_tokens;
    }
}

pkv_status pkv_truncate(pkv_manager *manager, pkv_request handle, int32_t num_tokens) {
    struct pkvi_request *request;
    int64_t end;
    pkv_status status = PKV_OK;

    request = pkvi_manager_request(manager, handle, &status);
    if (request == NULL) {
        return status;
    }
    if (num_tokens < 1 || num_tokens > request->num_tokens) {
        return PKVI_INVALID(manager, "the request has %d tokens", request->num_tokens);
    }
    if (num_tokens == request->num_tokens) {
        return PKV_OK;
    }
    if (request->row != PKV_NULL_ROW && pkvi_manager_is_loading(request)) {
        return pkvi_fail(manager->error, PKV_ERROR_BUSY, "a swap-in of the request is open");
    }
    if (pkvi_request_cuts_media(&manager->requests, request, num_tokens)) {
        return PKVI_INVALID(manager, "token %d lies within a media item", num_tokens);
    }
    if (request->row != PKV_NULL_ROW) {
        int32_t held = num_tokens;

        for (int32_t g = 0; g < manager->num_groups; g++) {
            int64_t room = (int64_t)pkvi_manager_row(manager, g, request->row)->num_blocks *
                           manager->groups[g].block_size;
            held = room < held ? (int32_t)room : held;
        }
        status = check_window(manager, request, held, held > 0 ? held - 1 : 0);
        if (status != PKV_OK) {
            return status;
        }
        cut_row(manager, request, num_tokens);
        end = (num_tokens + (int64_t)manager->groups[0].alignment - 1) /
              manager->groups[0].alignment * manager->groups[0].alignment;
        pkvi_manager_look_until(request, end);
    }
    /* Other tokens may come to stand where the remembered ones were. */
    if (manager->lookup->request.index == handle.index) {
        manager->lookup->is_set = false;
    }
    pkvi_request_truncate(&manager->requests, request, num_tokens);
    PKVI_CHECK_AFTER(manager);
    return PKV_OK;
}

/* ---- drain ----------------------------------------------------------------------------------- */

pkv_status pkv_take_copies(pkv_manager *manager,
                           int32_t group,
                           pkv_block_copy *copies,
                           int32_t capacity,
                           int32_t *num_copies) {
    pkv_status status;

    if (manager == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    if (!pkvi_manager_has_group(manager, group) || num_copies == NULL || capacity < 0 ||
        (capacity > 0 && copies == NULL)) {
        return PKVI_INVALID(manager, "no such group, a NULL array, or a negative capacity");
    }
    status =
        pkvi_copy_list_take(&manager->copies, manager->pool, group, copies, capacity, num_copies);
    PKVI_CHECK_AFTER(manager);
    return status;
}
