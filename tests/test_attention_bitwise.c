/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* What must not be visible in the bytes of a sequence's output: where its blocks lie, how large
 * they are, what lies in unused slots, who else is in the batch and in which order, how many
 * threads there are, and whether the plan was made for a longer length. Each property runs a base
 * case and a changed one and compares output and lse byte for byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/test_devices.h"

#ifdef TEST_SIMT
#include <pagedkv/cuda.h>

#include "simt/simt_control.h"
#endif

/* The base: decode, verification, chunked prefill and a long decode, on every path of the
 * kernels. */
static const struct attention_case base_case = {
    .query_dtype = PKV_DTYPE_BFLOAT16,
    .num_query_heads = 8,
    .num_kv_heads = 2,
    .head_size = 72,
    .num_requests = 4,
    .query_lens = {1, 3, 40, 1},
    .seq_lens = {65, 140, 200, 700},
    .chunk_size = 128,
    .seed = 3,
};

/* Variants of the base that the properties are tried on. */
static const struct {
    const char *name;
    pkv_dtype query, kv;
    enum case_scales scales;
    int32_t window, split_query_len;
} variants[] = {
    {"plain", PKV_DTYPE_BFLOAT16, PKV_DTYPE_BFLOAT16, CASE_SCALE_NONE, 0, 0},
    {"int8, all keys split", PKV_DTYPE_FLOAT32, PKV_DTYPE_INT8, CASE_SCALE_TOKEN, 0, 64},
    {"window, all keys split", PKV_DTYPE_FLOAT16, PKV_DTYPE_FLOAT16, CASE_SCALE_NONE, 50, 64},
    {"e4m3", PKV_DTYPE_BFLOAT16, PKV_DTYPE_FLOAT8_E4M3, CASE_SCALE_TOKEN, 0, 0},
};
#define NUM_VARIANTS ((int)(sizeof variants / sizeof variants[0]))

static struct attention_case variant_of(int index) {
    struct attention_case c = base_case;

    c.query_dtype = variants[index].query;
    c.kv_dtype = variants[index].kv;
    c.scales = variants[index].scales;
    c.window = variants[index].window;
    c.split_query_len = variants[index].split_query_len;
    return c;
}

/* Run a case; the caller destroys the run. */
static void execute(struct attention_run *run,
                    const struct attention_case *c,
                    const struct test_device *device) {
    attention_run_create(run, c, device->memory);
    assert_int_equal(attention_run_execute(run, device->device), PKV_OK);
}

/* Output and lse of request i of one run and request j of another are the same bytes. */
static void expect_same_request(const struct attention_run *a,
                                int32_t i,
                                const struct attention_run *b,
                                int32_t j) {
    int64_t token_a = ((const int32_t *)a->starts.host)[i];
    int64_t token_b = ((const int32_t *)b->starts.host)[j];
    int64_t heads = a->c.num_query_heads;
    size_t count = (size_t)(a->c.query_lens[i] * heads);

    assert_int_equal(a->c.query_lens[i], b->c.query_lens[j]);
    assert_memory_equal(attention_run_output(a, token_a, 0), attention_run_output(b, token_b, 0),
                        count * attention_run_row_size(a));
    assert_memory_equal((const float *)a->lse.host + token_a * heads,
                        (const float *)b->lse.host + token_b * heads, count * sizeof(float));
}

static void expect_same(const struct attention_run *a, const struct attention_run *b) {
    for (int32_t i = 0; i < a->c.num_requests; i++) {
        expect_same_request(a, i, b, i);
    }
}

/* Run base and changed case of every variant; `change` gets the base. */
static void compare_changed(const struct test_device *device,
                            void (*change)(struct attention_case *c)) {
    for (int i = 0; i < NUM_VARIANTS; i++) {
        struct attention_case c = variant_of(i);
        struct attention_run before, after;

        execute(&before, &c, device);
        change(&c);
        execute(&after, &c, device);
        expect_same(&before, &after);
        attention_run_destroy(&before);
        attention_run_destroy(&after);
    }
}

static void change_nothing(struct attention_case *c) {
    (void)c;
}

static void change_order_identity(struct attention_case *c) {
    c->order = CASE_IDENTITY;
}

static void change_order_descending(struct attention_case *c) {
    c->order = CASE_DESCENDING;
}

static void change_layout_token_major(struct attention_case *c) {
    c->layout = CASE_TOKEN_MAJOR;
}

static void change_layout_wide(struct attention_case *c) {
    c->layout = CASE_WIDE;
}

static void change_block_size_1(struct attention_case *c) {
    c->block_size = 1;
}

static void change_block_size_24(struct attention_case *c) {
    c->block_size = 24;
}

static void change_block_size_256(struct attention_case *c) {
    c->block_size = 256;
}

static void change_garbage_zero(struct attention_case *c) {
    c->poison = 0x100; /* as a byte: 0 */
}

static void change_garbage_signalling(struct attention_case *c) {
    c->poison = 0x7f;
}

#define CHANGED(name)                                                                              \
    static void name(const struct test_device *device, const void *context) {                      \
        (void)context;                                                                             \
        compare_changed(device, change_##name);                                                    \
    }
CHANGED(nothing)
CHANGED(order_identity)
CHANGED(order_descending)
CHANGED(layout_token_major)
CHANGED(layout_wide)
CHANGED(block_size_1)
CHANGED(block_size_24)
CHANGED(block_size_256)
CHANGED(garbage_zero)
CHANGED(garbage_signalling)

/* Each request alone, and all in reverse order with a stranger in between. */
static void batch(const struct test_device *device, const void *context) {
    (void)context;
    for (int v = 0; v < NUM_VARIANTS; v++) {
        struct attention_case c = variant_of(v), reversed = variant_of(v);
        struct attention_run together, other;

        execute(&together, &c, device);
        for (int32_t i = 0; i < c.num_requests; i++) {
            struct attention_case alone = c;

            alone.num_requests = 1;
            alone.query_lens[0] = c.query_lens[i];
            alone.seq_lens[0] = c.seq_lens[i];
            alone.request_ids[0] = (uint64_t)i + 1;
            execute(&other, &alone, device);
            expect_same_request(&together, i, &other, 0);
            attention_run_destroy(&other);
        }
        reversed.num_requests = 5;
        reversed.query_lens[4] = 9;
        reversed.seq_lens[4] = 333;
        reversed.request_ids[4] = 99;
        for (int32_t i = 0; i < 4; i++) {
            reversed.query_lens[i] = c.query_lens[3 - i];
            reversed.seq_lens[i] = c.seq_lens[3 - i];
            reversed.request_ids[i] = (uint64_t)(4 - i);
        }
        execute(&other, &reversed, device);
        for (int32_t i = 0; i < 4; i++) {
            expect_same_request(&together, 3 - i, &other, i);
        }
        attention_run_destroy(&other);
        attention_run_destroy(&together);
    }
}

#ifdef TEST_SIMT
/* Grids as large as another device, their blocks and threads in another order. */
static void threads(const struct test_device *device, const void *context) {
    static const struct {
        int num_multiprocessors;
        uint64_t seed;
        bool is_reversed;
    } schedules[] = {{1, 0, false}, {3, 0, true}, {7, 5, false}};
    const simt_device usual = *simt_get_device();
    const pkv_cuda_config config = {.struct_size = sizeof config};

    (void)context;
    for (int v = 0; v < NUM_VARIANTS; v++) {
        struct attention_case c = variant_of(v);
        struct attention_run base;

        execute(&base, &c, device);
        for (size_t i = 0; i < sizeof schedules / sizeof schedules[0]; i++) {
            struct test_device other = *device;
            struct attention_run run;

            simt_get_device()->num_multiprocessors = schedules[i].num_multiprocessors;
            assert_int_equal(pkv_device_create_cuda(&config, &other.device), PKV_OK);
            simt_get_options()->seed = schedules[i].seed;
            simt_get_options()->is_reversed = schedules[i].is_reversed;
            execute(&run, &c, &other);
            simt_get_options()->seed = 0;
            simt_get_options()->is_reversed = false;
            *simt_get_device() = usual;
            expect_same(&base, &run);
            attention_run_destroy(&run);
            pkv_device_destroy(other.device);
        }
        attention_run_destroy(&base);
    }
}
#else
/* Items in reverse, on three workers in turn. */
static void reverse_parallel_for(void *context,
                                 int32_t num_items,
                                 pkv_parallel_body body,
                                 void *body_context) {
    int *num_calls = context;

    *num_calls += 1;
    for (int32_t item = num_items - 1; item >= 0; item--) {
        body(body_context, item, item % 3);
    }
}

static void threads(const struct test_device *device, const void *context) {
    int num_calls = 0;

    (void)context;
    for (int v = 0; v < NUM_VARIANTS; v++) {
        struct attention_case c = variant_of(v);
        struct attention_run base;

        execute(&base, &c, device);
        for (int32_t num_threads = 1; num_threads <= 7; num_threads += 3) {
            pkv_cpu_config config = {.struct_size = sizeof config,
                                     .instructions = device->instructions,
                                     .num_threads = num_threads};
            struct test_device other = *device;
            struct attention_run run;

            if (num_threads == 7) {
                config.num_threads = 3;
                config.parallel_for = reverse_parallel_for;
                config.parallel_context = &num_calls;
            }
            assert_int_equal(pkv_device_create_cpu(&config, &other.device), PKV_OK);
            execute(&run, &c, &other);
            expect_same(&base, &run);
            attention_run_destroy(&run);
            pkv_device_destroy(other.device);
        }
        attention_run_destroy(&base);
    }
    assert_true(num_calls > 0 || device->instructions == PKV_CPU_REFERENCE);
}
#endif

/* Run `planned`, made for a longer sequence, on the length and query of `exact`. */
static void execute_shorter(struct attention_run *planned,
                            const struct attention_run *exact,
                            const struct test_device *device) {
    ((int32_t *)planned->lens.host)[0] = exact->c.seq_lens[0];
    /* The query of the shorter sequence: content goes by position. */
    memcpy(planned->query.host, exact->query.host, exact->query.size);
    if (device->memory != NULL) {
        device->memory->upload(device->memory->context, planned->lens.device, planned->lens.host,
                               planned->lens.size);
        device->memory->upload(device->memory->context, planned->query.device, planned->query.host,
                               planned->query.size);
    }
    assert_int_equal(attention_run_execute(planned, device->device), PKV_OK);
    expect_same(exact, planned);
}

/* One plan for the longest sequence, and device lengths that fall inside other chunks: up, down
 * again, and so over what a longer one left in the workspace. */
static void planned_length(const struct test_device *device, const void *context) {
    static const int32_t seq_lens[] = {1, 58, 115, 172, 229, 286, 343, 400, 129, 128, 2};
    struct attention_case c = base_case, longer;
    struct attention_run exact, planned;

    (void)context;
    c.num_requests = 1;
    c.query_lens[0] = 1;
    longer = c;
    longer.seq_lens[0] = 640;
    attention_run_create(&planned, &longer, device->memory);
    for (size_t i = 0; i < sizeof seq_lens / sizeof seq_lens[0]; i++) {
        c.seq_lens[0] = seq_lens[i];
        execute(&exact, &c, device);
        execute_shorter(&planned, &exact, device);
        attention_run_destroy(&exact);
    }
    attention_run_destroy(&planned);
}

/* A pool that is one block: the table's only entry is 0. */
static void one_block(const struct test_device *device, const void *context) {
    struct attention_case c = variant_of(2);
    struct attention_run among, alone;

    (void)context;
    c.window = 0;
    c.num_requests = 1;
    c.query_lens[0] = 2;
    c.seq_lens[0] = 13;
    execute(&among, &c, device);
    attention_run_create(&alone, &c, device->memory);
    int32_t *row = (int32_t *)alone.table.host + alone.rows[0] * alone.num_columns;
    int64_t offset = row[0] * alone.k_cache.stride[0] * (int64_t)sizeof(uint16_t);
    alone.args.k_cache.data = (unsigned char *)alone.args.k_cache.data + offset;
    alone.args.v_cache.data = (unsigned char *)alone.args.v_cache.data + offset;
    alone.args.k_cache.shape[0] = alone.args.v_cache.shape[0] = 1;
    row[0] = 0;
    if (device->memory != NULL) {
        device->memory->upload(device->memory->context, alone.table.device, alone.table.host,
                               alone.table.size);
    }
    assert_int_equal(attention_run_execute(&alone, device->device), PKV_OK);
    expect_same(&among, &alone);
    attention_run_destroy(&among);
    attention_run_destroy(&alone);
}

/* Seven heads, of which a device may take several through a block together: with small blocks, and
 * with such large ones that it has no reason to. Rows of one head, of two, of eight. */
static void heads_together(const struct test_device *device, const void *context) {
    static const int32_t group_sizes[] = {1, 2, 8};

    (void)context;
    for (int v = 0; v < NUM_VARIANTS; v++) {
        for (size_t i = 0; i < sizeof group_sizes / sizeof group_sizes[0]; i++) {
            struct attention_case c = variant_of(v);
            struct attention_run small, large;

            c.num_kv_heads = 7;
            c.num_query_heads = 7 * group_sizes[i];
            c.block_size = 8;
            execute(&small, &c, device);
            c.block_size = 256;
            execute(&large, &c, device);
            expect_same(&small, &large);
            attention_run_destroy(&small);
            attention_run_destroy(&large);
        }
    }
}

/* The same block in two sequences, and twice in one. */
static void shared_blocks(const struct test_device *device, const void *context) {
    struct attention_case c = {.num_query_heads = 4,
                               .num_kv_heads = 2,
                               .num_requests = 2,
                               .query_lens = {1, 1},
                               .seq_lens = {96, 96},
                               .request_ids = {1, 1}};
    struct attention_run run;
    struct attention_error error;

    (void)context;
    attention_run_create(&run, &c, device->memory);
    int32_t *first = (int32_t *)run.table.host + run.rows[0] * run.num_columns;
    int32_t *second = (int32_t *)run.table.host + run.rows[1] * run.num_columns;
    memcpy(second, first, 6 * sizeof *first);
    first[3] = second[3] = first[1];
    if (device->memory != NULL) {
        device->memory->upload(device->memory->context, run.table.device, run.table.host,
                               run.table.size);
    }
    assert_int_equal(attention_run_execute(&run, device->device), PKV_OK);
    expect_same_request(&run, 0, &run, 1);
    attention_run_compare(&run, &error);
    assert_true(error.output <= 1.0);
    attention_run_destroy(&run);
}

/* Columns behind the window may hold anything, the blocks they named too. */
static void columns_behind_the_window(const struct test_device *device, const void *context) {
    struct attention_case c = variant_of(2);
    struct attention_run before, after;

    (void)context;
    execute(&before, &c, device);
    attention_run_create(&after, &c, device->memory);
    for (int32_t i = 0; i < c.num_requests; i++) {
        int32_t *row = (int32_t *)after.table.host + after.rows[i] * after.num_columns;
        int32_t first_key = c.seq_lens[i] - c.query_lens[i] - c.window + 1;

        for (int32_t column = 0; (column + 1) * 16 <= first_key; column++) {
            row[column] = column % 2 == 0 ? -7 : PKV_NULL_BLOCK;
        }
    }
    if (device->memory != NULL) {
        device->memory->upload(device->memory->context, after.table.device, after.table.host,
                               after.table.size);
    }
    assert_int_equal(attention_run_execute(&after, device->device), PKV_OK);
    expect_same(&before, &after);
    attention_run_destroy(&before);
    attention_run_destroy(&after);
}

int main(void) {
    const struct device_test tests[] = {
        {"running twice", nothing, NULL},
        {"identity table", order_identity, NULL},
        {"descending table", order_descending, NULL},
        {"token-major layout", layout_token_major, NULL},
        {"wide block stride", layout_wide, NULL},
        {"block size 1", block_size_1, NULL},
        {"block size 24", block_size_24, NULL},
        {"block size 256", block_size_256, NULL},
        {"zeros in unused slots", garbage_zero, NULL},
        {"0x7f in unused slots", garbage_signalling, NULL},
        {"batch composition and order", batch, NULL},
        {"thread count and order of items", threads, NULL},
        {"a plan for a longer sequence", planned_length, NULL},
        {"a pool of one block", one_block, NULL},
        {"shared and repeated blocks", shared_blocks, NULL},
        {"columns behind the window", columns_behind_the_window, NULL},
        {"heads together and alone", heads_together, NULL},
    };
    struct test_device devices[TEST_MAX_DEVICES];
    int num_devices = test_devices_open(devices, 2);
    int failures = device_tests_run("attention, bit for bit", tests,
                                    (int)(sizeof tests / sizeof tests[0]), devices, num_devices);

    test_devices_close(devices, num_devices);
    return failures;
}
