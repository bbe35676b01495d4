/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* A batch of bench_attention that lies on the host and on a CUDA device, made and checked: what the
 * device computes from it is held against the CPU device, and paged against contiguous. */
#ifndef PKV_BENCH_ATTENTION_CUDA_BATCH_H
#define PKV_BENCH_ATTENTION_CUDA_BATCH_H

#include "attention_cublas.h"
#include "attention_cuda.h"

#ifdef PKV_BENCH_CUDA
#include <cuda_runtime_api.h>

/* What all cases share. */
typedef struct attention_cuda_shared {
    const attention_cuda_options *options;
    pkv_device *cpu, *cuda;
    cudaEvent_t start, stop;
    void *other; /* other_size bytes that are written before each measurement */
    size_t other_size;
    attention_cublas *cublas; /* NULL: no_cublas says why */
    const char *no_cublas;
    int32_t num_cases; /* that options->only has let through */
} attention_cuda_shared;

/* A batch on the host, and its twin whose pointers are of the device. */
typedef struct attention_cuda_batch {
    attention_setup host, twin;
    void *scores; /* for cuBLAS; NULL without */
} attention_cuda_batch;

/* Make both and check what the device computes. attention_cuda_close is called in either case. */
bool attention_cuda_open(attention_cuda_shared *b,
                         attention_cuda_batch *batch,
                         const attention_setup_config *config,
                         const char *name);
void attention_cuda_close(attention_cuda_batch *batch);

/* Give the twin a plan of its own, of another chunk size; the old one has gone. */
bool attention_cuda_replan(attention_cuda_batch *batch, int32_t chunk_size);

/* A launch of attention_cuda_variant_run. */
typedef struct attention_cuda_launch {
    int32_t num_stages, num_blocks;
} attention_cuda_launch;

#define ATTENTION_CUDA_MOST_LAUNCHES                                                               \
    ((ATTENTION_CUDA_MOST_STAGES - ATTENTION_CUDA_LEAST_STAGES + 1) * ATTENTION_CUDA_MOST_BLOCKS)

/* Find the launches that fit on this device; each must give the bytes that the library's gives.
 * Returns how many there are; -1 where one does not, or a call failed. */
int attention_cuda_find_launches(attention_cuda_shared *b,
                                 attention_cuda_batch *batch,
                                 const char *name,
                                 attention_cuda_launch *out);

/* Say on stderr what went wrong. Returns false. */
bool attention_cuda_complain(const char *name, const char *what);
bool attention_cuda_is_good(cudaError_t error, const char *what);
#endif

#endif
