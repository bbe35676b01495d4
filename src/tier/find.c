/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* What a tier holds of a request. It changes nothing.
 *
 * The one idea: full attention from the left gives a bound; windowed groups, which need only the
 * end, may cut it; each miss shortens the total, so the search ends. */
#include "tier/tier.h"

/* How far a search reads the index ahead. */
#define FIND_AHEAD 8

static int32_t align_down(const pkv_tier *tier, int32_t num_tokens) {
    return num_tokens - num_tokens % tier->manager->groups[0].alignment;
}

/* Most tokens that have keys in every group. */
static int32_t limit_by_keys(const pkv_tier *tier,
                             const struct pkvi_request *request,
                             int32_t most) {
    for (int32_t g = 0; g < tier->manager->num_groups; g++) {
        const struct pkvi_group *group = &tier->manager->groups[g];
        int32_t num_tokens = request->num_keys / group->key_stride * group->block_size;

        most = most < num_tokens ? most : num_tokens;
    }
    return align_down(tier, most);
}

/* From the left, up to the first miss. */
static int32_t find_full(const pkv_tier *tier,
                         const struct pkvi_request *request,
                         int32_t g,
                         int32_t local,
                         int32_t total) {
    const struct pkvi_group *group = &tier->manager->groups[g];
    int32_t first = local / group->block_size;
    struct pkvi_index_query query;

    query.num_keys = total / group->block_size - first;
    query.group = g;
    query.cursor = pkvi_request_keys(&tier->manager->requests, request, group->key_stride, first,
                                     tier->pool->stored_tokens != NULL);
    return (first + pkvi_prefix_index_match(tier->pool->index, &query, tier->found[g] + first)) *
           group->block_size;
}

/* From the right, all that the end of `total` tokens sees; the end of the column that misses, or
 * `total`. */
static int32_t find_windowed(const pkv_tier *tier,
                             const struct pkvi_request *request,
                             int32_t g,
                             int32_t local,
                             int32_t total) {
    const struct pkvi_group *group = &tier->manager->groups[g];
    const struct pkvi_request_map *map = &tier->manager->requests;
    struct pkvi_tier_range range = pkvi_tier_columns(group, local, total);

    for (int32_t i = range.end - 1; i >= range.first; i--) {
        struct pkvi_key_cursor cursor;

        if (i >= FIND_AHEAD) {
            int32_t key = (i - FIND_AHEAD + 1) * group->key_stride - 1;
            (void)pkvi_prefix_index_approach(tier->pool->index, g,
                                             pkvi_request_key(map, request, key));
        }
        cursor = pkvi_request_keys(map, request, group->key_stride, i,
                                   tier->pool->stored_tokens != NULL);
        tier->found[g][i] =
            pkvi_prefix_index_find(tier->pool->index, g, pkvi_key_cursor_key(&cursor),
                                   pkvi_key_cursor_tokens(&cursor), group->block_size);
        if (tier->found[g][i] == PKV_NULL_BLOCK) {
            return i * group->block_size;
        }
    }
    return total;
}

int32_t pkvi_tier_count_columns(const pkv_tier *tier, int32_t local, int32_t total) {
    int32_t count = 0;

    for (int32_t g = 0; g < tier->manager->num_groups; g++) {
        struct pkvi_tier_range range = pkvi_tier_columns(&tier->manager->groups[g], local, total);
        count += range.end > range.first ? range.end - range.first : 0;
    }
    return count;
}

int32_t pkvi_tier_find(const pkv_tier *tier,
                       const struct pkvi_request *request,
                       int32_t local,
                       int32_t most) {
    const pkv_manager *manager = tier->manager;
    int32_t total = limit_by_keys(tier, request, most);
    bool is_settled = false;

    if (request->skip_cache_read) {
        return local;
    }
    for (int32_t g = 0; g < manager->num_groups && total > local; g++) {
        if (!pkvi_group_is_windowed(&manager->groups[g])) {
            total = align_down(tier, find_full(tier, request, g, local, total));
        }
    }
    while (!is_settled && total > local) {
        is_settled = true;
        for (int32_t g = 0; g < manager->num_groups && total > local; g++) {
            int32_t shorter = total;

            if (pkvi_group_is_windowed(&manager->groups[g])) {
                shorter = align_down(tier, find_windowed(tier, request, g, local, total));
            }
            is_settled = is_settled && shorter == total;
            total = shorter;
        }
    }
    return total > local ? total : local;
}

int32_t pkvi_tier_find_longest(const pkv_tier *tier,
                               const struct pkvi_request *request,
                               int32_t local) {
    const pkv_manager *manager = tier->manager;
    int32_t total = pkvi_tier_find(tier, request, local, request->num_tokens - 1);
    int32_t dropped = 0;

    for (int32_t g = 0; g < manager->num_groups; g++) {
        if (manager->groups[g].eagle && manager->groups[g].block_size > dropped) {
            dropped = manager->groups[g].block_size;
        }
    }
    if (dropped > 0 && total > local) {
        total = pkvi_tier_find(tier, request, local, total - dropped);
    }
    return pkvi_tier_count_columns(tier, local, total) > 0 ? total : local;
}

pkv_status pkv_tier_lookup(const pkv_tier *tier,
                           pkv_request handle,
                           int32_t num_computed_tokens,
                           int32_t *num_external_tokens) {
    const struct pkvi_request *request;
    pkv_status status = PKV_OK;

    request = pkvi_tier_request(tier, handle, &status);
    if (request == NULL) {
        return status;
    }
    if (num_external_tokens == NULL || num_computed_tokens < 0 ||
        align_down(tier, num_computed_tokens) != num_computed_tokens ||
        request->row != PKV_NULL_ROW) {
        return PKVI_TIER_FAIL(tier, PKV_ERROR_INVALID_ARGUMENT,
                              "num_external_tokens is NULL, num_computed_tokens is no hit of whole "
                              "blocks, or the request holds blocks");
    }
    *num_external_tokens =
        pkvi_tier_find_longest(tier, request, num_computed_tokens) - num_computed_tokens;
    return PKV_OK;
}
