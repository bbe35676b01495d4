/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Prefill attention as people write it by hand: contiguous float keys and values, one matrix
 * product, a softmax over whole rows, another matrix product, for each head. */
#ifndef PKV_BENCH_ATTENTION_BLAS_H
#define PKV_BENCH_ATTENTION_BLAS_H

#include "attention_setup.h"

/* Name of the BLAS that was found when this was built; NULL where none was. */
const char *attention_blas_name(void);

/* Nanoseconds by the clock `now` of one request of this size, causal; NaN without a BLAS or
 * memory. */
double attention_blas_time(const attention_setup_config *config,
                           int32_t num_threads,
                           int64_t (*now)(void));

#endif
