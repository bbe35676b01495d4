/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The measured situations of bench_manager: each is set up once and then run for a short while,
 * again and again, so that rounds of different cases can be interleaved.
 *
 * The one idea: a case returns nanoseconds per unit of its own work, and says nothing of peers. */
#ifndef PKV_BENCH_MANAGER_CASES_H
#define PKV_BENCH_MANAGER_CASES_H

#include <pagedkv.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- pool ------------------------------------------------------------------------------------ */

/* A pool and the buffers to cycle blocks through it. */
typedef struct pool_case {
    pkv_pool *pool;
    int32_t num_blocks;
    int32_t batch;
    int32_t repeats;
    pkv_block_id *block_ids; /* [num_blocks] */
    pkv_block_key *keys;     /* [num_blocks] for the evicting case, else NULL */
    int32_t next_key;
    uint64_t key_round;
    int32_t next_hit; /* where the touching case stands in block_ids */
} pool_case;

/* Start states of a pool. */
typedef enum pool_case_kind {
    POOL_KEYLESS = 0,     /* nothing cached: every free goes to the head, warm */
    POOL_LRU = 1,         /* every block cached and free, eviction order shuffled over memory */
    POOL_LRU_IN_ORDER = 2 /* the same, eviction order by number */
} pool_case_kind;

bool pool_case_create(pool_case *state, int32_t num_blocks, int32_t batch, pool_case_kind kind);
void pool_case_destroy(pool_case *state);

/* Get and free `batch` keyless blocks, `repeats` times; ns a block. */
double pool_case_cycle(pool_case *state);

/* Evict, publish anew and free `batch` blocks in LRU order, `repeats` times; ns a block. With
 * `timed_publish` false the publication is done but not timed. */
double pool_case_evict(pool_case *state, bool timed_publish);

/* Touch and free `batch` cached blocks from the middle of the queue, `repeats` times; ns a
 * block. */
double pool_case_touch(pool_case *state);

/* ---- manager --------------------------------------------------------------------------------- */

/* A manager with running requests. */
typedef struct decode_case {
    pkv_manager *manager;
    int32_t num_requests;
    int32_t context;
    int32_t block_size;
    pkv_request *requests;
    pkv_batch_entry *entries;
    pkv_batch batch;
    pkv_slots_args *args;
    pkv_block_id *table; /* [num_requests][columns]: what the memcpy peer copies into */
    pkv_block_id *table_from;
    int64_t num_cells;
} decode_case;

bool decode_case_create(decode_case *state,
                        int32_t num_requests,
                        int32_t context,
                        int32_t block_size,
                        bool disable_prefix_cache);
void decode_case_destroy(decode_case *state);

/* One decode step of every request at the same token counts, so that no block is needed; ns a
 * request. `with_batch` adds pkv_batch_build, `with_append` a token. */
double decode_case_allocate(decode_case *state);
double decode_case_step(decode_case *state);
double decode_case_append(decode_case *state);

/* memcpy of the block table that the batch describes; ns a request. */
double decode_case_memcpy(decode_case *state);

/* Prompts that are cached whole. */
typedef struct lookup_case {
    pkv_manager *manager;
    int32_t num_tokens;
    int32_t *tokens;
    pkv_block_key *keys; /* [num_tokens / block_size] */
    int32_t block_size;
    pkv_request readers[2]; /* of equal prompts, so that no lookup is the one just remembered */
    int32_t turn;
    int32_t num_hits;
} lookup_case;

bool lookup_case_create(lookup_case *state,
                        int32_t num_tokens,
                        int32_t block_size,
                        bool store_tokens);
void lookup_case_destroy(lookup_case *state);

/* pkv_get_computed_blocks with keys known; ns. */
double lookup_case_known(lookup_case *state);

/* Open (both hash chains), look up, close; ns. */
double lookup_case_hashed(lookup_case *state);

/* Both hash chains over the same tokens, and nothing else; ns. */
double lookup_case_keys(lookup_case *state);

/* A pool full of cached blocks, and ever new prompts. */
typedef struct prefill_case {
    pkv_manager *manager;
    int32_t num_tokens;
    int32_t *tokens;
    int32_t next_token;
    int32_t num_hits;
} prefill_case;

bool prefill_case_create(prefill_case *state, int32_t num_tokens, int32_t block_size);
void prefill_case_destroy(prefill_case *state);

/* pkv_allocate_slots of one whole prompt (evict, allocate, publish); ns. */
double prefill_case_allocate(prefill_case *state);

/* The whole life of one prompt: open (both hash chains), look up, allocate, close; ns. */
double prefill_case_whole(prefill_case *state);

#endif
