/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Ordinals of keys, and event lines; see the header. */
#include "trace_events.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static struct key_ordinal *allocate_slots(size_t num_slots) {
    struct key_ordinal *slots = conformance_allocate(num_slots, sizeof(struct key_ordinal));

    for (size_t i = 0; i < num_slots; i++) {
        slots[i].ordinal = -1;
    }
    return slots;
}

void trace_events_init(struct trace_events *events, int32_t capacity) {
    memset(events, 0, sizeof *events);
    events->num_slots = 1024;
    events->slots = allocate_slots(events->num_slots);
    events->capacity = capacity;
    events->events = conformance_allocate((size_t)capacity, sizeof(pkv_event));
}

void trace_events_free(struct trace_events *events) {
    free(events->slots);
    free(events->events);
}

/* ---- ordinals -------------------------------------------------------------------------------- */

static bool keys_are_equal(const pkv_block_key *left, const pkv_block_key *right) {
    return left->hash_low == right->hash_low && left->hash_high == right->hash_high &&
           left->lineage == right->lineage;
}

/* The slot that holds the key, or the empty one where it belongs. The hash is mixed already. */
static struct key_ordinal *find_slot(const struct trace_events *events, const pkv_block_key *key) {
    size_t index = (size_t)key->hash_low & (events->num_slots - 1);

    while (events->slots[index].ordinal >= 0 && !keys_are_equal(&events->slots[index].key, key)) {
        index = (index + 1) & (events->num_slots - 1);
    }
    return &events->slots[index];
}

static void grow(struct trace_events *events) {
    struct key_ordinal *old_slots = events->slots;
    size_t num_old_slots = events->num_slots;

    events->num_slots *= 2;
    events->slots = allocate_slots(events->num_slots);
    for (size_t i = 0; i < num_old_slots; i++) {
        if (old_slots[i].ordinal >= 0) {
            *find_slot(events, &old_slots[i].key) = old_slots[i];
        }
    }
    free(old_slots);
}

static int32_t ordinal_of(struct trace_events *events, const pkv_block_key *key) {
    if (2 * (size_t)events->num_keys >= events->num_slots) {
        grow(events);
    }
    struct key_ordinal *slot = find_slot(events, key);
    if (slot->ordinal < 0) {
        slot->key = *key;
        slot->ordinal = events->num_keys++;
    }
    return slot->ordinal;
}

/* ---- lines ----------------------------------------------------------------------------------- */

/* Write the line of one call that stored blocks; returns how many events it was. */
static int32_t write_stored(struct trace_events *events,
                            const pkv_event *first,
                            int32_t num_left,
                            struct text *line) {
    int32_t num_events = 0;
    int32_t num_keys = 0;

    while (num_events < num_left && first[num_events].type == PKV_EVENT_BLOCK_STORED &&
           first[num_events].call_index == first->call_index) {
        num_keys += first[num_events].num_keys;
        num_events++;
    }
    int32_t parent = first->has_parent ? ordinal_of(events, &first->parent_key) : -1;
    text_add(line, "e stored %" PRId32 " %" PRId32 " %" PRId32 " %" PRId32, first->group, parent,
             first->num_tokens, num_keys);
    for (int32_t i = 0; i < num_events; i++) {
        if (first[i].num_keys > 0) {
            text_add(line, " %" PRId32, ordinal_of(events, &first[i].key));
        }
    }
    return num_events;
}

static int32_t write_line(struct trace_events *events,
                          const pkv_event *first,
                          int32_t num_left,
                          struct text *line) {
    text_clear(line);
    switch (first->type) {
    case PKV_EVENT_BLOCK_STORED:
        return write_stored(events, first, num_left, line);
    case PKV_EVENT_BLOCK_REMOVED:
        text_add(line, "e removed %" PRId32 " 1 %" PRId32, first->group,
                 ordinal_of(events, &first->key));
        return 1;
    case PKV_EVENT_ALL_BLOCKS_CLEARED:
        text_add(line, "e cleared");
        return 1;
    default:
        text_add(line, "e (unknown type %d)", (int)first->type);
        return 1;
    }
}

void trace_events_expect(struct trace_events *events, struct replay *replay) {
    int32_t num_events = 0;
    uint64_t num_dropped = 0;
    pkv_status status = pkv_take_events(replay->manager, events->events, events->capacity,
                                        &num_events, &num_dropped);

    if (status != PKV_OK) {
        replay_report_status(replay, "pkv_take_events", status);
    }
    if (num_dropped > 0) {
        replay_report(replay, "(no dropped events)", "dropped events");
    }
    for (int32_t i = 0; i < num_events;) {
        i += write_line(events, &events->events[i], num_events - i, &replay->actual);
        replay_expect(replay);
    }
}
