/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Conversions of tensor elements on every device, over every bit pattern: reading each of the
 * 65,536 (or 256) patterns of a cache dtype, and rounding to it from floats at, between and beside
 * all of its values, ties included. Seen through gather and write_kv. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <pagedkv/transfer.h>

#include "support/test_devices.h"

/* Blocks of 16 tokens of 64 elements; block 0 is not used. */
enum { HEAD_SIZE = 64, BLOCK_SIZE = 16, NUM_TOKENS = 65536 / HEAD_SIZE };
enum { NUM_BLOCKS = NUM_TOKENS / BLOCK_SIZE + 1, NUM_VALUES = NUM_TOKENS * HEAD_SIZE };

struct conversion {
    void *cache;
    float *values; /* [NUM_VALUES] */
    size_t cache_size;
    pkv_tensor cache_view, value_view;
    pkv_block_id table[NUM_BLOCKS];
    int64_t slots[NUM_TOKENS];
};

static void open_conversion(struct conversion *conversion, pkv_dtype dtype) {
    const int64_t cache_shape[] = {NUM_BLOCKS, 1, BLOCK_SIZE, HEAD_SIZE};
    const int64_t value_shape[] = {NUM_TOKENS, 1, HEAD_SIZE};

    conversion->cache_size = (size_t)NUM_BLOCKS * BLOCK_SIZE * HEAD_SIZE * pkv_dtype_size(dtype);
    conversion->cache = guarded_allocate(conversion->cache_size, 0);
    conversion->values = guarded_allocate(NUM_VALUES * sizeof(float), 0);
    conversion->cache_view = tensor_view(conversion->cache, dtype, 4, cache_shape);
    conversion->value_view = tensor_view(conversion->values, PKV_DTYPE_FLOAT32, 3, value_shape);
    for (int i = 0; i < NUM_BLOCKS; i++) {
        conversion->table[i] = i + 1;
    }
    for (int i = 0; i < NUM_TOKENS; i++) {
        conversion->slots[i] = BLOCK_SIZE + i;
    }
}

static void close_conversion(struct conversion *conversion) {
    guarded_release(conversion->cache, conversion->cache_size);
    guarded_release(conversion->values, NUM_VALUES * sizeof(float));
}

/* The first value of the cache that is in use. */
static unsigned char *first_value(const struct conversion *conversion) {
    return (unsigned char *)conversion->cache +
           (size_t)BLOCK_SIZE * HEAD_SIZE * pkv_dtype_size(conversion->cache_view.dtype);
}

static void every_pattern_is_read(const struct test_device *device, const void *context) {
    pkv_dtype dtype = *(const pkv_dtype *)context;
    const int32_t rows[] = {0}, starts[] = {0, NUM_TOKENS};
    struct conversion conversion;

    open_conversion(&conversion, dtype);
    for (int64_t i = 0; i < NUM_VALUES; i++) {
        uint16_t pattern = (uint16_t)i;

        memcpy(first_value(&conversion) + (size_t)i * pkv_dtype_size(dtype), &pattern,
               pkv_dtype_size(dtype));
    }
    pkv_gather_args args = {.struct_size = sizeof args,
                            .num_requests = 1,
                            .k_cache = conversion.cache_view,
                            .key = conversion.value_view,
                            .block_table = conversion.table,
                            .block_table_stride = NUM_BLOCKS,
                            .rows = rows,
                            .key_start_loc = starts};
    assert_int_equal(pkv_gather(device->device, &args, NULL), PKV_OK);
    for (int64_t i = 0; i < NUM_VALUES; i++) {
        double wanted = tensor_decode(first_value(&conversion), dtype, i);
        double got = (double)conversion.values[i];

        assert_true(got == wanted || (isnan(got) && isnan(wanted)));
        assert_true(isnan(wanted) || !signbit(got) == !signbit(wanted));
    }
    close_conversion(&conversion);
}

/* A float at value `i` of the dtype, or beside it, or half way to the next. */
static float interesting_value(pkv_dtype dtype, int64_t i) {
    bool is_wide = pkv_dtype_size(dtype) == 2;
    uint16_t pattern = (uint16_t)(is_wide ? i : i % 256);
    uint16_t following = (uint16_t)(pattern + 1);
    double value = tensor_decode(&pattern, dtype, 0), next = tensor_decode(&following, dtype, 0);

    if (isnan(value)) {
        return NAN;
    }
    switch (is_wide ? i * 7 / 3 % 5 : i / 256 % 5) {
    case 0:
        return (float)value;
    case 1:
        return isfinite(next) ? (float)((value + next) / 2.0) : (float)value;
    case 2:
        return nextafterf(isfinite(next) ? (float)((value + next) / 2.0) : (float)value, INFINITY);
    case 3:
        return nextafterf(isfinite(next) ? (float)((value + next) / 2.0) : (float)value, -INFINITY);
    default:
        return (float)(value * 1.37);
    }
}

static void every_value_is_rounded(const struct test_device *device, const void *context) {
    pkv_dtype dtype = *(const pkv_dtype *)context;
    size_t size = pkv_dtype_size(dtype);
    struct conversion conversion;

    open_conversion(&conversion, dtype);
    for (int64_t i = 0; i < NUM_VALUES; i++) {
        conversion.values[i] = interesting_value(dtype, i);
    }
    pkv_write_kv_args args = {.struct_size = sizeof args,
                              .key = conversion.value_view,
                              .k_cache = conversion.cache_view,
                              .slot_mapping = conversion.slots};
    assert_int_equal(pkv_write_kv(device->device, &args, NULL), PKV_OK);
    for (int64_t i = 0; i < NUM_VALUES; i++) {
        const unsigned char *got = first_value(&conversion) + (size_t)i * size;
        unsigned char wanted[4];

        if (isnan(conversion.values[i]) && dtype != PKV_DTYPE_INT8) {
            assert_true(isnan(tensor_decode(got, dtype, 0)));
            continue;
        }
        tensor_encode(wanted, dtype, 0, (double)conversion.values[i]);
        assert_memory_equal(got, wanted, size);
    }
    close_conversion(&conversion);
}

int main(void) {
    static const pkv_dtype dtypes[] = {PKV_DTYPE_FLOAT16, PKV_DTYPE_BFLOAT16, PKV_DTYPE_FLOAT8_E4M3,
                                       PKV_DTYPE_INT8};
    const struct device_test tests[] = {
        {"float16 is read", every_pattern_is_read, &dtypes[0]},
        {"bfloat16 is read", every_pattern_is_read, &dtypes[1]},
        {"e4m3 is read", every_pattern_is_read, &dtypes[2]},
        {"int8 is read", every_pattern_is_read, &dtypes[3]},
        {"float16 is rounded", every_value_is_rounded, &dtypes[0]},
        {"bfloat16 is rounded", every_value_is_rounded, &dtypes[1]},
        {"e4m3 is rounded", every_value_is_rounded, &dtypes[2]},
        {"int8 is rounded", every_value_is_rounded, &dtypes[3]},
    };
    struct test_device devices[TEST_MAX_DEVICES];
    int num_devices = test_devices_open(devices, 2);
    int failures = device_tests_run("tensor elements", tests, (int)(sizeof tests / sizeof tests[0]),
                                    devices, num_devices);

    test_devices_close(devices, num_devices);
    return failures;
}
