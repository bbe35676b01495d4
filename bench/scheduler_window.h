/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The prefix cache's hit rate over the most recent requests, as engines show it on a dashboard. It
 * does not know what a hit is; the scheduler tells it once a step.
 *
 * The one idea: whole steps enter and leave, so the window always holds at least the wished number
 * of requests once that many were seen, and no request is counted in part. Behaviour is vLLM
 * V1's. */
#ifndef SCHEDULER_WINDOW_H
#define SCHEDULER_WINDOW_H

#include <stdint.h>

#define SCHEDULER_WINDOW_REQUESTS 1000

/* Requests admitted in one step, all their tokens, and how many of those were found cached. */
typedef struct scheduler_hits {
    int64_t num_requests, num_tokens, num_hit_tokens;
} scheduler_hits;

/* entries is a ring: the oldest at `first`. sum = sum of the entries in it. */
typedef struct scheduler_window {
    scheduler_hits *entries; /* [max_requests + 1]: each entry has a request, so more never wait */
    int64_t max_requests;
    int64_t first, num_entries;
    scheduler_hits sum;
} scheduler_window;

/* entries  [max_requests + 1], lent. */
void scheduler_window_init(scheduler_window *window, scheduler_hits *entries, int64_t max_requests);

/* Take in one step. A step without requests changes nothing. */
void scheduler_window_add(scheduler_window *window, scheduler_hits step);

/* Forget everything, because the cache was emptied. */
void scheduler_window_clear(scheduler_window *window);

/* Hit tokens / tokens; 0 when there are none. */
double scheduler_window_get_hit_rate(const scheduler_window *window);

#endif
