/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The main bench: shares of KV memory under contiguous allocation and under paging by this library,
 * and what the block size trades. Arguments and the order of runs; measuring and showing are in
 * fragmentation_*.c.
 *
 * The one idea: the same queue of requests goes through every layout, in the same number of
 * slots. */
#include "fragmentation_report.h"
#include "options.h"
#include "plot.h"
#include "workload.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TABLE_NUM_ITEMS 20000
/* Timing with the prefix cache on takes a part of the steps: its shares are not reported. */
#define CACHED_STEPS_DIVISOR 8

typedef struct fragmentation_options {
    const char *table, *trace, *csv, *out;
    uint64_t seed;
    int32_t num_steps, num_slots, max_length;
    bench_list block_sizes;
    bool is_json, is_demo;
} fragmentation_options;

/* ---- the queue and the geometry -------------------------------------------------------------- */

static bool load_list(const fragmentation_options *options, workload_list *list) {
    char error[WORKLOAD_MAX_ERROR];
    const char *table = options->table != NULL ? options->table : "sharegpt";
    bool is_good = options->trace != NULL
                       ? workload_read_trace(options->trace, list, error)
                       : workload_make_table(table, options->seed, TABLE_NUM_ITEMS, list, error);

    if (!is_good) {
        fprintf(stderr, "bench_fragmentation: %s\n", error);
    }
    return is_good;
}

/* A trace of longer requests gets more memory, in the published proportion of slots to length. */
static bool set_geometry(const fragmentation_options *options, memory_experiment *experiment) {
    memory_setup *setup = &experiment->setup;
    int64_t length = options->max_length;

    if (length == 0) {
        length = MEMORY_DEFAULT_LENGTH;
        while (length < experiment->list.max_total_tokens) {
            length *= 2;
        }
    }
    experiment->num_dropped_items = workload_drop_longer(&experiment->list, (int32_t)length);
    if (experiment->list.num_items == 0) {
        fprintf(stderr, "bench_fragmentation: no request has at most %lld tokens\n",
                (long long)length);
        return false;
    }
    setup->list = &experiment->list;
    setup->max_length = (int32_t)length;
    setup->num_slots = options->num_slots;
    if (setup->num_slots == 0) {
        setup->num_slots = length * MEMORY_DEFAULT_SLOTS / MEMORY_DEFAULT_LENGTH;
    }
    if (setup->num_slots < length) {
        fprintf(stderr, "bench_fragmentation: %lld slots are less than one request of %lld\n",
                (long long)setup->num_slots, (long long)length);
        return false;
    }
    setup->num_steps = options->num_steps;
    setup->num_discarded = options->num_steps / 4 < MEMORY_DEFAULT_DISCARDED
                               ? options->num_steps / 4
                               : MEMORY_DEFAULT_DISCARDED;
    /* A built-in table is another one for each seed; a trace is entered at another place. */
    if (options->trace != NULL) {
        setup->first_item = (int32_t)((options->seed - 1) * UINT64_C(1000003) %
                                      (uint64_t)experiment->list.num_items);
    }
    experiment->seed = options->seed;
    return true;
}

/* Every block size must be able to serve every request. */
static bool check_block_sizes(const fragmentation_options *options, const memory_setup *setup) {
    char error[MEMORY_MAX_ERROR];
    bool is_good = memory_can_hold(setup, MEMORY_DEFAULT_BLOCK_SIZE, error);

    for (int32_t i = 0; is_good && i < options->block_sizes.num_values; i++) {
        is_good = memory_can_hold(setup, options->block_sizes.values[i], error);
    }
    if (!is_good) {
        fprintf(stderr, "bench_fragmentation: %s\n", error);
    }
    return is_good;
}

/* ---- the runs -------------------------------------------------------------------------------- */

static bool run_case(const memory_setup *setup,
                     const memory_case *of,
                     bench_progress *progress,
                     memory_result *out) {
    char error[MEMORY_MAX_ERROR];

    if (!memory_run(setup, of, progress, out, error)) {
        bench_progress_end(progress);
        fprintf(stderr, "bench_fragmentation: %s\n", error);
        return false;
    }
    return true;
}

static bool run_layouts(memory_experiment *experiment, bench_progress *progress) {
    static const memory_case cases[MEMORY_NUM_LAYOUTS] = {
        {.name = "max", .layout = LAYOUT_MAX},
        {.name = "pow2", .layout = LAYOUT_POW2},
        {.name = "oracle", .layout = LAYOUT_ORACLE},
        {.name = "oracle-first-fit", .layout = LAYOUT_ORACLE_FIRST_FIT},
        {.name = "paged", .layout = LAYOUT_PAGED, .block_size = MEMORY_DEFAULT_BLOCK_SIZE},
    };

    for (int32_t i = 0; i < MEMORY_NUM_LAYOUTS; i++) {
        if (!run_case(&experiment->setup, &cases[i], progress, &experiment->layouts[i])) {
            return false;
        }
    }
    return true;
}

static bool measure_hits(uint64_t seed, int32_t block_size, granularity_result *out) {
    char error[GRANULARITY_MAX_ERROR];

    if (!granularity_measure(seed, block_size, out, error)) {
        fprintf(stderr, "bench_fragmentation: hits at block size %d: %s\n", block_size, error);
        return false;
    }
    return true;
}

static bool run_block_size(memory_experiment *experiment,
                           int32_t block_size,
                           bench_progress *progress,
                           block_size_row *out) {
    memory_setup cached_setup = experiment->setup;
    memory_case of = {.layout = LAYOUT_PAGED, .block_size = block_size};
    memory_result *cached = malloc(sizeof(*cached));
    bool is_good = cached != NULL;

    snprintf(of.name, sizeof(of.name), "paged-b%d", block_size);
    if (block_size == MEMORY_DEFAULT_BLOCK_SIZE) {
        /* That is the paged layout of the comparison, which has run already. */
        out->memory = experiment->layouts[LAYOUT_PAGED];
        out->memory.of = of;
    } else {
        is_good = is_good && run_case(&experiment->setup, &of, progress, &out->memory);
    }

    of.use_prefix_cache = true;
    cached_setup.num_steps = cached_setup.num_steps / CACHED_STEPS_DIVISOR + 1;
    cached_setup.num_discarded = cached_setup.num_steps / 8;
    is_good = is_good && run_case(&cached_setup, &of, progress, cached);
    if (is_good) {
        out->cached_ns_per_token = cached->ns_per_token;
        is_good = measure_hits(experiment->seed, block_size, &out->hits);
    }
    free(cached);
    return is_good;
}

static bool run_experiment(const fragmentation_options *options, memory_experiment *experiment) {
    bench_progress progress;
    bool is_good;

    bench_progress_begin(&progress);
    is_good = run_layouts(experiment, &progress) &&
              measure_hits(experiment->seed, 1, &experiment->all_hits);
    for (int32_t i = 0; is_good && i < options->block_sizes.num_values; i++) {
        is_good = run_block_size(experiment, options->block_sizes.values[i], &progress,
                                 &experiment->rows[i]);
        experiment->num_rows = i + 1;
    }
    bench_progress_end(&progress);
    return is_good;
}

/* ---- outputs --------------------------------------------------------------------------------- */

/* "fragmentation_NAME_", the name without its ending and without what does not suit a file name. */
static void make_prefix(const memory_experiment *experiment, char *prefix, size_t size) {
    char name[64];

    snprintf(name, sizeof(name), "%s", experiment->list.name);

    char *dot = strrchr(name, '.');

    if (dot != NULL && dot != name) {
        *dot = '\0';
    }
    for (char *at = name; *at != '\0'; at++) {
        if (!isalnum((unsigned char)*at) && *at != '-') {
            *at = '_';
        }
    }
    snprintf(prefix, size, "fragmentation_%s_", name);
}

static bool write_report(const memory_experiment *experiment,
                         const char *folder,
                         const char *prefix) {
    char name[256];

    snprintf(name, sizeof(name), "%sreport.txt", prefix);

    FILE *file = plot_open(folder, name);

    if (file == NULL) {
        return false;
    }
    memory_print_report(experiment, file);

    bool is_written = !ferror(file);

    return fclose(file) == 0 && is_written;
}

static bool write_csv(const memory_experiment *experiment, const char *path, const char *prefix) {
    size_t length = strlen(path);

    if (length > 4 && strcmp(path + length - 4, ".csv") == 0) {
        return memory_write_shares(experiment, path);
    }
    if (!bench_make_folder(path)) {
        fprintf(stderr, "bench_fragmentation: cannot make the folder %s\n", path);
        return false;
    }
    return memory_write_csv(experiment, path, prefix);
}

static bool show(const fragmentation_options *options, const memory_experiment *experiment) {
    char prefix[128];
    bool is_good = true;

    make_prefix(experiment, prefix, sizeof(prefix));
    if (options->is_json) {
        memory_print_json(experiment, stdout);
    } else {
        memory_print_report(experiment, stdout);
    }
    if (options->csv != NULL) {
        is_good = write_csv(experiment, options->csv, prefix);
    }
    if (options->out != NULL) {
        is_good = is_good && memory_write_csv(experiment, options->out, prefix) &&
                  write_report(experiment, options->out, prefix) &&
                  memory_draw_plots(experiment, options->out, prefix);
    }
    return is_good && fflush(stdout) == 0;
}

/* See that the output folder is there and can be drawn into, before anything is measured. */
static bool prepare_output(const fragmentation_options *options) {
    if (options->out == NULL) {
        return true;
    }
    if (!bench_make_folder(options->out)) {
        fprintf(stderr, "bench_fragmentation: cannot make the folder %s\n", options->out);
        return false;
    }
    if (!options->is_demo && !plot_is_available()) {
        fprintf(stderr, "bench_fragmentation: --out asks for plots, but gnuplot cannot be run; "
                        "install gnuplot (Debian: gnuplot-nox)\n");
        return false;
    }
    return true;
}

static bool parse(fragmentation_options *o, int argc, char **argv, int *exit_code) {
    const bench_option table[] = {
        {"table", BENCH_STRING, &o->table, "NAME",
         "built-in length table: sharegpt (default) or alpaca", 0, 0},
        {"trace", BENCH_STRING, &o->trace, "FILE",
         "take lengths from a trace: Azure CSV, Mooncake JSON lines, vidur or\n"
         "vattention CSV, or two columns (prompt,output)",
         0, 0},
        {"steps", BENCH_INT, &o->num_steps, "N", "steps of a run (80000)", 8, 100000000},
        {"seed", BENCH_UINT64, &o->seed, "S", "of table and chats; start in a trace (1)", 0, 0},
        {"slots", BENCH_INT, &o->num_slots, "N",
         "token slots (15700; more where a trace has longer requests)", 0, 1 << 30},
        {"max-length", BENCH_INT, &o->max_length, "N",
         "most tokens of a request (2048, or the power of two that holds the\n"
         "longest of a trace); longer ones are left out",
         0, 1 << 27},
        {"block-sizes", BENCH_LIST, &o->block_sizes, "LIST",
         "of the trade-off table (1,2,4,8,16,32,64,128,256)", 1, 4096},
        {"demo", BENCH_FLAG, &o->is_demo, NULL,
         "the textbook case and the 64-slot picture instead (SVG with --out)", 0, 0},
        {"csv", BENCH_STRING, &o->csv, "PATH",
         "write the shares to a .csv file, or all to a folder", 0, 0},
        {"json", BENCH_FLAG, &o->is_json, NULL, "print JSON lines instead of the report", 0, 0},
        {"out", BENCH_STRING, &o->out, "DIR",
         "also write report, CSV and SVG plots there (needs gnuplot)", 0, 0},
    };
    const bench_program program = {
        .name = "bench_fragmentation",
        .summary = "Measures who uses the KV memory: contiguous allocation (three policies over a "
                   "buddy\nallocator) and paging by this library, the same requests in the same "
                   "number of slots;\nand what the block size trades.",
        .options = table,
        .num_options = sizeof(table) / sizeof(table[0]),
    };

    if (!bench_parse_options(&program, argc, argv, exit_code)) {
        return false;
    }
    if (o->is_demo && (o->is_json || o->csv != NULL || o->table != NULL || o->trace != NULL)) {
        fprintf(stderr, "bench_fragmentation: --demo tells a fixed story; it takes only --out\n");
        *exit_code = BENCH_EXIT_USAGE;
        return false;
    }
    if (o->table != NULL && o->trace != NULL) {
        fprintf(stderr, "bench_fragmentation: --table and --trace exclude each other\n");
        *exit_code = BENCH_EXIT_USAGE;
        return false;
    }
    return true;
}

int main(int argc, char **argv) {
    fragmentation_options options = {
        .seed = 1,
        .num_steps = MEMORY_DEFAULT_STEPS,
        .block_sizes = {9, {1, 2, 4, 8, 16, 32, 64, 128, 256}},
    };
    int exit_code;

    if (!parse(&options, argc, argv, &exit_code)) {
        return exit_code;
    }
    if (!prepare_output(&options)) {
        return BENCH_EXIT_FAILED;
    }
    if (options.is_demo) {
        return memory_run_demo(stdout, options.out) ? BENCH_EXIT_OK : BENCH_EXIT_FAILED;
    }

    memory_experiment *experiment = calloc(1, sizeof(*experiment));

    exit_code = BENCH_EXIT_USAGE;
    if (experiment != NULL && load_list(&options, &experiment->list) &&
        set_geometry(&options, experiment) && check_block_sizes(&options, &experiment->setup)) {
        bool is_good = run_experiment(&options, experiment) && show(&options, experiment);

        exit_code = is_good ? BENCH_EXIT_OK : BENCH_EXIT_FAILED;
    }
    if (experiment != NULL) {
        workload_release(&experiment->list);
    }
    free(experiment);
    return exit_code;
}
