/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* A batch on a CUDA device for the phase programs: pool, tables, query, plan and workspace in
 * device memory, and the calls that a decode step is made of. What has to come out is not said
 * here.
 *
 * The one idea: keys, values and queries depend on request, position and head alone, never on the
 * block that holds them, so that two batches of one content must give the same bytes wherever their
 * blocks lie. */
#ifndef PKV_TESTS_GPU_BATCH_H
#define PKV_TESTS_GPU_BATCH_H

#include <pagedkv/attention.h>
#include <pagedkv/transfer.h>

#include "gpu_phase.h"

/* Keys and values repeat after so many positions, a number that no block size divides. */
#define GPU_BATCH_PERIOD 509

typedef struct gpu_batch_config {
    pkv_dtype query_dtype, kv_dtype; /* 16-bit caches only: no scales here */
    int32_t num_requests, query_len, max_seq_len;
    int32_t block_size, num_query_heads, num_kv_heads, head_size, chunk_size;
    int64_t num_blocks; /* of the pool; 0: the table's and the null block */
    bool is_spread;     /* the table's blocks lie all over the pool, else in ascending order */
} gpu_batch_config;

typedef struct gpu_batch {
    gpu_batch_config config;
    int32_t num_tokens, num_columns;
    size_t pool_size, output_size, lse_size, plan_size, used_size;
    pkv_plan *plan;
    int32_t *seq_lens, *query_start_loc, *rows; /* of the host */
    pkv_block_id *table;
    void *host_plan; /* pinned */
    pkv_tensor k_cache, v_cache;
    unsigned char *pool; /* and all that follows, of the device */
    void *source, *slots, *device_table, *device_lens, *device_starts, *device_rows;
    pkv_attention_args args;
} gpu_batch;

/* Everything but the content of the pool, which is NaN; the lengths are max_seq_len. */
void gpu_batch_create(gpu_batch *batch, const gpu_batch_config *config, pkv_device *device);
void gpu_batch_destroy(gpu_batch *batch);

/* Write keys and values of all positions of all requests. */
void gpu_batch_fill(gpu_batch *batch, pkv_device *device, pkv_stream stream);

/* Build the plan for these lengths, put both on the device, in the order of the stream. The copies
 * before it have been waited for. */
void gpu_batch_plan(gpu_batch *batch,
                    pkv_device *device,
                    const int32_t *seq_lens,
                    pkv_stream stream);

/* Attention into `output` and `lse` on the device. */
void gpu_batch_run(
    gpu_batch *batch, pkv_device *device, void *output, void *lse, pkv_stream stream);

/* The slots of the newest tokens, computed on the device, and their keys and values, written. */
void gpu_batch_append(gpu_batch *batch, pkv_device *device, pkv_stream stream);

/* A block of the pool as a byte view of one layer. */
pkv_tensor gpu_batch_blocks(const gpu_batch *batch);

#endif
