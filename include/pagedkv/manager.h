/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The request level: what a scheduler calls. A manager owns one block pool, the block tables of its
 * running requests, the tokens and keys of all open requests, and the record of steps that may yet
 * fail. It schedules nothing, touches no device and keeps no count that the caller owns.
 *
 * The one idea: pkv_allocate_slots says how far a request's tokens will be computed by this step;
 * the manager finds room, shares what is cached, and publishes what becomes full. Behaviour is vLLM
 * V1's KVCacheManager, block id for block id; what goes beyond it says so.
 *
 * Unsaid below: one manager, one thread at a time, different managers are independent; pointers are
 * not NULL; counts are in tokens and not negative; a call that returns an error, or any status but
 * PKV_OK where nothing else is said, has changed nothing; nothing is allocated after creation.
 * Every function that takes a handle may return PKV_ERROR_STALE_HANDLE; every function that takes a
 * struct with struct_size may return PKV_ERROR_UNSUPPORTED for a field of a later version. */
#ifndef PAGEDKV_MANAGER_H
#define PAGEDKV_MANAGER_H

#include <pagedkv/pool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Defaults of the configuration, taken where a field is zero. */
#define PKV_DEFAULT_MAX_ROWS 256
#define PKV_DEFAULT_REQUESTS_PER_ROW 4 /* max_requests = this * max_rows */
#define PKV_DEFAULT_TOKENS_PER_SLOT 4  /* max_total_tokens = this * slots of the pool, or more */
#define PKV_DEFAULT_MAX_MEDIA_PER_REQUEST 16
#define PKV_DEFAULT_UTILISATION 0.92

/* Retention of windowed groups: which full blocks are published. */
#define PKV_RETENTION_DENSE 0        /* all that a hit at an alignment boundary can need */
#define PKV_RETENTION_TAIL_ONLY (-1) /* only the window at the end of the prompt */

typedef struct pkv_manager pkv_manager;

typedef enum pkv_group_kind {
    PKV_GROUP_FULL_ATTENTION = 0,
    PKV_GROUP_SLIDING_WINDOW = 1,
    PKV_GROUP_CHUNKED_LOCAL = 2,
    PKV_GROUP_RECURRENT = 3 /* refused with PKV_ERROR_UNSUPPORTED */
} pkv_group_kind;

/* One KV-cache group: layers that cache the same tokens and share block tables. */
typedef struct pkv_group_config {
    uint32_t struct_size; /* the same in every element of one array */
    pkv_group_kind kind;
    int32_t block_size; /* tokens; 0 = block_size of the manager's configuration */
    int32_t window; /* sliding window: keys visible including self; chunked: tokens of a chunk */
    bool eagle;     /* draft layers need the last hit block recomputed: a hit drops it */
    int32_t retention_interval; /* windowed kinds: PKV_RETENTION_…, or n > 0 tokens: the window at
                                   the end of each n, a multiple of the alignment */
} pkv_group_config;

/* Configuration of a manager; zero a whole one, set struct_size, num_blocks and max_model_len. */
typedef struct pkv_manager_config {
    uint32_t struct_size;
    int32_t num_blocks;             /* null block included; required */
    int32_t max_model_len;          /* most tokens of a sequence; required */
    int32_t block_size;             /* 0 = PKV_DEFAULT_BLOCK_SIZE */
    int32_t num_groups;             /* 0 = one full-attention group */
    const pkv_group_config *groups; /* [num_groups]; read during the call only */
    int32_t max_rows;      /* requests that hold blocks at once; 0 = PKV_DEFAULT_MAX_ROWS */
    int32_t max_requests;  /* open handles; 0 = PKV_DEFAULT_REQUESTS_PER_ROW * max_rows */
    int32_t max_held_rows; /* tables waiting in pkv_free_after; 0 = max_rows */
    int32_t max_blocks_per_request; /* width of a row; 0 = what max_model_len needs */
    int32_t max_in_flight_tokens;   /* admission cap of windowed groups; 0 = max_model_len */
    int64_t max_total_tokens;       /* sum of max_num_tokens of open requests; 0 = the larger of
                                       max_model_len and PKV_DEFAULT_TOKENS_PER_SLOT * pool slots */
    int32_t max_media_per_request;  /* 0 = PKV_DEFAULT_MAX_MEDIA_PER_REQUEST */
    int32_t event_capacity;         /* 0 = no events */
    bool disable_prefix_cache;
    bool store_tokens;    /* a hit also compares the block's own tokens; 4 bytes a slot */
    bool fill_new_blocks; /* list blocks handed out, to be poisoned before their first use */
    bool zero_on_free;    /* the same list, to be zeroed; batches wait until it was taken */
    uint64_t hash_seed;
    uint64_t key_secret[2]; /* secret of the lineage chain; zero = deterministic, unprotected */
    pkv_allocator allocator;
    pkv_log_fn log;
    void *log_context;
    int32_t min_partial_tokens; /* 0 = a hit ends with a block, as in vLLM V1; else see sharing.h */
} pkv_manager_config;

/* ---- life ------------------------------------------------------------------------------------ */

/* Say what is wrong with a configuration. [any thread | O(groups)]
 *
 * reason  may be NULL; else a static text ("" for PKV_OK).
 *
 * Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT, PKV_ERROR_UNSUPPORTED (recurrent, or sharing.h). */
PKV_API pkv_status pkv_manager_config_check(const pkv_manager_config *config, const char **reason);

/* Compute how many bytes pkv_manager_init needs. [any thread | O(groups)]
 *
 * Returns 0 for a configuration that pkv_manager_config_check refuses, or whose size no size_t
 * holds (pkv_manager_create then says PKV_ERROR_OUT_OF_MEMORY). */
PKV_API size_t pkv_manager_size(const pkv_manager_config *config);

/* Make a manager in memory that the caller owns: 64-byte aligned, >= pkv_manager_size bytes.
 * [O(size) | no allocation | all-or-nothing]
 *
 * Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT, PKV_ERROR_UNSUPPORTED. */
PKV_API pkv_status pkv_manager_init(const pkv_manager_config *config,
                                    void *memory,
                                    size_t size,
                                    pkv_manager **out);

/* Make a manager with one allocation. [O(size) | allocates once | all-or-nothing]
 *
 * out  the caller's, to be given to pkv_manager_destroy; NULL on error.
 *
 * Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT, PKV_ERROR_UNSUPPORTED, PKV_ERROR_OUT_OF_MEMORY. */
PKV_API pkv_status pkv_manager_create(const pkv_manager_config *config, pkv_manager **out);

/* End a manager with everything in it; NULL is a no-op. [O(1)] */
PKV_API void pkv_manager_destroy(pkv_manager *manager);

/* Text of the last call that returned an error; "" when there was none. Valid until the next
 * failing call. [reads manager | O(1)] */
PKV_API const char *pkv_manager_last_error(const pkv_manager *manager);

/* The manager's pool, for the readers of pool.h only. [reads manager | O(1)]
 *
 * Owned by the manager, valid as long as it. Its references are counted by pkv_manager_check: a
 * block that anybody else holds is a failure. */
PKV_API const pkv_pool *pkv_manager_get_pool(const pkv_manager *manager);

/* ---- requests -------------------------------------------------------------------------------- */

typedef struct pkv_request_args {
    uint32_t struct_size;
    const int32_t *token_ids; /* [num_tokens]; copied */
    int32_t num_tokens;       /* the prompt; >= 1 */
    int32_t max_num_tokens;   /* most tokens ever, output included; 0 = max_model_len */
    uint64_t adapter_id;      /* 0 = none */
    const void *salt;         /* copied into the keys; NULL or size 0 = none */
    size_t salt_size;
    const pkv_media *media; /* [num_media], ascending, not overlapping; copied */
    int32_t num_media;
    bool skip_cache_read; /* lookups find nothing; its blocks are still published */
    bool has_caller_keys; /* keys come through pkv_request_append_keys, none are computed */
} pkv_request_args;

/* Register a request with its prompt and compute its keys. It holds no blocks yet.
 * [mutates manager | O(tokens) | all-or-nothing]
 *
 * out  valid until pkv_request_close.
 *
 * Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT, PKV_ERROR_LIMIT (handles, tokens, media, or a row too
 * narrow for max_num_tokens; the text says which). */
PKV_API pkv_status pkv_request_open(pkv_manager *manager,
                                    const pkv_request_args *args,
                                    pkv_request *out);

/* Append accepted tokens. Drafts are never appended. [mutates manager | O(num_tokens)]
 *
 * num_tokens >= 1. Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT, PKV_ERROR_LIMIT (beyond the
 * request's max_num_tokens). */
PKV_API pkv_status pkv_request_append(pkv_manager *manager,
                                      pkv_request request,
                                      const int32_t *token_ids,
                                      int32_t num_tokens);

/* Append keys that the caller computed, one per hash block (the greatest common divisor of the
 * groups' block sizes). [mutates manager | O(num_keys)]
 *
 * A block is published by the first pkv_allocate_slots or pkv_cache_blocks that finds its key; a
 * key that comes later waits for the next one.
 *
 * Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT (the request was opened without has_caller_keys, or
 * more keys than full hash blocks of its tokens). */
PKV_API pkv_status pkv_request_append_keys(pkv_manager *manager,
                                           pkv_request request,
                                           const pkv_block_key *keys,
                                           int32_t num_keys);

/* Free the request's blocks and retire its handle. [mutates manager | O(blocks held)]
 *
 * Returns PKV_OK. */
PKV_API pkv_status pkv_request_close(pkv_manager *manager, pkv_request request);

typedef struct pkv_request_info {
    uint32_t struct_size;
    int32_t num_tokens, max_num_tokens;
    int32_t num_keys;        /* hash blocks that have a key */
    int32_t row;             /* PKV_NULL_ROW while it holds no blocks */
    int32_t num_allocations; /* times it was given a row: 2 or more after a preemption */
    uint64_t adapter_id;
} pkv_request_info;

/* Describe a request. [reads manager | O(1)]  out->struct_size must be set. Returns PKV_OK,
 * PKV_ERROR_INVALID_ARGUMENT. */
PKV_API pkv_status pkv_request_get_info(const pkv_manager *manager,
                                        pkv_request request,
                                        pkv_request_info *out);

/* Read tokens of an open request, for example to fill in the token ids of a stored event.
 * [reads manager | O(num_tokens)]
 *
 * token_ids  [num_tokens]. Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT (beyond its tokens). */
PKV_API pkv_status pkv_request_get_tokens(const pkv_manager *manager,
                                          pkv_request request,
                                          int32_t first_token,
                                          int32_t num_tokens,
                                          int32_t *token_ids);

/* Read keys of a request, one per hash block. [reads manager | O(num_keys)]
 *
 * keys  [num_keys]. Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT (beyond its keys). */
PKV_API pkv_status pkv_request_get_keys(const pkv_manager *manager,
                                        pkv_request request,
                                        int32_t first_key,
                                        int32_t num_keys,
                                        pkv_block_key *keys);

/* ---- lookup, allocate, free ------------------------------------------------------------------ */

/* Find the longest cached prefix of the request's tokens that all groups agree on.
 * [reads manager | O(hit blocks), in windowed groups O(blocks of its tokens)]
 *
 * num_computed_tokens  tokens that need no computing; at most num_tokens - 1, since the last token
 *                      must run to give logits. 0 for a request with skip_cache_read.
 *
 * No reference is taken, no order changes, and no hit is counted: of the statistics only rejected
 * collisions and index slots read go on. Returns PKV_OK. Source: vLLM V1 get_computed_blocks. */
PKV_API pkv_status pkv_get_computed_blocks(const pkv_manager *manager,
                                           pkv_request request,
                                           int32_t *num_computed_tokens);

/* The whole blocks of that prefix in one group; null blocks stand where a window needs none.
 * [reads manager | as pkv_get_computed_blocks]
 *
 * num_blocks  always the whole count. Returns PKV_OK, PKV_ERROR_LIMIT (capacity too small),
 * PKV_ERROR_INVALID_ARGUMENT (group). */
PKV_API pkv_status pkv_get_computed_block_ids(const pkv_manager *manager,
                                              pkv_request request,
                                              int32_t group,
                                              pkv_block_id *block_ids,
                                              int32_t capacity,
                                              int32_t *num_blocks);

/* All counts are the caller's and absolute on each call. */
typedef struct pkv_slots_args {
    uint32_t struct_size;
    int32_t num_computed_tokens;          /* computed before this step; its blocks are held */
    int32_t num_new_tokens;               /* to be computed by this step, drafts included */
    int32_t num_new_computed_tokens;      /* from pkv_get_computed_blocks; only without blocks */
    int32_t num_external_computed_tokens; /* to be loaded from elsewhere */
    int32_t num_lookahead_tokens;         /* places for drafts of later steps */
    int32_t num_in_flight_tokens;         /* of num_computed_tokens: scheduled, not finished;
                                             more than that count as all of them */
    int32_t num_watermark_blocks;         /* keep this many free; for admissions */
    int32_t num_reserved_blocks;          /* keep this many free; promised to others */
    bool full_sequence_must_fit;          /* admit only if all known tokens fit now */
    bool delay_caching;                   /* publish later, by pkv_cache_blocks */
    uint64_t step;                        /* step to undo by; 0 = untracked, pure vLLM V1 */
} pkv_slots_args;

typedef struct pkv_slots {
    uint32_t struct_size;
    int32_t row;                /* block-table row, the same in every group; >= 1 */
    int32_t num_new_blocks;     /* newly allocated, all groups; external ones not counted */
    int32_t num_copies;         /* pairs that this call queued for pkv_take_copies */
    int32_t num_missing_blocks; /* with PKV_NO_FREE_BLOCKS: how many were short */
    int32_t num_pending_blocks; /* with PKV_NO_FREE_BLOCKS: held until steps or swaps end */
} pkv_slots;

/* Give the request blocks for its next tokens and publish the blocks that become full.
 * [mutates manager | O(new blocks + new hits + blocks dropped); the lookup again where keys were
 * forgotten since; on PKV_NO_FREE_BLOCKS also cells of held tables | all-or-nothing, see below]
 *
 * args  num_new_tokens + num_external_computed_tokens >= 1. Steps of one manager never go back, and
 *       those that are not complete and published something span less than 2^32.
 * out   may be NULL; struct_size must be set.
 *
 * A call that passes its checks first drops the blocks behind the window (as
 * pkv_remove_skipped_blocks), then does everything else or nothing. Free hits count as needed.
 * Published blocks can be hit at once, before the step has run: in each layer write the tokens of
 * all requests of a step before any of them attends, and run steps in order. Give a step, and
 * pkv_step_fail or pkv_unschedule take a publication back.
 *
 * A request that outgrows the pool while no other holds blocks gets PKV_NO_FREE_BLOCKS, too; when
 * it has been freed its next admission says PKV_NEVER_FITS. Keep max_num_tokens within the pool.
 *
 * Returns PKV_OK, PKV_NO_FREE_BLOCKS (preempt and retry), PKV_NO_FREE_ROWS, PKV_NEVER_FITS (only
 * while it holds no blocks: more than an empty pool has, what a window has passed not counted),
 * PKV_NOT_FOUND (the hit was evicted since the lookup: look up again), PKV_ERROR_INVALID_ARGUMENT
 * (counts that contradict each other, a step that went back), PKV_ERROR_LIMIT (lookahead beyond the
 * row; or the caller's keys name one block in millions of columns). Source: vLLM V1
 * allocate_slots. */
PKV_API pkv_status pkv_allocate_slots(pkv_manager *manager,
                                      pkv_request request,
                                      const pkv_slots_args *args,
                                      pkv_slots *out);

/* The blocks of one group that the request's last pkv_allocate_slots newly allocated.
 * [reads manager | O(1)]
 *
 * block_ids  points into the manager; valid until the next call that mutates it.
 *
 * Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT (group). */
PKV_API pkv_status pkv_get_new_block_ids(const pkv_manager *manager,
                                         pkv_request request,
                                         int32_t group,
                                         const pkv_block_id **block_ids,
                                         int32_t *num_blocks);

/* After delayed caching, publish the full blocks of the first num_computed_tokens, which have run.
 * [mutates manager | O(blocks published) | all-or-nothing]
 *
 * Publishes untracked (step 0). Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT (more tokens than the
 * request has, or than its blocks hold). Source: vLLM V1 cache_blocks. */
PKV_API pkv_status pkv_cache_blocks(pkv_manager *manager,
                                    pkv_request request,
                                    int32_t num_computed_tokens);

/* Drop the blocks that no later token can see, given how many tokens are processed (not in flight).
 * [mutates manager | O(blocks dropped)]
 *
 * Null blocks take their place. Nothing happens in full-attention groups. Returns PKV_OK,
 * PKV_ERROR_INVALID_ARGUMENT. Source: vLLM V1 remove_skipped_blocks. */
PKV_API pkv_status pkv_remove_skipped_blocks(pkv_manager *manager,
                                             pkv_request request,
                                             int32_t num_processed_tokens);

/* Give back the request's blocks and row; the handle, its tokens and its keys stay. This is
 * preemption by recompute, and the end of a request before pkv_request_close.
 * [mutates manager | O(blocks held)]
 *
 * Published blocks stay findable, so a request that returns often hits its own prefix. That is
 * wrong for what it published in a step that has not run and will not: give steps numbers and call
 * pkv_unschedule first, or take victims that are not in the step yet. Returns
 * PKV_OK (also when it held nothing). Source: vLLM V1 free. */
PKV_API pkv_status pkv_free(pkv_manager *manager, pkv_request request);

/* ---- steps that can be undone (beyond vLLM V1) ----------------------------------------------- */

/* Free the request now, but keep its blocks from being handed out until `step` completes or fails,
 * because that step may still write or read them.
 * [mutates manager | O(blocks held) | all-or-nothing]
 *
 * A step that is complete already, or 0, makes it pkv_free. The row is free at once. Returns
 * PKV_OK, PKV_NO_FREE_ROWS (max_held_rows tables wait already: complete a step first). */
PKV_API pkv_status pkv_free_after(pkv_manager *manager, pkv_request request, uint64_t step);

/* Say that every step <= `step` has run: what they published is safe, what waited for them returns.
 * [mutates manager | O(blocks published and held by them)]
 *
 * Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT (step 0). */
PKV_API pkv_status pkv_step_complete(pkv_manager *manager, uint64_t step);

/* Say that every step >= `step` failed or was dropped: what they published is withdrawn (with
 * events), what waited for them returns.
 * [mutates manager | O(blocks published by them + blocks held by all requests)]
 *
 * Free the requests of the failed steps afterwards and admit them again: they hit exactly what is
 * valid. Step numbers may be used again from `step` on. Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT
 * (step 0, or complete already). */
PKV_API pkv_status pkv_step_fail(pkv_manager *manager, uint64_t step);

/* Withdraw what this request published in steps >= `step`, because it was taken out of them. Its
 * blocks stay with it; usually pkv_free follows. Call it before pkv_free: blocks that the request
 * no longer holds stay published.
 * [mutates manager | O(blocks held) | all-or-nothing]
 *
 * Returns PKV_OK, PKV_ERROR_BUSY (another request has hit one of these blocks: unschedule and free
 * that one first), PKV_ERROR_INVALID_ARGUMENT (step 0, or complete already). */
PKV_API pkv_status pkv_unschedule(pkv_manager *manager, pkv_request request, uint64_t step);

/* ---- the cache ------------------------------------------------------------------------------- */

/* Forget the keys of blocks, whoever holds them. [mutates manager | O(num_blocks + max_rows)]
 *
 * Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT (an id out of range). Source: vLLM V1 evict_blocks. */
PKV_API pkv_status pkv_evict_blocks(pkv_manager *manager,
                                    const pkv_block_id *block_ids,
                                    int32_t num_blocks);

/* Forget every key. [mutates manager | O(blocks)]
 *
 * Returns PKV_OK, PKV_ERROR_BUSY (blocks held, a swap open). Source: vLLM V1 reset_prefix_cache. */
PKV_API pkv_status pkv_reset_prefix_cache(pkv_manager *manager);

/* Count the leading blocks that every request with blocks shares, for cascade attention.
 * [reads manager | O(blocks counted), times rows while tables wait for a step or callers give keys]
 *
 * 0 in windowed groups and with disable_prefix_cache. Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT
 * (group). Source: vLLM V1 get_num_common_prefix_blocks. */
PKV_API pkv_status pkv_get_num_common_prefix_blocks(const pkv_manager *manager,
                                                    pkv_request request,
                                                    int32_t group,
                                                    int32_t *num_blocks);

/* ---- tables and batches ---------------------------------------------------------------------- */

/* The request's block table of one group in logical order. [reads manager | O(1)]
 *
 * block_ids  points into the manager; valid until the next call that mutates it. num_blocks 0 while
 *            the request holds nothing.
 *
 * Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT (group). */
PKV_API pkv_status pkv_get_block_table(const pkv_manager *manager,
                                       pkv_request request,
                                       int32_t group,
                                       const pkv_block_id **block_ids,
                                       int32_t *num_blocks);

/* Hand over the cells of one group's table that changed, for the copy on the device. Cells past a
 * row's end are not cleared: kernels read ceil(seq_len / block_size) cells only.
 *
 * The copy has max_rows + 1 rows, of which row 0 is all null blocks and never updated, and in a row
 * max_blocks_per_request columns, or what max_model_len needs where that is 0.
 * [mutates manager | O(max_rows + updates)]
 *
 * Returns PKV_OK, PKV_MORE (call again), PKV_ERROR_INVALID_ARGUMENT. */
PKV_API pkv_status pkv_take_table_updates(pkv_manager *manager,
                                          int32_t group,
                                          pkv_table_update *updates,
                                          int32_t capacity,
                                          int32_t *num_updates);

/* Mark every cell of every leased row as changed, for a rank that starts anew.
 * [mutates manager | O(max_rows)]  Returns PKV_OK. */
PKV_API pkv_status pkv_mark_tables_dirty(pkv_manager *manager);

/* What one request contributes to a batch: the tokens [num_computed_tokens,
 * num_computed_tokens + num_new_tokens). */
typedef struct pkv_batch_entry {
    pkv_request request;
    int32_t num_computed_tokens, num_new_tokens;
} pkv_batch_entry;

/* Fill a batch for one group, in the order of the entries, padded as it asks.
 * [reads manager | O(entries + tokens) | all-or-nothing]
 *
 * batch  arrays and capacities as batch.h says; NULL arrays are not filled.
 *
 * Returns PKV_OK, PKV_ERROR_LIMIT (an array too small; num_requests and num_tokens tell the need),
 * PKV_ERROR_INVALID_ARGUMENT (group, tokens without blocks, more tokens than the blocks hold),
 * PKV_ERROR_BUSY (copies of the group, or with zero_on_free fills, were not taken). */
PKV_API pkv_status pkv_batch_build(const pkv_manager *manager,
                                   int32_t group,
                                   const pkv_batch_entry *entries,
                                   int32_t num_entries,
                                   pkv_batch *batch);

/* Write a padded block table in entry order, as the kernels of vLLM and FlashAttention index it.
 * [reads manager | O(entries * row_stride) | all-or-nothing]
 *
 * table  [num_entries][row_stride]; cells past the blocks of num_computed_tokens + num_new_tokens
 *        get `fill`. Row i is entry i, and not the row that pkv_batch_build names: a kernel that
 *        follows batch rows over this table needs rows 0, 1, 2, …
 *
 * Returns PKV_OK, PKV_ERROR_LIMIT (row_stride too small), PKV_ERROR_INVALID_ARGUMENT,
 * PKV_ERROR_BUSY (as pkv_batch_build). */
PKV_API pkv_status pkv_export_padded(const pkv_manager *manager,
                                     int32_t group,
                                     const pkv_batch_entry *entries,
                                     int32_t num_entries,
                                     pkv_block_id *table,
                                     int64_t row_stride,
                                     pkv_block_id fill);

/* Write the tables as FlashInfer takes them: index pointers, indices, and the fill of the last
 * block. [reads manager | O(entries + indices) | all-or-nothing]
 *
 * skip_leading_null  leave out null blocks at the start (then a sequence is that many whole blocks
 *                    shorter for the kernel).
 * indptr         [num_entries + 1].   indices  [capacity].   last_page_len  [num_entries]; tokens
 *                in the last block, 0 for an entry without indices.
 * num_indices    always the whole need.
 *
 * Returns PKV_OK, PKV_ERROR_LIMIT (capacity), PKV_ERROR_INVALID_ARGUMENT, PKV_ERROR_BUSY. */
PKV_API pkv_status pkv_export_csr(const pkv_manager *manager,
                                  int32_t group,
                                  const pkv_batch_entry *entries,
                                  int32_t num_entries,
                                  bool skip_leading_null,
                                  int32_t *indptr,
                                  pkv_block_id *indices,
                                  int32_t capacity,
                                  int32_t *last_page_len,
                                  int32_t *num_indices);

/* Hand over the blocks of one group to be zeroed or poisoned before this step's writes (fill, then
 * copy, then write). [mutates manager | O(blocks listed)]
 *
 * Empty unless the configuration asks for fills. Returns PKV_OK, PKV_MORE,
 * PKV_ERROR_INVALID_ARGUMENT. */
PKV_API pkv_status pkv_take_fills(pkv_manager *manager,
                                  int32_t group,
                                  pkv_block_id *block_ids,
                                  int32_t capacity,
                                  int32_t *num_fills);

/* ---- events, statistics, self-check ---------------------------------------------------------- */

/* Hand over cache events, oldest first. [mutates manager | O(events taken)]
 *
 * num_dropped  may be NULL; events lost since the last call because the ring was full.
 *
 * Keys carry no group; the event does. Returns PKV_OK, PKV_MORE, PKV_ERROR_INVALID_ARGUMENT. */
PKV_API pkv_status pkv_take_events(pkv_manager *manager,
                                   pkv_event *events,
                                   int32_t capacity,
                                   int32_t *num_events,
                                   uint64_t *num_dropped);

/* Levels now, counters since creation. A slot is room for one token in one group. */
typedef struct pkv_stats {
    uint32_t struct_size;
    int32_t num_blocks, num_free_blocks, num_cached_blocks, num_distinct_keys;
    int32_t num_pending_blocks; /* held by pkv_free_after and open swaps only */
    int32_t num_requests;       /* open */
    int32_t num_rows;           /* leased */
    double usage;               /* 1 - free / (num_blocks - 1); cached but unused counts as free */
    /* Slots of blocks in use, by what they hold: */
    int64_t num_live_slots;     /* tokens that the requests' last steps have or will have written */
    int64_t num_reserved_slots; /* not written, and the request may still fill them */
    int64_t num_internal_slots; /* never to be filled: the rest of last blocks */
    int64_t num_external_slots; /* free but of no use to anybody: 0, since any block serves */
    /* Prefix cache, counted at admission; a request that was preempted counts as a resume: */
    uint64_t num_lookups, num_lookup_tokens, num_hit_tokens;
    uint64_t num_resumes, num_resume_tokens, num_resume_hit_tokens;
    /* Outcomes of pkv_allocate_slots: */
    uint64_t num_allocations, num_no_free_blocks, num_no_free_rows, num_never_fits;
    uint64_t num_frees; /* tables given back */
    uint64_t num_blocks_allocated, num_blocks_evicted;
    uint64_t num_keys_published, num_keys_withdrawn; /* withdrawn: by step_fail or unschedule */
    uint64_t num_collisions_rejected, num_index_slots_probed, num_events_dropped;
    uint64_t num_forks, num_copies, num_partial_hits, num_partial_hit_tokens; /* sharing.h */
} pkv_stats;

/* Read levels and counters.
 * [reads manager | O(max_rows + cells of held tables), where block sizes differ also O(num_blocks)]
 *
 * out->struct_size must be set. Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT. */
PKV_API pkv_status pkv_get_stats(const pkv_manager *manager, pkv_stats *out);

/* Write statistics in the Prometheus text format. [any thread | O(1)]
 *
 * labels  e.g. "engine=\"0\"", put between braces; NULL or "" for none.
 * buffer  [capacity] bytes, 0-terminated; size: bytes needed without the 0, always set.
 *
 * Returns PKV_OK, PKV_ERROR_LIMIT (capacity too small; the buffer holds a cut text),
 * PKV_ERROR_INVALID_ARGUMENT. */
PKV_API pkv_status pkv_format_prometheus(
    const pkv_stats *stats, const char *labels, char *buffer, size_t capacity, size_t *size);

/* Check every invariant of docs/invariants.md. [reads manager | O(everything)]
 *
 * Returns PKV_OK, PKV_ERROR_CORRUPT (pkv_manager_last_error names the invariant). */
PKV_API pkv_status pkv_manager_check(const pkv_manager *manager);

/* ---- sizing ---------------------------------------------------------------------------------- */

/* Device memory as an engine knows it after loading its weights. */
typedef struct pkv_memory_args {
    uint32_t struct_size;
    uint64_t total_bytes; /* of the device */
    double utilisation;   /* share of total_bytes to use; 0 = PKV_DEFAULT_UTILISATION */
    uint64_t used_bytes;  /* by others */
    uint64_t weight_bytes;
    uint64_t peak_activation_bytes;
    int32_t block_size;             /* 0 = PKV_DEFAULT_BLOCK_SIZE; for groups that name none */
    int32_t num_groups;             /* 0 = one full-attention group */
    const pkv_group_config *groups; /* [num_groups] */
    const uint64_t *block_bytes;    /* [max(num_groups, 1)] bytes of one block, all layers of the
                                       group; a block serves any group, so the largest decides */
    int32_t max_model_len;          /* wanted; 0 = whatever fits */
    int32_t max_in_flight_tokens;   /* of windowed groups; 0 = the sequence itself */
} pkv_memory_args;

typedef struct pkv_memory_plan {
    uint32_t struct_size;
    int32_t num_blocks;       /* for pkv_manager_config, null block included */
    int32_t max_model_len;    /* largest length of which one sequence fits */
    uint64_t block_bytes;     /* bytes of one block of the shared pool */
    uint64_t available_bytes; /* left for the cache */
    uint64_t missing_bytes;   /* with PKV_NEVER_FITS: how much more would do; 0 where no memory
                                 would, since PKV_MAX_BLOCKS are too few */
} pkv_memory_plan;

/* Compute how many blocks fit on a device, and how long a sequence they can hold: total *
 * utilisation - used - weights - peak activation, divided by the bytes of a block.
 * [any thread | O(groups * log length)]
 *
 * out  also filled with PKV_NEVER_FITS (nothing is left, or not even one sequence of
 *      args->max_model_len fits: out->max_model_len says what does).
 *
 * Returns PKV_OK, PKV_NEVER_FITS, PKV_ERROR_INVALID_ARGUMENT, PKV_ERROR_UNSUPPORTED. */
PKV_API pkv_status pkv_plan_memory(const pkv_memory_args *args, pkv_memory_plan *out);

#ifdef __cplusplus
}
#endif

#endif
