/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Calls of tier.h, each on the library and on the model, and comparing a tier with its model. */
#include "support/sim_manager.h"

#include <string.h>

static model_request *request_of(sim *self, pkv_request handle) {
    int32_t slot = model_find_request(&self->model, handle);

    return slot < 0 ? NULL : &self->model.requests[slot];
}

/* ---- life ------------------------------------------------------------------------------------ */

bool sim_open_tier(sim *self) {
    pkv_tier_config config = {.struct_size = sizeof config,
                              .manager = self->manager,
                              .num_blocks = 2 + sim_draw(self, 8 * self->model.num_groups),
                              .max_swaps = 1 + sim_draw(self, MODEL_MAX_SWAPS),
                              .allocator = self->config.allocator};

    if (!sim_once_in(self, 3)) {
        config.num_blocks += 12 * self->model.num_groups;
    }
    if (sim_once_in(self, 4)) {
        config.max_blocks_in_flight = 1 + sim_draw(self, config.num_blocks + 4);
    }
    sim_say(self->log, "create a tier of %d slots, %d swaps, %d flights", config.num_blocks,
            config.max_swaps, config.max_blocks_in_flight);
    if (pkv_tier_create(&config, &self->tier) != PKV_OK) {
        sim_problem(self->log, "a tier could not be created");
        return false;
    }
    model_tier_init(&self->tier_model, &self->model, &config);
    return true;
}

/* What is open is aborted, in the order of the handles; what is pinned returns to its pool. */
void sim_close_tier(sim *self) {
    sim_say(self->log, "destroy the tier");
    for (uint32_t index = 0; index < MODEL_MAX_SWAPS; index++) {
        for (int32_t i = 0; i < MODEL_MAX_SWAPS; i++) {
            model_swap *swap = &self->tier_model.swaps[i];
            if (swap->is_open && swap->handle.index == index) {
                model_swap_end(&self->tier_model, swap, false);
            }
        }
    }
    pkv_tier_destroy(self->tier);
    self->tier = NULL;
    self->model.tier = NULL;
}

/* ---- swaps ----------------------------------------------------------------------------------- */

pkv_status sim_call_tier_lookup(sim *self, pkv_request handle, int32_t local, int32_t *external) {
    const model_request *request = request_of(self, handle);
    bool is_valid = request != NULL && request->row == PKV_NULL_ROW && local >= 0 &&
                    local % self->model.alignment == 0;
    pkv_status status;

    sim_say(self->log, "tier_lookup {%u, %u} behind %d", handle.index, handle.generation, local);
    *external = 0;
    status = sim_judge(self, pkv_tier_lookup(self->tier, handle, local, external),
                       request == NULL ? MODEL_STALE
                       : is_valid      ? MODEL_OK
                                       : MODEL_INVALID);
    if (status == PKV_OK && is_valid) {
        sim_expect_equal(self->log, "tokens that the tier could bring", *external,
                         model_tier_lookup(&self->tier_model, request, local) - local);
    }
    return status;
}

/* Arrays for a plan of each side. */
static pkv_swap_plan plan_of(sim_plan *own, int32_t capacity) {
    return (pkv_swap_plan){.struct_size = sizeof(pkv_swap_plan),
                           .capacity = capacity,
                           .copies = own->copies,
                           .groups = own->groups,
                           .keys = own->keys,
                           .token_ids = own->token_ids};
}

/* The copies must be the same but for the order; the library's slots are those of the model, since
 * both follow one order of use. */
static void compare_plans(sim *self,
                          const pkv_swap_plan *library,
                          const pkv_swap_plan *expected,
                          const model_swap *swap) {
    int32_t largest = 1;
    int32_t at = 0;

    sim_expect_equal(self->log, "num_copies", library->num_copies, expected->num_copies);
    sim_expect_equal(self->log, "num_tokens of a plan", library->num_tokens, expected->num_tokens);
    for (int32_t group = 0; group < self->model.num_groups; group++) {
        int32_t block_size = self->model.groups[group].block_size;
        largest = block_size > largest ? block_size : largest;
    }
    for (int32_t f = 0; swap != NULL && f < swap->num_flights && !self->log->has_failed; f++) {
        const model_flight *flight = &swap->flights[f];
        const pkv_block_key *key = &self->model.contents.keys[flight->content];
        size_t size = sizeof(int32_t) * (size_t)self->model.groups[flight->group].block_size;
        if (flight->block == PKV_NULL_BLOCK) {
            continue;
        }
        if (library->copies[at].source != expected->copies[at].source ||
            library->copies[at].target != expected->copies[at].target ||
            library->groups[at] != expected->groups[at] ||
            memcmp(&library->keys[at], key, sizeof *key) != 0 ||
            memcmp(&library->token_ids[at * largest], flight->tokens, size) != 0) {
            sim_problem(self->log,
                        "copy %d: library %d -> %d group %d, model %d -> %d group %d, or another "
                        "key or tokens",
                        at, library->copies[at].source, library->copies[at].target,
                        library->groups[at], expected->copies[at].source,
                        expected->copies[at].target, expected->groups[at]);
        }
        at++;
    }
}

/* A swap was opened on both sides: its handle is the library's choice. */
static void adopt_swap(sim *self, int32_t place, pkv_swap handle, const pkv_swap_plan *plan) {
    if (model_find_swap(&self->tier_model, handle) >= 0 || handle.generation == 0) {
        sim_problem(self->log, "swap {%u, %u} is open already, or of generation 0", handle.index,
                    handle.generation);
    }
    self->tier_model.swaps[place].handle = handle;
    sim_digest(self->counts, (uint64_t)handle.index << 32 | handle.generation);
    sim_say_more(self->log, " -> {%u, %u}, %d copies, %d tokens", handle.index, handle.generation,
                 plan->num_copies, plan->num_tokens);
}

pkv_status sim_call_swap_out(sim *self, pkv_request handle, int32_t capacity, int32_t *place) {
    static sim_plan own[2];
    const model_request *request = request_of(self, handle);
    pkv_swap_plan plan = plan_of(&own[0], capacity);
    pkv_swap_plan expected = plan_of(&own[1], capacity);
    model_statuses allowed = MODEL_STALE;
    pkv_swap swap = {0, 0};
    pkv_status status;

    *place = -1;
    sim_say(self->log, "swap_out {%u, %u} capacity %d", handle.index, handle.generation, capacity);
    if (request != NULL) {
        allowed = capacity < 0 ? MODEL_INVALID
                               : model_swap_out(&self->tier_model, request, &expected, place);
    }
    status = sim_judge(self, pkv_swap_out(self->tier, handle, &plan, &swap), allowed);
    if (self->log->has_failed || request == NULL || capacity < 0) {
        return status;
    }
    compare_plans(self, &plan, &expected, *place >= 0 ? &self->tier_model.swaps[*place] : NULL);
    if (status == PKV_OK && *place >= 0) {
        adopt_swap(self, *place, swap, &plan);
        self->counts->num_swapped_out += plan.num_copies;
    }
    return status;
}

pkv_status sim_call_swap_in(
    sim *self, pkv_request handle, const pkv_slots_args *args, int32_t capacity, int32_t *place) {
    static sim_plan own[2];
    model_request *request = request_of(self, handle);
    pkv_swap_plan plan = plan_of(&own[0], capacity);
    pkv_swap_plan expected = plan_of(&own[1], capacity);
    pkv_slots slots = {.struct_size = sizeof slots};
    pkv_slots expected_slots = {0};
    model_statuses allowed = MODEL_STALE;
    pkv_swap swap = {0, 0};
    pkv_status status;

    *place = -1;
    sim_say(self->log, "swap_in {%u, %u} capacity %d, hit %d external %d new %d step %llu",
            handle.index, handle.generation, capacity, args->num_new_computed_tokens,
            args->num_external_computed_tokens, args->num_new_tokens,
            (unsigned long long)args->step);
    if (request != NULL) {
        allowed = capacity < 0 ? MODEL_INVALID
                               : model_swap_in(&self->tier_model, request, args, &expected_slots,
                                               &expected, place);
    }
    status = sim_judge(self, pkv_swap_in(self->tier, handle, args, &slots, &plan, &swap), allowed);
    if (self->log->has_failed || request == NULL || capacity < 0) {
        return status;
    }
    if (status >= PKV_OK || plan.num_copies > 0) {
        compare_plans(self, &plan, &expected, *place >= 0 ? &self->tier_model.swaps[*place] : NULL);
    }
    if (status == PKV_OK && *place >= 0) {
        sim_adopt_row(self, request, slots.row);
        sim_digest(self->counts, (uint64_t)slots.row);
        sim_expect_equal(self->log, "num_new_blocks of a load", slots.num_new_blocks,
                         expected_slots.num_new_blocks);
        adopt_swap(self, *place, swap, &plan);
        self->counts->num_swapped_in += plan.num_copies;
    }
    return status;
}

pkv_status sim_call_swap_detach(sim *self, pkv_swap handle) {
    int32_t place = model_find_swap(&self->tier_model, handle);

    sim_say(self->log, "swap_detach {%u, %u}", handle.index, handle.generation);
    if (place >= 0) {
        model_swap_detach(&self->tier_model, &self->tier_model.swaps[place]);
    }
    return sim_judge(self, pkv_swap_detach(self->tier, handle), place < 0 ? MODEL_STALE : MODEL_OK);
}

pkv_status sim_call_swap_end(sim *self, pkv_swap handle, bool commits) {
    int32_t place = model_find_swap(&self->tier_model, handle);

    sim_say(self->log, "swap_%s {%u, %u}", commits ? "commit" : "abort", handle.index,
            handle.generation);
    if (place >= 0) {
        model_swap_end(&self->tier_model, &self->tier_model.swaps[place], commits);
    }
    self->counts->num_aborts += place >= 0 && !commits ? 1 : 0;
    return sim_judge(
        self, commits ? pkv_swap_commit(self->tier, handle) : pkv_swap_abort(self->tier, handle),
        place < 0 ? MODEL_STALE : MODEL_OK);
}

/* ---- content --------------------------------------------------------------------------------- */

pkv_status sim_call_tier_evict(sim *self, const pkv_block_id *slots, int32_t num_blocks) {
    sim_say(self->log, "tier_evict %d slots, the first is %d", num_blocks,
            num_blocks > 0 ? slots[0] : -1);
    return sim_judge(self, pkv_tier_evict(self->tier, slots, num_blocks),
                     model_tier_evict(&self->tier_model, slots, num_blocks));
}

pkv_status sim_call_tier_reset(sim *self) {
    sim_say(self->log, "tier_reset");
    return sim_judge(self, pkv_tier_reset(self->tier), model_tier_reset(&self->tier_model));
}

/* ---- comparing ------------------------------------------------------------------------------- */

static void compare_levels(sim *self, const pkv_tier_stats *library, const pkv_tier_stats *model) {
    sim_log *log = self->log;

    sim_expect_equal(log, "tier num_blocks", library->num_blocks, model->num_blocks);
    sim_expect_equal(log, "tier num_free_blocks", library->num_free_blocks, model->num_free_blocks);
    sim_expect_equal(log, "tier num_cached_blocks", library->num_cached_blocks,
                     model->num_cached_blocks);
    sim_expect_equal(log, "tier num_swaps", library->num_swaps, model->num_swaps);
    sim_expect_equal(log, "tier num_blocks_in_flight", library->num_blocks_in_flight,
                     model->num_blocks_in_flight);
    sim_expect_equal(log, "tier num_pinned_blocks", library->num_pinned_blocks,
                     model->num_pinned_blocks);
}

static void compare_counters(sim *self,
                             const pkv_tier_stats *library,
                             const pkv_tier_stats *model) {
    const struct {
        const char *what;
        uint64_t library, model;
    } counters[] = {
        {"tier num_swap_outs", library->num_swap_outs, model->num_swap_outs},
        {"tier num_swap_ins", library->num_swap_ins, model->num_swap_ins},
        {"tier num_commits", library->num_commits, model->num_commits},
        {"tier num_aborts", library->num_aborts, model->num_aborts},
        {"tier num_blocks_out", library->num_blocks_out, model->num_blocks_out},
        {"tier num_blocks_in", library->num_blocks_in, model->num_blocks_in},
        {"tier num_blocks_kept", library->num_blocks_kept, model->num_blocks_kept},
        {"tier num_blocks_dropped", library->num_blocks_dropped, model->num_blocks_dropped},
        {"tier num_blocks_evicted", library->num_blocks_evicted, model->num_blocks_evicted},
        {"tier num_tokens_in", library->num_tokens_in, model->num_tokens_in},
    };

    for (size_t i = 0; i < sizeof counters / sizeof counters[0]; i++) {
        sim_expect_equal(self->log, counters[i].what, (int64_t)counters[i].library,
                         (int64_t)counters[i].model);
    }
}

static void compare_stats(sim *self) {
    pkv_tier_stats library = {.struct_size = sizeof library};
    pkv_tier_stats model;

    model_tier_get_stats(&self->tier_model, &model);
    if (pkv_tier_get_stats(self->tier, &library) != PKV_OK) {
        sim_problem(self->log, "the tier's statistics cannot be read");
    }
    compare_levels(self, &library, &model);
    compare_counters(self, &library, &model);
}

void sim_compare_tier(sim *self) {
    if (!self->log->has_failed) {
        sim_compare_pool(self->log, pkv_tier_get_pool(self->tier), &self->tier_model.pool);
    }
    if (!self->log->has_failed) {
        compare_stats(self);
    }
    if (pkv_tier_check(self->tier) != PKV_OK) {
        sim_problem(self->log, "the checker: %s", pkv_tier_last_error(self->tier));
    }
}
