/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Goal: a manager with one full-attention group gives out, shares and takes back blocks as vLLM V1
 * does, id for id. Method: small pools (10 usable blocks of 16 tokens where nothing else is said),
 * and after each call the tables, the free queue and the reference counts in full.
 *
 * What makes keys different (adapters, salts, media) is in test_identity.c, other kinds of groups
 * in test_groups.c, admission in test_admission.c. */
#include "support/fixture.h"

/* ---- prefill, share, free -------------------------------------------------------------------- */

static void prefill_shared_prefix_reuses_its_blocks(void **state) {
    pkv_manager *manager = make_small_manager(11, 16);
    pkv_request first = open_prompt(manager, COMMON " 7*3");
    pkv_request second = open_prompt(manager, COMMON " 5*3");

    (void)state;
    assert_int_equal(admit(manager, first), 0);
    assert_string_equal(new_text(manager, first, 0), "1 2 3 4");
    assert_string_equal(keyed_text(manager), "1 2 3");
    assert_string_equal(refs_text(manager, 1, 4), "1 1 1 1");

    assert_int_equal(find_hit(manager, second), 48);
    assert_string_equal(hit_text(manager, second, 0), "1 2 3");
    assert_int_equal(admit(manager, second), 48);
    assert_string_equal(new_text(manager, second, 0), "5");
    assert_string_equal(table_text(manager, second, 0), "1 2 3 5");
    assert_string_equal(refs_text(manager, 1, 5), "2 2 2 1 1");
    assert_int_equal(num_free_blocks(manager), 5);
}

static void prefill_after_frees_takes_keyless_blocks_first_and_prefix_starts_last(void **state) {
    pkv_manager *manager = make_small_manager(11, 16);
    pkv_request first = open_prompt(manager, COMMON " 7*3");
    pkv_request second = open_prompt(manager, COMMON " 5*3");
    pkv_request third = open_prompt(manager, COMMON " 6*3");
    pkv_request other = open_prompt(manager, "160*99");

    (void)state;
    admit(manager, first);
    admit(manager, second);
    end_request(manager, first);
    end_request(manager, second);
    assert_string_equal(queue_text(manager), "5 4 6 7 8 9 10 3 2 1");
    assert_string_equal(keyed_text(manager), "1 2 3");

    assert_int_equal(admit(manager, third), 48);
    assert_string_equal(table_text(manager, third, 0), "1 2 3 5");
    assert_int_equal(num_free_blocks(manager), 6);
    end_request(manager, third);

    assert_int_equal(admit(manager, other), 0);
    assert_string_equal(new_text(manager, other, 0), "5 4 6 7 8 9 10 3 2 1");
    assert_int_equal(num_free_blocks(manager), 0);
    assert_string_equal(queue_text(manager), "");
}

static void skip_cache_read_finds_nothing_but_publishes_duplicates(void **state) {
    pkv_manager *manager = make_small_manager(11, 16);
    pkv_request first = open_prompt(manager, COMMON " 7*3");
    const pkv_request_args skip = {.skip_cache_read = true};
    pkv_request second = open_prompt_as(manager, &skip, COMMON " 5*3");

    (void)state;
    admit(manager, first);
    assert_int_equal(find_hit(manager, second), 0);
    assert_int_equal(admit(manager, second), 0);
    assert_string_equal(new_text(manager, second, 0), "5 6 7 8");
    assert_string_equal(keyed_text(manager), "1 2 3 5 6 7");
    assert_string_equal(refs_text(manager, 1, 8), "1 1 1 1 1 1 1 1");
    assert_int_equal(stats_of(manager).num_distinct_keys, 3);
    assert_int_equal(manager_block_of(manager, 6).num_copies, 2);
    assert_true(keys_are_equal(manager_block_of(manager, 2).key, manager_block_of(manager, 6).key));
}

static void duplicate_keys_oldest_block_answers(void **state) {
    pkv_manager *manager = make_small_manager(11, 16);
    const pkv_request_args skip = {.skip_cache_read = true};
    pkv_request first = open_prompt(manager, COMMON " 7*3");
    pkv_request second = open_prompt_as(manager, &skip, COMMON " 5*3");
    pkv_request third = open_prompt(manager, COMMON " 6*3");

    (void)state;
    admit(manager, first);
    admit(manager, second);
    assert_string_equal(hit_text(manager, third, 0), "1 2 3");

    evict_columns(manager, first, 0, "1");
    assert_string_equal(hit_text(manager, third, 0), "1 6 3");
}

static void prompt_of_whole_blocks_recomputes_its_last_block_into_a_duplicate(void **state) {
    pkv_manager *manager = make_small_manager(11, 4);
    pkv_request first = open_prompt(manager, "0..7");
    pkv_request second = open_prompt(manager, "0..7");
    pkv_request third = open_prompt(manager, "0..8");

    (void)state;
    admit(manager, first);
    assert_int_equal(find_hit(manager, second), 4);
    admit(manager, second);
    assert_string_equal(table_text(manager, second, 0), "1 3");
    assert_string_equal(keyed_text(manager), "1 2 3");
    assert_int_equal(stats_of(manager).num_distinct_keys, 2);

    assert_int_equal(find_hit(manager, third), 8);
    assert_string_equal(hit_text(manager, third, 0), "1 2");
}

/* ---- decode ---------------------------------------------------------------------------------- */

static void decode_publishes_a_block_when_it_is_full(void **state) {
    pkv_manager *manager = make_small_manager(11, 16);
    pkv_request request = open_prompt(manager, COMMON " 7*3");

    (void)state;
    assert_int_equal(allocate(manager, request, 0, 55), PKV_OK);

    append_tokens(manager, request, "4*8");
    assert_int_equal(allocate(manager, request, 55, 4), PKV_OK);
    assert_string_equal(new_text(manager, request, 0), "");
    assert_string_equal(keyed_columns_text(manager, request, 0), "0 1 2");

    append_tokens(manager, request, "19*9");
    assert_int_equal(allocate(manager, request, 59, 19), PKV_OK);
    assert_string_equal(new_text(manager, request, 0), "5");
    assert_string_equal(table_text(manager, request, 0), "1 2 3 4 5");
    assert_string_equal(keyed_columns_text(manager, request, 0), "0 1 2 3");
}

static void decode_to_a_block_boundary_publishes_at_the_next_call(void **state) {
    pkv_manager *manager = make_small_manager(11, 4);
    pkv_request request = open_prompt(manager, "0..6");

    (void)state;
    assert_int_equal(allocate(manager, request, 0, 7), PKV_OK);
    append_tokens(manager, request, "7");
    assert_string_equal(keyed_columns_text(manager, request, 0), "0");

    assert_int_equal(allocate(manager, request, 7, 1), PKV_OK);
    assert_string_equal(keyed_columns_text(manager, request, 0), "0 1");
}

static void decode_ending_at_a_boundary_leaves_its_last_block_keyless_at_the_head(void **state) {
    pkv_manager *manager = make_small_manager(6, 4);
    pkv_request request = open_prompt(manager, "0..6");

    (void)state;
    assert_int_equal(allocate(manager, request, 0, 7), PKV_OK);
    append_tokens(manager, request, "7");
    end_request(manager, request);

    assert_string_equal(queue_text(manager), "2 3 4 5 1");
    assert_string_equal(keyed_text(manager), "1");
}

static void lookahead_counts_as_slots(void **state) {
    pkv_manager *manager = make_small_manager(10, 4);
    pkv_request first = open_prompt(manager, "0..2");
    pkv_request second = open_prompt(manager, "10..12");
    pkv_slots_args args = slots_of(0, 3);

    (void)state;
    args.num_lookahead_tokens = 2;
    assert_int_equal(pkv_allocate_slots(manager, first, &args, NULL), PKV_OK);
    assert_int_equal(num_table_blocks(manager, first, 0), 2);

    args.num_lookahead_tokens = 4;
    assert_int_equal(pkv_allocate_slots(manager, second, &args, NULL), PKV_OK);
    assert_int_equal(num_table_blocks(manager, second, 0), 2);
}

static void lookahead_blocks_go_to_the_head_when_freed(void **state) {
    pkv_manager *manager = make_small_manager(10, 4);
    pkv_request request = open_prompt(manager, "0..9");
    pkv_slots_args args = slots_of(0, 10);

    (void)state;
    args.num_lookahead_tokens = 8;
    assert_int_equal(pkv_allocate_slots(manager, request, &args, NULL), PKV_OK);
    assert_string_equal(table_text(manager, request, 0), "1 2 3 4 5");
    end_request(manager, request);
    assert_string_equal(queue_text(manager), "5 4 3 6 7 8 9 2 1");
}

static void rejected_drafts_keep_their_blocks(void **state) {
    pkv_manager *manager = make_small_manager(11, 16);
    pkv_request request = open_prompt(manager, "0..14");
    pkv_slots_args args = slots_of(15, 4);

    (void)state;
    assert_int_equal(allocate(manager, request, 0, 15), PKV_OK);
    append_tokens(manager, request, "15");
    args.num_lookahead_tokens = 3;
    assert_int_equal(pkv_allocate_slots(manager, request, &args, NULL), PKV_OK);
    assert_string_equal(table_text(manager, request, 0), "1 2");

    /* All 3 drafts accepted, then none, then one: the caller's count is all that moves. */
    append_tokens(manager, request, "16..19");
    args.num_computed_tokens = 19;
    assert_int_equal(pkv_allocate_slots(manager, request, &args, NULL), PKV_OK);
    append_tokens(manager, request, "20");
    args.num_computed_tokens = 20;
    assert_int_equal(pkv_allocate_slots(manager, request, &args, NULL), PKV_OK);
    append_tokens(manager, request, "21 22");
    args.num_computed_tokens = 22;
    assert_int_equal(pkv_allocate_slots(manager, request, &args, NULL), PKV_OK);
    assert_string_equal(table_text(manager, request, 0), "1 2");
    assert_string_equal(keyed_columns_text(manager, request, 0), "0");
}

static void drafts_are_never_published(void **state) {
    pkv_manager *manager = make_small_manager(11, 4);
    pkv_request request = open_prompt(manager, "0..6");

    (void)state;
    /* Seven tokens are known; nine are scheduled, so the second block is full of slots only. */
    assert_int_equal(allocate(manager, request, 0, 9), PKV_OK);
    assert_string_equal(table_text(manager, request, 0), "1 2 3");
    assert_string_equal(keyed_columns_text(manager, request, 0), "0");
}

/* ---- eviction -------------------------------------------------------------------------------- */

static void evict_takes_the_end_of_the_oldest_prefix_first(void **state) {
    pkv_manager *manager = make_small_manager(11, 16);
    pkv_request first = open_prompt(manager, "0..86");
    pkv_request second = open_prompt(manager, "1000..1047");
    pkv_request third = open_prompt(manager, "0..34");

    (void)state;
    admit(manager, first);
    admit(manager, second);
    assert_int_equal(num_free_blocks(manager), 1);

    end_request(manager, first);
    assert_string_equal(queue_text(manager), "6 10 5 4 3 2 1");
    end_request(manager, second);
    assert_string_equal(queue_text(manager), "6 10 5 4 3 2 1 9 8 7");

    assert_int_equal(find_hit(manager, third), 32);
    assert_string_equal(hit_text(manager, third, 0), "1 2");
    admit(manager, third);
    assert_string_equal(new_text(manager, third, 0), "6");
    assert_int_equal(num_free_blocks(manager), 7);
}

static void reused_block_loses_its_key(void **state) {
    pkv_manager *manager = make_small_manager(2, 16);
    pkv_request first = open_prompt(manager, "16*0");
    pkv_request second = open_prompt(manager, "15*1");

    (void)state;
    admit(manager, first);
    assert_string_equal(keyed_text(manager), "1");
    end_request(manager, first);

    admit(manager, second);
    assert_string_equal(table_text(manager, second, 0), "1");
    assert_string_equal(keyed_text(manager), "");
    assert_int_equal(stats_of(manager).num_distinct_keys, 0);
}

static void own_hits_are_not_evicted_by_the_same_call(void **state) {
    pkv_manager *manager = make_small_manager(3, 16);
    pkv_request first = open_prompt(manager, "0..31");
    pkv_request second = open_prompt(manager, "0..31");

    (void)state;
    admit(manager, first);
    end_request(manager, first);
    /* Block 1 is the next but one to be handed out, and the hit. */
    assert_string_equal(queue_text(manager), "2 1");

    assert_int_equal(find_hit(manager, second), 16);
    assert_string_equal(hit_text(manager, second, 0), "1");
    admit(manager, second);
    assert_string_equal(new_text(manager, second, 0), "2");
    assert_string_equal(table_text(manager, second, 0), "1 2");
}

static void evicted_key_in_the_middle_cuts_the_hit_and_leaves_the_rest_cached(void **state) {
    pkv_manager *manager = make_small_manager(11, 16);
    pkv_request first = open_prompt(manager, "0..79");
    pkv_request second = open_prompt(manager, "0..79");

    (void)state;
    admit(manager, first);
    evict_columns(manager, first, 0, "1");
    assert_int_equal(find_hit(manager, second), 16);
    assert_string_equal(keyed_text(manager), "1 3 4 5");

    admit(manager, second);
    end_request(manager, second);
    assert_int_equal(stats_of(manager).num_distinct_keys, 5);
}

static void evicted_block_in_use_goes_to_the_head_when_freed(void **state) {
    pkv_manager *manager = make_small_manager(6, 4);
    pkv_request request = open_prompt(manager, "0..9");

    (void)state;
    admit(manager, request);
    evict_columns(manager, request, 0, "0");
    end_request(manager, request);
    assert_string_equal(queue_text(manager), "3 1 4 5 2");
}

static void caching_off_every_free_is_last_in_first_out(void **state) {
    pkv_manager_config config = small_config(5, 4);
    pkv_manager *manager;
    pkv_request first, second;

    (void)state;
    config.disable_prefix_cache = true;
    manager = make_manager(&config);
    first = open_prompt(manager, "0..9");
    assert_int_equal(admit(manager, first), 0);
    assert_int_equal(num_table_blocks(manager, first, 0), 3);
    assert_string_equal(keyed_text(manager), "");
    end_request(manager, first);
    assert_string_equal(queue_text(manager), "3 2 1 4");

    second = open_prompt(manager, "0..15");
    assert_int_equal(admit(manager, second), 0);
    assert_string_equal(table_text(manager, second, 0), "3 2 1 4");
    append_tokens(manager, second, "16..19");
    assert_int_equal(allocate(manager, second, 16, 4), PKV_NO_FREE_BLOCKS);
    assert_string_equal(table_text(manager, second, 0), "3 2 1 4");
}

static void hits_that_are_free_count_as_needed(void **state) {
    pkv_manager *manager = make_small_manager(11, 16);
    pkv_request first = open_prompt(manager, COMMON);
    pkv_request second = open_prompt(manager, COMMON " " COMMON);
    pkv_request other = open_prompt(manager, "32*9");
    pkv_request third = open_prompt(manager, COMMON " " COMMON " " COMMON);
    const pkv_request all[] = {first, other, third};
    pkv_slots_args args = slots_of(0, 48);
    pkv_slots slots = make_slots();
    const char *before;

    (void)state;
    admit(manager, first);
    assert_int_equal(admit(manager, second), 48);
    end_request(manager, second);
    assert_string_equal(refs_text(manager, 1, 6), "1 1 1 0 0 0");
    admit(manager, other);
    assert_int_equal(num_free_blocks(manager), 5);

    assert_int_equal(find_hit(manager, third), 96);
    assert_string_equal(hit_text(manager, third, 0), "1 2 3 4 5 6");
    before = remember_state(manager, all, 3);
    args.num_new_computed_tokens = 96;
    assert_int_equal(pkv_allocate_slots(manager, third, &args, &slots), PKV_NO_FREE_BLOCKS);
    assert_int_equal(slots.num_missing_blocks, 1);
    assert_string_equal(state_text(manager, all, 3), before);
}

/* ---- reset ----------------------------------------------------------------------------------- */

static void reset_in_use_is_refused_and_keeps_the_index(void **state) {
    pkv_manager *manager = make_small_manager(11, 16);
    pkv_request request = open_prompt(manager, "0..54");
    const char *before;

    (void)state;
    admit(manager, request);
    before = remember_state(manager, &request, 1);
    assert_int_equal(pkv_reset_prefix_cache(manager), PKV_ERROR_BUSY);
    assert_string_equal(state_text(manager, &request, 1), before);
    assert_string_equal(keyed_text(manager), "1 2 3");
}

static void reset_after_free_forgets_all_keys_and_keeps_the_queue(void **state) {
    pkv_manager *manager = make_small_manager(11, 16);
    pkv_request request = open_prompt(manager, "0..54");
    pkv_request again = open_prompt(manager, "0..54");

    (void)state;
    admit(manager, request);
    end_request(manager, request);
    assert_int_equal(pkv_reset_prefix_cache(manager), PKV_OK);
    assert_string_equal(keyed_text(manager), "");
    assert_int_equal(stats_of(manager).num_distinct_keys, 0);
    assert_int_equal(find_hit(manager, again), 0);
    assert_string_equal(queue_text(manager), "4 5 6 7 8 9 10 3 2 1");
}

/* ---- preemption ------------------------------------------------------------------------------ */

static void preempted_request_hits_its_own_output(void **state) {
    pkv_manager *manager = make_small_manager(11, 4);
    pkv_request request = open_prompt(manager, "0..5");

    (void)state;
    assert_int_equal(allocate(manager, request, 0, 6), PKV_OK);
    for (int32_t token_id = 6; token_id < 13; token_id++) {
        append_tokens(manager, request, "%d", token_id);
        assert_int_equal(allocate(manager, request, token_id, 1), PKV_OK);
    }
    assert_string_equal(keyed_columns_text(manager, request, 0), "0 1 2");

    assert_int_equal(pkv_free(manager, request), PKV_OK);
    assert_string_equal(table_text(manager, request, 0), "");
    assert_int_equal(info_of(manager, request).row, PKV_NULL_ROW);
    assert_int_equal(find_hit(manager, request), 12);
    assert_int_equal(admit(manager, request), 12);
    assert_string_equal(table_text(manager, request, 0), "1 2 3 4");
    assert_int_equal(info_of(manager, request).num_allocations, 2);
}

/* ---- delayed caching ------------------------------------------------------------------------- */

static void delay_caching_publishes_on_request(void **state) {
    pkv_manager *manager = make_small_manager(11, 4);
    pkv_request request = open_prompt(manager, "0..9");
    pkv_request other = open_prompt(manager, "0..9");
    pkv_slots_args args = slots_of(0, 10);

    (void)state;
    args.delay_caching = true;
    assert_int_equal(pkv_allocate_slots(manager, request, &args, NULL), PKV_OK);
    assert_string_equal(keyed_text(manager), "");
    assert_int_equal(find_hit(manager, other), 0);

    assert_int_equal(pkv_cache_blocks(manager, request, 7), PKV_OK);
    assert_string_equal(keyed_text(manager), "1");
    assert_int_equal(pkv_cache_blocks(manager, request, 4), PKV_OK);
    assert_string_equal(keyed_text(manager), "1");
    assert_int_equal(pkv_cache_blocks(manager, request, 10), PKV_OK);
    assert_string_equal(keyed_text(manager), "1 2");
    assert_int_equal(find_hit(manager, other), 8);
}

/* ---- common prefix --------------------------------------------------------------------------- */

static int32_t common_prefix_of(const pkv_manager *manager, pkv_request request) {
    int32_t num_blocks = -1;

    assert_int_equal(pkv_get_num_common_prefix_blocks(manager, request, 0, &num_blocks), PKV_OK);
    return num_blocks;
}

static void common_prefix_counts_blocks_that_every_holder_shares(void **state) {
    pkv_manager *manager = make_small_manager(31, 16);
    pkv_request first = open_prompt(manager, COMMON " 7*3");
    pkv_request second = open_prompt(manager, COMMON " 5*3");
    pkv_request third = open_prompt(manager, "32*0");
    const pkv_request_args skip = {.skip_cache_read = true};
    pkv_request duplicate = open_prompt_as(manager, &skip, COMMON " 6*3");

    (void)state;
    admit(manager, first);
    assert_int_equal(common_prefix_of(manager, first), 4);
    admit(manager, second);
    assert_int_equal(common_prefix_of(manager, first), 3);
    assert_int_equal(common_prefix_of(manager, second), 3);
    admit(manager, third);
    assert_int_equal(common_prefix_of(manager, first), 1);
    end_request(manager, third);
    assert_int_equal(common_prefix_of(manager, first), 3);

    /* The same content in other blocks is not shared. */
    admit(manager, duplicate);
    assert_int_equal(common_prefix_of(manager, first), 0);
    assert_int_equal(common_prefix_of(manager, duplicate), 0);
}

/* A caller may give one key to several blocks; a row then owns a block more than once. */
static void common_prefix_counts_rows_and_not_owners(void **state) {
    const pkv_block_key keys[] = {{1, 0, 0}, {1, 0, 0}};
    const pkv_request_args args = {.has_caller_keys = true};
    pkv_manager *manager = make_small_manager(31, 16);
    pkv_request first = open_prompt_as(manager, &args, "16*1 3*2");
    pkv_request twice = open_prompt_as(manager, &args, "32*1 3*2");

    (void)state;
    assert_int_equal(pkv_request_append_keys(manager, first, keys, 1), PKV_OK);
    assert_int_equal(pkv_request_append_keys(manager, twice, keys, 2), PKV_OK);
    admit(manager, first);
    end_request(manager, first);
    assert_int_equal(admit(manager, twice), 32);
    assert_string_equal(table_text(manager, twice, 0), "1 1 2");
    admit(manager, open_prompt(manager, "100..150"));
    assert_int_equal(common_prefix_of(manager, twice), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        fixture_test(prefill_shared_prefix_reuses_its_blocks),
        fixture_test(prefill_after_frees_takes_keyless_blocks_first_and_prefix_starts_last),
        fixture_test(skip_cache_read_finds_nothing_but_publishes_duplicates),
        fixture_test(duplicate_keys_oldest_block_answers),
        fixture_test(prompt_of_whole_blocks_recomputes_its_last_block_into_a_duplicate),
        fixture_test(decode_publishes_a_block_when_it_is_full),
        fixture_test(decode_to_a_block_boundary_publishes_at_the_next_call),
        fixture_test(decode_ending_at_a_boundary_leaves_its_last_block_keyless_at_the_head),
        fixture_test(lookahead_counts_as_slots),
        fixture_test(lookahead_blocks_go_to_the_head_when_freed),
        fixture_test(rejected_drafts_keep_their_blocks),
        fixture_test(drafts_are_never_published),
        fixture_test(evict_takes_the_end_of_the_oldest_prefix_first),
        fixture_test(reused_block_loses_its_key),
        fixture_test(own_hits_are_not_evicted_by_the_same_call),
        fixture_test(evicted_key_in_the_middle_cuts_the_hit_and_leaves_the_rest_cached),
        fixture_test(evicted_block_in_use_goes_to_the_head_when_freed),
        fixture_test(caching_off_every_free_is_last_in_first_out),
        fixture_test(hits_that_are_free_count_as_needed),
        fixture_test(reset_in_use_is_refused_and_keeps_the_index),
        fixture_test(reset_after_free_forgets_all_keys_and_keeps_the_queue),
        fixture_test(preempted_request_hits_its_own_output),
        fixture_test(delay_caching_publishes_on_request),
        fixture_test(common_prefix_counts_blocks_that_every_holder_shares),
        fixture_test(common_prefix_counts_rows_and_not_owners),
    };

    return cmocka_run_group_tests_name("manager", tests, NULL, NULL);
}
