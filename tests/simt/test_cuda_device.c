/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The CUDA device over the runtime of this folder: how it is refused, what its streams and fences
 * promise, and that a captured graph keeps its own copy of a host list. */
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_device_is_a_status),     cmocka_unit_test(bad_configs_are_refused),
        cmocka_unit_test(the_callers_memory_serves), cmocka_unit_test(fences_order_streams),
        cmocka_unit_test(a_graph_keeps_its_list),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
