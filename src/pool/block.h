/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* What the pool knows of a block, split by who reads it together: the links of the free queue, the
 * state (references), the entry of the prefix index, and the links of the publication log. 56 bytes
 * a block; the two index slots of a block add 8. No behaviour is here.
 *
 * The one idea: a structure of arrays, so that handing out and freeing keyless blocks touches two
 * small arrays and no key.
 *
 * Invariants (numbers of docs/invariants.md):
 *   I3   in the free queue  <=>  ref_cnt == 0, for every block but block 0
 *   I4   is_keyed           <=>  in the prefix index under its group and key, once
 *   I19  in the publication log  =>  is_keyed */
#ifndef PKVI_POOL_BLOCK_H
#define PKVI_POOL_BLOCK_H

#include <pagedkv/pool.h>

/* A list link that points nowhere. Block 0 is the sentinel of every list, since it is in none. */
#define PKVI_NO_LINK (-1)

/* Neighbours in a circular list whose sentinel is index 0. Both PKVI_NO_LINK when in no list. */
struct pkvi_links {
    int32_t previous, next;
};

/* 8 bytes. `step_low` are the low 32 bits of the step that published the key, meaningful while the
 * block is in the publication log. */
struct pkvi_block_state {
    uint32_t ref_cnt : 23;
    uint32_t is_keyed : 1;
    uint32_t group : 8;
    uint32_t step_low;
};

/* 32 bytes, two to a cache line. `copies` links the blocks of equal group and key in a circle by
 * age; the index slot names the oldest, whose `previous` is therefore the youngest. */
struct pkvi_block_entry {
    pkv_block_key key;
    struct pkvi_links copies;
};

_Static_assert(sizeof(struct pkvi_links) == 8, "links are counted in the size of a block");
_Static_assert(sizeof(struct pkvi_block_state) == 8, "state is counted in the size of a block");
_Static_assert(sizeof(struct pkvi_block_entry) == 32, "two entries share a cache line");

static inline bool pkvi_key_equal(const pkv_block_key *a, const pkv_block_key *b) {
    return a->hash_low == b->hash_low && a->hash_high == b->hash_high && a->lineage == b->lineage;
}

#endif
