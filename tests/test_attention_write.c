/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Writing the cache: what is stored is, byte for byte, the nearest value of the cache's dtype as an
 * independent conversion gives it; everything else in the pool stays as it was. Rotation is checked
 * against double precision within one rounding. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/test_devices.h"

enum { NUM_TOKENS = 37, NUM_BLOCKS = 7, BLOCK_SIZE = 12, NUM_HEADS = 3, QUERY_HEADS = 6 };
enum { NUM_SIZES = 36 }; /* cases of add_sizes: twelve sizes, three kinds of cache */

/* One write: dtypes, sizes, scales, rotation. */
struct write_case {
    pkv_dtype source, cache;
    int32_t head_size, v_head_size, tail_size;
    enum case_scales scales;
    int32_t rotary_size, rotary_offset;
    bool is_interleaved, has_query;
};

struct write_run {
    struct write_case c;
    pkv_write_kv_args args;
    void *sources[4]; /* key, key_tail, value, query */
    size_t source_sizes[4];
    void *caches[2], *before[2];
    size_t cache_sizes[2];
    float *scales[2];
    int64_t slots[NUM_TOKENS], positions[NUM_TOKENS];
    float *cos, *sin;
};

/* Values with zeros, large and tiny ones, ties and non-finite ones among them. */
static double source_value(int which, int64_t token, int64_t head, int64_t d) {
    double value = tensor_value(17, which, token, head, d);

    if (token == 5) {
        return 0.0; /* a row of zeros: amax 0 */
    }
    if (token == 6 && d == 3) {
        return NAN;
    }
    if (token == 7 && d == 4) {
        return -INFINITY;
    }
    if (token == 8) {
        return ldexp(value, (int)(d % 40) - 20);
    }
    return token == 9 ? (double)d * 0.5 + 0.0625 : 3.0 * value;
}

static pkv_tensor make_source(struct write_run *run, int which, int32_t heads, int32_t size) {
    /* Strided: tokens are 8 elements further apart than they need be. */
    int64_t token_stride = heads * size + 8;
    const int64_t shape[] = {NUM_TOKENS, heads, size};
    pkv_tensor tensor;

    run->source_sizes[which] =
        (size_t)((NUM_TOKENS - 1) * token_stride + heads * size) * pkv_dtype_size(run->c.source);
    run->sources[which] = guarded_allocate(run->source_sizes[which], 0xff);
    tensor = tensor_view(run->sources[which], run->c.source, 3, shape);
    tensor.stride[0] = token_stride;
    for (int64_t token = 0; token < NUM_TOKENS; token++) {
        for (int64_t head = 0; head < heads; head++) {
            for (int64_t d = 0; d < size; d++) {
                tensor_encode(run->sources[which], run->c.source,
                              token * token_stride + head * size + d,
                              source_value(which, token, head, d));
            }
        }
    }
    return tensor;
}

static pkv_tensor make_cache(struct write_run *run, int which, int32_t size) {
    const int64_t shape[] = {NUM_BLOCKS, NUM_HEADS, BLOCK_SIZE, size};
    const int64_t scale_shape[] = {NUM_BLOCKS, NUM_HEADS, BLOCK_SIZE};
    pkv_tensor tensor = tensor_view(NULL, run->c.cache, 4, shape);
    pkv_tensor *scale = which == 0 ? &run->args.k_scale : &run->args.v_scale;
    size_t bytes = (size_t)tensor_count(&tensor) * pkv_dtype_size(run->c.cache);

    run->cache_sizes[which] = bytes;
    run->caches[which] = guarded_allocate(bytes, 0xc3);
    run->before[which] = guarded_allocate(bytes, 0xc3);
    tensor.data = run->caches[which];
    if (run->c.scales != CASE_SCALE_NONE) {
        run->scales[which] = calloc((size_t)(NUM_BLOCKS * NUM_HEADS * BLOCK_SIZE), sizeof(float));
        assert_non_null(run->scales[which]);
        for (int head = 0; head < NUM_HEADS; head++) {
            run->scales[which][head] = 0.01f * (float)(head + 1 + which);
        }
        int64_t one = run->c.scales == CASE_SCALE_TENSOR ? 1 : NUM_HEADS;
        bool is_token = run->c.scales == CASE_SCALE_TOKEN;
        *scale = tensor_view(run->scales[which], PKV_DTYPE_FLOAT32, is_token ? 3 : 1,
                             is_token ? scale_shape : &one);
    }
    return tensor;
}

static void open_run(struct write_run *run, const struct write_case *c) {
    int32_t half = c->rotary_size / 2;
    const int64_t angles_shape[] = {300000, half};

    memset(run, 0, sizeof *run);
    run->c = *c;
    run->args.struct_size = sizeof run->args;
    if (c->head_size > c->tail_size) {
        run->args.key = make_source(run, 0, NUM_HEADS, c->head_size - c->tail_size);
    }
    if (c->tail_size > 0) {
        run->args.key_tail = make_source(run, 1, NUM_HEADS, c->tail_size);
    }
    if (c->v_head_size > 0) {
        run->args.value = make_source(run, 2, NUM_HEADS, c->v_head_size);
        run->args.v_cache = make_cache(run, 1, c->v_head_size);
    }
    if (c->head_size > 0) {
        run->args.k_cache = make_cache(run, 0, c->head_size);
    }
    if (c->has_query) {
        run->args.query = make_source(run, 3, QUERY_HEADS, c->head_size);
    }
    for (int token = 0; token < NUM_TOKENS; token++) {
        /* Every slot at most once, the last one of the pool among them; some tokens are skipped. */
        run->slots[token] =
            token % 11 == 10 ? PKV_NO_SLOT : NUM_BLOCKS * BLOCK_SIZE - 1 - 2 * token;
        run->positions[token] = token == 3 ? 200001 : token * 7;
    }
    run->args.slot_mapping = run->slots;
    if (half > 0) {
        run->cos = calloc((size_t)(300000 * half), sizeof(float));
        run->sin = calloc((size_t)(300000 * half), sizeof(float));
        assert_true(run->cos != NULL && run->sin != NULL);
        for (int token = 0; token < NUM_TOKENS; token++) {
            for (int i = 0; i < half; i++) {
                double angle = (double)run->positions[token] * pow(10000.0, -(double)i / half);

                run->cos[run->positions[token] * half + i] = (float)cos(angle);
                run->sin[run->positions[token] * half + i] = (float)sin(angle);
            }
        }
        run->args.cos = tensor_view(run->cos, PKV_DTYPE_FLOAT32, 2, angles_shape);
        run->args.sin = tensor_view(run->sin, PKV_DTYPE_FLOAT32, 2, angles_shape);
        run->args.positions = run->positions;
        run->args.rotary_offset = c->rotary_offset;
        run->args.flags = c->is_interleaved ? PKV_WRITE_ROPE_INTERLEAVED : 0;
    }
}

static void close_run(struct write_run *run) {
    for (int i = 0; i < 4; i++) {
        guarded_release(run->sources[i], run->source_sizes[i]);
    }
    for (int i = 0; i < 2; i++) {
        guarded_release(run->caches[i], run->cache_sizes[i]);
        guarded_release(run->before[i], run->cache_sizes[i]);
        free(run->scales[i]);
    }
    free(run->cos);
    free(run->sin);
}

/* The source row of a head as floats, rotated. */
static void expected_row(
    const struct write_run *run, int which, int64_t token, int64_t head, float *row) {
    const struct write_case *c = &run->c;
    int32_t size = which == 2 ? c->v_head_size : c->head_size;
    int32_t half = c->rotary_size / 2;
    char scratch[2 * 4];

    for (int32_t d = 0; d < size; d++) {
        bool is_tail = which == 0 && d >= size - c->tail_size;
        double value = is_tail ? source_value(1, token, head, d - (size - c->tail_size))
                               : source_value(which, token, head, d);

        tensor_encode(scratch, c->source, 0, value);
        row[d] = (float)tensor_decode(scratch, c->source, 0);
    }
    for (int32_t i = 0; i < half && which != 2; i++) {
        int32_t first = c->rotary_offset + (c->is_interleaved ? 2 * i : i);
        int32_t second = c->is_interleaved ? first + 1 : first + half;
        double x = (double)row[first], y = (double)row[second];
        double cosine = (double)run->cos[run->positions[token] * half + i];
        double sine = (double)run->sin[run->positions[token] * half + i];

        row[first] = (float)(x * cosine - y * sine);
        row[second] = (float)(y * cosine + x * sine);
    }
}

/* Scale that a row is stored with; checks the one that was written. */
static float expected_scale(const struct write_run *run,
                            int which,
                            int64_t slot,
                            int64_t head,
                            const float *row,
                            int32_t size) {
    float largest = 0.0f;

    if (run->c.scales == CASE_SCALE_NONE) {
        return 1.0f;
    }
    if (run->c.scales != CASE_SCALE_TOKEN) {
        return run->scales[which][run->c.scales == CASE_SCALE_HEAD ? head : 0];
    }
    for (int32_t d = 0; d < size; d++) {
        if (isfinite(row[d]) && fabsf(row[d]) > largest) {
            largest = fabsf(row[d]);
        }
    }
    float scale = largest / (run->c.cache == PKV_DTYPE_INT8 ? 127.0f : 448.0f);
    int64_t index = (slot / BLOCK_SIZE * NUM_HEADS + head) * BLOCK_SIZE + slot % BLOCK_SIZE;
    assert_true(run->scales[which][index] == scale);
    return scale;
}

/* Put what is expected into `before`, and compare the whole cache. */
static void check_cache(struct write_run *run, int which) {
    int32_t size = which == 0 ? run->c.head_size : run->c.v_head_size;
    float *row = malloc((size_t)(size + 1) * sizeof *row);

    assert_non_null(row);
    for (int64_t token = 0; token < NUM_TOKENS; token++) {
        int64_t slot = run->slots[token];

        for (int64_t head = 0; slot >= 0 && head < NUM_HEADS; head++) {
            int64_t index =
                ((slot / BLOCK_SIZE * NUM_HEADS + head) * BLOCK_SIZE + slot % BLOCK_SIZE) * size;

            expected_row(run, which == 0 ? 0 : 2, token, head, row);
            float scale = expected_scale(run, which, slot, head, row, size);
            for (int32_t d = 0; d < size; d++) {
                float value = scale == 0.0f && !isnan(row[d]) ? 0.0f : row[d] / scale;
                char got[4] = {0}, wanted[4] = {0};
                size_t bytes = pkv_dtype_size(run->c.cache);

                memcpy(got, (char *)run->caches[which] + (size_t)(index + d) * bytes, bytes);
                tensor_encode(wanted, run->c.cache, 0, (double)value);
                if (isnan(value) && run->c.cache != PKV_DTYPE_INT8) {
                    assert_true(isnan(tensor_decode(got, run->c.cache, 0)));
                } else {
                    assert_memory_equal(got, wanted, bytes);
                }
                memcpy((char *)run->before[which] + (size_t)(index + d) * bytes, got, bytes);
            }
        }
    }
    assert_memory_equal(run->before[which], run->caches[which], run->cache_sizes[which]);
    free(row);
}

static void check_query(const struct write_run *run) {
    float row[PKV_MAX_HEAD_SIZE];

    for (int64_t token = 0; token < NUM_TOKENS; token++) {
        for (int64_t head = 0; head < QUERY_HEADS; head++) {
            expected_row(run, 3, token, head, row);
            for (int32_t d = 0; d < run->c.head_size; d++) {
                char wanted[4];
                int64_t index = token * run->args.query.stride[0] + head * run->c.head_size + d;
                double got = tensor_decode(run->sources[3], run->c.source, index);

                tensor_encode(wanted, run->c.source, 0, (double)row[d]);
                double exact = tensor_decode(wanted, run->c.source, 0);
                assert_true(got == exact || (isnan(got) && isnan(exact)));
            }
        }
    }
}

/* Run on the device's memory. */
static pkv_status execute(const struct write_run *run, const struct test_device *device) {
    pkv_write_kv_args args = run->args;
    pkv_tensor *sources[] = {&args.key, &args.key_tail, &args.value, &args.query};
    pkv_tensor *caches[] = {&args.k_cache, &args.v_cache};
    pkv_tensor *scales[] = {&args.k_scale, &args.v_scale};
    size_t num_scales = NUM_BLOCKS * NUM_HEADS * BLOCK_SIZE;
    size_t num_angles = (size_t)(args.cos.shape[0] * args.cos.shape[1]);
    struct device_twins twins;

    device_twins_open(&twins, device);
    for (int i = 0; i < 4; i++) {
        sources[i]->data = device_twins_write(&twins, run->sources[i], run->source_sizes[i]);
    }
    for (int i = 0; i < 2; i++) {
        caches[i]->data = device_twins_write(&twins, run->caches[i], run->cache_sizes[i]);
        scales[i]->data = device_twins_write(&twins, run->scales[i], num_scales * sizeof(float));
    }
    args.slot_mapping = device_twins_read(&twins, run->slots, sizeof run->slots);
    if (args.positions != NULL) {
        args.positions = device_twins_read(&twins, run->positions, sizeof run->positions);
        args.cos.data = device_twins_read(&twins, run->cos, num_angles * sizeof(float));
        args.sin.data = device_twins_read(&twins, run->sin, num_angles * sizeof(float));
    }
    return device_twins_close(&twins, pkv_write_kv(device->device, &args, NULL));
}

static void check_write(const struct test_device *device, const void *context) {
    struct write_run run;

    open_run(&run, context);
    pkv_status status = execute(&run, device);
    if (status != PKV_OK) {
        print_error("%s\n", pkv_device_last_error(device->device));
    }
    assert_int_equal(status, PKV_OK);
    if (run.c.head_size > 0) {
        check_cache(&run, 0);
    }
    if (run.c.v_head_size > 0) {
        check_cache(&run, 1);
    }
    if (run.c.has_query) {
        check_query(&run);
    }
    close_run(&run);
}

/* Refused as a whole: one bad slot or position among many good ones, and nothing is written. */
static void check_refusals(const struct test_device *device, const void *context) {
    const struct write_case c = {
        PKV_DTYPE_FLOAT32, PKV_DTYPE_FLOAT32, 16, 16, 0, CASE_SCALE_NONE, 8, 0, false, false};
    struct write_run run;

    (void)context;
    open_run(&run, &c);
    if (device->memory == NULL) { /* else the host cannot see them */
        run.slots[30] = NUM_BLOCKS * BLOCK_SIZE;
        assert_int_equal(execute(&run, device), PKV_ERROR_INVALID_ARGUMENT);
        run.slots[30] = -2;
        assert_int_equal(execute(&run, device), PKV_ERROR_INVALID_ARGUMENT);
        run.slots[30] = 20;
        run.positions[30] = 300000;
        assert_int_equal(execute(&run, device), PKV_ERROR_INVALID_ARGUMENT);
        assert_non_null(strstr(pkv_device_last_error(device->device), "positions[30]"));
        run.positions[30] = 3;
    }
    run.args.rotary_offset = 12;
    assert_int_equal(execute(&run, device), PKV_ERROR_INVALID_ARGUMENT);
    run.args.rotary_offset = 0;
    run.args.key.shape[1] = NUM_HEADS - 1;
    assert_int_equal(execute(&run, device), PKV_ERROR_INVALID_ARGUMENT);
    assert_non_null(strstr(pkv_device_last_error(device->device), "num_kv_heads"));
    run.args.key.shape[1] = NUM_HEADS;
    run.args.k_cache.dtype = run.args.v_cache.dtype = PKV_DTYPE_FLOAT16;
    run.args.key.dtype = run.args.value.dtype = PKV_DTYPE_BFLOAT16;
    assert_int_equal(execute(&run, device), PKV_ERROR_UNSUPPORTED);
    assert_memory_equal(run.before[0], run.caches[0], run.cache_sizes[0]);
    assert_memory_equal(run.before[1], run.caches[1], run.cache_sizes[1]);
    run.args.key.shape[0] = run.args.value.shape[0] = 0; /* no tokens: nothing to do */
    run.args.key.dtype = run.args.value.dtype = PKV_DTYPE_FLOAT16;
    assert_int_equal(execute(&run, device), PKV_OK);
    close_run(&run);
}

/* Rows of every width, 16-bit and 8-bit. */
static void add_sizes(struct write_case *cases) {
    static const int32_t sizes[] = {40, 48, 64, 72, 80, 96, 120, 128, 144, 192, 256, 576};
    static const pkv_dtype dtypes[][2] = {{PKV_DTYPE_BFLOAT16, PKV_DTYPE_BFLOAT16},
                                          {PKV_DTYPE_FLOAT16, PKV_DTYPE_FLOAT16},
                                          {PKV_DTYPE_BFLOAT16, PKV_DTYPE_FLOAT8_E4M3}};

    for (int i = 0; i < NUM_SIZES; i++) {
        const pkv_dtype *pair = dtypes[i % 3];

        cases[i] = (struct write_case){
            .source = pair[0],
            .cache = pair[1],
            .head_size = sizes[i / 3],
            .v_head_size = sizes[i / 3],
            .scales = pair[1] != PKV_DTYPE_FLOAT8_E4M3 ? CASE_SCALE_NONE
                      : i / 3 % 2 == 0                 ? CASE_SCALE_TOKEN
                                                       : CASE_SCALE_HEAD,
            .rotary_size = i / 3 % 3 == 0 ? sizes[i / 3] : 0,
        };
    }
}

int main(void) {
    static const struct write_case written[] = {
        {PKV_DTYPE_FLOAT32, PKV_DTYPE_FLOAT32, 64, 64, 0, CASE_SCALE_NONE, 0, 0, false, false},
        {PKV_DTYPE_FLOAT32, PKV_DTYPE_FLOAT16, 72, 40, 0, CASE_SCALE_NONE, 0, 0, false, false},
        {PKV_DTYPE_FLOAT32, PKV_DTYPE_BFLOAT16, 72, 40, 0, CASE_SCALE_NONE, 72, 0, true, true},
        {PKV_DTYPE_FLOAT16, PKV_DTYPE_FLOAT16, 128, 128, 0, CASE_SCALE_NONE, 128, 0, false, true},
        {PKV_DTYPE_BFLOAT16, PKV_DTYPE_BFLOAT16, 80, 80, 0, CASE_SCALE_NONE, 32, 0, false, true},
        {PKV_DTYPE_BFLOAT16, PKV_DTYPE_FLOAT8_E4M3, 64, 64, 0, CASE_SCALE_NONE, 0, 0, false, false},
        {PKV_DTYPE_FLOAT16, PKV_DTYPE_FLOAT8_E4M3, 64, 64, 0, CASE_SCALE_TENSOR, 64, 0, false,
         true},
        {PKV_DTYPE_FLOAT32, PKV_DTYPE_FLOAT8_E4M3, 24, 8, 0, CASE_SCALE_HEAD, 0, 0, false, false},
        {PKV_DTYPE_FLOAT32, PKV_DTYPE_FLOAT8_E4M3, 64, 64, 0, CASE_SCALE_TOKEN, 16, 8, true, false},
        {PKV_DTYPE_BFLOAT16, PKV_DTYPE_INT8, 64, 64, 0, CASE_SCALE_TOKEN, 64, 0, false, false},
        {PKV_DTYPE_FLOAT16, PKV_DTYPE_INT8, 64, 64, 0, CASE_SCALE_HEAD, 0, 0, false, false},
        {PKV_DTYPE_FLOAT32, PKV_DTYPE_INT8, 64, 64, 0, CASE_SCALE_TENSOR, 0, 0, false, false},
        /* Latent attention: two sources make one row, the tail is rotated; no values. */
        {PKV_DTYPE_BFLOAT16, PKV_DTYPE_BFLOAT16, 576, 0, 64, CASE_SCALE_NONE, 64, 512, true, true},
        /* Only values, only a tail. */
        {PKV_DTYPE_FLOAT16, PKV_DTYPE_FLOAT16, 0, 64, 0, CASE_SCALE_NONE, 0, 0, false, false},
        {PKV_DTYPE_FLOAT16, PKV_DTYPE_FLOAT16, 64, 0, 64, CASE_SCALE_NONE, 0, 0, false, false},
    };
    enum { NUM_WRITTEN = sizeof written / sizeof written[0], NUM_CASES = NUM_WRITTEN + NUM_SIZES };
    static struct write_case cases[NUM_CASES];
    static char names[NUM_CASES][64];
    struct device_test tests[NUM_CASES + 1];
    struct test_device devices[TEST_MAX_DEVICES];
    int num_devices = test_devices_open(devices, 3);

    memcpy(cases, written, sizeof written);
    add_sizes(cases + NUM_WRITTEN);
    for (int i = 0; i < NUM_CASES; i++) {
        (void)snprintf(names[i], sizeof names[i], "%d: dtype %d into %d, sizes %d and %d", i,
                       (int)cases[i].source, (int)cases[i].cache, (int)cases[i].head_size,
                       (int)cases[i].v_head_size);
        tests[i] = (struct device_test){names[i], check_write, &cases[i]};
    }
    tests[NUM_CASES] = (struct device_test){"refusals write nothing", check_refusals, NULL};
    int failures = device_tests_run("write_kv", tests, NUM_CASES + 1, devices, num_devices);
    test_devices_close(devices, num_devices);
    return failures;
}
