/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Writing the cache and gathering from it, with rotation and quantisation on the way. What is
 * computed is said in kernels/cpu/reference_cache.c.
 *
 * The one idea: a warp owns one row (a token's head) from its source to its place, so that a scale
 * per token and head is one reduction over the warp, and no two warps meet. */
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/launch.h"

#include "base/paged.h"

namespace {

constexpr int warps_per_block = 4;
constexpr int64_t max_grid_blocks = 1 << 20; /* more rows than these have warps: in rounds */

__device__ __forceinline__ bool not_a_number(float value) {
    return value != value;
}

/* ---- Writing */

/* A key, value or query row in its parts: a body, and a tail that may come from elsewhere. */
struct source_row {
    const unsigned char *body, *tail;
    pkv_dtype dtype;
    int body_size, size;
};

__device__ __forceinline__ const unsigned char *row_address(const pkv_tensor &tensor,
                                                            int64_t token,
                                                            int64_t head) {
    return pkvi::element_address(tensor, token * tensor.stride[0] + head * tensor.stride[1]);
}

__device__ __forceinline__ float read_source(const source_row &row, int d) {
    return d < row.body_size ? pkvi::read_element(row.body, row.dtype, d)
                             : pkvi::read_element(row.tail, row.dtype, d - row.body_size);
}

/* How a row is rotated: elements [offset, offset + 2 * half). */
struct rotation {
    const float *cos, *sin;
    int offset, half; /* half 0: not at all */
    bool is_interleaved;
};

__device__ __forceinline__ rotation find_rotation(const pkvi_write_kv &op, int64_t token) {
    rotation found = {nullptr, nullptr, 0, 0, false};

    if (op.rotary_size > 0) {
        const int64_t position = op.args.positions[token];
        found.cos = static_cast<const float *>(op.args.cos.data) + position * op.args.cos.stride[0];
        found.sin = static_cast<const float *>(op.args.sin.data) + position * op.args.sin.stride[0];
        found.offset = op.args.rotary_offset;
        found.half = op.rotary_size / 2;
        found.is_interleaved = (op.args.flags & PKV_WRITE_ROPE_INTERLEAVED) != 0;
    }
    return found;
}

/* One lane's share of a row comes in pairs that rotate together, then in single elements. Products
 * of floats are exact in double, so that the result does not depend on how they are contracted. */
struct pair {
    int first, second; /* second < 0: a single element */
    float x, y;
};

__device__ __forceinline__ pair load_pair(const source_row &row, const rotation &turn, int index) {
    pair found = {0, -1, 0.0f, 0.0f};

    if (index >= turn.half) {
        const int single = index - turn.half;
        found.first = single < turn.offset ? single : single + 2 * turn.half;
        found.x = read_source(row, found.first);
        return found;
    }
    found.first = turn.offset + (turn.is_interleaved ? 2 * index : index);
    found.second = found.first + (turn.is_interleaved ? 1 : turn.half);
    const double x = static_cast<double>(read_source(row, found.first));
    const double y = static_cast<double>(read_source(row, found.second));
    const double c = static_cast<double>(turn.cos[index]);
    const double s = static_cast<double>(turn.sin[index]);
    found.x = static_cast<float>(x * c - y * s);
    found.y = static_cast<float>(y * c + x * s);
    return found;
}

__device__ __forceinline__ float larger_finite(float largest, float value) {
    const float magnitude = fabsf(value);

    return magnitude > largest && magnitude < INFINITY ? magnitude : largest;
}

__device__ float compute_scale(const source_row &row, const rotation &turn, pkv_dtype dtype) {
    float largest = 0.0f;

#pragma unroll 1
    for (int i = simt::lane_index(); i < row.size - turn.half; i += simt::warp_size) {
        const pair found = load_pair(row, turn, i);
        largest = larger_finite(larger_finite(largest, found.x), found.y);
    }
    for (int distance = simt::warp_size / 2; distance > 0; distance /= 2) {
        largest = fmaxf(largest, simt::shuffle_xor(largest, distance));
    }
    return largest / (dtype == PKV_DTYPE_INT8 ? 127.0f : 448.0f);
}

__device__ __forceinline__ float scaled(float value, float scale) {
    return scale == 0.0f && !not_a_number(value) ? 0.0f : value / scale;
}

/* Write a row that is rotated, converted or divided by a scale. */
__device__ void store_row(
    void *target, pkv_dtype dtype, const source_row &row, const rotation &turn, float scale) {
#pragma unroll 1
    for (int i = simt::lane_index(); i < row.size - turn.half; i += simt::warp_size) {
        const pair found = load_pair(row, turn, i);
        pkvi::write_element(target, dtype, found.first, scaled(found.x, scale));
        if (found.second >= 0) {
            pkvi::write_element(target, dtype, found.second, scaled(found.y, scale));
        }
    }
}

/* The source of a key: the body, and behind it the tail where that comes on its own. */
__device__ source_row key_row(const pkvi_write_kv &op, int64_t token, int head) {
    const int body_size = op.cache.head_size - op.tail_size;
    const pkv_dtype dtype = body_size > 0 ? op.args.key.dtype : op.args.key_tail.dtype;
    source_row row = {nullptr, nullptr, dtype, body_size, op.cache.head_size};

    if (body_size > 0) {
        row.body = row_address(op.args.key, token, head);
    }
    if (op.tail_size > 0) {
        row.tail = row_address(op.args.key_tail, token, head);
    }
    return row;
}

/* A row that lies in one piece. */
__device__ source_row whole_row(const pkv_tensor &tensor, int64_t token, int head, int size) {
    const unsigned char *address = row_address(tensor, token, head);

    return {address, address, tensor.dtype, size, size};
}

/* What a cached row is divided by; the scale of a row of its own is written on the way. */
__device__ float find_scale(const pkv_tensor &scale_tensor,
                            pkvi_scale_kind kind,
                            pkvi_place place,
                            int head,
                            const source_row &row,
                            const rotation &turn,
                            pkv_dtype dtype) {
    float *scales = static_cast<float *>(scale_tensor.data);

    if (kind == PKVI_SCALE_NONE) {
        return 1.0f;
    }
    if (kind != PKVI_SCALE_TOKEN_HEAD) {
        return scales[kind == PKVI_SCALE_HEAD ? head : 0];
    }
    const float scale = compute_scale(row, turn, dtype);
    if (simt::lane_index() == 0) {
        scales[pkvi_place_element(place, head, scale_tensor.stride)] = scale;
    }
    return scale;
}

/* Rows of one token: query heads, key heads, value heads. */
__device__ __host__ int64_t rows_per_token(const pkvi_write_kv &op) {
    const int halves = (op.cache.head_size > 0 ? 1 : 0) + (op.cache.v_head_size > 0 ? 1 : 0);

    return static_cast<int64_t>(op.num_query_heads) +
           static_cast<int64_t>(halves) * op.cache.num_kv_heads;
}

/* Row `index` of a token. Queries are rotated where they are. Keys and values go one way: twice the
 * code would spill on architectures that save registers around a division. */
__device__ void write_row(const pkvi_write_kv &op, int64_t token, int index) {
    const rotation none = {nullptr, nullptr, 0, 0, false};
    const bool is_query = index < op.num_query_heads;
    int head = is_query ? index : index - op.num_query_heads;
    const bool is_key = !is_query && op.cache.head_size > 0 && head < op.cache.num_kv_heads;
    const rotation turn = is_query || is_key ? find_rotation(op, token) : none;

    if (is_query) {
        const source_row row = whole_row(op.args.query, token, head, op.cache.head_size);

        store_row(const_cast<unsigned char *>(row.body), row.dtype, row, turn, 1.0f);
        return;
    }
    const int64_t slot = op.args.slot_mapping[token];
    if (slot < 0) {
        return;
    }
    if (!is_key && op.cache.head_size > 0) {
        head -= op.cache.num_kv_heads;
    }
    const source_row row = is_key ? key_row(op, token, head)
                                  : whole_row(op.args.value, token, head, op.cache.v_head_size);
    const pkv_tensor &cache = is_key ? op.args.k_cache : op.args.v_cache;
    const pkvi_scale_kind kind = is_key ? op.cache.k_scale_kind : op.cache.v_scale_kind;
    const pkvi_place place = pkvi_place_of_slot(slot, op.cache.block_size);
    const int64_t element = pkvi_place_element(place, head, cache.stride);
    unsigned char *target = pkvi::element_address(
        cache,
        simt::has_mistake(PKVI_MISTAKE_NARROW_SLOTS) ? element & INT64_C(0x7fffffff) : element);

    if (kind == PKVI_SCALE_NONE && turn.half == 0 && cache.dtype == row.dtype) {
        const int bytes = pkvi::element_bytes(row.dtype);
        pkvi::copy_bytes(target, row.body, row.body_size * bytes, simt::lane_index(),
                         simt::warp_size);
        pkvi::copy_bytes(target + row.body_size * bytes, row.tail,
                         (row.size - row.body_size) * bytes, simt::lane_index(), simt::warp_size);
        return;
    }
    const float scale = find_scale(is_key ? op.args.k_scale : op.args.v_scale, kind, place, head,
                                   row, turn, cache.dtype);
    store_row(target, cache.dtype, row, turn, scale);
}

__global__ void __launch_bounds__(warps_per_block *simt::warp_size)
    write_kv_kernel(const __grid_constant__ pkvi_write_kv op) {
    /* A launch has fewer warps than 2^31, so that no division is of 64 bits. */
    const int per_token = static_cast<int>(rows_per_token(op));
    const int first = static_cast<int>(blockIdx.x) * warps_per_block + simt::warp_index();
    const int step = static_cast<int>(gridDim.x) * warps_per_block;
    int64_t token = first / per_token;
    int row = first % per_token;

    while (token < op.num_tokens) {
        write_row(op, token, row);
        token += step / per_token;
        row += step % per_token;
        if (row >= per_token) {
            row -= per_token;
            token++;
        }
    }
}

/* ---- Gathering */

/* The request that key `key` belongs to; -1 where it belongs to none. */
__device__ int find_request(const int32_t *key_start_loc, int num_requests, int64_t key) {
    int low = 0, high = num_requests;

    if (key < key_start_loc[0] || key >= key_start_loc[num_requests]) {
        return -1;
    }
    while (high - low > 1) {
        const int middle = low + (high - low) / 2;
        if (key_start_loc[middle] <= key) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

__device__ void fetch_row(const pkv_tensor &cache,
                          const pkv_tensor &scale_tensor,
                          pkvi_scale_kind kind,
                          pkvi_place place,
                          int head,
                          const pkv_tensor &target_tensor,
                          int64_t key,
                          int size) {
    const unsigned char *source =
        pkvi::element_address(cache, pkvi_place_element(place, head, cache.stride));
    unsigned char *target = pkvi::element_address(
        target_tensor, key * target_tensor.stride[0] + head * target_tensor.stride[1]);
    const float *scales = static_cast<const float *>(scale_tensor.data);
    float scale = 1.0f;

    if (kind == PKVI_SCALE_NONE && cache.dtype == target_tensor.dtype) {
        pkvi::copy_bytes(target, source, size * pkvi::element_bytes(cache.dtype),
                         simt::lane_index(), simt::warp_size);
        return;
    }
    if (kind == PKVI_SCALE_TENSOR || kind == PKVI_SCALE_HEAD) {
        scale = scales[kind == PKVI_SCALE_HEAD ? head : 0];
    } else if (kind == PKVI_SCALE_TOKEN_HEAD) {
        scale = scales[pkvi_place_element(place, head, scale_tensor.stride)];
    }
    for (int i = simt::lane_index(); i < size; i += simt::warp_size) {
        pkvi::write_element(target, target_tensor.dtype, i,
                            pkvi::read_element(source, cache.dtype, i) * scale);
    }
}

__global__ void __launch_bounds__(warps_per_block *simt::warp_size)
    gather_kernel(const __grid_constant__ pkvi_gather op) {
    const pkv_gather_args &args = op.args;
    const int num_heads = op.cache.num_kv_heads;
    const int64_t step = static_cast<int64_t>(gridDim.x) * warps_per_block;

    for (int64_t index = static_cast<int64_t>(blockIdx.x) * warps_per_block + simt::warp_index();
         index < op.num_keys * num_heads; index += step) {
        const int64_t key = index / num_heads;
        const int head = static_cast<int>(index - key * num_heads);
        const int request = find_request(args.key_start_loc, args.num_requests, key);

        if (request < 0) {
            continue;
        }
        const pkv_block_id *table = args.block_table + args.rows[request] * args.block_table_stride;
        const int64_t first = args.first_positions == nullptr ? 0 : args.first_positions[request];
        const pkvi_place place = pkvi_place_of_position(table, op.cache.block_size,
                                                        first + key - args.key_start_loc[request]);
        if (op.cache.head_size > 0) {
            fetch_row(args.k_cache, args.k_scale, op.cache.k_scale_kind, place, head, args.key, key,
                      op.cache.head_size);
        }
        if (op.cache.v_head_size > 0) {
            fetch_row(args.v_cache, args.v_scale, op.cache.v_scale_kind, place, head, args.value,
                      key, op.cache.v_head_size);
        }
    }
}

simt::launch_shape shape_for_rows(int64_t num_rows, cudaStream_t stream) {
    const int64_t wanted = (num_rows + warps_per_block - 1) / warps_per_block;
    const int64_t blocks = wanted < max_grid_blocks ? wanted : max_grid_blocks;

    return {dim3(static_cast<unsigned>(blocks)), dim3(warps_per_block * simt::warp_size), 0, stream,
            false};
}

} // namespace

extern "C" cudaError_t pkvi_cuda_load_cache_kernels(void) {
    cudaFuncAttributes unused;
    cudaError_t error =
        cudaFuncGetAttributes(&unused, reinterpret_cast<const void *>(write_kv_kernel));

    return error != cudaSuccess
               ? error
               : cudaFuncGetAttributes(&unused, reinterpret_cast<const void *>(gather_kernel));
}

extern "C" cudaError_t pkvi_cuda_write_kv(const struct pkvi_write_kv *op, cudaStream_t stream) {
    const int64_t num_rows = op->num_tokens * rows_per_token(*op);

    return num_rows == 0 ? cudaSuccess
                         : simt::launch(write_kv_kernel, shape_for_rows(num_rows, stream), *op);
}

extern "C" cudaError_t pkvi_cuda_gather(const struct pkvi_gather *op, cudaStream_t stream) {
    const int64_t num_rows = op->num_keys * op->cache.num_kv_heads;

    return num_rows == 0 ? cudaSuccess
                         : simt::launch(gather_kernel, shape_for_rows(num_rows, stream), *op);
}
