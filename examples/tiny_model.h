/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* A model in miniature for examples that need one: a layer whose keys and values are functions of a
 * token, its cache in blocks, and attention on the CPU. step() is what an engine does on its device
 * between two calls of its scheduler: copies, table, write, attend. */
#ifndef EXAMPLES_TINY_MODEL_H
#define EXAMPLES_TINY_MODEL_H

#include <pagedkv.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { block_size = 8, num_blocks = 64, head_size = 32, width = 4, max_len = 64 };
enum { num_floats = block_size * head_size };

static pkv_device *device;
static pkv_plan *plan;
static pkv_manager *manager;
static void *plan_data, *workspace;
static size_t plan_size, workspace_size;
static int num_copied;
static _Alignas(64) float pool[num_blocks][2][num_floats];
static pkv_block_id table[width + 1][max_len / block_size];

static void check(pkv_status status) {
    if (status != PKV_OK) {
        fprintf(stderr, "%s: %s\n", pkv_status_name(status), pkv_manager_last_error(manager));
        exit(1);
    }
}

static pkv_tensor view(float *data, int64_t num_tokens) {
    return (pkv_tensor){
        data, PKV_DTYPE_FLOAT32, 3, {num_tokens, 1, head_size}, {head_size, head_size, 1}};
}

static pkv_tensor cache_view(int half) { /* 0: the keys of each block, 1: its values */
    return (pkv_tensor){pool[0][half],
                        PKV_DTYPE_FLOAT32,
                        4,
                        {num_blocks, 1, block_size, head_size},
                        {2 * num_floats, num_floats, head_size, 1}};
}

static void embed(int32_t token, float shift, float *out) {
    for (int d = 0; d < head_size; d++) {
        out[d] = (float)((token * 37 + d * 11) % 101) / 50.0f - shift;
    }
}

/* One step for all sequences: copies, table, write, attend. */
static void step(const pkv_batch_entry *entries, int n, float (*output)[head_size]) {
    static float keys[width * max_len][head_size], values[width * max_len][head_size];
    int32_t rows[width], lens[width], starts[width + 1], token, count;
    int64_t slots[width * max_len];
    pkv_batch batch = {sizeof batch, 0, width, 0, width * max_len, 0, 0, rows, lens, starts, slots};
    pkv_table_update updates[64];
    pkv_block_copy copies[width];

    check(pkv_take_copies(manager, 0, copies, width, &count)); /* an engine: pkv_copy_blocks */
    for (int i = 0; i < count; i++) {
        memcpy(pool[copies[i].target], pool[copies[i].source], sizeof pool[0]);
    }
    num_copied += count;
    check(pkv_take_table_updates(manager, 0, updates, 64, &count));
    for (int i = 0; i < count; i++) {
        table[updates[i].row][updates[i].column] = updates[i].block_id;
    }
    check(pkv_batch_build(manager, 0, entries, n, &batch));
    for (int i = 0, at = 0; i < n; i++) {
        for (int t = 0; t < entries[i].num_new_tokens; t++, at++) {
            check(pkv_request_get_tokens(manager, entries[i].request,
                                         entries[i].num_computed_tokens + t, 1, &token));
            embed(token, 0.3f, keys[at]);
            embed(token + 5, 1.0f, values[at]);
        }
    }
    pkv_write_kv_args write = {.struct_size = sizeof write,
                               .slot_mapping = slots,
                               .key = view(keys[0], batch.num_tokens),
                               .value = view(values[0], batch.num_tokens),
                               .k_cache = cache_view(0),
                               .v_cache = cache_view(1)};
    check(pkv_write_kv(device, &write, NULL));
    check(pkv_plan_build(plan, &batch, plan_data, plan_size));
    static float all[width * max_len][head_size];
    pkv_attention_args args = {.struct_size = sizeof args,
                               .plan_data = plan_data,
                               .query = write.key,
                               .output = view(all[0], batch.num_tokens),
                               .k_cache = write.k_cache,
                               .v_cache = write.v_cache,
                               .block_table = table[0],
                               .block_table_stride = max_len / block_size,
                               .seq_lens = lens,
                               .query_start_loc = starts,
                               .workspace = workspace,
                               .workspace_size = workspace_size};
    check(pkv_attention(device, plan, &args, NULL));
    for (int i = 0; i < n; i++) {
        memcpy(output[i], all[starts[i + 1] - 1], sizeof output[i]);
    }
}

/* A device, a plan and a manager for `width` sequences at once. */
static void start(void) {
    pkv_attention_shape shape = {
        sizeof shape, 1, 1, head_size, head_size, block_size, PKV_DTYPE_FLOAT32, PKV_DTYPE_FLOAT32};
    pkv_plan_config plan_config = {.struct_size = sizeof plan_config,
                                   .shape = shape,
                                   .max_requests = width,
                                   .max_tokens = width * max_len,
                                   .max_seq_len = max_len};
    pkv_manager_config config = {.struct_size = sizeof config,
                                 .num_blocks = num_blocks,
                                 .block_size = block_size,
                                 .max_model_len = max_len,
                                 .max_rows = width};

    check(pkv_device_create_cpu(NULL, &device));
    check(pkv_plan_create(&plan_config, &plan, NULL));
    check(pkv_plan_sizes(plan, &plan_size, &workspace_size));
    plan_data = malloc(plan_size);
    workspace = aligned_alloc(64, (workspace_size + 63) / 64 * 64);
    check(pkv_manager_create(&config, &manager));
}

static void stop(void) {
    check(pkv_manager_check(manager));
    pkv_manager_destroy(manager);
    pkv_plan_destroy(plan);
    pkv_device_destroy(device);
    free(plan_data);
    free(workspace);
}

#endif
