/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The free queue: an intrusive, circular, doubly linked list of block numbers whose order is the
 * order of eviction. It knows nothing of keys or reference counts.
 *
 * The one idea: block 0 is never free, so it serves as the sentinel; no operation has a branch for
 * an empty queue, and a hit leaves the middle in O(1). */
#ifndef PKVI_POOL_FREE_QUEUE_H
#define PKVI_POOL_FREE_QUEUE_H

#include "base/check.h"
#include "pool/block.h"

/* `links` has an element for every block. num_free equals the length of the circle without 0. */
struct pkvi_free_queue {
    struct pkvi_links *links;
    int32_t num_free;
};

/* Fill the queue with 1, 2, …, num_blocks - 1. */
void pkvi_free_queue_init(struct pkvi_free_queue *queue,
                          struct pkvi_links *links,
                          int32_t num_blocks);

static inline bool pkvi_free_queue_contains(const struct pkvi_free_queue *queue,
                                            pkv_block_id block) {
    return queue->links[block].next != PKVI_NO_LINK;
}

/* Take the first `count` blocks out, head first. The caller has checked that there are so many. */
static inline void pkvi_free_queue_pop(struct pkvi_free_queue *queue,
                                       int32_t count,
                                       pkv_block_id *out) {
    struct pkvi_links *links = queue->links;
    pkv_block_id block = links[0].next;

    PKV_ASSERT(count <= queue->num_free);
    for (int32_t i = 0; i < count; i++) {
        pkv_block_id next = links[block].next;

        out[i] = block;
        links[block].previous = PKVI_NO_LINK;
        links[block].next = PKVI_NO_LINK;
        block = next;
    }
    links[0].next = block;
    links[block].previous = 0;
    queue->num_free -= count;
}

/* Take one block out of wherever it stands. */
static inline void pkvi_free_queue_remove(struct pkvi_free_queue *queue, pkv_block_id block) {
    struct pkvi_links *links = queue->links;
    struct pkvi_links own = links[block];

    PKV_ASSERT(own.next != PKVI_NO_LINK);
    links[own.previous].next = own.next;
    links[own.next].previous = own.previous;
    links[block].previous = PKVI_NO_LINK;
    links[block].next = PKVI_NO_LINK;
    queue->num_free--;
}

/* Make one block the last. */
static inline void pkvi_free_queue_append(struct pkvi_free_queue *queue, pkv_block_id block) {
    struct pkvi_links *links = queue->links;
    pkv_block_id last = links[0].previous;

    PKV_ASSERT(links[block].next == PKVI_NO_LINK);
    links[block].previous = last;
    links[block].next = 0;
    links[last].next = block;
    links[0].previous = block;
    queue->num_free++;
}

/* Blocks on their way to the head, linked among themselves in the order of joining. */
struct pkvi_free_chain {
    pkv_block_id first, last; /* 0 while empty */
    int32_t num_blocks;
};

static inline void pkvi_free_chain_join(struct pkvi_free_queue *queue,
                                        struct pkvi_free_chain *chain,
                                        pkv_block_id block) {
    struct pkvi_links *links = queue->links;

    PKV_ASSERT(links[block].next == PKVI_NO_LINK);
    if (chain->num_blocks++ == 0) {
        chain->first = block;
    } else {
        links[chain->last].next = block;
    }
    links[block].previous = chain->last;
    links[block].next = 0;
    chain->last = block;
}

/* Put a whole chain in front of the queue, its first block first. */
static inline void pkvi_free_queue_prepend(struct pkvi_free_queue *queue,
                                           const struct pkvi_free_chain *chain) {
    struct pkvi_links *links = queue->links;

    if (chain->num_blocks > 0) {
        links[chain->last].next = links[0].next;
        links[links[0].next].previous = chain->last;
        links[0].next = chain->first;
        queue->num_free += chain->num_blocks;
    }
}

#endif
