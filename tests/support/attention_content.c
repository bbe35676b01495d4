/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* What lies in the memory of an attention case: pool, table, scales, query, small arrays; see
 * attention_parts.h. The table and the pool end at a page that cannot be touched: the last block is
 * in use, and the last row of the table ends with one column of junk. */
#include "support/attention_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int32_t attention_columns(const struct attention_case *c, int32_t request) {
    return (c->seq_lens[request] + c->block_size - 1) / c->block_size;
}

/* Elements behind the keys and values of a block with scales in it: both scales of each token and
 * head, and what makes the block a multiple of 256 bytes. */
static int64_t scale_gap(const struct attention_case *c) {
    int64_t size = (int64_t)pkv_dtype_size(c->kv_dtype);
    int64_t rows = (int64_t)c->num_kv_heads * c->block_size;
    int64_t data = rows * (c->head_size + c->v_head_size) * size;
    int64_t whole = (data + 2 * rows * (int64_t)sizeof(float) + 255) / 256 * 256;

    return (whole - data) / size;
}

/* +inf and -inf by turns all over the pool; FLOAT8_E4M3 has neither and gets NaN of both signs. */
static void fill_infinities(struct attention_run *run) {
    pkv_dtype dtype = run->c.kv_dtype;
    double value = dtype == PKV_DTYPE_FLOAT8_E4M3 ? (double)NAN : (double)INFINITY;
    int64_t count = (int64_t)(run->pool.size / pkv_dtype_size(dtype));

    for (int64_t i = 0; i < count; i++) {
        tensor_encode(run->pool.host, dtype, i, i % 2 == 0 ? value : -value);
    }
}

/* Views of the two caches in one pool. */
void attention_lay_out(struct attention_run *run) {
    const struct attention_case *c = &run->c;
    int64_t tokens = c->block_size, heads = c->num_kv_heads;
    int64_t key_size = c->head_size, value_size = c->v_head_size;
    int64_t shape[] = {run->num_blocks, heads, tokens, key_size};
    int64_t keys = heads * tokens * key_size, values = heads * tokens * value_size;
    int64_t size = (int64_t)pkv_dtype_size(c->kv_dtype);
    int64_t gap = c->layout == CASE_WIDE            ? 24 * 1009
                  : c->layout == CASE_SCALES_INSIDE ? scale_gap(c)
                                                    : 0;
    int64_t padding = c->layout == CASE_PADDED ? 16 : 0;
    int64_t v_offset;

    keys += heads * tokens * padding;
    values += heads * tokens * padding;
    v_offset = keys;
    run->k_cache = tensor_view(NULL, c->kv_dtype, 4, shape);
    shape[3] = value_size;
    run->v_cache = tensor_view(NULL, c->kv_dtype, 4, shape);
    run->k_cache.stride[0] = run->v_cache.stride[0] = keys + values + gap;
    if (c->layout == CASE_PADDED) {
        run->k_cache.stride[2] = key_size + padding;
        run->v_cache.stride[2] = value_size + padding;
        run->k_cache.stride[1] = tokens * run->k_cache.stride[2];
        run->v_cache.stride[1] = tokens * run->v_cache.stride[2];
    } else if (c->layout == CASE_TOKEN_MAJOR) {
        run->k_cache.stride[0] = keys;
        run->k_cache.stride[1] = key_size;
        run->k_cache.stride[2] = heads * key_size;
        run->v_cache.stride[0] = values;
        run->v_cache.stride[1] = value_size;
        run->v_cache.stride[2] = heads * value_size;
        v_offset = run->num_blocks * keys;
    } else if (c->layout == CASE_LATENT) {
        run->k_cache.stride[0] = run->v_cache.stride[0] = keys;
        run->v_cache.stride[1] = run->k_cache.stride[1];
        run->v_cache.stride[2] = run->k_cache.stride[2];
        v_offset = 0;
        values = 0;
    }
    run->pool = attention_buffer_create(
        run->memory, (size_t)(run->num_blocks * (keys + values + gap) * size), c->poison);
    if (c->has_infinities) {
        fill_infinities(run);
    }
    run->k_cache.data = run->pool.host;
    run->v_cache.data = (unsigned char *)run->pool.host + v_offset * size;
    run->args.k_cache = run->k_cache;
    run->args.v_cache = run->v_cache;
    run->args.k_cache.data = run->pool.device;
    run->args.v_cache.data = (unsigned char *)run->pool.device + v_offset * size;
}

/* Give each column a block of its own, from block 2 on, in the order that is wanted; the rest of
 * the table is junk. Unused rows come first, so many that the table's last byte is its buffer's. */
void attention_fill_table(struct attention_run *run) {
    const struct attention_case *c = &run->c;
    int32_t *table;
    int32_t num_used = 0, next = 0;
    int32_t num_rows = (c->num_requests + 4) / 4 * 4;
    int32_t *order;

    run->table = attention_buffer_create(
        run->memory, (size_t)(num_rows * run->num_columns) * sizeof(int32_t), 0xff);
    table = run->table.host;
    for (int32_t i = 0; i < c->num_requests; i++) {
        num_used += attention_columns(c, i);
    }
    order = malloc((size_t)(num_used + 1) * sizeof *order);
    if (order == NULL) {
        abort();
    }
    for (int32_t i = 0; i < num_used; i++) {
        order[i] = i + 2;
    }
    for (int32_t i = num_used - 1; i > 0 && c->order == CASE_SHUFFLED; i--) {
        int32_t j = (int32_t)tensor_index(c->seed + 77, i, (uint64_t)i + 1);
        int32_t swap = order[i];

        order[i] = order[j];
        order[j] = swap;
    }
    for (int32_t i = 0; i < num_used && c->order == CASE_DESCENDING; i++) {
        order[i] = num_used + 1 - i;
    }
    for (int32_t i = 0; i < num_used && c->order == CASE_INTERLEAVED; i++) {
        order[i] = (i % 2 == 0 ? i / 2 : num_used - 1 - i / 2) + 2;
    }
    for (int32_t i = 0; i < c->num_requests; i++) {
        run->rows[i] = num_rows - c->num_requests + i;
        int32_t *row = table + run->rows[i] * run->num_columns;

        for (int32_t column = 0; column < run->num_columns; column++) {
            row[column] = column < attention_columns(c, i) ? order[next++]
                          : column % 2 == 0                ? -1
                                                           : INT32_MAX;
        }
    }
    free(order);
    attention_buffer_upload(run, &run->table);
}

/* Scale of a token and head, as content. */
static float scale_of(
    const struct attention_case *c, uint64_t request, int64_t position, int64_t head, int which) {
    double value = tensor_value(c->seed + 5 + (uint64_t)which, (int64_t)request, position, head, 9);

    return c->scale_base * (float)(1.25 + value);
}

/* A scale for each token and head: in a buffer, or behind the keys and values of each block. */
static void place_token_scales(struct attention_run *run,
                               struct attention_buffer *buffer,
                               int which,
                               pkv_tensor *view,
                               pkv_tensor *host_view) {
    const struct attention_case *c = &run->c;
    const int64_t shape[] = {run->num_blocks, c->num_kv_heads, c->block_size};

    *view = tensor_view(NULL, PKV_DTYPE_FLOAT32, 3, shape);
    *host_view = *view;
    if (c->layout == CASE_SCALES_INSIDE) {
        int64_t element = (int64_t)pkv_dtype_size(c->kv_dtype);
        int64_t rows = shape[1] * shape[2];
        int64_t offset = rows * (c->head_size + c->v_head_size) * element +
                         which * rows * (int64_t)sizeof(float);

        host_view->stride[0] = view->stride[0] =
            run->k_cache.stride[0] * element / (int64_t)sizeof(float);
        host_view->data = (unsigned char *)run->pool.host + offset;
        view->data = (unsigned char *)run->pool.device + offset;
        return;
    }
    *buffer =
        attention_buffer_create(run->memory, (size_t)tensor_count(view) * sizeof(float), 0xff);
    host_view->data = buffer->host;
    view->data = buffer->device;
}

void attention_create_scales(struct attention_run *run, int which) {
    const struct attention_case *c = &run->c;
    struct attention_buffer *buffer = which == 0 ? &run->k_scale : &run->v_scale;
    pkv_tensor *view = which == 0 ? &run->args.k_scale : &run->args.v_scale;
    int64_t count = c->scales == CASE_SCALE_TENSOR ? 1 : c->num_kv_heads;

    if (c->scales == CASE_SCALE_NONE) {
        return;
    }
    if (c->scales == CASE_SCALE_TOKEN) {
        place_token_scales(run, buffer, which, view, which == 0 ? &run->k_scales : &run->v_scales);
        return;
    }
    *buffer = attention_buffer_create(run->memory, (size_t)count * sizeof(float), 0xff);
    *view = tensor_view(buffer->device, PKV_DTYPE_FLOAT32, 1, &count);
    for (int64_t i = 0; i < count; i++) {
        ((float *)buffer->host)[i] = scale_of(c, 0, 0, i, which);
    }
}

static void set_token_scale(
    const pkv_tensor *scales, int64_t block, int64_t head, int64_t offset, float scale) {
    ((float *)scales->data)[block * scales->stride[0] + head * scales->stride[1] + offset] = scale;
}

/* Write the content of every request into its blocks. */
void attention_fill_cache(struct attention_run *run) {
    const struct attention_case *c = &run->c;
    const int32_t *table = run->table.host;
    double amplitude = c->kv_dtype == PKV_DTYPE_INT8          ? 127.0
                       : c->kv_dtype == PKV_DTYPE_FLOAT8_E4M3 ? 8.0
                                                              : 1.0;

    for (int32_t i = 0; i < c->num_requests; i++) {
        for (int64_t position = 0; position < c->seq_lens[i]; position++) {
            int64_t block = table[run->rows[i] * run->num_columns + position / c->block_size];
            int64_t offset = position % c->block_size;

            for (int64_t head = 0; head < c->num_kv_heads; head++) {
                int64_t key = block * run->k_cache.stride[0] + head * run->k_cache.stride[1] +
                              offset * run->k_cache.stride[2];
                int64_t value = block * run->v_cache.stride[0] + head * run->v_cache.stride[1] +
                                offset * run->v_cache.stride[2];
                int64_t id = (int64_t)c->request_ids[i];
                int64_t place = position * 1024 + head;

                struct tensor_row content = {c->seed, id, place, 2, 0.0, amplitude};

                if (c->layout != CASE_LATENT) {
                    tensor_fill_row(run->v_cache.data, c->kv_dtype, value, c->v_head_size,
                                    &content);
                }
                content.c = 1;
                content.offset = (double)c->key_offset;
                tensor_fill_row(run->k_cache.data, c->kv_dtype, key, c->head_size, &content);
                if (c->scales == CASE_SCALE_TOKEN) {
                    set_token_scale(&run->k_scales, block, head, offset,
                                    scale_of(c, (uint64_t)id, position, head, 0));
                    set_token_scale(&run->v_scales, block, head, offset,
                                    scale_of(c, (uint64_t)id, position, head, 1));
                }
            }
        }
    }
    attention_buffer_upload(run, &run->pool);
    if (run->k_scale.size > 0) {
        attention_buffer_upload(run, &run->k_scale);
        attention_buffer_upload(run, &run->v_scale);
    }
}

struct attention_buffer attention_create_rows(
    const struct attention_run *run, pkv_dtype dtype, int64_t size, int byte, pkv_tensor *view) {
    const struct attention_case *c = &run->c;
    const int64_t shape[] = {run->num_tokens + EXTRA_TOKENS, c->num_query_heads, size};

    *view = tensor_view(NULL, dtype, 3, shape);
    if (c->is_strided) {
        view->stride[1] = size + 8;
        view->stride[0] = c->num_query_heads * view->stride[1] + 24;
    }
    struct attention_buffer buffer = attention_buffer_create(
        run->memory, (size_t)(shape[0] * view->stride[0]) * pkv_dtype_size(dtype), byte);
    view->data = buffer.device;
    return buffer;
}

void attention_fill_query(struct attention_run *run) {
    const struct attention_case *c = &run->c;
    const pkv_tensor *query = &run->args.query;
    int64_t row = 0;

    run->query = attention_create_rows(run, c->query_dtype, c->head_size, 0xff, &run->args.query);
    for (int32_t i = 0; i < c->num_requests; i++) {
        for (int64_t token = 0; token < c->query_lens[i]; token++, row++) {
            int64_t position = c->seq_lens[i] - c->query_lens[i] + token;

            for (int64_t head = 0; head < c->num_query_heads; head++) {
                const struct tensor_row content = {
                    c->seed, (int64_t)c->request_ids[i], position * 1024 + head,
                    3,       (double)c->query_offset,    (double)c->query_factor};

                tensor_fill_row(run->query.host, c->query_dtype,
                                row * query->stride[0] + head * query->stride[1], c->head_size,
                                &content);
            }
        }
    }
    attention_buffer_upload(run, &run->query);
}

/* Lengths, sinks, slopes, tree mask. */
void attention_fill_small(struct attention_run *run) {
    const struct attention_case *c = &run->c;
    int32_t num_words = 0;

    run->lens = attention_buffer_create(run->memory, CASE_MAX_REQUESTS * sizeof(int32_t), 0xff);
    run->starts =
        attention_buffer_create(run->memory, (CASE_MAX_REQUESTS + 1) * sizeof(int32_t), 0xff);
    run->sinks =
        attention_buffer_create(run->memory, (size_t)c->num_query_heads * sizeof(float), 0xff);
    run->slopes =
        attention_buffer_create(run->memory, (size_t)c->num_query_heads * sizeof(float), 0xff);
    ((int32_t *)run->starts.host)[0] = 0;
    for (int32_t i = 0; i < c->num_requests; i++) {
        ((int32_t *)run->lens.host)[i] = c->seq_lens[i];
        ((int32_t *)run->starts.host)[i + 1] = ((int32_t *)run->starts.host)[i] + c->query_lens[i];
        num_words =
            (c->query_lens[i] + 31) / 32 > num_words ? (c->query_lens[i] + 31) / 32 : num_words;
    }
    for (int32_t head = 0; head < c->num_query_heads; head++) {
        ((float *)run->sinks.host)[head] =
            c->sink != 0.0f ? c->sink : (float)(4.0 * tensor_value(c->seed + 11, head, 0, 0, 0));
        ((float *)run->slopes.host)[head] =
            (float)exp2(-8.0 * (double)(head + 1) / (double)c->num_query_heads);
    }
    run->tree = attention_buffer_create(
        run->memory, (size_t)((run->num_tokens + 1) * (num_words + 1)) * sizeof(uint32_t), 0x00);
    int64_t token = 0;
    for (int32_t i = 0; i < c->num_requests; i++) {
        for (int32_t query = 0; query < c->query_lens[i]; query++, token++) {
            uint32_t *words = (uint32_t *)run->tree.host + token * num_words;

            for (int32_t bit = 0; bit <= query && !(c->has_tree_holes && query % 3 == 1); bit++) {
                if (bit == query || tensor_index(c->seed + 13, token * 4096 + bit, 3) == 0) {
                    words[bit / 32] |= 1u << (bit % 32);
                }
            }
        }
    }
    run->args.tree_mask_stride = num_words == 0 ? 1 : num_words;
    attention_buffer_upload(run, &run->lens);
    attention_buffer_upload(run, &run->starts);
    attention_buffer_upload(run, &run->sinks);
    attention_buffer_upload(run, &run->slopes);
    attention_buffer_upload(run, &run->tree);
}
