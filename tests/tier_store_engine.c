/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The engine of the tests of a tier with a store; see tier_store_engine.h. */
#include "tier_store_engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

struct engine engine;

/* ---- the engine ------------------------------------------------------------------------------ */

const pkv_store_shape shape = {LAYERS, BLOCK_BYTES, BLOCK_TOKENS, SLOTS};

void start_manager(unsigned char weights) {
    const pkv_group_config groups[GROUPS] = {
        {.struct_size = sizeof groups[0]},
        {.struct_size = sizeof groups[0], .kind = PKV_GROUP_SLIDING_WINDOW, .window = WINDOW}};
    pkv_manager_config config = {.struct_size = sizeof config,
                                 .num_blocks = BLOCKS,
                                 .max_model_len = MAX_LEN,
                                 .block_size = BLOCK_TOKENS,
                                 .num_groups = GROUPS,
                                 .groups = groups,
                                 .max_rows = 16};
    pkv_tier_config tier_config = {
        .struct_size = sizeof tier_config, .num_blocks = SLOTS, .identity = {weights}};

    memset(&engine, 0, sizeof engine);
    memset(engine.memory, 0xee, sizeof engine.memory);
    assert_ok(pkv_manager_create(&config, &engine.manager));
    tier_config.manager = engine.manager;
    assert_ok(pkv_tier_create(&tier_config, &engine.tier));
}

pkv_status open_file(const char *path, pkv_store_mismatch mismatch, bool verify_data) {
    pkv_file_store_config config = {.struct_size = sizeof config,
                                    .path = path,
                                    .shape = shape,
                                    .mismatch = mismatch,
                                    .verify_data = verify_data};
    pkv_status status;

    assert_int_equal(sizeof config.identity, PKV_TIER_FINGERPRINT_SIZE);
    assert_ok(pkv_tier_get_fingerprint(engine.tier, config.identity));
    status = pkv_file_store_create(&config, &engine.file, engine.error, sizeof engine.error);
    if (status == PKV_OK) {
        engine.store.struct_size = sizeof engine.store;
        assert_ok(pkv_file_store_get_store(engine.file, &engine.store));
    }
    return status;
}

int32_t restore_tier(void) {
    pkv_block_key keys[SLOTS];
    int32_t groups[SLOTS], num_blocks;
    pkv_block_id slots[SLOTS];

    assert_ok(pkv_file_store_get_stored(engine.file, keys, groups, slots, SLOTS, &num_blocks));
    assert_ok(pkv_tier_restore(engine.tier, keys, groups, slots, NULL, num_blocks));
    assert_ok(pkv_tier_check(engine.tier));
    return num_blocks;
}

void stop_engine(void) {
    assert_ok(pkv_manager_check(engine.manager));
    assert_ok(pkv_tier_check(engine.tier));
    if (engine.store.close != NULL) {
        pkv_store_close(&engine.store);
    }
    pkv_tier_destroy(engine.tier);
    pkv_manager_destroy(engine.manager);
}

pkv_request open_request(int32_t family, int32_t num_shared, int32_t num_tokens) {
    int32_t tokens[MAX_LEN];
    pkv_request_args args = {.struct_size = sizeof args, tokens, num_tokens};
    pkv_request request;

    for (int32_t t = 0; t < num_tokens; t++) {
        tokens[t] = t < num_shared ? t : 1000 * (family + 1) + t;
    }
    assert_ok(pkv_request_open(engine.manager, &args, &request));
    return request;
}

int32_t length_of(pkv_request request) {
    pkv_request_info info = {.struct_size = sizeof info};

    assert_ok(pkv_request_get_info(engine.manager, request, &info));
    return info.num_tokens;
}

uint64_t extend_prefix(uint64_t prefix, int32_t token) {
    return (prefix ^ (uint64_t)token) * UINT64_C(0x100000001b3) + 1;
}

uint64_t content_of(uint64_t prefix, int layer, int32_t group) {
    return (prefix + (uint64_t)(layer * GROUPS + group + 1) * UINT64_C(0x9e3779b97f4a7c15)) *
           UINT64_C(0xbf58476d1ce4e5b9);
}

void touch_tokens(pkv_request request, int32_t first, int32_t end, bool is_write) {
    int32_t tokens[MAX_LEN];

    assert_ok(pkv_request_get_tokens(engine.manager, request, 0, end, tokens));
    for (int32_t group = 0; group < GROUPS; group++) {
        const pkv_block_id *table;
        int32_t num_blocks;
        uint64_t prefix = FIRST_PREFIX;

        assert_ok(pkv_get_block_table(engine.manager, request, group, &table, &num_blocks));
        assert_true(num_blocks * BLOCK_TOKENS >= end);
        for (int32_t position = 0; position < end; position++) {
            prefix = extend_prefix(prefix, tokens[position]);
            if (position < first || (!is_write && group == 1 && position <= end - WINDOW)) {
                continue;
            }
            const pkv_block_id block = table[position / BLOCK_TOKENS];
            assert_in_range(block, 1, BLOCKS - 1);
            for (int layer = 0; layer < LAYERS; layer++) {
                unsigned char *at = engine.memory[layer][block] + 8 * (position % BLOCK_TOKENS);
                const uint64_t content = content_of(prefix, layer, group);

                if (is_write) {
                    memcpy(at, &content, sizeof content);
                }
                assert_memory_equal(at, &content, sizeof content);
            }
        }
    }
}

pkv_status compute(pkv_request request, int32_t computed, int32_t hit, int32_t count) {
    pkv_slots_args args = {.struct_size = sizeof args,
                           .num_computed_tokens = computed,
                           .num_new_computed_tokens = hit,
                           .num_new_tokens = count};
    pkv_status status = pkv_allocate_slots(engine.manager, request, &args, NULL);

    if (status == PKV_OK) {
        touch_tokens(request, computed + hit, computed + hit + count, true);
        touch_tokens(request, 0, computed + hit + count, false);
    }
    return status;
}

int32_t num_free_blocks(void) {
    pkv_stats stats = {.struct_size = sizeof stats};

    assert_ok(pkv_get_stats(engine.manager, &stats));
    return stats.num_free_blocks;
}

int32_t look_up(pkv_request request) {
    int32_t num_tokens;

    assert_ok(pkv_tier_lookup(engine.tier, request, 0, &num_tokens));
    return num_tokens;
}

/* ---- plans become transfers ------------------------------------------------------------------ */

struct flight *free_flight(bool is_write) {
    for (int i = 0; i < FLIGHTS; i++) {
        struct flight *flight = &engine.flights[i];

        if (!flight->is_open) {
            flight->is_write = is_write;
            flight->plan = (pkv_swap_plan){.struct_size = sizeof flight->plan,
                                           .capacity = MAX_COPIES,
                                           .copies = flight->copies,
                                           .groups = flight->groups,
                                           .keys = flight->keys,
                                           .token_ids = is_write ? flight->token_ids : NULL};
            return flight;
        }
    }
    return NULL;
}

void submit(struct flight *flight) {
    pkv_store_transfer transfer = {.struct_size = sizeof transfer,
                                   .is_write = flight->is_write,
                                   .num_blocks = flight->plan.num_copies,
                                   .blocks = {engine.memory,
                                              PKV_DTYPE_UINT8,
                                              3,
                                              {LAYERS, BLOCKS, BLOCK_BYTES},
                                              {BLOCKS * BLOCK_BYTES, BLOCK_BYTES, 1}},
                                   .copies = flight->copies,
                                   .keys = flight->keys,
                                   .groups = flight->groups,
                                   .token_ids = flight->plan.token_ids,
                                   .statuses = flight->statuses};

    flight->is_open = true;
    assert_ok(pkv_store_submit(&engine.store, &transfer, &flight->ticket));
}

struct flight *land(bool wait, int32_t *num_failed) {
    pkv_store_completion completion;
    int32_t count;

    assert_ok(pkv_store_poll(&engine.store, wait, &completion, 1, &count));
    for (int i = 0; count > 0 && i < FLIGHTS; i++) {
        if (engine.flights[i].is_open && engine.flights[i].ticket == completion.ticket) {
            engine.flights[i].is_open = false;
            *num_failed = completion.num_failed;
            return &engine.flights[i];
        }
    }
    assert_int_equal(count, 0);
    return NULL;
}

void evict_failed(const struct flight *flight) {
    for (int32_t i = 0; i < flight->plan.num_copies; i++) {
        const pkv_block_id slot =
            flight->is_write ? flight->copies[i].target : flight->copies[i].source;

        if (flight->statuses[i] != PKV_OK) {
            assert_ok(pkv_tier_evict(engine.tier, &slot, 1));
        }
    }
}

struct flight *swap_out(pkv_request request) {
    struct flight *flight = free_flight(true);

    assert_ok(pkv_swap_out(engine.tier, request, &flight->plan, &flight->swap));
    submit(flight);
    return flight;
}

struct flight *swap_in(pkv_request request) {
    struct flight *flight = free_flight(false);
    pkv_slots_args args = {.struct_size = sizeof args};

    assert_ok(pkv_swap_in(engine.tier, request, &args, NULL, &flight->plan, &flight->swap));
    submit(flight);
    return flight;
}
