/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* What the host side of the CUDA device calls for attention and merging. No check of views; that
 * has been done.
 *
 * The one idea: as launch.h, one function for each operation. */
#ifndef PKVI_CUDA_LAUNCH_ATTENTION_H
#define PKVI_CUDA_LAUNCH_ATTENTION_H

#include <cuda_runtime_api.h>

#include "device/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What grids and shared memory depend on, read when the device is made. */
struct pkvi_cuda_limits {
    int32_t num_multiprocessors;
    size_t block_shared_bytes; /* that a kernel may ask for */
    size_t multiprocessor_shared_bytes;
};

/* NULL where the shape is computed, else a static sentence. v_head_size and kv_dtype are filled in.
 */
const char *pkvi_cuda_refuse_attention(const pkv_attention_shape *shape,
                                       const struct pkvi_cuda_limits *limits);

/* NULL where the views suit the kernel of their shape, else a static sentence. */
const char *pkvi_cuda_refuse_attention_views(const struct pkvi_attention *op);

/* Load every kernel and allow it its shared memory. */
cudaError_t pkvi_cuda_load_attention_kernels(const struct pkvi_cuda_limits *limits);

cudaError_t pkvi_cuda_attention(const struct pkvi_attention *op,
                                const struct pkvi_cuda_limits *limits,
                                cudaStream_t stream);
cudaError_t pkvi_cuda_merge_states(const struct pkvi_merge *op, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
