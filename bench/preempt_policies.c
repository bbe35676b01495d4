/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Serves and shows the ways of preemption side by side; see the header. */
#include "preempt_policies.h"

#include "report.h"

#include <stdio.h>

static const char *const policy_names[] = {"recompute", "swap", "by cost"};
static const char *const policy_cases[] = {"recompute", "swap", "by-cost"};

/* As many slots as the whole workload could fill: what the host lacks is not the question here. */
static preempt_serve_args make_args(const preempt_policies *policies,
                                    const workload_list *workload,
                                    const preempt_row *row) {
    int64_t num_slots = 1;

    for (int32_t i = 0; i < workload->num_items; i++) {
        num_slots += (workload->items[i].num_input_tokens + workload->items[i].num_output_tokens) /
                     policies->block_size;
    }
    return (preempt_serve_args){
        .workload = workload,
        .num_blocks = policies->num_blocks,
        .num_slots = (int32_t)(num_slots < 2 ? 2 : num_slots),
        .has_tier = row->link > 0,
        .preemption = row->preemption,
        .copies_are_ordered = !policies->is_unordered,
        .costs = {.link_bytes_per_second = row->link * 1e9,
                  .copy_seconds = policies->block_copy_us / 1e6,
                  .block_bytes = policies->token_kib * 1024 * policies->block_size,
                  .block_size = policies->block_size,
                  .flops_per_second = policies->teraflops * 1e12,
                  .flops_per_token = 2e9 * policies->parameters},
        .step_seconds = policies->step_ms / 1e3};
}

static bool run_row(const preempt_policies *policies,
                    const workload_list *workload,
                    preempt_row *row) {
    preempt_serve_args args = make_args(policies, workload, row);
    const char *error;

    if (!preempt_serve_run(&args, &row->result, &error)) {
        fprintf(stderr, "%s over %d GB/s: %s\n", policy_names[row->preemption], (int)row->link,
                error);
        return false;
    }
    if (row->result.stats.num_rejected > 0) {
        fprintf(stderr, "a request is larger than the pool of %d blocks\n",
                (int)policies->num_blocks);
        return false;
    }
    return true;
}

bool preempt_policies_run(const preempt_policies *policies, preempt_row *rows, int32_t *num_rows) {
    workload_list workload;
    char error[WORKLOAD_MAX_ERROR];
    bench_progress progress;
    bool is_right = true;

    if (!workload_make_table("sharegpt", policies->seed, policies->num_requests, &workload,
                             error)) {
        fprintf(stderr, "%s\n", error);
        return false;
    }
    *num_rows = 1 + 2 * policies->links.num_values;
    bench_progress_begin(&progress);
    for (int32_t i = 0; i < *num_rows && is_right; i++) {
        bench_progress_update(&progress, "policies", (double)i / *num_rows);
        if (i > 0) {
            rows[i].preemption = i % 2 == 1 ? SCHEDULER_SWAP : SCHEDULER_BY_COST;
            rows[i].link = policies->links.values[(i - 1) / 2];
        }
        is_right = run_row(policies, &workload, &rows[i]);
        if (is_right && rows[i].result.digest != rows[0].result.digest) {
            fprintf(stderr, "%s over %d GB/s ends with other tokens\n",
                    policy_names[rows[i].preemption], (int)rows[i].link);
            is_right = false;
        }
    }
    bench_progress_end(&progress);
    workload_release(&workload);
    return is_right;
}

/* By cost, against the better of recompute and swap over the same link: rows are in order. */
static double ratio_to_best(const preempt_row *rows, int32_t row) {
    double recompute = rows[0].result.seconds;
    double swap = rows[row - 1].result.seconds;

    return rows[row].result.seconds / (recompute < swap ? recompute : swap);
}

void preempt_policies_print(const preempt_policies *policies,
                            const preempt_row *rows,
                            int32_t num_rows) {
    bench_table table = {0};

    printf("\n%d requests of the sharegpt table (seed %llu) on %d blocks of %d; a step takes %g ms "
           "or\nmore; swaps out %s. Tokens are those of preempted requests.\n\n",
           policies->num_requests, (unsigned long long)policies->seed, policies->num_blocks - 1,
           policies->block_size, policies->step_ms,
           policies->is_unordered ? "hold the victim's blocks until they have run"
                                  : "are in order with the steps");
    bench_table_begin(&table, "policy|link GB/s|preempted|swaps out|in|refused|hit|loaded|"
                              "recomputed|link MiB|steps|of them empty|seconds|of the better");
    for (int32_t i = 0; i < num_rows; i++) {
        const preempt_serve_result *result = &rows[i].result;
        const scheduler_stats *stats = &result->stats;
        char link[16] = "-";
        char ratio[16] = "-";

        if (rows[i].link > 0) {
            (void)snprintf(link, sizeof link, "%d", (int)rows[i].link);
        }
        if (rows[i].preemption == SCHEDULER_BY_COST) {
            (void)snprintf(ratio, sizeof ratio, "%.3f", ratio_to_best(rows, i));
        }
        bench_table_row(
            &table, "%s|%s|%llu|%llu|%llu|%llu|%llu|%llu|%llu|%.0f|%lld|%lld|%.2f|%s",
            policy_names[rows[i].preemption], link, (unsigned long long)stats->num_preemptions,
            (unsigned long long)stats->num_swap_outs, (unsigned long long)stats->num_swap_ins,
            (unsigned long long)stats->num_refused_swaps,
            (unsigned long long)stats->num_resume_hit_tokens,
            (unsigned long long)stats->num_loaded_tokens,
            (unsigned long long)stats->num_recomputed_tokens, result->link_bytes / (1 << 20),
            (long long)result->num_steps, (long long)result->num_empty_steps, result->seconds,
            ratio);
    }
    bench_table_print(&table, stdout, 0);
}

void preempt_policies_print_json(const char *bench, const preempt_row *rows, int32_t num_rows) {
    for (int32_t i = 0; i < num_rows; i++) {
        const preempt_serve_result *result = &rows[i].result;
        const preempt_serve_result *peer = &rows[0].result;
        const scheduler_stats *stats = &result->stats;
        const struct {
            const char *metric, *unit;
            double value, peer;
        } lines[] = {
            {"preemptions", "requests", (double)stats->num_preemptions,
             (double)peer->stats.num_preemptions},
            {"computed again", "tokens", (double)stats->num_recomputed_tokens,
             (double)peer->stats.num_recomputed_tokens},
            {"hit on resume", "tokens", (double)stats->num_resume_hit_tokens,
             (double)peer->stats.num_resume_hit_tokens},
            {"loaded on resume", "tokens", (double)stats->num_loaded_tokens, 0.0},
            {"over the link", "bytes", result->link_bytes, 0.0},
            {"swaps out", "swaps", (double)stats->num_swap_outs, 0.0},
            {"swaps in", "swaps", (double)stats->num_swap_ins, 0.0},
            {"refused swaps", "swaps", (double)stats->num_refused_swaps, 0.0},
            {"makespan", "steps", (double)result->num_steps, (double)peer->num_steps},
            {"makespan, worked out", "s", result->seconds, peer->seconds},
        };
        char name[64];

        (void)snprintf(name, sizeof name, "serve-%s", policy_cases[rows[i].preemption]);
        if (rows[i].link > 0) {
            (void)snprintf(name, sizeof name, "serve-%s-%d", policy_cases[rows[i].preemption],
                           (int)rows[i].link);
        }
        for (size_t line = 0; line < sizeof lines / sizeof lines[0]; line++) {
            bench_json_line(stdout, bench, name, lines[line].metric, lines[line].unit,
                            lines[line].value, i > 0 ? "recompute" : NULL, lines[line].peer);
        }
        if (rows[i].preemption == SCHEDULER_BY_COST) {
            bench_json_line(stdout, bench, name, "makespan to the better of both", "ratio",
                            ratio_to_best(rows, i), NULL, 0.0);
        }
    }
}
