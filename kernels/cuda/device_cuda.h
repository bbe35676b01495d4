/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The CUDA device from inside: what it consists of, how a call becomes one of the runtime on the
 * right device, its streams and fences (streams_cuda.c), and what CUDA says of memory
 * (memory_cuda.c). How it is made, and its operations, are in backend_cuda.c.
 *
 * The one idea: each call makes its device current, does one thing, puts the caller's device back
 * and turns CUDA's answer into a status whose text is CUDA's own. */
#ifndef PKVI_CUDA_DEVICE_CUDA_H
#define PKVI_CUDA_DEVICE_CUDA_H

#include <cuda.h>
#include <string.h>

#include <pagedkv/cuda.h>

#include "kernels/cuda/copy_runs.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launch_attention.h"
#include "kernels/cuda/stream_order.h"

struct pkvi_cuda_device {
    struct pkv_device base;
    int ordinal;
    struct pkvi_cuda_limits limits;
    bool reaches_pageable; /* kernels may read and write any memory of the process */
    bool ignores_stream_order;
    void *check_memory;
    char description[64];
    struct pkvi_stream_order order;
    struct pkvi_cuda_copies copies;
    /* The stream of the call that is under way, which check_stream begins: its number in `order`,
     * and whether it captures. */
    int32_t stream;
    bool is_capturing;
    /* cuPointerGetAttribute; NULL where the driver is not asked. */
    CUresult (*ask_pointer)(void *data, CUpointer_attribute attribute, CUdeviceptr pointer);
};

/* What CUDA says of the memory of a view. */
struct pkvi_cuda_memory {
    enum cudaMemoryType type; /* of its first byte */
    uint64_t allocation;      /* as in struct pkvi_memory */
};

static inline struct pkvi_cuda_device *pkvi_cuda_of(pkv_device *device) {
    return (struct pkvi_cuda_device *)(void *)device;
}

static inline cudaStream_t pkvi_cuda_stream(pkv_stream stream) {
    return pkv_cuda_of_stream(stream);
}

/* Make `ordinal` current. `previous` is for leave. */
cudaError_t pkvi_cuda_enter(int ordinal, int *previous);

/* Put the caller's device back; an error of the work itself comes first. */
cudaError_t pkvi_cuda_leave(int ordinal, int previous, cudaError_t error);

/* The status of CUDA's answer, its text in the device's last error. */
pkv_status pkvi_cuda_finish(pkv_device *device, const char *what, cudaError_t error);

/* Evaluate `call`, a cudaError_t, with the device current; `out` is its status. */
#define PKVI_ON_CUDA_DEVICE(device, what, call, out)                                               \
    do {                                                                                           \
        int ordinal = pkvi_cuda_of(device)->ordinal, previous;                                     \
        cudaError_t error = pkvi_cuda_enter(ordinal, &previous);                                   \
        if (error == cudaSuccess) {                                                                \
            error = (call);                                                                        \
        }                                                                                          \
        (out) = pkvi_cuda_finish((device), (what), pkvi_cuda_leave(ordinal, previous, error));     \
    } while (0)

/* The table's functions for streams and fences. */
pkv_status pkvi_cuda_check_stream(pkv_device *device, pkv_stream stream);
pkv_status pkvi_cuda_synchronize(pkv_device *device, pkv_stream stream);
pkv_status pkvi_cuda_fence_create(pkv_device *device, pkv_fence *out);
pkv_status pkvi_cuda_fence_record(pkv_device *device, pkv_fence fence, pkv_stream stream);
pkv_status pkvi_cuda_fence_wait(pkv_device *device, pkv_fence fence, pkv_stream stream);
pkv_status pkvi_cuda_fence_query(pkv_device *device, pkv_fence fence);
void pkvi_cuda_fence_destroy(pkv_device *device, pkv_fence fence);

/* Whether calls of the runtime for many copies may stand here: not on the default stream, and not
 * in a capture. */
bool pkvi_cuda_takes_batches(const struct pkvi_cuda_device *cuda);

/* The operation that is about to be enqueued begins: what pkvi_order_wrote_* and pkvi_order_sees_*
 * take as its stream. What is captured runs some other time, on whatever stream: unknown. */
int32_t pkvi_cuda_begin_ordered(struct pkvi_cuda_device *cuda);

/* pkv_write_kv was enqueued: which blocks it writes stands on the device, so it is noted once that
 * this stream writes to these caches. The device is current. */
void pkvi_cuda_note_written(struct pkvi_cuda_device *cuda, const pkv_write_kv_args *args);

/* Refuse a copy whose source, of this allocation, another stream has written, where no fence orders
 * the two. */
pkv_status pkvi_cuda_check_order(pkv_device *device,
                                 const struct pkvi_move *op,
                                 uint64_t allocation,
                                 int32_t stream);

/* Fill ask_pointer in. This and the next two: the device is current. */
void pkvi_cuda_find_allocation_question(struct pkvi_cuda_device *cuda);
uint64_t pkvi_cuda_allocation_of(const struct pkvi_cuda_device *cuda, const pkv_tensor *view);
cudaError_t pkvi_cuda_look_at_memory(const struct pkvi_cuda_device *cuda,
                                     const pkv_tensor *view,
                                     struct pkvi_cuda_memory *out);

#endif
