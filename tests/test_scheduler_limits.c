/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The edges of the benches' scheduler: what it refuses, where requests end, what its log says, and
 * what goes beyond vLLM V1: steps that can be undone. Method: as test_scheduler.c. */
#include "scheduler_trial.h"

#include <string.h>

/* ---- admission and limits -------------------------------------------------------------------- */

static void request_larger_than_the_pool_is_rejected(void **state) {
    struct trial *trial = *state;
    int32_t num_ended;
    trial_start(trial, 11);
    scheduler_request *large = trial_add(trial, 0, 200, 16, 0);
    trial_add(trial, 1, 20, 16, 0);

    EXPECT_STEP(trial, 20);

    assert_int_equal(large->state, SCHEDULER_REJECTED);
    assert_ptr_equal(scheduler_get_ended(trial->scheduler, &num_ended)[0], large);
    assert_int_equal(num_ended, 1);
    trial_expect_waiting(trial, NULL, 0);
}

static void request_larger_than_the_pool_waits_where_it_is_kept(void **state) {
    struct trial *trial = *state;
    trial->config.keep_unfitting_requests = true;
    trial_start(trial, 11);
    trial_add(trial, 0, 200, 16, 0);
    trial_add(trial, 1, 20, 16, 0);

    assert_int_equal(scheduler_schedule(trial->scheduler, &trial->step), PKV_OK);

    assert_int_equal(trial->step->num_entries, 0);
    trial_expect_waiting(trial, (const int32_t[]){0, 1}, 2);
}

/* 3 of 10 blocks are used and 4 more wanted: with a watermark of 4 the newcomer has to wait. */
static void watermark_holds_back_admissions_only(void **state) {
    struct trial *trial = *state;
    trial->config.num_watermark_blocks = 4;
    trial_start(trial, 11);
    trial_add(trial, 0, 47, 16, 0);
    EXPECT_STEP(trial, 47);
    trial_complete(trial);
    trial_add(trial, 1, 64, 16, 0);

    EXPECT_STEP(trial, 1);
    trial_complete(trial);
    assert_int_equal(scheduler_abort(trial->scheduler, trial->requests[0]), PKV_OK);
    EXPECT_STEP(trial, 64);
}

static void request_finishes_at_max_model_len(void **state) {
    struct trial *trial = *state;
    trial->config.max_model_len = 40;
    trial->config.max_draft_tokens = 3;
    trial_start(trial, 100);
    scheduler_request *request = trial_add(trial, 0, 36, 100, 0);
    EXPECT_STEP(trial, 36);
    trial_complete(trial);

    /* Position 39 is never computed, so of 1 + 3 tokens only 3 have a place. */
    scheduler_set_drafts(trial->scheduler, request, 3);
    EXPECT_STEP(trial, 3);
    trial_complete_accepting(trial, 2);

    assert_int_equal(request->num_tokens, 40);
    assert_int_equal(request->state, SCHEDULER_FINISHED);
    assert_int_equal(trial_count_free_blocks(trial), 99);
}

static void tokens_beyond_the_finish_are_dropped(void **state) {
    struct trial *trial = *state;
    trial->config.max_draft_tokens = 3;
    trial_start(trial, 100);
    scheduler_request *request = trial_add(trial, 0, 20, 3, 0);
    EXPECT_STEP(trial, 20);
    trial_complete(trial);
    scheduler_set_drafts(trial->scheduler, request, 3);
    EXPECT_STEP(trial, 4);

    trial_complete_accepting(trial, 3);

    assert_int_equal(request->num_tokens, 23);
    assert_int_equal(request->state, SCHEDULER_FINISHED);
}

static void outputs_that_do_not_fit_are_refused(void **state) {
    struct trial *trial = *state;
    static const int32_t tokens[2] = {1, 2};
    trial->config.max_step_tokens = 32;
    trial_start(trial, 100);
    trial_add(trial, 0, 20, 16, 0);
    scheduler_request *prefilling = trial_add(trial, 1, 20, 16, 0);
    EXPECT_STEP(trial, 20, 12);

    scheduler_output outputs[2] = {{tokens, 2}, {NULL, 0}};
    assert_int_equal(scheduler_complete_step(trial->scheduler, outputs),
                     PKV_ERROR_INVALID_ARGUMENT);
    outputs[0].num_tokens = 0;
    assert_int_equal(scheduler_complete_step(trial->scheduler, outputs),
                     PKV_ERROR_INVALID_ARGUMENT);
    outputs[0].num_tokens = 1;
    outputs[1] = (scheduler_output){tokens, 1};
    assert_int_equal(scheduler_complete_step(trial->scheduler, outputs),
                     PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(scheduler_schedule(trial->scheduler, &trial->step), PKV_ERROR_BUSY);

    trial_complete(trial);
    assert_int_equal(scheduler_complete_step(trial->scheduler, outputs),
                     PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(prefilling->num_tokens, 20);
}

static void bad_requests_are_refused(void **state) {
    struct trial *trial = *state;
    static const int32_t tokens[64];
    scheduler_request *request;
    trial->config.max_model_len = 64;
    trial_start(trial, 100);

    scheduler_request_args args = {.token_ids = tokens, .num_tokens = 0, .max_output_tokens = 1};
    assert_int_equal(scheduler_add(trial->scheduler, &args, &request), PKV_ERROR_INVALID_ARGUMENT);
    args.num_tokens = 64;
    assert_int_equal(scheduler_add(trial->scheduler, &args, &request), PKV_ERROR_INVALID_ARGUMENT);
    args.num_tokens = 63;
    args.max_output_tokens = 0;
    assert_int_equal(scheduler_add(trial->scheduler, &args, &request), PKV_ERROR_INVALID_ARGUMENT);
    args.max_output_tokens = 1;
    for (int32_t i = 0; i < TRIAL_MAX_REQUESTS; i++) {
        assert_int_equal(scheduler_add(trial->scheduler, &args, &request), PKV_OK);
    }
    assert_int_equal(scheduler_add(trial->scheduler, &args, &request), PKV_ERROR_LIMIT);
}

/* ---- steps that can be undone ---------------------------------------------------------------- */

/* The low request takes blocks 5 and 6 in the third step and is preempted in the same step. One of
 * them goes to the high request; what about the other, which will never be computed? */
static int32_t count_hits_of_withdrawn_victim(struct trial *trial, bool track_steps) {
    trial->config.policy = SCHEDULER_PRIORITY;
    trial->config.long_prefill_threshold = 32;
    trial->config.admit_partial_sequences = true;
    trial->config.track_steps = track_steps;
    trial_start(trial, 9);
    scheduler_request *low = trial_add(trial, 0, 100, 16, 5);
    EXPECT_STEP(trial, 32);
    trial_complete(trial);
    trial_add(trial, 1, 32, 16, 0);
    EXPECT_STEP(trial, 32, 32);
    trial_complete(trial);

    EXPECT_STEP(trial, 1);

    assert_int_equal(trial->step->num_preempted, 1);
    assert_ptr_equal(trial->step->preempted[0], low);
    return trial_count_hit_tokens(trial, low);
}

static void tracked_victim_hits_only_what_was_computed(void **state) {
    assert_int_equal(count_hits_of_withdrawn_victim(*state, true), 64);
}

/* vLLM's own behaviour, kept where steps are not tracked. */
static void untracked_victim_hits_what_was_scheduled(void **state) {
    assert_int_equal(count_hits_of_withdrawn_victim(*state, false), 80);
}

static void failed_step_is_computed_again(void **state) {
    struct trial *trial = *state;
    trial->config.max_step_tokens = 64;
    trial->config.track_steps = true;
    trial_start(trial, 100);
    scheduler_request *first = trial_add(trial, 0, 100, 16, 0);
    scheduler_request *second = trial_add(trial, 1, 32, 16, 0);
    EXPECT_STEP(trial, 64);
    trial_complete(trial);
    EXPECT_STEP(trial, 36, 28);

    assert_int_equal(scheduler_fail_step(trial->scheduler), PKV_OK);

    trial_expect_waiting(trial, (const int32_t[]){0, 1}, 2);
    assert_int_equal(trial_count_free_blocks(trial), 99);
    assert_int_equal(trial_count_hit_tokens(trial, first), 64);
    assert_int_equal(trial_count_hit_tokens(trial, second), 0);
    EXPECT_STEP(trial, 36, 28);
    trial_complete(trial);
    assert_int_equal(first->num_tokens, 101);
    assert_int_equal(scheduler_fail_step(trial->scheduler), PKV_ERROR_INVALID_ARGUMENT);
}

static void untracked_step_cannot_fail(void **state) {
    struct trial *trial = *state;
    trial_start(trial, 100);
    trial_add(trial, 0, 20, 16, 0);
    EXPECT_STEP(trial, 20);

    assert_int_equal(scheduler_fail_step(trial->scheduler), PKV_ERROR_UNSUPPORTED);

    trial_complete(trial);
}

static void abort_in_flight_holds_the_blocks_of_a_tracked_step(void **state) {
    struct trial *trial = *state;
    trial->config.track_steps = true;
    trial_start(trial, 11);
    scheduler_request *request = trial_add(trial, 0, 20, 16, 0);
    trial_add(trial, 1, 20, 16, 0);
    EXPECT_STEP(trial, 20, 20);

    assert_int_equal(scheduler_abort(trial->scheduler, request), PKV_OK);

    assert_int_equal(request->state, SCHEDULER_ABORTED);
    assert_true(trial->step->entries[0].is_dropped);
    assert_int_equal(trial_count_free_blocks(trial), 6);
    trial_complete(trial);
    assert_int_equal(trial_count_free_blocks(trial), 8);
    EXPECT_STEP(trial, 1);
}

static void abort_of_a_waiting_request_leaves_the_queue(void **state) {
    struct trial *trial = *state;
    scheduler_stats stats;
    trial_start(trial, 11);
    for (int32_t i = 0; i < 3; i++) {
        trial_add(trial, i, 20, 16, 0);
    }

    assert_int_equal(scheduler_abort(trial->scheduler, trial->requests[1]), PKV_OK);
    assert_int_equal(scheduler_abort(trial->scheduler, trial->requests[1]), PKV_OK);

    trial_expect_waiting(trial, (const int32_t[]){0, 2}, 2);
    scheduler_get_stats(trial->scheduler, &stats);
    assert_int_equal(stats.num_aborted, 1);
}

/* ---- log ------------------------------------------------------------------------------------- */

/* Two requests at a time, which fit until each wants a third block. */
static void run_window(struct trial *trial, int32_t num_blocks) {
    int32_t num_running, num_waiting;

    trial_start(trial, num_blocks);
    for (int i = 0; i < SCHEDULER_LOG_WINDOW_STEPS; i++) {
        num_running = trial_count_running(trial);
        scheduler_get_first_waiting(trial->scheduler, &num_waiting);
        trial->num_requests = 0;
        for (int32_t j = num_running + num_waiting; j < 2; j++) {
            trial_add(trial, 2 * i + j, 31, 6, 0);
        }
        assert_int_equal(trial->num_logs, 0);
        assert_int_equal(scheduler_schedule(trial->scheduler, &trial->step), PKV_OK);
        trial_complete(trial);
    }
}

static void frequent_preemption_is_logged_with_the_knobs(void **state) {
    struct trial *trial = *state;
    static const char *const knobs[] = {"num_blocks", "utilisation", "num_watermark_blocks",
                                        "max_running_requests", "max_step_tokens"};

    run_window(trial, 5);

    assert_int_equal(trial->num_logs, 1);
    for (size_t i = 0; i < sizeof knobs / sizeof knobs[0]; i++) {
        assert_non_null(strstr(trial->last_log, knobs[i]));
    }
}

static void window_without_preemption_is_not_logged(void **state) {
    struct trial *trial = *state;

    run_window(trial, 100);

    assert_int_equal(trial->num_logs, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TRIAL_TEST(request_larger_than_the_pool_is_rejected),
        TRIAL_TEST(request_larger_than_the_pool_waits_where_it_is_kept),
        TRIAL_TEST(watermark_holds_back_admissions_only),
        TRIAL_TEST(request_finishes_at_max_model_len),
        TRIAL_TEST(tokens_beyond_the_finish_are_dropped),
        TRIAL_TEST(outputs_that_do_not_fit_are_refused),
        TRIAL_TEST(bad_requests_are_refused),
        TRIAL_TEST(tracked_victim_hits_only_what_was_computed),
        TRIAL_TEST(untracked_victim_hits_what_was_scheduled),
        TRIAL_TEST(failed_step_is_computed_again),
        TRIAL_TEST(untracked_step_cannot_fail),
        TRIAL_TEST(abort_in_flight_holds_the_blocks_of_a_tracked_step),
        TRIAL_TEST(abort_of_a_waiting_request_leaves_the_queue),
        TRIAL_TEST(frequent_preemption_is_logged_with_the_knobs),
        TRIAL_TEST(window_without_preemption_is_not_logged),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
