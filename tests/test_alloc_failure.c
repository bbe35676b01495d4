/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Goal: one allocation per object, at creation; a refused one leaves nothing behind; none later.
 * Method: a counting allocator that refuses the n-th call, and the heap functions of the C library
 * replaced at link time (--wrap) by ones that count, for the library and for this program. */
#include <pagedkv.h>

#include "support/counting_alloc.h"
#include "support/sim.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <unistd.h>

#define SIM_STEPS 8000
#define STEPS_PER_EPISODE 400

/* ---- the heap, wrapped ----------------------------------------------------------------------- */

static int64_t num_heap_allocations;
static int64_t num_heap_frees;
static bool refuses_heap;

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *memory, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
int __real_posix_memalign(void **memory, size_t alignment, size_t size);
void __real_free(void *memory);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *memory, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
int __wrap_posix_memalign(void **memory, size_t alignment, size_t size);
void __wrap_free(void *memory);

void *__wrap_malloc(size_t size) {
    num_heap_allocations++;
    return refuses_heap ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size) {
    num_heap_allocations++;
    return refuses_heap ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *memory, size_t size) {
    num_heap_allocations++;
    return refuses_heap ? NULL : __real_realloc(memory, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size) {
    num_heap_allocations++;
    return refuses_heap ? NULL : __real_aligned_alloc(alignment, size);
}

int __wrap_posix_memalign(void **memory, size_t alignment, size_t size) {
    num_heap_allocations++;
    return refuses_heap ? 12 : __real_posix_memalign(memory, alignment, size);
}

void __wrap_free(void *memory) {
    num_heap_frees += memory != NULL ? 1 : 0;
    __real_free(memory);
}

/* ---- configurations -------------------------------------------------------------------------- */

static pkv_pool_config rich_pool_config(void) {
    static const int32_t block_sizes[] = {4, 16, 32};

    return (pkv_pool_config){.struct_size = sizeof(pkv_pool_config),
                             .num_blocks = 100,
                             .num_groups = 3,
                             .block_sizes = block_sizes,
                             .event_capacity = 50,
                             .store_tokens = true,
                             .fill_new_blocks = true};
}

static pkv_pool_config plain_pool_config(void) {
    return (pkv_pool_config){.struct_size = sizeof(pkv_pool_config), .num_blocks = 1};
}

static pkv_manager_config rich_manager_config(void) {
    static const pkv_group_config groups[] = {
        {.struct_size = sizeof(pkv_group_config), .block_size = 16},
        {.struct_size = sizeof(pkv_group_config),
         .kind = PKV_GROUP_SLIDING_WINDOW,
         .block_size = 8,
         .window = 20,
         .retention_interval = 32},
        {.struct_size = sizeof(pkv_group_config),
         .kind = PKV_GROUP_CHUNKED_LOCAL,
         .block_size = 4,
         .window = 16},
    };

    return (pkv_manager_config){.struct_size = sizeof(pkv_manager_config),
                                .num_blocks = 200,
                                .max_model_len = 500,
                                .num_groups = 3,
                                .groups = groups,
                                .max_rows = 7,
                                .event_capacity = 50,
                                .store_tokens = true,
                                .zero_on_free = true};
}

static pkv_manager_config plain_manager_config(void) {
    return (pkv_manager_config){
        .struct_size = sizeof(pkv_manager_config), .num_blocks = 2, .max_model_len = 1};
}

static pkv_manager_config partial_manager_config(void) {
    return (pkv_manager_config){.struct_size = sizeof(pkv_manager_config),
                                .num_blocks = 50,
                                .max_model_len = 200,
                                .store_tokens = true,
                                .min_partial_tokens = 4};
}

/* ---- the n-th allocation is refused ---------------------------------------------------------- */

static void refuse_pool(pkv_pool_config config) {
    pkv_status status = PKV_ERROR_OUT_OF_MEMORY;
    int64_t n = 0;

    while (status != PKV_OK) {
        counting_alloc counter = {.refuse_from = ++n};
        pkv_pool *pool = (pkv_pool *)&counter;
        config.allocator = counting_alloc_hooks(&counter);
        status = pkv_pool_create(&config, &pool);
        if (status == PKV_OK) {
            assert_int_equal(counter.num_calls, 1);
            assert_int_equal(counter.live_size, pkv_pool_size(&config));
            assert_int_equal(pkv_pool_check(pool), PKV_OK);
            pkv_pool_destroy(pool);
        } else {
            assert_int_equal(status, PKV_ERROR_OUT_OF_MEMORY);
            assert_null(pool);
        }
        assert_null(counting_alloc_complaint(&counter));
    }
    assert_int_equal(n, 2);
}

static void pool_create_refused_leaves_nothing(void **state) {
    (void)state;
    refuse_pool(rich_pool_config());
    refuse_pool(plain_pool_config());
}

static void refuse_manager(pkv_manager_config config) {
    pkv_status status = PKV_ERROR_OUT_OF_MEMORY;
    int64_t n = 0;

    while (status != PKV_OK) {
        counting_alloc counter = {.refuse_from = ++n};
        pkv_manager *manager = (pkv_manager *)&counter;
        config.allocator = counting_alloc_hooks(&counter);
        status = pkv_manager_create(&config, &manager);
        if (status == PKV_OK) {
            assert_int_equal(counter.num_calls, 1);
            assert_int_equal(counter.live_size, pkv_manager_size(&config));
            assert_int_equal(pkv_manager_check(manager), PKV_OK);
            pkv_manager_destroy(manager);
        } else {
            assert_int_equal(status, PKV_ERROR_OUT_OF_MEMORY);
            assert_null(manager);
        }
        assert_null(counting_alloc_complaint(&counter));
    }
    assert_int_equal(n, 2);
}

static void manager_create_refused_leaves_nothing(void **state) {
    (void)state;
    refuse_manager(rich_manager_config());
    refuse_manager(plain_manager_config());
    refuse_manager(partial_manager_config());
}

/* ---- without hooks: the heap ----------------------------------------------------------------- */

static void create_without_hooks_allocates_once(void **state) {
    pkv_pool_config pool_config = rich_pool_config();
    pkv_manager_config manager_config = rich_manager_config();
    pkv_pool *pool;
    pkv_manager *manager;
    (void)state;

    num_heap_allocations = 0;
    num_heap_frees = 0;
    assert_int_equal(pkv_pool_create(&pool_config, &pool), PKV_OK);
    assert_int_equal(num_heap_allocations, 1);
    assert_int_equal(pkv_manager_create(&manager_config, &manager), PKV_OK);
    assert_int_equal(num_heap_allocations, 2);
    assert_int_equal(num_heap_frees, 0);
    pkv_manager_destroy(manager);
    assert_int_equal(num_heap_frees, 1);
    pkv_pool_destroy(pool);
    assert_int_equal(num_heap_frees, 2);
    assert_int_equal(num_heap_allocations, 2);
}

static void create_with_exhausted_heap_fails(void **state) {
    pkv_pool_config pool_config = rich_pool_config();
    pkv_manager_config manager_config = rich_manager_config();
    pkv_pool *pool = NULL;
    pkv_manager *manager = NULL;
    pkv_status pool_status;
    pkv_status manager_status;
    (void)state;

    num_heap_frees = 0;
    refuses_heap = true;
    pool_status = pkv_pool_create(&pool_config, &pool);
    manager_status = pkv_manager_create(&manager_config, &manager);
    refuses_heap = false;

    assert_int_equal(pool_status, PKV_ERROR_OUT_OF_MEMORY);
    assert_int_equal(manager_status, PKV_ERROR_OUT_OF_MEMORY);
    assert_null(pool);
    assert_null(manager);
    assert_int_equal(num_heap_frees, 0);
}

static void config_that_is_refused_allocates_nothing(void **state) {
    counting_alloc counter = {0};
    pkv_pool_config pool_config = rich_pool_config();
    pkv_manager_config manager_config = rich_manager_config();
    pkv_pool *pool = (pkv_pool *)&counter;
    pkv_manager *manager = (pkv_manager *)&counter;
    (void)state;

    pool_config.allocator = counting_alloc_hooks(&counter);
    pool_config.num_blocks = 0;
    manager_config.allocator = counting_alloc_hooks(&counter);
    manager_config.max_model_len = 0;

    assert_int_equal(pkv_pool_create(&pool_config, &pool), PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_manager_create(&manager_config, &manager), PKV_ERROR_INVALID_ARGUMENT);
    assert_null(pool);
    assert_null(manager);
    assert_int_equal(counter.num_calls, 0);
}

/* ---- in the caller's memory ------------------------------------------------------------------ */

static void init_in_callers_memory_allocates_nothing(void **state) {
    counting_alloc counter = {0};
    pkv_manager_config config = rich_manager_config();
    size_t size = pkv_manager_size(&config);
    size_t rounded = (size + 64 + 63) / 64 * 64;
    unsigned char *memory = aligned_alloc(64, rounded);
    pkv_manager *manager = NULL;
    (void)state;

    assert_non_null(memory);
    memset(memory, 0xC3, rounded);
    config.allocator = counting_alloc_hooks(&counter);
    num_heap_allocations = 0;
    num_heap_frees = 0;

    assert_int_equal(pkv_manager_init(&config, memory, size - 1, &manager),
                     PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_manager_init(&config, memory + 8, size, &manager),
                     PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_manager_init(&config, NULL, size, &manager), PKV_ERROR_INVALID_ARGUMENT);
    assert_null(manager);
    assert_int_equal(pkv_manager_init(&config, memory, size, &manager), PKV_OK);
    assert_int_equal(pkv_manager_check(manager), PKV_OK);
    pkv_manager_destroy(manager);

    for (size_t i = size; i < rounded; i++) {
        assert_int_equal(memory[i], 0xC3);
    }
    assert_int_equal(counter.num_calls, 0);
    assert_int_equal(counter.num_released, 0);
    assert_int_equal(num_heap_allocations, 0);
    assert_int_equal(num_heap_frees, 0);
    free(memory);
}

/* ---- tiers, stores, sessions ----------------------------------------------------------------- */

enum { BLOCK_BYTES = 64, NUM_BLOCKS = 12, NUM_SLOTS = 8, NUM_TOKENS = 14, BLOCK_TOKENS = 4 };

static char folder[64], path[96], saving[112];
static unsigned char cache[NUM_BLOCKS][BLOCK_BYTES];

static int make_folder(void **state) {
    (void)state;
    strcpy(folder, "/tmp/pkv_alloc_XXXXXX");
    if (mkdtemp(folder) == NULL) {
        return 1;
    }
    snprintf(path, sizeof path, "%s/file", folder);
    snprintf(saving, sizeof saving, "%s.saving", path);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    (void)unlink(path);
    (void)unlink(saving);
    return rmdir(folder);
}

/* The lowest number that a new descriptor gets: another one where one was left open. */
static int lowest_descriptor(void) {
    int descriptor = dup(0);

    assert_true(descriptor >= 0);
    (void)close(descriptor);
    return descriptor;
}

static pkv_tensor cache_view(void) {
    return (pkv_tensor){cache,
                        PKV_DTYPE_UINT8,
                        3,
                        {1, NUM_BLOCKS, BLOCK_BYTES},
                        {NUM_BLOCKS * BLOCK_BYTES, BLOCK_BYTES, 1}};
}

static pkv_manager *make_manager(void) {
    const pkv_manager_config config = {.struct_size = sizeof config,
                                       .num_blocks = NUM_BLOCKS,
                                       .block_size = BLOCK_TOKENS,
                                       .max_model_len = 32,
                                       .max_rows = 4};
    pkv_manager *manager;

    assert_int_equal(pkv_manager_create(&config, &manager), PKV_OK);
    return manager;
}

static void tier_create_refused_leaves_nothing(void **state) {
    pkv_manager *manager = make_manager();
    pkv_tier_config config = {
        .struct_size = sizeof config, .num_blocks = NUM_SLOTS, .manager = manager};
    pkv_status status = PKV_ERROR_OUT_OF_MEMORY;
    int64_t n = 0;
    (void)state;

    while (status != PKV_OK) {
        counting_alloc counter = {.refuse_from = ++n};
        pkv_tier *tier = (pkv_tier *)&counter;
        config.allocator = counting_alloc_hooks(&counter);
        status = pkv_tier_create(&config, &tier);
        if (status == PKV_OK) {
            assert_int_equal(counter.num_calls, 1);
            assert_int_equal(counter.live_size, pkv_tier_size(&config));
            assert_int_equal(pkv_tier_check(tier), PKV_OK);
            pkv_tier_destroy(tier);
        } else {
            assert_int_equal(status, PKV_ERROR_OUT_OF_MEMORY);
            assert_null(tier);
        }
        assert_null(counting_alloc_complaint(&counter));
        assert_int_equal(pkv_manager_check(manager), PKV_OK);
    }
    assert_int_equal(n, 2);
    pkv_manager_destroy(manager);
}

static pkv_file_store_config store_config(void) {
    return (pkv_file_store_config){.struct_size = sizeof(pkv_file_store_config),
                                   .path = path,
                                   .shape = {1, BLOCK_BYTES, BLOCK_TOKENS, NUM_SLOTS}};
}

/* Nor a file, nor an open descriptor, nor a lock that would keep the next one out. */
static void file_store_create_refused_leaves_nothing(void **state) {
    pkv_file_store_config config = store_config();
    pkv_status status = PKV_ERROR_OUT_OF_MEMORY;
    const int lowest = lowest_descriptor();
    int64_t n = 0;
    (void)state;

    while (status != PKV_OK) {
        counting_alloc counter = {.refuse_from = ++n};
        pkv_file_store *file = (pkv_file_store *)&counter;
        pkv_store store = {.struct_size = sizeof store};
        char text[128] = "";
        config.allocator = counting_alloc_hooks(&counter);
        status = pkv_file_store_create(&config, &file, text, sizeof text);
        if (status == PKV_OK) {
            assert_int_equal(counter.num_calls, 1);
            assert_int_equal(counter.live_size, pkv_file_store_size(&config));
            assert_int_equal(pkv_file_store_get_store(file, &store), PKV_OK);
            pkv_store_close(&store);
        } else {
            assert_int_equal(status, PKV_ERROR_OUT_OF_MEMORY);
            assert_null(file);
            assert_int_equal(access(path, F_OK), -1);
        }
        assert_null(counting_alloc_complaint(&counter));
        assert_int_equal(lowest_descriptor(), lowest);
    }
    assert_int_equal(n, 2);
}

static pkv_session_args session_args(int32_t *token_ids, counting_alloc *counter) {
    static const pkv_block_id block_ids[] = {7, 2, 9, 4};

    return (pkv_session_args){.struct_size = sizeof(pkv_session_args),
                              .path = path,
                              .block_size = BLOCK_TOKENS,
                              .num_tokens = NUM_TOKENS,
                              .num_blocks = 4,
                              .token_ids = token_ids,
                              .blocks = cache_view(),
                              .block_ids = block_ids,
                              .allocator = counting_alloc_hooks(counter)};
}

/* A session that is saved or restored keeps one allocation for the call. Refused, the file is as it
 * was, and so is the cache. */
static void session_refused_leaves_file_and_cache(void **state) {
    int32_t tokens[NUM_TOKENS] = {3, 1, 4}, found[NUM_TOKENS] = {0};
    unsigned char before[sizeof cache];
    const int lowest = lowest_descriptor();
    counting_alloc counter = {.refuse_from = 1};
    pkv_session_args args = session_args(tokens, &counter);
    (void)state;

    memset(cache, 0x5a, sizeof cache);
    assert_int_equal(pkv_session_save(&args), PKV_ERROR_OUT_OF_MEMORY);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(access(saving, F_OK), -1);
    counter = (counting_alloc){.refuse_from = 2};
    assert_int_equal(pkv_session_save(&args), PKV_OK);
    assert_int_equal(counter.num_calls, 1);
    assert_null(counting_alloc_complaint(&counter));

    tokens[0] = 99;
    counter = (counting_alloc){.refuse_from = 1};
    assert_int_equal(pkv_session_save(&args), PKV_ERROR_OUT_OF_MEMORY);
    assert_int_equal(access(saving, F_OK), -1);
    memset(cache, 0xc3, sizeof cache);
    memcpy(before, cache, sizeof before);
    args = session_args(found, &counter);
    assert_int_equal(pkv_session_restore(&args), PKV_ERROR_OUT_OF_MEMORY);
    assert_memory_equal(cache, before, sizeof before);
    assert_int_equal(found[0], 0);

    counter = (counting_alloc){.refuse_from = 2};
    assert_int_equal(pkv_session_restore(&args), PKV_OK);
    assert_int_equal(counter.num_calls, 1);
    assert_null(counting_alloc_complaint(&counter));
    assert_int_equal(found[0], 3);
    assert_int_equal(cache[9][BLOCK_BYTES - 1], 0x5a);
    assert_int_equal(cache[3][0], 0xc3);
    assert_int_equal(lowest_descriptor(), lowest);
}

/* Run a transfer of a plan to its end. */
static void move_blocks(const pkv_store *store, const pkv_swap_plan *plan, bool is_write) {
    pkv_status statuses[NUM_SLOTS];
    pkv_store_transfer transfer = {.struct_size = sizeof transfer,
                                   .is_write = is_write,
                                   .num_blocks = plan->num_copies,
                                   .blocks = cache_view(),
                                   .copies = plan->copies,
                                   .keys = plan->keys,
                                   .groups = plan->groups,
                                   .statuses = statuses};
    pkv_store_completion completion;
    uint64_t ticket;
    int32_t count;

    assert_int_equal(pkv_store_submit(store, &transfer, &ticket), PKV_OK);
    assert_int_equal(pkv_store_poll(store, true, &completion, 1, &count), PKV_OK);
    assert_int_equal(count, 1);
    assert_int_equal(completion.status, PKV_OK);
}

static void swaps_and_transfers_allocate_nothing(void **state) {
    pkv_file_store_config config = store_config();
    pkv_manager *manager = make_manager();
    pkv_tier_config tier_config = {
        .struct_size = sizeof tier_config, .num_blocks = NUM_SLOTS, .manager = manager};
    const int32_t tokens[NUM_TOKENS] = {1, 2, 3};
    pkv_request_args request_args = {
        .struct_size = sizeof request_args, .token_ids = tokens, .num_tokens = NUM_TOKENS};
    pkv_slots_args args = {.struct_size = sizeof args, .num_new_tokens = NUM_TOKENS};
    pkv_block_copy copies[NUM_SLOTS];
    pkv_block_key keys[NUM_SLOTS];
    int32_t groups[NUM_SLOTS];
    pkv_swap_plan plan = {sizeof plan, NUM_SLOTS, 0, 0, copies, groups, keys, NULL};
    pkv_store store = {.struct_size = sizeof store};
    pkv_file_store *file;
    pkv_tier *tier;
    pkv_request request;
    pkv_swap swap;
    (void)state;

    assert_int_equal(pkv_tier_create(&tier_config, &tier), PKV_OK);
    assert_int_equal(pkv_file_store_create(&config, &file, NULL, 0), PKV_OK);
    assert_int_equal(pkv_file_store_get_store(file, &store), PKV_OK);
    num_heap_allocations = 0;
    num_heap_frees = 0;
    assert_int_equal(pkv_request_open(manager, &request_args, &request), PKV_OK);
    assert_int_equal(pkv_allocate_slots(manager, request, &args, NULL), PKV_OK);
    assert_int_equal(pkv_swap_out(tier, request, &plan, &swap), PKV_OK);
    assert_int_equal(plan.num_copies, NUM_TOKENS / BLOCK_TOKENS);
    move_blocks(&store, &plan, true);
    assert_int_equal(pkv_swap_commit(tier, swap), PKV_OK);
    assert_int_equal(pkv_free(manager, request), PKV_OK);
    assert_int_equal(pkv_reset_prefix_cache(manager), PKV_OK);
    args.num_new_tokens = 0;
    assert_int_equal(pkv_swap_in(tier, request, &args, NULL, &plan, &swap), PKV_OK);
    move_blocks(&store, &plan, false);
    assert_int_equal(pkv_swap_commit(tier, swap), PKV_OK);
    assert_int_equal(pkv_store_flush(&store), PKV_OK);
    assert_int_equal(num_heap_allocations, 0);
    assert_int_equal(num_heap_frees, 0);
    pkv_store_close(&store);
    pkv_tier_destroy(tier);
    pkv_manager_destroy(manager);
    assert_int_equal(num_heap_frees, 3);
}

/* ---- nothing after creation ------------------------------------------------------------------ */

/* The simulators allocate nothing themselves, so a whole episode makes one allocation, in create,
 * and one release, in destroy. */
static void simulated_life_allocates_once_per_object(void **state) {
    (void)state;
    for (int kind = 0; kind < SIM_NUM_KINDS; kind++) {
        sim_counts counts = {0};
        for (uint64_t seed = 500; counts.num_steps < SIM_STEPS; seed++) {
            static sim_log log;
            test_source source = test_source_of_seed(seed * SIM_NUM_KINDS + (uint64_t)kind);

            memset(&log, 0, sizeof log);
            num_heap_allocations = 0;
            num_heap_frees = 0;
            sim_run_episode((sim_kind)kind, &source, STEPS_PER_EPISODE, &log, &counts);

            if (log.has_failed) {
                print_error("simulator %d, seed %llu, step %lld: %s: %s\n", kind,
                            (unsigned long long)seed, (long long)log.step, log.operation,
                            log.problem);
            }
            assert_false(log.has_failed);
            /* A manager may have a tier; the simulator compares with the number of objects. */
            assert_in_range(num_heap_allocations, 1, kind == SIM_POOL ? 1 : 2);
            assert_int_equal(num_heap_frees, num_heap_allocations);
        }
        assert_true(counts.num_calls[PKV_OK - PKV_ERROR_CORRUPT] > 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pool_create_refused_leaves_nothing),
        cmocka_unit_test(manager_create_refused_leaves_nothing),
        cmocka_unit_test(create_without_hooks_allocates_once),
        cmocka_unit_test(create_with_exhausted_heap_fails),
        cmocka_unit_test(config_that_is_refused_allocates_nothing),
        cmocka_unit_test(init_in_callers_memory_allocates_nothing),
        cmocka_unit_test(tier_create_refused_leaves_nothing),
        cmocka_unit_test_setup_teardown(file_store_create_refused_leaves_nothing, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(session_refused_leaves_file_and_cache, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(swaps_and_transfers_allocate_nothing, make_folder,
                                        remove_folder),
        cmocka_unit_test(simulated_life_allocates_once_per_object),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
