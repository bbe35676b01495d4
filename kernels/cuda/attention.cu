/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The launches of attention: which kernels a call needs, their shared memory and their grids. Host
 * code; the kernels are in attend.cuh, attend_plain.cuh and merge.cu.
 *
 * The one idea: everything that a launch depends on is known from the shape and the device, so that
 * a captured graph replays with another work list. Each grid is as large as the device and finds
 * its items by itself. */
#include "kernels/cuda/attention.cuh"

#include "kernels/cuda/launch_attention.h"
#include "kernels/cuda/simt.cuh"

namespace {

constexpr int32_t max_blocks_per_multiprocessor = 4;

cudaError_t launch_instance(const pkvi::attention_instance *instance,
                            const struct pkvi_cuda_limits *limits,
                            pkvi::attention_parameters *parameters,
                            cudaStream_t stream) {
    const size_t bytes = pkvi::size_attention_shared(
        instance, limits->block_shared_bytes, limits->multiprocessor_shared_bytes,
        &parameters->num_stages, &parameters->num_query_slots);
    size_t num_blocks = max_blocks_per_multiprocessor;

    if (bytes > 0) {
        const size_t fitting = limits->multiprocessor_shared_bytes / (bytes + 1024);

        num_blocks = fitting < 1 ? 1 : fitting < num_blocks ? fitting : num_blocks;
    }
    const size_t missing = bytes > 0 && simt::has_mistake(PKVI_MISTAKE_SHORT_SHARED) ? 16 : 0;
    const simt::launch_shape shape = {dim3(static_cast<unsigned>(num_blocks) *
                                           static_cast<unsigned>(limits->num_multiprocessors)),
                                      dim3(static_cast<unsigned>(instance->num_threads)),
                                      bytes - missing, stream, false};
    return simt::launch(instance->kernel, shape, *parameters);
}

} // namespace

const char *pkvi_cuda_refuse_attention(const pkv_attention_shape *shape,
                                       const struct pkvi_cuda_limits *limits) {
    return pkvi::refuse_attention_shape(shape, limits->block_shared_bytes);
}

const char *pkvi_cuda_refuse_attention_views(const struct pkvi_attention *op) {
    return pkvi::refuse_attention_views(op);
}

cudaError_t pkvi_cuda_load_attention_kernels(const struct pkvi_cuda_limits *limits) {
    int32_t count;
    const pkvi::attention_instance *table = pkvi::attention_instances(&count);
    cudaFuncAttributes attributes;
    cudaError_t error = pkvi::load_merge_kernels();

    for (int32_t i = 0; i < count && error == cudaSuccess; i++) {
        int32_t stages, slots;
        const size_t bytes =
            pkvi::size_attention_shared(&table[i], limits->block_shared_bytes,
                                        limits->multiprocessor_shared_bytes, &stages, &slots);

        error = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void *>(table[i].kernel));
        if (error == cudaSuccess && bytes > 0) {
            error = simt::allow_shared_bytes(table[i].kernel, bytes);
        }
    }
    return error;
}

cudaError_t pkvi_cuda_attention(const struct pkvi_attention *op,
                                const struct pkvi_cuda_limits *limits,
                                cudaStream_t stream) {
    const int32_t tiles[] = {PKVI_LARGE_TILE_ROWS, PKVI_SMALL_TILE_ROWS};
    pkvi::attention_parameters parameters;
    cudaError_t error = cudaSuccess;

    if (op->num_tokens == 0) {
        return cudaSuccess;
    }
    pkvi::fill_attention_parameters(op, &parameters);
    for (int32_t tile : tiles) {
        const pkvi::attention_instance *instance =
            pkvi::find_attention_instance(op->args.query.dtype, op->args.k_cache.dtype,
                                          op->cache.head_size, op->cache.v_head_size, tile);
        /* Not a single query token fits a small tile of a larger group, and so few rows as one
         * small tile holds never need a large one. */
        const bool is_needed = tile == PKVI_SMALL_TILE_ROWS
                                   ? op->group_size <= PKVI_SMALL_TILE_ROWS
                                   : op->num_tokens * op->group_size > PKVI_SMALL_TILE_ROWS ||
                                         op->args.query.dtype == PKV_DTYPE_FLOAT32;

        if (error == cudaSuccess && instance != nullptr && is_needed) {
            error = launch_instance(instance, limits, &parameters, stream);
        }
    }
    if (error == cudaSuccess && op->args.workspace != nullptr && op->args.workspace_size > 0) {
        error = pkvi::launch_merge(parameters, stream);
    }
    return error;
}
