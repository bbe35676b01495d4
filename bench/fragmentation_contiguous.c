/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Contiguous allocation: a request gets one range of slots at admission and keeps it to its end.
 * The three policies of the published comparison differ in how much they reserve.
 *
 * The one idea: nothing can be added to a range later, so a slot that is free while the queue's
 * head is refused is of no use to anybody until somebody leaves: it is external. */
#include "fragmentation.h"

#include "buddy.h"
#include "first_fit.h"

#include <stdio.h>
#include <stdlib.h>

struct contiguous_simulation {
    memory_state state;
    memory_layout layout;
    buddy *buddy;         /* or */
    first_fit *first_fit; /* by layout */
    memory_request head;  /* of the queue */
};

static int64_t get_reservation(const contiguous_simulation *simulation,
                               const memory_request *request) {
    int64_t power = 1;

    switch (simulation->layout) {
    case LAYOUT_MAX:
        return simulation->state.setup->max_length;
    case LAYOUT_POW2:
        while (power < request->num_total_tokens - request->num_input_tokens) {
            power *= 2;
        }
        return request->num_input_tokens + power;
    case LAYOUT_ORACLE:
    case LAYOUT_ORACLE_FIRST_FIT:
    case LAYOUT_PAGED:
        break;
    }
    return request->num_total_tokens;
}

static void take_next_head(contiguous_simulation *simulation) {
    simulation->head = memory_take_next(&simulation->state);
    simulation->head.num_wanted_slots = get_reservation(simulation, &simulation->head);
}

contiguous_simulation *contiguous_begin(const memory_setup *setup, memory_layout layout) {
    contiguous_simulation *simulation = calloc(1, sizeof(*simulation));

    if (simulation == NULL) {
        return NULL;
    }
    simulation->layout = layout;
    if (layout == LAYOUT_ORACLE_FIRST_FIT) {
        simulation->first_fit = first_fit_create(setup->num_slots);
    } else {
        simulation->buddy = buddy_create(setup->num_slots);
    }
    if ((simulation->buddy == NULL && simulation->first_fit == NULL) ||
        !memory_state_begin(&simulation->state, setup, 64)) {
        contiguous_end(simulation);
        return NULL;
    }
    take_next_head(simulation);
    return simulation;
}

void contiguous_end(contiguous_simulation *simulation) {
    if (simulation != NULL) {
        buddy_destroy(simulation->buddy);
        first_fit_destroy(simulation->first_fit);
        free(simulation->state.running);
        free(simulation);
    }
}

memory_state *contiguous_get_state(contiguous_simulation *simulation) {
    return &simulation->state;
}

int64_t contiguous_get_held(const contiguous_simulation *simulation,
                            const memory_request *request) {
    if (simulation->first_fit != NULL) {
        return request->num_wanted_slots;
    }
    return buddy_get_size(simulation->buddy, request->offset);
}

static int64_t get_num_free(const contiguous_simulation *simulation) {
    return simulation->first_fit != NULL ? first_fit_get_num_free_slots(simulation->first_fit)
                                         : buddy_get_num_free_slots(simulation->buddy);
}

static bool release(contiguous_simulation *simulation, const memory_request *request) {
    if (simulation->first_fit != NULL) {
        return first_fit_free(simulation->first_fit, request->offset, request->num_wanted_slots);
    }
    return buddy_free(simulation->buddy, request->offset) > 0;
}

/* Complete requests leave, the others grow by one token. */
static bool advance(contiguous_simulation *simulation) {
    memory_state *state = &simulation->state;
    int32_t num_kept = 0;

    for (int32_t i = 0; i < state->num_running; i++) {
        memory_request request = state->running[i];

        if (request.num_live_tokens == request.num_total_tokens) {
            if (!release(simulation, &request)) {
                snprintf(state->error, MEMORY_MAX_ERROR, "no range at offset %lld to give back",
                         (long long)request.offset);
                return false;
            }
            state->num_finished++;
            continue;
        }
        request.num_live_tokens++;
        state->num_written_tokens++;
        state->running[num_kept++] = request;
    }
    state->num_running = num_kept;
    return true;
}

static bool admit(contiguous_simulation *simulation) {
    memory_state *state = &simulation->state;

    for (;;) {
        memory_request *head = &simulation->head;

        head->offset = simulation->first_fit != NULL
                           ? first_fit_allocate(simulation->first_fit, head->num_wanted_slots)
                           : buddy_allocate(simulation->buddy, head->num_wanted_slots);
        state->is_head_refused = head->offset < 0;
        state->was_enough_free =
            head->offset < 0 && get_num_free(simulation) >= head->num_wanted_slots;
        if (state->is_head_refused) {
            return true;
        }
        head->num_live_tokens = head->num_input_tokens;
        state->num_written_tokens += head->num_input_tokens;
        if (!memory_add_running(state, head)) {
            return false;
        }
        take_next_head(simulation);
    }
}

bool contiguous_step(contiguous_simulation *simulation, slot_counts *counts) {
    memory_state *state = &simulation->state;
    int64_t num_held_slots = 0;

    if (!advance(simulation) || !admit(simulation)) {
        return false;
    }
    *counts = (slot_counts){{0}};
    for (int32_t i = 0; i < state->num_running; i++) {
        const memory_request *request = &state->running[i];
        int64_t num_held = contiguous_get_held(simulation, request);

        counts->slots[SLOTS_LIVE] += request->num_live_tokens;
        counts->slots[SLOTS_RESERVED] += request->num_total_tokens - request->num_live_tokens;
        counts->slots[SLOTS_INTERNAL] += request->num_wanted_slots - request->num_total_tokens;
        counts->slots[SLOTS_EXTERNAL] += num_held - request->num_wanted_slots;
        num_held_slots += num_held;
    }

    int64_t num_free = get_num_free(simulation);

    if (num_held_slots + num_free != state->setup->num_slots) {
        snprintf(state->error, MEMORY_MAX_ERROR, "%lld slots held and %lld free are not %lld",
                 (long long)num_held_slots, (long long)num_free,
                 (long long)state->setup->num_slots);
        return false;
    }
    counts->slots[state->is_head_refused ? SLOTS_EXTERNAL : SLOTS_FREE] += num_free;
    return true;
}
