/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* What one group needs, keeps and finds, and the longest hit of all groups, by trying every length
 * from the longest down. */
#include "support/model_manager.h"

static int32_t min_of(int32_t a, int32_t b) {
    return a < b ? a : b;
}

static int32_t max_of(int32_t a, int32_t b) {
    return a > b ? a : b;
}

static int32_t divide_up(int32_t a, int32_t b) {
    return (a + b - 1) / b;
}

int32_t model_column_content(const model_manager *model,
                             const model_request *request,
                             int32_t group,
                             int32_t column) {
    int32_t per_block = model->groups[group].block_size / model->hash_block_size;
    int32_t last = (column + 1) * per_block - 1;

    return last < request->num_keys ? request->contents[last] : MODEL_NO_CONTENT;
}

int32_t model_num_skipped_tokens(const model_manager *model, int32_t group, int32_t num_computed) {
    const pkv_group_config *config = &model->groups[group];

    if (config->kind == PKV_GROUP_SLIDING_WINDOW) {
        return max_of(0, num_computed - config->window + 1);
    }
    if (config->kind == PKV_GROUP_CHUNKED_LOCAL) {
        return num_computed / config->window * config->window;
    }
    return 0;
}

int32_t model_admission_cap(const model_manager *model, int32_t group) {
    const pkv_group_config *config = &model->groups[group];
    int64_t in_flight = model->max_in_flight_tokens;
    int64_t tokens;

    if (config->kind == PKV_GROUP_FULL_ATTENTION) {
        return INT32_MAX;
    }
    tokens = config->kind == PKV_GROUP_SLIDING_WINDOW ? config->window - 1 + in_flight
                                                      : config->window + in_flight;
    tokens = tokens < model->max_model_len ? tokens : model->max_model_len;
    return divide_up((int32_t)tokens, config->block_size) +
           (config->kind == PKV_GROUP_SLIDING_WINDOW ? 1 : 0);
}

/* ---- retention ------------------------------------------------------------------------------- */

/* Whether `column` is among the blocks that a hit ending at token `end` looks at. */
static bool is_in_tail(const pkv_group_config *config, int32_t column, int64_t end) {
    int64_t need = divide_up(config->window - 1, config->block_size);
    int64_t last = end / config->block_size + (config->eagle ? 1 : 0);

    return column >= end / config->block_size - need && column < last;
}

bool model_is_retained(const model_manager *model,
                       const model_request *request,
                       int32_t group,
                       int32_t column) {
    const pkv_group_config *config = &model->groups[group];
    int32_t unit = model->alignment;
    int32_t segment = config->retention_interval > 0 ? config->retention_interval : unit;
    int32_t boundary = (request->num_prompt_tokens - 1) / unit * unit;
    int64_t past = (int64_t)(column + 2) * config->block_size + segment + config->window;

    if (config->kind != PKV_GROUP_SLIDING_WINDOW) {
        return true;
    }
    if (config->retention_interval == PKV_RETENTION_DENSE &&
        divide_up(config->window - 1, config->block_size) >= unit / config->block_size) {
        return true;
    }
    if (config->retention_interval != PKV_RETENTION_TAIL_ONLY) {
        for (int64_t end = segment; end <= past; end += segment) {
            if (is_in_tail(config, column, end)) {
                return true;
            }
        }
    }
    if (config->retention_interval == PKV_RETENTION_DENSE) {
        return false;
    }
    return (boundary > 0 && is_in_tail(config, column, boundary)) ||
           (request->shared_boundary > 0 && is_in_tail(config, column, request->shared_boundary));
}

/* ---- hits ------------------------------------------------------------------------------------ */

static pkv_block_id find_column(const model_manager *model,
                                const model_request *request,
                                int32_t group,
                                int32_t column) {
    int32_t content = model_column_content(model, request, group, column);

    if (content == MODEL_NO_CONTENT) {
        return PKV_NULL_BLOCK;
    }
    return model_pool_find(&model->pool, group, content,
                           &request->tokens[column * model->groups[group].block_size], NULL);
}

/* First column that a hit of that many tokens needs. A window of one token needs none of the past,
 * yet a block must be there for a hit to be one. */
static int32_t first_column(const model_manager *model, int32_t group, int32_t num_tokens) {
    const pkv_group_config *config = &model->groups[group];
    int32_t first = model_num_skipped_tokens(model, group, num_tokens) / config->block_size;

    if (config->kind == PKV_GROUP_SLIDING_WINDOW && !config->eagle) {
        first = min_of(first, max_of(num_tokens / config->block_size - 1, 0));
    }
    return first;
}

bool model_can_serve(const model_manager *model,
                     const model_request *request,
                     int32_t group,
                     int32_t num_tokens) {
    const pkv_group_config *config = &model->groups[group];
    int32_t end = num_tokens / config->block_size;

    /* For draft layers one block more must be there; it is given back, to be computed again. */
    if (config->eagle && num_tokens > 0) {
        end++;
        if ((int64_t)end * config->block_size > request->num_tokens - 1) {
            return false;
        }
    }
    for (int32_t column = first_column(model, group, num_tokens); column < end; column++) {
        if (find_column(model, request, group, column) == PKV_NULL_BLOCK) {
            return false;
        }
    }
    return true;
}

bool model_can_all_serve(const model_manager *model,
                         const model_request *request,
                         int32_t num_tokens) {
    bool all = !model->pool.disable_prefix_cache && !request->skip_cache_read &&
               num_tokens < request->num_tokens && num_tokens % model->alignment == 0;

    for (int32_t group = 0; group < model->num_groups && all; group++) {
        all = model_can_serve(model, request, group, num_tokens);
    }
    return all;
}

void model_hit_table(const model_manager *model,
                     const model_request *request,
                     int32_t group,
                     int32_t num_tokens,
                     model_table *table) {
    int32_t first = first_column(model, group, num_tokens);

    table->num_blocks = num_tokens / model->groups[group].block_size;
    for (int32_t column = 0; column < table->num_blocks; column++) {
        table->ids[column] =
            column < first ? PKV_NULL_BLOCK : find_column(model, request, group, column);
    }
}

int32_t model_lookup(const model_manager *model, const model_request *request) {
    int32_t length = (request->num_tokens - 1) / model->alignment * model->alignment;

    while (length > 0 && !model_can_all_serve(model, request, length)) {
        length -= model->alignment;
    }
    return length;
}

/* Groups of one specification are looked up together, full attention first. What those that come
 * first would hit alone, where it is more than what all groups can agree on. */
int32_t model_shared_boundary(const model_manager *model, const model_request *request) {
    const pkv_group_config *groups = model->groups;
    int32_t length = (request->num_tokens - 1) / model->alignment * model->alignment;
    int32_t leader = 0;

    for (int32_t i = model->num_groups - 1; i >= 0; i--) {
        leader = groups[i].kind == PKV_GROUP_FULL_ATTENTION ? i : leader;
    }
    if (model->pool.disable_prefix_cache || request->skip_cache_read) {
        return 0;
    }
    for (; length > 0; length -= model->alignment) {
        bool all = true;
        for (int32_t i = 0; i < model->num_groups; i++) {
            bool is_same = groups[i].kind == groups[leader].kind &&
                           groups[i].window == groups[leader].window &&
                           groups[i].block_size == groups[leader].block_size &&
                           groups[i].eagle == groups[leader].eagle;
            all = all && (!is_same || model_can_serve(model, request, i, length));
        }
        if (all) {
            break;
        }
    }
    return length > model_lookup(model, request) ? length : 0;
}
