/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* bench_sharing: blocks that fork and copy-on-write save for parallel sampling and beam search,
 * beside requests of their own that share full blocks through the prefix cache (how vLLM V1 does
 * it); what a fork and a copy cost in the manager; and the prompt tokens of generated chats that
 * hits save which go on into a block (chat_hits.c).
 *
 * Method: each prompt of a length table is continued by n sequences to the table's output length.
 * After each step the blocks in use and the columns of all tables are counted; the share saved is
 * (columns - blocks) / columns of the sums over all steps. Beams are chosen by seeded random scores
 * (sharing_run.c), no model is run. */
#include <stdlib.h>
#include <string.h>

#include "chat_hits.h"
#include "options.h"
#include "plot.h"
#include "report.h"
#include "sharing_run.h"

#define BENCH "sharing"
#define NUM_WIDTHS 3
#define NUM_BLOCK_SIZES 4
#define PAPER "vLLM paper, lowest of its widths"

static const int32_t widths[NUM_WIDTHS] = {2, 4, 6};
static const int32_t block_sizes[NUM_BLOCK_SIZES] = {16, 32, 64, 128};
static const char *const tables[2] = {"alpaca", "sharegpt"};
static const char *const modes[2] = {"parallel", "beam"};
static const double paper_low[2][2] = {{6.1, 37.6}, {16.2, 44.3}};
static const double paper_high[2][2] = {{9.8, 55.2}, {30.5, 66.3}};

static struct {
    bool is_json;
    const char *folder;
    int32_t num_groups, block_size, num_rounds, num_turns, min_partial;
    uint64_t seed;
} options = {false, NULL, 60, 16, 200, 2000, 1, 1};

static double saved(const sharing_result *result) {
    return 100.0 * (double)(result->num_column_steps - result->num_block_steps) /
           (double)result->num_column_steps;
}

static double per_sequence_step(int64_t count, const sharing_result *result) {
    return (double)count / (double)result->num_sequence_steps;
}

static void print_json(const char *table,
                       int mode,
                       int32_t width,
                       const sharing_result *fork,
                       const sharing_result *cache,
                       double paper) {
    char name[64];

    (void)snprintf(name, sizeof name, "%s/%s/%d", table, modes[mode], width);
    bench_json_line(stdout, BENCH, name, "blocks_saved", "percent", saved(fork), PAPER, paper);
    bench_json_line(stdout, BENCH, name, "blocks_saved_by_prefix_cache", "percent", saved(cache),
                    NULL, 0);
    bench_json_line(stdout, BENCH, name, "blocks", "per sequence and step",
                    per_sequence_step(fork->num_block_steps, fork), "by prefix cache",
                    per_sequence_step(cache->num_block_steps, cache));
    bench_json_line(stdout, BENCH, name, "copies", "blocks per sampled token",
                    per_sequence_step(fork->num_copies, fork), NULL, 0);
    bench_json_line(stdout, BENCH, name, "recomputed", "tokens per sampled token",
                    per_sequence_step(fork->num_recomputed, fork), "by prefix cache",
                    per_sequence_step(cache->num_recomputed, cache));
}

struct outputs {
    bench_table table;
    FILE *csv;
    double saved[2][2][NUM_WIDTHS][2]; /* by fork, by prefix cache */
};

/* One table, one way of sampling, one width, shared by fork and by prefix cache. */
static bool run_case(const workload_list *workload, int t, int mode, int w, struct outputs *out) {
    sharing_config config = {.workload = workload,
                             .mode = (sharing_mode)mode,
                             .width = widths[w],
                             .block_size = options.block_size,
                             .num_groups = options.num_groups,
                             .seed = options.seed};
    sharing_result fork;
    sharing_result cache;

    if (!sharing_run(&config, &fork)) {
        return false;
    }
    config.by_prefix_cache = true;
    if (!sharing_run(&config, &cache)) {
        return false;
    }
    out->saved[t][mode][w][0] = saved(&fork);
    out->saved[t][mode][w][1] = saved(&cache);
    if (options.is_json) {
        print_json(tables[t], mode, widths[w], &fork, &cache, paper_low[t][mode]);
    }
    bench_table_row(&out->table, "%s|%s|%d|%.1f|%.1f-%.1f|%.1f|%.4f|%.2f", tables[t], modes[mode],
                    widths[w], saved(&fork), paper_low[t][mode], paper_high[t][mode], saved(&cache),
                    per_sequence_step(fork.num_copies, &fork),
                    per_sequence_step(cache.num_recomputed, &cache));
    if (out->csv != NULL) {
        bench_csv_text(out->csv, true, tables[t]);
        bench_csv_text(out->csv, false, modes[mode]);
        bench_csv_number(out->csv, false, widths[w]);
        bench_csv_number(out->csv, false, saved(&fork));
        bench_csv_number(out->csv, false, saved(&cache));
        bench_csv_number(out->csv, false, per_sequence_step(fork.num_copies, &fork));
        bench_csv_number(out->csv, false, per_sequence_step(cache.num_recomputed, &cache));
        (void)fputc('\n', out->csv);
    }
    return true;
}

static bool run_tables(struct outputs *out) {
    bool is_right = true;

    for (int t = 0; t < 2 && is_right; t++) {
        workload_list workload;
        char error[WORKLOAD_MAX_ERROR];

        if (!workload_make_table(tables[t], options.seed, options.num_groups, &workload, error)) {
            (void)fprintf(stderr, "bench_sharing: %s\n", error);
            return false;
        }
        for (int mode = 0; mode < 2; mode++) {
            for (int w = 0; w < NUM_WIDTHS && is_right; w++) {
                is_right = run_case(&workload, t, mode, w, out);
            }
        }
        workload_release(&workload);
    }
    return is_right;
}

/* ---- chats ----------------------------------------------------------------------------------- */

static double percent_of(int64_t part, int64_t whole) {
    return whole > 0 ? 100.0 * (double)part / (double)whole : 0.0;
}

/* One block size: hits of whole blocks, hits that go on, and what no end of a block would lose. */
static void report_chats(int32_t block_size,
                         const chat_hits *whole,
                         const chat_hits *partial,
                         int64_t most,
                         bench_table *table,
                         FILE *csv) {
    int64_t num_saved = partial->num_hit_tokens - whole->num_hit_tokens;
    double before = percent_of(whole->num_hit_tokens, whole->num_prompt_tokens);
    double after = percent_of(partial->num_hit_tokens, whole->num_prompt_tokens);
    double regained = percent_of(num_saved, most - whole->num_hit_tokens);
    double rows = partial->num_partial_hits > 0
                      ? (double)partial->num_partial_tokens / (double)partial->num_partial_hits
                      : 0.0;
    char name[64];

    bench_table_row(table, "%d|%.2f|%.2f|%lld|%.1f|%lld|%.1f", block_size, before, after,
                    (long long)num_saved, regained, (long long)partial->num_copies, rows);
    if (csv != NULL) {
        (void)fprintf(csv, "%d,%.4f,%.4f,%lld,%.4f,%lld,%.4f\n", block_size, before, after,
                      (long long)num_saved, regained, (long long)partial->num_copies, rows);
    }
    if (options.is_json) {
        (void)snprintf(name, sizeof name, "chats/%d", block_size);
        bench_json_line(stdout, BENCH, name, "hit_tokens", "percent of prompt tokens", after,
                        "whole blocks", before);
        bench_json_line(stdout, BENCH, name, "saved_tokens", "tokens", (double)num_saved, NULL, 0);
        bench_json_line(stdout, BENCH, name, "lost_tokens_regained", "percent", regained, NULL, 0);
        bench_json_line(stdout, BENCH, name, "copies", "blocks", (double)partial->num_copies, NULL,
                        0);
        bench_json_line(stdout, BENCH, name, "rows_per_copy", "tokens", rows, NULL, 0);
    }
}

static bool run_block_sizes(const chat_workload *chats, bench_table *table, FILE *csv) {
    chat_hits most;
    chat_hits whole;
    chat_hits partial;
    char error[CHAT_HITS_MAX_ERROR];

    if (!chat_hits_count(chats, 1, 0, &most, error)) {
        (void)fprintf(stderr, "bench_sharing: chats: %s\n", error);
        return false;
    }
    for (int i = 0; i < NUM_BLOCK_SIZES; i++) {
        if (!chat_hits_count(chats, block_sizes[i], 0, &whole, error) ||
            !chat_hits_count(chats, block_sizes[i], options.min_partial, &partial, error)) {
            (void)fprintf(stderr, "bench_sharing: chats: %s\n", error);
            return false;
        }
        report_chats(block_sizes[i], &whole, &partial, most.num_hit_tokens, table, csv);
    }
    if (!options.is_json) {
        printf("chats: %d turns, %lld prompt tokens, %.2f%% of them cached by an earlier turn\n",
               chats->num_turns, (long long)most.num_prompt_tokens,
               percent_of(most.num_hit_tokens, most.num_prompt_tokens));
    }
    return true;
}

static bool run_chats(void) {
    chat_config config = {.seed = options.seed, .num_turns = options.num_turns};
    chat_workload chats;
    bench_table table;
    FILE *csv = NULL;
    const char *error = NULL;
    bool is_right;

    if (!chat_make(&config, &chats, &error)) {
        (void)fprintf(stderr, "bench_sharing: chats: %s\n", error);
        return false;
    }
    if (options.folder != NULL) {
        csv = plot_open(options.folder, "sharing_chats.csv");
        if (csv == NULL) {
            chat_release(&chats);
            return false;
        }
        (void)fputs("block_size,whole_blocks_percent,partial_percent,saved_tokens,"
                    "lost_regained_percent,copies,rows_per_copy\n",
                    csv);
    }
    bench_table_begin(&table, "block|hits, whole blocks %|hits, partial %|tokens saved|"
                              "of what was lost %|copies|rows a copy");
    is_right = run_block_sizes(&chats, &table, csv);
    if (!options.is_json) {
        bench_table_print(&table, stdout, 0);
    }
    if (csv != NULL) {
        is_right = fclose(csv) == 0 && is_right;
    }
    chat_release(&chats);
    return is_right;
}

/* ---- time ------------------------------------------------------------------------------------ */

static bool run_times(void) {
    double fork_ns;
    double copy_ns;
    double plain_ns;

    if (!sharing_time_fork(32768, options.num_rounds, &fork_ns) ||
        !sharing_time_copies(options.num_rounds, &copy_ns, &plain_ns)) {
        return false;
    }
    if (options.is_json) {
        bench_json_line(stdout, BENCH, "fork", "time_32768_tokens", "us", fork_ns / 1e3, "goal",
                        25.0);
        bench_json_line(stdout, BENCH, "copy_on_write", "time_per_block", "ns", copy_ns, "goal",
                        100.0);
        return true;
    }
    printf("fork of 32768 tokens: %.1f us (goal 25)\n", fork_ns / 1e3);
    printf("copy-on-write: %.0f ns a block (goal 100) beside %.0f ns for the step of a sequence\n",
           copy_ns, plain_ns);
    return true;
}

static bool write_plot(const struct outputs *out) {
    FILE *data = plot_open(options.folder, "sharing.dat");
    FILE *script;

    if (data == NULL) {
        return false;
    }
    for (int t = 0; t < 2; t++) {
        for (int mode = 0; mode < 2; mode++) {
            for (int w = 0; w < NUM_WIDTHS; w++) {
                (void)fprintf(data, "\"%s %s %d\" %.2f %.2f\n", tables[t], modes[mode], widths[w],
                              out->saved[t][mode][w][0], out->saved[t][mode][w][1]);
            }
        }
    }
    (void)fclose(data);
    script = plot_begin(options.folder, "sharing", 900, 420);
    if (script == NULL) {
        return false;
    }
    (void)fputs("set style data histogram\nset style fill solid 0.7\nset yrange [0:100]\n"
                "set ylabel 'blocks saved, percent'\nset xtics rotate by -35\nset key top left\n"
                "plot 'sharing.dat' using 2:xtic(1) title 'fork, copy-on-write', "
                "'' using 3 title 'prefix cache'\n",
                script);
    return plot_end(script, options.folder, "sharing");
}

static bool open_outputs(struct outputs *out) {
    memset(out, 0, sizeof *out);
    bench_table_begin(&out->table,
                      "<table|<sampling|width|saved %|paper %|by prefix cache %|copies a token|"
                      "recomputed a token (cache)");
    if (options.folder == NULL) {
        return true;
    }
    out->csv = bench_make_folder(options.folder) ? plot_open(options.folder, "sharing.csv") : NULL;
    if (out->csv != NULL) {
        (void)fputs("table,sampling,width,saved_percent,saved_by_prefix_cache_percent,"
                    "copies_per_token,recomputed_per_token_by_prefix_cache\n",
                    out->csv);
    }
    return out->csv != NULL;
}

int main(int argc, char **argv) {
    const bench_option list[] = {
        {"json", BENCH_FLAG, &options.is_json, NULL, "print JSON lines only", 0, 0},
        {"out", BENCH_STRING, &options.folder, "FOLDER",
         "write sharing.csv, sharing_chats.csv and the plot there", 0, 0},
        {"prompts", BENCH_INT, &options.num_groups, "N", "prompts of each table", 1, 100000},
        {"block-size", BENCH_INT, &options.block_size, "N", "tokens of a block", 1, 256},
        {"rounds", BENCH_INT, &options.num_rounds, "N", "rounds of each timing", 1, 512},
        {"turns", BENCH_INT, &options.num_turns, "N", "turns of all chats", 1, 1000000},
        {"min-partial", BENCH_INT, &options.min_partial, "N",
         "least tokens by which a hit goes on into a block", 1, 15},
        {"seed", BENCH_UINT64, &options.seed, "N", "of lengths, tokens, beams and chats", 0, 0},
    };
    const bench_program program = {"bench_sharing",
                                   "Blocks saved by fork and copy-on-write, tokens saved by hits "
                                   "that go on into a block.",
                                   NULL, list, sizeof list / sizeof list[0]};
    struct outputs out;
    int exit_code;
    bool is_right;

    if (!bench_parse_options(&program, argc, argv, &exit_code)) {
        return exit_code;
    }
    if (!open_outputs(&out)) {
        return BENCH_EXIT_FAILED;
    }
    is_right = run_tables(&out);
    if (!options.is_json) {
        bench_table_print(&out.table, stdout, 0);
    }
    if (out.csv != NULL) {
        is_right = fclose(out.csv) == 0 && is_right;
    }
    if (is_right && options.folder != NULL && plot_is_available()) {
        is_right = write_plot(&out);
    } else if (is_right && options.folder != NULL) {
        (void)fputs("bench_sharing: no plot, since gnuplot cannot be run\n", stderr);
    }
    is_right = is_right && run_chats() && run_times();
    if (!is_right) {
        (void)fputs("bench_sharing: a call of the manager or its self-check failed\n", stderr);
    }
    return is_right ? BENCH_EXIT_OK : BENCH_EXIT_FAILED;
}
