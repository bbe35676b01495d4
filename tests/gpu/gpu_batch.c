/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* A batch on a CUDA device; see gpu_batch.h. */
#include "gpu_batch.h"

#include <stdlib.h>
#include <string.h>

/* Tokens that are written in one call. */
#define FILL_TOKENS 256

/* ---- Making */

/* The table names each block but the null block at most once. Spread: request r's column c is at a
 * place that steps through the whole pool. */
static void make_table(gpu_batch *batch) {
    const gpu_batch_config *c = &batch->config;
    int64_t count = (int64_t)c->num_requests * batch->num_columns;
    int64_t step = c->is_spread ? (c->num_blocks - 1) / count : 1;

    batch->table = phase_host((size_t)count * sizeof *batch->table);
    for (int64_t i = 0; i < count; i++) {
        /* Neighbours in a row lie far apart: first the even numbers up, then the odd ones down. */
        int64_t place = !c->is_spread ? i : i % 2 == 0 ? i / 2 : count - 1 - i / 2;

        batch->table[i] = (pkv_block_id)(1 + place * step + step - 1);
    }
    batch->device_table = phase_upload(batch->table, (size_t)count * sizeof *batch->table);
    batch->args.block_table = batch->device_table;
    batch->args.block_table_stride = batch->num_columns;
}

static void make_pool(gpu_batch *batch) {
    const gpu_batch_config *c = &batch->config;
    int64_t tokens = c->block_size, heads = c->num_kv_heads, size = c->head_size;
    pkv_tensor view = {.dtype = c->kv_dtype,
                       .rank = 4,
                       .shape = {c->num_blocks, heads, tokens, size},
                       .stride = {2 * heads * tokens * size, tokens * size, size, 1}};
    size_t element_size = pkv_dtype_size(c->kv_dtype);

    batch->pool_size = (size_t)(c->num_blocks * view.stride[0]) * element_size;
    batch->pool = phase_allocate(batch->pool_size);
    phase_cuda(cudaMemset(batch->pool, 0xff, batch->pool_size), "cudaMemset");
    batch->k_cache = batch->v_cache = view;
    batch->k_cache.data = batch->pool;
    batch->v_cache.data = batch->pool + (size_t)(heads * tokens * size) * element_size;
    batch->args.k_cache = batch->k_cache;
    batch->args.v_cache = batch->v_cache;
}

/* What is written and asked: floats; the query is converted by a write into a pool of its own. */
static void make_source(gpu_batch *batch) {
    const gpu_batch_config *c = &batch->config;
    size_t row = (size_t)c->num_kv_heads * (size_t)c->head_size;
    size_t count = 2 * (GPU_BATCH_PERIOD + FILL_TOKENS) * row;
    size_t query_count =
        (size_t)batch->num_tokens * (size_t)c->num_query_heads * (size_t)c->head_size;
    size_t element_size = pkv_dtype_size(c->query_dtype);
    float *source = phase_host(count * sizeof *source);
    unsigned char *query = phase_host(query_count * element_size);

    for (size_t i = 0; i < count; i++) {
        source[i] = phase_value(i < count / 2 ? 1 : 2, i % (GPU_BATCH_PERIOD * row));
    }
    for (size_t i = 0; i < query_count; i++) {
        float value = phase_value(3, i);
        uint32_t bits;

        memcpy(&bits, &value, sizeof bits);
        if (element_size == 4) {
            memcpy(query + 4 * i, &bits, 4);
        } else { /* 0.5 to 1 with a sign, exact in either type of 16 bits */
            uint16_t half = (uint16_t)((bits >> 16 & 0x8000u) | (bits & 0x7fu) |
                                       (c->query_dtype == PKV_DTYPE_FLOAT16 ? 0x3800u : 0x3f00u));

            memcpy(query + 2 * i, &half, 2);
        }
    }
    batch->source = phase_upload(source, count * sizeof *source);
    batch->args.query = (pkv_tensor){phase_upload(query, query_count * element_size),
                                     c->query_dtype,
                                     3,
                                     {batch->num_tokens, c->num_query_heads, c->head_size},
                                     {(int64_t)c->num_query_heads * c->head_size, c->head_size, 1}};
    batch->args.output = batch->args.query;
    batch->output_size = query_count * element_size;
    free(source);
    free(query);
}

static void make_plan(gpu_batch *batch) {
    const gpu_batch_config *c = &batch->config;
    const pkv_plan_config config = {.struct_size = sizeof config,
                                    .shape = {.struct_size = sizeof config.shape,
                                              .num_query_heads = c->num_query_heads,
                                              .num_kv_heads = c->num_kv_heads,
                                              .head_size = c->head_size,
                                              .block_size = c->block_size,
                                              .query_dtype = c->query_dtype,
                                              .kv_dtype = c->kv_dtype},
                                    .max_requests = c->num_requests,
                                    .max_tokens = batch->num_tokens,
                                    .max_query_len = c->query_len,
                                    .max_seq_len = c->max_seq_len,
                                    .chunk_size = c->chunk_size};
    const char *reason = "";

    if (pkv_plan_create(&config, &batch->plan, &reason) != PKV_OK) {
        phase_stop("pkv_plan_create", reason);
    }
    phase_status(NULL, pkv_plan_sizes(batch->plan, &batch->plan_size, &batch->args.workspace_size),
                 "pkv_plan_sizes");
    phase_cuda(cudaMallocHost(&batch->host_plan, batch->plan_size), "cudaMallocHost");
    batch->args.plan_data = phase_allocate(batch->plan_size);
    batch->args.workspace = phase_allocate(batch->args.workspace_size);
}

void gpu_batch_create(gpu_batch *batch, const gpu_batch_config *config, pkv_device *device) {
    memset(batch, 0, sizeof *batch);
    batch->config = *config;
    batch->args.struct_size = sizeof batch->args;

    gpu_batch_config *c = &batch->config;
    size_t requests = (size_t)c->num_requests;

    batch->num_tokens = c->num_requests * c->query_len;
    batch->num_columns = (c->max_seq_len + c->block_size - 1) / c->block_size;
    if (c->num_blocks == 0) {
        c->num_blocks = (int64_t)c->num_requests * batch->num_columns + 1;
    }
    batch->lse_size = (size_t)batch->num_tokens * (size_t)c->num_query_heads * sizeof(float);
    batch->seq_lens = phase_host(requests * sizeof(int32_t));
    batch->rows = phase_host(requests * sizeof(int32_t));
    batch->query_start_loc = phase_host((requests + 1) * sizeof(int32_t));
    for (int32_t i = 0; i < c->num_requests; i++) {
        batch->rows[i] = i;
        batch->seq_lens[i] = c->max_seq_len;
        batch->query_start_loc[i + 1] = (i + 1) * c->query_len;
    }
    batch->device_lens = phase_upload(batch->seq_lens, requests * sizeof(int32_t));
    batch->device_rows = phase_upload(batch->rows, requests * sizeof(int32_t));
    batch->device_starts = phase_upload(batch->query_start_loc, (requests + 1) * sizeof(int32_t));
    batch->args.seq_lens = batch->device_lens;
    batch->args.query_start_loc = batch->device_starts;
    size_t num_slots = (size_t)c->num_requests * (size_t)c->max_seq_len;
    batch->slots = phase_allocate(num_slots * sizeof(int64_t));
    make_pool(batch);
    make_table(batch);
    make_source(batch);
    make_plan(batch);
    gpu_batch_plan(batch, device, batch->seq_lens, NULL);
}

void gpu_batch_destroy(gpu_batch *batch) {
    void *const memory[] = {
        batch->pool,          batch->source,          batch->slots,
        batch->device_table,  batch->device_lens,     batch->device_starts,
        batch->device_rows,   batch->args.query.data, (void *)(uintptr_t)batch->args.plan_data,
        batch->args.workspace};

    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++) {
        phase_cuda(cudaFree(memory[i]), "cudaFree");
    }
    phase_cuda(cudaFreeHost(batch->host_plan), "cudaFreeHost");
    pkv_plan_destroy(batch->plan);
    free(batch->seq_lens);
    free(batch->query_start_loc);
    free(batch->rows);
    free(batch->table);
}

/* ---- The calls of a step */

/* Keys and values of `count` tokens, those of `position` of `request` and behind it, to `slots`. */
static void write_tokens(gpu_batch *batch,
                         pkv_device *device,
                         int32_t request,
                         int32_t position,
                         int32_t count,
                         const int64_t *slots,
                         pkv_stream stream) {
    const gpu_batch_config *c = &batch->config;
    int64_t row = (int64_t)c->num_kv_heads * c->head_size;
    int64_t first = ((int64_t)request * 131 + position) % GPU_BATCH_PERIOD;
    pkv_tensor key = {(float *)batch->source + first * row,
                      PKV_DTYPE_FLOAT32,
                      3,
                      {count, c->num_kv_heads, c->head_size},
                      {row, c->head_size, 1}};
    pkv_write_kv_args args = {.struct_size = sizeof args,
                              .key = key,
                              .value = key,
                              .k_cache = batch->k_cache,
                              .v_cache = batch->v_cache,
                              .slot_mapping = slots};

    args.value.data = (float *)key.data + (GPU_BATCH_PERIOD + FILL_TOKENS) * row;
    phase_status(device, pkv_write_kv(device, &args, stream), "pkv_write_kv");
}

void gpu_batch_fill(gpu_batch *batch, pkv_device *device, pkv_stream stream) {
    const gpu_batch_config *c = &batch->config;
    size_t num_slots = (size_t)c->num_requests * (size_t)c->max_seq_len;
    int64_t *slots = phase_host(num_slots * sizeof *slots);

    for (size_t i = 0; i < num_slots; i++) {
        int32_t request = (int32_t)(i / (size_t)c->max_seq_len);
        int32_t position = (int32_t)(i % (size_t)c->max_seq_len);
        int64_t block =
            batch->table[(int64_t)request * batch->num_columns + position / c->block_size];

        slots[i] = block * c->block_size + position % c->block_size;
    }
    phase_cuda(cudaMemcpy(batch->slots, slots, num_slots * sizeof *slots, cudaMemcpyHostToDevice),
               "cudaMemcpy");
    free(slots);
    for (int32_t request = 0; request < c->num_requests; request++) {
        for (int32_t position = 0; position < c->max_seq_len; position += FILL_TOKENS) {
            int32_t left = c->max_seq_len - position;

            write_tokens(batch, device, request, position, left < FILL_TOKENS ? left : FILL_TOKENS,
                         (const int64_t *)batch->slots + (int64_t)request * c->max_seq_len +
                             position,
                         stream);
        }
    }
}

void gpu_batch_append(gpu_batch *batch, pkv_device *device, pkv_stream stream) {
    const gpu_batch_config *c = &batch->config;
    const pkv_slot_mapping_args args = {.struct_size = sizeof args,
                                        .num_requests = c->num_requests,
                                        .num_tokens = batch->num_tokens,
                                        .block_size = c->block_size,
                                        .num_columns = batch->num_columns,
                                        .block_table = batch->device_table,
                                        .block_table_stride = batch->num_columns,
                                        .rows = batch->device_rows,
                                        .seq_lens = batch->device_lens,
                                        .query_start_loc = batch->device_starts,
                                        .slot_mapping = batch->slots};

    phase_status(device, pkv_compute_slot_mapping(device, &args, stream),
                 "pkv_compute_slot_mapping");
    /* Whose token it is does not matter here: every token of the step gets the rows from 0 on. */
    write_tokens(batch, device, 0, 0, batch->num_tokens, batch->slots, stream);
}

void gpu_batch_plan(gpu_batch *batch,
                    pkv_device *device,
                    const int32_t *seq_lens,
                    pkv_stream stream) {
    const gpu_batch_config *c = &batch->config;
    size_t lens_size = (size_t)c->num_requests * sizeof *seq_lens;
    const pkv_batch described = {.struct_size = sizeof described,
                                 .num_requests = c->num_requests,
                                 .num_tokens = batch->num_tokens,
                                 .rows = batch->rows,
                                 .seq_lens = batch->seq_lens,
                                 .query_start_loc = batch->query_start_loc};
    cudaStream_t order = pkv_cuda_of_stream(stream);

    if (seq_lens != batch->seq_lens) {
        memcpy(batch->seq_lens, seq_lens, lens_size);
    }
    phase_status(device,
                 pkv_plan_build(batch->plan, &described, batch->host_plan, batch->plan_size),
                 "pkv_plan_build");
    batch->used_size = pkv_plan_used_size(batch->host_plan);
    phase_cuda(cudaMemcpyAsync((void *)(uintptr_t)batch->args.plan_data, batch->host_plan,
                               batch->used_size, cudaMemcpyHostToDevice, order),
               "upload of the plan");
    phase_cuda(cudaMemcpyAsync(batch->device_lens, batch->seq_lens, lens_size,
                               cudaMemcpyHostToDevice, order),
               "upload of the lengths");
    phase_cuda(cudaStreamSynchronize(order), "cudaStreamSynchronize");
}

void gpu_batch_run(
    gpu_batch *batch, pkv_device *device, void *output, void *lse, pkv_stream stream) {
    pkv_attention_args args = batch->args;

    args.output.data = output;
    args.lse = (pkv_tensor){lse,
                            PKV_DTYPE_FLOAT32,
                            2,
                            {batch->num_tokens, batch->config.num_query_heads},
                            {batch->config.num_query_heads, 1}};
    phase_status(device, pkv_attention(device, batch->plan, &args, stream), "pkv_attention");
}

pkv_tensor gpu_batch_blocks(const gpu_batch *batch) {
    int64_t block_bytes = (int64_t)(batch->pool_size / (size_t)batch->config.num_blocks);

    return (pkv_tensor){
        batch->pool,
        PKV_DTYPE_UINT8,
        3,
        {1, batch->config.num_blocks, block_bytes},
        {(int64_t)batch->pool_size, block_bytes, 1},
    };
}
