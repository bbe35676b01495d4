/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The order in which decode goes over keys: step by step, and in each step tile by tile. Where the
 * rows of a step are, and that their pages are known when they come; what is computed of them is
 * said in attend_few_template.h.
 *
 * The one idea: the heads of a block lie side by side, so taking several heads through each step
 * turns short reads, one from each block, into one long read. Every tile sees its own keys in the
 * same order and steps as it would alone: which tiles go together cannot be seen in a result. */
#ifndef PKVI_CPU_FEW_WALK_H
#define PKVI_CPU_FEW_WALK_H

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/few_stream.h"

/* Windows of keys ahead whose addresses are found, and their pages touched, so that address
 * translation is warm when they come; and the places of the ring that holds them. */
#define TOUCH_WINDOWS 3
#define RING (TOUCH_WINDOWS + 1)

/* Bytes of keys that a step uses, about: keys and values of a step and what is fetched meanwhile
 * stay in a first-level cache of 32 KiB together with the query and the accumulators. */
#define STEP_BYTES 6144
#define MIN_STEP 8

/* Where the keys of the window around `first` and of the TOUCH_WINDOWS behind it are, tile by
 * tile. */
struct few_walk {
    const struct pkvi_cpu_tile *tiles;
    int32_t num_tiles, index; /* the tile whose turn it is */
    int32_t step_size;        /* keys */
    int64_t first, found;     /* key of this step, and of the next window to find */
    struct pkvi_cpu_rows windows[PKVI_CPU_MAX_TILES][RING];
};

INLINE struct pkvi_cpu_rows *few_window(struct few_walk *walk, int32_t index, int64_t key) {
    return &walk->windows[index][(key - walk->tiles->first_key) / PKVI_CPU_FEW_KEYS % RING];
}

INLINE void few_find(struct few_walk *walk) {
    const struct pkvi_cpu_tile *tiles = walk->tiles;
    int64_t left = tiles->end_key - walk->found;
    int32_t count = left < PKVI_CPU_FEW_KEYS ? (int32_t)left : PKVI_CPU_FEW_KEYS;

    for (int32_t i = 0; i < walk->num_tiles && left > 0; i++) {
        pkvi_cpu_find_rows(&tiles[i], walk->found, count,
                           walk->found > tiles->first_key ? few_window(walk, i, walk->found - 1)
                                                          : NULL,
                           few_window(walk, i, walk->found));
    }
    walk->found += PKVI_CPU_FEW_KEYS;
}

INLINE void few_start_walk(struct few_walk *walk,
                           const struct pkvi_cpu_tile *tiles,
                           int32_t num_tiles) {
    const struct pkvi_attention *op = tiles->op;
    int64_t key_size = op->cache.head_size * (int64_t)pkv_dtype_size(op->args.k_cache.dtype);

    walk->tiles = tiles;
    walk->num_tiles = num_tiles;
    walk->index = 0;
    walk->first = walk->found = tiles->first_key;
    walk->step_size = PKVI_CPU_FEW_KEYS;
    while (walk->step_size > MIN_STEP && walk->step_size * key_size > STEP_BYTES) {
        walk->step_size /= 2;
    }
    for (int i = 0; i <= TOUCH_WINDOWS; i++) {
        few_find(walk);
    }
}

/* A tile's step at `key`; nothing behind the last key. */
INLINE struct few_step few_step_at(struct few_walk *walk, int32_t index, int64_t key) {
    int32_t start = (int32_t)((key - walk->tiles->first_key) % PKVI_CPU_FEW_KEYS);
    const struct pkvi_cpu_rows *window = few_window(walk, index, key);
    int32_t left = key < walk->tiles->end_key ? window->count - start : 0;
    struct few_step step = {window->key + start, window->value + start,
                            left < walk->step_size ? left : walk->step_size};

    return step;
}

INLINE struct few_step few_first(struct few_walk *walk) {
    return few_step_at(walk, 0, walk->first);
}

/* The step behind this one. */
INLINE struct few_step few_next(struct few_walk *walk) {
    bool is_last = walk->index + 1 == walk->num_tiles;

    return few_step_at(walk, is_last ? 0 : walk->index + 1,
                       is_last ? walk->first + walk->step_size : walk->first);
}

INLINE void few_go_on(struct few_walk *walk) {
    if (++walk->index < walk->num_tiles) {
        return;
    }
    walk->index = 0;
    walk->first += walk->step_size;
    if ((walk->first - walk->tiles->first_key) % PKVI_CPU_FEW_KEYS == 0) {
        few_find(walk);
    }
}

#endif
