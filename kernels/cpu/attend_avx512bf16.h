/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Attention of bfloat16 queries over a bfloat16 cache with the dot product of AVX-512 BF16
 * (vdpbf16ps: two products of bfloat16 pairs, added to a float). Included behind the templates, of
 * which it replaces the products; every other pair of dtypes runs in the templates.
 *
 * The one idea: bfloat16 goes into a product only where it is exact or its error is accounted for.
 * Queries and keys are bfloat16 already, so scores come from the unscaled query and are scaled as
 * floats. Decode keeps float weights. Prefill rounds weights to bfloat16; the rounded ones are what
 * the output is divided by, while the sum that the lse comes from stays that of the float ones. */
#include "kernels/cpu/convert.h"

/* Without optimisation some intrinsics are macros, whose own conversions would be warned about. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-conversion"

/* bfloat16 numbers of a vector. */
#define PAIR_WIDTH (2 * VECTOR_WIDTH)

/* What the loaded query rows were multiplied by: see `second_scale` of the tile. */
INLINE float pair_query_scale(const struct pkvi_cpu_tile *tile) {
    const float log2_e = 1.44269504088896340736f;

    return tile->op->args.softmax_scale * (tile->second_scale == 1.0f ? log2_e : 1.0f);
}

/* An element of the query as the caller gave it. The loaded one is it times the scale, rounded to
 * float: dividing leaves an error far below half a step of bfloat16, so that it comes back exactly.
 */
INLINE uint32_t pair_query(const struct pkvi_cpu_tile *tile, int32_t row, int32_t d, float scale) {
    if (row >= tile->num_rows || d >= tile->op->cache.head_size) {
        return 0;
    }
    return pkvi_cpu_to_bfloat16(tile->query[(int64_t)row * tile->query_pitch + d] / scale);
}

/* sum += a . b, pair by pair. */
INLINE vector pair_dot(vector sum, __m512i a, __m512i b) {
    return vector_dot_pairs(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), sum);
}

/* Round to bfloat16; each in the low half of its lane. */
INLINE __m512i pair_round(vector a) {
    return _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(a));
}

/* The bfloat16 in the high half of each lane, as a float. */
INLINE vector pair_float(__m512i high) {
    return _mm512_castsi512_ps(_mm512_and_si512(high, _mm512_set1_epi32(-65536)));
}

/* ---- Few rows: the template with other products of query and key */

/* Rows of bfloat16, zeros behind head_size and behind the last row. Returns their pitch. */
INLINE int64_t few_pack_pairs(const struct pkvi_cpu_tile *tile, const int num_rows) {
    uint16_t *packed = (uint16_t *)(void *)tile->packed_query;
    int32_t pitch = (tile->op->cache.head_size + PAIR_WIDTH - 1) / PAIR_WIDTH * PAIR_WIDTH;
    float scale = pair_query_scale(tile);

    for (int32_t row = 0; row < num_rows; row++) {
        for (int32_t d = 0; d < pitch; d++) {
            packed[row * pitch + d] = (uint16_t)pair_query(tile, row, d, scale);
        }
    }
    return pitch;
}

/* scores[key][row] = scale * query row . key */
INLINE void few_pair_scores(const struct pkvi_cpu_tile *tile,
                            const struct few_step *rows,
                            float *scores,
                            int64_t pitch,
                            const int num_rows) {
    const uint16_t *query = (const uint16_t *)(const void *)tile->packed_query;
    const int64_t head_size = tile->op->cache.head_size;
    const int64_t whole = head_size - head_size % PAIR_WIDTH;
    const __mmask32 tail = (__mmask32)((1u << (head_size % PAIR_WIDTH)) - 1u);
    const vector scale = vector_set(pair_query_scale(tile));
    const int parts = FEW_ACCUMULATORS / num_rows;
    struct few_stream stream =
        few_start_fetch(rows->value, rows->count,
                        tile->op->cache.v_head_size * (int64_t)sizeof(uint16_t), rows->count);

    for (int32_t t = 0; t < rows->count; t++) {
        const uint16_t *key = (const uint16_t *)(const void *)rows->key[t];
        vector sums[FEW_ACCUMULATORS];
        int64_t d = 0;

        few_fetch(&stream);
        UNROLL
        for (int i = 0; i < FEW_ACCUMULATORS; i++) {
            sums[i] = vector_zero();
        }
        for (; d + parts * PAIR_WIDTH <= whole; d += parts * PAIR_WIDTH) {
            UNROLL
            for (int part = 0; part < parts; part++) {
                int64_t column = d + part * PAIR_WIDTH;
                __m512i k = _mm512_loadu_si512(key + column);

                UNROLL
                for (int row = 0; row < num_rows; row++) {
                    sums[part * num_rows + row] =
                        pair_dot(sums[part * num_rows + row], k,
                                 _mm512_loadu_si512(query + row * pitch + column));
                }
            }
        }
        for (; d < head_size; d += PAIR_WIDTH) {
            __m512i k =
                d < whole ? _mm512_loadu_si512(key + d) : _mm512_maskz_loadu_epi16(tail, key + d);

            UNROLL
            for (int row = 0; row < num_rows; row++) {
                sums[row] = pair_dot(sums[row], k, _mm512_loadu_si512(query + row * pitch + d));
            }
        }
        UNROLL
        for (int part = 1; part < parts; part++) {
            UNROLL
            for (int row = 0; row < num_rows; row++) {
                sums[row] = vector_add(sums[row], sums[part * num_rows + row]);
            }
        }
        vector_store_sums(scores + t * num_rows, sums, num_rows);
    }
    for (int32_t i = 0; i < rows->count * num_rows; i += VECTOR_WIDTH) {
        vector_store(scores + i, vector_multiply(scale, vector_load(scores + i)));
    }
}

INLINE void few_pairs(const struct pkvi_cpu_tile *tiles, int32_t num_tiles, const int num_rows) {
    int64_t pitch = 0;
    struct few_decode decode;

    for (int32_t i = 0; i < num_tiles; i++) {
        pitch = few_pack_pairs(&tiles[i], num_rows);
    }
    few_begin(&decode, tiles, num_tiles, PKV_DTYPE_BFLOAT16, num_rows);
    for (struct few_step now = few_first(&decode.walk); now.count > 0;) {
        few_pair_scores(&tiles[decode.walk.index], &now, tiles->scratch->scores, pitch, num_rows);
        now = few_take(&decode, &now, PKV_DTYPE_BFLOAT16, num_rows);
    }
    few_end(&decode, PKV_DTYPE_BFLOAT16, num_rows);
}

/* ---- Many rows: the walk and the products of the template, packing and softmax of its own */

/* The query as [panel][pair of dimensions][PANEL rows]. */
static void many_pack_query_pairs(const struct pkvi_cpu_tile *tile, int32_t row_pitch) {
    uint32_t *packed = (uint32_t *)(void *)tile->scratch->packed_query;
    float scale = pair_query_scale(tile);

    for (int32_t panel = 0; panel < row_pitch; panel += PANEL) {
        for (int32_t d = 0; d < tile->op->cache.head_size; d += 2) {
            for (int32_t row = panel; row < panel + PANEL; row++) {
                *packed++ = pair_query(tile, row, d, scale) | pair_query(tile, row, d + 1, scale)
                                                                  << 16;
            }
        }
    }
}

/* Values as [panel][pair of keys][PANEL columns]. What is behind the last key or column is zero, so
 * that no garbage meets a weight of zero. */
static void many_pack_value_pairs(const struct pkvi_cpu_tile *tile,
                                  const struct pkvi_cpu_rows *rows) {
    const int64_t head_size = tile->op->cache.v_head_size;
    uint32_t *values = (uint32_t *)(void *)tile->scratch->values;

    for (int32_t t = 0; t < rows->count; t += 2) {
        const uint16_t *first = (const uint16_t *)(const void *)rows->value[t];
        const uint16_t *second =
            t + 1 < rows->count ? (const uint16_t *)(const void *)rows->value[t + 1] : NULL;

        for (int64_t d = 0; d < many_panels(tile->op->cache.v_head_size); d += VECTOR_WIDTH) {
            int64_t left = head_size - d;
            __mmask16 mask = (__mmask16)(left >= VECTOR_WIDTH ? 0xffffu
                                         : left > 0           ? (1u << left) - 1u
                                                              : 0u);
            __m512i pair = _mm512_setzero_si512();

            if (mask != 0) {
                pair = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, first + d));
            }
            if (mask != 0 && second != NULL) {
                __m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, second + d));

                pair = _mm512_or_si512(pair, _mm512_slli_epi32(high, 16));
            }
            _mm512_storeu_si512(values + d / PANEL * (PKVI_CPU_MANY_KEYS / 2 * (int64_t)PANEL) +
                                    t / 2 * (int64_t)PANEL + d % PANEL,
                                pair);
        }
    }
}

/* The pairs of a key are read where they lie. */
static void many_pair_scores(const struct pkvi_cpu_tile *tile,
                             struct pkvi_cpu_rows *now,
                             int32_t row_pitch) {
    const vector scale = vector_set(pair_query_scale(tile));
    float *scores = tile->scratch->scores;

    many_scores(tile, now, row_pitch, tile->op->cache.head_size / 2, true);
    for (int32_t i = 0; i < now->count * row_pitch; i += VECTOR_WIDTH) {
        vector_store(scores + i, vector_multiply(scale, vector_load(scores + i)));
    }
}

/* Scores become weights, rounded and packed as [pair of keys][row] in the scratch of the keys. */
static void many_pair_softmax(struct pkvi_cpu_scratch *scratch, int32_t count, int32_t row_pitch) {
    float *rounded = scratch->rounded_sum;
    uint32_t *weights = (uint32_t *)(void *)scratch->keys;

    for (int32_t row = 0; row < row_pitch; row += VECTOR_WIDTH) {
        const float *scores = scratch->scores + row;
        vector before = vector_load(scratch->maximum + row);
        vector maximum = before, sum = vector_zero(), rounded_sum = vector_zero();

        for (int32_t t = 0; t < count; t++) {
            maximum = vector_max(maximum, vector_load(scores + (int64_t)t * row_pitch));
        }
        vector_store(scratch->maximum + row, maximum);
        maximum = vector_replace_minus_infinity(maximum, vector_zero());
        vector factor = vector_exp2(vector_subtract(before, maximum));
        for (int32_t t = 0; t < count; t += 2) {
            const float *pair = scores + (int64_t)t * row_pitch;
            vector first = vector_exp2(vector_subtract(vector_load(pair), maximum));
            vector second = vector_zero();

            if (t + 1 < count) {
                second = vector_exp2(vector_subtract(vector_load(pair + row_pitch), maximum));
            }
            __m512i low = pair_round(first);
            __m512i high = _mm512_slli_epi32(pair_round(second), 16);

            _mm512_storeu_si512(weights + (int64_t)t / 2 * row_pitch + row,
                                _mm512_or_si512(low, high));
            sum = vector_add(sum, vector_add(first, second));
            rounded_sum = vector_add(
                rounded_sum, vector_add(pair_float(_mm512_slli_epi32(low, 16)), pair_float(high)));
        }
        vector_store(scratch->factor + row, factor);
        vector_store(scratch->sum + row, vector_fma(vector_load(scratch->sum + row), factor, sum));
        vector_store(rounded + row, vector_fma(vector_load(rounded + row), factor, rounded_sum));
    }
}

static void many_pair_values(const struct pkvi_cpu_tile *tile,
                             const struct pkvi_cpu_rows *now,
                             const struct pkvi_cpu_rows *next) {
    many_pack_value_pairs(tile, now);
    many_values(tile, next, tile->scratch->keys, (now->count + 1) / 2, PKVI_CPU_MANY_KEYS / 2,
                true);
}

static const struct many_kind many_pairs = {many_pack_query_pairs, many_pair_scores,
                                            many_pair_softmax, many_pair_values};

/* The caller divides by the sum of the float weights, so that the output must make up for what
 * the rounded ones are short of it. */
static void attend_many_bfloat16_pairs(struct pkvi_cpu_tile *tile) {
    struct pkvi_cpu_scratch *scratch = tile->scratch;

    many_walk(tile, &many_pairs);
    for (int32_t row = 0; row < tile->num_rows; row++) {
        float rounded = scratch->rounded_sum[row];
        float factor = rounded == 0.0f ? 1.0f : scratch->sum[row] / rounded;

        for (int32_t d = 0; d < tile->op->cache.v_head_size; d++) {
            scratch->accumulator[(int64_t)row * tile->accumulator_pitch + d] *= factor;
        }
    }
}

/* ---- Choosing */

INLINE bool has_pairs(const struct pkvi_cpu_tile *tile) {
    return tile->op->args.query.dtype == PKV_DTYPE_BFLOAT16 &&
           tile->op->args.k_cache.dtype == PKV_DTYPE_BFLOAT16;
}

static void attend_few_pairs(struct pkvi_cpu_tile *tiles, int32_t num_tiles) {
    if (!has_pairs(tiles)) {
        attend_few(tiles, num_tiles);
    } else if (tiles->num_rows == 1) {
        few_pairs(tiles, num_tiles, 1);
    } else if (tiles->num_rows == 2) {
        few_pairs(tiles, num_tiles, 2);
    } else if (tiles->num_rows <= 4) {
        few_pairs(tiles, num_tiles, 4);
    } else {
        few_pairs(tiles, num_tiles, FEW_MAX_ROWS);
    }
}

static void attend_many_pairs(struct pkvi_cpu_tile *tile) {
    if (has_pairs(tile)) {
        attend_many_bfloat16_pairs(tile);
    } else {
        attend_many(tile);
    }
}

#pragma GCC diagnostic pop
