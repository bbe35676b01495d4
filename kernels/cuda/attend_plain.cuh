/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Attention for float32 queries without matrix instructions: any head size, any cache type, plain
 * arithmetic. The specification on the device, not a fast path.
 *
 * The one idea: a warp has one row and looks at 32 keys a step. Each lane computes the logit of one
 * key; then the lanes share out the columns and all keys' values are added in key order. */
#ifndef PKVI_CUDA_ATTEND_PLAIN_CUH
#define PKVI_CUDA_ATTEND_PLAIN_CUH

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/work.cuh"

namespace pkvi {

constexpr int plain_warps = 4;
constexpr int plain_columns = (PKV_MAX_HEAD_SIZE + 31) / 32; /* of one lane, at most */

template <class cache> struct attend_plain {
    const attention_parameters &p;
    const work &item;
    const row_view view;
    const float *query; /* in shared memory */
    const int lane = simt::lane_index();
    float output[plain_columns] = {};
    float maximum = -INFINITY, sum = 0.0f;

    PKVI_WRAPPER attend_plain(const attention_parameters &parameters,
                              const work &whole,
                              const row_view &row,
                              const float *query_row)
        : p(parameters), item(whole), view(row), query(query_row) {
    }

    PKVI_WRAPPER pkvi_place place_of(int32_t key) const {
        const int32_t column = pkvi_column_of_position(key, p.block_size);

        return pkvi_place_in_column(p.block_table[item.table_row * p.block_table_stride + column],
                                    column, key, p.block_size);
    }

    PKVI_WRAPPER bool sees(int32_t key) const {
        return key >= view.low && key < view.high && key < item.end_key &&
               (p.tree_mask == nullptr || tree_sees(p, item, view.token, key));
    }

    /* In base 2. */
    PKVI_WRAPPER float logit_of(int32_t key, pkvi_place place, float scale) const {
        const auto *row = reinterpret_cast<const cache *>(
            p.k_cache + pkvi_place_element(place, item.head, p.k_stride));
        float logit = 0.0f;

        for (int32_t d = 0; d < p.head_size; d++) {
            logit += query[d] * element_to_float(row[d]);
        }
        logit *= scale;
        if (p.k_scale_kind == PKVI_SCALE_TOKEN_HEAD) {
            logit *= p.k_scale[pkvi_place_element(place, item.head, p.k_scale_stride)];
        }
        if (p.softcap > 0.0f) {
            logit = p.softcap * simt::tanh_exact(logit / p.softcap);
        }
        if (p.alibi_slopes != nullptr) {
            logit -=
                p.alibi_slopes[view.query_head] * fabsf(static_cast<float>(view.position - key));
        }
        return logit * log2_e;
    }

    /* Keys [first, first + 32): each lane has the weight of its own. */
    PKVI_WRAPPER void add_keys(int32_t first, float scale) {
        const int32_t key = first + lane;
        const bool is_seen = sees(key);
        const pkvi_place place = is_seen ? place_of(key) : pkvi_place{0, 0};
        const float logit = is_seen ? logit_of(key, place, scale) : -INFINITY;
        float found = fmaxf(maximum, logit);

        for (int mask = 16; mask > 0; mask /= 2) {
            found = fmaxf(found, simt::shuffle_xor(found, mask));
        }
        const float base = found == -INFINITY ? 0.0f : found;
        const float correction = exp2f(maximum - base);
        float weight = exp2f(logit - base);
        float weights = weight;
        int64_t row = -1;

        for (int mask = 16; mask > 0; mask /= 2) {
            weights += simt::shuffle_xor(weights, mask);
        }
        maximum = found;
        sum = sum * correction + weights;
        if (is_seen) {
            row = pkvi_place_element(place, item.head, p.v_stride);
            if (p.v_scale_kind == PKVI_SCALE_TOKEN_HEAD) {
                weight *= p.v_scale[pkvi_place_element(place, item.head, p.v_scale_stride)];
            }
        }
#pragma unroll
        for (int i = 0; i < plain_columns; i++) {
            output[i] *= correction;
        }
        for (int other = 0; other < 32; other++) {
            add_values(simt::shuffle(row, other), simt::shuffle(weight, other));
        }
    }

    PKVI_WRAPPER void add_values(int64_t row, float weight) {
        if (row < 0) {
            return;
        }
        const auto *values = reinterpret_cast<const cache *>(p.v_cache + row);
#pragma unroll
        for (int i = 0; i < plain_columns; i++) {
            const int column = i * 32 + lane;

            if (column < p.v_head_size) {
                output[i] += weight * element_to_float(values[column]);
            }
        }
    }

    PKVI_WRAPPER void finish(int row) const {
        float *record = nullptr, factor = 1.0f;

        if (item.partial_row >= 0) {
            record = partial_record(p, item.partial_row + row, item.head);
            if (lane == 0) {
                record[p.v_head_size] = maximum;
                record[p.v_head_size + 1] = sum;
            }
        } else {
            factor = finish_row(p, view.token, view.query_head, maximum, sum, lane == 0);
            record = reinterpret_cast<float *>(p.output) + view.token * p.output_stride[0] +
                     view.query_head * p.output_stride[1];
        }
#pragma unroll
        for (int i = 0; i < plain_columns; i++) {
            const int column = i * 32 + lane;

            if (column < p.v_head_size) {
                record[column] = sum == 0.0f ? 0.0f : output[i] * factor;
            }
        }
    }
};

template <class cache>
__global__ void __launch_bounds__(plain_warps * 32) attend_plain_kernel(attention_parameters p) {
    PKVI_SHARED(float, queries, plain_warps *PKV_MAX_HEAD_SIZE);
    const int warp = simt::warp_index(), lane = simt::lane_index();
    const int32_t total = p.plan->num_items * p.num_kv_heads.divisor;
    float *query = queries + warp * PKV_MAX_HEAD_SIZE;

    for (int32_t index = static_cast<int32_t>(blockIdx.x); index < total;
         index += static_cast<int32_t>(gridDim.x)) {
        work item;

        read_work(p, index, 0, 32, item);
        const float scale = p.softmax_scale * common_scale(p.k_scale, p.k_scale_kind, item.head);
        for (int row = warp; row < item.num_rows; row += plain_warps) {
            const row_view view = view_row(p, item, row);
            const float *source = reinterpret_cast<const float *>(p.query) +
                                  view.token * p.query_stride[0] +
                                  view.query_head * p.query_stride[1];

            simt::sync_warp();
            for (int32_t d = lane; d < p.head_size; d += 32) {
                query[d] = source[d];
            }
            simt::sync_warp();
            attend_plain<cache> attend(p, item, view, query);
            for (int32_t first = item.first_key; first < item.end_key; first += 32) {
                attend.add_keys(first, scale);
            }
            attend.finish(row);
        }
    }
}

} // namespace pkvi

#endif
