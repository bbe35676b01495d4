/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* One case of prefill; see attention_prefill.h. */
#include "attention_prefill.h"

#include <math.h>
#include <stdio.h>

#include "attention_blas.h"
#include "attention_check.h"
#include "attention_peak.h"

#define BENCH "attention"
#define MAX_ROUNDS 64

/* What prefill is timed beside, in each round. */
enum prefill_variant {
    PREFILL_KERNEL,
    PREFILL_CONTIGUOUS,
    PREFILL_PEAK,
    PREFILL_BLAS,
    NUM_PREFILL
};

static void report_prefill(const attention_run *run,
                           const attention_setup_config *c,
                           const char *name,
                           double times[NUM_PREFILL][MAX_ROUNDS],
                           bench_table *table) {
    double flops = 4.0 * c->num_query_heads * c->head_size * (double)c->query_len *
                   ((double)c->seq_len - 0.5 * ((double)c->query_len - 1.0));
    double rate = flops / bench_median_of(times[PREFILL_KERNEL], run->rounds);
    double top = bench_median_of(times[PREFILL_PEAK], run->rounds);
    double to_contiguous =
        bench_median_ratio(times[PREFILL_KERNEL], times[PREFILL_CONTIGUOUS], run->rounds);
    bool has_blas = attention_blas_name() != NULL;
    double peer = has_blas ? flops / bench_median_of(times[PREFILL_BLAS], run->rounds) : NAN;

    if (run->json) {
        bench_json_line(stdout, BENCH, name, "rate", "GFLOP/s", rate, attention_blas_name(), peer);
        bench_json_line(stdout, BENCH, name, "of peak", "ratio", rate / top,
                        "float FMA of 256 bits, measured", 1);
        bench_json_line(stdout, BENCH, name, "time", "ratio", to_contiguous, "kernel, contiguous",
                        1);
    } else if (has_blas) {
        bench_table_row(
            table, "%s|%.1f|%.2f|%.2f|%.1f|%.2f", name, rate, rate / top, to_contiguous, peer,
            bench_median_ratio(times[PREFILL_BLAS], times[PREFILL_KERNEL], run->rounds));
    } else {
        bench_table_row(table, "%s|%.1f|%.2f|%.2f|no BLAS|-", name, rate, rate / top,
                        to_contiguous);
    }
}

/* The BLAS computes what the kernel does. */
static bool check_blas(const attention_run *run,
                       attention_setup *setup,
                       attention_blas *blas,
                       const char *name) {
    const attention_setup_config *c = &setup->config;
    size_t count = (size_t)c->query_len * (size_t)(c->num_query_heads * c->head_size);
    double error;

    if (!attention_blas_open(blas, setup) ||
        attention_setup_run(setup, run->device, TABLE_CONTIGUOUS) != PKV_OK) {
        (void)fprintf(stderr, "%s: out of memory, or a call failed\n", name);
        return false;
    }
    (void)attention_blas_run(blas, run->threads, run->now);
    error = attention_error(setup->output, c->query_dtype, blas->output, PKV_DTYPE_FLOAT32, count);
    if (!(error <= attention_largest_error(c->query_dtype))) {
        (void)fprintf(stderr, "%s: the kernel and the product with a BLAS differ by %g\n", name,
                      error);
        return false;
    }
    return true;
}

/* Nanoseconds of one call; negative where it failed. */
static double time_kernel(const attention_run *run, attention_setup *setup, attention_table table) {
    int64_t start = run->now();

    return attention_setup_run(setup, run->device, table) == PKV_OK ? (double)(run->now() - start)
                                                                    : -1.0;
}

bool attention_prefill(const attention_run *run,
                       const attention_setup_config *c,
                       const char *name,
                       bench_table *table) {
    static double times[NUM_PREFILL][MAX_ROUNDS];
    attention_setup setup;
    attention_blas blas = {0};
    const char *reason;
    bool has_blas = attention_blas_name() != NULL;
    bool is_good = attention_setup_create(&setup, c, run->device, &reason);

    if (!is_good) {
        (void)fprintf(stderr, "%s: %s\n", name, reason);
    } else {
        is_good = attention_check(&setup, run->device, name) &&
                  (!has_blas || check_blas(run, &setup, &blas, name));
    }
    for (int32_t round = 0; round < run->rounds && is_good; round++) {
        times[PREFILL_KERNEL][round] = time_kernel(run, &setup, TABLE_RANDOM);
        times[PREFILL_CONTIGUOUS][round] = time_kernel(run, &setup, TABLE_CONTIGUOUS);
        times[PREFILL_PEAK][round] = attention_peak_gflops(run->threads, run->now);
        times[PREFILL_BLAS][round] = attention_blas_run(&blas, run->threads, run->now);
        is_good = times[PREFILL_KERNEL][round] > 0.0 && times[PREFILL_CONTIGUOUS][round] > 0.0;
        bench_progress_round(run->progress, name, round, run->rounds);
    }
    if (is_good) {
        report_prefill(run, c, name, times, table);
    }
    attention_blas_close(&blas);
    attention_setup_destroy(&setup);
    return is_good;
}
