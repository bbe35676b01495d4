/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The curves of bench_manager; see manager_curves.h. */
#include "manager_curves.h"

#include <string.h>

#include "manager_cases.h"
#include "manager_peers.h"
#include "random.h"
#include "report.h"

#define MAX_ROUNDS 64
#define BATCH 64
#define CHASE_STEPS 4096

static pkv_pool_stats stats_of(const pkv_pool *pool) {
    pkv_pool_stats stats;

    memset(&stats, 0, sizeof stats);
    stats.struct_size = sizeof stats;
    (void)pkv_pool_get_stats(pool, &stats);
    return stats;
}

/* Fill in what the calls between two readings touched. */
static void count_touched(curve_point *point,
                          const pkv_pool_stats *before,
                          const pkv_pool_stats *after,
                          int32_t num_calls) {
    double num_blocks = (double)(after->num_blocks_allocated - before->num_blocks_allocated);
    double num_slots = (double)(after->num_index_slots_probed - before->num_index_slots_probed);

    point->blocks_touched = num_calls == 0 ? 0.0 : num_blocks / num_calls;
    point->slots_probed = num_blocks > 0.0 ? num_slots / num_blocks : 0.0;
}

/* One size of pool. The pool is cycled once before, so that its order is that of use. */
static bool measure_pool_size(curve_point *point, int32_t num_blocks, int32_t rounds) {
    pkv_pool_config config = {0};
    double samples[MAX_ROUNDS];
    double peers[MAX_ROUNDS];
    pointer_chase chase = {0};
    pkv_pool_stats before;
    pkv_pool_stats after;
    pool_case state;
    bool is_ok;

    config.struct_size = sizeof config;
    config.num_blocks = num_blocks;
    is_ok = pool_case_create(&state, num_blocks, BATCH, POOL_LRU) &&
            pointer_chase_create(&chase, pkv_pool_size(&config), 7);
    point->x = num_blocks;
    before = stats_of(state.pool);
    for (int32_t i = 0; is_ok && i < rounds; i++) {
        samples[i] = pool_case_evict(&state, true);
        peers[i] = pointer_chase_run(&chase, CHASE_STEPS);
    }
    after = stats_of(state.pool);
    if (is_ok) {
        count_touched(point, &before, &after, rounds * state.repeats);
        point->value = bench_median_of(samples, rounds);
        point->peer = bench_median_of(peers, rounds);
    }
    pointer_chase_destroy(&chase);
    pool_case_destroy(&state);
    return is_ok;
}

bool curve_of_pool_size(curve *out, int32_t max_blocks, int32_t rounds) {
    out->name = "pool_size";
    out->num_points = 0;
    rounds = rounds < MAX_ROUNDS ? rounds : MAX_ROUNDS;
    for (int32_t num_blocks = 1024; num_blocks <= max_blocks; num_blocks *= 4) {
        if (!measure_pool_size(&out->points[out->num_points++], num_blocks, rounds)) {
            return false;
        }
    }
    return true;
}

bool curve_of_block_size(curve *out, int32_t rounds) {
    out->name = "block_size";
    out->num_points = 0;
    rounds = rounds < MAX_ROUNDS ? rounds : MAX_ROUNDS;
    for (int32_t block_size = 16; block_size <= 512; block_size *= 2) {
        curve_point *point = &out->points[out->num_points++];
        double samples[MAX_ROUNDS];
        pkv_pool_stats before;
        pkv_pool_stats after;
        prefill_case state;

        if (!prefill_case_create(&state, 4096, block_size)) {
            prefill_case_destroy(&state);
            return false;
        }
        point->x = block_size;
        before = stats_of(pkv_manager_get_pool(state.manager));
        for (int32_t i = 0; i < rounds; i++) {
            samples[i] = prefill_case_whole(&state) / state.num_tokens;
        }
        after = stats_of(pkv_manager_get_pool(state.manager));
        count_touched(point, &before, &after, rounds);
        /* Blocks a call fall with their size; the tokens that they hold are what stays the same. */
        point->blocks_touched *= block_size;
        point->value = bench_median_of(samples, rounds);
        point->peer = 0.0;
        prefill_case_destroy(&state);
    }
    return true;
}

/* Blocks near the middle of a queue in order, which both kinds of queue have. */
static void choose_middle(int32_t *block_ids, int32_t count, int32_t num_blocks, uint64_t *random) {
    for (int32_t i = 0; i < count; i++) {
        block_ids[i] = num_blocks / 4 + 1 + random_below(random, num_blocks / 2 - 1);
    }
}

static double library_remove(pkv_pool *pool, const int32_t *block_ids, int32_t count) {
    int64_t start = bench_now_ns();

    for (int32_t i = 0; i < count; i++) {
        (void)pkv_pool_touch(pool, &block_ids[i], 1);
        (void)pkv_pool_free_blocks(pool, &block_ids[i], 1);
    }
    return (double)(bench_now_ns() - start) / count;
}

bool curve_of_middle_remove(curve *out, int32_t max_blocks, int32_t rounds) {
    out->name = "middle_remove";
    out->num_points = 0;
    rounds = rounds < MAX_ROUNDS ? rounds : MAX_ROUNDS;
    for (int32_t num_blocks = 1024; num_blocks <= max_blocks; num_blocks *= 4) {
        curve_point *point = &out->points[out->num_points++];
        /* A walk through a million links takes milliseconds: few of them tell enough. */
        int32_t count = num_blocks <= 65536 ? 16 : 2;
        uint64_t random = 11;
        double samples[MAX_ROUNDS];
        double peers[MAX_ROUNDS];
        int32_t block_ids[16];
        single_queue queue = {0};
        pool_case state;
        bool is_ok = pool_case_create(&state, num_blocks, 1, POOL_LRU_IN_ORDER) &&
                     single_queue_create(&queue, num_blocks);

        memset(point, 0, sizeof *point);
        point->x = num_blocks;
        for (int32_t i = 0; is_ok && i < rounds; i++) {
            choose_middle(block_ids, count, num_blocks, &random);
            samples[i] = library_remove(state.pool, block_ids, count);
            peers[i] = single_queue_remove(&queue, block_ids, count);
        }
        if (is_ok) {
            point->value = bench_median_of(samples, rounds);
            point->peer = bench_median_of(peers, rounds);
        }
        single_queue_destroy(&queue);
        pool_case_destroy(&state);
        if (!is_ok) {
            return false;
        }
    }
    return true;
}

bool curve_counts_are_constant(const curve *points) {
    const curve_point *first = &points->points[0];

    for (int32_t i = 1; i < points->num_points; i++) {
        const curve_point *point = &points->points[i];

        if (point->blocks_touched != first->blocks_touched ||
            point->slots_probed > 1.5 * first->slots_probed ||
            first->slots_probed > 1.5 * point->slots_probed) {
            return false;
        }
    }
    return true;
}
