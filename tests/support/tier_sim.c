/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The tier's simulator; see tier_sim.h. */
#include "support/tier_sim_parts.h"

#include <stdio.h>
#include <string.h>

sim tier_world;

bool tier_sim_fail(const char *what, int64_t a, int64_t b) {
    if (tier_world.text[0] == '\0') {
        (void)snprintf(tier_world.text, tier_world.text_size, "%s (%lld, %lld): %s / %s", what,
                       (long long)a, (long long)b, pkv_manager_last_error(tier_world.manager),
                       pkv_tier_last_error(tier_world.tier));
    }
    return false;
}

/* Where the value of a key is noted: the value of its last token stands for the whole block. */
static int32_t value_place(const pkv_block_key *key) {
    uint32_t place = (uint32_t)(key->hash_low % NUM_VALUES);

    while ((tier_world.value_keys[place].hash_low | tier_world.value_keys[place].hash_high) != 0 &&
           memcmp(&tier_world.value_keys[place], key, sizeof *key) != 0) {
        place = (place + 1) % NUM_VALUES;
    }
    return (int32_t)place;
}

static uint64_t value_of(const sim_request *request, int32_t group, int32_t position) {
    return request->values[position] * 31 + (uint64_t)group;
}

/* Chain the values of new tokens, and note those at the ends of hash blocks. */
static void note_tokens(sim_request *request, int32_t first) {
    pkv_block_key key;

    for (int32_t t = first; t < request->num_tokens; t++) {
        test_rand mixer = {(t == 0 ? 7 : request->values[t - 1]) * 0x9E3779B97F4A7C15u +
                           (uint64_t)request->tokens[t]};
        request->values[t] = test_rand_next(&mixer);
        if ((t + 1) % tier_world.hash_block_size == 0 &&
            pkv_request_get_keys(tier_world.manager, request->handle,
                                 t / tier_world.hash_block_size, 1, &key) == PKV_OK) {
            int32_t place = value_place(&key);
            tier_world.value_keys[place] = key;
            tier_world.values[place] = request->values[t];
        }
    }
}

static bool make(void) {
    static const pkv_group_config shapes[4][2] = {
        {{sizeof shapes[0][0], PKV_GROUP_FULL_ATTENTION, 4, 0, false, 0},
         {sizeof shapes[0][0], PKV_GROUP_FULL_ATTENTION, 4, 0, false, 0}},
        {{sizeof shapes[0][0], PKV_GROUP_FULL_ATTENTION, 4, 0, false, 0},
         {sizeof shapes[0][0], PKV_GROUP_SLIDING_WINDOW, 4, 10, false, 0}},
        {{sizeof shapes[0][0], PKV_GROUP_FULL_ATTENTION, 8, 0, false, 0},
         {sizeof shapes[0][0], PKV_GROUP_SLIDING_WINDOW, 4, 7, false, 0}},
        {{sizeof shapes[0][0], PKV_GROUP_CHUNKED_LOCAL, 4, 16, false, 0},
         {sizeof shapes[0][0], PKV_GROUP_FULL_ATTENTION, 4, 0, false, 0}}};
    int32_t shape = test_draw(tier_world.source, 4);
    pkv_manager_config config = {.struct_size = sizeof config, .max_model_len = MAX_TOKENS};
    pkv_tier_config tier_config = {.struct_size = sizeof tier_config, .max_swaps = MAX_SWAPS};

    tier_world.num_groups = shape == 0 ? 1 : 2;
    tier_world.num_blocks = test_draw_between(tier_world.source, 16, MAX_BLOCKS);
    tier_world.num_slots = test_draw_between(tier_world.source, 4, MAX_SLOTS);
    for (int32_t g = 0; g < tier_world.num_groups; g++) {
        tier_world.block_sizes[g] = shapes[shape][g].block_size;
        tier_world.windows[g] = shapes[shape][g].kind == PKV_GROUP_CHUNKED_LOCAL
                                    ? -shapes[shape][g].window
                                    : shapes[shape][g].window;
    }
    tier_world.hash_block_size = 4;
    tier_world.alignment = shape == 2 ? 8 : 4;
    config.num_blocks = tier_world.num_blocks;
    config.num_groups = tier_world.num_groups;
    config.groups = shapes[shape];
    config.max_requests = MAX_REQUESTS;
    config.max_rows = test_draw_between(tier_world.source, 3, MAX_REQUESTS);
    config.max_total_tokens = MAX_REQUESTS * MAX_TOKENS;
    config.store_tokens = test_draw_once_in(tier_world.source, 3);
    if (pkv_manager_create(&config, &tier_world.manager) != PKV_OK) {
        return tier_sim_fail("no manager", 0, 0);
    }
    tier_config.manager = tier_world.manager;
    tier_config.num_blocks = tier_world.num_slots;
    tier_config.max_blocks_in_flight = test_draw_once_in(tier_world.source, 2) ? 0 : 24;
    return pkv_tier_create(&tier_config, &tier_world.tier) == PKV_OK ||
           tier_sim_fail("no tier", 0, 0);
}

/* ---- the engine ------------------------------------------------------------------------------ */

static void open_request(sim_request *request) {
    pkv_request_args args = {.struct_size = sizeof args};

    memset(request, 0, sizeof *request);
    request->loading = -1;
    request->num_tokens = test_draw_between(tier_world.source, 1, MAX_TOKENS / 2);
    request->num_prompt = request->num_tokens;
    for (int32_t t = 0; t < request->num_tokens; t++) {
        /* Few different prompts, so that prefixes are shared. */
        request->tokens[t] = t % 12 == 11 ? test_draw(tier_world.source, 2) : t;
    }
    args.token_ids = request->tokens;
    args.num_tokens = request->num_tokens;
    request->is_open = pkv_request_open(tier_world.manager, &args, &request->handle) == PKV_OK;
    if (request->is_open) {
        note_tokens(request, 0);
    }
}

static void forget_blocks(sim_request *request) {
    request->is_holding = false;
    request->is_scheduled = false;
    request->num_computed = 0;
    request->loading = -1;
}

/* Give the blocks back: of a step under way withdrawn first, or, with luck, after the step. */
bool tier_sim_preempt(sim_request *request) {
    if (request->is_scheduled) {
        pkv_status status = pkv_unschedule(tier_world.manager, request->handle, tier_world.step);
        if (status == PKV_ERROR_BUSY) {
            return true;
        }
        if (status != PKV_OK) {
            return tier_sim_fail("unschedule", status, 0);
        }
    }
    if (pkv_free(tier_world.manager, request->handle) != PKV_OK) {
        return tier_sim_fail("free", 0, 0);
    }
    forget_blocks(request);
    return true;
}

bool tier_sim_is_seen(int32_t group, int32_t query, int32_t key) {
    int32_t window = tier_world.windows[group];

    if (window < 0) {
        return key >= query / -window * -window;
    }
    return window == 0 || key > query - window;
}

/* Write what the step computes of a request, or read all that its queries see. */
static bool compute(sim_request *request, bool is_writing, bool succeeds) {
    int32_t end = request->num_computed + request->num_new;

    for (int32_t g = 0; g < tier_world.num_groups; g++) {
        const pkv_block_id *table;
        int32_t num_blocks;

        if (pkv_get_block_table(tier_world.manager, request->handle, g, &table, &num_blocks) !=
                PKV_OK ||
            num_blocks * tier_world.block_sizes[g] < end) {
            return tier_sim_fail("table too short", num_blocks, end);
        }
        for (int32_t t = request->num_computed; t < end && is_writing; t++) {
            tier_world.device[table[t / tier_world.block_sizes[g]]][t % tier_world.block_sizes[g]] =
                succeeds ? value_of(request, g, t) : GARBAGE;
        }
        for (int32_t t = 0; t < end && !is_writing; t++) {
            pkv_block_id block = table[t / tier_world.block_sizes[g]];
            if (!tier_sim_is_seen(g, request->num_computed, t)) {
                continue;
            }
            if (block == PKV_NULL_BLOCK ||
                tier_world.device[block][t % tier_world.block_sizes[g]] !=
                    value_of(request, g, t)) {
                return tier_sim_fail("a read sees foreign content, block and position", block, t);
            }
            tier_world.counts->num_reads_verified++;
        }
    }
    return true;
}

/* Run the step of all scheduled requests: it completes, or fails and leaves garbage. */
static bool end_step(void) {
    bool succeeds = !test_draw_once_in(tier_world.source, 6);

    /* All requests write before any reads, since one may have hit what another computes. */
    for (int32_t i = 0; i < 2 * MAX_REQUESTS; i++) {
        sim_request *request = &tier_world.requests[i % MAX_REQUESTS];
        bool is_writing = i < MAX_REQUESTS;

        if (request->is_scheduled && (is_writing || succeeds) &&
            !compute(request, is_writing, succeeds)) {
            return false;
        }
    }
    if (succeeds ? pkv_step_complete(tier_world.manager, tier_world.step) != PKV_OK
                 : pkv_step_fail(tier_world.manager, tier_world.step) != PKV_OK) {
        return tier_sim_fail("end of the step", (int64_t)tier_world.step, succeeds);
    }
    tier_world.counts->num_failed_steps += succeeds ? 0 : 1;
    for (int32_t i = 0; i < MAX_REQUESTS; i++) {
        sim_request *request = &tier_world.requests[i];
        bool is_of_step =
            request->is_open && request->is_holding && request->step == tier_world.step;

        /* One that only loads belongs to the step as well: it may have hit what the step wrote. */
        if (!succeeds && is_of_step) {
            request->is_scheduled = false;
            if (!tier_sim_preempt(request)) {
                return false;
            }
        }
        if (!request->is_scheduled) {
            continue;
        }
        request->is_scheduled = false;
        request->num_computed += request->num_new;
        if (request->num_computed == request->num_tokens && request->num_tokens < MAX_TOKENS) {
            request->tokens[request->num_tokens++] = test_draw(tier_world.source, 2);
            if (pkv_request_append(tier_world.manager, request->handle,
                                   &request->tokens[request->num_tokens - 1], 1) != PKV_OK) {
                return tier_sim_fail("append", 0, 0);
            }
            note_tokens(request, request->num_tokens - 1);
        }
    }
    tier_world.step++;
    return true;
}

bool tier_sim_count_status(pkv_status status) {
    tier_world.counts->num_no_free +=
        status == PKV_NO_FREE_BLOCKS || status == PKV_NO_FREE_ROWS ? 1 : 0;
    tier_world.counts->num_in_progress += status == PKV_IN_PROGRESS ? 1 : 0;
    tier_world.counts->num_limit += status == PKV_ERROR_LIMIT ? 1 : 0;
    return status == PKV_OK || status == PKV_NO_FREE_BLOCKS || status == PKV_NO_FREE_ROWS ||
           status == PKV_IN_PROGRESS || status == PKV_NEVER_FITS || status == PKV_NOT_FOUND ||
           status == PKV_ERROR_LIMIT || tier_sim_fail("status", status, 0);
}

static bool schedule(sim_request *request) {
    pkv_slots_args args = {.struct_size = sizeof args, .step = tier_world.step};
    int32_t hit = 0;
    pkv_status status;

    if (request->is_scheduled || request->loading >= 0 ||
        request->num_computed == request->num_tokens) {
        return true;
    }
    if (!request->is_holding) {
        (void)pkv_get_computed_blocks(tier_world.manager, request->handle, &hit);
        args.num_new_computed_tokens = hit;
    }
    args.num_computed_tokens = request->num_computed;
    args.num_new_tokens = test_draw_between(
        tier_world.source, 1,
        request->num_tokens - (request->is_holding ? request->num_computed : hit));
    status = pkv_allocate_slots(tier_world.manager, request->handle, &args, NULL);
    if (status == PKV_OK) {
        request->num_computed += hit;
        request->is_holding = true;
        request->is_scheduled = true;
        request->step = tier_world.step;
        request->num_new = args.num_new_tokens;
    }
    return tier_sim_count_status(status);
}

/* ---- checks and the run ---------------------------------------------------------------------- */

/* Whatever is findable in a medium must be what its key says; blocks of steps under way apart. */
static bool check_content(const pkv_pool *pool, int32_t num_blocks, bool is_host) {
    for (pkv_block_id block = 1; block < num_blocks; block++) {
        pkv_block_info info = {.struct_size = sizeof info};
        int32_t last;

        if (pkv_pool_get_block(pool, block, &info) != PKV_OK || !info.is_keyed || info.step != 0) {
            continue;
        }
        last = tier_world.block_sizes[info.group] - 1;
        if ((is_host ? tier_world.host : tier_world.device)[block][last] !=
            tier_world.values[value_place(&info.key)] * 31 + (uint64_t)info.group) {
            return tier_sim_fail(is_host ? "a slot holds foreign content"
                                         : "a cached block holds foreign content",
                                 block, info.group);
        }
    }
    return true;
}

static bool check(void) {
    if (pkv_manager_check(tier_world.manager) != PKV_OK ||
        pkv_tier_check(tier_world.tier) != PKV_OK) {
        return tier_sim_fail("the checkers", 0, 0);
    }
    return check_content(pkv_manager_get_pool(tier_world.manager), tier_world.num_blocks, false) &&
           check_content(pkv_tier_get_pool(tier_world.tier), tier_world.num_slots, true);
}

/* What a step under way published is withdrawn first; a request whose blocks others hit stays. */
static bool close_request(sim_request *request) {
    if (!tier_sim_preempt(request)) {
        return false;
    }
    if (request->is_scheduled) {
        return true;
    }
    request->is_open = false;
    return pkv_request_close(tier_world.manager, request->handle) == PKV_OK ||
           tier_sim_fail("close", 0, 0);
}

static bool act_on_request(sim_request *request) {
    switch (test_draw(tier_world.source, 10)) {
    case 0:
        return close_request(request);
    case 1:
    case 2:
        return !request->is_holding || tier_sim_swap_out(request);
    case 3:
    case 4:
        return !request->is_holding || (tier_sim_swap_out(request) && tier_sim_preempt(request));
    case 5:
    case 6:
        return request->is_holding || tier_sim_swap_in(request);
    default:
        return schedule(request);
    }
}

/* Keys go for reasons of their own: on the device, in the tier, or all of the tier. */
static bool forget_something(void) {
    pkv_block_id ids[12];
    pkv_status status = PKV_OK;
    int32_t first;

    if (test_draw_once_in(tier_world.source, 16)) {
        status = pkv_tier_reset(tier_world.tier);
        tier_world.counts->num_resets += status == PKV_OK ? 1 : 0;
        return status == PKV_OK || status == PKV_ERROR_BUSY || tier_sim_fail("reset", status, 0);
    }
    first = test_draw(tier_world.source, tier_world.num_blocks - 12);
    for (int32_t i = 0; i < 12; i++) {
        pkv_block_info info = {.struct_size = sizeof info};

        /* Not what a step under way published: nobody could withdraw it any more. */
        (void)pkv_pool_get_block(pkv_manager_get_pool(tier_world.manager), first + i, &info);
        ids[i] = info.step == 0 ? first + i : PKV_NULL_BLOCK;
    }
    if (test_draw_once_in(tier_world.source, 12)) {
        ids[0] = test_draw(tier_world.source, tier_world.num_slots);
        return pkv_tier_evict(tier_world.tier, ids, 1) == PKV_OK ||
               tier_sim_fail("tier evict", 0, 0);
    }
    status = pkv_evict_blocks(tier_world.manager, ids, 12);
    return status == PKV_OK || tier_sim_fail("evict", status, 0);
}

static bool act(void) {
    sim_request *request = &tier_world.requests[test_draw(tier_world.source, MAX_REQUESTS)];
    int32_t place = test_draw(tier_world.source, MAX_SWAPS);

    switch (test_draw(tier_world.source, 8)) {
    case 0:
        return !tier_world.swaps[place].is_open || tier_sim_end_swap(place);
    case 1:
        return !tier_world.swaps[place].is_open || tier_world.swaps[place].is_detached ||
               tier_sim_detach(place);
    case 2:
        return end_step();
    case 3:
        return forget_something();
    default:
        break;
    }
    if (!request->is_open) {
        open_request(request);
        return true;
    }
    return act_on_request(request);
}

static bool finish(void) {
    pkv_tier_stats stats = {.struct_size = sizeof stats};
    pkv_stats levels = {.struct_size = sizeof levels};

    (void)pkv_tier_get_stats(tier_world.tier, &stats);
    tier_world.counts->num_kept += (int64_t)stats.num_blocks_kept;
    tier_world.counts->num_evicted += (int64_t)stats.num_blocks_evicted;
    for (int32_t i = 0; i < MAX_REQUESTS; i++) {
        if (tier_world.requests[i].is_open &&
            pkv_request_close(tier_world.manager, tier_world.requests[i].handle) != PKV_OK) {
            return tier_sim_fail("close at the end", i, 0);
        }
    }
    (void)pkv_get_stats(tier_world.manager, &levels);
    if (levels.num_free_blocks + levels.num_pending_blocks != tier_world.num_blocks - 1) {
        return tier_sim_fail("free and pending", levels.num_free_blocks, levels.num_pending_blocks);
    }
    for (int32_t s = 0; s < MAX_SWAPS; s++) {
        if (tier_world.swaps[s].is_open &&
            pkv_swap_abort(tier_world.tier, tier_world.swaps[s].handle) != PKV_OK) {
            return tier_sim_fail("abort at the end", s, 0);
        }
    }
    (void)pkv_get_stats(tier_world.manager, &levels);
    (void)pkv_tier_get_stats(tier_world.tier, &stats);
    if (levels.num_free_blocks != tier_world.num_blocks - 1 ||
        stats.num_free_blocks != tier_world.num_slots - 1 || stats.num_pinned_blocks != 0) {
        return tier_sim_fail("a leak, blocks and slots", levels.num_free_blocks,
                             stats.num_free_blocks);
    }
    return check();
}

bool tier_sim_run(
    test_source *source, int32_t num_steps, tier_sim_counts *counts, char *text, size_t text_size) {
    bool is_right;

    memset(&tier_world, 0, sizeof tier_world);
    tier_world.source = source;
    tier_world.counts = counts;
    tier_world.step = 1;
    tier_world.text = text;
    tier_world.text_size = text_size;
    text[0] = '\0';
    is_right = make();
    for (int32_t i = 0; i < num_steps && is_right && !source->is_exhausted; i++) {
        is_right = act() && (i % CHECK_EVERY != 0 || check());
        counts->num_steps++;
    }
    is_right = is_right && finish();
    pkv_tier_destroy(tier_world.tier);
    pkv_manager_destroy(tier_world.manager);
    return is_right;
}
