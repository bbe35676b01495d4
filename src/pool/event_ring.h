/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* A bounded queue of cache events. It numbers them and counts what it had to drop; what an event
 * means is written in pagedkv/pool.h.
 *
 * The one idea: when full, new events are dropped and still numbered, so the gap shows. */
#ifndef PKVI_POOL_EVENT_RING_H
#define PKVI_POOL_EVENT_RING_H

#include <pagedkv/pool.h>

#include "base/memory.h"

/* I9: num_events <= capacity; next_sequence = events ever made, dropped ones included. */
struct pkvi_event_ring {
    pkv_event *events; /* NULL when capacity is 0 */
    int32_t capacity;
    int32_t first; /* index of the oldest */
    int32_t num_events;
    uint64_t next_sequence;
    uint64_t next_call;
    uint64_t num_dropped;       /* since the last take */
    uint64_t num_dropped_total; /* since creation */
};

void pkvi_event_ring_carve(struct pkvi_event_ring *ring,
                           struct pkvi_carver *carver,
                           int32_t capacity);

static inline bool pkvi_event_ring_is_on(const struct pkvi_event_ring *ring) {
    return ring->capacity > 0;
}

/* Add an event; its sequence number is set here. */
void pkvi_event_ring_push(struct pkvi_event_ring *ring, const pkv_event *event);

/* Hand over the oldest events. Returns PKV_OK or PKV_MORE. */
pkv_status pkvi_event_ring_take(struct pkvi_event_ring *ring,
                                pkv_event *events,
                                int32_t capacity,
                                int32_t *num_events,
                                uint64_t *num_dropped);

#endif
