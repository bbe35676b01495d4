/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The device: configs, memory, choice of instructions, threads, streams and fences; and where a
 * token lies (base/paged.h), checked against 128-bit arithmetic. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <pagedkv/attention.h>

#include "base/paged.h"
#include "support/tensor_fill.h"

static void null_config_gives_the_best_instructions(void **state) {
    pkv_device *device = NULL;
    pkv_device_info info = {.struct_size = sizeof info};

    (void)state;
    assert_int_equal(pkv_device_create_cpu(NULL, &device), PKV_OK);
    assert_int_equal(pkv_device_get_info(device, &info), PKV_OK);
    assert_true(info.is_cpu);
    assert_int_equal(info.num_workers, PKV_CPU_DEFAULT_THREADS);
    assert_true(pkv_cpu_has_instructions(info.instructions, NULL));
    assert_int_not_equal(info.instructions, PKV_CPU_AUTO);
    assert_int_not_equal(info.instructions, PKV_CPU_REFERENCE);
    assert_non_null(strstr(info.description, "cpu "));
    assert_string_equal(pkv_device_last_error(device), "");
    assert_int_equal(pkv_device_synchronize(device, NULL), PKV_OK);
    assert_true(pkv_has_feature(PKV_FEATURE_CPU_DEVICE));
    pkv_device_destroy(device);
    pkv_device_destroy(NULL);
}

static void instructions_are_refused_with_a_reason(void **state) {
    (void)state;
    for (int i = PKV_CPU_AUTO; i <= PKV_CPU_NEON + 1; i++) {
        pkv_cpu_config config = {.struct_size = sizeof config,
                                 .instructions = (pkv_cpu_instructions)i};
        const char *reason = NULL;
        pkv_device *device = NULL;
        bool is_here = pkv_cpu_has_instructions(config.instructions, &reason);

        assert_int_equal(pkv_device_create_cpu(&config, &device),
                         is_here ? PKV_OK : PKV_ERROR_UNSUPPORTED);
        assert_true(is_here == (reason == NULL));
        assert_true(is_here == (device != NULL));
        assert_true(is_here == (pkv_device_cpu_size(&config) > 0));
        pkv_device_destroy(device);
    }
}

static void no_loop(void *context, int32_t num_items, pkv_parallel_body body, void *body_context) {
    (void)context;
    (void)num_items;
    (void)body;
    (void)body_context;
}

static void bad_configs_are_refused(void **state) {
    pkv_cpu_config config = {.struct_size = sizeof config, .num_threads = -1};
    pkv_device *device = NULL;
    unsigned char longer[sizeof config + 8] = {0};

    (void)state;
    assert_int_equal(pkv_device_create_cpu(&config, &device), PKV_ERROR_INVALID_ARGUMENT);
    config.num_threads = PKV_MAX_CPU_THREADS + 1;
    assert_int_equal(pkv_device_create_cpu(&config, &device), PKV_ERROR_INVALID_ARGUMENT);
    config.num_threads = 0;
    config.parallel_for = no_loop; /* needs the number of its workers */
    assert_int_equal(pkv_device_create_cpu(&config, &device), PKV_ERROR_INVALID_ARGUMENT);
    config.parallel_for = NULL;
    config.struct_size = 3;
    assert_int_equal(pkv_device_create_cpu(&config, &device), PKV_ERROR_INVALID_ARGUMENT);
    config.struct_size = sizeof longer;
    memcpy(longer, &config, sizeof config);
    longer[sizeof config + 2] = 1; /* a member from the future */
    assert_int_equal(pkv_device_create_cpu((const pkv_cpu_config *)(const void *)longer, &device),
                     PKV_ERROR_UNSUPPORTED);
    assert_null(device);
}

static void init_uses_the_callers_memory_only(void **state) {
    pkv_cpu_config config = {.struct_size = sizeof config, .num_threads = 2};
    size_t size = pkv_device_cpu_size(&config);
    unsigned char *memory = aligned_alloc(64, size + 64);
    pkv_device *device;

    (void)state;
    assert_non_null(memory);
    memset(memory + size, 0x5a, 64);
    assert_int_equal(pkv_device_init_cpu(&config, memory, size - 1, &device),
                     PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_device_init_cpu(&config, memory + 8, size, &device),
                     PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_device_init_cpu(&config, memory, size, &device), PKV_OK);
    pkv_device_destroy(device);
    for (size_t i = 0; i < 64; i++) {
        assert_int_equal(memory[size + i], 0x5a);
    }
    free(memory);
}

static void *refuse_allocation(void *context, size_t size, size_t alignment) {
    (void)size;
    (void)alignment;
    *(int *)context += 1;
    return NULL;
}

static void ignore_release(void *context, void *memory, size_t size) {
    (void)context;
    (void)memory;
    (void)size;
}

static void out_of_memory_is_a_status(void **state) {
    int num_calls = 0;
    pkv_cpu_config config = {.struct_size = sizeof config,
                             .allocator = {refuse_allocation, ignore_release, &num_calls}};
    pkv_device *device = NULL;

    (void)state;
    assert_int_equal(pkv_device_create_cpu(&config, &device), PKV_ERROR_OUT_OF_MEMORY);
    assert_int_equal(num_calls, 1);
    assert_null(device);
}

static void count_log(void *context, int level, const char *message) {
    assert_int_equal(level, PKV_LOG_INFO);
    assert_non_null(strstr(message, "reference, 3 threads"));
    *(int *)context += 1;
}

static void creation_says_what_was_chosen(void **state) {
    int num_lines = 0;
    pkv_cpu_config config = {.struct_size = sizeof config,
                             .instructions = PKV_CPU_REFERENCE,
                             .num_threads = 3,
                             .log = count_log,
                             .log_context = &num_lines};
    pkv_device *device;

    (void)state;
    assert_int_equal(pkv_device_create_cpu(&config, &device), PKV_OK);
    assert_int_equal(num_lines, 1);
    pkv_device_destroy(device);
}

static void streams_and_fences_of_a_cpu_device(void **state) {
    pkv_device *device, *other;
    pkv_fence fence, foreign;
    int stranger;

    (void)state;
    assert_int_equal(pkv_device_create_cpu(NULL, &device), PKV_OK);
    assert_int_equal(pkv_device_create_cpu(NULL, &other), PKV_OK);
    assert_int_equal(pkv_fence_create(device, &fence), PKV_OK);
    assert_int_equal(pkv_fence_create(other, &foreign), PKV_OK);
    assert_int_equal(pkv_fence_query(device, fence), PKV_OK);
    assert_int_equal(pkv_fence_record(device, fence, NULL), PKV_OK);
    assert_int_equal(pkv_fence_wait(device, fence, NULL), PKV_OK);
    assert_int_equal(pkv_fence_wait(device, foreign, NULL), PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_fence_query(device, NULL), PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_fence_record(device, fence, (pkv_stream)(void *)&stranger),
                     PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_device_synchronize(device, (pkv_stream)(void *)&stranger),
                     PKV_ERROR_INVALID_ARGUMENT);
    assert_non_null(strstr(pkv_device_last_error(device), "stream"));
    pkv_fence_destroy(device, fence);
    pkv_fence_destroy(device, NULL);
    pkv_device_destroy(device);
    pkv_device_destroy(other);
}

/* Many short operations on many threads: each item runs exactly once, also when there are fewer
 * items than threads. Seen through writes of the cache, whose results are exact. */
static void threads_run_each_item_once(void **state) {
    pkv_cpu_config config = {.struct_size = sizeof config, .num_threads = 8};
    const int64_t cache_shape[] = {64, 1, 2, 8};
    pkv_device *device;
    int64_t slots[64];
    _Alignas(16) float source[64 * 8];
    _Alignas(16) float cache[64 * 2 * 8];

    (void)state;
    assert_int_equal(pkv_device_create_cpu(&config, &device), PKV_OK);
    for (int round = 0; round < 300; round++) {
        int num_tokens = 1 + round % 64;
        int64_t tokens_shape[] = {num_tokens, 1, 8};
        pkv_write_kv_args args = {.struct_size = sizeof args,
                                  .key = tensor_view(source, PKV_DTYPE_FLOAT32, 3, tokens_shape),
                                  .k_cache = tensor_view(cache, PKV_DTYPE_FLOAT32, 4, cache_shape),
                                  .slot_mapping = slots};

        memset(cache, 0, sizeof cache);
        for (int i = 0; i < 64; i++) {
            slots[i] = 2 + i;
            for (int d = 0; d < 8; d++) {
                source[i * 8 + d] = (float)(round * 64 + i);
            }
        }
        assert_int_equal(pkv_write_kv(device, &args, NULL), PKV_OK);
        for (int i = 0; i < 64; i++) {
            assert_true(cache[(2 + i) * 8] == (i < num_tokens ? source[i * 8] : 0.0f));
        }
    }
    pkv_device_destroy(device);
}

__extension__ typedef __int128 wide;

static void places_agree_with_wide_arithmetic(void **state) {
    static const int64_t num_blocks = 64000;
    const int64_t stride[] = {2 * 32 * 16 * 128, 16 * 128, 128, 1};
    pkv_block_id table[8];

    (void)state;
    for (int32_t i = 0; i < 8; i++) {
        table[i] = (pkv_block_id)(num_blocks - 1 - i * 1000);
    }
    for (int32_t block_size = 1; block_size <= 256; block_size += 5) {
        for (int64_t position = 0; position < 8 * block_size; position++) {
            struct pkvi_place place = pkvi_place_of_position(table, block_size, position);
            int64_t slot = pkv_compute_slot(table, block_size, position);
            struct pkvi_place same = pkvi_place_of_slot(slot, block_size);

            assert_int_equal(place.physical_block_number, same.physical_block_number);
            assert_int_equal(place.physical_block_offset, same.physical_block_offset);
            for (int64_t head = 0; head < 32; head += 31) {
                wide exact = (wide)place.physical_block_number * stride[0] + head * stride[1] +
                             (wide)place.physical_block_offset * stride[2];

                assert_true(exact == pkvi_place_element(place, head, stride));
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(null_config_gives_the_best_instructions),
        cmocka_unit_test(instructions_are_refused_with_a_reason),
        cmocka_unit_test(bad_configs_are_refused),
        cmocka_unit_test(init_uses_the_callers_memory_only),
        cmocka_unit_test(out_of_memory_is_a_status),
        cmocka_unit_test(creation_says_what_was_chosen),
        cmocka_unit_test(streams_and_fences_of_a_cpu_device),
        cmocka_unit_test(threads_run_each_item_once),
        cmocka_unit_test(places_agree_with_wide_arithmetic),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
