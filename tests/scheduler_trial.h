/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* What the tests of the scheduler share: a manager and a scheduler, requests with content of their
 * own, and a step that says which tokens it expects.
 *
 * The one idea: a test is a list of steps, each with the exact tokens of its entries. */
#ifndef SCHEDULER_TRIAL_H
#define SCHEDULER_TRIAL_H

#include "bench/scheduler.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { TRIAL_MAX_REQUESTS = 64, TRIAL_MAX_PROMPT = 1024 };

/* num_slots: > 0 makes a tier with so many, for config.swapping. last_log: of the scheduler's log callback; num_logs: how often it was called. */
struct trial {
    pkv_manager *manager;
    pkv_tier *tier;
    int32_t num_slots;
    struct scheduler *scheduler;
    scheduler_config config;
    const scheduler_step *step;
    scheduler_request *requests[TRIAL_MAX_REQUESTS];
    int32_t num_requests;
    char last_log[512];
    int num_logs;
};

/* For cmocka_unit_test_setup_teardown; the second fails when manager or tier is not
 * sound. */
int trial_set_up(void **state);
int trial_tear_down(void **state);

#define TRIAL_TEST(name) cmocka_unit_test_setup_teardown(name, trial_set_up, trial_tear_down)

/* Make manager and scheduler of trial->config, of which the test has set what differs. Block size
 * 16, sequences up to 2048 tokens. */
void trial_start(struct trial *trial, int32_t num_blocks);

/* Add a request. Two of equal content share the tokens of their common length, others share
 * none. */
scheduler_request *trial_add(struct trial *trial,
                             int32_t content,
                             int32_t num_tokens,
                             int32_t max_output_tokens,
                             int32_t priority);

/* Schedule a step and expect the tokens of its entries, in their order. */
void trial_expect_step(struct trial *trial, const int32_t *num_tokens);

#define EXPECT_STEP(trial, ...) trial_expect_step(trial, (const int32_t[]){__VA_ARGS__, 0})

/* Complete the step with one token for each entry past its prefill, and up to num_accepted of its
 * drafts. */
void trial_complete_accepting(struct trial *trial, int32_t num_accepted);
void trial_complete(struct trial *trial);

void trial_expect_waiting(struct trial *trial, const int32_t *ids, int32_t num_ids);
int32_t trial_count_running(const struct trial *trial);
int32_t trial_count_free_blocks(const struct trial *trial);
int32_t trial_count_hit_tokens(const struct trial *trial, const scheduler_request *request);

#endif
