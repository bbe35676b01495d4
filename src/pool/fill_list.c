/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The list of blocks to fill; see fill_list.h. */
#include "pool/fill_list.h"

#include <string.h>

void pkvi_fill_list_carve(struct pkvi_fill_list *list,
                          struct pkvi_carver *carver,
                          int32_t num_blocks,
                          bool is_on) {
    size_t count = is_on ? (size_t)num_blocks : 0;

    memset(list, 0, sizeof *list);
    list->block_ids = pkvi_carve(carver, count, sizeof *list->block_ids);
    list->is_listed = pkvi_carve(carver, count, sizeof *list->is_listed);
    if (!is_on) {
        list->block_ids = NULL;
        list->is_listed = NULL;
    } else if (list->is_listed != NULL) {
        memset(list->is_listed, 0, count);
    }
}

bool pkvi_fill_list_has(const struct pkvi_fill_list *list, int32_t group) {
    for (int32_t i = 0; i < list->num_listed; i++) {
        if (list->states[list->block_ids[i]].group == (uint32_t)group) {
            return true;
        }
    }
    return false;
}

pkv_status pkvi_fill_list_take(struct pkvi_fill_list *list,
                               int32_t group,
                               pkv_block_id *block_ids,
                               int32_t capacity,
                               int32_t *num_fills) {
    int32_t num_kept = 0;
    int32_t num_taken = 0;
    pkv_status status = PKV_OK;

    for (int32_t i = 0; i < list->num_listed; i++) {
        pkv_block_id block = list->block_ids[i];
        bool is_ours = list->states[block].group == (uint32_t)group;

        if (is_ours && num_taken < capacity) {
            block_ids[num_taken++] = block;
            list->is_listed[block] = 0;
            continue;
        }
        status = is_ours ? PKV_MORE : status;
        list->block_ids[num_kept++] = block;
    }
    list->num_listed = num_kept;
    *num_fills = num_taken;
    return status;
}
