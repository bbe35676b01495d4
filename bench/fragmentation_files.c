/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The memory comparison as JSON lines and as CSV files.
 *
 * The one idea: one line of JSON a number; CSV files have the shape that the plots read. */
#include "fragmentation_report.h"

#include "plot.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define BENCH_NAME "fragmentation"

static void json_value(
    FILE *file, const memory_case *of, const char *metric, const char *unit, double value) {
    bench_json_line(file, BENCH_NAME, of->name, metric, unit, value, NULL, NAN);
}

static void print_memory(const memory_experiment *experiment,
                         const memory_result *result,
                         FILE *file) {
    const memory_case *of = &result->of;
    memory_peer peer = memory_find_peer(experiment, of);

    for (int32_t use = 0; use < SLOTS_NUM_USES; use++) {
        bench_json_line(file, BENCH_NAME, of->name, slot_use_name((slot_use)use), "percent",
                        result->percent[use], use == SLOTS_LIVE ? peer.name : NULL,
                        peer.live_percent);
    }
    json_value(file, of, "live_standard_error", "percent", result->error_percent[SLOTS_LIVE]);
    json_value(file, of, "mean_batch", "requests", result->mean_batch);
    json_value(file, of, "preemptions", "count", (double)result->num_preemptions);
    json_value(file, of, "recomputed_tokens", "tokens", (double)result->num_recomputed_tokens);
    json_value(file, of, "finished_requests", "count", (double)result->num_finished);
    json_value(file, of, "refused_though_free", "percent of steps", result->refused_percent);
}

void memory_print_json(const memory_experiment *experiment, FILE *file) {
    for (int32_t i = 0; i < MEMORY_NUM_LAYOUTS; i++) {
        print_memory(experiment, &experiment->layouts[i], file);
    }
    for (int32_t i = 0; i < experiment->num_rows; i++) {
        const block_size_row *row = &experiment->rows[i];
        const memory_case *of = &row->memory.of;

        print_memory(experiment, &row->memory, file);
        json_value(file, of, "wasted", "percent", 100.0 - row->memory.percent[SLOTS_LIVE]);
        json_value(file, of, "table_entries", "entries/request", row->memory.entries_per_request);
        json_value(file, of, "table_bytes", "bytes/request",
                   row->memory.entries_per_request * (double)sizeof(pkv_block_id));
        json_value(file, of, "management", "ns/token", row->memory.ns_per_token);
        json_value(file, of, "management_with_prefix_cache", "ns/token", row->cached_ns_per_token);
        json_value(file, of, "hit_tokens_lost", "percent",
                   memory_get_lost_percent(experiment, row));
    }
}

/* ---- CSV ------------------------------------------------------------------------------------- */

static void write_shares_row(const memory_experiment *experiment,
                             const memory_result *result,
                             FILE *file) {
    bench_csv_text(file, true, experiment->list.name);
    bench_csv_text(file, false, result->of.name);
    for (int32_t use = 0; use < SLOTS_NUM_USES; use++) {
        bench_csv_number(file, false, result->percent[use]);
    }
    bench_csv_number(file, false, result->error_percent[SLOTS_LIVE]);
    bench_csv_number(file, false, result->mean_batch);
    bench_csv_number(file, false, (double)result->num_preemptions);
    bench_csv_number(file, false, (double)result->num_finished);
    bench_csv_number(file, false, result->refused_percent);
    putc('\n', file);
}

static void write_shares(const memory_experiment *experiment, FILE *file) {
    fprintf(file, "workload,case,live,reserved,internal,external,free,live_standard_error,"
                  "mean_batch,preemptions,finished_requests,refused_though_free\n");
    for (int32_t i = 0; i < MEMORY_NUM_LAYOUTS; i++) {
        write_shares_row(experiment, &experiment->layouts[i], file);
    }
    for (int32_t i = 0; i < experiment->num_rows; i++) {
        write_shares_row(experiment, &experiment->rows[i].memory, file);
    }
}

static void write_block_sizes(const memory_experiment *experiment, FILE *file) {
    fprintf(file, "block_size,wasted_percent,table_entries,table_bytes,ns_per_token,"
                  "ns_per_token_with_prefix_cache,hit_tokens_lost_percent\n");
    for (int32_t i = 0; i < experiment->num_rows; i++) {
        const block_size_row *row = &experiment->rows[i];

        bench_csv_number(file, true, row->memory.of.block_size);
        bench_csv_number(file, false, 100.0 - row->memory.percent[SLOTS_LIVE]);
        bench_csv_number(file, false, row->memory.entries_per_request);
        bench_csv_number(file, false,
                         row->memory.entries_per_request * (double)sizeof(pkv_block_id));
        bench_csv_number(file, false, row->memory.ns_per_token);
        bench_csv_number(file, false, row->cached_ns_per_token);
        bench_csv_number(file, false, memory_get_lost_percent(experiment, row));
        putc('\n', file);
    }
}

static void write_timeline(const memory_experiment *experiment, FILE *file) {
    const memory_result *layouts = experiment->layouts;

    fprintf(file, "step");
    for (int32_t i = 0; i < MEMORY_NUM_LAYOUTS; i++) {
        fprintf(file, ",%s", layouts[i].of.name);
    }
    putc('\n', file);
    for (int32_t point = 0; point < layouts[0].num_points; point++) {
        fprintf(file, "%.1f",
                (point + 0.5) * experiment->setup.num_steps / (double)layouts[0].num_points);
        for (int32_t i = 0; i < MEMORY_NUM_LAYOUTS; i++) {
            bench_csv_number(file, false, layouts[i].timeline[point][SLOTS_LIVE]);
        }
        putc('\n', file);
    }
}

static bool close_file(FILE *file, const char *name) {
    bool is_written = !ferror(file);

    if (fclose(file) != 0 || !is_written) {
        fprintf(stderr, "cannot write %s: %s\n", name, strerror(errno));
        return false;
    }
    return true;
}

static bool write_file(const memory_experiment *experiment,
                       const char *folder,
                       const char *prefix,
                       const char *name,
                       void (*write)(const memory_experiment *experiment, FILE *file)) {
    char full_name[256];

    snprintf(full_name, sizeof(full_name), "%s%s.csv", prefix, name);

    FILE *file = plot_open(folder, full_name);

    if (file == NULL) {
        return false;
    }
    write(experiment, file);
    return close_file(file, full_name);
}

bool memory_write_csv(const memory_experiment *experiment, const char *folder, const char *prefix) {
    return write_file(experiment, folder, prefix, "shares", write_shares) &&
           write_file(experiment, folder, prefix, "block_sizes", write_block_sizes) &&
           write_file(experiment, folder, prefix, "timeline", write_timeline);
}

bool memory_write_shares(const memory_experiment *experiment, const char *path) {
    FILE *file = fopen(path, "w");

    if (file == NULL) {
        fprintf(stderr, "cannot write %s: %s\n", path, strerror(errno));
        return false;
    }
    write_shares(experiment, file);
    return close_file(file, path);
}
