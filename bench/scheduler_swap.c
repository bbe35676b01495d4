/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Preemption by swap: a victim's blocks to the tier, and back when it resumes. Who is a victim and
 * when it resumes is scheduler.c.
 *
 * The one idea: every swap is in the list of open ones from the callback that began it to the end
 * that the caller reports, and its request may leave it at any time. */
#include "scheduler_state.h"

#include <stddef.h>

/* ---- costs ----------------------------------------------------------------------------------- */

bool scheduler_swapping_is_valid(const scheduler_swapping *swapping) {
    const scheduler_costs *costs = &swapping->costs;

    if (swapping->tier == NULL) {
        return swapping->preemption == SCHEDULER_RECOMPUTE;
    }
    if (swapping->copy == NULL) {
        return false;
    }
    if (swapping->preemption != SCHEDULER_BY_COST) {
        return swapping->preemption == SCHEDULER_RECOMPUTE ||
               swapping->preemption == SCHEDULER_SWAP;
    }
    return costs->link_bytes_per_second > 0.0 && costs->copy_seconds >= 0.0 &&
           costs->block_bytes > 0.0 && costs->block_size > 0 && costs->flops_per_second > 0.0 &&
           costs->flops_per_token > 0.0 && costs->flops_per_pair >= 0.0;
}

double scheduler_copy_cost(const scheduler_costs *costs, int32_t num_blocks) {
    return num_blocks * (costs->block_bytes / costs->link_bytes_per_second + costs->copy_seconds);
}

double scheduler_compute_cost(const scheduler_costs *costs,
                              int32_t first_token,
                              int32_t num_tokens) {
    double num_pairs = (double)num_tokens * (first_token + (num_tokens + 1) / 2.0);

    return (num_tokens * costs->flops_per_token + num_pairs * costs->flops_per_pair) /
           costs->flops_per_second;
}

/* Seconds until the link has copied so many blocks one way, behind what it has to copy already. */
static double wait_for_link(const struct scheduler *scheduler, bool is_inward, int32_t num_blocks) {
    for (int32_t i = 0; i < scheduler->num_swaps; i++) {
        if (scheduler->swaps[i].is_inward == is_inward) {
            num_blocks += scheduler->swaps[i].num_blocks;
        }
    }
    return scheduler_copy_cost(&scheduler->config.swapping.costs, num_blocks);
}

/* One who waits keeps blocks from others, too, so that it never counts as less than an eighth: the
 * least at which by cost loses to recompute by no more than a few per cent over any link. */
#define MOST_SHARES 8

/* Whether waiting is cheaper than computing. Tokens that are computed again hold up all who run, a
 * copy only the one who waits for it: one of `num_requests`. */
static bool wait_pays(const struct scheduler *scheduler,
                      double wait_seconds,
                      int32_t num_requests,
                      int32_t first_token,
                      int32_t num_tokens) {
    int32_t num_shares = num_requests < MOST_SHARES ? num_requests : MOST_SHARES;

    return wait_seconds / (num_shares > 1 ? num_shares : 1) <
           scheduler_compute_cost(&scheduler->config.swapping.costs, first_token, num_tokens);
}

/* Full blocks go both ways, except that what the tier has already only comes back: a plan without
 * room says how many are to go and changes nothing. The tokens behind the last full block are
 * computed again either way. */
static bool swap_pays(const struct scheduler *scheduler, const scheduler_request *victim) {
    pkv_swap_plan probe = {.struct_size = sizeof probe};
    pkv_swap swap;
    int32_t block_size = scheduler->config.swapping.costs.block_size;
    int32_t num_blocks = victim->num_computed_tokens / block_size;
    int32_t num_blocks_out = num_blocks;
    pkv_status status =
        pkv_swap_out(scheduler->config.swapping.tier, victim->handle, &probe, &swap);

    if (status == PKV_NOT_FOUND) {
        return false; /* nothing is to go; whether it comes back is decided when it resumes */
    }
    if (status == PKV_ERROR_LIMIT && probe.num_copies > 0) {
        num_blocks_out = probe.num_copies;
    }
    return wait_pays(scheduler,
                     wait_for_link(scheduler, false, num_blocks_out) +
                         wait_for_link(scheduler, true, num_blocks),
                     scheduler->num_running, 0, num_blocks * block_size);
}

/* ---- open swaps ------------------------------------------------------------------------------ */

/* Have the copies run. Returns PKV_OK, PKV_IN_PROGRESS, or PKV_NOT_FOUND: they did not run. */
static pkv_status start_copies(struct scheduler *scheduler,
                               scheduler_request *request,
                               bool is_inward,
                               const pkv_swap_plan *plan,
                               pkv_swap swap) {
    const scheduler_swapping *swapping = &scheduler->config.swapping;
    pkv_status status =
        swapping->copy(swapping->copy_context, swap, is_inward, plan->copies, plan->num_copies);

    if (status != PKV_OK && status != PKV_IN_PROGRESS) {
        (void)pkv_swap_abort(swapping->tier, swap);
        return PKV_NOT_FOUND;
    }
    if (status == PKV_OK) {
        return pkv_swap_commit(swapping->tier, swap);
    }
    scheduler->swaps[scheduler->num_swaps++] = (scheduler_open_swap){
        .swap = swap, .request = request, .is_inward = is_inward, .num_blocks = plan->num_copies};
    return PKV_IN_PROGRESS;
}

void scheduler_leave_swaps(struct scheduler *scheduler,
                           scheduler_request *request,
                           bool has_ended) {
    for (int32_t i = 0; i < scheduler->num_swaps; i++) {
        scheduler_open_swap *open = &scheduler->swaps[i];
        if (open->request == request && (open->is_inward || has_ended)) {
            open->request = NULL;
        }
    }
    request->is_loading = false;
}

pkv_status scheduler_end_swap(struct scheduler *scheduler, pkv_swap swap, bool has_copied) {
    pkv_tier *tier = scheduler->config.swapping.tier;
    int32_t index = 0;

    while (index < scheduler->num_swaps &&
           (scheduler->swaps[index].swap.index != swap.index ||
            scheduler->swaps[index].swap.generation != swap.generation)) {
        index++;
    }
    if (index == scheduler->num_swaps) {
        return PKV_ERROR_STALE_HANDLE;
    }
    scheduler_open_swap open = scheduler->swaps[index];
    scheduler->swaps[index] = scheduler->swaps[--scheduler->num_swaps];
    pkv_status status = has_copied ? pkv_swap_commit(tier, swap) : pkv_swap_abort(tier, swap);
    if (!has_copied) {
        scheduler->stats.num_refused_swaps++;
    }
    if (status != PKV_OK || open.request == NULL || !open.is_inward) {
        return status;
    }
    open.request->is_loading = false;
    if (has_copied) {
        return PKV_OK;
    }
    /* Its blocks hold garbage, and the tier would offer the same again. */
    open.request->skips_tier = true;
    return scheduler_take_back(scheduler, open.request);
}

/* ---- out and in ------------------------------------------------------------------------------ */

/* A victim that is still loading has nothing that the tier has not, and one that reads no cache
 * would not come back from it. */
pkv_status scheduler_swap_victim(struct scheduler *scheduler, scheduler_request *victim) {
    const scheduler_swapping *swapping = &scheduler->config.swapping;
    pkv_swap_plan plan = {
        .struct_size = sizeof plan, .capacity = scheduler->max_copies, .copies = scheduler->copies};
    pkv_swap swap;

    if (swapping->preemption == SCHEDULER_RECOMPUTE || victim->is_loading ||
        victim->skip_cache_read ||
        (swapping->preemption == SCHEDULER_BY_COST && !swap_pays(scheduler, victim))) {
        return PKV_OK;
    }
    pkv_status status = scheduler->num_swaps < SCHEDULER_MAX_SWAPS
                            ? pkv_swap_out(swapping->tier, victim->handle, &plan, &swap)
                            : PKV_IN_PROGRESS;
    if (status == PKV_NOT_FOUND) {
        return PKV_OK;
    }
    if (status > PKV_OK || status == PKV_ERROR_LIMIT) {
        scheduler->stats.num_refused_swaps++;
        return PKV_OK;
    }
    if (status != PKV_OK) {
        return status;
    }
    status = start_copies(scheduler, victim, false, &plan, swap);
    if (status == PKV_NOT_FOUND) {
        scheduler->stats.num_refused_swaps++;
        return PKV_OK;
    }
    scheduler->stats.num_swap_outs++;
    scheduler->stats.num_blocks_out += (uint64_t)plan.num_copies;
    if (status == PKV_IN_PROGRESS) {
        status = swapping->copies_are_ordered ? pkv_swap_detach(swapping->tier, swap) : PKV_OK;
    }
    return status;
}

pkv_status scheduler_find_external(const struct scheduler *scheduler,
                                   const scheduler_request *request,
                                   int32_t num_hit_tokens,
                                   int32_t *num_external_tokens) {
    const scheduler_swapping *swapping = &scheduler->config.swapping;

    *num_external_tokens = 0;
    if (swapping->preemption == SCHEDULER_RECOMPUTE || request->skips_tier ||
        request->skip_cache_read || request->state != SCHEDULER_PREEMPTED) {
        return PKV_OK;
    }
    for (int32_t i = 0; i < scheduler->num_swaps; i++) {
        if (scheduler->swaps[i].request == request) {
            return PKV_IN_PROGRESS;
        }
    }
    pkv_status status =
        pkv_tier_lookup(swapping->tier, request->handle, num_hit_tokens, num_external_tokens);
    if (status != PKV_OK || swapping->preemption != SCHEDULER_BY_COST) {
        return status;
    }
    int32_t block_size = swapping->costs.block_size;
    int32_t num_blocks = (*num_external_tokens + block_size - 1) / block_size;
    if (!wait_pays(scheduler, wait_for_link(scheduler, true, num_blocks),
                   scheduler->num_running + 1, num_hit_tokens, *num_external_tokens)) {
        *num_external_tokens = 0;
    }
    return PKV_OK;
}

pkv_status scheduler_swap_in(struct scheduler *scheduler,
                             scheduler_request *request,
                             const pkv_slots_args *args) {
    pkv_swap_plan plan = {
        .struct_size = sizeof plan, .capacity = scheduler->max_copies, .copies = scheduler->copies};
    pkv_swap swap;
    pkv_status status = scheduler->num_swaps < SCHEDULER_MAX_SWAPS
                            ? pkv_swap_in(scheduler->config.swapping.tier, request->handle, args,
                                          NULL, &plan, &swap)
                            : PKV_IN_PROGRESS;

    if (status == PKV_IN_PROGRESS || status == PKV_ERROR_LIMIT) {
        status = PKV_NOT_FOUND;
    }
    if (status == PKV_OK) {
        status = start_copies(scheduler, request, true, &plan, swap);
        if (status == PKV_NOT_FOUND) {
            pkv_status freed = pkv_free(scheduler->config.manager, request->handle);
            status = freed == PKV_OK ? PKV_NOT_FOUND : freed;
        } else {
            scheduler->stats.num_swap_ins++;
            scheduler->stats.num_blocks_in += (uint64_t)plan.num_copies;
        }
    }
    if (status == PKV_NOT_FOUND) {
        scheduler->stats.num_refused_swaps++;
    }
    request->is_loading = status == PKV_IN_PROGRESS;
    return status == PKV_IN_PROGRESS ? PKV_OK : status;
}
