/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Memory and content of an attention case; see attention_case.h. The oracle is in
 * attention_oracle.c. */
#include "support/attention_case.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CANARY 0xa5
/* Tokens of output and query behind the last one: they must not change. */
#define EXTRA_TOKENS 2

static struct attention_buffer create_buffer(const struct attention_memory *memory,
                                             size_t size,
                                             int byte) {
    struct attention_buffer buffer = {.size = (size + 63) / 64 * 64};

    buffer.host = guarded_allocate(buffer.size, byte);
    buffer.device = memory == NULL ? buffer.host : memory->allocate(memory->context, buffer.size);
    return buffer;
}

static void upload(const struct attention_run *run, const struct attention_buffer *buffer) {
    if (run->memory != NULL) {
        run->memory->upload(run->memory->context, buffer->device, buffer->host, buffer->size);
    }
}

static void download(const struct attention_run *run, const struct attention_buffer *buffer) {
    if (run->memory != NULL) {
        run->memory->download(run->memory->context, buffer->host, buffer->device, buffer->size);
    }
}

static void destroy_buffer(const struct attention_run *run, struct attention_buffer *buffer) {
    if (buffer->host == NULL) {
        return;
    }
    if (run->memory != NULL) {
        run->memory->release(run->memory->context, buffer->device, buffer->size);
    }
    guarded_release(buffer->host, buffer->size);
}

static void fill_defaults(struct attention_case *c) {
    c->query_dtype = c->query_dtype == PKV_DTYPE_NONE ? PKV_DTYPE_FLOAT32 : c->query_dtype;
    c->kv_dtype = c->kv_dtype == PKV_DTYPE_NONE ? c->query_dtype : c->kv_dtype;
    c->num_kv_heads = c->num_kv_heads == 0 ? 1 : c->num_kv_heads;
    c->num_query_heads = c->num_query_heads == 0 ? c->num_kv_heads : c->num_query_heads;
    c->head_size = c->head_size == 0 ? 64 : c->head_size;
    c->v_head_size = c->v_head_size == 0 ? c->head_size : c->v_head_size;
    c->block_size = c->block_size == 0 ? 16 : c->block_size;
    c->chunk_size = c->chunk_size == 0 ? 64 : c->chunk_size;
    c->poison = c->poison == 0 ? 0xff : c->poison;
    c->scale_base = c->scale_base == 0.0f ? 0.125f : c->scale_base;
    c->query_factor = c->query_factor == 0.0f ? 1.0f : c->query_factor;
    for (int32_t i = 0; i < CASE_MAX_REQUESTS; i++) {
        c->request_ids[i] = c->request_ids[i] == 0 ? (uint64_t)i + 1 : c->request_ids[i];
    }
}

static int32_t columns_of(const struct attention_case *c, int32_t request) {
    return (c->seq_lens[request] + c->block_size - 1) / c->block_size;
}

/* Views of the two caches in one pool. */
static void lay_out(struct attention_run *run) {
    const struct attention_case *c = &run->c;
    int64_t tokens = c->block_size, heads = c->num_kv_heads;
    int64_t key_size = c->head_size, value_size = c->v_head_size;
    int64_t shape[] = {run->num_blocks, heads, tokens, key_size};
    int64_t keys = heads * tokens * key_size, values = heads * tokens * value_size;
    int64_t gap = c->layout == CASE_WIDE ? 24 * 1009 : 0;
    int64_t size = (int64_t)pkv_dtype_size(c->kv_dtype);
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
    run->pool = create_buffer(run->memory, (size_t)(run->num_blocks * (keys + values + gap) * size),
                              c->poison);
    run->k_cache.data = run->pool.host;
    run->v_cache.data = (unsigned char *)run->pool.host + v_offset * size;
    run->args.k_cache = run->k_cache;
    run->args.v_cache = run->v_cache;
    run->args.k_cache.data = run->pool.device;
    run->args.v_cache.data = (unsigned char *)run->pool.device + v_offset * size;
}

/* Give each column a block of its own, in the order that is wanted; the rest of the table is
 * junk. */
static void fill_table(struct attention_run *run) {
    const struct attention_case *c = &run->c;
    int32_t *table;
    int32_t num_used = 0, next = 0;
    int32_t *order;

    run->table = create_buffer(
        run->memory, (size_t)((c->num_requests + 1) * run->num_columns) * sizeof(int32_t), 0xff);
    table = run->table.host;
    for (int32_t i = 0; i < c->num_requests; i++) {
        num_used += columns_of(c, i);
    }
    order = malloc((size_t)(num_used + 1) * sizeof *order);
    if (order == NULL) {
        abort();
    }
    for (int32_t i = 0; i < num_used; i++) {
        order[i] = i + 1;
    }
    for (int32_t i = num_used - 1; i > 0 && c->order == CASE_SHUFFLED; i--) {
        int32_t j = (int32_t)tensor_index(c->seed + 77, i, (uint64_t)i + 1);
        int32_t swap = order[i];

        order[i] = order[j];
        order[j] = swap;
    }
    for (int32_t i = 0; i < num_used && c->order == CASE_DESCENDING; i++) {
        order[i] = num_used - i;
    }
    for (int32_t i = 0; i < num_used && c->order == CASE_INTERLEAVED; i++) {
        order[i] = (i % 2 == 0 ? i / 2 : num_used - 1 - i / 2) + 1;
    }
    for (int32_t i = 0; i < c->num_requests; i++) {
        int32_t *row = table + (i + 1) * run->num_columns;

        run->rows[i] = i + 1;
        for (int32_t column = 0; column < run->num_columns; column++) {
            row[column] = column < columns_of(c, i) ? order[next++]
                          : column % 2 == 0         ? -1
                                                    : INT32_MAX;
        }
    }
    free(order);
    upload(run, &run->table);
}

/* Scale of a token and head, as content. */
static float scale_of(
    const struct attention_case *c, uint64_t request, int64_t position, int64_t head, int which) {
    double value = tensor_value(c->seed + 5 + (uint64_t)which, (int64_t)request, position, head, 9);

    return c->scale_base * (float)(1.25 + value);
}

static struct attention_buffer create_scales(struct attention_run *run,
                                             int which,
                                             pkv_tensor *view) {
    const struct attention_case *c = &run->c;
    const int64_t shape[] = {run->num_blocks, c->num_kv_heads, c->block_size};
    int64_t count = c->scales == CASE_SCALE_TENSOR ? 1
                    : c->scales == CASE_SCALE_HEAD ? c->num_kv_heads
                                                   : shape[0] * shape[1] * shape[2];
    struct attention_buffer buffer = {0};

    if (c->scales == CASE_SCALE_NONE) {
        return buffer;
    }
    buffer = create_buffer(run->memory, (size_t)count * sizeof(float), 0xff);
    *view = tensor_view(buffer.device, PKV_DTYPE_FLOAT32, c->scales == CASE_SCALE_TOKEN ? 3 : 1,
                        c->scales == CASE_SCALE_TOKEN ? shape : &count);
    for (int64_t i = 0; i < count && c->scales != CASE_SCALE_TOKEN; i++) {
        ((float *)buffer.host)[i] = scale_of(c, 0, 0, i, which);
    }
    return buffer;
}

/* Write the content of every request into its blocks. */
static void fill_cache(struct attention_run *run) {
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
                    int64_t index = (block * c->num_kv_heads + head) * c->block_size + offset;

                    ((float *)run->k_scale.host)[index] =
                        scale_of(c, (uint64_t)id, position, head, 0);
                    ((float *)run->v_scale.host)[index] =
                        scale_of(c, (uint64_t)id, position, head, 1);
                }
            }
        }
    }
    run->pool_copy = malloc(run->pool.size);
    if (run->pool_copy == NULL) {
        abort();
    }
    memcpy(run->pool_copy, run->pool.host, run->pool.size);
    upload(run, &run->pool);
    if (c->scales != CASE_SCALE_NONE) {
        upload(run, &run->k_scale);
        upload(run, &run->v_scale);
    }
}

static void fill_query(struct attention_run *run) {
    const struct attention_case *c = &run->c;
    const int64_t shape[] = {run->num_tokens + EXTRA_TOKENS, c->num_query_heads, c->head_size};
    int64_t element = 0;

    run->query = create_buffer(
        run->memory, (size_t)(shape[0] * shape[1] * shape[2]) * pkv_dtype_size(c->query_dtype),
        0xff);
    run->args.query = tensor_view(run->query.device, c->query_dtype, 3, shape);
    for (int32_t i = 0; i < c->num_requests; i++) {
        for (int64_t token = 0; token < c->query_lens[i]; token++) {
            int64_t position = c->seq_lens[i] - c->query_lens[i] + token;

            for (int64_t head = 0; head < c->num_query_heads; head++) {
                const struct tensor_row content = {
                    c->seed, (int64_t)c->request_ids[i], position * 1024 + head, 3,
                    0.0,     (double)c->query_factor};

                tensor_fill_row(run->query.host, c->query_dtype, element, c->head_size, &content);
                element += c->head_size;
            }
        }
    }
    run->query_copy = malloc(run->query.size);
    if (run->query_copy == NULL) {
        abort();
    }
    memcpy(run->query_copy, run->query.host, run->query.size);
    upload(run, &run->query);
}

/* Lengths, sinks, slopes, tree mask. */
static void fill_small(struct attention_run *run) {
    const struct attention_case *c = &run->c;
    int32_t num_words = 0;

    run->lens = create_buffer(run->memory, CASE_MAX_REQUESTS * sizeof(int32_t), 0xff);
    run->starts = create_buffer(run->memory, (CASE_MAX_REQUESTS + 1) * sizeof(int32_t), 0xff);
    run->sinks = create_buffer(run->memory, (size_t)c->num_query_heads * sizeof(float), 0xff);
    run->slopes = create_buffer(run->memory, (size_t)c->num_query_heads * sizeof(float), 0xff);
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
    run->tree = create_buffer(
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
    upload(run, &run->lens);
    upload(run, &run->starts);
    upload(run, &run->sinks);
    upload(run, &run->slopes);
    upload(run, &run->tree);
}

/* The plan, its list and the workspace. */
static void make_plan(struct attention_run *run) {
    const struct attention_case *c = &run->c;
    pkv_plan_config config = {
        .struct_size = sizeof config,
        .flags = c->plan_flags | (c->non_causal ? PKV_PLAN_NON_CAUSAL : 0u),
        .shape = {.struct_size = sizeof config.shape,
                  .num_query_heads = c->num_query_heads,
                  .num_kv_heads = c->num_kv_heads,
                  .head_size = c->head_size,
                  .v_head_size = c->v_head_size,
                  .block_size = c->block_size,
                  .query_dtype = c->query_dtype,
                  .kv_dtype = c->kv_dtype},
        .max_requests = CASE_MAX_REQUESTS,
        .max_tokens = run->num_tokens > 0 ? run->num_tokens : 1,
        .max_seq_len = 1,
        .chunk_size = c->chunk_size,
        .window = c->window,
        .max_split_query_len = c->split_query_len,
    };
    size_t plan_size, workspace_size;

    for (int32_t i = 0; i < c->num_requests; i++) {
        config.max_seq_len =
            c->seq_lens[i] > config.max_seq_len ? c->seq_lens[i] : config.max_seq_len;
        config.max_total_seq_len += c->seq_lens[i];
    }
    config.max_total_seq_len += CASE_MAX_REQUESTS;
    if (pkv_plan_create(&config, &run->plan, NULL) != PKV_OK ||
        pkv_plan_sizes(run->plan, &plan_size, &workspace_size) != PKV_OK) {
        abort();
    }
    run->plan_data = create_buffer(run->memory, plan_size, 0xff);
    run->workspace = create_buffer(run->memory, workspace_size, 0xff);
    run->batch = (pkv_batch){.struct_size = sizeof run->batch,
                             .num_requests = c->num_requests,
                             .max_requests = CASE_MAX_REQUESTS,
                             .num_tokens = run->num_tokens,
                             .rows = run->rows,
                             .seq_lens = run->lens.host,
                             .query_start_loc = run->starts.host};
    if (pkv_plan_build(run->plan, &run->batch, run->plan_data.host, plan_size) != PKV_OK) {
        abort();
    }
    upload(run, &run->plan_data);
    run->args.plan_data = run->plan_data.device;
    run->args.workspace = run->workspace.device;
    run->args.workspace_size = workspace_size;
}

void attention_run_create(struct attention_run *run,
                          const struct attention_case *c,
                          const struct attention_memory *memory) {
    memset(run, 0, sizeof *run);
    run->c = *c;
    fill_defaults(&run->c);
    c = &run->c;
    run->memory = memory;
    run->args.struct_size = sizeof run->args;
    run->args.flags = c->non_causal ? PKV_ATTENTION_NON_CAUSAL : 0;
    run->num_columns = 1;
    run->num_blocks = 2; /* the null block, and one that is nobody's */
    for (int32_t i = 0; i < c->num_requests; i++) {
        run->num_tokens += c->query_lens[i];
        run->num_blocks += columns_of(c, i);
        run->num_columns =
            columns_of(c, i) + 1 > run->num_columns ? columns_of(c, i) + 1 : run->num_columns;
    }
    lay_out(run);
    fill_table(run);
    run->k_scale = create_scales(run, 0, &run->args.k_scale);
    run->v_scale = create_scales(run, 1, &run->args.v_scale);
    fill_cache(run);
    fill_query(run);
    fill_small(run);
    make_plan(run);

    pkv_dtype output_dtype = c->float_output ? PKV_DTYPE_FLOAT32 : c->query_dtype;
    const int64_t shape[] = {run->num_tokens + EXTRA_TOKENS, c->num_query_heads, c->v_head_size};
    run->output = create_buffer(
        memory, (size_t)(shape[0] * shape[1] * shape[2]) * pkv_dtype_size(output_dtype), CANARY);
    run->lse = create_buffer(memory, (size_t)(shape[0] * shape[1]) * sizeof(float), CANARY);
    run->args.output = tensor_view(run->output.device, output_dtype, 3, shape);
    if (!c->has_lse_off) {
        run->args.lse = tensor_view(run->lse.device, PKV_DTYPE_FLOAT32, 2, shape);
    }
    run->args.block_table = run->table.device;
    run->args.block_table_stride = run->num_columns;
    run->args.seq_lens = run->lens.device;
    run->args.query_start_loc = run->starts.device;
    run->args.softmax_scale = c->softmax_scale;
    run->args.softcap = c->softcap;
    run->args.window = c->window;
    run->args.alibi_slopes = c->has_alibi ? run->slopes.device : NULL;
    run->args.sinks = c->has_sinks ? run->sinks.device : NULL;
    run->args.tree_mask = c->has_tree ? run->tree.device : NULL;
}

void attention_run_destroy(struct attention_run *run) {
    struct attention_buffer *buffers[] = {
        &run->pool,   &run->k_scale, &run->v_scale,   &run->query,    &run->output,
        &run->lse,    &run->table,   &run->lens,      &run->starts,   &run->sinks,
        &run->slopes, &run->tree,    &run->plan_data, &run->workspace};

    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++) {
        destroy_buffer(run, buffers[i]);
    }
    pkv_plan_destroy(run->plan);
    free(run->pool_copy);
    free(run->query_copy);
    memset(run, 0, sizeof *run);
}

pkv_status attention_run_execute(struct attention_run *run, pkv_device *device) {
    pkv_device_info info = {.struct_size = sizeof info};

    if (pkv_device_get_info(device, &info) != PKV_OK) {
        abort();
    }
    run->instructions = info.is_cpu ? info.instructions : PKV_CPU_AUTO;
    run->is_cuda = !info.is_cpu;
    memset(run->output.host, CANARY, run->output.size);
    memset(run->lse.host, CANARY, run->lse.size);
    upload(run, &run->output);
    upload(run, &run->lse);
    pkv_status status = pkv_attention(device, run->plan, &run->args, NULL);
    if (status == PKV_OK) {
        status = pkv_device_synchronize(device, NULL);
    }
    download(run, &run->output);
    download(run, &run->lse);
    download(run, &run->pool);
    download(run, &run->query);
    return status;
}

size_t attention_run_row_size(const struct attention_run *run) {
    return (size_t)run->c.v_head_size * pkv_dtype_size(run->args.output.dtype);
}

const void *attention_run_output(const struct attention_run *run, int64_t token, int64_t head) {
    return (const unsigned char *)run->output.host +
           (size_t)(token * run->c.num_query_heads + head) * attention_run_row_size(run);
}
