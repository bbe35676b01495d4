/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The engine forks requests and takes tokens back; both may go on with other tokens. */
#include "support/sim_engine.h"

#include <string.h>

static model_request *request_at(engine *self, int32_t slot) {
    return &self->sim.model.requests[slot];
}

/* Let a request go on with other tokens than were drawn for it, or with the same. */
static void draw_future(engine *self, int32_t slot) {
    engine_request *own = &self->requests[slot];
    int32_t first = request_at(self, slot)->num_tokens;

    if (!sim_once_in(&self->sim, 4)) {
        sim_draw_tokens(&self->sim, &own->tokens[first], ENGINE_MAX_TOKENS - first);
    }
    engine_compute_values(self, slot);
}

/* Append the token that was sampled for it, as a beam does. */
static void append_one(engine *self, int32_t slot) {
    engine_request *own = &self->requests[slot];
    const model_request *request = request_at(self, slot);
    pkv_block_key keys[MODEL_MAX_TOKENS];

    if (sim_call_append(&self->sim, request->handle, &own->tokens[request->num_tokens], 1) !=
        PKV_OK) {
        return;
    }
    own->num_expected_tokens = request->num_tokens;
    if (request->has_caller_keys) {
        int32_t count = sim_caller_keys(&self->sim, slot, keys);
        (void)sim_call_append_keys(&self->sim, request->handle, &keys[request->num_keys],
                                   count - request->num_keys);
    }
}

/* The first of these tokens whose block was published by the step that is being built: a request
 * that hit it reads what that step writes, and nobody may copy from it before. */
static int32_t first_unwritten(engine *self, int32_t slot, int32_t num_tokens) {
    const model_manager *model = &self->sim.model;
    uint64_t building = engine_current(self)->number;

    for (int32_t group = 0; group < model->num_groups && self->is_tracked; group++) {
        const model_table *table = &model->requests[slot].tables[group];
        int32_t block_size = model->groups[group].block_size;
        for (int32_t column = 0; column < table->num_blocks && column * block_size < num_tokens;
             column++) {
            if (model->pool.blocks[table->ids[column]].step == building) {
                num_tokens = column * block_size;
            }
        }
    }
    return num_tokens;
}

/* Tokens whose content is in the cache before the step that is being built. */
static int32_t num_written_before(engine *self, int32_t slot) {
    const engine_request *own = &self->requests[slot];
    const engine_step *step = engine_current(self);
    int32_t index = engine_find_entry(self, step, slot);
    int32_t count = own->num_computed_tokens;

    if (index >= 0) {
        const engine_entry *entry = &step->entries[index];
        bool has_load = entry->load_end > entry->load_first;
        count = has_load ? entry->load_first : entry->num_computed_tokens;
        count = self->is_tracked ? count : 0; /* who published what is not known */
    }
    count = first_unwritten(self, slot, count);
    return count < request_at(self, slot)->num_tokens ? count : request_at(self, slot)->num_tokens;
}

void engine_fork(engine *self, int32_t slot) {
    const model_request *parent = request_at(self, slot);
    engine_request *own;
    int32_t count;
    int32_t child;

    if (!parent->is_open || self->requests[slot].is_loading) {
        return;
    }
    count = num_written_before(self, slot);
    if (count == parent->num_tokens && count == parent->max_num_tokens) {
        count--;
    }
    if (count > 0 && sim_once_in(&self->sim, 3)) {
        count = sim_draw(&self->sim, count);
    }
    if (sim_call_fork(&self->sim, parent->handle, count, &child) != PKV_OK || child < 0) {
        return;
    }
    own = &self->requests[child];
    memcpy(own, &self->requests[slot], sizeof *own);
    own->num_computed_tokens = count;
    own->num_in_flight_tokens = 0;
    own->num_expected_tokens = parent->num_tokens;
    draw_future(self, child);
    if (count == parent->num_tokens ||
        (parent->num_tokens < parent->max_num_tokens && sim_once_in(&self->sim, 2))) {
        append_one(self, child);
    }
}

void engine_truncate(engine *self, int32_t slot) {
    engine_request *own = &self->requests[slot];
    const model_request *request = request_at(self, slot);
    int32_t num_tokens;

    if (!request->is_open || own->is_loading || own->num_in_flight_tokens > 0 ||
        engine_find_entry(self, engine_current(self), slot) >= 0 ||
        first_unwritten(self, slot, own->num_computed_tokens) < own->num_computed_tokens) {
        return;
    }
    num_tokens = 1 + sim_draw(&self->sim, request->num_tokens);
    if (sim_call_truncate(&self->sim, request->handle, num_tokens) != PKV_OK) {
        return;
    }
    own->epoch++;
    own->num_expected_tokens = num_tokens;
    draw_future(self, slot);
    if (own->num_computed_tokens >= num_tokens) {
        own->num_computed_tokens = num_tokens;
        if (num_tokens == request->max_num_tokens || sim_once_in(&self->sim, 2)) {
            own->num_computed_tokens--; /* its last token runs again, for its logits */
        } else {
            append_one(self, slot);
        }
    }
}
