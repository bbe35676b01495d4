/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Goal: a step that failed, or a request that was taken out of a step, leaves no key on content
 * that was never computed, and blocks that a step in flight may touch are not handed out. Method:
 * requests are admitted in numbered steps; after each undo the keys, the hits and the free queue
 * are read. */
#include "support/fixture.h"

/* ---- helpers --------------------------------------------------------------------------------- */

static uint64_t step_of(const pkv_manager *manager, pkv_block_id block_id) {
    return manager_block_of(manager, block_id).step;
}

/* ---- completing ------------------------------------------------------------------------------ */

static void step_complete_settles_all_steps_up_to_it(void **state) {
    pkv_manager *manager = make_small_manager(31, 16);

    (void)state;
    admit_in_step(manager, open_prompt(manager, "0..31"), 5);
    admit_in_step(manager, open_prompt(manager, "100..131"), 6);
    admit_in_step(manager, open_prompt(manager, "200..231"), 9);
    assert_int_equal(step_of(manager, 1), 5);
    assert_int_equal(step_of(manager, 3), 6);
    assert_int_equal(step_of(manager, 6), 9);

    assert_int_equal(pkv_step_complete(manager, 7), PKV_OK);
    assert_int_equal(step_of(manager, 1), 0);
    assert_int_equal(step_of(manager, 3), 0);
    assert_int_equal(step_of(manager, 6), 9);
    assert_string_equal(keyed_text(manager), "1 2 3 4 5 6");
    assert_int_equal(pkv_step_complete(manager, 9), PKV_OK);
    assert_int_equal(step_of(manager, 6), 0);
}

static void step_zero_is_not_tracked(void **state) {
    pkv_manager *manager = make_small_manager(31, 16);
    pkv_request untracked = open_prompt(manager, "0..31");
    pkv_slots_args args = slots_of(0, 32);

    (void)state;
    admit(manager, untracked);
    assert_int_equal(step_of(manager, 1), 0);
    args.delay_caching = true;
    args.step = 1;
    assert_int_equal(pkv_allocate_slots(manager, open_prompt(manager, "100..131"), &args, NULL),
                     PKV_OK);
    assert_int_equal(pkv_step_fail(manager, 1), PKV_OK);
    assert_string_equal(keyed_text(manager), "1 2");
}

static void delayed_publication_is_not_tracked(void **state) {
    pkv_manager *manager = make_small_manager(31, 16);
    pkv_request request = open_prompt(manager, "0..31");
    pkv_slots_args args = slots_of(0, 32);

    (void)state;
    args.delay_caching = true;
    args.step = 1;
    assert_int_equal(pkv_allocate_slots(manager, request, &args, NULL), PKV_OK);
    assert_int_equal(pkv_cache_blocks(manager, request, 32), PKV_OK);
    assert_int_equal(step_of(manager, 1), 0);
    assert_int_equal(pkv_step_fail(manager, 1), PKV_OK);
    assert_string_equal(keyed_text(manager), "1 2");
}

/* ---- failing --------------------------------------------------------------------------------- */

static void step_fail_withdraws_what_it_published_and_later_steps(void **state) {
    pkv_manager *manager = make_small_manager(31, 16);
    pkv_request first = open_prompt(manager, "0..31");
    pkv_request second = open_prompt(manager, "100..131");
    pkv_request third = open_prompt(manager, "200..231");

    (void)state;
    admit_in_step(manager, first, 1);
    admit_in_step(manager, second, 2);
    admit_in_step(manager, third, 3);
    assert_int_equal(pkv_step_fail(manager, 2), PKV_OK);
    assert_string_equal(keyed_text(manager), "1 2");
    assert_int_equal(stats_of(manager).num_keys_withdrawn, 4);
    assert_int_equal(step_of(manager, 1), 1);
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..32")), 32);
    assert_int_equal(find_hit(manager, open_prompt(manager, "100..132")), 0);

    /* Requests keep their blocks, which go to the head as keyless ones. */
    assert_string_equal(table_text(manager, second, 0), "3 4");
    end_request(manager, second);
    assert_string_equal(refs_text(manager, 1, 6), "1 1 0 0 1 1");
    assert_int_equal(pkv_step_complete(manager, 1), PKV_OK);
}

static void step_fail_then_readmission_hits_exactly_what_is_valid(void **state) {
    pkv_manager *manager = make_small_manager(31, 16);
    pkv_request request = open_prompt(manager, "0..99");

    (void)state;
    assert_int_equal(allocate_in_step(manager, request, 0, 48, 1), PKV_OK);
    assert_int_equal(pkv_step_complete(manager, 1), PKV_OK);
    assert_int_equal(allocate_in_step(manager, request, 48, 52, 2), PKV_OK);
    assert_string_equal(keyed_columns_text(manager, request, 0), "0 1 2 3 4 5");

    assert_int_equal(pkv_step_fail(manager, 2), PKV_OK);
    assert_string_equal(keyed_columns_text(manager, request, 0), "0 1 2");
    assert_int_equal(pkv_free(manager, request), PKV_OK);
    assert_int_equal(admit_in_step(manager, request, 2), 48);
    assert_string_equal(keyed_columns_text(manager, request, 0), "0 1 2 3 4 5");
    assert_int_equal(pkv_step_complete(manager, 2), PKV_OK);
}

static void step_fail_then_the_same_step_again_publishes_again(void **state) {
    pkv_manager *manager = make_small_manager(31, 16);
    pkv_request request = open_prompt(manager, "0..63");

    (void)state;
    assert_int_equal(allocate_in_step(manager, request, 0, 32, 1), PKV_OK);
    assert_int_equal(allocate_in_step(manager, request, 32, 32, 2), PKV_OK);
    assert_int_equal(pkv_step_fail(manager, 2), PKV_OK);
    assert_string_equal(keyed_columns_text(manager, request, 0), "0 1");

    /* The engine runs the lost step anew with the blocks that it still has. */
    assert_int_equal(allocate_in_step(manager, request, 32, 32, 2), PKV_OK);
    assert_string_equal(table_text(manager, request, 0), "1 2 3 4");
    assert_string_equal(keyed_columns_text(manager, request, 0), "0 1 2 3");
    assert_int_equal(step_of(manager, 3), 2);
}

static void step_fail_reaches_hits_of_the_same_step_and_of_the_next(void **state) {
    pkv_manager *manager = make_small_manager(31, 16);
    pkv_request writer = open_prompt(manager, COMMON " 7*3");
    pkv_request reader = open_prompt(manager, COMMON " 16*4 5");
    pkv_request late = open_prompt(manager, COMMON " 16*4 6");

    (void)state;
    admit_in_step(manager, writer, 4);
    assert_int_equal(admit_in_step(manager, reader, 4), 48);
    assert_int_equal(admit_in_step(manager, late, 5), 64);
    assert_string_equal(refs_text(manager, 1, 3), "3 3 3");

    assert_int_equal(pkv_step_fail(manager, 4), PKV_OK);
    assert_string_equal(keyed_text(manager), "");
    end_request(manager, writer);
    end_request(manager, reader);
    end_request(manager, late);
    assert_int_equal(num_free_blocks(manager), 30);
    assert_int_equal(find_hit(manager, open_prompt(manager, COMMON " 7*3")), 0);
}

static void step_fail_leaves_an_older_copy_of_the_content(void **state) {
    pkv_manager *manager = make_small_manager(31, 16);
    const pkv_request_args skip = {.skip_cache_read = true};
    pkv_request old = open_prompt(manager, COMMON " 7*3");
    pkv_request duplicate = open_prompt_as(manager, &skip, COMMON " 7*3");

    (void)state;
    admit_in_step(manager, old, 1);
    assert_int_equal(pkv_step_complete(manager, 1), PKV_OK);
    admit_in_step(manager, duplicate, 2);
    assert_string_equal(keyed_text(manager), "1 2 3 5 6 7");
    assert_int_equal(pkv_step_fail(manager, 2), PKV_OK);
    assert_string_equal(keyed_text(manager), "1 2 3");
    assert_string_equal(hit_text(manager, open_prompt(manager, COMMON " 9"), 0), "1 2 3");
}

static void step_fail_of_a_block_handed_out_since_leaves_its_new_content(void **state) {
    pkv_manager *manager = make_small_manager(3, 16);
    pkv_request victim = open_prompt(manager, "0..31");
    pkv_request next = open_prompt(manager, "100..131");

    (void)state;
    /* Preempted after it was scheduled in step 1; its blocks serve another one in step 2. */
    admit_in_step(manager, victim, 1);
    end_request(manager, victim);
    assert_string_equal(keyed_text(manager), "1 2");
    admit_in_step(manager, next, 2);
    assert_string_equal(table_text(manager, next, 0), "2 1");
    assert_int_equal(step_of(manager, 1), 2);

    assert_int_equal(pkv_step_complete(manager, 1), PKV_OK);
    assert_string_equal(keyed_text(manager), "1 2");
    assert_int_equal(step_of(manager, 1), 2);
    assert_int_equal(pkv_step_fail(manager, 2), PKV_OK);
    assert_string_equal(keyed_text(manager), "");
}

static void step_fail_withdraws_from_blocks_that_are_free_already(void **state) {
    pkv_manager *manager = make_small_manager(6, 16);
    pkv_request request = open_prompt(manager, "0..47");

    (void)state;
    admit_in_step(manager, request, 3);
    end_request(manager, request);
    assert_string_equal(queue_text(manager), "4 5 3 2 1");
    assert_int_equal(pkv_step_fail(manager, 3), PKV_OK);
    assert_string_equal(keyed_text(manager), "");
    assert_string_equal(queue_text(manager), "4 5 3 2 1");
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..48")), 0);
}

static void step_fail_of_a_hit_chain_whose_steps_do_not_rise(void **state) {
    pkv_manager *manager = make_small_manager(31, 16);
    pkv_request old = open_prompt(manager, "0..32");
    pkv_request again = open_prompt(manager, "0..32");
    pkv_request reader = open_prompt(manager, "0..31 16*7 8");

    (void)state;
    /* Column 0 is published anew by step 5, column 1 is still that of step 4. */
    admit_in_step(manager, old, 4);
    evict_columns(manager, old, 0, "0");
    assert_int_equal(admit_in_step(manager, again, 5), 0);
    assert_int_equal(admit_in_step(manager, reader, 6), 32);
    assert_string_equal(table_text(manager, reader, 0), "4 2 7 8");

    assert_int_equal(pkv_step_fail(manager, 5), PKV_OK);
    assert_string_equal(keyed_text(manager), "2");
    assert_string_equal(keyed_columns_text(manager, reader, 0), "1");
    /* The reader runs on with what it holds, and publishes what is its own. */
    assert_int_equal(allocate_in_step(manager, reader, 32, 17, 5), PKV_OK);
    assert_string_equal(keyed_columns_text(manager, reader, 0), "0 1 2");
    assert_int_equal(pkv_step_complete(manager, 5), PKV_OK);
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..31 16*7 8")), 48);
}

/* ---- withdrawing one request ----------------------------------------------------------------- */

static void unschedule_withdraws_only_what_this_request_published(void **state) {
    pkv_manager *manager = make_small_manager(31, 16);
    pkv_request victim = open_prompt(manager, "0..63");
    pkv_request other = open_prompt(manager, "100..131");

    (void)state;
    assert_int_equal(allocate_in_step(manager, victim, 0, 32, 1), PKV_OK);
    assert_int_equal(allocate_in_step(manager, victim, 32, 32, 2), PKV_OK);
    admit_in_step(manager, other, 2);

    assert_int_equal(pkv_unschedule(manager, victim, 2), PKV_OK);
    assert_string_equal(keyed_columns_text(manager, victim, 0), "0 1");
    assert_string_equal(keyed_columns_text(manager, other, 0), "0 1");
    assert_string_equal(table_text(manager, victim, 0), "1 2 3 4");
    assert_int_equal(stats_of(manager).num_keys_withdrawn, 2);

    assert_int_equal(pkv_free(manager, victim), PKV_OK);
    assert_int_equal(find_hit(manager, victim), 32);
    assert_int_equal(pkv_step_complete(manager, 2), PKV_OK);
    assert_string_equal(keyed_columns_text(manager, other, 0), "0 1");
}

static void unschedule_is_refused_while_another_request_relies_on_it(void **state) {
    pkv_manager *manager = make_small_manager(31, 16);
    pkv_request writer = open_prompt(manager, COMMON " 7*3");
    pkv_request reader = open_prompt(manager, COMMON " 5*3");
    const pkv_request both[] = {writer, reader};
    const char *before;

    (void)state;
    admit_in_step(manager, writer, 1);
    admit_in_step(manager, reader, 1);
    before = remember_state(manager, both, 2);
    assert_int_equal(pkv_unschedule(manager, writer, 1), PKV_ERROR_BUSY);
    assert_string_equal(state_text(manager, both, 2), before);

    /* The reader published nothing of its own; once it is gone the writer can go. */
    assert_int_equal(pkv_unschedule(manager, reader, 1), PKV_OK);
    assert_string_equal(keyed_text(manager), "1 2 3");
    assert_int_equal(pkv_free(manager, reader), PKV_OK);
    assert_int_equal(pkv_unschedule(manager, writer, 1), PKV_OK);
    assert_string_equal(keyed_text(manager), "");
}

static void unschedule_before_columns_that_were_published_late_keeps_those(void **state) {
    pkv_manager *manager = make_small_manager(31, 16);
    pkv_request request = open_prompt(manager, "0..63");
    pkv_slots_args args = slots_of(32, 32);

    (void)state;
    assert_int_equal(allocate_in_step(manager, request, 0, 32, 2), PKV_OK);
    args.step = 2;
    args.delay_caching = true;
    assert_int_equal(pkv_allocate_slots(manager, request, &args, NULL), PKV_OK);
    assert_int_equal(pkv_cache_blocks(manager, request, 64), PKV_OK);
    assert_string_equal(keyed_columns_text(manager, request, 0), "0 1 2 3");

    assert_int_equal(pkv_unschedule(manager, request, 2), PKV_OK);
    assert_string_equal(keyed_columns_text(manager, request, 0), "2 3");
    assert_int_equal(pkv_cache_blocks(manager, request, 64), PKV_OK);
    assert_string_equal(keyed_columns_text(manager, request, 0), "0 1 2 3");
    assert_int_equal(stats_of(manager).num_keys_published, 6);
}

static void unschedule_without_blocks_or_publications_does_nothing(void **state) {
    pkv_manager *manager = make_small_manager(31, 16);
    pkv_request waiting = open_prompt(manager, "0..31");
    pkv_request running = open_prompt(manager, "100..109");
    const pkv_request both[] = {waiting, running};
    const char *before;

    (void)state;
    admit_in_step(manager, running, 2);
    before = remember_state(manager, both, 2);
    assert_int_equal(pkv_unschedule(manager, waiting, 2), PKV_OK);
    assert_int_equal(pkv_unschedule(manager, running, 2), PKV_OK);
    assert_string_equal(state_text(manager, both, 2), before);
}

/* ---- freeing after a step -------------------------------------------------------------------- */

static void free_after_holds_blocks_until_the_step_completes(void **state) {
    pkv_manager *manager = make_small_manager(6, 16);
    pkv_request request = open_prompt(manager, "0..39");
    pkv_request next = open_prompt(manager, "100..147");
    pkv_slots slots = make_slots();
    pkv_slots_args args = slots_of(0, 48);

    (void)state;
    admit_in_step(manager, request, 1);
    assert_int_equal(pkv_free_after(manager, request, 1), PKV_OK);
    assert_string_equal(table_text(manager, request, 0), "");
    assert_int_equal(info_of(manager, request).row, PKV_NULL_ROW);
    assert_int_equal(stats_of(manager).num_rows, 0);
    assert_int_equal(stats_of(manager).num_pending_blocks, 3);
    assert_string_equal(queue_text(manager), "4 5");

    assert_int_equal(pkv_allocate_slots(manager, next, &args, &slots), PKV_NO_FREE_BLOCKS);
    assert_int_equal(slots.num_missing_blocks, 1);
    assert_int_equal(slots.num_pending_blocks, 3);

    assert_int_equal(pkv_step_complete(manager, 1), PKV_OK);
    assert_string_equal(queue_text(manager), "3 4 5 2 1");
    assert_int_equal(stats_of(manager).num_pending_blocks, 0);
    assert_int_equal(pkv_allocate_slots(manager, next, &args, &slots), PKV_OK);
}

/* Held tables own blocks, too, but are nobody's table any more. */
static void free_after_leaves_the_common_prefix_to_the_rows(void **state) {
    pkv_manager *manager = make_small_manager(31, 16);
    pkv_request first = open_prompt(manager, COMMON " 7*3");
    pkv_request second = open_prompt(manager, COMMON " 5*3");
    pkv_request other = open_prompt(manager, "100..150");
    int32_t num_blocks = -1;

    (void)state;
    admit_in_step(manager, first, 1);
    admit_in_step(manager, second, 1);
    admit_in_step(manager, other, 1);
    assert_int_equal(pkv_free_after(manager, second, 1), PKV_OK);
    /* Two owners, two rows, and yet no block in common. */
    assert_int_equal(pkv_get_num_common_prefix_blocks(manager, first, 0, &num_blocks), PKV_OK);
    assert_int_equal(num_blocks, 0);

    assert_int_equal(pkv_free(manager, other), PKV_OK);
    admit_in_step(manager, second, 2);
    /* Three owners, two rows, which share their prefix. */
    assert_int_equal(pkv_get_num_common_prefix_blocks(manager, first, 0, &num_blocks), PKV_OK);
    assert_int_equal(num_blocks, 3);
    assert_int_equal(pkv_get_num_common_prefix_blocks(manager, second, 0, &num_blocks), PKV_OK);
    assert_int_equal(num_blocks, 3);
}

static void free_after_outlives_the_handle(void **state) {
    pkv_manager *manager = make_small_manager(6, 16);
    pkv_request request = open_prompt(manager, "0..39");

    (void)state;
    admit_in_step(manager, request, 1);
    assert_int_equal(pkv_free_after(manager, request, 1), PKV_OK);
    assert_int_equal(pkv_request_close(manager, request), PKV_OK);
    assert_string_equal(queue_text(manager), "4 5");
    assert_int_equal(pkv_manager_check(manager), PKV_OK);
    assert_int_equal(pkv_step_complete(manager, 1), PKV_OK);
    assert_string_equal(queue_text(manager), "3 4 5 2 1");
}

static void free_after_blocks_can_be_hit_meanwhile(void **state) {
    pkv_manager *manager = make_small_manager(11, 16);
    pkv_request request = open_prompt(manager, COMMON " 7*3");
    pkv_request reader = open_prompt(manager, COMMON " 5*3");

    (void)state;
    admit_in_step(manager, request, 1);
    assert_int_equal(pkv_free_after(manager, request, 1), PKV_OK);
    assert_int_equal(admit_in_step(manager, reader, 2), 48);
    assert_string_equal(refs_text(manager, 1, 5), "2 2 2 1 1");
    assert_int_equal(stats_of(manager).num_pending_blocks, 1);
    assert_int_equal(pkv_step_complete(manager, 1), PKV_OK);
    assert_string_equal(refs_text(manager, 1, 5), "1 1 1 0 1");
}

static void free_after_a_complete_step_or_step_zero_frees_at_once(void **state) {
    pkv_manager *manager = make_small_manager(6, 16);
    pkv_request request = open_prompt(manager, "0..39");

    (void)state;
    admit_in_step(manager, request, 1);
    assert_int_equal(pkv_step_complete(manager, 1), PKV_OK);
    assert_int_equal(pkv_free_after(manager, request, 1), PKV_OK);
    assert_string_equal(queue_text(manager), "3 4 5 2 1");

    admit_in_step(manager, request, 2);
    assert_int_equal(pkv_free_after(manager, request, 0), PKV_OK);
    assert_int_equal(num_free_blocks(manager), 5);
}

static void free_after_a_step_that_fails_returns_the_blocks(void **state) {
    pkv_manager *manager = make_small_manager(6, 16);
    pkv_request request = open_prompt(manager, "0..39");

    (void)state;
    admit_in_step(manager, request, 1);
    assert_int_equal(pkv_free_after(manager, request, 1), PKV_OK);
    assert_int_equal(pkv_step_fail(manager, 1), PKV_OK);
    /* Withdrawn first, they return without keys. */
    assert_string_equal(keyed_text(manager), "");
    assert_string_equal(queue_text(manager), "3 2 1 4 5");
}

static void free_after_returns_in_the_order_of_steps(void **state) {
    pkv_manager *manager = make_small_manager(8, 16);
    pkv_request first = open_prompt(manager, "0..31");
    pkv_request second = open_prompt(manager, "100..131");

    (void)state;
    admit_in_step(manager, first, 1);
    admit_in_step(manager, second, 1);
    assert_int_equal(pkv_free_after(manager, first, 2), PKV_OK);
    assert_int_equal(pkv_free_after(manager, second, 1), PKV_OK);
    assert_int_equal(pkv_step_complete(manager, 1), PKV_OK);
    assert_string_equal(queue_text(manager), "5 6 7 4 3");
    assert_int_equal(pkv_step_complete(manager, 2), PKV_OK);
    assert_string_equal(queue_text(manager), "5 6 7 4 3 2 1");
}

static void free_after_more_tables_than_configured_is_refused(void **state) {
    pkv_manager_config config = small_config(31, 16);
    pkv_manager *manager;
    pkv_request first, second;
    const char *before;

    (void)state;
    config.max_held_rows = 1;
    manager = make_manager(&config);
    first = open_prompt(manager, "0..31");
    second = open_prompt(manager, "100..131");
    admit_in_step(manager, first, 1);
    admit_in_step(manager, second, 1);
    assert_int_equal(pkv_free_after(manager, first, 1), PKV_OK);
    before = remember_state(manager, &second, 1);
    assert_int_equal(pkv_free_after(manager, second, 1), PKV_NO_FREE_ROWS);
    assert_string_equal(state_text(manager, &second, 1), before);
    assert_int_equal(pkv_step_complete(manager, 1), PKV_OK);
    assert_int_equal(pkv_free_after(manager, second, 2), PKV_OK);
}

static void free_after_without_blocks_takes_no_place(void **state) {
    pkv_manager_config config = small_config(31, 16);
    pkv_manager *manager;
    pkv_request running;

    (void)state;
    config.max_held_rows = 1;
    manager = make_manager(&config);
    running = open_prompt(manager, "0..31");
    admit_in_step(manager, running, 1);
    assert_int_equal(pkv_free_after(manager, open_prompt(manager, "7"), 1), PKV_OK);
    assert_int_equal(pkv_free_after(manager, running, 1), PKV_OK);
}

/* ---- order of steps -------------------------------------------------------------------------- */

static void steps_that_go_back_are_refused(void **state) {
    pkv_manager *manager = make_small_manager(31, 16);
    pkv_request first = open_prompt(manager, "0..31");
    pkv_request second = open_prompt(manager, "100..131");
    const pkv_request both[] = {first, second};
    const char *before;

    (void)state;
    admit_in_step(manager, first, 5);
    before = remember_state(manager, both, 2);
    assert_int_equal(allocate_in_step(manager, second, 0, 32, 4), PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_step_complete(manager, 0), PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_step_fail(manager, 0), PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_unschedule(manager, first, 0), PKV_ERROR_INVALID_ARGUMENT);
    assert_string_equal(state_text(manager, both, 2), before);

    assert_int_equal(pkv_step_complete(manager, 5), PKV_OK);
    before = remember_state(manager, both, 2);
    assert_int_equal(allocate_in_step(manager, second, 0, 32, 5), PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_step_fail(manager, 5), PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_unschedule(manager, first, 5), PKV_ERROR_INVALID_ARGUMENT);
    assert_string_equal(state_text(manager, both, 2), before);
    assert_int_equal(allocate_in_step(manager, second, 0, 32, 6), PKV_OK);
}

static void step_fail_lets_numbers_be_used_again(void **state) {
    pkv_manager *manager = make_small_manager(31, 16);
    pkv_request request = open_prompt(manager, "0..31");

    (void)state;
    admit_in_step(manager, request, 10);
    assert_int_equal(pkv_step_fail(manager, 8), PKV_OK);
    assert_int_equal(pkv_free(manager, request), PKV_OK);
    admit_in_step(manager, request, 8);
    assert_int_equal(step_of(manager, 1), 8);
}

static void steps_may_be_large_numbers(void **state) {
    const uint64_t base = UINT64_C(0xfffffffffffffff0);
    pkv_manager *manager = make_small_manager(31, 16);
    pkv_request first = open_prompt(manager, "0..31");
    pkv_request second = open_prompt(manager, "100..131");

    (void)state;
    admit_in_step(manager, first, base);
    admit_in_step(manager, second, base + 7);
    assert_true(step_of(manager, 1) == base);
    assert_true(step_of(manager, 3) == base + 7);
    assert_int_equal(pkv_step_complete(manager, base), PKV_OK);
    assert_int_equal(pkv_step_fail(manager, base + 1), PKV_OK);
    assert_string_equal(keyed_text(manager), "1 2");
}

static void steps_too_far_apart_are_refused_until_the_old_one_completes(void **state) {
    const uint64_t far = UINT64_C(1) << 32;
    pkv_manager *manager = make_small_manager(31, 16);
    pkv_request first = open_prompt(manager, "0..31");
    pkv_request second = open_prompt(manager, "100..131");
    const pkv_request both[] = {first, second};
    const char *before;

    (void)state;
    admit_in_step(manager, first, 1);
    before = remember_state(manager, both, 2);
    assert_int_equal(allocate_in_step(manager, second, 0, 32, 1 + far), PKV_ERROR_INVALID_ARGUMENT);
    assert_string_equal(state_text(manager, both, 2), before);
    assert_int_equal(allocate_in_step(manager, second, 0, 32, far), PKV_OK);
    assert_int_equal(step_of(manager, 1), 1);
    assert_true(step_of(manager, 3) == far);
    assert_int_equal(pkv_step_complete(manager, 1), PKV_OK);
    assert_int_equal(pkv_free(manager, second), PKV_OK);
    assert_int_equal(allocate_in_step(manager, second, 0, 32, 2 * far - 1), PKV_OK);
    assert_int_equal(pkv_step_complete(manager, far), PKV_OK);
    assert_int_equal(pkv_step_fail(manager, far + 1), PKV_OK);
    assert_string_equal(keyed_columns_text(manager, first, 0), "0 1");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        fixture_test(step_complete_settles_all_steps_up_to_it),
        fixture_test(step_zero_is_not_tracked),
        fixture_test(delayed_publication_is_not_tracked),
        fixture_test(step_fail_withdraws_what_it_published_and_later_steps),
        fixture_test(step_fail_then_readmission_hits_exactly_what_is_valid),
        fixture_test(step_fail_then_the_same_step_again_publishes_again),
        fixture_test(step_fail_reaches_hits_of_the_same_step_and_of_the_next),
        fixture_test(step_fail_leaves_an_older_copy_of_the_content),
        fixture_test(step_fail_of_a_block_handed_out_since_leaves_its_new_content),
        fixture_test(step_fail_withdraws_from_blocks_that_are_free_already),
        fixture_test(step_fail_of_a_hit_chain_whose_steps_do_not_rise),
        fixture_test(unschedule_withdraws_only_what_this_request_published),
        fixture_test(unschedule_is_refused_while_another_request_relies_on_it),
        fixture_test(unschedule_before_columns_that_were_published_late_keeps_those),
        fixture_test(unschedule_without_blocks_or_publications_does_nothing),
        fixture_test(free_after_holds_blocks_until_the_step_completes),
        fixture_test(free_after_leaves_the_common_prefix_to_the_rows),
        fixture_test(free_after_outlives_the_handle),
        fixture_test(free_after_blocks_can_be_hit_meanwhile),
        fixture_test(free_after_a_complete_step_or_step_zero_frees_at_once),
        fixture_test(free_after_a_step_that_fails_returns_the_blocks),
        fixture_test(free_after_returns_in_the_order_of_steps),
        fixture_test(free_after_more_tables_than_configured_is_refused),
        fixture_test(free_after_without_blocks_takes_no_place),
        fixture_test(steps_that_go_back_are_refused),
        fixture_test(step_fail_lets_numbers_be_used_again),
        fixture_test(steps_may_be_large_numbers),
        fixture_test(steps_too_far_apart_are_refused_until_the_old_one_completes),
    };

    return cmocka_run_group_tests_name("steps", tests, NULL, NULL);
}
