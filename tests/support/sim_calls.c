/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The calls that change a manager: each on the library, then on the model, then compared. What can
 * be read afterwards is compared by sim_compare. */
#include "support/sim_manager.h"

#include <stddef.h>
#include <string.h>

pkv_status sim_judge(sim *self, pkv_status status, model_statuses allowed) {
    sim_expect_status(self->log, self->counts, status, allowed);
    return status;
}

static model_request *request_of(sim *self, pkv_request handle) {
    int32_t slot = model_find_request(&self->model, handle);

    return slot < 0 ? NULL : &self->model.requests[slot];
}

/* ---- requests -------------------------------------------------------------------------------- */

void sim_note_handle(sim *self, int32_t slot, pkv_request handle) {
    for (int32_t i = 0; i < self->num_handles; i++) {
        if (self->handles[i].index == handle.index &&
            self->handles[i].generation == handle.generation) {
            sim_problem(self->log, "I18: handle {%u, %u} was given out before", handle.index,
                        handle.generation);
        }
    }
    if (handle.generation == 0) {
        sim_problem(self->log, "I18: a handle of generation 0");
    }
    if (self->num_handles < SIM_MAX_HANDLES) {
        self->handles[self->num_handles++] = handle;
    }
    sim_digest(self->counts, (uint64_t)handle.index << 32 | handle.generation);
    self->model.requests[slot].handle = handle;
    self->states[slot] = (sim_request){0, 0, 0};
}

pkv_status sim_call_open(sim *self, const pkv_request_args *args, int32_t *slot) {
    pkv_request handle = {0, 0};
    pkv_status status;

    *slot = -1;
    sim_say(self->log,
            "open tokens %d of at most %d, salt %zu, adapter %llu, media %d, skip %d, "
            "caller keys %d",
            args->num_tokens, args->max_num_tokens, args->salt_size,
            (unsigned long long)args->adapter_id, args->num_media, args->skip_cache_read,
            args->has_caller_keys);
    status = sim_judge(self, pkv_request_open(self->manager, args, &handle),
                       model_open(&self->model, args, slot));
    if (status == PKV_OK && *slot >= 0) {
        sim_note_handle(self, *slot, handle);
        sim_learn_keys(self, *slot);
        sim_say_more(self->log, " -> {%u, %u}", handle.index, handle.generation);
    }
    return status;
}

pkv_status sim_call_append(sim *self,
                           pkv_request handle,
                           const int32_t *tokens,
                           int32_t num_tokens) {
    model_request *request = request_of(self, handle);
    pkv_status status;

    sim_say(self->log, "append {%u, %u} %d tokens", handle.index, handle.generation, num_tokens);
    status = sim_judge(self, pkv_request_append(self->manager, handle, tokens, num_tokens),
                       request == NULL ? MODEL_STALE
                                       : model_append(&self->model, request, tokens, num_tokens));
    if (status == PKV_OK && request != NULL) {
        sim_learn_keys(self, model_find_request(&self->model, handle));
    }
    return status;
}

pkv_status sim_call_append_keys(sim *self,
                                pkv_request handle,
                                const pkv_block_key *keys,
                                int32_t num_keys) {
    model_request *request = request_of(self, handle);

    sim_say(self->log, "append_keys {%u, %u} %d keys", handle.index, handle.generation, num_keys);
    return sim_judge(self, pkv_request_append_keys(self->manager, handle, keys, num_keys),
                     request == NULL ? MODEL_STALE
                                     : model_append_keys(&self->model, request, keys, num_keys));
}

pkv_status sim_call_close(sim *self, pkv_request handle) {
    model_request *request = request_of(self, handle);

    sim_say(self->log, "close {%u, %u}", handle.index, handle.generation);
    if (request != NULL) {
        model_close(&self->model, request);
    }
    return sim_judge(self, pkv_request_close(self->manager, handle),
                     request == NULL ? MODEL_STALE : MODEL_OK);
}

/* ---- lookup and allocate --------------------------------------------------------------------- */

static void compare_hit_tables(sim *self,
                               pkv_request handle,
                               const model_request *request,
                               int32_t whole) {
    pkv_block_id ids[MODEL_MAX_COLUMNS];
    model_table expected;

    for (int32_t group = 0; group < self->model.num_groups; group++) {
        int32_t num_blocks = -1;
        model_hit_table(&self->model, request, group, whole, &expected);
        if (pkv_get_computed_block_ids(self->manager, handle, group, ids, MODEL_MAX_COLUMNS,
                                       &num_blocks) != PKV_OK) {
            sim_problem(self->log, "the blocks of a hit cannot be read");
        }
        sim_expect_equal(self->log, "blocks of the hit", num_blocks, expected.num_blocks);
        for (int32_t i = 0; i < expected.num_blocks && !self->log->has_failed; i++) {
            if (ids[i] != expected.ids[i]) {
                sim_problem(self->log,
                            "hit of %d tokens, group %d, column %d: library %d, model %d", whole,
                            group, i, ids[i], expected.ids[i]);
            }
        }
        if (num_blocks > 0 &&
            pkv_get_computed_block_ids(self->manager, handle, group, ids, num_blocks - 1,
                                       &num_blocks) != PKV_ERROR_LIMIT) {
            sim_problem(self->log, "the blocks of a hit went into too small a capacity");
        }
    }
}

pkv_status sim_call_lookup(sim *self, pkv_request handle, int32_t *num_hit_tokens) {
    const model_request *request = request_of(self, handle);
    pkv_block_id sources[MODEL_MAX_GROUPS];
    int32_t hit = -1;
    pkv_status status;

    sim_say(self->log, "get_computed_blocks {%u, %u}", handle.index, handle.generation);
    status = sim_judge(self, pkv_get_computed_blocks(self->manager, handle, &hit),
                       request == NULL ? MODEL_STALE : MODEL_OK);
    *num_hit_tokens = status == PKV_OK ? hit : 0;
    if (status == PKV_OK && request != NULL) {
        int32_t whole = model_lookup(&self->model, request);
        sim_expect_equal(
            self->log, "hit tokens", hit,
            whole + model_partial(&self->model, request, whole, request->num_tokens - 1, sources));
        if (!self->log->has_failed) {
            compare_hit_tables(self, handle, request, whole);
        }
    }
    return status;
}

/* The row is the library's choice, within rules. */
void sim_adopt_row(sim *self, model_request *request, int32_t row) {
    if (request->row != PKV_NULL_ROW) {
        sim_expect_equal(self->log, "row", row, request->row);
        return;
    }
    if (row < 1 || row > self->model.max_rows) {
        sim_problem(self->log, "I13: row %d does not exist", row);
    }
    for (int32_t i = 0; i < MODEL_MAX_REQUESTS; i++) {
        if (self->model.requests[i].is_open && self->model.requests[i].row == row) {
            sim_problem(self->log, "I13: row %d is leased twice", row);
        }
    }
    request->row = row;
}

/* Make the call as callers may: with arguments of an older version, which end before the fields
 * that are zero here; with an out of an older version, or with none, where the row is read
 * afterwards. */
static pkv_status allocate_somehow(sim *self,
                                   pkv_request handle,
                                   const pkv_slots_args *args,
                                   pkv_slots *out) {
    const uint32_t short_size = (uint32_t)offsetof(pkv_slots_args, num_watermark_blocks);
    pkv_request_info info = {.struct_size = sizeof info};
    pkv_slots_args older = *args;
    pkv_status status;

    if (args->num_watermark_blocks == 0 && args->num_reserved_blocks == 0 && args->step == 0 &&
        !args->full_sequence_must_fit && !args->delay_caching && sim_once_in(self, 3)) {
        memset((unsigned char *)&older + short_size, 0x77, sizeof older - short_size);
        older.struct_size = short_size;
    }
    if (!sim_once_in(self, 8)) {
        return pkv_allocate_slots(self->manager, handle, &older, out);
    }
    if (sim_once_in(self, 2)) {
        out->struct_size = (uint32_t)offsetof(pkv_slots, num_new_blocks);
        status = pkv_allocate_slots(self->manager, handle, &older, out);
    } else {
        status = pkv_allocate_slots(self->manager, handle, &older, NULL);
        if (pkv_request_get_info(self->manager, handle, &info) == PKV_OK) {
            out->row = info.row;
        }
        out->struct_size = 0;
    }
    if (out->num_new_blocks != 0 || out->num_missing_blocks != 0) {
        sim_problem(self->log, "more was written than struct_size has room for");
    }
    return status;
}

static void compare_slots(sim *self,
                          pkv_status status,
                          const pkv_slots *out,
                          const pkv_slots *expected) {
    if (out->struct_size != sizeof *out) {
        return;
    }
    if (status == PKV_OK) {
        sim_expect_equal(self->log, "num_new_blocks", out->num_new_blocks,
                         expected->num_new_blocks);
        sim_expect_equal(self->log, "num_copies", out->num_copies, expected->num_copies);
    } else if (status == PKV_NO_FREE_BLOCKS) {
        sim_expect_equal(self->log, "num_missing_blocks", out->num_missing_blocks,
                         self->model.num_missing_blocks);
        sim_expect_equal(self->log, "num_pending_blocks", out->num_pending_blocks,
                         self->model.num_pending_blocks);
    }
}

pkv_status sim_call_allocate(sim *self,
                             pkv_request handle,
                             const pkv_slots_args *args,
                             pkv_slots *out) {
    model_request *request = request_of(self, handle);
    pkv_slots expected = {0};
    model_statuses allowed;
    pkv_status status;

    sim_say(self->log,
            "allocate {%u, %u} computed %d new %d hit %d external %d lookahead %d in flight %d "
            "watermark %d reserved %d must fit %d delay %d step %llu",
            handle.index, handle.generation, args->num_computed_tokens, args->num_new_tokens,
            args->num_new_computed_tokens, args->num_external_computed_tokens,
            args->num_lookahead_tokens, args->num_in_flight_tokens, args->num_watermark_blocks,
            args->num_reserved_blocks, args->full_sequence_must_fit, args->delay_caching,
            (unsigned long long)args->step);
    *out = (pkv_slots){.struct_size = sizeof *out};
    allowed =
        request == NULL ? MODEL_STALE : model_allocate(&self->model, request, args, &expected);
    status = sim_judge(self, allocate_somehow(self, handle, args, out), allowed);
    if (self->log->has_failed || request == NULL) {
        return status;
    }
    if (status == PKV_OK) {
        self->counts->num_hits += args->num_new_computed_tokens > 0 ? 1 : 0;
        self->counts->num_partial_hits +=
            args->num_new_computed_tokens % self->model.alignment > 0 ? 1 : 0;
        sim_adopt_row(self, request, out->row);
        sim_digest(self->counts, (uint64_t)out->row);
    }
    compare_slots(self, status, out, &expected);
    return status;
}

/* ---- publish, drop, free --------------------------------------------------------------------- */

pkv_status sim_call_cache_blocks(sim *self, pkv_request handle, int32_t num_tokens) {
    model_request *request = request_of(self, handle);

    sim_say(self->log, "cache_blocks {%u, %u} %d tokens", handle.index, handle.generation,
            num_tokens);
    return sim_judge(self, pkv_cache_blocks(self->manager, handle, num_tokens),
                     request == NULL ? MODEL_STALE
                                     : model_cache_blocks(&self->model, request, num_tokens));
}

pkv_status sim_call_remove_skipped(sim *self, pkv_request handle, int32_t num_tokens) {
    model_request *request = request_of(self, handle);

    sim_say(self->log, "remove_skipped_blocks {%u, %u} %d tokens", handle.index, handle.generation,
            num_tokens);
    return sim_judge(self, pkv_remove_skipped_blocks(self->manager, handle, num_tokens),
                     request == NULL ? MODEL_STALE
                                     : model_remove_skipped(&self->model, request, num_tokens));
}

pkv_status sim_call_free(sim *self, pkv_request handle) {
    model_request *request = request_of(self, handle);

    sim_say(self->log, "free {%u, %u}", handle.index, handle.generation);
    if (request != NULL) {
        model_free(&self->model, request);
    }
    return sim_judge(self, pkv_free(self->manager, handle),
                     request == NULL ? MODEL_STALE : MODEL_OK);
}

pkv_status sim_call_free_after(sim *self, pkv_request handle, uint64_t step) {
    model_request *request = request_of(self, handle);

    sim_say(self->log, "free_after {%u, %u} step %llu", handle.index, handle.generation,
            (unsigned long long)step);
    return sim_judge(self, pkv_free_after(self->manager, handle, step),
                     request == NULL ? MODEL_STALE : model_free_after(&self->model, request, step));
}

/* ---- steps and cache ------------------------------------------------------------------------- */

pkv_status sim_call_step_complete(sim *self, uint64_t step) {
    sim_say(self->log, "step_complete %llu", (unsigned long long)step);
    return sim_judge(self, pkv_step_complete(self->manager, step),
                     model_step_complete(&self->model, step));
}

pkv_status sim_call_step_fail(sim *self, uint64_t step) {
    sim_say(self->log, "step_fail %llu", (unsigned long long)step);
    return sim_judge(self, pkv_step_fail(self->manager, step), model_step_fail(&self->model, step));
}

pkv_status sim_call_unschedule(sim *self, pkv_request handle, uint64_t step) {
    model_request *request = request_of(self, handle);

    sim_say(self->log, "unschedule {%u, %u} step %llu", handle.index, handle.generation,
            (unsigned long long)step);
    return sim_judge(self, pkv_unschedule(self->manager, handle, step),
                     request == NULL ? MODEL_STALE : model_unschedule(&self->model, request, step));
}

pkv_status sim_call_evict(sim *self, const pkv_block_id *ids, int32_t num_blocks) {
    sim_say(self->log, "evict_blocks");
    for (int32_t i = 0; i < num_blocks; i++) {
        sim_say_more(self->log, " %d", ids[i]);
    }
    return sim_judge(self, pkv_evict_blocks(self->manager, ids, num_blocks),
                     model_evict(&self->model, ids, num_blocks));
}

pkv_status sim_call_reset(sim *self) {
    sim_say(self->log, "reset_prefix_cache");
    return sim_judge(self, pkv_reset_prefix_cache(self->manager), model_reset(&self->model));
}
