/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The tables of the order of streams by themselves: what happens when they are full, and whose
 * place is taken. What the device makes of them is in test_cuda_streams.c.
 *
 * The one idea: streams, blocks and fences are addresses and nothing behind them, so no runtime is
 * needed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kernels/cuda/stream_order.h"

/* What is forgotten counts as ordered. */
static void full_tables_let_pass(void **state) {
    struct pkvi_stream_order *order = calloc(1, sizeof *order);
    static const char things[PKVI_ORDER_BLOCKS * 16];
    int32_t last = 0;

    (void)state;
    assert_non_null(order);
    for (int i = 1; i < PKVI_ORDER_STREAMS; i++) {
        last = pkvi_order_add(order, things + i, (uint64_t)i, false);
        assert_int_equal(pkvi_order_find(order, things + i), last);
    }
    assert_int_equal(pkvi_order_add(order, things + 99, 99, false), PKVI_ORDER_UNKNOWN);
    pkvi_order_begin(order, last);
    for (int i = 1; i <= PKVI_ORDER_BLOCKS / 2; i++) {
        pkvi_order_wrote_block(order, last, things + 16 * i, 0);
    }
    for (int i = 1; i <= PKVI_ORDER_BLOCKS / 2; i++) {
        assert_false(pkvi_order_sees_block(order, 1, things + 16 * i, 0));
    }
    assert_true(pkvi_order_sees_block(order, PKVI_ORDER_UNKNOWN, things + 16, 0));
    pkvi_order_wrote_block(order, last, things, 0);
    assert_true(pkvi_order_sees_block(order, 1, things + 16, 0));
    assert_false(pkvi_order_sees_block(order, 1, things, 0));
    for (int i = 0; i < PKVI_ORDER_RANGES + 9; i++) {
        pkvi_order_wrote_range(order, last, &(struct pkvi_memory){things + 16 * i, 16, 0});
    }
    const struct pkvi_memory last_range = {things + 16 * (PKVI_ORDER_RANGES - 1), 1, 0};
    const struct pkvi_memory behind = {things + 16 * PKVI_ORDER_RANGES, 999, 0};
    assert_false(pkvi_order_sees_range(order, 1, &last_range));
    assert_true(pkvi_order_sees_range(order, 1, &behind));
    for (int i = 1; i <= PKVI_ORDER_FENCES + 1; i++) {
        pkvi_order_fence_create(order, things + i);
    }
    pkvi_order_fence_wait(order, things + 1, 1); /* never recorded */
    assert_false(pkvi_order_sees_block(order, 1, things, 0));
    pkvi_order_fence_wait(order, things + PKVI_ORDER_FENCES + 1, 1); /* not in the table */
    assert_true(pkvi_order_sees_block(order, 1, things, 0));
    free(order);
}

/* A full table takes a new stream in the place of one whose handle it has. It knows what the host
 * has seen, and nothing of what the one before it knew. */
static void a_stream_that_is_gone_makes_room(void **state) {
    struct pkvi_stream_order *order = calloc(1, sizeof *order);
    static const char things[64];

    (void)state;
    assert_non_null(order);
    for (int i = 1; i < PKVI_ORDER_STREAMS; i++) {
        (void)pkvi_order_add(order, things + i, (uint64_t)i, false);
    }
    pkvi_order_begin(order, 2);
    pkvi_order_wrote_block(order, 2, things, 0);
    pkvi_order_synchronized(order, 2);
    pkvi_order_begin(order, 3);
    pkvi_order_wrote_block(order, 3, things + 16, 0);
    pkvi_order_fence_create(order, things + 32);
    pkvi_order_fence_record(order, things + 32, 3);
    pkvi_order_fence_wait(order, things + 32, 1);
    assert_true(pkvi_order_sees_block(order, 1, things + 16, 0));
    assert_int_equal(pkvi_order_meet(order, things + 1, 1), 1);
    assert_int_equal(pkvi_order_meet(order, things + 1, 101), PKVI_ORDER_UNKNOWN);
    assert_int_equal(pkvi_order_find(order, things + 1), PKVI_ORDER_UNKNOWN);
    assert_int_equal(pkvi_order_add(order, things + 1, 101, false), 1);
    assert_int_equal(pkvi_order_find(order, things + 1), 1);
    assert_true(pkvi_order_sees_block(order, 1, things, 0));
    assert_false(pkvi_order_sees_block(order, 1, things + 16, 0));
    pkvi_order_fence_wait(order, things + 32, 1);
    assert_true(pkvi_order_sees_block(order, 1, things + 16, 0));
    pkvi_order_begin(order, 1);
    pkvi_order_wrote_block(order, 1, things + 48, 0);
    assert_false(pkvi_order_sees_block(order, 3, things + 48, 0));
    assert_int_equal(pkvi_order_add(order, things + 60, 160, false), PKVI_ORDER_UNKNOWN);
    free(order);
}

/* Ranges of allocations that are gone make room for those at their place. */
static void a_full_table_of_freed_memory_has_room(void **state) {
    struct pkvi_stream_order *order = calloc(1, sizeof *order);
    static const char things[16 * PKVI_ORDER_RANGES];
    const struct pkvi_memory all = {things, sizeof things, 0};

    (void)state;
    assert_non_null(order);
    const int32_t writer = pkvi_order_add(order, things + 1, 1, false);
    const int32_t reader = pkvi_order_add(order, things + 2, 2, false);
    pkvi_order_begin(order, writer);
    for (uint64_t allocation = 1; allocation <= 3; allocation++) {
        for (int i = 0; i < PKVI_ORDER_RANGES; i++) {
            const struct pkvi_memory range = {things + 16 * i, 16, allocation};

            assert_true(pkvi_order_sees_range(order, reader, &range));
            assert_false(pkvi_order_knows_range(order, writer, &range));
            pkvi_order_wrote_range(order, writer, &range);
            assert_true(pkvi_order_knows_range(order, writer, &range));
            assert_false(pkvi_order_sees_range(order, reader, &range));
        }
        assert_int_equal(order->num_ranges, PKVI_ORDER_RANGES);
    }
    assert_false(pkvi_order_sees_range(order, reader, &all)); /* a number that is not known */
    free(order);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_tables_let_pass),
        cmocka_unit_test(a_stream_that_is_gone_makes_room),
        cmocka_unit_test(a_full_table_of_freed_memory_has_room),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
