/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* One KV-cache group: how its kind of attention decides what is skipped, what is needed, what is
 * published and what is a hit. How groups agree on one hit is the coordinator's business.
 *
 * The one idea: all arithmetic of a kind stands here, as functions of token counts; the verbs of
 * the manager are the same for every kind. */
#ifndef PKVI_MANAGER_GROUP_H
#define PKVI_MANAGER_GROUP_H

#include "manager/block_table.h"
#include "manager/request.h"

struct pkvi_group {
    pkv_group_kind kind;
    int32_t block_size;
    int32_t window; /* tokens of a window or chunk; 0 for full attention */
    bool eagle;
    int32_t retention_interval;
    int32_t key_stride; /* keys in a block: block_size / hash block size */
    int32_t alignment;  /* tokens; hits and commits of several groups end at its multiples */
    int32_t need;       /* sliding window: blocks that a hit needs, without eagle */
    int32_t max_admitted_blocks; /* windowed kinds: most that an admission check asks for */
    int32_t class_index; /* groups of equal spec are looked up together; the first one's number */
    struct pkvi_table table;
};

static inline bool pkvi_group_is_windowed(const struct pkvi_group *group) {
    return group->kind != PKV_GROUP_FULL_ATTENTION;
}

/* Blocks that hold `num_tokens`. */
static inline int64_t pkvi_group_blocks_for(const struct pkvi_group *group, int64_t num_tokens) {
    return (num_tokens + group->block_size - 1) / group->block_size;
}

/* Whole blocks that no token at or behind position `num_computed` can see. */
int64_t pkvi_group_num_skipped_blocks(const struct pkvi_group *group, int64_t num_computed);

/* Tokens at the start that no token at or behind position `num_computed` can see. */
int64_t pkvi_group_num_skipped_tokens(const struct pkvi_group *group, int64_t num_computed);

/* Most blocks that a sequence ever holds at once, for admission: windowed kinds need no more than
 * their window and the tokens in flight. */
int64_t pkvi_group_admission_blocks(const struct pkvi_group *group, int64_t num_tokens);

/* The same before a group is built, from its configuration. */
int64_t pkvi_group_admission_cap(pkv_group_kind kind,
                                 int32_t block_size,
                                 int32_t window,
                                 int64_t max_in_flight_tokens,
                                 int64_t max_model_len);

/* Tokens whose full blocks may be published when `num_tokens` are computed. */
int32_t pkvi_group_committable_tokens(const struct pkvi_group *group,
                                      int32_t num_groups,
                                      int32_t num_tokens);

/* Whether retention publishes block `index` of this request. */
bool pkvi_group_retains(const struct pkvi_group *group,
                        const struct pkvi_request *request,
                        int64_t index);

/* Where a lookup searches. */
struct pkvi_lookup_scope {
    pkv_pool *pool;
    const struct pkvi_request_map *map;
    const struct pkvi_request *request;
    struct pkvi_group *groups;
    int32_t num_groups;
};

/* Longest hit of at most `max_tokens` that the groups of one class share, in tokens. Their blocks
 * go to block_ids[group], null where the window needs none. */
int32_t pkvi_group_find_hit(const struct pkvi_lookup_scope *scope,
                            int32_t class_index,
                            int32_t max_tokens,
                            pkv_block_id *const *block_ids);

#endif
