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

/* A stream that was not seen before: whose it is, and whether it takes turns with the default. */
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

pkv_status pkvi_cuda_check_stream(pkv_device *device, pkv_stream stream) {
    struct pkvi_cuda_device *cuda = pkvi_cuda_of(device);
    int ordinal = cuda->ordinal, previous;
    unsigned flags = 0;

    if (pkvi_order_find(&cuda->order, handle_of(stream)) != PKVI_ORDER_UNKNOWN) {
        return PKV_OK;
    }
    cudaError_t error = pkvi_cuda_enter(cuda->ordinal, &previous);
    if (error == cudaSuccess) {
        error = look_at_stream(pkvi_cuda_stream(stream), &ordinal, &flags);
    }
    error = pkvi_cuda_leave(cuda->ordinal, previous, error);
    if (error != cudaSuccess) {
        return pkvi_cuda_finish(device, "stream", error);
    }
    if (ordinal != cuda->ordinal) {
        return PKVI_DEVICE_FAIL(device, PKV_ERROR_INVALID_ARGUMENT,
                                "stream is of CUDA device %d, this is device %d", ordinal,
                                cuda->ordinal);
    }
    (void)pkvi_order_add(&cuda->order, handle_of(stream), (flags & cudaStreamNonBlocking) == 0);
    return PKV_OK;
}

static bool is_capturing(pkv_stream stream) {
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;

    if (handle_of(stream) == NULL) {
        return false;
    }
    if (cudaStreamIsCapturing(pkvi_cuda_stream(stream), &status) != cudaSuccess) {
        (void)cudaGetLastError();
        return true;
    }
    return status != cudaStreamCaptureStatusNone;
}

bool pkvi_cuda_takes_batches(pkv_stream stream) {
    return handle_of(stream) != NULL && !is_capturing(stream);
}

/* The stream whose order counts. */
static int32_t ordered_stream(struct pkvi_cuda_device *cuda, pkv_stream stream) {
    return cuda->ignores_stream_order || is_capturing(stream)
               ? PKVI_ORDER_UNKNOWN
               : pkvi_order_find(&cuda->order, handle_of(stream));
}

int32_t pkvi_cuda_begin_ordered(struct pkvi_cuda_device *cuda, pkv_stream stream) {
    int32_t known = ordered_stream(cuda, stream);

    pkvi_order_begin(&cuda->order, known);
    return known;
}

pkv_status pkvi_cuda_synchronize(pkv_device *device, pkv_stream stream) {
    struct pkvi_cuda_device *cuda = pkvi_cuda_of(device);
    pkv_status status;

    PKVI_ON_CUDA_DEVICE(device, "synchronize", cudaStreamSynchronize(pkvi_cuda_stream(stream)),
                        status);
    if (status == PKV_OK) {
        pkvi_order_synchronized(&cuda->order, pkvi_order_find(&cuda->order, handle_of(stream)));
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
        pkvi_order_fence_record(&cuda->order, fence, ordered_stream(cuda, stream));
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
        pkvi_order_fence_wait(&cuda->order, fence, ordered_stream(cuda, stream));
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

void pkvi_cuda_note_written(struct pkvi_cuda_device *cuda,
                            const pkv_write_kv_args *args,
                            pkv_stream stream) {
    const pkv_tensor *caches[] = {&args->k_cache, &args->v_cache};
    int32_t known = pkvi_order_find(&cuda->order, handle_of(stream));

    for (size_t i = 0; i < sizeof caches / sizeof caches[0]; i++) {
        if (pkvi_tensor_is_absent(caches[i]) || known == PKVI_ORDER_UNKNOWN ||
            pkvi_order_knows_range(&cuda->order, known, caches[i]->data)) {
            continue;
        }
        known = pkvi_cuda_begin_ordered(cuda, stream);
        pkvi_order_wrote_range(&cuda->order, known, caches[i]->data, pkvi_tensor_extent(caches[i]));
    }
}

pkv_status pkvi_cuda_check_order(pkv_device *device, const struct pkvi_move *op, int32_t stream) {
    const struct pkvi_stream_order *order = &pkvi_cuda_of(device)->order;

    if (!pkvi_order_sees_range(order, stream, op->source.data, pkvi_tensor_extent(&op->source))) {
        return PKVI_DEVICE_FAIL(device, PKV_ERROR_INVALID_ARGUMENT,
                                "another stream writes keys and values to the source, and this one "
                                "has never waited for a fence of it");
    }
    for (int32_t i = 0; i < op->num_copies; i++) {
        if (!pkvi_order_sees_block(order, stream,
                                   pkvi_block_address(&op->source, 0, op->copies[i].source))) {
            return PKVI_DEVICE_FAIL(device, PKV_ERROR_INVALID_ARGUMENT,
                                    "copies[%d]: block %d was written on another stream, and this "
                                    "one has not waited for a fence behind that",
                                    (int)i, (int)op->copies[i].source);
        }
    }
    return PKV_OK;
}
