/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The kernels that only move integers and bytes: block table, slots, whole blocks.
 *
 * The one idea: a host list is cut into pieces that fit into the arguments of one launch; the
 * layers of a pool are an axis of the grid. */
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/launch.h"

#include "base/paged.h"

namespace {

constexpr int threads_per_block = 128;
constexpr int64_t slice_bytes = 16 * 1024; /* of a pool's block, for one thread block */
constexpr int64_t max_grid_layers = 65535;

/* Entries in one launch: with them the arguments stay below the 4 KiB that every device takes. */
constexpr int updates_per_launch = 256;
constexpr int copies_per_launch = 384;
constexpr int fills_per_launch = 512;

template <class entry, int capacity> struct piece {
    int32_t count;
    entry entries[capacity];
};

template <class entry, int capacity>
void take_piece(piece<entry, capacity> *out, const entry *list, int32_t first, int32_t total) {
    out->count = total - first < capacity ? total - first : capacity;
    memcpy(out->entries, list + first, static_cast<size_t>(out->count) * sizeof(entry));
}

/* ---- Table and slots */

using update_piece = piece<pkv_table_update, updates_per_launch>;

__global__ void update_table_kernel(pkv_block_id *table,
                                    int64_t stride,
                                    const __grid_constant__ update_piece updates) {
    const int index = static_cast<int>(threadIdx.x);

    if (index < updates.count) {
        const pkv_table_update update = updates.entries[index];
        table[update.row * stride + update.column] = update.block_id;
    }
}

/* The request of query token `token`, counted from the first one; -1 behind the last. */
__device__ int find_request(const int32_t *starts, int num_requests, int64_t token) {
    int low = 0, high = num_requests;

    if (num_requests == 0 || token >= static_cast<int64_t>(starts[num_requests]) - starts[0]) {
        return -1;
    }
    while (high - low > 1) {
        const int middle = low + (high - low) / 2;
        if (static_cast<int64_t>(starts[middle]) - starts[0] <= token) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

__global__ void slot_mapping_kernel(const __grid_constant__ pkv_slot_mapping_args op) {
    const int64_t token = static_cast<int64_t>(blockIdx.x) * threads_per_block + threadIdx.x;

    if (token >= op.num_tokens) {
        return;
    }
    const int request = find_request(op.query_start_loc, op.num_requests, token);
    int64_t slot = PKV_NO_SLOT;
    if (request >= 0) {
        const int64_t behind =
            static_cast<int64_t>(op.query_start_loc[request + 1]) - op.query_start_loc[0] - token;
        const int64_t position = op.positions != nullptr
                                     ? op.positions[token]
                                     : static_cast<int64_t>(op.seq_lens[request]) - behind;
        if (position >= 0 && position / op.block_size < op.num_columns) {
            const pkv_block_id *table = op.block_table + op.rows[request] * op.block_table_stride;
            slot = pkvi_slot_of_place(pkvi_place_of_position(table, op.block_size, position),
                                      op.block_size);
        }
    }
    op.slot_mapping[token] = slot;
}

/* ---- Whole blocks */

/* One pool in a kernel's arguments. */
struct pool_view {
    unsigned char *data;
    int64_t layer_stride, block_stride;
};

__host__ pool_view view_of(const pkv_tensor &blocks) {
    return {static_cast<unsigned char *>(blocks.data), blocks.stride[0], blocks.stride[1]};
}

__device__ __forceinline__ unsigned char *block_address(const pool_view &pool,
                                                        int64_t layer,
                                                        pkv_block_id block_id,
                                                        int64_t at) {
    return pool.data + layer * pool.layer_stride + block_id * pool.block_stride + at;
}

struct extent {
    int64_t num_layers, block_bytes;
    int32_t num_slices;
};

using copy_piece = piece<pkv_block_copy, copies_per_launch>;
using fill_piece = piece<pkv_block_id, fills_per_launch>;

__global__ void move_blocks_kernel(pool_view source,
                                   pool_view target,
                                   extent size,
                                   const __grid_constant__ copy_piece copies) {
    const unsigned entry = blockIdx.x / static_cast<unsigned>(size.num_slices);
    const int64_t at =
        static_cast<int64_t>(blockIdx.x % static_cast<unsigned>(size.num_slices)) * slice_bytes;
    const int64_t rest = size.block_bytes - at;
    const pkv_block_copy copy = copies.entries[entry];

    for (int64_t layer = blockIdx.y; layer < size.num_layers; layer += gridDim.y) {
        pkvi::copy_bytes(block_address(target, layer, copy.target, at),
                         block_address(source, layer, copy.source, at),
                         rest < slice_bytes ? rest : slice_bytes, static_cast<int>(threadIdx.x),
                         threads_per_block);
    }
}

__global__ void fill_blocks_kernel(pool_view blocks,
                                   extent size,
                                   uint32_t byte,
                                   const __grid_constant__ fill_piece fills) {
    const unsigned entry = blockIdx.x / static_cast<unsigned>(size.num_slices);
    const int64_t at =
        static_cast<int64_t>(blockIdx.x % static_cast<unsigned>(size.num_slices)) * slice_bytes;
    const int64_t rest = size.block_bytes - at;
    const int64_t count = rest < slice_bytes ? rest : slice_bytes;
    const uint32_t word = byte * 0x01010101u;

    for (int64_t layer = blockIdx.y; layer < size.num_layers; layer += gridDim.y) {
        unsigned char *target = block_address(blocks, layer, fills.entries[entry], at);
        const bool is_aligned = (reinterpret_cast<uintptr_t>(target) | count) % 16 == 0;

        for (int64_t i = static_cast<int64_t>(threadIdx.x) * (is_aligned ? 16 : 1); i < count;
             i += threads_per_block * (is_aligned ? 16 : 1)) {
            if (is_aligned) {
                simt::store_global_16(target + i, make_uint4(word, word, word, word));
            } else {
                target[i] = static_cast<unsigned char>(byte);
            }
        }
    }
}

extent extent_of(const pkv_tensor &blocks) {
    return {blocks.shape[0], blocks.shape[2],
            static_cast<int32_t>((blocks.shape[2] + slice_bytes - 1) / slice_bytes)};
}

simt::launch_shape shape_of(const extent &size, int32_t count, cudaStream_t stream) {
    const int64_t layers = size.num_layers < max_grid_layers ? size.num_layers : max_grid_layers;

    return {dim3(static_cast<unsigned>(size.num_slices) * static_cast<unsigned>(count),
                 static_cast<unsigned>(layers)),
            dim3(threads_per_block), 0, stream, false};
}

} // namespace

extern "C" cudaError_t pkvi_cuda_load_block_kernels(void) {
    const void *const kernels[] = {reinterpret_cast<const void *>(update_table_kernel),
                                   reinterpret_cast<const void *>(slot_mapping_kernel),
                                   reinterpret_cast<const void *>(move_blocks_kernel),
                                   reinterpret_cast<const void *>(fill_blocks_kernel)};
    cudaFuncAttributes unused;
    cudaError_t error = cudaSuccess;

    for (size_t i = 0; error == cudaSuccess && i < sizeof kernels / sizeof kernels[0]; i++) {
        error = cudaFuncGetAttributes(&unused, kernels[i]);
    }
    return error;
}

extern "C" cudaError_t pkvi_cuda_update_block_table(const pkv_table_args *op, cudaStream_t stream) {
    const simt::launch_shape shape = {dim3(1), dim3(updates_per_launch), 0, stream, false};
    cudaError_t error = cudaSuccess;
    update_piece updates;

    for (int32_t i = 0; error == cudaSuccess && i < op->num_updates; i += updates_per_launch) {
        take_piece(&updates, op->updates, i, op->num_updates);
        error = simt::launch(update_table_kernel, shape, op->block_table, op->block_table_stride,
                             updates);
    }
    return error;
}

extern "C" cudaError_t pkvi_cuda_compute_slot_mapping(const pkv_slot_mapping_args *op,
                                                      cudaStream_t stream) {
    const unsigned blocks =
        (static_cast<unsigned>(op->num_tokens) + threads_per_block - 1) / threads_per_block;
    const simt::launch_shape shape = {dim3(blocks), dim3(threads_per_block), 0, stream, false};

    return simt::launch(slot_mapping_kernel, shape, *op);
}

extern "C" cudaError_t pkvi_cuda_move_blocks(const struct pkvi_move *op, cudaStream_t stream) {
    const extent size = extent_of(op->source);
    cudaError_t error = cudaSuccess;
    copy_piece copies;

    for (int32_t i = 0; error == cudaSuccess && i < op->num_copies; i += copies_per_launch) {
        take_piece(&copies, op->copies, i, op->num_copies);
        error = simt::launch(move_blocks_kernel, shape_of(size, copies.count, stream),
                             view_of(op->source), view_of(op->target), size, copies);
    }
    return error;
}

extern "C" cudaError_t pkvi_cuda_fill_blocks(const struct pkvi_fill *op, cudaStream_t stream) {
    const extent size = extent_of(op->blocks);
    cudaError_t error = cudaSuccess;
    fill_piece fills;

    for (int32_t i = 0; error == cudaSuccess && i < op->num_blocks; i += fills_per_launch) {
        take_piece(&fills, op->block_ids, i, op->num_blocks);
        error = simt::launch(fill_blocks_kernel, shape_of(size, fills.count, stream),
                             view_of(op->blocks), size, static_cast<uint32_t>(op->byte), fills);
    }
    return error;
}
