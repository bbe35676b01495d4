/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Attention with matrix instructions, for 16 packed rows (small) and for 64 (large): one template.
 * How tiles come to shared memory is in pipe.cuh, what a row sees in work.cuh.
 *
 * The one idea: row warps divide the rows, key warps divide the keys of S = Q K' and the columns of
 * O = P V. With several key warps the row maxima and the weights go through shared memory; with one
 * they stay in registers. No output is ever added up across warps. */
#ifndef PKVI_CUDA_ATTEND_CUH
#define PKVI_CUDA_ATTEND_CUH

#include <type_traits>

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/pipe.cuh"

namespace pkvi {

/* Keys and values are converted to `element` for S and to `weight_element` for P V: weights of
 * quantised caches carry the scale of the token, which does not fit a half. */
template <class query_type,
          class cache_type,
          int head_class,
          int value_class,
          bool has_shared_keys,
          int row_warps,
          int key_warps>
struct attend_traits {
    using element = query_type;
    using cache = cache_type;
    static constexpr int cache_bytes = static_cast<int>(sizeof(cache_type));
    static constexpr bool is_quantised = cache_bytes == 1;
    using weight_element = std::conditional_t<is_quantised, __nv_bfloat16, query_type>;
    static constexpr bool shares_keys = has_shared_keys;
    static constexpr int head_size = head_class, v_head_size = value_class;
    static constexpr int num_row_warps = row_warps, num_key_warps = key_warps;
    static constexpr int num_threads = 32 * row_warps * key_warps;
    static constexpr int tile_rows = 16 * row_warps;
    /* Rows whose maxima and sums several warps bring together. */
    static constexpr int shared_rows = key_warps > 1 ? tile_rows : 1;
    static constexpr int tile_keys = head_class <= 128 ? 64 : 32;
    static constexpr int warp_keys = tile_keys / key_warps;
    static constexpr int warp_columns = value_class / key_warps;
    static constexpr int num_score_tiles = warp_keys / 8;
    static constexpr int num_output_tiles = warp_columns / 8;

    static constexpr int panels(int bytes) {
        return (bytes + 127) / 128;
    }
    static constexpr int key_chunks = head_class * cache_bytes / 16;
    static constexpr int value_chunks = value_class * cache_bytes / 16;
    static constexpr int query_chunks = head_class / 8;
    static constexpr int key_bytes = panels(head_class * cache_bytes) * tile_keys * 128;
    static constexpr int value_bytes =
        has_shared_keys ? 0 : panels(value_class * cache_bytes) * tile_keys * 128;
    static constexpr int stage_bytes = key_bytes + value_bytes;
    static constexpr int query_slot_bytes = panels(head_class * 2) * tile_rows * 128;
    static constexpr int weight_bytes = key_warps > 1 ? panels(tile_keys * 2) * tile_rows * 128 : 0;
    /* Half weights are multiplied by 2^14, so that small ones do not vanish. */
    static constexpr float weight_exponent = std::is_same_v<weight_element, __half> ? 14.0f : 0.0f;
};

/* Two codes in the low 16 bits. */
template <class cache, class element> PKVI_WRAPPER uint32_t widen(uint32_t codes) {
    if constexpr (std::is_same_v<cache, e4m3>) {
        return simt::e4m3x2_to<element>(codes);
    } else {
        return simt::int8x2_to<element>(codes);
    }
}

template <class traits> struct attend {
    using element = typename traits::element;
    using weight_element = typename traits::weight_element;

    const attention_parameters &p;
    pipe_shared<traits> &shared;
    unsigned char *weights;
    const int lane = simt::lane_index();
    const int row_warp = simt::warp_index() / traits::num_key_warps;
    const int key_warp = simt::warp_index() % traits::num_key_warps;
    const int warp_row = row_warp * 16;

    /* Of this thread's two rows, lane / 4 and lane / 4 + 8 of the warp's 16. */
    float output[traits::num_output_tiles][4];
    float scores[traits::num_score_tiles][4];
    float maximum[2], sum[2], slope[2];
    int32_t position[2], low[2], high[2], token[2];
    float scale = 0.0f;
    int32_t tile_max_low = 0, tile_min_high = 0, warp_low = 0, warp_high = 0;

    PKVI_WRAPPER attend(const attention_parameters &parameters,
                        pipe_shared<traits> &shared_part,
                        unsigned char *weight_memory)
        : p(parameters), shared(shared_part), weights(weight_memory) {
    }

    PKVI_WRAPPER int row_of(int r) const {
        return warp_row + lane / 4 + 8 * r;
    }

    PKVI_WRAPPER void begin_item(const work &item) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const row_view view = view_row(p, item, row_of(r));

            maximum[r] = -INFINITY;
            sum[r] = 0.0f;
            position[r] = view.position;
            low[r] = view.low;
            high[r] = view.high;
            token[r] = view.token;
            slope[r] = p.alibi_slopes == nullptr ? 0.0f : p.alibi_slopes[view.query_head];
        }
#pragma unroll
        for (int i = 0; i < traits::num_output_tiles; i++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                output[i][e] = 0.0f;
            }
        }
        scale = p.softmax_scale * common_scale(p.k_scale, p.k_scale_kind, item.head);
        if (p.softcap == 0.0f && p.alibi_slopes == nullptr) {
            scale *= log2_e;
        }
        tile_max_low = view_row(p, item, item.num_rows - 1).low;
        tile_min_high = view_row(p, item, 0).high;
        warp_low = view_row(p, item, warp_row).low;
        warp_high = view_row(p, item, warp_row + 15).high;
    }

    /* The query's fragment of the 16 columns from 16 * step on. A quantised key fragment has four
     * adjacent columns in a lane, so the query is read in the same order. */
    PKVI_WRAPPER void load_query(unsigned char *query, int step, uint32_t (&a)[4]) const {
        if constexpr (traits::is_quantised) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const unsigned char *chunk =
                    panel_chunk(query, traits::tile_rows, row_of(r), 2 * step + (lane % 4) / 2);
                const uint2 four = simt::load_shared_8(chunk + (lane % 2) * 8);

                a[r] = four.x;
                a[2 + r] = four.y;
            }
        } else {
            simt::ldmatrix_x4(a, panel_chunk(query, traits::tile_rows, warp_row + lane % 16,
                                             2 * step + lane / 16));
        }
    }

    /* S of the warp's keys. One matrix load brings 16 keys and 2 chunks, or 8 keys and 4. */
    PKVI_WRAPPER void compute_scores(unsigned char *query, unsigned char *keys) {
        constexpr int load_keys = traits::warp_keys >= 16 ? 16 : 8;
        constexpr int load_chunks = load_keys == 16 ? 2 : 4;
        constexpr int chunks_per_step = traits::is_quantised ? 1 : 2;
        const int matrix = lane / 8;
        const int key = key_warp * traits::warp_keys + lane % 8 + (matrix / load_chunks) * 8;

#pragma unroll
        for (int i = 0; i < traits::num_score_tiles; i++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                scores[i][e] = 0.0f;
            }
        }
#pragma unroll
        for (int chunk = 0; chunk < traits::key_chunks; chunk += load_chunks) {
            uint32_t a[load_chunks / chunks_per_step][4];

#pragma unroll
            for (int s = 0; s < load_chunks / chunks_per_step; s++) {
                load_query(query, chunk / chunks_per_step + s, a[s]);
            }
#pragma unroll
            for (int group = 0; group < traits::warp_keys / load_keys; group++) {
                uint32_t b[4];

                simt::ldmatrix_x4(b, panel_chunk(keys, traits::tile_keys, key + group * 16,
                                                 chunk + matrix % load_chunks));
#pragma unroll
                for (int n = 0; n < load_keys / 8; n++) {
#pragma unroll
                    for (int s = 0; s < load_chunks / chunks_per_step; s++) {
                        multiply_keys(scores[group * (load_keys / 8) + n], a[s],
                                      &b[n * load_chunks + s * chunks_per_step]);
                    }
                }
            }
        }
    }

    PKVI_WRAPPER void multiply_keys(float (&d)[4], const uint32_t (&a)[4], const uint32_t *b) {
        if constexpr (traits::is_quantised) {
            simt::mma_m16n8k16<element>(d, a,
                                        widen<typename traits::cache, element>(b[0] & 0xffffu),
                                        widen<typename traits::cache, element>(b[0] >> 16));
        } else {
            simt::mma_m16n8k16<element>(d, a, b[0], b[1]);
        }
    }

    /* Column of scores[i][e] among the tile's keys. */
    PKVI_WRAPPER int key_of(int i, int e) const {
        return key_warp * traits::warp_keys + i * 8 + (lane % 4) * 2 + (e & 1);
    }

    /* From products to logits in base 2, masked. */
    PKVI_WRAPPER void finish_scores(const work &item, int32_t first_key, const float *k_scales) {
        const bool has_token_scale =
            traits::is_quantised && p.k_scale_kind == PKVI_SCALE_TOKEN_HEAD;
        const bool has_second_scale = p.softcap > 0.0f || p.alibi_slopes != nullptr;
        const bool has_mask = p.tree_mask != nullptr || first_key < tile_max_low ||
                              first_key + traits::tile_keys > tile_min_high ||
                              first_key + traits::tile_keys > item.end_key;

#pragma unroll
        for (int i = 0; i < traits::num_score_tiles; i++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int r = e / 2;
                const int32_t key = first_key + key_of(i, e);
                float logit = scores[i][e] * scale;

                if (has_token_scale) {
                    logit *= k_scales[key_of(i, e)];
                }
                if (has_second_scale) {
                    if (p.softcap > 0.0f) {
                        logit = p.softcap * simt::tanh_exact(logit / p.softcap);
                    }
                    logit -= slope[r] * fabsf(static_cast<float>(position[r] - key));
                    logit *= log2_e;
                }
                if (has_mask) {
                    bool is_seen = key >= low[r] && key < high[r] && key < item.end_key;
                    if (is_seen && p.tree_mask != nullptr) {
                        is_seen = tree_sees(p, item, token[r], key);
                    }
                    logit = is_seen ? logit : -INFINITY;
                }
                scores[i][e] = logit;
            }
        }
    }

    /* The new row maxima, over the warps that share the rows. */
    PKVI_WRAPPER void find_maxima(float (&found)[2]) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            found[r] = maximum[r];
#pragma unroll
            for (int i = 0; i < traits::num_score_tiles; i++) {
                found[r] = fmaxf(found[r], fmaxf(scores[i][2 * r], scores[i][2 * r + 1]));
            }
            found[r] = fmaxf(found[r], simt::shuffle_xor(found[r], 1));
            found[r] = fmaxf(found[r], simt::shuffle_xor(found[r], 2));
            if (traits::num_key_warps > 1 && lane % 4 == 0) {
                shared.maxima[key_warp][row_of(r)] = found[r];
            }
        }
        if constexpr (traits::num_key_warps > 1) {
            if (!has_mistake(PKVI_MISTAKE_UNSYNCED_MAXIMA)) {
                simt::sync_block();
            }
#pragma unroll
            for (int r = 0; r < 2; r++) {
#pragma unroll
                for (int other = 0; other < traits::num_key_warps; other++) {
                    found[r] = fmaxf(found[r], shared.maxima[other][row_of(r)]);
                }
            }
        }
    }

    /* Scores become weights; sums and outputs move to the new maxima. */
    PKVI_WRAPPER void weigh(const float *v_scales) {
        const bool has_token_scale =
            traits::is_quantised && p.v_scale_kind == PKVI_SCALE_TOKEN_HEAD;
        float found[2];

        find_maxima(found);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float base = found[r] == -INFINITY ? 0.0f : found[r];
            const float correction = simt::exp2_approx(maximum[r] - base);

            maximum[r] = found[r];
            sum[r] *= correction;
#pragma unroll
            for (int i = 0; i < traits::num_output_tiles; i++) {
                output[i][2 * r] *= correction;
                output[i][2 * r + 1] *= correction;
            }
#pragma unroll
            for (int i = 0; i < traits::num_score_tiles; i++) {
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    float weight =
                        simt::exp2_approx(scores[i][2 * r + h] - base + traits::weight_exponent);

                    sum[r] += weight;
                    if (has_token_scale) {
                        weight *= v_scales[key_of(i, h)];
                    }
                    scores[i][2 * r + h] = weight;
                }
                if constexpr (traits::num_key_warps > 1) {
                    unsigned char *chunk =
                        panel_chunk(weights, traits::tile_rows, row_of(r), key_of(i, 0) / 8);
                    simt::store_shared_4(
                        chunk + (lane % 4) * 4,
                        simt::pack2<weight_element>(scores[i][2 * r], scores[i][2 * r + 1]));
                }
            }
        }
    }

    /* The weights' fragment of the 16 keys from 16 * step on. */
    PKVI_WRAPPER void load_weights(int step, uint32_t (&a)[4]) const {
        if constexpr (traits::num_key_warps > 1) {
            simt::ldmatrix_x4(a, panel_chunk(weights, traits::tile_rows, warp_row + lane % 16,
                                             2 * step + lane / 16));
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float *pair = &scores[2 * step + i / 2][2 * (i % 2)];

                a[i] = simt::pack2<weight_element>(pair[0], pair[1]);
            }
        }
    }

    /* O += P V for the warp's columns. */
    PKVI_WRAPPER void add_values(unsigned char *values) {
        constexpr int columns_per_chunk = 16 / traits::cache_bytes;
        const int first_chunk = key_warp * traits::warp_columns / columns_per_chunk;

#pragma unroll
        for (int step = 0; step < traits::tile_keys / 16; step++) {
            const int key = step * 16 + lane % 16;
            uint32_t a[4];

            load_weights(step, a);
#pragma unroll
            for (int i = 0; i < traits::num_output_tiles; i += 2) {
                if constexpr (traits::is_quantised) {
                    using cache = typename traits::cache;
                    uint32_t b[2];

                    simt::ldmatrix_x2_trans(
                        b, panel_chunk(values, traits::tile_keys, key, first_chunk + i / 2));
                    /* A lane has two columns of two keys a register: bytes 0, 2 and 1, 3. */
                    const uint32_t keys_0 = simt::byte_permute(b[0], 0, 0x3120);
                    const uint32_t keys_8 = simt::byte_permute(b[1], 0, 0x3120);
                    simt::mma_m16n8k16<weight_element>(
                        output[i], a, widen<cache, weight_element>(keys_0 & 0xffffu),
                        widen<cache, weight_element>(keys_8 & 0xffffu));
                    simt::mma_m16n8k16<weight_element>(output[i + 1], a,
                                                       widen<cache, weight_element>(keys_0 >> 16),
                                                       widen<cache, weight_element>(keys_8 >> 16));
                } else {
                    uint32_t b[4];
                    unsigned char *row =
                        panel_chunk(values, traits::tile_keys, key, first_chunk + i + lane / 16);

                    if (has_mistake(PKVI_MISTAKE_UNTRANSPOSED)) {
                        simt::ldmatrix_x4(b, row);
                    } else {
                        simt::ldmatrix_x4_trans(b, row);
                    }
                    simt::mma_m16n8k16<weight_element>(output[i], a, b[0], b[1]);
                    simt::mma_m16n8k16<weight_element>(output[i + 1], a, b[2], b[3]);
                }
            }
        }
    }

    PKVI_WRAPPER void compute_tile(const work &item,
                                   int32_t tile,
                                   int32_t tile_count,
                                   unsigned char *query,
                                   unsigned char *stage) {
        const int32_t first_key = item.first_key + tile * traits::tile_keys;
        const float *k_scales =
            shared.scales[tile_count % (traits::is_quantised ? scale_ring : 1)][0];
        unsigned char *values = traits::shares_keys ? stage : stage + traits::key_bytes;

        if (traits::num_key_warps == 1 &&
            (first_key >= warp_high || first_key + traits::tile_keys <= warp_low)) {
            return; /* no row of this warp sees a key of the tile */
        }
        compute_scores(query, stage);
        finish_scores(item, first_key, k_scales);
        weigh(k_scales + traits::tile_keys);
        if constexpr (traits::num_key_warps > 1) {
            if (!has_mistake(PKVI_MISTAKE_UNSYNCED_WEIGHTS)) {
                simt::sync_block();
            }
        }
        add_values(values);
    }

    /* The rows' sums over the four lanes, and over the warps, that have their keys. */
    PKVI_WRAPPER void add_sums() {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            sum[r] += simt::shuffle_xor(sum[r], 1);
            sum[r] += simt::shuffle_xor(sum[r], 2);
            if (traits::num_key_warps > 1 && lane % 4 == 0 &&
                !(key_warp == 0 && has_mistake(PKVI_MISTAKE_MISSING_SUM))) {
                shared.sums[key_warp][row_of(r)] = sum[r];
            }
        }
        if constexpr (traits::num_key_warps > 1) {
            simt::sync_block();
#pragma unroll
            for (int r = 0; r < 2; r++) {
                sum[r] = 0.0f;
#pragma unroll
                for (int other = 0; other < traits::num_key_warps; other++) {
                    sum[r] += shared.sums[other][row_of(r)];
                }
            }
        }
    }

    /* Pair `i` of a row's outputs that this lane has: its even column and the two values. */
    PKVI_WRAPPER int pair_of(int i, int r, float (&pair)[2]) const {
        int column = key_warp * traits::warp_columns;

        if constexpr (traits::is_quantised) {
            pair[0] = output[i & ~1][2 * r + (i & 1)];
            pair[1] = output[i | 1][2 * r + (i & 1)];
            return column + (i / 2) * 16 + (lane % 4) * 4 + (i & 1) * 2;
        }
        pair[0] = output[i][2 * r];
        pair[1] = output[i][2 * r + 1];
        return column + i * 8 + (lane % 4) * 2;
    }

    /* Write the rows to the output, or to the workspace where the request is split. */
    PKVI_WRAPPER void end_item(const work &item) {
        add_sums();
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const bool is_first = key_warp == 0 && lane % 4 == 0;
            const float row_maximum = maximum[r] - traits::weight_exponent;

            if (row_of(r) >= item.num_rows) {
                continue;
            }
            if (item.partial_row >= 0) {
                float *record = partial_record(p, item.partial_row + row_of(r), item.head);

                write_record(record, r);
                if (is_first) {
                    record[p.v_head_size] = row_maximum;
                    record[p.v_head_size + 1] = sum[r];
                }
                continue;
            }
            const row_view view = view_row(p, item, row_of(r));
            const float factor =
                finish_row(p, view.token, view.query_head, row_maximum, sum[r], is_first);
#pragma unroll
            for (int i = 0; i < traits::num_output_tiles; i++) {
                float pair[2];
                const int column = pair_of(i, r, pair);

                if (column < p.v_head_size) {
                    store_pair(p, view.token, view.query_head, column,
                               sum[r] == 0.0f ? 0.0f : pair[0] * factor,
                               sum[r] == 0.0f ? 0.0f : pair[1] * factor);
                }
            }
        }
    }

    PKVI_WRAPPER void write_record(float *record, int r) const {
#pragma unroll
        for (int i = 0; i < traits::num_output_tiles; i++) {
            float pair[2];
            const int column = pair_of(i, r, pair);

            if (column < p.v_head_size) {
                simt::store_global_8(record + column, make_uint2(simt::bits_as<uint32_t>(pair[0]),
                                                                 simt::bits_as<uint32_t>(pair[1])));
            }
        }
    }
};

/* The second bound is for the compiler. In the small tile 1: left alone, it spills a few registers
 * for one more block, which shared memory has no room for (seen on 100). In the large tile 0, left
 * alone: with 1 it takes all registers there are and spills (seen on 80). */
template <class traits>
__global__ void __launch_bounds__(traits::num_threads, traits::num_key_warps > 1 ? 1 : 0)
    attend_kernel(attention_parameters p) {
    PKVI_DYNAMIC_SHARED(memory);
    unsigned char *stages = memory;
    unsigned char *queries = stages + p.num_stages * traits::stage_bytes;
    unsigned char *weights = queries + p.num_query_slots * traits::query_slot_bytes;
    auto &shared = *reinterpret_cast<pipe_shared<traits> *>(weights + traits::weight_bytes);
    pipe<traits> pipe(p, shared, stages, queries);
    attend<traits> attend(p, shared, weights);

    if (threadIdx.x == 0) {
        shared.num_items[0] = shared.is_end[0] = 0;
        shared.num_items[1] = shared.is_end[1] = 0;
    }
    simt::wait_for_previous_grid();
    for (;;) {
        const bool has_tile = pipe.pipe_wait();

        pipe.produce();
        if (has_tile) {
            const work &item = pipe.item_at(pipe.computed.item);
            const int32_t tile = pipe.computed.tile;

            if (tile == 0) {
                attend.begin_item(item);
            }
            attend.compute_tile(item, tile, pipe.computed.count,
                                queries + pipe.compute_slot * traits::query_slot_bytes,
                                stages + pipe.compute_stage * traits::stage_bytes);
            if (tile + 1 == item.num_tiles) {
                attend.end_item(item);
            }
            pipe.pipe_release();
        } else if (pipe.is_end && pipe.computed.item == pipe.num_known) {
            break;
        }
    }
}

} // namespace pkvi

#endif
