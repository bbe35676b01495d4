/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The prefix index: from (group, key) to the blocks that carry it, oldest first. Open addressing in
 * a fixed array of twice as many slots as blocks; it never grows and never fails. It knows nothing
 * of reference counts or of the free queue.
 *
 * The one idea: a slot is 32 bits, the number of the oldest block in its low bits and, in the bits
 * that the number leaves over, how far the slot is from its home and a piece of the hash. So a
 * probe reads keys only of blocks that almost surely match, and a deletion can shift its followers
 * back without reading any key. */
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

/* The tokens a block was published with, where the index has tokens. */
static inline const int32_t *pkvi_prefix_index_tokens(const struct pkvi_prefix_index *index,
                                                      pkv_block_id block) {
    return index->stored_tokens + (size_t)block * (size_t)index->tokens_per_block;
}

/* A walk over keys that lie in one array, or in equal pieces that `pieces` names in order. A group
 * whose blocks are coarser than a key takes every key_stride-th, starting with the last of the
 * first block; key_stride divides keys_per_piece. The tokens, where present, lie like the keys. */
struct pkvi_key_cursor {
    const pkv_block_key *keys;
    const int32_t *token_ids; /* NULL: compare keys only */
    const int32_t *pieces;    /* NULL: one piece, number 0 */
    int32_t keys_per_piece;
    int32_t tokens_per_key;
    int32_t key_stride;
    int32_t piece;  /* of the next key */
    int32_t offset; /* of the next key within its piece */
};

/* What is looked for: the next num_keys keys of the cursor, in one group. */
struct pkvi_index_query {
    struct pkvi_key_cursor cursor;
    int32_t num_keys;
    int32_t group;
};

static inline size_t pkvi_key_cursor_at(const struct pkvi_key_cursor *cursor) {
    int32_t number = cursor->pieces != NULL ? cursor->pieces[cursor->piece] : 0;

    return (size_t)number * (size_t)cursor->keys_per_piece + (size_t)cursor->offset;
}

static inline const pkv_block_key *pkvi_key_cursor_key(const struct pkvi_key_cursor *cursor) {
    return &cursor->keys[pkvi_key_cursor_at(cursor)];
}

/* Tokens of the whole block whose last key the cursor stands on; NULL when there are none. */
static inline const int32_t *pkvi_key_cursor_tokens(const struct pkvi_key_cursor *cursor) {
    size_t first_key = pkvi_key_cursor_at(cursor) - (size_t)(cursor->key_stride - 1);

    return cursor->token_ids == NULL
               ? NULL
               : &cursor->token_ids[first_key * (size_t)cursor->tokens_per_key];
}

/* How many of the next keys lie together, key_stride apart; at least one. */
static inline int32_t pkvi_key_cursor_together(const struct pkvi_key_cursor *cursor) {
    return cursor->pieces == NULL
               ? INT32_MAX
               : (cursor->keys_per_piece - 1 - cursor->offset) / cursor->key_stride + 1;
}

/* Go on by `count` keys, no further than the first key of the next piece. */
static inline void pkvi_key_cursor_skip(struct pkvi_key_cursor *cursor, int32_t count) {
    cursor->offset += count * cursor->key_stride;
    if (cursor->pieces != NULL && cursor->offset >= cursor->keys_per_piece) {
        cursor->offset -= cursor->keys_per_piece;
        cursor->piece++;
    }
}

static inline void pkvi_key_cursor_advance(struct pkvi_key_cursor *cursor) {
    pkvi_key_cursor_skip(cursor, 1);
}

/* Where the probe for a key starts, and its piece of hash in its place within a slot. */
struct pkvi_index_home {
    uint32_t slot;
    uint32_t tag;
};

/* Keys may come from the caller and need not be well mixed; two multiplications make them so. The
 * lineage stays out: keys that differ only there must meet, to be counted as a collision. */
static inline struct pkvi_index_home pkvi_prefix_index_home(const struct pkvi_prefix_index *index,
                                                            int32_t group,
                                                            const pkv_block_key *key) {
    uint64_t mixed = key->hash_low ^ (uint64_t)group * 0x9e3779b97f4a7c15u;
    struct pkvi_index_home home;

    mixed = (mixed ^ (key->hash_high << 32 | key->hash_high >> 32)) * 0xd6e8feb86659fd93u;
    mixed = (mixed ^ mixed >> 32) * 0xd6e8feb86659fd93u;
    home.slot = (uint32_t)((mixed >> 32) * index->num_slots >> 32);
    home.tag = (uint32_t)mixed & index->tag_mask;
    return home;
}

/* The same, reading ahead what an insert, a find or a removal will touch. */
static inline struct pkvi_index_home pkvi_prefix_index_approach(
    const struct pkvi_prefix_index *index, int32_t group, const pkv_block_key *key) {
    struct pkvi_index_home home = pkvi_prefix_index_home(index, group, key);

    PKVI_PREFETCH(&index->slots[home.slot]);
    return home;
}

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

/* The same for a key whose home is known. */
pkv_block_id pkvi_prefix_index_find_at(struct pkvi_prefix_index *index,
                                       int32_t group,
                                       const pkv_block_key *key,
                                       struct pkvi_index_home home,
                                       const int32_t *token_ids,
                                       int32_t num_tokens);

/* Add `block`, whose entry.key and state.group are set and have that home, as the youngest of its
 * key. Returns how many blocks carry the key now; 1 where copies are not counted. */
int32_t pkvi_prefix_index_insert(struct pkvi_prefix_index *index,
                                 pkv_block_id block,
                                 struct pkvi_index_home home);

/* Take `block`, whose key has that home, out and clear its key. Returns how many blocks still carry
 * the key; 0 where copies are not counted. */
int32_t pkvi_prefix_index_remove(struct pkvi_prefix_index *index,
                                 pkv_block_id block,
                                 struct pkvi_index_home home);

/* Forget everything. O(slots). */
void pkvi_prefix_index_clear(struct pkvi_prefix_index *index, int32_t num_blocks);

/* How many blocks share the key of `block`, itself included. O(copies). */
int32_t pkvi_prefix_index_num_copies(const struct pkvi_prefix_index *index, pkv_block_id block);

/* Check I4, I5, I6 from the slots' side. Returns NULL, or a text, with the block in `culprit`. */
const char *pkvi_prefix_index_check(const struct pkvi_prefix_index *index,
                                    int32_t num_blocks,
                                    pkv_block_id *culprit);

#endif
