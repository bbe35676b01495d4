/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Attention of q query tokens at once against q decodes, of one token each, over the same keys: a
 * verification step and a chunk of prefill say what decoding token by token would have said. Not to
 * the byte, since rows are grouped and keys are cut differently, but within what both are off.
 *
 * The one idea: the two runs meet each other, too, not the oracle alone, so that oracle and kernels
 * cannot agree on a wrong position of the query tokens. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/test_devices.h"

/* What the content of every run goes by. */
#define REQUEST_ID 5

/* Lse differ by rounding only; one key of 130 more or less moves them by about 1 / 130. */
#define LSE_TOLERANCE 1e-4

static double output_at(const struct attention_run *run, int64_t token, int64_t head, int64_t d) {
    return tensor_decode(attention_run_output(run, token, head), run->args.output.dtype, d);
}

static void execute(struct attention_run *run,
                    struct attention_error *error,
                    const struct attention_case *c,
                    const struct test_device *device) {
    attention_run_create(run, c, device->memory);
    pkv_status status = attention_run_execute(run, device->device);
    if (status != PKV_OK) {
        print_error("%s: %s\n", pkv_status_name(status), pkv_device_last_error(device->device));
    }
    assert_int_equal(status, PKV_OK);
    attention_run_compare(run, error);
    if (error->output > 1.0 || error->lse > 1.0) {
        print_error("%s\n", error->where);
    }
    assert_true(error->output <= 1.0);
    assert_true(error->lse <= 1.0);
}

/* Query tokens [first, first + count) of `together`, as decodes of one batch. */
static void compare_decodes(const struct test_device *device,
                            const struct attention_run *together,
                            const struct attention_error *together_error,
                            int32_t first,
                            int32_t count) {
    struct attention_case c = together->c;
    struct attention_run decodes;
    struct attention_error error;

    c.num_requests = count;
    for (int32_t i = 0; i < count; i++) {
        c.query_lens[i] = 1;
        c.seq_lens[i] = together->c.seq_lens[0] - together->c.query_lens[0] + first + i + 1;
        c.request_ids[i] = REQUEST_ID;
    }
    execute(&decodes, &error, &c, device);
    /* Each is so far from the same exact number at most. */
    double tolerance = error.absolute + together_error->absolute;
    for (int32_t i = 0; i < count; i++) {
        for (int64_t head = 0; head < c.num_query_heads; head++) {
            int64_t index = (int64_t)i * c.num_query_heads + head;
            float lse = ((const float *)together->lse.host)[first * c.num_query_heads + index];

            for (int64_t d = 0; d < decodes.c.v_head_size; d++) {
                double difference =
                    output_at(together, first + i, head, d) - output_at(&decodes, i, head, d);

                assert_true(fabs(difference) <= tolerance * (1.0 + 1e-12));
            }
            assert_true(fabs((double)lse - (double)((const float *)decodes.lse.host)[index]) <=
                        LSE_TOLERANCE);
        }
    }
    attention_run_destroy(&decodes);
}

static void check_case(const struct test_device *device, const void *context) {
    /* One row a token and more than few; a tile and more than one; a sequence from its start. */
    static const int32_t lengths[][2] = {{2, 130}, {5, 67}, {24, 90}, {17, 17}};
    static const int32_t block_sizes[] = {3, 16};

    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        struct attention_case c = *(const struct attention_case *)context;
        struct attention_run together;
        struct attention_error error;
        int32_t query_len = lengths[i][0];

        c.num_requests = 1;
        c.query_lens[0] = query_len;
        c.seq_lens[0] = lengths[i][1];
        c.request_ids[0] = REQUEST_ID;
        c.block_size = block_sizes[i % 2];
        execute(&together, &error, &c, device);
        for (int32_t first = 0; first < query_len; first += CASE_MAX_REQUESTS) {
            int32_t left = query_len - first;

            compare_decodes(device, &together, &error, first,
                            left < CASE_MAX_REQUESTS ? left : CASE_MAX_REQUESTS);
        }
        attention_run_destroy(&together);
    }
}

#define F32 PKV_DTYPE_FLOAT32
#define F16 PKV_DTYPE_FLOAT16
#define BF16 PKV_DTYPE_BFLOAT16
#define E4M3 PKV_DTYPE_FLOAT8_E4M3
#define I8 PKV_DTYPE_INT8

static const struct attention_case cases[] = {
    {.name = "float32", .num_query_heads = 2, .num_kv_heads = 2},
    {.name = "float32, group of 4", .num_query_heads = 4, .num_kv_heads = 1, .head_size = 72},
    {.name = "float16", .query_dtype = F16, .num_query_heads = 6, .num_kv_heads = 2},
    {.name = "bfloat16", .query_dtype = BF16, .num_query_heads = 4, .num_kv_heads = 2},
    {.name = "bfloat16 over e4m3, a scale for each token",
     .query_dtype = BF16,
     .kv_dtype = E4M3,
     .scales = CASE_SCALE_TOKEN,
     .num_query_heads = 4,
     .num_kv_heads = 2},
    {.name = "float32 over int8, a scale for each head",
     .kv_dtype = I8,
     .scales = CASE_SCALE_HEAD,
     .scale_base = 0.0625f,
     .num_query_heads = 3,
     .num_kv_heads = 1},
    {.name = "window below a block", .window = 2, .num_query_heads = 2},
    {.name = "window of 35 keys, float16", .query_dtype = F16, .window = 35, .num_query_heads = 2},
    {.name = "soft cap", .softcap = 3.0f, .query_factor = 10.0f, .num_query_heads = 4},
    {.name = "sinks", .has_sinks = true, .num_query_heads = 4, .num_kv_heads = 2},
    {.name = "window, sinks and soft cap, bfloat16",
     .query_dtype = BF16,
     .window = 21,
     .has_sinks = true,
     .softcap = 5.0f,
     .num_query_heads = 4},
    {.name = "alibi", .has_alibi = true, .num_query_heads = 6, .num_kv_heads = 2},
    {.name = "values wider than keys", .head_size = 40, .v_head_size = 136, .num_query_heads = 2},
};
#define NUM_CASES ((int)(sizeof cases / sizeof cases[0]))

int main(void) {
    struct test_device devices[TEST_MAX_DEVICES];
    int num_devices = test_devices_open(devices, 2);
    struct device_test tests[NUM_CASES];

    for (int i = 0; i < NUM_CASES; i++) {
        tests[i] = (struct device_test){cases[i].name, check_case, &cases[i]};
    }
    int failures = device_tests_run("attention, q tokens or q decodes", tests, NUM_CASES, devices,
                                    num_devices);
    test_devices_close(devices, num_devices);
    return failures;
}
