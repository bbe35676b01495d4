/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The curves of bench_manager: cost against the number of blocks, against block size at equal token
 * capacity, and of taking a block out of the middle of the free queue. Each point stands beside its
 * peer, measured in the same rounds.
 *
 * The one idea: counts are asserted, times are compared. What a call touches must not depend on the
 * size of the pool; how long that takes may grow as memory does. */
#ifndef PKV_BENCH_MANAGER_CURVES_H
#define PKV_BENCH_MANAGER_CURVES_H

#include <stdbool.h>
#include <stdint.h>

#define CURVE_MAX_POINTS 16

/* One point: `x` is blocks, or tokens in a block. Times in ns a block, or a token. */
typedef struct curve_point {
    int32_t x;
    double value;          /* of the library */
    double peer;           /* of the walk through memory, or of the singly linked queue */
    double blocks_touched; /* handed out, a call */
    double slots_probed;   /* index slots read, a block */
} curve_point;

typedef struct curve {
    const char *name;
    int32_t num_points;
    curve_point points[CURVE_MAX_POINTS];
} curve;

/* Evict, publish and free in LRU order, 1 K to 4 M blocks; peer: a pointer chase through memory of
 * the size of the pool. */
bool curve_of_pool_size(curve *out, int32_t max_blocks, int32_t rounds);

/* The whole life of the same prompts (keys, lookup, allocation, free) by blocks of 16 to 512, in a
 * pool of the same token capacity; ns a token; no peer. */
bool curve_of_block_size(curve *out, int32_t rounds);

/* Touch and free of one block in the middle of the free queue, 1 K to `max_blocks` free blocks;
 * peer: the same in a singly linked queue. */
bool curve_of_middle_remove(curve *out, int32_t max_blocks, int32_t rounds);

/* Whether the counts are the same at every point: blocks exactly, index slots within a half (chance
 * decides where keys meet). */
bool curve_counts_are_constant(const curve *points);

#endif
