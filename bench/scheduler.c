/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The scheduler: one step from both queues to the entries, and back from the outputs. The order of
 * waiting requests is scheduler_queue.c, the hit rate scheduler_window.c, the way of a victim's
 * blocks to the tier and back scheduler_swap.c.
 *
 * The one idea: running requests are served first and may take blocks from each other; waiting
 * ones get what is left and never take a block from anybody. */
#include "scheduler_state.h"

#include <stdio.h>

/* ---- preemption ------------------------------------------------------------------------------ */

/* The one that loses least: the newest, or the least urgent wherever it stands (the first of
 * several that are equal but for their name, as vLLM does). */
static scheduler_request *choose_victim(const struct scheduler *scheduler) {
    if (scheduler->config.policy == SCHEDULER_FCFS) {
        return scheduler->running[scheduler->num_running - 1];
    }
    scheduler_request *victim = scheduler->running[0];
    for (int32_t i = 1; i < scheduler->num_running; i++) {
        scheduler_request *other = scheduler->running[i];
        if (other->priority > victim->priority ||
            (other->priority == victim->priority && other->arrival > victim->arrival)) {
            victim = other;
        }
    }
    return victim;
}

/* With priorities the victim may have its share of this very step already: then the share goes back
 * to the budget. Its blocks were published when they were scheduled, but will not be computed now.
 * Tracked steps withdraw them; untracked ones leave them findable, as vLLM does. Nobody has hit
 * them yet, because admissions come later and not at all after a preemption. Where they stay
 * findable, a swap would keep them, too, with their garbage: such a victim is not swapped. */
static pkv_status preempt(struct scheduler *scheduler, scheduler_request *victim) {
    scheduler_entry *entry = scheduler_find_entry(scheduler, victim);
    bool may_swap = entry == NULL || scheduler->config.track_steps;

    if (entry != NULL) {
        scheduler_remove_entry(scheduler, entry);
        if (scheduler->config.track_steps) {
            pkv_status status =
                pkv_unschedule(scheduler->config.manager, victim->handle, scheduler->step.number);
            if (status != PKV_OK) {
                return status;
            }
        }
    }
    if (may_swap) {
        pkv_status status = scheduler_swap_victim(scheduler, victim);
        if (status != PKV_OK) {
            return status;
        }
    }
    scheduler->preempted[scheduler->step.num_preempted++] = victim;
    scheduler->stats.num_preemptions++;
    return scheduler_take_back(scheduler, victim);
}

/* ---- one step -------------------------------------------------------------------------------- */

static pkv_slots_args slots_args(const struct scheduler *scheduler, int32_t num_new_tokens) {
    return (pkv_slots_args){
        .struct_size = sizeof(pkv_slots_args),
        .num_new_tokens = num_new_tokens,
        .num_lookahead_tokens = scheduler->config.max_draft_tokens,
        .step = scheduler->config.track_steps ? scheduler->step.number : 0,
    };
}

static int32_t limit_to_step(const struct scheduler *scheduler, int32_t num_tokens) {
    if (scheduler->config.long_prefill_threshold > 0) {
        num_tokens = scheduler_minimum(num_tokens, scheduler->config.long_prefill_threshold);
    }
    return scheduler_minimum(num_tokens, scheduler->budget);
}

/* The position max_model_len - 1 is never computed: its token is the last and has no successor. */
static int32_t count_running_tokens(const struct scheduler *scheduler,
                                    const scheduler_request *request) {
    int32_t num_tokens = request->num_tokens + request->num_drafts - request->num_computed_tokens;
    int32_t num_places = scheduler->config.max_model_len - 1 - request->num_computed_tokens;

    if (request->is_loading) {
        return 0;
    }
    return scheduler_minimum(limit_to_step(scheduler, num_tokens), num_places);
}

/* Blocks that swaps still hold come back by themselves. To take victims until nothing is short
 * would take all of them, since a victim that is swapped gives no block at once.
 *
 * Returns PKV_NO_FREE_BLOCKS when the request itself was the victim in the end, PKV_IN_PROGRESS
 * when it has to wait for a swap. */
static pkv_status allocate_or_preempt(struct scheduler *scheduler,
                                      scheduler_request *request,
                                      int32_t num_new_tokens) {
    pkv_slots_args args = slots_args(scheduler, num_new_tokens);
    args.num_computed_tokens = request->num_computed_tokens;

    for (;;) {
        pkv_slots slots = {.struct_size = sizeof slots};
        pkv_status status = pkv_allocate_slots(scheduler->config.manager, request->handle, &args,
                                               scheduler->num_swaps > 0 ? &slots : NULL);
        if (status != PKV_NO_FREE_BLOCKS) {
            return status;
        }
        if (scheduler->num_swaps > 0 && slots.num_missing_blocks <= slots.num_pending_blocks) {
            return PKV_IN_PROGRESS;
        }
        scheduler_request *victim = choose_victim(scheduler);
        status = preempt(scheduler, victim);
        if (status != PKV_OK) {
            return status;
        }
        if (victim == request) {
            return PKV_NO_FREE_BLOCKS;
        }
    }
}

static pkv_status schedule_running(struct scheduler *scheduler) {
    scheduler->cursor = 0;
    while (scheduler->cursor < scheduler->num_running && scheduler->budget > 0) {
        scheduler_request *request = scheduler->running[scheduler->cursor];
        int32_t num_new_tokens = count_running_tokens(scheduler, request);
        if (num_new_tokens > 0) {
            pkv_status status = allocate_or_preempt(scheduler, request, num_new_tokens);
            if (status == PKV_IN_PROGRESS) {
                scheduler->waits_for_swaps = true;
                scheduler->cursor++;
                continue;
            }
            if (status != PKV_OK) {
                return status == PKV_NO_FREE_BLOCKS ? PKV_OK : status;
            }
            int32_t num_drafts =
                request->num_computed_tokens + num_new_tokens - request->num_tokens;
            scheduler_add_entry(scheduler, request, num_new_tokens,
                                num_drafts > 0 ? num_drafts : 0);
            request->num_drafts = 0;
        }
        scheduler->cursor++;
    }
    return PKV_OK;
}

/* Whether the running requests' share of the step is all decodes of a token and its drafts. */
static bool is_uniform(const struct scheduler *scheduler) {
    for (int32_t i = 0; i < scheduler->step.num_entries; i++) {
        if (scheduler->entries[i].request->is_prefilling) {
            return false;
        }
    }
    return scheduler->step.num_entries > 0;
}

/* Beside uniform decodes, a newcomer with a single token to compute is widened to their shape by
 * places for drafts that it does not have, so that a captured graph can run the whole step. Not
 * past the threshold or the last position that is ever computed. */
static bool wants_draft_places(const struct scheduler *scheduler,
                               int32_t num_hit_tokens,
                               int32_t num_missing_tokens) {
    const scheduler_config *config = &scheduler->config;
    int32_t width = 1 + config->max_draft_tokens;

    return width > 1 && num_missing_tokens == 1 && scheduler->has_uniform_decodes &&
           (config->long_prefill_threshold == 0 || width <= config->long_prefill_threshold) &&
           num_hit_tokens + width < config->max_model_len;
}

/* Admission counts for the hit rate, a lookup that leads to none does not; nor does a return, which
 * would count a request's own work as a hit. */
static void count_hits(struct scheduler *scheduler,
                       const scheduler_request *request,
                       int32_t num_hit_tokens) {
    if (scheduler->config.disable_prefix_cache || request->skip_cache_read ||
        request->num_preemptions > 0) {
        return;
    }
    scheduler->step_hits.num_requests++;
    scheduler->step_hits.num_tokens += request->num_tokens;
    scheduler->step_hits.num_hit_tokens += num_hit_tokens;
}

/* What a return finds, and what it computes again. */
static void count_return(struct scheduler *scheduler,
                         const scheduler_request *request,
                         int32_t num_hit_tokens,
                         int32_t num_external_tokens) {
    int32_t num_lost_tokens = request->num_lost_tokens;
    int32_t num_hits = scheduler_minimum(num_hit_tokens, num_lost_tokens);
    int32_t num_loaded = scheduler_minimum(num_external_tokens, num_lost_tokens - num_hits);

    scheduler->stats.num_resume_hit_tokens += (uint64_t)num_hits;
    scheduler->stats.num_loaded_tokens += (uint64_t)num_loaded;
    scheduler->stats.num_recomputed_tokens += (uint64_t)(num_lost_tokens - num_hits - num_loaded);
}

/* Returns PKV_OK, PKV_NOT_FOUND (the external tokens cannot be had), or why the request has to wait
 * or go. */
static pkv_status admit_with(struct scheduler *scheduler,
                             scheduler_request *request,
                             int32_t num_hit_tokens,
                             int32_t num_external_tokens) {
    int32_t num_found_tokens = num_hit_tokens + num_external_tokens;
    int32_t num_missing_tokens = request->num_tokens - num_found_tokens;
    int32_t num_new_tokens = limit_to_step(scheduler, num_missing_tokens);
    int32_t num_drafts = 0;
    if (wants_draft_places(scheduler, num_found_tokens, num_missing_tokens)) {
        num_drafts = scheduler->config.max_draft_tokens;
        num_new_tokens += num_drafts;
        if (num_new_tokens > scheduler->budget) {
            return PKV_MORE;
        }
    }

    pkv_slots_args args = slots_args(scheduler, num_new_tokens);
    args.num_new_computed_tokens = num_hit_tokens;
    args.num_external_computed_tokens = num_external_tokens;
    args.full_sequence_must_fit = !scheduler->config.admit_partial_sequences;
    args.num_watermark_blocks =
        scheduler->step.num_entries > 0 ? scheduler->config.num_watermark_blocks : 0;
    pkv_status status = num_external_tokens > 0 ? scheduler_swap_in(scheduler, request, &args)
                                                : pkv_allocate_slots(scheduler->config.manager,
                                                                     request->handle, &args, NULL);
    if (status != PKV_OK) {
        return status;
    }
    count_hits(scheduler, request, num_hit_tokens);
    count_return(scheduler, request, num_hit_tokens, num_external_tokens);
    scheduler_start_running(scheduler, request);
    request->num_computed_tokens = num_found_tokens;
    request->skips_tier = false;
    if (request->is_loading) {
        request->is_prefilling = true;
        request->loading_step = scheduler->step.number;
    } else {
        scheduler_add_entry(scheduler, request, num_new_tokens, num_drafts);
    }
    return PKV_OK;
}

/* Returns PKV_OK, or why the request has to wait or go. */
static pkv_status admit(struct scheduler *scheduler, scheduler_request *request) {
    int32_t num_hit_tokens;
    int32_t num_external_tokens = 0;
    pkv_status status =
        pkv_get_computed_blocks(scheduler->config.manager, request->handle, &num_hit_tokens);
    if (status == PKV_OK) {
        status = scheduler_find_external(scheduler, request, num_hit_tokens, &num_external_tokens);
    }
    if (status != PKV_OK) {
        return status;
    }
    status = admit_with(scheduler, request, num_hit_tokens, num_external_tokens);
    if (status == PKV_NOT_FOUND && num_external_tokens > 0) {
        status = admit_with(scheduler, request, num_hit_tokens, 0);
    }
    return status;
}

/* The first that cannot be admitted ends it: overtaking would starve the long requests. */
static pkv_status admit_waiting(struct scheduler *scheduler) {
    scheduler->has_uniform_decodes = is_uniform(scheduler);
    while (scheduler->waiting.first != NULL && scheduler->budget > 0 &&
           scheduler->num_running < scheduler->config.max_running_requests) {
        scheduler_request *request = scheduler->waiting.first;
        pkv_status status = admit(scheduler, request);
        if (status == PKV_NEVER_FITS && !scheduler->config.keep_unfitting_requests) {
            scheduler_queue_remove(&scheduler->waiting, request);
            scheduler->stats.num_rejected++;
            status = scheduler_end_request(scheduler, request, SCHEDULER_REJECTED);
        }
        if (status != PKV_OK) {
            return status > PKV_OK ? PKV_OK : status;
        }
    }
    return PKV_OK;
}

static void begin_step(struct scheduler *scheduler) {
    scheduler_reuse_ended_requests(scheduler);
    scheduler->step = (scheduler_step){.number = scheduler->step.number + 1,
                                       .entries = scheduler->entries,
                                       .batch_entries = scheduler->batch_entries,
                                       .preempted = scheduler->preempted};
    scheduler->budget = scheduler->config.max_step_tokens;
    scheduler->step_hits = (scheduler_hits){0, 0, 0};
    scheduler->waits_for_swaps = false;
}

/* Computed tokens move on when a step is scheduled, not when it has run: the next step can then be
 * planned from the counts alone. */
static void finish_step(struct scheduler *scheduler) {
    for (int32_t i = 0; i < scheduler->step.num_entries; i++) {
        scheduler_request *request = scheduler->entries[i].request;
        request->num_computed_tokens += scheduler->entries[i].num_new_tokens;
        request->is_prefilling = request->num_computed_tokens < request->num_tokens;
    }
    scheduler->step.num_tokens = scheduler->config.max_step_tokens - scheduler->budget;
    scheduler->is_in_flight = scheduler->step.num_entries > 0;
    scheduler->stats.num_steps++;
    scheduler->stats.num_step_tokens += (uint64_t)scheduler->step.num_tokens;
    scheduler_window_add(&scheduler->window, scheduler->step_hits);
}

static void log_window(struct scheduler *scheduler) {
    if (scheduler->stats.num_steps % SCHEDULER_LOG_WINDOW_STEPS != 0) {
        return;
    }
    uint64_t num_preemptions =
        scheduler->stats.num_preemptions - scheduler->num_preemptions_at_window_start;
    scheduler->num_preemptions_at_window_start = scheduler->stats.num_preemptions;
    if (scheduler->config.log == NULL ||
        num_preemptions * SCHEDULER_LOG_STEPS_PER_PREEMPTION < SCHEDULER_LOG_WINDOW_STEPS) {
        return;
    }
    char text[320];
    snprintf(text, sizeof text,
             "%llu preemptions in the last %d steps, each %s: raise num_blocks "
             "(utilisation) or num_watermark_blocks (now %d), or lower max_running_requests "
             "(now %d) or max_step_tokens (now %d)",
             (unsigned long long)num_preemptions, SCHEDULER_LOG_WINDOW_STEPS,
             scheduler->config.swapping.tier == NULL ? "recomputed" : "recomputed or swapped",
             (int)scheduler->config.num_watermark_blocks,
             (int)scheduler->config.max_running_requests, (int)scheduler->config.max_step_tokens);
    scheduler->config.log(scheduler->config.log_context, PKV_LOG_WARNING, text);
}

pkv_status scheduler_schedule(struct scheduler *scheduler, const scheduler_step **out) {
    if (scheduler->is_in_flight) {
        return PKV_ERROR_BUSY;
    }
    begin_step(scheduler);
    pkv_status status = schedule_running(scheduler);
    /* Who was preempted for lack of blocks would only come back to be preempted again; and who runs
     * and waits for blocks comes before all who do not run. */
    if (status == PKV_OK && scheduler->step.num_preempted == 0 && !scheduler->waits_for_swaps) {
        status = admit_waiting(scheduler);
    }
    if (status != PKV_OK) {
        return status;
    }
    finish_step(scheduler);
    log_window(scheduler);
    *out = &scheduler->step;
    return PKV_OK;
}

/* ---- what the step computed ------------------------------------------------------------------ */

static bool output_is_valid(const scheduler_entry *entry, const scheduler_output *output) {
    if (entry->is_dropped) {
        return true;
    }
    if (entry->request->is_prefilling) {
        return output->num_tokens == 0;
    }
    return output->num_tokens >= 1 && output->num_tokens <= entry->num_drafts + 1;
}

/* A rejected draft was computed at its position, but the position will be computed again. Its block
 * stays with the request: the next tokens need it. */
static pkv_status accept_output(struct scheduler *scheduler,
                                const scheduler_entry *entry,
                                const scheduler_output *output) {
    scheduler_request *request = entry->request;
    if (entry->is_dropped || output->num_tokens == 0) {
        return PKV_OK;
    }
    int32_t num_accepted_drafts = output->num_tokens - 1;
    request->num_computed_tokens -= entry->num_drafts - num_accepted_drafts;
    scheduler->stats.num_draft_tokens += (uint64_t)entry->num_drafts;
    scheduler->stats.num_accepted_draft_tokens += (uint64_t)num_accepted_drafts;

    int32_t num_tokens =
        scheduler_minimum(output->num_tokens, request->max_num_tokens - request->num_tokens);
    pkv_status status = pkv_request_append(scheduler->config.manager, request->handle,
                                           output->token_ids, num_tokens);
    if (status != PKV_OK) {
        return status;
    }
    request->num_tokens += num_tokens;
    if (request->num_tokens < request->max_num_tokens) {
        return PKV_OK;
    }
    scheduler_stop_running(scheduler, request);
    scheduler->stats.num_finished++;
    return scheduler_end_request(scheduler, request, SCHEDULER_FINISHED);
}

pkv_status scheduler_complete_step(struct scheduler *scheduler, const scheduler_output *outputs) {
    if (!scheduler->is_in_flight) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    for (int32_t i = 0; i < scheduler->step.num_entries; i++) {
        if (!output_is_valid(&scheduler->entries[i], &outputs[i])) {
            return PKV_ERROR_INVALID_ARGUMENT;
        }
    }

    scheduler->is_in_flight = false;
    pkv_status status = PKV_OK;
    if (scheduler->config.track_steps) {
        status = pkv_step_complete(scheduler->config.manager, scheduler->step.number);
    }
    for (int32_t i = 0; i < scheduler->step.num_entries && status == PKV_OK; i++) {
        status = accept_output(scheduler, &scheduler->entries[i], &outputs[i]);
    }
    return status;
}

/* Who began to load in the step may have hit what it was to compute, so it goes back as well. From
 * the last to the first, so that the waiting queue keeps their order. */
pkv_status scheduler_fail_step(struct scheduler *scheduler) {
    if (!scheduler->config.track_steps) {
        return PKV_ERROR_UNSUPPORTED;
    }
    if (!scheduler->is_in_flight) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    scheduler->is_in_flight = false;
    pkv_status status = pkv_step_fail(scheduler->config.manager, scheduler->step.number);
    for (int32_t i = scheduler->num_running; i-- > 0 && status == PKV_OK;) {
        scheduler_request *request = scheduler->running[i];
        if (scheduler_find_entry(scheduler, request) != NULL ||
            request->loading_step == scheduler->step.number) {
            status = scheduler_take_back(scheduler, request);
        }
    }
    return status;
}
