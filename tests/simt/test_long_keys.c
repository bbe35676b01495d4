/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* One query token over 128 k keys, by every kind of kernel, against the oracle: equal logits, whose
 * sum must not lose a key however far it has grown, and one key that outweighs all others. Whole in
 * the long run only, since a key costs a processor as much as a thousand cost a GPU.
 *
 * The one idea: each case once in many chunks, which are merged, and once in a single one, whose
 * sums and maxima are carried through 128 k keys. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/test_devices.h"

enum { NUM_KEYS = 1 << 17 };

#define ONE_TOKEN .num_query_heads = 4, .num_requests = 1, .query_lens = {1}, .seq_lens = {NUM_KEYS}
/* Queries that are zeros, or so near to them that it makes no difference. */
#define NEARLY_ZERO 1e-20f
#define EQUAL .query_factor = NEARLY_ZERO

static const struct attention_case cases[] = {
    {.name = "equal logits, half", .query_dtype = PKV_DTYPE_FLOAT16, EQUAL, ONE_TOKEN},
    {.name = "equal logits, bfloat16", .query_dtype = PKV_DTYPE_BFLOAT16, EQUAL, ONE_TOKEN},
    {.name = "equal logits, half over e4m3",
     .query_dtype = PKV_DTYPE_FLOAT16,
     .kv_dtype = PKV_DTYPE_FLOAT8_E4M3,
     .scales = CASE_SCALE_TENSOR,
     EQUAL,
     ONE_TOKEN},
    {.name = "equal logits, bfloat16 over int8",
     .query_dtype = PKV_DTYPE_BFLOAT16,
     .kv_dtype = PKV_DTYPE_INT8,
     .scales = CASE_SCALE_TOKEN,
     EQUAL,
     ONE_TOKEN},
    {.name = "equal logits, float over half",
     .query_dtype = PKV_DTYPE_FLOAT32,
     .kv_dtype = PKV_DTYPE_FLOAT16,
     EQUAL,
     ONE_TOKEN},
    {.name = "one key outweighs all others, half",
     .query_dtype = PKV_DTYPE_FLOAT16,
     .query_factor = 3000.0f,
     ONE_TOKEN},
};
enum { NUM_CASES = sizeof cases / sizeof cases[0] };

static void check(const struct test_device *device, const void *context) {
    const struct attention_case *c = context;
    struct attention_run run;
    struct attention_error error;

    attention_run_create(&run, c, device->memory);
    pkv_status status = attention_run_execute(&run, device->device);
    if (status != PKV_OK) {
        print_error("%s: %s\n", pkv_status_name(status), pkv_device_last_error(device->device));
    }
    assert_int_equal(status, PKV_OK);
    attention_run_compare(&run, &error);
    print_message("output %.3f lse %.3f of the bound\n", error.output, error.lse);
    assert_true(error.output <= 1.0);
    assert_true(error.lse <= 1.0);
    /* A bound for any logits grows with their number; of equal ones each counts the same. */
    for (int32_t head = 0; head < c->num_query_heads && c->query_factor == NEARLY_ZERO; head++) {
        double lse = (double)((const float *)run.lse.host)[head];

        assert_true(fabs(lse - log((double)NUM_KEYS)) < 1e-5);
    }
    attention_run_destroy(&run);
}

int main(void) {
    static struct attention_case cut[2 * NUM_CASES];
    static struct device_test tests[2 * NUM_CASES];
    static char names[2 * NUM_CASES][96];
    struct test_device devices[TEST_MAX_DEVICES];
    int num_devices = test_devices_open(devices, 1);

    for (int i = 0; i < 2 * NUM_CASES; i++) {
        bool is_whole = i % 2 == 1;

        cut[i] = cases[i / 2];
        cut[i].chunk_size = is_whole ? NUM_KEYS : 512;
        (void)snprintf(names[i], sizeof names[i], "%s, %s", cut[i].name,
                       is_whole ? "in one piece" : "in chunks");
        tests[i] = (struct device_test){names[i], check, &cut[i]};
    }
    int failures =
        device_tests_run("attention, 128 k keys", tests, 2 * NUM_CASES, devices, num_devices);
    test_devices_close(devices, num_devices);
    return failures;
}
