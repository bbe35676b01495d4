/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Vectors of 4 floats with NEON, as every aarch64 processor has it: the words that the kernel
 * templates are written in. */
#ifndef PKVI_CPU_VECTOR_NEON_H
#define PKVI_CPU_VECTOR_NEON_H

#include <arm_neon.h>
#include <string.h>

#include "kernels/cpu/unroll.h"

#define VECTOR_WIDTH 4
#define VECTOR_E4M3_UNIT 256.0f
#define VECTOR_HAS_STORES 1

typedef float32x4_t vector;

INLINE vector vector_zero(void) {
    return vdupq_n_f32(0.0f);
}

INLINE vector vector_set(float value) {
    return vdupq_n_f32(value);
}

INLINE vector vector_load(const float *source) {
    return vld1q_f32(source);
}

INLINE void vector_store(float *target, vector value) {
    vst1q_f32(target, value);
}

INLINE vector vector_add(vector a, vector b) {
    return vaddq_f32(a, b);
}

INLINE vector vector_subtract(vector a, vector b) {
    return vsubq_f32(a, b);
}

INLINE vector vector_multiply(vector a, vector b) {
    return vmulq_f32(a, b);
}

INLINE vector vector_divide(vector a, vector b) {
    return vdivq_f32(a, b);
}

INLINE vector vector_max(vector a, vector b) {
    return vmaxq_f32(a, b);
}

/* a * b + c */
INLINE vector vector_fma(vector a, vector b, vector c) {
    return vfmaq_f32(c, a, b);
}

INLINE vector vector_magnitude(vector a) {
    return vabsq_f32(a);
}

/* The magnitude of a with the sign of b; a is not negative. */
INLINE vector vector_copy_sign(vector a, vector b) {
    return vbslq_f32(vdupq_n_u32(0x80000000u), b, a);
}

INLINE bool vector_any_greater(vector a, vector b) {
    return vmaxvq_u32(vcgtq_f32(a, b)) != 0;
}

/* b where a is -inf, else a: so that -inf - maximum is no NaN. */
INLINE vector vector_replace_minus_infinity(vector a, vector b) {
    return vbslq_f32(vceqq_f32(a, vdupq_n_f32(-INFINITY)), b, a);
}

/* 2^x for x <= 1: relative error below 2^-22; 0 below 2^-126, NaN stays NaN. */
INLINE vector vector_exp2(vector x) {
    vector whole = vrndnq_f32(x);
    vector rest = vsubq_f32(x, whole);
    vector result = vdupq_n_f32(EXP2_C6);
    int32x4_t exponent = vshlq_n_s32(vcvtq_s32_f32(whole), 23);
    uint32x4_t is_small = vcltq_f32(x, vdupq_n_f32(-126.0f));

    result = vfmaq_f32(vdupq_n_f32(EXP2_C5), result, rest);
    result = vfmaq_f32(vdupq_n_f32(EXP2_C4), result, rest);
    result = vfmaq_f32(vdupq_n_f32(EXP2_C3), result, rest);
    result = vfmaq_f32(vdupq_n_f32(EXP2_C2), result, rest);
    result = vfmaq_f32(vdupq_n_f32(EXP2_C1), result, rest);
    result = vfmaq_f32(vdupq_n_f32(1.0f), result, rest);
    result = vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(result), exponent));
    return vbslq_f32(is_small, vdupq_n_f32(0.0f), result);
}

/* target[i] = sum of a[i]. */
INLINE void vector_store_sums(float *target, const vector *a, const int count) {
    UNROLL
    for (int i = 0; i < count; i++) {
        target[i] = vaddvq_f32(a[i]);
    }
}

/* The 4 bytes at `source`, zero-extended by pairs. */
INLINE uint8x8_t vector_load_bytes(const unsigned char *source) {
    uint32_t bytes;

    memcpy(&bytes, source, sizeof bytes);
    return vcreate_u8(bytes);
}

/* e4m3 values / 256: the bits of a float16 with the exponent 8 too small; NaN stays NaN. */
INLINE vector vector_from_e4m3(const unsigned char *source) {
    uint16x4_t wide = vget_low_u16(vmovl_u8(vector_load_bytes(source)));
    uint16x4_t magnitude = vand_u16(wide, vdup_n_u16(0x7f));
    uint16x4_t sign = vshl_n_u16(vand_u16(wide, vdup_n_u16(0x80)), 8);
    uint16x4_t is_nan = vceq_u16(magnitude, vdup_n_u16(0x7f));
    uint16x4_t half = vorr_u16(vshl_n_u16(magnitude, 7), sign);

    half = vorr_u16(half, vand_u16(is_nan, vdup_n_u16(0x7e00)));
    return vcvt_f32_f16(vreinterpret_f16_u16(half));
}

/* VECTOR_WIDTH elements of a cache row, e4m3 divided by VECTOR_E4M3_UNIT. */
INLINE vector vector_load_kv(const unsigned char *source, const pkv_dtype dtype) {
    const uint16_t *words = (const uint16_t *)(const void *)source;

    switch (dtype) {
    case PKV_DTYPE_FLOAT16:
        return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(words)));
    case PKV_DTYPE_BFLOAT16:
        return vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(vld1_u16(words)), 16));
    case PKV_DTYPE_FLOAT8_E4M3:
        return vector_from_e4m3(source);
    case PKV_DTYPE_INT8:
        return vcvtq_f32_s32(
            vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(vector_load_bytes(source))))));
    default:
        return vld1q_f32((const float *)(const void *)source);
    }
}

/* Rows are whole vectors: never here. */
INLINE vector vector_load_kv_half(const unsigned char *source, const pkv_dtype dtype) {
    return vector_load_kv(source, dtype);
}

INLINE void vector_store_float16(void *target, vector value) {
    vst1_u16(target, vreinterpret_u16_f16(vcvt_f16_f32(value)));
}

INLINE void vector_store_bfloat16(void *target, vector value) {
    uint32x4_t bits = vreinterpretq_u32_f32(value);
    uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
    uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x00400000u));
    uint32x4_t words = vbslq_u32(vceqq_f32(value, value), rounded, quiet);

    vst1_u16(target, vshrn_n_u32(words, 16));
}

#endif
