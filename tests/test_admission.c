/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Goal: whether a request is admitted depends on exactly what the caller asks for: watermark,
 * reservation, the whole sequence, rows, tokens from elsewhere. Method: pools in which one block
 * more or less decides. */
#include "support/fixture.h"

#include <string.h>

/* ---- the whole sequence must fit ------------------------------------------------------------- */

/* Status of admitting the first 16 tokens of a prompt under the must-fit rule, on a pool of
 * `num_blocks` with a full group and a window of 64. */
static pkv_status must_fit_status(int32_t num_blocks, int32_t num_tokens) {
    const pkv_group_config groups[] = {full_group(16), window_group(16, 64)};
    pkv_manager_config config = small_config(num_blocks, 16);
    pkv_slots_args args = slots_of(0, 16);
    pkv_manager *manager;

    config.groups = groups;
    config.num_groups = 2;
    config.max_model_len = 1024;
    config.max_in_flight_tokens = 128;
    args.full_sequence_must_fit = true;
    manager = make_manager(&config);
    return pkv_allocate_slots(manager, open_prompt(manager, "0..%d", num_tokens - 1), &args, NULL);
}

static void must_fit_caps_what_a_window_needs(void **state) {
    (void)state;
    /* 512 tokens: 32 blocks of full attention, ceil((63 + 128) / 16) + 1 = 13 of the window. */
    assert_int_equal(must_fit_status(78, 512), PKV_OK);
    assert_int_equal(must_fit_status(46, 512), PKV_OK);
    assert_int_equal(must_fit_status(45, 512), PKV_NEVER_FITS);
    assert_int_equal(must_fit_status(5, 256), PKV_NEVER_FITS);
}

static void must_fit_looks_at_all_tokens_not_at_the_chunk(void **state) {
    pkv_manager *manager = make_small_manager(11, 16);
    pkv_request first = open_prompt(manager, "0..95");
    pkv_request second = open_prompt(manager, "200..279");
    const pkv_request both[] = {first, second};
    pkv_slots_args args = slots_of(0, 16);
    const char *before;

    (void)state;
    admit(manager, first);
    args.full_sequence_must_fit = true;
    before = remember_state(manager, both, 2);
    assert_int_equal(pkv_allocate_slots(manager, second, &args, NULL), PKV_NO_FREE_BLOCKS);
    assert_string_equal(state_text(manager, both, 2), before);
    args.full_sequence_must_fit = false;
    assert_int_equal(pkv_allocate_slots(manager, second, &args, NULL), PKV_OK);
}

static void must_fit_refusal_does_not_drop_blocks_behind_the_window(void **state) {
    const pkv_group_config group = window_group(2, 4);
    pkv_manager_config config = small_config(8, 2);
    pkv_slots_args args = slots_of(8, 2);
    pkv_manager *manager;
    pkv_request request;
    const char *before;

    (void)state;
    config.groups = &group;
    config.num_groups = 1;
    manager = make_manager(&config);
    request = open_prompt(manager, "0..19");
    assert_int_equal(allocate(manager, request, 0, 8), PKV_OK);
    before = remember_state(manager, &request, 1);
    args.full_sequence_must_fit = true;
    assert_int_equal(pkv_allocate_slots(manager, request, &args, NULL), PKV_NO_FREE_BLOCKS);
    assert_string_equal(state_text(manager, &request, 1), before);
}

/* ---- watermark and reservation --------------------------------------------------------------- */

static void watermark_and_reservation_keep_blocks_free(void **state) {
    const struct {
        int32_t num_watermark, num_reserved, num_missing;
    } cases[] = {{0, 0, 0}, {7, 0, 0}, {8, 0, 1}, {0, 7, 0}, {0, 8, 1}, {4, 3, 0}, {4, 5, 2}};

    (void)state;
    /* Ten blocks are free and three are needed. */
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pkv_manager *manager = make_small_manager(11, 16);
        pkv_request request = open_prompt(manager, "0..40");
        pkv_slots_args args = slots_of(0, 41);
        pkv_slots slots = make_slots();

        args.num_watermark_blocks = cases[i].num_watermark;
        args.num_reserved_blocks = cases[i].num_reserved;
        assert_int_equal(pkv_allocate_slots(manager, request, &args, &slots),
                         cases[i].num_missing == 0 ? PKV_OK : PKV_NO_FREE_BLOCKS);
        if (cases[i].num_missing > 0) {
            assert_int_equal(slots.num_missing_blocks, cases[i].num_missing);
        }
    }
}

static void watermark_refuses_even_a_step_that_needs_no_block(void **state) {
    pkv_manager *manager = make_small_manager(4, 16);
    pkv_request request = open_prompt(manager, "0..39");
    pkv_slots_args args = slots_of(40, 1);
    pkv_slots slots = make_slots();

    (void)state;
    admit(manager, request);
    append_tokens(manager, request, "40");
    args.num_watermark_blocks = 1;
    assert_int_equal(pkv_allocate_slots(manager, request, &args, &slots), PKV_NO_FREE_BLOCKS);
    assert_int_equal(slots.num_missing_blocks, 1);
    args.num_watermark_blocks = 0;
    args.num_reserved_blocks = 2;
    assert_int_equal(pkv_allocate_slots(manager, request, &args, &slots), PKV_NO_FREE_BLOCKS);
    assert_int_equal(slots.num_missing_blocks, 2);
    args.num_reserved_blocks = 0;
    assert_int_equal(pkv_allocate_slots(manager, request, &args, &slots), PKV_OK);
    assert_int_equal(slots.num_new_blocks, 0);
    assert_int_equal(slots.row, info_of(manager, request).row);
}

/* ---- never fits ------------------------------------------------------------------------------ */

static void never_fits_is_told_apart_from_not_now(void **state) {
    pkv_manager *manager = make_small_manager(9, 16);
    pkv_request large = open_prompt(manager, "0..199");
    pkv_request whole = open_prompt(manager, "1000..1127");
    const pkv_request both[] = {large, whole};
    pkv_slots_args args = slots_of(0, 200);
    const char *before = remember_state(manager, both, 2);

    (void)state;
    assert_int_equal(pkv_allocate_slots(manager, large, &args, NULL), PKV_NEVER_FITS);
    args.num_new_tokens = 16;
    args.full_sequence_must_fit = true;
    assert_int_equal(pkv_allocate_slots(manager, large, &args, NULL), PKV_NEVER_FITS);
    assert_string_equal(state_text(manager, both, 2), before);

    /* 128 tokens are exactly all eight blocks. */
    admit(manager, whole);
    args.num_new_tokens = 16;
    args.full_sequence_must_fit = false;
    assert_int_equal(pkv_allocate_slots(manager, large, &args, NULL), PKV_NO_FREE_BLOCKS);
    assert_int_equal(stats_of(manager).num_never_fits, 2);
    assert_int_equal(stats_of(manager).num_no_free_blocks, 1);
}

static void never_fits_is_not_said_of_a_request_that_holds_blocks(void **state) {
    pkv_manager *manager = make_small_manager(5, 16);
    pkv_request request = open_prompt(manager, "0..199");

    (void)state;
    assert_int_equal(allocate(manager, request, 0, 32), PKV_OK);
    assert_int_equal(allocate(manager, request, 32, 168), PKV_NO_FREE_BLOCKS);
    assert_int_equal(pkv_free(manager, request), PKV_OK);
    assert_int_equal(allocate(manager, request, 0, 200), PKV_NEVER_FITS);
}

static void never_fits_ignores_the_watermark_and_hits(void **state) {
    pkv_manager *manager = make_small_manager(5, 16);
    pkv_request first = open_prompt(manager, "0..63");
    pkv_request second = open_prompt(manager, "0..79");
    pkv_slots_args args = slots_of(0, 16);

    (void)state;
    admit(manager, first);
    assert_int_equal(find_hit(manager, second), 64);
    args.num_new_computed_tokens = 64;
    assert_int_equal(pkv_allocate_slots(manager, second, &args, NULL), PKV_NEVER_FITS);
    end_request(manager, first);

    args = slots_of(0, 64);
    args.num_watermark_blocks = 1;
    assert_int_equal(pkv_allocate_slots(manager, second, &args, NULL), PKV_NO_FREE_BLOCKS);
}

/* ---- model length ---------------------------------------------------------------------------- */

static void max_model_len_caps_lookahead(void **state) {
    pkv_manager_config config = small_config(21, 16);
    pkv_slots_args args = slots_of(0, 60);
    pkv_manager *manager;
    pkv_request request;

    (void)state;
    config.max_model_len = 64;
    manager = make_manager(&config);
    request = open_prompt(manager, "0..59");
    args.num_lookahead_tokens = 30;
    assert_int_equal(pkv_allocate_slots(manager, request, &args, NULL), PKV_OK);
    assert_int_equal(num_table_blocks(manager, request, 0), 4);
}

/* ---- tokens computed elsewhere --------------------------------------------------------------- */

/* Make every group's next hit stand at the head of the queue: `first` is freed before all
 * others. */
static void fill_and_free(pkv_manager *manager, int32_t num_other_tokens) {
    pkv_request first = open_prompt(manager, "0..79");
    pkv_request other = open_prompt(manager, "2000..%d", 2000 + num_other_tokens - 1);

    admit(manager, first);
    admit(manager, other);
    assert_int_equal(num_free_blocks(manager), 0);
    end_request(manager, first);
    end_request(manager, other);
}

static void assert_no_block_twice(const pkv_manager *manager,
                                  pkv_request request,
                                  int32_t num_groups) {
    bool seen[128];

    memset(seen, 0, sizeof seen);
    for (int32_t group = 0; group < num_groups; group++) {
        const pkv_block_id *table;
        int32_t num_blocks;

        assert_int_equal(pkv_get_block_table(manager, request, group, &table, &num_blocks), PKV_OK);
        assert_int_equal(num_blocks, 8);
        for (int32_t i = 0; i < num_blocks; i++) {
            assert_in_range(table[i], 1, 127);
            assert_false(seen[table[i]]);
            seen[table[i]] = true;
            assert_true(manager_block_of(manager, table[i]).ref_cnt >= 1);
        }
    }
}

static void external_tokens_get_blocks_that_evict_no_hit_of_any_group(void **state) {
    const pkv_group_config groups[] = {full_group(16), window_group(16, 1024), full_group(16)};

    (void)state;
    for (int32_t num_groups = 2; num_groups <= 3; num_groups++) {
        pkv_manager *manager = make_hybrid_manager(31, groups, num_groups);
        pkv_request request = open_prompt(manager, "0..79 1000..1047");
        pkv_slots_args args = slots_of(0, 16);
        pkv_slots slots = make_slots();

        fill_and_free(manager, (30 / num_groups - 5) * 16);
        for (int32_t round = 0; round < 2; round++) {
            assert_int_equal(find_hit(manager, request), 80);
            args.num_new_computed_tokens = 80;
            args.num_external_computed_tokens = 32;
            assert_int_equal(pkv_allocate_slots(manager, request, &args, &slots), PKV_OK);
            /* Blocks of the external tokens are in the table, not among the new ones. */
            assert_int_equal(slots.num_new_blocks, num_groups);
            assert_no_block_twice(manager, request, num_groups);
            /* Give the prompt's blocks up again, and keep only the hit findable. */
            for (int32_t group = 0; group < num_groups; group++) {
                evict_columns(manager, request, group, "5 6 7");
            }
            assert_int_equal(pkv_free(manager, request), PKV_OK);
        }
    }
}

static void external_tokens_are_published_unless_delayed(void **state) {
    pkv_manager *manager = make_small_manager(31, 16);
    pkv_request eager = open_prompt(manager, "0..63");
    pkv_request late = open_prompt(manager, "100..163");
    pkv_slots_args args = slots_of(0, 16);

    (void)state;
    args.num_external_computed_tokens = 32;
    assert_int_equal(pkv_allocate_slots(manager, eager, &args, NULL), PKV_OK);
    assert_string_equal(table_text(manager, eager, 0), "1 2 3");
    assert_string_equal(new_text(manager, eager, 0), "3");
    assert_string_equal(keyed_columns_text(manager, eager, 0), "0 1 2");

    /* An asynchronous load: nothing is new, and nothing is published before it has come. */
    args = slots_of(0, 0);
    args.num_external_computed_tokens = 48;
    args.delay_caching = true;
    assert_int_equal(pkv_allocate_slots(manager, late, &args, NULL), PKV_OK);
    assert_int_equal(num_table_blocks(manager, late, 0), 3);
    assert_string_equal(keyed_columns_text(manager, late, 0), "");
    assert_int_equal(pkv_cache_blocks(manager, late, 48), PKV_OK);
    assert_string_equal(keyed_columns_text(manager, late, 0), "0 1 2");
    assert_int_equal(allocate(manager, late, 48, 16), PKV_OK);
    assert_int_equal(num_table_blocks(manager, late, 0), 4);
}

/* ---- the hit went away ----------------------------------------------------------------------- */

static void hit_evicted_since_the_lookup_is_not_found_and_nothing_changes(void **state) {
    pkv_manager *manager = make_small_manager(11, 16);
    pkv_request first = open_prompt(manager, COMMON " 7*3");
    pkv_request second = open_prompt(manager, COMMON " 5*3");
    pkv_slots_args args = slots_of(0, 5);
    const char *before;

    (void)state;
    admit(manager, first);
    assert_int_equal(find_hit(manager, second), 48);
    evict_columns(manager, first, 0, "2");
    before = remember_state(manager, &second, 1);
    args.num_new_computed_tokens = 48;
    assert_int_equal(pkv_allocate_slots(manager, second, &args, NULL), PKV_NOT_FOUND);
    assert_string_equal(state_text(manager, &second, 1), before);
    assert_int_equal(admit(manager, second), 32);
}

static void hit_shorter_than_found_is_accepted(void **state) {
    pkv_manager *manager = make_small_manager(11, 16);
    pkv_request first = open_prompt(manager, COMMON " 7*3");
    pkv_request second = open_prompt(manager, COMMON " 5*3");
    pkv_slots_args args = slots_of(0, 37);

    (void)state;
    admit(manager, first);
    args.num_new_computed_tokens = 16;
    assert_int_equal(pkv_allocate_slots(manager, second, &args, NULL), PKV_OK);
    assert_string_equal(table_text(manager, second, 0), "1 5 6 7");
}

/* ---- rows ------------------------------------------------------------------------------------ */

static void rows_are_leased_with_the_first_blocks_and_returned_at_free(void **state) {
    pkv_manager_config config = small_config(31, 16);
    pkv_manager *manager;
    pkv_request requests[3];
    pkv_slots slots = make_slots();
    pkv_slots_args args = slots_of(0, 20);
    const char *before;

    (void)state;
    config.max_rows = 2;
    manager = make_manager(&config);
    for (int32_t i = 0; i < 3; i++) {
        requests[i] = open_prompt(manager, "%d..%d", 100 * i, 100 * i + 19);
        assert_int_equal(info_of(manager, requests[i]).row, PKV_NULL_ROW);
    }
    assert_int_equal(pkv_allocate_slots(manager, requests[0], &args, &slots), PKV_OK);
    assert_int_equal(slots.row, info_of(manager, requests[0]).row);
    assert_in_range(slots.row, 1, 2);
    assert_int_equal(pkv_allocate_slots(manager, requests[1], &args, NULL), PKV_OK);
    assert_int_equal(info_of(manager, requests[0]).row + info_of(manager, requests[1]).row, 3);

    before = remember_state(manager, requests, 3);
    assert_int_equal(pkv_allocate_slots(manager, requests[2], &args, NULL), PKV_NO_FREE_ROWS);
    assert_string_equal(state_text(manager, requests, 3), before);
    assert_int_equal(stats_of(manager).num_no_free_rows, 1);

    assert_int_equal(pkv_free(manager, requests[0]), PKV_OK);
    assert_int_equal(stats_of(manager).num_rows, 1);
    assert_int_equal(pkv_allocate_slots(manager, requests[2], &args, NULL), PKV_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        fixture_test(must_fit_caps_what_a_window_needs),
        fixture_test(must_fit_looks_at_all_tokens_not_at_the_chunk),
        fixture_test(must_fit_refusal_does_not_drop_blocks_behind_the_window),
        fixture_test(watermark_and_reservation_keep_blocks_free),
        fixture_test(watermark_refuses_even_a_step_that_needs_no_block),
        fixture_test(never_fits_is_told_apart_from_not_now),
        fixture_test(never_fits_is_not_said_of_a_request_that_holds_blocks),
        fixture_test(never_fits_ignores_the_watermark_and_hits),
        fixture_test(max_model_len_caps_lookahead),
        fixture_test(external_tokens_get_blocks_that_evict_no_hit_of_any_group),
        fixture_test(external_tokens_are_published_unless_delayed),
        fixture_test(hit_evicted_since_the_lookup_is_not_found_and_nothing_changes),
        fixture_test(hit_shorter_than_found_is_accepted),
        fixture_test(rows_are_leased_with_the_first_blocks_and_returned_at_free),
    };

    return cmocka_run_group_tests_name("admission", tests, NULL, NULL);
}
