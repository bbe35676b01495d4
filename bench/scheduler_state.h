/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* What the scheduler remembers, and the moves between its lists: internal to the scheduler's files.
 * It decides nothing.
 *
 * The one idea: a request is in exactly one place: unused, waiting, running or ended. */
#ifndef SCHEDULER_STATE_H
#define SCHEDULER_STATE_H

#include "scheduler.h"

/* A swap that the caller has not ended yet. request: whose blocks it moves, NULL when that one has
 * been freed or ended since. */
typedef struct scheduler_open_swap {
    pkv_swap swap;
    scheduler_request *request;
    bool is_inward;
    int32_t num_blocks;
} scheduler_open_swap;

/* running: [num_running], longest running first. ended: [num_ended], to be reused when the next
 * step begins. unused: a list through `next`. The maxima of the configuration are all set. */
struct scheduler {
    scheduler_config config;
    scheduler_open_swap *swaps; /* [SCHEDULER_MAX_SWAPS], of which num_swaps are open */
    pkv_block_copy *copies;     /* [max_copies] of the plan under way */
    int32_t num_swaps, max_copies;
    bool waits_for_swaps; /* in this step a running request found blocks short, and pending */
    scheduler_queue waiting;
    scheduler_request **running, **ended;
    scheduler_request *unused;
    int32_t num_running, num_ended, next_id;

    /* The step: its number, and while it is being made what is left of the budget. */
    scheduler_step step;
    scheduler_entry *entries;
    pkv_batch_entry *batch_entries;
    scheduler_request **preempted;
    int32_t budget;
    int32_t cursor;           /* position in running that is served next */
    bool has_uniform_decodes; /* of running requests, when admission begins */
    bool is_in_flight;        /* made, with entries, and neither completed nor failed */

    scheduler_window window;
    scheduler_hits step_hits;
    scheduler_stats stats;
    uint64_t num_preemptions_at_window_start;
};

static inline int32_t scheduler_minimum(int32_t left, int32_t right) {
    return left < right ? left : right;
}

/* Waiting to running, at the end. */
void scheduler_start_running(struct scheduler *scheduler, scheduler_request *request);

/* Running to nowhere. The cursor stays on the request that it is on when one before it leaves. */
void scheduler_stop_running(struct scheduler *scheduler, const scheduler_request *request);

/* Nowhere to ended. Its blocks go back and its handle becomes stale; the struct stays readable
 * until the next step begins. */
pkv_status scheduler_end_request(struct scheduler *scheduler,
                                 scheduler_request *request,
                                 scheduler_state state);

/* Running to waiting: take its blocks. Its tokens and keys stay, so on its return it often hits
 * what it computed before, and recomputes only the rest. */
pkv_status scheduler_take_back(struct scheduler *scheduler, scheduler_request *request);

/* Keep the victim's blocks in the tier, where the policy says so and the tier takes them; call it
 * before scheduler_take_back. Returns PKV_OK also when nothing was swapped. */
pkv_status scheduler_swap_victim(struct scheduler *scheduler, scheduler_request *victim);

/* Find how many tokens a preempted request should load behind those that it hits. Returns PKV_OK,
 * PKV_IN_PROGRESS (its blocks are still on their way out: wait). */
pkv_status scheduler_find_external(const struct scheduler *scheduler,
                                   const scheduler_request *request,
                                   int32_t num_hit_tokens,
                                   int32_t *num_external_tokens);

/* Take blocks as args say and have the external tokens copied there. The request is_loading
 * afterwards when that takes longer. Returns as pkv_allocate_slots, and PKV_NOT_FOUND when the swap
 * was refused: admit it without. */
pkv_status scheduler_swap_in(struct scheduler *scheduler,
                             scheduler_request *request,
                             const pkv_slots_args *args);

/* The request's blocks go: its open loads end without it. With has_ended its swaps out, too. */
void scheduler_leave_swaps(struct scheduler *scheduler, scheduler_request *request, bool has_ended);

/* All ended ones to unused. */
void scheduler_reuse_ended_requests(struct scheduler *scheduler);

/* The request's share of the current step; NULL when it has none. */
scheduler_entry *scheduler_find_entry(struct scheduler *scheduler,
                                      const scheduler_request *request);

/* Give the request a share of the step and take it from the budget, or the other way round. */
void scheduler_add_entry(struct scheduler *scheduler,
                         scheduler_request *request,
                         int32_t num_new_tokens,
                         int32_t num_drafts);
void scheduler_remove_entry(struct scheduler *scheduler, const scheduler_entry *entry);

#endif
