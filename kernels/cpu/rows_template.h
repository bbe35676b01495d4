/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Rows of tensors to and from floats, a vector at a time. Included by one file for each instruction
 * set, behind its vector header. What has no vector form (quantised stores) is done by element. */
#include "kernels/cpu/convert.h"

INLINE void load_row_template(float *target,
                              const unsigned char *source,
                              int32_t count,
                              const pkv_dtype dtype) {
    const int64_t size = (int64_t)pkv_dtype_size(dtype);
    const vector unit = vector_set(dtype == PKV_DTYPE_FLOAT8_E4M3 ? VECTOR_E4M3_UNIT : 1.0f);
    const int32_t whole = count - count % VECTOR_WIDTH;

    for (int32_t d = 0; d < whole; d += VECTOR_WIDTH) {
        vector_store(target + d, vector_multiply(vector_load_kv(source + d * size, dtype), unit));
    }
    for (int32_t d = whole; d < count; d++) {
        target[d] = pkvi_cpu_read(source, dtype, d);
    }
}

static void load_row(float *target, const void *source, pkv_dtype dtype, int32_t count) {
    switch (dtype) {
    case PKV_DTYPE_FLOAT16:
        load_row_template(target, source, count, PKV_DTYPE_FLOAT16);
        break;
    case PKV_DTYPE_BFLOAT16:
        load_row_template(target, source, count, PKV_DTYPE_BFLOAT16);
        break;
    case PKV_DTYPE_FLOAT8_E4M3:
        load_row_template(target, source, count, PKV_DTYPE_FLOAT8_E4M3);
        break;
    case PKV_DTYPE_INT8:
        load_row_template(target, source, count, PKV_DTYPE_INT8);
        break;
    default:
        load_row_template(target, source, count, PKV_DTYPE_FLOAT32);
        break;
    }
}

static void store_row(void *target, const float *source, pkv_dtype dtype, int32_t count) {
    int32_t d = 0;

#if VECTOR_HAS_STORES
    const int32_t whole = count - count % VECTOR_WIDTH;

    if (dtype == PKV_DTYPE_FLOAT32) {
        memcpy(target, source, (size_t)count * sizeof(float));
        return;
    }
    for (; dtype == PKV_DTYPE_FLOAT16 && d < whole; d += VECTOR_WIDTH) {
        vector_store_float16((uint16_t *)target + d, vector_load(source + d));
    }
    for (; dtype == PKV_DTYPE_BFLOAT16 && d < whole; d += VECTOR_WIDTH) {
        vector_store_bfloat16((uint16_t *)target + d, vector_load(source + d));
    }
#endif
    for (; d < count; d++) {
        pkvi_cpu_write(target, dtype, d, source[d]);
    }
}
