/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Slots, their index and their order of use; see file_slots.h. */
#include "transfer/file_slots.h"

#include <string.h>

static uint32_t bucket_of(const struct pkvi_slots *slots, int32_t group, const pkv_block_key *key) {
    uint64_t mixed = (key->hash_low ^ (uint64_t)(uint32_t)group) * UINT64_C(0x9e3779b97f4a7c15);

    return (uint32_t)(mixed >> 32) & (slots->num_buckets - 1);
}

void pkvi_slots_carve(struct pkvi_slots *slots, struct pkvi_carver *carver, int32_t num_slots) {
    slots->num_slots = num_slots;
    slots->num_buckets = 1;
    while (slots->num_buckets < (uint32_t)num_slots) {
        slots->num_buckets *= 2;
    }
    slots->slots = pkvi_carve(carver, (size_t)num_slots, sizeof *slots->slots);
    slots->buckets = pkvi_carve(carver, slots->num_buckets, sizeof *slots->buckets);
    slots->order = pkvi_carve(carver, (size_t)num_slots, sizeof *slots->order);
}

void pkvi_slots_reset(struct pkvi_slots *slots) {
    memset(slots->slots, 0, (size_t)slots->num_slots * sizeof *slots->slots);
    memset(slots->buckets, 0, slots->num_buckets * sizeof *slots->buckets);
    for (pkv_block_id slot = 0; slot < slots->num_slots; slot++) {
        slots->slots[slot].next = slot + 1 < slots->num_slots ? slot + 1 : 0;
        slots->slots[slot].previous = slot > 0 ? slot - 1 : slots->num_slots - 1;
    }
    slots->num_stored = 0;
    slots->last_sequence = 0;
}

static void unlink_slot(struct pkvi_slots *slots, pkv_block_id slot) {
    struct pkvi_slot *state = &slots->slots[slot];

    slots->slots[state->previous].next = state->next;
    slots->slots[state->next].previous = state->previous;
}

/* Put a slot between `before` and its successor. */
static void link_slot(struct pkvi_slots *slots, pkv_block_id slot, pkv_block_id before) {
    struct pkvi_slot *state = &slots->slots[slot];

    state->previous = before;
    state->next = slots->slots[before].next;
    slots->slots[state->next].previous = slot;
    slots->slots[before].next = slot;
}

void pkvi_slots_touch(struct pkvi_slots *slots, pkv_block_id slot) {
    unlink_slot(slots, slot);
    link_slot(slots, slot, slots->slots[0].previous);
}

void pkvi_slots_remove(struct pkvi_slots *slots, pkv_block_id slot) {
    struct pkvi_slot *state = &slots->slots[slot];
    pkv_block_id *link;

    if (!state->is_stored) {
        return;
    }
    link = &slots->buckets[bucket_of(slots, state->group, &state->key)];
    while (*link != slot) {
        link = &slots->slots[*link].chain;
    }
    *link = state->chain;
    state->is_stored = false;
    slots->num_stored--;
    unlink_slot(slots, slot);
    link_slot(slots, slot, 0);
}

void pkvi_slots_store(struct pkvi_slots *slots, const struct pkvi_file_entry *entry) {
    struct pkvi_slot *state = &slots->slots[entry->slot];
    pkv_block_id *bucket;

    pkvi_slots_remove(slots, entry->slot);
    state->key = entry->key;
    state->group = entry->group;
    state->num_tokens = entry->num_tokens;
    state->sequence = entry->sequence;
    memcpy(state->checksum, entry->checksum, sizeof state->checksum);
    state->is_stored = true;
    state->may_have_entry = true;
    bucket = &slots->buckets[bucket_of(slots, state->group, &state->key)];
    state->chain = *bucket;
    *bucket = entry->slot;
    slots->num_stored++;
    if (entry->sequence > slots->last_sequence) {
        slots->last_sequence = entry->sequence;
    }
    pkvi_slots_touch(slots, entry->slot);
}

pkv_block_id pkvi_slots_find(const struct pkvi_slots *slots,
                             int32_t group,
                             const pkv_block_key *key) {
    pkv_block_id best = 0;

    for (pkv_block_id slot = slots->buckets[bucket_of(slots, group, key)]; slot != 0;
         slot = slots->slots[slot].chain) {
        const struct pkvi_slot *state = &slots->slots[slot];

        if (state->group == group && state->key.hash_low == key->hash_low &&
            state->key.hash_high == key->hash_high && state->key.lineage == key->lineage &&
            (best == 0 || state->sequence > slots->slots[best].sequence)) {
            best = slot;
        }
    }
    return best;
}

/* Whether `a` is to be written before `b`. */
static bool is_before(const struct pkvi_slots *slots, pkv_block_id a, pkv_block_id b) {
    const struct pkvi_slot *left = &slots->slots[a], *right = &slots->slots[b];

    if (left->is_stored != right->is_stored) {
        return right->is_stored;
    }
    if (left->is_stored && left->sequence != right->sequence) {
        return left->sequence < right->sequence;
    }
    return a < b;
}

static void sift_down(const struct pkvi_slots *slots, int32_t start, int32_t count) {
    pkv_block_id *order = slots->order;
    int32_t at = start;

    for (;;) {
        int64_t child = 2 * (int64_t)at + 1;

        if (child >= count) {
            return;
        }
        if (child + 1 < count && is_before(slots, order[child], order[child + 1])) {
            child++;
        }
        if (!is_before(slots, order[at], order[child])) {
            return;
        }
        pkv_block_id moved = order[at];
        order[at] = order[child];
        order[child] = moved;
        at = (int32_t)child;
    }
}

void pkvi_slots_sort(struct pkvi_slots *slots) {
    int32_t count = slots->num_slots - 1;

    for (int32_t i = 0; i < count; i++) {
        slots->order[i] = i + 1;
    }
    for (int32_t i = count / 2; i-- > 0;) {
        sift_down(slots, i, count);
    }
    for (int32_t end = count - 1; end > 0; end--) {
        pkv_block_id largest = slots->order[0];

        slots->order[0] = slots->order[end];
        slots->order[end] = largest;
        sift_down(slots, 0, end);
    }
    for (int32_t i = 0; i < count; i++) {
        pkvi_slots_touch(slots, slots->order[i]);
    }
}
