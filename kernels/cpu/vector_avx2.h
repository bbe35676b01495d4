/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Vectors of 8 floats with AVX2, FMA and F16C: the words that attend_template.h is written in. */
#ifndef PKVI_CPU_VECTOR_AVX2_H
#define PKVI_CPU_VECTOR_AVX2_H

#include <immintrin.h>

#include "kernels/cpu/unroll.h"

#define VECTOR_WIDTH 8
#define VECTOR_E4M3_UNIT 256.0f

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

/* target[i] = sum of a[i], for count in 1, 2, 4, 8. */
INLINE void vector_store_sums(float *target, const vector *a, const int count) {
    if (count >= 4) {
        UNROLL
        for (int i = 0; i < count; i += 4) {
            vector sums =
                _mm256_hadd_ps(_mm256_hadd_ps(a[i], a[i + 1]), _mm256_hadd_ps(a[i + 2], a[i + 3]));

            _mm_storeu_ps(target + i,
                          _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1)));
        }
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

/* 8 e4m3 values / 256: the bits of a float16 with the exponent 8 too small. Sign extension has
 * the sign twice, in bits 14 and 15, and the mask takes one away. Adding 0x80 carries into bit
 * 14 for NaN only, whose exponent it completes. */
INLINE vector vector_from_e4m3(const void *source) {
    __m128i wide = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)source));
    __m128i half = _mm_and_si128(_mm_slli_epi16(wide, 7), _mm_set1_epi16((short)0xbf80));
    __m128i is_nan =
        _mm_and_si128(_mm_add_epi16(half, _mm_set1_epi16(0x80)), _mm_set1_epi16(0x4000));

    return _mm256_cvtph_ps(_mm_or_si128(half, is_nan));
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
