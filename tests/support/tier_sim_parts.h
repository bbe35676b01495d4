/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* What the files of the tier's simulator share: its state, and what the one half asks of the other.
 * tier_sim.c has the engine, the checks and the run, tier_sim_swaps.c the swaps. */
#ifndef PKV_TESTS_SUPPORT_TIER_SIM_PARTS_H
#define PKV_TESTS_SUPPORT_TIER_SIM_PARTS_H

#include "support/tier_sim.h"

#include <pagedkv/tier.h>

enum {
    MAX_BLOCKS = 48,
    MAX_SLOTS = 40,
    MAX_BLOCK_SIZE = 8,
    MAX_GROUPS = 2,
    MAX_REQUESTS = 8,
    MAX_TOKENS = 96,
    MAX_SWAPS = 4,
    MAX_COPIES = 64,
    NUM_VALUES = 1 << 14,
    CHECK_EVERY = 7
};

#define GARBAGE UINT64_C(0xDEADDEADDEADDEAD)

typedef struct sim_request {
    bool is_open, is_holding, is_scheduled;
    uint64_t step; /* of its last allocation */
    pkv_request handle;
    int32_t num_tokens, num_computed, num_new, num_prompt;
    int32_t loading; /* place of the swap that loads it, -1 */
    int32_t tokens[MAX_TOKENS];
    uint64_t values[MAX_TOKENS]; /* chain over the tokens */
} sim_request;

typedef struct sim_swap {
    bool is_open, is_inward, is_detached, has_run;
    pkv_swap handle;
    int32_t num_copies;
    pkv_block_copy copies[MAX_COPIES];
    int32_t groups[MAX_COPIES];
    pkv_block_key keys[MAX_COPIES];
} sim_swap;

typedef struct sim {
    test_source *source;
    tier_sim_counts *counts;
    pkv_manager *manager;
    pkv_tier *tier;
    int32_t num_groups, num_blocks, num_slots, hash_block_size, alignment;
    int32_t block_sizes[MAX_GROUPS], windows[MAX_GROUPS];
    uint64_t step;
    sim_request requests[MAX_REQUESTS];
    sim_swap swaps[MAX_SWAPS];
    uint64_t device[MAX_BLOCKS][MAX_BLOCK_SIZE];
    uint64_t host[MAX_SLOTS][MAX_BLOCK_SIZE];
    pkv_block_key value_keys[NUM_VALUES];
    uint64_t values[NUM_VALUES];
    char *text;
    size_t text_size;
} sim;

extern sim tier_world; /* large; one episode at a time */

/* Note what is wrong; the first text stays. Always false. */
bool tier_sim_fail(const char *what, int64_t a, int64_t b);

/* Whether a query at that position sees that key, in a group. */
bool tier_sim_is_seen(int32_t group, int32_t query, int32_t key);

/* Give the blocks back, what a step under way published withdrawn first. */
bool tier_sim_preempt(sim_request *request);

/* Count an outcome; false where it is none that may be. */
bool tier_sim_count_status(pkv_status status);

bool tier_sim_swap_out(sim_request *request);
bool tier_sim_swap_in(sim_request *request);
bool tier_sim_end_swap(int32_t place);
bool tier_sim_detach(int32_t place);

#endif
