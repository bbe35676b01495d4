/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The inside of a block pool, for this room and for the manager: the struct that composes free
 * queue, prefix index, publication log, events and fills, and the verbs without input checks. The
 * public functions, which check, are in pool.c and pool_verbs.c.
 *
 * The one idea: every change of who may find a block goes through pkvi_pool_publish, or through the
 * one way to forget a key, so that index, log and events cannot drift apart. */
#ifndef PKVI_POOL_POOL_H
#define PKVI_POOL_POOL_H

#include <pagedkv/pool.h>

#include "base/memory.h"
#include "pool/block.h"
#include "pool/child_index.h"
#include "pool/event_ring.h"
#include "pool/fill_list.h"
#include "pool/free_queue.h"
#include "pool/prefix_index.h"
#include "pool/publish_log.h"

/* I2: free_queue.num_free + held + 1 == num_blocks. */
struct pkv_pool {
    int32_t num_blocks;
    int32_t num_groups;
    bool is_caching;
    struct pkvi_free_queue free_queue;
    struct pkvi_block_state *states; /* [num_blocks] */
    struct pkvi_prefix_index *index; /* apart, since const readers count probes */
    struct pkvi_error_text *error;   /* apart, since const readers can fail */
    struct pkvi_publish_log log;
    struct pkvi_child_index children; /* a manager turns it on */
    struct pkvi_event_ring events;
    struct pkvi_fill_list fills;
    int32_t *stored_tokens; /* NULL, or [num_blocks][index->tokens_per_block] */
    int32_t *block_sizes;   /* [num_groups] */
    uint64_t num_blocks_allocated;
    uint64_t num_blocks_evicted;
    uint64_t num_keys_published;
    uint64_t num_keys_forgotten; /* with num_keys_published, tells whether a lookup is still true */
    pkv_allocator allocator;
    size_t memory_size;
    bool owns_memory;
};

/* One commit call: what its stored events have in common. */
struct pkvi_publication {
    int32_t group;
    uint64_t step; /* 0 = not tracked */
    pkv_request request;
    uint64_t adapter_id;
    const pkv_block_key *parent; /* NULL: starts the sequence */
    int32_t first_token, num_tokens;
    uint64_t call_index;
    int32_t num_published;
};

/* Lay a pool out in `carver` and, where that has memory, build it. NULL while measuring. The
 * configuration has been read and checked. */
pkv_pool *pkvi_pool_build(const pkv_pool_config *config, struct pkvi_carver *carver);

/* Read a caller's configuration, put the defaults in, and check it. */
pkv_status pkvi_pool_read_config(const pkv_pool_config *config,
                                 pkv_pool_config *own,
                                 const char **reason);

/* Hand out `count` blocks, which the caller knows to be free, evicting what they carry. */
void pkvi_pool_take(pkv_pool *pool, int32_t group, int32_t count, pkv_block_id *out);

/* Add a reference; a free block leaves the queue. Not for the null block. */
static inline void pkvi_pool_touch_block(pkv_pool *pool, pkv_block_id block) {
    struct pkvi_block_state *state = &pool->states[block];

    if (state->ref_cnt == 0) {
        pkvi_free_queue_remove(&pool->free_queue, block);
    }
    state->ref_cnt = (state->ref_cnt + 1) & (uint32_t)PKV_MAX_REF_CNT;
}

/* Drop references in the order of the list, or of the list reversed. Null blocks are skipped.
 * Returns -1; or, having changed nothing, the index of an id that is out of range or of a block
 * that runs out of references. */
int32_t pkvi_pool_release(pkv_pool *pool,
                          const pkv_block_id *block_ids,
                          int32_t num_blocks,
                          bool is_reversed);

/* Begin a commit call, publish a held block without key (whose key has that home), end the call.
 * With store_tokens, token_ids NULL says that the tokens are stored already. */
void pkvi_pool_begin(pkv_pool *pool, struct pkvi_publication *publication);
void pkvi_pool_publish(pkv_pool *pool,
                       struct pkvi_publication *publication,
                       pkv_block_id block,
                       const pkv_block_key *key,
                       struct pkvi_index_home home,
                       const int32_t *token_ids);
void pkvi_pool_end(pkv_pool *pool, const struct pkvi_publication *publication);

/* Take the key of a block away, with its event. */
void pkvi_pool_forget(pkv_pool *pool, pkv_block_id block);

/* Forget all keys. The caller has checked that no block is held. */
void pkvi_pool_forget_all(pkv_pool *pool);

static inline bool pkvi_pool_has_block(const pkv_pool *pool, pkv_block_id block) {
    return block >= 0 && block < pool->num_blocks;
}

static inline bool pkvi_pool_has_group(const pkv_pool *pool, int32_t group) {
    return group >= 0 && group < pool->num_groups;
}

/* The pool's invariants; a text naming the one that is broken goes to `error`. */
pkv_status pkvi_pool_check(const pkv_pool *pool, struct pkvi_error_text *error);

#endif
