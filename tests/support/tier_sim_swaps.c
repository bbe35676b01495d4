/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The swaps of the tier's simulator; see tier_sim.h. */
#include "support/tier_sim_parts.h"

#include <string.h>

/* Copy, or leave garbage in the targets, as a copy that failed half way does. */
static void run_copies(sim_swap *swap, bool succeeds) {
    for (int32_t i = 0; i < swap->num_copies; i++) {
        pkv_block_copy copy = swap->copies[i];
        uint64_t *target =
            swap->is_inward ? tier_world.device[copy.target] : tier_world.host[copy.target];
        const uint64_t *source =
            swap->is_inward ? tier_world.host[copy.source] : tier_world.device[copy.source];

        for (int32_t t = 0; t < MAX_BLOCK_SIZE; t++) {
            target[t] = succeeds ? source[t] : GARBAGE;
        }
    }
    swap->has_run = true;
}

bool tier_sim_end_swap(int32_t place) {
    sim_swap *swap = &tier_world.swaps[place];
    bool succeeds = !test_draw_once_in(tier_world.source, 4);

    if (!swap->has_run || !succeeds) {
        run_copies(swap, succeeds);
    }
    if ((succeeds ? pkv_swap_commit(tier_world.tier, swap->handle)
                  : pkv_swap_abort(tier_world.tier, swap->handle)) != PKV_OK) {
        return tier_sim_fail("end of a swap", place, succeeds);
    }
    if (pkv_swap_commit(tier_world.tier, swap->handle) != PKV_ERROR_STALE_HANDLE) {
        return tier_sim_fail("a swap ended twice", place, 0);
    }
    tier_world.counts->num_commits += succeeds ? 1 : 0;
    tier_world.counts->num_aborts += succeeds ? 0 : 1;
    swap->is_open = false;
    for (int32_t i = 0; i < MAX_REQUESTS; i++) {
        sim_request *request = &tier_world.requests[i];
        if (request->is_open && request->loading == place) {
            request->loading = -1;
            if (!succeeds && !tier_sim_preempt(request)) {
                return false;
            }
        }
    }
    return true;
}

bool tier_sim_detach(int32_t place) {
    sim_swap *swap = &tier_world.swaps[place];

    if (!swap->has_run) {
        run_copies(swap, true);
    }
    tier_world.counts->num_detached++;
    swap->is_detached = true;
    return pkv_swap_detach(tier_world.tier, swap->handle) == PKV_OK ||
           tier_sim_fail("detach", place, 0);
}

/* Whether the tier has the content of a column, asked from outside. */
static pkv_block_id tier_slot(const sim_request *request, int32_t g, int32_t column) {
    int32_t stride = tier_world.block_sizes[g] / tier_world.hash_block_size;
    pkv_block_key key;
    pkv_block_id slot = PKV_NULL_BLOCK;
    int32_t num_hits = 0;

    if (pkv_request_get_keys(tier_world.manager, request->handle, (column + 1) * stride - 1, 1,
                             &key) != PKV_OK ||
        pkv_pool_match(pkv_tier_get_pool(tier_world.tier), g, &key,
                       request->tokens + column * tier_world.block_sizes[g], 1, &slot,
                       &num_hits) != PKV_OK) {
        return PKV_NULL_BLOCK;
    }
    return num_hits == 1 ? slot : PKV_NULL_BLOCK;
}

/* Copies that a swap-out must plan, by the words of its contract. */
static int32_t expected_copies(const sim_request *request) {
    int32_t count = 0;

    for (int32_t g = 0; g < tier_world.num_groups; g++) {
        const pkv_block_id *table;
        int32_t num_blocks;

        (void)pkv_get_block_table(tier_world.manager, request->handle, g, &table, &num_blocks);
        for (int32_t i = 0; i < num_blocks; i++) {
            pkv_block_info info = {.struct_size = sizeof info};
            bool is_under_way = false;

            (void)pkv_pool_get_block(pkv_manager_get_pool(tier_world.manager), table[i], &info);
            for (int32_t s = 0; s < MAX_SWAPS; s++) {
                for (int32_t c = 0; c < tier_world.swaps[s].num_copies; c++) {
                    is_under_way =
                        is_under_way ||
                        (tier_world.swaps[s].is_open && !tier_world.swaps[s].is_inward &&
                         tier_world.swaps[s].copies[c].source == table[i] &&
                         memcmp(&tier_world.swaps[s].keys[c], &info.key, sizeof info.key) == 0);
                }
            }
            count += info.is_keyed && info.step == 0 && !is_under_way &&
                             tier_slot(request, g, i) == PKV_NULL_BLOCK
                         ? 1
                         : 0;
        }
    }
    return count;
}

static pkv_swap_plan plan_of(sim_swap *swap) {
    pkv_swap_plan plan = {.struct_size = sizeof plan,
                          .capacity = test_draw_once_in(tier_world.source, 5) ? 2 : MAX_COPIES,
                          .copies = swap->copies,
                          .groups = swap->groups,
                          .keys = swap->keys};
    return plan;
}

static int32_t free_place(void) {
    for (int32_t s = 0; s < MAX_SWAPS; s++) {
        if (!tier_world.swaps[s].is_open) {
            return s;
        }
    }
    return -1;
}

static void begin_swap(sim_swap *swap, pkv_swap handle, bool is_inward, int32_t num_copies) {
    swap->is_open = true;
    swap->is_inward = is_inward;
    swap->is_detached = false;
    swap->has_run = false;
    swap->handle = handle;
    swap->num_copies = num_copies;
}

bool tier_sim_swap_out(sim_request *request) {
    static sim_swap spare;
    int32_t place = free_place();
    sim_swap *swap = place < 0 ? &spare : &tier_world.swaps[place];
    int32_t expected;
    pkv_swap_plan plan;
    pkv_swap handle;
    pkv_status status;

    swap->num_copies = 0;
    expected = expected_copies(request);
    plan = plan_of(swap);
    status = pkv_swap_out(tier_world.tier, request->handle, &plan, &handle);
    if (status == PKV_OK || (status == PKV_ERROR_LIMIT && plan.num_copies > 0)) {
        if (plan.num_copies != expected) {
            return tier_sim_fail("copies planned and expected", plan.num_copies, expected);
        }
    }
    if ((status == PKV_NOT_FOUND) != (expected == 0)) {
        return tier_sim_fail("NOT_FOUND, and expected copies", status, expected);
    }
    if (status == PKV_OK) {
        begin_swap(swap, handle, false, plan.num_copies);
        tier_world.counts->num_blocks_out += plan.num_copies;
    }
    return tier_sim_count_status(status);
}

/* The longest load, by trying every end from the right. */
static int32_t expected_total(const sim_request *request, int32_t local) {
    for (int32_t total = (request->num_tokens - 1) / tier_world.alignment * tier_world.alignment;
         total > local; total -= tier_world.alignment) {
        bool is_there = true;

        for (int32_t g = 0; g < tier_world.num_groups && is_there; g++) {
            for (int32_t i = local / tier_world.block_sizes[g];
                 i < total / tier_world.block_sizes[g] && is_there; i++) {
                /* Needed if a token at or behind `total` sees the last token of the block. */
                is_there = !tier_sim_is_seen(g, total, (i + 1) * tier_world.block_sizes[g] - 1) ||
                           tier_slot(request, g, i) != PKV_NULL_BLOCK;
            }
        }
        if (is_there) {
            return total;
        }
    }
    return local;
}

bool tier_sim_swap_in(sim_request *request) {
    static sim_swap spare;
    int32_t place = free_place();
    sim_swap *swap = place < 0 ? &spare : &tier_world.swaps[place];
    pkv_slots_args args = {.struct_size = sizeof args, .step = tier_world.step};
    pkv_swap_plan plan = plan_of(swap);
    int32_t local = 0;
    int32_t external = 0;
    int32_t total;
    pkv_swap handle;
    pkv_status status;

    (void)pkv_get_computed_blocks(tier_world.manager, request->handle, &local);
    total = expected_total(request, local);
    if (pkv_tier_lookup(tier_world.tier, request->handle, local, &external) != PKV_OK ||
        local + external != total) {
        return tier_sim_fail("lookup and expected total", local + external, total);
    }
    tier_world.counts->num_lookup_hits += external > 0 ? 1 : 0;
    args.num_new_computed_tokens = local;
    args.num_external_computed_tokens = test_draw_once_in(tier_world.source, 2) ? external : 0;
    if (test_draw_once_in(tier_world.source, 2) && total < request->num_tokens) {
        args.num_new_tokens = test_draw_between(tier_world.source, 1, request->num_tokens - total);
    }
    status = pkv_swap_in(tier_world.tier, request->handle, &args, NULL, &plan, &handle);
    if (status == PKV_OK) {
        begin_swap(swap, handle, true, plan.num_copies);
        tier_world.counts->num_blocks_in += plan.num_copies;
        request->is_holding = true;
        request->step = tier_world.step;
        request->num_computed = local + plan.num_tokens;
        request->loading = place;
        if (plan.num_tokens != external) {
            return tier_sim_fail("loaded and looked up", plan.num_tokens, external);
        }
        if (args.num_new_tokens > 0) {
            /* The copy runs on the stream before the step does. */
            run_copies(swap, true);
            request->is_scheduled = true;
            request->num_new = args.num_new_tokens;
        }
    }
    return tier_sim_count_status(status);
}
