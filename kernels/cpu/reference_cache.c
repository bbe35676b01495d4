/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The specification of writing the cache and of gathering from it, element by element.
 *
 *   NeoX:         rotated(i) = x(i) cos(i) - x(i + R/2) sin(i), rotated(i + R/2) = x(i + R/2)
 *   cos(i) + x(i) sin(i) interleaved:  the same with 2i and 2i + 1 in place of i and i + R/2
 *   stored        = nearest-even(rotated / scale), saturated
 *   dynamic scale = max |rotated| over the finite elements / largest stored value */
#include "base/paged.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu.h"

/* Rotate one head in place. Products and sums in double, rounded once. */
static void rotate(const struct pkvi_write_kv *op, int64_t token, float *row) {
    const pkv_write_kv_args *args = &op->args;
    int64_t position = args->positions[token];
    const float *cos_row = (const float *)args->cos.data + position * args->cos.stride[0];
    const float *sin_row = (const float *)args->sin.data + position * args->sin.stride[0];
    int32_t half = op->rotary_size / 2;
    bool is_interleaved = (args->flags & PKV_WRITE_ROPE_INTERLEAVED) != 0;

    for (int32_t i = 0; i < half; i++) {
        float *first = row + args->rotary_offset + (is_interleaved ? 2 * i : i);
        float *second = is_interleaved ? first + 1 : first + half;
        double x = (double)*first, y = (double)*second;

        *first = (float)(x * (double)cos_row[i] - y * (double)sin_row[i]);
        *second = (float)(y * (double)cos_row[i] + x * (double)sin_row[i]);
    }
}

/* Scale per token and head of a row: 0 where nothing finite is non-zero. */
static float compute_scale(const float *row, int32_t count, pkv_dtype dtype) {
    float largest = 0.0f;

    for (int32_t i = 0; i < count; i++) {
        if (isfinite(row[i])) {
            largest = fmaxf(largest, fabsf(row[i]));
        }
    }
    return largest / pkvi_cpu_largest(dtype);
}

/* Store one row in the cache. */
static void store(const pkv_tensor *cache,
                  const pkv_tensor *scale_tensor,
                  enum pkvi_scale_kind kind,
                  struct pkvi_place place,
                  int32_t head,
                  const float *row,
                  int32_t count) {
    int64_t index = pkvi_place_element(place, head, cache->stride);
    float *scales = scale_tensor->data;
    float scale = 1.0f;

    if (kind == PKVI_SCALE_TENSOR || kind == PKVI_SCALE_HEAD) {
        scale = scales[kind == PKVI_SCALE_HEAD ? head : 0];
    } else if (kind == PKVI_SCALE_TOKEN_HEAD) {
        scale = compute_scale(row, count, cache->dtype);
        scales[pkvi_place_element(place, head, scale_tensor->stride)] = scale;
    }
    for (int32_t i = 0; i < count; i++) {
        float value = scale == 0.0f && !isnan(row[i]) ? 0.0f : row[i] / scale;

        pkvi_cpu_write(cache->data, cache->dtype, index + i, value);
    }
}

static void read_row(
    const pkv_tensor *source, int64_t token, int64_t head, float *row, int32_t count) {
    int64_t index = token * source->stride[0] + head * source->stride[1];

    for (int32_t i = 0; i < count; i++) {
        row[i] = pkvi_cpu_read(source->data, source->dtype, index + i);
    }
}

void pkvi_cpu_reference_write_kv(const struct pkvi_write_kv *op) {
    const pkv_write_kv_args *args = &op->args;
    const struct pkvi_cache_shape *cache = &op->cache;
    int32_t body_size = cache->head_size - op->tail_size;
    float row[PKV_MAX_HEAD_SIZE];

    for (int64_t token = 0; token < op->num_tokens; token++) {
        for (int32_t head = 0; head < op->num_query_heads; head++) {
            int64_t index = token * args->query.stride[0] + head * args->query.stride[1];

            read_row(&args->query, token, head, row, cache->head_size);
            rotate(op, token, row);
            for (int32_t i = 0; i < cache->head_size; i++) {
                pkvi_cpu_write(args->query.data, args->query.dtype, index + i, row[i]);
            }
        }
        if (args->slot_mapping[token] < 0) {
            continue;
        }
        struct pkvi_place place = pkvi_place_of_slot(args->slot_mapping[token], cache->block_size);
        for (int32_t head = 0; head < cache->num_kv_heads; head++) {
            if (cache->head_size > 0) {
                if (body_size > 0) {
                    read_row(&args->key, token, head, row, body_size);
                }
                if (op->tail_size > 0) {
                    read_row(&args->key_tail, token, head, row + body_size, op->tail_size);
                }
                if (op->rotary_size > 0) {
                    rotate(op, token, row);
                }
                store(&args->k_cache, &args->k_scale, cache->k_scale_kind, place, head, row,
                      cache->head_size);
            }
            if (cache->v_head_size > 0) {
                read_row(&args->value, token, head, row, cache->v_head_size);
                store(&args->v_cache, &args->v_scale, cache->v_scale_kind, place, head, row,
                      cache->v_head_size);
            }
        }
    }
}

/* ---- Gathering */

/* Copy one row out, multiplied by its scale. */
static void fetch(const pkv_tensor *cache,
                  const pkv_tensor *scale_tensor,
                  enum pkvi_scale_kind kind,
                  struct pkvi_place place,
                  int32_t head,
                  const pkv_tensor *target,
                  int64_t key,
                  int32_t count) {
    int64_t source = pkvi_place_element(place, head, cache->stride);
    int64_t index = key * target->stride[0] + head * target->stride[1];
    const float *scales = scale_tensor->data;
    float scale = 1.0f;

    if (kind != PKVI_SCALE_NONE) {
        scale = scales[kind == PKVI_SCALE_TENSOR ? 0
                       : kind == PKVI_SCALE_HEAD
                           ? head
                           : pkvi_place_element(place, head, scale_tensor->stride)];
    }
    for (int32_t i = 0; i < count; i++) {
        pkvi_cpu_write(target->data, target->dtype, index + i,
                       pkvi_cpu_read(cache->data, cache->dtype, source + i) * scale);
    }
}

void pkvi_cpu_reference_gather(const struct pkvi_gather *op) {
    const pkv_gather_args *args = &op->args;
    const struct pkvi_cache_shape *cache = &op->cache;

    for (int32_t request = 0; request < args->num_requests; request++) {
        const pkv_block_id *table =
            args->block_table + args->rows[request] * args->block_table_stride;
        int64_t first = args->first_positions == NULL ? 0 : args->first_positions[request];

        for (int32_t key = args->key_start_loc[request]; key < args->key_start_loc[request + 1];
             key++) {
            int64_t position = first + key - args->key_start_loc[request];
            struct pkvi_place place = pkvi_place_of_position(table, cache->block_size, position);

            for (int32_t head = 0; head < cache->num_kv_heads; head++) {
                if (cache->head_size > 0) {
                    fetch(&args->k_cache, &args->k_scale, cache->k_scale_kind, place, head,
                          &args->key, key, cache->head_size);
                }
                if (cache->v_head_size > 0) {
                    fetch(&args->v_cache, &args->v_scale, cache->v_scale_kind, place, head,
                          &args->value, key, cache->v_head_size);
                }
            }
        }
    }
}
