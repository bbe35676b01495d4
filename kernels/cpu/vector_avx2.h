/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Vectors of 8 floats with AVX2, FMA and F16C: the words that attend_few_template.h and
 * attend_many_template.h are written in. */
#ifndef PKVI_CPU_VECTOR_AVX2_H
#define PKVI_CPU_VECTOR_AVX2_H

#include <immintrin.h>

#include "kernels/cpu/unroll.h"

#define VECTOR_WIDTH 8
#define VECTOR_E4M3_UNIT 256.0f
#define VECTOR_LOADS_PAIRS 1

typedef __m256 vector;

INLINE vector vector_zero(void) {
    return _mm256_setzero_ps();
}

INLINE vector vector_set(float value) {
    return _mm256_set1_ps(value);
}

INLINE vector vector_load(const float *source) {
    return _mm256_loadu_ps(source);
}

INLINE void vector_store(float *target, vector value) {
    _mm256_storeu_ps(target, value);
}

INLINE vector vector_add(vector a, vector b) {
    return _mm256_add_ps(a, b);
}

INLINE vector vector_subtract(vector a, vector b) {
    return _mm256_sub_ps(a, b);
}

INLINE vector vector_multiply(vector a, vector b) {
    return _mm256_mul_ps(a, b);
}

INLINE vector vector_divide(vector a, vector b) {
    return _mm256_div_ps(a, b);
}

INLINE vector vector_max(vector a, vector b) {
    return _mm256_max_ps(a, b);
}

/* a * b + c */
INLINE vector vector_fma(vector a, vector b, vector c) {
    return _mm256_fmadd_ps(a, b, c);
}

INLINE vector vector_magnitude(vector a) {
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
}

/* The magnitude of a with the sign of b; a is not negative. */
INLINE vector vector_copy_sign(vector a, vector b) {
    return _mm256_or_ps(a, _mm256_and_ps(_mm256_set1_ps(-0.0f), b));
}

INLINE bool vector_any_greater(vector a, vector b) {
    return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)) != 0;
}

/* b where a is -inf, else a: so that -inf - maximum is no NaN. */
INLINE vector vector_replace_minus_infinity(vector a, vector b) {
    return _mm256_blendv_ps(a, b, _mm256_cmp_ps(a, _mm256_set1_ps(-INFINITY), _CMP_EQ_OQ));
}

/* 2^x for x <= 1: relative error below 2^-22; 0 below 2^-126, NaN stays NaN. Adding 1.5 * 2^23 +
 * 127 rounds x to a whole number and leaves the exponent of its power in the lowest bits. The
 * terms are added in pairs: a chain of six would keep more of them waiting than the scheduler
 * holds. */
INLINE vector vector_exp2(vector x) {
    const vector magic = _mm256_set1_ps(12583039.0f);
    vector shifted = _mm256_add_ps(x, magic);
    vector rest = _mm256_sub_ps(x, _mm256_sub_ps(shifted, magic));
    vector power = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(shifted), 23));
    vector square = _mm256_mul_ps(rest, rest);
    vector low = _mm256_fmadd_ps(_mm256_set1_ps(EXP2_C2), rest, _mm256_set1_ps(EXP2_C1));
    vector middle = _mm256_fmadd_ps(_mm256_set1_ps(EXP2_C4), rest, _mm256_set1_ps(EXP2_C3));
    vector high = _mm256_fmadd_ps(_mm256_set1_ps(EXP2_C6), rest, _mm256_set1_ps(EXP2_C5));

    low = _mm256_fmadd_ps(_mm256_fmadd_ps(high, square, middle), square, low);
    return _mm256_andnot_ps(_mm256_cmp_ps(x, _mm256_set1_ps(-126.0f), _CMP_LT_OQ),
                            _mm256_fmadd_ps(low, _mm256_mul_ps(power, rest), power));
}

#define VECTOR_HAS_TRANSPOSE 1

/* rows[i][j] becomes rows[j][i]. */
INLINE void vector_transpose(vector *rows) {
    vector pairs[8], fours[8];

    UNROLL
    for (int i = 0; i < 8; i += 2) {
        pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    }
    UNROLL
    for (int i = 0; i < 8; i += 4) {
        fours[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
        fours[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
        fours[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
        fours[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        rows[i] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
        rows[i + 4] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
    }
}

/* The sums of 8 vectors, one a lane: halves, then pairs, then neighbours are added. */
INLINE vector vector_sums_8(const vector *a) {
    vector half[4], quarter[2];

    UNROLL
    for (int i = 0; i < 4; i++) {
        half[i] = _mm256_add_ps(_mm256_insertf128_ps(a[i], _mm256_castps256_ps128(a[i + 4]), 1),
                                _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
    }
    UNROLL
    for (int i = 0; i < 2; i++) {
        quarter[i] = _mm256_add_ps(_mm256_blend_ps(half[2 * i], half[2 * i + 1], 0xcc),
                                   _mm256_shuffle_ps(half[2 * i], half[2 * i + 1], 0x4e));
    }
    return _mm256_add_ps(_mm256_shuffle_ps(quarter[0], quarter[1], 0x88),
                         _mm256_shuffle_ps(quarter[0], quarter[1], 0xdd));
}

/* target[i] = sum of a[i], for count in 1, 2, 4, 8. */
INLINE void vector_store_sums(float *target, const vector *a, const int count) {
    if (count == 8) {
        vector_store(target, vector_sums_8(a));
        return;
    }
    if (count == 4) {
        vector sums = _mm256_hadd_ps(_mm256_hadd_ps(a[0], a[1]), _mm256_hadd_ps(a[2], a[3]));

        _mm_storeu_ps(target,
                      _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1)));
        return;
    }
    UNROLL
    for (int i = 0; i < count; i++) {
        __m128 sum = _mm_add_ps(_mm256_castps256_ps128(a[i]), _mm256_extractf128_ps(a[i], 1));

        sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
        sum = _mm_add_ss(sum, _mm_movehdup_ps(sum));
        target[i] = _mm_cvtss_f32(sum);
    }
}

/* 16 sign-extended e4m3 values / 256: the bits of float16 with the exponent 8 too small. Sign
 * extension has the sign twice, in bits 14 and 15, and the mask takes one away. Adding 0x80 carries
 * into bit 14 for NaN only, whose exponent it completes. */
INLINE __m256i vector_e4m3_halves(__m256i wide) {
    __m256i half = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16((short)0xbf80));
    __m256i is_nan = _mm256_and_si256(_mm256_add_epi16(half, _mm256_set1_epi16(0x80)),
                                      _mm256_set1_epi16(0x4000));

    return _mm256_or_si256(half, is_nan);
}

/* 8 e4m3 values / 256. */
INLINE vector vector_from_e4m3(const void *source) {
    __m128i wide = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)source));

    return _mm256_cvtph_ps(
        _mm256_castsi256_si128(vector_e4m3_halves(_mm256_castsi128_si256(wide))));
}

/* VECTOR_WIDTH elements of a cache row, e4m3 divided by VECTOR_E4M3_UNIT. */
INLINE vector vector_load_kv(const unsigned char *source, const pkv_dtype dtype) {
    switch (dtype) {
    case PKV_DTYPE_FLOAT16:
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)source));
    case PKV_DTYPE_BFLOAT16:
        return _mm256_castsi256_ps(_mm256_slli_epi32(
            _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)source)), 16));
    case PKV_DTYPE_FLOAT8_E4M3:
        return vector_from_e4m3(source);
    case PKV_DTYPE_INT8:
        return _mm256_cvtepi32_ps(
            _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)source)));
    default:
        return _mm256_loadu_ps((const float *)(const void *)source);
    }
}

/* The last 8 elements of a row whose length is no multiple of VECTOR_WIDTH: never here. */
INLINE vector vector_load_kv_half(const unsigned char *source, const pkv_dtype dtype) {
    return vector_load_kv(source, dtype);
}

/* Two vectors of elements that lie side by side, in the order that is cheapest: bfloat16 as those
 * at even and those at odd places, the halves of each 32 bits; else as they lie. */
INLINE void vector_load_pair(const unsigned char *source,
                             const pkv_dtype dtype,
                             vector *first,
                             vector *second) {
    if (dtype == PKV_DTYPE_BFLOAT16) {
        __m256i words = _mm256_loadu_si256((const __m256i *)(const void *)source);

        *first = _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
        *second = _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(-65536)));
        return;
    }
    if (dtype == PKV_DTYPE_FLOAT8_E4M3) {
        __m256i halves = vector_e4m3_halves(
            _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)source)));

        *first = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
        *second = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
        return;
    }
    *first = vector_load_kv(source, dtype);
    *second = vector_load_kv(source + VECTOR_WIDTH * (int64_t)pkv_dtype_size(dtype), dtype);
}

/* Whether that order is another than that of the memory. */
INLINE bool vector_has_pair_order(const pkv_dtype dtype) {
    return dtype == PKV_DTYPE_BFLOAT16;
}

/* Bring two vectors of floats into that order, or back. */
INLINE void vector_order_pair(float *pair, const bool is_forth) {
    vector a = vector_load(pair), b = vector_load(pair + VECTOR_WIDTH);

    if (is_forth) {
        __m256d even = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88));
        __m256d odd = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0xdd));

        a = _mm256_castpd_ps(_mm256_permute4x64_pd(even, 0xd8));
        b = _mm256_castpd_ps(_mm256_permute4x64_pd(odd, 0xd8));
    } else {
        vector low = _mm256_unpacklo_ps(a, b), high = _mm256_unpackhi_ps(a, b);

        a = _mm256_permute2f128_ps(low, high, 0x20);
        b = _mm256_permute2f128_ps(low, high, 0x31);
    }
    vector_store(pair, a);
    vector_store(pair + VECTOR_WIDTH, b);
}

INLINE void vector_store_float16(void *target, vector value) {
    _mm_storeu_si128(target, _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
}

INLINE void vector_store_bfloat16(void *target, vector value) {
    __m256i bits = _mm256_castps_si256(value);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_srli_epi32(
        _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd), 16);
    __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
    __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    __m256i words = _mm256_blendv_epi8(rounded, quiet, is_nan);

    words = _mm256_permute4x64_epi64(_mm256_packus_epi32(words, words), 0x08);
    _mm_storeu_si128(target, _mm256_castsi256_si128(words));
}

#define VECTOR_HAS_STORES 1

#endif
