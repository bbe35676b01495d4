/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Moving whole blocks: copies, swaps, fills and gathers put the right bytes in the right place and
 * touch nothing else, gaps between blocks included; lists that cannot run in any order are refused
 * as a whole. Also the block table and the slots on the device. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <pagedkv/transfer.h>

#include "support/test_devices.h"

enum { LAYERS = 3, BLOCKS = 8, BLOCK_BYTES = 576, BLOCK_STRIDE = 640 };
#define POOL_SIZE ((size_t)(LAYERS * BLOCKS * BLOCK_STRIDE))

/* Packed payloads of 576 bytes at a stride of 640. */
static pkv_tensor pool_view(unsigned char *pool) {
    const int64_t shape[] = {LAYERS, BLOCKS, BLOCK_BYTES};
    pkv_tensor view = tensor_view(pool, PKV_DTYPE_UINT8, 3, shape);

    view.stride[1] = BLOCK_STRIDE;
    view.stride[0] = BLOCKS * BLOCK_STRIDE;
    return view;
}

static unsigned char *make_pool(int seed) {
    unsigned char *pool = guarded_allocate(POOL_SIZE, 0);

    for (size_t i = 0; i < POOL_SIZE; i++) {
        pool[i] = (unsigned char)tensor_index((uint64_t)seed, (int64_t)i, 256);
    }
    return pool;
}

static unsigned char *block_of(unsigned char *pool, int layer, int block) {
    return pool + (size_t)(layer * BLOCKS + block) * BLOCK_STRIDE;
}

/* The operations on the device's own memory; with `to_host` a swap's target stays on the host. */
static pkv_status run_copy(const struct test_device *device,
                           pkv_tensor view,
                           const pkv_block_copy *pairs,
                           int32_t count) {
    struct device_twins twins;

    device_twins_open(&twins, device);
    view.data = device_twins_write(&twins, view.data, POOL_SIZE);
    return device_twins_close(&twins, pkv_copy_blocks(device->device, &view, pairs, count, NULL));
}

static pkv_status run_swap(const struct test_device *device,
                           pkv_tensor from,
                           pkv_tensor to,
                           const pkv_block_copy *pairs,
                           int32_t count,
                           bool to_host) {
    struct device_twins twins;
    bool is_same = from.data == to.data;

    device_twins_open(&twins, device);
    from.data = device_twins_write(&twins, from.data, POOL_SIZE);
    if (is_same) {
        to.data = from.data;
    } else if (!to_host) {
        to.data = device_twins_write(&twins, to.data, POOL_SIZE);
    }
    return device_twins_close(&twins,
                              pkv_swap_blocks(device->device, &from, &to, pairs, count, NULL));
}

static pkv_status run_fill(const struct test_device *device,
                           pkv_tensor view,
                           const pkv_block_id *block_ids,
                           int32_t count,
                           pkv_fill fill) {
    struct device_twins twins;

    device_twins_open(&twins, device);
    view.data = device_twins_write(&twins, view.data, POOL_SIZE);
    return device_twins_close(&twins,
                              pkv_fill_blocks(device->device, &view, block_ids, count, fill, NULL));
}

static void copies(const struct test_device *device, const void *context) {
    unsigned char *pool = make_pool(1), *wanted = make_pool(1);
    pkv_tensor view = pool_view(pool);
    const pkv_block_copy pairs[] = {{1, 7}, {1, 3}, {0, 5}, {2, 4}};

    (void)context;
    for (int layer = 0; layer < LAYERS; layer++) {
        for (int i = 0; i < 4; i++) {
            memcpy(block_of(wanted, layer, pairs[i].target),
                   block_of(wanted, layer, pairs[i].source), BLOCK_BYTES);
        }
    }
    assert_int_equal(run_copy(device, view, pairs, 4), PKV_OK);
    assert_memory_equal(pool, wanted, POOL_SIZE);
    assert_int_equal(run_copy(device, view, NULL, 0), PKV_OK);
    guarded_release(pool, POOL_SIZE);
    guarded_release(wanted, POOL_SIZE);
}

static void bad_copies(const struct test_device *device, const void *context) {
    static const pkv_block_copy lists[][3] = {
        {{1, 2}, {3, 2}, {4, 5}}, /* a target twice */
        {{1, 2}, {2, 3}, {4, 5}}, /* a chain */
        {{1, 2}, {3, 3}, {4, 5}}, /* onto itself */
        {{1, 2}, {3, 0}, {4, 5}}, /* the null block */
        {{1, 2}, {3, 8}, {4, 5}}, /* behind the pool */
        {{1, 2}, {-1, 3}, {4, 5}},
    };
    unsigned char *pool = make_pool(1), *wanted = make_pool(1);
    pkv_tensor view = pool_view(pool);

    (void)context;
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        assert_int_equal(run_copy(device, view, lists[i], 3), PKV_ERROR_INVALID_ARGUMENT);
        assert_non_null(strstr(pkv_device_last_error(device->device), "copies["));
    }
    assert_int_equal(run_copy(device, view, lists[0], PKV_MAX_BLOCK_LIST + 1), PKV_ERROR_LIMIT);
    assert_int_equal(run_copy(device, view, NULL, 3), PKV_ERROR_INVALID_ARGUMENT);
    view.stride[1] = BLOCK_BYTES - 1; /* blocks that overlap */
    assert_int_equal(run_copy(device, view, lists[0], 1), PKV_ERROR_INVALID_ARGUMENT);
    assert_memory_equal(pool, wanted, POOL_SIZE);
    guarded_release(pool, POOL_SIZE);
    guarded_release(wanted, POOL_SIZE);
}

static void swaps(const struct test_device *device, const void *context) {
    unsigned char *source = make_pool(1), *target = make_pool(2), *wanted = make_pool(2);
    pkv_tensor from = pool_view(source), to = pool_view(target);
    /* Runs in both directions, one source twice, the whole target pool but the null block. */
    const pkv_block_copy pairs[] = {{1, 1}, {2, 2}, {3, 3}, {7, 6}, {6, 7}, {7, 5}, {0, 4}};
    const pkv_block_copy doubled[] = {{1, 1}, {2, 1}};
    bool to_host = context != NULL;

    for (int layer = 0; layer < LAYERS; layer++) {
        for (int i = 0; i < 7; i++) {
            memcpy(block_of(wanted, layer, pairs[i].target),
                   block_of(source, layer, pairs[i].source), BLOCK_BYTES);
        }
    }
    assert_int_equal(run_swap(device, from, to, pairs, 7, to_host), PKV_OK);
    assert_memory_equal(target, wanted, POOL_SIZE);
    assert_int_equal(run_swap(device, from, to, doubled, 2, to_host), PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(run_swap(device, from, from, pairs, 7, to_host), PKV_ERROR_INVALID_ARGUMENT);
    to.shape[2] = 512;
    assert_int_equal(run_swap(device, from, to, pairs, 7, to_host), PKV_ERROR_INVALID_ARGUMENT);
    assert_memory_equal(target, wanted, POOL_SIZE);
    guarded_release(source, POOL_SIZE);
    guarded_release(target, POOL_SIZE);
    guarded_release(wanted, POOL_SIZE);
}

static void fills(const struct test_device *device, const void *context) {
    unsigned char *pool = make_pool(1), *wanted = make_pool(1);
    pkv_tensor view = pool_view(pool);
    const pkv_block_id zeroed[] = {7, 3, 7}, poisoned[] = {1}, bad[] = {2, 0}, far[] = {2, 8};

    (void)context;
    for (int layer = 0; layer < LAYERS; layer++) {
        memset(block_of(wanted, layer, 7), 0, BLOCK_BYTES);
        memset(block_of(wanted, layer, 3), 0, BLOCK_BYTES);
        memset(block_of(wanted, layer, 1), 0xff, BLOCK_BYTES);
    }
    assert_int_equal(run_fill(device, view, zeroed, 3, PKV_FILL_ZERO), PKV_OK);
    assert_int_equal(run_fill(device, view, poisoned, 1, PKV_FILL_POISON), PKV_OK);
    assert_int_equal(run_fill(device, view, bad, 2, PKV_FILL_ZERO), PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(run_fill(device, view, far, 2, PKV_FILL_ZERO), PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(run_fill(device, view, zeroed, 3, (pkv_fill)2), PKV_ERROR_INVALID_ARGUMENT);
    assert_memory_equal(pool, wanted, POOL_SIZE);
    guarded_release(pool, POOL_SIZE);
    guarded_release(wanted, POOL_SIZE);
}

/* One half of one gathered token is what the cache holds at `position` of the request. */
static void expect_row(const struct attention_run *run,
                       int32_t request,
                       int64_t position,
                       int half,
                       const pkv_tensor *gathered,
                       int64_t token) {
    const pkv_tensor *cache = half == 0 ? &run->k_cache : &run->v_cache;
    const float *scales = half == 0 ? run->k_scale.host : run->v_scale.host;
    int64_t block =
        ((const int32_t *)run->table.host)[run->rows[request] * run->num_columns + position / 16];
    int64_t size = cache->shape[3];

    for (int64_t head = 0; head < 2; head++) {
        int64_t index = (block * 2 + head) * 16 + position % 16;
        float scale = run->c.scales == CASE_SCALE_NONE    ? 1.0f
                      : run->c.scales == CASE_SCALE_TOKEN ? scales[index]
                      : run->c.scales == CASE_SCALE_HEAD  ? scales[head]
                                                          : scales[0];

        for (int64_t d = 0; d < size; d++) {
            char wanted[4];
            int64_t from = block * cache->stride[0] + head * cache->stride[1] +
                           position % 16 * cache->stride[2] + d;
            float exact = (float)tensor_decode(cache->data, cache->dtype, from) * scale;

            tensor_encode(wanted, gathered->dtype, 0, (double)exact);
            assert_true(
                tensor_decode(gathered->data, gathered->dtype, (token * 2 + head) * size + d) ==
                tensor_decode(wanted, gathered->dtype, 0));
        }
    }
}

static void expect_gathered(const struct attention_run *run,
                            int32_t request,
                            int64_t position,
                            const pkv_gather_args *args,
                            int64_t token) {
    expect_row(run, request, position, 0, &args->key, token);
    expect_row(run, request, position, 1, &args->value, token);
}

static pkv_status run_gather(const struct test_device *device,
                             const pkv_gather_args *given,
                             size_t key_size,
                             size_t value_size) {
    pkv_gather_args args = *given;
    size_t num_requests = (size_t)args.num_requests;
    struct device_twins twins;

    device_twins_open(&twins, device);
    args.key.data = device_twins_write(&twins, args.key.data, key_size);
    args.value.data = device_twins_write(&twins, args.value.data, value_size);
    args.rows = device_twins_read(&twins, args.rows, num_requests * sizeof(int32_t));
    args.first_positions =
        device_twins_read(&twins, args.first_positions, num_requests * sizeof(int32_t));
    args.key_start_loc =
        device_twins_read(&twins, args.key_start_loc, (num_requests + 1) * sizeof(int32_t));
    return device_twins_close(&twins, pkv_gather(device->device, &args, NULL));
}

/* Gather the content of an attention case and compare it with the content itself. */
static void check_gather(const struct test_device *device,
                         pkv_dtype kv,
                         pkv_dtype out,
                         enum case_scales scales) {
    struct attention_case c = {.query_dtype = kv == PKV_DTYPE_INT8 ? PKV_DTYPE_FLOAT32 : out,
                               .kv_dtype = kv,
                               .num_kv_heads = 2,
                               .head_size = 40,
                               .v_head_size = 24,
                               .num_requests = 3,
                               .query_lens = {1, 1, 1},
                               .seq_lens = {33, 16, 70},
                               .scales = scales};
    const int32_t first[] = {0, 3, 20}, starts[] = {0, 33, 46, 96};
    const int64_t key_shape[] = {96, 2, 40}, value_shape[] = {96, 2, 24};
    struct attention_run run;

    attention_run_create(&run, &c, device->memory);
    size_t key_size = 96 * 2 * 40 * pkv_dtype_size(out);
    size_t value_size = 96 * 2 * 24 * pkv_dtype_size(out);
    void *key = guarded_allocate(key_size, 0xa5), *value = guarded_allocate(value_size, 0xa5);
    pkv_gather_args args = {.struct_size = sizeof args,
                            .num_requests = 3,
                            .k_cache = run.args.k_cache,
                            .v_cache = run.args.v_cache,
                            .k_scale = run.args.k_scale,
                            .v_scale = run.args.v_scale,
                            .key = tensor_view(key, out, 3, key_shape),
                            .value = tensor_view(value, out, 3, value_shape),
                            .block_table = run.args.block_table,
                            .block_table_stride = run.args.block_table_stride,
                            .rows = run.rows,
                            .first_positions = first,
                            .key_start_loc = starts};
    assert_int_equal(run_gather(device, &args, key_size, value_size), PKV_OK);
    for (int i = 0; i < 3; i++) {
        for (int64_t t = starts[i]; t < starts[i + 1]; t++) {
            expect_gathered(&run, i, first[i] + t - starts[i], &args, t);
        }
    }
    args.key.shape[0] = args.value.shape[0] = 95; /* one row too few */
    if (device->memory == NULL) {                 /* else the host cannot see key_start_loc */
        assert_int_equal(pkv_gather(device->device, &args, NULL), PKV_ERROR_INVALID_ARGUMENT);
    }
    guarded_release(key, key_size);
    guarded_release(value, value_size);
    attention_run_destroy(&run);
}

static void gathers(const struct test_device *device, const void *context) {
    (void)context;
    check_gather(device, PKV_DTYPE_FLOAT32, PKV_DTYPE_FLOAT32, CASE_SCALE_NONE);
    check_gather(device, PKV_DTYPE_FLOAT16, PKV_DTYPE_FLOAT16, CASE_SCALE_NONE);
    check_gather(device, PKV_DTYPE_FLOAT8_E4M3, PKV_DTYPE_BFLOAT16, CASE_SCALE_TENSOR);
    check_gather(device, PKV_DTYPE_FLOAT8_E4M3, PKV_DTYPE_FLOAT16, CASE_SCALE_TOKEN);
    check_gather(device, PKV_DTYPE_INT8, PKV_DTYPE_FLOAT32, CASE_SCALE_HEAD);
}

static pkv_status run_update(const struct test_device *device, const pkv_table_args *given) {
    pkv_table_args args = *given;
    struct device_twins twins;

    device_twins_open(&twins, device);
    args.block_table = device_twins_write(&twins, args.block_table, 4 * 6 * sizeof(pkv_block_id));
    return device_twins_close(&twins, pkv_update_block_table(device->device, &args, NULL));
}

static void table_updates(const struct test_device *device, const void *context) {
    pkv_block_id table[4 * 6], wanted[4 * 6];
    const pkv_table_update updates[] = {{0, 0, 9}, {3, 4, 8}, {1, 2, 0}};
    const pkv_table_update bad[] = {{0, 1, 9}, {3, 5, 8}};
    pkv_table_args args = {.struct_size = sizeof args,
                           .block_table = table,
                           .block_table_stride = 6,
                           .num_rows = 4,
                           .num_columns = 5,
                           .updates = updates,
                           .num_updates = 3};

    (void)context;
    for (int i = 0; i < 24; i++) {
        table[i] = wanted[i] = 100 + i;
    }
    wanted[0] = 9;
    wanted[3 * 6 + 4] = 8;
    wanted[6 + 2] = 0;
    assert_int_equal(run_update(device, &args), PKV_OK);
    assert_memory_equal(table, wanted, sizeof table);
    args.updates = bad;
    args.num_updates = 2;
    assert_int_equal(run_update(device, &args), PKV_ERROR_INVALID_ARGUMENT);
    assert_non_null(strstr(pkv_device_last_error(device->device), "updates[1]"));
    assert_memory_equal(table, wanted, sizeof table);
}

static pkv_status run_mapping(const struct test_device *device,
                              const pkv_slot_mapping_args *given) {
    pkv_slot_mapping_args args = *given;
    struct device_twins twins;

    device_twins_open(&twins, device);
    args.block_table = device_twins_read(&twins, args.block_table, 9 * sizeof(pkv_block_id));
    args.rows = device_twins_read(&twins, args.rows, 3 * sizeof(int32_t));
    args.seq_lens = device_twins_read(&twins, args.seq_lens, 3 * sizeof(int32_t));
    args.query_start_loc = device_twins_read(&twins, args.query_start_loc, 4 * sizeof(int32_t));
    args.positions = device_twins_read(&twins, args.positions, 6 * sizeof(int64_t));
    args.slot_mapping = device_twins_write(&twins, args.slot_mapping, 8 * sizeof(int64_t));
    return device_twins_close(&twins, pkv_compute_slot_mapping(device->device, &args, NULL));
}

static void slot_mappings(const struct test_device *device, const void *context) {
    const pkv_block_id table[] = {-1, -1, -1, 5, 0, 7, 2, 3, 4};
    const int32_t rows[] = {1, 2, 1}, lens[] = {9, 4, 30}, starts[] = {0, 2, 5, 6};
    const int64_t positions[] = {0, 5, 8, 11, 12, -3};
    int64_t slots[8];
    pkv_slot_mapping_args args = {.struct_size = sizeof args,
                                  .num_requests = 3,
                                  .num_tokens = 8,
                                  .block_size = 4,
                                  .num_columns = 3,
                                  .block_table = table,
                                  .block_table_stride = 3,
                                  .rows = rows,
                                  .seq_lens = lens,
                                  .query_start_loc = starts,
                                  .slot_mapping = slots};
    /* Positions 7 (null block), 8; 1, 2, 3; 29 (outside); padding twice. */
    const int64_t wanted[] = {-1, 28, 9, 10, 11, -1, -1, -1};
    /* Given positions: 0, 5 (null block); 8, 11, 12 (outside); -3; padding. */
    const int64_t wanted_given[] = {20, -1, 16, 19, -1, -1, -1, -1};

    (void)context;
    assert_int_equal(run_mapping(device, &args), PKV_OK);
    assert_memory_equal(slots, wanted, sizeof slots);
    args.positions = positions;
    args.seq_lens = NULL;
    assert_int_equal(run_mapping(device, &args), PKV_OK);
    assert_memory_equal(slots, wanted_given, sizeof slots);
    args.block_size = 257;
    assert_int_equal(run_mapping(device, &args), PKV_ERROR_INVALID_ARGUMENT);
    args.block_size = 4;
    args.rows = NULL;
    assert_int_equal(run_mapping(device, &args), PKV_ERROR_INVALID_ARGUMENT);
}

int main(void) {
    const struct device_test tests[] = {
        {"copies", copies, NULL},
        {"bad copies change nothing", bad_copies, NULL},
        {"swaps", swaps, NULL},
        {"swaps to the host", swaps, ""},
        {"fills stay inside the block", fills, NULL},
        {"gathers", gathers, NULL},
        {"table updates", table_updates, NULL},
        {"slot mappings", slot_mappings, NULL},
    };
    struct test_device devices[TEST_MAX_DEVICES];
    int num_devices = test_devices_open(devices, 3);
    int failures = device_tests_run("transfer", tests, (int)(sizeof tests / sizeof tests[0]),
                                    devices, num_devices);

    test_devices_close(devices, num_devices);
    return failures;
}
