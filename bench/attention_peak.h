/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* What one core of this machine can do at most in float arithmetic, measured in the run that is
 * held against it. */
#ifndef PKV_BENCH_ATTENTION_PEAK_H
#define PKV_BENCH_ATTENTION_PEAK_H

#include <stdint.h>

/* Fused multiply-adds of floats on one thread, in GFLOP/s, the best of five runs timed by `now`
 * (nanoseconds): 12 independent chains of 256-bit vectors, nothing loaded or stored. A processor
 * with wider vectors can do more. NaN where there is no AVX2 and FMA. */
double attention_peak_gflops(int64_t (*now)(void));

#endif
