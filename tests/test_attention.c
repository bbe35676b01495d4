/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Attention over the paged cache against the oracle: every element of output and lse within a bound
 * that follows from float arithmetic, for the table of cases in support/attention_table.c and each
 * device. Unused slots, foreign blocks and unused table entries hold poison; memory ends at guard
 * pages; inputs must stay as they are. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/attention_table.h"
#include "support/test_devices.h"

#ifdef TEST_SIMT
#include "simt/simt_control.h"

/* Rows that a matrix load of the case read from the same banks: they would be read one after the
 * other. */
static void expect_no_bank_conflicts(void) {
    simt_counts counts;

    simt_get_counts(&counts);
    assert_int_equal(counts.num_bank_conflicts, 0);
    simt_reset_counts();
}
#else
static void expect_no_bank_conflicts(void) {
}
#endif

/* Whether the device says that it computes the run's shape; a test of another one is skipped. */
static bool is_supported(const struct test_device *device, const struct attention_run *run) {
    const pkv_attention_shape shape = attention_case_shape(&run->c);
    const char *reason;
    bool answer = pkv_attention_supports(device->device, &shape, &reason);

    if (!answer) {
        print_message("skipped: %s\n", reason);
    }
    return answer;
}

/* Worst ratios to the bound that a device has shown, for the summary. */
static struct worst {
    const char *device;
    double output, lse;
    const char *output_case, *lse_case;
} worst[TEST_MAX_DEVICES];

static void note_worst(const struct test_device *device,
                       const struct attention_case *c,
                       const struct attention_error *error) {
    struct worst *w = worst;

    while (w->device != NULL && strcmp(w->device, device->name) != 0) {
        w++;
    }
    w->device = device->name;
    if (w->output_case == NULL || error->output > w->output) {
        w->output = error->output;
        w->output_case = c->name;
    }
    if (w->lse_case == NULL || error->lse > w->lse) {
        w->lse = error->lse;
        w->lse_case = c->name;
    }
}

static void print_worst(void) {
    for (const struct worst *w = worst; w < worst + TEST_MAX_DEVICES && w->device != NULL; w++) {
        print_message("%s: worst error of an output %.3f of its bound (%s), of an lse %.3f (%s)\n",
                      w->device, w->output, w->output_case, w->lse, w->lse_case);
    }
}

/* The logits are what the case is named after. */
static void expect_claims(const struct attention_case *c, const struct attention_error *error) {
    bool is_below =
        c->all_logits_below == 0.0f || error->largest_logit < (double)c->all_logits_below;
    bool is_above =
        c->some_logit_above == 0.0f || error->largest_logit > (double)c->some_logit_above;

    if (!is_below || !is_above) {
        print_error("the largest logit is %.1f\n", error->largest_logit);
    }
    assert_true(is_below && is_above);
}

static void check_case(const struct test_device *device, const void *context) {
    const struct attention_case *c = context;
    struct attention_run run;
    struct attention_error error;

    attention_run_create(&run, c, device->memory);
    if (!is_supported(device, &run)) {
        attention_run_destroy(&run);
        skip();
    }
    pkv_status status = attention_run_execute(&run, device->device);
    if (status != PKV_OK) {
        print_error("%s: %s\n", pkv_status_name(status), pkv_device_last_error(device->device));
    }
    assert_int_equal(status, PKV_OK);
    attention_run_compare(&run, &error);
    if (error.output > 1.0 || error.lse > 1.0) {
        print_error("output %.3f lse %.3f of the bound; %s\n", error.output, error.lse,
                    error.where);
    }
    assert_true(error.output <= 1.0);
    assert_true(error.lse <= 1.0);
    note_worst(device, c, &error);
    expect_claims(c, &error);
    expect_no_bank_conflicts();
    attention_run_destroy(&run);
}

/* The bound is tight enough to see one wrong key of many: the negative control of this suite. */
static void check_wrong_key(const struct test_device *device, const void *context) {
    const struct attention_case *c = context;
    struct attention_run run;
    struct attention_error error;

    attention_run_create(&run, c, device->memory);
    assert_int_equal(attention_run_execute(&run, device->device), PKV_OK);
    const int32_t *row = (const int32_t *)run.table.host + run.rows[0] * run.num_columns;
    for (int64_t d = 0; d < run.c.v_head_size; d++) {
        int64_t value = row[0] * run.v_cache.stride[0] + 3 * run.v_cache.stride[2] + d;

        tensor_encode(run.v_cache.data, run.c.kv_dtype, value,
                      -tensor_decode(run.v_cache.data, run.c.kv_dtype, value));
    }
    attention_run_compare(&run, &error);
    assert_true(error.output > 1.0);
    attention_run_destroy(&run);
}

/* 24 query tokens behind 128 k keys: two tiles of rows, whose 256 chunks are work for many. */
static const struct attention_case long_chunk = {.name = "a chunk of 24 over 128 k keys",
                                                 .query_dtype = PKV_DTYPE_FLOAT16,
                                                 .num_query_heads = 4,
                                                 .num_requests = 2,
                                                 .query_lens = {24, 1},
                                                 .seq_lens = {1 << 17, 40},
                                                 .split_query_len = 32,
                                                 .chunk_size = 512};

int main(void) {
    struct test_device devices[TEST_MAX_DEVICES];
    int num_devices = test_devices_open(devices, 2);
    int num_cases;
    const struct attention_case *cases = attention_table(&num_cases);
    struct device_test *tests = calloc((size_t)num_cases + 2, sizeof *tests);
    int num_tests = 0;
    const struct attention_case wrong_key = {
        .query_dtype = PKV_DTYPE_FLOAT16, .num_requests = 1, .query_lens = {1}, .seq_lens = {500}};

    assert_non_null(tests);
    for (int i = 0; i < num_cases; i++) {
        tests[num_tests++] = (struct device_test){cases[i].name, check_case, &cases[i]};
    }
    tests[num_tests++] =
        (struct device_test){"one wrong value of 500 is noticed", check_wrong_key, &wrong_key};
    if (getenv("PKV_TEST_FULL") != NULL) {
        tests[num_tests++] = (struct device_test){long_chunk.name, check_case, &long_chunk};
    }
    int failures = device_tests_run("attention", tests, num_tests, devices, num_devices);
    free(tests);
    print_worst();
    test_devices_close(devices, num_devices);
    return failures;
}
