/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Requests on their way to the scheduler: those whose time has not come (a heap by time), and those
 * that stand before the door (first come, first served) because the scheduler holds as many as it
 * can. It knows indices and times only.
 *
 * The one idea: each request passes once, so two arrays of num_requests hold everything. */
#ifndef PKV_BENCH_SERVE_ARRIVALS_H
#define PKV_BENCH_SERVE_ARRIVALS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct serve_arrival {
    double seconds;
    int32_t index; /* of the request */
} serve_arrival;

/* heap[0] is the earliest; of equal times the one with the smaller index. */
typedef struct serve_arrivals {
    serve_arrival *heap;  /* [num_requests] */
    int32_t *door;        /* [num_requests] */
    int32_t num_expected; /* in the heap */
    int32_t first, end;   /* of the door: door[first .. end) wait there */
} serve_arrivals;

/* False without memory. */
bool serve_arrivals_begin(serve_arrivals *arrivals, int32_t num_requests);
void serve_arrivals_end(serve_arrivals *arrivals);

/* Expect a request at a time. */
void serve_arrivals_add(serve_arrivals *arrivals, double seconds, int32_t index);

/* Bring those whose time has come to the door. */
void serve_arrivals_advance(serve_arrivals *arrivals, double now);

/* Time of the next one that is not at the door; a negative number when there is none. */
double serve_arrivals_get_next_seconds(const serve_arrivals *arrivals);

#endif
