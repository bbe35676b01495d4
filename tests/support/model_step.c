/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Steps that complete or fail, the cache as a whole, and statistics of the naive model. */
#include "support/model_manager.h"

#include <string.h>

/* ---- steps ----------------------------------------------------------------------------------- */

/* Give back the tables that waited for steps in [first, last], in the order in which they came. */
static void return_held(model_manager *model, uint64_t first, uint64_t last) {
    int32_t num_kept = 0;

    for (int32_t i = 0; i < model->num_held; i++) {
        model_held *held = &model->held[i];
        if (held->step >= first && held->step <= last) {
            model_release_tables(model, held->tables);
        } else {
            if (num_kept != i) {
                memcpy(&model->held[num_kept], held, sizeof *held);
            }
            num_kept++;
        }
    }
    model->num_held = num_kept;
}

/* What the steps up to this one published is there now. */
static void list_completed(model_pool *pool, uint64_t step) {
    for (;;) {
        model_block *next = NULL;
        for (int32_t i = 1; i < pool->num_blocks; i++) {
            model_block *block = &pool->blocks[i];
            if (block->content != MODEL_NO_CONTENT && block->step != 0 && block->step <= step &&
                block->listed == 0 && (next == NULL || block->published < next->published)) {
                next = block;
            }
        }
        if (next == NULL) {
            return;
        }
        next->listed = ++pool->list_clock;
    }
}

model_statuses model_step_complete(model_manager *model, uint64_t step) {
    if (step == 0) {
        return MODEL_INVALID;
    }
    if (model->min_partial_tokens > 0) {
        list_completed(&model->pool, step);
    }
    for (int32_t i = 1; i < model->pool.num_blocks; i++) {
        if (model->pool.blocks[i].step <= step) {
            model->pool.blocks[i].step = 0;
        }
    }
    return_held(model, 0, step);
    model->completed_step = step > model->completed_step ? step : model->completed_step;
    model->newest_step = step > model->newest_step ? step : model->newest_step;
    return MODEL_OK;
}

/* The youngest key of a step >= `step`. */
static pkv_block_id youngest_since(const model_manager *model, uint64_t step) {
    pkv_block_id youngest = PKV_NULL_BLOCK;

    for (int32_t i = 1; i < model->pool.num_blocks; i++) {
        const model_block *block = &model->pool.blocks[i];
        if (block->content != MODEL_NO_CONTENT && block->step >= step &&
            (youngest == PKV_NULL_BLOCK ||
             block->published > model->pool.blocks[youngest].published)) {
            youngest = i;
        }
    }
    return youngest;
}

/* Take a key back. In every table the columns from there on may be offered for publication
 * again. */
static void withdraw(model_manager *model, pkv_block_id id) {
    model_pool_begin_call(&model->pool);
    model_pool_forget(&model->pool, id);
    model->num_withdrawn++;
    for (int32_t i = 0; i < MODEL_MAX_REQUESTS; i++) {
        model_request *request = &model->requests[i];
        for (int32_t group = 0; group < model->num_groups && request->is_open; group++) {
            for (int32_t column = 0; column < request->num_cached[group]; column++) {
                if (request->tables[group].ids[column] == id) {
                    request->num_cached[group] = column;
                }
            }
        }
    }
}

model_statuses model_step_fail(model_manager *model, uint64_t step) {
    pkv_block_id id;

    if (step == 0 || step <= model->completed_step) {
        return MODEL_INVALID;
    }
    while ((id = youngest_since(model, step)) != PKV_NULL_BLOCK) {
        withdraw(model, id);
    }
    return_held(model, step, UINT64_MAX);
    model->newest_step = model->newest_step >= step ? step - 1 : model->newest_step;
    return MODEL_OK;
}

/* Whether the key in this column was published in a step >= `step` while the request held the
 * block: by it, or by one that it shares the block with. What it began with is a hit like any
 * other. */
static bool is_own_since(const model_manager *model,
                         const model_request *request,
                         int32_t group,
                         int32_t column,
                         uint64_t step) {
    pkv_block_id id = request->tables[group].ids[column];
    const model_block *block = &model->pool.blocks[id];

    return id != PKV_NULL_BLOCK && column >= request->num_hits[group] &&
           column < request->num_cached[group] && block->content != MODEL_NO_CONTENT &&
           block->step >= step;
}

model_statuses model_unschedule(model_manager *model, model_request *request, uint64_t step) {
    if (step == 0 || step <= model->completed_step) {
        return MODEL_INVALID;
    }
    for (int32_t group = 0; group < model->num_groups; group++) {
        const model_table *table = &request->tables[group];
        for (int32_t column = 0; column < table->num_blocks; column++) {
            if (is_own_since(model, request, group, column, step) &&
                model->pool.blocks[table->ids[column]].ref_cnt > 1) {
                return MODEL_BUSY;
            }
        }
    }
    for (int32_t group = 0; group < model->num_groups; group++) {
        const model_table *table = &request->tables[group];
        for (int32_t column = table->num_blocks - 1; column >= 0; column--) {
            if (is_own_since(model, request, group, column, step)) {
                withdraw(model, table->ids[column]);
            }
        }
    }
    return MODEL_OK;
}

/* ---- the cache ------------------------------------------------------------------------------- */

model_statuses model_evict(model_manager *model, const pkv_block_id *ids, int32_t num_blocks) {
    if (num_blocks < 0 || (num_blocks > 0 && ids == NULL)) {
        return MODEL_INVALID;
    }
    for (int32_t i = 0; i < num_blocks; i++) {
        if (ids[i] < 0 || ids[i] >= model->pool.num_blocks) {
            return MODEL_INVALID;
        }
    }
    for (int32_t i = 0; i < num_blocks; i++) {
        if (model->pool.blocks[ids[i]].content != MODEL_NO_CONTENT) {
            model_pool_begin_call(&model->pool);
            model_pool_forget(&model->pool, ids[i]);
        }
    }
    return MODEL_OK;
}

model_statuses model_reset(model_manager *model) {
    return !model_has_open_swaps(model) && model_pool_reset(&model->pool) ? MODEL_OK : MODEL_BUSY;
}

/* Whether every table of the group has this block in this column. */
static bool is_common(const model_manager *model, int32_t group, int32_t column, pkv_block_id id) {
    for (int32_t i = 0; i < MODEL_MAX_REQUESTS; i++) {
        const model_request *request = &model->requests[i];
        if (request->is_open && request->row != PKV_NULL_ROW &&
            (column >= request->tables[group].num_blocks ||
             request->tables[group].ids[column] != id)) {
            return false;
        }
    }
    return true;
}

int32_t model_num_common_prefix_blocks(const model_manager *model,
                                       const model_request *request,
                                       int32_t group) {
    const model_table *table = &request->tables[group];
    int32_t count = 0;

    if (model->groups[group].kind != PKV_GROUP_FULL_ATTENTION || model->pool.disable_prefix_cache) {
        return 0;
    }
    while (count < table->num_blocks && is_common(model, group, count, table->ids[count])) {
        count++;
    }
    return count;
}

/* ---- statistics ------------------------------------------------------------------------------ */

static bool is_in_tables(const model_manager *model, const model_table *tables, pkv_block_id id) {
    for (int32_t group = 0; group < model->num_groups; group++) {
        for (int32_t column = 0; column < tables[group].num_blocks; column++) {
            if (tables[group].ids[column] == id) {
                return true;
            }
        }
    }
    return false;
}

/* Blocks that tables of requests and waiting copies do not name, but held tables or swaps do. */
int32_t model_num_pending_blocks(const model_manager *model) {
    int32_t count = 0;

    for (int32_t id = 1; id < model->pool.num_blocks; id++) {
        bool is_pending = model->pool.blocks[id].ref_cnt > 0 && !model_is_pinned(model, id) &&
                          (model->num_held > 0 || model_is_in_flight(model, id));
        for (int32_t i = 0; i < MODEL_MAX_REQUESTS && is_pending; i++) {
            is_pending =
                !model->requests[i].is_open || !is_in_tables(model, model->requests[i].tables, id);
        }
        count += is_pending ? 1 : 0;
    }
    return count;
}

/* What the slots of used blocks hold: at the end of a row some are not written yet, or never will
 * be. A block with another owner was written by that one. */
static void count_slots(const model_manager *model, pkv_stats *out) {
    for (int32_t id = 1; id < model->pool.num_blocks; id++) {
        const model_block *block = &model->pool.blocks[id];
        out->num_live_slots += block->ref_cnt > 0 ? model->groups[block->group].block_size : 0;
    }
    for (int32_t i = 0; i < MODEL_MAX_REQUESTS; i++) {
        const model_request *request = &model->requests[i];
        for (int32_t group = 0; group < model->num_groups && request->row != PKV_NULL_ROW;
             group++) {
            int32_t block_size = model->groups[group].block_size;
            int32_t num_slots = request->tables[group].num_blocks * block_size;
            for (int32_t slot = request->num_live_tokens; slot < num_slots; slot++) {
                pkv_block_id id = request->tables[group].ids[slot / block_size];
                if (id == PKV_NULL_BLOCK || model->pool.blocks[id].ref_cnt > 1) {
                    continue;
                }
                out->num_live_slots--;
                if (slot < request->max_num_tokens) {
                    out->num_reserved_slots++;
                } else {
                    out->num_internal_slots++;
                }
            }
        }
    }
}

void model_get_stats(const model_manager *model, pkv_stats *out) {
    const model_pool *pool = &model->pool;

    memset(out, 0, sizeof *out);
    out->struct_size = sizeof *out;
    out->num_blocks = pool->num_blocks;
    out->num_free_blocks = pool->num_free;
    out->num_cached_blocks = model_pool_num_cached(pool);
    out->num_distinct_keys = model_pool_num_distinct(pool);
    out->num_pending_blocks = model_num_pending_blocks(model);
    for (int32_t i = 0; i < MODEL_MAX_REQUESTS; i++) {
        out->num_requests += model->requests[i].is_open ? 1 : 0;
    }
    out->num_rows = model->num_rows;
    out->usage =
        pool->num_blocks > 1 ? 1.0 - (double)pool->num_free / (double)(pool->num_blocks - 1) : 0.0;
    count_slots(model, out);
    out->num_lookups = model->num_lookups;
    out->num_lookup_tokens = model->num_lookup_tokens;
    out->num_hit_tokens = model->num_hit_tokens;
    out->num_resumes = model->num_resumes;
    out->num_resume_tokens = model->num_resume_tokens;
    out->num_resume_hit_tokens = model->num_resume_hit_tokens;
    out->num_allocations = model->num_allocations;
    out->num_no_free_blocks = model->num_no_free_blocks;
    out->num_no_free_rows = model->num_no_free_rows;
    out->num_never_fits = model->num_never_fits;
    out->num_frees = model->num_frees;
    out->num_blocks_allocated = pool->num_allocated;
    out->num_blocks_evicted = pool->num_evicted;
    out->num_keys_published = pool->num_published;
    out->num_keys_withdrawn = model->num_withdrawn;
    out->num_events_dropped = pool->num_dropped;
    out->num_forks = model->num_forks;
    out->num_copies = model->num_copies_queued;
    out->num_partial_hits = model->num_partial_hits;
    out->num_partial_hit_tokens = model->num_partial_hit_tokens;
}
