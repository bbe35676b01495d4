/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Streams, events, and the copies and grids that are put on a stream (runtime.h). */
#include "runtime.h"

#include <cstring>

namespace simt {

namespace {

uint64_t g_num_ids;

/* Streams live on after their destruction, since events may still speak of their work, until
 * another one gets the handle, that of the last one first. What was enqueued goes on before its
 * work. */
std::vector<std::unique_ptr<CUstream_st>> &all_streams() {
    static std::vector<std::unique_ptr<CUstream_st>> streams;

    return streams;
}

CUstream_st *add_stream(int device) {
    CUstream_st *stream = nullptr;

    for (const auto &known : all_streams()) {
        if (known->is_destroyed && known->device == device && known->capture == nullptr &&
            (stream == nullptr || stream->id < known->id)) {
            stream = known.get();
        }
    }
    if (stream == nullptr) {
        all_streams().push_back(std::make_unique<CUstream_st>());
        stream = all_streams().back().get();
        stream->device = device;
    }
    stream->is_destroyed = false;
    stream->id = ++g_num_ids;
    return stream;
}

CUstream_st *default_stream(int device) {
    for (const auto &stream : all_streams()) {
        if (stream->is_default && stream->device == device) {
            return stream.get();
        }
    }
    CUstream_st *stream = add_stream(device);

    stream->is_default = stream->is_blocking = true;
    return stream;
}

} // namespace

std::recursive_mutex &runtime_lock() {
    static std::recursive_mutex lock;

    return lock;
}

CUstream_st *resolve_stream(cudaStream_t stream) {
    return stream == nullptr || stream == cudaStreamLegacy ? default_stream(current_device())
                                                           : stream;
}

cudaError_t run_until(dependency what) {
    while (what.stream->num_done < what.ticket) {
        queued_work next = std::move(what.stream->queue.front());
        cudaError_t error = cudaSuccess;

        what.stream->queue.pop_front();
        for (const dependency &before : next.after) {
            error = error == cudaSuccess ? run_until(before) : error;
        }
        what.stream->num_done++;
        if (error == cudaSuccess && next.run) {
            open_device_memory();
            error = next.run();
            close_device_memory();
        }
        if (error != cudaSuccess) {
            set_sticky_error(error);
            return error;
        }
    }
    return cudaSuccess;
}

cudaError_t drain_all() {
    for (const auto &stream : all_streams()) {
        const cudaError_t error = run_until({stream.get(), stream->num_enqueued});
        if (error != cudaSuccess) {
            return error;
        }
    }
    return cudaSuccess;
}

void forget_work() {
    for (const auto &stream : all_streams()) {
        stream->queue.clear();
        stream->num_done = stream->num_enqueued;
    }
}

cudaError_t enqueue(cudaStream_t stream, work run) {
    CUstream_st *target = resolve_stream(stream);
    queued_work item;

    if (target->is_destroyed) {
        record_error("a destroyed stream is used");
        return cudaErrorInvalidResourceHandle;
    }
    if (target->capture != nullptr) {
        target->capture->nodes.push_back(std::move(run));
        return cudaSuccess;
    }
    item.run = std::move(run);
    if (target->is_default) {
        for (const auto &other : all_streams()) {
            if (other->is_blocking && other->device == target->device && other.get() != target) {
                item.after.push_back({other.get(), other->num_enqueued});
            }
        }
    } else if (target->is_blocking) {
        CUstream_st *turns = default_stream(target->device);
        item.after.push_back({turns, turns->num_enqueued});
    }
    target->queue.push_back(std::move(item));
    target->num_enqueued++;
    return cudaSuccess;
}

cudaError_t refuse_in_capture() {
    cudaError_t error = cudaSuccess;

    for (const auto &stream : all_streams()) {
        if (stream->capture != nullptr && stream->mode != cudaStreamCaptureModeRelaxed) {
            stream->capture->is_invalid = true;
            error = cudaErrorStreamCaptureUnsupported;
        }
    }
    return error;
}

cudaError_t enqueue_grid(const void *kernel,
                         std::unique_ptr<const kernel_call> own_call,
                         const launch_shape &shape) {
    std::lock_guard<std::recursive_mutex> guard(runtime_lock());
    const cudaError_t error = begin_call("launch");
    const std::shared_ptr<const kernel_call> call = std::move(own_call);

    if (error != cudaSuccess) {
        return end_call(error);
    }
    if (shape.shared_bytes > allowed_shared_bytes(kernel)) {
        record_error("launch: more shared memory than allow_shared_bytes has allowed");
        return end_call(cudaErrorInvalidValue);
    }
    CUstream_st *stream = resolve_stream(shape.stream);
    if (stream->device != current_device()) {
        return end_call(cudaErrorInvalidResourceHandle);
    }
    if (stream->capture != nullptr && !is_kernel_loaded(kernel)) {
        record_error("launch: the code of the kernel would be loaded inside a capture");
        stream->capture->is_invalid = true;
        return end_call(cudaErrorStreamCaptureUnsupported);
    }
    return end_call(
        enqueue(shape.stream, [kernel, call, shape] { return run_grid(kernel, *call, shape); }));
}

/* ---- Copies */

namespace {

bool is_kind_wrong(const void *to, const void *from, size_t size, cudaMemcpyKind kind) {
    const bool is_to_host = is_host_memory(to, size);
    const bool is_from_host = is_host_memory(from, size);

    switch (kind) {
    case cudaMemcpyHostToHost:
        return !is_to_host || !is_from_host;
    case cudaMemcpyHostToDevice:
        return is_to_host || !is_from_host;
    case cudaMemcpyDeviceToHost:
        return !is_to_host || is_from_host;
    case cudaMemcpyDeviceToDevice:
        return is_to_host || is_from_host;
    default:
        return false;
    }
}

/* Pageable memory is read when the call is made, as the real runtime does; all else later. */
cudaError_t enqueue_copy(
    void *to, const void *from, size_t size, cudaMemcpyKind kind, cudaStream_t stream) {
    const bool is_snapshot =
        resolve_stream(stream)->capture == nullptr && !is_device_accessible(from, size);

    if (size == 0) {
        return cudaSuccess;
    }
    if (to == nullptr || from == nullptr || is_kind_wrong(to, from, size, kind)) {
        record_error("copy: a pointer is null or not of the kind that was said");
        return cudaErrorInvalidValue;
    }
    if (is_snapshot) {
        const char *bytes = static_cast<const char *>(from);
        auto copy = std::make_shared<std::vector<char>>(bytes, bytes + size);
        return enqueue(stream, [to, copy] {
            memcpy(to, copy->data(), copy->size());
            return cudaSuccess;
        });
    }
    return enqueue(stream, [to, from, size] {
        memmove(to, from, size);
        return cudaSuccess;
    });
}

cudaError_t synchronize(CUstream_st *stream) {
    if (stream->capture != nullptr) {
        stream->capture->is_invalid = true;
        return cudaErrorStreamCaptureUnsupported;
    }
    return run_until({stream, stream->num_enqueued});
}

/* One step, so that a loop of queries ends. */
cudaError_t query(dependency what) {
    if (what.stream->num_done >= what.ticket) {
        return cudaSuccess;
    }
    const cudaError_t error = run_until({what.stream, what.stream->num_done + 1});
    return error != cudaSuccess ? error : cudaErrorNotReady;
}

} // namespace

} // namespace simt

using simt::end_call;
using simt::resolve_stream;

extern "C" {

cudaError_t cudaMemcpyAsync(
    void *to, const void *from, size_t size, cudaMemcpyKind kind, cudaStream_t stream) {
    PKVI_CALL()
    return end_call(simt::enqueue_copy(to, from, size, kind, stream));
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t size, cudaMemcpyKind kind) {
    PKVI_CALL()
    cudaError_t error = simt::refuse_in_capture();

    error = error != cudaSuccess ? error : simt::enqueue_copy(to, from, size, kind, nullptr);
    return end_call(error != cudaSuccess ? error : simt::synchronize(resolve_stream(nullptr)));
}

cudaError_t cudaMemcpy2DAsync(void *to,
                              size_t to_pitch,
                              const void *from,
                              size_t from_pitch,
                              size_t width,
                              size_t height,
                              cudaMemcpyKind kind,
                              cudaStream_t stream) {
    PKVI_CALL()
    cudaError_t error = cudaSuccess;

    for (size_t row = 0; row < height && error == cudaSuccess; row++) {
        error = simt::enqueue_copy(static_cast<char *>(to) + row * to_pitch,
                                   static_cast<const char *>(from) + row * from_pitch, width, kind,
                                   stream);
    }
    return end_call(error);
}

#if CUDART_VERSION >= 12080
/* The copies may run in any order: the last one runs first. */
#if CUDART_VERSION >= 13000
cudaError_t cudaMemcpyBatchAsync(void *const *to,
                                 const void *const *from,
                                 const size_t *sizes,
                                 size_t count,
                                 cudaMemcpyAttributes *attributes,
                                 size_t *,
                                 size_t num_attributes,
                                 cudaStream_t stream)
#else
cudaError_t cudaMemcpyBatchAsync(void **to,
                                 void **from,
                                 size_t *sizes,
                                 size_t count,
                                 cudaMemcpyAttributes *attributes,
                                 size_t *,
                                 size_t num_attributes,
                                 size_t *,
                                 cudaStream_t stream)
#endif
{
    PKVI_CALL()
    if (simt_get_device()->driver_version < 12080) {
        return end_call(cudaErrorCallRequiresNewerDriver);
    }
    if (count == 0 || num_attributes == 0 || attributes == nullptr || stream == nullptr ||
        resolve_stream(stream)->capture != nullptr) {
        simt::record_error("cudaMemcpyBatchAsync: no copies, the default stream, or in a capture");
        return end_call(cudaErrorInvalidValue);
    }
    cudaError_t error = cudaSuccess;
    for (size_t i = count; i > 0 && error == cudaSuccess; i--) {
        error = simt::enqueue_copy(to[i - 1], from[i - 1], sizes[i - 1], cudaMemcpyDefault, stream);
    }
    return end_call(error);
}
#endif

cudaError_t cudaMemsetAsync(void *to, int byte, size_t size, cudaStream_t stream) {
    PKVI_CALL()
    if (size > 0 && simt::is_host_memory(to, size) && !simt::is_device_accessible(to, size)) {
        simt::record_error("memset: no memory of the device");
        return end_call(cudaErrorInvalidValue);
    }
    return end_call(simt::enqueue(stream, [to, byte, size] {
        memset(to, byte, size);
        return cudaSuccess;
    }));
}

cudaError_t cudaMemset(void *to, int byte, size_t size) {
    return cudaMemsetAsync(to, byte, size, nullptr);
}

/* ---- Streams */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    PKVI_CALL()
    *stream = simt::add_stream(simt::current_device());
    (*stream)->is_blocking = (flags & cudaStreamNonBlocking) == 0;
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *stream) {
    return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    PKVI_CALL()
    if (stream == nullptr || stream->is_destroyed) {
        return end_call(cudaErrorInvalidResourceHandle);
    }
    stream->is_destroyed = true;
    stream->id = ++simt::g_num_ids;
    return cudaSuccess;
}

cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long *id) {
    PKVI_CALL()
    const CUstream_st *target = resolve_stream(stream);

    *id = target->id;
    return target->is_destroyed ? end_call(cudaErrorInvalidResourceHandle) : cudaSuccess;
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned *flags) {
    PKVI_CALL()
    const CUstream_st *target = resolve_stream(stream);

    *flags = target->is_blocking ? cudaStreamDefault : cudaStreamNonBlocking;
    return target->is_destroyed ? end_call(cudaErrorInvalidResourceHandle) : cudaSuccess;
}

#if CUDART_VERSION >= 12080
cudaError_t cudaStreamGetDevice(cudaStream_t stream, int *device) {
    PKVI_CALL()
    if (simt_get_device()->driver_version < 12080) {
        return end_call(cudaErrorCallRequiresNewerDriver);
    }
    *device = resolve_stream(stream)->device;
    return cudaSuccess;
}
#endif

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    PKVI_CALL()
    return end_call(simt::synchronize(resolve_stream(stream)));
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    PKVI_CALL()
    CUstream_st *target = resolve_stream(stream);
    const cudaError_t error = simt::query({target, target->num_enqueued});

    return error == cudaErrorNotReady ? error : end_call(error);
}

cudaError_t cudaDeviceSynchronize(void) {
    PKVI_CALL()
    const cudaError_t error = simt::refuse_in_capture();

    return end_call(error != cudaSuccess ? error : simt::drain_all());
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    PKVI_CALL()
    CUstream_st *target = resolve_stream(stream);

    if (event->capture != nullptr) {
        target->capture = event->capture;
        return cudaSuccess;
    }
    if (event->recorded.stream == nullptr || target->capture != nullptr) {
        return cudaSuccess;
    }
    const cudaError_t error = simt::enqueue(stream, simt::work());
    if (error == cudaSuccess) {
        target->queue.back().after.push_back(event->recorded);
    }
    return end_call(error);
}

/* ---- Events */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    PKVI_CALL()
    *event = new CUevent_st{};
    (*event)->has_timing = (flags & cudaEventDisableTiming) == 0;
    (*event)->device = simt::current_device();
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event) {
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    PKVI_CALL()
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    PKVI_CALL()
    CUstream_st *target = resolve_stream(stream);

    if (event->device != target->device) {
        return end_call(cudaErrorInvalidResourceHandle);
    }
    event->capture = target->capture;
    if (target->capture == nullptr) {
        event->recorded = {target, target->num_enqueued};
    }
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    PKVI_CALL()
    if (event->capture != nullptr) {
        event->capture->is_invalid = true;
        return end_call(cudaErrorStreamCaptureUnsupported);
    }
    return event->recorded.stream == nullptr ? cudaSuccess
                                             : end_call(simt::run_until(event->recorded));
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    PKVI_CALL()
    if (event->recorded.stream == nullptr) {
        return cudaSuccess;
    }
    const cudaError_t error = simt::query(event->recorded);
    return error == cudaErrorNotReady ? error : end_call(error);
}

/* There is no time in here: what ran between two events took none. */
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
    PKVI_CALL()
    if (!start->has_timing || !end->has_timing || start->recorded.stream == nullptr ||
        end->recorded.stream == nullptr) {
        return end_call(cudaErrorInvalidResourceHandle);
    }
    *milliseconds = 0.0f;
    return end->recorded.stream->num_done < end->recorded.ticket ? cudaErrorNotReady : cudaSuccess;
}

/* ---- Captures */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
    PKVI_CALL()
    CUstream_st *target = resolve_stream(stream);

    if (stream == nullptr || target->capture != nullptr) {
        return end_call(cudaErrorStreamCaptureUnsupported);
    }
    target->capture = new CUgraph_st{};
    target->is_capture_origin = true;
    target->mode = mode;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    PKVI_CALL()
    CUgraph_st *captured = resolve_stream(stream)->capture;

    *graph = nullptr;
    if (captured == nullptr || !stream->is_capture_origin) {
        return end_call(cudaErrorIllegalState);
    }
    for (const auto &other : simt::all_streams()) {
        if (other->capture == captured) {
            other->capture = nullptr;
            other->is_capture_origin = false;
        }
    }
    if (captured->is_invalid) {
        delete captured;
        return end_call(cudaErrorStreamCaptureInvalidated);
    }
    *graph = captured;
    return cudaSuccess;
}

/* Stricter than a device, which asks for the stream's own context only with some handles. */
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status) {
    PKVI_CALL()
    if (resolve_stream(stream)->device != simt::current_device()) {
        return end_call(cudaErrorInvalidResourceHandle);
    }
    const CUgraph_st *capture = resolve_stream(stream)->capture;

    *status = capture == nullptr    ? cudaStreamCaptureStatusNone
              : capture->is_invalid ? cudaStreamCaptureStatusInvalidated
                                    : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *executable,
                                 cudaGraph_t graph,
                                 unsigned long long) {
    PKVI_CALL()
    *executable = new CUgraphExec_st{graph->nodes};
    return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *num_nodes) {
    PKVI_CALL()
    if (nodes != nullptr) {
        return end_call(cudaErrorNotSupported);
    }
    *num_nodes = graph->nodes.size();
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
    PKVI_CALL()
    return end_call(simt::enqueue(stream, [nodes = executable->nodes] {
        for (const simt::work &node : nodes) {
            const cudaError_t error = node ? node() : cudaSuccess;
            if (error != cudaSuccess) {
                return error;
            }
        }
        return cudaSuccess;
    }));
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
    PKVI_CALL()
    delete executable;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    PKVI_CALL()
    delete graph;
    return cudaSuccess;
}
}
