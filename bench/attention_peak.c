/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The peak of float arithmetic; see attention_peak.h. */
#include "attention_peak.h"

#include <math.h>

#if defined(__x86_64__)
#include <immintrin.h>

#define ITERATIONS 4000000
#define CHAINS 12

/* Makes the results needed. */
static volatile float sink;

/* The same step for each chain: by name, so that each is a register. */
#define FOR_CHAINS(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)
#define START(i) __m256 sum##i = _mm256_set1_ps((float)(i));
#define STEP(i) sum##i = _mm256_fmadd_ps(sum##i, x, y);
#define TOTAL(i) total = _mm256_add_ps(total, sum##i);

__attribute__((target("avx2,fma"))) static double measure(int64_t (*now)(void)) {
    volatile float one = 1.0f;
    __m256 x = _mm256_set1_ps(one), y = _mm256_set1_ps(one * 0.5f), total = _mm256_setzero_ps();
    FOR_CHAINS(START)
    int64_t start = now();

    for (int n = 0; n < ITERATIONS; n++) {
        FOR_CHAINS(STEP)
    }
    int64_t time = now() - start;
    FOR_CHAINS(TOTAL)
    sink = _mm256_cvtss_f32(total);
    return 2.0 * 8.0 * CHAINS * ITERATIONS / (double)time;
}

double attention_peak_gflops(int64_t (*now)(void)) {
    double best = 0.0;

    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
        return NAN;
    }
    for (int i = 0; i < 5; i++) {
        best = fmax(best, measure(now));
    }
    return best;
}
#else
double attention_peak_gflops(int64_t (*now)(void)) {
    (void)now;
    return NAN;
}
#endif
