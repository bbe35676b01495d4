/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Memory of the device and pinned memory (runtime.h).
 *
 * The one idea: memory of the device can be touched only while a kernel or a copy runs. At other
 * times its pages are closed, or poisoned under the address sanitizer, so that host code which
 * follows a device pointer stops at that line. */
#include "runtime.h"

#include "sanitizer.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <sys/mman.h>

namespace simt {

namespace {

struct extent {
    size_t size;
    char *mapping; /* device memory without address sanitizer: whole pages around it */
    size_t mapping_size;
};

#ifndef PKVI_ASAN
constexpr size_t page_bytes = 4096;
#endif

std::map<char *, extent> g_device;
std::map<char *, extent> g_pinned;
size_t g_device_bytes;
int g_num_open;

size_t round_up(size_t size) {
    return (size + 255) / 256 * 256;
}

bool contains(const std::map<char *, extent> &extents, const void *address, size_t size) {
    char *at = static_cast<char *>(const_cast<void *>(address));
    auto found = extents.upper_bound(at);

    if (found == extents.begin()) {
        return false;
    }
    --found;
    return at + size <= found->first + found->second.size;
}

void set_open(const std::map<char *, extent>::value_type &item, bool is_open) {
#ifdef PKVI_ASAN
    if (is_open) {
        ASAN_UNPOISON_MEMORY_REGION(item.first, item.second.size);
    } else {
        /* All of it: a last unit of 8 bytes can be closed only as a whole. */
        ASAN_POISON_MEMORY_REGION(item.first, round_up(item.second.size));
    }
#else
    mprotect(item.second.mapping + page_bytes, item.second.mapping_size - 2 * page_bytes,
             is_open ? PROT_READ | PROT_WRITE : PROT_NONE);
#endif
}

/* Memory that ends, as far as its alignment of 256 allows, at a page that is never open. */
char *allocate_device(size_t size, extent &where) {
    const size_t used = round_up(size);

    where.size = size;
#ifdef PKVI_ASAN
    void *memory = nullptr;
    return posix_memalign(&memory, 256, used) == 0 ? static_cast<char *>(memory) : nullptr;
#else
    const size_t pages = (used + page_bytes - 1) / page_bytes * page_bytes;
    where.mapping_size = pages + 2 * page_bytes;
    void *memory = mmap(nullptr, where.mapping_size, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        return nullptr;
    }
    where.mapping = static_cast<char *>(memory);
    return where.mapping + page_bytes + (pages - used);
#endif
}

void free_device(const std::map<char *, extent>::value_type &item) {
#ifdef PKVI_ASAN
    ASAN_UNPOISON_MEMORY_REGION(item.first, round_up(item.second.size));
    free(item.first);
#else
    munmap(item.second.mapping, item.second.mapping_size);
#endif
}

} // namespace

bool is_device_accessible(const void *address, size_t size) {
    return contains(g_device, address, size) || contains(g_pinned, address, size);
}

bool is_host_memory(const void *address, size_t size) {
    return !contains(g_device, address, size);
}

void open_device_memory() {
    if (g_num_open++ == 0) {
        for (const auto &item : g_device) {
            set_open(item, true);
        }
    }
}

void close_device_memory() {
    if (--g_num_open == 0) {
        for (const auto &item : g_device) {
            set_open(item, false);
        }
    }
}

} // namespace simt

using simt::end_call;

extern "C" {

cudaError_t cudaMalloc(void **address, size_t size) {
    PKVI_CALL()
    simt::extent where = {};
    char *memory = nullptr;

    if (simt::refuse_in_capture() != cudaSuccess) {
        return end_call(cudaErrorStreamCaptureUnsupported);
    }
    *address = nullptr;
    if (size == 0) {
        return cudaSuccess;
    }
    if (size > simt_get_device()->memory_bytes - simt::g_device_bytes) {
        return end_call(cudaErrorMemoryAllocation);
    }
    memory = simt::allocate_device(size, where);
    if (memory == nullptr) {
        return end_call(cudaErrorMemoryAllocation);
    }
    const auto item = simt::g_device.emplace(memory, where).first;
    simt::g_device_bytes += size;
    simt::set_open(*item, true);
    memset(memory, 0xff, size);
    simt::set_open(*item, false);
    *address = memory;
    return cudaSuccess;
}

cudaError_t cudaFree(void *address) {
    PKVI_CALL()
    if (address == nullptr) {
        return cudaSuccess;
    }
    if (simt::refuse_in_capture() != cudaSuccess) {
        return end_call(cudaErrorStreamCaptureUnsupported);
    }
    const auto item = simt::g_device.find(static_cast<char *>(address));
    if (item == simt::g_device.end()) {
        return end_call(cudaErrorInvalidValue);
    }
    const cudaError_t error = simt::drain_all();
    simt::g_device_bytes -= item->second.size;
    simt::free_device(*item);
    simt::g_device.erase(item);
    return end_call(error);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    PKVI_CALL()
    *total_bytes = simt_get_device()->memory_bytes;
    *free_bytes = *total_bytes - simt::g_device_bytes;
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **address, size_t size, unsigned) {
    PKVI_CALL()
    void *memory = nullptr;

    if (simt::refuse_in_capture() != cudaSuccess) {
        return end_call(cudaErrorStreamCaptureUnsupported);
    }
    *address = nullptr;
    if (size == 0) {
        return cudaSuccess;
    }
    if (posix_memalign(&memory, 256, size) != 0) {
        return end_call(cudaErrorMemoryAllocation);
    }
    memset(memory, 0xff, size);
    simt::g_pinned[static_cast<char *>(memory)] = simt::extent{size, nullptr, 0};
    *address = memory;
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **address, size_t size) {
    return cudaHostAlloc(address, size, 0);
}

cudaError_t cudaFreeHost(void *address) {
    PKVI_CALL()
    if (address == nullptr) {
        return cudaSuccess;
    }
    if (simt::g_pinned.erase(static_cast<char *>(address)) == 0) {
        return end_call(cudaErrorInvalidValue);
    }
    const cudaError_t error = simt::drain_all();
    free(address);
    return end_call(error);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *address) {
    PKVI_CALL()
    *attributes = cudaPointerAttributes{};
    attributes->type = simt::contains(simt::g_device, address, 1)   ? cudaMemoryTypeDevice
                       : simt::contains(simt::g_pinned, address, 1) ? cudaMemoryTypeHost
                                                                    : cudaMemoryTypeUnregistered;
    attributes->device = attributes->type == cudaMemoryTypeUnregistered ? cudaInvalidDeviceId : 0;
    if (attributes->type != cudaMemoryTypeUnregistered) {
        attributes->devicePointer = const_cast<void *>(address);
    }
    if (attributes->type != cudaMemoryTypeDevice) {
        attributes->hostPointer = const_cast<void *>(address);
    }
    return cudaSuccess;
}
}
