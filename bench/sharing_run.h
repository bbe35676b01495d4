/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Sequences that continue one prompt, run on a manager without a device: by fork and copy-on-write,
 * or as requests of their own that share full blocks through the prefix cache. It counts blocks; it
 * prints nothing.
 *
 * The one idea: the blocks that a sharing scheme saves are seen at every step, so a run sums the
 * blocks in use and the columns of all tables, and the shares are those of the sums. */
#ifndef PKV_BENCH_SHARING_RUN_H
#define PKV_BENCH_SHARING_RUN_H

#include "workload.h"

#define SHARING_MAX_WIDTH 8

typedef enum sharing_mode {
    SHARING_PARALLEL = 0, /* n samples of one prompt */
    SHARING_BEAM = 1      /* beam search of width n */
} sharing_mode;

typedef struct sharing_config {
    const workload_list *workload;
    sharing_mode mode;
    int32_t width;
    int32_t block_size;
    int32_t num_groups; /* prompts, from the start of the workload */
    bool by_prefix_cache;
    uint64_t seed;
} sharing_config;

/* Sums over all steps of all groups. */
typedef struct sharing_result {
    int64_t num_block_steps;    /* blocks in use */
    int64_t num_column_steps;   /* columns of all tables: blocks in use if nothing were shared */
    int64_t num_copies;         /* blocks copied on write */
    int64_t num_recomputed;     /* tokens that were computed before */
    int64_t num_sequence_steps; /* tokens sampled */
} sharing_result;

/* Returns false when a call of the manager failed, or its self-check. */
bool sharing_run(const sharing_config *config, sharing_result *out);

/* Median times in nanoseconds: a fork of `num_tokens` computed tokens; and what a step of 64
 * sequences costs more for each block that it copies, than a step that copies none. */
bool sharing_time_fork(int32_t num_tokens, int32_t num_rounds, double *fork_ns);
bool sharing_time_copies(int32_t num_rounds, double *copy_ns, double *plain_ns);

#endif
