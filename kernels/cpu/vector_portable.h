/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Vectors of 4 floats in the compiler's own vector types: the words that the kernel templates are
 * written in, for a processor of which nothing more is known. Conversions go by element. */
#ifndef PKVI_CPU_VECTOR_PORTABLE_H
#define PKVI_CPU_VECTOR_PORTABLE_H

#include <string.h>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/unroll.h"

#define VECTOR_WIDTH 4
#define VECTOR_E4M3_UNIT 1.0f
#define VECTOR_HAS_STORES 0

typedef float vector __attribute__((vector_size(16)));
typedef int32_t vector_bits __attribute__((vector_size(16)));

INLINE vector vector_set(float value) {
    vector result = {value, value, value, value};

    return result;
}

INLINE vector vector_zero(void) {
    return vector_set(0.0f);
}

INLINE vector vector_load(const float *source) {
    vector result;

    memcpy(&result, source, sizeof result);
    return result;
}

INLINE void vector_store(float *target, vector value) {
    memcpy(target, &value, sizeof value);
}

INLINE vector vector_add(vector a, vector b) {
    return a + b;
}

INLINE vector vector_subtract(vector a, vector b) {
    return a - b;
}

INLINE vector vector_multiply(vector a, vector b) {
    return a * b;
}

INLINE vector vector_divide(vector a, vector b) {
    return a / b;
}

/* a * b + c, rounded twice. */
INLINE vector vector_fma(vector a, vector b, vector c) {
    return a * b + c;
}

/* b where the mask is set, else a. */
INLINE vector vector_blend(vector a, vector b, vector_bits mask) {
    return (vector)(((vector_bits)a & ~mask) | ((vector_bits)b & mask));
}

INLINE vector vector_max(vector a, vector b) {
    return vector_blend(b, a, a > b);
}

INLINE vector vector_magnitude(vector a) {
    return (vector)((vector_bits)a & ~(vector_bits)vector_set(-0.0f));
}

/* The magnitude of a with the sign of b; a is not negative. */
INLINE vector vector_copy_sign(vector a, vector b) {
    return (vector)((vector_bits)a | ((vector_bits)b & (vector_bits)vector_set(-0.0f)));
}

INLINE bool vector_any_greater(vector a, vector b) {
    vector_bits mask = a > b;

    return (mask[0] | mask[1] | mask[2] | mask[3]) != 0;
}

/* b where a is -inf, else a: so that -inf - maximum is no NaN. */
INLINE vector vector_replace_minus_infinity(vector a, vector b) {
    return vector_blend(a, b, a == vector_set(-INFINITY));
}

/* 2^x for x <= 1: relative error below 2^-22; 0 below 2^-126, NaN stays NaN. */
INLINE vector vector_exp2(vector x) {
    /* Adding and taking away 1.5 * 2^23 rounds to a whole number. */
    const vector magic = vector_set(12582912.0f);
    vector_bits is_small = x < vector_set(-126.0f);
    vector known = vector_blend(x, vector_zero(), is_small);
    vector shifted = known + magic;
    vector rest = known - (shifted - magic);
    vector_bits exponent = ((vector_bits)shifted - (vector_bits)magic) << 23;
    vector result = vector_set(EXP2_C6);

    result = result * rest + vector_set(EXP2_C5);
    result = result * rest + vector_set(EXP2_C4);
    result = result * rest + vector_set(EXP2_C3);
    result = result * rest + vector_set(EXP2_C2);
    result = result * rest + vector_set(EXP2_C1);
    result = result * rest + vector_set(1.0f);
    result = (vector)((vector_bits)result + exponent);
    return vector_blend(result, vector_zero(), is_small);
}

/* target[i] = sum of a[i]. */
INLINE void vector_store_sums(float *target, const vector *a, const int count) {
    for (int i = 0; i < count; i++) {
        target[i] = (a[i][0] + a[i][2]) + (a[i][1] + a[i][3]);
    }
}

/* VECTOR_WIDTH elements of a cache row. */
INLINE vector vector_load_kv(const unsigned char *source, const pkv_dtype dtype) {
    vector result;

    if (dtype == PKV_DTYPE_FLOAT32) {
        memcpy(&result, source, sizeof result);
    } else {
        result = (vector){pkvi_cpu_read(source, dtype, 0), pkvi_cpu_read(source, dtype, 1),
                          pkvi_cpu_read(source, dtype, 2), pkvi_cpu_read(source, dtype, 3)};
    }
    return result;
}

/* Rows are whole vectors: never here. */
INLINE vector vector_load_kv_half(const unsigned char *source, const pkv_dtype dtype) {
    return vector_load_kv(source, dtype);
}

#endif
