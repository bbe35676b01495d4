/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The ways of preemption side by side: one workload on one bounded pool, served with each policy
 * over each link, and the results as a table or as JSON lines. The serving is preempt_serve.c.
 *
 * The one idea: recompute needs no link and is served once; every other row is to be read against
 * it, and all rows must end with the same tokens. */
#ifndef PREEMPT_POLICIES_H
#define PREEMPT_POLICIES_H

#include "options.h"
#include "preempt_serve.h"

#define PREEMPT_MAX_ROWS (2 * BENCH_MAX_LIST + 1)

/* What the options say. */
typedef struct preempt_policies {
    int32_t num_requests; /* 0: none of this */
    int32_t num_blocks, block_size;
    uint64_t seed;
    bool is_unordered;
    bench_list links; /* GB/s */
    double token_kib, block_copy_us, parameters, teraflops, step_ms;
} preempt_policies;

typedef struct preempt_row {
    scheduler_preemption preemption;
    int32_t link; /* GB/s; 0: none */
    preempt_serve_result result;
} preempt_row;

/* Serve all rows: recompute, then for each link swap and by cost. Returns false when a run failed
 * or ended with other tokens, and says so on stderr. */
bool preempt_policies_run(const preempt_policies *policies, preempt_row *rows, int32_t *num_rows);

void preempt_policies_print(const preempt_policies *policies,
                            const preempt_row *rows,
                            int32_t num_rows);

void preempt_policies_print_json(const char *bench, const preempt_row *rows, int32_t num_rows);

#endif
