/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* One finished memory comparison and the ways to show it: a report for people, JSON lines, CSV
 * files, plots. Nothing is measured here.
 *
 * The one idea: all ways read the same results, so they cannot disagree. */
#ifndef PKV_BENCH_FRAGMENTATION_REPORT_H
#define PKV_BENCH_FRAGMENTATION_REPORT_H

#include "fragmentation.h"
#include "fragmentation_granularity.h"

#include <stdio.h>

/* The four layouts of the comparison and the exact first fit. */
#define MEMORY_NUM_LAYOUTS 5
#define MEMORY_MAX_BLOCK_SIZES 32

/* One block size: memory without prefix cache, time with it, hits on shared prefixes. */
typedef struct block_size_row {
    memory_result memory;
    double cached_ns_per_token;
    granularity_result hits;
} block_size_row;

typedef struct memory_experiment {
    workload_list list;
    memory_setup setup;
    uint64_t seed;
    int32_t num_dropped_items;                 /* longer than max_length */
    memory_result layouts[MEMORY_NUM_LAYOUTS]; /* by memory_layout; paged has block size 16 */
    block_size_row rows[MEMORY_MAX_BLOCK_SIZES];
    int32_t num_rows;
    granularity_result all_hits; /* block size 1 */
} memory_experiment;

/* A figure of others for a case's live share: "vLLM paper" or "reference simulation". */
typedef struct memory_peer {
    const char *name; /* NULL: there is none */
    double live_percent;
} memory_peer;

/* Only where table, slots and length are those of the figure. */
memory_peer memory_find_peer(const memory_experiment *experiment, const memory_case *of);

/* Hit tokens that a row's block size does not find, in percent of those that block size 1 finds. */
double memory_get_lost_percent(const memory_experiment *experiment, const block_size_row *row);

void memory_print_report(const memory_experiment *experiment, FILE *file);
void memory_print_json(const memory_experiment *experiment, FILE *file);

/* Write FOLDER/PREFIXshares.csv, PREFIXblock_sizes.csv and PREFIXtimeline.csv, or (folder NULL) the
 * shares into the file `path`. False with a message on stderr. */
bool memory_write_csv(const memory_experiment *experiment, const char *folder, const char *prefix);
bool memory_write_shares(const memory_experiment *experiment, const char *path);

/* Draw all plots, FOLDER/PREFIX*.svg, from the CSV files there. False with a message on stderr. */
bool memory_draw_plots(const memory_experiment *experiment, const char *folder, const char *prefix);

/* Draw FOLDER/PREFIXblock_map.svg: who holds which slot, step by step, in a small memory. */
bool memory_draw_map(const memory_setup *setup, const char *folder, const char *prefix);

/* The textbook case and the 64-slot picture, on `file` and as FOLDER/fragmentation_demo.svg (folder
 * NULL: no picture). False with a message on stderr when a step does not come out as it must. */
bool memory_run_demo(FILE *file, const char *folder);

#endif
