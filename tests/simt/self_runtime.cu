/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Cases of the self-test: the runtime that stands in for the real one. What host code forgets has to
 * show: a synchronisation, an event, an attribute, an error.
 *
 * The one idea: the same few calls, with and without the one that matters. */
#include "self_cases.h"

#include "kernels/cuda/simt.cuh"
#include "self_support.h"
#include "simt_control.h"

namespace {

__global__ void add_to(int *value, int amount) {
    if (threadIdx.x == 0) {
        value[0] = value[0] * 10 + amount;
    }
}

const simt::launch_shape one_warp = {dim3(1), dim3(32), 0, nullptr, false};

simt::launch_shape on(cudaStream_t stream) {
    simt::launch_shape shape = one_warp;

    shape.stream = stream;
    return shape;
}

cudaStream_t new_stream() {
    cudaStream_t stream = nullptr;

    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    return stream;
}

template <bool is_synchronized> bool read_back() {
    device_vector<int> value(std::vector<int>{4});
    int *pinned = nullptr;
    const cudaStream_t stream = new_stream();

    cudaHostAlloc(reinterpret_cast<void **>(&pinned), sizeof(int), 0);
    *pinned = 0;
    simt::launch(add_to, on(stream), value.data, 2);
    cudaMemcpyAsync(pinned, value.data, sizeof(int), cudaMemcpyDeviceToHost, stream);
    if (is_synchronized) {
        cudaStreamSynchronize(stream);
    }
    return *pinned == 42;
}

/* Two streams, ordered by an event or by nothing. */
template <bool has_event> bool two_streams() {
    device_vector<int> value(std::vector<int>{4});
    const cudaStream_t first = new_stream();
    const cudaStream_t second = new_stream();
    cudaEvent_t event = nullptr;
    int result = 0;

    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    simt::launch(add_to, on(first), value.data, 1);
    cudaEventRecord(event, first);
    if (has_event) {
        cudaStreamWaitEvent(second, event, 0);
    }
    simt::launch(add_to, on(second), value.data, 2);
    cudaMemcpyAsync(&result, value.data, sizeof(int), cudaMemcpyDeviceToHost, second);
    cudaStreamSynchronize(second);
    return result == 412;
}

template <bool is_loaded, bool synchronizes> bool capture_and_replay() {
    device_vector<int> value(std::vector<int>{0});
    const cudaStream_t stream = new_stream();
    cudaFuncAttributes attributes;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;

    if (is_loaded) {
        cudaFuncGetAttributes(&attributes, reinterpret_cast<const void *>(add_to));
    }
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    simt::launch(add_to, on(stream), value.data, 3);
    if (synchronizes) {
        cudaStreamSynchronize(stream);
    }
    if (cudaStreamEndCapture(stream, &graph) != cudaSuccess || value.download()[0] != 0) {
        return false;
    }
    cudaGraphInstantiate(&executable, graph, 0);
    cudaGraphDestroy(graph);
    cudaGraphLaunch(executable, stream);
    cudaGraphLaunch(executable, stream);
    cudaStreamSynchronize(stream);
    return value.download()[0] == 33;
}

bool touch_device_memory() {
    device_vector<int> value(std::vector<int>{1});

    return *static_cast<volatile int *>(value.data) == 1;
}

/* Two ints are forbidden: the ones that the kernel uses, those behind them, or none any more. */
template <int first, bool is_allowed_again> bool forbid_two_of_six() {
    device_vector<int> value(std::vector<int>{4, 5, 6, 7, 8, 9});

    simt_forbid(value.data + first, 2 * sizeof(int));
    if (is_allowed_again) {
        simt_allow_all();
    }
    simt::launch(add_to, one_warp, value.data, 2);
    const std::vector<int> result = value.download();
    return result[0] == 42 && result[2] == 6;
}

template <bool is_allowed> bool use_much_shared_memory() {
    device_vector<int> value(std::vector<int>{0});
    simt::launch_shape shape = one_warp;

    shape.shared_bytes = 64 * 1024;
    if (is_allowed) {
        simt::allow_shared_bytes(add_to, shape.shared_bytes);
    }
    return simt::launch(add_to, shape, value.data, 7) == cudaSuccess && value.download()[0] == 7;
}

bool plant_failures() {
    void *memory = nullptr;
    int count = -1;

    simt_fail_call("cudaMalloc", 2, cudaErrorMemoryAllocation);
    const bool is_first_right = cudaMalloc(&memory, 16) == cudaSuccess;
    const bool is_second_right = cudaMalloc(&memory, 16) == cudaErrorMemoryAllocation &&
                                 cudaGetLastError() == cudaErrorMemoryAllocation &&
                                 cudaGetLastError() == cudaSuccess;
    simt_get_device()->num_devices = 0;
    return is_first_right && is_second_right && simt_num_calls("cudaMalloc") == 2 &&
           cudaGetDeviceCount(&count) == cudaErrorNoDevice && count == 0;
}

/* What host code gives back before the copy has read it. */
bool copy_pageable() {
    std::vector<int> source = {5};
    device_vector<int> value(1);

    cudaMemcpyAsync(value.data, source.data(), sizeof(int), cudaMemcpyHostToDevice, nullptr);
    source[0] = 6;
    return value.download()[0] == 5;
}

bool copy_pinned_too_late() {
    int *source = nullptr;
    device_vector<int> value(1);

    cudaHostAlloc(reinterpret_cast<void **>(&source), sizeof(int), 0);
    *source = 5;
    cudaMemcpyAsync(value.data, source, sizeof(int), cudaMemcpyHostToDevice, nullptr);
    *source = 6;
    return value.download()[0] == 5;
}

bool copy_the_wrong_way() {
    int host = 0;
    device_vector<int> value(1);

    return cudaMemcpyAsync(value.data, &host, sizeof(int), cudaMemcpyDeviceToHost, nullptr) ==
           cudaSuccess;
}

/* A kernel that fails makes everything after it fail. */
__global__ void fail_at_once(int *) {
    if (threadIdx.x < 16) {
        simt::sync_warp();
    }
}

bool fail_and_recover() {
    int *memory = nullptr;

    simt_get_options()->is_quiet = true;
    cudaMalloc(reinterpret_cast<void **>(&memory), 16);
    const bool is_launched = simt::launch(fail_at_once, one_warp, memory) == cudaSuccess;
    const bool has_failed = cudaDeviceSynchronize() == cudaErrorLaunchFailure &&
                            cudaMemset(memory, 0, 16) == cudaErrorLaunchFailure &&
                            cudaGetLastError() == cudaErrorLaunchFailure;
    simt_clear_error();
    return is_launched && has_failed && cudaMemset(memory, 0, 16) == cudaSuccess &&
           cudaDeviceSynchronize() == cudaSuccess;
}

} // namespace

std::vector<self_case> runtime_cases() {
    const char *poison = "AddressSanitizer";

    return {
        {"read back", read_back<true>, "clean", "clean", "clean"},
        {"no synchronisation", read_back<false>, "mismatch", "mismatch", "mismatch"},
        {"event between streams", two_streams<true>, "clean", "clean", "clean"},
        {"no event between streams", two_streams<false>, "mismatch", "mismatch", "mismatch"},
        {"capture and replay", capture_and_replay<true, false>, "clean", "clean", "clean"},
        {"synchronisation in a capture", capture_and_replay<true, true>, "mismatch", "mismatch",
         "mismatch"},
        {"code loaded in a capture", capture_and_replay<false, false>, "inside a capture",
         "inside a capture", "inside a capture"},
        {"host reads device memory", touch_device_memory, "signal", "signal", poison},
        {"forbidden memory", forbid_two_of_six<0, false>, "clean", "nobody's memory", poison},
        {"beside forbidden memory", forbid_two_of_six<2, false>, "clean", "clean", "clean"},
        {"no longer forbidden memory", forbid_two_of_six<0, true>, "clean", "clean", "clean"},
        {"much shared memory", use_much_shared_memory<true>, "clean", "clean", "clean"},
        {"much shared memory, not allowed", use_much_shared_memory<false>, "allow_shared_bytes",
         "allow_shared_bytes", "allow_shared_bytes"},
        {"planted failures", plant_failures, "clean", "clean", "clean"},
        {"pageable source", copy_pageable, "clean", "clean", "clean"},
        {"pinned source changed too early", copy_pinned_too_late, "mismatch", "mismatch",
         "mismatch"},
        {"copy in the wrong direction", copy_the_wrong_way, "not of the kind", "not of the kind",
         "not of the kind"},
        {"failure and recovery", fail_and_recover, "clean", "clean", "clean"},
    };
}
