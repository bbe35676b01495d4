/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* bench_serve: a server's day without a model. Requests from a trace or from generated chats go
 * through scheduler and manager in simulated time; what is reported is what the cache found, what
 * preemption cost, how full the pool was, and how long the library's calls took.
 *
 * The one idea: everything but the model is real, see serve.h. */
#include "options.h"
#include "report.h"
#include "serve_output.h"
#include "serve_replay.h"
#include "serve_source.h"
#include "serve_timed.h"

#include <stdio.h>
#include <string.h>

/* Chats that are made where neither a trace nor a number is given. */
#define DEFAULT_NUM_CHAT_TURNS 10000

typedef struct command_line {
    serve_options options;
    const char *policy, *report_folder;
    bench_list curve_blocks;
    bool is_curve_only, is_json, is_csv;
} command_line;

static bool parse(int argc, char **argv, command_line *c, int *exit_code) {
    serve_options *o = &c->options;
    const bench_option options[] = {
        {"trace", BENCH_STRING, &o->trace, "FILE",
         "replay a trace (Mooncake JSON lines, Azure CSV, two-column CSV);\n"
         "default: generated multi-turn chats",
         0, 0},
        {"requests", BENCH_INT, &o->num_requests, "N",
         "how many of the trace; 0: all. Of chats: 0 means 10000", 0, 1 << 26},
        {"seed", BENCH_UINT64, &o->seed, "N", "of chats and of Poisson arrivals", 0, 0},
        {"rate", BENCH_DOUBLE, &o->rate, "R",
         "requests (of chats: new chats) a second, Poisson; 0: as the trace\n"
         "says, else 4 (of chats: 3)",
         0, 1e6},
        {"num-blocks", BENCH_INT, &o->num_blocks, "N",
         "blocks of the pool, the null block included; 0: eight times what\n"
         "the longest request needs",
         0, PKV_MAX_BLOCKS},
        {"block-size", BENCH_INT, &o->block_size, "N", "tokens in a block", 1, 4096},
        {"max-seqs", BENCH_INT, &o->max_running_requests, "N", "requests that run at once", 1,
         65536},
        {"max-tokens", BENCH_INT, &o->max_step_tokens, "N", "tokens of one step", 1, 1 << 20},
        {"policy", BENCH_STRING, &c->policy, "NAME",
         "fcfs, or priority (three classes, dealt out in turn)", 0, 0},
        {"watermark", BENCH_DOUBLE, &o->watermark, "SHARE",
         "share of the blocks that an admission leaves free", 0, 1},
        {"no-prefix-cache", BENCH_FLAG, &o->disable_prefix_cache, NULL, "look nothing up", 0, 0},
        {"step-base-ms", BENCH_DOUBLE, &o->step_base_ms, "T", "simulated time of a step ...", 0,
         1e6},
        {"token-us", BENCH_DOUBLE, &o->token_us, "T", "... and of each token in it", 0, 1e6},
        {"hit-curve", BENCH_FLAG, &c->is_curve_only, NULL,
         "only the hit curve of a trace with block ids (others have it after\n"
         "the replay): one request at a time, caches of several sizes",
         0, 0},
        {"curve-blocks", BENCH_LIST, &c->curve_blocks, "LIST",
         "sizes of the curve, ascending; one without limit is added", 1, PKV_MAX_BLOCKS - 1},
        {"out", BENCH_STRING, &o->out, "DIR",
         "write CSV files and plots there (made where missing)", 0, 0},
        {"report", BENCH_STRING, &c->report_folder, "DIR", "the same as --out", 0, 0},
        {"json", BENCH_FLAG, &c->is_json, NULL, "print JSON lines only", 0, 0},
        {"csv", BENCH_FLAG, &c->is_csv, NULL, "print CSV only", 0, 0},
    };
    const bench_program program = {
        .name = "bench_serve",
        .summary = "Serves requests in simulated time through a continuous-batching scheduler and\n"
                   "the library: cache hits, preemptions, usage, queue length, call latencies.",
        .epilogue =
            "Checked: no block is lost, the invariants hold at the end, and the hit curves of the\n"
            "Mooncake traces are those of an independent LRU simulation.",
        .options = options,
        .num_options = (int32_t)(sizeof(options) / sizeof(options[0]))};

    return bench_parse_options(&program, argc, argv, exit_code);
}

/* What the table of options cannot say. Returns a message, or NULL. */
static const char *find_contradiction(const command_line *c) {
    const bench_list *sizes = &c->curve_blocks;

    if (strcmp(c->policy, "fcfs") != 0 && strcmp(c->policy, "priority") != 0) {
        return "--policy wants fcfs or priority";
    }
    if (c->is_json && c->is_csv) {
        return "--json and --csv exclude each other";
    }
    if (c->is_curve_only && c->options.trace == NULL) {
        return "--hit-curve wants a --trace with block ids";
    }
    if (c->options.max_step_tokens < c->options.max_running_requests) {
        return "--max-tokens must not be below --max-seqs: each running request wants a token";
    }
    if (c->options.num_blocks == 1) {
        return "--num-blocks wants 2 or more: block 0 is the null block";
    }
    for (int32_t i = 1; i < sizes->num_values; i++) {
        if (sizes->values[i] <= sizes->values[i - 1]) {
            return "--curve-blocks wants ascending sizes";
        }
    }
    return NULL;
}

/* What follows from other options. */
static void complete_options(command_line *c) {
    c->options.use_priorities = strcmp(c->policy, "priority") == 0;
    if (c->options.out == NULL) {
        c->options.out = c->report_folder;
    }
    if (c->options.trace == NULL && c->options.num_requests == 0) {
        c->options.num_requests = DEFAULT_NUM_CHAT_TURNS;
    }
}

static int run_replay(const serve_options *options, const serve_source *source) {
    char error[SERVE_MAX_ERROR];
    char title[160];
    int32_t num_blocks = serve_replay_choose_num_blocks(options, source);
    serve_result result;
    int exit_code = BENCH_EXIT_OK;

    serve_timed_begin();
    if (!serve_replay(options, source, &result, error)) {
        fprintf(stderr, "bench_serve: %s\n", error);
        exit_code = BENCH_EXIT_FAILED;
    } else {
        serve_output_replay(source->name, options, num_blocks, &result);
        snprintf(title, sizeof(title), "%s: %d requests, %d blocks of %d tokens", source->name,
                 (int)source->num_requests, (int)num_blocks, (int)options->block_size);
        if (options->out != NULL && !serve_output_draw_timeline(options->out, title, &result)) {
            exit_code = BENCH_EXIT_FAILED;
        }
    }
    serve_replay_release(&result);
    return exit_code;
}

static int run_curve(const command_line *c, const serve_source *source) {
    char error[SERVE_MAX_ERROR];
    serve_curve_point points[BENCH_MAX_LIST + 1];
    int32_t sizes[BENCH_MAX_LIST + 1];
    int32_t num_sizes = c->curve_blocks.num_values;
    int exit_code = BENCH_EXIT_OK;

    memcpy(sizes, c->curve_blocks.values, (size_t)num_sizes * sizeof(sizes[0]));
    sizes[num_sizes++] = 0;
    if (!serve_curve_measure(&source->trace, source->num_requests, sizes, num_sizes, points,
                             error)) {
        fprintf(stderr, "bench_serve: %s\n", error);
        return BENCH_EXIT_FAILED;
    }
    serve_output_curve(source->name, points, num_sizes);
    for (int32_t i = 0; i < num_sizes; i++) {
        if (!serve_curve_agrees(&points[i])) {
            fprintf(stderr, "bench_serve: %.2f %% is not the reference's %.1f %% (%d blocks)\n",
                    serve_curve_get_pool_percent(&points[i]), points[i].reference_percent,
                    (int)points[i].num_blocks);
            exit_code = BENCH_EXIT_FAILED;
        }
    }
    if (c->options.out != NULL &&
        !serve_output_draw_curve(c->options.out, source->name, points, num_sizes)) {
        exit_code = BENCH_EXIT_FAILED;
    }
    return exit_code;
}

int main(int argc, char **argv) {
    command_line c = {.options = {.seed = 1,
                                  .block_size = PKV_DEFAULT_BLOCK_SIZE,
                                  .max_running_requests = 64,
                                  .max_step_tokens = 2048,
                                  .step_base_ms = 8.0,
                                  .token_us = 20.0},
                      .policy = "fcfs",
                      .curve_blocks = {6, {1000, 5000, 10000, 20000, 50000, 100000}}};
    char error[SERVE_MAX_ERROR];
    serve_source source;
    int exit_code;

    if (!parse(argc, argv, &c, &exit_code)) {
        return exit_code;
    }
    const char *contradiction = find_contradiction(&c);
    if (contradiction != NULL) {
        fprintf(stderr, "bench_serve: %s\n", contradiction);
        return BENCH_EXIT_USAGE;
    }
    complete_options(&c);
    if (!serve_source_open(&c.options, &source, error)) {
        fprintf(stderr, "bench_serve: %s\n", error);
        return BENCH_EXIT_USAGE;
    }
    bool has_ids = !source.is_chats && source.trace.hash_block_size > 0;
    if (c.is_curve_only && !has_ids) {
        fprintf(stderr, "bench_serve: %s has no block ids, so no hit curve\n", source.name);
        serve_source_close(&source);
        return BENCH_EXIT_USAGE;
    }
    if (c.options.out != NULL && !bench_make_folder(c.options.out)) {
        fprintf(stderr, "bench_serve: cannot make the folder %s\n", c.options.out);
        serve_source_close(&source);
        return BENCH_EXIT_USAGE;
    }

    serve_output_begin(c.is_json ? SERVE_JSON : c.is_csv ? SERVE_CSV : SERVE_TEXT);
    exit_code = c.is_curve_only ? BENCH_EXIT_OK : run_replay(&c.options, &source);
    if (has_ids && exit_code == BENCH_EXIT_OK) {
        exit_code = run_curve(&c, &source);
    }
    serve_source_close(&source);
    return exit_code;
}
