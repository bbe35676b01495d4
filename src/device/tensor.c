/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Checks of tensor views; see tensor.h. */
#include "device/tensor.h"

#include <inttypes.h>

const char *pkvi_dtype_name(pkv_dtype dtype) {
    switch (dtype) {
    case PKV_DTYPE_NONE:
        return "NONE";
    case PKV_DTYPE_FLOAT32:
        return "FLOAT32";
    case PKV_DTYPE_FLOAT16:
        return "FLOAT16";
    case PKV_DTYPE_BFLOAT16:
        return "BFLOAT16";
    case PKV_DTYPE_FLOAT8_E4M3:
        return "FLOAT8_E4M3";
    case PKV_DTYPE_INT8:
        return "INT8";
    case PKV_DTYPE_INT32:
        return "INT32";
    case PKV_DTYPE_INT64:
        return "INT64";
    case PKV_DTYPE_UINT8:
        return "UINT8";
    }
    return "unknown";
}

bool pkvi_tensor_is_absent(const pkv_tensor *tensor) {
    return tensor->dtype == PKV_DTYPE_NONE && tensor->rank == 0;
}

uint64_t pkvi_tensor_extent(const pkv_tensor *tensor) {
    uint64_t last = 0;

    for (int32_t axis = 0; axis < tensor->rank; axis++) {
        last += (uint64_t)(tensor->shape[axis] - 1) * (uint64_t)tensor->stride[axis];
    }
    return (last + 1) * pkv_dtype_size(tensor->dtype);
}

/* Strides: innermost 1, none negative, and rows aligned where that is wanted. Axes of size 0 or 1
 * are never stepped along, so their strides do not matter. */
static pkv_status check_strides(struct pkvi_error_text *error,
                                const char *name,
                                const pkv_tensor *tensor,
                                enum pkvi_rows rows) {
    int64_t element_size = (int64_t)pkv_dtype_size(tensor->dtype);
    int64_t alignment = element_size;
    int32_t last = tensor->rank - 1;

    if (rows == PKVI_ROWS_ALIGNED) {
        alignment = element_size * PKV_HEAD_SIZE_STEP < 16 ? element_size * PKV_HEAD_SIZE_STEP : 16;
    }
    if ((uintptr_t)tensor->data % (uintptr_t)alignment != 0) {
        return pkvi_fail(error, PKV_ERROR_INVALID_ARGUMENT,
                         "%s.data is not aligned to %" PRId64 " bytes", name, alignment);
    }
    for (int32_t axis = 0; axis <= last; axis++) {
        int64_t stride = tensor->stride[axis];

        if (tensor->shape[axis] <= 1) {
            continue;
        }
        if (stride < 0 || (axis == last && stride != 1)) {
            return pkvi_fail(error, PKV_ERROR_UNSUPPORTED, "%s.stride[%d] is %" PRId64 "; %s", name,
                             (int)axis, stride,
                             axis == last ? "the innermost must be 1" : "none may be negative");
        }
        if (axis < last && stride * element_size % alignment != 0) {
            return pkvi_fail(error, PKV_ERROR_INVALID_ARGUMENT,
                             "%s.stride[%d] is %" PRId64 " elements: rows are not aligned to "
                             "%" PRId64 " bytes",
                             name, (int)axis, stride, alignment);
        }
    }
    return PKV_OK;
}

pkv_status pkvi_tensor_check(struct pkvi_error_text *error,
                             const char *name,
                             const pkv_tensor *tensor,
                             unsigned dtypes,
                             int32_t rank,
                             const struct pkvi_axis *axes,
                             enum pkvi_rows rows) {
    bool is_empty = false;

    if (pkv_dtype_size(tensor->dtype) == 0) {
        return pkvi_fail(error, PKV_ERROR_INVALID_ARGUMENT, "%s.dtype is %s", name,
                         pkvi_dtype_name(tensor->dtype));
    }
    if ((dtypes & PKVI_DTYPE_BIT(tensor->dtype)) == 0) {
        return pkvi_fail(error, PKV_ERROR_UNSUPPORTED, "%s.dtype %s is not supported here", name,
                         pkvi_dtype_name(tensor->dtype));
    }
    if (tensor->rank != rank) {
        return pkvi_fail(error, PKV_ERROR_INVALID_ARGUMENT, "%s.rank is %d, wanted %d", name,
                         (int)tensor->rank, (int)rank);
    }
    for (int32_t axis = 0; axis < rank; axis++) {
        int64_t size = tensor->shape[axis];

        if (size < 0 || (axes[axis].size != PKVI_ANY_SIZE && size != axes[axis].size)) {
            return pkvi_fail(error, PKV_ERROR_INVALID_ARGUMENT,
                             "%s.shape[%d] (%s) is %" PRId64 ", wanted %" PRId64, name, (int)axis,
                             axes[axis].name, size, size < 0 ? 0 : axes[axis].size);
        }
        is_empty = is_empty || size == 0;
    }
    if (is_empty) {
        return PKV_OK;
    }
    if (tensor->data == NULL) {
        return pkvi_fail(error, PKV_ERROR_INVALID_ARGUMENT, "%s.data is NULL", name);
    }
    return check_strides(error, name, tensor, rows);
}

pkv_status pkvi_tensor_check_scale(struct pkvi_error_text *error,
                                   const char *name,
                                   const pkv_tensor *scale,
                                   pkv_dtype cache_dtype,
                                   const struct pkvi_cache_shape *cache,
                                   enum pkvi_scale_kind *out) {
    const struct pkvi_axis one[] = {{"one scale, or num_kv_heads", PKVI_ANY_SIZE}};
    const struct pkvi_axis three[] = {{"num_blocks", cache->num_blocks},
                                      {"num_kv_heads", cache->num_kv_heads},
                                      {"block_size", cache->block_size}};

    *out = PKVI_SCALE_NONE;
    if (pkvi_tensor_is_absent(scale)) {
        return PKV_OK;
    }
    if ((PKVI_DTYPES_QUANTISED & PKVI_DTYPE_BIT(cache_dtype)) == 0) {
        return pkvi_fail(error, PKV_ERROR_UNSUPPORTED,
                         "%s: a %s cache has no scales; only FLOAT8_E4M3 and INT8 have", name,
                         pkvi_dtype_name(cache_dtype));
    }
    if (scale->rank != 1 && scale->rank != 3) {
        return pkvi_fail(error, PKV_ERROR_INVALID_ARGUMENT, "%s.rank is %d, wanted 0, 1 or 3", name,
                         (int)scale->rank);
    }
    pkv_status status =
        pkvi_tensor_check(error, name, scale, PKVI_DTYPE_BIT(PKV_DTYPE_FLOAT32), scale->rank,
                          scale->rank == 1 ? one : three, PKVI_ROWS_PLAIN);
    if (status != PKV_OK) {
        return status;
    }
    if (scale->rank == 3) {
        *out = PKVI_SCALE_TOKEN_HEAD;
    } else if (scale->shape[0] == 1) {
        *out = PKVI_SCALE_TENSOR;
    } else if (scale->shape[0] == cache->num_kv_heads) {
        *out = PKVI_SCALE_HEAD;
    } else {
        return pkvi_fail(error, PKV_ERROR_INVALID_ARGUMENT,
                         "%s.shape[0] is %" PRId64 ", wanted 1 or num_kv_heads %d", name,
                         scale->shape[0], (int)cache->num_kv_heads);
    }
    return PKV_OK;
}

const char *pkvi_refuse_head_size(int32_t head_size) {
    if (head_size < PKV_HEAD_SIZE_STEP || head_size % PKV_HEAD_SIZE_STEP != 0) {
        return "head_size must be a positive multiple of 8";
    }
    return head_size > PKV_MAX_HEAD_SIZE ? "head_size must be at most 576" : NULL;
}

/* One cache view: its own rules; those dimensions that `cache` knows already must agree. */
static pkv_status check_cache(struct pkvi_error_text *error,
                              const char *name,
                              const pkv_tensor *tensor,
                              struct pkvi_cache_shape *cache,
                              int32_t *head_size) {
    const struct pkvi_axis axes[] = {
        {"num_blocks", cache->num_blocks > 0 ? cache->num_blocks : PKVI_ANY_SIZE},
        {"num_kv_heads", cache->num_kv_heads > 0 ? cache->num_kv_heads : PKVI_ANY_SIZE},
        {"block_size", cache->block_size > 0 ? cache->block_size : PKVI_ANY_SIZE},
        {"head_size", PKVI_ANY_SIZE},
    };
    pkv_status status = pkvi_tensor_check(
        error, name, tensor, PKVI_DTYPES_FLOAT | PKVI_DTYPES_QUANTISED, 4, axes, PKVI_ROWS_ALIGNED);

    if (status != PKV_OK) {
        return status;
    }
    if (tensor->shape[0] < 1 || tensor->shape[0] > INT32_MAX || tensor->shape[1] < 1 ||
        tensor->shape[1] > INT32_MAX) {
        return pkvi_fail(error, PKV_ERROR_INVALID_ARGUMENT,
                         "%s: num_blocks %" PRId64 " and num_kv_heads %" PRId64
                         " must be in 1 .. 2^31 - 1",
                         name, tensor->shape[0], tensor->shape[1]);
    }
    if (tensor->shape[2] < 1 || tensor->shape[2] > PKV_MAX_BLOCK_SIZE) {
        return pkvi_fail(error, PKV_ERROR_UNSUPPORTED,
                         "%s.shape[2] (block_size) is %" PRId64 ", supported are 1 .. %d", name,
                         tensor->shape[2], PKV_MAX_BLOCK_SIZE);
    }
    if (tensor->shape[3] > PKV_MAX_HEAD_SIZE ||
        pkvi_refuse_head_size((int32_t)tensor->shape[3]) != NULL) {
        return pkvi_fail(error, PKV_ERROR_UNSUPPORTED,
                         "%s.shape[3] (head_size) is %" PRId64
                         ", supported are multiples of %d up to %d",
                         name, tensor->shape[3], PKV_HEAD_SIZE_STEP, PKV_MAX_HEAD_SIZE);
    }
    cache->num_blocks = tensor->shape[0];
    cache->num_kv_heads = (int32_t)tensor->shape[1];
    cache->block_size = (int32_t)tensor->shape[2];
    *head_size = (int32_t)tensor->shape[3];
    return PKV_OK;
}

pkv_status pkvi_tensor_check_caches(struct pkvi_error_text *error,
                                    const pkv_tensor *k_cache,
                                    const pkv_tensor *v_cache,
                                    const pkv_tensor *k_scale,
                                    const pkv_tensor *v_scale,
                                    struct pkvi_cache_shape *cache) {
    const struct pkvi_cache_shape nothing = {0};
    bool has_k = !pkvi_tensor_is_absent(k_cache);
    bool has_v = !pkvi_tensor_is_absent(v_cache);
    pkv_status status = PKV_OK;

    *cache = nothing;
    if (!has_k && !has_v) {
        return pkvi_fail(error, PKV_ERROR_INVALID_ARGUMENT, "k_cache and v_cache are both absent");
    }
    if (has_k) {
        status = check_cache(error, "k_cache", k_cache, cache, &cache->head_size);
    }
    if (status == PKV_OK && has_v) {
        status = check_cache(error, "v_cache", v_cache, cache, &cache->v_head_size);
    }
    if (status == PKV_OK && has_k && has_v && k_cache->dtype != v_cache->dtype) {
        return pkvi_fail(error, PKV_ERROR_UNSUPPORTED, "k_cache.dtype is %s and v_cache.dtype %s",
                         pkvi_dtype_name(k_cache->dtype), pkvi_dtype_name(v_cache->dtype));
    }
    if (status == PKV_OK) {
        status = pkvi_tensor_check_scale(error, "k_scale", k_scale, k_cache->dtype, cache,
                                         &cache->k_scale_kind);
    }
    if (status == PKV_OK) {
        status = pkvi_tensor_check_scale(error, "v_scale", v_scale, v_cache->dtype, cache,
                                         &cache->v_scale_kind);
    }
    return status;
}

const char *pkvi_refuse_attention_shape(const pkv_attention_shape *shape) {
    pkv_dtype query = shape->query_dtype;
    pkv_dtype kv = shape->kv_dtype == PKV_DTYPE_NONE ? query : shape->kv_dtype;
    int32_t v_head_size = shape->v_head_size == 0 ? shape->head_size : shape->v_head_size;
    const char *reason = pkvi_refuse_head_size(shape->head_size);

    if (reason == NULL) {
        reason = pkvi_refuse_head_size(v_head_size);
    }
    if (reason != NULL) {
        return reason;
    }
    if (shape->num_kv_heads < 1 || shape->num_query_heads < 1) {
        return "num_query_heads and num_kv_heads must be at least 1";
    }
    if (shape->num_query_heads % shape->num_kv_heads != 0) {
        return "num_query_heads must be a multiple of num_kv_heads";
    }
    if (shape->block_size < 1 || shape->block_size > PKV_MAX_BLOCK_SIZE) {
        return "block_size must be in 1 .. 256";
    }
    if (query != PKV_DTYPE_FLOAT32 && query != PKV_DTYPE_FLOAT16 && query != PKV_DTYPE_BFLOAT16) {
        return "query_dtype must be FLOAT32, FLOAT16 or BFLOAT16";
    }
    if (kv != query && kv != PKV_DTYPE_FLOAT8_E4M3 && kv != PKV_DTYPE_INT8 &&
        !(query == PKV_DTYPE_FLOAT32 && (kv == PKV_DTYPE_FLOAT16 || kv == PKV_DTYPE_BFLOAT16))) {
        return "kv_dtype must be query_dtype, FLOAT8_E4M3 or INT8, or 16-bit with FLOAT32 queries";
    }
    return NULL;
}
