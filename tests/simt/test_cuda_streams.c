/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Copies of the CUDA device and the order of its streams: what is refused without a fence, what is
 * not, and that the ways in which blocks move leave the same bytes.
 *
 * The one idea: streams of the runtime of this folder run only when somebody waits, so a fence that
 * is missing shows every time, and a device that does not refuse it copies what was there
 * before. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <cuda_runtime_api.h>

#include <pagedkv/attention.h>
#include <pagedkv/cuda.h>
#include <pagedkv/transfer.h>

#include "kernels/cuda/stream_order.h"
#include "simt_control.h"

enum { NUM_BLOCKS = 8, BLOCK_BYTES = 2048, POOL_BYTES = NUM_BLOCKS * BLOCK_BYTES };

/* A device, three streams of their own order, a pool on the device and one in pinned memory. Block
 * i of the first holds bytes i, of the second bytes 0x40 + i. */
struct fixture {
    pkv_device *device;
    cudaStream_t streams[3];
    pkv_fence fence;
    pkv_tensor pool, host;
};

static void fill_pool(pkv_tensor *pool, int first) {
    unsigned char content[POOL_BYTES];

    for (size_t i = 0; i < sizeof content; i++) {
        content[i] = (unsigned char)(first + (int)(i / BLOCK_BYTES));
    }
    *pool = (pkv_tensor){.data = pool->data,
                         .dtype = PKV_DTYPE_UINT8,
                         .rank = 3,
                         .shape = {1, NUM_BLOCKS, BLOCK_BYTES},
                         .stride = {POOL_BYTES, BLOCK_BYTES, 1}};
    assert_int_equal(cudaMemcpy(pool->data, content, sizeof content, cudaMemcpyDefault),
                     cudaSuccess);
}

static int open_fixture(void **state) {
    static struct fixture f;
    const pkv_cuda_config config = {.struct_size = sizeof config};

    memset(&f, 0, sizeof f);
    assert_int_equal(pkv_device_create_cuda(&config, &f.device), PKV_OK);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(cudaStreamCreateWithFlags(&f.streams[i], cudaStreamNonBlocking),
                         cudaSuccess);
    }
    assert_int_equal(pkv_fence_create(f.device, &f.fence), PKV_OK);
    assert_int_equal(cudaMalloc(&f.pool.data, POOL_BYTES), cudaSuccess);
    assert_int_equal(cudaMallocHost(&f.host.data, POOL_BYTES), cudaSuccess);
    fill_pool(&f.pool, 0);
    fill_pool(&f.host, 0x40);
    *state = &f;
    return 0;
}

static int close_fixture(void **state) {
    struct fixture *f = *state;

    pkv_fence_destroy(f->device, f->fence);
    pkv_device_destroy(f->device);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(cudaStreamDestroy(f->streams[i]), cudaSuccess);
    }
    assert_int_equal(cudaFree(f->pool.data), cudaSuccess);
    assert_int_equal(cudaFreeHost(f->host.data), cudaSuccess);
    simt_clear_error();
    return 0;
}

static pkv_stream stream_of(const struct fixture *f, int index) {
    return pkv_stream_of_cuda(f->streams[index]);
}

static pkv_status poison(struct fixture *f, pkv_block_id block_id, pkv_stream stream) {
    return pkv_fill_blocks(f->device, &f->pool, &block_id, 1, PKV_FILL_POISON, stream);
}

static pkv_status copy(struct fixture *f,
                       pkv_block_id source,
                       pkv_block_id target,
                       pkv_stream stream) {
    const pkv_block_copy pair = {source, target};

    return pkv_copy_blocks(f->device, &f->pool, &pair, 1, stream);
}

static int first_byte(const pkv_tensor *pool, int block) {
    unsigned char byte;

    assert_int_equal(
        cudaMemcpy(&byte, (unsigned char *)pool->data + block * BLOCK_BYTES, 1, cudaMemcpyDefault),
        cudaSuccess);
    return byte;
}

/* ---- What is refused */

static void a_copy_without_a_fence_is_refused(void **state) {
    struct fixture *f = *state;

    assert_int_equal(poison(f, 1, stream_of(f, 0)), PKV_OK);
    assert_int_equal(copy(f, 1, 2, stream_of(f, 1)), PKV_ERROR_INVALID_ARGUMENT);
    assert_non_null(strstr(pkv_device_last_error(f->device), "block 1 was written on another"));
    assert_int_equal(copy(f, 3, 4, stream_of(f, 1)), PKV_OK); /* nobody wrote that one */
    assert_int_equal(copy(f, 1, 5, stream_of(f, 0)), PKV_OK); /* the same stream */
    assert_int_equal(pkv_fence_record(f->device, f->fence, stream_of(f, 0)), PKV_OK);
    assert_int_equal(copy(f, 1, 2, stream_of(f, 1)), PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_fence_wait(f->device, f->fence, stream_of(f, 1)), PKV_OK);
    assert_int_equal(copy(f, 1, 2, stream_of(f, 1)), PKV_OK);
    assert_int_equal(pkv_device_synchronize(f->device, stream_of(f, 1)), PKV_OK);
    assert_int_equal(first_byte(&f->pool, 2), 0xff);
}

/* What the refusal is for: whoever asks not to be held to it gets the bytes from before. */
static void without_the_refusal_the_race_shows(void **state) {
    struct fixture *f = *state;
    const pkv_cuda_config config = {.struct_size = sizeof config, .ignores_stream_order = true};

    pkv_device_destroy(f->device);
    assert_int_equal(pkv_device_create_cuda(&config, &f->device), PKV_OK);
    assert_int_equal(poison(f, 1, stream_of(f, 0)), PKV_OK);
    assert_int_equal(copy(f, 1, 2, stream_of(f, 1)), PKV_OK);
    assert_int_equal(pkv_device_synchronize(f->device, stream_of(f, 1)), PKV_OK);
    assert_int_equal(first_byte(&f->pool, 2), 1);
}

static void a_fence_before_the_write_is_not_enough(void **state) {
    struct fixture *f = *state;

    assert_int_equal(pkv_fence_record(f->device, f->fence, stream_of(f, 0)), PKV_OK);
    assert_int_equal(poison(f, 1, stream_of(f, 0)), PKV_OK);
    assert_int_equal(pkv_fence_wait(f->device, f->fence, stream_of(f, 1)), PKV_OK);
    assert_int_equal(copy(f, 1, 2, stream_of(f, 1)), PKV_ERROR_INVALID_ARGUMENT);
}

static void order_goes_through_a_third_stream(void **state) {
    struct fixture *f = *state;
    pkv_fence second;

    assert_int_equal(pkv_fence_create(f->device, &second), PKV_OK);
    assert_int_equal(poison(f, 1, stream_of(f, 0)), PKV_OK);
    assert_int_equal(pkv_fence_record(f->device, f->fence, stream_of(f, 0)), PKV_OK);
    assert_int_equal(pkv_fence_wait(f->device, f->fence, stream_of(f, 1)), PKV_OK);
    assert_int_equal(copy(f, 1, 2, stream_of(f, 2)), PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_fence_record(f->device, second, stream_of(f, 1)), PKV_OK);
    assert_int_equal(pkv_fence_wait(f->device, second, stream_of(f, 2)), PKV_OK);
    assert_int_equal(copy(f, 1, 2, stream_of(f, 2)), PKV_OK);
    assert_int_equal(pkv_device_synchronize(f->device, stream_of(f, 2)), PKV_OK);
    assert_int_equal(first_byte(&f->pool, 2), 0xff);
    pkv_fence_destroy(f->device, second);
}

static void what_the_host_has_seen_is_ordered(void **state) {
    struct fixture *f = *state;

    assert_int_equal(poison(f, 1, stream_of(f, 0)), PKV_OK);
    assert_int_equal(pkv_device_synchronize(f->device, stream_of(f, 0)), PKV_OK);
    assert_int_equal(copy(f, 1, 2, stream_of(f, 1)), PKV_OK);
    assert_int_equal(poison(f, 3, stream_of(f, 0)), PKV_OK);
    assert_int_equal(pkv_fence_record(f->device, f->fence, stream_of(f, 0)), PKV_OK);
    assert_int_equal(copy(f, 3, 4, stream_of(f, 1)), PKV_ERROR_INVALID_ARGUMENT);
    while (pkv_fence_query(f->device, f->fence) == PKV_IN_PROGRESS) {
    }
    assert_int_equal(copy(f, 3, 4, stream_of(f, 1)), PKV_OK);
}

static void the_default_stream_takes_turns(void **state) {
    struct fixture *f = *state;
    cudaStream_t blocking;

    assert_int_equal(cudaStreamCreateWithFlags(&blocking, cudaStreamDefault), cudaSuccess);
    assert_int_equal(poison(f, 1, NULL), PKV_OK);
    assert_int_equal(copy(f, 1, 2, stream_of(f, 0)), PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(copy(f, 1, 2, pkv_stream_of_cuda(blocking)), PKV_OK);
    assert_int_equal(copy(f, 2, 3, NULL), PKV_OK);
    assert_int_equal(copy(f, 3, 4, pkv_stream_of_cuda(cudaStreamLegacy)), PKV_OK);
    assert_int_equal(pkv_device_synchronize(f->device, NULL), PKV_OK);
    assert_int_equal(first_byte(&f->pool, 4), 0xff);
    assert_int_equal(cudaStreamDestroy(blocking), cudaSuccess);
}

/* Swap out on a stream for copies, and in again. */
static void swaps_are_held_to_it(void **state) {
    struct fixture *f = *state;
    const pkv_block_copy out = {1, 2}, in = {2, 3};

    assert_int_equal(poison(f, 1, stream_of(f, 0)), PKV_OK);
    assert_int_equal(pkv_swap_blocks(f->device, &f->pool, &f->host, &out, 1, stream_of(f, 1)),
                     PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_fence_record(f->device, f->fence, stream_of(f, 0)), PKV_OK);
    assert_int_equal(pkv_fence_wait(f->device, f->fence, stream_of(f, 1)), PKV_OK);
    assert_int_equal(pkv_swap_blocks(f->device, &f->pool, &f->host, &out, 1, stream_of(f, 1)),
                     PKV_OK);
    assert_int_equal(pkv_swap_blocks(f->device, &f->host, &f->pool, &in, 1, stream_of(f, 2)),
                     PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_swap_blocks(f->device, &f->host, &f->pool, &in, 1, stream_of(f, 1)),
                     PKV_OK);
    assert_int_equal(pkv_device_synchronize(f->device, stream_of(f, 1)), PKV_OK);
    assert_int_equal(first_byte(&f->pool, 3), 0xff);
}

/* Write keys of one token to block 1 of the pool. `memory` is 64 bytes on the device. */
static pkv_status write_keys(struct fixture *f, void *memory, pkv_stream stream) {
    const int64_t rows[] = {1, 1, 8}, cache[] = {NUM_BLOCKS, 1, BLOCK_BYTES / 32, 8};
    const int64_t slot = BLOCK_BYTES / 32;
    pkv_write_kv_args args = {.struct_size = sizeof args};
    pkv_tensor *views[] = {&args.key, &args.k_cache};

    assert_int_equal(cudaMemcpy(memory, &slot, sizeof slot, cudaMemcpyDefault), cudaSuccess);
    args.slot_mapping = memory;
    for (int i = 0; i < 2; i++) {
        views[i]->dtype = PKV_DTYPE_FLOAT32;
        views[i]->rank = i == 0 ? 3 : 4;
        memcpy(views[i]->shape, i == 0 ? rows : cache, (size_t)views[i]->rank * sizeof(int64_t));
        views[i]->stride[views[i]->rank - 1] = 1;
        for (int32_t axis = views[i]->rank - 2; axis >= 0; axis--) {
            views[i]->stride[axis] = views[i]->stride[axis + 1] * views[i]->shape[axis + 1];
        }
    }
    args.key.data = (unsigned char *)memory + 32;
    args.k_cache.data = f->pool.data;
    return pkv_write_kv(f->device, &args, stream);
}

static pkv_status swap_out_one(struct fixture *f, pkv_stream stream) {
    const pkv_block_copy out = {1, 2};

    return pkv_swap_blocks(f->device, &f->pool, &f->host, &out, 1, stream);
}

/* Which blocks pkv_write_kv writes is not known: one fence of its stream is enough for ever. */
static void writers_of_keys_want_one_fence(void **state) {
    struct fixture *f = *state;
    void *memory;

    assert_int_equal(cudaMalloc(&memory, 64), cudaSuccess);
    assert_int_equal(write_keys(f, memory, stream_of(f, 0)), PKV_OK);
    assert_int_equal(swap_out_one(f, stream_of(f, 1)), PKV_ERROR_INVALID_ARGUMENT);
    assert_non_null(strstr(pkv_device_last_error(f->device), "another stream writes keys"));
    assert_int_equal(pkv_fence_record(f->device, f->fence, stream_of(f, 0)), PKV_OK);
    assert_int_equal(pkv_fence_wait(f->device, f->fence, stream_of(f, 1)), PKV_OK);
    assert_int_equal(write_keys(f, memory, stream_of(f, 0)), PKV_OK);
    assert_int_equal(swap_out_one(f, stream_of(f, 1)), PKV_OK);
    assert_int_equal(cudaFree(memory), cudaSuccess);
}

/* ---- Handles and addresses that come again */

/* Destroy a stream and make another one, which gets its handle. */
static void replace_stream(struct fixture *f, int index, unsigned flags) {
    const cudaStream_t before = f->streams[index];

    assert_int_equal(cudaStreamDestroy(before), cudaSuccess);
    assert_int_equal(cudaStreamCreateWithFlags(&f->streams[index], flags), cudaSuccess);
    assert_ptr_equal(f->streams[index], before);
}

static void a_handle_is_not_a_stream(void **state) {
    struct fixture *f = *state;

    assert_int_equal(poison(f, 1, stream_of(f, 0)), PKV_OK);
    assert_int_equal(pkv_fence_record(f->device, f->fence, stream_of(f, 0)), PKV_OK);
    assert_int_equal(pkv_fence_wait(f->device, f->fence, stream_of(f, 1)), PKV_OK);
    assert_int_equal(copy(f, 1, 2, stream_of(f, 1)), PKV_OK);
    replace_stream(f, 1, cudaStreamNonBlocking);
    /* Neither what the one before had waited for nor what it wrote. */
    assert_int_equal(copy(f, 1, 3, stream_of(f, 1)), PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(copy(f, 2, 3, stream_of(f, 1)), PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_fence_wait(f->device, f->fence, stream_of(f, 1)), PKV_OK);
    assert_int_equal(copy(f, 2, 3, stream_of(f, 1)), PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(copy(f, 1, 3, stream_of(f, 1)), PKV_OK);
    assert_int_equal(copy(f, 3, 4, stream_of(f, 1)), PKV_OK);
    assert_int_equal(copy(f, 3, 5, stream_of(f, 0)), PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_device_synchronize(f->device, stream_of(f, 1)), PKV_OK);
    assert_int_equal(copy(f, 3, 5, stream_of(f, 0)), PKV_OK);
    assert_int_equal(pkv_device_synchronize(f->device, stream_of(f, 0)), PKV_OK);
    assert_int_equal(first_byte(&f->pool, 5), 0xff);
}

/* More streams than the table has, one after the other under one handle: each is held to it. */
static void streams_under_one_handle_are_told_apart(void **state) {
    struct fixture *f = *state;

    for (int i = 0; i < 3 * PKVI_ORDER_STREAMS; i++) {
        assert_int_equal(poison(f, 1, stream_of(f, 0)), PKV_OK);
        assert_int_equal(copy(f, 1, 2, stream_of(f, 1)), PKV_ERROR_INVALID_ARGUMENT);
        assert_int_equal(pkv_fence_record(f->device, f->fence, stream_of(f, 0)), PKV_OK);
        assert_int_equal(pkv_fence_wait(f->device, f->fence, stream_of(f, 1)), PKV_OK);
        assert_int_equal(copy(f, 1, 2, stream_of(f, 1)), PKV_OK);
        replace_stream(f, 1, cudaStreamNonBlocking);
        assert_int_equal(copy(f, 1, 2, stream_of(f, 1)), PKV_ERROR_INVALID_ARGUMENT);
    }
}

/* One that takes turns with the default stream under the handle of one that did not. */
static void flags_are_the_new_streams(void **state) {
    struct fixture *f = *state;

    assert_int_equal(poison(f, 1, NULL), PKV_OK);
    assert_int_equal(copy(f, 1, 2, stream_of(f, 1)), PKV_ERROR_INVALID_ARGUMENT);
    replace_stream(f, 1, cudaStreamDefault);
    assert_int_equal(copy(f, 1, 2, stream_of(f, 1)), PKV_OK);
    replace_stream(f, 1, cudaStreamNonBlocking);
    assert_int_equal(copy(f, 1, 3, stream_of(f, 1)), PKV_ERROR_INVALID_ARGUMENT);
}

/* Free the pool and allocate until there is one at its address again. */
static void replace_pool(struct fixture *f) {
    void *const before = f->pool.data;
    void *others[64];
    int num_others = 0;

    assert_int_equal(cudaFree(before), cudaSuccess);
    assert_int_equal(cudaMalloc(&f->pool.data, POOL_BYTES), cudaSuccess);
    while (f->pool.data != before && num_others < 64) {
        others[num_others++] = f->pool.data;
        assert_int_equal(cudaMalloc(&f->pool.data, POOL_BYTES), cudaSuccess);
    }
    assert_ptr_equal(f->pool.data, before);
    while (num_others > 0) {
        assert_int_equal(cudaFree(others[--num_others]), cudaSuccess);
    }
    fill_pool(&f->pool, 0);
}

static void freed_memory_has_no_writer(void **state) {
    struct fixture *f = *state;
    void *memory;

    assert_int_equal(cudaMalloc(&memory, 64), cudaSuccess);
    assert_int_equal(poison(f, 1, stream_of(f, 0)), PKV_OK);
    assert_int_equal(copy(f, 1, 2, stream_of(f, 1)), PKV_ERROR_INVALID_ARGUMENT);
    replace_pool(f);
    assert_int_equal(copy(f, 1, 2, stream_of(f, 1)), PKV_OK);
    assert_int_equal(write_keys(f, memory, stream_of(f, 0)), PKV_OK);
    assert_int_equal(swap_out_one(f, stream_of(f, 1)), PKV_ERROR_INVALID_ARGUMENT);
    replace_pool(f);
    assert_int_equal(swap_out_one(f, stream_of(f, 1)), PKV_OK);
    assert_int_equal(pkv_device_synchronize(f->device, stream_of(f, 1)), PKV_OK);
    assert_int_equal(first_byte(&f->host, 2), 1);
    assert_int_equal(cudaFree(memory), cudaSuccess);
}

/* What is written to it from then on counts, also where the same was written to the old one. */
static void new_memory_is_held_to_it(void **state) {
    struct fixture *f = *state;
    void *memory;

    assert_int_equal(cudaMalloc(&memory, 64), cudaSuccess);
    assert_int_equal(poison(f, 1, stream_of(f, 0)), PKV_OK);
    replace_pool(f);
    assert_int_equal(poison(f, 1, stream_of(f, 0)), PKV_OK);
    assert_int_equal(copy(f, 1, 2, stream_of(f, 1)), PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_device_synchronize(f->device, stream_of(f, 0)), PKV_OK);
    assert_int_equal(copy(f, 1, 2, stream_of(f, 1)), PKV_OK);
    assert_int_equal(write_keys(f, memory, stream_of(f, 0)), PKV_OK);
    replace_pool(f);
    assert_int_equal(write_keys(f, memory, stream_of(f, 0)), PKV_OK);
    assert_int_equal(swap_out_one(f, stream_of(f, 1)), PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_fence_record(f->device, f->fence, stream_of(f, 0)), PKV_OK);
    assert_int_equal(pkv_fence_wait(f->device, f->fence, stream_of(f, 1)), PKV_OK);
    assert_int_equal(swap_out_one(f, stream_of(f, 1)), PKV_OK);
    assert_int_equal(cudaFree(memory), cudaSuccess);
}

/* Where the driver does not tell allocations apart the host has to wait once. */
static void without_numbers_an_address_keeps_its_writer(void **state) {
    struct fixture *f = *state;
    const pkv_cuda_config config = {.struct_size = sizeof config};

    pkv_device_destroy(f->device);
    simt_fail_call(CUDART_VERSION >= 12050 ? "cudaGetDriverEntryPointByVersion"
                                           : "cudaGetDriverEntryPoint",
                   1, cudaErrorNotSupported);
    assert_int_equal(pkv_device_create_cuda(&config, &f->device), PKV_OK);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    assert_int_equal(poison(f, 1, stream_of(f, 0)), PKV_OK);
    replace_pool(f);
    assert_int_equal(copy(f, 1, 2, stream_of(f, 1)), PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_device_synchronize(f->device, stream_of(f, 0)), PKV_OK);
    assert_int_equal(copy(f, 1, 2, stream_of(f, 1)), PKV_OK);
}

/* Everything that the runtime is asked about streams and memory is asked on their own device. */
static void another_current_device_changes_nothing(void **state) {
    struct fixture *f = *state;
    const simt_device before = *simt_get_device();
    void *memory;

    assert_int_equal(cudaMalloc(&memory, 64), cudaSuccess);
    assert_int_equal(poison(f, 1, stream_of(f, 0)), PKV_OK);
    replace_pool(f);
    simt_get_device()->num_devices = 2;
    assert_int_equal(cudaSetDevice(1), cudaSuccess);
    assert_int_equal(copy(f, 1, 2, stream_of(f, 1)), PKV_OK); /* the pool is a new one */
    assert_int_equal(poison(f, 1, stream_of(f, 0)), PKV_OK);
    assert_int_equal(copy(f, 1, 3, stream_of(f, 1)), PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(write_keys(f, memory, stream_of(f, 0)), PKV_OK);
    assert_int_equal(swap_out_one(f, stream_of(f, 1)), PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_fence_record(f->device, f->fence, stream_of(f, 0)), PKV_OK);
    assert_int_equal(pkv_fence_wait(f->device, f->fence, stream_of(f, 1)), PKV_OK);
    assert_int_equal(copy(f, 1, 3, stream_of(f, 1)), PKV_OK);
    assert_int_equal(swap_out_one(f, stream_of(f, 1)), PKV_OK);
    assert_int_equal(pkv_device_synchronize(f->device, stream_of(f, 1)), PKV_OK);
    assert_int_equal(cudaSetDevice(0), cudaSuccess);
    *simt_get_device() = before;
    assert_int_equal(first_byte(&f->pool, 3), 0xff);
    assert_int_equal(cudaFree(memory), cudaSuccess);
}

static void a_capture_is_not_held_to_it(void **state) {
    struct fixture *f = *state;
    cudaGraph_t graph;

    assert_int_equal(poison(f, 1, stream_of(f, 0)), PKV_OK);
    assert_int_equal(cudaStreamBeginCapture(f->streams[1], cudaStreamCaptureModeGlobal),
                     cudaSuccess);
    assert_int_equal(copy(f, 1, 2, stream_of(f, 1)), PKV_OK);
    assert_int_equal(cudaStreamEndCapture(f->streams[1], &graph), cudaSuccess);
    assert_int_equal(cudaGraphDestroy(graph), cudaSuccess);
    assert_int_equal(copy(f, 2, 3, stream_of(f, 2)), PKV_OK); /* the capture wrote nothing yet */
}

static void strange_streams_are_refused(void **state) {
    struct fixture *f = *state;
    simt_device before = *simt_get_device();
    cudaStream_t foreign, gone;

    simt_get_device()->num_devices = 2;
    assert_int_equal(cudaSetDevice(1), cudaSuccess);
    assert_int_equal(cudaStreamCreateWithFlags(&foreign, cudaStreamNonBlocking), cudaSuccess);
    assert_int_equal(copy(f, 1, 2, pkv_stream_of_cuda(foreign)), PKV_ERROR_INVALID_ARGUMENT);
#if CUDART_VERSION >= 12080
    assert_non_null(strstr(pkv_device_last_error(f->device), "of CUDA device 1"));
#endif
    /* An older driver cannot tell whose it is; the launch can. */
    simt_get_device()->driver_version = 12000;
    assert_int_equal(copy(f, 1, 2, pkv_stream_of_cuda(foreign)), PKV_ERROR_INVALID_ARGUMENT);
    *simt_get_device() = before;
    assert_int_equal(cudaSetDevice(0), cudaSuccess);
    assert_int_equal(cudaStreamCreateWithFlags(&gone, cudaStreamNonBlocking), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(gone), cudaSuccess);
    assert_int_equal(pkv_device_synchronize(f->device, pkv_stream_of_cuda(gone)),
                     PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(first_byte(&f->pool, 2), 2);
}

/* ---- The ways of a swap */

enum way { MANY_AT_ONCE, DRIVER_TOO_OLD, DRIVER_REFUSES, DEFAULT_STREAM };

/* Swap out runs and single blocks of three layers with the chosen way; the host pool's bytes. */
static void swap_out(struct fixture *f, enum way way, unsigned char *bytes) {
    static const pkv_block_copy pairs[] = {{1, 5}, {2, 6}, {3, 7}, {6, 2}, {5, 1}, {7, 3}};
    const simt_device before = *simt_get_device();
    const pkv_cuda_config config = {.struct_size = sizeof config};
    pkv_stream stream = way == DEFAULT_STREAM ? NULL : stream_of(f, 0);
    pkv_tensor pool = f->pool, host = f->host;
    int calls = simt_num_calls("cudaMemcpyBatchAsync"), singles = simt_num_calls("cudaMemcpyAsync");

    fill_pool(&f->pool, 0);
    fill_pool(&f->host, 0x40);
    if (way == DRIVER_TOO_OLD) {
        simt_get_device()->driver_version = 12070;
    }
    pkv_device_destroy(f->device);
    assert_int_equal(pkv_device_create_cuda(&config, &f->device), PKV_OK);
    *simt_get_device() = before;
    if (way == DRIVER_REFUSES) {
        simt_fail_call("cudaMemcpyBatchAsync", 1, cudaErrorNotSupported);
    }
    pool.shape[0] = host.shape[0] = 2; /* two layers: halves of the blocks' bytes */
    pool.shape[2] = host.shape[2] = 64;
    pool.stride[0] = host.stride[0] = POOL_BYTES / 2;
    pool.stride[1] = host.stride[1] = 64;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pkv_swap_blocks(f->device, &pool, &host, pairs, 6, stream), PKV_OK);
    }
    calls = simt_num_calls("cudaMemcpyBatchAsync") - calls;
    singles = simt_num_calls("cudaMemcpyAsync") - singles;
    /* A run of three and three blocks, in two layers: 8 copies. */
#if CUDART_VERSION >= 12080
    assert_int_equal(calls, way == MANY_AT_ONCE ? 2 : way == DRIVER_REFUSES ? 1 : 0);
    assert_int_equal(singles, way == MANY_AT_ONCE ? 0 : 16);
#else
    assert_int_equal(calls, 0);
    assert_int_equal(singles, 16);
#endif
    assert_int_equal(pkv_device_synchronize(f->device, stream), PKV_OK);
    memcpy(bytes, f->host.data, POOL_BYTES);
}

static void each_way_of_a_swap_leaves_the_same_bytes(void **state) {
    static unsigned char expected[POOL_BYTES], found[POOL_BYTES];

    swap_out(*state, MANY_AT_ONCE, expected);
    assert_int_equal(expected[5 * 64], 0);
    assert_int_equal(expected[POOL_BYTES / 2 + 5 * 64], 4);
    assert_int_equal(expected[4 * 64], 0x40); /* nobody's target */
    for (enum way way = DRIVER_TOO_OLD; way <= DEFAULT_STREAM; way++) {
        swap_out(*state, way, found);
        assert_memory_equal(found, expected, sizeof found);
    }
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_fixture, close_fixture)
    const struct CMUnitTest tests[] = {
        TEST(a_copy_without_a_fence_is_refused),
        TEST(without_the_refusal_the_race_shows),
        TEST(a_fence_before_the_write_is_not_enough),
        TEST(order_goes_through_a_third_stream),
        TEST(what_the_host_has_seen_is_ordered),
        TEST(the_default_stream_takes_turns),
        TEST(swaps_are_held_to_it),
        TEST(writers_of_keys_want_one_fence),
        TEST(a_handle_is_not_a_stream),
        TEST(streams_under_one_handle_are_told_apart),
        TEST(flags_are_the_new_streams),
        TEST(freed_memory_has_no_writer),
        TEST(new_memory_is_held_to_it),
        TEST(without_numbers_an_address_keeps_its_writer),
        TEST(another_current_device_changes_nothing),
        TEST(a_capture_is_not_held_to_it),
        TEST(strange_streams_are_refused),
        TEST(each_way_of_a_swap_leaves_the_same_bytes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
