/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The checker of a pool: walks everything and names the first invariant that does not hold. It
 * changes nothing. */
#include "pool/pool.h"

static pkv_status broken(struct pkvi_error_text *error, const char *text, pkv_block_id block) {
    return pkvi_fail(error, PKV_ERROR_CORRUPT, "%s (block %d)", text, block);
}

/* I1, I3: forward and backward walks visit the free blocks, each once. */
static pkv_status check_queue(const pkv_pool *pool, struct pkvi_error_text *error) {
    const struct pkvi_links *links = pool->free_queue.links;
    int32_t num_walked = 0;

    for (pkv_block_id block = links[0].next; block != 0; block = links[block].next) {
        if (!pkvi_pool_has_block(pool, block) || links[links[block].previous].next != block) {
            return broken(error, "I3: the free queue is broken", block);
        }
        if (pool->states[block].ref_cnt != 0) {
            return broken(error, "I3: a held block is in the free queue", block);
        }
        if (++num_walked > pool->free_queue.num_free) {
            return broken(error, "I3: the free queue is longer than its count", block);
        }
    }
    if (num_walked != pool->free_queue.num_free) {
        return broken(error, "I3: the free queue is shorter than its count", 0);
    }
    for (pkv_block_id block = links[0].previous; block != 0; block = links[block].previous) {
        if (!pkvi_pool_has_block(pool, block) || --num_walked < 0) {
            return broken(error, "I3: the free queue is broken backwards", block);
        }
    }
    return num_walked == 0 ? PKV_OK : broken(error, "I3: the free queue is short backwards", 0);
}

/* I2, I3, I8 block by block. */
static pkv_status check_states(const pkv_pool *pool, struct pkvi_error_text *error) {
    int32_t num_held = 0;

    if (pool->states[0].ref_cnt != 0 || pool->states[0].is_keyed) {
        return broken(error, "I1: the null block is held or keyed", 0);
    }
    for (pkv_block_id block = 1; block < pool->num_blocks; block++) {
        const struct pkvi_block_state *state = &pool->states[block];
        const pkv_block_key *key = &pool->index->entries[block].key;
        bool is_queued = pkvi_free_queue_contains(&pool->free_queue, block);

        num_held += state->ref_cnt > 0 ? 1 : 0;
        if (is_queued != (state->ref_cnt == 0)) {
            return broken(error, "I3: in the free queue and without owner do not agree", block);
        }
        if (state->is_keyed && !pool->is_caching) {
            return broken(error, "I7: a block is keyed though caching is off", block);
        }
        if (!state->is_keyed && ((key->hash_low | key->hash_high | key->lineage) != 0 ||
                                 pkvi_publish_log_step(&pool->log, block) != 0)) {
            return broken(error, "I8: a block without key has a key or a step left", block);
        }
    }
    if (pool->free_queue.num_free + num_held + 1 != pool->num_blocks) {
        return broken(error, "I2: free, held and null blocks do not add up", 0);
    }
    return PKV_OK;
}

/* I19: the log names keyed blocks by rising step. */
static pkv_status check_log(const pkv_pool *pool, struct pkvi_error_text *error) {
    const struct pkvi_publish_log *log = &pool->log;
    uint64_t last = log->completed_step;
    int32_t num_walked = 0;

    for (pkv_block_id block = log->links[0].next; block != 0; block = log->links[block].next) {
        uint64_t step;

        if (!pkvi_pool_has_block(pool, block) || ++num_walked >= pool->num_blocks ||
            log->links[log->links[block].previous].next != block) {
            return broken(error, "I19: the publication log is broken", block);
        }
        step = pkvi_publish_log_step(log, block);
        if (!pool->states[block].is_keyed || step <= log->completed_step || step < last ||
            step > log->newest_step) {
            return broken(error, "I19: a logged block has no key or a wrong step", block);
        }
        last = step;
    }
    return PKV_OK;
}

/* I9, I10. */
static pkv_status check_lists(const pkv_pool *pool, struct pkvi_error_text *error) {
    const struct pkvi_event_ring *ring = &pool->events;
    const struct pkvi_fill_list *fills = &pool->fills;

    if (ring->num_events < 0 || ring->num_events > ring->capacity ||
        (ring->capacity > 0 && (ring->first < 0 || ring->first >= ring->capacity))) {
        return broken(error, "I9: the event ring is out of bounds", 0);
    }
    for (int32_t i = 0; i < fills->num_listed; i++) {
        if (fills->block_ids[i] < 1 || !pkvi_pool_has_block(pool, fills->block_ids[i]) ||
            fills->is_listed[fills->block_ids[i]] != 1) {
            return broken(error, "I10: the fill list names a wrong block", fills->block_ids[i]);
        }
    }
    if (fills->block_ids != NULL) {
        int32_t num_marked = 0;
        for (pkv_block_id block = 0; block < pool->num_blocks; block++) {
            num_marked += fills->is_listed[block];
        }
        if (num_marked != fills->num_listed) {
            return broken(error, "I10: the fill list names a block twice", 0);
        }
    }
    return PKV_OK;
}

pkv_status pkvi_pool_check(const pkv_pool *pool, struct pkvi_error_text *error) {
    pkv_block_id culprit = 0;
    const char *problem;
    pkv_status status = check_queue(pool, error);

    if (status == PKV_OK) {
        status = check_states(pool, error);
    }
    if (status == PKV_OK) {
        status = check_log(pool, error);
    }
    if (status == PKV_OK) {
        status = check_lists(pool, error);
    }
    if (status != PKV_OK) {
        return status;
    }
    problem = pkvi_prefix_index_check(pool->index, pool->num_blocks, &culprit);
    if (problem == NULL && pkvi_child_index_is_on(&pool->children)) {
        problem = pkvi_child_index_check(&pool->children, &pool->log, &culprit);
    }
    return problem == NULL ? PKV_OK : broken(error, problem, culprit);
}

pkv_status pkv_pool_check(const pkv_pool *pool) {
    return pool == NULL ? PKV_ERROR_INVALID_ARGUMENT : pkvi_pool_check(pool, pool->error);
}
