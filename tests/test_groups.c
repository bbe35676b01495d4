/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Goal: several KV-cache groups over one pool agree on a hit, and each keeps its own table. Method:
 * the hybrid cases of vLLM V1's tests; blocks are taken out of the index through pkv_evict_blocks,
 * on a fresh manager for each case. One windowed group alone is in test_windows.c, which blocks are
 * published in test_retention.c. */
#include "support/fixture.h"

#include <stdio.h>

/* ---- full attention and two equal windows ---------------------------------------------------- */

static pkv_manager *make_full_and_two_windows(int32_t num_blocks, int32_t window, bool eagle) {
    pkv_group_config groups[] = {full_group(16), window_group(16, window),
                                 window_group(16, window)};

    for (int32_t group = 0; group < 3; group++) {
        groups[group].eagle = eagle;
    }
    return make_hybrid_manager(num_blocks, groups, 3);
}

static void hybrid_prefill_each_group_takes_its_blocks_in_turn(void **state) {
    pkv_manager *manager = make_full_and_two_windows(21, 32, false);
    pkv_request first = open_prompt(manager, COMMON " 7*3");
    pkv_request second = open_prompt(manager, COMMON " 5*3");

    (void)state;
    assert_int_equal(admit(manager, first), 0);
    assert_string_equal(table_text(manager, first, 0), "1 2 3 4");
    assert_string_equal(table_text(manager, first, 1), "5 6 7 8");
    assert_string_equal(table_text(manager, first, 2), "9 10 11 12");

    assert_int_equal(find_hit(manager, second), 48);
    assert_string_equal(hit_text(manager, second, 0), "1 2 3");
    assert_string_equal(hit_text(manager, second, 1), "0 6 7");
    assert_string_equal(hit_text(manager, second, 2), "0 10 11");
    admit(manager, second);
    assert_string_equal(new_text(manager, second, 0), "13");
    assert_string_equal(new_text(manager, second, 1), "14");
    assert_string_equal(new_text(manager, second, 2), "15");
    assert_string_equal(table_text(manager, second, 1), "0 6 7 14");
    assert_string_equal(refs_text(manager, 1, 15), "2 2 2 1 1 2 2 1 1 2 2 1 1 1 1");
}

/* The hit in blocks after the blocks of these columns left the index; NULL leaves a group alone. */
static int32_t hit_without(int32_t num_blocks,
                           int32_t window,
                           bool eagle,
                           const char *first_prompt,
                           const char *second_prompt,
                           const char *const columns[3]) {
    pkv_manager *manager = make_full_and_two_windows(num_blocks, window, eagle);
    pkv_request first = open_prompt(manager, "%s", first_prompt);

    admit(manager, first);
    for (int32_t group = 0; group < 3; group++) {
        if (columns[group] != NULL) {
            evict_columns(manager, first, group, columns[group]);
        }
    }
    return find_hit(manager, open_prompt(manager, "%s", second_prompt)) / 16;
}

static void hybrid_hit_ends_where_all_groups_agree(void **state) {
    const struct {
        const char *columns[3];
        int32_t num_hit_blocks;
    } cases[] = {
        {{NULL, NULL, NULL}, 3}, {{NULL, "0", "0"}, 3},  {{"0", NULL, NULL}, 0},
        {{"2", NULL, NULL}, 2},  {{NULL, "2", NULL}, 2}, {{NULL, NULL, "2"}, 2},
        {{"2", "2", "2"}, 2},    {{"2", "0", "0"}, 0},   {{"1", NULL, NULL}, 1},
        {{NULL, "1", NULL}, 1},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(hit_without(21, 32, false, COMMON " 7*3", COMMON " 5*3", cases[i].columns),
                         cases[i].num_hit_blocks);
    }
}

static void hybrid_eagle_prefill_drops_the_last_hit_block_once(void **state) {
    pkv_manager *manager = make_full_and_two_windows(31, 48, true);
    pkv_request first = open_prompt(manager, "0..95 7*1000");
    pkv_request second = open_prompt(manager, "0..95 5*1001");

    (void)state;
    assert_int_equal(admit(manager, first), 0);
    assert_string_equal(table_text(manager, first, 0), "1 2 3 4 5 6 7");
    assert_string_equal(table_text(manager, first, 1), "8 9 10 11 12 13 14");
    assert_string_equal(table_text(manager, first, 2), "15 16 17 18 19 20 21");

    assert_int_equal(find_hit(manager, second), 80);
    assert_string_equal(hit_text(manager, second, 0), "1 2 3 4 5");
    assert_string_equal(hit_text(manager, second, 1), "0 0 10 11 12");
    assert_string_equal(hit_text(manager, second, 2), "0 0 17 18 19");
    admit(manager, second);
    assert_string_equal(new_text(manager, second, 0), "22 23");
    assert_string_equal(new_text(manager, second, 1), "24 25");
    assert_string_equal(new_text(manager, second, 2), "26 27");
}

static void hybrid_eagle_hit_ends_where_all_groups_agree(void **state) {
    const struct {
        const char *columns[3];
        int32_t num_hit_blocks;
    } cases[] = {
        {{NULL, NULL, NULL}, 5}, {{NULL, "0 1", "0 1"}, 5}, {{"0", NULL, NULL}, 0},
        {{"5", NULL, NULL}, 4},  {{NULL, "5", NULL}, 4},    {{NULL, NULL, "5"}, 4},
        {{"5", "5", "5"}, 4},    {{NULL, "4", NULL}, 3},    {{NULL, NULL, "4"}, 3},
        {{"5", "0", "0"}, 4},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(
            hit_without(31, 48, true, "0..95 7*1000", "0..95 5*1001", cases[i].columns),
            cases[i].num_hit_blocks);
    }
}

/* ---- EAGLE alone ----------------------------------------------------------------------------- */

static void eagle_full_attention_recomputes_the_last_hit_block(void **state) {
    pkv_group_config group = full_group(16);
    pkv_manager *manager;

    (void)state;
    group.eagle = true;
    manager = make_hybrid_manager(21, &group, 1);
    admit(manager, open_prompt(manager, "0..47"));
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..47")), 16);
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..36")), 16);
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..48")), 32);
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..31")), 0);
}

static void eagle_window_needs_one_block_more(void **state) {
    pkv_group_config group = window_group(16, 16);
    pkv_manager *manager;
    pkv_request first;

    (void)state;
    group.eagle = true;
    manager = make_hybrid_manager(21, &group, 1);
    first = open_prompt(manager, "0..36");
    admit(manager, first);
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..36")), 16);

    evict_columns(manager, first, 0, "0");
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..36")), 0);
}

static void eagle_group_beside_an_equal_one_without_shortens_both(void **state) {
    const pkv_group_config kinds[] = {full_group(16), window_group(16, 32)};

    (void)state;
    for (int32_t kind = 0; kind < 2; kind++) {
        for (int32_t eagle_index = 0; eagle_index < 2; eagle_index++) {
            pkv_group_config groups[] = {kinds[kind], kinds[kind]};
            pkv_manager *manager;

            groups[eagle_index].eagle = true;
            manager = make_hybrid_manager(41, groups, 2);
            admit(manager, open_prompt(manager, COMMON " 7*3"));
            assert_int_equal(find_hit(manager, open_prompt(manager, COMMON " 5*3")), 32);
        }
    }
}

/* ---- combinations ---------------------------------------------------------------------------- */

typedef struct combination {
    int32_t num_groups;
    pkv_group_kind kinds[4];
    int32_t windows[4]; /* window or chunk; 0 for full attention */
} combination;

#define FULL PKV_GROUP_FULL_ATTENTION
#define WINDOW PKV_GROUP_SLIDING_WINDOW
#define CHUNKED PKV_GROUP_CHUNKED_LOCAL

static const combination combinations[] = {
    {1, {FULL}, {0}},
    {1, {WINDOW}, {32}},
    {1, {CHUNKED}, {32}},
    {2, {FULL, FULL}, {0, 0}},
    {2, {FULL, WINDOW}, {0, 32}},
    {2, {WINDOW, FULL}, {32, 0}},
    {2, {FULL, CHUNKED}, {0, 32}},
    {2, {WINDOW, WINDOW}, {32, 32}},
    {2, {WINDOW, WINDOW}, {16, 48}},
    {2, {WINDOW, CHUNKED}, {32, 32}},
    {3, {FULL, WINDOW, WINDOW}, {0, 32, 32}},
    {3, {FULL, WINDOW, WINDOW}, {0, 16, 64}},
    {3, {FULL, WINDOW, CHUNKED}, {0, 32, 48}},
    {3, {WINDOW, CHUNKED, FULL}, {20, 16, 0}},
    {3, {CHUNKED, CHUNKED, WINDOW}, {16, 64, 40}},
    {4, {FULL, FULL, WINDOW, WINDOW}, {0, 0, 32, 32}},
    {4, {FULL, WINDOW, CHUNKED, WINDOW}, {0, 24, 32, 40}},
    {4, {CHUNKED, WINDOW, FULL, FULL}, {128, 17, 0, 0}},
};

static pkv_manager *make_combination(const combination *mix, bool eagle) {
    pkv_group_config groups[4];

    for (int32_t group = 0; group < mix->num_groups; group++) {
        groups[group] = (pkv_group_config){.struct_size = sizeof groups[0],
                                           .kind = mix->kinds[group],
                                           .block_size = 16,
                                           .window = mix->windows[group],
                                           .eagle = eagle && mix->kinds[group] != CHUNKED};
    }
    return make_hybrid_manager(121, groups, mix->num_groups);
}

static bool has_chunked(const combination *mix) {
    bool found = false;

    for (int32_t group = 0; group < mix->num_groups; group++) {
        found = found || mix->kinds[group] == CHUNKED;
    }
    return found;
}

static void combinations_of_kinds_hit_three_whole_blocks(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof combinations / sizeof combinations[0]; i++) {
        pkv_manager *manager = make_combination(&combinations[i], false);
        pkv_request first = open_prompt(manager, COMMON " 7*3");
        pkv_request second = open_prompt(manager, COMMON " 5*3");

        /* Without a lookup: a chunked group alone hits finished chunks with nothing cached. */
        assert_int_equal(allocate(manager, first, 0, 55), PKV_OK);
        if (find_hit(manager, second) != 48) {
            fail_msg("combination %zu hits %d tokens", i, find_hit(manager, second));
        }
        assert_int_equal(admit(manager, second), 48);
        for (int32_t group = 0; group < combinations[i].num_groups; group++) {
            assert_int_equal(num_table_blocks(manager, second, group), 4);
        }
        end_request(manager, first);
        end_request(manager, second);
        assert_int_equal(num_free_blocks(manager), 120);
        assert_int_equal(find_hit(manager, open_prompt(manager, COMMON " 6*3")), 48);
    }
}

static void combinations_with_eagle_hit_one_block_less(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof combinations / sizeof combinations[0]; i++) {
        pkv_manager *manager;

        if (has_chunked(&combinations[i])) {
            continue;
        }
        manager = make_combination(&combinations[i], true);
        admit(manager, open_prompt(manager, COMMON " 7*3"));
        assert_int_equal(find_hit(manager, open_prompt(manager, COMMON " 5*3")), 32);
    }
}

/* Write the columns [first, last] of a table as text. */
static const char *columns_between(char *text, size_t size, int32_t first, int32_t last) {
    (void)snprintf(text, size, "%d..%d", first, last);
    return text;
}

static void combinations_without_all_keys_of_a_full_group_hit_nothing(void **state) {
    char columns[32];

    (void)state;
    for (size_t i = 0; i < sizeof combinations / sizeof combinations[0]; i++) {
        pkv_manager *manager = make_combination(&combinations[i], false);
        pkv_request first = open_prompt(manager, COMMON " 7*3");
        int32_t num_full = 0;

        assert_int_equal(allocate(manager, first, 0, 55), PKV_OK);
        for (int32_t group = 0; group < combinations[i].num_groups; group++) {
            if (combinations[i].kinds[group] == FULL) {
                num_full++;
                evict_columns(manager, first, group,
                              columns_between(columns, sizeof columns, 0, 2));
            }
        }
        assert_int_equal(find_hit(manager, open_prompt(manager, COMMON " 5*3")),
                         num_full == 0 ? 48 : 0);
    }
}

static void two_kinds_that_do_not_meet_hit_nothing(void **state) {
    const pkv_group_config groups[] = {full_group(16), window_group(16, 32)};
    pkv_manager *manager = make_hybrid_manager(41, groups, 2);
    pkv_request first = open_prompt(manager, COMMON " 7*3");

    (void)state;
    /* Full attention hits one block; the window could serve three, or two, but not one. */
    admit(manager, first);
    evict_columns(manager, first, 0, "1");
    evict_columns(manager, first, 1, "0");
    assert_int_equal(find_hit(manager, open_prompt(manager, COMMON " 5*3")), 0);
}

static void groups_that_shorten_each_other_are_asked_again(void **state) {
    const pkv_group_config groups[] = {window_group(16, 32), window_group(16, 16), full_group(16)};

    (void)state;
    for (int32_t num_groups = 2; num_groups <= 3; num_groups++) {
        pkv_manager *manager = make_hybrid_manager(41, groups, num_groups);
        pkv_request first = open_prompt(manager, "0..64");

        /* The first window has blocks 2 and 3 for four blocks, but the second has none there; at
         * three the first lacks block 1, so that only block 0 is left for both. */
        admit(manager, first);
        evict_columns(manager, first, 0, "1");
        evict_columns(manager, first, 1, "3");
        assert_int_equal(find_hit(manager, open_prompt(manager, "0..64")), 16);
        evict_columns(manager, first, 1, "0");
        assert_int_equal(find_hit(manager, open_prompt(manager, "0..64")), 0);
    }
}

/* ---- groups of different block sizes --------------------------------------------------------- */

static void different_block_sizes_hit_at_their_common_boundary(void **state) {
    const pkv_group_config groups[] = {full_group(32), window_group(16, 32)};
    pkv_manager *manager = make_hybrid_manager(31, groups, 2);
    pkv_request first = open_prompt(manager, "0..159");
    pkv_request second = open_prompt(manager, "0..112");

    (void)state;
    assert_int_equal(allocate(manager, first, 0, 112), PKV_OK);
    assert_string_equal(table_text(manager, first, 0), "1 2 3 4");
    assert_string_equal(table_text(manager, first, 1), "5 6 7 8 9 10 11");

    assert_int_equal(find_hit(manager, second), 96);
    assert_string_equal(hit_text(manager, second, 0), "1 2 3");
    assert_string_equal(hit_text(manager, second, 1), "0 0 0 0 9 10");

    evict_columns(manager, first, 1, "5 6");
    assert_int_equal(find_hit(manager, second), 64);
    assert_string_equal(hit_text(manager, second, 0), "1 2");
    assert_string_equal(hit_text(manager, second, 1), "0 0 7 8");
}

static void different_block_sizes_keys_are_per_smallest_common_block(void **state) {
    const pkv_group_config groups[] = {full_group(24), window_group(16, 64), full_group(32)};
    pkv_manager *manager = make_hybrid_manager(61, groups, 3);
    pkv_request request = open_prompt(manager, "0..199");
    pkv_block_key keys[25], own[25];

    (void)state;
    /* The greatest common divisor is 8; a coarser block takes the key at its last boundary. */
    assert_int_equal(info_of(manager, request).num_keys, 25);
    assert_int_equal(pkv_request_get_keys(manager, request, 0, 25, keys), PKV_OK);
    assert_int_equal(compute_keys(own, 8, "0..199"), 25);
    assert_memory_equal(keys, own, sizeof keys);

    admit(manager, request);
    assert_string_equal(table_text(manager, request, 0), "1 2 3 4 5 6 7 8 9");
    assert_true(keys_are_equal(manager_block_of(manager, 1).key, keys[2]));
    assert_true(keys_are_equal(manager_block_of(manager, 2).key, keys[5]));
    assert_string_equal(table_text(manager, request, 2), "23 24 25 26 27 28 29");
    assert_true(keys_are_equal(manager_block_of(manager, 23).key, keys[3]));
    /* All agree only where 96 divides. */
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..199")), 192);
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..191")), 96);
}

static void different_block_sizes_decode_grows_each_group_at_its_own_pace(void **state) {
    const pkv_group_config groups[] = {full_group(32), window_group(8, 16), full_group(16)};
    pkv_manager *manager = make_hybrid_manager(121, groups, 3);
    pkv_request request = open_prompt(manager, "0..9");

    (void)state;
    assert_int_equal(allocate(manager, request, 0, 10), PKV_OK);
    for (int32_t num_tokens = 10; num_tokens < 200; num_tokens++) {
        append_tokens(manager, request, "%d", num_tokens);
        assert_int_equal(allocate(manager, request, num_tokens, 1), PKV_OK);
        assert_int_equal(num_table_blocks(manager, request, 0), (num_tokens + 32) / 32);
        assert_int_equal(num_table_blocks(manager, request, 1), (num_tokens + 8) / 8);
        assert_int_equal(num_table_blocks(manager, request, 2), (num_tokens + 16) / 16);
    }
}

/* ---- never fits ------------------------------------------------------------------------------ */

/* What a window has passed takes no block, so a long request that ran in a small pool may return to
 * it, whichever way its tokens come. */
static void never_fits_does_not_count_what_a_window_has_passed(void **state) {
    const pkv_group_config kinds[] = {window_group(4, 8), chunked_group(4, 8)};

    (void)state;
    for (int32_t i = 0; i < 4; i++) {
        pkv_manager *manager = make_hybrid_manager(21, &kinds[i % 2], 1);
        pkv_request request = open_prompt(manager, "0..999");
        pkv_slots_args args = slots_of(0, 0);

        args.full_sequence_must_fit = i < 2;
        args.num_new_tokens = 20;
        assert_int_equal(pkv_allocate_slots(manager, request, &args, NULL),
                         i < 2 ? PKV_NEVER_FITS : PKV_OK);
        for (int32_t computed = 0; computed < 1000; computed += 20) {
            assert_int_equal(allocate(manager, request, computed, 20), PKV_OK);
        }
        assert_int_equal(pkv_free(manager, request), PKV_OK);

        args.num_new_computed_tokens = find_hit(manager, request);
        args.num_new_tokens = 1000 - args.num_new_computed_tokens;
        assert_true(args.num_new_tokens <= 8);
        assert_int_equal(pkv_allocate_slots(manager, request, &args, NULL), PKV_OK);
        assert_int_equal(pkv_free(manager, request), PKV_OK);

        args.num_new_computed_tokens = 0;
        args.num_external_computed_tokens = 992;
        args.num_new_tokens = 8;
        assert_int_equal(pkv_allocate_slots(manager, request, &args, NULL), PKV_OK);
        assert_int_equal(pkv_free(manager, request), PKV_OK);

        args.num_external_computed_tokens = 500;
        args.num_new_tokens = 500;
        assert_int_equal(pkv_allocate_slots(manager, request, &args, NULL), PKV_NEVER_FITS);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        fixture_test(hybrid_prefill_each_group_takes_its_blocks_in_turn),
        fixture_test(hybrid_hit_ends_where_all_groups_agree),
        fixture_test(hybrid_eagle_prefill_drops_the_last_hit_block_once),
        fixture_test(hybrid_eagle_hit_ends_where_all_groups_agree),
        fixture_test(eagle_full_attention_recomputes_the_last_hit_block),
        fixture_test(eagle_window_needs_one_block_more),
        fixture_test(eagle_group_beside_an_equal_one_without_shortens_both),
        fixture_test(combinations_of_kinds_hit_three_whole_blocks),
        fixture_test(combinations_with_eagle_hit_one_block_less),
        fixture_test(combinations_without_all_keys_of_a_full_group_hit_nothing),
        fixture_test(two_kinds_that_do_not_meet_hit_nothing),
        fixture_test(groups_that_shorten_each_other_are_asked_again),
        fixture_test(different_block_sizes_hit_at_their_common_boundary),
        fixture_test(different_block_sizes_keys_are_per_smallest_common_block),
        fixture_test(different_block_sizes_decode_grows_each_group_at_its_own_pace),
        fixture_test(never_fits_does_not_count_what_a_window_has_passed),
    };

    return cmocka_run_group_tests_name("groups", tests, NULL, NULL);
}
