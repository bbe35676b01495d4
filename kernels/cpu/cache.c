/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Fast writing, gathering and merging: rows go through float scratch memory with the row
 * conversions of the instruction set. What is computed is said in reference_cache.c and
 * reference.c.
 *
 * The one idea: an item is a few tokens; tokens never share a row, so items are independent. */
#include <math.h>
#include <string.h>

#include "base/paged.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu.h"

/* Tokens of one item. */
#define ITEM_TOKENS 16

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int32_t count_items(int64_t num_tokens) {
    return (int32_t)((num_tokens + ITEM_TOKENS - 1) / ITEM_TOKENS);
}

/* ---- Writing */

struct write_job {
    struct pkvi_cpu_device *device;
    const struct pkvi_write_kv *op;
};

static void load(const struct write_job *job,
                 const pkv_tensor *source,
                 int64_t token,
                 int64_t head,
                 float *row,
                 int32_t count) {
    job->device->kernels->load_row(
        row, pkvi_cpu_element(source, token * source->stride[0] + head * source->stride[1]),
        source->dtype, count);
}

/* In double, as the specification: it is few elements, and then every instruction set and the
 * reference store the same bytes. */
static void rotate(const struct pkvi_write_kv *op, int64_t token, float *row) {
    const pkv_write_kv_args *args = &op->args;
    int64_t position = args->positions[token];
    const float *cos_row = (const float *)args->cos.data + position * args->cos.stride[0];
    const float *sin_row = (const float *)args->sin.data + position * args->sin.stride[0];
    int32_t half = op->rotary_size / 2;
    bool is_interleaved = (args->flags & PKV_WRITE_ROPE_INTERLEAVED) != 0;
    int32_t step = is_interleaved ? 2 : 1;
    float *first = row + args->rotary_offset;
    float *second = first + (is_interleaved ? 1 : half);

    for (int32_t i = 0; i < half; i++) {
        double x = (double)first[i * step], y = (double)second[i * step];

        first[i * step] = (float)(x * (double)cos_row[i] - y * (double)sin_row[i]);
        second[i * step] = (float)(y * (double)cos_row[i] + x * (double)sin_row[i]);
    }
}

static float compute_scale(const float *row, int32_t count, pkv_dtype dtype) {
    float largest = 0.0f;

    for (int32_t i = 0; i < count; i++) {
        float magnitude = fabsf(row[i]);

        largest = magnitude > largest && magnitude < INFINITY ? magnitude : largest;
    }
    return largest / pkvi_cpu_largest(dtype);
}

static void store(const struct write_job *job,
                  const pkv_tensor *cache,
                  const pkv_tensor *scale_tensor,
                  enum pkvi_scale_kind kind,
                  struct pkvi_place place,
                  int32_t head,
                  float *row,
                  int32_t count) {
    float *scales = scale_tensor->data;
    float scale = 1.0f;

    if (kind == PKVI_SCALE_TENSOR || kind == PKVI_SCALE_HEAD) {
        scale = scales[kind == PKVI_SCALE_HEAD ? head : 0];
    } else if (kind == PKVI_SCALE_TOKEN_HEAD) {
        scale = compute_scale(row, count, cache->dtype);
        scales[pkvi_place_element(place, head, scale_tensor->stride)] = scale;
    }
    for (int32_t i = 0; scale != 1.0f && i < count; i++) {
        row[i] = scale == 0.0f && !isnan(row[i]) ? 0.0f : row[i] / scale;
    }
    job->device->kernels->store_row(
        pkvi_cpu_element(cache, pkvi_place_element(place, head, cache->stride)), row, cache->dtype,
        count);
}

static void write_token(const struct write_job *job, int64_t token, float *row) {
    const struct pkvi_write_kv *op = job->op;
    const pkv_write_kv_args *args = &op->args;
    const struct pkvi_cache_shape *cache = &op->cache;
    int32_t body_size = cache->head_size - op->tail_size;

    for (int32_t head = 0; head < op->num_query_heads; head++) {
        int64_t index = token * args->query.stride[0] + head * args->query.stride[1];

        load(job, &args->query, token, head, row, cache->head_size);
        rotate(op, token, row);
        job->device->kernels->store_row(pkvi_cpu_element(&args->query, index), row,
                                        args->query.dtype, cache->head_size);
    }
    if (args->slot_mapping[token] < 0) {
        return;
    }
    struct pkvi_place place = pkvi_place_of_slot(args->slot_mapping[token], cache->block_size);
    for (int32_t head = 0; head < cache->num_kv_heads; head++) {
        if (cache->head_size > 0) {
            if (body_size > 0) {
                load(job, &args->key, token, head, row, body_size);
            }
            if (op->tail_size > 0) {
                load(job, &args->key_tail, token, head, row + body_size, op->tail_size);
            }
            if (op->rotary_size > 0) {
                rotate(op, token, row);
            }
            store(job, &args->k_cache, &args->k_scale, cache->k_scale_kind, place, head, row,
                  cache->head_size);
        }
        if (cache->v_head_size > 0) {
            load(job, &args->value, token, head, row, cache->v_head_size);
            store(job, &args->v_cache, &args->v_scale, cache->v_scale_kind, place, head, row,
                  cache->v_head_size);
        }
    }
}

static void write_item(void *context, int32_t item, int32_t worker) {
    const struct write_job *job = context;
    int64_t first = (int64_t)item * ITEM_TOKENS;
    int64_t end = smaller(first + ITEM_TOKENS, job->op->num_tokens);

    for (int64_t token = first; token < end; token++) {
        write_token(job, token, job->device->scratch[worker].query);
    }
}

void pkvi_cpu_write_kv(struct pkvi_cpu_device *device, const struct pkvi_write_kv *op) {
    struct write_job job = {device, op};

    pkvi_cpu_parallel_for(device, count_items(op->num_tokens), write_item, &job);
}

/* ---- Gathering: an item is one request */

struct gather_job {
    struct pkvi_cpu_device *device;
    const struct pkvi_gather *op;
};

static void fetch(const struct gather_job *job,
                  const pkv_tensor *cache,
                  const pkv_tensor *scale_tensor,
                  enum pkvi_scale_kind kind,
                  struct pkvi_place place,
                  int32_t head,
                  const pkv_tensor *target,
                  int64_t key,
                  int32_t count,
                  float *row) {
    const float *scales = scale_tensor->data;
    float scale = 1.0f;

    if (kind != PKVI_SCALE_NONE) {
        scale = scales[kind == PKVI_SCALE_TENSOR ? 0
                       : kind == PKVI_SCALE_HEAD
                           ? head
                           : pkvi_place_element(place, head, scale_tensor->stride)];
    }
    job->device->kernels->load_row(
        row, pkvi_cpu_element(cache, pkvi_place_element(place, head, cache->stride)), cache->dtype,
        count);
    for (int32_t i = 0; scale != 1.0f && i < count; i++) {
        row[i] *= scale;
    }
    job->device->kernels->store_row(
        pkvi_cpu_element(target, key * target->stride[0] + head * target->stride[1]), row,
        target->dtype, count);
}

static void gather_item(void *context, int32_t request, int32_t worker) {
    const struct gather_job *job = context;
    const pkv_gather_args *args = &job->op->args;
    const struct pkvi_cache_shape *cache = &job->op->cache;
    const pkv_block_id *table = args->block_table + args->rows[request] * args->block_table_stride;
    int64_t first = args->first_positions == NULL ? 0 : args->first_positions[request];
    float *row = job->device->scratch[worker].query;

    for (int32_t key = args->key_start_loc[request]; key < args->key_start_loc[request + 1];
         key++) {
        int64_t position = first + key - args->key_start_loc[request];
        struct pkvi_place place = pkvi_place_of_position(table, cache->block_size, position);

        for (int32_t head = 0; head < cache->num_kv_heads; head++) {
            if (cache->head_size > 0) {
                fetch(job, &args->k_cache, &args->k_scale, cache->k_scale_kind, place, head,
                      &args->key, key, cache->head_size, row);
            }
            if (cache->v_head_size > 0) {
                fetch(job, &args->v_cache, &args->v_scale, cache->v_scale_kind, place, head,
                      &args->value, key, cache->v_head_size, row);
            }
        }
    }
}

void pkvi_cpu_gather(struct pkvi_cpu_device *device, const struct pkvi_gather *op) {
    struct gather_job job = {device, op};

    pkvi_cpu_parallel_for(device, op->args.num_requests, gather_item, &job);
}

/* ---- Merging */

struct merge_job {
    struct pkvi_cpu_device *device;
    const struct pkvi_merge *op;
};

static float read_lse(const struct pkvi_merge *op, int32_t part, int64_t token, int64_t head) {
    const pkv_tensor *lse = &op->args.lses[part];

    return ((const float *)lse->data)[token * lse->stride[0] + head * lse->stride[1]];
}

static void merge_row(const struct merge_job *job,
                      int64_t token,
                      int64_t head,
                      struct pkvi_cpu_scratch *scratch) {
    const struct pkvi_merge *op = job->op;
    const pkv_merge_args *args = &op->args;
    float *total = scratch->accumulator, *row = scratch->query;
    float maximum = -INFINITY;
    double sum = 0.0;

    for (int32_t part = 0; part < args->num_parts; part++) {
        maximum = fmaxf(maximum, read_lse(op, part, token, head));
    }
    memset(total, 0, (size_t)op->v_head_size * sizeof(float));
    for (int32_t part = 0; part < args->num_parts; part++) {
        const pkv_tensor *output = &args->outputs[part];
        float lse = read_lse(op, part, token, head);
        double exact_weight = lse == -INFINITY ? 0.0 : exp((double)lse - (double)maximum);
        float weight = (float)exact_weight;

        if (exact_weight == 0.0) {
            continue;
        }
        sum += exact_weight;
        job->device->kernels->load_row(
            row, pkvi_cpu_element(output, token * output->stride[0] + head * output->stride[1]),
            output->dtype, op->v_head_size);
        for (int32_t d = 0; d < op->v_head_size; d++) {
            total[d] += weight * row[d];
        }
    }
    float factor = sum == 0.0 ? 0.0f : (float)(1.0 / sum);
    for (int32_t d = 0; d < op->v_head_size; d++) {
        total[d] *= factor;
    }
    job->device->kernels->store_row(
        pkvi_cpu_element(&args->output,
                         token * args->output.stride[0] + head * args->output.stride[1]),
        total, args->output.dtype, op->v_head_size);
    if (args->lse.dtype != PKV_DTYPE_NONE) {
        float *lse = args->lse.data;

        lse[token * args->lse.stride[0] + head * args->lse.stride[1]] =
            sum == 0.0 ? -INFINITY : (float)((double)maximum + log(sum));
    }
}

static void merge_item(void *context, int32_t item, int32_t worker) {
    const struct merge_job *job = context;
    int64_t first = (int64_t)item * ITEM_TOKENS;
    int64_t end = smaller(first + ITEM_TOKENS, job->op->num_tokens);

    for (int64_t token = first; token < end; token++) {
        for (int64_t head = 0; head < job->op->num_heads; head++) {
            merge_row(job, token, head, &job->device->scratch[worker]);
        }
    }
}

void pkvi_cpu_merge(struct pkvi_cpu_device *device, const struct pkvi_merge *op) {
    struct merge_job job = {device, op};

    pkvi_cpu_parallel_for(device, count_items(op->num_tokens), merge_item, &job);
}
