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
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

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
            assert_int_equal(num_heap_allocations, 1);
            assert_int_equal(num_heap_frees, 1);
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
        cmocka_unit_test(simulated_life_allocates_once_per_object),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
