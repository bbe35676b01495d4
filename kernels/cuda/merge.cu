/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The two merges: a request's key parts into its output rows, and the results of separate calls
 * over disjoint keys (pkv_merge_states).
 *
 * The one idea: a block has one row (token, head). Warp w adds parts w, w + 4, ... in order; the
 * four sums are added as (0 + 1) + (2 + 3); so the order of additions never depends on the grid. */
#include "kernels/cuda/launch_attention.h"
#include "kernels/cuda/work.cuh"

namespace pkvi {

namespace {

constexpr int merge_threads = 128;
constexpr int max_grid_tokens = 65535;
constexpr int merge_warps = merge_threads / 32;

/* The last request that starts at or before `token` and is not empty. All threads search: each
 * round leaves 1 / 128 of the list. */
PKVI_WRAPPER int32_t find_request(const attention_parameters &p, int32_t token, int32_t *found) {
    const pkvi_plan_request *requests = pkvi_plan_requests(p.plan);
    int32_t first = 0, count = p.plan->num_requests;

    while (count > 1) {
        const int32_t step = (count + merge_threads - 1) / merge_threads;
        const int32_t own = first + static_cast<int32_t>(threadIdx.x) * step;
        const int32_t next = own + step;

        if (own < first + count && requests[own].query_start <= token &&
            (next >= first + count || requests[next].query_start > token)) {
            *found = own;
        }
        simt::sync_block();
        const int32_t end = first + count;
        first = *found;
        count = step < end - first ? step : end - first;
        simt::sync_block();
    }
    return first;
}

PKVI_WRAPPER float find_maximum(const float *record, int64_t step, int32_t num_parts, int32_t at) {
    float maximum = -INFINITY;

    for (int32_t part = simt::lane_index(); part < num_parts; part += 32) {
        maximum = fmaxf(maximum, record[part * step + at]);
    }
    for (int mask = 16; mask > 0; mask /= 2) {
        maximum = fmaxf(maximum, simt::shuffle_xor(maximum, mask));
    }
    return maximum;
}

/* This warp's parts: sums of values into `target`, returns the sum of weights. */
PKVI_WRAPPER float add_parts(const float *record,
                             int64_t step,
                             int32_t num_parts,
                             int32_t v_head_size,
                             float maximum,
                             float *target) {
    float sum = 0.0f;

    for (int32_t part = simt::warp_index(); part < num_parts; part += merge_warps) {
        const float *own = record + part * step;

        if (own[v_head_size + 1] != 0.0f) {
            sum += exp2f(own[v_head_size] - maximum) * own[v_head_size + 1];
        }
    }
    for (int32_t column = simt::lane_index(); column < v_head_size; column += 32) {
        float value = 0.0f;

        for (int32_t part = simt::warp_index(); part < num_parts; part += merge_warps) {
            const float *own = record + part * step;

            if (own[v_head_size + 1] != 0.0f) {
                value += exp2f(own[v_head_size] - maximum) * own[column];
            }
        }
        target[column] = value;
    }
    return sum;
}

__global__ void __launch_bounds__(merge_threads) merge_kernel(attention_parameters p) {
    PKVI_SHARED(float, values, merge_warps *PKV_MAX_HEAD_SIZE);
    PKVI_SHARED(float, sums, merge_warps);
    PKVI_SHARED(int32_t, found, 1);
    const int32_t query_head = static_cast<int32_t>(blockIdx.x);
    const int32_t head = pkvi_divide(query_head, p.group_size);
    const int warp = simt::warp_index();
    constexpr int pitch = PKV_MAX_HEAD_SIZE;

    simt::wait_for_previous_grid();
    if (p.plan->num_split_requests == 0) {
        return;
    }
    for (int32_t token = static_cast<int32_t>(blockIdx.y); token < p.plan->num_tokens;
         token += static_cast<int32_t>(gridDim.y)) {
        const pkvi_plan_request &request =
            pkvi_plan_requests(p.plan)[find_request(p, token, found)];
        const int32_t num_parts = request.end_chunk - request.first_chunk;
        if (num_parts <= 1) {
            continue;
        }
        const int64_t rows = static_cast<int64_t>(request.num_queries) * p.group_size.divisor;
        const int64_t row =
            static_cast<int64_t>(token - request.query_start) * p.group_size.divisor + query_head -
            head * p.group_size.divisor;
        const float *record = partial_record(p, request.first_partial_row + row, head);
        const int64_t step = rows * p.num_kv_heads.divisor * pkvi_partial_floats(p.v_head_size);
        const float maximum = find_maximum(record, step, num_parts, p.v_head_size);
        const float sum =
            add_parts(record, step, num_parts, p.v_head_size, maximum, values + warp * pitch);

        if (simt::lane_index() == 0) {
            sums[warp] = sum;
        }
        if (!has_mistake(PKVI_MISTAKE_UNSYNCED_PARTS)) {
            simt::sync_block();
        }
        const float total = (sums[0] + sums[1]) + (sums[2] + sums[3]);
        const float factor = finish_row(p, token, query_head, maximum, total, threadIdx.x == 0);
        for (int32_t column = 2 * static_cast<int32_t>(threadIdx.x); column < p.v_head_size;
             column += 2 * merge_threads) {
            float pair[2];

            for (int h = 0; h < 2; h++) {
                const float *value = values + column + h;

                pair[h] =
                    ((value[0] + value[pitch]) + (value[2 * pitch] + value[3 * pitch])) * factor;
            }
            store_pair(p, token, query_head, column, total == 0.0f ? 0.0f : pair[0],
                       total == 0.0f ? 0.0f : pair[1]);
        }
        simt::sync_block();
    }
}

/* ---- Results of separate calls */

struct part_view {
    const unsigned char *output;
    const float *lse;
    int64_t output_stride[2], lse_stride[2];
};

/* By value: 64 parts are 3 KiB. */
struct state_parameters {
    part_view parts[PKV_MAX_MERGE_PARTS];
    unsigned char *output;
    float *lse;
    int64_t output_stride[2], lse_stride[2];
    int64_t num_tokens;
    int32_t num_parts, v_head_size;
    int32_t part_dtype, output_dtype;
};

PKVI_WRAPPER float read_element(const unsigned char *data, int32_t dtype, int64_t element) {
    switch (dtype) {
    case PKV_DTYPE_FLOAT16:
        return simt::to_float(reinterpret_cast<const __half *>(data)[element]);
    case PKV_DTYPE_BFLOAT16:
        return simt::to_float(reinterpret_cast<const __nv_bfloat16 *>(data)[element]);
    default:
        return reinterpret_cast<const float *>(data)[element];
    }
}

PKVI_WRAPPER void write_element(unsigned char *data, int32_t dtype, int64_t element, float value) {
    switch (dtype) {
    case PKV_DTYPE_FLOAT16:
        reinterpret_cast<__half *>(data)[element] = simt::from_float<__half>(value);
        break;
    case PKV_DTYPE_BFLOAT16:
        reinterpret_cast<__nv_bfloat16 *>(data)[element] = simt::from_float<__nv_bfloat16>(value);
        break;
    default:
        reinterpret_cast<float *>(data)[element] = value;
    }
}

/* A thread has columns; it reads an element of every part before it writes that element, so that
 * the output may be one of the parts. */
__global__ void __launch_bounds__(merge_threads) merge_states_kernel(state_parameters p) {
    PKVI_SHARED(float, weights, PKV_MAX_MERGE_PARTS);
    const int64_t query_head = blockIdx.x;

    simt::wait_for_previous_grid();
    for (int64_t token = blockIdx.y; token < p.num_tokens; token += gridDim.y) {
        float maximum = -INFINITY, sum = 0.0f;

        for (int32_t part = 0; part < p.num_parts; part++) {
            const part_view &view = p.parts[part];
            const float lse =
                view.lse[token * view.lse_stride[0] + query_head * view.lse_stride[1]];

            maximum = fmaxf(maximum, lse);
            if (threadIdx.x == 0) {
                weights[part] = lse;
            }
        }
        /* lse may be one of the parts' too: all have read theirs before it is written. */
        simt::sync_block();
        for (int32_t part = 0; part < p.num_parts; part++) {
            sum += weights[part] == -INFINITY ? 0.0f : expf(weights[part] - maximum);
        }
        for (int32_t column = static_cast<int32_t>(threadIdx.x); column < p.v_head_size;
             column += merge_threads) {
            float value = 0.0f;

            for (int32_t part = 0; part < p.num_parts; part++) {
                const part_view &view = p.parts[part];

                if (weights[part] > -INFINITY) {
                    value += expf(weights[part] - maximum) *
                             read_element(view.output, p.part_dtype,
                                          token * view.output_stride[0] +
                                              query_head * view.output_stride[1] + column);
                }
            }
            write_element(p.output, p.output_dtype,
                          token * p.output_stride[0] + query_head * p.output_stride[1] + column,
                          sum == 0.0f ? 0.0f : value / sum);
        }
        if (threadIdx.x == 0 && p.lse != nullptr) {
            p.lse[token * p.lse_stride[0] + query_head * p.lse_stride[1]] =
                sum == 0.0f ? -INFINITY : maximum + logf(sum);
        }
        simt::sync_block();
    }
}

simt::launch_shape merge_shape(int64_t num_heads, int64_t num_tokens, cudaStream_t stream) {
    const int64_t rows = num_tokens < max_grid_tokens ? num_tokens : max_grid_tokens;

    return {dim3(static_cast<unsigned>(num_heads), static_cast<unsigned>(rows)),
            dim3(merge_threads), 0, stream, false};
}

} // namespace

cudaError_t launch_merge(const attention_parameters &parameters, cudaStream_t stream) {
    return simt::launch(merge_kernel,
                        merge_shape(parameters.num_query_heads, parameters.num_tokens, stream),
                        parameters);
}

cudaError_t load_merge_kernels() {
    cudaFuncAttributes attributes;
    const cudaError_t error =
        cudaFuncGetAttributes(&attributes, reinterpret_cast<const void *>(merge_kernel));

    return error != cudaSuccess
               ? error
               : cudaFuncGetAttributes(&attributes,
                                       reinterpret_cast<const void *>(merge_states_kernel));
}

} // namespace pkvi

cudaError_t pkvi_cuda_merge_states(const struct pkvi_merge *op, cudaStream_t stream) {
    const pkv_merge_args &args = op->args;
    pkvi::state_parameters parameters = {};

    if (op->num_tokens == 0 || op->num_heads == 0) {
        return cudaSuccess;
    }
    for (int32_t part = 0; part < args.num_parts; part++) {
        pkvi::part_view &view = parameters.parts[part];

        view.output = static_cast<const unsigned char *>(args.outputs[part].data);
        view.lse = static_cast<const float *>(args.lses[part].data);
        for (int axis = 0; axis < 2; axis++) {
            view.output_stride[axis] = args.outputs[part].stride[axis];
            view.lse_stride[axis] = args.lses[part].stride[axis];
        }
    }
    parameters.output = static_cast<unsigned char *>(args.output.data);
    parameters.lse =
        args.lse.dtype == PKV_DTYPE_NONE ? nullptr : static_cast<float *>(args.lse.data);
    for (int axis = 0; axis < 2; axis++) {
        parameters.output_stride[axis] = args.output.stride[axis];
        parameters.lse_stride[axis] = args.lse.stride[axis];
    }
    parameters.num_tokens = op->num_tokens;
    parameters.num_parts = args.num_parts;
    parameters.v_head_size = op->v_head_size;
    parameters.part_dtype = args.outputs[0].dtype;
    parameters.output_dtype = args.output.dtype;
    return simt::launch(pkvi::merge_states_kernel,
                        pkvi::merge_shape(op->num_heads, op->num_tokens, stream), parameters);
}
