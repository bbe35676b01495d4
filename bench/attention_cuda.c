/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* bench_attention on a CUDA device; see attention_cuda.h. Built without the backend, it says so.
 *
 * Method: the batch is made on the host and goes to the device with all its tables. What the device
 * computes is held against the CPU device first, then paged against contiguous, byte for byte. Then
 * all variants of a case run in turn in each round, between two CUDA events each; medians of the
 * rounds, and ratios are medians of same-round ratios. Bytes of keys and values count once. */
#include "attention_cuda.h"

#include "options.h"

#ifdef PKV_BENCH_CUDA
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include <pagedkv/cuda.h>

#include "attention_cuda_batch.h"
#include "report.h"

#define BENCH "attention, cuda"
#define MAX_ROUNDS 64
#define MAX_ENTRIES 12
/* Written before each measurement, at --divide 1: more than a second-level cache holds. */
#define OTHER_BYTES ((size_t)256 << 20)

bool attention_has_cuda(void) {
    return true;
}

static bool is_wanted(attention_cuda_shared *b, const char *name) {
    bool is_named = b->options->only == NULL || strstr(name, b->options->only) != NULL;

    b->num_cases += is_named;
    return is_named;
}

/* ---- Timing */

enum variant {
    READ_SEQUENTIAL,
    WALK_CONTIGUOUS,
    WALK_RANDOM,
    KERNEL_CONTIGUOUS,
    KERNEL_IDENTITY,
    KERNEL_EXTENTS,
    KERNEL_RANDOM,
    KERNEL_ONE_BLOCK,
    CUBLAS,
    STAGE_LOADS,
    STAGE_SCORES,
    OTHER_LAUNCH,
    NUM_VARIANTS
};

static const char *const variant_names[NUM_VARIANTS] = {"device read",
                                                        "same-traversal read, contiguous",
                                                        "same-traversal read, random",
                                                        "kernel, contiguous",
                                                        "kernel, identity",
                                                        "kernel, extents",
                                                        "kernel, random",
                                                        "kernel, in cache",
                                                        "cuBLAS products, contiguous",
                                                        "loads",
                                                        "loads, Q K'",
                                                        "the kernel, launched otherwise"};

/* What is timed in turn: variants, each with a table, of one batch or of several. */
struct entry {
    attention_cuda_batch *batch;
    enum variant variant;
    attention_table table;
    attention_cuda_launch launch; /* of OTHER_LAUNCH */
};

static bool start_variant(attention_cuda_shared *b, const struct entry *entry) {
    attention_setup *twin = &entry->batch->twin;
    const attention_table table = entry->table;

    switch (entry->variant) {
    case READ_SEQUENTIAL:
        return attention_cuda_read(twin->pool, twin->kv_size, NULL) == 0;
    case WALK_CONTIGUOUS:
    case WALK_RANDOM:
        return attention_cuda_walk(twin, table, NULL) == 0;
    case CUBLAS:
        return attention_cublas_run(b->cublas, twin, entry->batch->scores, NULL);
    case STAGE_LOADS:
    case STAGE_SCORES:
        return attention_cuda_stage_run(
                   twin, table,
                   entry->variant == STAGE_LOADS ? CUDA_STAGE_LOADS : CUDA_STAGE_SCORES, NULL) == 0;
    case OTHER_LAUNCH:
        return attention_cuda_variant_run(twin, table, entry->launch.num_stages,
                                          entry->launch.num_blocks, NULL) == 0;
    default:
        return attention_setup_run(twin, b->cuda, table) == PKV_OK;
    }
}

/* Milliseconds between two events around `entry`; negative where it failed. Writing other memory
 * first takes the batch out of the second-level cache, and keeps the device busy while the host
 * enqueues, so that between the events there is no time of the host. */
static double time_variant(attention_cuda_shared *b, const struct entry *entry) {
    float milliseconds = 0.0f;
    bool is_done =
        attention_cuda_is_good(cudaMemsetAsync(b->other, 0, b->other_size, NULL),
                               "cudaMemsetAsync") &&
        attention_cuda_is_good(cudaEventRecord(b->start, NULL), "cudaEventRecord") &&
        start_variant(b, entry) &&
        attention_cuda_is_good(cudaEventRecord(b->stop, NULL), "cudaEventRecord") &&
        attention_cuda_is_good(cudaEventSynchronize(b->stop), variant_names[entry->variant]) &&
        attention_cuda_is_good(cudaEventElapsedTime(&milliseconds, b->start, b->stop),
                               "elapsed time");

    return is_done ? (double)milliseconds : -1.0;
}

/* All entries in each round, the first of which warms up. */
static bool time_entries(attention_cuda_shared *b,
                         const struct entry *entries,
                         int count,
                         double times[][MAX_ROUNDS]) {
    for (int32_t round = -1; round < b->options->rounds; round++) {
        for (int i = 0; i < count; i++) {
            double time = time_variant(b, &entries[i]);

            if (time < 0.0) {
                return attention_cuda_complain(variant_names[entries[i].variant], "cannot be run");
            }
            times[i][round < 0 ? 0 : round] = time;
        }
    }
    return true;
}

/* GB/s from bytes and milliseconds. */
static double rate_of(size_t bytes, const double *times, int32_t count) {
    return (double)bytes / bench_median_of(times, count) * 1e-6;
}

static void emit(const attention_cuda_shared *b,
                 bench_table *table,
                 const char *name,
                 const char *metric,
                 const char *unit,
                 double value,
                 const char *peer,
                 double peer_value) {
    if (b->options->json) {
        bench_json_line(stdout, BENCH, name, metric, unit, value, peer, peer_value);
        (void)fflush(stdout);
    } else {
        bench_table_row(table, "%s|%s|%.3f|%s", name, metric, value, unit);
    }
}

/* ---- Bandwidth of the device */

static bool run_bandwidth(attention_cuda_shared *b, bench_table *table) {
    const size_t size = ((size_t)2 << 30) / (size_t)b->options->divide;
    double copy[MAX_ROUNDS], read[MAX_ROUNDS];
    unsigned char *from = NULL, *to = NULL;
    bool is_right = attention_cuda_is_good(cudaMalloc((void **)&from, size), "cudaMalloc") &&
                    attention_cuda_is_good(cudaMalloc((void **)&to, size), "cudaMalloc") &&
                    attention_cuda_is_good(cudaMemset(from, 0, size), "cudaMemset");

    for (int32_t round = -1; is_right && round < b->options->rounds; round++) {
        float times[2] = {0.0f, 0.0f};

        for (int which = 0; which < 2 && is_right; which++) {
            is_right =
                attention_cuda_is_good(cudaEventRecord(b->start, NULL), "cudaEventRecord") &&
                (which == 0
                     ? attention_cuda_is_good(
                           cudaMemcpyAsync(to, from, size, cudaMemcpyDeviceToDevice, NULL), "copy")
                     : attention_cuda_read(from, size, NULL) == 0) &&
                attention_cuda_is_good(cudaEventRecord(b->stop, NULL), "cudaEventRecord") &&
                attention_cuda_is_good(cudaEventSynchronize(b->stop), "bandwidth") &&
                attention_cuda_is_good(cudaEventElapsedTime(&times[which], b->start, b->stop),
                                       "elapsed time");
        }
        copy[round < 0 ? 0 : round] = (double)times[0];
        read[round < 0 ? 0 : round] = (double)times[1];
    }
    if (is_right) {
        emit(b, table, "bandwidth, copy (read and written)", "rate", "GB/s",
             rate_of(2 * size, copy, b->options->rounds), NULL, NAN);
        emit(b, table, "bandwidth, read", "rate", "GB/s", rate_of(size, read, b->options->rounds),
             NULL, NAN);
    }
    (void)cudaFree(from);
    (void)cudaFree(to);
    return is_right;
}

/* ---- Decode */

/* The columns of the CPU's report: each variant against device read, same-traversal read and the
 * kernel on contiguous blocks. */
static void report_decode(const attention_cuda_shared *b,
                          bench_table *table,
                          const char *name,
                          const struct entry *entries,
                          int count,
                          double times[][MAX_ROUNDS]) {
    const int32_t rounds = b->options->rounds;
    const size_t bytes = entries[0].batch->host.kv_size;

    for (int i = 0; i < count; i++) {
        enum variant v = entries[i].variant;
        bool is_random = v == WALK_RANDOM || v == KERNEL_RANDOM;
        char label[128];

        (void)snprintf(label, sizeof label, "%s, %s", name, variant_names[v]);
        emit(b, table, label, "time", "us", bench_median_of(times[i], rounds) * 1e3, NULL, NAN);
        emit(b, table, label, "rate", "GB/s", rate_of(bytes, times[i], rounds), NULL, NAN);
        emit(b, table, label, "of read", "ratio", bench_median_ratio(times[0], times[i], rounds),
             "device read", 1);
        emit(b, table, label, "of walk", "ratio",
             bench_median_ratio(times[is_random ? WALK_RANDOM : WALK_CONTIGUOUS], times[i], rounds),
             "same-traversal read", 1);
        emit(b, table, label, "time", "ratio",
             bench_median_ratio(times[i], times[KERNEL_CONTIGUOUS], rounds), "kernel, contiguous",
             1);
    }
}

static const attention_table tables[KERNEL_ONE_BLOCK + 1] = {
    TABLE_RANDOM,   TABLE_CONTIGUOUS, TABLE_RANDOM, TABLE_CONTIGUOUS,
    TABLE_IDENTITY, TABLE_EXTENTS,    TABLE_RANDOM, TABLE_ONE_BLOCK};

static bool run_decode(attention_cuda_shared *b,
                       bench_table *table,
                       const attention_setup_config *c,
                       const char *name) {
    static double times[MAX_ENTRIES][MAX_ROUNDS];
    attention_cuda_batch batch;
    struct entry entries[MAX_ENTRIES];
    int count = 0;
    bool is_right = attention_cuda_open(b, &batch, c, name);

    /* Entry i is variant i, as report_decode wants it. */
    for (int v = 0; v <= KERNEL_ONE_BLOCK; v++) {
        entries[count++] = (struct entry){&batch, (enum variant)v, tables[v], {0, 0}};
    }
    if (batch.scores != NULL) {
        entries[count++] = (struct entry){&batch, CUBLAS, TABLE_CONTIGUOUS, {0, 0}};
    }
    is_right = is_right && time_entries(b, entries, count, times);
    if (is_right) {
        report_decode(b, table, name, entries, count, times);
    }
    attention_cuda_close(&batch);
    return is_right;
}

/* The default of this program's batches: 32 query heads over 8 kv heads of 128, blocks of 16. */
static attention_setup_config decode_config(const attention_cuda_shared *b,
                                            pkv_dtype query,
                                            pkv_dtype kv,
                                            int32_t num_requests,
                                            int32_t seq_len) {
    return (attention_setup_config){.query_dtype = query,
                                    .kv_dtype = kv,
                                    .num_requests = num_requests,
                                    .query_len = 1,
                                    .seq_len = seq_len / b->options->divide,
                                    .block_size = 16,
                                    .num_query_heads = 32,
                                    .num_kv_heads = 8,
                                    .head_size = 128};
}

static bool run_decode_cases(attention_cuda_shared *b, bench_table *table) {
    static const struct {
        const char *dtype;
        pkv_dtype query, kv;
        int32_t num_requests, seq_len;
    } cases[] = {
        {"bfloat16", PKV_DTYPE_BFLOAT16, PKV_DTYPE_BFLOAT16, 1, 8192},
        {"bfloat16", PKV_DTYPE_BFLOAT16, PKV_DTYPE_BFLOAT16, 16, 8192},
        {"bfloat16", PKV_DTYPE_BFLOAT16, PKV_DTYPE_BFLOAT16, 64, 8192},
        {"bfloat16", PKV_DTYPE_BFLOAT16, PKV_DTYPE_BFLOAT16, 1, 131072},
        {"float16", PKV_DTYPE_FLOAT16, PKV_DTYPE_FLOAT16, 64, 8192},
        {"e4m3", PKV_DTYPE_BFLOAT16, PKV_DTYPE_FLOAT8_E4M3, 64, 8192},
        {"int8", PKV_DTYPE_BFLOAT16, PKV_DTYPE_INT8, 64, 8192},
        {"float32", PKV_DTYPE_FLOAT32, PKV_DTYPE_FLOAT32, 16, 8192},
    };
    bool is_right = true;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        attention_setup_config c =
            decode_config(b, cases[i].query, cases[i].kv, cases[i].num_requests, cases[i].seq_len);
        char name[96];

        (void)snprintf(name, sizeof name, "decode %s %d x %d, block 16", cases[i].dtype,
                       (int)c.num_requests, (int)c.seq_len);
        is_right = (!is_wanted(b, name) || run_decode(b, table, &c, name)) && is_right;
    }
    return is_right;
}

/* ---- Chunks and blocks, on random tables */

static bool run_chunks(attention_cuda_shared *b,
                       bench_table *table,
                       int32_t num_requests,
                       int32_t seq_len) {
    static const int32_t chunks[] = {256, 512, 1024, 2048};
    attention_setup_config c =
        decode_config(b, PKV_DTYPE_BFLOAT16, PKV_DTYPE_BFLOAT16, num_requests, seq_len);
    double times[1][MAX_ROUNDS], first = NAN;
    attention_cuda_batch batch;
    char name[96];

    (void)snprintf(name, sizeof name, "chunks bfloat16 %d x %d", (int)c.num_requests,
                   (int)c.seq_len);
    if (!is_wanted(b, name)) {
        return true;
    }
    bool is_right = attention_cuda_open(b, &batch, &c, name);
    /* One after the other: a batch has one plan. */
    for (size_t i = 0; i < sizeof chunks / sizeof chunks[0] && is_right; i++) {
        const struct entry entry = {&batch, KERNEL_RANDOM, TABLE_RANDOM, {0, 0}};
        char label[128];

        is_right = attention_cuda_replan(&batch, chunks[i]) && time_entries(b, &entry, 1, times);
        if (is_right) {
            double time = bench_median_of(times[0], b->options->rounds);

            first = i == 0 ? time : first;
            (void)snprintf(label, sizeof label, "%s, chunk %d", name, (int)chunks[i]);
            emit(b, table, label, "rate", "GB/s",
                 rate_of(batch.host.kv_size, times[0], b->options->rounds), NULL, NAN);
            emit(b, table, label, "time", "ratio", time / first, "chunk 256", 1);
        }
    }
    attention_cuda_close(&batch);
    return is_right;
}

static bool run_block_sizes(attention_cuda_shared *b, bench_table *table) {
    enum { NUM_SIZES = 6 };
    static const int32_t sizes[NUM_SIZES] = {16, 8, 32, 64, 128, 256};
    static double times[NUM_SIZES][MAX_ROUNDS];
    static attention_cuda_batch batches[NUM_SIZES];
    struct entry entries[NUM_SIZES];
    bool is_right = true;

    if (!is_wanted(b, "block sizes bfloat16 16 x")) {
        return true;
    }
    memset(batches, 0, sizeof batches);
    for (int i = 0; i < NUM_SIZES && is_right; i++) {
        attention_setup_config c =
            decode_config(b, PKV_DTYPE_BFLOAT16, PKV_DTYPE_BFLOAT16, 16, 8192);

        c.block_size = sizes[i];
        entries[i] = (struct entry){&batches[i], KERNEL_RANDOM, TABLE_RANDOM, {0, 0}};
        is_right = attention_cuda_open(b, &batches[i], &c, "block sizes");
    }
    is_right = is_right && time_entries(b, entries, NUM_SIZES, times);
    for (int i = 0; i < NUM_SIZES && is_right; i++) {
        char name[96];

        (void)snprintf(name, sizeof name, "block sizes bfloat16 16 x %d, random, block %d",
                       (int)batches[i].host.config.seq_len, (int)sizes[i]);
        emit(b, table, name, "rate", "GB/s",
             rate_of(batches[i].host.kv_size, times[i], b->options->rounds), NULL, NAN);
        emit(b, table, name, "time", "ratio",
             bench_median_ratio(times[i], times[0], b->options->rounds), "block 16", 1);
    }
    for (int i = 0; i < NUM_SIZES; i++) {
        attention_cuda_close(&batches[i]);
    }
    return is_right;
}

/* ---- Stages: loads only, with Q K', the whole, and that with other launches */

/* The library's launch beside each other one that fits. */
static bool run_launches(attention_cuda_shared *b,
                         bench_table *table,
                         attention_cuda_batch *batch,
                         const char *name) {
    static double times[1 + ATTENTION_CUDA_MOST_LAUNCHES][MAX_ROUNDS];
    attention_cuda_launch launches[ATTENTION_CUDA_MOST_LAUNCHES];
    struct entry entries[1 + ATTENTION_CUDA_MOST_LAUNCHES] = {
        {batch, KERNEL_RANDOM, TABLE_RANDOM, {0, 0}}};
    const int count = attention_cuda_find_launches(b, batch, name, launches);

    for (int i = 0; i < count; i++) {
        entries[1 + i] = (struct entry){batch, OTHER_LAUNCH, TABLE_RANDOM, launches[i]};
    }
    if (count <= 0 || !time_entries(b, entries, 1 + count, times)) {
        return false;
    }
    for (int i = 1; i <= count; i++) {
        char label[160];

        (void)snprintf(label, sizeof label, "%s, random, %d stages, %d blocks a multiprocessor",
                       name, (int)entries[i].launch.num_stages, (int)entries[i].launch.num_blocks);
        emit(b, table, label, "rate", "GB/s",
             rate_of(batch->host.kv_size, times[i], b->options->rounds), NULL, NAN);
        emit(b, table, label, "time", "ratio",
             bench_median_ratio(times[i], times[0], b->options->rounds), "the library's launch", 1);
    }
    return true;
}

static bool run_stages(attention_cuda_shared *b, bench_table *table, int32_t num_requests) {
    enum { NUM_TABLES_TIMED = 3, NUM_STAGES = 3, COUNT = NUM_TABLES_TIMED * NUM_STAGES };
    static const attention_table orders[NUM_TABLES_TIMED] = {TABLE_CONTIGUOUS, TABLE_IDENTITY,
                                                             TABLE_RANDOM};
    static const char *const order_names[] = {"contiguous", "identity", "random"};
    static const enum variant stages[NUM_STAGES] = {STAGE_LOADS, STAGE_SCORES, KERNEL_RANDOM};
    static double times[COUNT][MAX_ROUNDS];
    const attention_setup_config c =
        decode_config(b, PKV_DTYPE_FLOAT16, PKV_DTYPE_FLOAT16, num_requests, 8192);
    attention_cuda_batch batch;
    struct entry entries[COUNT];
    char name[96];

    (void)snprintf(name, sizeof name, "stages float16 %d x %d", (int)c.num_requests,
                   (int)c.seq_len);
    if (!is_wanted(b, name)) {
        return true;
    }
    bool is_right = attention_cuda_open(b, &batch, &c, name);
    for (int i = 0; i < COUNT; i++) {
        entries[i] = (struct entry){&batch, stages[i % NUM_STAGES], orders[i / NUM_STAGES], {0, 0}};
    }
    is_right = is_right && time_entries(b, entries, COUNT, times);
    for (int i = 0; i < COUNT && is_right; i++) {
        const double *whole = times[i / NUM_STAGES * NUM_STAGES + NUM_STAGES - 1];
        char label[160];

        (void)snprintf(label, sizeof label, "%s, %s, %s", name, order_names[i / NUM_STAGES],
                       i % NUM_STAGES == NUM_STAGES - 1 ? "the whole"
                                                        : variant_names[stages[i % NUM_STAGES]]);
        emit(b, table, label, "rate", "GB/s",
             rate_of(batch.host.kv_size, times[i], b->options->rounds), NULL, NAN);
        emit(b, table, label, "time", "ratio",
             bench_median_ratio(times[i], whole, b->options->rounds), "the whole", 1);
    }
    is_right = is_right && run_launches(b, table, &batch, name);
    attention_cuda_close(&batch);
    return is_right;
}

/* ---- Prefill */

static bool run_prefill(attention_cuda_shared *b,
                        bench_table *table,
                        const attention_setup_config *c,
                        const char *name) {
    static double times[3][MAX_ROUNDS];
    const double flops = 4.0 * c->num_query_heads * c->head_size * (double)c->query_len *
                         ((double)c->seq_len - 0.5 * ((double)c->query_len - 1.0));
    const int32_t rounds = b->options->rounds;
    attention_cuda_batch batch;
    bool is_right = attention_cuda_open(b, &batch, c, name);
    const struct entry entries[] = {{&batch, KERNEL_RANDOM, TABLE_RANDOM, {0, 0}},
                                    {&batch, KERNEL_CONTIGUOUS, TABLE_CONTIGUOUS, {0, 0}},
                                    {&batch, CUBLAS, TABLE_CONTIGUOUS, {0, 0}}};
    const int count = batch.scores == NULL ? 2 : 3;

    is_right = is_right && time_entries(b, entries, count, times);
    if (is_right) {
        /* Both count the products that the mask leaves; cuBLAS computes the others, too. */
        double peer = count < 3 ? NAN : flops / bench_median_of(times[2], rounds) * 1e-9;

        emit(b, table, name, "rate", "TFLOP/s", flops / bench_median_of(times[0], rounds) * 1e-9,
             count < 3 ? NULL : variant_names[CUBLAS], peer);
        emit(b, table, name, "time", "ratio", bench_median_ratio(times[0], times[1], rounds),
             "kernel, contiguous", 1);
    }
    attention_cuda_close(&batch);
    return is_right;
}

static bool run_prefill_cases(attention_cuda_shared *b, bench_table *table) {
    static const struct {
        const char *dtype;
        pkv_dtype query, kv;
        int32_t query_len, seq_len;
    } cases[] = {
        {"bfloat16", PKV_DTYPE_BFLOAT16, PKV_DTYPE_BFLOAT16, 4096, 4096},
        {"bfloat16", PKV_DTYPE_BFLOAT16, PKV_DTYPE_BFLOAT16, 512, 16384},
        {"float16", PKV_DTYPE_FLOAT16, PKV_DTYPE_FLOAT16, 4096, 4096},
        {"e4m3", PKV_DTYPE_BFLOAT16, PKV_DTYPE_FLOAT8_E4M3, 4096, 4096},
        {"int8", PKV_DTYPE_BFLOAT16, PKV_DTYPE_INT8, 4096, 4096},
    };
    bool is_right = true;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        attention_setup_config c =
            decode_config(b, cases[i].query, cases[i].kv, 1, cases[i].seq_len);
        char name[96];

        c.query_len = cases[i].query_len / b->options->divide;
        (void)snprintf(name, sizeof name, "prefill %s 1 x %d of %d", cases[i].dtype,
                       (int)c.query_len, (int)c.seq_len);
        is_right = (!is_wanted(b, name) || run_prefill(b, table, &c, name)) && is_right;
    }
    return is_right;
}

/* ---- All of it */

static bool run_all(attention_cuda_shared *b, bench_table *table) {
    const attention_cuda_options *o = b->options;
    bool is_right = true;

    if (o->has_stages) {
        return run_stages(b, table, 1) && run_stages(b, table, 16) && run_stages(b, table, 64);
    }
    if (is_wanted(b, "bandwidth")) {
        is_right = run_bandwidth(b, table);
    }
    if (o->has_decode) {
        is_right = run_decode_cases(b, table) && is_right;
        is_right = run_chunks(b, table, 64, 8192) && is_right;
        is_right = run_chunks(b, table, 1, 131072) && is_right;
        is_right = run_block_sizes(b, table) && is_right;
    }
    if (o->has_prefill) {
        is_right = run_prefill_cases(b, table) && is_right;
    }
    return is_right;
}

static void print_log(void *context, int level, const char *message) {
    (void)context;
    (void)level;
    (void)fprintf(stderr, "bench_attention: %s\n", message);
}

int attention_cuda_bench(const attention_cuda_options *options) {
    attention_cuda_shared b = {.options = options,
                               .other_size = OTHER_BYTES / (size_t)options->divide};
    const pkv_cuda_config config = {.struct_size = sizeof config, .log = print_log};
    const pkv_cpu_config cpu_config = {.struct_size = sizeof cpu_config,
                                       .num_threads = options->threads};
    bench_table table;

    if (pkv_device_create_cuda(&config, &b.cuda) != PKV_OK) {
        return BENCH_EXIT_USAGE;
    }
    bool is_right = pkv_device_create_cpu(&cpu_config, &b.cpu) == PKV_OK &&
                    attention_cuda_is_good(cudaEventCreate(&b.start), "cudaEventCreate") &&
                    attention_cuda_is_good(cudaEventCreate(&b.stop), "cudaEventCreate") &&
                    attention_cuda_is_good(cudaMalloc(&b.other, b.other_size), "cudaMalloc");
    b.cublas = attention_cublas_open(&b.no_cublas);
    if (b.cublas == NULL) {
        (void)fprintf(stderr, "bench_attention: cuBLAS is left out: %s\n", b.no_cublas);
    }
    if (!options->json) {
        bench_table_begin(&table, "<case|<metric|value|<unit");
    }
    is_right = is_right && run_all(&b, &table);
    if (is_right && b.num_cases == 0) {
        is_right = attention_cuda_complain("--only", "no case has this in its name");
    }
    if (!options->json) {
        bench_table_print(&table, stdout, 0);
    }
    attention_cublas_close(b.cublas);
    (void)cudaEventDestroy(b.start);
    (void)cudaEventDestroy(b.stop);
    (void)cudaFree(b.other);
    pkv_device_destroy(b.cpu);
    pkv_device_destroy(b.cuda);
    return is_right ? BENCH_EXIT_OK : BENCH_EXIT_FAILED;
}
#else
bool attention_has_cuda(void) {
    return false;
}

int attention_cuda_bench(const attention_cuda_options *options) {
    (void)options;
    return BENCH_EXIT_USAGE;
}
#endif
