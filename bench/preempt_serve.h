/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* A workload served on a pool that is too small for it, with one way of preemption: the scheduler
 * and the manager are real, copies between the two memories too, the time of model and link is
 * worked out. Which cases are compared and how they are shown is bench_preempt.c.
 *
 * The one idea: a stand-in of eight bytes a token, which depends on all tokens before it, is
 * written, copied and read back through the block tables, so that a wrong block changes a token. */
#ifndef PREEMPT_SERVE_H
#define PREEMPT_SERVE_H

#include "scheduler.h"
#include "workload.h"

typedef struct preempt_serve_args {
    const workload_list *workload;                 /* all requests arrive at the start */
    int32_t num_blocks, num_slots;                 /* null ones included */
    int32_t max_running_requests, max_step_tokens; /* 0 = the scheduler's */
    scheduler_policy policy;
    scheduler_preemption preemption;
    bool has_tier;
    bool copies_are_ordered;
    bool track_steps;
    int32_t failing_start, failing_end; /* every n-th swap is refused by the callback, or fails when
                                           its time has come; 0 = none */
    scheduler_costs
        costs;           /* the clock follows them: each way of the link takes its swaps in turn */
    double step_seconds; /* a step takes at least so long */
} preempt_serve_args;

typedef struct preempt_serve_result {
    scheduler_stats stats;
    int64_t num_steps; /* until all have finished, those included in which all waited for a swap */
    int64_t num_empty_steps;
    double seconds, link_bytes;
    int32_t max_open_swaps;
    uint64_t digest; /* of all tokens of all requests */
} preempt_serve_result;

/* Serve the workload to its end. Returns false with a text: no memory, an error of the library, a
 * block with another content than it should have. */
bool preempt_serve_run(const preempt_serve_args *args,
                       preempt_serve_result *result,
                       const char **error);

#endif
