/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Attention over very many keys and over very many requests: up to a million keys of one request,
 * more requests than 16 bits can count, one long request among many short ones.
 *
 * The one idea: a table may name the same blocks again and again. Keys repeated n times leave the
 * output as it is and add log(n) to the lse, so that a million keys need no memory, and what they
 * have to give follows in double precision from the few that there are. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/test_devices.h"

enum { BLOCK = 16, SIZE = 64, PERIOD = 1024, NUM_BLOCKS = PERIOD / BLOCK + 1 };

/* One call with one head: the caller's lengths, everything else made here. */
struct call {
    pkv_dtype dtype;
    int32_t num_requests, num_columns;
    int32_t *lens, *starts, *rows, *table; /* row i is request i's */
    void *pool, *query, *output;
    size_t pool_size;
    float *lse;
    pkv_plan *plan;
    void *plan_data, *workspace;
    pkv_attention_args args;
};

static void *allocate(size_t size) {
    void *memory = aligned_alloc(64, (size + 127) / 64 * 64);

    assert_non_null(memory);
    return memory;
}

/* Requests of one query token; request i has lens[i] keys. `factor` multiplies the query. */
static void open_call(
    struct call *call, pkv_dtype dtype, int32_t num_requests, const int32_t *lens, double factor) {
    const int64_t cache_shape[] = {NUM_BLOCKS, 1, BLOCK, SIZE};
    const int64_t shape[] = {num_requests, 1, SIZE};
    size_t element = pkv_dtype_size(dtype), keys = (size_t)NUM_BLOCKS * BLOCK * SIZE;

    memset(call, 0, sizeof *call);
    call->dtype = dtype;
    call->num_requests = num_requests;
    call->lens = allocate((size_t)num_requests * sizeof(int32_t));
    call->rows = allocate((size_t)num_requests * sizeof(int32_t));
    call->starts = allocate((size_t)(num_requests + 1) * sizeof(int32_t));
    call->num_columns = 1;
    for (int32_t i = 0; i < num_requests; i++) {
        int32_t columns = (lens[i] + BLOCK - 1) / BLOCK;

        call->lens[i] = lens[i];
        call->rows[i] = i;
        call->starts[i] = i;
        call->num_columns = columns > call->num_columns ? columns : call->num_columns;
    }
    call->starts[num_requests] = num_requests;
    call->pool_size = 2 * keys * element;
    call->pool = allocate(call->pool_size);
    call->query = allocate((size_t)num_requests * SIZE * element);
    call->output = allocate((size_t)num_requests * SIZE * sizeof(float));
    call->lse = allocate((size_t)num_requests * sizeof(float));
    for (int64_t i = 0; i < (int64_t)(2 * keys); i++) {
        tensor_encode(call->pool, dtype, i, tensor_value(21, i, 0, 0, 0));
    }
    for (int64_t i = 0; i < (int64_t)num_requests * SIZE; i++) {
        tensor_encode(call->query, dtype, i, factor * tensor_value(22, i % SIZE, 0, 0, 0));
    }
    call->args = (pkv_attention_args){
        .struct_size = sizeof call->args,
        .query = tensor_view(call->query, dtype, 3, shape),
        .output = tensor_view(call->output, PKV_DTYPE_FLOAT32, 3, shape),
        .lse = tensor_view(call->lse, PKV_DTYPE_FLOAT32, 2, shape),
        .k_cache = tensor_view(call->pool, dtype, 4, cache_shape),
        .v_cache = tensor_view((unsigned char *)call->pool + keys * element, dtype, 4, cache_shape),
        .seq_lens = call->lens,
        .query_start_loc = call->starts,
    };
}

/* Rows of the table that repeat the same blocks; where there are many requests they share a row. */
static void make_table(struct call *call, bool is_shared) {
    int32_t num_rows = is_shared ? 1 : call->num_requests;

    call->table = allocate((size_t)num_rows * (size_t)call->num_columns * sizeof(int32_t));
    for (int32_t row = 0; row < num_rows; row++) {
        for (int32_t column = 0; column < call->num_columns; column++) {
            call->table[(int64_t)row * call->num_columns + column] = 1 + column % (NUM_BLOCKS - 1);
        }
    }
    for (int32_t i = 0; is_shared && i < call->num_requests; i++) {
        call->rows[i] = 0;
    }
    call->args.block_table = call->table;
    call->args.block_table_stride = call->num_columns;
}

static void run_call(struct call *call, const struct test_device *device) {
    pkv_plan_config config = {
        .struct_size = sizeof config,
        .shape = {.struct_size = sizeof config.shape,
                  .num_query_heads = 1,
                  .num_kv_heads = 1,
                  .head_size = SIZE,
                  .block_size = BLOCK,
                  .query_dtype = call->dtype},
        .max_requests = call->num_requests,
        .max_tokens = call->num_requests,
        .max_query_len = 1,
        .max_seq_len = call->num_columns * BLOCK,
    };
    pkv_batch batch = {.struct_size = sizeof batch,
                       .num_requests = call->num_requests,
                       .num_tokens = call->num_requests,
                       .rows = call->rows,
                       .seq_lens = call->lens,
                       .query_start_loc = call->starts};
    size_t plan_size;

    for (int32_t i = 0; i < call->num_requests; i++) {
        config.max_total_seq_len += call->lens[i];
    }
    assert_int_equal(pkv_plan_create(&config, &call->plan, NULL), PKV_OK);
    assert_int_equal(pkv_plan_sizes(call->plan, &plan_size, &call->args.workspace_size), PKV_OK);
    call->plan_data = allocate(plan_size);
    call->workspace = allocate(call->args.workspace_size);
    assert_int_equal(pkv_plan_build(call->plan, &batch, call->plan_data, plan_size), PKV_OK);
    call->args.plan_data = call->plan_data;
    call->args.workspace = call->workspace;
    assert_int_equal(pkv_attention(device->device, call->plan, &call->args, NULL), PKV_OK);
}

static void close_call(struct call *call) {
    pkv_plan_destroy(call->plan);
    free(call->plan_data);
    free(call->workspace);
    free(call->lens);
    free(call->rows);
    free(call->starts);
    free(call->table);
    free(call->pool);
    free(call->query);
    free(call->output);
    free(call->lse);
}

/* What follows reads and writes the caches itself. */
static void skip_device_memory(const struct test_device *device) {
    if (device->memory != NULL) {
        print_message("skipped: arrays in device memory are not read by the host\n");
        skip();
    }
}

/* What a row has to be, and how far from it float may be. */
struct exact {
    double output[SIZE], lse;
    double output_bound, lse_bound;
};

/* Attention of request i over the first `num_keys` keys of a period, in double precision, each of
 * them `times` times. The bounds are those of attention_oracle.c, with the largest magnitudes in
 * place of each key's own; no value is above 1. */
static void compute_exact(
    const struct call *call, int64_t i, int64_t num_keys, double times, struct exact *out) {
    const double u = 0x1p-24, scale = 1.0 / sqrt((double)SIZE);
    double logits[PERIOD], maximum = -INFINITY, magnitude = 0.0, total = 0.0;

    memset(out, 0, sizeof *out);
    for (int64_t j = 0; j < num_keys; j++) {
        double dot = 0.0, sum = 0.0;

        for (int64_t x = 0; x < SIZE; x++) {
            double product =
                tensor_decode(call->query, call->dtype, i * SIZE + x) *
                tensor_decode(call->args.k_cache.data, call->dtype, (BLOCK + j) * SIZE + x);

            dot += product;
            sum += fabs(product);
        }
        logits[j] = scale * dot;
        maximum = fmax(maximum, logits[j]);
        magnitude = fmax(magnitude, scale * sum);
    }
    for (int64_t j = 0; j < num_keys; j++) {
        double weight = exp(logits[j] - maximum);

        total += weight;
        for (int64_t x = 0; x < SIZE; x++) {
            out->output[x] += weight * tensor_decode(call->args.v_cache.data, call->dtype,
                                                     (BLOCK + j) * SIZE + x);
        }
    }
    for (int64_t x = 0; x < SIZE; x++) {
        out->output[x] /= total;
    }
    out->lse = maximum + log(total) + log(times);
    double error = u * ((2.0 * sqrt((double)SIZE) + 8.0 + 6.0) * magnitude + 16.0 +
                        2.0 * sqrt((double)num_keys * times));
    out->output_bound = 2.0 * error + 0x1p-22;
    out->lse_bound = error + 1e-6 + 0x1p-22 * fabs(out->lse);
}

static void expect_row(const struct call *call, int64_t i, const struct exact *exact) {
    const float *output = (const float *)call->output + i * SIZE;
    double worst = 0.0;

    for (int64_t x = 0; x < SIZE; x++) {
        assert_true(isfinite(output[x]));
        worst = fmax(worst, fabs((double)output[x] - exact->output[x]));
    }
    if (!(worst <= exact->output_bound) ||
        !(fabs((double)call->lse[i] - exact->lse) <= exact->lse_bound)) {
        print_error("request %lld: output off by %.3g of %.3g, lse %.9g instead of %.9g, %.3g\n",
                    (long long)i, worst, exact->output_bound, (double)call->lse[i], exact->lse,
                    exact->lse_bound);
    }
    assert_true(worst <= exact->output_bound);
    assert_true(fabs((double)call->lse[i] - exact->lse) <= exact->lse_bound);
}

/* One period, and 8 k to 1 M keys: the output of one period, the lse log(n) above it. */
static void up_to_a_million_keys(const struct test_device *device, const void *context) {
    static const int32_t lens[] = {PERIOD, 8192, 13312, 32768, 131072, 1048576};
    static const pkv_dtype dtypes[] = {PKV_DTYPE_FLOAT32, PKV_DTYPE_FLOAT16, PKV_DTYPE_BFLOAT16};

    (void)context;
    skip_device_memory(device);
    for (int d = 0; d < 3; d++) {
        struct call call;

        open_call(&call, dtypes[d], 6, lens, 4.0);
        make_table(&call, true);
        run_call(&call, device);
        const float *output = call.output;
        for (int i = 0; i < 6; i++) {
            struct exact exact;

            compute_exact(&call, i, PERIOD, (double)lens[i] / PERIOD, &exact);
            expect_row(&call, i, &exact);
        }
        for (int i = 1; i < 6; i++) {
            double times = (double)lens[i] / PERIOD;
            /* As the oracle's c_n: rounding of a sum of so many. */
            double bound = 0x1p-24 * (32.0 + 2.0 * sqrt((double)lens[i]));

            assert_true(fabs((double)call.lse[i] - (double)call.lse[0] - log(times)) <
                        bound + 4e-6);
            for (int x = 0; x < SIZE; x++) {
                assert_true(fabs((double)(output[i * SIZE + x] - output[x])) < 2.0 * bound);
            }
        }
        close_call(&call);
    }
}

/* 128 k equal logits: every key has the same weight, none is lost in the sum. */
static void equal_logits_of_128k_keys(const struct test_device *device, const void *context) {
    const int32_t len = 131072;

    (void)context;
    skip_device_memory(device);
    for (int ones = 0; ones < 2; ones++) {
        struct call call;

        open_call(&call, PKV_DTYPE_FLOAT16, 1, &len, 0.0);
        make_table(&call, true);
        for (int64_t i = 0; ones == 1 && i < NUM_BLOCKS * BLOCK * SIZE; i++) {
            tensor_encode(call.args.v_cache.data, call.dtype, i, 1.0);
        }
        run_call(&call, device);
        assert_true(fabs((double)call.lse[0] - log(131072.0)) < 1e-5);
        for (int x = 0; x < SIZE; x++) {
            double mean = 0.0;

            for (int64_t key = BLOCK; key < BLOCK + PERIOD; key++) {
                mean += tensor_decode(call.args.v_cache.data, call.dtype, key * SIZE + x) / PERIOD;
            }
            assert_true(fabs((double)((float *)call.output)[x] - mean) < 1e-5);
        }
        close_call(&call);
    }
}

/* One of 128 k among 127 of 1 key: the skew that a plan has to balance. */
static void one_long_among_many_short(const struct test_device *device, const void *context) {
    int32_t lens[128];

    (void)context;
    skip_device_memory(device);
    for (int i = 0; i < 128; i++) {
        lens[i] = i == 77 ? 131072 : 1;
    }
    struct call call;
    open_call(&call, PKV_DTYPE_FLOAT32, 128, lens, 1.0);
    make_table(&call, true);
    run_call(&call, device);
    for (int i = 0; i < 128; i++) {
        for (int x = 0; i != 77 && x < SIZE; x++) {
            assert_true(((float *)call.output)[i * SIZE + x] ==
                        ((float *)call.args.v_cache.data)[BLOCK * SIZE + x]);
        }
    }
    for (int i = 0; i < 128; i++) {
        struct exact exact;

        compute_exact(&call, i, i == 77 ? PERIOD : 1, i == 77 ? 131072.0 / PERIOD : 1.0, &exact);
        expect_row(&call, i, &exact);
    }
    close_call(&call);
}

/* 70,001 requests and as many work items; each has its own number of keys, 1 to 33. */
static void more_requests_than_16_bits(const struct test_device *device, const void *context) {
    enum { COUNT = 70001 };
    struct call call;

    (void)context;
    skip_device_memory(device);
    int32_t *lens = allocate(COUNT * sizeof(int32_t));
    for (int i = 0; i < COUNT; i++) {
        lens[i] = 1 + i % 33;
    }
    open_call(&call, PKV_DTYPE_FLOAT32, COUNT, lens, 1.0);
    make_table(&call, true);
    run_call(&call, device);
    const float *output = call.output;
    for (int i = 0; i < 33; i++) {
        struct exact exact;

        compute_exact(&call, i, lens[i], 1.0, &exact);
        expect_row(&call, i, &exact);
    }
    for (int i = 33; i < COUNT; i++) {
        assert_memory_equal(output + (int64_t)i * SIZE, output + i % 33 * SIZE,
                            SIZE * sizeof(float));
        assert_true(call.lse[i] == call.lse[i % 33]);
    }
    assert_true(output[0] == ((float *)call.args.v_cache.data)[BLOCK * SIZE]);
    assert_true(call.lse[1] > call.lse[0]);
    close_call(&call);
    free(lens);
}

int main(void) {
    const struct device_test tests[] = {
        {"8 k to 1 M keys", up_to_a_million_keys, NULL},
        {"128 k equal logits", equal_logits_of_128k_keys, NULL},
        {"128 k beside 127 of one key", one_long_among_many_short, NULL},
        {"70,001 requests", more_requests_than_16_bits, NULL},
    };
    struct test_device devices[TEST_MAX_DEVICES];
    int num_devices = test_devices_open(devices, 2);
    int failures = device_tests_run("attention, lengths", tests,
                                    (int)(sizeof tests / sizeof tests[0]), devices, num_devices);

    test_devices_close(devices, num_devices);
    return failures;
}
