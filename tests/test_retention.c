/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Goal: a windowed group publishes exactly the blocks that a later hit can use, by the rule that
 * its configuration asks for. Method: one request is admitted at once, then the columns that carry
 * a key are read; the hits that follow from them are looked up. No recorded trace covers this. */
#include "support/fixture.h"

/* ---- helpers --------------------------------------------------------------------------------- */

typedef struct retention_case {
    int32_t window, interval;
    bool eagle;
    int32_t num_tokens;
    const char *columns; /* of the windowed group, that carry a key */
} retention_case;

static pkv_group_config window_of(int32_t block_size, const retention_case *wanted) {
    pkv_group_config group = window_group(block_size, wanted->window);

    group.retention_interval = wanted->interval;
    group.eagle = wanted->eagle;
    return group;
}

/* Admit a prompt beside a full group of `full_size` tokens a block, or alone where that is 0. */
static const char *published_columns(int32_t full_size,
                                     int32_t block_size,
                                     const retention_case *wanted) {
    const pkv_group_config groups[] = {window_of(block_size, wanted), full_group(full_size)};
    pkv_manager *manager = make_hybrid_manager(129, groups, full_size == 0 ? 1 : 2);
    pkv_request request = open_prompt(manager, "0..%d", wanted->num_tokens - 1);

    admit(manager, request);
    return keyed_columns_text(manager, request, 0);
}

/* The hit of the first `num_tokens` tokens of what `wanted` cached. */
static int32_t hit_of_prefix(int32_t full_size,
                             int32_t block_size,
                             const retention_case *wanted,
                             int32_t num_tokens) {
    const pkv_group_config groups[] = {window_of(block_size, wanted), full_group(full_size)};
    pkv_manager *manager = make_hybrid_manager(129, groups, full_size == 0 ? 1 : 2);

    admit(manager, open_prompt(manager, "0..%d", wanted->num_tokens - 1));
    return find_hit(manager, open_prompt(manager, "0..%d", num_tokens - 1));
}

/* ---- dense: commits are rounded down to the alignment ---------------------------------------- */

static void commit_beside_a_coarser_group_is_rounded_down(void **state) {
    const retention_case wide = {.window = 32, .num_tokens = 112};
    const retention_case narrow = {.window = 8, .num_tokens = 64};
    const retention_case narrow_and_more = {.window = 8, .num_tokens = 95};

    (void)state;
    assert_string_equal(published_columns(32, 16, &wide), "0 1 2 3 4 5");
    /* A hit can only end at 32 or 64, and then needs one block of 8. */
    assert_string_equal(published_columns(32, 8, &narrow), "3 7");
    assert_string_equal(published_columns(32, 8, &narrow_and_more), "3 7");
}

static void commit_beside_an_equal_group_publishes_all(void **state) {
    const retention_case narrow = {.window = 8, .num_tokens = 64};
    const retention_case wide = {.window = 33, .num_tokens = 64};

    (void)state;
    assert_string_equal(published_columns(8, 8, &narrow), "0 1 2 3 4 5 6 7");
    assert_string_equal(published_columns(32, 8, &wide), "0 1 2 3 4 5 6 7");
}

static void commit_grows_with_decode_only_at_the_alignment(void **state) {
    const pkv_group_config groups[] = {full_group(32), window_group(16, 64)};
    pkv_manager *manager = make_hybrid_manager(41, groups, 2);
    pkv_request request = open_prompt(manager, "0..49");

    (void)state;
    assert_int_equal(allocate(manager, request, 0, 50), PKV_OK);
    assert_string_equal(keyed_columns_text(manager, request, 0), "0");
    assert_string_equal(keyed_columns_text(manager, request, 1), "0 1");
    for (int32_t num_tokens = 50; num_tokens < 64; num_tokens++) {
        assert_string_equal(keyed_columns_text(manager, request, 1), "0 1");
        append_tokens(manager, request, "%d", num_tokens);
        assert_int_equal(allocate(manager, request, num_tokens, 1), PKV_OK);
    }
    assert_string_equal(keyed_columns_text(manager, request, 0), "0 1");
    assert_string_equal(keyed_columns_text(manager, request, 1), "0 1 2 3");
}

static void commit_counts_no_drafts_towards_the_alignment(void **state) {
    const pkv_group_config groups[] = {full_group(32), window_group(16, 64)};
    pkv_manager *manager = make_hybrid_manager(41, groups, 2);
    pkv_request request = open_prompt(manager, "0..39");

    (void)state;
    assert_int_equal(allocate(manager, request, 0, 40), PKV_OK);
    append_tokens(manager, request, "40..47");
    /* 48 tokens and 16 drafts: only 32 are a multiple that all groups can share. */
    assert_int_equal(allocate(manager, request, 40, 8 + 16), PKV_OK);
    assert_string_equal(keyed_columns_text(manager, request, 0), "0");
    assert_string_equal(keyed_columns_text(manager, request, 1), "0 1");
}

static void commit_of_an_eagle_group_reaches_one_block_further(void **state) {
    const retention_case eagle = {.window = 8, .eagle = true, .num_tokens = 127};

    (void)state;
    /* The block behind each boundary must be there to be dropped: 4, 8, 12 beside 3, 7, 11. */
    assert_string_equal(published_columns(32, 8, &eagle), "3 4 7 8 11 12");
    assert_int_equal(hit_of_prefix(32, 8, &eagle, 127), 96);
}

/* ---- sparse ---------------------------------------------------------------------------------- */

static void retention_beside_a_coarser_group_keeps_segment_tails_and_the_end(void **state) {
    const retention_case cases[] = {
        {.window = 8, .interval = 64, .num_tokens = 128, .columns = "7 11 15"},
        {.window = 8, .interval = 32, .num_tokens = 128, .columns = "3 7 11 15"},
        {.window = 8, .interval = 96, .num_tokens = 128, .columns = "11"},
        {.window = 8, .interval = 128, .num_tokens = 128, .columns = "11 15"},
        {.window = 8, .interval = 64, .num_tokens = 129, .columns = "7 15"},
        {.window = 16, .interval = 64, .num_tokens = 128, .columns = "6 7 10 11 14 15"},
        {.window = 8, .interval = PKV_RETENTION_TAIL_ONLY, .num_tokens = 128, .columns = "11"},
        {.window = 8, .interval = PKV_RETENTION_TAIL_ONLY, .num_tokens = 129, .columns = "15"},
        {.window = 8, .interval = PKV_RETENTION_TAIL_ONLY, .num_tokens = 32, .columns = ""},
        {.window = 8,
         .interval = PKV_RETENTION_TAIL_ONLY,
         .eagle = true,
         .num_tokens = 127,
         .columns = "11 12"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_string_equal(published_columns(32, 8, &cases[i]), cases[i].columns);
    }
}

static void retention_tail_only_hits_the_same_prompt_and_no_shorter_one(void **state) {
    const retention_case tail = {
        .window = 8, .interval = PKV_RETENTION_TAIL_ONLY, .num_tokens = 128};
    const retention_case eagle_tail = {
        .window = 8, .interval = PKV_RETENTION_TAIL_ONLY, .eagle = true, .num_tokens = 127};

    (void)state;
    assert_int_equal(hit_of_prefix(32, 8, &tail, 128), 96);
    assert_int_equal(hit_of_prefix(32, 8, &tail, 97), 96);
    assert_int_equal(hit_of_prefix(32, 8, &tail, 96), 0);
    assert_int_equal(hit_of_prefix(32, 8, &eagle_tail, 127), 96);
    assert_int_equal(hit_of_prefix(32, 8, &eagle_tail, 96), 0);
}

static void retention_of_segments_hits_at_their_ends(void **state) {
    const retention_case segments = {.window = 8, .interval = 64, .num_tokens = 257};
    const retention_case dense = {.window = 8, .num_tokens = 257};

    (void)state;
    assert_int_equal(hit_of_prefix(32, 8, &segments, 257), 256);
    assert_int_equal(hit_of_prefix(32, 8, &segments, 256), 192);
    assert_int_equal(hit_of_prefix(32, 8, &segments, 190), 128);
    assert_int_equal(hit_of_prefix(32, 8, &segments, 64), 0);
    assert_int_equal(hit_of_prefix(32, 8, &segments, 65), 64);
    assert_int_equal(hit_of_prefix(32, 8, &dense, 190), 160);
}

static void retention_of_a_window_alone(void **state) {
    const retention_case cases[] = {
        {.window = 16, .interval = 64, .num_tokens = 256, .columns = "3 7 11 14 15"},
        {.window = 16, .interval = PKV_RETENTION_TAIL_ONLY, .num_tokens = 256, .columns = "14"},
        {.window = 16,
         .interval = PKV_RETENTION_DENSE,
         .num_tokens = 256,
         .columns = "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15"},
        {.window = 33, .interval = 64, .num_tokens = 256, .columns = "2 3 6 7 10 11 13 14 15"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_string_equal(published_columns(0, 16, &cases[i]), cases[i].columns);
    }
}

static void retention_keeps_the_boundary_shared_with_a_cached_prefix(void **state) {
    const retention_case tail = {.window = 8, .interval = PKV_RETENTION_TAIL_ONLY};
    const pkv_group_config groups[] = {window_of(8, &tail), full_group(32)};
    pkv_manager *manager = make_hybrid_manager(129, groups, 2);
    pkv_request first = open_prompt(manager, "0..127");
    pkv_request second = open_prompt(manager, "0..63 64*7");
    pkv_request third = open_prompt(manager, "0..63 64*8");

    (void)state;
    admit(manager, first);
    assert_string_equal(keyed_columns_text(manager, first, 0), "11");

    /* Full attention knows 64 tokens of the second, the window none: 64 becomes worth keeping. */
    assert_int_equal(admit(manager, second), 0);
    assert_string_equal(keyed_columns_text(manager, second, 0), "7 11");
    assert_int_equal(find_hit(manager, third), 64);
}

static void retention_finds_the_shared_boundary_without_a_lookup_of_the_caller(void **state) {
    const retention_case tail = {.window = 8, .interval = PKV_RETENTION_TAIL_ONLY};
    const pkv_group_config groups[] = {window_of(8, &tail), full_group(32)};
    pkv_manager *manager = make_hybrid_manager(129, groups, 2);
    pkv_request first = open_prompt(manager, "0..127");
    pkv_request second = open_prompt(manager, "0..63 64*7");

    (void)state;
    admit(manager, first);
    /* The last lookup is another's, whose groups have nothing in common with this request. */
    assert_int_equal(find_hit(manager, open_prompt(manager, "500..600")), 0);
    assert_int_equal(allocate(manager, second, 0, 128), PKV_OK);
    assert_string_equal(keyed_columns_text(manager, second, 0), "7 11");
}

static void retention_of_decoded_tokens_keeps_segment_tails_only(void **state) {
    const retention_case cases[] = {
        {.window = 16, .interval = 64, .columns = "3 7"},
        {.window = 16, .interval = PKV_RETENTION_TAIL_ONLY, .columns = ""},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const pkv_group_config group = window_of(16, &cases[i]);
        pkv_manager *manager = make_hybrid_manager(129, &group, 1);
        pkv_request request = open_prompt(manager, "0..9");

        assert_int_equal(allocate(manager, request, 0, 10), PKV_OK);
        append_tokens(manager, request, "10..139");
        assert_int_equal(allocate(manager, request, 10, 130), PKV_OK);
        assert_string_equal(keyed_columns_text(manager, request, 0), cases[i].columns);
    }
}

static void retention_interval_must_be_a_multiple_of_the_alignment(void **state) {
    const int32_t refused[] = {33, -32, -2, 1, 8, 48};
    const int32_t accepted[] = {PKV_RETENTION_DENSE, PKV_RETENTION_TAIL_ONLY, 32, 64, 96};

    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        const retention_case wanted = {.window = 8, .interval = refused[i]};
        const pkv_group_config groups[] = {window_of(8, &wanted), full_group(32)};
        pkv_manager_config config = small_config(65, 16);
        const char *reason = "";
        pkv_manager *manager = NULL;

        config.groups = groups;
        config.num_groups = 2;
        assert_int_equal(pkv_manager_config_check(&config, &reason), PKV_ERROR_INVALID_ARGUMENT);
        assert_true(reason[0] != '\0');
        assert_int_equal(pkv_manager_create(&config, &manager), PKV_ERROR_INVALID_ARGUMENT);
        assert_null(manager);
    }
    for (size_t i = 0; i < sizeof accepted / sizeof accepted[0]; i++) {
        const retention_case wanted = {.window = 8, .interval = accepted[i]};
        const pkv_group_config groups[] = {window_of(8, &wanted), full_group(32)};

        make_hybrid_manager(65, groups, 2);
    }
}

static void retention_interval_of_full_attention_is_refused(void **state) {
    pkv_group_config group = full_group(16);
    pkv_manager_config config = small_config(65, 16);

    (void)state;
    group.retention_interval = 64;
    config.groups = &group;
    config.num_groups = 1;
    assert_int_equal(pkv_manager_config_check(&config, NULL), PKV_ERROR_INVALID_ARGUMENT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        fixture_test(commit_beside_a_coarser_group_is_rounded_down),
        fixture_test(commit_beside_an_equal_group_publishes_all),
        fixture_test(commit_grows_with_decode_only_at_the_alignment),
        fixture_test(commit_counts_no_drafts_towards_the_alignment),
        fixture_test(commit_of_an_eagle_group_reaches_one_block_further),
        fixture_test(retention_beside_a_coarser_group_keeps_segment_tails_and_the_end),
        fixture_test(retention_tail_only_hits_the_same_prompt_and_no_shorter_one),
        fixture_test(retention_of_segments_hits_at_their_ends),
        fixture_test(retention_of_a_window_alone),
        fixture_test(retention_keeps_the_boundary_shared_with_a_cached_prefix),
        fixture_test(retention_finds_the_shared_boundary_without_a_lookup_of_the_caller),
        fixture_test(retention_of_decoded_tokens_keeps_segment_tails_only),
        fixture_test(retention_interval_must_be_a_multiple_of_the_alignment),
        fixture_test(retention_interval_of_full_attention_is_refused),
    };

    return cmocka_run_group_tests_name("retention", tests, NULL, NULL);
}
