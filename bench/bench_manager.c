/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* bench_manager: what the calls of the control tower cost, beside a stack allocator, a copy of the
 * block table and a walk through memory measured in the same run, and beside figures of the Python
 * reference. The situations stand in manager_cases.h, the curves in manager_curves.h.
 *
 * Method: rounds are interleaved over all cases; in a round a case is run untimed for half a
 * millisecond, at least once, so that caches and branch predictors know it, and then once timed;
 * the median over the rounds is reported. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "manager_cases.h"
#include "manager_curves.h"
#include "manager_peers.h"
#include "options.h"
#include "plot.h"
#include "report.h"

#define BENCH "manager"
#define MAX_ROUNDS 128
#define WARM_UP_NS 500000
#define REFERENCE "reference manager in Python, best repeat on another machine"

enum case_index {
    CASE_STACK,
    CASE_CYCLE_1,
    CASE_CYCLE_64,
    CASE_CYCLE_1024,
    CASE_LRU_EVICT,
    CASE_LRU_PUBLISH,
    CASE_LRU_TOUCH,
    CASE_NAIVE,
    CASE_CHASE,
    CASE_TABLE_COPY,
    CASE_ALLOCATE,
    CASE_STEP,
    CASE_APPEND,
    CASE_LOOKUP,
    CASE_LOOKUP_TOKENS,
    CASE_LOOKUP_HASHED,
    CASE_KEYS,
    CASE_PREFILL,
    NUM_CASES
};

/* Everything that is measured, set up once. */
struct setup {
    stack_allocator stack;
    int32_t stack_ids[1024];
    pool_case cycle_1, cycle_64, cycle_1024;
    pool_case evict, publish, touch;
    naive_list naive;
    pointer_chase chase;
    decode_case decode, append;
    lookup_case lookup, lookup_tokens;
    prefill_case prefill;
};

/* How a case is reported. The peer is another case of the same run, or a quoted figure. */
struct report_line {
    const char *name, *metric, *unit;
    double scale;  /* of nanoseconds */
    int peer_case; /* -1: none in this run */
    double quoted; /* of the reference, in the unit; 0: none */
};

static const struct report_line lines[NUM_CASES] = {
    [CASE_STACK] = {"stack", "get+free, batch 64", "ns/block", 1.0, -1, 0.0},
    [CASE_CYCLE_1] = {"pool", "get+free, batch 1", "ns/block", 1.0, CASE_STACK, 790.0},
    [CASE_CYCLE_64] = {"pool", "get+free, batch 64", "ns/block", 1.0, CASE_STACK, 294.0},
    [CASE_CYCLE_1024] = {"pool", "get+free, batch 1024", "ns/block", 1.0, CASE_STACK, 282.0},
    [CASE_LRU_EVICT] = {"pool-lru-128k", "evict+free, batch 64", "ns/block", 1.0, CASE_CHASE, 0.0},
    [CASE_LRU_PUBLISH] = {"pool-lru-128k", "evict+publish+free, batch 64", "ns/block", 1.0,
                          CASE_CHASE, 0.0},
    [CASE_LRU_TOUCH] = {"pool-lru-128k", "touch+free, batch 64", "ns/block", 1.0, CASE_NAIVE, 0.0},
    [CASE_NAIVE] = {"naive-list-128k", "pop+append, batch 64", "ns/block", 1.0, -1, 0.0},
    [CASE_CHASE] = {"memory-8MiB", "dependent random reads", "ns/read", 1.0, -1, 0.0},
    [CASE_TABLE_COPY] = {"table-copy", "memcpy of 256 rows of 4k", "ns/request", 1.0, -1, 0.0},
    [CASE_ALLOCATE] = {"decode-256x4k", "allocate_slots", "ns/request", 1.0, CASE_TABLE_COPY,
                       3270.0},
    [CASE_STEP] = {"decode-256x4k", "step with batch", "us/step", 0.256, CASE_TABLE_COPY, 840.0},
    [CASE_APPEND] = {"decode-256x4k", "append of a token", "ns/request", 1.0, -1, 910.0},
    [CASE_LOOKUP] = {"lookup-32k", "keys known", "us", 1e-3, -1, 890.0},
    [CASE_LOOKUP_TOKENS] = {"lookup-32k", "keys known, tokens compared", "us", 1e-3, -1, 890.0},
    [CASE_LOOKUP_HASHED] = {"lookup-32k", "with both hash chains", "us", 1e-3, CASE_KEYS, 4100.0},
    [CASE_KEYS] = {"keys-32k", "both hash chains alone", "us", 1e-3, -1, 0.0},
    [CASE_PREFILL] = {"prefill-4096", "evict, allocate, publish", "us", 1e-3, -1, 270.0},
};

static bool set_up(struct setup *setup) {
    return stack_allocator_create(&setup->stack, 65536) &&
           pool_case_create(&setup->cycle_1, 65536, 1, POOL_KEYLESS) &&
           pool_case_create(&setup->cycle_64, 65536, 64, POOL_KEYLESS) &&
           pool_case_create(&setup->cycle_1024, 65536, 1024, POOL_KEYLESS) &&
           pool_case_create(&setup->evict, 131072, 64, POOL_LRU) &&
           pool_case_create(&setup->publish, 131072, 64, POOL_LRU) &&
           pool_case_create(&setup->touch, 131072, 64, POOL_LRU) &&
           naive_list_create(&setup->naive, 131072, 64, 5) &&
           pointer_chase_create(&setup->chase, (size_t)8 << 20, 3) &&
           decode_case_create(&setup->decode, 256, 4096, 16, false) &&
           decode_case_create(&setup->append, 256, 4096, 16, false) &&
           lookup_case_create(&setup->lookup, 32768, 16, false) &&
           lookup_case_create(&setup->lookup_tokens, 32768, 16, true) &&
           prefill_case_create(&setup->prefill, 4096, 16);
}

static void tear_down(struct setup *setup) {
    stack_allocator_destroy(&setup->stack);
    pool_case_destroy(&setup->cycle_1);
    pool_case_destroy(&setup->cycle_64);
    pool_case_destroy(&setup->cycle_1024);
    pool_case_destroy(&setup->evict);
    pool_case_destroy(&setup->publish);
    pool_case_destroy(&setup->touch);
    naive_list_destroy(&setup->naive);
    pointer_chase_destroy(&setup->chase);
    decode_case_destroy(&setup->decode);
    decode_case_destroy(&setup->append);
    lookup_case_destroy(&setup->lookup);
    lookup_case_destroy(&setup->lookup_tokens);
    prefill_case_destroy(&setup->prefill);
}

static double run_case(struct setup *setup, int index) {
    switch (index) {
    case CASE_STACK:
        return stack_allocator_cycle(&setup->stack, setup->stack_ids, 64, 256);
    case CASE_CYCLE_1:
        return pool_case_cycle(&setup->cycle_1);
    case CASE_CYCLE_64:
        return pool_case_cycle(&setup->cycle_64);
    case CASE_CYCLE_1024:
        return pool_case_cycle(&setup->cycle_1024);
    case CASE_LRU_EVICT:
        return pool_case_evict(&setup->evict, false);
    case CASE_LRU_PUBLISH:
        return pool_case_evict(&setup->publish, true);
    case CASE_LRU_TOUCH:
        return pool_case_touch(&setup->touch);
    case CASE_NAIVE:
        return naive_list_cycle(&setup->naive, 128);
    case CASE_CHASE:
        return pointer_chase_run(&setup->chase, 8192);
    case CASE_TABLE_COPY:
        return decode_case_memcpy(&setup->decode);
    case CASE_ALLOCATE:
        return decode_case_allocate(&setup->decode);
    case CASE_STEP:
        return decode_case_step(&setup->decode);
    case CASE_APPEND:
        return decode_case_append(&setup->append);
    case CASE_LOOKUP:
        return lookup_case_known(&setup->lookup);
    case CASE_LOOKUP_TOKENS:
        return lookup_case_known(&setup->lookup_tokens);
    case CASE_LOOKUP_HASHED:
        return lookup_case_hashed(&setup->lookup);
    case CASE_KEYS:
        return lookup_case_keys(&setup->lookup);
    default:
        return prefill_case_allocate(&setup->prefill);
    }
}

static void warm_up(struct setup *setup, int index) {
    int64_t start = bench_now_ns();

    do {
        (void)run_case(setup, index);
    } while (bench_now_ns() - start < WARM_UP_NS);
}

/* ---- what is written ------------------------------------------------------------------------- */

static double metadata_bytes(void) {
    pkv_pool_config config = {0};
    size_t small;

    config.struct_size = sizeof config;
    config.num_blocks = 1 << 20;
    small = pkv_pool_size(&config);
    config.num_blocks = 1 << 21;
    return (double)(pkv_pool_size(&config) - small) / (double)(1 << 20);
}

static void print_cases_json(const double *medians) {
    for (int i = 0; i < NUM_CASES; i++) {
        const struct report_line *line = &lines[i];
        double value = medians[i] * line->scale;

        if (line->peer_case >= 0) {
            bench_json_line(stdout, BENCH, line->name, line->metric, line->unit, value,
                            lines[line->peer_case].name, medians[line->peer_case] * line->scale);
        } else {
            bench_json_line(stdout, BENCH, line->name, line->metric, line->unit, value, NULL, NAN);
        }
        if (line->quoted > 0.0) {
            bench_json_line(stdout, BENCH, line->name, line->metric, line->unit, value, REFERENCE,
                            line->quoted);
        }
    }
    bench_json_line(stdout, BENCH, "metadata", "bytes a block", "B", metadata_bytes(),
                    "reference, object without ints and keys", 88.0);
}

static void print_cases(const double *medians) {
    bench_table table;

    printf("Calls of the control tower (medians of interleaved rounds)\n\n");
    bench_table_begin(&table, "<case|<what|time|<unit|<peer of the same run|peer|ratio|reference");
    for (int i = 0; i < NUM_CASES; i++) {
        const struct report_line *line = &lines[i];
        double value = medians[i] * line->scale;
        char quoted[32] = "";

        if (line->quoted > 0.0) {
            (void)snprintf(quoted, sizeof quoted, "%.0f", line->quoted);
        }
        if (line->peer_case < 0) {
            bench_table_row(&table, "%s|%s|%.2f|%s||||%s", line->name, line->metric, value,
                            line->unit, quoted);
        } else {
            double peer = medians[line->peer_case] * line->scale;
            bench_table_row(&table, "%s|%s|%.2f|%s|%s|%.2f|%.2f|%s", line->name, line->metric,
                            value, line->unit, lines[line->peer_case].name, peer, value / peer,
                            quoted);
        }
    }
    bench_table_print(&table, stdout, 2);
    printf("\n  Metadata: %.2f bytes a block. Reference: %s.\n\n", metadata_bytes(), REFERENCE);
}

static void print_curve_json(const curve *points, const char *unit, const char *peer) {
    for (int32_t i = 0; i < points->num_points; i++) {
        const curve_point *point = &points->points[i];
        char name[64];

        (void)snprintf(name, sizeof name, "%s-%d", points->name, point->x);
        bench_json_line(stdout, BENCH, name, "time", unit, point->value, peer,
                        peer == NULL ? NAN : point->peer);
        if (point->slots_probed > 0.0) {
            bench_json_line(stdout, BENCH, name, "index slots read a block", "slots",
                            point->slots_probed, NULL, NAN);
        }
    }
}

static void print_curve(const curve *points, const char *title, const char *x, const char *peer) {
    const curve_point *first = &points->points[0];
    bench_table table;
    char headings[128];

    printf("%s\n\n", title);
    (void)snprintf(headings, sizeof headings, "%s|time|growth|%s|growth|slots read", x, peer);
    bench_table_begin(&table, headings);
    for (int32_t i = 0; i < points->num_points; i++) {
        const curve_point *point = &points->points[i];

        if (point->peer > 0.0) {
            bench_table_row(&table, "%d|%.1f ns|%.2f|%.1f ns|%.2f|%.2f", point->x, point->value,
                            point->value / first->value, point->peer, point->peer / first->peer,
                            point->slots_probed);
        } else {
            bench_table_row(&table, "%d|%.2f ns|%.2f|||%.2f", point->x, point->value,
                            point->value / first->value, point->slots_probed);
        }
    }
    bench_table_print(&table, stdout, 2);
    printf("\n");
}

static bool write_csv(const char *folder, const curve *curves, int32_t num_curves) {
    FILE *file = plot_open(folder, "manager_curves.csv");

    if (file == NULL) {
        return false;
    }
    fprintf(file, "curve,x,ns,peer_ns,blocks_touched,slots_probed\n");
    for (int32_t c = 0; c < num_curves; c++) {
        for (int32_t i = 0; i < curves[c].num_points; i++) {
            const curve_point *point = &curves[c].points[i];
            fprintf(file, "%s,%d,%.3f,%.3f,%.3f,%.3f\n", curves[c].name, point->x, point->value,
                    point->peer, point->blocks_touched, point->slots_probed);
        }
    }
    return fclose(file) == 0;
}

/* One picture of a curve and its peer over a logarithmic axis. */
static bool plot_curve(const char *folder,
                       const curve *points,
                       const char *title,
                       const char *ours,
                       const char *peer) {
    char name[64];
    char data[80];
    FILE *file;
    FILE *script;

    (void)snprintf(name, sizeof name, "manager_%s", points->name);
    (void)snprintf(data, sizeof data, "%s.dat", name);
    file = plot_open(folder, data);
    if (file == NULL) {
        return false;
    }
    for (int32_t i = 0; i < points->num_points; i++) {
        fprintf(file, "%d %.3f %.3f\n", points->points[i].x, points->points[i].value,
                points->points[i].peer);
    }
    if (fclose(file) != 0) {
        return false;
    }
    script = plot_begin(folder, name, 760, 440);
    if (script == NULL) {
        return false;
    }
    fprintf(script,
            "set title '%s'\nset logscale x 2\nset logscale y\nset format x '%%.0s%%c'\n"
            "set xlabel 'blocks in the pool'\nset ylabel 'ns a block (log scale)'\n"
            "set key left top\n"
            "plot '%s' using 1:2 with linespoints ls 1 title '%s', "
            "'%s' using 1:3 with linespoints ls 2 title '%s'\n",
            title, data, ours, data, peer);
    return plot_end(script, folder, name);
}

/* ---- main ------------------------------------------------------------------------------------ */

struct arguments {
    int32_t rounds;
    int32_t max_blocks;
    bool json;
    bool no_curves;
    const char *out;
};

static bool measure_cases(int32_t rounds, double *medians) {
    static double samples[NUM_CASES][MAX_ROUNDS];
    struct setup *setup = calloc(1, sizeof *setup);
    bench_progress progress;
    bool is_ok = setup != NULL && set_up(setup);

    bench_progress_begin(&progress);
    for (int32_t round = -1; is_ok && round < rounds; round++) {
        bench_progress_update(&progress, "calls", (double)(round + 1) / rounds);
        for (int i = 0; i < NUM_CASES; i++) {
            warm_up(setup, i);
            /* The first round only fills caches and free lists. */
            if (round >= 0) {
                samples[i][round] = run_case(setup, i);
            }
        }
    }
    bench_progress_end(&progress);
    is_ok = is_ok && setup->lookup.num_hits == 32768 && setup->lookup_tokens.num_hits == 32768;
    if (!is_ok) {
        fprintf(stderr, "bench_manager: a case could not be set up, or a lookup did not hit\n");
    }
    for (int i = 0; is_ok && i < NUM_CASES; i++) {
        medians[i] = bench_median(samples[i], rounds);
    }
    if (setup != NULL) {
        tear_down(setup);
    }
    free(setup);
    return is_ok;
}

/* Measure and report the curves. */
static int run_curves(const struct arguments *arguments) {
    static curve curves[3];
    const char *chase = "pointer chase, same bytes";
    int32_t rounds = arguments->rounds / 3 + 1;

    if (!curve_of_pool_size(&curves[0], arguments->max_blocks, rounds) ||
        !curve_of_block_size(&curves[1], rounds) ||
        !curve_of_middle_remove(&curves[2], 1 << 20, rounds)) {
        fprintf(stderr, "bench_manager: not enough memory for the curves\n");
        return BENCH_EXIT_FAILED;
    }
    if (arguments->json) {
        print_curve_json(&curves[0], "ns/block", chase);
        print_curve_json(&curves[1], "ns/token", NULL);
        print_curve_json(&curves[2], "ns/block", "singly linked queue");
    } else {
        print_curve(&curves[0], "Evict, publish, free in LRU order, by size of the pool", "blocks",
                    "chase");
        print_curve(&curves[1],
                    "Keys, lookup, allocation and free of 4,096 tokens, a token, by block size",
                    "block size", "");
        print_curve(&curves[2], "A block out of the middle of the free queue", "blocks",
                    "singly linked");
    }
    if (!curve_counts_are_constant(&curves[0])) {
        fprintf(stderr, "bench_manager: what a call touches depends on the size of the pool\n");
        return BENCH_EXIT_FAILED;
    }
    if (!curve_counts_are_constant(&curves[1])) {
        fprintf(stderr, "bench_manager: what a token touches depends on the block size\n");
        return BENCH_EXIT_FAILED;
    }
    if (arguments->out != NULL &&
        !(bench_make_folder(arguments->out) && write_csv(arguments->out, curves, 3) &&
          plot_curve(arguments->out, &curves[0], "A cached block handed out anew, by pool size",
                     "evict, publish, free", chase) &&
          plot_curve(arguments->out, &curves[2], "A block out of the middle of the free queue",
                     "doubly linked (pkv\\_pool\\_touch)", "singly linked"))) {
        return BENCH_EXIT_FAILED;
    }
    return BENCH_EXIT_OK;
}

int main(int argc, char **argv) {
    struct arguments arguments = {31, 1 << 22, false, false, NULL};
    const bench_option options[] = {
        {"rounds", BENCH_INT, &arguments.rounds, "N", "interleaved rounds (default 31)", 3,
         MAX_ROUNDS},
        {"max-blocks", BENCH_INT, &arguments.max_blocks, "N",
         "largest pool of the curve (default 4194304)", 4096, 1 << 24},
        {"no-curves", BENCH_FLAG, &arguments.no_curves, NULL, "calls only", 0, 0},
        {"json", BENCH_FLAG, &arguments.json, NULL, "JSON lines instead of a report", 0, 0},
        {"out", BENCH_STRING, &arguments.out, "DIR", "write CSV and SVG plots there", 0, 0},
    };
    const bench_program program = {
        "bench_manager",
        "Time of the control tower's calls beside peers of the same run, and how it grows.", NULL,
        options, (int32_t)(sizeof options / sizeof options[0])};
    double medians[NUM_CASES];
    int exit_code;

    if (!bench_parse_options(&program, argc, argv, &exit_code)) {
        return exit_code;
    }
    if (!measure_cases(arguments.rounds, medians)) {
        return BENCH_EXIT_FAILED;
    }
    if (arguments.json) {
        print_cases_json(medians);
    } else {
        print_cases(medians);
    }
    return arguments.no_curves ? BENCH_EXIT_OK : run_curves(&arguments);
}
