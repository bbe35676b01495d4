/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Calls of sharing.h, each on the library and on the model. */
#include "support/sim_manager.h"

static model_request *request_of(sim *self, pkv_request handle) {
    int32_t slot = model_find_request(&self->model, handle);

    return slot < 0 ? NULL : &self->model.requests[slot];
}

pkv_status sim_call_fork(sim *self,
                         pkv_request parent,
                         int32_t num_computed_tokens,
                         int32_t *slot) {
    model_request *request = request_of(self, parent);
    pkv_request_info info = {.struct_size = sizeof info};
    pkv_request handle = {0, 0};
    pkv_status status;

    *slot = -1;
    sim_say(self->log, "fork {%u, %u} computed %d", parent.index, parent.generation,
            num_computed_tokens);
    status =
        sim_judge(self, pkv_fork(self->manager, parent, num_computed_tokens, &handle),
                  request == NULL ? MODEL_STALE
                                  : model_fork(&self->model, request, num_computed_tokens, slot));
    if (status != PKV_OK || *slot < 0) {
        return status;
    }
    sim_note_handle(self, *slot, handle);
    self->states[*slot].num_computed_tokens = num_computed_tokens;
    if (pkv_request_get_info(self->manager, handle, &info) != PKV_OK) {
        sim_problem(self->log, "a child is not there");
    } else if (num_computed_tokens > 0) {
        sim_adopt_row(self, &self->model.requests[*slot], info.row);
    }
    sim_digest(self->counts, (uint64_t)info.row);
    sim_say_more(self->log, " -> {%u, %u}", handle.index, handle.generation);
    return status;
}

pkv_status sim_call_truncate(sim *self, pkv_request handle, int32_t num_tokens) {
    int32_t slot = model_find_request(&self->model, handle);
    pkv_status status;

    sim_say(self->log, "truncate {%u, %u} to %d tokens", handle.index, handle.generation,
            num_tokens);
    status =
        sim_judge(self, pkv_truncate(self->manager, handle, num_tokens),
                  slot < 0 ? MODEL_STALE
                           : model_truncate(&self->model, &self->model.requests[slot], num_tokens));
    if (status == PKV_OK && slot >= 0 && self->states[slot].num_computed_tokens > num_tokens) {
        self->states[slot].num_computed_tokens = num_tokens;
    }
    return status;
}

/* No block is a target twice, and none is both source and target. */
static void check_parallel(sim *self, const pkv_block_copy *copies, int32_t num_copies) {
    for (int32_t i = 0; i < num_copies; i++) {
        for (int32_t j = 0; j < num_copies; j++) {
            if (copies[i].source == copies[j].target ||
                (i != j && copies[i].target == copies[j].target)) {
                sim_problem(self->log, "I29: copies %d -> %d and %d -> %d in one list",
                            copies[i].source, copies[i].target, copies[j].source, copies[j].target);
            }
        }
    }
}

pkv_status sim_call_take_copies(
    sim *self, int32_t group, int32_t capacity, pkv_block_copy *copies, int32_t *num_copies) {
    static pkv_block_copy own[MODEL_MAX_BLOCKS];
    static pkv_block_copy expected[MODEL_MAX_BLOCKS];
    pkv_block_copy *out = copies == NULL ? own : copies;
    bool is_valid = group >= 0 && group < self->model.num_groups && capacity >= 0;
    int32_t count = 0;
    int32_t expected_count = 0;
    model_statuses allowed = MODEL_INVALID;
    pkv_status status;

    sim_say(self->log, "take_copies group %d capacity %d", group, capacity);
    if (is_valid) {
        allowed = MODEL_STATUS(
            model_take_copies(&self->model, group, expected, capacity, &expected_count));
    }
    status = sim_judge(self, pkv_take_copies(self->manager, group, out, capacity, &count), allowed);
    if (is_valid) {
        sim_expect_equal(self->log, "copies", count, expected_count);
        for (int32_t i = 0; i < count && !self->log->has_failed; i++) {
            sim_expect_equal(self->log, "source of a copy", out[i].source, expected[i].source);
            sim_expect_equal(self->log, "target of a copy", out[i].target, expected[i].target);
        }
        check_parallel(self, out, count);
        self->counts->num_copies += count;
    }
    if (num_copies != NULL) {
        *num_copies = count;
    }
    return status;
}
