/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The arithmetic of each kind of group, and its search for a hit; see group.h. */
#include "manager/group.h"

/* How far a search from the right reads ahead. */
#define AHEAD 8

int64_t pkvi_group_num_skipped_tokens(const struct pkvi_group *group, int64_t num_computed) {
    int64_t skipped = 0;

    switch (group->kind) {
    case PKV_GROUP_SLIDING_WINDOW:
        skipped = num_computed - group->window + 1;
        break;
    case PKV_GROUP_CHUNKED_LOCAL:
        skipped = num_computed / group->window * group->window;
        break;
    case PKV_GROUP_FULL_ATTENTION:
    case PKV_GROUP_RECURRENT:
        break;
    }
    return skipped < 0 ? 0 : skipped;
}

int64_t pkvi_group_num_skipped_blocks(const struct pkvi_group *group, int64_t num_computed) {
    return pkvi_group_is_windowed(group)
               ? pkvi_group_num_skipped_tokens(group, num_computed) / group->block_size
               : 0;
}

int64_t pkvi_group_admission_cap(pkv_group_kind kind,
                                 int32_t block_size,
                                 int32_t window,
                                 int64_t max_in_flight_tokens,
                                 int64_t max_model_len) {
    int64_t num_tokens;

    if (kind == PKV_GROUP_FULL_ATTENTION) {
        return INT64_MAX;
    }
    num_tokens = max_in_flight_tokens + window - (kind == PKV_GROUP_SLIDING_WINDOW ? 1 : 0);
    num_tokens = num_tokens < max_model_len ? num_tokens : max_model_len;
    /* A window may begin in the middle of a block, which costs one more. */
    return (num_tokens + block_size - 1) / block_size + (kind == PKV_GROUP_SLIDING_WINDOW ? 1 : 0);
}

int64_t pkvi_group_admission_blocks(const struct pkvi_group *group, int64_t num_tokens) {
    int64_t num_blocks = pkvi_group_blocks_for(group, num_tokens);

    if (pkvi_group_is_windowed(group) && num_blocks > group->max_admitted_blocks) {
        return group->max_admitted_blocks;
    }
    return num_blocks;
}

int32_t pkvi_group_committable_tokens(const struct pkvi_group *group,
                                      int32_t num_groups,
                                      int32_t num_tokens) {
    int32_t aligned;

    if (num_groups == 1) {
        return num_tokens;
    }
    aligned = num_tokens / group->alignment * group->alignment;
    if (group->eagle && aligned <= num_tokens - group->block_size) {
        aligned += group->block_size;
    }
    return aligned;
}

/* Whether block `index` is among the `need` blocks (one more and one further with eagle) that end
 * at block `end`. */
static bool is_in_tail(const struct pkvi_group *group, int64_t index, int64_t end) {
    int64_t shift = group->eagle ? 1 : 0;

    return end > 0 && index < end + shift && index >= end - group->need;
}

/* Whether block `index` is in the tail of the segment of `period` blocks that it belongs to. */
static bool is_in_segment_tail(const struct pkvi_group *group, int64_t index, int64_t period) {
    int64_t segment_end = (index / period + 1) * period;

    /* With eagle the first block of a segment may belong to the tail of the one before. */
    return group->need >= period || is_in_tail(group, index, segment_end) ||
           is_in_tail(group, index, segment_end - period);
}

bool pkvi_group_retains(const struct pkvi_group *group,
                        const struct pkvi_request *request,
                        int64_t index) {
    int32_t interval = group->retention_interval;
    int64_t boundary;

    if (group->kind != PKV_GROUP_SLIDING_WINDOW) {
        return true;
    }
    if (interval == PKV_RETENTION_DENSE) {
        return is_in_segment_tail(group, index, group->alignment / group->block_size);
    }
    if (interval > 0 && is_in_segment_tail(group, index, interval / group->block_size)) {
        return true;
    }
    boundary = (request->num_prompt_tokens - 1) / group->alignment * group->alignment;
    if (is_in_tail(group, index, boundary / group->block_size)) {
        return true;
    }
    boundary = request->shared_prefix_boundary / group->alignment * group->alignment;
    return is_in_tail(group, index, boundary / group->block_size);
}

/* ---- search ---------------------------------------------------------------------------------- */

static bool is_of_class(const struct pkvi_lookup_scope *scope, int32_t group, int32_t class_index) {
    return scope->groups[group].class_index == class_index;
}

/* Blocks that have a key to be looked up, within `max_tokens`. */
static int32_t searchable_blocks(const struct pkvi_lookup_scope *scope,
                                 const struct pkvi_group *group,
                                 int32_t max_tokens) {
    int32_t by_tokens = max_tokens / group->block_size;
    int32_t by_keys = scope->request->num_keys / group->key_stride;

    return by_tokens < by_keys ? by_tokens : by_keys;
}

/* Match blocks [first, last) of every group of the class from the left; returns the end of what all
 * of them have. */
static int32_t match_run(const struct pkvi_lookup_scope *scope,
                         int32_t class_index,
                         int32_t first,
                         int32_t last,
                         pkv_block_id *const *block_ids) {
    for (int32_t g = class_index; g < scope->num_groups && last > first; g++) {
        struct pkvi_index_query query;

        if (!is_of_class(scope, g, class_index)) {
            continue;
        }
        query.num_keys = last - first;
        query.group = g;
        query.cursor = pkvi_request_keys(scope->map, scope->request, scope->groups[g].key_stride,
                                         first, scope->pool->stored_tokens != NULL);
        last = first + pkvi_prefix_index_match(scope->pool->index, &query, block_ids[g] + first);
    }
    return last;
}

static int32_t find_full(const struct pkvi_lookup_scope *scope,
                         int32_t class_index,
                         int32_t max_tokens,
                         pkv_block_id *const *block_ids) {
    const struct pkvi_group *group = &scope->groups[class_index];
    int32_t last = searchable_blocks(scope, group, max_tokens);
    int32_t num_hits = match_run(scope, class_index, 0, last, block_ids);

    if (group->eagle && num_hits > 0) {
        num_hits--;
    }
    while ((int64_t)num_hits * group->block_size % group->alignment != 0) {
        num_hits--;
    }
    return num_hits * group->block_size;
}

static void fill_null(const struct pkvi_lookup_scope *scope,
                      int32_t class_index,
                      int32_t first,
                      int32_t last,
                      pkv_block_id *const *block_ids) {
    for (int32_t g = class_index; g < scope->num_groups; g++) {
        for (int32_t i = first; is_of_class(scope, g, class_index) && i < last; i++) {
            block_ids[g][i] = PKV_NULL_BLOCK;
        }
    }
}

/* Find block `index` in every group of the class. */
static bool find_block(const struct pkvi_lookup_scope *scope,
                       int32_t class_index,
                       int32_t index,
                       pkv_block_id *const *block_ids) {
    for (int32_t g = class_index; g < scope->num_groups; g++) {
        struct pkvi_key_cursor cursor;

        if (!is_of_class(scope, g, class_index)) {
            continue;
        }
        cursor = pkvi_request_keys(scope->map, scope->request, scope->groups[g].key_stride, index,
                                   scope->pool->stored_tokens != NULL);
        block_ids[g][index] =
            pkvi_prefix_index_find(scope->pool->index, g, pkvi_key_cursor_key(&cursor),
                                   pkvi_key_cursor_tokens(&cursor), scope->groups[g].block_size);
        if (block_ids[g][index] == PKV_NULL_BLOCK) {
            return false;
        }
    }
    return true;
}

/* From the right, the first run of enough blocks; it may be shorter if it starts at block 0. */
static int32_t find_window(const struct pkvi_lookup_scope *scope,
                           int32_t class_index,
                           int32_t max_tokens,
                           pkv_block_id *const *block_ids) {
    const struct pkvi_group *group = &scope->groups[class_index];
    int32_t eagle = group->eagle ? 1 : 0;
    int32_t need = group->need + eagle;
    int32_t run = 0;
    int32_t first = searchable_blocks(scope, group, max_tokens);

    while (first > 0 && (run < need || run == 0)) {
        int64_t end = (int64_t)first * group->block_size;

        first--;
        if (first >= AHEAD) {
            int32_t key = (first - AHEAD + 1) * group->key_stride - 1;
            (void)pkvi_prefix_index_approach(scope->pool->index, class_index,
                                             pkvi_request_key(scope->map, scope->request, key));
        }
        if (run == 0 && (end - eagle * group->block_size) % group->alignment != 0) {
            continue;
        }
        run = find_block(scope, class_index, first, block_ids) ? run + 1 : 0;
    }
    if (run == 0) {
        return 0;
    }
    fill_null(scope, class_index, 0, first, block_ids);
    return (first + run - eagle) * group->block_size;
}

/* Everything before the current chunk counts as computed; within it, match from the left. */
static int32_t find_chunk(const struct pkvi_lookup_scope *scope,
                          int32_t class_index,
                          int32_t max_tokens,
                          pkv_block_id *const *block_ids) {
    const struct pkvi_group *group = &scope->groups[class_index];

    for (;;) {
        int32_t start = max_tokens / group->window * group->window;
        int32_t first = start / group->block_size;
        int32_t last = searchable_blocks(scope, group, max_tokens);

        last = match_run(scope, class_index, first, last < first ? first : last, block_ids);
        fill_null(scope, class_index, 0, first, block_ids);
        while ((int64_t)last * group->block_size % group->alignment != 0) {
            last--;
        }
        if (last * group->block_size >= start) {
            return last * group->block_size;
        }
        /* The end fell before the chunk, whose start need not be a block's: what it needs then is
         * the chunk before. */
        max_tokens = last * group->block_size;
    }
}

int32_t pkvi_group_find_hit(const struct pkvi_lookup_scope *scope,
                            int32_t class_index,
                            int32_t max_tokens,
                            pkv_block_id *const *block_ids) {
    switch (scope->groups[class_index].kind) {
    case PKV_GROUP_SLIDING_WINDOW:
        return find_window(scope, class_index, max_tokens, block_ids);
    case PKV_GROUP_CHUNKED_LOCAL:
        return find_chunk(scope, class_index, max_tokens, block_ids);
    case PKV_GROUP_FULL_ATTENTION:
    case PKV_GROUP_RECURRENT:
        break;
    }
    return find_full(scope, class_index, max_tokens, block_ids);
}
