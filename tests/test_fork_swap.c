/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Forks and swaps of the same blocks at once, with preemption, deferred frees and failed steps in
 * between. What each request reads is checked on a mirror of the device: a slot holds the token
 * that was written there, also after it went out to the tier and came back. */
#include <pagedkv/sharing.h>

#include <string.h>

#include "support/mirror_device.h"
#include "support/tier_fixture.h"

#define assert_ok(call) assert_int_equal(call, PKV_OK)

enum { BLOCK_TOKENS = 4, SLOTS = 16 };

/* Copies that were planned and have not run. */
struct delayed {
    pkv_swap swap;
    bool is_out;
    int32_t num_copies, num_tokens;
    pkv_block_copy copies[TIER_MAX_COPIES];
};

static int32_t host[SLOTS][BLOCK_TOKENS];

static struct delayed begin_out(pkv_tier *tier, pkv_request request) {
    pkv_swap_plan plan = make_plan(TIER_MAX_COPIES);
    struct delayed delayed = {.is_out = true};

    assert_ok(pkv_swap_out(tier, request, &plan, &delayed.swap));
    delayed.num_copies = plan.num_copies;
    delayed.num_tokens = plan.num_tokens;
    memcpy(delayed.copies, tier_copies, sizeof tier_copies);
    return delayed;
}

static struct delayed begin_in(pkv_tier *tier,
                               pkv_request request,
                               int32_t num_new,
                               uint64_t step) {
    pkv_swap_plan plan = make_plan(TIER_MAX_COPIES);
    pkv_slots_args args = slots_of(0, num_new);
    struct delayed delayed = {.is_out = false};

    args.step = step;
    assert_ok(pkv_swap_in(tier, request, &args, NULL, &plan, &delayed.swap));
    delayed.num_copies = plan.num_copies;
    delayed.num_tokens = plan.num_tokens;
    memcpy(delayed.copies, tier_copies, sizeof tier_copies);
    return delayed;
}

/* Run the copies, as late as the test wants, and commit. */
static void end_swap(device *target, pkv_tier *tier, const struct delayed *delayed) {
    for (int32_t i = 0; i < delayed->num_copies; i++) {
        const pkv_block_copy copy = delayed->copies[i];
        int32_t *block =
            &target->slots[(delayed->is_out ? copy.source : copy.target) * BLOCK_TOKENS];
        int32_t *slot = host[delayed->is_out ? copy.target : copy.source];

        memcpy(delayed->is_out ? slot : block, delayed->is_out ? block : slot, sizeof host[0]);
    }
    assert_ok(pkv_swap_commit(tier, delayed->swap));
    assert_ok(pkv_tier_check(tier));
}

static int32_t run_copies(device *target, pkv_manager *manager) {
    pkv_block_copy copies[8];
    int32_t count;

    assert_ok(pkv_take_copies(manager, 0, copies, 8, &count));
    for (int32_t i = 0; i < count; i++) {
        memcpy(&target->slots[copies[i].target * BLOCK_TOKENS],
               &target->slots[copies[i].source * BLOCK_TOKENS], sizeof host[0]);
    }
    return count;
}

/* Give requests their next tokens in one step, and run it. Returns how many blocks were copied. */
static int32_t compute(device *target,
                       pkv_manager *manager,
                       const pkv_batch_entry *entries,
                       int32_t count) {
    int32_t num_copies;

    for (int32_t i = 0; i < count; i++) {
        assert_ok(allocate(manager, entries[i].request, entries[i].num_computed_tokens,
                           entries[i].num_new_tokens));
    }
    num_copies = run_copies(target, manager);
    run_step(target, manager, entries, count);
    return num_copies;
}

static void compute_one(device *target, pkv_manager *manager, pkv_request request, int32_t first) {
    const pkv_batch_entry entry = {request, first, info_of(manager, request).num_tokens - first};

    (void)compute(target, manager, &entry, 1);
}

static pkv_request fork_of(pkv_manager *manager, pkv_request parent, int32_t num_computed_tokens) {
    pkv_request child = {0, 0};

    assert_ok(pkv_fork(manager, parent, num_computed_tokens, &child));
    return child;
}

/* Others write every block that nobody holds, and all keys of the device are gone. */
static void overwrite_free_blocks(device *target, pkv_manager *manager) {
    const int32_t num_tokens = num_free_blocks(manager) * BLOCK_TOKENS - 1;
    pkv_request other = open_prompt(manager, "500..%d", 500 + num_tokens);

    compute_one(target, manager, other, 0);
    assert_int_equal(num_free_blocks(manager), 0);
    end_request(manager, other);
    forget_device(manager);
}

static void everything_is_back(pkv_manager *manager, pkv_tier *tier) {
    assert_ok(pkv_manager_check(manager));
    assert_int_equal(num_free_blocks(manager), stats_of(manager).num_blocks - 1);
    assert_int_equal(stats_of(manager).num_pending_blocks, 0);
    assert_int_equal(tier_stats(tier).num_pinned_blocks, 0);
    end_tier(tier);
}

/* A parent is not forked before what it waits for is there; afterwards both read it. */
static void loading_parent_is_forked_when_it_is_loaded(void **state) {
    pkv_manager *manager = make_walk_manager(16, BLOCK_TOKENS);
    pkv_tier *tier = make_tier(manager, SLOTS);
    device target = make_device(0, BLOCK_TOKENS, 0);
    pkv_request parent = open_prompt(manager, "0..13");
    pkv_request child = {7, 7};
    pkv_batch_entry entries[2];
    struct delayed swap;
    const char *before;

    (void)state;
    compute_one(&target, manager, parent, 0);
    swap = begin_out(tier, parent);
    assert_ok(pkv_free(manager, parent));
    end_swap(&target, tier, &swap);
    overwrite_free_blocks(&target, manager);
    swap = begin_in(tier, parent, 0, 0);
    assert_int_equal(swap.num_tokens, 12);
    before = remember_state(manager, &parent, 1);
    assert_int_equal(pkv_fork(manager, parent, 12, &child), PKV_ERROR_BUSY);
    assert_int_equal(pkv_fork(manager, parent, 4, &child), PKV_ERROR_BUSY);
    assert_int_equal(pkv_truncate(manager, parent, 9), PKV_ERROR_BUSY);
    assert_int_equal(child.index, 7);
    assert_string_equal(state_text(manager, &parent, 1), before);
    end_swap(&target, tier, &swap);
    child = fork_of(manager, parent, 10); /* in the middle of a block that was loaded */
    append_tokens(manager, parent, "70");
    assert_ok(pkv_truncate(manager, child, 10));
    append_tokens(manager, child, "80..85");
    entries[0] = (pkv_batch_entry){parent, 12, 3};
    entries[1] = (pkv_batch_entry){child, 10, 6};
    assert_int_equal(compute(&target, manager, entries, 2), 1);
    end_request(manager, parent);
    end_request(manager, child);
    everything_is_back(manager, tier);
}

/* The parent is swapped out and gone at once; the child goes on in the same blocks while they are
 * being copied, cuts one of them in its middle, and writes it anew. */
static void parent_leaves_while_its_child_rewrites(void **state) {
    pkv_manager *manager = make_walk_manager(16, BLOCK_TOKENS);
    pkv_tier *tier = make_tier(manager, SLOTS);
    device target = make_device(0, BLOCK_TOKENS, 0);
    pkv_request parent = open_prompt(manager, "0..9");
    pkv_request child;
    struct delayed out, in;
    pkv_batch_entry entry;

    (void)state;
    compute_one(&target, manager, parent, 0);
    child = fork_of(manager, parent, 10);
    out = begin_out(tier, parent);
    assert_int_equal(out.num_copies, 2);
    assert_ok(pkv_free(manager, parent)); /* preempted */
    assert_ok(pkv_truncate(manager, child, 6));
    append_tokens(manager, child, "80..90");
    entry = (pkv_batch_entry){child, 6, 11};
    assert_int_equal(compute(&target, manager, &entry, 1), 1); /* the pin is an owner, too */
    overwrite_free_blocks(&target, manager);
    end_swap(&target, tier, &out); /* only now do the copies run */
    append_tokens(manager, child, "91");
    compute_one(&target, manager, child, 17);
    in = begin_in(tier, parent, 0, 0);
    assert_int_equal(in.num_tokens, 8);
    compute_one(&target, manager, open_prompt(manager, "600..604"), 0);
    end_swap(&target, tier, &in);
    compute_one(&target, manager, parent, 8);
    end_request(manager, fork_of(manager, parent, 10));
    end_request(manager, parent);
    end_request(manager, child);
    assert_ok(pkv_manager_check(manager));
    end_tier(tier);
}

/* A child that was to get a copy is preempted before the list is taken, and again while its blocks
 * go out; it comes back from the tier. */
static void child_is_preempted_before_its_copy_and_during_its_swap(void **state) {
    pkv_manager *manager = make_walk_manager(16, BLOCK_TOKENS);
    pkv_tier *tier = make_tier(manager, SLOTS);
    device target = make_device(0, BLOCK_TOKENS, 0);
    pkv_request parent = open_prompt(manager, "0..9");
    pkv_request child;
    struct delayed out, in;

    (void)state;
    compute_one(&target, manager, parent, 0);
    child = fork_of(manager, parent, 10);
    append_tokens(manager, child, "80 81 82");
    assert_ok(allocate_in_step(manager, child, 10, 3, 1));
    assert_ok(pkv_unschedule(manager, child, 1)); /* it has a full block that nobody wrote */
    assert_ok(pkv_free(manager, child));
    assert_int_equal(run_copies(&target, manager), 0);
    append_tokens(manager, parent, "70 71"); /* in place, it is alone again */
    compute_one(&target, manager, parent, 10);
    assert_int_equal(find_hit(manager, child), 8);
    assert_int_equal(admit(manager, child), 8);
    run_step(&target, manager, &(pkv_batch_entry){child, 8, 5}, 1);
    out = begin_out(tier, child);
    assert_int_equal(out.num_copies, 3);
    assert_ok(pkv_free(manager, child));
    end_request(manager, parent);
    assert_int_equal(stats_of(manager).num_pending_blocks, 3);
    overwrite_free_blocks(&target, manager);
    end_swap(&target, tier, &out);
    overwrite_free_blocks(&target, manager);
    in = begin_in(tier, child, 0, 0);
    assert_int_equal(in.num_tokens, 12);
    end_swap(&target, tier, &in);
    compute_one(&target, manager, child, 12);
    end_request(manager, child);
    everything_is_back(manager, tier);
}

/* A parent ends while a step that it takes part in runs and its blocks go out; its child shares
 * them. Each of the three holds on by itself. */
static void deferred_free_swap_and_child_hold_on_each_by_itself(void **state) {
    pkv_manager *manager = make_walk_manager(16, BLOCK_TOKENS);
    pkv_tier *tier = make_tier(manager, SLOTS);
    device target = make_device(0, BLOCK_TOKENS, 0);
    pkv_request parent = open_prompt(manager, "0..7");
    pkv_request child, later;
    struct delayed out, in;

    (void)state;
    assert_ok(allocate_in_step(manager, parent, 0, 8, 6));
    run_step(&target, manager, &(pkv_batch_entry){parent, 0, 8}, 1);
    assert_ok(pkv_step_complete(manager, 6));
    append_tokens(manager, parent, "70..73");
    assert_ok(allocate_in_step(manager, parent, 8, 4, 7)); /* publishes a block, runs later */
    child = fork_of(manager, parent, 8);
    out = begin_out(tier, parent);
    assert_int_equal(out.num_copies, 2); /* of complete steps only */
    assert_ok(pkv_free_after(manager, parent, 7));
    assert_ok(pkv_request_close(manager, parent));
    assert_int_equal(stats_of(manager).num_pending_blocks, 1);
    assert_ok(pkv_truncate(manager, child, 8));
    append_tokens(manager, child, "80");
    assert_ok(allocate_in_step(manager, child, 8, 1, 8));
    run_step(&target, manager, &(pkv_batch_entry){child, 8, 1}, 1);
    assert_ok(pkv_free_after(manager, child, 8));
    assert_int_equal(stats_of(manager).num_pending_blocks, 4);
    assert_ok(pkv_step_complete(manager, 7));
    assert_int_equal(stats_of(manager).num_pending_blocks, 3);
    assert_ok(pkv_step_complete(manager, 8));
    assert_int_equal(stats_of(manager).num_pending_blocks, 2); /* the swap's */
    overwrite_free_blocks(&target, manager);
    end_swap(&target, tier, &out);
    overwrite_free_blocks(&target, manager);
    later = open_prompt(manager, "0..7 90");
    in = begin_in(tier, later, 0, 0);
    assert_int_equal(in.num_tokens, 8);
    end_swap(&target, tier, &in);
    compute_one(&target, manager, later, 8);
    end_request(manager, later);
    assert_ok(pkv_request_close(manager, child));
    everything_is_back(manager, tier);
}

/* A step fails that a parent took part in before it was forked: what it would have written is found
 * by neither, and what went out meanwhile is of complete steps only. */
static void failed_step_takes_a_fork_back_but_not_what_went_out(void **state) {
    pkv_manager *manager = make_walk_manager(24, BLOCK_TOKENS);
    pkv_tier *tier = make_tier(manager, SLOTS);
    device target = make_device(0, BLOCK_TOKENS, 0);
    pkv_request requests[2] = {open_prompt(manager, "0..8")};
    struct delayed out;

    (void)state;
    assert_ok(allocate_in_step(manager, requests[0], 0, 9, 1));
    run_step(&target, manager, &(pkv_batch_entry){requests[0], 0, 9}, 1);
    assert_ok(pkv_step_complete(manager, 1));
    append_tokens(manager, requests[0], "9..12");
    assert_ok(allocate_in_step(manager, requests[0], 9, 4, 2));
    requests[1] = fork_of(manager, requests[0], 13);
    append_tokens(manager, requests[1], "80..84");
    assert_ok(allocate_in_step(manager, requests[1], 13, 5, 3));
    out = begin_out(tier, requests[1]);
    assert_int_equal(out.num_copies, 2);
    assert_ok(pkv_step_fail(manager, 2)); /* it never ran, nor did step 3 */
    for (int i = 0; i < 2; i++) {
        assert_ok(pkv_free(manager, requests[i]));
    }
    (void)run_copies(&target, manager);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(find_hit(manager, requests[i]), i == 0 ? 8 : 12);
        const int32_t hit = admit(manager, requests[i]);
        run_step(
            &target, manager,
            &(pkv_batch_entry){requests[i], hit, info_of(manager, requests[i]).num_tokens - hit},
            1);
    }
    end_swap(&target, tier, &out);
    for (int i = 0; i < 2; i++) {
        assert_ok(pkv_free(manager, requests[i]));
    }
    overwrite_free_blocks(&target, manager);
    assert_int_equal(look_up_tier(tier, requests[0], 0), 8);
    for (int i = 0; i < 2; i++) {
        assert_ok(pkv_request_close(manager, requests[i]));
    }
    everything_is_back(manager, tier);
}

/* A request is loaded in a step, forked, and the step fails. The loaded blocks are right and stay;
 * what the step was to compute is computed again by both. */
static void failed_step_of_a_load_keeps_what_was_loaded(void **state) {
    pkv_manager *manager = make_walk_manager(24, BLOCK_TOKENS);
    pkv_tier *tier = make_tier(manager, SLOTS);
    device target = make_device(0, BLOCK_TOKENS, 0);
    pkv_request parent = open_prompt(manager, "0..13");
    pkv_request child;
    struct delayed swap;

    (void)state;
    compute_one(&target, manager, parent, 0);
    assert_ok(pkv_truncate(manager, parent, 8));
    swap = begin_out(tier, parent);
    append_tokens(manager, parent, "8..13");
    assert_ok(pkv_free(manager, parent));
    end_swap(&target, tier, &swap);
    overwrite_free_blocks(&target, manager);
    swap = begin_in(tier, parent, 6, 5);
    assert_int_equal(swap.num_tokens, 8);
    end_swap(&target, tier, &swap);
    child = fork_of(manager, parent, 14);
    append_tokens(manager, child, "80 81 82");
    assert_ok(allocate_in_step(manager, child, 14, 3, 6));
    assert_ok(pkv_step_fail(manager, 5));
    assert_ok(pkv_free(manager, child));
    assert_ok(pkv_free(manager, parent));
    (void)run_copies(&target, manager);
    assert_int_equal(admit(manager, child), 8);
    run_step(&target, manager, &(pkv_batch_entry){child, 8, 9}, 1);
    assert_int_equal(admit(manager, parent), 12);
    run_step(&target, manager, &(pkv_batch_entry){parent, 12, 2}, 1);
    end_request(manager, parent);
    end_request(manager, child);
    everything_is_back(manager, tier);
}

/* A request is cut inside of a block and gets other tokens there: until they are computed the block
 * holds the old ones, and must not go out under the new key. */
static void block_of_old_tokens_does_not_go_out_under_the_new_key(void **state) {
    pkv_manager *manager = make_walk_manager(16, BLOCK_TOKENS);
    pkv_tier *tier = make_tier(manager, SLOTS);
    device target = make_device(0, BLOCK_TOKENS, 0);
    pkv_request request = open_prompt(manager, "0..11");
    pkv_request other = open_prompt(manager, "0..9 80 81 82");
    struct delayed out;

    (void)state;
    compute_one(&target, manager, request, 0);
    assert_ok(pkv_truncate(manager, request, 10));
    append_tokens(manager, request, "80 81");
    out = begin_out(tier, request);
    assert_int_equal(out.num_copies, 2);
    assert_int_equal(out.num_tokens, 8);
    assert_ok(pkv_swap_detach(tier, out.swap));
    end_swap(&target, tier, &out);
    assert_int_equal(look_up_tier(tier, other, 0), 8);
    compute_one(&target, manager, request, 10);
    out = begin_out(tier, request);
    assert_int_equal(out.num_copies, 1);
    end_swap(&target, tier, &out);
    assert_int_equal(look_up_tier(tier, other, 0), 12);
    end_request(manager, request);
    end_request(manager, other);
    everything_is_back(manager, tier);
}

/* A block without step number counts as computed, but not before the copy that brings its start. */
static void block_that_waits_for_its_copy_does_not_go_out(void **state) {
    pkv_manager *manager = make_walk_manager(16, BLOCK_TOKENS);
    pkv_tier *tier = make_tier(manager, SLOTS);
    device target = make_device(0, BLOCK_TOKENS, 0);
    pkv_request parent = open_prompt(manager, "0..9");
    pkv_request child;
    struct delayed out;

    (void)state;
    compute_one(&target, manager, parent, 0);
    child = fork_of(manager, parent, 10);
    append_tokens(manager, child, "80 81");
    assert_ok(allocate(manager, child, 10, 2));
    out = begin_out(tier, child);
    assert_int_equal(out.num_copies, 2);
    assert_ok(pkv_free(manager, child)); /* with it goes the pair */
    assert_int_equal(run_copies(&target, manager), 0);
    end_swap(&target, tier, &out);
    end_request(manager, parent);
    end_request(manager, child);
    everything_is_back(manager, tier);
}

/* Two requests: with a swap, a block of one has as many owners as there are requests. */
static void swap_is_no_owner_of_a_common_prefix(void **state) {
    pkv_manager *manager = make_walk_manager(16, BLOCK_TOKENS);
    pkv_tier *tier = make_tier(manager, SLOTS);
    device target = make_device(0, BLOCK_TOKENS, 0);
    pkv_request requests[3] = {
        open_prompt(manager, "0..8"), open_prompt(manager, "60..68"), {0, 0}};
    struct delayed out;
    int32_t count = -1;

    (void)state;
    compute_one(&target, manager, requests[0], 0);
    compute_one(&target, manager, requests[1], 0);
    out = begin_out(tier, requests[0]);
    assert_ok(pkv_get_num_common_prefix_blocks(manager, requests[0], 0, &count));
    assert_int_equal(count, 0);
    end_request(manager, requests[1]);
    requests[2] = fork_of(manager, requests[0], 8);
    assert_ok(pkv_get_num_common_prefix_blocks(manager, requests[0], 0, &count));
    assert_int_equal(count, 2);
    end_swap(&target, tier, &out);
    end_request(manager, requests[0]);
    end_request(manager, requests[2]);
    everything_is_back(manager, tier);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        fixture_test(loading_parent_is_forked_when_it_is_loaded),
        fixture_test(parent_leaves_while_its_child_rewrites),
        fixture_test(child_is_preempted_before_its_copy_and_during_its_swap),
        fixture_test(deferred_free_swap_and_child_hold_on_each_by_itself),
        fixture_test(failed_step_takes_a_fork_back_but_not_what_went_out),
        fixture_test(failed_step_of_a_load_keeps_what_was_loaded),
        fixture_test(block_of_old_tokens_does_not_go_out_under_the_new_key),
        fixture_test(block_that_waits_for_its_copy_does_not_go_out),
        fixture_test(swap_is_no_owner_of_a_common_prefix),
    };

    return cmocka_run_group_tests_name("fork and swap", tests, NULL, NULL);
}
