/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Merging partial attention: against double precision; empty parts (their output may be NaN), equal
 * and far apart lse, one to 64 parts, in any order, in place; and the cascade over a shared prefix
 * as prefix call, suffix call and merge, with sinks counted once. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/test_devices.h"

enum { TOKENS = 19, HEADS = 3, SIZE = 40 };

/* Which lse a part has at a token: all the situations that occur. */
static float part_lse(int part, int token) {
    switch (token % 5) {
    case 0:
        return -INFINITY;
    case 1:
        return part == 1 ? 3.0f : -INFINITY;
    case 2:
        return 2.5f;
    case 3:
        return part % 2 == 0 ? 140.0f : -20.0f;
    default:
        return (float)(4.0 * tensor_value(3, part, token, 0, 0));
    }
}

static size_t bytes_of(const pkv_tensor *tensor) {
    int64_t count = 1;

    for (int i = 0; i < tensor->rank; i++) {
        count *= tensor->shape[i];
    }
    return (size_t)count * pkv_dtype_size(tensor->dtype);
}

/* Merge dense host arrays on the device; the output may be one of the parts. */
static pkv_status merge(const struct test_device *device, const pkv_merge_args *args) {
    pkv_tensor outputs[PKV_MAX_MERGE_PARTS], lses[PKV_MAX_MERGE_PARTS];
    pkv_merge_args call = *args;
    struct device_twins twins;
    bool is_in_place = false;

    device_twins_open(&twins, device);
    for (int32_t part = 0; part < args->num_parts; part++) {
        outputs[part] = args->outputs[part];
        lses[part] = args->lses[part];
        outputs[part].data =
            device_twins_write(&twins, outputs[part].data, bytes_of(&outputs[part]));
        lses[part].data = device_twins_write(&twins, lses[part].data, bytes_of(&lses[part]));
        if (args->output.data == args->outputs[part].data) {
            call.output.data = outputs[part].data;
            call.lse.data = lses[part].data;
            is_in_place = true;
        }
    }
    if (!is_in_place) {
        call.output.data = device_twins_write(&twins, args->output.data, bytes_of(&args->output));
        call.lse.data = device_twins_write(&twins, args->lse.data, bytes_of(&args->lse));
    }
    call.outputs = outputs;
    call.lses = lses;
    return device_twins_close(&twins, pkv_merge_states(device->device, &call, NULL));
}

/* One merged row against its weighted sums. */
static void expect_merged(const pkv_merge_args *args, int row, const double *sum) {
    float got_lse = ((const float *)args->lse.data)[row];
    double step = args->output.dtype == PKV_DTYPE_BFLOAT16  ? 0x1p-8
                  : args->output.dtype == PKV_DTYPE_FLOAT16 ? 0x1p-11
                                                            : 0x1p-22;

    if (sum[SIZE] == 0.0) {
        assert_true(got_lse == -INFINITY);
    } else {
        double wanted = 140.0 + log(sum[SIZE]);

        assert_true(fabs((double)got_lse - wanted) <= 1e-5 + 1e-6 * fabs(wanted));
    }
    for (int d = 0; d < SIZE; d++) {
        double wanted = sum[SIZE] == 0.0 ? 0.0 : sum[d] / sum[SIZE];
        double got = tensor_decode(args->output.data, args->output.dtype, row * SIZE + d);

        assert_true(fabs(got - wanted) <= step * fabs(wanted) + 1e-6);
    }
}

static void check_parts(const struct test_device *device,
                        pkv_dtype dtype,
                        pkv_dtype out_dtype,
                        int num_parts,
                        int in_place) {
    const int64_t shape[] = {TOKENS, HEADS, SIZE};
    size_t size = TOKENS * HEADS * SIZE * pkv_dtype_size(dtype);
    size_t out_size = TOKENS * HEADS * SIZE * pkv_dtype_size(out_dtype);
    size_t lse_size = TOKENS * HEADS * sizeof(float);
    pkv_tensor outputs[PKV_MAX_MERGE_PARTS], lses[PKV_MAX_MERGE_PARTS];
    void *output = guarded_allocate(out_size, 0xa5), *lse = guarded_allocate(lse_size, 0xa5);
    double *sums = calloc(TOKENS * HEADS * (SIZE + 3), sizeof(double));
    pkv_merge_args args = {.struct_size = sizeof args,
                           .num_parts = num_parts,
                           .outputs = outputs,
                           .lses = lses,
                           .output = tensor_view(output, out_dtype, 3, shape),
                           .lse = tensor_view(lse, PKV_DTYPE_FLOAT32, 2, shape)};

    assert_non_null(sums);
    for (int part = 0; part < num_parts; part++) {
        outputs[part] = tensor_view(guarded_allocate(size, 0xff), dtype, 3, shape);
        lses[part] = tensor_view(guarded_allocate(lse_size, 0), PKV_DTYPE_FLOAT32, 2, shape);
        for (int row = 0; row < TOKENS * HEADS; row++) {
            double *sum = sums + row * (SIZE + 3);
            float l = part_lse(part, row / HEADS);
            double weight = exp((double)l - 140.0); /* 140 is the largest that occurs */

            ((float *)lses[part].data)[row] = l;
            sum[SIZE] += weight;
            for (int d = 0; l > -INFINITY && d < SIZE; d++) {
                tensor_encode(outputs[part].data, dtype, row * SIZE + d,
                              tensor_value(9, part, row, d, 0));
                sum[d] += weight * tensor_decode(outputs[part].data, dtype, row * SIZE + d);
            }
        }
    }
    if (in_place >= 0) {
        args.output = outputs[in_place];
        args.lse = lses[in_place];
    }
    assert_int_equal(merge(device, &args), PKV_OK);
    for (int row = 0; row < TOKENS * HEADS; row++) {
        expect_merged(&args, row, sums + row * (SIZE + 3));
    }
    for (int part = 0; part < num_parts; part++) {
        guarded_release(outputs[part].data, size);
        guarded_release(lses[part].data, lse_size);
    }
    guarded_release(output, out_size);
    guarded_release(lse, lse_size);
    free(sums);
}

static void parts(const struct test_device *device, const void *context) {
    (void)context;
    check_parts(device, PKV_DTYPE_FLOAT32, PKV_DTYPE_FLOAT32, 1, -1);
    check_parts(device, PKV_DTYPE_FLOAT32, PKV_DTYPE_FLOAT32, 2, -1);
    check_parts(device, PKV_DTYPE_FLOAT32, PKV_DTYPE_BFLOAT16, 3, -1);
    check_parts(device, PKV_DTYPE_FLOAT16, PKV_DTYPE_FLOAT16, 2, -1);
    check_parts(device, PKV_DTYPE_BFLOAT16, PKV_DTYPE_FLOAT32, 5, -1);
    check_parts(device, PKV_DTYPE_FLOAT32, PKV_DTYPE_FLOAT32, 64, -1);
    check_parts(device, PKV_DTYPE_FLOAT32, PKV_DTYPE_FLOAT32, 3, 1);
}

/* The parts given in reverse and rotated: the same sums of the same numbers, in another order. */
static void parts_out_of_order(const struct test_device *device, const void *context) {
    enum { NUM = 7, ROWS = TOKENS * HEADS };
    const int64_t shape[] = {TOKENS, HEADS, SIZE};
    static float parts_of[NUM][ROWS * SIZE], lses_of[NUM][ROWS];
    static float output[3][ROWS * SIZE], lse[3][ROWS];

    (void)context;
    for (int part = 0; part < NUM; part++) {
        for (int row = 0; row < ROWS; row++) {
            lses_of[part][row] = part_lse(part, row / HEADS);
            for (int d = 0; d < SIZE; d++) {
                parts_of[part][row * SIZE + d] =
                    lses_of[part][row] > -INFINITY ? (float)tensor_value(9, part, row, d, 0) : NAN;
            }
        }
    }
    for (int order = 0; order < 3; order++) {
        pkv_tensor outputs[NUM], lses[NUM];

        for (int i = 0; i < NUM; i++) {
            int part = order == 0 ? i : order == 1 ? NUM - 1 - i : (i + 3) % NUM;

            outputs[i] = tensor_view(parts_of[part], PKV_DTYPE_FLOAT32, 3, shape);
            lses[i] = tensor_view(lses_of[part], PKV_DTYPE_FLOAT32, 2, shape);
        }
        const pkv_merge_args args = {.struct_size = sizeof args,
                                     .num_parts = NUM,
                                     .outputs = outputs,
                                     .lses = lses,
                                     .output =
                                         tensor_view(output[order], PKV_DTYPE_FLOAT32, 3, shape),
                                     .lse = tensor_view(lse[order], PKV_DTYPE_FLOAT32, 2, shape)};
        assert_int_equal(merge(device, &args), PKV_OK);
    }
    /* Seven terms and weights of a few roundings each, none above 1. */
    for (int order = 1; order < 3; order++) {
        for (int row = 0; row < ROWS; row++) {
            float a = lse[0][row], b = lse[order][row];

            assert_true(a == b ||
                        fabs((double)a - (double)b) <= 0x1p-20 + 0x1p-22 * fabs((double)a));
            for (int d = 0; d < SIZE; d++) {
                assert_true(fabs((double)output[0][row * SIZE + d] -
                                 (double)output[order][row * SIZE + d]) <= 64 * 0x1p-24);
            }
        }
    }
}

static void bad_merges(const struct test_device *device, const void *context) {
    const int64_t shape[] = {2, 1, 8};
    _Alignas(16) float a[16] = {0};
    float l[2] = {0};
    pkv_tensor outputs = tensor_view(a, PKV_DTYPE_FLOAT32, 3, shape);
    pkv_tensor lses = tensor_view(l, PKV_DTYPE_FLOAT32, 2, shape);
    pkv_merge_args args = {.struct_size = sizeof args,
                           .num_parts = 0,
                           .outputs = &outputs,
                           .lses = &lses,
                           .output = outputs};

    (void)context;
    assert_int_equal(pkv_merge_states(device->device, &args, NULL), PKV_ERROR_INVALID_ARGUMENT);
    args.num_parts = PKV_MAX_MERGE_PARTS + 1;
    assert_int_equal(pkv_merge_states(device->device, &args, NULL), PKV_ERROR_INVALID_ARGUMENT);
    args.num_parts = 1;
    lses.shape[0] = 3;
    assert_int_equal(pkv_merge_states(device->device, &args, NULL), PKV_ERROR_INVALID_ARGUMENT);
    assert_non_null(strstr(pkv_device_last_error(device->device), "lses[0].shape[0]"));
    lses.shape[0] = 2;
    args.output.dtype = PKV_DTYPE_INT8;
    assert_int_equal(pkv_merge_states(device->device, &args, NULL), PKV_ERROR_UNSUPPORTED);
    args.output = outputs;
    args.lse = lses;
    assert_int_equal(merge(device, &args), PKV_OK);
}

/* The first blocks of request 0 are every request's. */
static void share_prefix(struct attention_run *run,
                         const struct test_device *device,
                         int num_blocks) {
    int32_t *rows = run->table.host;

    for (int i = 1; i < run->c.num_requests; i++) {
        memcpy(rows + run->rows[i] * run->num_columns, rows + run->rows[0] * run->num_columns,
               (size_t)num_blocks * sizeof *rows);
    }
    if (device->memory != NULL) {
        device->memory->upload(device->memory->context, run->table.device, rows, run->table.size);
    }
}

/* Three requests over a shared prefix of 80 keys: one non-causal call for all their queries over
 * the prefix, one causal call over the suffixes, merged; against one call over everything. */
static void cascade(const struct test_device *device, const void *context) {
    enum { PREFIX = 80, NUM = 3 };
    struct attention_case whole_case = {.query_dtype = PKV_DTYPE_FLOAT16,
                                        .float_output = true,
                                        .num_query_heads = 6,
                                        .num_kv_heads = 2,
                                        .num_requests = NUM,
                                        .query_lens = {1, 1, 4},
                                        .seq_lens = {PREFIX + 5, PREFIX + 33, PREFIX + 20},
                                        .has_sinks = true};
    struct attention_case prefix_case = whole_case, suffix_case = whole_case;
    struct attention_run whole, prefix, suffix;
    struct attention_error error;

    (void)context;
    prefix_case.num_requests = 1;
    prefix_case.query_lens[0] = 6;
    prefix_case.seq_lens[0] = PREFIX;
    prefix_case.non_causal = true;
    prefix_case.has_sinks = false;
    for (int i = 0; i < NUM; i++) {
        suffix_case.seq_lens[i] -= PREFIX;
    }
    attention_run_create(&whole, &whole_case, device->memory);
    attention_run_create(&prefix, &prefix_case, device->memory);
    attention_run_create(&suffix, &suffix_case, device->memory);
    /* All read the whole case's pool. */
    share_prefix(&whole, device, PREFIX / 16);
    prefix.args.query = suffix.args.query = whole.args.query;
    prefix.args.k_cache = suffix.args.k_cache = whole.args.k_cache;
    prefix.args.v_cache = suffix.args.v_cache = whole.args.v_cache;
    prefix.args.block_table = suffix.args.block_table = whole.args.block_table;
    prefix.args.block_table_stride = whole.num_columns;
    suffix.args.block_table_stride = whole.num_columns;
    suffix.args.block_table += PREFIX / 16;
    suffix.args.sinks = whole.args.sinks;
    assert_int_equal(attention_run_execute(&whole, device->device), PKV_OK);
    assert_int_equal(attention_run_execute(&prefix, device->device), PKV_OK);
    assert_int_equal(attention_run_execute(&suffix, device->device), PKV_OK);
    attention_run_compare(&whole, &error);
    assert_true(error.output <= 1.0 && error.lse <= 1.0);

    const int64_t shape[] = {6, 6, 64};
    pkv_tensor outputs[] = {tensor_view(prefix.output.host, PKV_DTYPE_FLOAT32, 3, shape),
                            tensor_view(suffix.output.host, PKV_DTYPE_FLOAT32, 3, shape)};
    pkv_tensor lses[] = {tensor_view(prefix.lse.host, PKV_DTYPE_FLOAT32, 2, shape),
                         tensor_view(suffix.lse.host, PKV_DTYPE_FLOAT32, 2, shape)};
    const pkv_merge_args parts_of_two = {.struct_size = sizeof parts_of_two,
                                         .num_parts = 2,
                                         .outputs = outputs,
                                         .lses = lses,
                                         .output = outputs[0],
                                         .lse = lses[0]};
    assert_int_equal(merge(device, &parts_of_two), PKV_OK);
    memcpy(whole.output.host, prefix.output.host, (size_t)(6 * 6 * 64) * sizeof(float));
    memcpy(whole.lse.host, prefix.lse.host, (size_t)(6 * 6) * sizeof(float));
    attention_run_compare(&whole, &error);
    if (error.output > 1.0 || error.lse > 1.0) {
        print_error("%s\n", error.where);
    }
    assert_true(error.output <= 1.0);
    assert_true(error.lse <= 1.0);
    attention_run_destroy(&whole);
    attention_run_destroy(&prefix);
    attention_run_destroy(&suffix);
}

int main(void) {
    const struct device_test tests[] = {
        {"parts", parts, NULL},
        {"parts out of order", parts_out_of_order, NULL},
        {"bad merges", bad_merges, NULL},
        {"cascade over a shared prefix", cascade, NULL},
    };
    struct test_device devices[TEST_MAX_DEVICES];
    int num_devices = test_devices_open(devices, 2);
    int failures = device_tests_run("merge", tests, (int)(sizeof tests / sizeof tests[0]), devices,
                                    num_devices);

    test_devices_close(devices, num_devices);
    return failures;
}
