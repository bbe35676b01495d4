/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Events of the library written as the `e` lines of a recording.
 *
 * The one idea: a recording names a key by when the event stream first mentioned it, so any key
 * function gives the same lines as long as equal content has equal keys, and other content
 * others. */
#ifndef CONFORMANCE_TRACE_EVENTS_H
#define CONFORMANCE_TRACE_EVENTS_H

#include "replay.h"

/* slots: [num_slots], a power of two; open addressing; ordinal -1 is empty. */
struct key_ordinal {
    pkv_block_key key;
    int32_t ordinal;
};
struct trace_events {
    struct key_ordinal *slots;
    size_t num_slots;
    int32_t num_keys;
    pkv_event *events;
    int32_t capacity;
};

/* capacity: events that one operation can give. */
void trace_events_init(struct trace_events *events, int32_t capacity);
void trace_events_free(struct trace_events *events);

/* Take the events of the last operation and compare a line for each. */
void trace_events_expect(struct trace_events *events, struct replay *replay);

#endif
