/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The batch of bench_attention; see attention_setup.h. What it is compared with stands in
 * attention_read.c. */
#include "attention_setup.h"

#include <stdlib.h>
#include <string.h>

#include "memory.h"
#include "random.h"

/* Tokens that are filled in one call. */
#define FILL_TOKENS 256

static size_t round_up(size_t size) {
    return (size + 4095) / 4096 * 4096;
}

/* Two views of one half each. */
static void make_views(attention_setup *setup) {
    const attention_setup_config *c = &setup->config;
    int64_t tokens = c->block_size, size = c->head_size, heads = c->num_kv_heads;
    int64_t element_size = (int64_t)pkv_dtype_size(c->kv_dtype);
    int64_t length = (int64_t)setup->num_columns * tokens;
    pkv_tensor base = {.dtype = c->kv_dtype,
                       .rank = 4,
                       .shape = {setup->num_blocks, heads, tokens, size},
                       .stride = {2 * heads * tokens * size, tokens * size, size, 1}};

    setup->k_cache[1] = setup->v_cache[1] = base;
    setup->k_cache[1].data = setup->pool;
    setup->v_cache[1].data = setup->pool + heads * tokens * size * element_size;
    /* Block b of a sequence starts b * block_size tokens into it: ids step by one inside a sequence
     * and by num_kv_heads sequences' worth between requests. */
    base.stride[0] = tokens * size;
    base.stride[1] = length * size;
    base.shape[0] = (int64_t)c->num_requests * heads * setup->num_columns;
    setup->k_cache[0] = setup->v_cache[0] = base;
    setup->k_cache[0].data = setup->contiguous;
    setup->v_cache[0].data = setup->contiguous + setup->kv_size / 2;
}

static void make_tables(attention_setup *setup) {
    int32_t columns = setup->num_columns, count = setup->config.num_requests * columns;
    int32_t num_runs = (count + 7) / 8, next = 0;
    uint64_t random = 1;
    int32_t *runs = malloc((size_t)num_runs * sizeof *runs);

    for (int32_t i = 0; i < count; i++) {
        setup->tables[TABLE_CONTIGUOUS][i] =
            i / columns * columns * setup->config.num_kv_heads + i % columns;
        setup->tables[TABLE_ONE_BLOCK][i] = 1;
        setup->tables[TABLE_IDENTITY][i] = setup->tables[TABLE_RANDOM][i] = i + 1;
    }
    for (int32_t i = count - 1; i > 0; i--) {
        int32_t j = random_below(&random, i + 1);
        pkv_block_id swap = setup->tables[TABLE_RANDOM][i];

        setup->tables[TABLE_RANDOM][i] = setup->tables[TABLE_RANDOM][j];
        setup->tables[TABLE_RANDOM][j] = swap;
    }
    for (int32_t i = 0; runs != NULL && i < num_runs; i++) {
        int32_t j = random_below(&random, i + 1);

        runs[i] = runs[j];
        runs[j] = i;
    }
    for (int32_t i = 0; runs != NULL && i < num_runs; i++) {
        for (int32_t block = runs[i] * 8; block < runs[i] * 8 + 8 && block < count; block++) {
            setup->tables[TABLE_EXTENTS][next++] = block + 1;
        }
    }
    free(runs);
}

static pkv_tensor view_scale(attention_setup *setup) {
    float *scale = setup->scale_data != NULL ? setup->scale_data : &setup->scale;

    return (pkv_tensor){scale, PKV_DTYPE_FLOAT32, 1, {1}, {1}};
}

pkv_status attention_setup_fill(attention_setup *setup, pkv_device *device, attention_table table) {
    const attention_setup_config *c = &setup->config;
    int which = table == TABLE_CONTIGUOUS ? 0 : 1;
    int64_t row = (int64_t)c->num_kv_heads * c->head_size;
    float *source = aligned_alloc(64, (size_t)(4 * FILL_TOKENS * row) * sizeof(float));
    bool is_quantised = c->kv_dtype == PKV_DTYPE_FLOAT8_E4M3 || c->kv_dtype == PKV_DTYPE_INT8;
    int64_t slots[FILL_TOKENS];
    pkv_status status = source == NULL ? PKV_ERROR_OUT_OF_MEMORY : PKV_OK;
    uint64_t random = 7;

    for (int64_t i = 0; source != NULL && i < 4 * FILL_TOKENS * row; i++) {
        source[i] = (float)((double)(random_next(&random) >> 40) * 0x1p-23 - 1.0);
    }
    for (int32_t request = 0; status == PKV_OK && request < c->num_requests; request++) {
        for (int32_t first = 0; status == PKV_OK && first < c->seq_len; first += FILL_TOKENS) {
            int32_t count = c->seq_len - first < FILL_TOKENS ? c->seq_len - first : FILL_TOKENS;
            /* Other rows for other tokens, so that a wrong block shows. */
            float *rows = source + (request * 37 + first / FILL_TOKENS) % FILL_TOKENS * row;
            pkv_tensor key = {rows,
                              PKV_DTYPE_FLOAT32,
                              3,
                              {count, c->num_kv_heads, c->head_size},
                              {row, c->head_size, 1}};
            pkv_tensor one = view_scale(setup);
            pkv_write_kv_args args = {.struct_size = sizeof args,
                                      .key = key,
                                      .value = key,
                                      .k_cache = setup->k_cache[which],
                                      .v_cache = setup->v_cache[which],
                                      .slot_mapping = slots};

            args.value.data = rows + 2 * FILL_TOKENS * row;
            if (is_quantised) {
                args.k_scale = args.v_scale = one;
            }
            for (int32_t i = 0; i < count; i++) {
                int64_t column = (first + i) / c->block_size;

                slots[i] = (int64_t)setup->tables[table][request * setup->num_columns + column] *
                               c->block_size +
                           (first + i) % c->block_size;
            }
            status = pkv_write_kv(device, &args, NULL);
        }
    }
    free(source);
    return status;
}

const char *attention_setup_plan(attention_setup *setup) {
    const attention_setup_config *c = &setup->config;
    pkv_plan_config config = {.struct_size = sizeof config,
                              .shape = {.struct_size = sizeof config.shape,
                                        .num_query_heads = c->num_query_heads,
                                        .num_kv_heads = c->num_kv_heads,
                                        .head_size = c->head_size,
                                        .block_size = c->block_size,
                                        .query_dtype = c->query_dtype,
                                        .kv_dtype = c->kv_dtype},
                              .max_requests = c->num_requests,
                              .max_tokens = c->num_requests * c->query_len,
                              .max_query_len = c->query_len,
                              .max_seq_len = c->seq_len,
                              .chunk_size = c->chunk_size};
    const char *reason;
    size_t plan_size;

    pkv_plan_destroy(setup->plan);
    free(setup->plan_data);
    free(setup->workspace);
    setup->plan = NULL;
    setup->plan_data = setup->workspace = NULL;
    if (pkv_plan_create(&config, &setup->plan, &reason) != PKV_OK) {
        return reason;
    }
    (void)pkv_plan_sizes(setup->plan, &plan_size, &setup->workspace_size);
    setup->plan_data = malloc(plan_size);
    setup->workspace = aligned_alloc(4096, round_up(setup->workspace_size + 1));
    if (setup->plan_data == NULL || setup->workspace == NULL) {
        return "out of memory";
    }
    for (int32_t i = 0; i < c->num_requests; i++) {
        setup->rows[i] = i;
        setup->seq_lens[i] = c->seq_len;
        setup->query_start_loc[i + 1] = (i + 1) * c->query_len;
    }
    setup->batch = (pkv_batch){.struct_size = sizeof setup->batch,
                               .num_requests = c->num_requests,
                               .rows = setup->rows,
                               .seq_lens = setup->seq_lens,
                               .query_start_loc = setup->query_start_loc};
    return pkv_plan_build(setup->plan, &setup->batch, setup->plan_data, plan_size) == PKV_OK
               ? NULL
               : "the plan refuses the batch";
}

bool attention_setup_create(attention_setup *setup,
                            const attention_setup_config *config,
                            pkv_device *device,
                            const char **reason) {
    const attention_setup_config *c = &setup->config;
    uint64_t random = 3;

    memset(setup, 0, sizeof *setup);
    setup->config = *config;
    setup->scale = config->kv_dtype == PKV_DTYPE_INT8 ? 1.0f / 127.0f : 1.0f / 448.0f;
    setup->num_columns = (c->seq_len + c->block_size - 1) / c->block_size;
    setup->num_blocks = c->num_requests * setup->num_columns + 1;
    setup->kv_size = 2 * (size_t)c->num_requests * (size_t)setup->num_columns *
                     (size_t)(c->block_size * c->num_kv_heads * c->head_size) *
                     pkv_dtype_size(c->kv_dtype);
    size_t pool_size = setup->kv_size / (size_t)(setup->num_blocks - 1) * (size_t)setup->num_blocks;
    size_t query_size = (size_t)c->num_requests * (size_t)c->query_len *
                        (size_t)(c->num_query_heads * c->head_size);
    setup->contiguous = bench_memory_allocate(setup->kv_size);
    setup->pool = bench_memory_allocate(pool_size);
    setup->query = aligned_alloc(4096, round_up(query_size * 4));
    setup->output = aligned_alloc(4096, round_up(query_size * 4));
    setup->rows = calloc((size_t)c->num_requests, sizeof(int32_t));
    setup->seq_lens = calloc((size_t)c->num_requests, sizeof(int32_t));
    setup->query_start_loc = calloc((size_t)c->num_requests + 1, sizeof(int32_t));
    for (int i = 0; i < NUM_TABLES; i++) {
        setup->tables[i] = calloc((size_t)setup->num_blocks, sizeof(pkv_block_id));
    }
    *reason = "out of memory";
    if (setup->contiguous == NULL || setup->pool == NULL || setup->query == NULL ||
        setup->output == NULL || setup->rows == NULL || setup->seq_lens == NULL ||
        setup->query_start_loc == NULL || setup->tables[NUM_TABLES - 1] == NULL) {
        return false;
    }
    memset(setup->contiguous, 0, setup->kv_size);
    memset(setup->pool, 0, pool_size);
    make_views(setup);
    make_tables(setup);
    *reason = attention_setup_plan(setup);
    if (*reason != NULL) {
        return false;
    }
    for (size_t i = 0; i < query_size; i++) {
        float value = (float)((double)(random_next(&random) >> 40) * 0x1p-23 - 1.0);

        if (c->query_dtype == PKV_DTYPE_FLOAT32) {
            ((float *)setup->query)[i] = value;
        } else { /* ordinary values of either 16-bit dtype */
            ((uint16_t *)setup->query)[i] =
                (uint16_t)((value < 0 ? 0x8000u : 0u) |
                           (c->query_dtype == PKV_DTYPE_FLOAT16 ? 0x3800u : 0x3f00u) |
                           (unsigned)(random_next(&random) & 0x7fu));
        }
    }
    *reason = pkv_device_last_error(device);
    return attention_setup_fill(setup, device, TABLE_CONTIGUOUS) == PKV_OK &&
           attention_setup_fill(setup, device, TABLE_RANDOM) == PKV_OK;
}

void attention_setup_destroy(attention_setup *setup) {
    pkv_plan_destroy(setup->plan);
    free(setup->contiguous);
    free(setup->pool);
    free(setup->query);
    free(setup->output);
    free(setup->rows);
    free(setup->seq_lens);
    free(setup->query_start_loc);
    free(setup->plan_data);
    free(setup->workspace);
    for (int i = 0; i < NUM_TABLES; i++) {
        free(setup->tables[i]);
    }
}

pkv_status attention_setup_run(attention_setup *setup, pkv_device *device, attention_table table) {
    const attention_setup_config *c = &setup->config;
    int which = table == TABLE_CONTIGUOUS ? 0 : 1;
    int64_t row = (int64_t)c->num_query_heads * c->head_size;
    pkv_tensor query = {setup->query,
                        c->query_dtype,
                        3,
                        {(int64_t)c->num_requests * c->query_len, c->num_query_heads, c->head_size},
                        {row, c->head_size, 1}};
    pkv_tensor one = view_scale(setup);
    pkv_attention_args args = {.struct_size = sizeof args,
                               .query = query,
                               .output = query,
                               .k_cache = setup->k_cache[which],
                               .v_cache = setup->v_cache[which],
                               .block_table = setup->tables[table],
                               .block_table_stride = setup->num_columns,
                               .seq_lens = setup->seq_lens,
                               .query_start_loc = setup->query_start_loc,
                               .plan_data = setup->plan_data,
                               .workspace = setup->workspace,
                               .workspace_size = setup->workspace_size};

    args.output.data = setup->output;
    if (c->kv_dtype == PKV_DTYPE_FLOAT8_E4M3 || c->kv_dtype == PKV_DTYPE_INT8) {
        args.k_scale = args.v_scale = one;
    }
    return pkv_attention(device, setup->plan, &args, NULL);
}
