/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* What attention does not do is refused before a byte is written, with a message that names the
 * dimension. Each refusal changes one thing of a case that works, and the case works afterwards.
 * Also offsets of every operation beyond 2^32 elements, on memory that is mostly not there. */
#define _DEFAULT_SOURCE
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include <pagedkv/transfer.h>

#include "support/test_devices.h"

static const struct attention_case base_case = {.query_dtype = PKV_DTYPE_FLOAT16,
                                                .num_query_heads = 4,
                                                .num_kv_heads = 2,
                                                .head_size = 64,
                                                .num_requests = 2,
                                                .query_lens = {1, 2},
                                                .seq_lens = {100, 40}};

/* Run with the changed args; nothing may be written, and the message has `word` in it. */
static void expect_refused(struct attention_run *run,
                           const struct test_device *device,
                           pkv_status wanted,
                           const char *word) {
    pkv_status status = attention_run_execute(run, device->device);

    if (status != wanted || strstr(pkv_device_last_error(device->device), word) == NULL) {
        print_error("%s instead of %s, '%s' has no '%s'\n", pkv_status_name(status),
                    pkv_status_name(wanted), pkv_device_last_error(device->device), word);
    }
    assert_int_equal(status, wanted);
    assert_non_null(strstr(pkv_device_last_error(device->device), word));
    const char *damage = attention_run_damage(run, 0);
    if (damage != NULL) {
        print_error("%s was written to\n", damage);
    }
    assert_null(damage);
}

static void views(const struct test_device *device, const void *context) {
    struct attention_run run;
    pkv_attention_args good;

    (void)context;
    attention_run_create(&run, &base_case, device->memory);
    good = run.args;
#define REFUSED(status, word, change)                                                              \
    do {                                                                                           \
        run.args = good;                                                                           \
        change;                                                                                    \
        expect_refused(&run, device, PKV_ERROR_##status, word);                                    \
    } while (0)
    REFUSED(INVALID_ARGUMENT, "query.shape[2] (head_size)", run.args.query.shape[2] = 56);
    REFUSED(INVALID_ARGUMENT, "num_kv_heads", run.args.query.shape[1] = 3);
    REFUSED(INVALID_ARGUMENT, "query.rank", run.args.query.rank = 2);
    REFUSED(UNSUPPORTED, "query.dtype", run.args.query.dtype = PKV_DTYPE_INT8);
    REFUSED(INVALID_ARGUMENT, "query.data", run.args.query.data = NULL);
    REFUSED(INVALID_ARGUMENT, "aligned", run.args.query.data = (char *)run.args.query.data + 8);
    REFUSED(INVALID_ARGUMENT, "query.stride[1]", run.args.query.stride[1] = 65);
    REFUSED(UNSUPPORTED, "query.stride[2]", run.args.query.stride[2] = 2);
    REFUSED(UNSUPPORTED, "query.stride[0]", run.args.query.stride[0] = -256);
    REFUSED(UNSUPPORTED, "head_size", run.args.k_cache.shape[3] = 46);
    REFUSED(UNSUPPORTED, "head_size", run.args.k_cache.shape[3] = 600);
    REFUSED(UNSUPPORTED, "block_size", run.args.k_cache.shape[2] = 0);
    REFUSED(UNSUPPORTED, "block_size", run.args.k_cache.shape[2] = 512);
    REFUSED(INVALID_ARGUMENT, "v_cache.shape[0] (num_blocks)", run.args.v_cache.shape[0] -= 1);
    REFUSED(UNSUPPORTED, "dtype", run.args.v_cache.dtype = PKV_DTYPE_BFLOAT16);
    REFUSED(INVALID_ARGUMENT, "v_cache is absent",
            memset(&run.args.v_cache, 0, sizeof run.args.v_cache));
    REFUSED(UNSUPPORTED, "k_scale", run.args.k_scale = run.args.lse);
    REFUSED(INVALID_ARGUMENT, "output.shape[0]", run.args.output.shape[0] -= 1);
    REFUSED(UNSUPPORTED, "output.dtype", run.args.output.dtype = PKV_DTYPE_BFLOAT16);
    REFUSED(INVALID_ARGUMENT, "output", run.args.output.data = run.args.query.data);
    REFUSED(INVALID_ARGUMENT, "lse.shape[1]", run.args.lse.shape[1] = 3);
    run.args = good;
    assert_int_equal(attention_run_execute(&run, device->device), PKV_OK);
    attention_run_destroy(&run);
}

static void values(const struct test_device *device, const void *context) {
    struct attention_run run;
    pkv_attention_args good;

    (void)context;
    attention_run_create(&run, &base_case, device->memory);
    good = run.args;
    REFUSED(INVALID_ARGUMENT, "softmax_scale", run.args.softmax_scale = -1.0f);
    REFUSED(INVALID_ARGUMENT, "softmax_scale", run.args.softmax_scale = NAN);
    REFUSED(INVALID_ARGUMENT, "softcap", run.args.softcap = -1.0f);
    REFUSED(INVALID_ARGUMENT, "window", run.args.window = -1);
    REFUSED(UNSUPPORTED, "flags", run.args.flags = 0x40);
    REFUSED(INVALID_ARGUMENT, "NON_CAUSAL", run.args.flags = PKV_ATTENTION_NON_CAUSAL);
    REFUSED(INVALID_ARGUMENT, "seq_lens", run.args.seq_lens = NULL);
    REFUSED(INVALID_ARGUMENT, "block_table", run.args.block_table = NULL);
    REFUSED(INVALID_ARGUMENT, "plan_data", run.args.plan_data = NULL);
    REFUSED(LIMIT, "workspace_size", run.args.workspace_size -= 1);
    REFUSED(INVALID_ARGUMENT, "workspace", run.args.workspace = NULL);
    REFUSED(UNSUPPORTED, "tree_mask", (run.args.tree_mask = run.tree.device, run.args.window = 8));
    REFUSED(UNSUPPORTED, "tree_mask",
            (run.args.tree_mask = run.tree.device, run.args.alibi_slopes = run.slopes.device));
    REFUSED(INVALID_ARGUMENT, "tree_mask_stride",
            (run.args.tree_mask = run.tree.device, run.args.tree_mask_stride = 0));
    REFUSED(INVALID_ARGUMENT, "struct_size", run.args.struct_size = 7);
    run.args = good;
    assert_int_equal(pkv_attention(device->device, NULL, &run.args, NULL),
                     PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_attention(NULL, run.plan, &run.args, NULL), PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(attention_run_execute(&run, device->device), PKV_OK);
    attention_run_destroy(&run);
}

/* A plan of another shape or another batch. */
static void plans(const struct test_device *device, const void *context) {
    struct attention_case other_case = base_case;
    struct attention_run run, other;
    pkv_attention_args good;
    pkv_plan *plan;

    (void)context;
    attention_run_create(&run, &base_case, device->memory);
    good = run.args;
    plan = run.plan;
    other_case.num_query_heads = 8;
    attention_run_create(&other, &other_case, device->memory);
    REFUSED(INVALID_ARGUMENT, "num_query_heads", run.plan = other.plan);
    run.plan = plan;
    if (device->memory == NULL) { /* the host does not read the memory of another device */
        REFUSED(INVALID_ARGUMENT, "plan_data", run.args.plan_data = other.plan_data.device);
    }
    attention_run_destroy(&other);
    other_case = base_case;
    other_case.window = 32;
    attention_run_create(&other, &other_case, device->memory);
    REFUSED(INVALID_ARGUMENT, "window", run.plan = other.plan);
    run.plan = plan;
    run.args = good;
    attention_run_destroy(&other);
    attention_run_destroy(&run);
}

/* What a CPU device sees in the arrays that elsewhere are in device memory. */
static void arrays(const struct test_device *device, const void *context) {
    struct attention_run run;
    int32_t *table, *lens, *starts;

    (void)context;
    if (device->memory != NULL) {
        print_message("skipped: arrays in device memory are not read by the host\n");
        skip();
    }
    attention_run_create(&run, &base_case, device->memory);
    table = (int32_t *)run.table.host + run.rows[0] * run.num_columns;
    lens = run.lens.host;
    starts = run.starts.host;
    int32_t block = table[6];
    table[6] = run.num_blocks;
    expect_refused(&run, device, PKV_ERROR_INVALID_ARGUMENT, "block_table of request 0, column 6");
    table[6] = -1;
    expect_refused(&run, device, PKV_ERROR_INVALID_ARGUMENT, "block_table of request 0, column 6");
    table[6] = block;
    lens[0] = 129; /* planned were up to 128 */
    expect_refused(&run, device, PKV_ERROR_INVALID_ARGUMENT, "seq_lens[0]");
    lens[0] = -1;
    expect_refused(&run, device, PKV_ERROR_INVALID_ARGUMENT, "seq_lens[0]");
    lens[0] = 100;
    lens[1] = 1; /* two queries */
    expect_refused(&run, device, PKV_ERROR_INVALID_ARGUMENT, "request 1");
    lens[1] = 40;
    starts[1] = 2;
    expect_refused(&run, device, PKV_ERROR_INVALID_ARGUMENT, "query_start_loc");
    starts[1] = 1;
    assert_int_equal(attention_run_execute(&run, device->device), PKV_OK);
    attention_run_destroy(&run);
}

static void shapes(const struct test_device *device, const void *context) {
    pkv_attention_shape shape = {.struct_size = sizeof shape,
                                 .num_query_heads = 8,
                                 .num_kv_heads = 2,
                                 .head_size = 64,
                                 .block_size = 16,
                                 .query_dtype = PKV_DTYPE_BFLOAT16};
    const char *reason;

    (void)context;
    assert_true(pkv_attention_supports(device->device, &shape, &reason));
    assert_null(reason);
    for (int32_t head_size = 1; head_size < 700; head_size++) {
        shape.head_size = head_size;
        bool is_supported = pkv_attention_supports(device->device, &shape, &reason);
        /* Between these a CUDA device has fewer sizes than a CPU. */
        bool is_certain = device->memory == NULL || head_size <= 128 || head_size > 576;

        if (is_certain || is_supported) {
            assert_true(is_supported == (head_size % 8 == 0 && head_size <= 576));
        }
        assert_true(is_supported == (reason == NULL));
        assert_true(reason == NULL || strstr(reason, "head_size") != NULL);
    }
    shape.head_size = 64;
    shape.kv_dtype = PKV_DTYPE_FLOAT16;
    assert_false(pkv_attention_supports(device->device, &shape, &reason));
    assert_non_null(strstr(reason, "kv_dtype"));
    shape.query_dtype = PKV_DTYPE_FLOAT32;
    assert_true(pkv_attention_supports(device->device, &shape, NULL));
    shape.num_query_heads = 9;
    assert_false(pkv_attention_supports(device->device, &shape, &reason));
    assert_non_null(strstr(reason, "num_query_heads"));
}

/* ---- Offsets beyond 2^32 elements */

/* Elements from one block to the next: every block but the null block lies beyond 2^32. */
#define FAR_STRIDE (5ll << 30)

/* A run whose pool is spread over memory that is only there where it is touched. */
struct far_run {
    struct attention_run run;
    unsigned char *sparse;
    size_t size;
    int64_t block_bytes, stride_bytes;
};

/* `has_content`: the blocks of the dense pool lie in it; else it is all zero. False: it cannot be had
 * here, the reason was printed, and the test is to be skipped. */
static bool open_far(struct far_run *far,
                     const struct attention_case *c,
                     const struct test_device *device,
                     bool has_content) {
    struct attention_run *run = &far->run;

    if (device->memory != NULL) {
        print_message("skipped: needs memory that is only there where it is touched\n");
        return false;
    }
    attention_run_create(run, c, NULL);
    int64_t element = (int64_t)pkv_dtype_size(run->c.kv_dtype);
    far->block_bytes = run->k_cache.stride[0] * element;
    far->stride_bytes = FAR_STRIDE * element;
    far->size = (size_t)(far->stride_bytes * run->num_blocks);
    far->sparse = mmap(NULL, far->size, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (far->sparse == MAP_FAILED) {
        print_message("SKIPPED: %zu bytes of address space cannot be had\n", far->size);
        attention_run_destroy(run);
        return false;
    }
    for (int64_t block = 0; has_content && block < run->num_blocks; block++) {
        memcpy(far->sparse + block * far->stride_bytes,
               (unsigned char *)run->pool.host + block * far->block_bytes,
               (size_t)far->block_bytes);
    }
    pkv_tensor *views[] = {&run->args.k_cache, &run->args.v_cache, &run->args.k_scale,
                           &run->args.v_scale};
    for (int i = 0; i < (run->c.layout == CASE_SCALES_INSIDE ? 4 : 2); i++) {
        views[i]->data =
            far->sparse + ((unsigned char *)views[i]->data - (unsigned char *)run->pool.device);
        views[i]->stride[0] = far->stride_bytes / (int64_t)pkv_dtype_size(views[i]->dtype);
    }
    return true;
}

static void close_far(struct far_run *far) {
    (void)munmap(far->sparse, far->size);
    attention_run_destroy(&far->run);
}

static void expect_attention(struct far_run *far, const struct test_device *device) {
    struct attention_error error;

    assert_int_equal(attention_run_execute(&far->run, device->device), PKV_OK);
    attention_run_compare(&far->run, &error);
    assert_true(error.output <= 1.0 && error.lse <= 1.0);
}

/* The bytes of one block are those at `wanted`. */
static void expect_block(const struct far_run *far, int64_t block, const void *wanted) {
    assert_memory_equal(far->sparse + block * far->stride_bytes, wanted, (size_t)far->block_bytes);
}

static const struct attention_case far_case = {.query_dtype = PKV_DTYPE_FLOAT16,
                                               .num_query_heads = 4,
                                               .num_kv_heads = 2,
                                               .num_requests = 1,
                                               .query_lens = {1},
                                               .seq_lens = {48}};

/* One token, 20 tokens (which are too many rows for the small tile), scales in the block. */
static void far_reads(const struct test_device *device, const void *context) {
    struct attention_case cases[3] = {far_case, far_case, far_case};

    (void)context;
    cases[1].query_lens[0] = 20;
    cases[2].query_lens[0] = 20;
    cases[2].kv_dtype = PKV_DTYPE_FLOAT8_E4M3;
    cases[2].scales = CASE_SCALE_TOKEN;
    cases[2].layout = CASE_SCALES_INSIDE;
    for (int i = 0; i < 3; i++) {
        struct far_run far;

        if (!open_far(&far, &cases[i], device, true)) {
            skip();
        }
        expect_attention(&far, device);
        close_far(&far);
    }
}

/* Bytes of a token's keys or values of one head in a dense pool. */
static const unsigned char *dense_row(const struct attention_run *run,
                                      const pkv_tensor *cache,
                                      int64_t position,
                                      int64_t head) {
    const int32_t *row = (const int32_t *)run->table.host + run->rows[0] * run->num_columns;
    int64_t element = row[position / 16] * cache->stride[0] + head * cache->stride[1] +
                      position % 16 * cache->stride[2];

    return (const unsigned char *)cache->data + element * 2;
}

/* Everything is written to blocks that are far away, read from there by gather and attention, and
 * looked at. */
static void far_writes(const struct test_device *device, const void *context) {
    enum { TOKENS = 48, HEADS = 2, SIZE = 64, ROW = SIZE * 2 };
    static _Alignas(64) unsigned char rows[2][TOKENS * HEADS * ROW], gathered[2][sizeof rows[0]];
    const int64_t shape[] = {TOKENS, HEADS, SIZE};
    const int32_t starts[] = {0, TOKENS};
    int64_t slots[TOKENS];
    struct far_run far;

    (void)context;
    if (!open_far(&far, &far_case, device, false)) {
        skip();
    }
    const struct attention_run *run = &far.run;
    const int32_t *row = (const int32_t *)run->table.host + run->rows[0] * run->num_columns;
    for (int64_t i = 0; i < TOKENS; i++) {
        slots[i] = (int64_t)row[i / 16] * 16 + i % 16;
        for (int64_t head = 0; head < HEADS; head++) {
            memcpy(rows[0] + (i * HEADS + head) * ROW, dense_row(run, &run->k_cache, i, head), ROW);
            memcpy(rows[1] + (i * HEADS + head) * ROW, dense_row(run, &run->v_cache, i, head), ROW);
        }
    }
    const pkv_write_kv_args write = {.struct_size = sizeof write,
                                     .key = tensor_view(rows[0], PKV_DTYPE_FLOAT16, 3, shape),
                                     .value = tensor_view(rows[1], PKV_DTYPE_FLOAT16, 3, shape),
                                     .k_cache = run->args.k_cache,
                                     .v_cache = run->args.v_cache,
                                     .slot_mapping = slots};
    const pkv_gather_args gather = {.struct_size = sizeof gather,
                                    .num_requests = 1,
                                    .k_cache = run->args.k_cache,
                                    .v_cache = run->args.v_cache,
                                    .key = tensor_view(gathered[0], PKV_DTYPE_FLOAT16, 3, shape),
                                    .value = tensor_view(gathered[1], PKV_DTYPE_FLOAT16, 3, shape),
                                    .block_table = run->table.host,
                                    .block_table_stride = run->num_columns,
                                    .rows = run->rows,
                                    .key_start_loc = starts};
    assert_int_equal(pkv_write_kv(device->device, &write, NULL), PKV_OK);
    for (int64_t column = 0; column < TOKENS / 16; column++) {
        expect_block(&far, row[column],
                     (unsigned char *)run->pool.host + row[column] * far.block_bytes);
    }
    memset(gathered, 0xa5, sizeof gathered);
    assert_int_equal(pkv_gather(device->device, &gather, NULL), PKV_OK);
    assert_memory_equal(gathered, rows, sizeof rows);
    expect_attention(&far, device);
    close_far(&far);
}

/* Blocks 2 and 3 go to 4 and 1, within the pool and out to a dense one; then some are filled. */
static void far_moves(const struct test_device *device, const void *context) {
    static const pkv_block_copy copies[] = {{2, 4}, {3, 1}};
    static const pkv_block_id poisoned[] = {3, 4};
    struct far_run far;

    (void)context;
    if (!open_far(&far, &far_case, device, true)) {
        skip();
    }
    const unsigned char *dense = far.run.pool.host;
    size_t bytes = (size_t)far.block_bytes;
    const int64_t shape[] = {1, far.run.num_blocks, far.block_bytes};
    unsigned char *other = malloc(5 * bytes), *ones = malloc(bytes);
    const pkv_tensor target = tensor_view(other, PKV_DTYPE_UINT8, 3, shape);
    pkv_tensor blocks = tensor_view(far.sparse, PKV_DTYPE_UINT8, 3, shape);

    assert_int_equal(far.run.num_blocks, 5);
    assert_true(other != NULL && ones != NULL);
    memset(ones, 0xff, bytes);
    memset(other, 0, 5 * bytes);
    blocks.stride[1] = far.stride_bytes;
    assert_int_equal(pkv_swap_blocks(device->device, &blocks, &target, copies, 2, NULL), PKV_OK);
    assert_memory_equal(other + 4 * bytes, dense + 2 * bytes, bytes);
    assert_memory_equal(other + bytes, dense + 3 * bytes, bytes);
    assert_int_equal(pkv_copy_blocks(device->device, &blocks, copies, 2, NULL), PKV_OK);
    expect_block(&far, 1, dense + 3 * bytes);
    expect_block(&far, 2, dense + 2 * bytes);
    expect_block(&far, 3, dense + 3 * bytes);
    expect_block(&far, 4, dense + 2 * bytes);
    assert_int_equal(pkv_fill_blocks(device->device, &blocks, poisoned, 2, PKV_FILL_POISON, NULL),
                     PKV_OK);
    expect_block(&far, 1, dense + 3 * bytes);
    expect_block(&far, 2, dense + 2 * bytes);
    expect_block(&far, 3, ones);
    expect_block(&far, 4, ones);
    assert_int_equal(pkv_swap_blocks(device->device, &target, &blocks, copies + 1, 1, NULL),
                     PKV_OK);
    expect_block(&far, 1, other + 3 * bytes);
    free(other);
    free(ones);
    close_far(&far);
}

int main(void) {
    const struct device_test tests[] = {
        {"views", views, NULL},
        {"values", values, NULL},
        {"plans", plans, NULL},
        {"arrays", arrays, NULL},
        {"shapes", shapes, NULL},
        {"offsets beyond 32 bits", far_reads, NULL},
        {"offsets beyond 32 bits: write, gather", far_writes, NULL},
        {"offsets beyond 32 bits: copy, swap, fill", far_moves, NULL},
    };
    struct test_device devices[TEST_MAX_DEVICES];
    int num_devices = test_devices_open(devices, 1);
    int failures = device_tests_run("attention, refusals", tests,
                                    (int)(sizeof tests / sizeof tests[0]), devices, num_devices);

    test_devices_close(devices, num_devices);
    return failures;
}
