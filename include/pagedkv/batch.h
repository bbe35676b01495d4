/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The joint of the two towers: the plain arrays and small values that the manager writes and the
 * attention kernels read. Nothing else crosses. No function here needs the library; no type here
 * owns memory.
 *
 * The one idea: a token's place in the cache is its slot = block id * block_size + offset, found
 * through the request's block table; everything else is derived from it. */
#ifndef PAGEDKV_BATCH_H
#define PAGEDKV_BATCH_H

#include <pagedkv/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Number of a physical block of the pool. Naked 32-bit integers, since kernels take them as
 * arrays. */
typedef int32_t pkv_block_id;

/* Block 0 stands for "no block here": readable, never written, never allocated, never freed. */
#define PKV_NULL_BLOCK ((pkv_block_id)0)

/* Row 0 of every block table holds null blocks only; padding of a captured graph points there. */
#define PKV_NULL_ROW 0

/* A slot that is not written: padding, or a position whose block is the null block. */
#define PKV_NO_SLOT ((int64_t)-1)

/* Identity of a full block's content together with its whole prefix. `hash_low` and `hash_high` are
 * the XXH3-128 chain, `lineage` the keyed SipHash-2-4 chain over the same input. Two blocks hold
 * the same content iff all three are equal (see docs/concepts.md for how sure that is). */
typedef struct pkv_block_key {
    uint64_t hash_low, hash_high, lineage;
} pkv_block_key;

/* Copy the content of block `source` to block `target`. The pairs of one list may run in parallel:
 * no block is a target twice, and none is both source and target. */
typedef struct pkv_block_copy {
    pkv_block_id source, target;
} pkv_block_copy;

/* Write `block_id` into the cell (row, column) of the device's block table of one group. */
typedef struct pkv_table_update {
    int32_t row, column;
    pkv_block_id block_id;
} pkv_table_update;

/* One step's batch, for one KV-cache group, in the order of the entries it was built from. The
 * caller owns the arrays and sets the four capacities; a NULL array is not wanted. With
 * `padded_requests` / `padded_tokens` above the real counts the arrays are filled up to them: null
 * row, length 0, query_start_loc = num_tokens, slot -1. Zero means no padding. */
typedef struct pkv_batch {
    uint32_t struct_size;
    int32_t num_requests;     /* out: entries of the batch, padding not counted */
    int32_t max_requests;     /* in: capacity of rows and seq_lens; query_start_loc has one more */
    int32_t num_tokens;       /* out: query tokens of the batch, padding not counted */
    int32_t max_tokens;       /* in: capacity of slot_mapping */
    int32_t padded_requests;  /* in: fill up to this many requests */
    int32_t padded_tokens;    /* in: fill up to this many tokens */
    int32_t *rows;            /* [max_requests]      block-table row of each request */
    int32_t *seq_lens;        /* [max_requests]      tokens in the cache after this step */
    int32_t *query_start_loc; /* [max_requests + 1]  prefix sum of query lengths */
    int64_t *slot_mapping;    /* [max_tokens]        slot of each query token; -1 is not written */
} pkv_batch;

/* Compute the slot of the token at `position` of a sequence.
 * [any thread | O(1) | no allocation]
 *
 * block_table  the sequence's block ids in logical order; at least position / block_size + 1 of
 * them.
 * block_size   tokens in a block, >= 1.   position >= 0.
 *
 * Returns block id * block_size + offset, so that number = slot / block_size and
 * offset = slot % block_size; PKV_NO_SLOT where the table holds the null block. */
static inline int64_t pkv_compute_slot(const pkv_block_id *block_table,
                                       int32_t block_size,
                                       int64_t position) {
    int64_t column = position / block_size;
    int64_t offset = position - column * block_size;
    int64_t block_id = block_table[column];

    return block_id == PKV_NULL_BLOCK ? PKV_NO_SLOT : block_id * block_size + offset;
}

#ifdef __cplusplus
}
#endif

#endif
