/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Every operation of the CUDA device on a pool beyond 4 GiB; see far_pool.h.
 *
 * The one idea: where blocks lie does not show in the numbers, so a pool whose blocks are 2 GiB
 * apart is compared byte for byte with one whose blocks are adjacent. */
#include "far_pool.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include <pagedkv/attention.h>
#include <pagedkv/cuda.h>
#include <pagedkv/transfer.h>

#include "support/tensor_fill.h"

enum {
    HEAD_SIZE = 64,
    BLOCK_SIZE = 16,
    NUM_BLOCKS = 4,
    NUM_KEYS = 40,
    NUM_HEADS = 2,
    ROW_ELEMENTS = NUM_KEYS * HEAD_SIZE,
    HALF_BLOCK = BLOCK_SIZE * HEAD_SIZE, /* keys of a block, in elements; values behind them */
};

/* Block 2 begins 2^31 elements and 2^32 bytes behind block 0, and a little: whoever drops the upper
 * bits is between blocks, where nothing was written. */
#define FAR_STRIDE (INT64_C(0x40000000) + 8192)
#define NEAR_STRIDE ((int64_t)2 * HALF_BLOCK)

static const pkv_block_id table[] = {3, 2, 1};

/* What one pool gave. */
struct results {
    uint16_t output[NUM_HEADS * HEAD_SIZE];
    uint16_t key[ROW_ELEMENTS], value[ROW_ELEMENTS];
    uint16_t moved_key[ROW_ELEMENTS]; /* after block 3 went to 2, and 1 was zeroed */
};

static void require(bool is_right, const char *what) {
    if (!is_right) {
        (void)fprintf(stderr, "far pool: %s\n", what);
        exit(1);
    }
}

static void *on_device(const void *host, size_t size) {
    void *memory = NULL;

    require(cudaMalloc(&memory, size) == cudaSuccess, "cudaMalloc");
    if (host != NULL) {
        require(cudaMemcpy(memory, host, size, cudaMemcpyHostToDevice) == cudaSuccess, "upload");
    }
    return memory;
}

static void *content(uint64_t seed, int64_t num_rows) {
    uint16_t elements[ROW_ELEMENTS];

    for (int64_t i = 0; i < num_rows * HEAD_SIZE; i++) {
        tensor_encode(elements, PKV_DTYPE_FLOAT16, i, tensor_value(seed, i, 0, 0, 0));
    }
    return on_device(elements, (size_t)(num_rows * HEAD_SIZE) * sizeof elements[0]);
}

static pkv_tensor rows_of(void *data, int64_t num_rows, int64_t num_heads) {
    const int64_t shape[] = {num_rows, num_heads, HEAD_SIZE};

    return tensor_view(data, PKV_DTYPE_FLOAT16, 3, shape);
}

static pkv_tensor cache_of(uint16_t *pool, int64_t stride) {
    const int64_t shape[] = {NUM_BLOCKS, 1, BLOCK_SIZE, HEAD_SIZE};
    pkv_tensor view = tensor_view(pool, PKV_DTYPE_FLOAT16, 4, shape);

    view.stride[0] = stride;
    return view;
}

static void write_cache(pkv_device *device, pkv_tensor k_cache, pkv_tensor v_cache) {
    int64_t slots[NUM_KEYS];

    for (int32_t i = 0; i < NUM_KEYS; i++) {
        slots[i] = pkv_compute_slot(table, BLOCK_SIZE, i);
    }
    pkv_write_kv_args args = {.struct_size = sizeof args,
                              .key = rows_of(content(1, NUM_KEYS), NUM_KEYS, 1),
                              .value = rows_of(content(2, NUM_KEYS), NUM_KEYS, 1),
                              .k_cache = k_cache,
                              .v_cache = v_cache,
                              .slot_mapping = on_device(slots, sizeof slots)};
    require(pkv_write_kv(device, &args, NULL) == PKV_OK, "pkv_write_kv");
}

static void attend(pkv_device *device, pkv_tensor k_cache, pkv_tensor v_cache, uint16_t *out) {
    int32_t lengths[] = {NUM_KEYS}, starts[] = {0, 1}, rows[] = {0};
    unsigned char host_plan[4096];
    size_t plan_size = 0, workspace_size = 1, output_size = NUM_HEADS * HEAD_SIZE * sizeof *out;
    pkv_plan *plan;
    const pkv_plan_config config = {.struct_size = sizeof config,
                                    .shape = {.struct_size = sizeof config.shape,
                                              .num_query_heads = NUM_HEADS,
                                              .num_kv_heads = 1,
                                              .head_size = HEAD_SIZE,
                                              .block_size = BLOCK_SIZE,
                                              .query_dtype = PKV_DTYPE_FLOAT16},
                                    .max_requests = 1,
                                    .max_tokens = 1,
                                    .max_seq_len = NUM_KEYS};
    const pkv_batch batch = {.struct_size = sizeof batch,
                             .num_requests = 1,
                             .max_requests = 1,
                             .num_tokens = 1,
                             .rows = rows,
                             .seq_lens = lengths,
                             .query_start_loc = starts};

    require(pkv_plan_create(&config, &plan, NULL) == PKV_OK &&
                pkv_plan_sizes(plan, &plan_size, &workspace_size) == PKV_OK &&
                plan_size <= sizeof host_plan && workspace_size == 0 &&
                pkv_plan_build(plan, &batch, host_plan, plan_size) == PKV_OK,
            "the plan");
    pkv_attention_args args = {.struct_size = sizeof args,
                               .query = rows_of(content(3, NUM_HEADS), 1, NUM_HEADS),
                               .output = rows_of(on_device(NULL, output_size), 1, NUM_HEADS),
                               .k_cache = k_cache,
                               .v_cache = v_cache,
                               .block_table = on_device(table, sizeof table),
                               .seq_lens = on_device(lengths, sizeof lengths),
                               .query_start_loc = on_device(starts, sizeof starts),
                               .plan_data = on_device(host_plan, plan_size)};
    require(pkv_attention(device, plan, &args, NULL) == PKV_OK, "pkv_attention");
    require(cudaMemcpy(out, args.output.data, output_size, cudaMemcpyDeviceToHost) == cudaSuccess,
            "attention");
    pkv_plan_destroy(plan);
}

static void gather(
    pkv_device *device, pkv_tensor k_cache, pkv_tensor v_cache, uint16_t *key, uint16_t *value) {
    const int32_t rows[] = {0}, starts[] = {0, NUM_KEYS};
    const size_t size = ROW_ELEMENTS * sizeof *key;
    pkv_gather_args args = {.struct_size = sizeof args,
                            .num_requests = 1,
                            .k_cache = k_cache,
                            .v_cache = v_cache,
                            .key = rows_of(on_device(NULL, size), NUM_KEYS, 1),
                            .value = rows_of(on_device(NULL, size), NUM_KEYS, 1),
                            .block_table = on_device(table, sizeof table),
                            .rows = on_device(rows, sizeof rows),
                            .key_start_loc = on_device(starts, sizeof starts)};

    require(pkv_gather(device, &args, NULL) == PKV_OK, "pkv_gather");
    require(cudaMemcpy(key, args.key.data, size, cudaMemcpyDeviceToHost) == cudaSuccess &&
                cudaMemcpy(value, args.value.data, size, cudaMemcpyDeviceToHost) == cudaSuccess,
            "gathering");
}

static void run_all(pkv_device *device, int64_t stride, struct results *out) {
    const size_t size = (size_t)((NUM_BLOCKS - 1) * stride + NEAR_STRIDE) * sizeof(uint16_t);
    uint16_t *pool = on_device(NULL, size), unused[ROW_ELEMENTS];
    const pkv_tensor k_cache = cache_of(pool, stride);
    const pkv_tensor v_cache = cache_of(pool + HALF_BLOCK, stride);
    const pkv_tensor blocks = {.data = pool,
                               .dtype = PKV_DTYPE_UINT8,
                               .rank = 3,
                               .shape = {1, NUM_BLOCKS, NEAR_STRIDE * 2},
                               .stride = {0, stride * 2, 1}};
    const pkv_block_copy copy = {3, 2};
    const pkv_block_id filled[] = {1};

    write_cache(device, k_cache, v_cache);
    attend(device, k_cache, v_cache, out->output);
    gather(device, k_cache, v_cache, out->key, out->value);
    require(pkv_copy_blocks(device, &blocks, &copy, 1, NULL) == PKV_OK, "pkv_copy_blocks");
    require(pkv_fill_blocks(device, &blocks, filled, 1, PKV_FILL_ZERO, NULL) == PKV_OK,
            "pkv_fill_blocks");
    gather(device, k_cache, v_cache, out->moved_key, unused);
    require(cudaFree(pool) == cudaSuccess, "cudaFree");
}

bool far_pool_is_right(void) {
    const pkv_cuda_config config = {.struct_size = sizeof config};
    static struct results far, near;
    uint16_t key[ROW_ELEMENTS], value[ROW_ELEMENTS];
    const size_t block = HALF_BLOCK * sizeof key[0];
    pkv_device *device;

    require(pkv_device_create_cuda(&config, &device) == PKV_OK, "no device");
    run_all(device, NEAR_STRIDE, &near);
    run_all(device, FAR_STRIDE, &far);
    pkv_device_destroy(device);
    for (int64_t i = 0; i < ROW_ELEMENTS; i++) {
        tensor_encode(key, PKV_DTYPE_FLOAT16, i, tensor_value(1, i, 0, 0, 0));
        tensor_encode(value, PKV_DTYPE_FLOAT16, i, tensor_value(2, i, 0, 0, 0));
    }
    /* The table is 3, 2, 1: tokens 0 to 15 went over 16 to 31, and the rest is zero. */
    static const uint16_t zeros[ROW_ELEMENTS - 2 * HALF_BLOCK];
    return memcmp(&far, &near, sizeof far) == 0 && memcmp(far.key, key, sizeof key) == 0 &&
           memcmp(far.value, value, sizeof value) == 0 && memcmp(far.moved_key, key, block) == 0 &&
           memcmp(far.moved_key + HALF_BLOCK, key, block) == 0 &&
           memcmp(far.moved_key + 2 * HALF_BLOCK, zeros, sizeof zeros) == 0;
}
