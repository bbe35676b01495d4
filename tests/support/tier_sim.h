/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* A run of a manager with a tier: steps that complete or fail, preemptions, swaps that end late,
 * are detached, fail or are aborted, requests that end in the middle of them. Drawn from a
 * source of operations, so that tests and fuzz targets share it.
 *
 * The one idea: arrays stand for both media, and the value of a token is a function of its group
 * and of all tokens up to it, so that one compare tells whether a read sees its own past. */
#ifndef PKV_TESTS_SUPPORT_TIER_SIM_H
#define PKV_TESTS_SUPPORT_TIER_SIM_H

#include "support/rand.h"

/* What a run met, added up over episodes. */
typedef struct tier_sim_counts {
    int64_t num_steps, num_reads_verified, num_blocks_out, num_blocks_in, num_commits, num_aborts,
        num_detached, num_failed_steps, num_no_free, num_in_progress, num_limit, num_lookup_hits,
        num_resets, num_kept, num_evicted;
} tier_sim_counts;

/* Run one episode of at most `num_steps` steps. False: something is wrong, and `text` says what. */
bool tier_sim_run(
    test_source *source, int32_t num_steps, tier_sim_counts *counts, char *text, size_t text_size);

#endif
