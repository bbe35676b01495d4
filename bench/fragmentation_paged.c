/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Paged allocation by the library's manager, driven as a scheduler drives it: append, allocate
 * slots, preempt the youngest by recompute when blocks run out, admit above the watermark.
 *
 * The one idea: blocks are counted in the manager's tables and pool, never in a copy kept here. */
#include "fragmentation.h"

#include <stdio.h>
#include <stdlib.h>

#define MAX_ROWS 1024
#define MIN_ROWS 64
/* Bounds of what one manager may take: cells of its block table, tokens of its arena. */
#define MAX_TABLE_CELLS (64 << 20)
#define MAX_ARENA_TOKENS (32 << 20)

struct paged_simulation {
    memory_state state;
    pkv_manager *manager;
    bool use_prefix_cache;
    int32_t block_size, num_blocks, num_watermark_blocks;
    /* The queue's open requests, its head last: preempted ones, the oldest on top, or below them
     * the one new request that has been tried. */
    memory_request *waiting;
    int32_t num_waiting, waiting_capacity;
    /* A prompt of maximal length. Its first token is set to the request's number, so that no two
     * requests share a prefix: what sharing saves is another question than what a layout wastes. */
    int32_t *token_ids;
};

static bool fail(paged_simulation *simulation, const char *verb, pkv_status status) {
    snprintf(simulation->state.error, MEMORY_MAX_ERROR, "%s gave %s: %s", verb,
             pkv_status_name(status), pkv_manager_last_error(simulation->manager));
    return false;
}

static bool make_manager(paged_simulation *simulation, const memory_setup *setup) {
    int32_t max_blocks = (setup->max_length - 1) / simulation->block_size + 1;
    int32_t max_rows = MAX_TABLE_CELLS / max_blocks;
    pkv_manager_config config = {.struct_size = sizeof(config)};

    max_rows = max_rows > MAX_ROWS ? MAX_ROWS : max_rows;
    max_rows = max_rows < MIN_ROWS ? MIN_ROWS : max_rows;

    /* Open requests: those that hold blocks, those preempted from them, and the queue's head. */
    int32_t max_requests = 2 * max_rows + 1;
    int64_t max_total_tokens = (int64_t)max_requests * setup->list->max_total_tokens;

    if (max_total_tokens > MAX_ARENA_TOKENS && setup->num_slots < MAX_ARENA_TOKENS / 4) {
        max_total_tokens = MAX_ARENA_TOKENS;
    }
    config.num_blocks = simulation->num_blocks;
    config.block_size = simulation->block_size;
    config.max_model_len = setup->max_length;
    config.max_rows = max_rows;
    config.max_requests = max_requests;
    config.max_total_tokens = max_total_tokens;
    config.disable_prefix_cache = !simulation->use_prefix_cache;
    simulation->waiting_capacity = max_requests;
    simulation->waiting = calloc((size_t)max_requests, sizeof(memory_request));
    simulation->token_ids = calloc((size_t)setup->max_length, sizeof(int32_t));
    return simulation->waiting != NULL && simulation->token_ids != NULL &&
           memory_state_begin(&simulation->state, setup, max_rows) &&
           pkv_manager_create(&config, &simulation->manager) == PKV_OK;
}

paged_simulation *paged_begin(const memory_setup *setup, const memory_case *of) {
    paged_simulation *simulation = calloc(1, sizeof(*simulation));

    if (simulation == NULL) {
        return NULL;
    }
    simulation->use_prefix_cache = of->use_prefix_cache;
    simulation->block_size = of->block_size;
    /* All blocks, the null block among them, fit into the slots that contiguous allocation has. */
    simulation->num_blocks = (int32_t)(setup->num_slots / of->block_size);
    simulation->num_watermark_blocks = simulation->num_blocks * MEMORY_WATERMARK_PERCENT / 100;
    if (!make_manager(simulation, setup)) {
        paged_end(simulation);
        return NULL;
    }
    return simulation;
}

void paged_end(paged_simulation *simulation) {
    if (simulation != NULL) {
        pkv_manager_destroy(simulation->manager);
        free(simulation->waiting);
        free(simulation->token_ids);
        free(simulation->state.running);
        free(simulation);
    }
}

memory_state *paged_get_state(paged_simulation *simulation) {
    return &simulation->state;
}

const pkv_manager *paged_get_manager(const paged_simulation *simulation) {
    return simulation->manager;
}

int32_t paged_get_num_blocks(const paged_simulation *simulation) {
    return simulation->num_blocks;
}

/* Complete requests leave, in order. */
static bool remove_complete(paged_simulation *simulation) {
    memory_state *state = &simulation->state;
    int32_t num_kept = 0;

    for (int32_t i = 0; i < state->num_running; i++) {
        memory_request *request = &state->running[i];

        if (request->num_live_tokens < request->num_total_tokens) {
            state->running[num_kept++] = *request;
            continue;
        }

        int64_t started = bench_now_ns();
        pkv_status status = pkv_free(simulation->manager, request->request);

        if (status == PKV_OK) {
            status = pkv_request_close(simulation->manager, request->request);
        }
        state->manager_ns += bench_now_ns() - started;
        if (status != PKV_OK) {
            return fail(simulation, "pkv_request_close", status);
        }
        state->num_finished++;
    }
    state->num_running = num_kept;
    return true;
}

/* Take the blocks of the youngest running request; it waits as the queue's head. */
static bool preempt_youngest(paged_simulation *simulation) {
    memory_state *state = &simulation->state;
    memory_request victim = state->running[state->num_running - 1];
    pkv_status status = pkv_free(simulation->manager, victim.request);

    if (status != PKV_OK) {
        return fail(simulation, "pkv_free", status);
    }
    state->num_preemptions++;
    state->num_recomputed_tokens += victim.num_live_tokens;
    victim.num_live_tokens = 0;
    state->num_running--;
    simulation->waiting[simulation->num_waiting++] = victim;
    return true;
}

/* Give a running request room for its next token. `*is_served` is false where it had to preempt
 * itself. */
static bool grow_one(paged_simulation *simulation, int32_t index, bool *is_served) {
    memory_state *state = &simulation->state;
    memory_request *request = &state->running[index];
    pkv_slots_args args = {
        .struct_size = sizeof(args),
        .num_computed_tokens = request->num_live_tokens,
        .num_new_tokens = 1,
    };
    int32_t token_id = request->num_known_tokens;
    pkv_status status = pkv_request_append(simulation->manager, request->request, &token_id, 1);

    if (status != PKV_OK) {
        return fail(simulation, "pkv_request_append", status);
    }
    request->num_known_tokens++;
    for (;;) {
        status = pkv_allocate_slots(simulation->manager, request->request, &args, NULL);
        if (status == PKV_OK) {
            request->num_live_tokens++;
            state->num_written_tokens++;
            *is_served = true;
            return true;
        }
        if (status != PKV_NO_FREE_BLOCKS) {
            return fail(simulation, "pkv_allocate_slots", status);
        }

        bool is_last = index == state->num_running - 1;

        if (!preempt_youngest(simulation)) {
            return false;
        }
        if (is_last) {
            *is_served = false;
            return true;
        }
    }
}

static bool grow(paged_simulation *simulation) {
    memory_state *state = &simulation->state;
    bool is_served = true;

    int64_t started = bench_now_ns();

    for (int32_t i = 0; i < state->num_running; i++) {
        if (!grow_one(simulation, i, &is_served)) {
            return false;
        }
    }
    state->manager_ns += bench_now_ns() - started;
    return true;
}

/* See that the queue's head is an open request. */
static bool open_head(paged_simulation *simulation) {
    memory_state *state = &simulation->state;

    if (simulation->num_waiting > 0) {
        return true;
    }

    memory_request head = memory_take_next(state);
    pkv_request_args args = {
        .struct_size = sizeof(args),
        .token_ids = simulation->token_ids,
        .num_tokens = head.num_input_tokens,
        .max_num_tokens = head.num_total_tokens,
    };

    simulation->token_ids[0] = (int32_t)(head.serial & INT32_MAX);

    int64_t started = bench_now_ns();
    pkv_status status = pkv_request_open(simulation->manager, &args, &head.request);

    state->manager_ns += bench_now_ns() - started;
    if (status != PKV_OK) {
        return fail(simulation, "pkv_request_open", status);
    }
    head.num_known_tokens = head.num_input_tokens;
    simulation->waiting[simulation->num_waiting++] = head;
    return true;
}

/* Ask for slots of all known tokens of the queue's head. */
static pkv_status allocate_head(paged_simulation *simulation) {
    const memory_request *head = &simulation->waiting[simulation->num_waiting - 1];
    pkv_slots_args args = {
        .struct_size = sizeof(args),
        .num_watermark_blocks = simulation->num_watermark_blocks,
    };
    int64_t started = bench_now_ns();
    pkv_status status =
        pkv_get_computed_blocks(simulation->manager, head->request, &args.num_new_computed_tokens);

    if (status == PKV_OK) {
        args.num_new_tokens = head->num_known_tokens - args.num_new_computed_tokens;
        status = pkv_allocate_slots(simulation->manager, head->request, &args, NULL);
    }
    simulation->state.manager_ns += bench_now_ns() - started;
    return status;
}

static bool admit(paged_simulation *simulation) {
    memory_state *state = &simulation->state;
    const pkv_pool *pool = pkv_manager_get_pool(simulation->manager);

    for (;;) {
        if (!open_head(simulation)) {
            return false;
        }

        memory_request head = simulation->waiting[simulation->num_waiting - 1];
        pkv_status status = allocate_head(simulation);

        if (status == PKV_OK) {
            head.num_live_tokens = head.num_known_tokens;
            state->num_written_tokens += head.num_known_tokens;
            simulation->num_waiting--;
            if (!memory_add_running(state, &head)) {
                return false;
            }
            continue;
        }
        if (status != PKV_NO_FREE_BLOCKS && status != PKV_NO_FREE_ROWS) {
            return fail(simulation, "pkv_allocate_slots", status);
        }

        int64_t num_usable =
            pkv_pool_get_num_free_blocks(pool) - (int64_t)simulation->num_watermark_blocks;

        state->is_head_refused = true;
        state->was_enough_free = num_usable * simulation->block_size >= head.num_known_tokens;
        state->num_row_waits += status == PKV_NO_FREE_ROWS;
        return true;
    }
}

static bool count(paged_simulation *simulation, slot_counts *counts) {
    memory_state *state = &simulation->state;
    const pkv_pool *pool = pkv_manager_get_pool(simulation->manager);
    int64_t num_free_blocks = pkv_pool_get_num_free_blocks(pool);
    int64_t num_held_blocks = 0;

    *counts = (slot_counts){{0}};
    for (int32_t i = 0; i < state->num_running; i++) {
        const memory_request *request = &state->running[i];
        const pkv_block_id *block_ids;
        int32_t num_blocks = 0;
        pkv_status status =
            pkv_get_block_table(simulation->manager, request->request, 0, &block_ids, &num_blocks);

        if (status != PKV_OK) {
            return fail(simulation, "pkv_get_block_table", status);
        }

        int64_t num_held = (int64_t)num_blocks * simulation->block_size;
        int64_t num_filled =
            num_held < request->num_total_tokens ? num_held : request->num_total_tokens;

        counts->slots[SLOTS_LIVE] += request->num_live_tokens;
        counts->slots[SLOTS_RESERVED] += num_filled - request->num_live_tokens;
        counts->slots[SLOTS_INTERNAL] += num_held - num_filled;
        num_held_blocks += num_blocks;
    }
    state->num_table_entries = num_held_blocks;
    /* Requests share no blocks here, so every block but the null block is held once or free. */
    if (num_held_blocks + num_free_blocks + 1 != simulation->num_blocks) {
        snprintf(state->error, MEMORY_MAX_ERROR, "%lld blocks held, %lld free, 1 null are not %d",
                 (long long)num_held_blocks, (long long)num_free_blocks, simulation->num_blocks);
        return false;
    }
    counts->slots[SLOTS_FREE] = num_free_blocks * simulation->block_size;
    counts->slots[SLOTS_EXTERNAL] =
        state->setup->num_slots - (int64_t)(simulation->num_blocks - 1) * simulation->block_size;
    return true;
}

bool paged_step(paged_simulation *simulation, slot_counts *counts) {
    memory_state *state = &simulation->state;

    if (!remove_complete(simulation)) {
        return false;
    }

    int64_t num_preemptions = state->num_preemptions;

    if (!grow(simulation)) {
        return false;
    }
    /* As vLLM: a step that had to preempt admits nobody. */
    state->is_head_refused = false;
    state->was_enough_free = false;
    if (state->num_preemptions == num_preemptions && !admit(simulation)) {
        return false;
    }
    return count(simulation, counts);
}

bool paged_check(paged_simulation *simulation, const slot_counts *counts) {
    pkv_stats stats = {.struct_size = sizeof(stats)};
    pkv_status status = pkv_manager_check(simulation->manager);

    if (status == PKV_OK) {
        status = pkv_get_stats(simulation->manager, &stats);
    }
    if (status != PKV_OK) {
        return fail(simulation, "pkv_manager_check", status);
    }
    if (stats.num_live_slots != counts->slots[SLOTS_LIVE] ||
        stats.num_reserved_slots != counts->slots[SLOTS_RESERVED] ||
        stats.num_internal_slots != counts->slots[SLOTS_INTERNAL] ||
        (int64_t)stats.num_free_blocks * simulation->block_size != counts->slots[SLOTS_FREE]) {
        snprintf(simulation->state.error, MEMORY_MAX_ERROR,
                 "the library counts %lld live, %lld reserved, %lld internal slots and %d free "
                 "blocks; counted here: %lld, %lld, %lld, %lld slots",
                 (long long)stats.num_live_slots, (long long)stats.num_reserved_slots,
                 (long long)stats.num_internal_slots, stats.num_free_blocks,
                 (long long)counts->slots[SLOTS_LIVE], (long long)counts->slots[SLOTS_RESERVED],
                 (long long)counts->slots[SLOTS_INTERNAL], (long long)counts->slots[SLOTS_FREE]);
        return false;
    }
    return true;
}
