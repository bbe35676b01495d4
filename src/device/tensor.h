/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Checks of tensor views: rank, dtype, shape, strides, alignment. What a shape means for an
 * operation is the operation's affair.
 *
 * The one idea: a check names what it refuses ("query.shape[2] (head_size) is 100"), so that the
 * last error is enough to find the mistake. */
#ifndef PKVI_DEVICE_TENSOR_H
#define PKVI_DEVICE_TENSOR_H

#include "device/backend.h"

/* Sets of dtypes. */
#define PKVI_DTYPE_BIT(dtype) (1u << (unsigned)(dtype))
#define PKVI_DTYPES_FLOAT                                                                          \
    (PKVI_DTYPE_BIT(PKV_DTYPE_FLOAT32) | PKVI_DTYPE_BIT(PKV_DTYPE_FLOAT16) |                       \
     PKVI_DTYPE_BIT(PKV_DTYPE_BFLOAT16))
#define PKVI_DTYPES_QUANTISED                                                                      \
    (PKVI_DTYPE_BIT(PKV_DTYPE_FLOAT8_E4M3) | PKVI_DTYPE_BIT(PKV_DTYPE_INT8))

/* Axes as they are wanted; size PKVI_ANY_SIZE matches every size. */
#define PKVI_ANY_SIZE ((int64_t)-1)
struct pkvi_axis {
    const char *name;
    int64_t size;
};

/* How rows must lie in memory. */
enum pkvi_rows {
    PKVI_ROWS_PLAIN,   /* each element on a multiple of its size */
    PKVI_ROWS_ALIGNED, /* each row on a multiple of min(16, 8 * element size) bytes */
};

/* Name of a dtype for messages. */
const char *pkvi_dtype_name(pkv_dtype dtype);

/* Check one view that must be present. */
pkv_status pkvi_tensor_check(struct pkvi_error_text *error,
                             const char *name,
                             const pkv_tensor *tensor,
                             unsigned dtypes,
                             int32_t rank,
                             const struct pkvi_axis *axes,
                             enum pkvi_rows rows);

/* Check a scale view and say how it is indexed. `cache_dtype` decides whether it may be there. */
pkv_status pkvi_tensor_check_scale(struct pkvi_error_text *error,
                                   const char *name,
                                   const pkv_tensor *scale,
                                   pkv_dtype cache_dtype,
                                   const struct pkvi_cache_shape *cache,
                                   enum pkvi_scale_kind *out);

/* Check the cache views of an operation and fill `cache`. Either may be absent, not both. */
pkv_status pkvi_tensor_check_caches(struct pkvi_error_text *error,
                                    const pkv_tensor *k_cache,
                                    const pkv_tensor *v_cache,
                                    const pkv_tensor *k_scale,
                                    const pkv_tensor *v_scale,
                                    struct pkvi_cache_shape *cache);

/* General rules of a head size and of a block size.
 * Returns NULL where they hold, else a static sentence. */
const char *pkvi_refuse_head_size(int32_t head_size);
const char *pkvi_refuse_attention_shape(const pkv_attention_shape *shape);

#endif
