/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* One layer of paged attention on the CPU: make a device and a plan, write new keys and values into
 * the blocks that the table names, attend, and compare with a plain loop over contiguous memory.
 *
 * The one idea: layout is stride. Of [block][2][kv_head][token][dim] kernels see two views. */
#include <pagedkv.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { block_size = 16, num_blocks = 8, num_heads = 4, num_kv_heads = 2, head_size = 64 };
enum { seq_len = 50, num_floats = num_kv_heads * block_size * head_size };

static pkv_device *device;
static _Alignas(16) float pool[num_blocks][2][num_floats];
static _Alignas(16) float kv[2][seq_len][num_kv_heads][head_size]; /* 0: keys, 1: values */
static _Alignas(16) float query[num_heads][head_size], output[num_heads][head_size];

static void check(pkv_status status) {
    if (status != PKV_OK) {
        fprintf(stderr, "%s: %s\n", pkv_status_name(status), pkv_device_last_error(device));
        exit(1);
    }
}

static pkv_tensor view(void *data, int64_t a, int64_t b, int64_t c) {
    return (pkv_tensor){data, PKV_DTYPE_FLOAT32, 3, {a, b, c}, {b * c, c, 1}};
}

static pkv_tensor cache_view(int half) { /* 0: the keys of each block, 1: its values */
    const pkv_tensor cache = {.data = pool[0][half],
                              .dtype = PKV_DTYPE_FLOAT32,
                              .rank = 4,
                              .shape = {num_blocks, num_kv_heads, block_size, head_size},
                              .stride = {2 * num_floats, block_size * head_size, head_size, 1}};
    return cache;
}

static void fill(float *target, int count) {
    for (int i = 0; i < count; i++) {
        target[i] = sinf((float)(i * count % 1009));
    }
}

/* Softmax attention of one head over contiguous keys, for comparison. */
static float attend_plainly(int head, int d) {
    float sum = 0, result = 0;
    int kv_head = head / (num_heads / num_kv_heads);
    for (int t = 0; t < seq_len; t++) {
        float dot = 0;
        for (int i = 0; i < head_size; i++) {
            dot += query[head][i] * kv[0][t][kv_head][i];
        }
        sum += expf(dot / 8); /* the square root of head_size */
        result += expf(dot / 8) * kv[1][t][kv_head][d];
    }
    return result / sum;
}

int main(void) {
    const pkv_block_id table[2][4] = {{0}, {5, 2, 7, 1}}; /* row 0 is the null row */
    int32_t rows[] = {1}, lens[] = {seq_len}, starts[] = {0, 1};
    int64_t slots[seq_len];

    fill(kv[0][0][0], 2 * seq_len * num_kv_heads * head_size);
    fill(query[0], num_heads * head_size);
    check(pkv_device_create_cpu(NULL, &device));
    /* Where each token goes; a manager would have said so in pkv_batch_build. */
    for (int t = 0; t < seq_len; t++) {
        slots[t] = pkv_compute_slot(table[1], block_size, t);
    }
    pkv_write_kv_args write = {.struct_size = sizeof write, .slot_mapping = slots};
    write.key = view(kv[0], seq_len, num_kv_heads, head_size);
    write.value = view(kv[1], seq_len, num_kv_heads, head_size);
    write.k_cache = cache_view(0);
    write.v_cache = cache_view(1);
    check(pkv_write_kv(device, &write, NULL));
    /* A plan is made once for the model and the limits of the engine. */
    pkv_attention_shape shape = {sizeof shape, num_heads,  num_kv_heads,      head_size,
                                 head_size,    block_size, PKV_DTYPE_FLOAT32, PKV_DTYPE_FLOAT32};
    pkv_plan_config config = {.struct_size = sizeof config, .shape = shape, .max_requests = 4};
    config.max_tokens = 64;
    config.max_seq_len = 4096;
    pkv_plan *plan;
    size_t plan_size, workspace_size;
    check(pkv_plan_create(&config, &plan, NULL));
    check(pkv_plan_sizes(plan, &plan_size, &workspace_size));
    void *plan_data = malloc(plan_size), *workspace = aligned_alloc(64, workspace_size);
    /* One decode step: one query token at the end of the sequence. */
    pkv_batch batch = {sizeof batch, .num_requests = 1, .rows = rows, .seq_lens = lens,
                       .query_start_loc = starts};
    check(pkv_plan_build(plan, &batch, plan_data, plan_size));
    pkv_attention_args args = {.struct_size = sizeof args, .seq_lens = lens};
    args.plan_data = plan_data;
    args.query = view(query, 1, num_heads, head_size);
    args.output = view(output, 1, num_heads, head_size);
    args.k_cache = write.k_cache;
    args.v_cache = write.v_cache;
    args.block_table = table[0];
    args.block_table_stride = 4;
    args.query_start_loc = starts;
    args.workspace = workspace;
    args.workspace_size = workspace_size;
    check(pkv_attention(device, plan, &args, NULL));
    float worst = 0;
    for (int head = 0; head < num_heads; head++) {
        for (int d = 0; d < head_size; d++) {
            worst = fmaxf(worst, fabsf(output[head][d] - attend_plainly(head, d)));
        }
    }
    puts(worst < 1e-5f ? "50 scattered tokens: as the plain loop" : "WRONG");
    pkv_plan_destroy(plan);
    pkv_device_destroy(device);
    free(plan_data);
    free(workspace);
    return worst < 1e-5f ? 0 : 1;
}
