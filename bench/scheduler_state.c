/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The moves between the scheduler's lists. Each keeps the lists and the manager in step; why a
 * request is moved is decided in scheduler.c. */
#include "scheduler_state.h"

void scheduler_start_running(struct scheduler *scheduler, scheduler_request *request) {
    scheduler_queue_remove(&scheduler->waiting, request);
    request->state = SCHEDULER_RUNNING;
    scheduler->running[scheduler->num_running++] = request;
}

void scheduler_stop_running(struct scheduler *scheduler, const scheduler_request *request) {
    int32_t position = 0;
    while (scheduler->running[position] != request) {
        position++;
    }
    for (int32_t i = position + 1; i < scheduler->num_running; i++) {
        scheduler->running[i - 1] = scheduler->running[i];
    }
    scheduler->num_running--;
    if (position < scheduler->cursor) {
        scheduler->cursor--;
    }
}

pkv_status scheduler_end_request(struct scheduler *scheduler,
                                 scheduler_request *request,
                                 scheduler_state state) {
    scheduler_leave_swaps(scheduler, request, true);
    request->state = state;
    scheduler->ended[scheduler->num_ended++] = request;
    return pkv_request_close(scheduler->config.manager, request->handle);
}

void scheduler_reuse_ended_requests(struct scheduler *scheduler) {
    for (int32_t i = scheduler->num_ended; i-- > 0;) {
        scheduler->ended[i]->next = scheduler->unused;
        scheduler->unused = scheduler->ended[i];
    }
    scheduler->num_ended = 0;
}

scheduler_entry *scheduler_find_entry(struct scheduler *scheduler,
                                      const scheduler_request *request) {
    for (int32_t i = 0; i < scheduler->step.num_entries; i++) {
        if (scheduler->entries[i].request == request) {
            return &scheduler->entries[i];
        }
    }
    return NULL;
}

void scheduler_add_entry(struct scheduler *scheduler,
                         scheduler_request *request,
                         int32_t num_new_tokens,
                         int32_t num_drafts) {
    int32_t index = scheduler->step.num_entries++;

    scheduler->entries[index] =
        (scheduler_entry){.request = request,
                          .num_computed_tokens = request->num_computed_tokens,
                          .num_new_tokens = num_new_tokens,
                          .num_drafts = num_drafts};
    scheduler->batch_entries[index] =
        (pkv_batch_entry){request->handle, request->num_computed_tokens, num_new_tokens};
    scheduler->budget -= num_new_tokens;
}

void scheduler_remove_entry(struct scheduler *scheduler, const scheduler_entry *entry) {
    int32_t index = (int32_t)(entry - scheduler->entries);

    scheduler->budget += entry->num_new_tokens;
    scheduler->step.num_entries--;
    for (int32_t i = index; i < scheduler->step.num_entries; i++) {
        scheduler->entries[i] = scheduler->entries[i + 1];
        scheduler->batch_entries[i] = scheduler->batch_entries[i + 1];
    }
}

pkv_status scheduler_take_back(struct scheduler *scheduler, scheduler_request *request) {
    pkv_status status = pkv_free(scheduler->config.manager, request->handle);
    if (status != PKV_OK) {
        return status;
    }
    scheduler_leave_swaps(scheduler, request, false);
    scheduler_stop_running(scheduler, request);
    request->state = SCHEDULER_PREEMPTED;
    request->num_lost_tokens = request->num_computed_tokens;
    request->num_computed_tokens = 0;
    request->num_drafts = 0;
    request->num_preemptions++;
    scheduler_queue_return(&scheduler->waiting, request);
    return PKV_OK;
}
