/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The simulator with manners: it calls a manager as an engine may, in a random order, with chunked
 * prefill, drafts, steps in flight, preemption, external loads, aborts and failed steps, and lets
 * the content of blocks be checked at each read. */
#include "support/sim_engine.h"

#include <string.h>

static engine the_engine; /* too large for a stack; nothing here is allocated */

static model_request *request_at(engine *self, int32_t slot) {
    return &self->sim.model.requests[slot];
}

/* ---- open ------------------------------------------------------------------------------------ */

static void draw_media(engine *self, pkv_request_args *args, pkv_media *media) {
    int32_t offset = 0;

    args->media = media;
    args->num_media = 1 + sim_draw(&self->sim, self->sim.model.max_media_per_request < 3
                                                   ? self->sim.model.max_media_per_request
                                                   : 3);
    for (int32_t i = 0; i < args->num_media; i++) {
        int32_t which = sim_draw(&self->sim, SIM_NUM_MEDIA);
        memset(&media[i], 0, sizeof media[i]);
        media[i].digest[31] = (uint8_t)which;
        media[i].offset = offset + sim_draw(&self->sim, 6);
        media[i].num_tokens = 1 + 3 * which; /* the same thing always has the same length */
        offset = media[i].offset + media[i].num_tokens;
    }
}

static void do_open(engine *self) {
    static const char salts[2][MODEL_MAX_SALT] = {"a", "bee"};
    sim *base = &self->sim;
    int32_t tokens[ENGINE_MAX_TOKENS];
    pkv_media media[MODEL_MAX_MEDIA];
    pkv_request_args args = {.struct_size = sizeof args, .token_ids = tokens};
    int32_t room = base->model.max_model_len;
    int32_t slot;

    room =
        sim_once_in(base, 4) || room < 5 * base->model.alignment ? room : 5 * base->model.alignment;
    args.num_tokens = 1 + sim_draw(base, room);
    if (args.num_tokens <= base->model.alignment &&
        2 * base->model.alignment <= base->model.max_model_len && sim_once_in(base, 2)) {
        args.num_tokens += base->model.alignment;
    }
    args.max_num_tokens = args.num_tokens + sim_draw(base, 3 * base->model.alignment + 2);
    args.max_num_tokens = args.max_num_tokens < base->model.max_model_len
                              ? args.max_num_tokens
                              : base->model.max_model_len;
    sim_draw_tokens(base, tokens, ENGINE_MAX_TOKENS);
    if (sim_once_in(base, 6)) {
        args.salt = salts[sim_draw(base, 2)];
        args.salt_size = strlen(args.salt);
    }
    args.adapter_id = sim_once_in(base, 6) ? 1 : 0;
    if (sim_once_in(base, 6)) {
        draw_media(self, &args, media);
    }
    args.skip_cache_read = sim_once_in(base, 12);
    args.has_caller_keys = sim_once_in(base, 8);
    if (sim_call_open(base, &args, &slot) != PKV_OK || slot < 0) {
        return;
    }
    memset(&self->requests[slot], 0, sizeof self->requests[slot]);
    self->requests[slot].num_expected_tokens = args.num_tokens;
    memcpy(self->requests[slot].tokens, tokens, sizeof tokens);
    engine_compute_values(self, slot);
    if (args.has_caller_keys) {
        pkv_block_key keys[MODEL_MAX_TOKENS];
        int32_t count = sim_caller_keys(base, slot, keys);
        (void)sim_call_append_keys(base, request_at(self, slot)->handle, keys, count);
    }
}

/* ---- schedule -------------------------------------------------------------------------------- */

/* Whether the step being built may take another request. A synchronous engine builds none while one
 * is in flight. */
static bool has_room(const engine *self) {
    return self->steps[self->num_steps - 1].num_entries < ENGINE_MAX_ENTRIES &&
           self->num_steps <= self->max_flight;
}

void engine_add_entry(engine *self, int32_t slot, engine_entry *entry) {
    engine_request *own = &self->requests[slot];
    engine_step *step = engine_current(self);

    entry->slot = slot;
    entry->epoch = own->epoch;
    entry->handle = request_at(self, slot)->handle;
    memcpy(entry->values, own->values, sizeof entry->values);
    step->entries[step->num_entries++] = *entry;
    own->num_computed_tokens = entry->num_computed_tokens + entry->num_new_tokens;
    own->num_in_flight_tokens += entry->num_new_tokens;
    own->num_expected_tokens += entry->num_sampled;
    own->newest_step = step->number;
}

void engine_draw_work(engine *self, int32_t slot, engine_entry *entry) {
    const engine_request *own = &self->requests[slot];
    const model_request *request = request_at(self, slot);
    int32_t rest = own->num_expected_tokens - entry->num_computed_tokens;
    int32_t left = request->max_num_tokens - own->num_expected_tokens;
    int32_t num_drafts = 0;
    int32_t num_accepted;

    entry->first_wrong = INT32_MAX;
    entry->num_new_tokens = rest;
    if (rest > 1 && sim_once_in(&self->sim, 3)) {
        entry->num_new_tokens = 1 + sim_draw(&self->sim, rest - 1);
        return; /* a chunk: nothing is sampled */
    }
    if (rest == 1 && self->max_flight == 1 && sim_once_in(&self->sim, 3)) {
        num_drafts = sim_draw(&self->sim, 5);
        num_drafts = num_drafts < left ? num_drafts : left;
    }
    num_accepted = sim_draw(&self->sim, num_drafts + 1);
    entry->num_new_tokens += num_drafts;
    entry->num_rejected = num_drafts - num_accepted;
    if (entry->num_rejected > 0) {
        entry->first_wrong = own->num_expected_tokens + num_accepted;
    }
    entry->num_sampled = num_accepted + 1 < left ? num_accepted + 1 : left;
}

/* Arguments that any allocation of an engine may have. */
static pkv_slots_args draw_args(engine *self) {
    pkv_slots_args args = {.struct_size = sizeof args, .step = engine_step_argument(self)};

    args.num_lookahead_tokens = sim_once_in(&self->sim, 4) ? sim_draw(&self->sim, 5) : 0;
    args.delay_caching = sim_once_in(&self->sim, 8);
    return args;
}

static bool can_run(const engine *self, int32_t slot) {
    const engine_request *own = &self->requests[slot];

    return self->sim.model.requests[slot].is_open &&
           self->sim.model.requests[slot].row != PKV_NULL_ROW && !own->is_loading &&
           engine_can_compute(self, slot) && has_room(self) &&
           engine_find_entry(self, &self->steps[self->num_steps - 1], slot) < 0 &&
           own->num_expected_tokens > own->num_computed_tokens;
}

bool engine_can_admit(const engine *self, int32_t slot) {
    return self->sim.model.requests[slot].is_open &&
           self->sim.model.requests[slot].row == PKV_NULL_ROW && has_room(self);
}

/* The first slot from `slot` on for which that holds; `slot` itself when there is none. */
static int32_t look_for(const engine *self, int32_t slot, bool (*can)(const engine *, int32_t)) {
    for (int32_t i = 0; i < MODEL_MAX_REQUESTS; i++) {
        if (can(self, (slot + i) % MODEL_MAX_REQUESTS)) {
            return (slot + i) % MODEL_MAX_REQUESTS;
        }
    }
    return slot;
}

static void do_run(engine *self, int32_t slot) {
    const model_request *request = request_at(self, slot);
    const engine_request *own = &self->requests[slot];
    engine_entry entry = {.num_computed_tokens = own->num_computed_tokens};
    pkv_slots_args args;
    pkv_slots slots;

    if (!can_run(self, slot)) {
        return;
    }
    engine_draw_work(self, slot, &entry);
    args = draw_args(self);
    args.num_computed_tokens = own->num_computed_tokens;
    args.num_new_tokens = entry.num_new_tokens;
    args.num_in_flight_tokens = own->num_in_flight_tokens;
    entry.publishes_late = args.delay_caching;
    if (sim_call_allocate(&self->sim, request->handle, &args, &slots) == PKV_OK) {
        engine_add_entry(self, slot, &entry);
    }
}

/* Begin an asynchronous load: blocks now, content later, published when it is there. */
static void start_load(engine *self, int32_t slot, pkv_slots_args *args) {
    engine_request *own = &self->requests[slot];
    pkv_slots slots;

    args->num_new_tokens = 0;
    args->num_lookahead_tokens = 0;
    args->delay_caching = true;
    if (sim_call_allocate(&self->sim, request_at(self, slot)->handle, args, &slots) == PKV_OK) {
        own->is_loading = true;
        own->load_first = args->num_new_computed_tokens;
        own->load_end = own->load_first + args->num_external_computed_tokens;
        own->num_computed_tokens = own->load_end;
        own->load_step = engine_current(self)->number;
        own->newest_step = own->load_step;
    }
}

/* A block that loses its key while its step is being built no longer tells who published it, so
 * that withdrawing that one would not be refused: evict between steps. */
static bool may_evict(const engine *self) {
    return self->steps[self->num_steps - 1].num_entries == 0;
}

static void do_admit(engine *self, int32_t slot) {
    sim *base = &self->sim;
    const model_request *request = request_at(self, slot);
    engine_entry entry = {.num_computed_tokens = 0};
    pkv_slots_args args;
    pkv_slots slots;
    pkv_status status;
    int32_t hit;

    if (!engine_can_admit(self, slot) || sim_call_lookup(base, request->handle, &hit) != PKV_OK) {
        return;
    }
    if (may_evict(self) && sim_once_in(base, 20)) {
        pkv_block_id id = sim_draw(base, base->model.pool.num_blocks);
        (void)sim_call_evict(base, &id, 1);
    }
    args = draw_args(self);
    args.num_new_computed_tokens = hit;
    args.full_sequence_must_fit = sim_once_in(base, 2);
    args.num_watermark_blocks = sim_once_in(base, 4) ? sim_draw(base, 3) : 0;
    args.num_reserved_blocks = sim_once_in(base, 8) ? sim_draw(base, 3) : 0;
    if (request->num_tokens - hit > 1 && sim_once_in(base, 6)) {
        hit -= hit % base->model.alignment; /* what is loaded begins at a block */
        args.num_new_computed_tokens = hit;
        args.num_external_computed_tokens = 1 + sim_draw(base, request->num_tokens - hit - 1);
        if (sim_once_in(base, 2)) {
            start_load(self, slot, &args);
            return;
        }
    }
    entry.load_first = hit;
    entry.load_end = hit + args.num_external_computed_tokens;
    entry.num_computed_tokens = entry.load_end;
    engine_draw_work(self, slot, &entry);
    args.num_new_tokens = entry.num_new_tokens;
    entry.publishes_late = args.delay_caching;
    status = sim_call_allocate(base, request->handle, &args, &slots);
    if (status == PKV_OK) {
        engine_add_entry(self, slot, &entry);
    } else if (status == PKV_NEVER_FITS) {
        (void)sim_call_close(base, request->handle);
    }
}

static void do_finish_load(engine *self, int32_t slot) {
    engine_request *own = &self->requests[slot];

    if (!own->is_loading || own->load_step > self->num_executed) {
        return;
    }
    own->is_loading = false;
    if (sim_once_in(&self->sim, 8)) { /* the other end was lost */
        (void)sim_call_free(&self->sim, request_at(self, slot)->handle);
        engine_restart(self, slot);
        return;
    }
    engine_execute_load(self, slot);
    (void)sim_call_cache_blocks(&self->sim, request_at(self, slot)->handle,
                                own->num_computed_tokens);
}

/* ---- preempt, abort -------------------------------------------------------------------------- */

bool engine_withdraw(engine *self, int32_t slot) {
    engine_request *own = &self->requests[slot];
    engine_step *step = engine_current(self);
    int32_t index = engine_find_entry(self, step, slot);
    const engine_entry *entry;

    if (index < 0) {
        return true;
    }
    if (!self->is_tracked ||
        sim_call_unschedule(&self->sim, request_at(self, slot)->handle, step->number) != PKV_OK) {
        return false;
    }
    entry = &step->entries[index];
    own->num_computed_tokens = entry->num_computed_tokens;
    own->num_in_flight_tokens -= entry->num_new_tokens;
    own->num_expected_tokens -= entry->num_sampled;
    engine_remove_entry(step, index);
    return true;
}

void engine_give_back(engine *self, int32_t slot) {
    pkv_request handle = request_at(self, slot)->handle;
    uint64_t last = 0;

    for (int32_t i = 0; i < self->num_steps - 1; i++) {
        if (engine_find_entry(self, &self->steps[i], slot) >= 0) {
            last = self->steps[i].number;
        }
    }
    if (self->is_tracked && sim_once_in(&self->sim, 2) &&
        sim_call_free_after(&self->sim, handle, last) == PKV_OK) {
        return;
    }
    (void)sim_call_free(&self->sim, handle);
}

static void do_preempt(engine *self, int32_t slot) {
    const model_request *request = request_at(self, slot);
    engine_step *step = engine_current(self);
    int32_t index = engine_find_entry(self, step, slot);
    bool has_load =
        index >= 0 && (step->entries[index].load_end > step->entries[index].load_first ||
                       model_is_loading(&self->sim.model, request));

    if (request->row == PKV_NULL_ROW || self->requests[slot].is_loading ||
        !engine_withdraw(self, slot)) {
        return;
    }
    if (index >= 0 && !has_load && sim_once_in(&self->sim, 3)) {
        return; /* out of this step only: it keeps its blocks */
    }
    engine_give_back(self, slot);
    engine_restart(self, slot);
}

static void do_abort(engine *self, int32_t slot) {
    if (self->requests[slot].is_loading || !engine_withdraw(self, slot)) {
        return;
    }
    if (sim_once_in(&self->sim, 2)) {
        engine_give_back(self, slot);
    }
    (void)sim_call_close(&self->sim, request_at(self, slot)->handle);
}

/* ---- steps and the rest ---------------------------------------------------------------------- */

static void do_step(engine *self) {
    int32_t num_in_flight = self->num_steps - 1;

    if (num_in_flight > 0 && self->is_tracked && sim_once_in(&self->sim, 12)) {
        engine_fail(self);
    } else if (num_in_flight > 0 &&
               (num_in_flight == self->max_flight || sim_once_in(&self->sim, 2))) {
        engine_complete(self);
    } else if (engine_current(self)->num_entries > 0 || sim_once_in(&self->sim, 10)) {
        engine_launch(self);
    }
}

static void do_other(engine *self, int32_t slot) {
    sim *base = &self->sim;
    const engine_request *own = &self->requests[slot];
    pkv_block_id id = sim_draw(base, base->model.pool.num_blocks);

    switch (sim_draw(base, 8)) {
    case 0:
        if (may_evict(self)) {
            (void)sim_call_evict(base, &id, 1);
        }
        break;
    case 1:
        (void)sim_call_reset(base);
        break;
    case 2:
        (void)sim_call_mark_dirty(base);
        break;
    case 3:
        (void)sim_call_common_prefix(base, request_at(self, slot)->handle,
                                     sim_draw(base, base->model.num_groups));
        break;
    case 4:
        if (!own->is_loading) {
            (void)sim_call_remove_skipped(base, request_at(self, slot)->handle,
                                          own->num_computed_tokens - own->num_in_flight_tokens);
        }
        break;
    case 5:
        if (sim_once_in(base, 4)) {
            sim_call_faults(base);
        }
        break;
    default:
        (void)sim_call_take_events(base,
                                   sim_once_in(base, 3) ? sim_draw(base, 8) : MODEL_MAX_EVENTS);
        break;
    }
}

/* ---- the run --------------------------------------------------------------------------------- */

static void do_one(engine *self) {
    int32_t slot = sim_draw_slot(&self->sim);
    int32_t chosen = sim_draw(&self->sim, 100);

    if (slot >= 0 && self->sim.tier != NULL && sim_once_in(&self->sim, 4)) {
        engine_act_on_tier(self, slot);
    } else if (slot < 0 || chosen < 8) {
        do_open(self);
    } else if (chosen < 28) {
        do_admit(self, look_for(self, slot, engine_can_admit));
    } else if (chosen < 56) {
        do_run(self, look_for(self, slot, can_run));
    } else if (chosen < 60) {
        engine_fork(self, slot);
    } else if (chosen < 63) {
        engine_truncate(self, slot);
    } else if (chosen < 80) {
        do_step(self);
    } else if (chosen < 86) {
        do_finish_load(self, slot);
    } else if (chosen < 91) {
        do_preempt(self, slot);
    } else if (chosen < 94) {
        do_abort(self, slot);
    } else {
        do_other(self, slot);
    }
}

void sim_run_engine(
    test_source *source, int64_t max_steps, sim_log *log, sim_counts *counts, bool has_tier) {
    engine *self = &the_engine;

    if (!sim_open(&self->sim, source, log, counts, true, has_tier ? 1 : 0)) {
        return;
    }
    memset(self->swaps, 0, sizeof self->swaps);
    self->is_tracked = !sim_once_in(&self->sim, 6);
    self->max_flight = self->is_tracked ? 1 + sim_draw(&self->sim, ENGINE_MAX_STEPS - 1) : 1;
    self->num_executed = 0;
    self->num_steps = 1;
    memset(self->steps, 0, sizeof self->steps);
    engine_current(self)->number = 1;
    for (int32_t i = 0; i < MODEL_MAX_BLOCKS; i++) {
        for (int32_t j = 0; j < MODEL_MAX_BLOCK_SIZE; j++) {
            self->cache[i][j] = ENGINE_POISON;
            self->host[i][j] = ENGINE_POISON;
        }
    }
    for (log->step = 0;
         log->step < max_steps && !source->is_exhausted && !log->has_failed &&
         self->sim.model.contents.num_contents < MODEL_MAX_CONTENTS - MODEL_MAX_TOKENS;
         log->step++) {
        do_one(self);
        counts->num_steps++;
        if (!log->has_failed) {
            sim_compare(&self->sim);
        }
    }
    sim_close(&self->sim);
}
