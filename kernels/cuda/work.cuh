/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* What every attention kernel asks: which keys a work item covers, what a packed row sees, and how
 * a row's sums become its output. No pipeline and no matrix product.
 *
 * The one idea: weights are powers of 2, and a row is the triple (sums of values, maximum, sum of
 * weights) with weight = 2^(logit * log2 e - maximum); whole and merged rows end in finish_row. */
#ifndef PKVI_CUDA_WORK_CUH
#define PKVI_CUDA_WORK_CUH

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/simt.cuh"

namespace pkvi {

using simt::has_mistake;

constexpr float log2_e = 1.44269504088896340736f;
constexpr float ln_2 = 0.69314718055994530942f;

/* One item, ready to be walked. */
struct work {
    int32_t first_key, end_key; /* of all its rows */
    int32_t num_tiles;          /* at least 1: an item without keys still has rows to write */
    int32_t seq_len;
    int32_t first_row, num_rows; /* packed rows of the request: this tile's */
    int32_t query_start, num_queries;
    int32_t head, table_row;
    int64_t partial_row; /* of first_row; -1: the item writes the output itself */
};

/* A packed row. */
struct row_view {
    int32_t token, query_head;
    int32_t position;
    int32_t low, high; /* keys seen, but for the tree */
};

PKVI_WRAPPER int32_t smaller(int32_t a, int32_t b) {
    return a < b ? a : b;
}

PKVI_WRAPPER int32_t larger(int32_t a, int32_t b) {
    return a > b ? a : b;
}

/* Rows behind the last one look like the last one. */
PKVI_WRAPPER row_view view_row(const attention_parameters &p, const work &item, int32_t index) {
    const int32_t row = item.first_row + smaller(index, item.num_rows - 1);
    const int32_t query = pkvi_divide(row, p.group_size);
    const bool sees_all = p.is_non_causal || p.tree_mask != nullptr;
    row_view view;

    view.token = item.query_start + query;
    view.query_head = item.head * p.group_size.divisor + row - query * p.group_size.divisor;
    view.position = item.seq_len - item.num_queries + query;
    view.high = sees_all ? item.seq_len
                         : smaller(item.seq_len,
                                   view.position + 1 + has_mistake(PKVI_MISTAKE_KEY_TOO_MANY));
    view.low = p.window > 0 ? larger(0, view.position - p.window + 1) : 0;
    return view;
}

/* Whether a row's tree lets it see `key`. */
PKVI_WRAPPER bool tree_sees(const attention_parameters &p,
                            const work &item,
                            int32_t token,
                            int32_t key) {
    const int32_t bit = key - (item.seq_len - item.num_queries);

    return bit < 0 || (p.tree_mask[token * p.tree_mask_stride + bit / 32] >> (bit % 32) & 1u) != 0;
}

/* Read item `index` of the list of (item, head) pairs. False where it has rows of the other kind;
 * tile_rows 0 takes all. */
PKVI_WRAPPER bool read_work(
    const attention_parameters &p, int32_t index, int32_t tile_rows, int32_t tile_keys, work &out) {
    const int32_t item_index = pkvi_divide(index, p.num_kv_heads);
    const pkvi_work_item item = pkvi_plan_items(p.plan)[item_index];
    const pkvi_plan_request &request = pkvi_plan_requests(p.plan)[item.request];
    const int64_t all_rows = static_cast<int64_t>(request.num_queries) * p.group_size.divisor;
    const int32_t rows = pkvi_tile_rows(all_rows);

    if (tile_rows != 0 && tile_rows != rows) {
        return false;
    }
    out.head = index - item_index * p.num_kv_heads.divisor;
    out.table_row = item.table_row;
    out.seq_len = p.seq_lens[item.request];
    out.query_start = request.query_start;
    out.num_queries = request.num_queries;
    out.first_row = item.row_tile * rows;
    out.num_rows = static_cast<int32_t>(all_rows) - out.first_row;
    out.num_rows = smaller(out.num_rows, rows);
    const row_view first = view_row(p, out, 0);
    const row_view last = view_row(p, out, out.num_rows - 1);
    out.first_key = larger(0, first.low);
    out.end_key = larger(0, last.high);
    if (item.chunk != PKVI_ALL_CHUNKS) {
        const int32_t chunk_size = p.plan->chunk_size;
        const int64_t start = static_cast<int64_t>(item.chunk) * chunk_size;

        if (start >= out.end_key) {
            out.end_key = out.first_key;
        } else {
            out.first_key = larger(out.first_key, static_cast<int32_t>(start));
            if (start + chunk_size < out.end_key) {
                out.end_key = static_cast<int32_t>(start + chunk_size);
            }
        }
    }
    const int32_t num_keys = larger(0, out.end_key - out.first_key);
    out.num_tiles = larger(1, (num_keys + tile_keys - 1) / tile_keys);
    out.partial_row = -1;
    if (request.end_chunk - request.first_chunk > 1) {
        out.partial_row = request.first_partial_row +
                          (item.chunk - request.first_chunk) * all_rows + out.first_row;
    }
    return true;
}

/* The scale that all tokens of a head share. */
PKVI_WRAPPER float common_scale(const float *scale, int32_t kind, int32_t head) {
    if (kind == PKVI_SCALE_TENSOR || kind == PKVI_SCALE_HEAD) {
        return scale[kind == PKVI_SCALE_HEAD ? head : 0];
    }
    return 1.0f;
}

/* Record of a partial row: v_head_size sums, maximum, sum of weights. */
PKVI_WRAPPER float *partial_record(const attention_parameters &p,
                                   int64_t partial_row,
                                   int32_t head) {
    return p.workspace +
           (partial_row * p.num_kv_heads.divisor + head) * pkvi_partial_floats(p.v_head_size);
}

/* The last step of a row: write its lse, return what its sums are to be multiplied by. */
PKVI_WRAPPER float finish_row(const attention_parameters &p,
                              int32_t token,
                              int32_t query_head,
                              float maximum,
                              float sum,
                              bool writes_lse) {
    float total_maximum = maximum, total = sum, factor = 0.0f;

    if (p.sinks != nullptr && p.sinks[query_head] > -INFINITY) {
        const float sink = p.sinks[query_head] * log2_e;

        total_maximum = fmaxf(maximum, sink);
        total = sum * exp2f(maximum - total_maximum) + exp2f(sink - total_maximum);
    }
    if (sum != 0.0f) {
        const int32_t head = pkvi_divide(query_head, p.group_size);

        factor =
            exp2f(maximum - total_maximum) / total * common_scale(p.v_scale, p.v_scale_kind, head);
    }
    if (writes_lse && p.lse != nullptr) {
        p.lse[token * p.lse_stride[0] + query_head * p.lse_stride[1]] =
            total == 0.0f ? -INFINITY : (total_maximum + log2f(total)) * ln_2;
    }
    return factor;
}

/* Two adjacent output elements, the first of them even. */
PKVI_WRAPPER void store_pair(const attention_parameters &p,
                             int32_t token,
                             int32_t query_head,
                             int32_t column,
                             float first,
                             float second) {
    const int64_t element = token * p.output_stride[0] + query_head * p.output_stride[1] + column;

    if (p.has_float_output) {
        simt::store_global_8(p.output + element * 4, make_uint2(simt::bits_as<uint32_t>(first),
                                                                simt::bits_as<uint32_t>(second)));
    } else if (p.query_dtype == PKV_DTYPE_FLOAT16) {
        simt::store_global_4(p.output + element * 2, simt::pack2<__half>(first, second));
    } else {
        simt::store_global_4(p.output + element * 2, simt::pack2<__nv_bfloat16>(first, second));
    }
}

} // namespace pkvi

#endif
