/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* What write_kv, merge_states, gather, copy, swap and fill do not do: each refusal changes one
 * thing of a call that works, names the dimension or argument, and leaves every byte as it was.
 * Attention itself is in test_attention_refuse.c; what a CPU device finds in slots, lists and
 * tables is with each operation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <pagedkv/transfer.h>

#include "support/test_devices.h"

#define NUM_TOKENS 2
#define NUM_HEADS 2
#define HEAD_SIZE 16
#define NUM_BLOCKS 3
#define BLOCK_SIZE 4

/* Everything that a call could read or write. */
struct memory {
    _Alignas(64) float key[NUM_TOKENS * NUM_HEADS * HEAD_SIZE];
    _Alignas(64) float value[NUM_TOKENS * NUM_HEADS * HEAD_SIZE];
    _Alignas(64) float k_cache[NUM_BLOCKS * NUM_HEADS * BLOCK_SIZE * HEAD_SIZE];
    _Alignas(64) float v_cache[NUM_BLOCKS * NUM_HEADS * BLOCK_SIZE * HEAD_SIZE];
    _Alignas(64) float lse[NUM_TOKENS * NUM_HEADS];
    _Alignas(64) float scale[NUM_BLOCKS * NUM_HEADS * BLOCK_SIZE];
    int64_t slots[NUM_TOKENS], positions[NUM_TOKENS];
    int32_t table[4], rows[1], starts[2];
};

static struct memory memory;

static pkv_tensor rows_view(void *data) {
    const int64_t shape[] = {NUM_TOKENS, NUM_HEADS, HEAD_SIZE};

    return tensor_view(data, PKV_DTYPE_FLOAT32, 3, shape);
}

static pkv_tensor cache_view(void *data) {
    const int64_t shape[] = {NUM_BLOCKS, NUM_HEADS, BLOCK_SIZE, HEAD_SIZE};

    return tensor_view(data, PKV_DTYPE_FLOAT32, 4, shape);
}

static void fill_memory(void) {
    memset(&memory, 0x3c, sizeof memory);
    for (int i = 0; i < NUM_TOKENS; i++) {
        memory.slots[i] = BLOCK_SIZE + i;
        memory.positions[i] = i;
    }
    memory.table[0] = 1;
    memory.table[1] = 2;
    memory.rows[0] = 0;
    memory.starts[0] = 0;
    memory.starts[1] = NUM_TOKENS;
}

/* The status of a call that must have changed nothing. */
static void expect_refusal(const struct test_device *device,
                           const struct memory *before,
                           pkv_status status,
                           pkv_status wanted,
                           const char *word) {
    const char *message = pkv_device_last_error(device->device);

    if (status != wanted || strstr(message, word) == NULL) {
        print_error("%s instead of %s, '%s' has no '%s'\n", pkv_status_name(status),
                    pkv_status_name(wanted), message, word);
    }
    assert_int_equal(status, wanted);
    assert_non_null(strstr(message, word));
    assert_memory_equal(before, &memory, sizeof memory);
}

/* `call` with `args` changed by `change` is refused; then `args` is as before. */
#define REFUSED(status, word, call, change)                                                        \
    do {                                                                                           \
        struct memory before;                                                                      \
        args = good;                                                                               \
        change;                                                                                    \
        memcpy(&before, &memory, sizeof memory);                                                   \
        expect_refusal(device, &before, call, PKV_ERROR_##status, word);                           \
    } while (0)

static void writes(const struct test_device *device, const void *context) {
    const int64_t rotary_shape[] = {4, HEAD_SIZE / 2};
    const pkv_tensor rotary = tensor_view(memory.scale, PKV_DTYPE_FLOAT32, 2, rotary_shape);
    const pkv_write_kv_args good = {.struct_size = sizeof good,
                                    .key = rows_view(memory.key),
                                    .value = rows_view(memory.value),
                                    .k_cache = cache_view(memory.k_cache),
                                    .v_cache = cache_view(memory.v_cache),
                                    .slot_mapping = memory.slots};
    pkv_write_kv_args args;

    (void)context;
    fill_memory();
#define WRITE pkv_write_kv(device->device, &args, NULL)
    REFUSED(INVALID_ARGUMENT, "key.shape[2] (head_size)", WRITE, args.key.shape[2] = 8);
    REFUSED(INVALID_ARGUMENT, "value.shape[0]", WRITE, args.value.shape[0] = 1);
    REFUSED(INVALID_ARGUMENT, "key.shape[1] (num_kv_heads)", WRITE, args.key.shape[1] = 1);
    REFUSED(INVALID_ARGUMENT, "key.rank", WRITE, args.key.rank = 2);
    REFUSED(INVALID_ARGUMENT, "key.data", WRITE, args.key.data = NULL);
    REFUSED(UNSUPPORTED, "key.dtype", WRITE, args.key.dtype = args.value.dtype = PKV_DTYPE_INT8);
    REFUSED(UNSUPPORTED, "key.stride[2]", WRITE, args.key.stride[2] = 2);
    REFUSED(UNSUPPORTED, "head_size", WRITE, args.k_cache.shape[3] = 12);
    REFUSED(UNSUPPORTED, "head_size", WRITE, args.k_cache.shape[3] = args.key.shape[2] = 46);
    REFUSED(UNSUPPORTED, "head_size", WRITE, args.k_cache.shape[3] = PKV_MAX_HEAD_SIZE + 8);
    REFUSED(UNSUPPORTED, "block_size", WRITE, args.k_cache.shape[2] = PKV_MAX_BLOCK_SIZE + 1);
    REFUSED(INVALID_ARGUMENT, "v_cache.shape[0] (num_blocks)", WRITE, args.v_cache.shape[0] = 2);
    REFUSED(UNSUPPORTED, "BFLOAT16 cache", WRITE,
            args.k_cache.dtype = args.v_cache.dtype = PKV_DTYPE_BFLOAT16;
            args.key.dtype = args.value.dtype = PKV_DTYPE_FLOAT16);
    REFUSED(INVALID_ARGUMENT, "v_cache", WRITE, memset(&args.v_cache, 0, sizeof args.v_cache));
    REFUSED(UNSUPPORTED, "k_scale", WRITE, args.k_scale = rotary);
    REFUSED(INVALID_ARGUMENT, "slot_mapping", WRITE, args.slot_mapping = NULL);
    REFUSED(INVALID_ARGUMENT, "sin", WRITE, args.cos = rotary);
    REFUSED(INVALID_ARGUMENT, "positions", WRITE, args.cos = args.sin = rotary);
    REFUSED(INVALID_ARGUMENT, "rotary_offset", WRITE, args.cos = args.sin = rotary;
            args.positions = memory.positions; args.rotary_offset = 8);
    REFUSED(UNSUPPORTED, "flags", WRITE, args.flags = 0x40);
    REFUSED(INVALID_ARGUMENT, "struct_size", WRITE, args.struct_size = 7);
    args = good;
    assert_int_equal(WRITE, PKV_OK);
}

static void merges(const struct test_device *device, const void *context) {
    const int64_t lse_shape[] = {NUM_TOKENS, NUM_HEADS};
    pkv_tensor outputs[] = {rows_view(memory.key), rows_view(memory.value)};
    pkv_tensor lses[] = {tensor_view(memory.lse, PKV_DTYPE_FLOAT32, 2, lse_shape),
                         tensor_view(memory.lse, PKV_DTYPE_FLOAT32, 2, lse_shape)};
    const pkv_merge_args good = {.struct_size = sizeof good,
                                 .num_parts = 2,
                                 .outputs = outputs,
                                 .lses = lses,
                                 .output = rows_view(memory.k_cache)};
    pkv_merge_args args;

    (void)context;
    fill_memory();
#define MERGE pkv_merge_states(device->device, &args, NULL)
    REFUSED(INVALID_ARGUMENT, "num_parts", MERGE, args.num_parts = 0);
    REFUSED(INVALID_ARGUMENT, "num_parts", MERGE, args.num_parts = PKV_MAX_MERGE_PARTS + 1);
    REFUSED(INVALID_ARGUMENT, "outputs", MERGE, args.outputs = NULL);
    REFUSED(INVALID_ARGUMENT, "shape[1] (num_heads)", MERGE, args.output.shape[1] = 1);
    REFUSED(UNSUPPORTED, "output.dtype", MERGE, args.output.dtype = PKV_DTYPE_INT8);
    REFUSED(UNSUPPORTED, "output.stride[2]", MERGE, args.output.stride[2] = 2);
    REFUSED(INVALID_ARGUMENT, "lse.shape[0]", MERGE, args.lse = lses[0]; args.lse.shape[0] = 1);
    outputs[1].shape[2] = 8;
    REFUSED(INVALID_ARGUMENT, "outputs[1].shape[2]", MERGE, (void)args);
    outputs[1] = rows_view(memory.value);
    outputs[1].dtype = PKV_DTYPE_FLOAT16;
    REFUSED(UNSUPPORTED, "outputs[1].dtype", MERGE, (void)args);
    outputs[1] = rows_view(memory.value);
    lses[1].dtype = PKV_DTYPE_FLOAT16;
    REFUSED(UNSUPPORTED, "lses[1].dtype", MERGE, (void)args);
    lses[1].dtype = PKV_DTYPE_FLOAT32;
    args = good;
    assert_int_equal(MERGE, PKV_OK);
}

static void gathers(const struct test_device *device, const void *context) {
    const pkv_gather_args good = {.struct_size = sizeof good,
                                  .num_requests = 1,
                                  .k_cache = cache_view(memory.k_cache),
                                  .v_cache = cache_view(memory.v_cache),
                                  .key = rows_view(memory.key),
                                  .value = rows_view(memory.value),
                                  .block_table = memory.table,
                                  .block_table_stride = 4,
                                  .rows = memory.rows,
                                  .key_start_loc = memory.starts};
    pkv_gather_args args;

    (void)context;
    fill_memory();
#define GATHER pkv_gather(device->device, &args, NULL)
    REFUSED(INVALID_ARGUMENT, "key.shape[2] (head_size)", GATHER, args.key.shape[2] = 8);
    REFUSED(INVALID_ARGUMENT, "value.shape[1] (num_kv_heads)", GATHER, args.value.shape[1] = 1);
    REFUSED(UNSUPPORTED, "key.dtype", GATHER, args.key.dtype = PKV_DTYPE_INT8);
    REFUSED(UNSUPPORTED, "head_size", GATHER, args.k_cache.shape[3] = 12);
    REFUSED(UNSUPPORTED, "block_size", GATHER, args.k_cache.shape[2] = PKV_MAX_BLOCK_SIZE + 1);
    REFUSED(INVALID_ARGUMENT, "num_requests", GATHER, args.num_requests = -1);
    REFUSED(INVALID_ARGUMENT, "block_table", GATHER, args.block_table = NULL);
    REFUSED(INVALID_ARGUMENT, "goes with its cache", GATHER,
            memset(&args.value, 0, sizeof args.value));
    memory.table[0] = NUM_BLOCKS;
    REFUSED(INVALID_ARGUMENT, "block_table", GATHER, (void)args);
    memory.table[0] = 1;
    args = good;
    assert_int_equal(GATHER, PKV_OK);
}

/* The pool as bytes: [num_layers, num_blocks, block_bytes]. */
static void moves(const struct test_device *device, const void *context) {
    const int64_t shape[] = {1, NUM_BLOCKS, (int64_t)sizeof memory.k_cache / NUM_BLOCKS};
    const pkv_tensor good = tensor_view(memory.k_cache, PKV_DTYPE_UINT8, 3, shape);
    const pkv_tensor other = tensor_view(memory.v_cache, PKV_DTYPE_UINT8, 3, shape);
    const pkv_block_copy pair = {1, 2};
    const pkv_block_id id = 1;
    pkv_tensor args;

    (void)context;
    fill_memory();
#define COPY pkv_copy_blocks(device->device, &args, &pair, 1, NULL)
#define SWAP pkv_swap_blocks(device->device, &args, &other, &pair, 1, NULL)
#define FILL pkv_fill_blocks(device->device, &args, &id, 1, PKV_FILL_ZERO, NULL)
#define ALL_REFUSED(status, word, change)                                                          \
    REFUSED(status, "blocks" word, COPY, change);                                                  \
    REFUSED(status, "source" word, SWAP, change);                                                  \
    REFUSED(status, "blocks" word, FILL, change)
    ALL_REFUSED(INVALID_ARGUMENT, ".rank", args.rank = 2);
    ALL_REFUSED(INVALID_ARGUMENT, ".data", args.data = NULL);
    ALL_REFUSED(UNSUPPORTED, ".dtype", args.dtype = PKV_DTYPE_FLOAT32);
    ALL_REFUSED(UNSUPPORTED, ".stride[2]", args.stride[2] = 2);
    ALL_REFUSED(INVALID_ARGUMENT, " has an axis of size 0", args.shape[2] = 0);
    ALL_REFUSED(INVALID_ARGUMENT, ": num_blocks", args.stride[1] = 1);
    REFUSED(INVALID_ARGUMENT, "block_bytes", SWAP, args.shape[2] -= 8);
    REFUSED(INVALID_ARGUMENT, "overlap", SWAP, args = other);
    args = good;
    assert_int_equal(COPY, PKV_OK);
    assert_int_equal(SWAP, PKV_OK);
    assert_int_equal(FILL, PKV_OK);
}

/* The arrays are the host's here; another device is given twins by the suites of the operations. */
static void check(const struct test_device *device, const void *context) {
    void (*const *run)(const struct test_device *device, const void *context) = context;

    if (device->memory != NULL) {
        print_message("skipped: the arrays of this test are in the host's memory\n");
        skip();
    }
    (*run)(device, NULL);
}

int main(void) {
    static void (*const runs[])(const struct test_device *device,
                                const void *context) = {writes, merges, gathers, moves};
    const struct device_test tests[] = {
        {"write_kv", check, &runs[0]},
        {"merge_states", check, &runs[1]},
        {"gather", check, &runs[2]},
        {"copy, swap, fill", check, &runs[3]},
    };
    struct test_device devices[TEST_MAX_DEVICES];
    int num_devices = test_devices_open(devices, 1);
    int failures = device_tests_run("refusals of the data tower", tests,
                                    (int)(sizeof tests / sizeof tests[0]), devices, num_devices);

    test_devices_close(devices, num_devices);
    return failures;
}
