/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The block level: a pool of KV-cache blocks with reference counts, a free queue in eviction order
 * and an index from block keys to blocks. For engines that keep their own block tables; everybody
 * else takes manager.h, which is built on this. It knows nothing of requests, schedulers or
 * devices.
 *
 * The one idea: a block whose ref_cnt is 0 waits in the free queue and can still be hit by its key;
 * it is forgotten only when it is handed out again. Behaviour is vLLM V1's block pool, id for id.
 *
 * Unsaid below: one pool, one thread at a time; pointers are not NULL; a call that returns an error
 * (or any status but PKV_OK, where nothing else is said) has changed nothing. */
#ifndef PAGEDKV_POOL_H
#define PAGEDKV_POOL_H

#include <pagedkv/batch.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Largest num_blocks, groups and simultaneous owners of one block. */
#define PKV_MAX_BLOCKS (1 << 30)
#define PKV_MAX_GROUPS 255
#define PKV_MAX_REF_CNT ((1 << 23) - 1)

#define PKV_DEFAULT_BLOCK_SIZE 16

typedef struct pkv_pool pkv_pool;

/* Handle of a request of a manager, by value; {0, 0} is never valid. The pool only passes it on in
 * events. */
typedef struct pkv_request {
    uint32_t index, generation;
} pkv_request;

typedef enum pkv_event_type {
    PKV_EVENT_BLOCK_STORED = 1,
    PKV_EVENT_BLOCK_REMOVED = 2,
    PKV_EVENT_ALL_BLOCKS_CLEARED = 3
} pkv_event_type;

/* One change of the set of findable blocks. A call (a commit of one group) that stores n blocks
 * gives n events with one call_index; a call that had blocks to store but skipped them all gives
 * one with num_keys 0, as vLLM V1 sends a message without hashes. Sequence numbers rise by one per
 * event, dropped ones included, so that a consumer sees a gap. */
typedef struct pkv_event {
    pkv_event_type type;
    int32_t group;
    uint64_t sequence_number;
    uint64_t call_index;
    pkv_request request; /* who stored it; {0, 0} for a standalone pool and for removals */
    int32_t num_keys;    /* 1: key and block_id are set; 0: nothing was stored by this call */
    pkv_block_id block_id;
    pkv_block_key key;
    bool has_parent;          /* of the call: false where its first block starts the sequence */
    pkv_block_key parent_key; /* of the call: key of the block before the first one */
    int32_t first_token;      /* of the call: position of the first token */
    int32_t num_tokens;       /* of the call: tokens of all its blocks, skipped ones included */
    int32_t remaining_copies; /* blocks that carry the key after this event */
    uint64_t adapter_id;
} pkv_event;

/* Configuration of a pool; zero a whole one and set what differs. */
typedef struct pkv_pool_config {
    uint32_t struct_size;
    int32_t num_blocks;         /* block 0, the null block, included; >= 1 */
    int32_t num_groups;         /* KV-cache groups that share the pool; 0 = 1 */
    int32_t block_size;         /* tokens in a block; 0 = PKV_DEFAULT_BLOCK_SIZE */
    const int32_t *block_sizes; /* [num_groups] where groups differ; NULL = block_size for each */
    int32_t event_capacity;     /* events kept until they are taken; 0 = no events */
    bool disable_prefix_cache;  /* true: no keys at all; every free is LIFO */
    bool store_tokens;          /* true: a hit also compares the block's own tokens */
    bool fill_new_blocks;       /* true: blocks handed out are listed by pkv_pool_take_fills */
    pkv_allocator allocator;
    pkv_log_fn log;
    void *log_context;
} pkv_pool_config;

/* What can be said of one block. */
typedef struct pkv_block_info {
    uint32_t struct_size;
    int32_t ref_cnt;    /* 0 for the null block, whose count is not kept */
    int32_t group;      /* group of its last owner */
    int32_t num_copies; /* blocks of its group that carry its key, itself included; 0 without key */
    bool is_keyed, is_free;
    uint64_t step;     /* step that published its key and is not complete yet; 0 = none */
    pkv_block_key key; /* all zero without key */
} pkv_block_info;

/* Counters and levels of a pool. Counters run from creation. */
typedef struct pkv_pool_stats {
    uint32_t struct_size;
    int32_t num_blocks, num_free_blocks, num_cached_blocks, num_distinct_keys;
    uint64_t num_blocks_allocated;    /* handed out */
    uint64_t num_blocks_evicted;      /* handed out while they carried a key */
    uint64_t num_keys_published;      /* blocks that got a key */
    uint64_t num_collisions_rejected; /* equal 128-bit hash, but other lineage or other tokens */
    uint64_t num_index_slots_probed;  /* index slots read: cost of the index, for benches */
    uint64_t num_events_dropped;
} pkv_pool_stats;

/* ---- life ------------------------------------------------------------------------------------ */

/* Say what is wrong with a configuration.
 * [any thread | O(groups) | no allocation]
 *
 * reason  may be NULL; else a static text, also for PKV_OK ("").
 *
 * Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT, PKV_ERROR_UNSUPPORTED (a later version's field). */
PKV_API pkv_status pkv_pool_config_check(const pkv_pool_config *config, const char **reason);

/* Compute how many bytes pkv_pool_init needs.
 * [any thread | O(groups) | no allocation]
 *
 * Returns 0 for a configuration that pkv_pool_config_check refuses, or whose size no size_t holds
 * (pkv_pool_create then says PKV_ERROR_OUT_OF_MEMORY). */
PKV_API size_t pkv_pool_size(const pkv_pool_config *config);

/* Make a pool in memory that the caller owns, aligned to 64 bytes and >= pkv_pool_size bytes.
 * [O(num_blocks) | no allocation | all-or-nothing]
 *
 * out  valid until pkv_pool_destroy, which does not release this memory.
 *
 * Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT (configuration, size, alignment),
 * PKV_ERROR_UNSUPPORTED. */
PKV_API pkv_status pkv_pool_init(const pkv_pool_config *config,
                                 void *memory,
                                 size_t size,
                                 pkv_pool **out);

/* Make a pool with one allocation from config->allocator.
 * [O(num_blocks) | allocates once | all-or-nothing]
 *
 * out  the caller's, to be given to pkv_pool_destroy; set to NULL on error.
 *
 * Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT, PKV_ERROR_UNSUPPORTED, PKV_ERROR_OUT_OF_MEMORY. */
PKV_API pkv_status pkv_pool_create(const pkv_pool_config *config, pkv_pool **out);

/* End a pool; NULL is a no-op. [O(1)] */
PKV_API void pkv_pool_destroy(pkv_pool *pool);

/* Text of the last call on this pool that returned an error; "" when there was none.
 * [reads pool | O(1)]  Valid until the next failing call. */
PKV_API const char *pkv_pool_last_error(const pkv_pool *pool);

/* ---- keys ------------------------------------------------------------------------------------ */

/* An image, sound or other input whose tokens are placeholders: its digest stands in the keys of
 * the blocks that it overlaps. */
typedef struct pkv_media {
    uint8_t digest[32];
    int32_t offset;     /* first token that it covers */
    int32_t num_tokens; /* >= 1 */
} pkv_media;

/* What goes into a block key beside the tokens and the parent. Zero means absent, and an absent
 * thing never equals a present one; a salt never equals an adapter or a digest. */
typedef struct pkv_key_args {
    uint32_t struct_size;
    int32_t block_size;     /* tokens per key; 0 = PKV_DEFAULT_BLOCK_SIZE */
    uint64_t hash_seed;     /* of the 128-bit chain; share it to share keys */
    uint64_t secret[2];     /* of the lineage chain; zero = deterministic and unprotected */
    uint64_t adapter_id;    /* LoRA or other adapter; 0 = none */
    const void *salt;       /* isolation domain of a tenant, in block 0; NULL = none */
    size_t salt_size;       /* bytes; 0 = none */
    const pkv_media *media; /* ascending by offset, not overlapping; NULL = none */
    int32_t num_media;
} pkv_key_args;

/* Compute the keys of the full blocks of a token run, as a manager computes them.
 * [any thread | O(tokens + media) | no allocation]
 *
 * parent       key of the block before; NULL where the run starts the sequence.
 * first_token  position of the run's first token: a multiple of block_size; 0 iff parent is NULL.
 * keys         [num_tokens / block_size]; a partial last block gets none.
 * num_keys     may be NULL.
 *
 * The encoding is stable across processes, builds and byte orders; docs/concepts.md spells it out.
 *
 * Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT, PKV_ERROR_UNSUPPORTED. */
PKV_API pkv_status pkv_compute_block_keys(const pkv_key_args *args,
                                          const pkv_block_key *parent,
                                          int32_t first_token,
                                          const int32_t *token_ids,
                                          int32_t num_tokens,
                                          pkv_block_key *keys,
                                          int32_t *num_keys);

/* ---- verbs ----------------------------------------------------------------------------------- */

/* Find how many leading keys are cached, and in which blocks.
 * [reads pool | O(hits), batched and prefetched | no allocation]
 *
 * keys       [num_keys] in prefix order.   token_ids  [num_keys * block size of the group]; needed
 *            with store_tokens, else ignored and may be NULL.
 * hits       [num_keys]; the oldest block that carries each key. Neither touched nor reordered, so
 *            they are only promised until the next call that mutates the pool.
 *
 * Returns PKV_OK (also for no hit), PKV_ERROR_INVALID_ARGUMENT. Source: vLLM V1
 * get_longest_cache_hit, full attention. */
PKV_API pkv_status pkv_pool_match(const pkv_pool *pool,
                                  int32_t group,
                                  const pkv_block_key *keys,
                                  const int32_t *token_ids,
                                  int32_t num_keys,
                                  pkv_block_id *hits,
                                  int32_t *num_hits);

/* Take references to matched blocks and new blocks in one transaction.
 * [mutates pool | O(num_hits + num_new) | no allocation | all-or-nothing]
 *
 * hits, keys     [num_hits] as pkv_pool_match gave them; each block must still carry its key.
 * new_block_ids  [num_new]; ref_cnt 1, drawn from the head of the free queue after the touch, so a
 *                call never evicts its own hits.
 *
 * Free hits count as needed capacity. Returns PKV_OK, PKV_NO_FREE_BLOCKS, PKV_NOT_FOUND (a hit was
 * evicted: match again), PKV_ERROR_INVALID_ARGUMENT (a block twice in hits), PKV_ERROR_LIMIT (more
 * than PKV_MAX_REF_CNT owners). */
PKV_API pkv_status pkv_pool_acquire(pkv_pool *pool,
                                    int32_t group,
                                    const pkv_block_id *hits,
                                    const pkv_block_key *keys,
                                    int32_t num_hits,
                                    int32_t num_new,
                                    pkv_block_id *new_block_ids);

/* Hand out blocks from the head of the free queue, forgetting the keys that they carry.
 * [mutates pool | O(num_blocks) | no allocation | all-or-nothing]
 *
 * out  [num_blocks], in queue order; ref_cnt 1. num_blocks >= 0.
 *
 * Returns PKV_OK, PKV_NO_FREE_BLOCKS, PKV_ERROR_INVALID_ARGUMENT. Source: vLLM V1
 * get_new_blocks (lazy eviction). */
PKV_API pkv_status pkv_pool_get_new_blocks(pkv_pool *pool, int32_t num_blocks, pkv_block_id *out);

/* Add a reference to each block; a free one leaves the queue. A block may be named more than once.
 * [mutates pool | O(num_blocks) | no allocation | all-or-nothing]
 *
 * Null blocks are skipped. Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT, PKV_ERROR_LIMIT (more than
 * PKV_MAX_REF_CNT owners). Source: vLLM V1 touch. */
PKV_API pkv_status pkv_pool_touch(pkv_pool *pool,
                                  const pkv_block_id *block_ids,
                                  int32_t num_blocks);

/* Drop a reference of each block, in the order given. Blocks that reach 0 go back to the queue:
 * those without a key to the head, those with one to the tail, each in the order given.
 * [mutates pool | O(num_blocks) | no allocation | all-or-nothing]
 *
 * Give a block table reversed, so that the end of a prefix is evicted before its start. Null blocks
 * are skipped. Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT (an id out of range, or named more often
 * than it has references). Source: vLLM V1 free_blocks. */
PKV_API pkv_status pkv_pool_free_blocks(pkv_pool *pool,
                                        const pkv_block_id *block_ids,
                                        int32_t num_blocks);

/* Publish the keys of full blocks, which makes them findable.
 * [mutates pool | O(num_blocks) | no allocation | all-or-nothing]
 *
 * block_ids  [num_blocks] held (ref_cnt >= 1) and without key; null blocks are skipped.
 * keys       [num_blocks]; equal keys on several blocks are all kept, the oldest is hit.
 * num_blocks * block size of the group is at most INT32_MAX.
 * token_ids  [num_blocks * block size of the group]; needed with store_tokens, else ignored.
 *
 * Does nothing with disable_prefix_cache. Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT. Source:
 * vLLM V1 cache_full_blocks. */
PKV_API pkv_status pkv_pool_cache_blocks(pkv_pool *pool,
                                         int32_t group,
                                         const pkv_block_id *block_ids,
                                         const pkv_block_key *keys,
                                         const int32_t *token_ids,
                                         int32_t num_blocks);

/* Forget the keys of blocks. References and queue positions stay; a block without key is skipped.
 * [mutates pool | O(num_blocks) | no allocation | all-or-nothing]
 *
 * Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT (an id out of range). Source: vLLM V1 evict_blocks. */
PKV_API pkv_status pkv_pool_evict_blocks(pkv_pool *pool,
                                         const pkv_block_id *block_ids,
                                         int32_t num_blocks);

/* Forget every key. The free queue keeps its order.
 * [mutates pool | O(num_blocks) | no allocation | all-or-nothing]
 *
 * Returns PKV_OK, PKV_ERROR_BUSY (a block is held). Source: vLLM V1 reset_prefix_cache. */
PKV_API pkv_status pkv_pool_reset_prefix_cache(pkv_pool *pool);

/* ---- readers and drains ---------------------------------------------------------------------- */

/* Number of blocks in the free queue, cached ones included. [reads pool | O(1)] */
PKV_API int32_t pkv_pool_get_num_free_blocks(const pkv_pool *pool);

/* Describe one block. [reads pool | O(copies of its key)]
 *
 * out->struct_size must be set. Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT. */
PKV_API pkv_status pkv_pool_get_block(const pkv_pool *pool,
                                      pkv_block_id block_id,
                                      pkv_block_info *out);

/* Read the free queue, next to be handed out first.
 * [reads pool | O(blocks)]
 *
 * num_blocks  always the whole count. Returns PKV_OK, PKV_ERROR_LIMIT (capacity too small: the
 * first `capacity` ids were written), PKV_ERROR_INVALID_ARGUMENT. */
PKV_API pkv_status pkv_pool_get_free_queue(const pkv_pool *pool,
                                           pkv_block_id *block_ids,
                                           int32_t capacity,
                                           int32_t *num_blocks);

/* Hand over events, oldest first. When the ring is full new events are dropped and counted.
 * [mutates pool | O(events taken)]
 *
 * num_dropped  may be NULL; events dropped since the last call.
 *
 * Returns PKV_OK, PKV_MORE (some are left), PKV_ERROR_INVALID_ARGUMENT. */
PKV_API pkv_status pkv_pool_take_events(pkv_pool *pool,
                                        pkv_event *events,
                                        int32_t capacity,
                                        int32_t *num_events,
                                        uint64_t *num_dropped);

/* Hand over the blocks of one group that were handed out since, to be zeroed or poisoned before
 * their first use. [mutates pool | O(blocks listed)]
 *
 * A block of pkv_pool_get_new_blocks is of group 0 until pkv_pool_cache_blocks says otherwise.
 * Always empty without fill_new_blocks. Returns PKV_OK, PKV_MORE, PKV_ERROR_INVALID_ARGUMENT. */
PKV_API pkv_status pkv_pool_take_fills(
    pkv_pool *pool, int32_t group, pkv_block_id *block_ids, int32_t capacity, int32_t *num_fills);

/* Read counters and levels. [reads pool | O(1)]
 *
 * out->struct_size must be set. Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT. */
PKV_API pkv_status pkv_pool_get_stats(const pkv_pool *pool, pkv_pool_stats *out);

/* Check every invariant of docs/invariants.md that concerns the pool alone.
 * [reads pool | O(blocks + index slots)]
 *
 * Returns PKV_OK, PKV_ERROR_CORRUPT (pkv_pool_last_error names the invariant and the block). */
PKV_API pkv_status pkv_pool_check(const pkv_pool *pool);

#ifdef __cplusplus
}
#endif

#endif
