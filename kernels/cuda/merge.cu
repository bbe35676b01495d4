/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The merge of a request's key parts into its output rows. Merging the results of separate calls
 * (pkv_merge_states) is in cache.cu.
 *
 * The one idea: a block has one row (token, head). Warp w adds parts w, w + 4, ... in order; the
 * four sums are added as (0 + 1) + (2 + 3); so the order of additions never depends on the grid. */
#include "kernels/cuda/work.cuh"

namespace pkvi {

namespace {

constexpr int merge_warps = merge_threads / 32;
constexpr int merge_columns = (PKV_MAX_HEAD_SIZE + 31) / 32; /* of one lane, at most */

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
    const int lane = simt::lane_index();
    float columns[merge_columns] = {};
    float sum = 0.0f;

    for (int32_t part = simt::warp_index(); part < num_parts; part += merge_warps) {
        const float *own = record + part * step;

        if (own[v_head_size + 1] == 0.0f) {
            continue;
        }
        const float weight = exp2f(own[v_head_size] - maximum);
        sum += weight * own[v_head_size + 1];
#pragma unroll
        for (int i = 0; i < merge_columns; i++) {
            const int column = i * 32 + lane;

            if (column < v_head_size) {
                columns[i] += weight * own[column];
            }
        }
    }
#pragma unroll
    for (int i = 0; i < merge_columns; i++) {
        target[i * 32 + lane] = columns[i];
    }
    return sum;
}

} // namespace

__global__ void __launch_bounds__(merge_threads) merge_kernel(attention_parameters p) {
    PKVI_SHARED(float, values, merge_warps * merge_columns * 32);
    PKVI_SHARED(float, sums, merge_warps);
    PKVI_SHARED(int32_t, found, 1);
    const int32_t query_head = static_cast<int32_t>(blockIdx.x);
    const int32_t head = pkvi_divide(query_head, p.group_size);
    const int warp = simt::warp_index();
    constexpr int pitch = merge_columns * 32;

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
        const int64_t step =
            rows * p.num_kv_heads.divisor * pkvi_partial_floats(p.v_head_size);
        const float maximum = find_maximum(record, step, num_parts, p.v_head_size);
        const float sum =
            add_parts(record, step, num_parts, p.v_head_size, maximum, values + warp * pitch);

        if (simt::lane_index() == 0) {
            sums[warp] = sum;
        }
#if PKVI_PLANTED_BUG != 10
        simt::sync_block();
#endif
        const float total = (sums[0] + sums[1]) + (sums[2] + sums[3]);
        const float factor = finish_row(p, token, query_head, maximum, total, threadIdx.x == 0);
        for (int32_t column = 2 * static_cast<int32_t>(threadIdx.x); column < p.v_head_size;
             column += 2 * merge_threads) {
            float pair[2];

            for (int h = 0; h < 2; h++) {
                const float *value = values + column + h;

                pair[h] = ((value[0] + value[pitch]) + (value[2 * pitch] + value[3 * pitch])) *
                          factor;
            }
            store_pair(p, token, query_head, column, total == 0.0f ? 0.0f : pair[0],
                       total == 0.0f ? 0.0f : pair[1]);
        }
        simt::sync_block();
    }
}

void (*const merge_parts)(attention_parameters) = merge_kernel;

} // namespace pkvi
