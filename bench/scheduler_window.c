/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The hit-rate window: a ring of steps and their running sum. */
#include "scheduler_window.h"

void scheduler_window_init(scheduler_window *window,
                           scheduler_hits *entries,
                           int64_t max_requests) {
    window->entries = entries;
    window->max_requests = max_requests;
    scheduler_window_clear(window);
}

void scheduler_window_clear(scheduler_window *window) {
    window->first = 0;
    window->num_entries = 0;
    window->sum = (scheduler_hits){0, 0, 0};
}

static void drop_oldest(scheduler_window *window) {
    scheduler_hits oldest = window->entries[window->first];

    window->sum.num_requests -= oldest.num_requests;
    window->sum.num_tokens -= oldest.num_tokens;
    window->sum.num_hit_tokens -= oldest.num_hit_tokens;
    window->first = (window->first + 1) % (window->max_requests + 1);
    window->num_entries--;
}

void scheduler_window_add(scheduler_window *window, scheduler_hits step) {
    if (step.num_requests == 0) {
        return;
    }

    window->entries[(window->first + window->num_entries) % (window->max_requests + 1)] = step;
    window->num_entries++;
    window->sum.num_requests += step.num_requests;
    window->sum.num_tokens += step.num_tokens;
    window->sum.num_hit_tokens += step.num_hit_tokens;

    /* The newest step stays, however many requests it alone has. */
    while (window->num_entries > 1 && window->sum.num_requests > window->max_requests) {
        drop_oldest(window);
    }
}

double scheduler_window_get_hit_rate(const scheduler_window *window) {
    if (window->sum.num_tokens == 0) {
        return 0.0;
    }
    return (double)window->sum.num_hit_tokens / (double)window->sum.num_tokens;
}
