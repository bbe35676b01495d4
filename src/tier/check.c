/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The checker of a tier: its pool, its swaps and their flights, and what they pin. The references
 * to blocks of the manager are counted by pkv_manager_check (I11). It leaves everything as it
 * was. */
#include "tier/tier.h"

#define BROKEN(tier, ...) pkvi_fail((tier)->error, PKV_ERROR_CORRUPT, __VA_ARGS__)

/* T3 and T4 for one flight of an open swap. */
static pkv_status check_flight(const pkv_tier *tier, const struct pkvi_swap *swap, int32_t f) {
    const struct pkvi_flight *flight = &tier->flights[f];
    const pkv_manager *manager = tier->manager;
    const struct pkvi_block_state *block = &manager->pool->states[flight->block];
    const struct pkvi_block_state *slot = &tier->pool->states[flight->slot];

    if (!flight->is_open || flight->slot == PKV_NULL_BLOCK ||
        (swap->is_inward && flight->block == PKV_NULL_BLOCK)) {
        return BROKEN(tier, "T3: flight %d of an open swap is not open, or has no ends", f);
    }
    if (!swap->is_inward && flight->block != PKV_NULL_BLOCK &&
        (slot->is_keyed || slot->ref_cnt != 1 || slot->group != (uint32_t)flight->group)) {
        return BROKEN(tier, "T4: slot %d, a target, is keyed or has %u pins", flight->slot,
                      slot->ref_cnt);
    }
    if (swap->is_inward && (block->is_keyed || block->ref_cnt == 0)) {
        return BROKEN(tier, "T4: block %d, a target, is keyed or free", flight->block);
    }
    return PKV_OK;
}

/* T3: the list of a swap, forwards and backwards. */
static pkv_status check_swap(const pkv_tier *tier,
                             const struct pkvi_swap *swap,
                             int32_t *num_pins) {
    int32_t before = PKVI_NO_FLIGHT;
    int32_t count = 0;
    pkv_status status = PKV_OK;

    for (int32_t f = swap->first_flight; f != PKVI_NO_FLIGHT && status == PKV_OK;
         f = tier->flights[f].next) {
        if (f < 0 || f >= tier->max_flights || ++count > swap->num_flights ||
            tier->flights[f].previous != before) {
            return BROKEN(tier, "T3: the list of a swap is broken at flight %d", f);
        }
        status = check_flight(tier, swap, f);
        *num_pins +=
            tier->flights[f].block != PKV_NULL_BLOCK && (swap->is_inward || !swap->is_detached) ? 1
                                                                                                : 0;
        before = f;
    }
    if (status == PKV_OK && (count != swap->num_flights || before != swap->last_flight)) {
        return BROKEN(tier, "T3: a swap counts %d flights and has %d", swap->num_flights, count);
    }
    return status;
}

/* T3: open and free places add up. */
static pkv_status check_places(const pkv_tier *tier, int32_t num_open, int32_t num_flights) {
    int32_t num_free_swaps = 0;
    int32_t num_free_flights = 0;

    for (int32_t s = tier->first_free_swap; s >= 0 && num_free_swaps <= tier->max_swaps;
         s = tier->swaps[s].next_free) {
        num_free_swaps++;
    }
    for (int32_t f = tier->first_free_flight;
         f != PKVI_NO_FLIGHT && num_free_flights <= tier->max_flights; f = tier->flights[f].next) {
        if (tier->flights[f].is_open) {
            return BROKEN(tier, "T3: open flight %d is on the free list", f);
        }
        num_free_flights++;
    }
    if (num_open != tier->holder.num_open || num_open + num_free_swaps != tier->max_swaps ||
        num_flights != tier->num_flights || num_flights + num_free_flights != tier->max_flights) {
        return BROKEN(tier, "T3: swaps or flights do not add up");
    }
    return PKV_OK;
}

/* Add `delta` to the references of every slot that open swaps pin. */
static void count_slots(const pkv_tier *tier, int32_t delta) {
    for (int32_t s = 0; s < tier->max_swaps; s++) {
        const struct pkvi_swap *swap = &tier->swaps[s];

        if (!swap->is_open || (swap->is_inward && swap->is_detached)) {
            continue;
        }
        for (int32_t f = swap->first_flight; f != PKVI_NO_FLIGHT; f = tier->flights[f].next) {
            struct pkvi_block_state *state = &tier->pool->states[tier->flights[f].slot];
            state->ref_cnt = (state->ref_cnt + (uint32_t)delta) & (uint32_t)PKV_MAX_REF_CNT;
        }
    }
}

/* T2: taking away every pin leaves none; they are put back at once. */
static pkv_status check_pins(const pkv_tier *tier) {
    pkv_block_id culprit = PKV_NULL_BLOCK;

    count_slots(tier, -1);
    for (pkv_block_id slot = 1; slot < tier->pool->num_blocks; slot++) {
        culprit = tier->pool->states[slot].ref_cnt != 0 ? slot : culprit;
    }
    count_slots(tier, 1);
    return culprit == PKV_NULL_BLOCK
               ? PKV_OK
               : BROKEN(tier, "T2: slot %d has %u pins, which are not those of open swaps", culprit,
                        tier->pool->states[culprit].ref_cnt);
}

/* T5: `num_copies` flights copy out, and each is found from its block. */
static pkv_status check_flight_of(const pkv_tier *tier, int32_t num_copies) {
    int32_t count = 0;

    for (pkv_block_id block = 0; block < tier->manager->pool->num_blocks; block++) {
        for (int32_t f = tier->flight_of[block]; f != PKVI_NO_FLIGHT; f = tier->flights[f].older) {
            if (f < 0 || f >= tier->max_flights || !tier->flights[f].is_open ||
                tier->flights[f].block != block || ++count > num_copies) {
                return BROKEN(tier, "T5: block %d is said to be under way in flight %d", block, f);
            }
        }
    }
    return count == num_copies
               ? PKV_OK
               : BROKEN(tier, "T5: %d flights copy out, %d are found", num_copies, count);
}

static int32_t count_copies(const pkv_tier *tier, const struct pkvi_swap *swap) {
    int32_t count = 0;

    for (int32_t f = swap->first_flight; f != PKVI_NO_FLIGHT; f = tier->flights[f].next) {
        count += !swap->is_inward && tier->flights[f].block != PKV_NULL_BLOCK ? 1 : 0;
    }
    return count;
}

pkv_status pkv_tier_check(const pkv_tier *tier) {
    int32_t num_open = 0;
    int32_t num_flights = 0;
    int32_t num_pins = 0;
    int32_t num_copies = 0;
    pkv_status status;

    if (tier == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    status = pkvi_pool_check(tier->pool, tier->error);
    if (status == PKV_OK && tier->pool->stored_tokens == NULL &&
        tier->pool->index->num_distinct != tier->pool->index->num_keyed) {
        status = BROKEN(tier, "T1: two slots hold the same content");
    }
    for (int32_t s = 0; s < tier->max_swaps && status == PKV_OK; s++) {
        if (tier->swaps[s].is_open) {
            num_open++;
            num_flights += tier->swaps[s].num_flights;
            status = check_swap(tier, &tier->swaps[s], &num_pins);
            num_copies += status == PKV_OK ? count_copies(tier, &tier->swaps[s]) : 0;
        }
    }
    if (status == PKV_OK) {
        status = check_places(tier, num_open, num_flights);
    }
    if (status == PKV_OK && num_pins != tier->num_pins) {
        status = BROKEN(tier, "T2: %d blocks are pinned, %d are counted", num_pins, tier->num_pins);
    }
    if (status == PKV_OK) {
        status = check_pins(tier);
    }
    return status == PKV_OK ? check_flight_of(tier, num_copies) : status;
}
