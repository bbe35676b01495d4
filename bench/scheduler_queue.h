/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The scheduler's request and the queue in which requests wait for admission. It knows nothing of
 * steps and blocks.
 *
 * The one idea: the queue is always in the order in which its requests will be tried, so that
 * admission only ever looks at the first. */
#ifndef SCHEDULER_QUEUE_H
#define SCHEDULER_QUEUE_H

#include <pagedkv.h>

#include <stdbool.h>
#include <stdint.h>

typedef enum scheduler_policy {
    SCHEDULER_FCFS = 0,    /* first come, first served; the last to come is preempted first */
    SCHEDULER_PRIORITY = 1 /* by priority, then arrival; the least urgent is preempted first */
} scheduler_policy;

typedef enum scheduler_state {
    SCHEDULER_WAITING = 0,
    SCHEDULER_PREEMPTED, /* waiting again: its blocks were taken, its tokens are kept */
    SCHEDULER_RUNNING,
    SCHEDULER_FINISHED,
    SCHEDULER_ABORTED,
    SCHEDULER_REJECTED /* would not fit into an empty pool */
} scheduler_state;

/* For the caller to read; only user_data is the caller's to write.
 * num_computed_tokens counts a step's tokens from the moment they are scheduled. */
typedef struct scheduler_request {
    pkv_request handle; /* stale once the request has ended */
    int32_t id;         /* 0, 1, 2, ... in the order of adding */
    int32_t priority;
    int64_t arrival;
    scheduler_state state;
    int32_t num_prompt_tokens;
    int32_t num_tokens;     /* prompt and accepted output */
    int32_t max_num_tokens; /* finished when num_tokens gets here */
    int32_t num_computed_tokens;
    int32_t num_drafts; /* proposed for the next step */
    int32_t num_preemptions;
    bool is_prefilling; /* the last step that it was in did not reach its last known token */
    bool skip_cache_read;
    bool is_loading;         /* running, and computes nothing until its blocks are copied in */
    bool skips_tier;         /* its last load failed: computed again instead */
    int32_t num_lost_tokens; /* computed when its blocks were last taken */
    uint64_t loading_step;   /* that its last load began in */
    void *user_data;
    struct scheduler_request *previous, *next; /* in the waiting queue */
} scheduler_request;

typedef struct scheduler_queue {
    scheduler_policy policy;
    scheduler_request *first, *last;
    int32_t num_requests;
} scheduler_queue;

/* Say whether `left` is more urgent than `right`. */
bool scheduler_request_precedes(const scheduler_request *left, const scheduler_request *right);

/* Queue a request that is new here. */
void scheduler_queue_add(scheduler_queue *queue, scheduler_request *request);

/* Queue a request that ran already: before all others, unless priorities say where. */
void scheduler_queue_return(scheduler_queue *queue, scheduler_request *request);

void scheduler_queue_remove(scheduler_queue *queue, scheduler_request *request);

#endif
