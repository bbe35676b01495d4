/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The engine keeps blocks in a tier and loads them again: an array stands for the tier's medium,
 * copies run late, with the step that needs them, or never, and fail or are given up.
 *
 * The one idea: what a swap copies is read from the model, the content goes through the arrays; a
 * slot or a block that was handed out too early shows as another token in some read. */
#include "support/sim_engine.h"

#include <string.h>

static model_request *request_at(engine *self, int32_t slot) {
    return &self->sim.model.requests[slot];
}

static const model_swap *swap_at(const engine *self, int32_t place) {
    return &self->sim.tier_model.swaps[place];
}

/* Copy; or leave garbage in the targets, as a copy that failed half way does. */
static void run_copies(engine *self, int32_t place, bool succeeds) {
    const model_swap *swap = swap_at(self, place);

    for (int32_t f = 0; f < swap->num_flights; f++) {
        const model_flight *flight = &swap->flights[f];
        uint64_t *target = swap->is_inward ? self->cache[flight->block] : self->host[flight->slot];
        const uint64_t *source =
            swap->is_inward ? self->host[flight->slot] : self->cache[flight->block];
        for (int32_t i = 0; flight->block != PKV_NULL_BLOCK && i < MODEL_MAX_BLOCK_SIZE; i++) {
            target[i] = succeeds ? source[i] : ENGINE_GARBAGE;
        }
    }
    self->swaps[place].has_run = true;
    self->swaps[place].has_failed = !succeeds;
}

/* The open swap that loads a request, or -1. */
static int32_t load_of(const engine *self, int32_t slot) {
    const model_swap *swap = model_loading_swap(&self->sim.model, &self->sim.model.requests[slot]);

    return swap == NULL ? -1 : (int32_t)(swap - self->sim.tier_model.swaps);
}

bool engine_can_compute(const engine *self, int32_t slot) {
    int32_t place = load_of(self, slot);

    return place < 0 || self->swaps[place].is_bound ||
           (self->swaps[place].has_run && !self->swaps[place].has_failed);
}

void engine_run_loads(engine *self, const engine_step *step, bool succeeds) {
    for (int32_t i = 0; i < MODEL_MAX_SWAPS && self->sim.tier != NULL; i++) {
        engine_swap *swap = &self->swaps[i];
        if (swap_at(self, i)->is_open && swap_at(self, i)->is_inward && !swap->has_run &&
            swap->ready_step <= step->number && (swap->is_bound || sim_once_in(&self->sim, 3))) {
            run_copies(self, i, succeeds || sim_once_in(&self->sim, 2));
        }
    }
}

void engine_unbind_loads(engine *self) {
    for (int32_t i = 0; i < MODEL_MAX_SWAPS; i++) {
        self->swaps[i].is_bound = false;
    }
}

/* ---- out and in ------------------------------------------------------------------------------ */

/* Blocks of step 0 count as computed, so that nothing may be under way where steps have no
 * number. */
static bool may_swap_out(const engine *self) {
    return self->is_tracked || (self->num_steps == 1 && self->steps[0].num_entries == 0);
}

static void do_swap_out(engine *self, int32_t slot) {
    int32_t capacity = sim_once_in(&self->sim, 8) ? sim_draw(&self->sim, 4) : MODEL_MAX_FLIGHTS;
    int32_t place;

    if (may_swap_out(self) &&
        sim_call_swap_out(&self->sim, request_at(self, slot)->handle, capacity, &place) == PKV_OK &&
        place >= 0) {
        self->swaps[place] = (engine_swap){.has_run = false};
    }
}

static pkv_slots_args draw_load(engine *self, int32_t slot, int32_t hit, int32_t external) {
    pkv_slots_args args = {.struct_size = sizeof args, .step = engine_step_argument(self)};

    (void)slot;
    args.num_new_computed_tokens = hit;
    if (sim_once_in(&self->sim, 2)) {
        int32_t unit = self->sim.model.alignment;
        args.num_external_computed_tokens = sim_once_in(&self->sim, 3)
                                                ? unit * (1 + sim_draw(&self->sim, external / unit))
                                                : external;
    }
    args.num_lookahead_tokens = sim_once_in(&self->sim, 6) ? sim_draw(&self->sim, 5) : 0;
    args.full_sequence_must_fit = sim_once_in(&self->sim, 3);
    args.num_watermark_blocks = sim_once_in(&self->sim, 6) ? sim_draw(&self->sim, 3) : 0;
    return args;
}

/* Load, and perhaps compute behind that in the same step. */
static void do_swap_in(engine *self, int32_t slot) {
    sim *base = &self->sim;
    const model_request *request = request_at(self, slot);
    engine_request *own = &self->requests[slot];
    engine_entry entry = {.num_computed_tokens = 0};
    bool computes = sim_once_in(base, 2);
    pkv_slots_args args;
    int32_t hit;
    int32_t external;
    int32_t place;

    if (!engine_can_admit(self, slot) || sim_call_lookup(base, request->handle, &hit) != PKV_OK ||
        sim_call_tier_lookup(base, request->handle, hit, &external) != PKV_OK || external == 0) {
        return;
    }
    args = draw_load(self, slot, hit, external);
    if (args.num_external_computed_tokens > 0) {
        external = args.num_external_computed_tokens;
    }
    entry.num_computed_tokens = hit + external;
    entry.load_first = entry.load_end = hit + external;
    if (computes) {
        engine_draw_work(self, slot, &entry);
        args.num_new_tokens = entry.num_new_tokens;
    }
    if (sim_call_swap_in(base, request->handle, &args,
                         sim_once_in(base, 10) ? sim_draw(base, 4) : MODEL_MAX_FLIGHTS,
                         &place) != PKV_OK ||
        place < 0) {
        return;
    }
    self->swaps[place] =
        (engine_swap){.is_bound = computes, .ready_step = engine_current(self)->number};
    if (computes) {
        engine_add_entry(self, slot, &entry);
    } else {
        own->num_computed_tokens = hit + external;
        own->newest_step = engine_current(self)->number;
    }
}

/* ---- ends ------------------------------------------------------------------------------------ */

/* Run the copies where they may run now. */
static void run_if_ready(engine *self, int32_t place) {
    const model_swap *swap = swap_at(self, place);
    engine_swap *own = &self->swaps[place];

    if (!own->has_run &&
        (!swap->is_inward || (!own->is_bound && own->ready_step <= self->num_executed))) {
        run_copies(self, place, !sim_once_in(&self->sim, 6));
    }
}

/* Give a load up: whoever was loaded starts anew. False where that cannot be now. */
static bool abandon(engine *self, int32_t place) {
    for (int32_t slot = 0; slot < MODEL_MAX_REQUESTS; slot++) {
        if (!request_at(self, slot)->is_open || load_of(self, slot) != place) {
            continue;
        }
        if (!engine_withdraw(self, slot)) {
            return false;
        }
        engine_give_back(self, slot);
        engine_restart(self, slot);
    }
    return true;
}

static void do_end(engine *self, int32_t place) {
    const model_swap *swap = swap_at(self, place);
    engine_swap *own = &self->swaps[place];
    bool gives_up = sim_once_in(&self->sim, 6);

    if (!gives_up) {
        run_if_ready(self, place);
    }
    if (own->is_bound && !own->has_run) {
        return; /* a step that was launched, or will be, runs it */
    }
    if (own->has_run && !own->has_failed && !gives_up) {
        (void)sim_call_swap_end(&self->sim, swap->handle, true);
    } else if (gives_up || own->has_failed) {
        if (!swap->is_inward || abandon(self, place)) {
            (void)sim_call_swap_end(&self->sim, swap->handle, false);
        }
    }
}

static void do_detach(engine *self, int32_t place) {
    run_if_ready(self, place);
    if (self->swaps[place].has_run) {
        (void)sim_call_swap_detach(&self->sim, swap_at(self, place)->handle);
    }
}

/* ---- what is done ---------------------------------------------------------------------------- */

/* Keys go: of the tier, of one of its slots, or of a run of blocks, so that the tier is asked. */
static void forget(engine *self) {
    sim *base = &self->sim;
    pkv_block_id ids[MODEL_MAX_BLOCKS];
    int32_t count = 0;

    if (sim_once_in(base, 3)) {
        ids[0] = sim_draw(base, base->tier_model.pool.num_blocks);
        (void)sim_call_tier_evict(base, ids, 1);
    } else if (sim_once_in(base, 10)) {
        (void)sim_call_tier_reset(base);
    } else if (engine_current(self)->num_entries == 0) { /* as every eviction by hand */
        for (int32_t id = 1 + sim_draw(base, 3); id < base->model.pool.num_blocks; id++) {
            ids[count++] = id;
        }
        (void)sim_call_evict(base, ids, count);
    }
}

/* A request that holds nothing and of which the tier holds something, from `slot` on; else any that
 * holds nothing. */
static int32_t look_for_load(engine *self, int32_t slot) {
    int32_t found = slot;

    for (int32_t i = 0; i < MODEL_MAX_REQUESTS; i++) {
        int32_t at = (slot + i) % MODEL_MAX_REQUESTS;
        const model_request *request = request_at(self, at);
        int32_t hit;
        if (!engine_can_admit(self, at)) {
            continue;
        }
        found = at;
        hit = model_lookup(&self->sim.model, request);
        if (model_tier_lookup(&self->sim.tier_model, request, hit) > hit) {
            return at;
        }
    }
    return found;
}

/* Keep what a request has, and preempt it: what swapping is for. */
static void preempt_by_swap(engine *self, int32_t slot) {
    if (request_at(self, slot)->row == PKV_NULL_ROW || self->requests[slot].is_loading) {
        return;
    }
    do_swap_out(self, slot);
    if (engine_withdraw(self, slot)) {
        engine_give_back(self, slot);
        engine_restart(self, slot);
    }
}

/* A request that has a block to keep, from `slot` on; else `slot`. */
static int32_t look_for_victim(engine *self, int32_t slot) {
    for (int32_t i = 0; i < MODEL_MAX_REQUESTS; i++) {
        int32_t at = (slot + i) % MODEL_MAX_REQUESTS;
        const model_request *request = request_at(self, at);
        for (int32_t g = 0; g < self->sim.model.num_groups && request->is_open; g++) {
            for (int32_t column = 0; column < request->tables[g].num_blocks; column++) {
                const model_block *block =
                    &self->sim.model.pool.blocks[request->tables[g].ids[column]];
                if (block->content != MODEL_NO_CONTENT && block->step == 0) {
                    return at;
                }
            }
        }
    }
    return slot;
}

void engine_act_on_tier(engine *self, int32_t slot) {
    int32_t place = sim_draw(&self->sim, MODEL_MAX_SWAPS);
    int32_t chosen = sim_draw(&self->sim, 40);

    while (!swap_at(self, place)->is_open && place > 0) {
        place--;
    }
    if (chosen < 12) {
        do_swap_in(self, look_for_load(self, slot));
    } else if (chosen < 16) {
        do_swap_out(self, look_for_victim(self, slot));
    } else if (chosen < 24) {
        preempt_by_swap(self, look_for_victim(self, slot));
    } else if (chosen < 27) {
        forget(self);
    } else if (swap_at(self, place)->is_open && chosen < 30) {
        do_detach(self, place);
    } else if (swap_at(self, place)->is_open) {
        do_end(self, place);
    }
}
