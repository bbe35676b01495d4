/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* One attention layer on a CUDA device for examples that need one: its cache in blocks, and the
 * decode step of two sequences. decode() is what an engine enqueues for each layer; it only names
 * addresses, so that it can be captured into a graph.
 *
 * The one idea: `struct memory` is the layout of one allocation on the device. The host fills a
 * copy of its own and takes addresses of the device's, but never looks at what is there. */
#ifndef EXAMPLES_TINY_CUDA_H
#define EXAMPLES_TINY_CUDA_H

#include <pagedkv.h>
#include <pagedkv/cuda.h>

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

enum { block_size = 16, num_blocks = 20, num_heads = 8, num_kv_heads = 2, head_size = 128 };
enum { num_requests = 2, num_columns = 8, max_len = num_columns * block_size };
enum { exit_not_run = 77 }; /* what test runners take for "skipped" */

struct inputs { /* of one step; bfloat16, one new token a sequence */
    uint16_t query[num_requests][num_heads * head_size];
    uint16_t kv[2][num_requests][num_kv_heads * head_size]; /* 0: keys, 1: values */
    int32_t seq_lens[num_requests];
};

struct memory {
    _Alignas(256) uint16_t pool[num_blocks][2][num_kv_heads][block_size][head_size];
    _Alignas(256) struct inputs in;
    _Alignas(256) float output[num_requests][num_heads * head_size];
    int64_t slots[num_requests];
    int32_t rows[num_requests], starts[num_requests + 1];
    pkv_block_id table[num_requests + 1][num_columns]; /* row 0 is the null row */
};

/* The device's memory before the first step; start() fills the pool. */
static struct memory at_start = {
    .rows = {1, 2},
    .starts = {0, 1, 2},
    .table = {{0}, {11, 2, 7, 17, 4, 15, 9, 6}, {3, 18, 1, 12, 16, 5, 14, 8}}};
static struct memory *on_device;
static pkv_device *device;
static pkv_plan *plan;
static void *host_plan, *plan_data, *workspace;
static size_t plan_size, workspace_size;
static cudaStream_t stream;

static void check(pkv_status status) {
    if (status != PKV_OK) {
        fprintf(stderr, "%s: %s\n", pkv_status_name(status), pkv_device_last_error(device));
        exit(1);
    }
}

static void check_cuda(cudaError_t error) {
    if (error != cudaSuccess) {
        fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
        exit(1);
    }
}

static void say(void *context, int level, const char *message) {
    (void)context;
    (void)level;
    fprintf(stderr, "%s\n", message);
}

/* Numbers from 0.5 to 2, of either sign. */
static void fill(uint16_t *out, size_t count, uint32_t seed) {
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525 + 1013904223;
        out[i] = (uint16_t)((seed >> 16 & 0x8000) | (0x3f00 + (seed >> 20 & 0xff)));
    }
}

static void make_inputs(struct inputs *in, int step) {
    fill(in->query[0], sizeof in->query / 2, (uint32_t)(2 * step));
    fill(in->kv[0][0], sizeof in->kv / 2, (uint32_t)(2 * step + 1));
    in->seq_lens[0] = 60 + step;
    in->seq_lens[1] = 45 + step;
}

static pkv_tensor view(void *data, pkv_dtype dtype, int64_t heads) {
    const int64_t d = head_size;
    return (pkv_tensor){data, dtype, 3, {num_requests, heads, d}, {heads * d, d, 1}};
}

static pkv_tensor cache_view(int half) { /* 0: the keys of each block, 1: its values */
    const int64_t head = block_size * head_size, block = 2 * num_kv_heads * head;
    return (pkv_tensor){on_device->pool[0][half],
                        PKV_DTYPE_BFLOAT16,
                        4,
                        {num_blocks, num_kv_heads, block_size, head_size},
                        {block, head, head_size, 1}};
}

/* Where the new tokens go, writing them, attention. */
static void decode(void) {
    struct memory *m = on_device;
    pkv_slot_mapping_args slots = {.struct_size = sizeof slots,
                                   .num_requests = num_requests,
                                   .num_tokens = num_requests,
                                   .block_size = block_size,
                                   .num_columns = num_columns,
                                   .block_table = m->table[0],
                                   .block_table_stride = num_columns,
                                   .rows = m->rows,
                                   .seq_lens = m->in.seq_lens,
                                   .query_start_loc = m->starts,
                                   .slot_mapping = m->slots};
    pkv_write_kv_args write = {.struct_size = sizeof write,
                               .key = view(m->in.kv[0], PKV_DTYPE_BFLOAT16, num_kv_heads),
                               .value = view(m->in.kv[1], PKV_DTYPE_BFLOAT16, num_kv_heads),
                               .k_cache = cache_view(0),
                               .v_cache = cache_view(1),
                               .slot_mapping = m->slots};
    pkv_attention_args args = {.struct_size = sizeof args,
                               .query = view(m->in.query, PKV_DTYPE_BFLOAT16, num_heads),
                               .output = view(m->output, PKV_DTYPE_FLOAT32, num_heads),
                               .k_cache = write.k_cache,
                               .v_cache = write.v_cache,
                               .block_table = m->table[0],
                               .block_table_stride = num_columns,
                               .seq_lens = m->in.seq_lens,
                               .query_start_loc = m->starts,
                               .plan_data = plan_data,
                               .workspace = workspace,
                               .workspace_size = workspace_size};

    check(pkv_compute_slot_mapping(device, &slots, pkv_stream_of_cuda(stream)));
    check(pkv_write_kv(device, &write, pkv_stream_of_cuda(stream)));
    check(pkv_attention(device, plan, &args, pkv_stream_of_cuda(stream)));
}

/* Build the plan of a step and upload it, where the present one does not serve. Returns whether. */
static bool update_plan(struct inputs *in, bool is_first) {
    pkv_batch batch = {.struct_size = sizeof batch,
                       .num_requests = num_requests,
                       .rows = at_start.rows,
                       .seq_lens = in->seq_lens,
                       .query_start_loc = at_start.starts};

    if (!is_first && pkv_plan_covers(plan, host_plan, &batch)) {
        return false;
    }
    check(pkv_plan_build(plan, &batch, host_plan, plan_size));
    check_cuda(cudaMemcpyAsync(plan_data, host_plan, pkv_plan_used_size(host_plan),
                               cudaMemcpyHostToDevice, stream));
    return true;
}

/* A device that the library cannot use is an error, and none at all a reason not to run. */
static int has_device(void) {
    int num_devices = 0, driver_version = 0;
    cudaError_t error = cudaGetDeviceCount(&num_devices);

    (void)cudaDriverGetVersion(&driver_version); /* 0 where there is none */
    return error == cudaSuccess ? num_devices > 0
                                : error != cudaErrorNoDevice && driver_version > 0;
}

/* A device, a plan for decode steps, and the memory. Without a GPU the program ends here. */
static void start(void) {
    const pkv_cuda_config config = {.struct_size = sizeof config, .log = say};
    pkv_plan_config plan_config = {.struct_size = sizeof plan_config,
                                   .shape = {.struct_size = sizeof plan_config.shape,
                                             .num_query_heads = num_heads,
                                             .num_kv_heads = num_kv_heads,
                                             .head_size = head_size,
                                             .block_size = block_size,
                                             .query_dtype = PKV_DTYPE_BFLOAT16},
                                   .max_requests = num_requests,
                                   .max_tokens = num_requests,
                                   .max_query_len = 1,
                                   .max_seq_len = max_len,
                                   .chunk_size = 64};
    pkv_status status = pkv_device_create_cuda(&config, &device);

    if (status == PKV_ERROR_DEVICE && !has_device()) {
        fprintf(stderr, "skipped: this example needs a CUDA device\n");
        exit(exit_not_run);
    }
    check(status);
    check(pkv_plan_create(&plan_config, &plan, NULL));
    check(pkv_plan_sizes(plan, &plan_size, &workspace_size));
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    check_cuda(cudaMallocHost(&host_plan, plan_size));
    check_cuda(cudaMalloc(&plan_data, plan_size));
    check_cuda(cudaMalloc(&workspace, workspace_size));
    check_cuda(cudaMalloc((void **)&on_device, sizeof *on_device));
    fill(at_start.pool[0][0][0][0], sizeof at_start.pool / 2, 12345);
}

static void stop(void) {
    check_cuda(cudaFree(on_device));
    check_cuda(cudaFree(workspace));
    check_cuda(cudaFree(plan_data));
    check_cuda(cudaFreeHost(host_plan));
    check_cuda(cudaStreamDestroy(stream));
    pkv_plan_destroy(plan);
    pkv_device_destroy(device);
}

#endif
