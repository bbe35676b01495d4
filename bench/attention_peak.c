/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The peak of float arithmetic; see attention_peak.h. */
#include "attention_peak.h"

#include <math.h>
#include <pthread.h>

#include <pagedkv.h>

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

struct runner {
    int64_t (*now)(void);
    pthread_t thread;
    double best;
};

static void *run(void *context) {
    struct runner *runner = context;

    for (int i = 0; i < 5; i++) {
        runner->best = fmax(runner->best, measure(runner->now));
    }
    return NULL;
}

double attention_peak_gflops(int32_t num_threads, int64_t (*now)(void)) {
    struct runner runners[PKV_MAX_CPU_THREADS];
    double sum = 0.0;
    int32_t num_started = 1;

    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
        return NAN;
    }
    for (int32_t i = 0; i < num_threads; i++) {
        runners[i] = (struct runner){.now = now};
    }
    while (num_started < num_threads &&
           pthread_create(&runners[num_started].thread, NULL, run, &runners[num_started]) == 0) {
        num_started++;
    }
    (void)run(&runners[0]);
    for (int32_t i = 0; i < num_started; i++) {
        if (i > 0) {
            (void)pthread_join(runners[i].thread, NULL);
        }
        sum += runners[i].best;
    }
    return num_started == num_threads ? sum : NAN;
}
#else
double attention_peak_gflops(int32_t num_threads, int64_t (*now)(void)) {
    (void)num_threads;
    (void)now;
    return NAN;
}
#endif
