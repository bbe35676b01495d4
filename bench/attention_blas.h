/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Prefill attention as people write it by hand: contiguous float keys and values, one matrix
 * product, a softmax over whole rows, another matrix product, for each head. */
#ifndef PKV_BENCH_ATTENTION_BLAS_H
#define PKV_BENCH_ATTENTION_BLAS_H

#include "attention_setup.h"

typedef struct attention_blas {
    int32_t num_queries, num_keys, num_query_heads, num_kv_heads, head_size;
    int64_t head_stride; /* floats from one head's keys to the next head's */
    float *query, *keys, *values, *scores, *output;
} attention_blas;

/* Name of the BLAS that was found when this was built; NULL where none was. */
const char *attention_blas_name(void);

/* Copy query, keys and values of a setup of one request as floats. False without a BLAS or memory;
 * attention_blas_close is called in either case. */
bool attention_blas_open(attention_blas *blas, const attention_setup *setup);
void attention_blas_close(attention_blas *blas);

/* Compute output[query token][head][...], causal. Returns nanoseconds by the clock `now`; NaN
 * without a BLAS. */
double attention_blas_run(attention_blas *blas, int32_t num_threads, int64_t (*now)(void));

#endif
