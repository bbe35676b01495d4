/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* pkv_allocate_slots: works out what the request's next tokens need, refuses without a change, or
 * changes everything without being able to fail. The other verbs are in verbs.c. */
#include "manager/manager.h"

/* What an allocation has worked out before it changes anything. All in tokens but for the
 * blocks. */
struct demand {
    int64_t num_computed; /* local + external, at most max_model_len */
    int64_t num_local;    /* computed here, the hit included */
    int64_t num_written;  /* computed + new, at most max_model_len: [num_local, it) is written */
    int64_t num_slots;    /* the same with lookahead */
    int64_t num_spare;    /* blocks that stay free beyond what is needed and reserved */
    int32_t hit_tokens;
    int32_t partial_tokens; /* of these: rows of the block behind the last whole one */
    int32_t shared_prefix_boundary;
    bool has_row;
};

/* Columns at the start of a new row that come from the hit or are null. */
static int64_t num_leading(const struct pkvi_group *group, const struct demand *demand) {
    int64_t skipped = pkvi_group_num_skipped_blocks(group, demand->num_computed);
    int64_t hits = demand->hit_tokens / group->block_size;

    return skipped > hits ? skipped : hits;
}

/* Blocks that `columns` columns of group g would take from the free queue: new ones, and hits that
 * wait there. */
static int64_t blocks_needed(const pkv_manager *manager,
                             int32_t g,
                             const struct pkvi_request *request,
                             const struct demand *demand,
                             int64_t columns) {
    const struct pkvi_group *group = &manager->groups[g];
    int64_t num_hits = demand->hit_tokens / group->block_size;
    int64_t needed;

    if (demand->has_row) {
        needed = columns - pkvi_manager_row(manager, g, request->row)->num_blocks;
        return (needed > 0 ? needed : 0) + pkvi_manager_count_copies(manager, g, request,
                                                                     demand->num_local,
                                                                     demand->num_written);
    }
    needed = columns - num_leading(group, demand);
    needed = needed > 0 ? needed : 0;
    for (int64_t i = pkvi_group_num_skipped_blocks(group, demand->num_computed); i < num_hits;
         i++) {
        pkv_block_id block = manager->lookup->block_ids[g][i];
        if (block != PKV_NULL_BLOCK && manager->pool->states[block].ref_cnt == 0) {
            needed++;
        }
    }
    return needed;
}

static int64_t all_blocks_needed(const pkv_manager *manager,
                                 const struct pkvi_request *request,
                                 const struct demand *demand,
                                 int64_t num_tokens,
                                 bool is_admission) {
    int64_t needed = 0;

    for (int32_t g = 0; g < manager->num_groups; g++) {
        const struct pkvi_group *group = &manager->groups[g];
        int64_t columns = is_admission ? pkvi_group_admission_blocks(group, num_tokens)
                                       : pkvi_group_blocks_for(group, num_tokens);
        needed += blocks_needed(manager, g, request, demand, columns);
    }
    return needed;
}

/* Whether not even an empty pool could serve this: watermark aside, and hits counted, since they
 * lie in the same pool. What a window has passed takes no block, so that a long request comes
 * back. */
static bool never_fits(const pkv_manager *manager,
                       const struct demand *demand,
                       int64_t num_tokens) {
    int64_t needed = 0;

    for (int32_t g = 0; g < manager->num_groups; g++) {
        const struct pkvi_group *group = &manager->groups[g];
        int64_t columns = pkvi_group_admission_blocks(group, num_tokens) -
                          pkvi_group_num_skipped_blocks(group, demand->num_computed);

        needed += columns > 0 ? columns : 0;
    }
    return needed > manager->pool->num_blocks - 1;
}

int64_t pkvi_manager_add_owners(const pkv_manager *manager,
                                const pkv_block_id *block_ids,
                                int64_t first,
                                int64_t end) {
    for (int64_t i = first; i < end; i++) {
        struct pkvi_block_state *state = &manager->pool->states[block_ids[i]];

        if (block_ids[i] != PKV_NULL_BLOCK) {
            if (state->ref_cnt >= pkvi_manager_most_owners(manager)) {
                return i;
            }
            state->ref_cnt = (state->ref_cnt + 1) & (uint32_t)PKV_MAX_REF_CNT;
        }
    }
    return end;
}

/* Keys of the library name a block once in a row, so that max_rows bounds its references. A caller
 * may give one key to many blocks; then one row takes many references, which are counted here. */
static pkv_status check_owners(const pkv_manager *manager,
                               const struct pkvi_request *request,
                               const struct demand *demand) {
    struct pkvi_block_state *states = manager->pool->states;

    for (int32_t g = 0; g < manager->num_groups && request->has_caller_keys; g++) {
        const struct pkvi_group *group = &manager->groups[g];
        const pkv_block_id *hits = manager->lookup->block_ids[g];
        int64_t first = pkvi_group_num_skipped_blocks(group, demand->num_computed);
        int64_t end = demand->hit_tokens / group->block_size;
        int64_t stopped = pkvi_manager_add_owners(manager, hits, first, end);

        for (int64_t i = first; i < stopped; i++) {
            if (hits[i] != PKV_NULL_BLOCK) {
                states[hits[i]].ref_cnt = (states[hits[i]].ref_cnt - 1) & (uint32_t)PKV_MAX_REF_CNT;
            }
        }
        if (stopped < end) {
            return pkvi_fail(manager->error, PKV_ERROR_LIMIT,
                             "the caller's keys give block %d more than %u owners", hits[stopped],
                             pkvi_manager_most_owners(manager));
        }
    }
    return PKV_OK;
}

static pkv_status check_args(const pkv_manager *manager,
                             const struct pkvi_request *request,
                             const pkv_slots_args *args) {
    if (args->num_computed_tokens < 0 || args->num_new_tokens < 0 ||
        args->num_new_computed_tokens < 0 || args->num_external_computed_tokens < 0 ||
        args->num_lookahead_tokens < 0 || args->num_in_flight_tokens < 0 ||
        args->num_watermark_blocks < 0 || args->num_reserved_blocks < 0) {
        return PKVI_INVALID(manager, "a count is negative");
    }
    if (args->num_new_tokens == 0 && args->num_external_computed_tokens == 0) {
        return PKVI_INVALID(manager, "num_new_tokens and num_external_computed_tokens are both 0");
    }
    if (!pkvi_publish_log_accepts(&manager->pool->log, args->step)) {
        return PKVI_INVALID(manager,
                            "step %llu is complete, goes back, or is 2^32 ahead of the oldest",
                            (unsigned long long)args->step);
    }
    if (manager->min_partial_tokens > 0 && args->num_external_computed_tokens > 0 &&
        args->num_new_computed_tokens % manager->groups[0].block_size != 0) {
        return PKVI_INVALID(manager, "what is loaded begins at a block: drop the partial hit");
    }
    if (request->row == PKV_NULL_ROW) {
        return args->num_computed_tokens == 0
                   ? PKV_OK
                   : PKVI_INVALID(manager, "num_computed_tokens without blocks: a hit is passed "
                                           "as num_new_computed_tokens");
    }
    if (args->num_new_computed_tokens > 0) {
        return PKVI_INVALID(manager, "num_new_computed_tokens for a request that holds blocks");
    }
    for (int32_t g = 0; g < manager->num_groups; g++) {
        const struct pkvi_table_row *row = pkvi_manager_row(manager, g, request->row);
        if (args->num_computed_tokens > (int64_t)row->num_blocks * manager->groups[g].block_size) {
            return PKVI_INVALID(manager, "num_computed_tokens %d are more than its %d blocks hold",
                                args->num_computed_tokens, row->num_blocks);
        }
    }
    return PKV_OK;
}

static void measure_demand(const pkv_manager *manager,
                           const struct pkvi_request *request,
                           const pkv_slots_args *args,
                           struct demand *demand) {
    int64_t most = manager->max_model_len;

    demand->has_row = request->row != PKV_NULL_ROW;
    demand->shared_prefix_boundary = 0;
    demand->num_spare = 0;
    demand->hit_tokens = args->num_new_computed_tokens;
    demand->partial_tokens =
        manager->min_partial_tokens > 0 ? demand->hit_tokens % manager->groups[0].block_size : 0;
    demand->num_local = (int64_t)args->num_computed_tokens + args->num_new_computed_tokens;
    demand->num_computed = demand->num_local + args->num_external_computed_tokens;
    demand->num_computed = demand->num_computed < most ? demand->num_computed : most;
    demand->num_written = demand->num_computed + args->num_new_tokens;
    demand->num_slots = demand->num_written + args->num_lookahead_tokens;
    demand->num_written = demand->num_written < most ? demand->num_written : most;
    demand->num_slots = demand->num_slots < most ? demand->num_slots : most;
}

/* Refusals that must not even drop what the window has passed. */
static pkv_status admit(const pkv_manager *manager,
                        const struct pkvi_request *request,
                        const pkv_slots_args *args,
                        const struct demand *demand,
                        int64_t *num_missing) {
    int64_t all_tokens =
        request->num_tokens < manager->max_model_len ? request->num_tokens : manager->max_model_len;

    *num_missing = 0;
    for (int32_t g = 0; g < manager->num_groups; g++) {
        const struct pkvi_group *group = &manager->groups[g];
        if (pkvi_group_blocks_for(group, demand->num_slots) > group->table.width) {
            return pkvi_fail(manager->error, PKV_ERROR_LIMIT,
                             "max_blocks_per_request: %d columns cannot hold %lld tokens",
                             group->table.width, (long long)demand->num_slots);
        }
    }
    if (!demand->has_row) {
        pkv_status status = PKV_OK;

        if (never_fits(manager, demand,
                       args->full_sequence_must_fit ? all_tokens : demand->num_slots)) {
            return PKV_NEVER_FITS;
        }
        if (demand->hit_tokens > 0) {
            status = pkvi_manager_confirm_hit(manager, request, demand->hit_tokens)
                         ? check_owners(manager, request, demand)
                         : PKV_NOT_FOUND;
        }
        if (status != PKV_OK) {
            return status;
        }
        if (manager->rows.num_free_rows == 0) {
            return PKV_NO_FREE_ROWS;
        }
    }
    if (args->full_sequence_must_fit) {
        *num_missing = all_blocks_needed(manager, request, demand, all_tokens, true) +
                       args->num_watermark_blocks - manager->pool->free_queue.num_free;
    }
    return *num_missing > 0 ? PKV_NO_FREE_BLOCKS : PKV_OK;
}

/* Put new blocks at the end of a row, up to `columns`. */
static void extend_row(pkv_manager *manager, int32_t g, int32_t row_number, int64_t columns) {
    struct pkvi_table_row *row = pkvi_manager_row(manager, g, row_number);
    int32_t count = columns > row->num_blocks ? (int32_t)columns - row->num_blocks : 0;

    if (count > 0) {
        pkv_block_id *cells = pkvi_manager_cells(manager, g, row_number);
        pkvi_pool_take(manager->pool, g, count, cells + row->num_blocks);
        pkvi_table_mark(row, row->num_blocks, row->num_blocks + count);
        row->num_blocks += count;
    }
}

/* Give a new row its leading columns: touched hits of every group first, then blocks for what will
 * be loaded, so that one group's new blocks never evict another's hits. */
static void begin_row(pkv_manager *manager, int32_t row_number, const struct demand *demand) {
    for (int32_t g = 0; g < manager->num_groups; g++) {
        const struct pkvi_group *group = &manager->groups[g];
        struct pkvi_table_row *row = pkvi_manager_row(manager, g, row_number);
        pkv_block_id *cells = pkvi_manager_cells(manager, g, row_number);
        int64_t skipped = pkvi_group_num_skipped_blocks(group, demand->num_computed);

        row->num_blocks = (int32_t)num_leading(group, demand);
        for (int32_t i = 0; i < row->num_blocks; i++) {
            cells[i] = i < skipped ? PKV_NULL_BLOCK : manager->lookup->block_ids[g][i];
            PKV_ASSERT(i < skipped || i < demand->hit_tokens / group->block_size);
            if (cells[i] != PKV_NULL_BLOCK) {
                pkvi_pool_touch_block(manager->pool, cells[i]);
            }
        }
        row->num_hits = row->num_blocks;
        row->num_cached = row->num_blocks;
        pkvi_table_mark(row, 0, row->num_blocks);
    }
    if (demand->partial_tokens > 0) {
        pkvi_partial_hold(manager);
    }
    if (demand->num_computed == demand->num_local) {
        return;
    }
    for (int32_t g = 0; g < manager->num_groups; g++) {
        const struct pkvi_group *group = &manager->groups[g];
        int64_t skipped = pkvi_group_num_skipped_tokens(group, demand->num_computed);
        if (demand->num_computed > skipped) {
            extend_row(manager, g, row_number, pkvi_group_blocks_for(group, demand->num_computed));
        }
    }
}

/* Lease a row and count the admission. */
static void start_request(pkv_manager *manager,
                          struct pkvi_request *request,
                          const struct demand *demand) {
    struct pkvi_counters *counters = &manager->counters;
    uint64_t num_tokens = (uint64_t)request->num_tokens;
    uint64_t num_hits = (uint64_t)demand->hit_tokens;

    request->row = pkvi_row_lease(&manager->rows, pkvi_request_index(&manager->requests, request));
    request->look_until = 0;
    request->shared_prefix_boundary = demand->shared_prefix_boundary;
    if (manager->pool->is_caching && !request->skip_cache_read) {
        if (request->num_allocations == 0) {
            counters->num_lookups++;
            counters->num_lookup_tokens += num_tokens;
            counters->num_hit_tokens += num_hits;
        } else {
            counters->num_resumes++;
            counters->num_resume_tokens += num_tokens;
            counters->num_resume_hit_tokens += num_hits;
        }
    }
    counters->num_partial_hits += demand->partial_tokens > 0 ? 1 : 0;
    counters->num_partial_hit_tokens += (uint64_t)demand->partial_tokens;
    request->num_allocations++;
    begin_row(manager, request->row, demand);
}

/* Publish what the step fills, and note how far it goes. */
static void finish(pkv_manager *manager,
                   struct pkvi_request *request,
                   const pkv_slots_args *args,
                   int64_t num_computed,
                   int64_t num_slots) {
    int64_t num_tokens = num_computed + args->num_new_tokens;

    if (args->step > manager->pool->log.newest_step) {
        manager->pool->log.newest_step = args->step;
    }
    manager->rows.num_live[request->row] =
        (int32_t)(num_tokens < num_slots ? num_tokens : num_slots);
    /* Drafts that are not verified yet are no tokens of the request, and are not published. */
    num_tokens = num_tokens < request->num_tokens ? num_tokens : request->num_tokens;
    if (!args->delay_caching) {
        pkvi_manager_commit(manager, request, (int32_t)num_tokens, args->step, false);
    }
    manager->counters.num_allocations++;
}

/* Everything that changes; nothing here can fail. */
static void perform(pkv_manager *manager,
                    struct pkvi_request *request,
                    const pkv_slots_args *args,
                    const struct demand *demand,
                    pkv_slots *slots) {
    int64_t num_spare = demand->num_spare;

    if (!demand->has_row) {
        start_request(manager, request, demand);
    }
    for (int32_t g = 0; g < manager->num_groups; g++) {
        struct pkvi_table_row *row = pkvi_manager_row(manager, g, request->row);
        int64_t columns = pkvi_group_blocks_for(&manager->groups[g], demand->num_slots);

        if (demand->has_row) {
            slots->num_copies += pkvi_manager_make_writable(manager, g, request, demand->num_local,
                                                            demand->num_written);
        }
        row->first_new = row->num_blocks;
        if (!demand->has_row && demand->partial_tokens > 0) {
            slots->num_copies += pkvi_partial_extend(manager, g, request->row, &num_spare);
        }
        extend_row(manager, g, request->row, columns);
        slots->num_new_blocks += row->num_blocks - row->first_new;
    }
    manager->counters.num_copies += (uint64_t)slots->num_copies;
    finish(manager, request, args, demand->num_computed, demand->num_slots);
    slots->row = request->row;
}

/* Do a step that stays within the blocks that the request holds and fills none of them, and say so;
 * nearly every decode step is like that. It asks without a division and without a call, and leaves
 * everything else, errors included, to the long way. */
static inline bool stay_within_row(pkv_manager *manager,
                                   const struct pkvi_request *request,
                                   const pkv_slots_args *args) {
    int64_t num_tokens = (int64_t)args->num_computed_tokens + args->num_new_tokens;
    int64_t num_slots = num_tokens + args->num_lookahead_tokens;
    int64_t num_known = num_tokens < request->num_tokens ? num_tokens : request->num_tokens;
    bool publishes = manager->pool->is_caching && !args->delay_caching;
    /* Negative also where the write begins before look_until, which is not negative. */
    int64_t signs = ((int64_t)args->num_computed_tokens - request->look_until) |
                    args->num_lookahead_tokens | args->num_in_flight_tokens;

    if (signs < 0 || args->num_new_tokens < 1 || args->num_new_computed_tokens != 0 ||
        args->num_external_computed_tokens != 0 || args->num_watermark_blocks != 0 ||
        args->num_reserved_blocks != 0 || args->full_sequence_must_fit ||
        request->row == PKV_NULL_ROW || num_slots > manager->max_model_len ||
        !pkvi_publish_log_accepts(&manager->pool->log, args->step)) {
        return false;
    }
    for (int32_t g = 0; g < manager->num_groups; g++) {
        const struct pkvi_group *group = &manager->groups[g];
        const struct pkvi_table_row *row = pkvi_manager_row(manager, g, request->row);

        if (pkvi_group_is_windowed(group) ||
            num_slots > (int64_t)row->num_blocks * group->block_size ||
            (publishes && num_known >= ((int64_t)row->num_cached + 1) * group->block_size)) {
            return false;
        }
    }
    for (int32_t g = 0; g < manager->num_groups; g++) {
        struct pkvi_table_row *row = pkvi_manager_row(manager, g, request->row);
        row->first_new = row->num_blocks;
    }
    if (args->step > manager->pool->log.newest_step) {
        manager->pool->log.newest_step = args->step;
    }
    manager->rows.num_live[request->row] = (int32_t)num_tokens;
    manager->counters.num_allocations++;
    return true;
}

/* Admission, window, capacity, then the change itself. */
static pkv_status allocate(pkv_manager *manager,
                           struct pkvi_request *request,
                           const pkv_slots_args *args,
                           pkv_slots *slots) {
    struct demand demand;
    int64_t num_missing;
    pkv_status status;

    measure_demand(manager, request, args, &demand);
    status = admit(manager, request, args, &demand, &num_missing);
    if (status == PKV_OK) {
        if (demand.has_row) {
            pkvi_manager_remove_skipped(manager, request->row,
                                        demand.num_computed - args->num_in_flight_tokens);
        }
        num_missing = all_blocks_needed(manager, request, &demand, demand.num_slots, false) +
                      args->num_watermark_blocks + args->num_reserved_blocks -
                      manager->pool->free_queue.num_free;
        status = num_missing > 0 ? PKV_NO_FREE_BLOCKS : PKV_OK;
        demand.num_spare = -num_missing;
    }
    if (status == PKV_OK) {
        /* Groups can disagree even where the common hit is empty. */
        if (!demand.has_row && manager->num_groups > 1) {
            demand.shared_prefix_boundary =
                (demand.hit_tokens > 0 ? manager->lookup : pkvi_manager_look_up(manager, request))
                    ->shared_prefix_boundary;
        }
        perform(manager, request, args, &demand, slots);
        return PKV_OK;
    }
    manager->counters.num_no_free_blocks += status == PKV_NO_FREE_BLOCKS ? 1 : 0;
    manager->counters.num_no_free_rows += status == PKV_NO_FREE_ROWS ? 1 : 0;
    manager->counters.num_never_fits += status == PKV_NEVER_FITS ? 1 : 0;
    if (status == PKV_NO_FREE_BLOCKS) {
        slots->num_missing_blocks = num_missing < INT32_MAX ? (int32_t)num_missing : INT32_MAX;
        slots->num_pending_blocks = pkvi_manager_count_pending(manager);
    }
    return status;
}

pkv_status pkvi_manager_allocate(pkv_manager *manager,
                                 struct pkvi_request *request,
                                 const pkv_slots_args *args,
                                 pkv_slots *slots) {
    pkv_status status = check_args(manager, request, args);

    return status == PKV_OK ? allocate(manager, request, args, slots) : status;
}

/* The long way: read, check, decide, change. */
static pkv_status allocate_checked(pkv_manager *manager,
                                   struct pkvi_request *request,
                                   const pkv_slots_args *args,
                                   pkv_slots *slots) {
    pkv_slots_args own;
    pkv_status status = pkvi_read_struct(&own, sizeof own, sizeof own.struct_size, args);

    if (status != PKV_OK) {
        return pkvi_fail(manager->error, status,
                         "args is NULL, its struct_size is not set, or a later field is set");
    }
    return pkvi_manager_allocate(manager, request, &own, slots);
}

pkv_status pkv_allocate_slots(pkv_manager *manager,
                              pkv_request handle,
                              const pkv_slots_args *args,
                              pkv_slots *out) {
    struct pkvi_request *request;
    pkv_slots slots = {0};
    pkv_status status = PKV_OK;

    request = pkvi_manager_request(manager, handle, &status);
    if (request == NULL) {
        return status;
    }
    if (out != NULL && out->struct_size < sizeof out->struct_size) {
        return PKVI_INVALID(manager, "the struct_size of out is not set");
    }
    if (args != NULL && args->struct_size == sizeof *args &&
        stay_within_row(manager, request, args)) {
        slots.row = request->row;
    } else {
        status = allocate_checked(manager, request, args, &slots);
    }
    if (out != NULL && status >= PKV_OK) {
        (void)pkvi_write_struct(out, &slots, sizeof slots, sizeof slots.struct_size);
    }
    PKVI_CHECK_AFTER(manager);
    return status;
}
