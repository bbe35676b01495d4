/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The making of a CUDA device in builds without the backend: refused. With the backend the same
 * functions stand in kernels/cuda/backend_cuda.c and this file is not compiled. */
#include <pagedkv/cuda.h>

#include "base/memory.h"

size_t pkv_device_cuda_size(const pkv_cuda_config *config) {
    (void)config;
    return 0;
}

pkv_status pkv_device_init_cuda(const pkv_cuda_config *config,
                                void *memory,
                                size_t size,
                                pkv_device **out) {
    (void)memory;
    (void)size;
    return pkv_device_create_cuda(config, out);
}

pkv_status pkv_device_create_cuda(const pkv_cuda_config *config, pkv_device **out) {
    if (out == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    PKVI_LOG_REFUSED(config, "this build has no CUDA backend");
    return PKV_ERROR_UNSUPPORTED;
}
