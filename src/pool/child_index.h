/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The child index: from the key of a block to the keyed blocks that continue it, youngest first.
 * Only blocks whose content is known to be computed are in it, since rows are copied from them. It
 * compares no tokens and verifies nothing.
 *
 * The one idea: a list may name a wrong block, as two parents can have one hash; who asks computes
 * the key of what it found, which has to be done anyway. So 16 bytes a block do. */
#ifndef PKVI_POOL_CHILD_INDEX_H
#define PKVI_POOL_CHILD_INDEX_H

#include "base/memory.h"
#include "pool/publish_log.h"

/* I31: a block that is linked is keyed, in no step that may fail, and in the list of its parent's
 * bucket. The lists end with block 0. */
struct pkvi_child_index {
    pkv_block_id *heads;      /* [num_blocks] buckets; PKV_NULL_BLOCK: empty */
    struct pkvi_links *links; /* [num_blocks]; PKVI_NO_LINK in a block that is not linked */
    uint32_t *parents;        /* [num_blocks] hash of the parent's key */
    int32_t num_blocks;       /* 0: nobody asks for children */
    uint64_t num_added;       /* ever; tells whether a lookup might find more */
};

void pkvi_child_index_carve(struct pkvi_child_index *index,
                            struct pkvi_carver *carver,
                            int32_t num_blocks);

static inline bool pkvi_child_index_is_on(const struct pkvi_child_index *index) {
    return index->num_blocks > 0;
}

/* What a parent's children in one group are listed under; NULL is the start of a sequence. */
uint32_t pkvi_child_index_hash(int32_t group, const pkv_block_key *parent);

/* Say whose child a block is, when its key is published. It is not listed before its content is
 * there. */
static inline void pkvi_child_index_note(struct pkvi_child_index *index,
                                         pkv_block_id block,
                                         uint32_t hash) {
    index->parents[block] = hash;
}

/* List a block that is not listed, as the youngest. */
void pkvi_child_index_add(struct pkvi_child_index *index, pkv_block_id block);

/* List what the steps <= `step` published, in that order; the log is told later. */
void pkvi_child_index_add_completed(struct pkvi_child_index *index,
                                    const struct pkvi_publish_log *log,
                                    uint64_t step);

/* Take a block out, if it is in. */
void pkvi_child_index_remove(struct pkvi_child_index *index, pkv_block_id block);

/* Forget everything. O(blocks). */
void pkvi_child_index_clear(struct pkvi_child_index *index);

/* Write up to `capacity` of the blocks that are listed under `hash`, youngest first, looking at no
 * more than 8 * capacity blocks. Returns how many. */
int32_t pkvi_child_index_find(const struct pkvi_child_index *index,
                              uint32_t hash,
                              pkv_block_id *children,
                              int32_t capacity);

/* I31. Returns NULL, or a text, with the block in `culprit`. */
const char *pkvi_child_index_check(const struct pkvi_child_index *index,
                                   const struct pkvi_publish_log *log,
                                   pkv_block_id *culprit);

#endif
