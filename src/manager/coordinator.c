/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The common hit of several groups; see coordinator.h. */
#include "manager/coordinator.h"

static bool leads_class(const struct pkvi_lookup_scope *scope, int32_t group) {
    return scope->groups[group].class_index == group;
}

static bool is_full(const struct pkvi_lookup_scope *scope, int32_t group) {
    return scope->groups[group].kind == PKV_GROUP_FULL_ATTENTION;
}

/* One round over the full or over the other classes: each may shorten `length`. An eagle group
 * looks one block further, since it drops one. */
static int32_t shorten(const struct pkvi_lookup_scope *scope,
                       bool full_ones,
                       int32_t length,
                       int32_t max_tokens,
                       struct pkvi_lookup *lookup) {
    for (int32_t g = 0; g < scope->num_groups; g++) {
        int32_t further = scope->groups[g].eagle ? scope->groups[g].block_size : 0;

        if (leads_class(scope, g) && is_full(scope, g) == full_ones) {
            further = max_tokens - length < further ? max_tokens - length : further;
            length = pkvi_group_find_hit(scope, g, length + further, lookup->block_ids);
            if (length > lookup->longest_tokens) {
                lookup->longest_tokens = length;
            }
        }
    }
    return length;
}

static int32_t count_classes(const struct pkvi_lookup_scope *scope, bool full_ones) {
    int32_t count = 0;

    for (int32_t g = 0; g < scope->num_groups; g++) {
        count += leads_class(scope, g) && is_full(scope, g) == full_ones ? 1 : 0;
    }
    return count;
}

void pkvi_coordinator_find(const struct pkvi_lookup_scope *scope,
                           int32_t max_tokens,
                           struct pkvi_lookup *lookup) {
    int32_t num_full = count_classes(scope, true);
    int32_t num_others = count_classes(scope, false);
    int32_t length;

    lookup->longest_tokens = 0;
    /* Full attention first, from the left: a tight bound, later only cut. */
    length = shorten(scope, true, max_tokens, max_tokens, lookup);
    while (num_others > 0) {
        int32_t shorter = shorten(scope, false, length, max_tokens, lookup);
        /* One other class beside at most one full one cannot shorten its own result again. */
        bool is_settled = shorter >= length || (num_full <= 1 && num_others == 1);

        length = shorter;
        if (is_settled) {
            break;
        }
    }
    lookup->hit_tokens = length;
    lookup->shared_prefix_boundary = lookup->longest_tokens > length ? lookup->longest_tokens : 0;
}
