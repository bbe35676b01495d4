/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* One element of a tensor to and from float, exactly as the formats define it: the specification
 * that the vector conversions are tested against.
 *
 * The one idea: float16, bfloat16 and e4m3 are rounded to nearest, ties to even, by integer
 * arithmetic on the bits of the float. */
#ifndef PKVI_CPU_CONVERT_H
#define PKVI_CPU_CONVERT_H

#include <pagedkv/device.h>

#include <math.h>
#include <string.h>

static inline uint32_t pkvi_cpu_float_bits(float value) {
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float pkvi_cpu_bits_float(uint32_t bits) {
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float pkvi_cpu_from_bfloat16(uint16_t bits) {
    return pkvi_cpu_bits_float((uint32_t)bits << 16);
}

static inline uint16_t pkvi_cpu_to_bfloat16(float value) {
    uint32_t bits = pkvi_cpu_float_bits(value);

    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)(bits >> 16 | 0x0040u); /* NaN stays NaN */
    }
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static inline float pkvi_cpu_from_float16(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t exponent = half >> 10 & 0x1fu;
    uint32_t mantissa = half & 0x3ffu;

    if (exponent == 0x1fu) {
        return pkvi_cpu_bits_float(sign | 0x7f800000u | mantissa << 13 |
                                   (mantissa != 0 ? 0x00400000u : 0u));
    }
    if (exponent == 0) {
        float magnitude = (float)mantissa * 0x1p-24f;

        return sign != 0 ? -magnitude : magnitude;
    }
    return pkvi_cpu_bits_float(sign | (exponent + 112u) << 23 | mantissa << 13);
}

/* Shift `value` right by `shift` in 1 .. 31, rounding to nearest even. */
static inline uint32_t pkvi_cpu_round_shift(uint32_t value, uint32_t shift) {
    uint32_t half = 1u << (shift - 1);
    uint32_t rest = value & ((half << 1) - 1);
    uint32_t result = value >> shift;

    return result + (rest > half || (rest == half && (result & 1u) != 0));
}

static inline uint16_t pkvi_cpu_to_float16(float value) {
    uint32_t bits = pkvi_cpu_float_bits(value);
    uint32_t sign = bits >> 16 & 0x8000u;
    uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t exponent = magnitude >> 23;

    if (magnitude > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    }
    if (exponent < 113) { /* subnormal in float16, or zero */
        uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;

        return (uint16_t)(exponent < 102 ? sign
                                         : sign | pkvi_cpu_round_shift(mantissa, 126 - exponent));
    }
    uint32_t half = pkvi_cpu_round_shift(magnitude - (112u << 23), 13);
    return (uint16_t)(sign | (half > 0x7c00u ? 0x7c00u : half));
}

/* e4m3: 4 exponent bits, bias 7, no infinity; 0x7f and 0xff are NaN; the largest value is 448. */
static inline float pkvi_cpu_from_e4m3(uint8_t byte) {
    uint32_t exponent = byte >> 3 & 0xfu;
    uint32_t mantissa = byte & 7u;
    float magnitude = exponent == 0 ? (float)mantissa * 0x1p-9f
                                    : pkvi_cpu_bits_float((exponent + 120u) << 23 | mantissa << 20);

    if ((byte & 0x7fu) == 0x7fu) {
        magnitude = pkvi_cpu_bits_float(0x7fc00000u);
    }
    return (byte & 0x80u) != 0 ? -magnitude : magnitude;
}

/* Saturates; NaN stays NaN. */
static inline uint8_t pkvi_cpu_to_e4m3(float value) {
    uint32_t bits = pkvi_cpu_float_bits(value);
    uint32_t sign = bits >> 24 & 0x80u;
    uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t exponent = magnitude >> 23;

    if (magnitude > 0x7f800000u) {
        return (uint8_t)(sign | 0x7fu);
    }
    if (exponent < 121) { /* subnormal in e4m3, or zero */
        uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;

        return (uint8_t)(exponent < 117 ? sign
                                        : sign | pkvi_cpu_round_shift(mantissa, 141 - exponent));
    }
    uint32_t rounded = pkvi_cpu_round_shift(magnitude - (120u << 23), 20);
    return (uint8_t)(sign | (rounded > 0x7eu ? 0x7eu : rounded));
}

/* Saturates at +-127; NaN becomes 0. */
static inline int8_t pkvi_cpu_to_int8(float value) {
    if (isnan(value)) {
        return 0;
    }
    float clamped = value > 127.0f ? 127.0f : value < -127.0f ? -127.0f : value;

    return (int8_t)nearbyintf(clamped);
}

/* Element `index` behind `base`. */
static inline float pkvi_cpu_read(const void *base, pkv_dtype dtype, int64_t index) {
    const unsigned char *address =
        (const unsigned char *)base + index * (int64_t)pkv_dtype_size(dtype);
    uint16_t half;
    float value;

    switch (dtype) {
    case PKV_DTYPE_FLOAT32:
        memcpy(&value, address, sizeof value);
        return value;
    case PKV_DTYPE_FLOAT16:
        memcpy(&half, address, sizeof half);
        return pkvi_cpu_from_float16(half);
    case PKV_DTYPE_BFLOAT16:
        memcpy(&half, address, sizeof half);
        return pkvi_cpu_from_bfloat16(half);
    case PKV_DTYPE_FLOAT8_E4M3:
        return pkvi_cpu_from_e4m3(*address);
    case PKV_DTYPE_INT8:
        return (float)(int8_t)*address;
    default:
        return 0.0f;
    }
}

static inline void pkvi_cpu_write(void *base, pkv_dtype dtype, int64_t index, float value) {
    unsigned char *address = (unsigned char *)base + index * (int64_t)pkv_dtype_size(dtype);
    uint16_t half;

    switch (dtype) {
    case PKV_DTYPE_FLOAT32:
        memcpy(address, &value, sizeof value);
        break;
    case PKV_DTYPE_FLOAT16:
        half = pkvi_cpu_to_float16(value);
        memcpy(address, &half, sizeof half);
        break;
    case PKV_DTYPE_BFLOAT16:
        half = pkvi_cpu_to_bfloat16(value);
        memcpy(address, &half, sizeof half);
        break;
    case PKV_DTYPE_FLOAT8_E4M3:
        *address = pkvi_cpu_to_e4m3(value);
        break;
    case PKV_DTYPE_INT8:
        *address = (unsigned char)pkvi_cpu_to_int8(value);
        break;
    default:
        break;
    }
}

/* The largest stored magnitude of a quantised dtype. */
static inline float pkvi_cpu_largest(pkv_dtype dtype) {
    return dtype == PKV_DTYPE_INT8 ? 127.0f : 448.0f;
}

/* Address of an element of a tensor. */
static inline void *pkvi_cpu_element(const pkv_tensor *tensor, int64_t index) {
    return (unsigned char *)tensor->data + index * (int64_t)pkv_dtype_size(tensor->dtype);
}

#endif
