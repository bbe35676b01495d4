/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Goal: what every caller relies on before it calls anything else: names, version, features, the
 * rules of struct_size, and the defaults of the configuration. Method: callers of an older and of a
 * later version are played by structs that are cut or lengthened. */
#include "support/fixture.h"

#include <stdlib.h>
#include <string.h>

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/* ---- names, version, features ---------------------------------------------------------------- */

static void status_name_is_the_constant_without_its_prefix(void **state) {
    const struct {
        pkv_status status;
        const char *name;
    } cases[] = {
        {PKV_OK, "OK"},
        {PKV_NO_FREE_BLOCKS, "NO_FREE_BLOCKS"},
        {PKV_NOT_FOUND, "NOT_FOUND"},
        {PKV_IN_PROGRESS, "IN_PROGRESS"},
        {PKV_MORE, "MORE"},
        {PKV_NEVER_FITS, "NEVER_FITS"},
        {PKV_NO_FREE_ROWS, "NO_FREE_ROWS"},
        {PKV_ERROR_INVALID_ARGUMENT, "ERROR_INVALID_ARGUMENT"},
        {PKV_ERROR_STALE_HANDLE, "ERROR_STALE_HANDLE"},
        {PKV_ERROR_OUT_OF_MEMORY, "ERROR_OUT_OF_MEMORY"},
        {PKV_ERROR_LIMIT, "ERROR_LIMIT"},
        {PKV_ERROR_UNSUPPORTED, "ERROR_UNSUPPORTED"},
        {PKV_ERROR_BUSY, "ERROR_BUSY"},
        {PKV_ERROR_DEVICE, "ERROR_DEVICE"},
        {PKV_ERROR_IO, "ERROR_IO"},
        {PKV_ERROR_CORRUPT, "ERROR_CORRUPT"},
        {(pkv_status)7, "UNKNOWN"},
        {(pkv_status)-10, "UNKNOWN"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        assert_string_equal(pkv_status_name(cases[i].status), cases[i].name);
    }
}

static void status_values_are_what_the_abi_says(void **state) {
    (void)state;
    assert_int_equal(PKV_OK, 0);
    assert_int_equal(PKV_NO_FREE_ROWS, 6);
    assert_int_equal(PKV_ERROR_INVALID_ARGUMENT, -1);
    assert_int_equal(PKV_ERROR_CORRUPT, -9);
}

static void version_is_that_of_the_header(void **state) {
    (void)state;
    assert_int_equal(pkv_version(), PKV_VERSION);
    assert_int_equal(PKV_VERSION,
                     PKV_VERSION_MAJOR * 10000 + PKV_VERSION_MINOR * 100 + PKV_VERSION_PATCH);
}

static void features_of_the_control_tower_are_there(void **state) {
    (void)state;
    assert_true(pkv_has_feature(PKV_FEATURE_FULL_ATTENTION_GROUPS));
    assert_true(pkv_has_feature(PKV_FEATURE_SLIDING_WINDOW_GROUPS));
    assert_true(pkv_has_feature(PKV_FEATURE_CHUNKED_LOCAL_GROUPS));
    assert_true(pkv_has_feature(PKV_FEATURE_PREFIX_CACHE));
    assert_true(pkv_has_feature(PKV_FEATURE_STEP_UNDO));
    assert_true(pkv_has_feature(PKV_FEATURE_FORK));
    assert_true(pkv_has_feature(PKV_FEATURE_TRUNCATE));
    assert_true(pkv_has_feature(PKV_FEATURE_SWAP));
    assert_true(pkv_has_feature(PKV_FEATURE_PARTIAL_HITS));
}

static void features_that_are_refused_are_not_claimed(void **state) {
    (void)state;
    assert_false(pkv_has_feature(PKV_FEATURE_RECURRENT_GROUPS));
    assert_false(pkv_has_feature(PKV_FEATURE_POSITION_SHIFT));
    assert_false(pkv_has_feature(PKV_FEATURE_COMPACTION));
    assert_false(pkv_has_feature((pkv_feature)0));
    assert_false(pkv_has_feature((pkv_feature)1000));
    assert_false(pkv_has_feature((pkv_feature)-1));
}

static void recurrent_group_is_refused_at_create(void **state) {
    const pkv_group_config groups[] = {
        full_group(16), {.struct_size = sizeof groups[0], .kind = PKV_GROUP_RECURRENT}};
    pkv_manager_config config = small_config(21, 16);
    pkv_manager *manager = NULL;
    const char *reason = "";

    (void)state;
    config.groups = groups;
    config.num_groups = 2;
    assert_int_equal(pkv_manager_config_check(&config, &reason), PKV_ERROR_UNSUPPORTED);
    assert_non_null(strstr(reason, "recurrent"));
    assert_int_equal(pkv_manager_create(&config, &manager), PKV_ERROR_UNSUPPORTED);
    assert_null(manager);
    assert_int_equal(pkv_manager_size(&config), 0);
}

/* ---- struct_size: what the caller gives ------------------------------------------------------ */

/* One library call on a struct of the caller, whose first member is its struct_size. */
typedef pkv_status (*input_call)(void *input);

static pkv_manager *input_manager;
static pkv_request input_request;

static pkv_status call_pool_config(void *input) {
    return pkv_pool_config_check(input, NULL);
}

static pkv_status call_manager_config(void *input) {
    return pkv_manager_config_check(input, NULL);
}

static pkv_status call_group_config(void *input) {
    pkv_manager_config config = small_config(21, 16);

    config.num_groups = 1;
    config.groups = input;
    return pkv_manager_config_check(&config, NULL);
}

static pkv_status call_key_args(void *input) {
    const int32_t token_ids[16] = {0};
    pkv_block_key key;

    return pkv_compute_block_keys(input, NULL, 0, token_ids, 16, &key, NULL);
}

static pkv_status call_request_args(void *input) {
    pkv_request request;
    pkv_status status = pkv_request_open(input_manager, input, &request);

    if (status == PKV_OK) {
        end_request(input_manager, request);
    }
    return status;
}

static pkv_status call_slots_args(void *input) {
    pkv_status status = pkv_allocate_slots(input_manager, input_request, input, NULL);

    assert_int_equal(pkv_free(input_manager, input_request), PKV_OK);
    return status;
}

static pkv_status call_memory_args(void *input) {
    pkv_memory_plan plan = {.struct_size = sizeof plan};

    return pkv_plan_memory(input, &plan);
}

static pkv_status call_prometheus(void *input) {
    char text[8192];
    size_t size;

    return pkv_format_prometheus(input, NULL, text, sizeof text, &size);
}

static const int32_t input_token = 7;
static const uint64_t input_block_bytes = 1;

static const pkv_pool_config good_pool_config = {.num_blocks = 5};
static const pkv_manager_config good_manager_config = {.num_blocks = 5, .max_model_len = 64};
static const pkv_group_config good_group_config = {.kind = PKV_GROUP_SLIDING_WINDOW, .window = 9};
static const pkv_key_args good_key_args = {.block_size = 16};
static const pkv_request_args good_request_args = {.token_ids = &input_token, .num_tokens = 1};
static const pkv_slots_args good_slots_args = {.num_new_tokens = 1};
static const pkv_memory_args good_memory_args = {.total_bytes = 100,
                                                 .block_bytes = &input_block_bytes};
static const pkv_stats good_stats = {.num_blocks = 1};

/* `least_size` is where an older version of the struct could have ended and still say enough. */
static const struct {
    const char *name;
    input_call call;
    const void *good;
    size_t size, least_size;
} inputs[] = {
    {"pool config", call_pool_config, &good_pool_config, sizeof(pkv_pool_config),
     offsetof(pkv_pool_config, num_groups)},
    {"manager config", call_manager_config, &good_manager_config, sizeof(pkv_manager_config),
     offsetof(pkv_manager_config, block_size)},
    {"group config", call_group_config, &good_group_config, sizeof(pkv_group_config),
     offsetof(pkv_group_config, eagle)},
    {"key args", call_key_args, &good_key_args, sizeof(pkv_key_args),
     offsetof(pkv_key_args, hash_seed)},
    {"request args", call_request_args, &good_request_args, sizeof(pkv_request_args),
     offsetof(pkv_request_args, max_num_tokens)},
    {"slots args", call_slots_args, &good_slots_args, sizeof(pkv_slots_args),
     offsetof(pkv_slots_args, num_new_computed_tokens)},
    {"memory args", call_memory_args, &good_memory_args, sizeof(pkv_memory_args),
     offsetof(pkv_memory_args, max_model_len)},
    {"stats", call_prometheus, &good_stats, sizeof(pkv_stats),
     offsetof(pkv_stats, num_free_blocks)},
};

/* Call number `index` with the first `filled` bytes good, all others `tail`, and this
 * struct_size. */
static pkv_status call_input(size_t index, size_t filled, int tail, size_t struct_size) {
    uint64_t storage[64];
    uint32_t size = (uint32_t)struct_size;

    assert_true(struct_size <= sizeof storage && inputs[index].size <= sizeof storage);
    memset(storage, tail, sizeof storage);
    memcpy(storage, inputs[index].good, filled);
    memcpy(storage, &size, sizeof size);
    return inputs[index].call(storage);
}

static void make_input_manager(void) {
    input_manager = make_small_manager(11, 16);
    input_request = open_prompt(input_manager, "1 2 3");
}

static void struct_size_of_this_version_is_accepted(void **state) {
    (void)state;
    make_input_manager();
    for (size_t i = 0; i < COUNT_OF(inputs); i++) {
        if (call_input(i, inputs[i].size, 0xa5, inputs[i].size) != PKV_OK) {
            fail_msg("%s", inputs[i].name);
        }
    }
}

static void struct_size_of_an_older_caller_reads_as_zero_beyond(void **state) {
    (void)state;
    make_input_manager();
    for (size_t i = 0; i < COUNT_OF(inputs); i++) {
        if (call_input(i, inputs[i].least_size, 0xa5, inputs[i].least_size) != PKV_OK) {
            fail_msg("%s", inputs[i].name);
        }
    }
}

static void struct_size_of_a_later_caller_is_accepted_while_its_fields_are_zero(void **state) {
    (void)state;
    make_input_manager();
    for (size_t i = 0; i < COUNT_OF(inputs); i++) {
        if (call_input(i, inputs[i].size, 0, inputs[i].size + 24) != PKV_OK) {
            fail_msg("%s", inputs[i].name);
        }
    }
}

static void struct_size_of_a_later_caller_with_a_field_set_is_unsupported(void **state) {
    (void)state;
    make_input_manager();
    for (size_t i = 0; i < COUNT_OF(inputs); i++) {
        if (call_input(i, inputs[i].size, 1, inputs[i].size + 24) != PKV_ERROR_UNSUPPORTED ||
            call_input(i, inputs[i].size, 1, inputs[i].size + 1) != PKV_ERROR_UNSUPPORTED) {
            fail_msg("%s", inputs[i].name);
        }
    }
    assert_string_equal(keyed_text(input_manager), "");
    assert_int_equal(num_free_blocks(input_manager), 10);
}

static void struct_size_that_was_not_set_is_invalid(void **state) {
    (void)state;
    make_input_manager();
    for (size_t i = 0; i < COUNT_OF(inputs); i++) {
        for (size_t size = 0; size < 4; size++) {
            if (call_input(i, inputs[i].size, 0, size) != PKV_ERROR_INVALID_ARGUMENT) {
                fail_msg("%s", inputs[i].name);
            }
        }
    }
}

static void struct_size_is_the_stride_of_an_array_of_groups(void **state) {
    typedef struct later_group {
        pkv_group_config known;
        uint64_t unknown;
    } later_group;
    later_group groups[] = {{full_group(16), 0}, {window_group(16, 32), 0}};
    pkv_manager_config config = small_config(21, 16);

    (void)state;
    config.num_groups = 2;
    config.groups = &groups[0].known;
    for (size_t i = 0; i < 2; i++) {
        groups[i].known.struct_size = sizeof groups[0];
    }
    assert_int_equal(pkv_manager_config_check(&config, NULL), PKV_OK);
    {
        pkv_manager *manager = make_manager(&config);
        pkv_request request = open_prompt(manager, "0..79");

        assert_int_equal(allocate(manager, request, 0, 80), PKV_OK);
        assert_int_equal(pkv_remove_skipped_blocks(manager, request, 80), PKV_OK);
        assert_string_equal(table_text(manager, request, 0), "1 2 3 4 5");
        assert_string_equal(table_text(manager, request, 1), "0 0 0 9 10");
    }
    groups[1].unknown = 1;
    assert_int_equal(pkv_manager_config_check(&config, NULL), PKV_ERROR_UNSUPPORTED);
    groups[1].unknown = 0;
    groups[1].known.struct_size = sizeof(pkv_group_config);
    assert_int_equal(pkv_manager_config_check(&config, NULL), PKV_ERROR_INVALID_ARGUMENT);
}

/* ---- struct_size: what the library writes ---------------------------------------------------- */

typedef pkv_status (*output_call)(void *output);

static pkv_status write_stats(void *output) {
    return pkv_get_stats(input_manager, output);
}

static pkv_status write_pool_stats(void *output) {
    return pkv_pool_get_stats(pkv_manager_get_pool(input_manager), output);
}

static pkv_status write_block_info(void *output) {
    return pkv_pool_get_block(pkv_manager_get_pool(input_manager), 1, output);
}

static pkv_status write_request_info(void *output) {
    return pkv_request_get_info(input_manager, input_request, output);
}

static pkv_status write_slots(void *output) {
    pkv_slots_args args = slots_of(0, 3);
    pkv_status status = pkv_allocate_slots(input_manager, input_request, &args, output);

    assert_int_equal(pkv_free(input_manager, input_request), PKV_OK);
    return status;
}

static pkv_status write_memory_plan(void *output) {
    pkv_memory_args args = good_memory_args;

    args.struct_size = sizeof args;
    return pkv_plan_memory(&args, output);
}

static const struct {
    const char *name;
    output_call call;
    size_t size;
} outputs[] = {
    {"stats", write_stats, sizeof(pkv_stats)},
    {"pool stats", write_pool_stats, sizeof(pkv_pool_stats)},
    {"block info", write_block_info, sizeof(pkv_block_info)},
    {"request info", write_request_info, sizeof(pkv_request_info)},
    {"slots", write_slots, sizeof(pkv_slots)},
    {"memory plan", write_memory_plan, sizeof(pkv_memory_plan)},
};

static void struct_size_bounds_what_is_written(void **state) {
    (void)state;
    make_input_manager();
    for (size_t i = 0; i < COUNT_OF(outputs); i++) {
        /* An older, the present, and a later version of the struct. */
        const size_t sizes[] = {8, outputs[i].size, outputs[i].size + 16};

        for (size_t k = 0; k < COUNT_OF(sizes); k++) {
            uint64_t storage[64];
            const unsigned char *bytes = (const unsigned char *)storage;
            uint32_t size = (uint32_t)sizes[k];
            size_t known = sizes[k] < outputs[i].size ? sizes[k] : outputs[i].size;

            memset(storage, 0x5a, sizeof storage);
            memcpy(storage, &size, sizeof size);
            assert_int_equal(outputs[i].call(storage), PKV_OK);
            assert_memory_equal(storage, &size, sizeof size);
            for (size_t at = known; at < sizeof storage; at++) {
                if (bytes[at] != 0x5a) {
                    fail_msg("%s wrote byte %zu of %zu", outputs[i].name, at, known);
                }
            }
        }
    }
}

static void struct_size_of_an_output_that_was_not_set_is_invalid(void **state) {
    (void)state;
    make_input_manager();
    for (size_t i = 0; i < COUNT_OF(outputs); i++) {
        uint64_t storage[64] = {0};

        assert_int_equal(outputs[i].call(storage), PKV_ERROR_INVALID_ARGUMENT);
    }
    assert_int_equal(num_free_blocks(input_manager), 10);
}

/* ---- defaults -------------------------------------------------------------------------------- */

static void defaults_have_the_documented_values(void **state) {
    (void)state;
    assert_int_equal(PKV_DEFAULT_BLOCK_SIZE, 16);
    assert_int_equal(PKV_DEFAULT_MAX_ROWS, 256);
    assert_int_equal(PKV_DEFAULT_REQUESTS_PER_ROW, 4);
    assert_int_equal(PKV_DEFAULT_TOKENS_PER_SLOT, 4);
    assert_int_equal(PKV_DEFAULT_MAX_MEDIA_PER_REQUEST, 16);
    assert_true(PKV_DEFAULT_UTILISATION > 0.9199 && PKV_DEFAULT_UTILISATION < 0.9201);
    assert_int_equal(PKV_RETENTION_DENSE, 0);
}

static void defaults_of_a_manager_are_what_an_engine_expects(void **state) {
    const pkv_manager_config config = {
        .struct_size = sizeof config, .num_blocks = 601, .max_model_len = 64};
    pkv_manager *manager = make_manager(&config);
    pkv_request requests[257];
    const pkv_request_args one_token = {.max_num_tokens = 1};

    (void)state;
    /* Block size 16, prefix cache on, one full-attention group, 256 rows, 1,024 requests. */
    for (int32_t i = 0; i < 257; i++) {
        requests[i] = open_prompt_as(manager, &one_token, "%d", i);
        assert_int_equal(allocate(manager, requests[i], 0, 1), i < 256 ? PKV_OK : PKV_NO_FREE_ROWS);
    }
    for (int32_t i = 257; i < 1024; i++) {
        (void)open_prompt_as(manager, &one_token, "%d", i);
    }
    {
        const pkv_request_args args = {.struct_size = sizeof args,
                                       .token_ids = &input_token,
                                       .num_tokens = 1,
                                       .max_num_tokens = 1};
        pkv_request request;

        assert_int_equal(pkv_request_open(manager, &args, &request), PKV_ERROR_LIMIT);
        assert_non_null(strstr(pkv_manager_last_error(manager), "max_requests"));
    }
    for (int32_t i = 0; i < 256; i++) {
        end_request(manager, requests[i]);
    }
    admit(manager, open_prompt(manager, "0..39"));
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..39")), 32);
}

static void default_of_total_tokens_is_four_times_the_slots(void **state) {
    const pkv_manager_config config = {
        .struct_size = sizeof config, .num_blocks = 10, .max_model_len = 64};
    pkv_manager *manager = make_manager(&config);
    const pkv_request_args args = {
        .struct_size = sizeof args, .token_ids = &input_token, .num_tokens = 1};
    pkv_request request;

    (void)state;
    for (int32_t i = 0; i < 10; i++) {
        assert_int_equal(pkv_request_open(manager, &args, &request), PKV_OK);
        assert_int_equal(info_of(manager, request).max_num_tokens, 64);
    }
    assert_int_equal(pkv_request_open(manager, &args, &request), PKV_ERROR_LIMIT);
    assert_non_null(strstr(pkv_manager_last_error(manager), "max_total_tokens"));
}

static void default_of_total_tokens_is_at_least_one_sequence(void **state) {
    const pkv_manager_config config = {
        .struct_size = sizeof config, .num_blocks = 2, .max_model_len = 5000};
    pkv_manager *manager = make_manager(&config);

    (void)state;
    (void)open_prompt(manager, "0..4999");
}

static void init_in_the_callers_memory_needs_exactly_the_size(void **state) {
    const pkv_group_config groups[] = {full_group(16), window_group(8, 64)};
    pkv_manager_config config = small_config(21, 16);
    pkv_manager *manager = NULL;
    unsigned char *memory;
    size_t size;

    (void)state;
    config.groups = groups;
    config.num_groups = 2;
    config.store_tokens = true;
    config.event_capacity = 16;
    size = pkv_manager_size(&config);
    assert_true(size > 0);
    memory = aligned_alloc(64, (size + 127) / 64 * 64);
    assert_non_null(memory);
    memory[size] = 0x5a;
    assert_int_equal(pkv_manager_init(&config, memory, size - 1, &manager),
                     PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_manager_init(&config, memory + 8, size, &manager),
                     PKV_ERROR_INVALID_ARGUMENT);
    assert_null(manager);
    assert_int_equal(pkv_manager_init(&config, memory, size, &manager), PKV_OK);
    admit(manager, open_prompt(manager, "0..99"));
    assert_int_equal(pkv_manager_check(manager), PKV_OK);
    pkv_manager_destroy(manager);
    assert_int_equal(memory[size], 0x5a);
    free(memory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        fixture_test(status_name_is_the_constant_without_its_prefix),
        fixture_test(status_values_are_what_the_abi_says),
        fixture_test(version_is_that_of_the_header),
        fixture_test(features_of_the_control_tower_are_there),
        fixture_test(features_that_are_refused_are_not_claimed),
        fixture_test(recurrent_group_is_refused_at_create),
        fixture_test(struct_size_of_this_version_is_accepted),
        fixture_test(struct_size_of_an_older_caller_reads_as_zero_beyond),
        fixture_test(struct_size_of_a_later_caller_is_accepted_while_its_fields_are_zero),
        fixture_test(struct_size_of_a_later_caller_with_a_field_set_is_unsupported),
        fixture_test(struct_size_that_was_not_set_is_invalid),
        fixture_test(struct_size_is_the_stride_of_an_array_of_groups),
        fixture_test(struct_size_bounds_what_is_written),
        fixture_test(struct_size_of_an_output_that_was_not_set_is_invalid),
        fixture_test(defaults_have_the_documented_values),
        fixture_test(defaults_of_a_manager_are_what_an_engine_expects),
        fixture_test(default_of_total_tokens_is_four_times_the_slots),
        fixture_test(default_of_total_tokens_is_at_least_one_sequence),
        fixture_test(init_in_the_callers_memory_needs_exactly_the_size),
    };

    return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}
