/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* bench_attention on a CUDA device: the batch of attention_setup.h on the device, and kernels that
 * only read or only do a part of the work. The kernels themselves need more than the public
 * headers; they are in tests/gpu and linked where there is a CUDA compiler. */
#ifndef PKV_BENCH_ATTENTION_CUDA_H
#define PKV_BENCH_ATTENTION_CUDA_H

#include "attention_setup.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct attention_cuda_options {
    int32_t rounds, divide, threads; /* threads of the CPU device that it is checked against */
    bool json, has_decode, has_prefill, has_stages;
    const char *only; /* cases whose name contains it; NULL: all */
} attention_cuda_options;

/* Whether this build has the CUDA part. */
bool attention_has_cuda(void);

/* All of it. Returns an exit code of options.h. */
int attention_cuda_bench(const attention_cuda_options *options);

/* ---- Kernels beside the library's: 0 where the launch succeeded, else CUDA's error */

struct CUstream_st;

/* Load every 16 bytes of the memory once. */
int attention_cuda_read(const void *memory, size_t size, struct CUstream_st *stream);

/* Load keys and values once in the order of the attention kernel: a block of threads for each
 * (request, chunk, head), 16 bytes a thread. `setup` is on the device. */
int attention_cuda_walk(const attention_setup *setup,
                        attention_table table,
                        struct CUstream_st *stream);

/* Bytes that the workspace of a batch on the device has at least, whatever its plan needs. */
#define ATTENTION_CUDA_LEAST_WORKSPACE ((size_t)1 << 20)

/* Stages of the decode kernel on FLOAT16 of head size 128, over the same plan: tiles come to shared
 * memory, nothing else; with Q K' of each. The workspace is all that is written. */
typedef enum attention_cuda_stage { CUDA_STAGE_LOADS, CUDA_STAGE_SCORES } attention_cuda_stage;
int attention_cuda_stage_run(const attention_setup *setup,
                             attention_table table,
                             attention_cuda_stage stage,
                             struct CUstream_st *stream);

/* The whole decode kernel on FLOAT16 of head size 128, with so many tiles under way in a block and
 * so many blocks on a multiprocessor instead of what the library takes; and the merge. Its numbers
 * are the same. */
#define ATTENTION_CUDA_LEAST_STAGES 2
#define ATTENTION_CUDA_MOST_STAGES 4
#define ATTENTION_CUDA_MOST_BLOCKS 4
#define ATTENTION_CUDA_NO_ROOM (-1) /* shared memory does not hold that; nothing was launched */
int attention_cuda_variant_run(const attention_setup *setup,
                               attention_table table,
                               int32_t num_stages,
                               int32_t num_blocks,
                               struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
