/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Allocation of the naive model, written down step by step as vLLM V1 is described to do it, and
 * what it is made of: dropping behind the window, publishing, freeing. */
#include "support/model_manager.h"

#include <string.h>

static int32_t min_of(int32_t a, int32_t b) {
    return a < b ? a : b;
}

static int32_t max_of(int32_t a, int32_t b) {
    return a > b ? a : b;
}

static int64_t min64_of(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int32_t columns_of(const model_manager *model, int32_t group, int64_t num_tokens) {
    int32_t block_size = model->groups[group].block_size;

    return (int32_t)((num_tokens + block_size - 1) / block_size);
}

/* ---- free, drop, publish --------------------------------------------------------------------- */

void model_release_tables(model_manager *model, model_table *tables) {
    for (int32_t group = 0; group < model->num_groups; group++) {
        pkv_block_id reversed[MODEL_MAX_COLUMNS];
        model_table *table = &tables[group];
        for (int32_t i = 0; i < table->num_blocks; i++) {
            reversed[i] = table->ids[table->num_blocks - 1 - i];
        }
        model_pool_free_blocks(&model->pool, reversed, table->num_blocks);
        table->num_blocks = 0;
    }
    model_cancel_freed(model);
}

/* Make a request one that holds nothing; its tables have been given away. */
static void forget_tables(model_manager *model, model_request *request) {
    for (int32_t group = 0; group < model->num_groups; group++) {
        request->tables[group].num_blocks = 0;
        request->first_new[group] = 0;
        request->num_cached[group] = 0;
        request->num_hits[group] = 0;
    }
    request->row = PKV_NULL_ROW;
    request->num_live_tokens = 0;
    model->num_rows--;
    model->num_frees++;
}

void model_free(model_manager *model, model_request *request) {
    if (request->row != PKV_NULL_ROW) {
        model_release_tables(model, request->tables);
        forget_tables(model, request);
    }
}

model_statuses model_free_after(model_manager *model, model_request *request, uint64_t step) {
    model_held *held = &model->held[model->num_held];

    if (request->row == PKV_NULL_ROW || step <= model->completed_step) {
        model_free(model, request);
        return MODEL_OK;
    }
    if (model->num_held == model->max_held_rows) {
        return MODEL_STATUS(PKV_NO_FREE_ROWS);
    }
    held->step = step;
    memcpy(held->tables, request->tables, sizeof held->tables);
    model->num_held++;
    forget_tables(model, request);
    return MODEL_OK;
}

void model_drop_skipped(model_manager *model,
                        model_request *request,
                        int32_t num_processed_tokens) {
    for (int32_t group = 0; group < model->num_groups; group++) {
        pkv_block_id dropped[MODEL_MAX_COLUMNS];
        model_table *table = &request->tables[group];
        int32_t num_dropped = 0;
        int32_t end = model_num_skipped_tokens(model, group, num_processed_tokens) /
                      model->groups[group].block_size;

        for (int32_t column = min_of(end, table->num_blocks) - 1;
             column >= 0 && table->ids[column] != PKV_NULL_BLOCK; column--) {
            dropped[num_dropped++] = table->ids[column];
            table->ids[column] = PKV_NULL_BLOCK;
        }
        model_pool_free_blocks(&model->pool, dropped, num_dropped);
    }
    model_cancel_freed(model);
}

model_statuses model_remove_skipped(model_manager *model,
                                    model_request *request,
                                    int32_t num_processed_tokens) {
    if (num_processed_tokens < 0) {
        return MODEL_INVALID;
    }
    model_drop_skipped(model, request, num_processed_tokens);
    return MODEL_OK;
}

/* How many of a group's columns are publishable when that many tokens are there. */
static int32_t num_full_columns(const model_manager *model,
                                const model_request *request,
                                int32_t group,
                                int32_t num_tokens) {
    const pkv_group_config *config = &model->groups[group];
    int32_t aligned = num_tokens / model->alignment * model->alignment;
    int32_t full = aligned / config->block_size;

    if (config->eagle) {
        full = min_of(full + 1, num_tokens / config->block_size);
    }
    while (full > 0 && model_column_content(model, request, group, full - 1) == MODEL_NO_CONTENT) {
        full--;
    }
    for (int32_t column = request->num_cached[group]; column < full; column++) {
        if (model_is_foreign(model, request, group, column)) {
            return column;
        }
    }
    return full;
}

/* Note whose child a block is, and that its content is there, unless a copy is still to bring it. */
static void list_published(model_manager *model,
                           const model_request *request,
                           const model_publication *publication,
                           int32_t column) {
    pkv_block_id id = request->tables[publication->group].ids[column];
    model_block *block = &model->pool.blocks[id];

    block->parent = column == 0
                        ? MODEL_NO_CONTENT
                        : model_column_content(model, request, publication->group, column - 1);
    if (model->min_partial_tokens > 0 && publication->is_computed && publication->step == 0 &&
        !model_is_target(model, id)) {
        block->listed = ++model->pool.list_clock;
    }
}

static void publish_group(model_manager *model,
                          model_request *request,
                          int32_t group,
                          int32_t full,
                          uint64_t step,
                          bool is_computed) {
    int32_t first = request->num_cached[group];
    int32_t block_size = model->groups[group].block_size;
    model_publication publication = {
        .group = group,
        .parent =
            first == 0 ? MODEL_NO_CONTENT : model_column_content(model, request, group, first - 1),
        .first_token = first * block_size,
        .num_tokens = (full - first) * block_size,
        .lease = request->num_allocations,
        .request = request->handle,
        .adapter_id = request->adapter_id,
        .step = step,
        .is_computed = is_computed,
    };
    int32_t num_published = 0;

    model_pool_begin_call(&model->pool);
    for (int32_t column = first; column < full; column++) {
        pkv_block_id id = request->tables[group].ids[column];
        if (id == PKV_NULL_BLOCK || model->pool.blocks[id].content != MODEL_NO_CONTENT ||
            !model_is_retained(model, request, group, column)) {
            continue;
        }
        model_pool_publish(&model->pool, id, model_column_content(model, request, group, column),
                           &request->tokens[column * block_size], &publication);
        list_published(model, request, &publication, column);
        num_published++;
    }
    if (num_published == 0) {
        model_pool_publish_nothing(&model->pool, &publication);
    }
    request->num_cached[group] = full;
    request->num_hits[group] = min_of(request->num_hits[group], first);
}

void model_publish(model_manager *model,
                   model_request *request,
                   int32_t num_tokens,
                   uint64_t step,
                   bool is_computed) {
    bool publishes = !model->pool.disable_prefix_cache && !model_is_loading(model, request);

    for (int32_t group = 0; group < model->num_groups && publishes; group++) {
        int32_t full = num_full_columns(model, request, group, num_tokens);
        if (full > request->num_cached[group]) {
            publish_group(model, request, group, full, step, is_computed);
        }
    }
}

model_statuses model_cache_blocks(model_manager *model,
                                  model_request *request,
                                  int32_t num_tokens) {
    bool is_valid = num_tokens >= 0 && num_tokens <= request->num_tokens;

    for (int32_t group = 0; group < model->num_groups; group++) {
        is_valid = is_valid &&
                   (int64_t)request->tables[group].num_blocks * model->groups[group].block_size >=
                       num_tokens;
    }
    if (!is_valid) {
        return MODEL_INVALID;
    }
    model_publish(model, request, num_tokens, 0, true);
    return MODEL_OK;
}

/* ---- allocate -------------------------------------------------------------------------------- */

/* What one call is about, in tokens. */
struct plan {
    int32_t hit, external, total, num_slot_tokens, num_commit_tokens;
    int64_t first_written, end_written;
    int32_t partial; /* of the hit: tokens behind its last whole block */
    int64_t num_spare;
    pkv_block_id sources[MODEL_MAX_GROUPS];
    model_table hits[MODEL_MAX_GROUPS];
};

/* Blocks that one group takes out of the free queue to reach `num_tokens` tokens. */
static int32_t need_of_group(const model_manager *model,
                             const model_request *request,
                             const struct plan *plan,
                             int32_t group,
                             int32_t num_tokens,
                             bool is_capped) {
    const model_table *hits = &plan->hits[group];
    int32_t required = columns_of(model, group, num_tokens);
    int32_t skipped =
        model_num_skipped_tokens(model, group, plan->total) / model->groups[group].block_size;
    int32_t num_evictable = 0;

    if (is_capped) {
        required = min_of(required, model_admission_cap(model, group));
    }
    if (request->row != PKV_NULL_ROW) {
        return max_of(required - request->tables[group].num_blocks, 0) +
               model_num_copies_needed(model, request, group, plan->first_written,
                                       plan->end_written);
    }
    for (int32_t column = skipped; column < hits->num_blocks; column++) {
        pkv_block_id id = hits->ids[column];
        num_evictable += id != PKV_NULL_BLOCK && model->pool.blocks[id].ref_cnt == 0 ? 1 : 0;
    }
    return max_of(required - max_of(skipped, hits->num_blocks), 0) + num_evictable;
}

static int64_t need_of_all(const model_manager *model,
                           const model_request *request,
                           const struct plan *plan,
                           int32_t num_tokens,
                           bool is_capped) {
    int64_t need = 0;

    for (int32_t group = 0; group < model->num_groups; group++) {
        need += need_of_group(model, request, plan, group, num_tokens, is_capped);
    }
    return need;
}

/* Even with every block free and nothing else wished for, it would not fit. */
static bool never_fits(const model_manager *model,
                       const model_request *request,
                       const struct plan *plan,
                       bool must_fit) {
    int32_t num_tokens =
        must_fit ? min_of(request->num_tokens, model->max_model_len) : plan->num_slot_tokens;
    int64_t need = 0;

    for (int32_t group = 0; group < model->num_groups; group++) {
        int32_t passed =
            model_num_skipped_tokens(model, group, plan->total) / model->groups[group].block_size;
        int32_t capped =
            min_of(columns_of(model, group, num_tokens), model_admission_cap(model, group));
        need += max_of(capped - passed, 0);
    }
    return request->row == PKV_NULL_ROW && need > model->pool.num_blocks - 1;
}

static model_statuses refuse(model_manager *model, int64_t num_missing) {
    model->num_no_free_blocks++;
    model->num_missing_blocks = (int32_t)min64_of(num_missing, INT32_MAX);
    model->num_pending_blocks = model_num_pending_blocks(model);
    return MODEL_STATUS(PKV_NO_FREE_BLOCKS);
}

static int32_t append_new(model_manager *model,
                          model_request *request,
                          int32_t group,
                          int32_t num_columns) {
    model_table *table = &request->tables[group];
    int32_t count = max_of(num_columns - table->num_blocks, 0);

    model_pool_get_new_blocks(&model->pool, group, count, &table->ids[table->num_blocks]);
    table->num_blocks += count;
    return count;
}

/* The request's first blocks: hits of all groups are taken before any group takes a new block. */
static void start_tables(model_manager *model, model_request *request, const struct plan *plan) {
    for (int32_t group = 0; group < model->num_groups; group++) {
        model_table *table = &request->tables[group];
        int32_t skipped =
            model_num_skipped_tokens(model, group, plan->total) / model->groups[group].block_size;
        table->num_blocks = max_of(skipped, plan->hits[group].num_blocks);
        for (int32_t column = 0; column < table->num_blocks; column++) {
            table->ids[column] = column < skipped ? PKV_NULL_BLOCK : plan->hits[group].ids[column];
            model_pool_touch(&model->pool, table->ids[column]);
        }
        request->num_cached[group] = table->num_blocks;
        request->num_hits[group] = table->num_blocks;
    }
    for (int32_t group = 0; group < model->num_groups && plan->partial > 0; group++) {
        model_pool_touch(&model->pool, plan->sources[group]);
    }
    for (int32_t group = 0; group < model->num_groups; group++) {
        int32_t visible = plan->total - model_num_skipped_tokens(model, group, plan->total);
        if (min_of(visible, plan->external) > 0) {
            (void)append_new(model, request, group, columns_of(model, group, plan->total));
        }
    }
}

static void count_admission(model_manager *model, model_request *request, int32_t hit) {
    bool is_counted = !model->pool.disable_prefix_cache && !request->skip_cache_read;

    if (is_counted && request->num_allocations == 0) {
        model->num_lookups++;
        model->num_lookup_tokens += (uint64_t)request->num_tokens;
        model->num_hit_tokens += (uint64_t)hit;
    } else if (is_counted) {
        model->num_resumes++;
        model->num_resume_tokens += (uint64_t)request->num_tokens;
        model->num_resume_hit_tokens += (uint64_t)hit;
    }
    request->num_allocations++;
    model->num_rows++;
}

static model_statuses commit(model_manager *model,
                             model_request *request,
                             const pkv_slots_args *args,
                             const struct plan *plan,
                             pkv_slots *out) {
    bool had_row = request->row != PKV_NULL_ROW;
    int64_t num_spare = plan->num_spare;

    *out = (pkv_slots){.struct_size = sizeof *out};
    if (request->row == PKV_NULL_ROW) {
        request->shared_boundary = model_shared_boundary(model, request);
        count_admission(model, request, plan->hit);
        model->num_partial_hits += plan->partial > 0 ? 1 : 0;
        model->num_partial_hit_tokens += (uint64_t)plan->partial;
        if (plan->hit > 0 || plan->external > 0) {
            start_tables(model, request, plan);
        }
    }
    for (int32_t group = 0; group < model->num_groups; group++) {
        if (had_row) {
            out->num_copies +=
                model_make_writable(model, request, group, plan->first_written, plan->end_written);
        }
        request->first_new[group] = request->tables[group].num_blocks;
        if (plan->partial > 0) {
            out->num_copies +=
                model_extend_partial(model, request, group, plan->sources[group], &num_spare);
        }
        (void)append_new(model, request, group, columns_of(model, group, plan->num_slot_tokens));
        out->num_new_blocks += request->tables[group].num_blocks - request->first_new[group];
    }
    if (!args->delay_caching) {
        model_publish(model, request, plan->num_commit_tokens, args->step, false);
    }
    model->newest_step = args->step > model->newest_step ? args->step : model->newest_step;
    request->num_live_tokens =
        (int32_t)min64_of((int64_t)plan->total + args->num_new_tokens, model->max_model_len);
    model->num_allocations++;
    return MODEL_OK;
}

/* Steps rise, and those that may still be undone lie within 2^32 of each other. */
static bool is_usable_step(const model_manager *model, uint64_t step) {
    for (int32_t i = 1; i < model->pool.num_blocks && step != 0; i++) {
        if (model->pool.blocks[i].step != 0 && step - model->pool.blocks[i].step > UINT32_MAX) {
            return false;
        }
    }
    return step == 0 || (step > model->completed_step && step >= model->newest_step);
}

static model_statuses check_args(const model_manager *model,
                                 const model_request *request,
                                 const pkv_slots_args *args) {
    bool holds = request->row != PKV_NULL_ROW;
    int64_t wanted = (int64_t)args->num_computed_tokens + args->num_new_computed_tokens +
                     args->num_external_computed_tokens + args->num_new_tokens +
                     args->num_lookahead_tokens;
    model_statuses errors = 0;

    if (args->num_computed_tokens < 0 || args->num_new_tokens < 0 ||
        args->num_new_computed_tokens < 0 || args->num_external_computed_tokens < 0 ||
        args->num_lookahead_tokens < 0 || args->num_in_flight_tokens < 0 ||
        args->num_watermark_blocks < 0 || args->num_reserved_blocks < 0 ||
        (int64_t)args->num_new_tokens + args->num_external_computed_tokens < 1 ||
        (holds && args->num_new_computed_tokens > 0) ||
        (model->min_partial_tokens > 0 && args->num_external_computed_tokens > 0 &&
         args->num_new_computed_tokens % model->alignment != 0)) {
        return MODEL_INVALID;
    }
    if (!is_usable_step(model, args->step)) {
        errors |= MODEL_INVALID;
    }
    wanted = min64_of(wanted, model->max_model_len);
    for (int32_t group = 0; group < model->num_groups; group++) {
        int64_t held = (int64_t)request->tables[group].num_blocks * model->groups[group].block_size;
        errors |= args->num_computed_tokens > held ? MODEL_INVALID : 0;
        errors |= columns_of(model, group, wanted) > model->widths[group] ? MODEL_LIMIT : 0;
    }
    return errors;
}

/* Find the blocks of the hit that the caller was told of; false when they are no longer there. */
static bool find_hits(const model_manager *model, const model_request *request, struct plan *plan) {
    int32_t whole = plan->hit / model->alignment * model->alignment;

    if (plan->hit == 0) {
        return true;
    }
    if (plan->hit >= request->num_tokens || !model_can_all_serve(model, request, whole) ||
        model_partial(model, request, whole, plan->hit, plan->sources) != plan->hit - whole) {
        return false;
    }
    plan->partial = plan->hit - whole;
    for (int32_t group = 0; group < model->num_groups; group++) {
        model_hit_table(model, request, group, whole, &plan->hits[group]);
    }
    return true;
}

model_statuses model_allocate(model_manager *model,
                              model_request *request,
                              const pkv_slots_args *args,
                              pkv_slots *out) {
    static struct plan plan;
    model_statuses errors = check_args(model, request, args);
    int64_t num_free = model->pool.num_free;
    int64_t need;

    if (errors != 0) {
        return errors;
    }
    memset(&plan, 0, sizeof plan);
    plan.hit = args->num_new_computed_tokens;
    plan.external = args->num_external_computed_tokens;
    plan.total = (int32_t)min64_of((int64_t)args->num_computed_tokens + plan.hit + plan.external,
                                   model->max_model_len);
    plan.first_written = (int64_t)args->num_computed_tokens + plan.hit;
    plan.end_written = min64_of((int64_t)plan.total + args->num_new_tokens, model->max_model_len);
    plan.num_slot_tokens =
        (int32_t)min64_of((int64_t)plan.total + args->num_new_tokens + args->num_lookahead_tokens,
                          model->max_model_len);
    plan.num_commit_tokens =
        (int32_t)min64_of((int64_t)plan.total + args->num_new_tokens, request->num_tokens);
    if (never_fits(model, request, &plan, args->full_sequence_must_fit)) {
        model->num_never_fits++;
        return MODEL_STATUS(PKV_NEVER_FITS);
    }
    if (!find_hits(model, request, &plan)) {
        return MODEL_STATUS(PKV_NOT_FOUND);
    }
    if (request->row == PKV_NULL_ROW && model->num_rows == model->max_rows) {
        model->num_no_free_rows++;
        return MODEL_STATUS(PKV_NO_FREE_ROWS);
    }
    if (args->full_sequence_must_fit) {
        need = need_of_all(model, request, &plan, min_of(request->num_tokens, model->max_model_len),
                           true) +
               args->num_watermark_blocks;
        if (need > num_free) {
            return refuse(model, need - num_free);
        }
    }
    model_drop_skipped(model, request,
                       (int32_t)(plan.total > args->num_in_flight_tokens
                                     ? plan.total - args->num_in_flight_tokens
                                     : 0));
    num_free = (int64_t)model->pool.num_free - args->num_reserved_blocks;
    need = need_of_all(model, request, &plan, plan.num_slot_tokens, false) +
           args->num_watermark_blocks;
    if (need > num_free) {
        return refuse(model, need - num_free);
    }
    plan.num_spare = num_free - need;
    return commit(model, request, args, &plan, out);
}
