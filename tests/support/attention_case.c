/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* An attention case from its buffers to its call; see attention_case.h. What lies in the buffers is
 * put there by attention_content.c, the oracle is in attention_oracle.c. */
#include "support/attention_parts.h"

#include <stdlib.h>
#include <string.h>

#define CANARY 0xa5

struct attention_buffer attention_buffer_create(const struct attention_memory *memory,
                                                size_t size,
                                                int byte) {
    struct attention_buffer buffer = {.size = (size + 15) / 16 * 16};

    buffer.host = guarded_allocate(buffer.size, byte);
    buffer.device = memory == NULL ? buffer.host : memory->allocate(memory->context, buffer.size);
    return buffer;
}

void attention_buffer_upload(const struct attention_run *run,
                             const struct attention_buffer *buffer) {
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

pkv_attention_shape attention_case_shape(const struct attention_case *c) {
    const pkv_attention_shape shape = {.struct_size = sizeof shape,
                                       .num_query_heads = c->num_query_heads,
                                       .num_kv_heads = c->num_kv_heads,
                                       .head_size = c->head_size,
                                       .v_head_size = c->v_head_size,
                                       .block_size = c->block_size,
                                       .query_dtype = c->query_dtype,
                                       .kv_dtype = c->kv_dtype};

    return shape;
}

/* The plan, its list and the workspace. */
static void make_plan(struct attention_run *run) {
    const struct attention_case *c = &run->c;
    pkv_plan_config config = {
        .struct_size = sizeof config,
        .flags = c->plan_flags | (c->non_causal ? PKV_PLAN_NON_CAUSAL : 0u),
        .shape = attention_case_shape(c),
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
    run->plan_data = attention_buffer_create(run->memory, plan_size, 0xff);
    /* It starts at a multiple of 64 bytes, and it ends at a page. */
    run->workspace = attention_buffer_create(run->memory, (workspace_size + 63) / 64 * 64, 0xff);
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
    attention_buffer_upload(run, &run->plan_data);
    run->args.plan_data = run->plan_data.device;
    run->args.workspace = run->workspace.device;
    run->args.workspace_size = workspace_size;
}

/* The lse has a buffer even where none is wanted: it stays as it is. */
static void create_lse(struct attention_run *run) {
    const int64_t shape[] = {run->num_tokens + EXTRA_TOKENS, run->c.num_query_heads};
    pkv_tensor view = tensor_view(NULL, PKV_DTYPE_FLOAT32, 2, shape);

    view.stride[0] += run->c.is_strided ? 3 : 0;
    run->lse = attention_buffer_create(run->memory,
                                       (size_t)(shape[0] * view.stride[0]) * sizeof(float), CANARY);
    view.data = run->lse.device;
    if (!run->c.has_lse_off) {
        run->args.lse = view;
    }
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
    run->num_blocks = 2; /* the null block, and block 1, which is nobody's */
    for (int32_t i = 0; i < c->num_requests; i++) {
        run->num_tokens += c->query_lens[i];
        run->num_blocks += attention_columns(c, i);
        run->num_columns = attention_columns(c, i) + 1 > run->num_columns
                               ? attention_columns(c, i) + 1
                               : run->num_columns;
    }
    attention_lay_out(run);
    attention_fill_table(run);
    attention_create_scales(run, 0);
    attention_create_scales(run, 1);
    attention_fill_cache(run);
    attention_fill_query(run);
    attention_fill_small(run);
    make_plan(run);

    pkv_dtype output_dtype = c->float_output ? PKV_DTYPE_FLOAT32 : c->query_dtype;
    run->output =
        attention_create_rows(run, output_dtype, c->v_head_size, CANARY, &run->args.output);
    create_lse(run);
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
    memset(run, 0, sizeof *run);
}

/* ---- The call, and what it must not write to */

enum { NUM_INPUTS = 11 };

/* What a call reads. Buffers that a case lacks have size 0. */
static void list_inputs(const struct attention_run *run,
                        const struct attention_buffer *buffers[NUM_INPUTS]) {
    const struct attention_buffer *all[NUM_INPUTS] = {
        &run->pool,   &run->k_scale, &run->v_scale, &run->query, &run->table,    &run->lens,
        &run->starts, &run->sinks,   &run->slopes,  &run->tree,  &run->plan_data};

    memcpy(buffers, all, sizeof all);
}

static unsigned char *copy_inputs(const struct attention_run *run) {
    const struct attention_buffer *buffers[NUM_INPUTS];
    size_t size = 1;

    list_inputs(run, buffers);
    for (int i = 0; i < NUM_INPUTS; i++) {
        size += buffers[i]->size;
    }
    unsigned char *copies = malloc(size), *end = copies;
    if (copies == NULL) {
        abort();
    }
    for (int i = 0; i < NUM_INPUTS; i++) {
        if (buffers[i]->size > 0) {
            memcpy(end, buffers[i]->host, buffers[i]->size);
            end += buffers[i]->size;
        }
    }
    return copies;
}

/* The first input that is no longer what was copied, or NULL. */
static const char *find_changed_input(const struct attention_run *run,
                                      const unsigned char *copies) {
    static const char *const names[NUM_INPUTS] = {
        "the pool",        "k_scale",       "v_scale",         "the query",
        "the block table", "seq_lens",      "query_start_loc", "the sinks",
        "the slopes",      "the tree mask", "the plan's list"};
    const struct attention_buffer *buffers[NUM_INPUTS];
    const char *changed = NULL;

    list_inputs(run, buffers);
    for (int i = 0; i < NUM_INPUTS; i++) {
        if (buffers[i]->size == 0) {
            continue;
        }
        download(run, buffers[i]);
        if (changed == NULL && memcmp(copies, buffers[i]->host, buffers[i]->size) != 0) {
            changed = names[i];
        }
        copies += buffers[i]->size;
    }
    return changed;
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
    attention_buffer_upload(run, &run->output);
    attention_buffer_upload(run, &run->lse);
    unsigned char *copies = copy_inputs(run);
    pkv_status status = pkv_attention(device, run->plan, &run->args, NULL);
    if (status == PKV_OK) {
        status = pkv_device_synchronize(device, NULL);
    }
    download(run, &run->output);
    download(run, &run->lse);
    run->changed_input = find_changed_input(run, copies);
    free(copies);
    return status;
}

size_t attention_run_row_size(const struct attention_run *run) {
    return (size_t)run->c.v_head_size * pkv_dtype_size(run->args.output.dtype);
}

const void *attention_run_output(const struct attention_run *run, int64_t token, int64_t head) {
    const int64_t *stride = run->args.output.stride;

    return (const unsigned char *)run->output.host +
           (size_t)(token * stride[0] + head * stride[1]) * pkv_dtype_size(run->args.output.dtype);
}

float attention_run_lse(const struct attention_run *run, int64_t token, int64_t head) {
    return ((const float *)run->lse.host)[token * run->args.lse.stride[0] + head];
}

/* Whether all of a buffer are canaries but for rows of so many tokens and heads. */
static bool has_canaries(const struct attention_buffer *buffer,
                         int64_t num_tokens,
                         int64_t num_heads,
                         size_t token_stride,
                         size_t head_stride,
                         size_t row_size) {
    unsigned char *bytes = malloc(buffer->size);
    size_t num_left = 0;

    if (bytes == NULL) {
        abort();
    }
    memcpy(bytes, buffer->host, buffer->size);
    for (int64_t token = 0; token < num_tokens; token++) {
        for (int64_t head = 0; head < num_heads; head++) {
            memset(bytes + (size_t)token * token_stride + (size_t)head * head_stride, CANARY,
                   row_size);
        }
    }
    for (size_t i = 0; i < buffer->size; i++) {
        num_left += bytes[i] == CANARY ? 1 : 0;
    }
    free(bytes);
    return num_left == buffer->size;
}

const char *attention_run_damage(const struct attention_run *run, int64_t num_tokens) {
    const pkv_tensor *output = &run->args.output, *lse = &run->args.lse;
    size_t element = pkv_dtype_size(output->dtype);

    if (run->changed_input != NULL) {
        return run->changed_input;
    }
    if (!has_canaries(&run->output, num_tokens, run->c.num_query_heads,
                      (size_t)output->stride[0] * element, (size_t)output->stride[1] * element,
                      attention_run_row_size(run))) {
        return "a byte of the output beside its rows";
    }
    if (!has_canaries(&run->lse, lse->dtype == PKV_DTYPE_NONE ? 0 : num_tokens,
                      run->c.num_query_heads, (size_t)lse->stride[0] * sizeof(float), sizeof(float),
                      sizeof(float))) {
        return "a byte of the lse beside its rows";
    }
    return NULL;
}
