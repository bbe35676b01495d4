/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The memory comparison as a report for people.
 *
 * The one idea: first the five rows that everybody knows from the textbook, with measured numbers;
 * then where every slot went; then what the block size trades. */
#include "fragmentation_report.h"

#include <stdio.h>
#include <string.h>

typedef struct live_figure {
    const char *table, *case_name;
    double live_percent;
} live_figure;

/* Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention"
 * (2023): share of KV memory that holds token states, 13B model, ShareGPT. */
static const live_figure paper_figures[] = {
    {"sharegpt", "max", 20.4},
    {"sharegpt", "pow2", 26.8},
    {"sharegpt", "oracle", 38.2},
    {"sharegpt", "paged", 96.3},
};

/* An allocation simulation independent of this library, on tables of the same means. */
static const live_figure simulated_figures[] = {
    {"sharegpt", "paged-b1", 98.2},   {"sharegpt", "paged-b8", 97.4},
    {"sharegpt", "paged-b16", 96.5},  {"sharegpt", "paged-b32", 94.8},
    {"sharegpt", "paged-b64", 91.6},  {"sharegpt", "paged-b128", 85.4},
    {"sharegpt", "paged-b256", 75.4}, {"alpaca", "paged-b1", 98.5},
    {"alpaca", "paged-b8", 95.0},     {"alpaca", "paged-b16", 91.4},
    {"alpaca", "paged-b32", 84.9},    {"alpaca", "paged-b64", 74.0},
    {"alpaca", "paged-b128", 55.1},   {"alpaca", "paged-b256", 33.3},
};

static const live_figure *find_figure(const live_figure *figures,
                                      size_t num_figures,
                                      const char *table,
                                      const char *case_name) {
    for (size_t i = 0; i < num_figures; i++) {
        if (strcmp(figures[i].table, table) == 0 && strcmp(figures[i].case_name, case_name) == 0) {
            return &figures[i];
        }
    }
    return NULL;
}

memory_peer memory_find_peer(const memory_experiment *experiment, const memory_case *of) {
    const live_figure *figure;
    const char *table = experiment->list.name;

    if (experiment->list.format != WORKLOAD_TABLE ||
        experiment->setup.num_slots != MEMORY_DEFAULT_SLOTS ||
        experiment->setup.max_length != MEMORY_DEFAULT_LENGTH) {
        return (memory_peer){NULL, 0.0};
    }
    figure = find_figure(paper_figures, sizeof(paper_figures) / sizeof(paper_figures[0]), table,
                         of->name);
    if (figure != NULL) {
        return (memory_peer){"vLLM paper", figure->live_percent};
    }
    figure = find_figure(simulated_figures,
                         sizeof(simulated_figures) / sizeof(simulated_figures[0]), table, of->name);
    if (figure != NULL) {
        return (memory_peer){"reference simulation", figure->live_percent};
    }
    return (memory_peer){NULL, 0.0};
}

double memory_get_lost_percent(const memory_experiment *experiment, const block_size_row *row) {
    double all = (double)experiment->all_hits.num_hit_tokens;

    return all > 0.0 ? 100.0 * (all - (double)row->hits.num_hit_tokens) / all : 0.0;
}

static void print_setup(const memory_experiment *experiment, FILE *file) {
    const memory_setup *setup = &experiment->setup;
    const memory_result *paged = &experiment->layouts[LAYOUT_PAGED];
    int32_t block_size = paged->of.block_size;
    long long num_slots = setup->num_slots;

    fprintf(file, "Who uses the KV memory: contiguous allocation and paging, %s\n\n",
            experiment->list.name);
    fprintf(file, "  requests    %d (%s), mean prompt %.1f, mean output %.1f tokens\n",
            experiment->list.num_items, workload_format_name(experiment->list.format),
            experiment->list.mean_input_tokens, experiment->list.mean_output_tokens);
    if (experiment->num_dropped_items > 0 || experiment->list.num_skipped_items > 0) {
        fprintf(file, "              left out: %d longer than %d tokens, %lld without tokens\n",
                experiment->num_dropped_items, setup->max_length,
                (long long)experiment->list.num_skipped_items);
    }
    fprintf(file,
            "  memory      %lld token slots for every layout; a request has at most %d tokens\n"
            "  queue       never empty, first come first served; a running request grows by one "
            "token a step\n"
            "  steps       %d, the first %d not counted; seed %llu\n"
            "  contiguous  one range a request, taken at admission from a buddy allocator over all "
            "slots\n",
            num_slots, setup->max_length, setup->num_steps, setup->num_discarded,
            (unsigned long long)experiment->seed);
    fprintf(
        file,
        "  paged       this library's manager: %lld slots / %d = %d blocks, block 0 (the null "
        "block) among\n"
        "              them, so %d hold tokens; 1%% of the blocks is kept free at admission; "
        "when blocks run\n"
        "              out the youngest request is preempted and recomputed; no prefix cache\n\n",
        num_slots, block_size, paged->num_blocks, paged->num_blocks - 1);
}

/* One use under the four layouts. What is not filled yet stands beside what never will be. */
static void add_uses_row(const char *name,
                         const memory_result *layouts,
                         slot_use use,
                         bench_table *table) {
    static const memory_layout columns[] = {LAYOUT_MAX, LAYOUT_POW2, LAYOUT_ORACLE, LAYOUT_PAGED};
    char cells[4][BENCH_MAX_CELL];

    for (int32_t i = 0; i < 4; i++) {
        const double *percent = layouts[columns[i]].percent;

        if (use == SLOTS_INTERNAL) {
            snprintf(cells[i], BENCH_MAX_CELL, "%.1f %% (%.1f %% reserved)", percent[use],
                     percent[SLOTS_RESERVED]);
        } else {
            snprintf(cells[i], BENCH_MAX_CELL, "%.1f %%", percent[use]);
        }
    }
    bench_table_row(table, "%s|%s|%s|%s|%s", name, cells[0], cells[1], cells[2], cells[3]);
}

static void print_five_rows(const memory_experiment *experiment, FILE *file) {
    const memory_result *layouts = experiment->layouts;
    const memory_result *paged = &layouts[LAYOUT_PAGED];
    bench_table table;

    bench_table_begin(&table, "|<contiguous, maximum|<contiguous, 2^n|<contiguous, oracle|<paged");
    bench_table_row(&table,
                    "layout|one range of %d|one range, prompt + 2^n|one range, exact length"
                    "|blocks of %d, anywhere",
                    experiment->setup.max_length, paged->of.block_size);
    bench_table_row(&table, "when allocated|all at admission|all at admission|all at admission"
                            "|block by block, when reached");
    add_uses_row("internal", layouts, SLOTS_INTERNAL, &table);
    add_uses_row("external", layouts, SLOTS_EXTERNAL, &table);
    add_uses_row("use", layouts, SLOTS_LIVE, &table);
    bench_table_print(&table, file, 2);
    fprintf(file,
            "\n  In the same memory run %.1f, %.1f, %.1f and %.1f requests at once: paging runs "
            "%.1f times as many as\n  the maximum layout and %.1f times as many as an oracle that "
            "knows every length.\n\n",
            layouts[LAYOUT_MAX].mean_batch, layouts[LAYOUT_POW2].mean_batch,
            layouts[LAYOUT_ORACLE].mean_batch, paged->mean_batch,
            paged->mean_batch / layouts[LAYOUT_MAX].mean_batch,
            paged->mean_batch / layouts[LAYOUT_ORACLE].mean_batch);
}

static void add_shares_row(const memory_experiment *experiment,
                           const memory_result *result,
                           bench_table *table) {
    memory_peer peer = memory_find_peer(experiment, &result->of);
    const double *percent = result->percent;
    char published[64] = "";

    if (peer.name != NULL) {
        snprintf(published, sizeof(published), "%.1f %s", peer.live_percent, peer.name);
    }
    bench_table_row(table, "%s|%.2f|%.2f|%.2f|%.2f|%.2f|%.2f|%.1f|%.1f|%lld|%s", result->of.name,
                    percent[SLOTS_LIVE], result->error_percent[SLOTS_LIVE], percent[SLOTS_RESERVED],
                    percent[SLOTS_INTERNAL], percent[SLOTS_EXTERNAL], percent[SLOTS_FREE],
                    result->mean_batch, result->refused_percent, (long long)result->num_preemptions,
                    published);
}

static void print_shares(const memory_experiment *experiment, FILE *file) {
    bench_table table;

    fprintf(file, "  Every slot has one use; percent of all slots, mean over the steps\n\n");
    bench_table_begin(&table, "case|live|±|reserved|internal|external|free|batch|refused|preempted"
                              "|<published live");
    for (int32_t i = 0; i < MEMORY_NUM_LAYOUTS; i++) {
        add_shares_row(experiment, &experiment->layouts[i], &table);
    }
    for (int32_t i = 0; i < experiment->num_rows; i++) {
        add_shares_row(experiment, &experiment->rows[i].memory, &table);
    }
    bench_table_print(&table, file, 2);
    fprintf(
        file,
        "\n  live      holds a written token (± standard error over %d batches of steps)\n"
        "  reserved  held by a request that will write it later\n"
        "  internal  held by a request that will never write it\n"
        "  external  held by nobody, and neither the waiting request nor a running one can take "
        "it; added by\n"
        "            the buddy's rounding; or, paged, the null block and what remains after "
        "whole blocks\n"
        "  free      held by nobody and can be taken: paged only, where any free block serves "
        "any request\n"
        "  refused   percent of steps at which the waiting request did not get in although "
        "as many slots were\n"
        "            free (above the watermark) as it needs\n\n",
        MEMORY_NUM_BATCHES);
}

static void print_block_sizes(const memory_experiment *experiment, FILE *file) {
    const granularity_result *all = &experiment->all_hits;
    bench_table table;

    fprintf(file, "  What the block size trades\n\n");
    bench_table_begin(&table, "block size|not live %|in held blocks %|table entries|table bytes"
                              "|ns a token|with cache|hit tokens lost %");
    for (int32_t i = 0; i < experiment->num_rows; i++) {
        const block_size_row *row = &experiment->rows[i];
        const memory_result *memory = &row->memory;

        bench_table_row(&table, "%d|%.1f|%.1f|%.1f|%.0f|%.1f|%.1f|%.2f", memory->of.block_size,
                        100.0 - memory->percent[SLOTS_LIVE],
                        memory->percent[SLOTS_RESERVED] + memory->percent[SLOTS_INTERNAL],
                        memory->entries_per_request,
                        memory->entries_per_request * (double)sizeof(pkv_block_id),
                        memory->ns_per_token, row->cached_ns_per_token,
                        memory_get_lost_percent(experiment, row));
    }
    bench_table_print(&table, file, 2);
    fprintf(file,
            "\n  in held blocks   reserved and internal: the rest of last blocks\n"
            "  table            per running request; %zu bytes an entry\n"
            "  ns a token       all manager calls of a request's life (open, look up, allocate, "
            "append, free, close)\n"
            "                   over all its tokens, median of %d runs of steps; with cache: "
            "prefix cache "
            "on, keys computed\n"
            "                   and published, nothing shared\n"
            "  hit tokens lost  %d turns of generated chats, nothing evicted: of %lld tokens that "
            "block size 1 finds\n"
            "                   again (%.1f %% of the prompts), those in blocks that are not equal "
            "as a whole\n\n",
            sizeof(pkv_block_id), MEMORY_NUM_TIMES, all->num_turns, (long long)all->num_hit_tokens,
            100.0 * (double)all->num_hit_tokens / (double)all->num_prompt_tokens);
}

void memory_print_report(const memory_experiment *experiment, FILE *file) {
    int64_t num_row_waits = experiment->layouts[LAYOUT_PAGED].num_row_waits;

    print_setup(experiment, file);
    print_five_rows(experiment, file);
    print_shares(experiment, file);
    print_block_sizes(experiment, file);
    for (int32_t i = 0; i < experiment->num_rows; i++) {
        num_row_waits += experiment->rows[i].memory.num_row_waits;
    }
    if (num_row_waits > 0) {
        fprintf(file,
                "  Note: %lld times a request waited for a block-table row and not for memory; the "
                "paged shares\n  are lower than they could be.\n\n",
                (long long)num_row_waits);
    }
}
