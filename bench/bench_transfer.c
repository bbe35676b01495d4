/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* bench_transfer: how fast blocks move: to and from a file, beside the disk's own sequential rate
 * of the same run; inside memory by the CPU device, beside memcpy.
 *
 * Method: the file is read and written with O_DIRECT on both sides, so that no page cache answers;
 * where the system refuses that, the run says so and measures nothing of files. All variants run in
 * turn in each round; medians of the rounds, and medians of same-round ratios. */
#define _GNU_SOURCE /* O_DIRECT */

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <pagedkv/store.h>

#include "options.h"
#include "plot.h"
#include "random.h"
#include "report.h"

#define BENCH "transfer"
#define MAX_ROUNDS 64
#define MAX_VARIANTS (2 * BENCH_MAX_LIST)
#define RAW_PIECE ((size_t)4 << 20)
#define BATCH 64
#define MAX_BATCHES 64

static struct {
    const char *folder, *out;
    int32_t megabytes, rounds, block_kib;
    bench_list depths;
    bool json;
} options = {
    .folder = "/tmp", .megabytes = 64, .rounds = 5, .block_kib = 64, .depths = {3, {1, 8, 32}}};

/* Nanoseconds of each round: to the medium, from the medium. */
struct times {
    char name[48];
    double to[MAX_ROUNDS], from[MAX_ROUNDS];
};

struct bench {
    unsigned char *memory; /* one block more than is moved: the null block */
    size_t size;           /* that is moved */
    int32_t num_blocks;
    size_t block_bytes;
    char path[512];
    struct times raw, store[MAX_VARIANTS];
    int32_t num_store;
    struct times copies[4];
    bench_table table;
    FILE *csv;
};

/* ---- The disk by itself */

static bool raw_pass(struct bench *bench, int file, bool is_write, double *time) {
    int64_t start = bench_now_ns();

    for (size_t at = 0; at < bench->size;) {
        size_t count = bench->size - at < RAW_PIECE ? bench->size - at : RAW_PIECE;
        unsigned char *bytes = bench->memory + bench->block_bytes + at;
        ssize_t moved =
            is_write ? pwrite(file, bytes, count, (off_t)at) : pread(file, bytes, count, (off_t)at);

        if (moved <= 0) {
            return false;
        }
        at += (size_t)moved;
    }
    if (is_write && fdatasync(file) != 0) {
        return false;
    }
    *time = (double)(bench_now_ns() - start);
    return true;
}

static bool raw_round(struct bench *bench, int round) {
    char path[600];
    int file;
    bool is_done;

    (void)snprintf(path, sizeof path, "%s.raw", bench->path);
    file = open(path, O_RDWR | O_CREAT | O_DIRECT, 0600);
    if (file < 0) {
        return false;
    }
    /* The first pass makes the file; what is measured overwrites it, as a store in use does. */
    is_done = (round > 0 || raw_pass(bench, file, true, &bench->raw.to[0])) &&
              raw_pass(bench, file, true, &bench->raw.to[round]) &&
              raw_pass(bench, file, false, &bench->raw.from[round]);
    (void)close(file);
    return is_done;
}

/* ---- The file store */

/* Move all blocks in one direction, batch behind batch. */
static bool store_pass(struct bench *bench, const pkv_store *store, bool is_write, double *time) {
    static pkv_block_copy copies[PKV_MAX_BLOCK_LIST];
    static pkv_block_key keys[PKV_MAX_BLOCK_LIST];
    static pkv_status statuses[PKV_MAX_BLOCK_LIST];
    int64_t start = bench_now_ns();
    int32_t begun = 0, num_open = 0;

    for (int32_t i = 0; i < bench->num_blocks; i++) {
        copies[i] = (pkv_block_copy){i + 1, i + 1};
        keys[i] = (pkv_block_key){random_mix((uint64_t)i), 0, 0};
    }
    while (begun < bench->num_blocks || num_open > 0) {
        pkv_store_completion done[8];
        int32_t count, rest = bench->num_blocks - begun;
        pkv_store_transfer transfer = {
            .struct_size = sizeof transfer,
            .is_write = is_write,
            .num_blocks = rest < BATCH ? rest : BATCH,
            .blocks = {.data = bench->memory,
                       .dtype = PKV_DTYPE_UINT8,
                       .rank = 3,
                       .shape = {1, bench->num_blocks + 1, (int64_t)bench->block_bytes},
                       .stride = {(int64_t)bench->size, (int64_t)bench->block_bytes, 1}},
            .copies = copies + begun,
            .keys = keys + begun,
            .statuses = statuses + begun};
        uint64_t ticket;

        if (rest > 0 && num_open < MAX_BATCHES / 2) {
            if (pkv_store_submit(store, &transfer, &ticket) != PKV_OK) {
                return false;
            }
            begun += transfer.num_blocks;
            num_open++;
            continue;
        }
        if (pkv_store_poll(store, true, done, 8, &count) != PKV_OK) {
            return false;
        }
        for (int32_t i = 0; i < count; i++) {
            if (done[i].status != PKV_OK) {
                fprintf(stderr, "bench_transfer: %s\n", pkv_store_last_error(store));
                return false;
            }
        }
        num_open -= count;
    }
    if (is_write && pkv_store_flush(store) != PKV_OK) {
        return false;
    }
    *time = (double)(bench_now_ns() - start);
    return true;
}

/* One variant in one round. False and *is_absent where io_uring is not to be had. */
static bool store_round(struct bench *bench,
                        struct times *times,
                        int32_t depth,
                        bool ring,
                        int round,
                        bool *is_absent) {
    pkv_file_store_config config = {
        .struct_size = sizeof config,
        .path = bench->path,
        .shape = {1, (int64_t)bench->block_bytes, 16, bench->num_blocks + 1},
        .uring = ring ? PKV_STORE_URING_ON : PKV_STORE_URING_OFF,
        .direct = true,
        .queue_depth = depth,
        .max_transfers = MAX_BATCHES};
    pkv_store store = {.struct_size = sizeof store};
    pkv_file_store *file;
    char text[200];
    pkv_status status = pkv_file_store_create(&config, &file, text, sizeof text);
    bool is_done;

    *is_absent = status == PKV_ERROR_UNSUPPORTED && ring;
    if (status != PKV_OK) {
        if (!*is_absent) {
            fprintf(stderr, "bench_transfer: %s\n", text);
        }
        return false;
    }
    (void)snprintf(times->name, sizeof times->name, "file store, %s, depth %d",
                   ring ? "io_uring" : "plain", (int)depth);
    is_done = pkv_file_store_get_store(file, &store) == PKV_OK &&
              store_pass(bench, &store, true, &times->to[round]) &&
              store_pass(bench, &store, false, &times->from[round]);
    pkv_store_close(&store);
    return is_done;
}

/* Make the store's file once, so that every variant overwrites it. */
static bool warm_store(struct bench *bench) {
    struct times ignored;
    bool is_absent;

    return store_round(bench, &ignored, 8, false, 0, &is_absent);
}

static bool run_files(struct bench *bench) {
    for (int32_t round = 0; round < options.rounds; round++) {
        bool is_absent;

        if (!raw_round(bench, round) || (round == 0 && !warm_store(bench))) {
            return false;
        }
        bench->num_store = 0;
        for (int32_t d = 0; d < options.depths.num_values; d++) {
            for (int ring = 0; ring < 2; ring++) {
                if (ring == 0 && d > 0) {
                    continue; /* plain calls know no depth */
                }
                if (store_round(bench, &bench->store[bench->num_store], options.depths.values[d],
                                ring == 1, round, &is_absent)) {
                    bench->num_store++;
                } else if (!is_absent) {
                    return false;
                }
            }
        }
    }
    return true;
}

/* ---- Memory */

enum { COPY_MEMCPY, COPY_SWAP, COPY_COPY, COPY_GATHER };

/* Everything that the four ways of copying need. */
struct copy_run {
    pkv_device *device;
    pkv_tensor pool, target;
    const pkv_block_copy *pairs;
    int32_t half;
    pkv_gather_args gather;
};

static bool time_copies(struct bench *bench, const struct copy_run *run) {
    static const char *const names[] = {"memcpy", "pkv_swap_blocks", "pkv_copy_blocks",
                                        "pkv_gather"};

    for (int32_t round = -1; round < options.rounds; round++) {
        for (int kind = 0; kind < 4; kind++) {
            int64_t start = bench_now_ns();
            pkv_status status = PKV_OK;

            if (kind == COPY_MEMCPY) {
                memcpy(run->target.data, bench->memory, (size_t)run->half * bench->block_bytes);
            } else if (kind == COPY_SWAP) {
                status = pkv_swap_blocks(run->device, &run->pool, &run->target, run->pairs,
                                         run->half, NULL);
            } else if (kind == COPY_COPY) {
                status = pkv_copy_blocks(run->device, &run->pool, run->pairs, run->half, NULL);
            } else {
                status = pkv_gather(run->device, &run->gather, NULL);
            }
            if (status != PKV_OK) {
                fprintf(stderr, "bench_transfer: %s: %s\n", names[kind],
                        pkv_device_last_error(run->device));
                return false;
            }
            (void)snprintf(bench->copies[kind].name, sizeof bench->copies[kind].name, "%s",
                           names[kind]);
            if (round >= 0) {
                bench->copies[kind].to[round] = (double)(bench_now_ns() - start);
            }
        }
    }
    return true;
}

static bool run_copies(struct bench *bench, pkv_device *device, unsigned char *other) {
    static pkv_block_copy pairs[PKV_MAX_BLOCK_LIST];
    static int32_t table[PKV_MAX_BLOCK_LIST];
    int32_t half = bench->num_blocks / 2, row = 0, start_loc[2];
    int64_t bytes = (int64_t)bench->block_bytes, tokens = bytes / (4 * 128);
    pkv_tensor pool = {.data = bench->memory,
                       .dtype = PKV_DTYPE_UINT8,
                       .rank = 3,
                       .shape = {1, bench->num_blocks + 1, bytes},
                       .stride = {(int64_t)bench->size, bytes, 1}};
    pkv_tensor target = pool;
    pkv_gather_args gather = {.struct_size = sizeof gather, .num_requests = 1};
    uint64_t state = 7;

    target.data = other;
    /* Sources in shuffled order in the first half, targets in the second. */
    for (int32_t i = 0; i < half; i++) {
        table[i] = i + 1;
    }
    for (int32_t i = half; i-- > 1;) {
        int32_t k = random_below(&state, i + 1), moved = table[i];
        table[i] = table[k];
        table[k] = moved;
    }
    for (int32_t i = 0; i < half; i++) {
        pairs[i] = (pkv_block_copy){table[i], half + i + 1};
    }
    start_loc[0] = 0;
    start_loc[1] = (int32_t)(half * tokens);
    gather.k_cache = (pkv_tensor){.data = bench->memory,
                                  .dtype = PKV_DTYPE_FLOAT32,
                                  .rank = 4,
                                  .shape = {bench->num_blocks + 1, 1, tokens, 128},
                                  .stride = {tokens * 128, tokens * 128, 128, 1}};
    gather.key = (pkv_tensor){.data = other,
                              .dtype = PKV_DTYPE_FLOAT32,
                              .rank = 3,
                              .shape = {half * tokens, 1, 128},
                              .stride = {128, 128, 1}};
    gather.block_table = table;
    gather.block_table_stride = half;
    gather.rows = &row;
    gather.key_start_loc = start_loc;
    return time_copies(bench, &(struct copy_run){device, pool, target, pairs, half, gather});
}

/* ---- Report */

static void report(struct bench *bench,
                   const char *name,
                   const char *way,
                   double bytes,
                   const double *times,
                   const char *peer,
                   const double *peer_times) {
    double rate = bytes / bench_median_of(times, options.rounds);
    double peer_rate = peer != NULL ? bytes / bench_median_of(peer_times, options.rounds) : NAN;
    double share = peer != NULL ? bench_median_ratio(peer_times, times, options.rounds) : NAN;

    if (bench->csv != NULL) {
        bench_csv_text(bench->csv, true, name);
        bench_csv_text(bench->csv, false, way);
        bench_csv_number(bench->csv, false, rate);
        bench_csv_number(bench->csv, false, share);
        fputc('\n', bench->csv);
    }
    if (options.json) {
        char label[128];

        (void)snprintf(label, sizeof label, "%s, %s", name, way);
        bench_json_line(stdout, BENCH, label, "rate", "GB/s", rate, peer, peer_rate);
    } else if (peer != NULL) {
        bench_table_row(&bench->table, "%s|%s|%.2f|%.2f|%.2f", name, way, rate, peer_rate, share);
    } else {
        bench_table_row(&bench->table, "%s|%s|%.2f", name, way, rate);
    }
}

static void report_all(struct bench *bench, bool has_files) {
    double bytes = (double)bench->size,
           half = (double)(bench->num_blocks / 2) * (double)bench->block_bytes;

    bench_table_begin(&bench->table, "what|<direction|GB/s|peer GB/s|of peer");
    if (has_files) {
        report(bench, "disk, sequential", "write", bytes, bench->raw.to, NULL, NULL);
        report(bench, "disk, sequential", "read", bytes, bench->raw.from, NULL, NULL);
        for (int32_t i = 0; i < bench->num_store; i++) {
            const struct times *times = &bench->store[i];

            report(bench, times->name, "write", bytes, times->to, "disk, sequential",
                   bench->raw.to);
            report(bench, times->name, "read", bytes, times->from, "disk, sequential",
                   bench->raw.from);
        }
    }
    report(bench, "memcpy", "memory", half, bench->copies[COPY_MEMCPY].to, NULL, NULL);
    for (int kind = COPY_SWAP; kind <= COPY_GATHER; kind++) {
        report(bench, bench->copies[kind].name, "memory", half, bench->copies[kind].to, "memcpy",
               bench->copies[COPY_MEMCPY].to);
    }
    if (!options.json) {
        bench_table_print(&bench->table, stdout, 0);
    }
}

/* ---- Main */

static bool set_up(struct bench *bench) {
    bench->block_bytes = (size_t)options.block_kib << 10;
    bench->num_blocks = (int32_t)(((size_t)options.megabytes << 20) / bench->block_bytes);
    bench->size = (size_t)bench->num_blocks * bench->block_bytes;
    if (bench->num_blocks < 2 || bench->num_blocks >= PKV_MAX_BLOCK_LIST) {
        fprintf(stderr, "bench_transfer: --megabytes and --block-kib give %d blocks\n",
                (int)bench->num_blocks);
        return false;
    }
    bench->memory = aligned_alloc(4096, bench->size + bench->block_bytes);
    if (bench->memory == NULL) {
        return false;
    }
    /* Small floats, so that gather reads no denormal numbers. */
    for (size_t i = 0; i < (bench->size + bench->block_bytes) / sizeof(float); i++) {
        float value = 1.0f + (float)(i % 4093);
        memcpy(bench->memory + i * sizeof value, &value, sizeof value);
    }
    (void)snprintf(bench->path, sizeof bench->path, "%s/bench_transfer_%ld", options.folder,
                   (long)getpid());
    return true;
}

static void clean_up(struct bench *bench) {
    char path[600];

    (void)snprintf(path, sizeof path, "%s.raw", bench->path);
    (void)unlink(path);
    (void)unlink(bench->path);
}

static bool draw(void) {
    FILE *script = plot_begin(options.out, "transfer", 760, 420);

    if (script == NULL) {
        return false;
    }
    fprintf(script,
            "set datafile separator ','\nset ylabel 'GB/s'\nset yrange [0:*]\n"
            "set style data histograms\nset style fill solid 0.8\nset xtics rotate by -30\n"
            "plot 'transfer.csv' using 3:xtic(strcol(1).' '.strcol(2)) notitle linestyle 1\n");
    return plot_end(script, options.out, "transfer");
}

int main(int argc, char **argv) {
    static struct bench bench;
    const bench_option table[] = {
        {"folder", BENCH_STRING, &options.folder, "PATH", "where the files go for the run; deleted",
         0, 0},
        {"megabytes", BENCH_INT, &options.megabytes, "N", "how much is moved; two files of it", 1,
         4000},
        {"block-kib", BENCH_INT, &options.block_kib, "N", "size of a block, in KiB", 4, 65536},
        {"queue-depths", BENCH_LIST, &options.depths, "N,...", "requests in the kernel at once", 1,
         1024},
        {"rounds", BENCH_INT, &options.rounds, "N", "rounds; medians are reported", 1, MAX_ROUNDS},
        {"out", BENCH_STRING, &options.out, "FOLDER", "also write transfer.csv and a plot there", 0,
         0},
        {"json", BENCH_FLAG, &options.json, NULL, "JSON lines instead of a table", 0, 0}};
    const bench_program program = {
        "bench_transfer",
        "How fast blocks move to and from a file, beside the disk's sequential rate, and in "
        "memory,\n"
        "beside memcpy. Files are read and written with O_DIRECT on both sides.",
        NULL, table, sizeof table / sizeof table[0]};
    pkv_device *device = NULL;
    unsigned char *other;
    int exit_code;
    bool has_files, is_done;

    if (!bench_parse_options(&program, argc, argv, &exit_code)) {
        return exit_code;
    }
    if (!set_up(&bench)) {
        return BENCH_EXIT_USAGE;
    }
    other = aligned_alloc(4096, bench.size + bench.block_bytes);
    has_files = run_files(&bench);
    clean_up(&bench);
    if (!has_files) {
        fprintf(stderr, "bench_transfer: SKIPPED the file store: no O_DIRECT in %s, or an error\n",
                options.folder);
    }
    is_done = other != NULL && pkv_device_create_cpu(NULL, &device) == PKV_OK;
    if (is_done) {
        memset(other, 0, bench.size + bench.block_bytes);
        is_done = run_copies(&bench, device, other);
    }
    if (is_done && options.out != NULL) {
        is_done = bench_make_folder(options.out) &&
                  (bench.csv = plot_open(options.out, "transfer.csv")) != NULL;
    }
    if (is_done) {
        report_all(&bench, has_files);
    }
    if (bench.csv != NULL) {
        (void)fclose(bench.csv);
        is_done = is_done && (!plot_is_available() || draw());
    }
    pkv_device_destroy(device);
    free(other);
    free(bench.memory);
    return is_done ? BENCH_EXIT_OK : BENCH_EXIT_FAILED;
}
