/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Pool cases of bench_manager; see manager_cases.h. */
#include <stdlib.h>
#include <string.h>

#include "manager_cases.h"
#include "random.h"
#include "report.h"

static void set_key(pool_case *state, int32_t index, uint64_t round) {
    state->keys[index].hash_low = random_mix((round << 32) + (uint64_t)index);
    state->keys[index].hash_high = random_mix(state->keys[index].hash_low);
    state->keys[index].lineage = random_mix(state->keys[index].hash_high);
}

/* Publish every block and free them, so that the queue holds them in the order of block_ids. */
static bool fill_cache(pool_case *state, bool is_shuffled) {
    uint64_t random = 1;
    int32_t count = state->num_blocks - 1;

    if (pkv_pool_get_new_blocks(state->pool, count, state->block_ids) != PKV_OK) {
        return false;
    }
    for (int32_t i = 0; i < count; i++) {
        set_key(state, i, 0);
    }
    for (int32_t i = count - 1; is_shuffled && i > 0; i--) {
        int32_t other = random_below(&random, i + 1);
        pkv_block_id kept = state->block_ids[i];
        state->block_ids[i] = state->block_ids[other];
        state->block_ids[other] = kept;
    }
    return pkv_pool_cache_blocks(state->pool, 0, state->block_ids, state->keys, NULL, count) ==
               PKV_OK &&
           pkv_pool_free_blocks(state->pool, state->block_ids, count) == PKV_OK;
}

bool pool_case_create(pool_case *state, int32_t num_blocks, int32_t batch, pool_case_kind kind) {
    pkv_pool_config config = {0};

    memset(state, 0, sizeof *state);
    config.struct_size = sizeof config;
    config.num_blocks = num_blocks;
    state->num_blocks = num_blocks;
    state->batch = batch;
    state->repeats = 1 + 8192 / batch;
    state->block_ids = malloc((size_t)num_blocks * sizeof *state->block_ids);
    state->keys = malloc((size_t)num_blocks * sizeof *state->keys);
    return state->block_ids != NULL && state->keys != NULL &&
           pkv_pool_create(&config, &state->pool) == PKV_OK &&
           (kind == POOL_KEYLESS || fill_cache(state, kind == POOL_LRU));
}

void pool_case_destroy(pool_case *state) {
    pkv_pool_destroy(state->pool);
    free(state->block_ids);
    free(state->keys);
    memset(state, 0, sizeof *state);
}

double pool_case_cycle(pool_case *state) {
    int64_t start = bench_now_ns();

    for (int32_t i = 0; i < state->repeats; i++) {
        (void)pkv_pool_get_new_blocks(state->pool, state->batch, state->block_ids);
        (void)pkv_pool_free_blocks(state->pool, state->block_ids, state->batch);
    }
    return (double)(bench_now_ns() - start) / ((double)state->batch * state->repeats);
}

double pool_case_evict(pool_case *state, bool timed_publish) {
    int64_t elapsed = 0;

    for (int32_t i = 0; i < state->repeats; i++) {
        pkv_block_id *block_ids = state->block_ids;
        int64_t start;
        int64_t publish;
        int64_t freed;

        for (int32_t k = 0; k < state->batch; k++) {
            set_key(state, k, ++state->key_round);
        }
        start = bench_now_ns();
        (void)pkv_pool_get_new_blocks(state->pool, state->batch, block_ids);
        publish = bench_now_ns();
        (void)pkv_pool_cache_blocks(state->pool, 0, block_ids, state->keys, NULL, state->batch);
        freed = bench_now_ns();
        (void)pkv_pool_free_blocks(state->pool, block_ids, state->batch);
        elapsed += bench_now_ns() - start - (timed_publish ? 0 : freed - publish);
    }
    return (double)elapsed / ((double)state->batch * state->repeats);
}

double pool_case_touch(pool_case *state) {
    int32_t count = state->num_blocks - 1;
    int64_t start;

    start = bench_now_ns();
    for (int32_t i = 0; i < state->repeats; i++) {
        const pkv_block_id *hits;

        if (state->next_hit + state->batch > count) {
            state->next_hit = 0;
        }
        hits = state->block_ids + state->next_hit;
        state->next_hit += state->batch;
        (void)pkv_pool_touch(state->pool, hits, state->batch);
        (void)pkv_pool_free_blocks(state->pool, hits, state->batch);
    }
    return (double)(bench_now_ns() - start) / ((double)state->batch * state->repeats);
}
