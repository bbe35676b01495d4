/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The prefix index: from (group, key) to the blocks that carry it, oldest first. Open addressing in
 * a fixed array of twice as many slots as blocks; it never grows and never fails. It knows nothing
 * of reference counts or of the free queue.
 *
 * The one idea: a slot is 32 bits, the number of the oldest block in its low bits and, in the bits
 * that the number leaves over, how far the slot is from its home and a piece of the hash. So a probe
 * reads keys only of blocks that almost surely match, and a deletion can shift its followers back
 * without reading any key. */
#ifndef PKVI_POOL_PREFIX_INDEX_H
#define PKVI_POOL_PREFIX_INDEX_H

#include "base/memory.h"
#include "pool/block.h"

/* I4, I5: `slots` names the oldest block of each distinct (group, key); its circle of copies holds
 * the others by age. num_distinct counts used slots. */
struct pkvi_prefix_index {
    uint32_t *slots;
    uint32_t num_slots;
    uint32_t id_mask;        /* low bits: block number; 0 = empty slot */
    uint32_t distance_shift; /* next bits: distance from home, all ones = at least that many */
    uint32_t distance_mask;
    uint32_t tag_mask; /* the rest: a piece of the hash */
    struct pkvi_block_entry *entries;
    struct pkvi_block_state *states;
    const int32_t *stored_tokens; /* NULL, or [num_blocks][tokens_per_block] */
    int32_t tokens_per_block;
    int32_t *copy_counts; /* NULL, or how many blocks carry the key, kept at the oldest of them */
    int32_t num_distinct;
    int32_t num_keyed;
    uint64_t num_probes;              /* slots read by lookups, inserts and removals */
    uint64_t num_collisions_rejected; /* equal hash, other lineage or tokens */
};

/* What is looked for. */
struct pkvi_index_query {
    const pkv_block_key *keys;
    int32_t num_keys;
    int32_t key_stride; /* keys[i * key_stride] is the i-th: coarser groups skip some */
    int32_t group;
    const int32_t *token_ids; /* NULL, or [num_keys][num_tokens]: must be equal, too */
    int32_t num_tokens;       /* tokens in a block of the group */
};

/* Carve and clear the slots; `entries`, `states`, the token fields and `copy_counts` are set by the
 * caller. */
void pkvi_prefix_index_carve(struct pkvi_prefix_index *index,
                             struct pkvi_carver *carver,
                             int32_t num_blocks);

/* Find the oldest block of each key in order, up to the first miss; returns how many were found. */
int32_t pkvi_prefix_index_match(struct pkvi_prefix_index *index,
                                const struct pkvi_index_query *query,
                                pkv_block_id *hits);

/* Find the oldest block of one key, or PKV_NULL_BLOCK. `token_ids` NULL compares keys only. */
pkv_block_id pkvi_prefix_index_find(struct pkvi_prefix_index *index,
                                    int32_t group,
                                    const pkv_block_key *key,
                                    const int32_t *token_ids,
                                    int32_t num_tokens);

/* Read ahead for an insert, a find, or a removal of a block whose entry is set. */
void pkvi_prefix_index_prefetch(const struct pkvi_prefix_index *index,
                                int32_t group,
                                const pkv_block_key *key);

/* Add `block`, whose entry.key and state.group are set, as the youngest of its key. Returns how many
 * blocks carry the key now; 1 where copies are not counted. */
int32_t pkvi_prefix_index_insert(struct pkvi_prefix_index *index, pkv_block_id block);

/* Take `block` out and clear its key. Returns how many blocks still carry the key; 0 where copies
 * are not counted. */
int32_t pkvi_prefix_index_remove(struct pkvi_prefix_index *index, pkv_block_id block);

/* Forget everything. O(slots). */
void pkvi_prefix_index_clear(struct pkvi_prefix_index *index, int32_t num_blocks);

/* How many blocks share the key of `block`, itself included. O(copies). */
int32_t pkvi_prefix_index_num_copies(const struct pkvi_prefix_index *index, pkv_block_id block);

/* Check I4, I5, I6 from the slots' side. Returns NULL, or a text, with the block in `culprit`. */
const char *pkvi_prefix_index_check(const struct pkvi_prefix_index *index,
                                    int32_t num_blocks,
                                    pkv_block_id *culprit);

#endif
