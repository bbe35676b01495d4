/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Goal: the number of blocks for a device, and the longest sequence that they hold, are the numbers
 * that an engineer would compute on paper. Method: the paper is in the comments. */
#include "support/fixture.h"

#define GIB (UINT64_C(1) << 30)
#define MIB (UINT64_C(1) << 20)

/* An accelerator of 80 GiB with Llama 3.1 8B on it: 16 GiB of weights, 2 of activations, 1 of
 * others. A token is 2 (K, V) * 32 layers * 8 heads * 128 * 2 bytes = 128 KiB, a block of 16 tokens
 * 2 MiB. */
static const uint64_t llama_block = 2 * MIB;

static pkv_memory_args llama_args(void) {
    return (pkv_memory_args){
        .struct_size = sizeof(pkv_memory_args),
        .total_bytes = 80 * GIB,
        .used_bytes = 1 * GIB,
        .weight_bytes = 16 * GIB,
        .peak_activation_bytes = 2 * GIB,
        .block_bytes = &llama_block,
    };
}

static pkv_memory_plan make_plan(void) {
    return (pkv_memory_plan){.struct_size = sizeof(pkv_memory_plan)};
}

static void plan_of_80_gib_and_llama_8b(void **state) {
    pkv_memory_args args = llama_args();
    pkv_memory_plan plan = make_plan();

    (void)state;
    /* 0.92 * 85,899,345,920 = 79,027,398,246; less 19 GiB = 58,626,303,590; / 2 MiB = 27,955. */
    assert_int_equal(pkv_plan_memory(&args, &plan), PKV_OK);
    assert_int_equal(plan.available_bytes, UINT64_C(58626303590));
    assert_int_equal(plan.block_bytes, 2 * MIB);
    assert_int_equal(plan.num_blocks, 27955);
    assert_int_equal(plan.max_model_len, 27954 * 16);
    assert_int_equal(plan.missing_bytes, 0);

    args.max_model_len = 131072;
    assert_int_equal(pkv_plan_memory(&args, &plan), PKV_OK);
    assert_int_equal(plan.num_blocks, 27955);
    args.max_model_len = 27954 * 16;
    assert_int_equal(pkv_plan_memory(&args, &plan), PKV_OK);
}

static void plan_of_another_utilisation_and_block_size(void **state) {
    const uint64_t large_block = 8 * MIB;
    pkv_memory_args args = llama_args();
    pkv_memory_plan plan = make_plan();

    (void)state;
    /* 40 GiB less 19 = 21 GiB = 2,688 blocks of 64 tokens. */
    args.utilisation = 0.5;
    args.block_size = 64;
    args.block_bytes = &large_block;
    assert_int_equal(pkv_plan_memory(&args, &plan), PKV_OK);
    assert_int_equal(plan.available_bytes, 21 * GIB);
    assert_int_equal(plan.num_blocks, 2688);
    assert_int_equal(plan.max_model_len, 2687 * 64);
    args.utilisation = 1.0;
    assert_int_equal(pkv_plan_memory(&args, &plan), PKV_OK);
    assert_int_equal(plan.available_bytes, 61 * GIB);
}

static void plan_of_a_length_that_does_not_fit_tells_what_does_and_what_is_missing(void **state) {
    pkv_memory_args args = llama_args();
    pkv_memory_plan plan = make_plan();

    (void)state;
    /* 500,000 tokens are 31,250 blocks, with the null block 31,251 * 2 MiB = 65,538,097,152. */
    args.max_model_len = 500000;
    assert_int_equal(pkv_plan_memory(&args, &plan), PKV_NEVER_FITS);
    assert_int_equal(plan.num_blocks, 27955);
    assert_int_equal(plan.max_model_len, 447264);
    assert_int_equal(plan.missing_bytes, UINT64_C(65538097152) - UINT64_C(58626303590));

    args.max_model_len = 447265;
    assert_int_equal(pkv_plan_memory(&args, &plan), PKV_NEVER_FITS);
}

static void plan_where_nothing_is_left_never_fits(void **state) {
    pkv_memory_args args = llama_args();
    pkv_memory_plan plan = make_plan();

    (void)state;
    /* The weights alone pass the budget by 80 GiB - 79,027,398,246; two blocks more would do. */
    args.weight_bytes = 80 * GIB;
    args.used_bytes = 0;
    args.peak_activation_bytes = 0;
    assert_int_equal(pkv_plan_memory(&args, &plan), PKV_NEVER_FITS);
    assert_int_equal(plan.available_bytes, 0);
    assert_int_equal(plan.num_blocks, 0);
    assert_int_equal(plan.max_model_len, 0);
    assert_int_equal(plan.missing_bytes, UINT64_C(6871947674) + 4 * MIB);

    args.total_bytes = 0;
    args.weight_bytes = 0;
    assert_int_equal(pkv_plan_memory(&args, &plan), PKV_NEVER_FITS);
    assert_int_equal(plan.missing_bytes, 4 * MIB);
}

static void plan_with_room_for_the_null_block_only_never_fits(void **state) {
    pkv_memory_args args = llama_args();
    pkv_memory_plan plan = make_plan();

    (void)state;
    args.utilisation = 1.0;
    args.total_bytes = 19 * GIB + 4 * MIB - 1;
    assert_int_equal(pkv_plan_memory(&args, &plan), PKV_NEVER_FITS);
    assert_int_equal(plan.num_blocks, 1);
    assert_int_equal(plan.max_model_len, 0);
    assert_int_equal(plan.missing_bytes, 1);
    args.total_bytes++;
    assert_int_equal(pkv_plan_memory(&args, &plan), PKV_OK);
    assert_int_equal(plan.num_blocks, 2);
    assert_int_equal(plan.max_model_len, 16);
}

/* The longest sequence in 1,000 usable blocks of 16 tokens. */
static int32_t longest_in_thousand(const pkv_group_config *groups,
                                   int32_t num_groups,
                                   int32_t max_in_flight_tokens) {
    const uint64_t block_bytes[] = {1 * MIB, 2 * MIB, 1 * MIB};
    pkv_memory_args args = {.struct_size = sizeof args,
                            .total_bytes = 1001 * 2 * MIB,
                            .utilisation = 1.0,
                            .num_groups = num_groups,
                            .groups = groups,
                            .block_bytes = block_bytes,
                            .max_in_flight_tokens = max_in_flight_tokens};
    pkv_memory_plan plan = make_plan();

    assert_int_equal(pkv_plan_memory(&args, &plan), PKV_OK);
    /* One block serves any group, so the largest decides. */
    assert_int_equal(plan.block_bytes, num_groups == 1 ? 1 * MIB : 2 * MIB);
    assert_int_equal(plan.num_blocks, num_groups == 1 ? 2002 : 1001);
    return plan.max_model_len;
}

static void plan_of_windowed_groups_caps_what_they_need(void **state) {
    const pkv_group_config hybrid[] = {full_group(16), window_group(16, 1024),
                                       window_group(16, 1024)};
    const pkv_group_config chunked[] = {full_group(16), chunked_group(16, 2048)};
    const pkv_group_config window[] = {window_group(16, 1024)};

    (void)state;
    /* A window: ceil((1023 + 2048) / 16) + 1 = 193 blocks; full attention has 1000 - 193 = 807. */
    assert_int_equal(longest_in_thousand(hybrid, 2, 2048), 807 * 16);
    assert_int_equal(longest_in_thousand(hybrid, 3, 2048), 614 * 16);
    /* All of a sequence may be in flight: the window needs as much as full attention. */
    assert_int_equal(longest_in_thousand(hybrid, 2, 0), 500 * 16);
    /* A chunk: (2048 + 1024) / 16 = 192 blocks. */
    assert_int_equal(longest_in_thousand(chunked, 2, 1024), 808 * 16);
    /* A window alone never runs out. */
    assert_int_equal(longest_in_thousand(window, 1, 2048), INT32_MAX);
}

static void plan_of_groups_with_their_own_block_sizes(void **state) {
    const pkv_group_config groups[] = {full_group(32), full_group(8)};
    const uint64_t block_bytes[] = {4 * MIB, 4 * MIB};
    pkv_memory_args args = {.struct_size = sizeof args,
                            .total_bytes = 1001 * 4 * MIB,
                            .utilisation = 1.0,
                            .num_groups = 2,
                            .groups = groups,
                            .block_bytes = block_bytes};
    pkv_memory_plan plan = make_plan();

    (void)state;
    /* 32 tokens take 1 + 4 blocks, so 1,000 hold 200 * 32. */
    assert_int_equal(pkv_plan_memory(&args, &plan), PKV_OK);
    assert_int_equal(plan.max_model_len, 6400);
}

static void plan_is_what_a_manager_then_admits(void **state) {
    const pkv_group_config groups[] = {full_group(16), window_group(16, 64)};
    const uint64_t block_bytes[] = {1000, 1000};
    pkv_memory_args args = {.struct_size = sizeof args,
                            .total_bytes = 60000,
                            .utilisation = 1.0,
                            .num_groups = 2,
                            .groups = groups,
                            .block_bytes = block_bytes,
                            .max_in_flight_tokens = 128};
    pkv_memory_plan plan = make_plan();
    pkv_manager_config config;

    (void)state;
    assert_int_equal(pkv_plan_memory(&args, &plan), PKV_OK);
    assert_int_equal(plan.num_blocks, 60);
    /* 59 - 13 = 46 blocks of full attention. */
    assert_int_equal(plan.max_model_len, 46 * 16);
    config = small_config(plan.num_blocks, 16);
    config.groups = groups;
    config.num_groups = 2;
    config.max_in_flight_tokens = 128;
    config.max_model_len = plan.max_model_len + 16;
    for (int32_t extra = 0; extra <= 1; extra++) {
        pkv_manager *manager = make_manager(&config);
        pkv_slots_args slots = slots_of(0, 128);

        slots.full_sequence_must_fit = true;
        assert_int_equal(pkv_allocate_slots(
                             manager, open_prompt(manager, "0..%d", plan.max_model_len + extra - 1),
                             &slots, NULL),
                         extra == 0 ? PKV_OK : PKV_NEVER_FITS);
    }
}

static void plan_refuses_bad_input(void **state) {
    const uint64_t no_bytes = 0;
    const pkv_group_config recurrent = {.struct_size = sizeof recurrent,
                                        .kind = PKV_GROUP_RECURRENT};
    pkv_memory_args args;
    pkv_memory_plan plan = make_plan();

    (void)state;
    assert_int_equal(pkv_plan_memory(NULL, &plan), PKV_ERROR_INVALID_ARGUMENT);
    args = llama_args();
    assert_int_equal(pkv_plan_memory(&args, NULL), PKV_ERROR_INVALID_ARGUMENT);
    args.struct_size = 0;
    assert_int_equal(pkv_plan_memory(&args, &plan), PKV_ERROR_INVALID_ARGUMENT);
    args = llama_args();
    args.utilisation = 1.5;
    assert_int_equal(pkv_plan_memory(&args, &plan), PKV_ERROR_INVALID_ARGUMENT);
    args.utilisation = -0.5;
    assert_int_equal(pkv_plan_memory(&args, &plan), PKV_ERROR_INVALID_ARGUMENT);
    args = llama_args();
    args.block_bytes = NULL;
    assert_int_equal(pkv_plan_memory(&args, &plan), PKV_ERROR_INVALID_ARGUMENT);
    args.block_bytes = &no_bytes;
    assert_int_equal(pkv_plan_memory(&args, &plan), PKV_ERROR_INVALID_ARGUMENT);
    args = llama_args();
    args.block_size = -1;
    assert_int_equal(pkv_plan_memory(&args, &plan), PKV_ERROR_INVALID_ARGUMENT);
    args = llama_args();
    args.max_model_len = -1;
    assert_int_equal(pkv_plan_memory(&args, &plan), PKV_ERROR_INVALID_ARGUMENT);
    args = llama_args();
    args.weight_bytes = UINT64_MAX;
    assert_int_equal(pkv_plan_memory(&args, &plan), PKV_ERROR_INVALID_ARGUMENT);
    args = llama_args();
    args.groups = &recurrent;
    assert_int_equal(pkv_plan_memory(&args, &plan), PKV_ERROR_UNSUPPORTED);
}

static void plan_that_no_memory_would_do_for_misses_no_bytes(void **state) {
    static const uint64_t one_byte = 1;
    pkv_memory_args args = llama_args();
    pkv_memory_plan plan = make_plan();

    (void)state;
    args.block_bytes = &one_byte;
    args.block_size = 1;
    args.max_model_len = PKV_MAX_BLOCKS;
    assert_int_equal(pkv_plan_memory(&args, &plan), PKV_NEVER_FITS);
    assert_int_equal(plan.num_blocks, PKV_MAX_BLOCKS);
    assert_int_equal(plan.max_model_len, PKV_MAX_BLOCKS - 1);
    assert_int_equal(plan.missing_bytes, 0);
    args.max_model_len = PKV_MAX_BLOCKS - 1;
    assert_int_equal(pkv_plan_memory(&args, &plan), PKV_OK);
}

static void plan_of_a_pool_beyond_the_largest_is_the_largest(void **state) {
    const uint64_t one_byte = 1;
    pkv_memory_args args = llama_args();
    pkv_memory_plan plan = make_plan();

    (void)state;
    args.block_bytes = &one_byte;
    assert_int_equal(pkv_plan_memory(&args, &plan), PKV_OK);
    assert_int_equal(plan.num_blocks, PKV_MAX_BLOCKS);
    assert_int_equal(plan.max_model_len, INT32_MAX);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        fixture_test(plan_of_80_gib_and_llama_8b),
        fixture_test(plan_of_another_utilisation_and_block_size),
        fixture_test(plan_of_a_length_that_does_not_fit_tells_what_does_and_what_is_missing),
        fixture_test(plan_where_nothing_is_left_never_fits),
        fixture_test(plan_with_room_for_the_null_block_only_never_fits),
        fixture_test(plan_of_windowed_groups_caps_what_they_need),
        fixture_test(plan_of_groups_with_their_own_block_sizes),
        fixture_test(plan_is_what_a_manager_then_admits),
        fixture_test(plan_refuses_bad_input),
        fixture_test(plan_that_no_memory_would_do_for_misses_no_bytes),
        fixture_test(plan_of_a_pool_beyond_the_largest_is_the_largest),
    };

    return cmocka_run_group_tests_name("memory plan", tests, NULL, NULL);
}
