/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Goal: a manager with a tier never serves content that is not the reader's own past, and leaks
 * nothing, however swaps, steps, preemptions and ends of requests fall together.
 * Method: seeded episodes of tests/support/tier_sim.c. --seed N --steps N --episode N. */
#include "support/tier_sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_SEED = 1, DEFAULT_STEPS = 120000, STEPS_PER_EPISODE = 600 };

static bool read_number(int argc, char **argv, int *at, const char *name, long long *out) {
    char *end = NULL;

    if (strcmp(argv[*at], name) != 0 || *at + 1 >= argc) {
        return false;
    }
    *at += 1;
    *out = strtoll(argv[*at], &end, 10);
    return end != argv[*at] && *end == '\0' && *out >= 0;
}

/* A run that never met an outcome would prove little. */
static bool is_worth_something(const tier_sim_counts *counts) {
    return counts->num_reads_verified > 0 && counts->num_blocks_out > 0 &&
           counts->num_blocks_in > 0 && counts->num_commits > 0 && counts->num_aborts > 0 &&
           counts->num_detached > 0 && counts->num_failed_steps > 0 && counts->num_no_free > 0 &&
           counts->num_in_progress > 0 && counts->num_limit > 0 && counts->num_lookup_hits > 0 &&
           counts->num_resets > 0 && counts->num_kept > 0 && counts->num_evicted > 0;
}

int main(int argc, char **argv) {
    long long seed = DEFAULT_SEED;
    long long steps = DEFAULT_STEPS;
    long long episode = -1;
    tier_sim_counts counts = {0};
    char text[512];

    for (int i = 1; i < argc; i++) {
        if (!read_number(argc, argv, &i, "--seed", &seed) &&
            !read_number(argc, argv, &i, "--steps", &steps) &&
            !read_number(argc, argv, &i, "--episode", &episode)) {
            fprintf(stderr, "usage: test_tier_sim [--seed N] [--steps N] [--episode N]\n");
            return strcmp(argv[i], "--help") == 0 ? 0 : 2;
        }
    }
    for (long long i = 0; i < steps; i += STEPS_PER_EPISODE, seed++) {
        test_source source = test_source_of_seed((uint64_t)(episode >= 0 ? episode : seed));

        if (!tier_sim_run(&source, STEPS_PER_EPISODE, &counts, text, sizeof text)) {
            fprintf(stderr, "test_tier_sim: seed %lld: %s\n  again: test_tier_sim --episode %lld\n",
                    episode >= 0 ? episode : seed, text, episode >= 0 ? episode : seed);
            return 1;
        }
        if (episode >= 0) {
            return 0;
        }
    }
    printf("%lld steps: %lld reads right, %lld blocks out, %lld in, %lld commits, %lld aborts, "
           "%lld detached, %lld failed steps, %lld kept, %lld evicted, %lld lookups hit\n",
           (long long)counts.num_steps, (long long)counts.num_reads_verified,
           (long long)counts.num_blocks_out, (long long)counts.num_blocks_in,
           (long long)counts.num_commits, (long long)counts.num_aborts,
           (long long)counts.num_detached, (long long)counts.num_failed_steps,
           (long long)counts.num_kept, (long long)counts.num_evicted,
           (long long)counts.num_lookup_hits);
    if (steps >= DEFAULT_STEPS && !is_worth_something(&counts)) {
        fprintf(stderr, "test_tier_sim: some outcome was never met\n");
        return 1;
    }
    return 0;
}
