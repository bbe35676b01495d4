/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* bench_attention: how fast paged attention is on the CPU, beside plain reads of the same memory, a
 * reader that walks it as the kernel does, and the same kernel on contiguous keys and values;
 * prefill beside the way people write it by hand with a BLAS, where one was found.
 *
 * Method: the numbers are checked first, against the reference device and each table against the
 * contiguous copy (attention_check.h). Then all variants of a case run in turn in each round; medians
 * of the rounds are reported, and ratios are medians of same-round ratios. Bytes of keys and values
 * count once. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "attention_blas.h"
#include "attention_check.h"
#include "attention_cuda.h"
#include "attention_prefill.h"
#include "attention_read.h"
#include "attention_setup.h"
#include "attention_stage.h"
#include "memory.h"
#include "options.h"
#include "report.h"

#define BENCH "attention"
#define MAX_ROUNDS 64

enum variant {
    READ_SEQUENTIAL,
    WALK_CONTIGUOUS,
    WALK_RANDOM,
    KERNEL_CONTIGUOUS,
    KERNEL_IDENTITY,
    KERNEL_EXTENTS,
    KERNEL_RANDOM,
    KERNEL_IN_CACHE,
    NUM_VARIANTS
};

static const char *const variant_names[NUM_VARIANTS] = {"sequential read",
                                                        "same-traversal read, contiguous",
                                                        "same-traversal read, random",
                                                        "kernel, contiguous",
                                                        "kernel, identity",
                                                        "kernel, extents",
                                                        "kernel, random",
                                                        "kernel, in cache"};

static struct {
    const char *device;
    int32_t threads, rounds, scale;
    bool json, prefill, decode, full, small_pages;
    const char *instructions, *stage, *only;
} options = {.device = "cpu", .threads = 1, .rounds = 7, .scale = 8, .instructions = "auto"};

static bench_progress progress;
static double large_share = 1.0; /* the least of all cases so far */

/* ---- One case */

/* On one thread its own processor time, which leaves out what other programs take; else the
 * clock. */
static int64_t now_ns(void) {
    struct timespec time;

    if (options.threads > 1) {
        return bench_now_ns();
    }
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* What the names of cases end with, so that those of one thread and of several differ. */
static const char *name_of_threads(void) {
    return options.threads > 1 ? ", all threads" : "";
}

/* Nanoseconds of one run; negative where it failed. */
static double time_variant(attention_setup *setup, pkv_device *device, enum variant variant) {
    static const attention_table tables[NUM_VARIANTS] = {
        TABLE_RANDOM,   TABLE_CONTIGUOUS, TABLE_RANDOM, TABLE_CONTIGUOUS,
        TABLE_IDENTITY, TABLE_EXTENTS,    TABLE_RANDOM, TABLE_ONE_BLOCK};
    int64_t start = now_ns();
    bool is_done = variant == READ_SEQUENTIAL ? attention_read(setup, options.threads)
                   : variant <= WALK_RANDOM
                       ? attention_walk(setup, tables[variant], options.threads)
                       : attention_setup_run(setup, device, tables[variant]) == PKV_OK;

    return is_done ? (double)(now_ns() - start) : -1.0;
}

static void report_decode(const attention_setup *setup,
                          const char *name,
                          double times[NUM_VARIANTS][MAX_ROUNDS],
                          bench_table *table) {
    for (int v = 0; v < NUM_VARIANTS; v++) {
        double rate = (double)setup->kv_size / bench_median_of(times[v], options.rounds);
        double to_read = bench_median_ratio(times[READ_SEQUENTIAL], times[v], options.rounds);
        bool is_random = v == WALK_RANDOM || v == KERNEL_RANDOM;
        double to_walk = bench_median_ratio(times[is_random ? WALK_RANDOM : WALK_CONTIGUOUS],
                                            times[v], options.rounds);
        double to_contiguous =
            bench_median_ratio(times[v], times[KERNEL_CONTIGUOUS], options.rounds);

        if (options.json) {
            char label[128];

            (void)snprintf(label, sizeof label, "%s, %s%s", name, variant_names[v],
                           name_of_threads());
            bench_json_line(stdout, BENCH, label, "rate", "GB/s", rate, NULL, NAN);
            bench_json_line(stdout, BENCH, label, "of read", "ratio", to_read, "sequential read",
                            1);
            bench_json_line(stdout, BENCH, label, "of walk", "ratio", to_walk,
                            "same-traversal read", 1);
            bench_json_line(stdout, BENCH, label, "time", "ratio", to_contiguous,
                            "kernel, contiguous", 1);
        } else {
            bench_table_row(table, "%s|%s|%.2f|%.2f|%.2f|%.2f", v == 0 ? name : "",
                            variant_names[v], rate, to_read, to_walk, to_contiguous);
        }
    }
}

/* How many of the bytes that the ratios compare lie in large pages. */
static void report_pages(const attention_setup *setup, const char *name) {
    double share = bench_memory_large_share(setup->pool, setup->kv_size);

    large_share = share < large_share ? share : large_share;
    if (options.json) {
        char label[128];

        (void)snprintf(label, sizeof label, "%s%s", name, name_of_threads());
        bench_json_line(stdout, BENCH, label, "large pages", "share", share, NULL, NAN);
    }
}

static bool run_decode(pkv_device *device,
                       const attention_setup_config *c,
                       const char *name,
                       bench_table *table) {
    static double times[NUM_VARIANTS][MAX_ROUNDS];
    attention_setup setup;
    const char *reason;
    bool is_good = attention_setup_create(&setup, c, device, &reason);

    if (!is_good) {
        (void)fprintf(stderr, "%s: %s\n", name, reason);
    } else if (!attention_check(&setup, device, name)) {
        is_good = false;
    } else {
        /* Of the random table now: ascending blocks hold other content than was checked; the time is
         * the same. */
        for (int32_t round = -1; round < options.rounds; round++) {
            for (int v = 0; v < NUM_VARIANTS; v++) {
                times[v][round < 0 ? 0 : round] = time_variant(&setup, device, (enum variant)v);
                is_good = is_good && times[v][round < 0 ? 0 : round] > 0.0;
            }
            bench_progress_round(&progress, name, round, options.rounds);
        }
        report_decode(&setup, name, times, table);
        report_pages(&setup, name);
    }
    attention_setup_destroy(&setup);
    return is_good;
}

/* ---- The cases */

static const struct {
    const char *name;
    pkv_dtype query, kv;
} dtypes[] = {
    {"float32", PKV_DTYPE_FLOAT32, PKV_DTYPE_FLOAT32},
    {"float16", PKV_DTYPE_FLOAT16, PKV_DTYPE_FLOAT16},
    {"bfloat16", PKV_DTYPE_BFLOAT16, PKV_DTYPE_BFLOAT16},
    {"e4m3", PKV_DTYPE_BFLOAT16, PKV_DTYPE_FLOAT8_E4M3},
    {"int8", PKV_DTYPE_BFLOAT16, PKV_DTYPE_INT8},
};
#define NUM_DTYPES ((int)(sizeof dtypes / sizeof dtypes[0]))

static bool run_decode_cases(pkv_device *device) {
    static const int32_t batches[][2] = {{8, 8192}, {1, 131072}, {256, 512}};
    bench_table table;
    char name[96];
    bool is_good = true;
    attention_setup_config c = {
        .query_len = 1, .num_query_heads = 32, .num_kv_heads = 8, .head_size = 128};

    bench_table_begin(&table, "<case|<variant|GB/s|of read|of walk|time / contiguous");
    for (int d = 0; d < NUM_DTYPES; d++) {
        c.query_dtype = dtypes[d].query;
        c.kv_dtype = dtypes[d].kv;
        for (int b = 0; b < 3; b++) {
            c.block_size = 16;
            c.num_requests =
                batches[b][0] > options.scale ? batches[b][0] / options.scale : batches[b][0];
            c.seq_len =
                batches[b][0] > options.scale ? batches[b][1] : batches[b][1] / options.scale;
            (void)snprintf(name, sizeof name, "decode %s %d x %d, block 16", dtypes[d].name,
                           (int)c.num_requests, (int)c.seq_len);
            is_good = run_decode(device, &c, name, &table) && is_good;
        }
    }
    if (!options.json) {
        bench_table_print(&table, stdout, 0);
        (void)printf("\nkeys and values in large pages: %.0f%% or more\n", 100.0 * large_share);
    }
    return is_good;
}

/* Random tables of blocks of several sizes, in turn in each round, beside blocks of 16 and beside the
 * reader that walks the same table. */
#define NUM_BLOCK_SIZES 7
#define BLOCK_16 2

static const enum variant size_variants[] = {KERNEL_RANDOM, KERNEL_CONTIGUOUS, WALK_RANDOM};
#define NUM_SIZE_VARIANTS 3

static void report_block_sizes(const attention_setup *setups,
                               double times[NUM_BLOCK_SIZES][NUM_SIZE_VARIANTS][MAX_ROUNDS],
                               const char *dtype,
                               bench_table *table) {
    const int32_t rounds = options.rounds;

    for (int b = 0; b < NUM_BLOCK_SIZES; b++) {
        const double *kernel = times[b][0], *walk = times[b][2];
        double to_16 = bench_median_ratio(kernel, times[BLOCK_16][0], rounds);
        double to_contiguous = bench_median_ratio(kernel, times[b][1], rounds);
        double walk_to_16 = bench_median_ratio(walk, times[BLOCK_16][2], rounds);
        double of_walk = bench_median_ratio(walk, kernel, rounds);
        double rate = (double)setups[b].kv_size / bench_median_of(kernel, rounds);
        double walk_rate = (double)setups[b].kv_size / bench_median_of(walk, rounds);
        char name[96];

        (void)snprintf(name, sizeof name, "decode %s random, block %d%s", dtype,
                       (int)setups[b].config.block_size, name_of_threads());
        if (options.json) {
            bench_json_line(stdout, BENCH, name, "rate", "GB/s", rate, variant_names[WALK_RANDOM],
                            walk_rate);
            bench_json_line(stdout, BENCH, name, "of walk", "ratio", of_walk, "same-traversal read",
                            1);
            bench_json_line(stdout, BENCH, name, "time", "ratio", to_16, "block 16", 1);
            bench_json_line(stdout, BENCH, name, "reader's time", "ratio", walk_to_16, "block 16",
                            1);
            bench_json_line(stdout, BENCH, name, "time over contiguous", "ratio", to_contiguous,
                            "kernel, contiguous", 1);
        } else {
            bench_table_row(table, "%s|%.2f|%.2f|%.2f|%.2f|%.2f|%.2f", name, rate, to_16,
                            to_contiguous, walk_rate, walk_to_16, of_walk);
        }
    }
}

static bool run_block_sizes(pkv_device *device, int dtype, bench_table *table) {
    static const int32_t sizes[NUM_BLOCK_SIZES] = {4, 8, 16, 32, 64, 128, 256};
    static double times[NUM_BLOCK_SIZES][NUM_SIZE_VARIANTS][MAX_ROUNDS];
    static attention_setup setups[NUM_BLOCK_SIZES];
    const char *reason = NULL;
    bool is_good = true;

    memset(setups, 0, sizeof setups);
    for (int b = 0; b < NUM_BLOCK_SIZES && is_good; b++) {
        attention_setup_config c = {.query_dtype = dtypes[dtype].query,
                                    .kv_dtype = dtypes[dtype].kv,
                                    .num_requests = 8,
                                    .query_len = 1,
                                    .seq_len = 8192 / (options.scale < 4 ? 4 : options.scale),
                                    .block_size = sizes[b],
                                    .num_query_heads = 32,
                                    .num_kv_heads = 8,
                                    .head_size = 128};

        is_good = attention_setup_create(&setups[b], &c, device, &reason) &&
                  attention_check(&setups[b], device, dtypes[dtype].name);
    }
    for (int32_t round = -1; round < options.rounds && is_good; round++) {
        for (int i = 0; i < NUM_BLOCK_SIZES * NUM_SIZE_VARIANTS; i++) {
            int b = i / NUM_SIZE_VARIANTS, v = i % NUM_SIZE_VARIANTS;
            double time = time_variant(&setups[b], device, size_variants[v]);

            times[b][v][round < 0 ? 0 : round] = time;
            is_good = is_good && time > 0.0;
        }
        bench_progress_round(&progress, dtypes[dtype].name, round, options.rounds);
    }
    if (is_good) {
        report_block_sizes(setups, times, dtypes[dtype].name, table);
    } else {
        (void)fprintf(stderr, "block sizes, %s: %s\n", dtypes[dtype].name,
                      reason == NULL ? "not right, or a call failed" : reason);
    }
    for (int b = 0; b < NUM_BLOCK_SIZES; b++) {
        attention_setup_destroy(&setups[b]);
    }
    return is_good;
}

static bool run_block_size_cases(pkv_device *device) {
    bench_table table;
    bool is_good = true;

    bench_table_begin(&table, "<case|GB/s|time / block 16|time / contiguous|reader, GB/s|"
                              "reader, time / block 16|of reader");
    for (int d = options.full ? 0 : 2; d < (options.full ? NUM_DTYPES : 3); d++) {
        is_good = run_block_sizes(device, d, &table) && is_good;
    }
    if (!options.json) {
        (void)printf("\n");
        bench_table_print(&table, stdout, 0);
    }
    return is_good;
}

/* The time of planning 256 requests of 8 k keys, decode. */
static bool run_plan(pkv_device *device) {
    enum { NUM_CALLS = 200 };
    attention_setup_config c = {.query_dtype = PKV_DTYPE_FLOAT32,
                                .kv_dtype = PKV_DTYPE_FLOAT32,
                                .num_requests = 256,
                                .query_len = 1,
                                .seq_len = 64,
                                .block_size = 16,
                                .num_query_heads = 32,
                                .num_kv_heads = 1,
                                .head_size = 64};
    pkv_plan_config config = {.struct_size = sizeof config,
                              .shape = {.struct_size = sizeof config.shape,
                                        .num_query_heads = 32,
                                        .num_kv_heads = 8,
                                        .head_size = 128,
                                        .block_size = 16,
                                        .query_dtype = PKV_DTYPE_FLOAT32,
                                        .kv_dtype = PKV_DTYPE_FLOAT32},
                              .max_requests = 256,
                              .max_tokens = 256,
                              .max_query_len = 1,
                              .max_seq_len = 8192};
    attention_setup setup;
    const char *reason;
    double times[MAX_ROUNDS];
    size_t size = 0;
    pkv_plan *plan = NULL;
    void *memory = NULL;
    bool is_good = attention_setup_create(&setup, &c, device, &reason) &&
                   pkv_plan_create(&config, &plan, &reason) == PKV_OK &&
                   pkv_plan_sizes(plan, &size, NULL) == PKV_OK && (memory = malloc(size)) != NULL;

    for (int32_t i = 0; is_good && i < c.num_requests; i++) {
        setup.seq_lens[i] = 8192 - i % 64; /* the last chunks are not all full */
    }
    for (int32_t round = 0; round < options.rounds && is_good; round++) {
        int64_t start = now_ns();

        for (int i = 0; i < NUM_CALLS && is_good; i++) {
            is_good = pkv_plan_build(plan, &setup.batch, memory, size) == PKV_OK;
        }
        times[round] = (double)(now_ns() - start) / NUM_CALLS * 1e-3;
    }
    if (is_good && options.json && options.threads == 1) { /* it has no threads */
        bench_json_line(stdout, BENCH, "plan, 256 x 8192", "time", "us",
                        bench_median_of(times, options.rounds), "goal", 10);
    } else if (is_good && !options.json) {
        (void)printf("\npkv_plan_build, 256 x 8192 keys: %.1f us\n",
                     bench_median_of(times, options.rounds));
    }
    free(memory);
    pkv_plan_destroy(plan);
    attention_setup_destroy(&setup);
    return is_good;
}

static bool run_prefill_cases(pkv_device *device) {
    static const int32_t shapes[][2] = {{512, 4096}, {2048, 2048}};
    bench_table table;
    char name[96];
    bool is_good = true;
    const attention_run run = {device,       options.threads, options.rounds,
                               options.json, now_ns,          &progress};
    attention_setup_config c = {.num_requests = 1,
                                .block_size = 16,
                                .num_query_heads = 32,
                                .num_kv_heads = 8,
                                .head_size = 128};

    bench_table_begin(&table,
                      "<case|GFLOP/s|of FMA peak|time / contiguous|by hand with a BLAS|speedup");
    for (int d = 0; d < NUM_DTYPES; d++) {
        for (int s = 0; s < 2; s++) {
            c.query_dtype = dtypes[d].query;
            c.kv_dtype = dtypes[d].kv;
            c.query_len = shapes[s][0] / (options.scale > 4 ? 4 : 1);
            c.seq_len = shapes[s][1] / (options.scale > 4 ? 4 : 1);
            (void)snprintf(name, sizeof name, "prefill %s %d x %d%s", dtypes[d].name,
                           (int)c.query_len, (int)c.seq_len, name_of_threads());
            is_good = attention_prefill(&run, &c, name, &table) && is_good;
        }
    }
    if (!options.json) {
        (void)printf("\n");
        bench_table_print(&table, stdout, 0);
    }
    if (attention_blas_name() == NULL) {
        (void)fprintf(options.json ? stderr : stdout,
                      "no BLAS: built without OpenBLAS, prefill by hand is left out\n");
    }
    return is_good;
}

static bool choose_instructions(pkv_cpu_instructions *out) {
    static const char *const names[] = {"auto",   "reference",  "portable", "avx2",
                                        "avx512", "avx512bf16", "neon"};

    for (int i = 0; i < 7; i++) {
        if (strcmp(names[i], options.instructions) == 0) {
            *out = (pkv_cpu_instructions)i;
            return true;
        }
    }
    return false;
}

/* Everything on a CUDA device; --threads are those of the CPU device it is checked against. */
static int run_on_cuda(void) {
    const attention_cuda_options cuda = {.rounds = options.full ? 11 : options.rounds,
                                         .divide = options.full ? 1 : options.scale,
                                         .threads = options.threads,
                                         .json = options.json,
                                         .has_decode = !options.prefill || options.decode,
                                         .has_prefill = !options.decode || options.prefill,
                                         .has_stages = options.stage != NULL,
                                         .only = options.only};

    if (!attention_has_cuda()) {
        (void)fprintf(stderr, "bench_attention: this build has no CUDA backend\n");
        return BENCH_EXIT_USAGE;
    }
    if (options.stage != NULL && strcmp(options.stage, "all") != 0) {
        (void)fprintf(stderr, "bench_attention: --device cuda has --stage all\n");
        return BENCH_EXIT_USAGE;
    }
    return attention_cuda_bench(&cuda);
}

static int run_on_cpu(void) {
    pkv_cpu_config config = {.struct_size = sizeof config};
    pkv_device_info info = {.struct_size = sizeof info};
    pkv_device *device;

    if (strcmp(options.device, "cpu") != 0 || options.only != NULL ||
        !choose_instructions(&config.instructions)) {
        (void)fprintf(stderr, "bench_attention: unknown device or instructions; try --help\n");
        return BENCH_EXIT_USAGE;
    }
    if (options.stage != NULL &&
        (!attention_is_stage(options.stage) || !attention_has_stages() || options.threads > 1)) {
        (void)fprintf(stderr, "bench_attention: no such stage, or no AVX2, or several threads\n");
        return BENCH_EXIT_USAGE;
    }
    if (options.full) {
        options.scale = 1;
        options.rounds = 11;
    }
    bench_memory_use_small_pages(options.small_pages);
    config.num_threads = options.threads;
    if (pkv_device_create_cpu(&config, &device) != PKV_OK) {
        const char *reason = NULL;

        (void)pkv_cpu_has_instructions(config.instructions, &reason);
        (void)fprintf(stderr, "bench_attention: %s\n", reason == NULL ? "no device" : reason);
        return BENCH_EXIT_USAGE;
    }
    (void)pkv_device_get_info(device, &info);
    if (!options.json) {
        (void)printf("%s; 32 query heads over 8 kv heads of 128\n\n", info.description);
    }
    bool is_good;

    if (options.stage != NULL) {
        is_good = attention_stages_report(device, options.stage, options.rounds, options.scale,
                                          options.json, now_ns);
    } else {
        /* Neither option is both of them. */
        bool has_decode = options.decode || !options.prefill;
        bool has_prefill = options.prefill || !options.decode;

        is_good = !has_decode ||
                  (run_decode_cases(device) && run_block_size_cases(device) && run_plan(device));
        is_good = (!has_prefill || run_prefill_cases(device)) && is_good;
    }
    pkv_device_destroy(device);
    return is_good ? BENCH_EXIT_OK : BENCH_EXIT_FAILED;
}

int main(int argc, char **argv) {
    const bench_option list[] = {
        {"device", BENCH_STRING, &options.device, "KIND",
         "where to run: cpu, or cuda where this build has it", 0, 0},
        {"instructions", BENCH_STRING, &options.instructions, "SET",
         "auto, reference, portable, avx2, avx512, avx512bf16 or neon", 0, 0},
        {"threads", BENCH_INT, &options.threads, "N", "threads of the device and of the readers", 1,
         PKV_MAX_CPU_THREADS},
        {"rounds", BENCH_INT, &options.rounds, "N", "rounds; medians are reported", 1, MAX_ROUNDS},
        {"divide", BENCH_INT, &options.scale, "N",
         "make the batches N times smaller; 1: up to 1.1 GB of keys and values", 1, 64},
        {"full", BENCH_FLAG, &options.full, NULL, "the whole batches (as --divide 1), 11 rounds", 0,
         0},
        {"stage", BENCH_STRING, &options.stage, "STAGE",
         "stages of a decode only: read, qk, qk+softmax, pv, full, or all; cuda: all", 0, 0},
        {"only", BENCH_STRING, &options.only, "TEXT", "cuda: only cases whose name contains TEXT",
         0, 0},
        {"small-pages", BENCH_FLAG, &options.small_pages, NULL,
         "keys and values in the smallest pages; default: in large ones where there are any", 0, 0},
        {"decode", BENCH_FLAG, &options.decode, NULL, "decode; default: both", 0, 0},
        {"prefill", BENCH_FLAG, &options.prefill, NULL, "prefill; default: both", 0, 0},
        {"json", BENCH_FLAG, &options.json, NULL, "JSON lines", 0, 0},
    };
    const bench_program program = {"bench_attention",
                                   "Speed of paged attention, beside reads of the same memory.",
                                   NULL, list, (int32_t)(sizeof list / sizeof list[0])};
    int exit_code;

    if (!bench_parse_options(&program, argc, argv, &exit_code)) {
        return exit_code;
    }
    return strcmp(options.device, "cuda") == 0 ? run_on_cuda() : run_on_cpu();
}
