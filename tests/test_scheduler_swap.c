/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Goal: the benches' scheduler preempts by swap: what comes back from the tier is not computed
 * again, what is late is waited for and nobody else is preempted for it, what is refused or fails
 * is computed again. Whole workloads are test_scheduler_workloads.c.
 * Method: two or three requests of five blocks, of which the last is preempted for the sixth block
 * of the first, with a callback that says what a link would. */
#include "scheduler_trial.h"

#include <string.h>

enum { MAX_LINK_SWAPS = 16, SLOTS = 32 };

/* What the callback answers, each way, and what it was asked. */
struct link {
    pkv_status out_status, in_status;
    pkv_swap swaps[MAX_LINK_SWAPS];
    bool is_inward[MAX_LINK_SWAPS];
    int32_t num_copies[MAX_LINK_SWAPS];
    int32_t num_swaps;
};

static struct link the_link;

static pkv_status run_copies(void *context,
                             pkv_swap swap,
                             bool is_inward,
                             const pkv_block_copy *copies,
                             int32_t num_copies) {
    struct link *link = context;

    assert_true(link->num_swaps < MAX_LINK_SWAPS && num_copies > 0 && copies != NULL);
    link->swaps[link->num_swaps] = swap;
    link->is_inward[link->num_swaps] = is_inward;
    link->num_copies[link->num_swaps++] = num_copies;
    return is_inward ? link->in_status : link->out_status;
}

static scheduler_stats stats_of(const struct trial *trial) {
    scheduler_stats stats;

    scheduler_get_stats(trial->scheduler, &stats);
    return stats;
}

/* Requests of 80 tokens in a pool that has no sixth block for any of them, after their prefill. The
 * first ends with its second token. */
static void start_full_pool(struct trial *trial, int32_t num_requests) {
    trial->config.swapping.copy = run_copies;
    trial->config.swapping.copy_context = &the_link;
    trial_start(trial, num_requests * 5 + 1);
    for (int32_t i = 0; i < num_requests; i++) {
        trial_add(trial, i, 80, i == 0 ? 2 : 16, 0);
    }
    assert_int_equal(scheduler_schedule(trial->scheduler, &trial->step), PKV_OK);
    assert_int_equal(trial->step->num_tokens, num_requests * 80);
    trial_complete(trial);
}

static void start_swapping(struct trial *trial,
                           int32_t num_requests,
                           pkv_status out_status,
                           pkv_status in_status) {
    memset(&the_link, 0, sizeof the_link);
    the_link.out_status = out_status;
    the_link.in_status = in_status;
    if (trial->num_slots == 0) {
        trial->num_slots = SLOTS;
    }
    trial->config.swapping.preemption = SCHEDULER_SWAP;
    start_full_pool(trial, num_requests);
}

static void expect_empty_step(struct trial *trial) {
    assert_int_equal(scheduler_schedule(trial->scheduler, &trial->step), PKV_OK);
    assert_int_equal(trial->step->num_entries, 0);
}

static void end_swap(struct trial *trial, int32_t index, bool has_copied) {
    assert_int_equal(scheduler_end_swap(trial->scheduler, the_link.swaps[index], has_copied),
                     PKV_OK);
}

/* ---- the three policies ---------------------------------------------------------------------- */

/* The first takes one block of the second's, whose other four are hit on return. */
static void recomputed_victim_computes_what_is_gone(void **state) {
    struct trial *trial = *state;
    trial->num_slots = SLOTS;
    memset(&the_link, 0, sizeof the_link);
    start_full_pool(trial, 2);

    EXPECT_STEP(trial, 1);
    trial_complete(trial);
    EXPECT_STEP(trial, 17);
    assert_int_equal(the_link.num_swaps, 0);
    assert_int_equal(stats_of(trial).num_recomputed_tokens, 16);
    assert_int_equal(stats_of(trial).num_resume_hit_tokens, 64);
    trial_complete(trial);
}

static void swapped_victim_loads_what_is_gone(void **state) {
    struct trial *trial = *state;
    start_swapping(trial, 2, PKV_OK, PKV_OK);

    EXPECT_STEP(trial, 1);
    assert_int_equal(the_link.num_copies[0], 5);
    assert_false(the_link.is_inward[0]);
    trial_complete(trial);
    EXPECT_STEP(trial, 1);
    assert_int_equal(the_link.num_swaps, 2);
    assert_true(the_link.is_inward[1]);
    assert_int_equal(the_link.num_copies[1], 1);
    assert_int_equal(trial->requests[1]->num_computed_tokens, 81);
    scheduler_stats stats = stats_of(trial);
    assert_int_equal(stats.num_recomputed_tokens, 0);
    assert_int_equal(stats.num_resume_hit_tokens, 64);
    assert_int_equal(stats.num_loaded_tokens, 16);
    assert_int_equal(stats.num_blocks_out, 5);
    assert_int_equal(stats.num_blocks_in, 1);
    trial_complete(trial);
}

static const scheduler_costs even_costs = {.link_bytes_per_second = 1000,
                                           .block_bytes = 100,
                                           .block_size = 16,
                                           .flops_per_second = 1000,
                                           .flops_per_token = 1};

/* Five blocks both ways are 1 s at 1000 bytes/s, for one of two; 80 tokens are 0.08 s at 1000
 * FLOP/s, for both. */
static int32_t count_swaps_by_cost(struct trial *trial, double flops_per_token) {
    trial->num_slots = SLOTS;
    memset(&the_link, 0, sizeof the_link);
    trial->config.swapping.preemption = SCHEDULER_BY_COST;
    trial->config.swapping.costs = even_costs;
    trial->config.swapping.costs.flops_per_token = flops_per_token;
    start_full_pool(trial, 2);
    EXPECT_STEP(trial, 1);
    trial_complete(trial);
    assert_int_equal(scheduler_schedule(trial->scheduler, &trial->step), PKV_OK);
    trial_complete(trial);
    return the_link.num_swaps;
}

static void slow_link_is_left_alone(void **state) {
    assert_int_equal(count_swaps_by_cost(*state, 6.0), 0);
}

static void slow_model_is_spared(void **state) {
    assert_int_equal(count_swaps_by_cost(*state, 6.5), 2);
}

/* 0.1 s a block, both ways for one of two, against 0.016 s and what attention adds: a long victim's tokens have
 * more to attend to. */
static void long_victim_is_swapped_and_short_one_is_not(void **state) {
    struct trial *trial = *state;
    for (int32_t is_long = 0; is_long < 2; is_long++) {
        int32_t num_tokens = is_long == 1 ? 320 : 80;
        memset(&the_link, 0, sizeof the_link);
        trial->num_slots = SLOTS;
        trial->config.swapping = (scheduler_swapping){.preemption = SCHEDULER_BY_COST,
                                                      .copy = run_copies,
                                                      .copy_context = &the_link,
                                                      .costs = even_costs};
        trial->config.swapping.costs.flops_per_pair = 0.1;
        trial_start(trial, 5 + num_tokens / 16 + 1);
        trial_add(trial, 0, 80, 2, 0);
        trial_add(trial, 1, num_tokens, 16, 0);
        EXPECT_STEP(trial, 80, num_tokens);
        trial_complete(trial);
        EXPECT_STEP(trial, 1);
        assert_int_equal(the_link.num_swaps, is_long);
        if (is_long == 0) {
            assert_int_equal(trial_tear_down(state), 0);
            assert_int_equal(trial_set_up(state), 0);
        }
    }
}

static void costs_add_up(void **state) {
    scheduler_costs costs = even_costs;

    (void)state;
    costs.copy_seconds = 0.5;
    assert_true(scheduler_copy_cost(&costs, 2) == 1.2);
    assert_true(scheduler_compute_cost(&costs, 0, 500) == 0.5);
    /* Tokens 2, 3 and 4 attend to 3, 4 and 5. */
    costs.flops_per_pair = 1000;
    costs.flops_per_token = 0;
    assert_true(scheduler_compute_cost(&costs, 2, 3) == 12.0);
}

/* ---- late ------------------------------------------------------------------------------------ */

/* What is short will come: neither the second nor the first itself is taken for it. */
static void late_swap_out_is_waited_for(void **state) {
    struct trial *trial = *state;
    start_swapping(trial, 3, PKV_IN_PROGRESS, PKV_OK);

    expect_empty_step(trial);
    assert_int_equal(trial->step->num_preempted, 1);
    for (int32_t i = 0; i < 3; i++) {
        expect_empty_step(trial);
        assert_int_equal(trial->step->num_preempted, 0);
    }
    assert_int_equal(stats_of(trial).num_preemptions, 1);
    assert_int_equal(stats_of(trial).num_open_swaps, 1);
    assert_int_equal(scheduler_reset_prefix_cache(trial->scheduler, true), PKV_ERROR_BUSY);
    end_swap(trial, 0, true);
    EXPECT_STEP(trial, 1, 1);
    assert_int_equal(scheduler_end_swap(trial->scheduler, the_link.swaps[0], true),
                     PKV_ERROR_STALE_HANDLE);
    trial_complete(trial);
}

/* One block is free, and a newcomer would take it from the one that waits for it and one more. */
static void newcomer_does_not_overtake_who_waits_for_a_swap(void **state) {
    struct trial *trial = *state;
    memset(&the_link, 0, sizeof the_link);
    the_link.out_status = PKV_IN_PROGRESS;
    trial->num_slots = SLOTS;
    trial->config.swapping = (scheduler_swapping){
        .preemption = SCHEDULER_SWAP, .copy = run_copies, .copy_context = &the_link};
    trial->config.long_prefill_threshold = 48;
    trial->config.admit_partial_sequences = true;
    trial_start(trial, 11);
    trial_add(trial, 0, 128, 16, 0);
    trial_add(trial, 1, 80, 16, 0);
    EXPECT_STEP(trial, 48, 48);
    trial_complete(trial);
    EXPECT_STEP(trial, 48);
    assert_int_equal(the_link.num_copies[0], 3);
    trial_complete(trial);
    assert_int_equal(scheduler_abort(trial->scheduler, trial->requests[1]), PKV_OK);
    trial_add(trial, 2, 16, 16, 0);

    assert_int_equal(trial_count_free_blocks(trial), 1);
    expect_empty_step(trial);
    end_swap(trial, 0, true);
    EXPECT_STEP(trial, 32, 16);
    trial_complete(trial);
}

/* Copies in order with the steps hold nobody up but their own request. */
static void ordered_swap_out_frees_at_once(void **state) {
    struct trial *trial = *state;
    trial->config.swapping.copies_are_ordered = true;
    start_swapping(trial, 3, PKV_IN_PROGRESS, PKV_OK);

    EXPECT_STEP(trial, 1, 1);
    trial_complete(trial);
    assert_int_equal(trial->requests[0]->state, SCHEDULER_FINISHED);
    EXPECT_STEP(trial, 1);
    assert_int_equal(trial->requests[2]->state, SCHEDULER_PREEMPTED);
    trial_complete(trial);
    end_swap(trial, 0, true);
    EXPECT_STEP(trial, 1, 1);
    trial_complete(trial);
}

static void late_load_computes_when_it_is_there(void **state) {
    struct trial *trial = *state;
    start_swapping(trial, 2, PKV_OK, PKV_IN_PROGRESS);

    EXPECT_STEP(trial, 1);
    trial_complete(trial);
    expect_empty_step(trial);
    assert_true(trial->requests[1]->is_loading);
    assert_int_equal(trial->requests[1]->state, SCHEDULER_RUNNING);
    expect_empty_step(trial);
    end_swap(trial, 1, true);
    EXPECT_STEP(trial, 1);
    trial_complete(trial);
    assert_int_equal(trial->requests[1]->num_tokens, 82);
    assert_int_equal(stats_of(trial).num_preemptions, 1);
}

static void load_outlives_its_request(void **state) {
    struct trial *trial = *state;
    start_swapping(trial, 2, PKV_OK, PKV_IN_PROGRESS);

    EXPECT_STEP(trial, 1);
    trial_complete(trial);
    expect_empty_step(trial);
    assert_int_equal(scheduler_abort(trial->scheduler, trial->requests[1]), PKV_OK);
    assert_int_equal(trial_count_free_blocks(trial), 9);
    end_swap(trial, 1, true);
    assert_int_equal(trial_count_free_blocks(trial), 10);
}

/* It may have hit what the failed step was to compute. */
static void failed_step_takes_back_who_began_to_load(void **state) {
    struct trial *trial = *state;
    trial->config.track_steps = true;
    start_swapping(trial, 2, PKV_OK, PKV_IN_PROGRESS);

    EXPECT_STEP(trial, 1);
    trial_complete(trial);
    trial_add(trial, 7, 16, 1, 0);
    EXPECT_STEP(trial, 16);
    assert_true(trial->requests[1]->is_loading);
    assert_int_equal(scheduler_fail_step(trial->scheduler), PKV_OK);
    trial_expect_waiting(trial, (const int32_t[]){1, 2}, 2);
    assert_false(trial->requests[1]->is_loading);
    end_swap(trial, 1, true);
    assert_int_equal(trial_count_free_blocks(trial), 10);
    EXPECT_STEP(trial, 1, 16);
    trial_complete(trial);
}

/* ---- refused --------------------------------------------------------------------------------- */

static void expect_recompute(struct trial *trial, int32_t num_swap_outs) {
    EXPECT_STEP(trial, 1);
    trial_complete(trial);
    EXPECT_STEP(trial, 17);
    assert_int_equal(stats_of(trial).num_refused_swaps, 1);
    assert_int_equal(stats_of(trial).num_swap_outs, num_swap_outs);
    assert_int_equal(stats_of(trial).num_recomputed_tokens, 16);
    trial_complete(trial);
    assert_int_equal(trial->requests[1]->num_tokens, 82);
}

static void tier_without_room_makes_it_a_recompute(void **state) {
    struct trial *trial = *state;
    trial->num_slots = 3;
    start_swapping(trial, 2, PKV_OK, PKV_OK);

    expect_recompute(trial, 0);
    assert_int_equal(the_link.num_swaps, 0);
}

static void refused_copies_out_make_it_a_recompute(void **state) {
    struct trial *trial = *state;
    start_swapping(trial, 2, PKV_ERROR_DEVICE, PKV_OK);

    expect_recompute(trial, 0);
}

static void refused_copies_in_make_it_a_recompute(void **state) {
    struct trial *trial = *state;
    start_swapping(trial, 2, PKV_OK, PKV_ERROR_DEVICE);

    expect_recompute(trial, 1);
}

static void failed_load_is_computed_again(void **state) {
    struct trial *trial = *state;
    start_swapping(trial, 2, PKV_OK, PKV_IN_PROGRESS);

    EXPECT_STEP(trial, 1);
    trial_complete(trial);
    expect_empty_step(trial);
    end_swap(trial, 1, false);
    trial_expect_waiting(trial, (const int32_t[]){1}, 1);
    EXPECT_STEP(trial, 17);
    trial_complete(trial);
    assert_int_equal(the_link.num_swaps, 2);
    assert_int_equal(stats_of(trial).num_refused_swaps, 1);
}

/* Its blocks are published, and will never be computed. */
static void victim_with_a_share_of_an_untracked_step_is_not_swapped(void **state) {
    struct trial *trial = *state;
    for (int32_t tracked = 0; tracked < 2; tracked++) {
        memset(&the_link, 0, sizeof the_link);
        trial->num_slots = SLOTS;
        trial->config.swapping = (scheduler_swapping){
            .preemption = SCHEDULER_SWAP, .copy = run_copies, .copy_context = &the_link};
        trial->config.policy = SCHEDULER_PRIORITY;
        trial->config.long_prefill_threshold = 32;
        trial->config.admit_partial_sequences = true;
        trial->config.track_steps = tracked == 1;
        trial_start(trial, 9);
        trial_add(trial, 0, 100, 16, 5);
        EXPECT_STEP(trial, 32);
        trial_complete(trial);
        trial_add(trial, 1, 32, 16, 0);
        EXPECT_STEP(trial, 32, 32);
        trial_complete(trial);
        EXPECT_STEP(trial, 1);
        assert_int_equal(trial->step->num_preempted, 1);
        assert_int_equal(the_link.num_swaps, tracked);
        if (tracked == 1) {
            assert_int_equal(the_link.num_copies[0], 4);
        } else {
            assert_int_equal(trial_tear_down(state), 0);
            assert_int_equal(trial_set_up(state), 0);
        }
    }
}

static void swapping_that_cannot_work_is_refused(void **state) {
    struct trial *trial = *state;
    struct scheduler *other;
    trial->num_slots = SLOTS;
    start_full_pool(trial, 2);
    scheduler_config config = trial->config;

    config.swapping.preemption = SCHEDULER_BY_COST;
    assert_int_equal(scheduler_create(&config, &other), PKV_ERROR_INVALID_ARGUMENT);
    config.swapping.preemption = SCHEDULER_SWAP;
    config.swapping.copy = NULL;
    assert_int_equal(scheduler_create(&config, &other), PKV_ERROR_INVALID_ARGUMENT);
    config.swapping.copy = run_copies;
    config.swapping.tier = NULL;
    assert_int_equal(scheduler_create(&config, &other), PKV_ERROR_INVALID_ARGUMENT);
    config.swapping.preemption = SCHEDULER_RECOMPUTE;
    assert_int_equal(scheduler_create(&config, &other), PKV_OK);
    scheduler_destroy(other);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TRIAL_TEST(recomputed_victim_computes_what_is_gone),
        TRIAL_TEST(swapped_victim_loads_what_is_gone),
        TRIAL_TEST(slow_link_is_left_alone),
        TRIAL_TEST(slow_model_is_spared),
        TRIAL_TEST(long_victim_is_swapped_and_short_one_is_not),
        cmocka_unit_test(costs_add_up),
        TRIAL_TEST(late_swap_out_is_waited_for),
        TRIAL_TEST(newcomer_does_not_overtake_who_waits_for_a_swap),
        TRIAL_TEST(ordered_swap_out_frees_at_once),
        TRIAL_TEST(late_load_computes_when_it_is_there),
        TRIAL_TEST(load_outlives_its_request),
        TRIAL_TEST(failed_step_takes_back_who_began_to_load),
        TRIAL_TEST(tier_without_room_makes_it_a_recompute),
        TRIAL_TEST(refused_copies_out_make_it_a_recompute),
        TRIAL_TEST(refused_copies_in_make_it_a_recompute),
        TRIAL_TEST(failed_load_is_computed_again),
        TRIAL_TEST(victim_with_a_share_of_an_untracked_step_is_not_swapped),
        TRIAL_TEST(swapping_that_cannot_work_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
