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

#ifdef TEST_SIMT
#include "simt/simt_control.h"
#endif

/* A test build may have some of the kernels only; every other library has to have all. */
#if defined TEST_SIMT && !defined TEST_ALL_KERNELS
enum { MAY_LACK_KERNELS = 1 };
#else
enum { MAY_LACK_KERNELS = 0 };
#endif

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

static bool is_supported(const struct test_device *device,
                         const struct attention_case *c,
                         const char *name) {
    const pkv_attention_shape shape = attention_case_shape(c);
    const char *reason;
    bool answer = pkv_attention_supports(device->device, &shape, &reason);

    if (!answer && !MAY_LACK_KERNELS) {
        print_error("%s: %s\n", name, reason);
    }
    return answer;
}

/* Rows that a matrix load of the case read from the same banks: none. */
static void expect_no_bank_conflicts(void) {
#ifdef TEST_SIMT
    simt_counts counts;

    simt_get_counts(&counts);
    assert_int_equal(counts.num_bank_conflicts, 0);
    simt_reset_counts();
#endif
}

static void check(const struct test_device *device, const void *context) {
    struct attention_run run;
    struct attention_error error;

    attention_run_create(&run, context, device->memory);
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
    expect_no_bank_conflicts();
    attention_run_destroy(&run);
}

/* What shows that a run left kernels out: cases without one, and, where all cases ran, kernels
 * without a case. Returns the number of failures. */
static int check_coverage(int num_refused) {
    int num_missing = 0;

    if (num_refused > 0) {
        print_message("%d cases have no kernel in this build\n", num_refused);
        num_missing += MAY_LACK_KERNELS ? 0 : num_refused;
    }
#ifdef TEST_SIMT
    if (getenv("PKV_TEST_SHARD") == NULL) {
        num_missing += simt_print_idle_kernels();
    }
#endif
    return num_missing;
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
    int num_devices = test_devices_open(devices, 1), count = 0, num_refused = 0;

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
        /* Before the cases are dealt out, so that a shard is one of those that can run. */
        if (devices[0].device != NULL && !is_supported(&devices[0], &cases[count], names[count])) {
            num_refused++;
            continue;
        }
        tests[count] = (struct device_test){names[count], check, &cases[count]};
        count++;
    }
    int failures = device_tests_run("attention, instances", tests, count, devices, num_devices);
    bool has_device = devices[0].device != NULL;

    test_devices_close(devices, num_devices);
    failures += has_device ? check_coverage(num_refused) : 0;
    return failures > 0 ? 1 : 0;
}
