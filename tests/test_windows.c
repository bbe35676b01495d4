/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Goal: one sliding-window or chunked group finds the right run of blocks, drops what no later
 * token can see, and predicts what it needs. Method: a prompt is cached whole, some of its blocks
 * are taken out of the index, and the same prompt is looked up; flags such as "1 1 0 1" say which
 * are left. */
#include "support/fixture.h"

/* ---- hits ------------------------------------------------------------------------------------ */

/* How many blocks of 2 tokens a lookup finds in `group`, given which blocks are still cached, when
 * it may look at `num_extra` tokens behind them. */
static int32_t hit_with_flags(pkv_group_config group, const char *flags, int32_t num_extra) {
    pkv_manager *manager = make_hybrid_manager(65, &group, 1);
    const prompt *cached = prompt_of("%s", flags);
    int32_t num_tokens = cached->num_tokens * 2 + num_extra + 1;
    pkv_request request = open_prompt(manager, "0..%d", num_tokens - 1);
    const pkv_block_id *table;
    int32_t num_blocks;

    /* Without a lookup: a chunked group would hit the finished chunks and cache nothing there. */
    assert_int_equal(allocate(manager, request, 0, num_tokens), PKV_OK);
    assert_int_equal(pkv_get_block_table(manager, request, 0, &table, &num_blocks), PKV_OK);
    for (int32_t i = 0; i < cached->num_tokens; i++) {
        if (cached->token_ids[i] == 0) {
            assert_int_equal(pkv_evict_blocks(manager, &table[i], 1), PKV_OK);
        }
    }
    return find_hit(manager, open_prompt(manager, "0..%d", num_tokens - 1)) / 2;
}

static void window_hit_is_the_last_run_that_is_long_enough(void **state) {
    const struct {
        const char *flags;
        int32_t num_hit_blocks;
    } cases[] = {
        {"0 0 0", 0},
        {"1", 1},
        {"1 0", 1},
        {"1 1", 2},
        {"1 1 0", 2},
        {"1 1 1", 3},
        {"1 1 1 0", 3},
        {"0 1 0", 0},
        {"0 1 1", 3},
        {"1 0 1", 1},
        {"1 1 0 1 0 0 1 1 0 1 1 1", 12},
        {"1 1 0 1 0 0 1 1 0 0 0", 8},
        {"1 1 0 1 0 0 1 1 0 0 0 1", 8},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(hit_with_flags(window_group(2, 4), cases[i].flags, 0),
                         cases[i].num_hit_blocks);
    }
}

static void window_hit_blocks_before_the_run_are_null(void **state) {
    const pkv_group_config group = window_group(2, 4);
    pkv_manager *manager = make_hybrid_manager(65, &group, 1);
    pkv_request first = open_prompt(manager, "0..24");
    pkv_request second = open_prompt(manager, "0..24");

    (void)state;
    admit(manager, first);
    assert_string_equal(hit_text(manager, second, 0), "0 0 0 0 0 0 0 0 0 0 11 12");
    evict_columns(manager, first, 0, "2 4 5 8 9 10");
    assert_string_equal(hit_text(manager, second, 0), "0 0 0 0 0 0 7 8");
    admit(manager, second);
    assert_string_equal(table_text(manager, second, 0), "0 0 0 0 0 0 7 8 14 15 16 17 18");
}

static void window_as_wide_as_the_prompt_needs_all_of_it(void **state) {
    (void)state;
    assert_int_equal(hit_with_flags(window_group(2, 100), "1 1 1 1", 0), 4);
    assert_int_equal(hit_with_flags(window_group(2, 100), "1 1 0 1", 0), 2);
    assert_int_equal(hit_with_flags(window_group(2, 100), "0 1 1 1", 0), 0);
}

static void window_eagle_hit_drops_the_last_block_of_a_longer_run(void **state) {
    pkv_group_config group = window_group(2, 4);

    (void)state;
    group.eagle = true;
    assert_int_equal(hit_with_flags(group, "1 1 1 1", 0), 3);
    assert_int_equal(hit_with_flags(group, "0 1 1 1", 0), 3);
    assert_int_equal(hit_with_flags(group, "0 0 1 1", 0), 0);
    assert_int_equal(hit_with_flags(group, "1 1 0 1", 0), 1);
    assert_int_equal(hit_with_flags(group, "1", 0), 0);
}

static void chunked_hit_looks_only_into_the_current_chunk(void **state) {
    const struct {
        const char *flags;
        int32_t num_extra;
        int32_t num_hit_blocks;
    } cases[] = {
        {"1", 0, 1},
        {"1", 1, 1},
        {"1 0", 0, 2},
        {"1 1", 0, 2},
        {"1 1 0", 0, 2},
        {"1 1 1", 0, 3},
        {"1 1 1 0", 0, 4},
        {"0 1 0 1 0 0 1 0 1", 1, 9},
        {"0 1 0 1 0 0 1 0 0", 1, 8},
        {"0 1 0 1 0 0 1 0 0 1", 0, 10},
        {"0 0 0 0 0 0 0 0 1 0", 0, 10},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(hit_with_flags(chunked_group(2, 4), cases[i].flags, cases[i].num_extra),
                         cases[i].num_hit_blocks);
    }
}

static void chunked_limit_at_a_chunk_boundary_hits_with_nothing_cached(void **state) {
    const pkv_group_config group = chunked_group(2, 4);
    pkv_manager *manager = make_hybrid_manager(65, &group, 1);
    pkv_request request = open_prompt(manager, "0..8");

    (void)state;
    assert_int_equal(find_hit(manager, request), 8);
    assert_string_equal(hit_text(manager, request, 0), "0 0 0 0");
    admit(manager, request);
    assert_string_equal(table_text(manager, request, 0), "0 0 0 0 1");
    end_request(manager, request);
    assert_int_equal(num_free_blocks(manager), 64);
}

static void chunk_that_begins_inside_a_block_keeps_that_block(void **state) {
    const pkv_group_config group = chunked_group(4, 6);
    pkv_manager *manager = make_hybrid_manager(31, &group, 1);
    pkv_request request = open_prompt(manager, "0..19");

    (void)state;
    /* Tokens 16 and 17 read from 12 on: without block 3 the hit ends before them. */
    assert_int_equal(find_hit(manager, request), 12);
    assert_int_equal(allocate(manager, request, 0, 20), PKV_OK);
    assert_string_equal(hit_text(manager, open_prompt(manager, "0..19"), 0), "0 0 0 4");
    evict_columns(manager, request, 0, "3");
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..19")), 12);

    assert_int_equal(pkv_remove_skipped_blocks(manager, request, 18), PKV_OK);
    assert_string_equal(table_text(manager, request, 0), "0 0 0 0 5");
}

/* ---- dropping blocks behind the window ------------------------------------------------------- */

static pkv_request admit_eleven_blocks(pkv_manager *manager) {
    pkv_request request = open_prompt(manager, "0..21");

    assert_int_equal(allocate(manager, request, 0, 22), PKV_OK);
    assert_string_equal(table_text(manager, request, 0), "1 2 3 4 5 6 7 8 9 10 11");
    assert_string_equal(queue_text(manager), "12 13");
    return request;
}

static void drop_window_frees_whole_blocks_from_the_newest(void **state) {
    const struct {
        int32_t num_processed;
        const char *table, *queue;
    } steps[] = {
        {0, "1 2 3 4 5 6 7 8 9 10 11", "12 13"},
        {4, "1 2 3 4 5 6 7 8 9 10 11", "12 13"},
        {5, "0 2 3 4 5 6 7 8 9 10 11", "12 13 1"},
        {6, "0 2 3 4 5 6 7 8 9 10 11", "12 13 1"},
        {7, "0 0 3 4 5 6 7 8 9 10 11", "12 13 1 2"},
        {11, "0 0 0 0 5 6 7 8 9 10 11", "12 13 1 2 4 3"},
        {7, "0 0 0 0 5 6 7 8 9 10 11", "12 13 1 2 4 3"},
    };
    const pkv_group_config group = window_group(2, 4);
    pkv_manager *manager = make_hybrid_manager(14, &group, 1);
    pkv_request request = admit_eleven_blocks(manager);

    (void)state;
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        assert_int_equal(pkv_remove_skipped_blocks(manager, request, steps[i].num_processed),
                         PKV_OK);
        assert_string_equal(table_text(manager, request, 0), steps[i].table);
        assert_string_equal(queue_text(manager), steps[i].queue);
    }
}

static void drop_chunked_frees_finished_chunks(void **state) {
    const struct {
        int32_t num_processed;
        const char *table;
    } steps[] = {
        {0, "1 2 3 4 5 6 7 8 9 10 11"},  {3, "1 2 3 4 5 6 7 8 9 10 11"},
        {4, "0 0 3 4 5 6 7 8 9 10 11"},  {6, "0 0 3 4 5 6 7 8 9 10 11"},
        {12, "0 0 0 0 0 0 7 8 9 10 11"},
    };
    const pkv_group_config group = chunked_group(2, 4);
    pkv_manager *manager = make_hybrid_manager(14, &group, 1);
    pkv_request request = admit_eleven_blocks(manager);

    (void)state;
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        assert_int_equal(pkv_remove_skipped_blocks(manager, request, steps[i].num_processed),
                         PKV_OK);
        assert_string_equal(table_text(manager, request, 0), steps[i].table);
    }
}

static void drop_full_attention_does_nothing(void **state) {
    pkv_manager *manager = make_small_manager(14, 2);
    pkv_request request = admit_eleven_blocks(manager);

    (void)state;
    assert_int_equal(pkv_remove_skipped_blocks(manager, request, 22), PKV_OK);
    assert_string_equal(table_text(manager, request, 0), "1 2 3 4 5 6 7 8 9 10 11");
}

static void drop_happens_in_allocate_for_processed_tokens_only(void **state) {
    const pkv_group_config group = window_group(2, 4);
    pkv_manager *manager = make_hybrid_manager(31, &group, 1);
    pkv_request request = open_prompt(manager, "0..9");
    pkv_slots_args args = slots_of(10, 1);

    (void)state;
    admit(manager, request);
    assert_string_equal(table_text(manager, request, 0), "1 2 3 4 5");
    append_tokens(manager, request, "10 11 12");

    /* Six of the ten tokens are in flight: the window of the fifth still counts. */
    args.num_in_flight_tokens = 6;
    assert_int_equal(pkv_allocate_slots(manager, request, &args, NULL), PKV_OK);
    assert_string_equal(table_text(manager, request, 0), "1 2 3 4 5 6");
    args.num_computed_tokens = 11;
    args.num_in_flight_tokens = 1;
    assert_int_equal(pkv_allocate_slots(manager, request, &args, NULL), PKV_OK);
    assert_string_equal(table_text(manager, request, 0), "0 0 0 4 5 6");
}

static void drop_happens_even_if_the_allocation_then_fails(void **state) {
    const pkv_group_config group = window_group(2, 4);
    pkv_manager *manager = make_hybrid_manager(7, &group, 1);
    pkv_request request = open_prompt(manager, "0..7");
    pkv_request other = open_prompt(manager, "100..103");

    (void)state;
    admit(manager, request);
    admit(manager, other);
    assert_string_equal(queue_text(manager), "");
    append_tokens(manager, request, "8..17");

    /* Behind the window of token 8 are two blocks; ten more tokens want five. */
    assert_int_equal(allocate(manager, request, 8, 10), PKV_NO_FREE_BLOCKS);
    assert_string_equal(table_text(manager, request, 0), "0 0 3 4");
    assert_string_equal(queue_text(manager), "2 1");
    assert_int_equal(allocate(manager, request, 8, 4), PKV_OK);
    assert_string_equal(table_text(manager, request, 0), "0 0 3 4 2 1");
}

static void windowed_decode_runs_in_a_bounded_number_of_blocks(void **state) {
    const pkv_group_config group = window_group(2, 4);
    pkv_manager *manager = make_hybrid_manager(5, &group, 1);
    pkv_request request = open_prompt(manager, "0");

    (void)state;
    /* ceil((w - 1) / B) + 1 = 3 blocks hold any window of 4 tokens. */
    assert_int_equal(allocate(manager, request, 0, 1), PKV_OK);
    for (int32_t num_tokens = 1; num_tokens < 300; num_tokens++) {
        append_tokens(manager, request, "%d", num_tokens);
        assert_int_equal(allocate(manager, request, num_tokens, 1), PKV_OK);
        assert_true(num_free_blocks(manager) >= 1);
    }
    end_request(manager, request);
    assert_int_equal(num_free_blocks(manager), 4);
}

/* ---- need ------------------------------------------------------------------------------------ */

/* How many blocks a call would need: it is refused for want of a watermark that no pool has. */
static int32_t measure_need(pkv_manager *manager, pkv_request request, pkv_slots_args args) {
    pkv_slots slots = make_slots();
    int32_t num_free;

    args.num_watermark_blocks = 100000;
    assert_int_equal(pkv_allocate_slots(manager, request, &args, &slots), PKV_NO_FREE_BLOCKS);
    num_free = num_free_blocks(manager);
    return slots.num_missing_blocks - args.num_watermark_blocks + num_free;
}

static void need_counts_free_hits_but_no_nulls(void **state) {
    const struct {
        int32_t window, need;
        const char *hits;
    } cases[] = {
        {20, 20, "1 2 3 4 5 6 7 8 9 10"}, /* all 10 hits and 10 new blocks */
        {10, 15, "0 0 0 0 0 6 7 8 9 10"}, /* 5 hits and 10 new blocks */
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const pkv_group_config group = window_group(2, cases[i].window);
        pkv_manager *manager = make_hybrid_manager(65, &group, 1);
        pkv_request first = open_prompt(manager, "0..19");
        pkv_request second = open_prompt(manager, "0..19 120..139");
        pkv_slots_args args = slots_of(0, 20);

        admit(manager, first);
        end_request(manager, first);
        assert_int_equal(find_hit(manager, second), 20);
        assert_string_equal(hit_text(manager, second, 0), cases[i].hits);
        args.num_new_computed_tokens = 20;
        assert_int_equal(measure_need(manager, second, args), cases[i].need);
    }
}

static void need_counts_held_hits_as_free_of_cost(void **state) {
    pkv_manager *manager = make_small_manager(65, 2);
    pkv_request first = open_prompt(manager, "0..19");
    pkv_request second = open_prompt(manager, "0..19 120..139");
    pkv_slots_args args = slots_of(0, 20);

    (void)state;
    admit(manager, first);
    args.num_new_computed_tokens = 20;
    assert_int_equal(measure_need(manager, second, args), 10);
}

static void need_counts_an_evictable_hit_once(void **state) {
    pkv_manager *manager = make_small_manager(5, 2);
    pkv_request first = open_prompt(manager, "0 1");
    pkv_request second = open_prompt(manager, "0 1 2 3");
    pkv_slots_args args = slots_of(0, 2);
    pkv_slots slots = make_slots();

    (void)state;
    admit(manager, first);
    end_request(manager, first);
    assert_int_equal(find_hit(manager, second), 2);
    args.num_new_computed_tokens = 2;
    assert_int_equal(measure_need(manager, second, args), 2);

    assert_int_equal(pkv_allocate_slots(manager, second, &args, &slots), PKV_OK);
    assert_int_equal(slots.num_new_blocks, 1);
    assert_int_equal(num_table_blocks(manager, second, 0), 2);
}

/* A window of 64 whose first 80 tokens are cached and free: blocks 2 to 5 are in it. */
static pkv_request open_behind_a_cached_window(pkv_manager *manager) {
    pkv_request first = open_prompt(manager, "0..79");
    pkv_request second = open_prompt(manager, "0..79 1000..1099");

    admit(manager, first);
    end_request(manager, first);
    assert_int_equal(find_hit(manager, second), 80);
    assert_string_equal(hit_text(manager, second, 0), "0 2 3 4 5");
    return second;
}

static void need_counts_no_hit_that_tokens_from_elsewhere_leave_behind(void **state) {
    const pkv_group_config group = window_group(16, 64);
    pkv_manager *manager = make_hybrid_manager(31, &group, 1);
    pkv_request request = open_behind_a_cached_window(manager);
    pkv_slots_args args = slots_of(0, 16);
    pkv_slots slots = make_slots();

    (void)state;
    /* 144 tokens are computed then, and the first 81 out of sight: five columns, all hits. */
    args.num_new_computed_tokens = 80;
    args.num_external_computed_tokens = 64;
    assert_int_equal(measure_need(manager, request, args), 5);
    assert_int_equal(pkv_allocate_slots(manager, request, &args, &slots), PKV_OK);
    assert_string_equal(table_text(manager, request, 0), "0 0 0 0 0 6 7 8 9 10");
    assert_string_equal(new_text(manager, request, 0), "10");
    assert_int_equal(slots.num_new_blocks, 1);
    assert_string_equal(refs_text(manager, 1, 5), "0 0 0 0 0");
}

static void need_counts_hits_that_tokens_from_elsewhere_leave_in_sight(void **state) {
    const pkv_group_config group = window_group(16, 64);
    pkv_manager *manager = make_hybrid_manager(31, &group, 1);
    pkv_request request = open_behind_a_cached_window(manager);
    pkv_slots_args args = slots_of(0, 16);

    (void)state;
    /* 112 computed tokens put 49 out of sight, three columns: two hits stay, three blocks come. */
    args.num_new_computed_tokens = 80;
    args.num_external_computed_tokens = 32;
    assert_int_equal(measure_need(manager, request, args), 5);
    assert_int_equal(pkv_allocate_slots(manager, request, &args, NULL), PKV_OK);
    assert_string_equal(table_text(manager, request, 0), "0 0 0 4 5 6 7 8");
    assert_string_equal(refs_text(manager, 1, 5), "0 0 0 1 1");
}

static void tokens_from_elsewhere_before_the_chunk_get_no_block_of_their_own(void **state) {
    const pkv_group_config group = chunked_group(16, 20);
    pkv_manager *manager = make_hybrid_manager(31, &group, 1);
    pkv_request request = open_prompt(manager, "0..39");
    pkv_slots_args args = slots_of(0, 1);

    (void)state;
    /* The next chunk begins at 20, inside the second block, which is new for this step. */
    args.num_external_computed_tokens = 20;
    assert_int_equal(pkv_allocate_slots(manager, request, &args, NULL), PKV_OK);
    assert_string_equal(table_text(manager, request, 0), "0 1");
    assert_string_equal(new_text(manager, request, 0), "1");
}

static void tokens_from_elsewhere_are_capped_at_the_longest_sequence(void **state) {
    const pkv_group_config group = window_group(16, 32);
    pkv_manager_config config = small_config(31, 16);
    pkv_slots_args args = slots_of(150, 1);
    pkv_manager *manager;
    pkv_request request;

    (void)state;
    config.groups = &group;
    config.num_groups = 1;
    config.max_model_len = 160;
    manager = make_manager(&config);
    request = open_prompt(manager, "0..154");
    assert_int_equal(allocate(manager, request, 0, 155), PKV_OK);
    args.num_external_computed_tokens = INT32_MAX;
    assert_int_equal(pkv_allocate_slots(manager, request, &args, NULL), PKV_OK);
    assert_string_equal(table_text(manager, request, 0), "0 0 0 0 0 0 0 0 9 10");
}

static void need_of_each_chunk_is_what_is_then_taken(void **state) {
    const pkv_group_config group = window_group(4, 8);
    pkv_manager_config config = small_config(33, 4);
    pkv_manager *manager;
    pkv_request request;

    (void)state;
    config.groups = &group;
    config.num_groups = 1;
    config.max_in_flight_tokens = 4;
    config.disable_prefix_cache = true;
    manager = make_manager(&config);
    request = open_prompt(manager, "0..15");
    for (int32_t num_computed = 0; num_computed < 16; num_computed += 4) {
        pkv_slots_args args = slots_of(num_computed, 4);
        int32_t need = measure_need(manager, request, args);
        int32_t num_free = num_free_blocks(manager);

        assert_int_equal(pkv_allocate_slots(manager, request, &args, NULL), PKV_OK);
        assert_int_equal(num_free - num_free_blocks(manager), need);
    }
    assert_string_equal(table_text(manager, request, 0), "0 2 3 1");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        fixture_test(window_hit_is_the_last_run_that_is_long_enough),
        fixture_test(window_hit_blocks_before_the_run_are_null),
        fixture_test(window_as_wide_as_the_prompt_needs_all_of_it),
        fixture_test(window_eagle_hit_drops_the_last_block_of_a_longer_run),
        fixture_test(chunked_hit_looks_only_into_the_current_chunk),
        fixture_test(chunked_limit_at_a_chunk_boundary_hits_with_nothing_cached),
        fixture_test(chunk_that_begins_inside_a_block_keeps_that_block),
        fixture_test(drop_window_frees_whole_blocks_from_the_newest),
        fixture_test(drop_chunked_frees_finished_chunks),
        fixture_test(drop_full_attention_does_nothing),
        fixture_test(drop_happens_in_allocate_for_processed_tokens_only),
        fixture_test(drop_happens_even_if_the_allocation_then_fails),
        fixture_test(windowed_decode_runs_in_a_bounded_number_of_blocks),
        fixture_test(need_counts_free_hits_but_no_nulls),
        fixture_test(need_counts_held_hits_as_free_of_cost),
        fixture_test(need_counts_an_evictable_hit_once),
        fixture_test(need_counts_no_hit_that_tokens_from_elsewhere_leave_behind),
        fixture_test(need_counts_hits_that_tokens_from_elsewhere_leave_in_sight),
        fixture_test(tokens_from_elsewhere_before_the_chunk_get_no_block_of_their_own),
        fixture_test(tokens_from_elsewhere_are_capped_at_the_longest_sequence),
        fixture_test(need_of_each_chunk_is_what_is_then_taken),
    };

    return cmocka_run_group_tests_name("windows", tests, NULL, NULL);
}
