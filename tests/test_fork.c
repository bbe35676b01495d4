/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Fork and copy-on-write: what is shared, who gets a copy when, and what the list of copies
 * promises. */
#include <pagedkv/sharing.h>

#include <string.h>

#include "support/mirror_device.h"

#define assert_ok(call) assert_int_equal(call, PKV_OK)

static pkv_request fork_of(pkv_manager *manager, pkv_request parent, int32_t num_computed_tokens) {
    pkv_request child = {0, 0};

    assert_ok(pkv_fork(manager, parent, num_computed_tokens, &child));
    return child;
}

/* Take every copy and apply it to the slots, as the device does before the writes of the step. */
static int32_t run_copies(device *target, pkv_manager *manager) {
    pkv_block_copy copies[3];
    int32_t total = 0;
    int32_t count;
    pkv_status status;

    do {
        status = pkv_take_copies(manager, target->group, copies, 3, &count);
        for (int32_t i = 0; i < count; i++) {
            memcpy(&target->slots[copies[i].target * target->block_size],
                   &target->slots[copies[i].source * target->block_size],
                   (size_t)target->block_size * sizeof target->slots[0]);
        }
        total += count;
    } while (status == PKV_MORE);
    assert_int_equal(status, PKV_OK);
    return total;
}

static int32_t allocate_counting(pkv_manager *manager, pkv_request request, int32_t computed) {
    pkv_slots_args args = slots_of(computed, 1);
    pkv_slots slots = make_slots();

    assert_ok(pkv_allocate_slots(manager, request, &args, &slots));
    return slots.num_copies;
}

/* ---- fork ------------------------------------------------------------------------------------ */

static void child_shares_the_blocks_of_its_tokens_and_no_lookahead(void **state) {
    pkv_manager *manager = make_small_manager(12, 4);
    pkv_request parent = open_prompt(manager, "0..9");
    pkv_slots_args args = slots_of(0, 10);
    pkv_request child;

    (void)state;
    args.num_lookahead_tokens = 6;
    assert_ok(pkv_allocate_slots(manager, parent, &args, NULL));
    assert_string_equal(table_text(manager, parent, 0), "1 2 3 4");
    child = fork_of(manager, parent, 10);
    assert_string_equal(table_text(manager, child, 0), "1 2 3");
    assert_string_equal(refs_text(manager, 1, 4), "2 2 2 1");
    assert_int_equal(info_of(manager, child).num_tokens, 10);
    assert_int_equal(info_of(manager, child).num_keys, 2);
    assert_int_not_equal(info_of(manager, child).row, info_of(manager, parent).row);
    assert_ok(pkv_request_close(manager, parent));
    assert_string_equal(refs_text(manager, 1, 4), "1 1 1 0");
    assert_ok(pkv_manager_check(manager));
}

static void first_writer_gets_the_copy_and_the_last_owner_writes_in_place(void **state) {
    pkv_manager *manager = make_small_manager(12, 4);
    device target = make_device(0, 4, 0);
    pkv_request parent = open_prompt(manager, "0..9");
    pkv_batch_entry entries[2] = {{parent, 0, 10}};
    pkv_request child;

    (void)state;
    admit(manager, parent);
    run_step(&target, manager, entries, 1);
    child = fork_of(manager, parent, 10);
    append_tokens(manager, parent, "70");
    append_tokens(manager, child, "80");
    assert_int_equal(allocate_counting(manager, parent, 10), 1);
    assert_int_equal(allocate_counting(manager, child, 10), 0);
    assert_string_equal(table_text(manager, parent, 0), "1 2 4");
    assert_string_equal(table_text(manager, child, 0), "1 2 3");
    assert_int_equal(run_copies(&target, manager), 1);
    entries[0] = (pkv_batch_entry){parent, 10, 1};
    entries[1] = (pkv_batch_entry){child, 10, 1};
    run_step(&target, manager, entries, 2);
    /* Forked again, only the new tail is shared anew. */
    (void)fork_of(manager, parent, 11);
    assert_string_equal(refs_text(manager, 1, 4), "3 3 1 2");
    /* From the next step on neither is copied. */
    append_tokens(manager, child, "81");
    assert_int_equal(allocate_counting(manager, child, 11), 0);
}

static void writing_own_keyed_content_again_copies_nothing(void **state) {
    pkv_manager *manager = make_small_manager(12, 4);
    pkv_request parent = open_prompt(manager, "0..7");
    pkv_request child;

    (void)state;
    admit(manager, parent);
    child = fork_of(manager, parent, 8);
    assert_int_equal(allocate_counting(manager, child, 7), 0);
    assert_string_equal(table_text(manager, child, 0), "1 2");
    /* Without the key nothing says that it is the same. */
    evict_columns(manager, parent, 0, "1");
    assert_int_equal(allocate_counting(manager, child, 7), 1);
    assert_string_equal(table_text(manager, child, 0), "1 3");
}

static void refusals_change_nothing(void **state) {
    pkv_manager_config config = small_config(12, 4);
    pkv_request requests[1];
    pkv_request child = {7, 7};
    pkv_manager *manager;
    const char *before;

    (void)state;
    config.max_rows = 1;
    config.max_requests = 2;
    config.max_total_tokens = 40;
    manager = make_manager(&config);
    requests[0] = open_prompt_as(
        manager, &(pkv_request_args){.struct_size = sizeof(pkv_request_args), .max_num_tokens = 30},
        "0..9");
    admit(manager, requests[0]);
    before = remember_state(manager, requests, 1);
    assert_int_equal(pkv_fork(manager, requests[0], 10, &child), PKV_NO_FREE_ROWS);
    assert_int_equal(pkv_fork(manager, requests[0], 0, &child), PKV_ERROR_LIMIT);
    assert_int_equal(pkv_fork(manager, requests[0], 11, &child), PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_fork(manager, requests[0], -1, &child), PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_fork(manager, requests[0], 10, NULL), PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_fork(manager, child, 1, &child), PKV_ERROR_STALE_HANDLE);
    assert_int_equal(child.index, 7);
    assert_string_equal(state_text(manager, requests, 1), before);
}

static void window_that_was_dropped_refuses_a_fork_into_it(void **state) {
    pkv_group_config groups[2] = {full_group(4), window_group(4, 5)};
    pkv_manager *manager = make_hybrid_manager(40, groups, 2);
    pkv_request parent = open_prompt(manager, "0..15");
    pkv_request child;

    (void)state;
    admit(manager, parent);
    assert_ok(pkv_remove_skipped_blocks(manager, parent, 15));
    assert_int_equal(pkv_fork(manager, parent, 8, &child), PKV_ERROR_INVALID_ARGUMENT);
    child = fork_of(manager, parent, 16);
    assert_string_equal(table_text(manager, child, 0), table_text(manager, parent, 0));
    assert_string_equal(table_text(manager, child, 1), "0 0 0 8");
    assert_ok(pkv_manager_check(manager));
}

/* ---- copies ---------------------------------------------------------------------------------- */

static void copy_counts_as_a_needed_block(void **state) {
    pkv_manager *manager = make_small_manager(5, 4);
    pkv_request parent = open_prompt(manager, "0..9");
    pkv_slots_args args = slots_of(10, 3);
    pkv_slots slots = make_slots();
    pkv_request child;

    (void)state;
    admit(manager, parent);
    child = fork_of(manager, parent, 10);
    append_tokens(manager, child, "80 81 82");
    /* A copy of the tail and a new block: one too many. */
    assert_int_equal(pkv_allocate_slots(manager, child, &args, &slots), PKV_NO_FREE_BLOCKS);
    assert_int_equal(slots.num_missing_blocks, 1);
    args.num_new_tokens = 2;
    assert_ok(pkv_allocate_slots(manager, child, &args, &slots));
    assert_int_equal(slots.num_copies, 1);
    assert_int_equal(slots.num_new_blocks, 0);
    assert_int_equal(num_free_blocks(manager), 0);
    /* The parent is preempted: the source stays until the list was taken. */
    assert_ok(pkv_request_close(manager, parent));
    assert_int_equal(num_free_blocks(manager), 0);
    assert_ok(pkv_manager_check(manager));
    assert_ok(pkv_take_copies(manager, 0, &(pkv_block_copy){0, 0}, 1, &args.num_new_tokens));
    assert_int_equal(args.num_new_tokens, 1);
    assert_int_equal(num_free_blocks(manager), 1);
}

static void freed_target_cancels_its_pair(void **state) {
    pkv_manager *manager = make_small_manager(8, 4);
    pkv_request parent = open_prompt(manager, "0..5");
    pkv_block_copy copy;
    int32_t count;
    pkv_request child;
    pkv_batch_entry entry;
    pkv_batch batch = {.struct_size = sizeof batch};

    (void)state;
    admit(manager, parent);
    child = fork_of(manager, parent, 6);
    append_tokens(manager, child, "80");
    assert_int_equal(allocate_counting(manager, child, 6), 1);
    entry = (pkv_batch_entry){child, 6, 1};
    assert_int_equal(pkv_batch_build(manager, 0, &entry, 1, &batch), PKV_ERROR_BUSY);
    assert_int_equal(pkv_take_copies(manager, 0, NULL, 0, &count), PKV_MORE);
    assert_string_equal(refs_text(manager, 1, 3), "2 2 1");
    assert_ok(pkv_free(manager, child));
    assert_string_equal(refs_text(manager, 1, 3), "1 1 0");
    assert_ok(pkv_take_copies(manager, 0, &copy, 1, &count));
    assert_int_equal(count, 0);
    assert_int_equal(pkv_take_copies(manager, 1, &copy, 1, &count), PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_take_copies(manager, 0, NULL, 1, &count), PKV_ERROR_INVALID_ARGUMENT);
}

/* A block that waits for its content is forked and written: both copies read the first source. */
static void copy_of_a_waiting_target_reads_where_that_reads(void **state) {
    pkv_manager *manager = make_small_manager(12, 4);
    pkv_request parent = open_prompt(manager, "0..5");
    pkv_block_copy copies[4];
    int32_t count;
    pkv_request child;
    pkv_request grandchild;

    (void)state;
    admit(manager, parent);
    child = fork_of(manager, parent, 6);
    append_tokens(manager, child, "80");
    assert_int_equal(allocate_counting(manager, child, 6), 1);
    grandchild = fork_of(manager, child, 6);
    assert_int_equal(allocate_counting(manager, grandchild, 6), 1);
    assert_ok(pkv_manager_check(manager));
    assert_ok(pkv_take_copies(manager, 0, copies, 4, &count));
    assert_int_equal(count, 2);
    assert_int_equal(copies[0].source, 2);
    assert_int_equal(copies[1].source, 2);
    assert_int_not_equal(copies[0].target, copies[1].target);
}

/* PUB-050: there is no child to fork onto again; a second fork makes a request of its own. */
static void second_fork_leaves_the_first_child_alone(void **state) {
    pkv_manager *manager = make_walk_manager(32, 4);
    device target = make_device(0, 4, 0);
    pkv_request parent = open_prompt(manager, "0..9");
    pkv_batch_entry entries[2] = {{parent, 0, 10}};
    pkv_request child, second;
    const char *before;

    (void)state;
    admit(manager, parent);
    run_step(&target, manager, entries, 1);
    child = fork_of(manager, parent, 10);
    append_tokens(manager, parent, "70");
    append_tokens(manager, child, "80");
    assert_int_equal(allocate_counting(manager, parent, 10), 1);
    assert_int_equal(allocate_counting(manager, child, 10), 0);
    (void)run_copies(&target, manager);
    entries[0] = (pkv_batch_entry){parent, 10, 1};
    entries[1] = (pkv_batch_entry){child, 10, 1};
    run_step(&target, manager, entries, 2);
    before = table_text(manager, child, 0);
    second = fork_of(manager, parent, 11);
    assert_true(second.index != child.index);
    assert_int_not_equal(info_of(manager, second).row, info_of(manager, child).row);
    assert_string_equal(table_text(manager, child, 0), before);
    assert_string_equal(table_text(manager, second, 0), table_text(manager, parent, 0));
    assert_ok(pkv_request_close(manager, second));
    assert_string_equal(refs_text(manager, 1, 4), "2 2 1 1"); /* shared blocks, private tails */
    append_tokens(manager, child, "81");
    assert_int_equal(allocate_counting(manager, child, 11), 0);
    run_step(&target, manager, &(pkv_batch_entry){child, 11, 1}, 1);
}

/* PUB-051: ten of sixteen tokens shared, then two ways on: two blocks, the ten rows in both. */
static void requests_that_share_part_of_a_block_write_distinct_blocks(void **state) {
    pkv_manager *manager = make_walk_manager(8, 16);
    device target = make_device(0, 16, 0);
    pkv_request parent = open_prompt(manager, "0..9");
    pkv_batch_entry entries[2] = {{parent, 0, 10}};
    pkv_slots_args args = slots_of(10, 6);
    pkv_request child;

    (void)state;
    admit(manager, parent);
    run_step(&target, manager, entries, 1);
    child = fork_of(manager, parent, 10);
    append_tokens(manager, parent, "70..75");
    append_tokens(manager, child, "80..85");
    assert_ok(pkv_allocate_slots(manager, parent, &args, NULL));
    assert_ok(pkv_allocate_slots(manager, child, &args, NULL));
    assert_int_equal(run_copies(&target, manager), 1);
    assert_string_equal(table_text(manager, parent, 0), "2");
    assert_string_equal(table_text(manager, child, 0), "1");
    assert_memory_equal(&target.slots[2 * 16], &target.slots[1 * 16], 10 * sizeof target.slots[0]);
    entries[0] = (pkv_batch_entry){parent, 10, 6};
    entries[1] = (pkv_batch_entry){child, 10, 6};
    run_step(&target, manager, entries, 2);
    assert_string_equal(refs_text(manager, 1, 2), "1 1");
    assert_string_equal(hit_text(manager, open_prompt(manager, "0..9 70..76"), 0), "2");
    assert_string_equal(hit_text(manager, open_prompt(manager, "0..9 80..86"), 0), "1");
}

/* Beams of width 4 over many steps: all forks, appends, closes, allocates, copies; each beam reads
 * exactly its own tokens. */
static void beams_read_their_own_tokens(void **state) {
    pkv_manager *manager = make_walk_manager(64, 4);
    device target = make_device(0, 4, 0);
    pkv_request beams[4] = {open_prompt(manager, "0..8")};
    pkv_batch_entry entries[4] = {{beams[0], 0, 9}};
    int32_t num_copies = 0;

    (void)state;
    admit(manager, beams[0]);
    run_step(&target, manager, entries, 1);
    for (int32_t i = 1; i < 4; i++) {
        beams[i] = fork_of(manager, beams[0], 9);
    }
    for (int32_t step = 0; step < 40; step++) {
        int32_t length = 9 + step;
        int32_t winner = step % 4;
        int32_t loser = (step * 7 + 1) % 4;
        if (step % 3 != 0 && winner != loser) {
            pkv_request child = fork_of(manager, beams[winner], length);
            assert_ok(pkv_request_close(manager, beams[loser]));
            beams[loser] = child;
        }
        for (int32_t i = 0; i < 4; i++) {
            append_tokens(manager, beams[i], "%d", 1000 + 10 * step + i);
            entries[i] = (pkv_batch_entry){beams[i], length, 1};
        }
        for (int32_t i = 0; i < 4; i++) {
            num_copies += allocate_counting(manager, beams[i], length);
        }
        (void)run_copies(&target, manager);
        run_step(&target, manager, entries, 4);
        assert_ok(pkv_manager_check(manager));
    }
    assert_in_range(num_copies, 10, 40);
    for (int32_t i = 0; i < 4; i++) {
        assert_ok(pkv_request_close(manager, beams[i]));
    }
    assert_int_equal(num_free_blocks(manager), 63);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        fixture_test(child_shares_the_blocks_of_its_tokens_and_no_lookahead),
        fixture_test(first_writer_gets_the_copy_and_the_last_owner_writes_in_place),
        fixture_test(writing_own_keyed_content_again_copies_nothing),
        fixture_test(refusals_change_nothing),
        fixture_test(window_that_was_dropped_refuses_a_fork_into_it),
        fixture_test(copy_counts_as_a_needed_block),
        fixture_test(freed_target_cancels_its_pair),
        fixture_test(copy_of_a_waiting_target_reads_where_that_reads),
        fixture_test(second_fork_leaves_the_first_child_alone),
        fixture_test(requests_that_share_part_of_a_block_write_distinct_blocks),
        fixture_test(beams_read_their_own_tokens),
    };

    return cmocka_run_group_tests_name("fork", tests, NULL, NULL);
}
