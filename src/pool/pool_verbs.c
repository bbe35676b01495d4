/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The public verbs of a pool: they check everything first, then run the unchecked verbs of pool.h,
 * so that a refused call has changed nothing. */
#include <string.h>

#include "pool/pool.h"

/* How many keys a publication reads the index ahead. */
#define CACHE_AHEAD 16

static pkv_status invalid(const pkv_pool *pool, const char *text) {
    return pkvi_fail(pool->error, PKV_ERROR_INVALID_ARGUMENT, "%s", text);
}

/* Check a list of block ids: present, in range. */
static pkv_status check_ids(const pkv_pool *pool,
                            const pkv_block_id *block_ids,
                            int32_t num_blocks) {
    if (num_blocks < 0 || (num_blocks > 0 && block_ids == NULL)) {
        return invalid(pool, "block_ids is NULL or num_blocks is negative");
    }
    for (int32_t i = 0; i < num_blocks; i++) {
        if (!pkvi_pool_has_block(pool, block_ids[i])) {
            return pkvi_fail(pool->error, PKV_ERROR_INVALID_ARGUMENT,
                             "block id %d at index %d is not in 0 to %d", block_ids[i], i,
                             pool->num_blocks - 1);
        }
    }
    return PKV_OK;
}

/* Check a group and a list of keys, with their tokens where the pool stores them. */
static pkv_status check_keys(const pkv_pool *pool,
                             int32_t group,
                             const pkv_block_key *keys,
                             const int32_t *token_ids,
                             int32_t num_keys) {
    if (!pkvi_pool_has_group(pool, group)) {
        return pkvi_fail(pool->error, PKV_ERROR_INVALID_ARGUMENT, "there is no group %d", group);
    }
    if (num_keys < 0 || (num_keys > 0 && keys == NULL)) {
        return invalid(pool, "keys is NULL or their number is negative");
    }
    if (pool->stored_tokens != NULL && num_keys > 0 && token_ids == NULL) {
        return invalid(pool, "token_ids is needed, since the pool stores tokens");
    }
    return PKV_OK;
}

pkv_status pkv_pool_match(const pkv_pool *pool,
                          int32_t group,
                          const pkv_block_key *keys,
                          const int32_t *token_ids,
                          int32_t num_keys,
                          pkv_block_id *hits,
                          int32_t *num_hits) {
    struct pkvi_index_query query;
    pkv_status status;

    if (pool == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    status = check_keys(pool, group, keys, token_ids, num_keys);
    if (status != PKV_OK) {
        return status;
    }
    if (num_hits == NULL || (num_keys > 0 && hits == NULL)) {
        return invalid(pool, "hits or num_hits is NULL");
    }
    query.num_keys = num_keys;
    query.group = group;
    query.cursor = (struct pkvi_key_cursor){keys, NULL, NULL, 0, pool->block_sizes[group], 1, 0, 0};
    query.cursor.token_ids = pool->stored_tokens != NULL ? token_ids : NULL;
    *num_hits = pool->is_caching ? pkvi_prefix_index_match(pool->index, &query, hits) : 0;
    return PKV_OK;
}

/* Check that every hit still carries its key and that none is named twice; count the free ones. A
 * visited block is marked by clearing is_keyed, which the second pass sets again. */
static pkv_status check_hits(pkv_pool *pool,
                             int32_t group,
                             const pkv_block_id *hits,
                             const pkv_block_key *keys,
                             int32_t num_hits,
                             int32_t *num_free_hits) {
    pkv_status status = PKV_OK;
    int32_t num_checked = 0;

    *num_free_hits = 0;
    for (; num_checked < num_hits && status == PKV_OK; num_checked++) {
        pkv_block_id block = hits[num_checked];
        struct pkvi_block_state *state = &pool->states[block];

        if (!state->is_keyed || state->group != (uint32_t)group ||
            !pkvi_key_equal(&pool->index->entries[block].key, &keys[num_checked])) {
            break;
        }
        state->is_keyed = 0;
        *num_free_hits += state->ref_cnt == 0 ? 1 : 0;
        if (state->ref_cnt == (uint32_t)PKV_MAX_REF_CNT) {
            status = pkvi_fail(pool->error, PKV_ERROR_LIMIT, "block %d has too many owners", block);
        }
    }
    for (int32_t i = 0; i < num_checked; i++) {
        pool->states[hits[i]].is_keyed = 1;
    }
    if (status != PKV_OK || num_checked == num_hits) {
        return status;
    }
    for (int32_t i = 0; i < num_checked; i++) {
        if (hits[i] == hits[num_checked]) {
            return pkvi_fail(pool->error, PKV_ERROR_INVALID_ARGUMENT,
                             "block %d is named twice in hits", hits[i]);
        }
    }
    return PKV_NOT_FOUND;
}

pkv_status pkv_pool_acquire(pkv_pool *pool,
                            int32_t group,
                            const pkv_block_id *hits,
                            const pkv_block_key *keys,
                            int32_t num_hits,
                            int32_t num_new,
                            pkv_block_id *new_block_ids) {
    int32_t num_free_hits;
    pkv_status status;

    if (pool == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    if (!pkvi_pool_has_group(pool, group)) {
        return pkvi_fail(pool->error, PKV_ERROR_INVALID_ARGUMENT, "there is no group %d", group);
    }
    status = check_ids(pool, hits, num_hits);
    if (status != PKV_OK) {
        return status;
    }
    if ((num_hits > 0 && keys == NULL) || num_new < 0 || (num_new > 0 && new_block_ids == NULL)) {
        return invalid(pool, "keys or new_block_ids is NULL, or num_new is negative");
    }
    status = check_hits(pool, group, hits, keys, num_hits, &num_free_hits);
    if (status != PKV_OK) {
        return status;
    }
    if ((int64_t)num_free_hits + num_new > pool->free_queue.num_free) {
        return PKV_NO_FREE_BLOCKS;
    }
    for (int32_t i = 0; i < num_hits; i++) {
        pkvi_pool_touch_block(pool, hits[i]);
    }
    pkvi_pool_take(pool, group, num_new, new_block_ids);
    return PKV_OK;
}

pkv_status pkv_pool_get_new_blocks(pkv_pool *pool, int32_t num_blocks, pkv_block_id *out) {
    if (pool == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    if (num_blocks < 0 || (num_blocks > 0 && out == NULL)) {
        return invalid(pool, "out is NULL or num_blocks is negative");
    }
    if (num_blocks > pool->free_queue.num_free) {
        return PKV_NO_FREE_BLOCKS;
    }
    pkvi_pool_take(pool, 0, num_blocks, out);
    return PKV_OK;
}

/* First the references, which can be taken back without a trace; then the queue. */
pkv_status pkv_pool_touch(pkv_pool *pool, const pkv_block_id *block_ids, int32_t num_blocks) {
    int32_t num_added = 0;
    pkv_status status;

    if (pool == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    status = check_ids(pool, block_ids, num_blocks);
    if (status != PKV_OK) {
        return status;
    }
    for (; num_added < num_blocks; num_added++) {
        struct pkvi_block_state *state = &pool->states[block_ids[num_added]];

        if (block_ids[num_added] == PKV_NULL_BLOCK) {
            continue;
        }
        if (state->ref_cnt == (uint32_t)PKV_MAX_REF_CNT) {
            break;
        }
        state->ref_cnt = (state->ref_cnt + 1) & (uint32_t)PKV_MAX_REF_CNT;
    }
    if (num_added < num_blocks) {
        for (int32_t i = 0; i < num_added; i++) {
            if (block_ids[i] != PKV_NULL_BLOCK) {
                struct pkvi_block_state *state = &pool->states[block_ids[i]];
                state->ref_cnt = (state->ref_cnt - 1) & (uint32_t)PKV_MAX_REF_CNT;
            }
        }
        return pkvi_fail(pool->error, PKV_ERROR_LIMIT, "block %d would have more than %d owners",
                         block_ids[num_added], PKV_MAX_REF_CNT);
    }
    for (int32_t i = 0; i < num_blocks; i++) {
        if (block_ids[i] != PKV_NULL_BLOCK &&
            pkvi_free_queue_contains(&pool->free_queue, block_ids[i])) {
            pkvi_free_queue_remove(&pool->free_queue, block_ids[i]);
        }
    }
    return PKV_OK;
}

pkv_status pkv_pool_free_blocks(pkv_pool *pool, const pkv_block_id *block_ids, int32_t num_blocks) {
    int32_t failed;

    if (pool == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    if (num_blocks < 0 || (num_blocks > 0 && block_ids == NULL)) {
        return invalid(pool, "block_ids is NULL or num_blocks is negative");
    }
    failed = pkvi_pool_release(pool, block_ids, num_blocks, false);
    if (failed >= 0) {
        return pkvi_fail(pool->error, PKV_ERROR_INVALID_ARGUMENT,
                         "block %d at index %d is out of range, or freed more often than held",
                         block_ids[failed], failed);
    }
    return PKV_OK;
}

/* Check that every block is held and without key, and none named twice; marks by setting
 * is_keyed. */
static pkv_status check_unpublished(pkv_pool *pool,
                                    const pkv_block_id *block_ids,
                                    int32_t num_blocks) {
    int32_t num_checked = 0;

    for (; num_checked < num_blocks; num_checked++) {
        struct pkvi_block_state *state = &pool->states[block_ids[num_checked]];
        if (block_ids[num_checked] != PKV_NULL_BLOCK) {
            if (state->ref_cnt == 0 || state->is_keyed) {
                break;
            }
            state->is_keyed = 1;
        }
    }
    for (int32_t i = 0; i < num_checked; i++) {
        if (block_ids[i] != PKV_NULL_BLOCK) {
            pool->states[block_ids[i]].is_keyed = 0;
        }
    }
    if (num_checked == num_blocks) {
        return PKV_OK;
    }
    return pkvi_fail(pool->error, PKV_ERROR_INVALID_ARGUMENT,
                     "block %d at index %d is free, has a key, or is named twice",
                     block_ids[num_checked], num_checked);
}

pkv_status pkv_pool_cache_blocks(pkv_pool *pool,
                                 int32_t group,
                                 const pkv_block_id *block_ids,
                                 const pkv_block_key *keys,
                                 const int32_t *token_ids,
                                 int32_t num_blocks) {
    struct pkvi_publication publication = {0};
    struct pkvi_index_home homes[CACHE_AHEAD];
    int32_t num_ahead = 0;
    pkv_status status;

    if (pool == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    status = check_ids(pool, block_ids, num_blocks);
    if (status == PKV_OK) {
        status = check_keys(pool, group, keys, token_ids, num_blocks);
    }
    if (status == PKV_OK) {
        status = check_unpublished(pool, block_ids, num_blocks);
    }
    if (status == PKV_OK && (int64_t)num_blocks * pool->block_sizes[group] > INT32_MAX) {
        status = invalid(pool, "the blocks hold more than INT32_MAX tokens");
    }
    if (status != PKV_OK || !pool->is_caching || num_blocks == 0) {
        return status;
    }
    publication.group = group;
    publication.num_tokens = num_blocks * pool->block_sizes[group];
    pkvi_pool_begin(pool, &publication);
    for (int32_t i = 0; i < num_blocks; i++) {
        const int32_t *own = NULL;

        for (; num_ahead < num_blocks && num_ahead < i + CACHE_AHEAD; num_ahead++) {
            homes[num_ahead % CACHE_AHEAD] =
                pkvi_prefix_index_approach(pool->index, group, &keys[num_ahead]);
        }
        if (block_ids[i] == PKV_NULL_BLOCK) {
            continue;
        }
        if (token_ids != NULL) {
            own = token_ids + (size_t)i * (size_t)pool->block_sizes[group];
        }
        pkvi_pool_publish(pool, &publication, block_ids[i], &keys[i], homes[i % CACHE_AHEAD], own);
    }
    pkvi_pool_end(pool, &publication);
    return PKV_OK;
}

pkv_status pkv_pool_evict_blocks(pkv_pool *pool,
                                 const pkv_block_id *block_ids,
                                 int32_t num_blocks) {
    pkv_status status;

    if (pool == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    status = check_ids(pool, block_ids, num_blocks);
    if (status != PKV_OK) {
        return status;
    }
    for (int32_t i = 0; i < num_blocks; i++) {
        if (pool->states[block_ids[i]].is_keyed) {
            pkvi_pool_forget(pool, block_ids[i]);
        }
    }
    return PKV_OK;
}

pkv_status pkv_pool_reset_prefix_cache(pkv_pool *pool) {
    if (pool == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    if (pool->free_queue.num_free != pool->num_blocks - 1) {
        return pkvi_fail(pool->error, PKV_ERROR_BUSY, "%d blocks are held",
                         pool->num_blocks - 1 - pool->free_queue.num_free);
    }
    pkvi_pool_forget_all(pool);
    return PKV_OK;
}

/* ---- readers and drains ---------------------------------------------------------------------- */

int32_t pkv_pool_get_num_free_blocks(const pkv_pool *pool) {
    return pool == NULL ? 0 : pool->free_queue.num_free;
}

pkv_status pkv_pool_get_block(const pkv_pool *pool, pkv_block_id block_id, pkv_block_info *out) {
    pkv_block_info info = {0};
    const struct pkvi_block_state *state;

    if (pool == NULL || !pkvi_pool_has_block(pool, block_id)) {
        return pool == NULL ? PKV_ERROR_INVALID_ARGUMENT
                            : invalid(pool, "the block id is out of range");
    }
    state = &pool->states[block_id];
    info.ref_cnt = (int32_t)state->ref_cnt;
    info.group = (int32_t)state->group;
    info.is_keyed = state->is_keyed != 0;
    info.is_free = block_id != PKV_NULL_BLOCK && state->ref_cnt == 0;
    if (info.is_keyed) {
        info.num_copies = pkvi_prefix_index_num_copies(pool->index, block_id);
        info.step = pkvi_publish_log_step(&pool->log, block_id);
        info.key = pool->index->entries[block_id].key;
    }
    if (pkvi_write_struct(out, &info, sizeof info, sizeof info.struct_size) != PKV_OK) {
        return invalid(pool, "out is NULL or its struct_size is not set");
    }
    return PKV_OK;
}

pkv_status pkv_pool_get_free_queue(const pkv_pool *pool,
                                   pkv_block_id *block_ids,
                                   int32_t capacity,
                                   int32_t *num_blocks) {
    pkv_block_id block;

    if (pool == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    if (num_blocks == NULL || capacity < 0 || (capacity > 0 && block_ids == NULL)) {
        return invalid(pool, "block_ids or num_blocks is NULL, or capacity is negative");
    }
    block = pool->free_queue.links[0].next;
    for (int32_t i = 0; i < capacity && block != 0; i++) {
        block_ids[i] = block;
        block = pool->free_queue.links[block].next;
    }
    *num_blocks = pool->free_queue.num_free;
    if (capacity < *num_blocks) {
        return pkvi_fail(pool->error, PKV_ERROR_LIMIT, "capacity must be %d", *num_blocks);
    }
    return PKV_OK;
}

pkv_status pkv_pool_take_events(pkv_pool *pool,
                                pkv_event *events,
                                int32_t capacity,
                                int32_t *num_events,
                                uint64_t *num_dropped) {
    if (pool == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    if (num_events == NULL || capacity < 0 || (capacity > 0 && events == NULL)) {
        return invalid(pool, "events or num_events is NULL, or capacity is negative");
    }
    return pkvi_event_ring_take(&pool->events, events, capacity, num_events, num_dropped);
}

pkv_status pkv_pool_take_fills(
    pkv_pool *pool, int32_t group, pkv_block_id *block_ids, int32_t capacity, int32_t *num_fills) {
    if (pool == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    if (!pkvi_pool_has_group(pool, group) || num_fills == NULL || capacity < 0 ||
        (capacity > 0 && block_ids == NULL)) {
        return invalid(pool, "no such group, a NULL array, or a negative capacity");
    }
    return pkvi_fill_list_take(&pool->fills, group, block_ids, capacity, num_fills);
}

pkv_status pkv_pool_get_stats(const pkv_pool *pool, pkv_pool_stats *out) {
    pkv_pool_stats stats = {0};

    if (pool == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    stats.num_blocks = pool->num_blocks;
    stats.num_free_blocks = pool->free_queue.num_free;
    stats.num_cached_blocks = pool->index->num_keyed;
    stats.num_distinct_keys = pool->index->num_distinct;
    stats.num_blocks_allocated = pool->num_blocks_allocated;
    stats.num_blocks_evicted = pool->num_blocks_evicted;
    stats.num_keys_published = pool->num_keys_published;
    stats.num_collisions_rejected = pool->index->num_collisions_rejected;
    stats.num_index_slots_probed = pool->index->num_probes;
    stats.num_events_dropped = pool->events.num_dropped_total;
    if (pkvi_write_struct(out, &stats, sizeof stats, sizeof stats.struct_size) != PKV_OK) {
        return invalid(pool, "out is NULL or its struct_size is not set");
    }
    return PKV_OK;
}
