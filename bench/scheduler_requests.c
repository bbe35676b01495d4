/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Requests come, are told things and go; and the life of the scheduler itself. Steps are
 * scheduler.c. */
#include "scheduler_state.h"

#include <stddef.h>
#include <stdlib.h>

/* ---- life ------------------------------------------------------------------------------------ */

static bool config_is_valid(const scheduler_config *config) {
    return config->manager != NULL && config->max_requests >= 1 && config->max_model_len >= 2 &&
           config->max_running_requests >= 0 && config->max_step_tokens >= 0 &&
           config->long_prefill_threshold >= 0 && config->max_draft_tokens >= 0 &&
           config->num_watermark_blocks >= 0 && scheduler_swapping_is_valid(&config->swapping);
}

/* Take `count` elements of `size` bytes from the end of what `offset` has given out so far. */
static size_t carve(size_t *offset, int32_t count, size_t size) {
    size_t start = *offset;
    size_t unit = sizeof(max_align_t);

    *offset += ((size_t)count * size + unit - 1) / unit * unit;
    return start;
}

pkv_status scheduler_create(const scheduler_config *config, struct scheduler **out) {
    *out = NULL;
    if (!config_is_valid(config)) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    int32_t max_requests = config->max_requests;
    int32_t max_running = config->max_running_requests;
    if (max_running == 0) {
        max_running = SCHEDULER_DEFAULT_MAX_RUNNING_REQUESTS;
    }

    int32_t max_copies = 0;
    if (config->swapping.tier != NULL) {
        pkv_tier_stats tier_stats = {.struct_size = sizeof tier_stats};
        (void)pkv_tier_get_stats(config->swapping.tier, &tier_stats);
        max_copies = tier_stats.num_blocks;
    }
    int32_t max_swaps = max_copies > 0 ? SCHEDULER_MAX_SWAPS : 0;

    size_t size = 0;
    size_t self = carve(&size, 1, sizeof(struct scheduler));
    size_t requests = carve(&size, max_requests, sizeof(scheduler_request));
    size_t ended = carve(&size, max_requests, sizeof(scheduler_request *));
    size_t running = carve(&size, max_running, sizeof(scheduler_request *));
    size_t preempted = carve(&size, max_running, sizeof(scheduler_request *));
    size_t entries = carve(&size, max_running, sizeof(scheduler_entry));
    size_t batch_entries = carve(&size, max_running, sizeof(pkv_batch_entry));
    size_t window = carve(&size, SCHEDULER_WINDOW_REQUESTS + 1, sizeof(scheduler_hits));
    size_t swaps = carve(&size, max_swaps, sizeof(scheduler_open_swap));
    size_t copies = carve(&size, max_copies, sizeof(pkv_block_copy));
    char *memory = calloc(1, size);
    if (memory == NULL) {
        return PKV_ERROR_OUT_OF_MEMORY;
    }

    struct scheduler *scheduler = (void *)(memory + self);
    scheduler->config = *config;
    scheduler->config.max_running_requests = max_running;
    if (config->max_step_tokens == 0) {
        scheduler->config.max_step_tokens = SCHEDULER_DEFAULT_MAX_STEP_TOKENS;
    }
    scheduler->waiting.policy = config->policy;
    scheduler->ended = (void *)(memory + ended);
    scheduler->running = (void *)(memory + running);
    scheduler->preempted = (void *)(memory + preempted);
    scheduler->entries = (void *)(memory + entries);
    scheduler->batch_entries = (void *)(memory + batch_entries);
    scheduler->swaps = (void *)(memory + swaps);
    scheduler->copies = (void *)(memory + copies);
    scheduler->max_copies = max_copies;
    scheduler_window_init(&scheduler->window, (void *)(memory + window), SCHEDULER_WINDOW_REQUESTS);
    scheduler_request *request = (void *)(memory + requests);
    for (int32_t i = max_requests; i-- > 0;) {
        request[i].next = scheduler->unused;
        scheduler->unused = &request[i];
    }
    *out = scheduler;
    return PKV_OK;
}

void scheduler_destroy(struct scheduler *scheduler) {
    free(scheduler);
}

/* ---- requests come, are told things, and go -------------------------------------------------- */

pkv_status scheduler_add(struct scheduler *scheduler,
                         const scheduler_request_args *args,
                         scheduler_request **out) {
    const scheduler_config *config = &scheduler->config;
    scheduler_request *request = scheduler->unused;

    if (args->num_tokens < 1 || args->num_tokens >= config->max_model_len ||
        args->max_output_tokens < 1) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    if (request == NULL) {
        return PKV_ERROR_LIMIT;
    }
    int32_t max_num_tokens =
        args->num_tokens +
        scheduler_minimum(args->max_output_tokens, config->max_model_len - args->num_tokens);
    pkv_request_args request_args = {.struct_size = sizeof(pkv_request_args),
                                     .token_ids = args->token_ids,
                                     .num_tokens = args->num_tokens,
                                     .max_num_tokens = max_num_tokens,
                                     .adapter_id = args->adapter_id,
                                     .salt = args->salt,
                                     .salt_size = args->salt_size,
                                     .skip_cache_read = args->skip_cache_read};
    pkv_request handle;
    pkv_status status = pkv_request_open(config->manager, &request_args, &handle);
    if (status != PKV_OK) {
        return status;
    }

    scheduler->unused = request->next;
    *request = (scheduler_request){.handle = handle,
                                   .id = scheduler->next_id++,
                                   .priority = args->priority,
                                   .arrival = args->arrival,
                                   .num_prompt_tokens = args->num_tokens,
                                   .num_tokens = args->num_tokens,
                                   .max_num_tokens = max_num_tokens,
                                   .skip_cache_read = args->skip_cache_read,
                                   .user_data = args->user_data};
    scheduler_queue_add(&scheduler->waiting, request);
    *out = request;
    return PKV_OK;
}

void scheduler_set_drafts(struct scheduler *scheduler,
                          scheduler_request *request,
                          int32_t num_drafts) {
    if (request->state == SCHEDULER_RUNNING && !request->is_prefilling) {
        request->num_drafts = scheduler_minimum(num_drafts, scheduler->config.max_draft_tokens);
    }
}

/* Drop the output that a step in flight will bring for the request; says whether there is one. */
static bool drop_entry(struct scheduler *scheduler, const scheduler_request *request) {
    scheduler_entry *entry =
        scheduler->is_in_flight ? scheduler_find_entry(scheduler, request) : NULL;

    if (entry != NULL) {
        entry->is_dropped = true;
    }
    return entry != NULL;
}

/* The step in flight still writes into the blocks, so a tracked one holds them to its end. */
pkv_status scheduler_abort(struct scheduler *scheduler, scheduler_request *request) {
    pkv_status status = PKV_OK;

    if (request->state == SCHEDULER_RUNNING) {
        bool is_in_flight = drop_entry(scheduler, request);
        if (is_in_flight && scheduler->config.track_steps) {
            status =
                pkv_free_after(scheduler->config.manager, request->handle, scheduler->step.number);
        }
        scheduler_stop_running(scheduler, request);
    } else if (request->state == SCHEDULER_WAITING || request->state == SCHEDULER_PREEMPTED) {
        scheduler_queue_remove(&scheduler->waiting, request);
    } else {
        return PKV_OK;
    }
    scheduler->stats.num_aborted++;
    return status == PKV_OK ? scheduler_end_request(scheduler, request, SCHEDULER_ABORTED) : status;
}

pkv_status scheduler_reset_prefix_cache(struct scheduler *scheduler, bool preempt_running) {
    if (scheduler->is_in_flight && scheduler->config.track_steps) {
        return PKV_ERROR_BUSY;
    }
    if (scheduler->num_swaps > 0) {
        return PKV_ERROR_BUSY;
    }
    pkv_status status = PKV_OK;
    while (preempt_running && scheduler->num_running > 0 && status == PKV_OK) {
        scheduler_request *request = scheduler->running[scheduler->num_running - 1];
        drop_entry(scheduler, request);
        scheduler->stats.num_preemptions++;
        status = scheduler_take_back(scheduler, request);
    }
    if (status == PKV_OK) {
        status = pkv_reset_prefix_cache(scheduler->config.manager);
    }
    if (status == PKV_OK && scheduler->config.swapping.tier != NULL) {
        status = pkv_tier_reset(scheduler->config.swapping.tier);
    }
    if (status == PKV_OK) {
        scheduler_window_clear(&scheduler->window);
    }
    return status;
}

/* ---- readers --------------------------------------------------------------------------------- */

scheduler_request *const *scheduler_get_running(const struct scheduler *scheduler,
                                                int32_t *num_running) {
    *num_running = scheduler->num_running;
    return scheduler->running;
}

const scheduler_request *scheduler_get_first_waiting(const struct scheduler *scheduler,
                                                     int32_t *num_waiting) {
    *num_waiting = scheduler->waiting.num_requests;
    return scheduler->waiting.first;
}

scheduler_request *const *scheduler_get_ended(const struct scheduler *scheduler,
                                              int32_t *num_ended) {
    *num_ended = scheduler->num_ended;
    return scheduler->ended;
}

void scheduler_get_stats(const struct scheduler *scheduler, scheduler_stats *out) {
    *out = scheduler->stats;
    out->num_open_swaps = scheduler->num_swaps;
    out->hit_rate = scheduler_window_get_hit_rate(&scheduler->window);
}
