/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The simulator without manners: any call at any time, with numbers that mostly make sense and
 * sometimes do not. Only the answers of the model count; the content of blocks is not followed. */
#include "support/sim_manager.h"

#include <string.h>

#define MAX_APPEND 8
#define MAX_ENTRIES 12
#define MAX_BATCH_TOKENS 1024

static sim the_sim; /* too large for a stack; nothing here is allocated */

/* ---- drawing --------------------------------------------------------------------------------- */

/* A handle: mostly of an open request, else a closed one or one that never was. */
static pkv_request draw_handle(sim *self, int32_t *slot) {
    static const pkv_request foreign[] = {
        {0, 0}, {0, 77}, {UINT32_MAX, UINT32_MAX}, {1u << 30, 1}, {2, 0}};
    pkv_request handle;

    *slot = sim_draw_slot(self);
    if (*slot >= 0 && !sim_once_in(self, 30)) {
        return self->model.requests[*slot].handle;
    }
    handle = foreign[sim_draw(self, 5)];
    if (self->num_handles > 0 && sim_once_in(self, 2)) {
        handle = self->handles[sim_draw(self, self->num_handles)];
    }
    *slot = model_find_request(&self->model, handle);
    return handle;
}

static int32_t draw_group(sim *self) {
    static const int32_t wrong[] = {-1, INT32_MIN, INT32_MAX, 255};

    if (sim_once_in(self, 30)) {
        return sim_once_in(self, 2) ? self->model.num_groups : wrong[sim_draw(self, 4)];
    }
    return sim_draw(self, self->model.num_groups);
}

/* A count that should be `right`. */
static int32_t distort(sim *self, int32_t right) {
    static const int32_t wrong[] = {-1, INT32_MIN, INT32_MAX, INT32_MAX - 1, 1 << 20};

    if (sim_once_in(self, 40)) {
        return wrong[sim_draw(self, 5)];
    }
    return sim_once_in(self, 12) ? sim_draw(self, right + 4) : right;
}

static uint64_t draw_step(sim *self) {
    switch (sim_draw(self, 20)) {
    case 0:
    case 1:
    case 5:
        return 0;
    case 2:
        return self->step > 2 ? self->step - (uint64_t)sim_draw(self, 3) : self->step;
    case 3:
        return ++self->step;
    case 4:
        return sim_once_in(self, 12) ? self->step + (UINT64_C(1) << 32) + 1 : self->step + 2;
    default:
        return self->step == 0 ? ++self->step : self->step;
    }
}

/* ---- requests -------------------------------------------------------------------------------- */

static void draw_media(sim *self, pkv_request_args *args, pkv_media *media) {
    int32_t offset = 0;

    args->media = media;
    args->num_media = 1 + sim_draw(self, MODEL_MAX_MEDIA);
    for (int32_t i = 0; i < args->num_media; i++) {
        memset(&media[i], 0, sizeof media[i]);
        media[i].digest[sim_draw(self, 2) * 31] = (uint8_t)sim_draw(self, SIM_NUM_MEDIA);
        media[i].offset = offset + sim_draw(self, 6);
        media[i].num_tokens = 1 + sim_draw(self, 9);
        offset = media[i].offset + media[i].num_tokens;
    }
    if (sim_once_in(self, 20)) {
        media[sim_draw(self, args->num_media)].num_tokens = 0;
    }
    if (args->num_media > 1 && sim_once_in(self, 20)) {
        media[1].offset = media[0].offset;
    }
}

static void do_open(sim *self) {
    static const char salts[2][MODEL_MAX_SALT] = {"a", "bee"};
    int32_t tokens[MODEL_MAX_TOKENS];
    pkv_media media[MODEL_MAX_MEDIA];
    pkv_request_args args = {.struct_size = sizeof args, .token_ids = tokens};
    int32_t slot;

    args.num_tokens = 1 + sim_draw(self, self->model.max_model_len);
    if (!sim_once_in(self, 4) && args.num_tokens > 4 * self->model.alignment) {
        args.num_tokens = 1 + sim_draw(self, 4 * self->model.alignment);
    }
    if (args.num_tokens <= self->model.alignment &&
        2 * self->model.alignment <= self->model.max_model_len && sim_once_in(self, 2)) {
        args.num_tokens += self->model.alignment;
    }
    args.max_num_tokens = args.num_tokens + sim_draw(self, 12);
    if (args.max_num_tokens > self->model.max_model_len || sim_once_in(self, 8)) {
        args.max_num_tokens = 0;
    }
    sim_draw_tokens(self, tokens, args.num_tokens);
    if (sim_once_in(self, 30)) {
        args.num_tokens = sim_once_in(self, 2) ? 0 : -args.num_tokens;
    }
    if (sim_once_in(self, 30)) {
        args.max_num_tokens = sim_once_in(self, 2) ? -1 : self->model.max_model_len + 1;
    }
    if (sim_once_in(self, 8)) {
        args.salt = salts[sim_draw(self, 2)];
        args.salt_size = strlen(args.salt);
    }
    args.adapter_id = sim_once_in(self, 8) ? 1 + (uint64_t)sim_draw(self, 2) : 0;
    if (sim_once_in(self, 8)) {
        draw_media(self, &args, media);
    }
    args.skip_cache_read = sim_once_in(self, 10);
    args.has_caller_keys = sim_once_in(self, 8);
    (void)sim_call_open(self, &args, &slot);
}

static void do_append(sim *self) {
    int32_t tokens[MAX_APPEND];
    int32_t slot;
    pkv_request handle = draw_handle(self, &slot);
    int32_t num_tokens = 1 + sim_draw(self, MAX_APPEND);

    sim_draw_tokens(self, tokens, num_tokens);
    if (sim_once_in(self, 40)) {
        num_tokens = sim_once_in(self, 2) ? 0 : -1;
    }
    (void)sim_call_append(self, handle, tokens, num_tokens);
}

/* Keys as a caller computes them; or, at times, keys that mean nothing and collide. */
static void do_append_keys(sim *self) {
    pkv_block_key keys[MODEL_MAX_TOKENS + 2] = {{0, 0, 0}};
    int32_t slot;
    pkv_request handle = draw_handle(self, &slot);
    int32_t num_keys = 1;
    const model_request *request;

    for (int32_t tries = 0; tries < 4 && slot >= 0; tries++) {
        if (self->model.requests[slot].has_caller_keys) {
            break;
        }
        handle = draw_handle(self, &slot);
    }
    request = slot >= 0 ? &self->model.requests[slot] : NULL;
    if (request != NULL && request->has_caller_keys) {
        int32_t num_all = sim_caller_keys(self, slot, keys);
        num_keys = num_all - request->num_keys;
        memmove(keys, &keys[request->num_keys], sizeof *keys * (size_t)num_keys);
        if (sim_once_in(self, 4)) {
            num_keys = sim_draw(self, num_keys + 2);
        }
        if (sim_once_in(self, 3)) {
            self->has_false_keys = true;
            for (int32_t i = 0; i < num_keys; i++) {
                uint64_t number = (uint64_t)sim_draw(self, SIM_NUM_CALLER_KEYS);
                keys[i] = (pkv_block_key){1 + number / 2, 7, number};
            }
        }
    }
    (void)sim_call_append_keys(self, handle, keys, sim_once_in(self, 40) ? -1 : num_keys);
}

static void do_close(sim *self) {
    int32_t slot;
    pkv_request handle = draw_handle(self, &slot);

    (void)sim_call_close(self, handle);
}

/* ---- lookup and allocate --------------------------------------------------------------------- */

static void do_lookup(sim *self) {
    int32_t slot;
    pkv_request handle = draw_handle(self, &slot);
    int32_t hit;

    (void)sim_call_lookup(self, handle, &hit);
}

static bool is_sparse(const sim *self) {
    for (int32_t i = 0; i < self->model.num_groups; i++) {
        if (self->model.groups[i].retention_interval != PKV_RETENTION_DENSE) {
            return true;
        }
    }
    return false;
}

/* How much of the prompt the caller says is cached. With sparse retention it is what the lookup
 * says: what another hit makes of the boundary that is to be retained is nobody's promise. */
static int32_t draw_hit(sim *self, pkv_request handle) {
    int32_t hit = 0;
    int32_t taste = sim_draw(self, 10);

    if (taste == 0 && !is_sparse(self)) {
        return 0;
    }
    (void)sim_call_lookup(self, handle, &hit);
    if (taste == 1 && !is_sparse(self)) {
        hit -= self->model.alignment;
        return hit < 0 ? 0 : hit;
    }
    if (taste == 2) {
        return hit + sim_draw(self, 2 * self->model.alignment + 1);
    }
    return hit;
}

static void draw_slots_args(sim *self, int32_t slot, pkv_request handle, pkv_slots_args *args) {
    const model_request *request = slot >= 0 ? &self->model.requests[slot] : NULL;
    int32_t computed = slot >= 0 ? self->states[slot].num_computed_tokens : 0;
    int32_t rest;

    *args = (pkv_slots_args){.struct_size = sizeof *args};
    if (request != NULL && request->row == PKV_NULL_ROW) {
        computed = 0;
        args->num_new_computed_tokens = draw_hit(self, handle);
    }
    rest = (request != NULL ? request->num_tokens : 8) - computed - args->num_new_computed_tokens;
    rest = rest < 1 ? 1 : rest;
    if (sim_once_in(self, 6)) {
        args->num_external_computed_tokens = sim_draw(self, rest);
    }
    rest -= args->num_external_computed_tokens;
    args->num_new_tokens = sim_once_in(self, 3) ? 1 + sim_draw(self, rest) : rest;
    if (args->num_external_computed_tokens > 0 && sim_once_in(self, 2)) {
        args->num_new_tokens = 0;
    }
    args->num_new_tokens += sim_once_in(self, 6) ? sim_draw(self, 4) : 0; /* drafts */
    args->num_new_tokens = distort(self, args->num_new_tokens);
    args->num_computed_tokens = distort(self, computed);
    args->num_lookahead_tokens = sim_once_in(self, 4) ? distort(self, sim_draw(self, 6)) : 0;
    args->num_in_flight_tokens =
        sim_once_in(self, 3) ? distort(self, sim_draw(self, computed + 1)) : 0;
    args->num_watermark_blocks = sim_once_in(self, 5) ? distort(self, sim_draw(self, 4)) : 0;
    args->num_reserved_blocks = sim_once_in(self, 8) ? distort(self, sim_draw(self, 4)) : 0;
    args->full_sequence_must_fit = sim_once_in(self, 4);
    args->delay_caching = sim_once_in(self, 8);
    args->step = draw_step(self);
}

static void do_allocate(sim *self) {
    int32_t slot;
    pkv_request handle = draw_handle(self, &slot);
    const model_swap *load;
    pkv_slots_args args;
    pkv_slots slots;

    draw_slots_args(self, slot, handle, &args);
    /* What is being loaded is not computed at the same time. */
    load = slot < 0 ? NULL : model_loading_swap(&self->model, &self->model.requests[slot]);
    if (load != NULL && args.num_computed_tokens < load->num_tokens) {
        args.num_computed_tokens = load->num_tokens;
    }
    if (sim_call_allocate(self, handle, &args, &slots) == PKV_OK && slot >= 0) {
        int64_t computed = (int64_t)args.num_computed_tokens + args.num_new_computed_tokens +
                           args.num_external_computed_tokens + args.num_new_tokens;
        int32_t num_tokens = self->model.requests[slot].num_tokens;
        self->states[slot].num_computed_tokens =
            computed < num_tokens ? (int32_t)computed : num_tokens;
    }
}

/* ---- publish, drop, free, steps -------------------------------------------------------------- */

static void do_cache_blocks(sim *self) {
    int32_t slot;
    pkv_request handle = draw_handle(self, &slot);
    int32_t computed = slot >= 0 ? self->states[slot].num_computed_tokens : 3;

    (void)sim_call_cache_blocks(self, handle, distort(self, computed));
}

static void do_remove_skipped(sim *self) {
    int32_t slot;
    pkv_request handle = draw_handle(self, &slot);
    int32_t computed = slot >= 0 ? self->states[slot].num_computed_tokens : 3;

    (void)sim_call_remove_skipped(self, handle, distort(self, sim_draw(self, computed + 1)));
}

static void do_free(sim *self) {
    int32_t slot;
    pkv_request handle = draw_handle(self, &slot);

    if (sim_once_in(self, 3)) {
        (void)sim_call_free_after(self, handle, draw_step(self));
    } else {
        (void)sim_call_free(self, handle);
    }
}

static void do_step(sim *self) {
    uint64_t step = draw_step(self);
    int32_t slot;
    pkv_request handle;

    switch (sim_draw(self, 4)) {
    case 0:
        (void)sim_call_step_fail(self, step);
        break;
    case 1:
        handle = draw_handle(self, &slot);
        (void)sim_call_unschedule(self, handle, step);
        break;
    default:
        (void)sim_call_step_complete(self, step);
        break;
    }
}

static void do_evict(sim *self) {
    pkv_block_id ids[6];
    int32_t count = sim_draw(self, 7);

    for (int32_t i = 0; i < count; i++) {
        ids[i] = sim_draw(self, self->model.pool.num_blocks);
        if (sim_once_in(self, 60)) {
            ids[i] = sim_once_in(self, 2) ? -1 : self->model.pool.num_blocks;
        }
    }
    (void)sim_call_evict(self, ids, count);
}

static void do_reset(sim *self) {
    if (sim_once_in(self, 2)) {
        for (int32_t i = 0; i < MODEL_MAX_REQUESTS; i++) {
            if (self->model.requests[i].is_open) {
                (void)sim_call_free(self, self->model.requests[i].handle);
            }
        }
        (void)sim_call_step_complete(self, self->step + 3);
        self->step += 3;
    }
    (void)sim_call_reset(self);
}

/* ---- readers --------------------------------------------------------------------------------- */

static void do_batch(sim *self) {
    static int32_t rows[MAX_BATCH_TOKENS];
    static int32_t seq_lens[MAX_BATCH_TOKENS];
    static int32_t query_start_loc[MAX_BATCH_TOKENS + 1];
    static int64_t slot_mapping[MAX_BATCH_TOKENS];
    pkv_batch_entry entries[MAX_ENTRIES];
    pkv_batch batch = {.struct_size = sizeof batch};
    int32_t group = draw_group(self);
    int32_t num_entries = sim_draw(self, MAX_ENTRIES + 1);

    for (int32_t i = 0; i < num_entries; i++) {
        int32_t slot;
        entries[i].request = draw_handle(self, &slot);
        entries[i].num_computed_tokens = 0;
        entries[i].num_new_tokens = 0;
        if (slot >= 0 && self->model.requests[slot].row != PKV_NULL_ROW) {
            int32_t live = self->model.requests[slot].num_live_tokens;
            entries[i].num_computed_tokens = sim_draw(self, live + 1);
            entries[i].num_new_tokens = live - entries[i].num_computed_tokens;
        }
        if (sim_once_in(self, 60)) {
            entries[i].num_new_tokens = distort(self, entries[i].num_new_tokens + 40);
        }
    }
    if (sim_once_in(self, 3)) {
        (void)sim_call_export_padded(self, group, entries, num_entries,
                                     sim_draw(self, MODEL_MAX_COLUMNS) - 1);
        return;
    }
    if (sim_once_in(self, 2)) {
        (void)sim_call_export_csr(self, group, entries, num_entries, sim_once_in(self, 2),
                                  sim_once_in(self, 4) ? sim_draw(self, 20) : MODEL_MAX_COLUMNS);
        return;
    }
    batch.max_requests = sim_once_in(self, 8) ? sim_draw(self, 6) : MAX_BATCH_TOKENS;
    batch.max_tokens = sim_once_in(self, 8) ? sim_draw(self, 20) : MAX_BATCH_TOKENS;
    batch.padded_requests = sim_once_in(self, 3) ? sim_draw(self, 16) - 1 : 0;
    batch.padded_tokens = sim_once_in(self, 3) ? sim_draw(self, 300) - 1 : 0;
    batch.rows = sim_once_in(self, 5) ? NULL : rows;
    batch.seq_lens = sim_once_in(self, 5) ? NULL : seq_lens;
    batch.query_start_loc = sim_once_in(self, 5) ? NULL : query_start_loc;
    batch.slot_mapping = sim_once_in(self, 5) ? NULL : slot_mapping;
    (void)sim_call_batch_build(self, group, entries, num_entries, &batch);
}

static void do_fork(sim *self) {
    int32_t slot;
    pkv_request handle = draw_handle(self, &slot);
    int32_t computed = slot >= 0 ? self->states[slot].num_computed_tokens : 3;
    int32_t child;

    if (sim_once_in(self, 3)) {
        int32_t num_tokens = slot >= 0 ? self->model.requests[slot].num_tokens : 3;
        (void)sim_call_truncate(self, handle, distort(self, 1 + sim_draw(self, num_tokens)));
        return;
    }
    if (sim_once_in(self, 3)) {
        computed = sim_draw(self, computed + 1);
    }
    (void)sim_call_fork(self, handle, distort(self, computed), &child);
}

static void do_drain(sim *self) {
    int32_t slot;
    pkv_request handle;

    switch (sim_draw(self, 7)) {
    case 6:
        (void)sim_call_take_copies(self, draw_group(self),
                                   sim_once_in(self, 3) ? sim_draw(self, 3) : MODEL_MAX_BLOCKS,
                                   NULL, NULL);
        break;
    case 0:
        (void)sim_call_take_events(self,
                                   sim_once_in(self, 3) ? sim_draw(self, 6) : MODEL_MAX_EVENTS);
        break;
    case 1:
        (void)sim_call_take_fills(self, draw_group(self),
                                  sim_once_in(self, 2) ? sim_draw(self, 4) : MODEL_MAX_BLOCKS, NULL,
                                  NULL);
        break;
    case 2:
        handle = draw_handle(self, &slot);
        (void)sim_call_common_prefix(self, handle, draw_group(self));
        break;
    case 3:
        if (sim_once_in(self, 6)) {
            (void)sim_call_mark_dirty(self);
        }
        break;
    default:
        (void)sim_call_take_updates(self, draw_group(self),
                                    sim_once_in(self, 2) ? sim_draw(self, 9) : SIM_MAX_UPDATES);
        break;
    }
}

/* ---- swaps ----------------------------------------------------------------------------------- */

static pkv_swap draw_swap(sim *self) {
    const model_swap *swap = &self->tier_model.swaps[sim_draw(self, MODEL_MAX_SWAPS)];
    pkv_swap handle = swap->handle; /* of an open swap, a closed one, or of none */

    handle.generation += sim_once_in(self, 30) ? 1 : 0;
    handle.index = sim_once_in(self, 60) ? UINT32_MAX : handle.index;
    return handle;
}

/* Keep what a request has, let it go and evict everything, so that there is something to load. */
static void do_swap_out(sim *self) {
    pkv_block_id ids[MODEL_MAX_BLOCKS];
    int32_t slot;
    int32_t place;
    pkv_request handle = draw_handle(self, &slot);

    if (sim_call_swap_out(self, handle, sim_once_in(self, 10) ? distort(self, 3) : 400, &place) !=
            PKV_OK ||
        place < 0 || sim_once_in(self, 3)) {
        return;
    }
    (void)sim_call_free(self, handle);
    (void)sim_call_swap_end(self, self->tier_model.swaps[place].handle, true);
    for (int32_t id = 0; id < self->model.pool.num_blocks; id++) {
        ids[id] = id;
    }
    (void)sim_call_evict(self, ids, self->model.pool.num_blocks);
    self->states[slot] = (sim_request){0, 0, 0};
}

static void do_swap_in(sim *self) {
    pkv_slots_args args = {.struct_size = sizeof args, .step = draw_step(self)};
    int32_t slot;
    pkv_request handle = draw_handle(self, &slot);
    int32_t hit = slot >= 0 ? model_lookup(&self->model, &self->model.requests[slot]) : 0;
    int32_t external;
    int32_t place;

    args.num_new_computed_tokens = sim_once_in(self, 20) ? distort(self, hit) : hit;
    (void)sim_call_tier_lookup(self, handle, args.num_new_computed_tokens, &external);
    if (sim_once_in(self, 3)) {
        args.num_external_computed_tokens =
            sim_once_in(self, 8) ? distort(self, external) : external;
    }
    args.num_computed_tokens = sim_once_in(self, 40) ? distort(self, 1) : 0;
    args.num_new_tokens = sim_once_in(self, 2) ? 0 : distort(self, 1 + sim_draw(self, 9));
    args.num_lookahead_tokens = sim_once_in(self, 6) ? distort(self, 4) : 0;
    args.full_sequence_must_fit = sim_once_in(self, 4);
    if (sim_call_swap_in(self, handle, &args, sim_once_in(self, 10) ? distort(self, 3) : 400,
                         &place) == PKV_OK &&
        slot >= 0) {
        self->states[slot].num_computed_tokens = args.num_new_computed_tokens + external;
    }
}

static void do_swap(sim *self) {
    pkv_block_id id;

    if (self->tier == NULL) {
        return;
    }
    switch (sim_draw(self, 12)) {
    case 0:
        (void)sim_call_swap_detach(self, draw_swap(self));
        break;
    case 1:
    case 2:
    case 3:
        (void)sim_call_swap_end(self, draw_swap(self), !sim_once_in(self, 3));
        break;
    case 4:
        id = distort(self, sim_draw(self, self->tier_model.pool.num_blocks));
        (void)sim_call_tier_evict(self, &id, 1);
        break;
    case 5:
        if (sim_once_in(self, 12)) {
            (void)sim_call_tier_reset(self);
        }
        break;
    case 6:
    case 7:
    case 8:
        do_swap_in(self);
        break;
    default:
        do_swap_out(self);
        break;
    }
}

/* ---- the run --------------------------------------------------------------------------------- */

static void do_one(sim *self) {
    static const struct {
        int32_t weight;
        void (*call)(sim *);
    } calls[] = {{20, do_open},  {12, do_append},   {4, do_append_keys},  {12, do_close},
                 {4, do_lookup}, {60, do_allocate}, {5, do_cache_blocks}, {4, do_remove_skipped},
                 {14, do_free},  {14, do_step},     {8, do_batch},        {18, do_drain},
                 {10, do_fork},  {30, do_swap}};
    int32_t chosen = sim_draw(self, 215);
    int32_t rare = sim_draw(self, 100);

    /* Mostly a step that may be used: not gone back to, not complete. */
    if (self->step <= self->model.completed_step || self->step < self->model.newest_step) {
        self->step = self->model.newest_step +
                     (self->model.newest_step == self->model.completed_step ? 1 : 0);
    }
    if (rare == 0) {
        sim_call_faults(self);
    } else if (rare == 1) {
        do_reset(self);
    } else if (rare <= 3) {
        do_evict(self);
    } else {
        size_t i = 0;
        while (chosen >= calls[i].weight) {
            chosen -= calls[i++].weight;
        }
        calls[i].call(self);
    }
}

void sim_run_chaos(test_source *source, int64_t max_steps, sim_log *log, sim_counts *counts) {
    sim *self = &the_sim;

    if (!sim_open(self, source, log, counts, false, 3)) {
        return;
    }
    for (log->step = 0; log->step < max_steps && !source->is_exhausted && !log->has_failed &&
                        self->model.contents.num_contents < MODEL_MAX_CONTENTS - MODEL_MAX_TOKENS;
         log->step++) {
        do_one(self);
        counts->num_steps++;
        if (!log->has_failed) {
            sim_compare(self);
        }
    }
    sim_close(self);
}
