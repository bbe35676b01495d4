/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Steps of the engine: what is handed to the device at launch, what the host does with the output,
 * and what it does when a step fails. */
#include "support/sim_engine.h"

#include <string.h>

uint64_t engine_step_argument(const engine *self) {
    return self->is_tracked ? self->steps[self->num_steps - 1].number : 0;
}

int32_t engine_find_entry(const engine *self, const engine_step *step, int32_t slot) {
    pkv_request handle = self->sim.model.requests[slot].handle;

    for (int32_t i = 0; i < step->num_entries; i++) {
        if (step->entries[i].slot == slot && step->entries[i].handle.index == handle.index &&
            step->entries[i].handle.generation == handle.generation) {
            return i;
        }
    }
    return -1;
}

void engine_remove_entry(engine_step *step, int32_t index) {
    for (int32_t i = index; i + 1 < step->num_entries; i++) {
        step->entries[i] = step->entries[i + 1];
    }
    step->num_entries--;
}

void engine_restart(engine *self, int32_t slot) {
    engine_request *own = &self->requests[slot];

    own->num_computed_tokens = 0;
    own->num_in_flight_tokens = 0;
    own->num_expected_tokens = self->sim.model.requests[slot].num_tokens;
    own->epoch++;
    own->is_loading = false;
}

/* ---- launch ---------------------------------------------------------------------------------- */

static void drain(engine *self, engine_step *step, int32_t group) {
    sim *base = &self->sim;
    pkv_status status = PKV_MORE;

    while (status == PKV_MORE && !base->log->has_failed) {
        status = sim_call_take_updates(
            base, group, sim_once_in(base, 3) ? 1 + sim_draw(base, 6) : SIM_MAX_UPDATES);
    }
    status = PKV_MORE;
    while (status == PKV_MORE && !base->log->has_failed) {
        int32_t count = 0;
        status = sim_call_take_fills(
            base, group, sim_once_in(base, 3) ? 1 + sim_draw(base, 4) : MODEL_MAX_BLOCKS,
            &step->fills[step->num_fills], &count);
        step->num_fills += count;
    }
    status = PKV_MORE;
    while (status == PKV_MORE && !base->log->has_failed) {
        int32_t count = 0;
        status = sim_call_take_copies(base, group, sim_once_in(base, 3) ? 1 : MODEL_MAX_BLOCKS,
                                      &step->copies[step->num_copies], &count);
        step->num_copies += count;
    }
}

static void build_batch(engine *self, engine_step *step, int32_t group) {
    static int32_t rows[ENGINE_MAX_ENTRIES + 8];
    static int32_t seq_lens[ENGINE_MAX_ENTRIES + 8];
    static int32_t query_start_loc[ENGINE_MAX_ENTRIES + 9];
    static int64_t slot_mapping[ENGINE_MAX_ENTRIES * ENGINE_MAX_TOKENS];
    pkv_batch_entry entries[ENGINE_MAX_ENTRIES];
    pkv_batch batch = {.struct_size = sizeof batch,
                       .max_requests = ENGINE_MAX_ENTRIES + 8,
                       .max_tokens = ENGINE_MAX_ENTRIES * ENGINE_MAX_TOKENS,
                       .padded_requests = sim_draw(&self->sim, ENGINE_MAX_ENTRIES + 8),
                       .padded_tokens = sim_draw(&self->sim, 200),
                       .rows = rows,
                       .seq_lens = seq_lens,
                       .query_start_loc = query_start_loc,
                       .slot_mapping = slot_mapping};

    for (int32_t i = 0; i < step->num_entries; i++) {
        const engine_entry *entry = &step->entries[i];
        entries[i] =
            (pkv_batch_entry){entry->handle, entry->num_computed_tokens, entry->num_new_tokens};
    }
    if (sim_call_batch_build(&self->sim, group, entries, step->num_entries, &batch) != PKV_OK) {
        sim_problem(self->sim.log, "a step that was allocated makes no batch");
        return;
    }
    for (int32_t i = 0; i < step->num_entries; i++) {
        engine_entry *entry = &step->entries[i];
        memcpy(entry->slots[group], &slot_mapping[query_start_loc[i]],
               sizeof(int64_t) * (size_t)entry->num_new_tokens);
        memcpy(entry->tables[group], self->sim.mirror[group][rows[i]],
               sizeof(pkv_block_id) * ENGINE_MAX_TOKENS);
    }
    if (sim_once_in(&self->sim, 6)) {
        (void)sim_call_export_csr(&self->sim, group, entries, step->num_entries,
                                  sim_once_in(&self->sim, 2), MODEL_MAX_COLUMNS * 4);
        (void)sim_call_export_padded(&self->sim, group, entries, step->num_entries,
                                     MODEL_MAX_COLUMNS / 2);
    }
}

void engine_launch(engine *self) {
    engine_step *step = engine_current(self);

    for (int32_t group = 0; group < self->sim.model.num_groups && !self->sim.log->has_failed;
         group++) {
        drain(self, step, group);
        if (!self->sim.log->has_failed) {
            build_batch(self, step, group);
        }
    }
    self->num_steps++;
    engine_current(self)->number = step->number + 1;
    engine_current(self)->num_entries = 0;
    engine_current(self)->num_fills = 0;
    engine_current(self)->num_copies = 0;
    engine_current(self)->has_run = false;
}

/* ---- complete -------------------------------------------------------------------------------- */

static void run(engine *self, engine_step *step) {
    if (!step->has_run) {
        engine_execute(self, step);
        step->has_run = true;
        self->num_executed = step->number;
    }
}

static void append_sampled(engine *self, const engine_entry *entry) {
    const engine_request *own = &self->requests[entry->slot];
    const model_request *request = &self->sim.model.requests[entry->slot];
    pkv_block_key keys[MODEL_MAX_TOKENS];

    if (entry->num_sampled == 0) {
        return;
    }
    (void)sim_call_append(&self->sim, entry->handle, &own->tokens[request->num_tokens],
                          entry->num_sampled);
    if (request->has_caller_keys) {
        int32_t count = sim_caller_keys(&self->sim, entry->slot, keys);
        (void)sim_call_append_keys(&self->sim, entry->handle, &keys[request->num_keys],
                                   count - request->num_keys);
    }
}

/* Output of one entry; a request that started anew since, or is gone, does not want it. */
static void process_output(engine *self, const engine_entry *entry) {
    engine_request *own = &self->requests[entry->slot];
    const model_request *request = &self->sim.model.requests[entry->slot];
    int32_t num_valid = entry->num_computed_tokens + entry->num_new_tokens - entry->num_rejected;

    if (model_find_request(&self->sim.model, entry->handle) != entry->slot ||
        own->epoch != entry->epoch) {
        return;
    }
    own->num_in_flight_tokens -= entry->num_new_tokens;
    own->num_computed_tokens -= entry->num_rejected;
    append_sampled(self, entry);
    if (entry->publishes_late || (self->max_flight > 1 && sim_once_in(&self->sim, 2))) {
        (void)sim_call_cache_blocks(&self->sim, entry->handle,
                                    num_valid < request->num_tokens ? num_valid
                                                                    : request->num_tokens);
    }
    if (request->num_tokens == request->max_num_tokens && own->num_in_flight_tokens == 0) {
        (void)sim_call_close(&self->sim, entry->handle);
    }
}

void engine_complete(engine *self) {
    engine_step *step = &self->steps[0];
    bool is_told_first = sim_once_in(&self->sim, 2);

    run(self, step);
    if (self->is_tracked && is_told_first) {
        (void)sim_call_step_complete(&self->sim, step->number);
    }
    for (int32_t i = 0; i < step->num_entries && !self->sim.log->has_failed; i++) {
        process_output(self, &step->entries[i]);
    }
    if (self->is_tracked && !is_told_first) {
        (void)sim_call_step_complete(&self->sim, step->number);
    }
    self->num_steps--;
    memmove(&self->steps[0], &self->steps[1], sizeof self->steps[0] * (size_t)self->num_steps);
}

/* ---- fail ------------------------------------------------------------------------------------ */

static void free_failed(engine *self, uint64_t number) {
    for (int32_t slot = 0; slot < MODEL_MAX_REQUESTS; slot++) {
        const model_request *request = &self->sim.model.requests[slot];
        if (request->is_open && request->row != PKV_NULL_ROW &&
            self->requests[slot].newest_step >= number) {
            (void)sim_call_free(&self->sim, request->handle);
            engine_restart(self, slot);
        }
    }
}

void engine_fail(engine *self) {
    int32_t first = sim_draw(&self->sim, self->num_steps - 1);
    uint64_t number = self->steps[first].number;
    bool frees_first = sim_once_in(&self->sim, 4);

    for (int32_t i = 0; i < first; i++) {
        run(self, &self->steps[i]);
    }
    for (int32_t i = first; i < self->num_steps - 1; i++) {
        engine_execute_failing(self, &self->steps[i]);
    }
    engine_unbind_loads(self);
    if (frees_first) {
        free_failed(self, number);
    }
    (void)sim_call_step_fail(&self->sim, number);
    free_failed(self, number);
    /* The number may be used again, or not; then its fills have yet to run. */
    if (self->num_executed >= number) {
        self->num_executed = number - 1;
    }
    self->num_steps = first + 1;
    engine_current(self)->number = number + (uint64_t)sim_draw(&self->sim, 3);
    engine_current(self)->num_entries = 0;
    engine_current(self)->num_fills = 0;
    engine_current(self)->num_copies = 0;
    engine_current(self)->has_run = false;
}
