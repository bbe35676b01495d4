/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Fast attention, the part that is the same for every instruction set: work items become tiles,
 * tiles become rows of the output or partial rows of the workspace, partial rows are merged.
 *
 * The one idea: a row that was not split goes through the same last step as a merged one (the
 * weight of a single part is exactly 1), so that splitting is not visible where only one part has
 * keys. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

#define LOG2_E 1.44269504088896340736f
#define LN_2 0.69314718055994530942

/* Heads go through the steps of a decode together where their parts of a block lie one behind the
 * other and are no longer than a page: longer ones are read ahead well enough by themselves. Their
 * query rows and accumulators fill no more than about half of a first-level cache of 32 KiB. */
#define LONGEST_PART 4096
#define TOGETHER_BYTES 16384

/* Items for each thread, at least, before heads go together: the last ones to end wait less. */
#define ITEMS_PER_THREAD 4

/* One call: what each item needs. */
struct job {
    struct pkvi_cpu_device *device;
    const struct pkvi_attention *op;
    const struct pkvi_plan_header *header;
    bool has_second_scale;
    int32_t heads_per_item;
};

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int32_t divide_up(int32_t value, int32_t step) {
    return (value + step - 1) / step;
}

static int32_t round_up(int32_t value, int32_t step) {
    return divide_up(value, step) * step;
}

/* A scale that is the same for all tokens, and the unit in which the kernels read e4m3. */
static float common_scale(const struct job *job,
                          const pkv_tensor *scale,
                          enum pkvi_scale_kind kind,
                          int32_t head) {
    float value = job->op->args.k_cache.dtype == PKV_DTYPE_FLOAT8_E4M3
                      ? job->device->kernels->e4m3_unit
                      : 1.0f;

    if (kind == PKVI_SCALE_TENSOR || kind == PKVI_SCALE_HEAD) {
        value *= ((const float *)scale->data)[kind == PKVI_SCALE_HEAD ? head : 0];
    }
    return value;
}

/* ---- Rows of a request */

struct packed_row {
    int64_t query; /* token of the request */
    int64_t token; /* token of the batch */
    int32_t query_head;
};

static struct packed_row unpack(const struct job *job,
                                const struct pkvi_plan_request *request,
                                int32_t head,
                                int64_t row) {
    int32_t group_size = job->op->group_size;
    struct packed_row packed;

    packed.query = row / group_size;
    packed.token = request->query_start + packed.query;
    packed.query_head = head * group_size + (int32_t)(row - packed.query * group_size);
    return packed;
}

/* ---- From item to tile */

/* What row `index` of the tile sees, in tile and in keys. */
static void describe_row(const struct job *job,
                         struct pkvi_cpu_tile *tile,
                         int32_t index,
                         struct packed_row packed,
                         int64_t seq_len,
                         int64_t num_queries) {
    const pkv_attention_args *args = &job->op->args;
    int64_t position = seq_len - num_queries + packed.query;
    bool sees_all = (args->flags & PKV_ATTENTION_NON_CAUSAL) != 0 || args->tree_mask != NULL;

    tile->position[index] = position;
    tile->high[index] = sees_all ? seq_len : smaller(seq_len, position + 1);
    tile->low[index] = args->window > 0 ? larger(0, position - args->window + 1) : 0;
    tile->slope[index] = args->alibi_slopes == NULL ? 0.0f : args->alibi_slopes[packed.query_head];
    tile->tree_words[index] =
        args->tree_mask == NULL ? NULL : args->tree_mask + packed.token * args->tree_mask_stride;
}

/* Load the query rows, multiplied by everything that does not depend on the key. */
static void load_query(const struct job *job,
                       struct pkvi_cpu_tile *tile,
                       int32_t index,
                       struct packed_row packed) {
    const pkv_tensor *query = &job->op->args.query;
    int32_t head_size = job->op->cache.head_size;
    float *target = tile->query + (int64_t)index * tile->query_pitch;
    int64_t element = packed.token * query->stride[0] + packed.query_head * query->stride[1];
    float scale =
        job->op->args.softmax_scale *
        common_scale(job, &job->op->args.k_scale, job->op->cache.k_scale_kind, tile->head);

    if (!job->has_second_scale) {
        scale *= LOG2_E;
    }
    job->device->kernels->load_row(target,
                                   (const unsigned char *)query->data +
                                       element * (int64_t)pkv_dtype_size(query->dtype),
                                   query->dtype, head_size);
    for (int32_t d = 0; d < head_size; d++) {
        target[d] *= scale;
    }
    for (int32_t d = head_size; d < tile->query_pitch; d++) {
        target[d] = 0.0f;
    }
}

/* Set the tile up for rows [first_row, first_row + num_rows) of a request. */
static void set_up_tile(const struct job *job,
                        struct pkvi_cpu_tile *tile,
                        const struct pkvi_plan_request *request,
                        int64_t seq_len,
                        int64_t first_row) {
    const struct pkvi_attention *op = job->op;
    int64_t min_low = INT64_MAX, max_high = 0;

    tile->op = op;
    tile->table = op->args.block_table + request->table_row * op->args.block_table_stride;
    tile->second_scale = job->has_second_scale ? LOG2_E : 1.0f;
    tile->tree_start = seq_len - request->num_queries;
    tile->max_low = 0;
    tile->min_high = INT64_MAX;
    for (int32_t i = 0; i < tile->num_rows; i++) {
        struct packed_row packed = unpack(job, request, tile->head, first_row + i);

        describe_row(job, tile, i, packed, seq_len, request->num_queries);
        load_query(job, tile, i, packed);
        min_low = smaller(min_low, tile->low[i]);
        max_high = larger(max_high, tile->high[i]);
        tile->max_low = larger(tile->max_low, tile->low[i]);
        tile->min_high = smaller(tile->min_high, tile->high[i]);
    }
    tile->first_key = larger(tile->first_key, min_low);
    tile->end_key = smaller(tile->end_key, max_high);
}

/* ---- From tile to output */

/* Divide a row by its denominator and store it: `maximum` and `sum` in base 2, sinks not
 * included. */
static void finish_row(const struct job *job,
                       struct packed_row packed,
                       int32_t head,
                       const float *accumulator,
                       float maximum,
                       float sum,
                       float *scratch) {
    const struct pkvi_attention *op = job->op;
    const pkv_attention_args *args = &op->args;
    double total_maximum = (double)maximum, total = (double)sum;
    float factor = 0.0f;

    if (args->sinks != NULL && args->sinks[packed.query_head] > -INFINITY) {
        double sink = (double)args->sinks[packed.query_head] * (double)LOG2_E;

        total_maximum = fmax(total_maximum, sink);
        total = total * exp2((double)maximum - total_maximum) + exp2(sink - total_maximum);
    }
    if (sum != 0.0f) {
        factor = (float)(exp2((double)maximum - total_maximum) / total) *
                 common_scale(job, &args->v_scale, op->cache.v_scale_kind, head);
    }
    for (int32_t d = 0; d < op->cache.v_head_size; d++) {
        scratch[d] = sum == 0.0f ? 0.0f : accumulator[d] * factor;
    }
    int64_t element =
        packed.token * args->output.stride[0] + packed.query_head * args->output.stride[1];
    job->device->kernels->store_row((unsigned char *)args->output.data +
                                        element * (int64_t)pkv_dtype_size(args->output.dtype),
                                    scratch, args->output.dtype, op->cache.v_head_size);
    if (args->lse.dtype != PKV_DTYPE_NONE) {
        float *lse = args->lse.data;

        lse[packed.token * args->lse.stride[0] + packed.query_head * args->lse.stride[1]] =
            total == 0.0 ? -INFINITY : (float)((total_maximum + log2(total)) * LN_2);
    }
}

/* Record of one partial row in the workspace: accumulator, maximum, sum. */
static float *partial_record(const struct job *job, int64_t partial_row, int32_t head) {
    const struct pkvi_cache_shape *cache = &job->op->cache;

    return (float *)job->op->args.workspace +
           (partial_row * cache->num_kv_heads + head) * pkvi_partial_floats(cache->v_head_size);
}

/* Rows of a tile that has been through a kernel, to the output or to the workspace. */
static void store_tile(const struct job *job,
                       const struct pkvi_work_item *item,
                       const struct pkvi_cpu_tile *tile,
                       int64_t num_rows,
                       int64_t first_row) {
    const struct pkvi_plan_request *request = &pkvi_plan_requests(job->header)[item->request];
    int32_t v_head_size = job->op->cache.v_head_size;

    for (int32_t i = 0; i < tile->num_rows; i++) {
        const float *accumulator = tile->accumulator + (int64_t)i * tile->accumulator_pitch;

        if (request->end_chunk - request->first_chunk <= 1) {
            finish_row(job, unpack(job, request, tile->head, first_row + i), tile->head,
                       accumulator, tile->maximum[i], tile->sum[i], tile->query);
            continue;
        }
        float *record =
            partial_record(job,
                           request->first_partial_row +
                               (item->chunk - request->first_chunk) * num_rows + first_row + i,
                           tile->head);
        memcpy(record, accumulator, (size_t)v_head_size * sizeof(float));
        record[v_head_size] = tile->maximum[i];
        record[v_head_size + 1] = tile->sum[i];
    }
}

/* Give the tile its part of a scratch: that of the tile at `index` of those that go together. */
static void place_tile(const struct job *job,
                       struct pkvi_cpu_tile *tile,
                       struct pkvi_cpu_scratch *scratch,
                       int32_t index) {
    int32_t row = index * PKVI_CPU_FEW_ROWS;

    tile->query_pitch = round_up(job->op->cache.head_size, 16);
    tile->accumulator_pitch = round_up(job->op->cache.v_head_size, 32);
    tile->scratch = scratch;
    tile->query = scratch->query + (int64_t)row * tile->query_pitch;
    tile->packed_query = scratch->packed_query + (int64_t)row * PKVI_CPU_MAX_PITCH;
    tile->accumulator = scratch->accumulator + (int64_t)row * tile->accumulator_pitch;
    tile->maximum = scratch->maximum + row;
    tile->sum = scratch->sum + row;
}

/* One work item of the plan, for heads_per_item of the kv heads or what is left of them. */
static void run_item(void *context, int32_t index, int32_t worker) {
    const struct job *job = context;
    const struct pkvi_attention *op = job->op;
    int32_t num_kv_heads = op->cache.num_kv_heads;
    int32_t num_sets = divide_up(num_kv_heads, job->heads_per_item);
    const struct pkvi_work_item *item = &pkvi_plan_items(job->header)[index / num_sets];
    const struct pkvi_plan_request *request = &pkvi_plan_requests(job->header)[item->request];
    int64_t num_rows = (int64_t)request->num_queries * op->group_size;
    int64_t first_row = (int64_t)item->row_tile * pkvi_tile_rows(num_rows);
    int64_t chunk_size = job->header->chunk_size;
    int32_t head = index % num_sets * job->heads_per_item;
    int32_t end_head = (int32_t)smaller(head + job->heads_per_item, num_kv_heads);
    int32_t tile_rows = (int32_t)smaller(pkvi_tile_rows(num_rows), num_rows - first_row);
    bool is_few = tile_rows <= job->device->kernels->max_few_rows;
    struct pkvi_cpu_tile tiles[PKVI_CPU_MAX_TILES];
    int32_t num_tiles = 0;

    for (; head < end_head; head++) {
        struct pkvi_cpu_tile *tile = &tiles[num_tiles];

        place_tile(job, tile, &job->device->scratch[worker], num_tiles);
        tile->head = head;
        tile->num_rows = tile_rows;
        tile->first_key = item->chunk == PKVI_ALL_CHUNKS ? 0 : item->chunk * chunk_size;
        tile->end_key = item->chunk == PKVI_ALL_CHUNKS ? INT64_MAX : tile->first_key + chunk_size;
        set_up_tile(job, tile, request, op->args.seq_lens[item->request], first_row);
        if (is_few) {
            num_tiles++;
            continue;
        }
        job->device->kernels->attend_many(tile);
        store_tile(job, item, tile, num_rows, first_row);
    }
    if (num_tiles > 0) {
        job->device->kernels->attend_few(tiles, num_tiles);
    }
    for (int32_t i = 0; i < num_tiles; i++) {
        store_tile(job, item, &tiles[i], num_rows, first_row);
    }
}

/* Kv heads of an item. Which go together changes no result, so threads may have a say in it. */
static int32_t count_heads_per_item(const struct job *job) {
    const struct pkvi_cache_shape *cache = &job->op->cache;
    const pkv_tensor *k_cache = &job->op->args.k_cache;
    int64_t num_tokens = k_cache->stride[2] == cache->head_size ? cache->block_size : 1;
    int64_t part = num_tokens * cache->head_size;
    bool is_short = k_cache->stride[1] == part &&
                    part * (int64_t)pkv_dtype_size(k_cache->dtype) <= LONGEST_PART;
    int64_t num_bytes = (int64_t)job->op->group_size * (cache->head_size + cache->v_head_size) *
                        (int64_t)sizeof(float);
    int64_t num_heads = smaller(PKVI_CPU_MAX_TILES, TOGETHER_BYTES / num_bytes);
    int64_t num_wanted = (int64_t)job->device->num_threads * ITEMS_PER_THREAD;

    num_heads = larger(1, smaller(num_heads, is_short ? cache->num_kv_heads : 1));
    while (num_heads > 1 && job->device->num_threads > 1 &&
           (int64_t)job->header->num_items * divide_up(cache->num_kv_heads, (int32_t)num_heads) <
               num_wanted) {
        num_heads /= 2;
    }
    return (int32_t)num_heads;
}

/* ---- Merging the parts of split requests */

/* One row: parts in chunk order, each weighted by 2^(its maximum - the largest). */
static void merge_row(const struct job *job,
                      const struct pkvi_plan_request *request,
                      int32_t head,
                      int64_t row,
                      struct pkvi_cpu_scratch *scratch) {
    int32_t v_head_size = job->op->cache.v_head_size;
    int64_t num_rows = (int64_t)request->num_queries * job->op->group_size;
    int32_t num_parts = request->end_chunk - request->first_chunk;
    float *total = scratch->accumulator;
    float maximum = -INFINITY, sum = 0.0f;

    for (int32_t part = 0; part < num_parts; part++) {
        const float *record =
            partial_record(job, request->first_partial_row + part * num_rows + row, head);

        maximum = fmaxf(maximum, record[v_head_size]);
    }
    memset(total, 0, (size_t)v_head_size * sizeof(float));
    for (int32_t part = 0; part < num_parts; part++) {
        const float *record =
            partial_record(job, request->first_partial_row + part * num_rows + row, head);

        if (record[v_head_size + 1] == 0.0f) {
            continue;
        }
        float weight = exp2f(record[v_head_size] - maximum);
        sum += weight * record[v_head_size + 1];
        for (int32_t d = 0; d < v_head_size; d++) {
            total[d] += weight * record[d];
        }
    }
    finish_row(job, unpack(job, request, head, row), head, total, maximum, sum, scratch->query);
}

/* An item is one request and one head; those that were not split have nothing to merge. */
static void merge_item(void *context, int32_t index, int32_t worker) {
    const struct job *job = context;
    int32_t num_kv_heads = job->op->cache.num_kv_heads;
    const struct pkvi_plan_request *request =
        &pkvi_plan_requests(job->header)[index / num_kv_heads];
    int64_t num_rows = (int64_t)request->num_queries * job->op->group_size;

    if (request->end_chunk - request->first_chunk <= 1) {
        return;
    }
    for (int64_t row = 0; row < num_rows; row++) {
        merge_row(job, request, index % num_kv_heads, row, &job->device->scratch[worker]);
    }
}

void pkvi_cpu_attention(struct pkvi_cpu_device *device, const struct pkvi_attention *op) {
    struct job job = {
        .device = device,
        .op = op,
        .header = op->args.plan_data,
        .has_second_scale = op->args.softcap > 0.0f || op->args.alibi_slopes != NULL,
    };

    job.heads_per_item = count_heads_per_item(&job);
    pkvi_cpu_parallel_for(
        device, job.header->num_items * divide_up(op->cache.num_kv_heads, job.heads_per_item),
        run_item, &job);
    if (job.header->num_split_requests > 0) {
        pkvi_cpu_parallel_for(device, job.header->num_requests * op->cache.num_kv_heads, merge_item,
                              &job);
    }
}
