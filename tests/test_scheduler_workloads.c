/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Goal: all requests get the same tokens whatever became of their blocks: computed again, swapped,
 * late, refused by the tier, refused or failed by the copies.
 * Method: a small workload on a pool that is too small for it, in every combination of what
 * differs; bench/preempt_serve.c reads each token's past through the block tables. */
#include "bench/preempt_serve.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const preempt_serve_args base_args = {.num_blocks = 260,
                                             .num_slots = 400,
                                             .has_tier = true,
                                             .track_steps = true,
                                             .costs = {.link_bytes_per_second = 2e9,
                                                       .block_bytes = 2 << 20,
                                                       .block_size = 16,
                                                       .flops_per_second = 2e14,
                                                       .flops_per_token = 16e9},
                                             .step_seconds = 0.005};

/* Every combination of what differs; the content is verified through the block tables inside. */
static void all_requests_finish_with_the_same_tokens(void **state) {
    workload_list workload;
    char text[WORKLOAD_MAX_ERROR];
    uint64_t digest = 0;
    scheduler_stats sum = {0};

    (void)state;
    assert_true(workload_make_table("sharegpt", 3, 24, &workload, text));
    for (int32_t i = 0; i < 3 * 32; i++) {
        preempt_serve_args args = base_args;
        preempt_serve_result result;
        const char *error;

        args.workload = &workload;
        args.preemption = (scheduler_preemption)(i % 3);
        args.policy = i / 3 % 2 == 0 ? SCHEDULER_FCFS : SCHEDULER_PRIORITY;
        args.copies_are_ordered = i / 6 % 2 == 0;
        args.failing_start = i / 12 % 2 == 0 ? 0 : 3;
        args.failing_end = i / 24 % 2 == 0 ? 0 : 2;
        args.num_slots = i / 48 % 2 == 0 ? 400 : 60;
        if (!preempt_serve_run(&args, &result, &error)) {
            fail_msg("case %d: %s", (int)i, error);
        }
        if (i == 0) {
            digest = result.digest;
        }
        assert_true(result.digest == digest);
        assert_int_equal(result.stats.num_finished, 24);
        assert_true(result.stats.num_preemptions > 0);
        assert_true(args.preemption != SCHEDULER_RECOMPUTE || result.link_bytes == 0.0);
        sum.num_swap_ins += result.stats.num_swap_ins;
        sum.num_refused_swaps += result.stats.num_refused_swaps;
        sum.num_loaded_tokens += result.stats.num_loaded_tokens;
    }
    assert_true(sum.num_swap_ins > 0 && sum.num_refused_swaps > 0 && sum.num_loaded_tokens > 0);
    workload_release(&workload);
}

/* The longest request alone does not fit twice; a link of next to nothing is waited for. */
static void slow_link_ends(void **state) {
    workload_list workload;
    char text[WORKLOAD_MAX_ERROR];
    preempt_serve_args args = base_args;
    preempt_serve_result slow;
    preempt_serve_result fast;
    const char *error;

    (void)state;
    assert_true(workload_make_table("sharegpt", 4, 12, &workload, text));
    args.workload = &workload;
    args.preemption = SCHEDULER_SWAP;
    args.num_blocks = 140;
    assert_true(preempt_serve_run(&args, &fast, &error));
    args.costs.link_bytes_per_second = 1e7;
    assert_true(preempt_serve_run(&args, &slow, &error));
    assert_true(slow.digest == fast.digest);
    assert_true(slow.num_empty_steps > fast.num_empty_steps);
    workload_release(&workload);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_requests_finish_with_the_same_tokens),
        cmocka_unit_test(slow_link_ends),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
