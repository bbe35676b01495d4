/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The life of a test's managers and pools, and the short verbs of fixture.h. What turns state into
 * text is in fixture_text.c.
 *
 * The one idea: whatever a test makes is known here, so that no test can forget to check it. */
#include "support/fixture.h"

#include "support/fixture_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static fixture_objects objects;

/* ---- counting allocator ---------------------------------------------------------------------- */

static void *fixture_allocate(void *context, size_t size, size_t alignment) {
    fixture_objects *owner = context;
    void *memory = aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);

    owner->num_allocations++;
    if (memory != NULL) {
        /* What the library forgets to initialise must not look like zeroes. */
        memset(memory, 0xa5, size);
        owner->live_size += size;
    }
    return memory;
}

static void fixture_release(void *context, void *memory, size_t size) {
    fixture_objects *owner = context;

    owner->live_size -= size;
    free(memory);
}

/* ---- life ------------------------------------------------------------------------------------ */

int fixture_setup(void **state) {
    memset(&objects, 0, sizeof objects);
    *state = &objects;
    return 0;
}

int fixture_teardown(void **state) {
    int result = 0;

    (void)state;
    for (int32_t i = 0; i < objects.num_managers; i++) {
        pkv_manager *manager = objects.managers[i].manager;

        if (pkv_manager_check(manager) != PKV_OK ||
            pkv_pool_check(pkv_manager_get_pool(manager)) != PKV_OK) {
            print_error("manager %d is corrupt: %s%s\n", i, pkv_manager_last_error(manager),
                        pkv_pool_last_error(pkv_manager_get_pool(manager)));
            result = -1;
        }
        pkv_manager_destroy(manager);
    }
    for (int32_t i = 0; i < objects.num_pools; i++) {
        if (pkv_pool_check(objects.pools[i]) != PKV_OK) {
            print_error("pool %d is corrupt: %s\n", i, pkv_pool_last_error(objects.pools[i]));
            result = -1;
        }
        pkv_pool_destroy(objects.pools[i]);
    }
    if (objects.num_allocations != objects.num_managers + objects.num_pools) {
        print_error("%d allocations for %d objects\n", objects.num_allocations,
                    objects.num_managers + objects.num_pools);
        result = -1;
    }
    if (objects.live_size != 0) {
        print_error("%zu bytes were not released\n", objects.live_size);
        result = -1;
    }
    return result;
}

int32_t fixture_num_groups(const pkv_manager *manager) {
    for (int32_t i = 0; i < objects.num_managers; i++) {
        if (objects.managers[i].manager == manager) {
            return objects.managers[i].num_groups;
        }
    }
    fail_msg("a manager that this test did not make");
    return 0;
}

/* ---- making managers and pools --------------------------------------------------------------- */

pkv_manager_config small_config(int32_t num_blocks, int32_t block_size) {
    return (pkv_manager_config){
        .struct_size = sizeof(pkv_manager_config),
        .num_blocks = num_blocks,
        .block_size = block_size,
        .max_model_len = FIXTURE_MAX_MODEL_LEN,
        .max_rows = 64,
        .max_requests = 64,
        .max_total_tokens = 64 * FIXTURE_MAX_MODEL_LEN,
    };
}

pkv_group_config full_group(int32_t block_size) {
    return (pkv_group_config){.struct_size = sizeof(pkv_group_config),
                              .kind = PKV_GROUP_FULL_ATTENTION,
                              .block_size = block_size};
}

pkv_group_config window_group(int32_t block_size, int32_t window) {
    return (pkv_group_config){.struct_size = sizeof(pkv_group_config),
                              .kind = PKV_GROUP_SLIDING_WINDOW,
                              .block_size = block_size,
                              .window = window};
}

pkv_group_config chunked_group(int32_t block_size, int32_t chunk) {
    return (pkv_group_config){.struct_size = sizeof(pkv_group_config),
                              .kind = PKV_GROUP_CHUNKED_LOCAL,
                              .block_size = block_size,
                              .window = chunk};
}

pkv_manager *make_manager(const pkv_manager_config *config) {
    pkv_manager_config counted = *config;
    pkv_manager *manager = NULL;

    assert_true(objects.num_managers < FIXTURE_MAX_OBJECTS);
    counted.allocator = (pkv_allocator){fixture_allocate, fixture_release, &objects};
    assert_int_equal(pkv_manager_create(&counted, &manager), PKV_OK);
    assert_non_null(manager);
    objects.managers[objects.num_managers].manager = manager;
    objects.managers[objects.num_managers].num_groups =
        config->num_groups == 0 ? 1 : config->num_groups;
    objects.num_managers++;
    return manager;
}

pkv_manager *make_small_manager(int32_t num_blocks, int32_t block_size) {
    pkv_manager_config config = small_config(num_blocks, block_size);

    return make_manager(&config);
}

pkv_manager *make_hybrid_manager(int32_t num_blocks,
                                 const pkv_group_config *groups,
                                 int32_t num_groups) {
    pkv_manager_config config = small_config(num_blocks, 16);

    config.groups = groups;
    config.num_groups = num_groups;
    return make_manager(&config);
}

pkv_pool *make_pool(const pkv_pool_config *config) {
    pkv_pool_config counted = *config;
    pkv_pool *pool = NULL;

    assert_true(objects.num_pools < FIXTURE_MAX_OBJECTS);
    counted.allocator = (pkv_allocator){fixture_allocate, fixture_release, &objects};
    assert_int_equal(pkv_pool_create(&counted, &pool), PKV_OK);
    assert_non_null(pool);
    objects.pools[objects.num_pools++] = pool;
    return pool;
}

pkv_pool *make_small_pool(int32_t num_blocks, int32_t block_size) {
    pkv_pool_config config = {
        .struct_size = sizeof config, .num_blocks = num_blocks, .block_size = block_size};

    return make_pool(&config);
}

/* ---- prompts --------------------------------------------------------------------------------- */

static void prompt_append(prompt *target, int32_t token_id) {
    assert_true(target->num_tokens < FIXTURE_MAX_TOKENS);
    target->token_ids[target->num_tokens++] = token_id;
}

/* Append what one word stands for; see fixture.h. Returns what follows the word. */
static const char *prompt_append_word(prompt *target, const char *word) {
    char *end;
    long first = strtol(word, &end, 10);
    long last = first;
    long count = 1;

    assert_true(end != word);
    if (*end == '*') {
        count = first;
        first = strtol(end + 1, &end, 10);
        last = first;
    } else if (end[0] == '.' && end[1] == '.') {
        last = strtol(end + 2, &end, 10);
    }
    for (long i = 0; i < count; i++) {
        for (long token_id = first; token_id <= last; token_id++) {
            prompt_append(target, (int32_t)token_id);
        }
    }
    return end;
}

__attribute__((format(printf, 2, 0))) static void prompt_parse(prompt *target,
                                                               const char *format,
                                                               va_list values) {
    char text[1024];
    const char *word = text;
    int size = vsnprintf(text, sizeof text, format, values);

    assert_true(size >= 0 && (size_t)size < sizeof text);
    target->num_tokens = 0;
    while (*word != '\0') {
        if (*word == ' ') {
            word++;
        } else {
            word = prompt_append_word(target, word);
        }
    }
}

const prompt *prompt_of(const char *format, ...) {
    static prompt ring[4];
    static unsigned next;
    prompt *result = &ring[next++ % 4];
    va_list values;

    va_start(values, format);
    prompt_parse(result, format, values);
    va_end(values);
    return result;
}

/* ---- requests -------------------------------------------------------------------------------- */

static pkv_request open_tokens(pkv_manager *manager,
                               const pkv_request_args *args,
                               const prompt *tokens) {
    pkv_request_args complete = *args;
    pkv_request request = {0, 0};

    complete.struct_size = sizeof complete;
    complete.token_ids = tokens->token_ids;
    complete.num_tokens = tokens->num_tokens;
    assert_int_equal(pkv_request_open(manager, &complete, &request), PKV_OK);
    return request;
}

pkv_request open_prompt(pkv_manager *manager, const char *format, ...) {
    static prompt tokens;
    const pkv_request_args args = {0};
    va_list values;

    va_start(values, format);
    prompt_parse(&tokens, format, values);
    va_end(values);
    return open_tokens(manager, &args, &tokens);
}

pkv_request open_prompt_as(pkv_manager *manager,
                           const pkv_request_args *args,
                           const char *format,
                           ...) {
    static prompt tokens;
    va_list values;

    va_start(values, format);
    prompt_parse(&tokens, format, values);
    va_end(values);
    return open_tokens(manager, args, &tokens);
}

void append_tokens(pkv_manager *manager, pkv_request request, const char *format, ...) {
    static prompt tokens;
    va_list values;

    va_start(values, format);
    prompt_parse(&tokens, format, values);
    va_end(values);
    assert_int_equal(pkv_request_append(manager, request, tokens.token_ids, tokens.num_tokens),
                     PKV_OK);
}

int32_t compute_keys(pkv_block_key *keys, int32_t block_size, const char *format, ...) {
    static prompt tokens;
    const pkv_key_args args = {.struct_size = sizeof args, .block_size = block_size};
    int32_t num_keys = 0;
    va_list values;

    va_start(values, format);
    prompt_parse(&tokens, format, values);
    va_end(values);
    assert_int_equal(pkv_compute_block_keys(&args, NULL, 0, tokens.token_ids, tokens.num_tokens,
                                            keys, &num_keys),
                     PKV_OK);
    return num_keys;
}

/* ---- verbs in short form --------------------------------------------------------------------- */

pkv_slots_args slots_of(int32_t num_computed_tokens, int32_t num_new_tokens) {
    return (pkv_slots_args){.struct_size = sizeof(pkv_slots_args),
                            .num_computed_tokens = num_computed_tokens,
                            .num_new_tokens = num_new_tokens};
}

pkv_slots make_slots(void) {
    return (pkv_slots){.struct_size = sizeof(pkv_slots)};
}

pkv_status allocate(pkv_manager *manager,
                    pkv_request request,
                    int32_t num_computed_tokens,
                    int32_t num_new_tokens) {
    return allocate_in_step(manager, request, num_computed_tokens, num_new_tokens, 0);
}

pkv_status allocate_in_step(pkv_manager *manager,
                            pkv_request request,
                            int32_t num_computed_tokens,
                            int32_t num_new_tokens,
                            uint64_t step) {
    pkv_slots_args args = slots_of(num_computed_tokens, num_new_tokens);

    args.step = step;
    return pkv_allocate_slots(manager, request, &args, NULL);
}

int32_t find_hit(const pkv_manager *manager, pkv_request request) {
    int32_t num_computed_tokens = -1;

    assert_int_equal(pkv_get_computed_blocks(manager, request, &num_computed_tokens), PKV_OK);
    return num_computed_tokens;
}

int32_t admit(pkv_manager *manager, pkv_request request) {
    return admit_in_step(manager, request, 0);
}

int32_t admit_in_step(pkv_manager *manager, pkv_request request, uint64_t step) {
    int32_t hit = find_hit(manager, request);
    pkv_slots_args args = slots_of(0, info_of(manager, request).num_tokens - hit);

    args.num_new_computed_tokens = hit;
    args.step = step;
    assert_int_equal(pkv_allocate_slots(manager, request, &args, NULL), PKV_OK);
    return hit;
}

void end_request(pkv_manager *manager, pkv_request request) {
    assert_int_equal(pkv_free(manager, request), PKV_OK);
    assert_int_equal(pkv_request_close(manager, request), PKV_OK);
}

void evict_columns(pkv_manager *manager, pkv_request request, int32_t group, const char *columns) {
    const pkv_block_id *table;
    const prompt *list = prompt_of("%s", columns);
    pkv_block_id block_ids[64];
    int32_t num_blocks;

    assert_int_equal(pkv_get_block_table(manager, request, group, &table, &num_blocks), PKV_OK);
    assert_true(list->num_tokens <= 64);
    for (int32_t i = 0; i < list->num_tokens; i++) {
        assert_in_range(list->token_ids[i], 0, num_blocks - 1);
        block_ids[i] = table[list->token_ids[i]];
    }
    assert_int_equal(pkv_evict_blocks(manager, block_ids, list->num_tokens), PKV_OK);
}

int32_t take_events(pkv_manager *manager, pkv_event *events, int32_t capacity) {
    int32_t num_events = -1;
    uint64_t num_dropped = 1;

    assert_int_equal(pkv_take_events(manager, events, capacity, &num_events, &num_dropped), PKV_OK);
    assert_int_equal(num_dropped, 0);
    return num_events;
}
