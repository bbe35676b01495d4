/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The list of blocks that were handed out and whose old content is still to be zeroed or poisoned
 * by the caller. It fills nothing itself.
 *
 * The one idea: a block is listed at most once, however often it changes hands before the caller
 * takes the list, so the list cannot outgrow the pool. */
#ifndef PKVI_POOL_FILL_LIST_H
#define PKVI_POOL_FILL_LIST_H

#include "base/memory.h"
#include "pool/block.h"

/* I10: block_ids[0 .. num_listed) are distinct, and is_listed marks exactly these. */
struct pkvi_fill_list {
    pkv_block_id *block_ids;               /* in the order of listing; NULL when the list is off */
    unsigned char *is_listed;              /* a byte a block */
    const struct pkvi_block_state *states; /* a block belongs to the group of its last owner */
    int32_t num_listed;
};

/* Carve for `num_blocks` blocks, or for none when `is_on` is false. `states` is set by the
 * caller. */
void pkvi_fill_list_carve(struct pkvi_fill_list *list,
                          struct pkvi_carver *carver,
                          int32_t num_blocks,
                          bool is_on);

static inline void pkvi_fill_list_add(struct pkvi_fill_list *list, pkv_block_id block) {
    if (list->block_ids != NULL && list->is_listed[block] == 0) {
        list->is_listed[block] = 1;
        list->block_ids[list->num_listed++] = block;
    }
}

/* Whether any block of the group is listed. */
bool pkvi_fill_list_has(const struct pkvi_fill_list *list, int32_t group);

/* Hand over the group's blocks in the order of listing. Returns PKV_OK or PKV_MORE. */
pkv_status pkvi_fill_list_take(struct pkvi_fill_list *list,
                               int32_t group,
                               pkv_block_id *block_ids,
                               int32_t capacity,
                               int32_t *num_fills);

#endif
