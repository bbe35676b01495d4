/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The ring of events; see event_ring.h. */
#include "pool/event_ring.h"

#include <string.h>

void pkvi_event_ring_carve(struct pkvi_event_ring *ring,
                           struct pkvi_carver *carver,
                           int32_t capacity) {
    memset(ring, 0, sizeof *ring);
    ring->capacity = capacity;
    ring->events = pkvi_carve(carver, (size_t)capacity, sizeof *ring->events);
}

void pkvi_event_ring_push(struct pkvi_event_ring *ring, const pkv_event *event) {
    uint64_t sequence = ring->next_sequence++;
    int32_t at;

    if (ring->num_events == ring->capacity) {
        ring->num_dropped++;
        ring->num_dropped_total++;
        return;
    }
    /* first + num_events may pass INT32_MAX for a huge ring. */
    at = (int32_t)(((int64_t)ring->first + ring->num_events) % ring->capacity);
    ring->events[at] = *event;
    ring->events[at].sequence_number = sequence;
    ring->num_events++;
}

pkv_status pkvi_event_ring_take(struct pkvi_event_ring *ring,
                                pkv_event *events,
                                int32_t capacity,
                                int32_t *num_events,
                                uint64_t *num_dropped) {
    int32_t count = ring->num_events < capacity ? ring->num_events : capacity;

    for (int32_t i = 0; i < count; i++) {
        events[i] = ring->events[ring->first];
        ring->first = ring->first + 1 == ring->capacity ? 0 : ring->first + 1;
    }
    ring->num_events -= count;
    *num_events = count;
    if (num_dropped != NULL) {
        *num_dropped = ring->num_dropped;
        ring->num_dropped = 0;
    }
    return ring->num_events == 0 ? PKV_OK : PKV_MORE;
}
