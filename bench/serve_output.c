/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The numbers of serve_output.h; the pictures are in serve_plot.c. */
#include "serve_output.h"

#include "report.h"
#include "serve_timed.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

static serve_format output_format;
static bench_table table; /* rows of the group that is being written, for people */

void serve_output_begin(serve_format format) {
    output_format = format;
    if (format == SERVE_CSV) {
        printf("bench,case,metric,unit,value,peer,peer_value\n");
    }
}

static void begin_group(const char *title) {
    if (output_format == SERVE_TEXT) {
        printf("%s\n", title);
        bench_table_begin(&table, "metric|value|<unit");
    }
}

static void end_group(void) {
    if (output_format == SERVE_TEXT) {
        bench_table_print(&table, stdout, 2);
        printf("\n");
    }
}

/* peer  NULL or the name of what peer_value is of; shown by JSON and CSV only. */
static void write_row(const char *case_name,
                      const char *metric,
                      const char *unit,
                      double value,
                      const char *peer,
                      double peer_value) {
    switch (output_format) {
    case SERVE_JSON:
        bench_json_line(stdout, "bench_serve", case_name, metric, unit, value, peer, peer_value);
        break;
    case SERVE_CSV:
        bench_csv_text(stdout, true, "bench_serve");
        bench_csv_text(stdout, false, case_name);
        bench_csv_text(stdout, false, metric);
        bench_csv_text(stdout, false, unit);
        bench_csv_number(stdout, false, value);
        bench_csv_text(stdout, false, peer == NULL ? "" : peer);
        if (peer == NULL || isnan(peer_value)) {
            bench_csv_text(stdout, false, "");
        } else {
            bench_csv_number(stdout, false, peer_value);
        }
        printf("\n");
        break;
    case SERVE_TEXT:
        bench_table_row(&table, value == floor(value) ? "%s|%.0f|%s" : "%s|%.3f|%s", metric, value,
                        unit);
        break;
    }
}

static void write_value(const char *case_name, const char *metric, const char *unit, double value) {
    write_row(case_name, metric, unit, value, NULL, 0.0);
}

static double divide(double dividend, double divisor) {
    return divisor == 0.0 ? 0.0 : dividend / divisor;
}

/* ---- replay ---------------------------------------------------------------------------------- */

static void write_setting(const char *case_name, const serve_options *options, int32_t num_blocks) {
    if (output_format != SERVE_TEXT) {
        write_value(case_name, "num_blocks", "blocks", num_blocks);
        write_value(case_name, "block_size", "tokens", options->block_size);
        return;
    }
    printf("%s: %" PRId32 " blocks of %" PRId32 " tokens, at most %" PRId32 " running and %" PRId32
           " tokens a step, %s, prefix cache %s\n"
           "a step lasts %g ms + %g us a token (simulated)\n\n",
           case_name, num_blocks, options->block_size, options->max_running_requests,
           options->max_step_tokens,
           options->use_priorities ? "by priority" : "first come first served",
           options->disable_prefix_cache ? "off" : "on", options->step_base_ms, options->token_us);
}

static void write_cache(const char *case_name, const serve_result *result) {
    const pkv_stats *stats = &result->stats;

    begin_group("prefix cache, counted at admission");
    write_value(case_name, "hit_rate", "%",
                100.0 * divide((double)stats->num_hit_tokens, (double)stats->num_lookup_tokens));
    write_value(case_name, "lookups", "requests", (double)stats->num_lookups);
    write_value(case_name, "lookup_tokens", "tokens", (double)stats->num_lookup_tokens);
    write_value(case_name, "hit_tokens", "tokens", (double)stats->num_hit_tokens);
    write_value(case_name, "resume_hit_rate", "%",
                100.0 *
                    divide((double)stats->num_resume_hit_tokens, (double)stats->num_resume_tokens));
    write_value(case_name, "resumes", "requests", (double)stats->num_resumes);
    write_value(case_name, "resume_hit_tokens", "tokens", (double)stats->num_resume_hit_tokens);
    write_value(case_name, "preemptions", "requests", (double)result->num_preemptions);
    write_value(case_name, "recomputed_tokens", "tokens", (double)result->num_recomputed_tokens);
    write_value(case_name, "recomputed_share", "%",
                100.0 *
                    divide((double)result->num_recomputed_tokens, (double)result->num_step_tokens));
    write_value(case_name, "evicted_blocks", "blocks", (double)stats->num_blocks_evicted);
    write_value(case_name, "collisions_rejected", "blocks", (double)stats->num_collisions_rejected);
    end_group();
}

static void write_service(const char *case_name, serve_result *result) {
    begin_group("service, in simulated time");
    write_value(case_name, "finished", "requests", result->num_finished);
    write_value(case_name, "rejected", "requests", result->num_rejected);
    write_value(case_name, "simulated_time", "s", result->simulated_seconds);
    write_value(case_name, "request_rate", "requests/s",
                divide(result->num_finished, result->simulated_seconds));
    write_value(case_name, "output_rate", "tokens/s",
                divide((double)result->num_output_tokens, result->simulated_seconds));
    if (result->num_finished > 0) {
        int32_t count = result->num_finished;
        write_value(case_name, "first_token_p50", "s",
                    bench_percentile(result->first_token_seconds, count, 50.0));
        write_value(case_name, "first_token_p99", "s",
                    bench_percentile(result->first_token_seconds, count, 99.0));
    }
    write_value(case_name, "steps", "steps", (double)result->num_steps);
    write_value(case_name, "tokens_a_step", "tokens",
                divide((double)result->num_step_tokens, (double)result->num_steps));
    write_value(case_name, "running_mean", "requests", result->mean_running);
    write_value(case_name, "waiting_peak", "requests", result->peak_waiting);
    write_value(case_name, "usage_mean", "%", 100.0 * result->mean_usage);
    write_value(case_name, "usage_peak", "%", 100.0 * result->peak_usage);
    end_group();
}

/* Latencies as a table of their own for people: one line a call. */
static void write_latency_row(const char *case_name, serve_call call) {
    serve_latency latency = serve_timed_get(call);
    const char *name = serve_timed_get_name(call);
    char metric[96];

    if (latency.num_calls == 0) {
        return;
    }
    if (output_format == SERVE_TEXT) {
        bench_table_row(&table, "%s|%" PRId64 "|%.0f|%.0f|%.0f|%.0f|%.2f", name, latency.num_calls,
                        latency.mean_ns, latency.p50_ns, latency.p99_ns, latency.max_ns,
                        latency.total_ns / 1e6);
        return;
    }
    snprintf(metric, sizeof(metric), "%s calls", name);
    write_value(case_name, metric, "calls", (double)latency.num_calls);
    snprintf(metric, sizeof(metric), "%s mean", name);
    write_value(case_name, metric, "ns", latency.mean_ns);
    snprintf(metric, sizeof(metric), "%s p50", name);
    write_value(case_name, metric, "ns", latency.p50_ns);
    snprintf(metric, sizeof(metric), "%s p99", name);
    write_value(case_name, metric, "ns", latency.p99_ns);
    snprintf(metric, sizeof(metric), "%s max", name);
    write_value(case_name, metric, "ns", latency.max_ns);
}

static void write_calls(const char *case_name, const serve_result *result) {
    double total_ns = 0.0;

    if (output_format == SERVE_TEXT) {
        printf("library calls, in real time (the clock's own %" PRId64 " ns are subtracted)\n",
               serve_timed_get_overhead_ns());
        bench_table_begin(&table, "call|calls|mean ns|p50 ns|p99 ns|max ns|total ms");
    }
    for (int call = 0; call < SERVE_NUM_CALLS; call++) {
        write_latency_row(case_name, (serve_call)call);
        total_ns += serve_timed_get((serve_call)call).total_ns;
    }
    end_group();

    begin_group("the simulation, in real time");
    write_value(case_name, "clock_overhead", "ns", (double)serve_timed_get_overhead_ns());
    write_value(case_name, "library_time_a_step", "us",
                divide(total_ns / 1e3, (double)result->num_steps));
    write_value(case_name, "wall_time", "s", result->wall_seconds);
    write_value(case_name, "simulation_rate", "requests/s",
                divide(result->num_finished, result->wall_seconds));
    end_group();
}

void serve_output_replay(const char *case_name,
                         const serve_options *options,
                         int32_t num_blocks,
                         serve_result *result) {
    write_setting(case_name, options, num_blocks);
    write_cache(case_name, result);
    write_service(case_name, result);
    write_calls(case_name, result);
}

/* ---- hit curve ------------------------------------------------------------------------------- */

static void write_curve_point(const char *case_name, const serve_curve_point *point) {
    const char *peer = isnan(point->reference_percent) ? NULL : "reference LRU";
    double manager_of_full =
        100.0 * divide((double)point->num_manager_hits, (double)point->num_full_blocks);
    char size[24] = "unlimited";
    char point_name[160];

    if (point->num_blocks > 0) {
        snprintf(size, sizeof(size), "%" PRId32, point->num_blocks);
    }
    if (output_format == SERVE_TEXT) {
        char reference[24] = "";

        if (peer != NULL) {
            snprintf(reference, sizeof(reference), "%.1f", point->reference_percent);
        }
        bench_table_row(&table, "%s|%.2f|%s|%.2f|%.2f|%.3f|%.3f", size,
                        serve_curve_get_pool_percent(point), reference,
                        serve_curve_get_manager_percent(point), manager_of_full,
                        point->pool_seconds, point->manager_seconds);
        return;
    }
    snprintf(point_name, sizeof(point_name), "%s, %s blocks", case_name, size);
    write_row(point_name, "pool_hit_rate", "%", serve_curve_get_pool_percent(point), peer,
              point->reference_percent);
    write_value(point_name, "manager_hit_rate", "%", serve_curve_get_manager_percent(point));
    write_value(point_name, "manager_hit_rate_of_full_blocks", "%", manager_of_full);
    write_value(point_name, "pool_time", "s", point->pool_seconds);
    write_value(point_name, "manager_time", "s", point->manager_seconds);
}

void serve_output_curve(const char *case_name,
                        const serve_curve_point *points,
                        int32_t num_points) {
    int32_t num_too_long = 0;

    if (output_format == SERVE_TEXT) {
        printf("hit curve of %s: blocks found, %% of %" PRId64 " (one request at a time)\n",
               case_name, points[num_points - 1].num_ids);
        bench_table_begin(&table, "blocks|pool|reference|manager|of full blocks|pool s|manager s");
    }
    for (int32_t i = 0; i < num_points; i++) {
        write_curve_point(case_name, &points[i]);
        num_too_long += points[i].num_too_long;
    }
    if (output_format == SERVE_TEXT) {
        bench_table_print(&table, stdout, 2);
        printf("  pool: every id is one block. manager: the last block of a prompt has no key "
               "unless it\n"
               "  is full, so it is never hit; it takes one place while its request runs.\n\n");
    }
    if (num_too_long > 0) {
        fprintf(stderr, "bench_serve: %" PRId32 " requests were longer than a cache and left out\n",
                num_too_long);
    }
}
