/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* What CUDA says of memory: of which sort it is, and which allocation; see device_cuda.h.
 *
 * The one idea: no two allocations of a process have the same number, so memory that was freed and
 * comes again at its old address is told apart from what was written there before. */
#include "kernels/cuda/device_cuda.h"

/* The driver has the answer and the runtime no call for it. */
void pkvi_cuda_find_allocation_question(struct pkvi_cuda_device *cuda) {
    void *function = NULL;
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    cudaError_t error;

#if CUDART_VERSION >= 12050
    error = cudaGetDriverEntryPointByVersion("cuPointerGetAttribute", &function, 12000,
                                             cudaEnableDefault, &found);
#else
    error = cudaGetDriverEntryPoint("cuPointerGetAttribute", &function, cudaEnableDefault, &found);
#endif
    if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) {
        (void)cudaGetLastError();
        function = NULL;
    }
    memcpy(&cuda->ask_pointer, &function, sizeof function);
}

static uint64_t ask_allocation(const struct pkvi_cuda_device *cuda, uintptr_t address) {
    unsigned long long allocation = 0;

    return cuda->ask_pointer != NULL &&
                   cuda->ask_pointer(&allocation, CU_POINTER_ATTRIBUTE_BUFFER_ID,
                                     (CUdeviceptr)address) == CUDA_SUCCESS
               ? allocation
               : 0;
}

uint64_t pkvi_cuda_allocation_of(const struct pkvi_cuda_device *cuda, const pkv_tensor *view) {
    const uintptr_t start = (uintptr_t)view->data;
    const uint64_t first = ask_allocation(cuda, start);
    const uintptr_t last = start + (uintptr_t)(pkvi_tensor_extent(view) - 1);

    /* A pool may be mapped out of several; then there is not one number. */
    return first != 0 && ask_allocation(cuda, last) == first ? first : 0;
}

cudaError_t pkvi_cuda_look_at_memory(const struct pkvi_cuda_device *cuda,
                                     const pkv_tensor *view,
                                     struct pkvi_cuda_memory *out) {
    struct cudaPointerAttributes attributes;
    cudaError_t error = cudaPointerGetAttributes(&attributes, view->data);

    out->type = error == cudaSuccess ? attributes.type : cudaMemoryTypeUnregistered;
    out->allocation = error == cudaSuccess && !cuda->ignores_stream_order
                          ? pkvi_cuda_allocation_of(cuda, view)
                          : 0;
    return error;
}
