/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Simulators: a source of numbers draws a configuration and then calls, legal and illegal; library
 * and naive model carry out each of them in lock-step and are compared after each.
 *
 * The one idea: a run is a function of its source, so a seed and a number of steps, or a fuzzer's
 * input, say everything that is needed to see a failure again. */
#ifndef PKV_TESTS_SUPPORT_SIM_H
#define PKV_TESTS_SUPPORT_SIM_H

#include "support/rand.h"

#include <pagedkv/base.h>

/* What is being done, and the first thing that went wrong. */
typedef struct sim_log {
    bool is_traced; /* print each call and its status to stderr */
    bool has_failed;
    int64_t step;
    char operation[512];
    char problem[512];
} sim_log;

#if defined(__GNUC__)
#define SIM_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define SIM_PRINTF(text, first)
#endif

/* Say what is done now, or go on saying it. */
void sim_say(sim_log *log, const char *format, ...) SIM_PRINTF(2, 3);
void sim_say_more(sim_log *log, const char *format, ...) SIM_PRINTF(2, 3);

/* Note a problem; the first one stays. */
void sim_problem(sim_log *log, const char *format, ...) SIM_PRINTF(2, 3);

/* Compare two numbers. */
void sim_expect_equal(sim_log *log, const char *what, int64_t library, int64_t model);

/* What a run did, so that a test can see that it did something. */
#define SIM_NUM_STATUSES (PKV_NO_FREE_ROWS - PKV_ERROR_CORRUPT + 1)

typedef struct sim_counts {
    int64_t num_steps, num_episodes;
    int64_t num_calls[SIM_NUM_STATUSES]; /* by status, PKV_ERROR_CORRUPT first */
    int64_t num_hits;                    /* admissions that hit */
    int64_t num_partial_hits;            /* of these: such that went on into a block */
    int64_t num_copies;                  /* blocks copied on write */
    int64_t num_reads_verified;          /* tokens read through tables and found right */
    int64_t num_swapped_out, num_swapped_in, num_aborts; /* blocks planned; swaps aborted */
    uint64_t digest; /* of all statuses, and of what the library was free to choose */
} sim_counts;

/* Compare a status with the set of allowed ones, and count it. */
void sim_expect_status(sim_log *log, sim_counts *counts, pkv_status status, uint32_t allowed);

/* Take a number into the digest. */
void sim_digest(sim_counts *counts, uint64_t value);

typedef enum sim_kind {
    SIM_POOL = 0,   /* pkv_pool_* alone */
    SIM_CHAOS = 1,  /* a manager, called in any order with any numbers */
    SIM_ENGINE = 2, /* a manager, called as an engine does, with the content of blocks mirrored */
    SIM_SWAP = 3    /* such an engine with a tier, the content of its slots mirrored, too */
} sim_kind;

#define SIM_NUM_KINDS 4

/* Run one episode: draw a configuration, then at most `max_steps` calls. */
void sim_run_episode(
    sim_kind kind, test_source *source, int64_t max_steps, sim_log *log, sim_counts *counts);

#endif
