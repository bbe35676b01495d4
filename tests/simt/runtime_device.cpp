/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The device that the runtime pretends to have, attributes of kernels, errors, planted failures
 * (runtime.h). */
#include "runtime.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>

namespace simt {

namespace {

struct planted_failure {
    int num_calls_before;
    cudaError_t error;
};

std::map<std::string, planted_failure> g_planted;
std::map<std::string, int> g_num_calls;
std::map<const void *, size_t> g_kernels; /* loaded ones, with the shared memory they may use */
cudaError_t g_sticky = cudaSuccess;
cudaError_t g_last = cudaSuccess;

thread_local int g_current_device;

constexpr size_t default_shared_bytes = 48 * 1024;

/* Calls that work, or have to, after a kernel has failed. */
bool is_allowed_after_failure(const char *function) {
    static const char *const names[] = {
        "cudaGetLastError", "cudaPeekAtLastError", "cudaSetDevice",    "cudaGetDevice",
        "cudaFreeHost",     "cudaEventDestroy",    "cudaStreamDestroy"};

    return std::any_of(std::begin(names), std::end(names),
                       [function](const char *name) { return strcmp(name, function) == 0; });
}

} // namespace

cudaError_t begin_call(const char *function) {
    const auto planted = g_planted.find(function);

    g_num_calls[function]++;
    if (planted != g_planted.end() && planted->second.num_calls_before-- == 0) {
        const cudaError_t error = planted->second.error;
        g_planted.erase(planted);
        return error;
    }
    return is_allowed_after_failure(function) ? cudaSuccess : g_sticky;
}

cudaError_t end_call(cudaError_t error) {
    g_last = error == cudaSuccess ? g_last : error;
    return error;
}

void set_sticky_error(cudaError_t error) {
    g_sticky = g_sticky == cudaSuccess ? error : g_sticky;
    g_last = g_sticky;
}

int current_device() {
    return g_current_device;
}

bool is_kernel_loaded(const void *kernel) {
    return g_kernels.count(kernel) != 0;
}

size_t allowed_shared_bytes(const void *kernel) {
    const auto found = g_kernels.find(kernel);

    return found == g_kernels.end() ? default_shared_bytes : found->second;
}

void clear_sticky_error() {
    g_sticky = cudaSuccess;
    g_last = cudaSuccess;
}

} // namespace simt

/* ---- simt_control.h */

simt_device *simt_get_device(void) {
    static simt_device device = {
        1, 9, 0, 4, 227 * 1024, 228 * 1024, size_t{1} << 34, CUDART_VERSION};

    return &device;
}

void simt_clear_error(void) {
    std::lock_guard<std::recursive_mutex> guard(simt::runtime_lock());

    simt::clear_sticky_error();
    simt::clear_recorded_error();
    simt::forget_work();
}

void simt_fail_call(const char *function, int nth, int error) {
    std::lock_guard<std::recursive_mutex> guard(simt::runtime_lock());

    if (function == nullptr) {
        simt::g_planted.clear();
    } else {
        simt::g_planted[function] = {nth - 1, static_cast<cudaError_t>(error)};
    }
}

int simt_num_calls(const char *function) {
    std::lock_guard<std::recursive_mutex> guard(simt::runtime_lock());

    return simt::g_num_calls[function];
}

/* ---- The runtime */

using simt::end_call;

extern "C" {

cudaError_t cudaGetDeviceCount(int *count) {
    PKVI_CALL()
    *count = simt_get_device()->num_devices;
    return *count == 0 ? end_call(cudaErrorNoDevice) : cudaSuccess;
}

cudaError_t cudaGetDevice(int *device) {
    PKVI_CALL()
    *device = simt::current_device();
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    PKVI_CALL()
    if (device < 0 || device >= simt_get_device()->num_devices) {
        return end_call(cudaErrorInvalidDevice);
    }
    simt::g_current_device = device;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device) {
    PKVI_CALL()
    const simt_device &model = *simt_get_device();

    if (device < 0 || device >= model.num_devices) {
        return end_call(cudaErrorInvalidDevice);
    }
    memset(static_cast<void *>(properties), 0, sizeof(*properties));
    snprintf(properties->name, sizeof(properties->name), "simulated device");
    properties->major = model.compute_major;
    properties->minor = model.compute_minor;
    properties->multiProcessorCount = model.num_multiprocessors;
    properties->totalGlobalMem = model.memory_bytes;
    properties->sharedMemPerBlock = simt::default_shared_bytes;
    properties->sharedMemPerBlockOptin = model.shared_bytes_per_block;
    properties->sharedMemPerMultiprocessor = model.shared_bytes_per_multiprocessor;
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = 1024;
    properties->maxThreadsPerMultiProcessor = 2048;
    properties->regsPerMultiprocessor = 65536;
    properties->maxGridSize[0] = 0x7fffffff;
    properties->maxGridSize[1] = 65535;
    properties->maxGridSize[2] = 65535;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device) {
    PKVI_CALL()
    const simt_device &model = *simt_get_device();

    if (device < 0 || device >= model.num_devices) {
        return end_call(cudaErrorInvalidDevice);
    }
    switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
        *value = model.compute_major;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
        *value = model.compute_minor;
        return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
        *value = model.num_multiprocessors;
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = static_cast<int>(model.shared_bytes_per_block);
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        *value = static_cast<int>(model.shared_bytes_per_multiprocessor);
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = static_cast<int>(simt::default_shared_bytes);
        return cudaSuccess;
    case cudaDevAttrMaxThreadsPerBlock:
        *value = 1024;
        return cudaSuccess;
    case cudaDevAttrMaxGridDimX:
        *value = 0x7fffffff;
        return cudaSuccess;
    case cudaDevAttrWarpSize:
        *value = 32;
        return cudaSuccess;
    case cudaDevAttrPageableMemoryAccess:
        *value = simt_get_options()->allows_pageable_access ? 1 : 0;
        return cudaSuccess;
    case cudaDevAttrReservedSharedMemoryPerBlock:
        *value = 1024;
        return cudaSuccess;
    default:
        simt::record_error("cudaDeviceGetAttribute: an attribute that the simulation lacks");
        return end_call(cudaErrorInvalidValue);
    }
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    PKVI_CALL()
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version) {
    PKVI_CALL()
    *version = simt_get_device()->driver_version;
    return cudaSuccess;
}

/* ---- Kernels */

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attribute, int value) {
    PKVI_CALL()
    if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
        if (value < 0 || static_cast<size_t>(value) > simt_get_device()->shared_bytes_per_block) {
            return end_call(cudaErrorInvalidValue);
        }
        simt::g_kernels[kernel] = std::max(static_cast<size_t>(value), simt::default_shared_bytes);
    } else {
        simt::g_kernels.emplace(kernel, simt::default_shared_bytes);
    }
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *kernel) {
    PKVI_CALL()
    memset(static_cast<void *>(attributes), 0, sizeof(*attributes));
    attributes->maxThreadsPerBlock = 1024;
    attributes->numRegs = 128;
    attributes->binaryVersion =
        simt_get_device()->compute_major * 10 + simt_get_device()->compute_minor;
    attributes->ptxVersion = attributes->binaryVersion;
    simt::g_kernels.emplace(kernel, simt::default_shared_bytes);
    attributes->maxDynamicSharedSizeBytes = static_cast<int>(simt::allowed_shared_bytes(kernel));
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *num_blocks,
                                                          const void *kernel,
                                                          int block_size,
                                                          size_t shared_bytes) {
    PKVI_CALL()
    const size_t by_shared =
        simt_get_device()->shared_bytes_per_multiprocessor / (shared_bytes + 1024);

    simt::g_kernels.emplace(kernel, simt::default_shared_bytes);
    *num_blocks = static_cast<int>(
        std::min<size_t>(by_shared, static_cast<size_t>(2048 / std::max(block_size, 1))));
    return cudaSuccess;
}

/* ---- Errors */

cudaError_t cudaGetLastError(void) {
    PKVI_CALL()
    const cudaError_t error = simt::g_last;

    simt::g_last = simt::g_sticky;
    return error;
}

cudaError_t cudaPeekAtLastError(void) {
    PKVI_CALL()
    return simt::g_last;
}

const char *cudaGetErrorName(cudaError_t error) {
    return error == cudaSuccess ? "cudaSuccess" : "cudaError";
}

const char *cudaGetErrorString(cudaError_t error) {
    static char text[64];

    if (error == cudaSuccess) {
        return "no error";
    }
    if (error == cudaErrorLaunchFailure && *simt_last_error() != '\0') {
        return simt_last_error();
    }
    snprintf(text, sizeof(text), "error %d of the simulated runtime", static_cast<int>(error));
    return text;
}
}
