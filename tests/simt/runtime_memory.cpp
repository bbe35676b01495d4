/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Memory of the device and pinned memory (runtime.h).
 *
 * The one idea: memory of the device can be touched only while a kernel or a copy runs. At other
 * times its pages are closed, or poisoned under the address sanitizer, so that host code which
 * follows a device pointer stops at that line. */
#include "runtime.h"

#include "sanitizer.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <cuda.h>
#include <iterator>
#include <map>
#include <sys/mman.h>
#include <unistd.h>

namespace simt {

namespace {

struct extent {
    size_t size;
    int device;
    unsigned long long allocation; /* its number; no other one ever has it */
    char *mapping; /* device memory without address sanitizer: whole pages around it */
    size_t mapping_size;
};

#ifndef PKVI_ASAN
constexpr size_t page_bytes = 4096;

/* Larger extents take pages only where they are touched: every piece of this size shows the same
 * few pages of NaN until somebody writes to it. */
constexpr size_t sparse_bytes = 16 << 20;

bool make_sparse(char *memory, size_t size) {
    static int source = -1;
    bool is_made = true;

    if (source < 0) {
        const std::vector<char> poison(sparse_bytes, '\xff');

        source = memfd_create("poison", MFD_CLOEXEC);
        is_made = source >= 0 && write(source, poison.data(), poison.size()) ==
                                     static_cast<ssize_t>(poison.size());
    }
    for (size_t at = 0; is_made && at < size; at += sparse_bytes) {
        is_made = mmap(memory + at, std::min(sparse_bytes, size - at), PROT_NONE,
                       MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, source, 0) != MAP_FAILED;
    }
    return is_made;
}
#endif

std::map<char *, extent> g_device;
std::map<char *, extent> g_pinned;
size_t g_device_bytes;
unsigned long long g_num_allocations;
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

/* The allocation that an address lies in; nullptr: none. */
const extent *extent_of(const void *address) {
    for (const auto *extents : {&g_device, &g_pinned}) {
        if (contains(*extents, address, 1)) {
            char *at = static_cast<char *>(const_cast<void *>(address));

            return &std::prev(extents->upper_bound(at))->second;
        }
    }
    return nullptr;
}

/* Questions about the memory of a device that is not current are refused here, though not by every
 * real device, so that one which is asked outside of the device switch is noticed. */
bool is_out_of_reach(const extent *where) {
    return where != nullptr && where->device != current_device();
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

/* Bytes that are NaN in every type, so that what nobody wrote is noticed where it is used. */
void poison(const std::map<char *, extent>::value_type &item) {
#ifndef PKVI_ASAN
    if (item.second.mapping_size - 2 * page_bytes > sparse_bytes) {
        return; /* made of them */
    }
#endif
    set_open(item, true);
    memset(item.first, 0xff, item.second.size);
    set_open(item, false);
}

/* Memory that ends, as far as its alignment of 256 allows, at a page that is never open. */
char *allocate_device(size_t size, extent &where) {
    const size_t used = round_up(size);

    where.size = size;
    where.device = current_device();
    where.allocation = ++g_num_allocations;
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
    if (pages > sparse_bytes && !make_sparse(where.mapping + page_bytes, pages)) {
        munmap(memory, where.mapping_size);
        return nullptr;
    }
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
    simt::poison(*item);
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
    simt::g_pinned[static_cast<char *>(memory)] =
        simt::extent{size, simt::current_device(), ++simt::g_num_allocations, nullptr, 0};
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
    const simt::extent *extent = simt::extent_of(address);

    if (simt::is_out_of_reach(extent)) {
        return end_call(cudaErrorInvalidValue);
    }
    *attributes = cudaPointerAttributes{};
    attributes->type = simt::contains(simt::g_device, address, 1)   ? cudaMemoryTypeDevice
                       : simt::contains(simt::g_pinned, address, 1) ? cudaMemoryTypeHost
                                                                    : cudaMemoryTypeUnregistered;
    attributes->device = extent == nullptr ? cudaInvalidDeviceId : extent->device;
    if (attributes->type != cudaMemoryTypeUnregistered) {
        attributes->devicePointer = const_cast<void *>(address);
    }
    if (attributes->type != cudaMemoryTypeDevice) {
        attributes->hostPointer = const_cast<void *>(address);
    }
    return cudaSuccess;
}

/* ---- The driver's answers */

static CUresult get_pointer_attribute(void *data,
                                      CUpointer_attribute attribute,
                                      CUdeviceptr pointer) {
    std::lock_guard<std::recursive_mutex> guard(simt::runtime_lock());
    const simt::extent *extent = simt::extent_of(reinterpret_cast<const void *>(pointer));

    if (attribute != CU_POINTER_ATTRIBUTE_BUFFER_ID || extent == nullptr ||
        simt::is_out_of_reach(extent)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *static_cast<unsigned long long *>(data) = extent->allocation;
    return CUDA_SUCCESS;
}

#if CUDART_VERSION >= 12050
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol,
                                             void **function,
                                             unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult *found)
#else
cudaError_t cudaGetDriverEntryPoint(const char *symbol,
                                    void **function,
                                    unsigned long long,
                                    cudaDriverEntryPointQueryResult *found)
#endif
{
    PKVI_CALL()
    const bool is_known = strcmp(symbol, "cuPointerGetAttribute") == 0;

    *function = is_known ? reinterpret_cast<void *>(get_pointer_attribute) : nullptr;
    *found = is_known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
}
