/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Manager cases of bench_manager; see manager_cases.h. */
#include <stdlib.h>
#include <string.h>

#include "manager_cases.h"
#include "random.h"
#include "report.h"

/* ---- decode ---------------------------------------------------------------------------------- */

static pkv_slots_args first_args(int32_t num_tokens) {
    pkv_slots_args args = {0};

    args.struct_size = sizeof args;
    args.num_new_tokens = num_tokens;
    return args;
}

/* Open every request with a prompt of its own and run the prefill. The step to be measured computes
 * the last token of the prompt, for which the prefill left room. */
static bool start_requests(decode_case *state) {
    int32_t *tokens = malloc((size_t)state->context * sizeof *tokens);
    bool is_ok = tokens != NULL;

    for (int32_t i = 0; is_ok && i < state->num_requests; i++) {
        pkv_request_args request = {0};
        pkv_slots_args args = first_args(state->context);

        for (int32_t t = 0; t < state->context; t++) {
            tokens[t] = (int32_t)(random_mix(((uint64_t)i << 32) + (uint64_t)t) & 0x3fffffff);
        }
        request.struct_size = sizeof request;
        request.token_ids = tokens;
        request.num_tokens = state->context;
        is_ok = pkv_request_open(state->manager, &request, &state->requests[i]) == PKV_OK &&
                pkv_allocate_slots(state->manager, state->requests[i], &args, NULL) == PKV_OK;
        state->entries[i].request = state->requests[i];
        state->entries[i].num_computed_tokens = state->context - 1;
        state->entries[i].num_new_tokens = 1;
        state->args[i] = first_args(1);
        state->args[i].num_computed_tokens = state->context - 1;
    }
    free(tokens);
    return is_ok;
}

bool decode_case_create(decode_case *state,
                        int32_t num_requests,
                        int32_t context,
                        int32_t block_size,
                        bool disable_prefix_cache) {
    pkv_manager_config config = {0};
    size_t count = (size_t)num_requests;
    size_t columns = (size_t)(context / block_size + 1);

    memset(state, 0, sizeof *state);
    state->num_requests = num_requests;
    state->context = context;
    state->block_size = block_size;
    state->num_cells = (int64_t)(count * columns);
    config.struct_size = sizeof config;
    config.num_blocks = num_requests * (context / block_size + 2) + 1;
    config.max_model_len = context + 8192;
    config.block_size = block_size;
    config.max_rows = num_requests;
    config.max_requests = num_requests;
    config.max_total_tokens = (int64_t)num_requests * config.max_model_len;
    config.disable_prefix_cache = disable_prefix_cache;
    state->requests = calloc(count, sizeof *state->requests);
    state->entries = calloc(count, sizeof *state->entries);
    state->args = calloc(count, sizeof *state->args);
    state->table = calloc(count * columns, sizeof *state->table);
    state->table_from = calloc(count * columns, sizeof *state->table_from);
    state->batch.struct_size = sizeof state->batch;
    state->batch.max_requests = num_requests;
    state->batch.max_tokens = num_requests;
    state->batch.rows = calloc(count, sizeof(int32_t));
    state->batch.seq_lens = calloc(count, sizeof(int32_t));
    state->batch.query_start_loc = calloc(count + 1, sizeof(int32_t));
    state->batch.slot_mapping = calloc(count, sizeof(int64_t));
    return state->requests != NULL && state->entries != NULL && state->args != NULL &&
           state->table != NULL && state->table_from != NULL && state->batch.rows != NULL &&
           state->batch.seq_lens != NULL && state->batch.query_start_loc != NULL &&
           state->batch.slot_mapping != NULL &&
           pkv_manager_create(&config, &state->manager) == PKV_OK && start_requests(state);
}

void decode_case_destroy(decode_case *state) {
    pkv_manager_destroy(state->manager);
    free(state->requests);
    free(state->entries);
    free(state->args);
    free(state->table);
    free(state->table_from);
    free(state->batch.rows);
    free(state->batch.seq_lens);
    free(state->batch.query_start_loc);
    free(state->batch.slot_mapping);
    memset(state, 0, sizeof *state);
}

static void allocate_all(decode_case *state) {
    for (int32_t i = 0; i < state->num_requests; i++) {
        (void)pkv_allocate_slots(state->manager, state->requests[i], &state->args[i], NULL);
    }
}

double decode_case_allocate(decode_case *state) {
    int64_t start = bench_now_ns();

    allocate_all(state);
    return (double)(bench_now_ns() - start) / state->num_requests;
}

double decode_case_step(decode_case *state) {
    int64_t start = bench_now_ns();

    allocate_all(state);
    (void)pkv_batch_build(state->manager, 0, state->entries, state->num_requests, &state->batch);
    return (double)(bench_now_ns() - start) / state->num_requests;
}

double decode_case_append(decode_case *state) {
    int64_t start = bench_now_ns();

    for (int32_t i = 0; i < state->num_requests; i++) {
        (void)pkv_request_append(state->manager, state->requests[i], &i, 1);
    }
    return (double)(bench_now_ns() - start) / state->num_requests;
}

double decode_case_memcpy(decode_case *state) {
    int64_t start = bench_now_ns();

    memcpy(state->table, state->table_from, (size_t)state->num_cells * sizeof *state->table);
    return (double)(bench_now_ns() - start) / state->num_requests;
}

/* ---- lookup ---------------------------------------------------------------------------------- */

static pkv_request_args prompt_of(const int32_t *tokens, int32_t num_tokens) {
    pkv_request_args args = {0};

    args.struct_size = sizeof args;
    args.token_ids = tokens;
    args.num_tokens = num_tokens;
    args.max_num_tokens = num_tokens;
    return args;
}

bool lookup_case_create(lookup_case *state,
                        int32_t num_tokens,
                        int32_t block_size,
                        bool store_tokens) {
    pkv_manager_config config = {0};
    pkv_request_args prompt;
    pkv_slots_args args = first_args(num_tokens);
    pkv_request writer;

    memset(state, 0, sizeof *state);
    state->num_tokens = num_tokens + 1;
    config.struct_size = sizeof config;
    config.num_blocks = num_tokens / block_size + 16;
    config.max_model_len = state->num_tokens;
    config.block_size = block_size;
    config.store_tokens = store_tokens;
    config.key_secret[0] = 1;
    state->block_size = block_size;
    state->tokens = malloc((size_t)state->num_tokens * sizeof *state->tokens);
    state->keys = malloc((size_t)(state->num_tokens / block_size) * sizeof *state->keys);
    if (state->tokens == NULL || state->keys == NULL ||
        pkv_manager_create(&config, &state->manager) != PKV_OK) {
        return false;
    }
    for (int32_t i = 0; i < state->num_tokens; i++) {
        state->tokens[i] = (int32_t)(random_mix((uint64_t)i) & 0x3fffffff);
    }
    prompt = prompt_of(state->tokens, state->num_tokens);
    /* The writer caches the whole prompt; the readers have one token more than full blocks. */
    return pkv_request_open(state->manager, &prompt, &writer) == PKV_OK &&
           pkv_allocate_slots(state->manager, writer, &args, NULL) == PKV_OK &&
           pkv_request_close(state->manager, writer) == PKV_OK &&
           pkv_request_open(state->manager, &prompt, &state->readers[0]) == PKV_OK &&
           pkv_request_open(state->manager, &prompt, &state->readers[1]) == PKV_OK;
}

void lookup_case_destroy(lookup_case *state) {
    pkv_manager_destroy(state->manager);
    free(state->tokens);
    free(state->keys);
    memset(state, 0, sizeof *state);
}

double lookup_case_keys(lookup_case *state) {
    pkv_key_args args = {0};
    int64_t start = bench_now_ns();

    args.struct_size = sizeof args;
    args.block_size = state->block_size;
    args.secret[0] = 1;
    (void)pkv_compute_block_keys(&args, NULL, 0, state->tokens, state->num_tokens, state->keys,
                                 NULL);
    return (double)(bench_now_ns() - start);
}

double lookup_case_known(lookup_case *state) {
    int64_t start = bench_now_ns();

    (void)pkv_get_computed_blocks(state->manager, state->readers[state->turn], &state->num_hits);
    state->turn = 1 - state->turn;
    return (double)(bench_now_ns() - start);
}

double lookup_case_hashed(lookup_case *state) {
    pkv_request_args prompt = prompt_of(state->tokens, state->num_tokens);
    pkv_request request;
    int64_t start = bench_now_ns();
    int64_t end;

    (void)pkv_request_open(state->manager, &prompt, &request);
    (void)pkv_get_computed_blocks(state->manager, request, &state->num_hits);
    end = bench_now_ns();
    (void)pkv_request_close(state->manager, request);
    return (double)(end - start);
}

/* ---- prefill --------------------------------------------------------------------------------- */

bool prefill_case_create(prefill_case *state, int32_t num_tokens, int32_t block_size) {
    pkv_manager_config config = {0};
    int32_t num_prompts = 16;

    memset(state, 0, sizeof *state);
    state->num_tokens = num_tokens;
    config.struct_size = sizeof config;
    config.num_blocks = num_prompts * (num_tokens / block_size) + 1;
    config.max_model_len = num_tokens;
    config.block_size = block_size;
    config.key_secret[0] = 1;
    state->tokens = malloc((size_t)num_tokens * sizeof *state->tokens);
    if (state->tokens == NULL || pkv_manager_create(&config, &state->manager) != PKV_OK) {
        return false;
    }
    /* Fill the pool with cached blocks, so that each further prompt evicts. */
    for (int32_t i = 0; i < num_prompts; i++) {
        (void)prefill_case_allocate(state);
    }
    return true;
}

void prefill_case_destroy(prefill_case *state) {
    pkv_manager_destroy(state->manager);
    free(state->tokens);
    memset(state, 0, sizeof *state);
}

/* One prompt through its life; the times of the whole and of the allocation alone. */
static void live_once(prefill_case *state, int64_t *whole, int64_t *allocation) {
    pkv_slots_args args = first_args(state->num_tokens);
    pkv_request_args prompt;
    pkv_request request;
    int64_t opened;
    int64_t start;
    int64_t end;

    for (int32_t i = 0; i < state->num_tokens; i++) {
        uint32_t number = (uint32_t)state->next_token++;
        state->tokens[i] = (int32_t)(random_mix(number) & 0x3fffffff);
    }
    prompt = prompt_of(state->tokens, state->num_tokens);
    opened = bench_now_ns();
    (void)pkv_request_open(state->manager, &prompt, &request);
    (void)pkv_get_computed_blocks(state->manager, request, &state->num_hits);
    start = bench_now_ns();
    (void)pkv_allocate_slots(state->manager, request, &args, NULL);
    end = bench_now_ns();
    (void)pkv_request_close(state->manager, request);
    *whole = bench_now_ns() - opened;
    *allocation = end - start;
}

double prefill_case_allocate(prefill_case *state) {
    int64_t whole;
    int64_t allocation;

    live_once(state, &whole, &allocation);
    return (double)allocation;
}

double prefill_case_whole(prefill_case *state) {
    int64_t whole;
    int64_t allocation;

    live_once(state, &whole, &allocation);
    return (double)whole;
}
