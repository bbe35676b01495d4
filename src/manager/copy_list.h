/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The list of copies that wait to be taken by the caller: which block gets whose content. When a
 * copy is needed is decided by pkv_allocate_slots; nothing is copied here.
 *
 * The one idea: a pair holds a reference of its source, so no block that is to be read can be
 * handed out and become a target. With that and one pair a target, the pairs may run in
 * parallel. */
#ifndef PKVI_MANAGER_COPY_LIST_H
#define PKVI_MANAGER_COPY_LIST_H

#include "pool/pool.h"

/* I29: targets[0 .. num_pending) are distinct held blocks, none of them a source; source_of names a
 * held block for exactly these, and num_pins counts the pairs of a source. */
struct pkvi_copy_list {
    pkv_block_id *targets;   /* [num_blocks], in the order of queueing */
    pkv_block_id *source_of; /* [num_blocks]; PKV_NULL_BLOCK for what is no target */
    int32_t *num_pins;       /* [num_blocks]; references that pairs hold */
    int32_t num_pending;
};

void pkvi_copy_list_carve(struct pkvi_copy_list *list,
                          struct pkvi_carver *carver,
                          int32_t num_blocks);

/* Owners of a block, the pairs that will read it not counted. */
static inline int32_t pkvi_copy_list_num_owners(const struct pkvi_copy_list *list,
                                                const pkv_pool *pool,
                                                pkv_block_id block) {
    return (int32_t)pool->states[block].ref_cnt - list->num_pins[block];
}

/* Queue a pair. The caller's reference of `source`, which others hold, too, goes to the pair. A
 * source that is itself a target is read where its own content will come from. */
void pkvi_copy_list_add(struct pkvi_copy_list *list,
                        pkv_pool *pool,
                        pkv_block_id source,
                        pkv_block_id target);

/* After blocks were released: cancel the pairs whose target is nobody's any more. */
void pkvi_copy_list_cancel_freed(struct pkvi_copy_list *list, pkv_pool *pool);

/* Whether a pair of the group waits. */
bool pkvi_copy_list_has(const struct pkvi_copy_list *list, const pkv_pool *pool, int32_t group);

/* Hand over the pairs of a group in the order of queueing. Returns PKV_OK or PKV_MORE. */
pkv_status pkvi_copy_list_take(struct pkvi_copy_list *list,
                               pkv_pool *pool,
                               int32_t group,
                               pkv_block_copy *copies,
                               int32_t capacity,
                               int32_t *num_copies);

/* I29. */
pkv_status pkvi_copy_list_check(const struct pkvi_copy_list *list,
                                const pkv_pool *pool,
                                struct pkvi_error_text *error);

#endif
