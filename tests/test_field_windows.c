/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Goal: windows, groups of several kinds, and drafts that are taken back leave neither a hit on
 * what is gone nor a table that names it. Method: as in test_field_reports.c. */
#include "support/fixture.h"

#include <string.h>

/* ---- windows --------------------------------------------------------------------------------- */

static void reusable_prefix_is_what_the_smallest_window_still_has(void **state) {
    const pkv_group_config groups[] = {window_group(16, 128), window_group(16, 4096)};
    pkv_manager *manager = make_hybrid_manager(61, groups, 2);
    pkv_request first = open_prompt(manager, "0..199");
    pkv_request other = open_prompt(manager, "1000..1399");

    (void)state;
    assert_int_equal(allocate(manager, first, 0, 200), PKV_OK);
    append_tokens(manager, first, "7");
    assert_int_equal(allocate(manager, first, 200, 1), PKV_OK);
    assert_string_equal(table_text(manager, first, 0), "0 0 0 0 5 6 7 8 9 10 11 12 13");

    /* What the small window dropped is still cached, until others take the blocks. */
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..99")), 96);
    assert_int_equal(allocate(manager, other, 0, 288), PKV_OK);
    assert_int_equal(num_free_blocks(manager), 2);
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..99")), 32);
    assert_int_equal(allocate(manager, other, 288, 16), PKV_OK);
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..99")), 0);
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..199")), 192);
}

static void table_names_no_block_behind_the_window(void **state) {
    const pkv_group_config group = window_group(16, 64);
    pkv_manager *manager = make_hybrid_manager(9, &group, 1);
    pkv_request request = open_prompt(manager, "0");
    pkv_request other = open_prompt(manager, "1000");
    int32_t other_length = 0;

    (void)state;
    assert_int_equal(allocate(manager, request, 0, 1), PKV_OK);
    for (int32_t length = 1; length < 200; length++) {
        const pkv_batch_entry entry = {request, length, 1};
        pkv_block_id table[16];

        append_tokens(manager, request, "%d", length);
        assert_int_equal(allocate(manager, request, length, 1), PKV_OK);
        assert_int_equal(pkv_export_padded(manager, 0, &entry, 1, table, 16, -1), PKV_OK);
        for (int32_t column = 0; column < 16; column++) {
            /* The newest token sees positions length - 63 to length. */
            bool is_seen = 16 * column + 15 >= length - 63 && 16 * column <= length;

            if (16 * column > length) {
                assert_int_equal(table[column], -1);
            } else {
                assert_int_equal(table[column] != PKV_NULL_BLOCK, is_seen);
            }
        }
        /* Somebody else lives on the blocks that became free, without disturbing the window. */
        if (length % 2 == 0) {
            if (other_length > 0) {
                append_tokens(manager, other, "%d", 1000 + other_length);
            }
            if (allocate(manager, other, other_length, 1) == PKV_OK) {
                other_length++;
            } else {
                assert_int_equal(pkv_free(manager, other), PKV_OK);
                assert_int_equal(pkv_request_close(manager, other), PKV_OK);
                other = open_prompt(manager, "1000");
                other_length = 0;
            }
        }
    }
}

static void tail_that_a_hit_keeps_is_as_long_as_the_window(void **state) {
    const pkv_group_config group = window_group(64, 127);
    pkv_manager *manager = make_hybrid_manager(41, &group, 1);
    pkv_request request = open_prompt(manager, "0..1023");
    const char *expected = "0 0 0 0 0 0 0 0 0 0 0 0 0 14 15";

    (void)state;
    admit(manager, request);
    /* The hit ends at 960, whose next token sees 834 to 960: what is kept begins at 832. */
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..1023")), 960);
    assert_string_equal(hit_text(manager, open_prompt(manager, "0..1023"), 0), expected);

    /* With 1,024 tokens processed the last 127 of the next window lie in the last two blocks. */
    assert_int_equal(pkv_remove_skipped_blocks(manager, request, 1024), PKV_OK);
    assert_string_equal(table_text(manager, request, 0), "0 0 0 0 0 0 0 0 0 0 0 0 0 0 15 16");
}

static void prompt_that_leaves_in_the_last_block_keeps_a_hit(void **state) {
    const struct {
        int32_t num_equal_tokens, hit;
    } cases[] = {{2040, 2016}, {2047, 2016}, {2048, 2048}, {2049, 2048}, {1000, 992}, {31, 0}};
    const pkv_group_config groups[] = {full_group(32), window_group(16, 1024)};
    pkv_manager *manager = make_hybrid_manager(501, groups, 2);

    (void)state;
    admit(manager, open_prompt(manager, "0..2048"));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pkv_request request = open_prompt(manager, "0..%d 100*7", cases[i].num_equal_tokens - 1);

        assert_int_equal(find_hit(manager, request), cases[i].hit);
    }
}

static void prompt_that_leaves_early_has_no_hit_where_only_the_tail_is_retained(void **state) {
    pkv_group_config groups[] = {full_group(32), window_group(16, 1024)};
    pkv_manager *manager;

    (void)state;
    /* The price of the sparse setting, which a caller asks for by name. */
    groups[1].retention_interval = PKV_RETENTION_TAIL_ONLY;
    manager = make_hybrid_manager(501, groups, 2);
    admit(manager, open_prompt(manager, "0..2048"));
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..2047 100*7")), 2048);
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..2039 100*7")), 0);

    /* Once met, the shared part is kept: the second of its kind finds it. */
    assert_int_equal(admit(manager, open_prompt(manager, "0..2039 100*7")), 0);
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..2039 100*8")), 2016);
}

/* ---- groups ---------------------------------------------------------------------------------- */

static void short_shared_prefix_hits_with_the_default_groups(void **state) {
    pkv_manager_config config = {.num_blocks = 201, .max_model_len = 4096};
    pkv_manager *manager;

    (void)state;
    config.struct_size = sizeof config;
    manager = make_manager(&config);
    (void)admit(manager,
                open_prompt_as(manager, &(pkv_request_args){.max_num_tokens = 700}, "0..599 50*1"));
    assert_int_equal(
        find_hit(manager, open_prompt_as(manager, &(pkv_request_args){.max_num_tokens = 700},
                                         "0..599 50*2")),
        592);
}

static void position_is_looked_up_with_the_block_size_of_its_own_group(void **state) {
    const pkv_group_config groups[] = {full_group(128), full_group(2176)};
    const int32_t last = 100095;
    pkv_manager_config config = small_config(900, 128);
    static int32_t token_ids[100096];
    const pkv_request_args args = {
        .struct_size = sizeof args, .token_ids = token_ids, .num_tokens = 100096};
    int64_t slot;
    pkv_batch batch = {
        .struct_size = sizeof batch, .max_requests = 1, .max_tokens = 1, .slot_mapping = &slot};
    pkv_manager *manager;
    pkv_request request;

    (void)state;
    config.groups = groups;
    config.num_groups = 2;
    config.max_model_len = 100096;
    config.max_total_tokens = 2 * 100096;
    manager = make_manager(&config);
    assert_int_equal(pkv_request_open(manager, &args, &request), PKV_OK);
    admit(manager, request);
    assert_int_equal(num_table_blocks(manager, request, 0), 782);
    assert_int_equal(num_table_blocks(manager, request, 1), 46);
    for (int32_t group = 0; group < 2; group++) {
        const pkv_batch_entry entry = {request, last, 1};
        const pkv_batch_entry beyond = {request, last + 1, 1};
        const pkv_block_id *table;
        int32_t num_blocks;

        assert_int_equal(pkv_batch_build(manager, group, &entry, 1, &batch), PKV_OK);
        assert_int_equal(pkv_get_block_table(manager, request, group, &table, &num_blocks), PKV_OK);
        /* Column 781 of the fine group, 45 of the coarse one. */
        assert_int_equal(slot / groups[group].block_size, table[group == 0 ? 781 : 45]);
        assert_int_equal(slot % groups[group].block_size, last % groups[group].block_size);
        assert_int_equal(pkv_batch_build(manager, group, &beyond, 1, &batch),
                         PKV_ERROR_INVALID_ARGUMENT);
    }
    /* Only whole blocks of the coarse group can be shared: 45 of them. */
    assert_int_equal(find_hit(manager, request), 45 * 2176);
}

/* ---- drafts ---------------------------------------------------------------------------------- */

static void stop_inside_accepted_drafts_publishes_nothing_unseen(void **state) {
    pkv_manager *manager = make_small_manager(31, 16);
    pkv_request request = open_prompt(manager, "0..29");
    pkv_slots_args args = slots_of(30, 8);

    (void)state;
    assert_int_equal(allocate(manager, request, 0, 30), PKV_OK);
    append_tokens(manager, request, "30");
    /* Seven drafts run and are accepted, but the text stops after 33 tokens. */
    assert_int_equal(pkv_allocate_slots(manager, request, &args, NULL), PKV_OK);
    append_tokens(manager, request, "31 32");
    assert_int_equal(pkv_cache_blocks(manager, request, 33), PKV_OK);
    assert_string_equal(keyed_columns_text(manager, request, 0), "0 1");
    end_request(manager, request);
    assert_string_equal(refs_text(manager, 1, 3), "0 0 0");
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..42")), 32);
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..37 9 9 9 9 9")), 32);
}

static void blocks_follow_the_length_through_random_appends(void **state) {
    pkv_manager *manager = make_small_manager(2101, 16);
    const pkv_request_args args = {.max_num_tokens = FIXTURE_MAX_MODEL_LEN};
    pkv_request request = open_prompt_as(manager, &args, "0..31");
    int32_t length = 32;
    uint32_t seed = 1435;

    (void)state;
    admit(manager, request);
    while (length < FIXTURE_MAX_MODEL_LEN - 5) {
        int32_t count;

        seed = seed * 1664525 + 1013904223;
        count = 1 + (int32_t)(seed >> 16) % 5;
        append_tokens(manager, request, "%d*%d", count, length);
        assert_int_equal(allocate(manager, request, length, count), PKV_OK);
        length += count;
        assert_int_equal(num_table_blocks(manager, request, 0), (length + 15) / 16);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        fixture_test(reusable_prefix_is_what_the_smallest_window_still_has),
        fixture_test(table_names_no_block_behind_the_window),
        fixture_test(tail_that_a_hit_keeps_is_as_long_as_the_window),
        fixture_test(prompt_that_leaves_in_the_last_block_keeps_a_hit),
        fixture_test(prompt_that_leaves_early_has_no_hit_where_only_the_tail_is_retained),
        fixture_test(short_shared_prefix_hits_with_the_default_groups),
        fixture_test(position_is_looked_up_with_the_block_size_of_its_own_group),
        fixture_test(stop_inside_accepted_drafts_publishes_nothing_unseen),
        fixture_test(blocks_follow_the_length_through_random_appends),
    };

    return cmocka_run_group_tests_name("field reports: windows", tests, NULL, NULL);
}
