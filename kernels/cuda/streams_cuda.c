/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The runtime on the right device, streams, fences, and who may copy what another stream has
 * written; see device_cuda.h. */
#include "kernels/cuda/device_cuda.h"

/* ---- The current device, and errors */

cudaError_t pkvi_cuda_enter(int ordinal, int *previous) {
    cudaError_t error = cudaGetDevice(previous);

    if (error != cudaSuccess) {
        *previous = ordinal;
        return error;
    }
    return *previous == ordinal ? cudaSuccess : cudaSetDevice(ordinal);
}

cudaError_t pkvi_cuda_leave(int ordinal, int previous, cudaError_t error) {
    cudaError_t restored = previous == ordinal ? cudaSuccess : cudaSetDevice(previous);

    return error != cudaSuccess ? error : restored;
}

/* The runtime keeps the last error until it is asked for: it is taken away here, so that the caller
 * does not find ours. */
pkv_status pkvi_cuda_finish(pkv_device *device, const char *what, cudaError_t error) {
    if (error == cudaSuccess) {
        return PKV_OK;
    }
    (void)cudaGetLastError();
    if (error == cudaErrorNotReady) {
        return PKV_IN_PROGRESS;
    }
    return PKVI_DEVICE_FAIL(
        device,
        error == cudaErrorInvalidResourceHandle ? PKV_ERROR_INVALID_ARGUMENT : PKV_ERROR_DEVICE,
        "%s: %s (%s)", what, cudaGetErrorString(error), cudaGetErrorName(error));
}

/* ---- Streams and fences */

/* The default stream has two names. */
static const void *handle_of(pkv_stream stream) {
    return pkvi_cuda_stream(stream) == cudaStreamLegacy ? NULL : (const void *)stream;
}

/* A stream that is new here: whose it is, and whether it takes turns with the default. */
static cudaError_t look_at_stream(cudaStream_t stream, int *ordinal, unsigned *flags) {
    cudaError_t error;

    if (stream == cudaStreamPerThread) {
        return cudaSuccess;
    }
    error = cudaStreamGetFlags(stream, flags);
    /* An older runtime or driver cannot say whose it is; then the first operation does. */
#if CUDART_VERSION < 12080
    (void)ordinal;
#else
    if (error == cudaSuccess && cudaStreamGetDevice(stream, ordinal) != cudaSuccess) {
        (void)cudaGetLastError();
    }
#endif
    return error;
}

static bool is_capturing(cudaStream_t stream) {
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;

    if (cudaStreamIsCapturing(stream, &status) != cudaSuccess) {
        (void)cudaGetLastError();
        return true;
    }
    return status != cudaStreamCaptureStatusNone;
}

/* Find out which stream the handle is now: after a stream has been destroyed another one may get
 * its handle, but not its id. `owner` becomes the device whose stream it is, if not this one. */
static cudaError_t identify_stream(struct pkvi_cuda_device *cuda, cudaStream_t stream, int *owner) {
    unsigned long long id = 0;
    unsigned flags = 0;
    cudaError_t error = cudaStreamGetId(stream, &id);

    if (error != cudaSuccess) {
        return error;
    }
    cuda->stream = pkvi_order_meet(&cuda->order, stream, id);
    if (cuda->stream == PKVI_ORDER_UNKNOWN) {
        error = look_at_stream(stream, owner, &flags);
        if (error != cudaSuccess || *owner != cuda->ordinal) {
            return error;
        }
        cuda->stream =
            pkvi_order_add(&cuda->order, stream, id, (flags & cudaStreamNonBlocking) == 0);
    }
    cuda->is_capturing = is_capturing(stream);
    return cudaSuccess;
}

pkv_status pkvi_cuda_check_stream(pkv_device *device, pkv_stream stream) {
    struct pkvi_cuda_device *cuda = pkvi_cuda_of(device);
    int owner = cuda->ordinal;
    pkv_status status;

    cuda->is_capturing = false;
    if (handle_of(stream) == NULL) {
        cuda->stream = pkvi_order_find(&cuda->order, NULL);
        return PKV_OK;
    }
    PKVI_ON_CUDA_DEVICE(device, "stream", identify_stream(cuda, pkvi_cuda_stream(stream), &owner),
                        status);
    if (status == PKV_OK && owner != cuda->ordinal) {
        return PKVI_DEVICE_FAIL(device, PKV_ERROR_INVALID_ARGUMENT,
                                "stream is of CUDA device %d, this is device %d", owner,
                                cuda->ordinal);
    }
    return status;
}

bool pkvi_cuda_takes_batches(const struct pkvi_cuda_device *cuda) {
    return cuda->stream != pkvi_order_find(&cuda->order, NULL) && !cuda->is_capturing;
}

/* The stream whose order counts. */
static int32_t ordered_stream(const struct pkvi_cuda_device *cuda) {
    return cuda->ignores_stream_order || cuda->is_capturing ? PKVI_ORDER_UNKNOWN : cuda->stream;
}

int32_t pkvi_cuda_begin_ordered(struct pkvi_cuda_device *cuda) {
    int32_t known = ordered_stream(cuda);

    pkvi_order_begin(&cuda->order, known);
    return known;
}

pkv_status pkvi_cuda_synchronize(pkv_device *device, pkv_stream stream) {
    struct pkvi_cuda_device *cuda = pkvi_cuda_of(device);
    pkv_status status;

    PKVI_ON_CUDA_DEVICE(device, "synchronize", cudaStreamSynchronize(pkvi_cuda_stream(stream)),
                        status);
    if (status == PKV_OK) {
        pkvi_order_synchronized(&cuda->order, cuda->stream);
    }
    return status;
}

pkv_status pkvi_cuda_fence_create(pkv_device *device, pkv_fence *out) {
    pkv_status status;

    PKVI_ON_CUDA_DEVICE(
        device, "fence_create",
        cudaEventCreateWithFlags((cudaEvent_t *)(void *)out, cudaEventDisableTiming), status);
    if (status == PKV_OK) {
        pkvi_order_fence_create(&pkvi_cuda_of(device)->order, *out);
    }
    return status;
}

pkv_status pkvi_cuda_fence_record(pkv_device *device, pkv_fence fence, pkv_stream stream) {
    struct pkvi_cuda_device *cuda = pkvi_cuda_of(device);
    pkv_status status;

    PKVI_ON_CUDA_DEVICE(device, "fence_record",
                        cudaEventRecord((cudaEvent_t)(void *)fence, pkvi_cuda_stream(stream)),
                        status);
    if (status == PKV_OK) {
        pkvi_order_fence_record(&cuda->order, fence, ordered_stream(cuda));
    }
    return status;
}

pkv_status pkvi_cuda_fence_wait(pkv_device *device, pkv_fence fence, pkv_stream stream) {
    struct pkvi_cuda_device *cuda = pkvi_cuda_of(device);
    pkv_status status;

    PKVI_ON_CUDA_DEVICE(
        device, "fence_wait",
        cudaStreamWaitEvent(pkvi_cuda_stream(stream), (cudaEvent_t)(void *)fence, 0), status);
    if (status == PKV_OK) {
        pkvi_order_fence_wait(&cuda->order, fence, ordered_stream(cuda));
    }
    return status;
}

pkv_status pkvi_cuda_fence_query(pkv_device *device, pkv_fence fence) {
    pkv_status status;

    PKVI_ON_CUDA_DEVICE(device, "fence_query", cudaEventQuery((cudaEvent_t)(void *)fence), status);
    if (status == PKV_OK) {
        pkvi_order_fence_passed(&pkvi_cuda_of(device)->order, fence);
    }
    return status;
}

void pkvi_cuda_fence_destroy(pkv_device *device, pkv_fence fence) {
    pkvi_order_fence_destroy(&pkvi_cuda_of(device)->order, fence);
    if (cudaEventDestroy((cudaEvent_t)(void *)fence) != cudaSuccess) {
        (void)cudaGetLastError();
    }
}

/* ---- The order of what streams write and copy */

void pkvi_cuda_note_written(struct pkvi_cuda_device *cuda, const pkv_write_kv_args *args) {
    const pkv_tensor *caches[] = {&args->k_cache, &args->v_cache};
    const int32_t stream = ordered_stream(cuda);

    for (size_t i = 0; i < sizeof caches / sizeof caches[0]; i++) {
        if (stream == PKVI_ORDER_UNKNOWN || pkvi_tensor_is_absent(caches[i])) {
            continue;
        }
        const struct pkvi_memory range = {caches[i]->data, pkvi_tensor_extent(caches[i]),
                                          pkvi_cuda_allocation_of(cuda, caches[i])};
        if (!pkvi_order_knows_range(&cuda->order, stream, &range)) {
            pkvi_order_begin(&cuda->order, stream);
            pkvi_order_wrote_range(&cuda->order, stream, &range);
        }
    }
}

pkv_status pkvi_cuda_check_order(pkv_device *device,
                                 const struct pkvi_move *op,
                                 uint64_t allocation,
                                 int32_t stream) {
    const struct pkvi_stream_order *order = &pkvi_cuda_of(device)->order;
    const struct pkvi_memory source = {op->source.data, pkvi_tensor_extent(&op->source),
                                       allocation};

    if (stream == PKVI_ORDER_UNKNOWN) {
        return PKV_OK;
    }
    if (!pkvi_order_sees_range(order, stream, &source)) {
        return PKVI_DEVICE_FAIL(device, PKV_ERROR_INVALID_ARGUMENT,
                                "another stream writes keys and values to the source, and this one "
                                "has never waited for a fence of it");
    }
    for (int32_t i = 0; i < op->num_copies; i++) {
        if (!pkvi_order_sees_block(order, stream,
                                   pkvi_block_address(&op->source, 0, op->copies[i].source),
                                   allocation)) {
            return PKVI_DEVICE_FAIL(device, PKV_ERROR_INVALID_ARGUMENT,
                                    "copies[%d]: block %d was written on another stream, and this "
                                    "one has not waited for a fence behind that",
                                    (int)i, (int)op->copies[i].source);
        }
    }
    return PKV_OK;
}
