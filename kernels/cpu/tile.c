/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* What the attention kernels of every instruction set ask about a tile: where its keys and values
 * are, and what happens to scores beyond the product of query and key. Nothing here is hot: the
 * common case needs none of the passes, and addresses cost one step a key. */
#include <math.h>

#include "base/paged.h"
#include "kernels/cpu/cpu.h"

/* Fetch a line of each page of a slab, so that address translation is warm when its rows come; not
 * where the slab follows the one before it: there the processor sees the next page coming, and a
 * line fetched out of turn only disturbs that. */
static void touch_pages(const unsigned char *slab, const unsigned char *expected, int64_t size) {
    if (slab == expected) {
        return;
    }
    for (int64_t x = 0; x < size; x += 4096) {
        __builtin_prefetch(slab + x, 0, 2);
    }
}

void pkvi_cpu_find_rows(const struct pkvi_cpu_tile *tile,
                        int64_t first,
                        int32_t count,
                        const struct pkvi_cpu_rows *before,
                        struct pkvi_cpu_rows *out) {
    const pkv_tensor *k_cache = &tile->op->args.k_cache;
    const pkv_tensor *v_cache = &tile->op->args.v_cache;
    int64_t element_size = (int64_t)pkv_dtype_size(k_cache->dtype);
    int64_t key_step = k_cache->stride[2] * element_size;
    int64_t value_step = v_cache->stride[2] * element_size;
    int32_t block_size = tile->op->cache.block_size;
    const unsigned char *next_key = NULL, *next_value = NULL;
    int32_t i = 0;

    if (before != NULL) {
        next_key = before->key[before->count - 1] + key_step;
        next_value = before->value[before->count - 1] + value_step;
    }
    out->count = count;
    while (i < count) {
        struct pkvi_place place = pkvi_place_of_position(tile->table, block_size, first + i);
        const unsigned char *key =
            (const unsigned char *)k_cache->data +
            pkvi_place_element(place, tile->head, k_cache->stride) * element_size;
        const unsigned char *value =
            (const unsigned char *)v_cache->data +
            pkvi_place_element(place, tile->head, v_cache->stride) * element_size;
        int32_t left = block_size - (int32_t)place.physical_block_offset;

        left = left < count - i ? left : count - i;
        touch_pages(key, next_key, left * key_step);
        touch_pages(value, next_value, left * value_step);
        for (; left > 0; left--, i++) {
            out->key[i] = key;
            out->value[i] = value;
            key += key_step;
            value += value_step;
        }
        next_key = key;
        next_value = value;
    }
}

/* Multiply each key's row of `scores` by its scale per token. */
static void multiply_by_token_scale(const struct pkvi_cpu_tile *tile,
                                    const pkv_tensor *scale,
                                    int64_t first,
                                    int32_t count,
                                    int32_t row_pitch,
                                    float *scores) {
    for (int32_t i = 0; i < count; i++) {
        struct pkvi_place place =
            pkvi_place_of_position(tile->table, tile->op->cache.block_size, first + i);
        float factor =
            ((const float *)scale->data)[pkvi_place_element(place, tile->head, scale->stride)];

        for (int32_t row = 0; row < row_pitch; row++) {
            scores[i * row_pitch + row] *= factor;
        }
    }
}

void pkvi_cpu_scale_scores(const struct pkvi_cpu_tile *tile,
                           int64_t first,
                           int32_t count,
                           int32_t row_pitch,
                           float *scores) {
    if (tile->op->cache.k_scale_kind == PKVI_SCALE_TOKEN_HEAD) {
        multiply_by_token_scale(tile, &tile->op->args.k_scale, first, count, row_pitch, scores);
    }
}

void pkvi_cpu_scale_weights(const struct pkvi_cpu_tile *tile,
                            int64_t first,
                            int32_t count,
                            int32_t row_pitch,
                            float *weights) {
    if (tile->op->cache.v_scale_kind == PKVI_SCALE_TOKEN_HEAD) {
        multiply_by_token_scale(tile, &tile->op->args.v_scale, first, count, row_pitch, weights);
    }
}

void pkvi_cpu_bias_scores(const struct pkvi_cpu_tile *tile,
                          int64_t first,
                          int32_t count,
                          int32_t row_pitch,
                          float *scores) {
    if (tile->op->args.alibi_slopes != NULL) {
        for (int32_t i = 0; i < count; i++) {
            for (int32_t row = 0; row < tile->num_rows; row++) {
                int64_t distance = tile->position[row] - (first + i);

                scores[i * row_pitch + row] -=
                    tile->slope[row] * (float)(distance < 0 ? -distance : distance);
            }
        }
    }
    if (tile->second_scale != 1.0f) {
        for (int32_t i = 0; i < count * row_pitch; i++) {
            scores[i] *= tile->second_scale;
        }
    }
}

/* Keys of [first, first + count) that the row's tree words do not name. */
static void mask_tree(const struct pkvi_cpu_tile *tile,
                      int64_t first,
                      int32_t count,
                      int32_t row_pitch,
                      int32_t row,
                      float *scores) {
    for (int32_t i = 0; i < count; i++) {
        int64_t bit = first + i - tile->tree_start;

        if (bit >= 0 && (tile->tree_words[row][bit / 32] >> (bit % 32) & 1u) == 0) {
            scores[i * row_pitch + row] = -INFINITY;
        }
    }
}

void pkvi_cpu_mask_scores(const struct pkvi_cpu_tile *tile,
                          int64_t first,
                          int32_t count,
                          int32_t row_pitch,
                          float *scores) {
    for (int32_t row = 0; row < tile->num_rows; row++) {
        int64_t low = tile->low[row] - first;
        int64_t high = tile->high[row] - first;

        for (int32_t i = 0; i < count && i < low; i++) {
            scores[i * row_pitch + row] = -INFINITY;
        }
        for (int32_t i = high < 0 ? 0 : (int32_t)(high < count ? high : count); i < count; i++) {
            scores[i * row_pitch + row] = -INFINITY;
        }
        if (tile->tree_words[row] != NULL) {
            mask_tree(tile, first, count, row_pitch, row, scores);
        }
    }
}
