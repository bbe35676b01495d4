/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* A binary heap and a queue, see serve_arrivals.h. */
#include "serve_arrivals.h"

#include <stdlib.h>
#include <string.h>

bool serve_arrivals_begin(serve_arrivals *arrivals, int32_t num_requests) {
    memset(arrivals, 0, sizeof *arrivals);
    arrivals->heap = calloc((size_t)num_requests, sizeof *arrivals->heap);
    arrivals->door = calloc((size_t)num_requests, sizeof *arrivals->door);
    if (arrivals->heap == NULL || arrivals->door == NULL) {
        serve_arrivals_end(arrivals);
        return false;
    }
    return true;
}

void serve_arrivals_end(serve_arrivals *arrivals) {
    free(arrivals->heap);
    free(arrivals->door);
    memset(arrivals, 0, sizeof *arrivals);
}

static bool is_earlier(serve_arrival one, serve_arrival other) {
    return one.seconds < other.seconds || (one.seconds == other.seconds && one.index < other.index);
}

void serve_arrivals_add(serve_arrivals *arrivals, double seconds, int32_t index) {
    serve_arrival added = {.seconds = seconds, .index = index};
    int32_t place = arrivals->num_expected;

    while (place > 0 && is_earlier(added, arrivals->heap[(place - 1) / 2])) {
        arrivals->heap[place] = arrivals->heap[(place - 1) / 2];
        place = (place - 1) / 2;
    }
    arrivals->heap[place] = added;
    arrivals->num_expected += 1;
}

static serve_arrival take_earliest(serve_arrivals *arrivals) {
    serve_arrival earliest = arrivals->heap[0];

    arrivals->num_expected -= 1;
    serve_arrival moved = arrivals->heap[arrivals->num_expected];
    int32_t place = 0;
    for (;;) {
        int32_t child = 2 * place + 1;
        if (child + 1 < arrivals->num_expected &&
            is_earlier(arrivals->heap[child + 1], arrivals->heap[child])) {
            child += 1;
        }
        if (child >= arrivals->num_expected || !is_earlier(arrivals->heap[child], moved)) {
            break;
        }
        arrivals->heap[place] = arrivals->heap[child];
        place = child;
    }
    arrivals->heap[place] = moved;
    return earliest;
}

void serve_arrivals_advance(serve_arrivals *arrivals, double now) {
    while (arrivals->num_expected > 0 && arrivals->heap[0].seconds <= now) {
        arrivals->door[arrivals->end] = take_earliest(arrivals).index;
        arrivals->end += 1;
    }
}

double serve_arrivals_get_next_seconds(const serve_arrivals *arrivals) {
    return arrivals->num_expected > 0 ? arrivals->heap[0].seconds : -1.0;
}
