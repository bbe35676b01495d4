/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Truncate: what goes, what stays, and that a block which is cut in the middle does not change what
 * others find. */
#include <pagedkv/sharing.h>

#include "support/fixture.h"
#include "support/rand.h"

#define assert_ok(call) assert_int_equal(call, PKV_OK)

static int32_t rewrite(pkv_manager *manager, pkv_request request, int32_t computed, int32_t count) {
    pkv_slots_args args = slots_of(computed, count);
    pkv_slots slots = make_slots();

    assert_ok(pkv_allocate_slots(manager, request, &args, &slots));
    return slots.num_copies;
}

static void tokens_keys_and_blocks_behind_the_cut_go(void **state) {
    pkv_manager *manager = make_small_manager(12, 4);
    pkv_request request = open_prompt(manager, "0..13");

    (void)state;
    admit(manager, request);
    assert_string_equal(table_text(manager, request, 0), "1 2 3 4");
    assert_ok(pkv_truncate(manager, request, 6));
    assert_string_equal(table_text(manager, request, 0), "1 2");
    assert_int_equal(info_of(manager, request).num_tokens, 6);
    assert_int_equal(info_of(manager, request).num_keys, 1);
    /* Block 3 was published and stays to be found, block 4 was not. */
    assert_string_equal(keyed_text(manager), "1 2 3");
    assert_int_equal(num_free_blocks(manager), 9);
    assert_ok(pkv_manager_check(manager));
}

static void sole_owner_loses_the_key_and_writes_in_place(void **state) {
    pkv_manager *manager = make_small_manager(12, 4);
    pkv_request request = open_prompt(manager, "0..7");

    (void)state;
    admit(manager, request);
    assert_ok(pkv_truncate(manager, request, 6));
    assert_string_equal(keyed_text(manager), "1 2");
    append_tokens(manager, request, "70 71");
    assert_int_equal(rewrite(manager, request, 6, 2), 0);
    assert_string_equal(table_text(manager, request, 0), "1 2");
    /* The old content is gone, the new one is found. */
    assert_string_equal(keyed_text(manager), "1 2");
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..8")), 4);
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..5 70 71 1")), 8);
}

static void shared_block_is_copied_and_stays_found(void **state) {
    pkv_manager *manager = make_small_manager(12, 4);
    pkv_request request = open_prompt(manager, "0..7");
    pkv_request reader = open_prompt(manager, "0..9");
    pkv_block_copy copy;
    int32_t count;

    (void)state;
    admit(manager, request);
    admit(manager, reader);
    assert_string_equal(table_text(manager, reader, 0), "1 2 3");
    assert_ok(pkv_truncate(manager, request, 6));
    append_tokens(manager, request, "70 71");
    assert_int_equal(rewrite(manager, request, 6, 2), 1);
    assert_string_equal(table_text(manager, request, 0), "1 4");
    assert_ok(pkv_take_copies(manager, 0, &copy, 1, &count));
    assert_int_equal(copy.source, 2);
    assert_int_equal(copy.target, 4);
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..8")), 8);
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..5 70 71 1")), 8);
    assert_ok(pkv_manager_check(manager));
}

/* The same number of tokens as before, but others: nothing that was remembered holds. */
static void lookup_after_other_tokens_is_made_anew(void **state) {
    pkv_manager *manager = make_small_manager(12, 4);
    pkv_request writer = open_prompt(manager, "0..8");
    pkv_request request = open_prompt(manager, "0..8");

    (void)state;
    admit(manager, writer);
    assert_int_equal(find_hit(manager, request), 8);
    assert_ok(pkv_truncate(manager, request, 6));
    append_tokens(manager, request, "70 71 72");
    assert_int_equal(find_hit(manager, request), 4);
}

static void cut_column_is_not_published_before_it_is_written(void **state) {
    pkv_manager *manager = make_small_manager(12, 4);
    pkv_request request = open_prompt(manager, "0..7");

    (void)state;
    admit(manager, request);
    assert_ok(pkv_truncate(manager, request, 6));
    append_tokens(manager, request, "70 71");
    assert_ok(pkv_cache_blocks(manager, request, 8));
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..5 70 71 1")), 4);
    assert_ok(pkv_manager_check(manager));
}

static void failed_step_takes_back_what_a_cut_request_published(void **state) {
    pkv_manager *manager = make_small_manager(12, 4);
    pkv_request request = open_prompt(manager, "0..11");

    (void)state;
    admit_in_step(manager, request, 1);
    assert_ok(pkv_truncate(manager, request, 6));
    assert_string_equal(keyed_text(manager), "1 2 3");
    assert_ok(pkv_step_fail(manager, 1));
    assert_string_equal(keyed_text(manager), "");
    assert_ok(pkv_manager_check(manager));
}

/* PUB-041: accepted drafts were appended before the stop string in them was seen. */
static void tokens_behind_a_stop_are_taken_back_and_the_next_turn_hits(void **state) {
    (void)state;
    for (int32_t num_accepted = 7; num_accepted <= 40; num_accepted += 11) {
        pkv_manager *manager = make_small_manager(31, 16);
        pkv_request request = open_prompt(manager, "0..29");

        admit(manager, request);
        append_tokens(manager, request, "30..%d", 29 + num_accepted);
        (void)rewrite(manager, request, 30, num_accepted);
        assert_ok(pkv_truncate(manager, request, 33));
        assert_int_equal(info_of(manager, request).num_tokens, 33);
        assert_int_equal(info_of(manager, request).num_keys, 2);
        assert_int_equal(num_table_blocks(manager, request, 0), 3);
        assert_int_equal(num_free_blocks(manager), 27);
        append_tokens(manager, request, "90..99");
        assert_int_equal(rewrite(manager, request, 33, 10), 0);
        end_request(manager, request);
        assert_int_equal(find_hit(manager, open_prompt(manager, "0..32 90..99")), 32);
        assert_int_equal(find_hit(manager, open_prompt(manager, "0..32 33..62")), 32);
    }
}

/* PUB-043: a block has room for what it had room for, however often tokens come and go. */
static void blocks_follow_the_length_through_random_cuts(void **state) {
    pkv_manager *manager = make_small_manager(300, 16);
    pkv_request request = open_prompt(manager, "0..31");
    test_source source = test_source_of_seed(43);
    int32_t length = 32;

    (void)state;
    admit(manager, request);
    assert_ok(pkv_truncate(manager, request, 31));
    append_tokens(manager, request, "7");
    assert_int_equal(rewrite(manager, request, 31, 1), 0);
    assert_string_equal(table_text(manager, request, 0), "1 2");
    for (int32_t step = 0; step < 10000; step++) {
        int32_t count = test_draw_between(&source, 1, 5);

        if (length <= 5 || (length < 600 && test_draw(&source, 2) == 0)) {
            append_tokens(manager, request, "%d*%d", count, step);
            assert_int_equal(rewrite(manager, request, length, count), 0);
            length += count;
        } else {
            length -= count;
            assert_ok(pkv_truncate(manager, request, length));
        }
        assert_int_equal(info_of(manager, request).num_tokens, length);
        assert_int_equal(num_table_blocks(manager, request, 0), (length + 15) / 16);
        assert_int_equal(num_free_blocks(manager), 299 - (length + 15) / 16);
        if (step % 500 == 0) {
            assert_ok(pkv_manager_check(manager));
        }
    }
}

static void refusals_change_nothing(void **state) {
    pkv_group_config groups[2] = {full_group(4), window_group(4, 5)};
    pkv_manager *manager = make_hybrid_manager(40, groups, 2);
    pkv_media media = {.offset = 2, .num_tokens = 4};
    pkv_request_args args = {.struct_size = sizeof args, .media = &media, .num_media = 1};
    pkv_request requests[1] = {open_prompt_as(manager, &args, "0..15")};
    const char *before;

    (void)state;
    admit(manager, requests[0]);
    assert_ok(pkv_remove_skipped_blocks(manager, requests[0], 15));
    before = remember_state(manager, requests, 1);
    assert_int_equal(pkv_truncate(manager, requests[0], 0), PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_truncate(manager, requests[0], 17), PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_truncate(manager, requests[0], 4), PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_truncate(manager, requests[0], 9), PKV_ERROR_INVALID_ARGUMENT);
    assert_ok(pkv_truncate(manager, requests[0], 16));
    assert_string_equal(state_text(manager, requests, 1), before);
    /* Without blocks there is no window to miss; the item goes with its tokens. */
    assert_ok(pkv_free(manager, requests[0]));
    assert_ok(pkv_truncate(manager, requests[0], 2));
    assert_ok(pkv_manager_check(manager));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        fixture_test(tokens_keys_and_blocks_behind_the_cut_go),
        fixture_test(sole_owner_loses_the_key_and_writes_in_place),
        fixture_test(shared_block_is_copied_and_stays_found),
        fixture_test(lookup_after_other_tokens_is_made_anew),
        fixture_test(cut_column_is_not_published_before_it_is_written),
        fixture_test(failed_step_takes_back_what_a_cut_request_published),
        fixture_test(tokens_behind_a_stop_are_taken_back_and_the_next_turn_hits),
        fixture_test(blocks_follow_the_length_through_random_cuts),
        fixture_test(refusals_change_nothing),
    };

    return cmocka_run_group_tests_name("truncate", tests, NULL, NULL);
}
