/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Vectors of 16 floats with AVX-512 F, DQ, BW and VL: the words that the kernel templates are
 * written in. A row whose length is 8 more than a multiple of 16 ends in a half vector. */
#ifndef PKVI_CPU_VECTOR_AVX512_H
#define PKVI_CPU_VECTOR_AVX512_H

#include <immintrin.h>

#include "kernels/cpu/unroll.h"

#define VECTOR_WIDTH 16
#define VECTOR_E4M3_UNIT 256.0f
#define VECTOR_HAS_STORES 1

/* Without optimisation some intrinsics are macros, whose own conversions would be warned about. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-conversion"

typedef __m512 vector;

INLINE vector vector_zero(void) {
    return _mm512_setzero_ps();
}

INLINE vector vector_set(float value) {
    return _mm512_set1_ps(value);
}

INLINE vector vector_load(const float *source) {
    return _mm512_loadu_ps(source);
}

INLINE void vector_store(float *target, vector value) {
    _mm512_storeu_ps(target, value);
}

INLINE vector vector_add(vector a, vector b) {
    return _mm512_add_ps(a, b);
}

INLINE vector vector_subtract(vector a, vector b) {
    return _mm512_sub_ps(a, b);
}

INLINE vector vector_multiply(vector a, vector b) {
    return _mm512_mul_ps(a, b);
}

INLINE vector vector_divide(vector a, vector b) {
    return _mm512_div_ps(a, b);
}

INLINE vector vector_max(vector a, vector b) {
    return _mm512_max_ps(a, b);
}

/* a * b + c */
INLINE vector vector_fma(vector a, vector b, vector c) {
    return _mm512_fmadd_ps(a, b, c);
}

#if VECTOR_HAS_PAIRS
/* c + a . b, where lanes are pairs of bfloat16. */
INLINE vector vector_dot_pairs(vector a, vector b, vector c) {
    return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b);
}
#endif

INLINE vector vector_magnitude(vector a) {
    return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), a);
}

/* The magnitude of a with the sign of b; a is not negative. */
INLINE vector vector_copy_sign(vector a, vector b) {
    return _mm512_or_ps(a, _mm512_and_ps(_mm512_set1_ps(-0.0f), b));
}

INLINE bool vector_any_greater(vector a, vector b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0;
}

/* b where a is -inf, else a: so that -inf - maximum is no NaN. */
INLINE vector vector_replace_minus_infinity(vector a, vector b) {
    return _mm512_mask_mov_ps(a, _mm512_cmp_ps_mask(a, _mm512_set1_ps(-INFINITY), _CMP_EQ_OQ), b);
}

/* 2^x for x <= 1: relative error below 2^-22; 0 below 2^-126, NaN stays NaN. */
INLINE vector vector_exp2(vector x) {
    vector whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    vector rest = _mm512_sub_ps(x, whole);
    vector result = _mm512_set1_ps(EXP2_C6);
    __m512i exponent = _mm512_slli_epi32(_mm512_cvtps_epi32(whole), 23);
    __mmask16 is_kept = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);

    result = _mm512_fmadd_ps(result, rest, _mm512_set1_ps(EXP2_C5));
    result = _mm512_fmadd_ps(result, rest, _mm512_set1_ps(EXP2_C4));
    result = _mm512_fmadd_ps(result, rest, _mm512_set1_ps(EXP2_C3));
    result = _mm512_fmadd_ps(result, rest, _mm512_set1_ps(EXP2_C2));
    result = _mm512_fmadd_ps(result, rest, _mm512_set1_ps(EXP2_C1));
    result = _mm512_fmadd_ps(result, rest, _mm512_set1_ps(1.0f));
    result = _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(result), exponent));
    return _mm512_maskz_mov_ps(is_kept, result);
}

/* The two halves of a vector, added. */
INLINE __m256 vector_fold(vector a) {
    return _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
}

/* target[i] = sum of a[i], for count in 1, 2, 4, 8. */
INLINE void vector_store_sums(float *target, const vector *a, const int count) {
    if (count >= 4) {
        UNROLL
        for (int i = 0; i < count; i += 4) {
            __m256 sums =
                _mm256_hadd_ps(_mm256_hadd_ps(vector_fold(a[i]), vector_fold(a[i + 1])),
                               _mm256_hadd_ps(vector_fold(a[i + 2]), vector_fold(a[i + 3])));

            _mm_storeu_ps(target + i,
                          _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1)));
        }
        return;
    }
    UNROLL
    for (int i = 0; i < count; i++) {
        __m256 half = vector_fold(a[i]);
        __m128 sum = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));

        sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
        sum = _mm_add_ss(sum, _mm_movehdup_ps(sum));
        target[i] = _mm_cvtss_f32(sum);
    }
}

/* 16 e4m3 bytes to values / 256: the bits of a float16 with the exponent 8 too small; NaN stays. */
INLINE vector vector_from_e4m3(__m128i bytes) {
    __m256i wide = _mm256_cvtepu8_epi16(bytes);
    __m256i magnitude = _mm256_and_si256(wide, _mm256_set1_epi16(0x7f));
    __m256i sign = _mm256_slli_epi16(_mm256_and_si256(wide, _mm256_set1_epi16(0x80)), 8);
    __m256i is_nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f));
    __m256i half = _mm256_or_si256(_mm256_slli_epi16(magnitude, 7), sign);

    half = _mm256_or_si256(half, _mm256_and_si256(is_nan, _mm256_set1_epi16(0x7e00)));
    return _mm512_cvtph_ps(half);
}

INLINE vector vector_from_bfloat16(__m256i words) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
}

/* VECTOR_WIDTH elements of a cache row, e4m3 divided by VECTOR_E4M3_UNIT. */
INLINE vector vector_load_kv(const unsigned char *source, const pkv_dtype dtype) {
    switch (dtype) {
    case PKV_DTYPE_FLOAT16:
        return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)source));
    case PKV_DTYPE_BFLOAT16:
        return vector_from_bfloat16(_mm256_loadu_si256((const __m256i *)(const void *)source));
    case PKV_DTYPE_FLOAT8_E4M3:
        return vector_from_e4m3(_mm_loadu_si128((const __m128i *)(const void *)source));
    case PKV_DTYPE_INT8:
        return _mm512_cvtepi32_ps(
            _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)source)));
    default:
        return _mm512_loadu_ps((const float *)(const void *)source);
    }
}

/* The last 8 elements of a row, then zeros; nothing behind the row is read. */
INLINE vector vector_load_kv_half(const unsigned char *source, const pkv_dtype dtype) {
    const __m128i *address = (const __m128i *)(const void *)source;

    switch (dtype) {
    case PKV_DTYPE_FLOAT16:
        return _mm512_cvtph_ps(_mm256_zextsi128_si256(_mm_loadu_si128(address)));
    case PKV_DTYPE_BFLOAT16:
        return vector_from_bfloat16(_mm256_zextsi128_si256(_mm_loadu_si128(address)));
    case PKV_DTYPE_FLOAT8_E4M3:
        return vector_from_e4m3(_mm_loadl_epi64(address));
    case PKV_DTYPE_INT8:
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadl_epi64(address)));
    default:
        return _mm512_zextps256_ps512(_mm256_loadu_ps((const float *)(const void *)source));
    }
}

INLINE void vector_store_float16(void *target, vector value) {
    _mm256_storeu_si256((__m256i *)target, _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
}

INLINE void vector_store_bfloat16(void *target, vector value) {
    __m512i bits = _mm512_castps_si512(value);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_srli_epi32(
        _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd), 16);
    __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
    __mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);

    _mm256_storeu_si256((__m256i *)target,
                        _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, is_nan, quiet)));
}

#pragma GCC diagnostic pop

#endif
