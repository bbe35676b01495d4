/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The benches' scheduler against the scheduler rows of vLLM V1's own unit tests, as far as they are
 * about synchronous scheduling without connectors. Method: a small pool, a few requests, and the
 * exact tokens of each step. The recordings of the conformance test say the same at length; these
 * say it one behaviour at a time. */
#include "scheduler_trial.h"

static void long_prefills_share_the_budget(void **state) {
    struct trial *trial = *state;
    trial->config.max_step_tokens = 1024;
    trial->config.long_prefill_threshold = 400;
    trial_start(trial, 1000);
    for (int32_t i = 0; i < 3; i++) {
        trial_add(trial, i, 800, 16, 0);
    }

    EXPECT_STEP(trial, 400, 400, 224);
    trial_complete(trial);
    EXPECT_STEP(trial, 400, 400, 224);
    trial_complete(trial);
    EXPECT_STEP(trial, 1, 1, 352);
}

/* V1 delivers the victim's last token after it was preempted; a synchronous step delivers it
 * before. Either way it is kept, and computed again on return. */
static void preempted_request_keeps_its_last_token(void **state) {
    struct trial *trial = *state;
    trial->config.disable_prefix_cache = true;
    trial_start(trial, 11);
    scheduler_request *first = trial_add(trial, 0, 80, 2, 0);
    scheduler_request *second = trial_add(trial, 1, 80, 16, 0);

    EXPECT_STEP(trial, 80, 80);
    trial_complete(trial);
    EXPECT_STEP(trial, 1);

    assert_int_equal(trial->step->num_preempted, 1);
    assert_ptr_equal(trial->step->preempted[0], second);
    assert_int_equal(second->num_tokens, 81);
    assert_int_equal(second->num_computed_tokens, 0);
    trial_complete(trial);
    assert_int_equal(first->state, SCHEDULER_FINISHED);
    EXPECT_STEP(trial, 81);
}

static void reset_is_refused_while_requests_run(void **state) {
    struct trial *trial = *state;
    trial_start(trial, 100);
    trial_add(trial, 0, 32, 16, 0);
    EXPECT_STEP(trial, 32);
    trial_complete(trial);

    assert_int_equal(scheduler_reset_prefix_cache(trial->scheduler, false), PKV_ERROR_BUSY);

    assert_int_equal(trial_count_running(trial), 1);
}

static void reset_with_running_queues_all_in_order(void **state) {
    struct trial *trial = *state;
    trial->config.max_running_requests = 3;
    trial_start(trial, 100);
    for (int32_t i = 0; i < 4; i++) {
        trial_add(trial, i, 32, 16, 0);
    }
    EXPECT_STEP(trial, 32, 32, 32);
    trial_complete(trial);

    assert_int_equal(scheduler_reset_prefix_cache(trial->scheduler, true), PKV_OK);

    assert_int_equal(trial_count_running(trial), 0);
    trial_expect_waiting(trial, (const int32_t[]){0, 1, 2, 3}, 4);
    assert_int_equal(trial_count_free_blocks(trial), 99);
    EXPECT_STEP(trial, 33, 33, 33);
}

static void drafts_count_as_proposed_and_accepted(void **state) {
    struct trial *trial = *state;
    scheduler_stats stats;
    trial->config.max_draft_tokens = 3;
    trial_start(trial, 100);
    scheduler_request *request = trial_add(trial, 0, 20, 100, 0);
    EXPECT_STEP(trial, 20);
    trial_complete(trial);

    scheduler_set_drafts(trial->scheduler, request, 3);
    EXPECT_STEP(trial, 4);
    assert_int_equal(trial->step->entries[0].num_drafts, 3);
    trial_complete_accepting(trial, 3);
    scheduler_get_stats(trial->scheduler, &stats);
    assert_int_equal(stats.num_draft_tokens, 3);
    assert_int_equal(stats.num_accepted_draft_tokens, 3);
    assert_int_equal(request->num_tokens, 25);
    assert_int_equal(request->num_computed_tokens, 24);

    scheduler_set_drafts(trial->scheduler, request, 1);
    EXPECT_STEP(trial, 2);
    trial_complete_accepting(trial, 0);
    scheduler_get_stats(trial->scheduler, &stats);
    assert_int_equal(stats.num_draft_tokens, 4);
    assert_int_equal(stats.num_accepted_draft_tokens, 3);
    assert_int_equal(request->num_tokens, 26);
    assert_int_equal(request->num_computed_tokens, 25);
}

/* Semantics seen on V1: 15 tokens, block 16, 3 drafts, of which 3, 0 and 1 are accepted. */
static void rejected_drafts_leave_the_table_longer(void **state) {
    struct trial *trial = *state;
    static const int32_t accepted[3] = {3, 0, 1};
    static const int32_t computed[3] = {19, 20, 22};
    const pkv_block_id *block_ids;
    int32_t num_blocks;
    trial->config.max_draft_tokens = 3;
    trial_start(trial, 100);
    scheduler_request *request = trial_add(trial, 0, 15, 100, 0);
    EXPECT_STEP(trial, 15);
    trial_complete(trial);

    for (int32_t i = 0; i < 3; i++) {
        scheduler_set_drafts(trial->scheduler, request, 3);
        EXPECT_STEP(trial, 4);
        trial_complete_accepting(trial, accepted[i]);

        assert_int_equal(request->num_computed_tokens, computed[i]);
        assert_int_equal(request->num_tokens, computed[i] + 1);
        pkv_get_block_table(trial->manager, request->handle, 0, &block_ids, &num_blocks);
        assert_int_equal(num_blocks, 2);
    }
}

/* Whether a request with 33 tokens, of which 32 are cached, is widened by draft places when another
 * runs already; that other one has num_tokens to prefill, 33 of which are the same. */
static int32_t count_tokens_of_newcomer(struct trial *trial, int32_t num_tokens) {
    trial->config.max_draft_tokens = 3;
    trial_start(trial, 100);
    trial_add(trial, 0, num_tokens, 16, 0);
    assert_int_equal(scheduler_schedule(trial->scheduler, &trial->step), PKV_OK);
    trial_complete(trial);
    trial_add(trial, 0, 33, 16, 0);

    assert_int_equal(scheduler_schedule(trial->scheduler, &trial->step), PKV_OK);

    assert_int_equal(trial->step->num_entries, 2);
    assert_int_equal(trial->step->entries[1].num_drafts,
                     trial->step->entries[1].num_new_tokens - 1);
    return trial->step->entries[1].num_new_tokens;
}

static void newcomer_beside_decodes_gets_draft_places(void **state) {
    assert_int_equal(count_tokens_of_newcomer(*state, 33), 4);
}

static void newcomer_beside_a_prefill_gets_no_draft_places(void **state) {
    struct trial *trial = *state;
    trial->config.long_prefill_threshold = 40;

    assert_int_equal(count_tokens_of_newcomer(trial, 100), 1);
}

static void newcomer_near_max_model_len_gets_no_draft_places(void **state) {
    struct trial *trial = *state;
    trial->config.max_model_len = 36;

    assert_int_equal(count_tokens_of_newcomer(trial, 33), 1);
}

static void newcomer_alone_gets_no_draft_places(void **state) {
    struct trial *trial = *state;
    trial->config.max_draft_tokens = 3;
    trial_start(trial, 100);
    trial_add(trial, 0, 33, 1, 0);
    EXPECT_STEP(trial, 33);
    trial_complete(trial);
    trial_add(trial, 0, 33, 16, 0);

    EXPECT_STEP(trial, 1);
}

static void newcomer_waits_when_its_draft_places_exceed_the_budget(void **state) {
    struct trial *trial = *state;
    trial->config.max_draft_tokens = 3;
    trial->config.max_step_tokens = 4;
    trial_start(trial, 100);
    scheduler_request *first = trial_add(trial, 0, 33, 16, 0);
    while (first->num_tokens == 33) {
        assert_int_equal(scheduler_schedule(trial->scheduler, &trial->step), PKV_OK);
        trial_complete(trial);
    }
    trial_add(trial, 0, 33, 16, 0);

    EXPECT_STEP(trial, 1);
}

static void drafts_are_ignored_in_prefill(void **state) {
    struct trial *trial = *state;
    trial->config.max_draft_tokens = 3;
    trial->config.max_step_tokens = 16;
    trial_start(trial, 100);
    scheduler_request *request = trial_add(trial, 0, 40, 100, 0);
    EXPECT_STEP(trial, 16);
    trial_complete(trial);

    scheduler_set_drafts(trial->scheduler, request, 3);

    EXPECT_STEP(trial, 16);
    assert_int_equal(trial->step->entries[0].num_drafts, 0);
}

static void priority_preempts_the_least_urgent(void **state) {
    struct trial *trial = *state;
    trial->config.policy = SCHEDULER_PRIORITY;
    trial->config.disable_prefix_cache = true;
    trial_start(trial, 6);
    scheduler_request *low = trial_add(trial, 0, 48, 16, 5);
    scheduler_request *high = trial_add(trial, 1, 32, 16, 0);
    EXPECT_STEP(trial, 32, 48);
    trial_complete(trial);

    EXPECT_STEP(trial, 1);

    assert_ptr_equal(trial->step->entries[0].request, high);
    assert_int_equal(trial->step->num_preempted, 1);
    assert_ptr_equal(trial->step->preempted[0], low);
}

static void priority_victim_resumes_when_there_is_room(void **state) {
    struct trial *trial = *state;
    trial->config.policy = SCHEDULER_PRIORITY;
    trial->config.disable_prefix_cache = true;
    trial_start(trial, 5);
    scheduler_request *low = trial_add(trial, 0, 30, 16, 5);
    EXPECT_STEP(trial, 30);
    trial_complete(trial);
    scheduler_request *high = trial_add(trial, 1, 32, 2, 0);
    EXPECT_STEP(trial, 1, 32);
    trial_complete(trial);

    EXPECT_STEP(trial, 1);
    assert_ptr_equal(trial->step->preempted[0], low);
    trial_complete(trial);
    assert_int_equal(high->state, SCHEDULER_FINISHED);

    EXPECT_STEP(trial, 32);
    assert_ptr_equal(trial->step->entries[0].request, low);
}

static void priority_orders_the_queue(void **state) {
    struct trial *trial = *state;
    static const int32_t priorities[4] = {3, 1, 2, 0};
    trial->config.policy = SCHEDULER_PRIORITY;
    trial_start(trial, 100);
    for (int32_t i = 0; i < 4; i++) {
        trial_add(trial, i, 20, 16, priorities[i]);
    }

    trial_expect_waiting(trial, (const int32_t[]){3, 1, 2, 0}, 4);
}

static void priority_ties_go_by_arrival_then_by_name(void **state) {
    struct trial *trial = *state;
    trial->config.policy = SCHEDULER_PRIORITY;
    trial_start(trial, 100);
    static const int32_t token = 1;
    scheduler_request *request;
    for (int64_t i = 0; i < 12; i++) {
        scheduler_request_args args = {.token_ids = &token,
                                       .num_tokens = 1,
                                       .max_output_tokens = 1,
                                       .priority = 4,
                                       .arrival = i == 7 ? 1 : 2};
        assert_int_equal(scheduler_add(trial->scheduler, &args, &request), PKV_OK);
    }

    /* "r10" and "r11" are before "r2". */
    trial_expect_waiting(trial, (const int32_t[]){7, 0, 1, 10, 11, 2, 3, 4, 5, 6, 8, 9}, 12);
}

/* The third request is looked up in each step and never admitted, the second is admitted twice. */
static void hits_count_once_and_returns_apart(void **state) {
    struct trial *trial = *state;
    scheduler_stats stats;
    pkv_stats manager_stats = {.struct_size = sizeof manager_stats};
    trial_start(trial, 10);
    trial_add(trial, 0, 80, 20, 0);
    EXPECT_STEP(trial, 80);
    trial_complete(trial);
    scheduler_request *second = trial_add(trial, 0, 100, 20, 0);
    scheduler_request *third = trial_add(trial, 9, 120, 20, 0);

    EXPECT_STEP(trial, 1, 20);
    trial_complete(trial);
    EXPECT_STEP(trial, 1, 1);
    trial_complete(trial);
    scheduler_get_stats(trial->scheduler, &stats);
    assert_true(stats.hit_rate == 80.0 / 180.0);

    /* Its return hits what it computed itself, which says nothing about the cache. */
    assert_int_equal(scheduler_abort(trial->scheduler, third), PKV_OK);
    while (second->num_preemptions == 0 || second->state != SCHEDULER_RUNNING) {
        assert_int_equal(scheduler_schedule(trial->scheduler, &trial->step), PKV_OK);
        assert_true(trial->step->num_entries > 0);
        trial_complete(trial);
        assert_int_not_equal(second->state, SCHEDULER_FINISHED);
    }
    scheduler_get_stats(trial->scheduler, &stats);
    assert_true(stats.hit_rate == 80.0 / 180.0);
    assert_int_equal(pkv_get_stats(trial->manager, &manager_stats), PKV_OK);
    assert_int_equal(manager_stats.num_lookups, 2);
    assert_int_equal(manager_stats.num_lookup_tokens, 180);
    assert_int_equal(manager_stats.num_hit_tokens, 80);
    assert_int_equal(manager_stats.num_resumes, 1);
    assert_true(manager_stats.num_resume_hit_tokens > 0);
}

static void hits_do_not_count_without_cache(void **state) {
    struct trial *trial = *state;
    scheduler_stats stats;
    trial->config.disable_prefix_cache = true;
    trial_start(trial, 100);
    trial_add(trial, 0, 80, 20, 0);
    trial_add(trial, 0, 80, 20, 0);

    EXPECT_STEP(trial, 80, 80);

    scheduler_get_stats(trial->scheduler, &stats);
    assert_true(stats.hit_rate == 0.0);
}

static void window_holds_the_latest_steps(void **state) {
    scheduler_hits entries[6];
    scheduler_window window;
    (void)state;
    scheduler_window_init(&window, entries, 5);
    assert_true(scheduler_window_get_hit_rate(&window) == 0.0);

    scheduler_window_add(&window, (scheduler_hits){1, 20, 9});
    assert_true(scheduler_window_get_hit_rate(&window) == 0.45);
    scheduler_window_add(&window, (scheduler_hits){4, 80, 16});
    assert_true(scheduler_window_get_hit_rate(&window) == 0.25);
    scheduler_window_add(&window, (scheduler_hits){1, 10, 2});
    assert_int_equal(window.sum.num_requests, 5);
    assert_int_equal(window.sum.num_tokens, 90);
    assert_int_equal(window.sum.num_hit_tokens, 18);
    assert_true(scheduler_window_get_hit_rate(&window) == 0.2);
    scheduler_window_add(&window, (scheduler_hits){0, 0, 0});
    assert_int_equal(window.num_entries, 2);
    scheduler_window_add(&window, (scheduler_hits){11, 20, 10});
    assert_true(scheduler_window_get_hit_rate(&window) == 0.5);
    scheduler_window_add(&window, (scheduler_hits){22, 40, 30});
    assert_true(scheduler_window_get_hit_rate(&window) == 0.75);
    scheduler_window_clear(&window);
    assert_true(scheduler_window_get_hit_rate(&window) == 0.0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TRIAL_TEST(long_prefills_share_the_budget),
        TRIAL_TEST(preempted_request_keeps_its_last_token),
        TRIAL_TEST(reset_is_refused_while_requests_run),
        TRIAL_TEST(reset_with_running_queues_all_in_order),
        TRIAL_TEST(drafts_count_as_proposed_and_accepted),
        TRIAL_TEST(rejected_drafts_leave_the_table_longer),
        TRIAL_TEST(newcomer_beside_decodes_gets_draft_places),
        TRIAL_TEST(newcomer_beside_a_prefill_gets_no_draft_places),
        TRIAL_TEST(newcomer_near_max_model_len_gets_no_draft_places),
        TRIAL_TEST(newcomer_alone_gets_no_draft_places),
        TRIAL_TEST(newcomer_waits_when_its_draft_places_exceed_the_budget),
        TRIAL_TEST(drafts_are_ignored_in_prefill),
        TRIAL_TEST(priority_preempts_the_least_urgent),
        TRIAL_TEST(priority_victim_resumes_when_there_is_room),
        TRIAL_TEST(priority_orders_the_queue),
        TRIAL_TEST(priority_ties_go_by_arrival_then_by_name),
        TRIAL_TEST(hits_count_once_and_returns_apart),
        TRIAL_TEST(hits_do_not_count_without_cache),
        TRIAL_TEST(window_holds_the_latest_steps),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
