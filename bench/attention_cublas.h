/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Attention over contiguous keys and values as two batched matrix products of cuBLAS, without the
 * softmax between them: what a fast library of products does with the same bytes. It is found when
 * the program runs, so that the program also runs where it is not. */
#ifndef PKV_BENCH_ATTENTION_CUBLAS_H
#define PKV_BENCH_ATTENTION_CUBLAS_H

#include "attention_setup.h"

struct CUstream_st;
typedef struct attention_cublas attention_cublas;

/* NULL where there is no cuBLAS; `reason` then says so. */
attention_cublas *attention_cublas_open(const char **reason);
void attention_cublas_close(attention_cublas *cublas);

/* Enqueue both products for the batch of `setup`, which is on the device, its contiguous copy and
 * 16-bit types. `scores` has room for attention_cublas_scores_size bytes. */
size_t attention_cublas_scores_size(const attention_setup *setup);
bool attention_cublas_run(attention_cublas *cublas,
                          const attention_setup *setup,
                          void *scores,
                          struct CUstream_st *stream);

#endif
