/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Serves a workload with preemption by recompute and by swap; see the header. The model is a chain
 * of hashes through the block tables.
 *
 * The one idea: what a copy brings is moved when the clock says that it has arrived, and what it
 * takes away at the last moment at which its source is still promised to hold it. */
#include "preempt_serve.h"

#include <stdlib.h>
#include <string.h>

typedef struct served_request {
    int32_t *tokens;
    int32_t num_tokens;
} served_request;

/* A swap under way. copies: [num_slots], a copy of the plan's. */
struct transfer {
    pkv_swap swap;
    bool is_inward, is_moved;
    double end_seconds;
    pkv_block_copy *copies;
    int32_t num_copies;
};

struct serve {
    const preempt_serve_args *args;
    preempt_serve_result *result;
    pkv_manager *manager;
    pkv_tier *tier;
    pkv_device *device;
    struct scheduler *scheduler;
    uint64_t *device_cells, *host_cells; /* [blocks][block size] */
    served_request *requests;
    int32_t *tokens; /* of all requests */
    scheduler_output *outputs;
    int32_t *output_tokens;
    struct transfer *transfers; /* [SCHEDULER_MAX_SWAPS] */
    pkv_block_copy *copies;     /* of all transfers */
    int32_t num_transfers, num_started, num_ended;
    double clock, link_free_at[2];
    const char *error;
};

static bool is_ok(struct serve *serve, pkv_status status) {
    if (status != PKV_OK && serve->error == NULL) {
        serve->error = pkv_status_name(status);
    }
    return status == PKV_OK;
}

/* ---- the link -------------------------------------------------------------------------------- */

static pkv_tensor cells_of(const struct serve *serve, uint64_t *cells, int64_t num_blocks) {
    int64_t size = serve->args->costs.block_size * (int64_t)sizeof *cells;

    return (pkv_tensor){
        cells, PKV_DTYPE_UINT8, 3, {1, num_blocks, size}, {num_blocks * size, size, 1}};
}

static bool move(struct serve *serve, struct transfer *transfer) {
    pkv_tensor device = cells_of(serve, serve->device_cells, serve->args->num_blocks);
    pkv_tensor host = cells_of(serve, serve->host_cells, serve->args->num_slots);

    transfer->is_moved = true;
    return is_ok(serve, pkv_swap_blocks(serve->device, transfer->is_inward ? &host : &device,
                                        transfer->is_inward ? &device : &host, transfer->copies,
                                        transfer->num_copies, NULL));
}

static bool is_nth(int32_t count, int32_t period) {
    return period > 0 && count % period == 0;
}

static pkv_status start_transfer(void *context,
                                 pkv_swap swap,
                                 bool is_inward,
                                 const pkv_block_copy *copies,
                                 int32_t num_copies) {
    struct serve *serve = context;
    double *free_at = &serve->link_free_at[is_inward ? 1 : 0];
    struct transfer *transfer = &serve->transfers[serve->num_transfers];

    if (is_nth(++serve->num_started, serve->args->failing_start)) {
        return PKV_ERROR_DEVICE;
    }
    serve->num_transfers++;
    transfer->swap = swap;
    transfer->is_inward = is_inward;
    transfer->is_moved = false;
    transfer->num_copies = num_copies;
    memcpy(transfer->copies, copies, (size_t)num_copies * sizeof *copies);
    *free_at = (*free_at > serve->clock ? *free_at : serve->clock) +
               scheduler_copy_cost(&serve->args->costs, num_copies);
    transfer->end_seconds = *free_at;
    serve->result->link_bytes += num_copies * serve->args->costs.block_bytes;
    if (serve->num_transfers > serve->result->max_open_swaps) {
        serve->result->max_open_swaps = serve->num_transfers;
    }
    /* Sources that are free at once may be written by the very next step. */
    if (!is_inward && serve->args->copies_are_ordered && !move(serve, transfer)) {
        return PKV_ERROR_DEVICE;
    }
    return PKV_IN_PROGRESS;
}

/* End what has arrived. Each transfer keeps its array of copies, so they are exchanged, too. */
static bool end_transfers(struct serve *serve) {
    for (int32_t i = 0; i < serve->num_transfers;) {
        struct transfer ended = serve->transfers[i];
        bool has_copied;

        if (ended.end_seconds > serve->clock) {
            i++;
            continue;
        }
        has_copied = !is_nth(++serve->num_ended, serve->args->failing_end);
        if (has_copied && !ended.is_moved && !move(serve, &ended)) {
            return false;
        }
        serve->num_transfers--;
        serve->transfers[i] = serve->transfers[serve->num_transfers];
        serve->transfers[serve->num_transfers] = ended;
        if (!is_ok(serve, scheduler_end_swap(serve->scheduler, ended.swap, has_copied))) {
            return false;
        }
    }
    return true;
}

/* ---- the model ------------------------------------------------------------------------------- */

static uint64_t chain(uint64_t previous, int32_t token) {
    uint64_t value = (previous ^ (uint64_t)(uint32_t)token) + UINT64_C(0x9e3779b97f4a7c15);

    value = (value ^ (value >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    value = (value ^ (value >> 27)) * UINT64_C(0x94d049bb133111eb);
    return value ^ (value >> 31);
}

static uint64_t *cell_of(const struct serve *serve, const pkv_block_id *table, int32_t position) {
    int32_t block_size = serve->args->costs.block_size;

    return &serve->device_cells[(int64_t)table[position / block_size] * block_size +
                                position % block_size];
}

/* Write the new tokens' cells, then read all from the first on, as attention does. */
static bool compute(struct serve *serve, const scheduler_entry *entry, uint64_t *last) {
    const served_request *request = entry->request->user_data;
    int32_t end = entry->num_computed_tokens + entry->num_new_tokens;
    const pkv_block_id *table;
    int32_t num_blocks;
    uint64_t expected = 0;

    if (!is_ok(serve, pkv_get_block_table(serve->manager, entry->request->handle, 0, &table,
                                          &num_blocks))) {
        return false;
    }
    for (int32_t t = entry->num_computed_tokens; t < end; t++) {
        uint64_t previous = t > 0 ? *cell_of(serve, table, t - 1) : 0;
        *cell_of(serve, table, t) = chain(previous, request->tokens[t]);
    }
    for (int32_t t = 0; t < end; t++) {
        expected = chain(expected, request->tokens[t]);
        if (*cell_of(serve, table, t) != expected) {
            serve->error = "a block has another content than it should have";
            return false;
        }
    }
    *last = expected;
    return true;
}

static bool run_step(struct serve *serve, const scheduler_step *step) {
    double compute_seconds = 0.0;

    for (int32_t i = 0; i < step->num_entries; i++) {
        const scheduler_entry *entry = &step->entries[i];
        served_request *request = entry->request->user_data;
        uint64_t last;

        if (!compute(serve, entry, &last)) {
            return false;
        }
        compute_seconds += scheduler_compute_cost(&serve->args->costs, entry->num_computed_tokens,
                                                  entry->num_new_tokens);
        serve->outputs[i] = (scheduler_output){NULL, 0};
        if (!entry->request->is_prefilling) {
            serve->output_tokens[i] = (int32_t)(last % WORKLOAD_VOCABULARY);
            serve->outputs[i] = (scheduler_output){&serve->output_tokens[i], 1};
            request->tokens[request->num_tokens++] = serve->output_tokens[i];
        }
    }
    serve->clock +=
        compute_seconds > serve->args->step_seconds ? compute_seconds : serve->args->step_seconds;
    serve->result->num_steps++;
    if (step->num_entries == 0) {
        serve->result->num_empty_steps++;
        return true;
    }
    return is_ok(serve, scheduler_complete_step(serve->scheduler, serve->outputs));
}

/* ---- life ------------------------------------------------------------------------------------ */

static bool make_memory(struct serve *serve) {
    const preempt_serve_args *args = serve->args;
    size_t num_requests = (size_t)args->workload->num_items;
    size_t length = (size_t)args->workload->max_total_tokens;
    size_t block_size = (size_t)args->costs.block_size;
    size_t num_copies = (size_t)args->num_slots;

    serve->device_cells = calloc((size_t)args->num_blocks * block_size, sizeof(uint64_t));
    serve->host_cells = calloc((size_t)args->num_slots * block_size, sizeof(uint64_t));
    serve->requests = calloc(num_requests, sizeof *serve->requests);
    serve->tokens = calloc(num_requests * length, sizeof *serve->tokens);
    serve->outputs = calloc(num_requests, sizeof *serve->outputs);
    serve->output_tokens = calloc(num_requests, sizeof *serve->output_tokens);
    serve->transfers = calloc(SCHEDULER_MAX_SWAPS, sizeof *serve->transfers);
    serve->copies = calloc(SCHEDULER_MAX_SWAPS * num_copies, sizeof *serve->copies);
    if (serve->device_cells == NULL || serve->host_cells == NULL || serve->requests == NULL ||
        serve->tokens == NULL || serve->outputs == NULL || serve->output_tokens == NULL ||
        serve->transfers == NULL || serve->copies == NULL) {
        return is_ok(serve, PKV_ERROR_OUT_OF_MEMORY);
    }
    for (size_t i = 0; i < SCHEDULER_MAX_SWAPS; i++) {
        serve->transfers[i].copies = serve->copies + i * num_copies;
    }
    for (size_t i = 0; i < num_requests; i++) {
        serve->requests[i].tokens = serve->tokens + i * length;
    }
    return true;
}

static bool make_towers(struct serve *serve) {
    const preempt_serve_args *args = serve->args;
    int32_t num_requests = args->workload->num_items;
    int32_t max_model_len = args->workload->max_total_tokens + 1;
    pkv_manager_config manager_config = {.struct_size = sizeof manager_config,
                                         .num_blocks = args->num_blocks,
                                         .block_size = args->costs.block_size,
                                         .max_model_len = max_model_len,
                                         .max_rows = num_requests,
                                         .max_requests = num_requests,
                                         .max_total_tokens = (int64_t)num_requests * max_model_len};
    scheduler_config config = {.policy = args->policy,
                               .max_requests = num_requests,
                               .max_model_len = max_model_len,
                               .max_running_requests = args->max_running_requests,
                               .max_step_tokens = args->max_step_tokens,
                               .track_steps = args->track_steps};

    if (!is_ok(serve, pkv_manager_create(&manager_config, &serve->manager)) ||
        !is_ok(serve, pkv_device_create_cpu(NULL, &serve->device))) {
        return false;
    }
    if (args->has_tier) {
        pkv_tier_config tier_config = {.struct_size = sizeof tier_config,
                                       .manager = serve->manager,
                                       .num_blocks = args->num_slots};
        if (!is_ok(serve, pkv_tier_create(&tier_config, &serve->tier))) {
            return false;
        }
        config.swapping = (scheduler_swapping){.tier = serve->tier,
                                               .preemption = args->preemption,
                                               .copy = start_transfer,
                                               .copy_context = serve,
                                               .copies_are_ordered = args->copies_are_ordered,
                                               .costs = args->costs};
    }
    config.manager = serve->manager;
    return is_ok(serve, scheduler_create(&config, &serve->scheduler));
}

static bool add_requests(struct serve *serve) {
    const workload_list *workload = serve->args->workload;

    for (int32_t i = 0; i < workload->num_items; i++) {
        const workload_item *item = &workload->items[i];
        served_request *request = &serve->requests[i];
        scheduler_request_args args = {.token_ids = request->tokens,
                                       .num_tokens = item->num_input_tokens,
                                       .max_output_tokens = item->num_output_tokens,
                                       .priority = i % 3,
                                       .arrival = i,
                                       .user_data = request};
        scheduler_request *added;

        workload_get_tokens(workload, i, 0, item->num_input_tokens, request->tokens);
        request->num_tokens = item->num_input_tokens;
        if (!is_ok(serve, scheduler_add(serve->scheduler, &args, &added))) {
            return false;
        }
    }
    return true;
}

static bool serve_all(struct serve *serve) {
    uint64_t num_requests = (uint64_t)serve->args->workload->num_items;
    scheduler_stats *stats = &serve->result->stats;
    const scheduler_step *step;

    do {
        if (!end_transfers(serve) || !is_ok(serve, scheduler_schedule(serve->scheduler, &step))) {
            return false;
        }
        if (step->num_entries == 0 && step->num_preempted == 0 && serve->num_transfers == 0) {
            serve->error = "nobody runs, and nothing is under way";
            return false;
        }
        if (!run_step(serve, step)) {
            return false;
        }
        scheduler_get_stats(serve->scheduler, stats);
    } while (stats->num_finished + stats->num_rejected < num_requests);
    for (uint64_t i = 0; i < num_requests; i++) {
        for (int32_t t = 0; t < serve->requests[i].num_tokens; t++) {
            serve->result->digest = chain(serve->result->digest, serve->requests[i].tokens[t]);
        }
    }
    serve->result->seconds = serve->clock;
    return is_ok(serve, pkv_manager_check(serve->manager)) &&
           (serve->tier == NULL || is_ok(serve, pkv_tier_check(serve->tier)));
}

bool preempt_serve_run(const preempt_serve_args *args,
                       preempt_serve_result *result,
                       const char **error) {
    struct serve serve = {.args = args, .result = result};

    memset(result, 0, sizeof *result);
    bool is_right =
        make_memory(&serve) && make_towers(&serve) && add_requests(&serve) && serve_all(&serve);
    *error = serve.error;
    scheduler_destroy(serve.scheduler);
    pkv_tier_destroy(serve.tier);
    pkv_manager_destroy(serve.manager);
    pkv_device_destroy(serve.device);
    free(serve.device_cells);
    free(serve.host_cells);
    free(serve.requests);
    free(serve.tokens);
    free(serve.outputs);
    free(serve.output_tokens);
    free(serve.transfers);
    free(serve.copies);
    return is_right;
}
