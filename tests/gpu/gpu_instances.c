/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* A phase of tests/gpu.sh: every attention kernel of kernels/cuda/instances.h with each property of
 * a call switched on by itself, in small cases, against the oracle in double precision. The shared
 * suites have more cases, and not this product.
 *
 * The one idea: pair of types x class of head sizes x rows (few: small tiles, split in chunks;
 * many: large tiles) x one property. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/test_devices.h"

static const struct {
    const char *name;
    pkv_dtype query, kv;
} pairs[] = {
    {"half", PKV_DTYPE_FLOAT16, PKV_DTYPE_FLOAT16},
    {"half, e4m3", PKV_DTYPE_FLOAT16, PKV_DTYPE_FLOAT8_E4M3},
    {"half, int8", PKV_DTYPE_FLOAT16, PKV_DTYPE_INT8},
    {"bfloat16", PKV_DTYPE_BFLOAT16, PKV_DTYPE_BFLOAT16},
    {"bfloat16, e4m3", PKV_DTYPE_BFLOAT16, PKV_DTYPE_FLOAT8_E4M3},
    {"bfloat16, int8", PKV_DTYPE_BFLOAT16, PKV_DTYPE_INT8},
    {"float", PKV_DTYPE_FLOAT32, PKV_DTYPE_FLOAT32},
    {"float, half", PKV_DTYPE_FLOAT32, PKV_DTYPE_FLOAT16},
    {"float, bfloat16", PKV_DTYPE_FLOAT32, PKV_DTYPE_BFLOAT16},
    {"float, e4m3", PKV_DTYPE_FLOAT32, PKV_DTYPE_FLOAT8_E4M3},
    {"float, int8", PKV_DTYPE_FLOAT32, PKV_DTYPE_INT8},
};

/* One size of each class, where there is a smaller one than the class itself, that one. */
static const struct {
    int32_t head, value;
    enum case_layout layout;
} sizes[] = {
    {64, 64, CASE_BLOCK_2_HEAD},   {80, 80, CASE_TOKEN_MAJOR},    {128, 128, CASE_BLOCK_2_HEAD},
    {192, 128, CASE_BLOCK_2_HEAD}, {256, 256, CASE_BLOCK_2_HEAD}, {576, 512, CASE_LATENT},
};

enum property { NONE, WINDOW, SOFTCAP, ALIBI, SINKS, NON_CAUSAL, TREE, SCALES, NUM_PROPERTIES };
static const char *const property_names[] = {"plain", "window",     "soft cap", "ALiBi",
                                             "sinks", "non-causal", "tree",     "scales"};

static bool is_quantised(pkv_dtype dtype) {
    return dtype == PKV_DTYPE_FLOAT8_E4M3 || dtype == PKV_DTYPE_INT8;
}

static struct attention_case make_case(int pair, int size, bool is_large, enum property property) {
    struct attention_case c = {.query_dtype = pairs[pair].query,
                               .kv_dtype = pairs[pair].kv,
                               .num_query_heads = 8,
                               .num_kv_heads = 2,
                               .head_size = sizes[size].head,
                               .v_head_size = sizes[size].value,
                               .block_size = 16,
                               .num_requests = 2,
                               .query_lens = {1, 3},
                               .seq_lens = {150, 71},
                               .chunk_size = 64,
                               .layout = sizes[size].layout,
                               .seed = (uint64_t)(1 + pair * 100 + size * 10 + (int)property)};

    if (is_large) {
        c.query_lens[0] = 20; /* 80 packed rows: one tile and a part of another */
        c.query_lens[1] = 5;  /* 20 rows */
    }
    if (c.layout == CASE_LATENT) {
        c.num_kv_heads = 1;
        c.num_query_heads = 4;
    }
    if (is_quantised(c.kv_dtype)) {
        c.scales = CASE_SCALE_TENSOR;
    }
    c.window = property == WINDOW ? 40 : 0;
    c.softcap = property == SOFTCAP ? 5.0f : 0.0f;
    c.has_alibi = property == ALIBI;
    c.has_sinks = property == SINKS;
    c.non_causal = property == NON_CAUSAL;
    c.has_tree = property == TREE;
    if (property == SCALES) {
        c.scales = (pair + size) % 3 == 0 ? CASE_SCALE_HEAD : CASE_SCALE_TOKEN;
    }
    return c;
}

/* Shapes that this build has no kernel for are counted, and say so; a library with all of them
 * must not refuse any. */
static int num_refused;

static void check(const struct test_device *device, const void *context) {
    struct attention_run run;
    struct attention_error error;

    attention_run_create(&run, context, device->memory);
    const pkv_attention_shape shape = {.struct_size = sizeof shape,
                                       .num_query_heads = run.c.num_query_heads,
                                       .num_kv_heads = run.c.num_kv_heads,
                                       .head_size = run.c.head_size,
                                       .v_head_size = run.c.v_head_size,
                                       .block_size = run.c.block_size,
                                       .query_dtype = run.c.query_dtype,
                                       .kv_dtype = run.c.kv_dtype};
    const char *reason;

    if (!pkv_attention_supports(device->device, &shape, &reason)) {
        print_message("skipped: %s\n", reason);
        num_refused++;
        attention_run_destroy(&run);
        skip();
    }
    pkv_status status = attention_run_execute(&run, device->device);
    if (status != PKV_OK) {
        print_error("%s: %s\n", pkv_status_name(status), pkv_device_last_error(device->device));
    }
    assert_int_equal(status, PKV_OK);
    attention_run_compare(&run, &error);
    if (!(error.output <= 1.0 && error.lse <= 1.0)) {
        print_error("output %.3f lse %.3f of the bound; %s\n", error.output, error.lse,
                    error.where);
    }
    assert_true(error.output <= 1.0);
    assert_true(error.lse <= 1.0);
    attention_run_destroy(&run);
}

int main(void) {
    enum {
        NUM_PAIRS = sizeof pairs / sizeof pairs[0],
        NUM_SIZES = sizeof sizes / sizeof sizes[0],
        MOST = NUM_PAIRS * NUM_SIZES * 2 * NUM_PROPERTIES
    };
    static struct attention_case cases[MOST];
    static struct device_test tests[MOST];
    static char names[MOST][96];
    struct test_device devices[TEST_MAX_DEVICES];
    int num_devices = test_devices_open(devices, 1), count = 0;

    for (int i = 0; i < MOST; i++) {
        enum property property = (enum property)(i % NUM_PROPERTIES);
        bool is_large = i / NUM_PROPERTIES % 2 == 1;
        int size = i / NUM_PROPERTIES / 2 % NUM_SIZES;
        int pair = i / NUM_PROPERTIES / 2 / NUM_SIZES;
        bool has_scales = is_quantised(pairs[pair].kv);

        if (property == SCALES && !has_scales) {
            continue;
        }
        cases[count] = make_case(pair, size, is_large, property);
        (void)snprintf(names[count], sizeof names[count], "%s %d %s, %s", pairs[pair].name,
                       (int)sizes[size].head, is_large ? "large" : "small",
                       property_names[property]);
        tests[count] = (struct device_test){names[count], check, &cases[count]};
        count++;
    }
    int failures = device_tests_run("attention, instances", tests, count, devices, num_devices);
    int has_device = devices[0].device != NULL;

    test_devices_close(devices, num_devices);
    if (has_device && num_refused > 0) {
        print_message("%d cases have no kernel in this build\n", num_refused);
#ifndef TEST_SIMT
        return 1;
#endif
    }
    return failures;
}
