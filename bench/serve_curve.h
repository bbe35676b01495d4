/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Hit curves of a trace with block ids (Mooncake): how much of it a cache of n blocks finds,
 * request after request, one at a time. Measured twice, through the pool and through the manager.
 *
 * The one idea: with one request at a time the pool is an LRU cache of blocks. A request's blocks
 * are taken, then freed from its end, so they become the youngest and its start the very
 * youngest. */
#ifndef PKV_BENCH_SERVE_CURVE_H
#define PKV_BENCH_SERVE_CURVE_H

#include "serve.h"
#include "workload.h"

#define SERVE_CURVE_MAX_POINTS 32

/* The two paths do not count the same:
 *   pool     every id of the trace is one block, the last one of a prompt too, which is seldom
 *            full. This is how LRU simulations of such traces count.
 *   manager  real prompts of num_input_tokens: the block that is not full has no key and cannot be
 *            hit, and at least one token is computed anew, so a prompt of whole blocks misses its
 *            last one. Besides, the partial block takes a place while the request runs. */
typedef struct serve_curve_point {
    int32_t num_blocks;                        /* usable ones; 0: as many as the trace has ids */
    int32_t num_too_long;                      /* requests of more than num_blocks, left out */
    int64_t num_ids, num_pool_hits;            /* blocks */
    int64_t num_full_blocks, num_manager_hits; /* blocks */
    double reference_percent; /* of an LRU simulation of this trace and size; NaN: none is known */
    double pool_seconds, manager_seconds; /* wall time of the replays */
} serve_curve_point;

/* Measure a curve at each of `sizes` (ascending; 0, without limit, last).
 *
 * num_requests  the first so many of the trace.
 * points        [num_sizes].
 *
 * Returns false with a message when the trace has no ids or a call failed. */
bool serve_curve_measure(const workload_list *trace,
                         int32_t num_requests,
                         const int32_t *sizes,
                         int32_t num_sizes,
                         serve_curve_point *points,
                         char *error);

double serve_curve_get_pool_percent(const serve_curve_point *point);
double serve_curve_get_manager_percent(
    const serve_curve_point *point); /* of all ids, as the pool's */

/* False where a reference is known and differs by more than its rounding. */
bool serve_curve_agrees(const serve_curve_point *point);

#endif
