/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Goal: a handle that is not open here is refused by every function that takes one; what cannot be
 * opened, appended or configured is refused with a reason. Method: one table of all calls with a
 * handle; the state of a manager in use is compared before and after. */
#include "support/fixture.h"

#include <limits.h>
#include <stddef.h>
#include <string.h>

/* ---- helpers --------------------------------------------------------------------------------- */

static pkv_manager *manager;
static pkv_request running;
static const char *before;

static void make_manager_in_use(void) {
    pkv_manager_config config = small_config(11, 16);

    config.max_model_len = 100;
    config.max_rows = 4;
    config.max_requests = 4;
    config.max_total_tokens = 300;
    config.max_media_per_request = 2;
    manager = make_manager(&config);
    running = open_prompt(manager, COMMON " 7*3");
    admit(manager, running);
    before = remember_state(manager, &running, 1);
}

static void refused(pkv_status actual, pkv_status expected) {
    assert_string_equal(pkv_status_name(actual), pkv_status_name(expected));
    assert_true(pkv_manager_last_error(manager)[0] != '\0');
    assert_string_equal(state_text(manager, &running, 1), before);
}

/* ---- handles --------------------------------------------------------------------------------- */

/* Every call that takes a handle, all other arguments being good. */
static void refuse_handle_everywhere(pkv_manager *target, pkv_request handle, pkv_status expected) {
    const int32_t token = 1;
    const pkv_block_key key = {1, 1, 1};
    const pkv_slots_args slots = slots_of(0, 1);
    const pkv_batch_entry entry = {handle, 0, 1};
    pkv_batch batch = {.struct_size = sizeof batch, .max_requests = 1, .max_tokens = 1};
    pkv_request_info info = {.struct_size = sizeof info};
    const pkv_block_id *table;
    pkv_block_id block_ids[8];
    int32_t count, token_ids[1], indptr[2], last_page_len[1];
    pkv_block_key keys[1];
    const pkv_status statuses[] = {
        pkv_request_append(target, handle, &token, 1),
        pkv_request_append_keys(target, handle, &key, 1),
        pkv_request_close(target, handle),
        pkv_request_get_info(target, handle, &info),
        pkv_request_get_tokens(target, handle, 0, 1, token_ids),
        pkv_request_get_keys(target, handle, 0, 1, keys),
        pkv_get_computed_blocks(target, handle, &count),
        pkv_get_computed_block_ids(target, handle, 0, block_ids, 8, &count),
        pkv_allocate_slots(target, handle, &slots, NULL),
        pkv_get_new_block_ids(target, handle, 0, &table, &count),
        pkv_cache_blocks(target, handle, 1),
        pkv_remove_skipped_blocks(target, handle, 1),
        pkv_free(target, handle),
        pkv_free_after(target, handle, 1),
        pkv_unschedule(target, handle, 1),
        pkv_get_num_common_prefix_blocks(target, handle, 0, &count),
        pkv_get_block_table(target, handle, 0, &table, &count),
        pkv_batch_build(target, 0, &entry, 1, &batch),
        pkv_export_padded(target, 0, &entry, 1, block_ids, 8, 0),
        pkv_export_csr(target, 0, &entry, 1, false, indptr, block_ids, 8, last_page_len, &count),
    };

    for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++) {
        if (statuses[i] != expected) {
            fail_msg("call %zu: %s", i, pkv_status_name(statuses[i]));
        }
    }
}

static void handle_that_was_never_given_is_stale(void **state) {
    const pkv_request handles[] = {
        {0, 0}, {1, 0}, {1, 1}, {0, 99}, {4, 1}, {UINT32_MAX, 1}, {UINT32_MAX, UINT32_MAX}};

    (void)state;
    make_manager_in_use();
    for (size_t i = 0; i < sizeof handles / sizeof handles[0]; i++) {
        refuse_handle_everywhere(manager, handles[i], PKV_ERROR_STALE_HANDLE);
        assert_string_equal(state_text(manager, &running, 1), before);
    }
}

static void handle_that_was_closed_stays_stale(void **state) {
    pkv_request old, reopened;

    (void)state;
    make_manager_in_use();
    old = open_prompt(manager, "1 2 3");
    admit(manager, old);
    end_request(manager, old);
    for (int32_t i = 0; i < 10; i++) {
        reopened = open_prompt(manager, "4 5 6");
        assert_int_equal(reopened.index, old.index);
        assert_true(reopened.generation != old.generation);
        before = remember_state(manager, &running, 1);
        refuse_handle_everywhere(manager, old, PKV_ERROR_STALE_HANDLE);
        assert_string_equal(state_text(manager, &running, 1), before);
        assert_int_equal(info_of(manager, reopened).num_tokens, 3);
        assert_int_equal(pkv_request_close(manager, reopened), PKV_OK);
    }
}

static void handle_of_another_manager_is_stale(void **state) {
    pkv_manager *other;
    pkv_request foreign = {0, 0};

    (void)state;
    make_manager_in_use();
    other = make_small_manager(11, 16);
    for (int32_t i = 0; i < 3; i++) {
        foreign = open_prompt(other, "1 2 3");
    }
    refuse_handle_everywhere(manager, foreign, PKV_ERROR_STALE_HANDLE);
    assert_string_equal(state_text(manager, &running, 1), before);
    assert_non_null(strstr(pkv_manager_last_error(manager), "handle"));
}

static void null_manager_is_invalid_everywhere(void **state) {
    const pkv_request_args args = {.struct_size = sizeof args};
    pkv_request request;
    pkv_block_id block_id = 1;
    pkv_table_update update;
    pkv_event event;
    pkv_stats stats = {.struct_size = sizeof stats};
    int32_t count;
    const pkv_status statuses[] = {
        pkv_request_open(NULL, &args, &request),
        pkv_step_complete(NULL, 1),
        pkv_step_fail(NULL, 1),
        pkv_evict_blocks(NULL, &block_id, 1),
        pkv_reset_prefix_cache(NULL),
        pkv_take_table_updates(NULL, 0, &update, 1, &count),
        pkv_mark_tables_dirty(NULL),
        pkv_take_fills(NULL, 0, &block_id, 1, &count),
        pkv_take_events(NULL, &event, 1, &count, NULL),
        pkv_get_stats(NULL, &stats),
        pkv_manager_check(NULL),
    };

    (void)state;
    for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++) {
        assert_int_equal(statuses[i], PKV_ERROR_INVALID_ARGUMENT);
    }
    refuse_handle_everywhere(NULL, (pkv_request){0, 1}, PKV_ERROR_INVALID_ARGUMENT);
    assert_null(pkv_manager_get_pool(NULL));
    assert_string_equal(pkv_manager_last_error(NULL), "");
    pkv_manager_destroy(NULL);
}

static void last_error_is_empty_until_a_call_fails(void **state) {
    (void)state;
    make_manager_in_use();
    assert_string_equal(pkv_manager_last_error(manager), "");
    refused(pkv_step_fail(manager, 0), PKV_ERROR_INVALID_ARGUMENT);
}

/* ---- open ------------------------------------------------------------------------------------ */

static const int32_t tokens[100] = {0};
static const pkv_media adjacent_media[] = {
    {.offset = 0, .num_tokens = 4}, {.offset = 4, .num_tokens = 4}, {.offset = 8, .num_tokens = 1}};
static const pkv_media overlapping_media[] = {{.offset = 0, .num_tokens = 4},
                                              {.offset = 3, .num_tokens = 4}};
static const pkv_media descending_media[] = {{.offset = 8, .num_tokens = 4},
                                             {.offset = 0, .num_tokens = 4}};
static const pkv_media empty_media[] = {{.offset = 8, .num_tokens = 0}};
static const pkv_media negative_media[] = {{.offset = -1, .num_tokens = 4}};
static const pkv_media overflowing_media[] = {{.offset = INT_MAX, .num_tokens = INT_MAX},
                                              {.offset = INT_MAX, .num_tokens = 1}};

static void open_bad_arguments(void **state) {
    const pkv_request_args cases[] = {
        {.token_ids = NULL, .num_tokens = 3},
        {.token_ids = tokens, .num_tokens = 0},
        {.token_ids = tokens, .num_tokens = -3},
        {.token_ids = tokens, .num_tokens = 10, .max_num_tokens = 9},
        {.token_ids = tokens, .num_tokens = 10, .max_num_tokens = -1},
        {.token_ids = tokens, .num_tokens = 10, .max_num_tokens = 101},
        {.token_ids = tokens, .num_tokens = INT_MAX},
        {.token_ids = tokens, .num_tokens = 10, .salt_size = 3},
        {.token_ids = tokens, .num_tokens = 10, .num_media = 1},
        {.token_ids = tokens, .num_tokens = 10, .media = adjacent_media, .num_media = -1},
        {.token_ids = tokens, .num_tokens = 10, .media = overlapping_media, .num_media = 2},
        {.token_ids = tokens, .num_tokens = 10, .media = descending_media, .num_media = 2},
        {.token_ids = tokens, .num_tokens = 10, .media = empty_media, .num_media = 1},
        {.token_ids = tokens, .num_tokens = 10, .media = negative_media, .num_media = 1},
        {.token_ids = tokens, .num_tokens = 10, .media = overflowing_media, .num_media = 2},
    };
    pkv_request_args good = {
        .struct_size = sizeof good, .token_ids = tokens, .num_tokens = 10, .max_num_tokens = 10};

    (void)state;
    make_manager_in_use();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pkv_request_args args = cases[i];
        pkv_request request = {77, 77};

        args.struct_size = sizeof args;
        refused(pkv_request_open(manager, &args, &request), PKV_ERROR_INVALID_ARGUMENT);
        assert_int_equal(request.generation, 77);
    }
    refused(pkv_request_open(manager, NULL, &running), PKV_ERROR_INVALID_ARGUMENT);
    refused(pkv_request_open(manager, &good, NULL), PKV_ERROR_INVALID_ARGUMENT);
}

static void open_beyond_a_maximum_says_which(void **state) {
    pkv_request_args args = {
        .struct_size = sizeof args, .token_ids = tokens, .num_tokens = 10, .max_num_tokens = 100};
    pkv_request request;

    (void)state;
    make_manager_in_use();
    args.media = adjacent_media;
    args.num_media = 3;
    refused(pkv_request_open(manager, &args, &request), PKV_ERROR_LIMIT);
    assert_non_null(strstr(pkv_manager_last_error(manager), "max_media_per_request"));
    args.num_media = 2;
    assert_int_equal(pkv_request_open(manager, &args, &request), PKV_OK);

    /* 200 of 300 tokens are reserved. */
    args.max_num_tokens = 100;
    assert_int_equal(pkv_request_open(manager, &args, &request), PKV_OK);
    before = remember_state(manager, &running, 1);
    args.max_num_tokens = 10;
    refused(pkv_request_open(manager, &args, &request), PKV_ERROR_LIMIT);
    assert_non_null(strstr(pkv_manager_last_error(manager), "max_total_tokens"));
    assert_int_equal(pkv_request_close(manager, request), PKV_OK);
    assert_int_equal(pkv_request_open(manager, &args, &request), PKV_OK);
    assert_int_equal(pkv_request_open(manager, &args, &request), PKV_OK);
    before = remember_state(manager, &running, 1);
    refused(pkv_request_open(manager, &args, &request), PKV_ERROR_LIMIT);
    assert_non_null(strstr(pkv_manager_last_error(manager), "max_requests"));
}

static void reserved_tokens_come_back_whatever_their_order(void **state) {
    pkv_request_args args = {.struct_size = sizeof args, .token_ids = tokens, .num_tokens = 1};
    pkv_request opened[3];

    (void)state;
    make_manager_in_use();
    /* 200 tokens beside the running request, cut into ever other sizes. */
    for (int32_t first = 1; first < 100; first++) {
        const int32_t sizes[3] = {first, 100 - first, 100};
        int32_t closed = first % 3;

        for (int32_t i = 0; i < 3; i++) {
            args.max_num_tokens = sizes[i];
            assert_int_equal(pkv_request_open(manager, &args, &opened[i]), PKV_OK);
        }
        assert_int_equal(pkv_request_close(manager, opened[closed]), PKV_OK);
        args.max_num_tokens = sizes[closed];
        assert_int_equal(pkv_request_open(manager, &args, &opened[closed]), PKV_OK);
        for (int32_t i = 0; i < 3; i++) {
            assert_int_equal(pkv_request_close(manager, opened[i]), PKV_OK);
        }
    }
}

/* ---- tokens and keys ------------------------------------------------------------------------- */

static void append_bad_arguments(void **state) {
    const pkv_block_key key = {1, 1, 1};

    (void)state;
    make_manager_in_use();
    refused(pkv_request_append(manager, running, NULL, 1), PKV_ERROR_INVALID_ARGUMENT);
    refused(pkv_request_append(manager, running, tokens, 0), PKV_ERROR_INVALID_ARGUMENT);
    refused(pkv_request_append(manager, running, tokens, -1), PKV_ERROR_INVALID_ARGUMENT);
    refused(pkv_request_append(manager, running, tokens, 46), PKV_ERROR_LIMIT);
    assert_non_null(strstr(pkv_manager_last_error(manager), "max_num_tokens"));
    refused(pkv_request_append(manager, running, tokens, INT_MAX), PKV_ERROR_LIMIT);
    refused(pkv_request_append_keys(manager, running, &key, 1), PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_request_append(manager, running, tokens, 45), PKV_OK);
    before = remember_state(manager, &running, 1);
    refused(pkv_request_append(manager, running, tokens, 1), PKV_ERROR_LIMIT);
}

static void append_keys_bad_arguments(void **state) {
    const pkv_request_args args = {.has_caller_keys = true};
    const pkv_block_key keys[4] = {{1, 1, 1}, {2, 2, 2}, {3, 3, 3}, {4, 4, 4}};

    (void)state;
    make_manager_in_use();
    assert_int_equal(pkv_request_close(manager, running), PKV_OK);
    running = open_prompt_as(manager, &args, COMMON " 7*3");
    before = remember_state(manager, &running, 1);
    refused(pkv_request_append_keys(manager, running, keys, 4), PKV_ERROR_INVALID_ARGUMENT);
    refused(pkv_request_append_keys(manager, running, keys, -1), PKV_ERROR_INVALID_ARGUMENT);
    refused(pkv_request_append_keys(manager, running, NULL, 1), PKV_ERROR_INVALID_ARGUMENT);
    refused(pkv_request_append_keys(manager, running, keys, INT_MAX), PKV_ERROR_INVALID_ARGUMENT);
}

static void read_beyond_tokens_or_keys(void **state) {
    int32_t token_ids[64];
    pkv_block_key keys[4];
    const struct {
        int32_t first, count;
    } bad_tokens[] = {{-1, 1}, {0, 56}, {55, 1}, {56, 0}, {0, -1}, {INT_MAX, INT_MAX}};
    const struct {
        int32_t first, count;
    } bad_keys[] = {{-1, 1}, {0, 4}, {3, 1}, {4, 0}, {0, -1}, {INT_MAX, INT_MAX}};

    (void)state;
    make_manager_in_use();
    for (size_t i = 0; i < 6; i++) {
        refused(pkv_request_get_tokens(manager, running, bad_tokens[i].first, bad_tokens[i].count,
                                       token_ids),
                PKV_ERROR_INVALID_ARGUMENT);
        refused(pkv_request_get_keys(manager, running, bad_keys[i].first, bad_keys[i].count, keys),
                PKV_ERROR_INVALID_ARGUMENT);
    }
    refused(pkv_request_get_tokens(manager, running, 0, 1, NULL), PKV_ERROR_INVALID_ARGUMENT);
    refused(pkv_request_get_keys(manager, running, 0, 1, NULL), PKV_ERROR_INVALID_ARGUMENT);
    refused(pkv_request_get_info(manager, running, NULL), PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_request_get_tokens(manager, running, 55, 0, NULL), PKV_OK);
}

/* ---- configuration --------------------------------------------------------------------------- */

static void remember_text(void *context, int level, const char *message) {
    assert_int_equal(level, PKV_LOG_ERROR);
    *(const char **)context = message;
}

static void *refuse_memory(void *context, size_t size, size_t alignment) {
    (void)size;
    (void)alignment;
    ++*(int32_t *)context;
    return NULL;
}

static void release_nothing(void *context, void *memory, size_t size) {
    (void)context;
    (void)memory;
    (void)size;
}

static const pkv_group_config good_groups[] = {
    {.struct_size = sizeof(pkv_group_config)},
    {.struct_size = sizeof(pkv_group_config), .kind = PKV_GROUP_SLIDING_WINDOW, .window = 32}};

static void config_out_of_range(void **state) {
    const pkv_manager_config cases[] = {
        {.num_blocks = 0, .max_model_len = 64},
        {.num_blocks = -5, .max_model_len = 64},
        {.num_blocks = PKV_MAX_BLOCKS + 1, .max_model_len = 64},
        {.num_blocks = 5, .max_model_len = 0},
        {.num_blocks = 5, .max_model_len = -1},
        {.num_blocks = 5, .max_model_len = 64, .block_size = -16},
        {.num_blocks = 5, .max_model_len = 64, .num_groups = -1},
        {.num_blocks = 5, .max_model_len = 64, .num_groups = 2},
        {.num_blocks = 5, .max_model_len = 64, .num_groups = 256, .groups = good_groups},
        {.num_blocks = 5, .max_model_len = 64, .max_rows = -1},
        {.num_blocks = 5, .max_model_len = 64, .max_rows = 8, .max_requests = 7},
        {.num_blocks = 5, .max_model_len = 64, .max_requests = -1},
        {.num_blocks = 5, .max_model_len = 64, .max_held_rows = -1},
        {.num_blocks = 5, .max_model_len = 64, .max_blocks_per_request = -1},
        {.num_blocks = 5, .max_model_len = 64, .max_in_flight_tokens = -1},
        {.num_blocks = 5, .max_model_len = 64, .max_total_tokens = -1},
        {.num_blocks = 5, .max_model_len = 64, .max_total_tokens = INT64_MAX},
        {.num_blocks = 5, .max_model_len = 64, .max_media_per_request = -1},
        {.num_blocks = 5, .max_model_len = 64, .event_capacity = -1},
        {.num_blocks = 5, .max_model_len = 64, .allocator = {.allocate = refuse_memory}},
        {.num_blocks = 5, .max_model_len = 64, .allocator = {.release = release_nothing}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pkv_manager_config config = cases[i];
        const char *reason = "";
        const char *logged = "";
        pkv_manager *made = (pkv_manager *)&config;

        config.struct_size = sizeof config;
        config.log = remember_text;
        config.log_context = (void *)&logged;
        if (pkv_manager_config_check(&config, &reason) != PKV_ERROR_INVALID_ARGUMENT) {
            fail_msg("case %zu is accepted", i);
        }
        assert_true(reason[0] != '\0');
        assert_int_equal(pkv_manager_size(&config), 0);
        assert_int_equal(pkv_manager_create(&config, &made), PKV_ERROR_INVALID_ARGUMENT);
        assert_null(made);
        assert_string_equal(logged, reason);
        if (config.min_partial_tokens == 0) { /* a caller whose header does not have it */
            logged = "";
            config.struct_size = (uint32_t)offsetof(pkv_manager_config, min_partial_tokens);
            assert_int_equal(pkv_manager_create(&config, &made), PKV_ERROR_INVALID_ARGUMENT);
            assert_string_equal(logged, reason);
        }
    }
    assert_int_equal(pkv_manager_config_check(NULL, NULL), PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_manager_create(&cases[0], NULL), PKV_ERROR_INVALID_ARGUMENT);
}

static void config_groups_that_make_no_sense(void **state) {
    const pkv_group_config cases[] = {
        {.kind = PKV_GROUP_FULL_ATTENTION, .window = 32},
        {.kind = PKV_GROUP_FULL_ATTENTION, .block_size = -1},
        {.kind = PKV_GROUP_SLIDING_WINDOW},
        {.kind = PKV_GROUP_SLIDING_WINDOW, .window = -1},
        {.kind = PKV_GROUP_SLIDING_WINDOW, .window = INT_MIN},
        {.kind = PKV_GROUP_CHUNKED_LOCAL},
        {.kind = PKV_GROUP_CHUNKED_LOCAL, .window = 32, .eagle = true},
        {.kind = (pkv_group_kind)4, .window = 32},
        {.kind = (pkv_group_kind)1000},
        /* The least common multiple with 16 and 65,521 does not fit into 32 bits. */
        {.kind = PKV_GROUP_FULL_ATTENTION, .block_size = 65519},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pkv_group_config groups[] = {full_group(16), cases[i], full_group(65521)};
        pkv_manager_config config = small_config(11, 16);
        const char *reason = "";

        groups[1].struct_size = sizeof groups[1];
        config.groups = groups;
        config.num_groups = 3;
        if (pkv_manager_config_check(&config, &reason) != PKV_ERROR_INVALID_ARGUMENT) {
            fail_msg("case %zu is accepted", i);
        }
        assert_true(reason[0] != '\0');
    }
}

static void config_windows_as_wide_as_can_be_do_not_overflow(void **state) {
    const pkv_group_config groups[] = {window_group(16, INT_MAX), chunked_group(16, INT_MAX)};
    pkv_manager_config config = small_config(41, 16);

    (void)state;
    config.groups = groups;
    config.num_groups = 2;
    config.max_in_flight_tokens = INT_MAX;
    manager = make_manager(&config);
    running = open_prompt(manager, "0..54");
    {
        pkv_slots_args args = slots_of(0, 55);

        args.full_sequence_must_fit = true;
        assert_int_equal(pkv_allocate_slots(manager, running, &args, NULL), PKV_OK);
    }
    assert_int_equal(pkv_remove_skipped_blocks(manager, running, 55), PKV_OK);
    assert_string_equal(table_text(manager, running, 0), "1 2 3 4");
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..54")), 48);
}

static void create_without_memory_is_out_of_memory(void **state) {
    int32_t num_calls = 0;
    pkv_manager_config config = {.struct_size = sizeof config,
                                 .num_blocks = 10,
                                 .max_model_len = 64,
                                 .allocator = {refuse_memory, release_nothing, &num_calls}};
    pkv_manager *made = (pkv_manager *)&config;

    (void)state;
    assert_int_equal(pkv_manager_create(&config, &made), PKV_ERROR_OUT_OF_MEMORY);
    assert_null(made);
    assert_int_equal(num_calls, 1);

    /* The largest of everything is refused for its size, without an overflow on the way. */
    config.num_blocks = PKV_MAX_BLOCKS;
    config.block_size = INT_MAX;
    config.store_tokens = true;
    config.max_model_len = INT_MAX;
    config.max_rows = PKV_MAX_REF_CNT / 4;
    config.max_requests = INT_MAX;
    config.max_blocks_per_request = INT_MAX;
    config.max_media_per_request = INT_MAX;
    assert_true(pkv_manager_create(&config, &made) < PKV_OK);
    assert_null(made);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        fixture_test(handle_that_was_never_given_is_stale),
        fixture_test(handle_that_was_closed_stays_stale),
        fixture_test(handle_of_another_manager_is_stale),
        fixture_test(null_manager_is_invalid_everywhere),
        fixture_test(last_error_is_empty_until_a_call_fails),
        fixture_test(open_bad_arguments),
        fixture_test(open_beyond_a_maximum_says_which),
        fixture_test(reserved_tokens_come_back_whatever_their_order),
        fixture_test(append_bad_arguments),
        fixture_test(append_keys_bad_arguments),
        fixture_test(read_beyond_tokens_or_keys),
        fixture_test(config_out_of_range),
        fixture_test(config_groups_that_make_no_sense),
        fixture_test(config_windows_as_wide_as_can_be_do_not_overflow),
        fixture_test(create_without_memory_is_out_of_memory),
    };

    return cmocka_run_group_tests_name("errors of requests", tests, NULL, NULL);
}
