/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The CUDA device over the runtime of this folder: how it is refused, what its fences promise, that
 * every call leaves the caller's device current and CUDA's last error empty, and that every
 * operation can be captured, with its own copy of a host list. The order of streams is in
 * test_cuda_streams.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <cuda_runtime_api.h>

#include <pagedkv/cuda.h>
#include <pagedkv/transfer.h>

#include "simt_control.h"
#include "support/test_devices.h"

static char log_text[256];

static void keep_log(void *context, int level, const char *message) {
    (void)context;
    (void)snprintf(log_text, sizeof log_text, "%d %s", level, message);
}

static const pkv_cuda_config config = {.struct_size = sizeof config, .log = keep_log};

static void no_device_is_a_status(void **state) {
    simt_device before = *simt_get_device();
    pkv_device *device = NULL;

    (void)state;
    simt_get_device()->num_devices = 0;
    assert_int_equal(pkv_device_create_cuda(&config, &device), PKV_ERROR_DEVICE);
    assert_null(device);
    assert_non_null(strstr(log_text, "0 no CUDA device"));
    *simt_get_device() = before;
    simt_clear_error();
    assert_int_equal(cudaGetLastError(), cudaSuccess);
}

static void bad_configs_are_refused(void **state) {
    pkv_cuda_config bad = config;
    simt_device before = *simt_get_device();
    pkv_device *device = NULL;

    (void)state;
    bad.device_ordinal = -2;
    assert_int_equal(pkv_device_create_cuda(&bad, &device), PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_device_cuda_size(&bad), 0);
    bad.device_ordinal = 99;
    assert_int_equal(pkv_device_create_cuda(&bad, &device), PKV_ERROR_DEVICE);
    bad.device_ordinal = 0;
    bad.struct_size = 3;
    assert_int_equal(pkv_device_create_cuda(&bad, &device), PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_device_create_cuda(&config, NULL), PKV_ERROR_INVALID_ARGUMENT);
    simt_get_device()->compute_major = 7;
    assert_int_equal(pkv_device_create_cuda(&config, &device), PKV_ERROR_UNSUPPORTED);
    assert_non_null(strstr(log_text, "too old"));
    *simt_get_device() = before;
    simt_fail_call("cudaFuncGetAttributes", 1, cudaErrorNoKernelImageForDevice);
    assert_int_equal(pkv_device_create_cuda(&config, &device), PKV_ERROR_DEVICE);
    assert_null(device);
    simt_clear_error();
}

static void the_callers_memory_serves(void **state) {
    size_t size = pkv_device_cuda_size(&config);
    void *memory = aligned_alloc(64, size);
    pkv_device_info info = {.struct_size = sizeof info};
    pkv_device *device;

    (void)state;
    assert_non_null(memory);
    assert_int_equal(pkv_device_init_cuda(&config, memory, size - 1, &device),
                     PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_device_init_cuda(&config, memory, size, &device), PKV_OK);
    assert_int_equal(pkv_device_get_info(device, &info), PKV_OK);
    assert_false(info.is_cpu);
    assert_non_null(strstr(info.description, "cuda 0"));
    pkv_device_destroy(device);
    free(memory);
}

/* A pool of 4 blocks of 64 bytes in one layer, on the device; block i holds bytes i. */
static pkv_tensor make_pool(void) {
    unsigned char content[4 * 64];
    pkv_tensor pool = {
        .dtype = PKV_DTYPE_UINT8, .rank = 3, .shape = {1, 4, 64}, .stride = {256, 64, 1}};

    for (size_t i = 0; i < sizeof content; i++) {
        content[i] = (unsigned char)(i / 64);
    }
    assert_int_equal(cudaMalloc(&pool.data, sizeof content), cudaSuccess);
    assert_int_equal(cudaMemcpy(pool.data, content, sizeof content, cudaMemcpyHostToDevice),
                     cudaSuccess);
    return pool;
}

static int first_byte(const pkv_tensor *pool, int block) {
    unsigned char byte;

    assert_int_equal(
        cudaMemcpy(&byte, (unsigned char *)pool->data + block * 64, 1, cudaMemcpyDeviceToHost),
        cudaSuccess);
    return byte;
}

static void fences_order_streams(void **state) {
    const pkv_block_id block_ids[] = {1};
    const pkv_block_copy copy = {1, 2};
    pkv_tensor pool = make_pool();
    cudaStream_t first, second;
    pkv_device *device;
    pkv_fence fence;

    (void)state;
    assert_int_equal(pkv_device_create_cuda(&config, &device), PKV_OK);
    assert_int_equal(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking), cudaSuccess);
    assert_int_equal(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking), cudaSuccess);
    assert_int_equal(pkv_fence_create(device, &fence), PKV_OK);
    assert_int_equal(pkv_fence_query(device, fence), PKV_OK);
    assert_int_equal(
        pkv_fill_blocks(device, &pool, block_ids, 1, PKV_FILL_POISON, pkv_stream_of_cuda(first)),
        PKV_OK);
    assert_int_equal(pkv_fence_record(device, fence, pkv_stream_of_cuda(first)), PKV_OK);
    assert_int_equal(pkv_fence_query(device, fence), PKV_IN_PROGRESS);
    assert_int_equal(pkv_fence_wait(device, fence, pkv_stream_of_cuda(second)), PKV_OK);
    assert_int_equal(pkv_copy_blocks(device, &pool, &copy, 1, pkv_stream_of_cuda(second)), PKV_OK);
    assert_int_equal(pkv_device_synchronize(device, pkv_stream_of_cuda(second)), PKV_OK);
    assert_int_equal(first_byte(&pool, 2), 0xff);
    assert_int_equal(pkv_fence_query(device, fence), PKV_OK);
    pkv_fence_destroy(device, fence);
    cudaStreamDestroy(first);
    cudaStreamDestroy(second);
    pkv_device_destroy(device);
    cudaFree(pool.data);
}

static void a_graph_keeps_its_list(void **state) {
    pkv_block_copy copy = {1, 3};
    pkv_tensor pool = make_pool();
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    cudaStream_t stream;
    pkv_device *device;

    (void)state;
    assert_int_equal(pkv_device_create_cuda(&config, &device), PKV_OK);
    assert_int_equal(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    assert_int_equal(pkv_copy_blocks(device, &pool, &copy, 1, pkv_stream_of_cuda(stream)), PKV_OK);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    assert_int_equal(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
    copy.source = copy.target = 2; /* the list is the caller's again */
    assert_int_equal(first_byte(&pool, 3), 3);
    for (int replay = 0; replay < 2; replay++) {
        assert_int_equal(cudaGraphLaunch(executable, stream), cudaSuccess);
    }
    assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
    assert_int_equal(first_byte(&pool, 3), 1);
    assert_int_equal(first_byte(&pool, 2), 2);
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
    pkv_device_destroy(device);
    cudaFree(pool.data);
}

/* ---- The caller's device, and CUDA's errors */

/* What the calls need: a device on ordinal 0 and things of it, while the caller is on 1. */
struct away {
    pkv_device *device;
    pkv_fence fence;
    pkv_tensor pool;
    void *host; /* a pool in pinned memory */
};

static pkv_status call_create(struct away *a) {
    pkv_cuda_config other = config;
    pkv_device *device = NULL;
    pkv_status status = pkv_device_create_cuda(&other, &device);

    (void)a;
    pkv_device_destroy(device);
    return status;
}

static pkv_status call_copy(struct away *a) {
    const pkv_block_copy copy = {1, 2};

    return pkv_copy_blocks(a->device, &a->pool, &copy, 1, NULL);
}

static pkv_status call_swap(struct away *a) {
    const pkv_block_copy copy = {1, 2};
    pkv_tensor host = a->pool;

    host.data = a->host;
    return pkv_swap_blocks(a->device, &a->pool, &host, &copy, 1, NULL);
}

static pkv_status call_fill(struct away *a) {
    const pkv_block_id block_id = 3;

    return pkv_fill_blocks(a->device, &a->pool, &block_id, 1, PKV_FILL_ZERO, NULL);
}

static pkv_status call_synchronize(struct away *a) {
    return pkv_device_synchronize(a->device, NULL);
}

static pkv_status call_fence_create(struct away *a) {
    pkv_fence fence = NULL;
    pkv_status status = pkv_fence_create(a->device, &fence);

    pkv_fence_destroy(a->device, fence);
    return status;
}

static pkv_status call_fence_record(struct away *a) {
    return pkv_fence_record(a->device, a->fence, NULL);
}

static pkv_status call_fence_wait(struct away *a) {
    return pkv_fence_wait(a->device, a->fence, NULL);
}

static pkv_status call_fence_query(struct away *a) {
    pkv_status status = pkv_fence_query(a->device, a->fence);

    return status == PKV_IN_PROGRESS ? PKV_OK : status;
}

static const struct {
    const char *name;
    pkv_status (*call)(struct away *a);
    const char *asks[3]; /* functions of the runtime that it cannot do without */
} calls[] = {
    {"create", call_create, {"cudaDeviceGetAttribute", "cudaFuncGetAttributes", "cudaGetDevice"}},
    {"move_blocks", call_copy, {"launch", "cudaPointerGetAttributes", "cudaSetDevice"}},
    {"move_blocks", call_swap, {"cudaMemcpyAsync", "cudaPointerGetAttributes", "cudaSetDevice"}},
    {"fill_blocks", call_fill, {"launch", "cudaPointerGetAttributes", "cudaSetDevice"}},
    {"synchronize", call_synchronize, {"cudaStreamSynchronize", "cudaSetDevice", NULL}},
    {"fence_create", call_fence_create, {"cudaEventCreateWithFlags", "cudaSetDevice", NULL}},
    {"fence_record", call_fence_record, {"cudaEventRecord", "cudaSetDevice", NULL}},
    {"fence_wait", call_fence_wait, {"cudaStreamWaitEvent", "cudaSetDevice", NULL}},
    {"fence_query", call_fence_query, {"cudaEventQuery", "cudaSetDevice", NULL}},
};

/* The caller's device is current, and the runtime remembers no error. */
static void expect_untouched(void) {
    int current = -1;

    assert_int_equal(cudaGetDevice(&current), cudaSuccess);
    assert_int_equal(current, 1);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
}

static void every_call_puts_the_device_back(void **state) {
    const simt_device before = *simt_get_device();
    struct away a = {.pool = make_pool()};

    (void)state;
    assert_int_equal(cudaMallocHost(&a.host, 4 * 64), cudaSuccess);
    assert_int_equal(pkv_device_create_cuda(&config, &a.device), PKV_OK);
    assert_int_equal(pkv_fence_create(a.device, &a.fence), PKV_OK);
    simt_get_device()->num_devices = 2;
    assert_int_equal(cudaSetDevice(1), cudaSuccess);
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        assert_int_equal(calls[i].call(&a), PKV_OK);
        expect_untouched();
        for (size_t ask = 0; ask < 3 && calls[i].asks[ask] != NULL; ask++) {
            log_text[0] = '\0';
            simt_fail_call(calls[i].asks[ask], 1, cudaErrorUnknown);
            assert_int_equal(calls[i].call(&a), PKV_ERROR_DEVICE);
            const char *text = i == 0 ? log_text : pkv_device_last_error(a.device);
            assert_non_null(strstr(text, i == 0 ? "CUDA device" : calls[i].name));
            assert_non_null(strstr(text, "error 999 of the simulated runtime (cudaError)"));
            expect_untouched();
        }
    }
    pkv_fence_destroy(a.device, a.fence);
    expect_untouched();
    pkv_device_destroy(a.device);
    expect_untouched();
    assert_int_equal(cudaSetDevice(0), cudaSuccess);
    *simt_get_device() = before;
    cudaFreeHost(a.host);
    cudaFree(a.pool.data);
}

static void a_device_of_another_ordinal_works(void **state) {
    const simt_device before = *simt_get_device();
    pkv_cuda_config second = config;
    pkv_device *device;

    (void)state;
    simt_get_device()->num_devices = 2;
    assert_int_equal(cudaSetDevice(1), cudaSuccess);
    struct away a = {.pool = make_pool()};
    assert_int_equal(cudaSetDevice(0), cudaSuccess);
    second.device_ordinal = 1;
    assert_int_equal(pkv_device_create_cuda(&second, &device), PKV_OK);
    a.device = device;
    assert_int_equal(call_copy(&a), PKV_OK);
    assert_int_equal(pkv_device_synchronize(device, NULL), PKV_OK);
    assert_int_equal(first_byte(&a.pool, 2), 1);
    pkv_device_destroy(device);
    *simt_get_device() = before;
    cudaFree(a.pool.data);
}

/* ---- What is computed */

static bool supports(const struct test_device *device,
                     const struct attention_case *c,
                     const char **reason) {
    const pkv_attention_shape shape = {.struct_size = sizeof shape,
                                       .num_query_heads = 1,
                                       .num_kv_heads = 1,
                                       .head_size = c->head_size,
                                       .v_head_size = c->v_head_size,
                                       .block_size = 16,
                                       .query_dtype = c->query_dtype,
                                       .kv_dtype = c->kv_dtype};

    return pkv_attention_supports(device->device, &shape, reason);
}

/* The answer for one shape, and what attention of that shape then does. Returns the answer. */
static bool try_shape(const struct test_device *device, const struct attention_case *c) {
    const char *reason = NULL;
    bool is_supported = supports(device, c, &reason);
    struct attention_run run;

    attention_run_create(&run, c, device->memory);
    assert_int_equal(attention_run_execute(&run, device->device),
                     is_supported ? PKV_OK : PKV_ERROR_UNSUPPORTED);
    if (!is_supported) {
        assert_string_equal(pkv_device_last_error(device->device), reason);
    }
    attention_run_destroy(&run);
    return is_supported;
}

static void what_is_supported_is_computed_and_nothing_else(void **state) {
    static const pkv_dtype dtypes[][2] = {{PKV_DTYPE_FLOAT16, PKV_DTYPE_FLOAT16},
                                          {PKV_DTYPE_FLOAT16, PKV_DTYPE_FLOAT8_E4M3},
                                          {PKV_DTYPE_BFLOAT16, PKV_DTYPE_INT8},
                                          {PKV_DTYPE_FLOAT32, PKV_DTYPE_FLOAT16}};
    static const int32_t sizes[][2] = {{8, 8},     {64, 64},   {72, 72},   {128, 128},
                                       {136, 128}, {192, 192}, {256, 256}, {264, 264},
                                       {512, 512}, {576, 512}, {576, 576}};
    struct test_device device;
    int num_supported = 0;

    (void)state;
    assert_int_equal(test_devices_open(&device, 1), 1);
    for (size_t i = 0; i < 4 * sizeof sizes / sizeof sizes[0]; i++) {
        const struct attention_case c = {.query_dtype = dtypes[i % 4][0],
                                         .kv_dtype = dtypes[i % 4][1],
                                         .head_size = sizes[i / 4][0],
                                         .v_head_size = sizes[i / 4][1],
                                         .layout = sizes[i / 4][0] == 576 ? CASE_LATENT
                                                                          : CASE_BLOCK_2_HEAD,
                                         .num_requests = 1,
                                         .query_lens = {1},
                                         .seq_lens = {5}};
        bool is_supported = try_shape(&device, &c);

        /* Classes end at 256; one layout of 576 and 512 is beyond; plain kernels take all. */
        if (c.head_size > 256 && !(c.head_size == 576 && c.v_head_size == 512) &&
            c.query_dtype != PKV_DTYPE_FLOAT32) {
            assert_false(is_supported);
        }
        num_supported += is_supported;
    }
    assert_true(num_supported > 0);
    test_devices_close(&device, 1);
}

/* What a block of 8.6, 8.9 and 12.0 has, and a multiprocessor. */
enum { LITTLE_BLOCK_SHARED = 101376, LITTLE_SHARED = 102400 };

/* Whether this device takes the shape. What it takes is right, in small and in large tiles. */
static bool computes_right(const struct test_device *device, const struct attention_case *c) {
    struct attention_run run;
    struct attention_error error;

    if (!try_shape(device, c)) {
        return false;
    }
    attention_run_create(&run, c, device->memory);
    assert_int_equal(attention_run_execute(&run, device->device), PKV_OK);
    attention_run_compare(&run, &error);
    assert_true(error.output <= 1.0 && error.lse <= 1.0);
    attention_run_destroy(&run);
    return true;
}

static void little_shared_memory_refuses_mla_alone(void **state) {
    static const pkv_dtype dtypes[][2] = {{PKV_DTYPE_FLOAT16, PKV_DTYPE_FLOAT16},
                                          {PKV_DTYPE_FLOAT16, PKV_DTYPE_INT8},
                                          {PKV_DTYPE_BFLOAT16, PKV_DTYPE_BFLOAT16},
                                          {PKV_DTYPE_BFLOAT16, PKV_DTYPE_FLOAT8_E4M3}};
    static const int32_t sizes[][2] = {{64, 64}, {128, 128}, {192, 128}, {256, 256}, {576, 512}};
    const simt_device before = *simt_get_device();
    struct test_device large, little;
    int num_taken = 0, num_wide = 0, num_refused = 0;

    (void)state;
    assert_int_equal(test_devices_open(&large, 1), 1);
    simt_get_device()->compute_major = 8;
    simt_get_device()->compute_minor = 9;
    simt_get_device()->shared_bytes_per_block = LITTLE_BLOCK_SHARED;
    simt_get_device()->shared_bytes_per_multiprocessor = LITTLE_SHARED;
    assert_int_equal(test_devices_open(&little, 1), 1);
    for (size_t i = 0; i < 4 * sizeof sizes / sizeof sizes[0]; i++) {
        const struct attention_case c = {.query_dtype = dtypes[i % 4][0],
                                         .kv_dtype = dtypes[i % 4][1],
                                         .num_query_heads = 4,
                                         .head_size = sizes[i / 4][0],
                                         .v_head_size = sizes[i / 4][1],
                                         .layout = sizes[i / 4][0] == 576 ? CASE_LATENT
                                                                          : CASE_BLOCK_2_HEAD,
                                         .num_requests = 3,
                                         .query_lens = {1, 3, 20},
                                         .seq_lens = {150, 90, 60},
                                         .chunk_size = 64};

        if (!supports(&large, &c, NULL)) {
            continue; /* a kernel that this test build does not have */
        }
        if (computes_right(&little, &c)) {
            assert_int_not_equal(c.head_size, 576);
            num_taken++;
            num_wide += c.head_size == 256 && c.kv_dtype == PKV_DTYPE_FLOAT16;
        } else {
            assert_int_equal(c.head_size, 576);
            assert_string_equal(pkv_device_last_error(little.device),
                                "head_size wants more shared memory than a block of this device "
                                "has");
            num_refused++;
        }
    }
    assert_true(num_taken > 0);
    if (strcmp(simt_build(), "plain") == 0) {
        assert_int_equal(num_wide, 1);
        assert_int_equal(num_refused, 1);
    }
    test_devices_close(&little, 1);
    *simt_get_device() = before;
    test_devices_close(&large, 1);
}

/* ---- Captures */

/* Small and large tiles and a merge, each for the first time in a capture. */
static void attention_can_be_captured(void **state) {
    static const struct attention_case c = {.query_dtype = PKV_DTYPE_FLOAT16,
                                            .num_query_heads = 4,
                                            .num_requests = 3,
                                            .query_lens = {1, 3, 20},
                                            .seq_lens = {150, 90, 60},
                                            .chunk_size = 64};
    struct test_device device;
    struct attention_run run;
    struct attention_error error;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    cudaStream_t stream;

    (void)state;
    assert_int_equal(test_devices_open(&device, 1), 1);
    attention_run_create(&run, &c, device.memory);
    assert_int_equal(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    assert_int_equal(pkv_attention(device.device, run.plan, &run.args, pkv_stream_of_cuda(stream)),
                     PKV_OK);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    assert_int_equal(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
    memset(run.output.host, 0xa5, run.output.size); /* what the comparison wants in unused rows */
    memset(run.lse.host, 0xa5, run.lse.size);
    device.memory->upload(NULL, run.output.device, run.output.host, run.output.size);
    device.memory->upload(NULL, run.lse.device, run.lse.host, run.lse.size);
    for (int replay = 0; replay < 2; replay++) {
        assert_int_equal(cudaGraphLaunch(executable, stream), cudaSuccess);
    }
    assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
    device.memory->download(NULL, run.output.host, run.output.device, run.output.size);
    device.memory->download(NULL, run.lse.host, run.lse.device, run.lse.size);
    run.is_cuda = true;
    attention_run_compare(&run, &error);
    assert_true(error.output <= 1.0 && error.lse <= 1.0);
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
    attention_run_destroy(&run);
    test_devices_close(&device, 1);
}

/* The others, captured and never run: what they point to does not matter. */
static void every_operation_can_be_captured(void **state) {
    const int64_t rows[] = {1, 1, 8}, cache[] = {4, 1, 2, 8}, one[] = {1, 1};
    const pkv_table_update update = {1, 0, 2};
    const pkv_block_id block_id = 3;
    pkv_tensor pool = make_pool();
    struct away a = {.pool = pool};
    pkv_write_kv_args write = {.struct_size = sizeof write,
                               .key = tensor_view(pool.data, PKV_DTYPE_FLOAT32, 3, rows),
                               .k_cache = tensor_view(pool.data, PKV_DTYPE_FLOAT32, 4, cache),
                               .slot_mapping = pool.data};
    pkv_gather_args gather = {.struct_size = sizeof gather,
                              .num_requests = 1,
                              .k_cache = write.k_cache,
                              .key = write.key,
                              .block_table = pool.data,
                              .rows = pool.data,
                              .key_start_loc = pool.data};
    const pkv_tensor lse = tensor_view(pool.data, PKV_DTYPE_FLOAT32, 2, one);
    const pkv_merge_args merge = {.struct_size = sizeof merge,
                                  .num_parts = 1,
                                  .outputs = &write.key,
                                  .lses = &lse,
                                  .output = write.key};
    const pkv_table_args table = {.struct_size = sizeof table,
                                  .block_table = pool.data,
                                  .block_table_stride = 4,
                                  .num_rows = 4,
                                  .num_columns = 4,
                                  .updates = &update,
                                  .num_updates = 1};
    const pkv_slot_mapping_args slots = {.struct_size = sizeof slots,
                                         .num_requests = 1,
                                         .num_tokens = 1,
                                         .block_size = 2,
                                         .num_columns = 4,
                                         .block_table = pool.data,
                                         .rows = pool.data,
                                         .seq_lens = pool.data,
                                         .query_start_loc = pool.data,
                                         .slot_mapping = pool.data};
    const pkv_block_copy copy = {1, 2};
    cudaGraph_t graph;
    cudaStream_t stream;
    pkv_stream on;
    size_t num_nodes = 0;

    (void)state;
    assert_int_equal(pkv_device_create_cuda(&config, &a.device), PKV_OK);
    assert_int_equal(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    on = pkv_stream_of_cuda(stream);
    assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    assert_int_equal(pkv_write_kv(a.device, &write, on), PKV_OK);
    assert_int_equal(pkv_gather(a.device, &gather, on), PKV_OK);
    assert_int_equal(pkv_merge_states(a.device, &merge, on), PKV_OK);
    assert_int_equal(pkv_update_block_table(a.device, &table, on), PKV_OK);
    assert_int_equal(pkv_compute_slot_mapping(a.device, &slots, on), PKV_OK);
    assert_int_equal(pkv_copy_blocks(a.device, &pool, &copy, 1, on), PKV_OK);
    assert_int_equal(pkv_fill_blocks(a.device, &pool, &block_id, 1, PKV_FILL_ZERO, on), PKV_OK);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    assert_int_equal(cudaGraphGetNodes(graph, NULL, &num_nodes), cudaSuccess);
    assert_int_equal(num_nodes, 7);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
    pkv_device_destroy(a.device);
    cudaFree(pool.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_device_is_a_status),
        cmocka_unit_test(bad_configs_are_refused),
        cmocka_unit_test(the_callers_memory_serves),
        cmocka_unit_test(fences_order_streams),
        cmocka_unit_test(a_graph_keeps_its_list),
        cmocka_unit_test(every_call_puts_the_device_back),
        cmocka_unit_test(a_device_of_another_ordinal_works),
        cmocka_unit_test(what_is_supported_is_computed_and_nothing_else),
        cmocka_unit_test(little_shared_memory_refuses_mla_alone),
        cmocka_unit_test(attention_can_be_captured),
        cmocka_unit_test(every_operation_can_be_captured),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
