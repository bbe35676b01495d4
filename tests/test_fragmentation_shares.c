/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Goal: the memory bench gives the known shares on its built-in tables.
 * Method: the published comparison in fewer steps, within a point where paging is measured and
 * within the noise of so few steps where contiguous allocation is. */
#include "bench/fragmentation.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void known_shares_come_out(void **state) {
    static const struct {
        const char *table;
        memory_case of;
        double live_percent, tolerance;
    } known[] = {
        {"sharegpt", {.name = "max", .layout = LAYOUT_MAX}, 19.6, 2.5},
        {"sharegpt", {.name = "pow2", .layout = LAYOUT_POW2}, 27.1, 2.5},
        {"sharegpt", {.name = "oracle", .layout = LAYOUT_ORACLE}, 35.7, 2.5},
        {"sharegpt", {.name = "b16", .layout = LAYOUT_PAGED, .block_size = 16}, 96.5, 1.0},
        {"sharegpt", {.name = "b256", .layout = LAYOUT_PAGED, .block_size = 256}, 75.4, 1.0},
        {"alpaca", {.name = "b16", .layout = LAYOUT_PAGED, .block_size = 16}, 91.4, 1.0},
    };
    static memory_result result;

    (void)state;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        workload_list list;
        char error[MEMORY_MAX_ERROR] = "";

        assert_true(workload_make_table(known[i].table, 1, 20000, &list, error));

        memory_setup setup = {
            .list = &list,
            .num_slots = MEMORY_DEFAULT_SLOTS,
            .max_length = MEMORY_DEFAULT_LENGTH,
            .num_steps = 12000,
            .num_discarded = MEMORY_DEFAULT_DISCARDED,
        };

        if (!memory_run(&setup, &known[i].of, NULL, &result, error)) {
            fail_msg("%s", error);
        }

        double live = result.percent[SLOTS_LIVE];

        if (!(live >= known[i].live_percent - known[i].tolerance &&
              live <= known[i].live_percent + known[i].tolerance)) {
            fail_msg("%s, %s: %.2f%% live, not within %.1f of %.1f", known[i].table,
                     known[i].of.name, live, known[i].tolerance, known[i].live_percent);
        }
        workload_release(&list);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_shares_come_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
