/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* What the host side of the CUDA device calls: one function for each operation, which enqueues its
 * kernels and returns what the launch said. No check and no policy.
 *
 * The one idea: a host list travels in the arguments of the kernels, in pieces, so that it is free
 * when the call returns, nothing is allocated, and a captured graph keeps its own copy. */
#ifndef PKVI_CUDA_LAUNCH_H
#define PKVI_CUDA_LAUNCH_H

#include <cuda_runtime_api.h>

#include "device/backend.h"

#if CUDART_VERSION < 12000
#error "the CUDA backend needs CUDA 12.0 or later"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Load every kernel of the file, so that none is loaded in the middle of a capture. */
cudaError_t pkvi_cuda_load_cache_kernels(void);
cudaError_t pkvi_cuda_load_block_kernels(void);

cudaError_t pkvi_cuda_write_kv(const struct pkvi_write_kv *op, cudaStream_t stream);
cudaError_t pkvi_cuda_gather(const struct pkvi_gather *op, cudaStream_t stream);
cudaError_t pkvi_cuda_update_block_table(const pkv_table_args *op, cudaStream_t stream);
cudaError_t pkvi_cuda_compute_slot_mapping(const pkv_slot_mapping_args *op, cudaStream_t stream);
/* Source and target are in memory that the device reaches. */
cudaError_t pkvi_cuda_move_blocks(const struct pkvi_move *op, cudaStream_t stream);
cudaError_t pkvi_cuda_fill_blocks(const struct pkvi_fill *op, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
