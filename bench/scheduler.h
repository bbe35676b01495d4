/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* A continuous-batching scheduler on top of libpagedkv, for the benches, the conformance replay and
 * those who write their own. It decides which request computes how many tokens in the next step;
 * the manager decides which blocks hold them. It samples nothing and knows no model: the caller
 * runs the step and delivers the tokens. Synchronous: one step is scheduled, run and completed
 * before the next.
 *
 * The one idea: there is no prefill phase and no decode phase. A request has computed tokens and
 * known tokens, and every step moves the first number towards the second, as far as the token
 * budget and the free blocks reach. Behaviour is vLLM V1's scheduler (no connector, no async
 * scheduling). Beyond it, a victim's blocks may be swapped instead of computed again, where a tier
 * is given (scheduler_swap.h).
 *
 * Unsaid below: pointers are not NULL; a call that returns an error on its arguments has changed
 * nothing; nothing is allocated after creation. */
#ifndef SCHEDULER_H
#define SCHEDULER_H

#include "scheduler_queue.h"
#include "scheduler_swap.h"
#include "scheduler_window.h"

#include <pagedkv.h>

#include <stdbool.h>
#include <stdint.h>

#define SCHEDULER_DEFAULT_MAX_RUNNING_REQUESTS PKV_DEFAULT_MAX_ROWS
#define SCHEDULER_DEFAULT_MAX_STEP_TOKENS 2048

/* The log looks at windows of this many steps, and speaks up when at least one request in this many
 * steps was preempted: then recomputing costs real throughput. */
#define SCHEDULER_LOG_WINDOW_STEPS 1000
#define SCHEDULER_LOG_STEPS_PER_PREEMPTION 20

struct scheduler;

/* Configuration; zero a whole one, set the manager, max_requests and max_model_len. The manager is
 * lent; it needs rows for max_running_requests and, as pkv_plan_memory tells, blocks for at least
 * one sequence of max_model_len. */
typedef struct scheduler_config {
    pkv_manager *manager;
    scheduler_policy policy;
    int32_t max_requests;           /* waiting, running, and ended since scheduler_schedule */
    int32_t max_model_len;          /* a request that has this many tokens is finished */
    int32_t max_running_requests;   /* 0 = SCHEDULER_DEFAULT_MAX_RUNNING_REQUESTS */
    int32_t max_step_tokens;        /* budget of one step; 0 = SCHEDULER_DEFAULT_MAX_STEP_TOKENS */
    int32_t long_prefill_threshold; /* most tokens of one request in one step; 0 = the budget */
    int32_t max_draft_tokens;       /* drafts of one request in one step; 0 = none are made */
    int32_t num_watermark_blocks;   /* an admission leaves this many free while others run */
    bool admit_partial_sequences;   /* admit when the next chunk fits, though the prompt may not */
    bool keep_unfitting_requests;   /* what not even an empty pool holds waits for ever, and all
                                       behind it, as in vLLM; else it is rejected */
    bool disable_prefix_cache;      /* as the manager was told; only the hit rate asks */
    bool track_steps;               /* scheduler_fail_step works; costs a record per new block */
    scheduler_swapping swapping;    /* zero: each victim is computed again */
    pkv_log_fn log;
    void *log_context;
} scheduler_config;

/* One request's share of a step: its tokens [num_computed_tokens, num_computed_tokens +
 * num_new_tokens), the last num_drafts of which are guesses to be verified. */
typedef struct scheduler_entry {
    scheduler_request *request;
    int32_t num_computed_tokens, num_new_tokens, num_drafts;
    bool is_dropped; /* aborted or reset after scheduling: its output is ignored */
} scheduler_entry;

/* What scheduler_schedule decided. Valid until the next scheduler_schedule. */
typedef struct scheduler_step {
    uint64_t number;                      /* 1, 2, 3, ...; with track_steps the manager's step */
    const scheduler_entry *entries;       /* [num_entries] in the order of scheduling */
    const pkv_batch_entry *batch_entries; /* [num_entries] the same, as pkv_batch_build takes it */
    scheduler_request *const *preempted;  /* [num_preempted] in the order of preemption */
    int32_t num_entries, num_preempted;
    int32_t num_tokens; /* of all entries */
} scheduler_step;

/* Tokens sampled for one entry: none while it is still in prefill, else the accepted drafts and one
 * more. */
typedef struct scheduler_output {
    const int32_t *token_ids;
    int32_t num_tokens;
} scheduler_output;

typedef struct scheduler_request_args {
    const int32_t *token_ids; /* [num_tokens] the prompt; copied */
    int32_t num_tokens;       /* 1 .. max_model_len - 1 */
    int32_t max_output_tokens;
    int32_t priority; /* smaller goes first */
    int64_t arrival;  /* any clock; orders equal priorities */
    uint64_t adapter_id;
    const void *salt; /* NULL or salt_size 0 = none */
    size_t salt_size;
    bool skip_cache_read;
    void *user_data;
} scheduler_request_args;

/* Counters since creation. */
typedef struct scheduler_stats {
    uint64_t num_steps, num_step_tokens;
    uint64_t num_preemptions, num_finished, num_aborted, num_rejected;
    uint64_t num_draft_tokens, num_accepted_draft_tokens;
    uint64_t num_recomputed_tokens; /* of those whose blocks were taken: neither hit nor loaded */
    uint64_t num_resume_hit_tokens; /* of those: found on the device */
    uint64_t num_loaded_tokens;     /* of those: brought by swaps, planned */
    uint64_t num_swap_outs, num_swap_ins, num_blocks_out, num_blocks_in; /* begun */
    uint64_t num_refused_swaps; /* wanted, and computed again: refused by the tier, or failed */
    int32_t num_open_swaps;     /* now */
    double hit_rate;            /* of the last SCHEDULER_WINDOW_REQUESTS admissions or more */
} scheduler_stats;

/* Make a scheduler, with all the memory it will ever use.
 *
 * Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT, PKV_ERROR_OUT_OF_MEMORY; *out is NULL on error. */
pkv_status scheduler_create(const scheduler_config *config, struct scheduler **out);

/* End a scheduler; its requests stay open in the manager. NULL is a no-op. */
void scheduler_destroy(struct scheduler *scheduler);

/* Put a request into the waiting queue.
 *
 * out  the scheduler's, for the caller to read; valid until the first scheduler_schedule after its
 *      end (finished, aborted or rejected).
 *
 * Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT, PKV_ERROR_LIMIT (max_requests, or the manager's). */
pkv_status scheduler_add(struct scheduler *scheduler,
                         const scheduler_request_args *args,
                         scheduler_request **out);

/* Decide the next step and take its blocks. The step may be empty; with swaps open that means that
 * all wait for them, so end one before the next step.
 *
 * A request that not even an empty pool could hold leaves the queue with state REJECTED, unless
 * keep_unfitting_requests says otherwise.
 *
 * Returns PKV_OK, PKV_ERROR_BUSY (the step before is neither completed nor failed), or an error of
 * the manager, after which only scheduler_destroy is of use. */
pkv_status scheduler_schedule(struct scheduler *scheduler, const scheduler_step **out);

/* Deliver what the step computed. Rejected drafts are taken back, finished requests are freed in
 * the order of the entries, tokens beyond a finish are dropped.
 *
 * outputs  [num_entries] of the step; read also for dropped entries, and ignored there.
 *
 * Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT (no step to complete; tokens for a request in prefill;
 * none, or more than its drafts + 1, for another). */
pkv_status scheduler_complete_step(struct scheduler *scheduler, const scheduler_output *outputs);

/* Say that the step did not run: what it published is withdrawn and all its requests go back to the
 * front of the waiting queue, to be computed again from what is still valid.
 *
 * Returns PKV_OK, PKV_ERROR_UNSUPPORTED (without track_steps), PKV_ERROR_INVALID_ARGUMENT (no
 * step). */
pkv_status scheduler_fail_step(struct scheduler *scheduler);

/* Say how a swap ended whose copy callback returned PKV_IN_PROGRESS. At any time, once for each.
 *
 * has_copied  false: the copies failed and do not run any more; what they were to bring is computed
 *             again.
 *
 * Returns PKV_OK, PKV_ERROR_STALE_HANDLE (not open here), or an error of the manager. */
pkv_status scheduler_end_swap(struct scheduler *scheduler, pkv_swap swap, bool has_copied);

/* Say how many draft tokens are proposed for the request's next step, at most max_draft_tokens.
 * Ignored unless it runs and is past its prefill. */
void scheduler_set_drafts(struct scheduler *scheduler,
                          scheduler_request *request,
                          int32_t num_drafts);

/* End a request from outside, whatever it is doing. No-op for one that has ended. */
pkv_status scheduler_abort(struct scheduler *scheduler, scheduler_request *request);

/* Empty the prefix cache, and the tier where there is one, and restart the hit rate.
 *
 * preempt_running  true: first send all running requests back to the waiting queue, in their order;
 *                  output that is in flight for them is dropped.
 *
 * Returns PKV_OK, PKV_ERROR_BUSY (something holds blocks; a swap is open; or, with track_steps, a
 * step is in flight). */
pkv_status scheduler_reset_prefix_cache(struct scheduler *scheduler, bool preempt_running);

/* The running requests, longest running first: the order in which a step serves them. */
scheduler_request *const *scheduler_get_running(const struct scheduler *scheduler,
                                                int32_t *num_running);

/* The waiting request that will be tried first; the others follow by `next`. NULL when empty. */
const scheduler_request *scheduler_get_first_waiting(const struct scheduler *scheduler,
                                                     int32_t *num_waiting);

/* Requests that ended since the last scheduler_schedule began, in the order of their end. */
scheduler_request *const *scheduler_get_ended(const struct scheduler *scheduler,
                                              int32_t *num_ended);

void scheduler_get_stats(const struct scheduler *scheduler, scheduler_stats *out);

#endif
