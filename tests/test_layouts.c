/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Where a key lies: each layout of docs/kernels.md is written through its view, and every element is
 * looked for at the address that the document's formula gives, counted from the start of the pool.
 * Also scales inside of the block, and the split layout, which no view describes.
 *
 * The one idea: addresses are worked out here with the layout's own indices, never with a view's
 * strides. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <pagedkv/transfer.h>

#include "support/test_devices.h"

/* Sizes of which no two are alike, so that no index can stand for another. */
enum { BLOCKS = 5, HEADS = 3, TOKENS = 4, SIZE = 16, V_SIZE = 8, NEW_TOKENS = 6 };

/* Tokens go into blocks that do not follow each other. */
static const int64_t slots[NEW_TOKENS] = {17, 18, 19, 4, 5, 10};

/* Elements of a pool from its start to a key or a value. */
typedef int64_t (*element_of)(int64_t number, int64_t head, int64_t offset, int64_t d);

struct layout {
    const char *name;
    int64_t heads, v_offset; /* elements from the pool's start to the values */
    int64_t k_stride[3], v_stride[3];
    int64_t num_elements;
    element_of key, value;
};

/* [block][2][head][token][dim], the values narrower than the keys. */
static int64_t block_2_head_key(int64_t number, int64_t head, int64_t offset, int64_t d) {
    return number * HEADS * TOKENS * (SIZE + V_SIZE) + (head * TOKENS + offset) * SIZE + d;
}

static int64_t block_2_head_value(int64_t number, int64_t head, int64_t offset, int64_t d) {
    return number * HEADS * TOKENS * (SIZE + V_SIZE) + HEADS * TOKENS * SIZE +
           (head * TOKENS + offset) * V_SIZE + d;
}

/* [block][token][head][dim] of keys, then the same of values. */
static int64_t token_major_key(int64_t number, int64_t head, int64_t offset, int64_t d) {
    return ((number * TOKENS + offset) * HEADS + head) * SIZE + d;
}

static int64_t token_major_value(int64_t number, int64_t head, int64_t offset, int64_t d) {
    return BLOCKS * TOKENS * HEADS * SIZE + ((number * TOKENS + offset) * HEADS + head) * V_SIZE +
           d;
}

/* [block][token][dim]: the values are the first columns of the keys. */
static int64_t latent(int64_t number, int64_t head, int64_t offset, int64_t d) {
    (void)head; /* there is one */
    return (number * TOKENS + offset) * SIZE + d;
}

static const struct layout layouts[] = {
    {.name = "[block][2][head][token][dim]",
     .heads = HEADS,
     .v_offset = HEADS * (TOKENS * SIZE),
     .k_stride = {HEADS * TOKENS * (SIZE + V_SIZE), (TOKENS * SIZE), SIZE},
     .v_stride = {HEADS * TOKENS * (SIZE + V_SIZE), (TOKENS * V_SIZE), V_SIZE},
     .num_elements = BLOCKS * (HEADS * TOKENS * (SIZE + V_SIZE)),
     .key = block_2_head_key,
     .value = block_2_head_value},
    {.name = "[block][token][head][dim]",
     .heads = HEADS,
     .v_offset = BLOCKS * (TOKENS * HEADS * SIZE),
     .k_stride = {TOKENS * HEADS * SIZE, SIZE, (HEADS * SIZE)},
     .v_stride = {TOKENS * HEADS * V_SIZE, V_SIZE, (HEADS * V_SIZE)},
     .num_elements = BLOCKS * (TOKENS * HEADS * (SIZE + V_SIZE)),
     .key = token_major_key,
     .value = token_major_value},
    {.name = "[block][token][dim], shared",
     .heads = 1,
     .k_stride = {TOKENS * SIZE, (TOKENS * SIZE), SIZE},
     .v_stride = {TOKENS * SIZE, (TOKENS * SIZE), SIZE},
     .num_elements = BLOCKS * (TOKENS * SIZE),
     .key = latent,
     .value = latent},
};

/* The view of one half of a pool. */
static pkv_tensor view_of(
    void *data, pkv_dtype dtype, int64_t heads, int64_t size, const int64_t *stride) {
    const int64_t shape[] = {BLOCKS, heads, TOKENS, size};
    pkv_tensor view = tensor_view(data, dtype, 4, shape);

    memcpy(view.stride, stride, 3 * sizeof *stride);
    return view;
}

/* New keys and values; `half` 1 are values. */
static double new_value(int half, int64_t token, int64_t head, int64_t d) {
    return tensor_value(7, half, token, head, d);
}

static pkv_tensor new_rows(float *data, int half, int64_t heads, int64_t size) {
    const int64_t shape[] = {NEW_TOKENS, heads, size};

    for (int64_t token = 0; token < NEW_TOKENS; token++) {
        for (int64_t i = 0; i < heads * size; i++) {
            data[token * heads * size + i] = (float)new_value(half, token, i / size, i % size);
        }
    }
    return tensor_view(data, PKV_DTYPE_FLOAT32, 3, shape);
}

static void layouts_put_elements_where_the_formula_says(const struct test_device *device,
                                                        const void *context) {
    const struct layout *layout = context;
    bool is_shared = layout->v_offset == 0;
    size_t size = (size_t)layout->num_elements * sizeof(float);
    float *pool = guarded_allocate(size, 0xff);
    float keys[NEW_TOKENS * HEADS * SIZE], values[NEW_TOKENS * HEADS * V_SIZE];
    int64_t num_written = 0;
    pkv_write_kv_args args = {
        .struct_size = sizeof args,
        .key = new_rows(keys, 0, layout->heads, SIZE),
        .k_cache = view_of(pool, PKV_DTYPE_FLOAT32, layout->heads, SIZE, layout->k_stride),
        .slot_mapping = slots};

    if (!is_shared) {
        args.value = new_rows(values, 1, layout->heads, V_SIZE);
        args.v_cache = view_of(pool + layout->v_offset, PKV_DTYPE_FLOAT32, layout->heads, V_SIZE,
                               layout->v_stride);
    }
    assert_int_equal(pkv_write_kv(device->device, &args, NULL), PKV_OK);
    for (int64_t token = 0; token < NEW_TOKENS; token++) {
        int64_t number = slots[token] / TOKENS, offset = slots[token] % TOKENS;

        for (int64_t head = 0; head < layout->heads; head++) {
            for (int64_t d = 0; d < SIZE; d++) {
                assert_true(pool[layout->key(number, head, offset, d)] ==
                            (float)new_value(0, token, head, d));
            }
            for (int64_t d = 0; d < V_SIZE; d++) {
                assert_true(pool[layout->value(number, head, offset, d)] ==
                            (float)new_value(!is_shared, token, head, d));
            }
        }
    }
    for (int64_t i = 0; i < layout->num_elements; i++) { /* what is not poison any more */
        num_written += pool[i] == pool[i];
    }
    assert_int_equal(num_written, NEW_TOKENS * layout->heads * (is_shared ? SIZE : SIZE + V_SIZE));
    guarded_release(pool, size);
}

/* ---- Scales inside of the block: keys, values, scales of keys, scales of values */

enum {
    DATA_BYTES = HEADS * TOKENS * (SIZE + V_SIZE),
    SCALE_BYTES = 2 * HEADS * TOKENS * 4,
    BLOCK_BYTES = (DATA_BYTES + SCALE_BYTES + 255) / 256 * 256
};

static pkv_tensor scale_view(unsigned char *data) {
    const int64_t shape[] = {BLOCKS, HEADS, TOKENS};
    pkv_tensor view = tensor_view(data, PKV_DTYPE_FLOAT32, 3, shape);

    view.stride[0] = BLOCK_BYTES / 4;
    return view;
}

/* Gather the keys and values of the first block's tokens. */
static void gather_block(const struct test_device *device,
                         const pkv_write_kv_args *written,
                         pkv_block_id block_id,
                         float *key,
                         float *value) {
    const int64_t key_shape[] = {TOKENS, HEADS, SIZE}, value_shape[] = {TOKENS, HEADS, V_SIZE};
    const int32_t rows[] = {0}, starts[] = {0, TOKENS};
    pkv_gather_args args = {.struct_size = sizeof args,
                            .num_requests = 1,
                            .k_cache = written->k_cache,
                            .v_cache = written->v_cache,
                            .k_scale = written->k_scale,
                            .v_scale = written->v_scale,
                            .key = tensor_view(key, PKV_DTYPE_FLOAT32, 3, key_shape),
                            .value = tensor_view(value, PKV_DTYPE_FLOAT32, 3, value_shape),
                            .block_table = &block_id,
                            .block_table_stride = 1,
                            .rows = rows,
                            .key_start_loc = starts};

    assert_int_equal(pkv_gather(device->device, &args, NULL), PKV_OK);
}

static void scales_in_the_block_travel_with_it(const struct test_device *device,
                                               const void *context) {
    const int64_t k_stride[] = {BLOCK_BYTES, TOKENS * SIZE, SIZE};
    const int64_t v_stride[] = {BLOCK_BYTES, TOKENS * V_SIZE, V_SIZE};
    const int64_t byte_shape[] = {1, BLOCKS, BLOCK_BYTES};
    const pkv_block_copy copy = {4, 2};
    unsigned char *pool = guarded_allocate(BLOCKS * BLOCK_BYTES, 0);
    float keys[NEW_TOKENS * HEADS * SIZE], values[NEW_TOKENS * HEADS * V_SIZE];
    float key[2][TOKENS * HEADS * SIZE], value[2][TOKENS * HEADS * V_SIZE];
    pkv_tensor bytes = tensor_view(pool, PKV_DTYPE_UINT8, 3, byte_shape);
    pkv_write_kv_args args = {
        .struct_size = sizeof args,
        .key = new_rows(keys, 0, HEADS, SIZE),
        .value = new_rows(values, 1, HEADS, V_SIZE),
        .k_cache = view_of(pool, PKV_DTYPE_INT8, HEADS, SIZE, k_stride),
        .v_cache = view_of(pool + HEADS * TOKENS * SIZE, PKV_DTYPE_INT8, HEADS, V_SIZE, v_stride),
        .k_scale = scale_view(pool + DATA_BYTES),
        .v_scale = scale_view(pool + DATA_BYTES + HEADS * TOKENS * 4),
        .slot_mapping = slots};

    (void)context;
    assert_int_equal(pkv_write_kv(device->device, &args, NULL), PKV_OK);
    for (int64_t token = 0; token < NEW_TOKENS; token++) {
        for (int64_t head = 0; head < HEADS; head++) {
            const unsigned char *block = pool + slots[token] / TOKENS * BLOCK_BYTES;
            int64_t row = head * TOKENS + slots[token] % TOKENS;
            float largest = 0.0f, scale;

            for (int64_t d = 0; d < SIZE; d++) {
                float element = (float)new_value(0, token, head, d);
                float magnitude = element < 0.0f ? -element : element;

                largest = magnitude > largest ? magnitude : largest;
            }
            memcpy(&scale, block + DATA_BYTES + row * 4, sizeof scale);
            assert_true(scale == largest / 127.0f);
        }
    }
    assert_int_equal(pkv_copy_blocks(device->device, &bytes, &copy, 1, NULL), PKV_OK);
    gather_block(device, &args, copy.source, key[0], value[0]);
    gather_block(device, &args, copy.target, key[1], value[1]);
    assert_memory_equal(key[0], key[1], sizeof key[0]);
    assert_memory_equal(value[0], value[1], sizeof value[0]);
    assert_true(key[0][TOKENS * HEADS * SIZE - 1] != 0.0f); /* token 2 of the run, offset 3 */
    guarded_release(pool, BLOCKS * BLOCK_BYTES);
}

/* ---- The split layout: [block][head][dim / x][token][x] */

enum { X = 4 }; /* 16 bytes of float32 */

static void split_keys_have_no_view_and_are_permuted_first(const struct test_device *device,
                                                           const void *context) {
    static float split[BLOCKS][HEADS][SIZE / X][TOKENS][X];
    static float plain[BLOCKS][HEADS][TOKENS][SIZE];
    const int64_t kv_block_stride = HEADS * SIZE * TOKENS, kv_head_stride = SIZE * TOKENS;
    const int64_t stride[] = {HEADS * TOKENS * SIZE, TOKENS * SIZE, SIZE};
    const int64_t row_shape[] = {TOKENS, HEADS, SIZE};
    const pkv_block_id block_id = 3;
    const int32_t rows[] = {0}, starts[] = {0, TOKENS};
    float gathered[TOKENS][HEADS][SIZE];
    const float *k_cache = &split[0][0][0][0][0];
    pkv_gather_args args = {.struct_size = sizeof args,
                            .num_requests = 1,
                            .k_cache = view_of(plain, PKV_DTYPE_FLOAT32, HEADS, SIZE, stride),
                            .key = tensor_view(gathered, PKV_DTYPE_FLOAT32, 3, row_shape),
                            .block_table = &block_id,
                            .block_table_stride = 1,
                            .rows = rows,
                            .key_start_loc = starts};

    (void)context;
    for (int64_t i = 0; i < BLOCKS * HEADS * SIZE * TOKENS; i++) {
        (&split[0][0][0][0][0])[i] = (float)i;
    }
    for (int64_t number = 0; number < BLOCKS; number++) {
        for (int64_t head = 0; head < HEADS; head++) {
            for (int64_t offset = 0; offset < TOKENS; offset++) {
                const float *k_ptr =
                    k_cache + number * kv_block_stride + head * kv_head_stride + offset * X;

                for (int64_t d = 0; d < SIZE; d++) {
                    const float *element = k_ptr + d / X * TOKENS * X + d % X;

                    assert_ptr_equal(element, &split[number][head][d / X][offset][d % X]);
                    plain[number][head][offset][d] = *element;
                }
            }
        }
    }
    assert_int_equal(pkv_gather(device->device, &args, NULL), PKV_OK);
    for (int64_t i = 0; i < TOKENS * HEADS * SIZE; i++) {
        int64_t offset = i / (HEADS * SIZE), head = i / SIZE % HEADS, d = i % SIZE;

        assert_true(gathered[offset][head][d] == split[3][head][d / X][offset][d % X]);
    }
    args.k_cache.stride[3] = TOKENS * X; /* from one piece of x to the next */
    args.k_cache.stride[2] = X;
    assert_int_equal(pkv_gather(device->device, &args, NULL), PKV_ERROR_UNSUPPORTED);
}

int main(void) {
    const struct device_test tests[] = {
        {layouts[0].name, layouts_put_elements_where_the_formula_says, &layouts[0]},
        {layouts[1].name, layouts_put_elements_where_the_formula_says, &layouts[1]},
        {layouts[2].name, layouts_put_elements_where_the_formula_says, &layouts[2]},
        {"scales in the block travel with it", scales_in_the_block_travel_with_it, NULL},
        {"split keys have no view", split_keys_have_no_view_and_are_permuted_first, NULL},
    };
    struct test_device devices[TEST_MAX_DEVICES];
    int num_devices = test_devices_open(devices, 2);
    int failures = device_tests_run("layouts", tests, (int)(sizeof tests / sizeof tests[0]),
                                    devices, num_devices);

    test_devices_close(devices, num_devices);
    return failures;
}
