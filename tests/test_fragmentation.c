/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Goal: the memory bench counts every slot once, and counts it right.
 * Method: small memories whose shares can be worked out by hand, step by step; then random lengths
 * through every layout, where the uses must sum up and agree with the library's own statistics. */
#include "bench/fragmentation.h"

#include "bench/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define MAX_ITEMS 64

typedef struct fixture {
    workload_item items[MAX_ITEMS];
    workload_list list;
    memory_setup setup;
} fixture;

static void add_item(fixture *f, int32_t num_input_tokens, int32_t num_output_tokens) {
    int32_t num_tokens = num_input_tokens + num_output_tokens;

    f->items[f->list.num_items++] = (workload_item){.num_input_tokens = num_input_tokens,
                                                    .num_output_tokens = num_output_tokens};
    f->list.items = f->items;
    if (num_tokens > f->list.max_total_tokens) {
        f->list.max_total_tokens = num_tokens;
    }
}

static void set_memory(fixture *f, int64_t num_slots, int32_t max_length, int32_t num_steps) {
    f->setup = (memory_setup){
        .list = &f->list,
        .num_slots = num_slots,
        .max_length = max_length,
        .num_steps = num_steps,
    };
}

static void assert_counts(const slot_counts *counts,
                          int64_t live,
                          int64_t reserved,
                          int64_t internal,
                          int64_t external,
                          int64_t num_free) {
    assert_int_equal(counts->slots[SLOTS_LIVE], live);
    assert_int_equal(counts->slots[SLOTS_RESERVED], reserved);
    assert_int_equal(counts->slots[SLOTS_INTERNAL], internal);
    assert_int_equal(counts->slots[SLOTS_EXTERNAL], external);
    assert_int_equal(counts->slots[SLOTS_FREE], num_free);
}

static int64_t sum_counts(const slot_counts *counts) {
    int64_t sum = 0;

    for (int32_t use = 0; use < SLOTS_NUM_USES; use++) {
        assert_true(counts->slots[use] >= 0);
        sum += counts->slots[use];
    }
    return sum;
}

/* ---- by hand --------------------------------------------------------------------------------- */

static void max_reserves_the_longest_length(void **state) {
    fixture f = {0};
    slot_counts counts;

    (void)state;
    add_item(&f, 60, 40);
    set_memory(&f, 300, 256, 100);

    contiguous_simulation *simulation = contiguous_begin(&f.setup, LAYOUT_MAX);

    assert_non_null(simulation);
    for (int64_t live = 60; live <= 100; live++) {
        assert_true(contiguous_step(simulation, &counts));
        assert_counts(&counts, live, 100 - live, 156, 44, 0);
    }
    /* The request left, and the same one came again. */
    assert_true(contiguous_step(simulation, &counts));
    assert_counts(&counts, 60, 40, 156, 44, 0);
    assert_int_equal(contiguous_get_state(simulation)->num_finished, 1);
    contiguous_end(simulation);
}

static void pow2_reserves_the_next_power_of_the_output(void **state) {
    fixture f = {0};
    slot_counts counts;

    (void)state;
    add_item(&f, 60, 40);
    set_memory(&f, 256, 256, 100);

    contiguous_simulation *simulation = contiguous_begin(&f.setup, LAYOUT_POW2);

    /* Two times 60 + 64 = 124, in ranges of 128. */
    assert_non_null(simulation);
    assert_true(contiguous_step(simulation, &counts));
    assert_counts(&counts, 120, 80, 48, 8, 0);
    assert_int_equal(contiguous_get_state(simulation)->num_running, 2);
    contiguous_end(simulation);
}

static void oracle_wastes_by_rounding_and_first_fit_does_not(void **state) {
    fixture f = {0};
    slot_counts counts;

    (void)state;
    add_item(&f, 60, 40);
    set_memory(&f, 256, 256, 100);

    contiguous_simulation *simulation = contiguous_begin(&f.setup, LAYOUT_ORACLE);

    assert_non_null(simulation);
    assert_true(contiguous_step(simulation, &counts));
    assert_counts(&counts, 120, 80, 0, 56, 0);
    contiguous_end(simulation);

    simulation = contiguous_begin(&f.setup, LAYOUT_ORACLE_FIRST_FIT);
    assert_non_null(simulation);
    assert_true(contiguous_step(simulation, &counts));
    assert_counts(&counts, 120, 80, 0, 56, 0);
    assert_false(contiguous_get_state(simulation)->was_enough_free);
    contiguous_end(simulation);
}

static void refused_head_is_told_from_full_memory(void **state) {
    fixture f = {0};
    slot_counts counts;

    (void)state;
    add_item(&f, 1, 15); /* [0, 16) */
    add_item(&f, 1, 1);  /* a range of 2 behind it: leaves first */
    add_item(&f, 1, 39); /* wants 40, in a range of 64 */
    set_memory(&f, 64, 64, 100);

    contiguous_simulation *simulation = contiguous_begin(&f.setup, LAYOUT_ORACLE);

    assert_non_null(simulation);
    assert_true(contiguous_step(simulation, &counts));
    assert_true(contiguous_get_state(simulation)->is_head_refused);
    assert_true(contiguous_get_state(simulation)->was_enough_free);
    assert_counts(&counts, 2, 16, 0, 46, 0);
    contiguous_end(simulation);
}

static void paged_wastes_the_rest_of_last_blocks(void **state) {
    fixture f = {0};
    memory_case of = {.name = "paged", .layout = LAYOUT_PAGED, .block_size = 16};
    slot_counts counts;

    (void)state;
    add_item(&f, 100, 3);
    /* 16 blocks, 15 of them usable: two requests of 7, one block stays free. */
    set_memory(&f, 260, 256, 100);

    paged_simulation *simulation = paged_begin(&f.setup, &of);

    assert_non_null(simulation);
    assert_int_equal(paged_get_num_blocks(simulation), 16);
    for (int64_t live = 100; live <= 103; live++) {
        assert_true(paged_step(simulation, &counts));
        /* External: the null block and the 4 slots that make no block. */
        assert_counts(&counts, 2 * live, 2 * (103 - live), 2 * 9, 20, 16);
        assert_true(paged_check(simulation, &counts));
    }
    paged_end(simulation);
}

static void paged_preempts_the_youngest(void **state) {
    fixture f = {0};
    memory_case of = {.name = "paged", .layout = LAYOUT_PAGED, .block_size = 4};
    slot_counts counts;

    (void)state;
    add_item(&f, 8, 8);
    /* Four usable blocks: two prompts of two blocks, which both want a third. */
    set_memory(&f, 20, 16, 100);

    paged_simulation *simulation = paged_begin(&f.setup, &of);
    memory_state *memory = paged_get_state(simulation);

    assert_non_null(simulation);
    assert_true(paged_step(simulation, &counts));
    assert_counts(&counts, 16, 0, 0, 4, 0);

    /* The second one gives way to the first, and nobody is admitted in that step. */
    assert_true(paged_step(simulation, &counts));
    assert_int_equal(memory->num_preemptions, 1);
    assert_int_equal(memory->num_recomputed_tokens, 8);
    assert_int_equal(memory->num_running, 1);
    assert_int_equal(memory->running[0].serial, 0);
    assert_counts(&counts, 9, 3, 0, 4, 4);
    assert_true(paged_check(simulation, &counts));
    paged_end(simulation);
}

/* ---- random ---------------------------------------------------------------------------------- */

static void every_layout_uses_every_slot_once(void **state) {
    static const memory_case cases[] = {
        {.name = "max", .layout = LAYOUT_MAX},
        {.name = "pow2", .layout = LAYOUT_POW2},
        {.name = "oracle", .layout = LAYOUT_ORACLE},
        {.name = "first-fit", .layout = LAYOUT_ORACLE_FIRST_FIT},
        {.name = "paged-b1", .layout = LAYOUT_PAGED, .block_size = 1},
        {.name = "paged-b3", .layout = LAYOUT_PAGED, .block_size = 3},
        {.name = "paged-b16", .layout = LAYOUT_PAGED, .block_size = 16},
        {.name = "cached-b1", .layout = LAYOUT_PAGED, .block_size = 1, .use_prefix_cache = true},
        {.name = "cached-b4", .layout = LAYOUT_PAGED, .block_size = 4, .use_prefix_cache = true},
    };
    static memory_result result;
    fixture f = {0};
    uint64_t random = 5;

    (void)state;
    for (int32_t i = 0; i < MAX_ITEMS; i++) {
        add_item(&f, 1 + random_below(&random, 60), 1 + random_below(&random, 60));
    }
    set_memory(&f, 777, 128, 1500);
    f.setup.num_discarded = 100;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char error[MEMORY_MAX_ERROR] = "";
        double sum = 0.0;

        /* Every step is checked inside; the means are checked here. */
        if (!memory_run(&f.setup, &cases[i], NULL, &result, error)) {
            fail_msg("%s", error);
        }
        for (int32_t use = 0; use < SLOTS_NUM_USES; use++) {
            sum += result.percent[use];
        }
        assert_true(sum > 99.999 && sum < 100.001);
        assert_true(result.num_finished > 100);
        assert_true(result.mean_batch >= 1.0);
        if (cases[i].layout == LAYOUT_PAGED) {
            assert_true(result.percent[SLOTS_LIVE] > 80.0);
        }
    }
}

static void random_steps_agree_with_the_library(void **state) {
    memory_case of = {.name = "paged", .layout = LAYOUT_PAGED, .block_size = 5};
    fixture f = {0};
    uint64_t random = 9;
    slot_counts counts;

    (void)state;
    for (int32_t i = 0; i < MAX_ITEMS; i++) {
        add_item(&f, 1 + random_below(&random, 40), 1 + random_below(&random, 40));
    }
    set_memory(&f, 400, 80, 1000);

    paged_simulation *simulation = paged_begin(&f.setup, &of);

    assert_non_null(simulation);
    for (int32_t step = 0; step < 1000; step++) {
        assert_true(paged_step(simulation, &counts));
        assert_int_equal(sum_counts(&counts), 400);
        if (!paged_check(simulation, &counts)) {
            fail_msg("step %d: %s", step, paged_get_state(simulation)->error);
        }
    }
    assert_true(paged_get_state(simulation)->num_preemptions > 10);
    paged_end(simulation);
}

static void request_that_cannot_fit_is_an_error(void **state) {
    memory_case of = {.name = "paged", .layout = LAYOUT_PAGED, .block_size = 64};
    static memory_result result;
    fixture f = {0};
    char error[MEMORY_MAX_ERROR] = "";

    (void)state;
    add_item(&f, 100, 28);
    set_memory(&f, 150, 128, 10);

    assert_false(memory_run(&f.setup, &of, NULL, &result, error));
    assert_non_null(strstr(error, "cannot hold the longest request"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(max_reserves_the_longest_length),
        cmocka_unit_test(pow2_reserves_the_next_power_of_the_output),
        cmocka_unit_test(oracle_wastes_by_rounding_and_first_fit_does_not),
        cmocka_unit_test(refused_head_is_told_from_full_memory),
        cmocka_unit_test(paged_wastes_the_rest_of_last_blocks),
        cmocka_unit_test(paged_preempts_the_youngest),
        cmocka_unit_test(every_layout_uses_every_slot_once),
        cmocka_unit_test(random_steps_agree_with_the_library),
        cmocka_unit_test(request_that_cannot_fit_is_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
