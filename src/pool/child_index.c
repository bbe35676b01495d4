/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Buckets of doubly linked blocks; see child_index.h. */
#include "pool/child_index.h"

#include <string.h>

void pkvi_child_index_carve(struct pkvi_child_index *index,
                            struct pkvi_carver *carver,
                            int32_t num_blocks) {
    size_t count = (size_t)num_blocks;

    index->heads = pkvi_carve(carver, count, sizeof *index->heads);
    index->links = pkvi_carve(carver, count, sizeof *index->links);
    index->parents = pkvi_carve(carver, count, sizeof *index->parents);
    index->num_blocks = num_blocks;
    index->num_added = 0;
    if (index->heads != NULL) {
        memset(index->parents, 0, count * sizeof *index->parents);
        pkvi_child_index_clear(index);
    }
}

uint32_t pkvi_child_index_hash(int32_t group, const pkv_block_key *parent) {
    uint64_t mixed = (uint64_t)group * 0x9e3779b97f4a7c15u + 1;

    if (parent != NULL) {
        mixed = (mixed ^ parent->hash_low) * 0xd6e8feb86659fd93u;
        mixed = (mixed ^ mixed >> 32 ^ parent->hash_high) * 0xd6e8feb86659fd93u;
        mixed = mixed ^ mixed >> 32 ^ parent->lineage;
    }
    mixed *= 0xd6e8feb86659fd93u;
    return (uint32_t)(mixed >> 32);
}

static inline pkv_block_id *head_of(const struct pkvi_child_index *index, uint32_t hash) {
    return &index->heads[(uint64_t)hash * (uint32_t)index->num_blocks >> 32];
}

static inline bool is_linked(const struct pkvi_child_index *index, pkv_block_id block) {
    return index->links[block].next != PKVI_NO_LINK;
}

void pkvi_child_index_add(struct pkvi_child_index *index, pkv_block_id block) {
    pkv_block_id *head = head_of(index, index->parents[block]);

    PKV_ASSERT(block != PKV_NULL_BLOCK && !is_linked(index, block));
    index->links[block] = (struct pkvi_links){PKV_NULL_BLOCK, *head};
    if (*head != PKV_NULL_BLOCK) {
        index->links[*head].previous = block;
    }
    *head = block;
    index->num_added++;
}

void pkvi_child_index_add_completed(struct pkvi_child_index *index,
                                    const struct pkvi_publish_log *log,
                                    uint64_t step) {
    for (pkv_block_id block = log->links[0].next;
         block != PKV_NULL_BLOCK && pkvi_publish_log_step(log, block) <= step;
         block = log->links[block].next) {
        pkvi_child_index_add(index, block);
    }
}

void pkvi_child_index_remove(struct pkvi_child_index *index, pkv_block_id block) {
    struct pkvi_links own = index->links[block];

    if (own.next == PKVI_NO_LINK) {
        return;
    }
    if (own.previous != PKV_NULL_BLOCK) {
        index->links[own.previous].next = own.next;
    } else {
        *head_of(index, index->parents[block]) = own.next;
    }
    if (own.next != PKV_NULL_BLOCK) {
        index->links[own.next].previous = own.previous;
    }
    index->links[block] = (struct pkvi_links){PKVI_NO_LINK, PKVI_NO_LINK};
}

void pkvi_child_index_clear(struct pkvi_child_index *index) {
    for (pkv_block_id block = 0; block < index->num_blocks; block++) {
        index->heads[block] = PKV_NULL_BLOCK;
        index->links[block] = (struct pkvi_links){PKVI_NO_LINK, PKVI_NO_LINK};
    }
}

int32_t pkvi_child_index_find(const struct pkvi_child_index *index,
                              uint32_t hash,
                              pkv_block_id *children,
                              int32_t capacity) {
    pkv_block_id block = *head_of(index, hash);
    int32_t count = 0;

    for (int32_t i = 0; block != PKV_NULL_BLOCK && count < capacity && i < 8 * capacity; i++) {
        if (index->parents[block] == hash) {
            children[count++] = block;
        }
        block = index->links[block].next;
    }
    return count;
}

/* Walk one list; returns how many blocks are in it, or -1. */
static int32_t check_list(const struct pkvi_child_index *index,
                          const struct pkvi_publish_log *log,
                          pkv_block_id *head,
                          pkv_block_id *culprit) {
    pkv_block_id previous = PKV_NULL_BLOCK;
    int32_t count = 0;

    for (pkv_block_id block = *head; block != PKV_NULL_BLOCK; block = index->links[block].next) {
        *culprit = block;
        if (block < 0 || block >= index->num_blocks || ++count >= index->num_blocks ||
            index->links[block].previous != previous ||
            head_of(index, index->parents[block]) != head || !log->states[block].is_keyed ||
            pkvi_publish_log_step(log, block) != 0) {
            return -1;
        }
        previous = block;
    }
    return count;
}

const char *pkvi_child_index_check(const struct pkvi_child_index *index,
                                   const struct pkvi_publish_log *log,
                                   pkv_block_id *culprit) {
    int32_t num_listed = 0;
    int32_t num_linked = 0;

    for (int32_t i = 0; i < index->num_blocks; i++) {
        int32_t count = check_list(index, log, &index->heads[i], culprit);
        if (count < 0) {
            return "I31: a child is without key, of a step that may fail, or in a broken list";
        }
        num_listed += count;
        num_linked += is_linked(index, i) ? 1 : 0;
    }
    *culprit = PKV_NULL_BLOCK;
    return num_listed == num_linked ? NULL : "I31: a child is in no list";
}
