/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* What the cores of this machine can do at most in float arithmetic, measured in the run that is
 * held against it. */
#ifndef PKV_BENCH_ATTENTION_PEAK_H
#define PKV_BENCH_ATTENTION_PEAK_H

#include <stdint.h>

/* Fused multiply-adds of floats on that many threads at once, in GFLOP/s: 12 independent chains of
 * 256-bit vectors, nothing loaded or stored; of each thread the best of five runs timed by `now`
 * (nanoseconds). Two threads that share a core share its units. A processor with wider vectors can
 * do more. NaN where there is no AVX2 and FMA, or a thread cannot start. */
double attention_peak_gflops(int32_t num_threads, int64_t (*now)(void));

#endif
