/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* How the scheduler preempts by swap: what its caller configures, and the rule that weighs a swap
 * against computing again. The tier plans the copies, the caller's callback runs them; no memory
 * and no clock is here.
 *
 * The one idea: a swap only ever saves work. Whatever the tier refuses, whatever fails on the way
 * and whatever the link is too slow for is computed again, as without a tier. */
#ifndef SCHEDULER_SWAP_H
#define SCHEDULER_SWAP_H

#include <pagedkv.h>

#include <stdbool.h>
#include <stdint.h>

/* Swaps that the scheduler keeps open at once; more are refused. */
#define SCHEDULER_MAX_SWAPS 64

/* What becomes of a victim's blocks. */
typedef enum scheduler_preemption {
    SCHEDULER_RECOMPUTE = 0, /* freed; its tokens are computed again */
    SCHEDULER_SWAP = 1,      /* copied to the tier, and back when it resumes */
    SCHEDULER_BY_COST = 2    /* what holds up fewer, each time: computing again holds up all who
                                run, a copy only the one who waits for it and for the copies before */
} scheduler_preemption;

/* Run the copies of a swap. Called by scheduler_schedule, which must not be called from it.
 *
 * is_inward  slots to blocks; else blocks to slots.
 * copies     [num_copies]; not valid after the return.
 *
 * Returns PKV_OK (they have run), PKV_IN_PROGRESS (they will: scheduler_end_swap says how it ended;
 * not yet before the return), or an error: they did not run and will not. */
typedef pkv_status (*scheduler_copy_fn)(
    void *context, pkv_swap swap, bool is_inward, const pkv_block_copy *copies, int32_t num_copies);

/* What link and model are stated to do; all but copy_seconds and flops_per_pair must be > 0. */
typedef struct scheduler_costs {
    double link_bytes_per_second; /* each way */
    double copy_seconds;          /* start of the copy of a block */
    double block_bytes;           /* all layers */
    int32_t block_size;           /* tokens */
    double flops_per_second;
    double flops_per_token; /* twice the parameters */
    double flops_per_pair;  /* attention of a token to one before it */
} scheduler_costs;

/* Zero: no tier, and every victim is computed again. */
typedef struct scheduler_swapping {
    pkv_tier *tier; /* lent, of the scheduler's manager; all its swaps are the scheduler's */
    scheduler_preemption preemption;
    scheduler_copy_fn copy;
    void *copy_context;
    bool copies_are_ordered; /* all that the caller runs later writes after the copies have read, as
                                on one stream: the victim's blocks are free at once */
    scheduler_costs costs;   /* for SCHEDULER_BY_COST */
} scheduler_swapping;

/* Whether a scheduler can work with it. */
bool scheduler_swapping_is_valid(const scheduler_swapping *swapping);

/* Seconds to copy so many blocks, one way. */
double scheduler_copy_cost(const scheduler_costs *costs, int32_t num_blocks);

/* Seconds to compute the tokens [first_token, first_token + num_tokens). */
double scheduler_compute_cost(const scheduler_costs *costs,
                              int32_t first_token,
                              int32_t num_tokens);

#endif
