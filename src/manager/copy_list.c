/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The list of copies; see copy_list.h. */
#include "manager/copy_list.h"

#include <string.h>

void pkvi_copy_list_carve(struct pkvi_copy_list *list,
                          struct pkvi_carver *carver,
                          int32_t num_blocks) {
    size_t count = (size_t)num_blocks;

    list->targets = pkvi_carve(carver, count, sizeof *list->targets);
    list->source_of = pkvi_carve(carver, count, sizeof *list->source_of);
    list->num_pins = pkvi_carve(carver, count, sizeof *list->num_pins);
    list->num_pending = 0;
    if (list->targets != NULL) {
        memset(list->source_of, 0, count * sizeof *list->source_of);
        memset(list->num_pins, 0, count * sizeof *list->num_pins);
    }
}

void pkvi_copy_list_add(struct pkvi_copy_list *list,
                        pkv_pool *pool,
                        pkv_block_id source,
                        pkv_block_id target) {
    pkv_block_id origin = list->source_of[source];

    PKV_ASSERT(list->source_of[target] == PKV_NULL_BLOCK && list->num_pins[target] == 0);
    if (origin == PKV_NULL_BLOCK) {
        origin = source;
    } else {
        pkvi_pool_touch_block(pool, origin);
        (void)pkvi_pool_release(pool, &source, 1, false);
    }
    list->source_of[target] = origin;
    list->num_pins[origin]++;
    list->targets[list->num_pending++] = target;
}

/* Take a pair out of what is known of its blocks; its place in the list is the caller's affair. */
static pkv_block_id end_pair(struct pkvi_copy_list *list, pkv_pool *pool, pkv_block_id target) {
    pkv_block_id source = list->source_of[target];

    list->source_of[target] = PKV_NULL_BLOCK;
    list->num_pins[source]--;
    (void)pkvi_pool_release(pool, &source, 1, false);
    return source;
}

void pkvi_copy_list_cancel_freed(struct pkvi_copy_list *list, pkv_pool *pool) {
    int32_t num_kept = 0;

    for (int32_t i = 0; i < list->num_pending; i++) {
        pkv_block_id target = list->targets[i];

        if (pool->states[target].ref_cnt == 0) {
            (void)end_pair(list, pool, target);
        } else {
            list->targets[num_kept++] = target;
        }
    }
    list->num_pending = num_kept;
}

bool pkvi_copy_list_has(const struct pkvi_copy_list *list, const pkv_pool *pool, int32_t group) {
    for (int32_t i = 0; i < list->num_pending; i++) {
        if (pool->states[list->targets[i]].group == (uint32_t)group) {
            return true;
        }
    }
    return false;
}

pkv_status pkvi_copy_list_take(struct pkvi_copy_list *list,
                               pkv_pool *pool,
                               int32_t group,
                               pkv_block_copy *copies,
                               int32_t capacity,
                               int32_t *num_copies) {
    int32_t num_kept = 0;
    int32_t num_taken = 0;
    pkv_status status = PKV_OK;

    for (int32_t i = 0; i < list->num_pending; i++) {
        pkv_block_id target = list->targets[i];
        bool is_ours = pool->states[target].group == (uint32_t)group;

        if (is_ours && num_taken < capacity) {
            copies[num_taken].source = end_pair(list, pool, target);
            copies[num_taken++].target = target;
            continue;
        }
        status = is_ours ? PKV_MORE : status;
        list->targets[num_kept++] = target;
    }
    list->num_pending = num_kept;
    *num_copies = num_taken;
    return status;
}

/* Whether taking away the pairs' pins leaves none; they are put back at once. */
static bool pins_add_up(const struct pkvi_copy_list *list, int32_t num_blocks) {
    bool adds_up = true;

    for (int32_t i = 0; i < list->num_pending; i++) {
        list->num_pins[list->source_of[list->targets[i]]]--;
    }
    for (pkv_block_id block = 0; block < num_blocks; block++) {
        adds_up = adds_up && list->num_pins[block] == 0;
    }
    for (int32_t i = 0; i < list->num_pending; i++) {
        list->num_pins[list->source_of[list->targets[i]]]++;
    }
    return adds_up;
}

pkv_status pkvi_copy_list_check(const struct pkvi_copy_list *list,
                                const pkv_pool *pool,
                                struct pkvi_error_text *error) {
    int32_t num_targets = 0;

    if (list->num_pending < 0 || list->num_pending >= pool->num_blocks) {
        return pkvi_fail(error, PKV_ERROR_CORRUPT, "I29: %d pending copies", list->num_pending);
    }
    for (pkv_block_id block = 0; block < pool->num_blocks; block++) {
        num_targets += list->source_of[block] != PKV_NULL_BLOCK ? 1 : 0;
    }
    for (int32_t i = 0; i < list->num_pending; i++) {
        pkv_block_id target = list->targets[i];
        pkv_block_id source;

        if (!pkvi_pool_has_block(pool, target) || target == PKV_NULL_BLOCK) {
            return pkvi_fail(error, PKV_ERROR_CORRUPT, "I29: block %d is a target", target);
        }
        source = list->source_of[target];
        if (!pkvi_pool_has_block(pool, source) || source == PKV_NULL_BLOCK ||
            list->source_of[source] != PKV_NULL_BLOCK || pool->states[source].ref_cnt == 0 ||
            pool->states[source].group != pool->states[target].group) {
            return pkvi_fail(error, PKV_ERROR_CORRUPT,
                             "I29: the source of block %d is no block, free, of another group, or "
                             "a target itself",
                             target);
        }
        if (pool->states[target].ref_cnt == 0 || list->num_pins[target] != 0) {
            return pkvi_fail(error, PKV_ERROR_CORRUPT, "I29: target %d is free, or a source",
                             target);
        }
    }
    if (num_targets != list->num_pending || !pins_add_up(list, pool->num_blocks)) {
        return pkvi_fail(error, PKV_ERROR_CORRUPT, "I29: targets or pins do not add up");
    }
    return PKV_OK;
}
