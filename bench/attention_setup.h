/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* What bench_attention measures on: one batch whose keys and values lie twice in memory, contiguous
 * for each sequence and head, and in a pool of blocks; tables in several orders; and the call of
 * the kernel. Readers that only load the same bytes stand in attention_read.h. */
#ifndef PKV_BENCH_ATTENTION_SETUP_H
#define PKV_BENCH_ATTENTION_SETUP_H

#include <pagedkv.h>

typedef enum attention_table {
    TABLE_CONTIGUOUS, /* ascending blocks of the contiguous copy */
    TABLE_IDENTITY,   /* ascending blocks of the pool */
    TABLE_EXTENTS,    /* runs of 8 blocks, the runs at random */
    TABLE_RANDOM,
    TABLE_ONE_BLOCK, /* the same block of the pool everywhere: all keys and values in the cache */
    NUM_TABLES
} attention_table;

typedef struct attention_setup_config {
    pkv_dtype query_dtype, kv_dtype;
    int32_t num_requests, query_len, seq_len, block_size;
    int32_t num_query_heads, num_kv_heads, head_size;
    int32_t chunk_size; /* of the plan; 0 = its default */
} attention_setup_config;

typedef struct attention_setup {
    attention_setup_config config;
    int32_t num_columns, num_blocks;
    unsigned char *contiguous, *pool;  /* the same bytes of content */
    size_t kv_size;                    /* bytes of keys and values together, counted once */
    pkv_tensor k_cache[2], v_cache[2]; /* of the contiguous copy, of the pool */
    float scale;                       /* of a quantised cache */
    float *scale_data;                 /* where operations read it; NULL: above */
    pkv_block_id *tables[NUM_TABLES];
    int32_t *rows, *seq_lens, *query_start_loc;
    void *query, *output, *plan_data, *workspace;
    pkv_plan *plan;
    size_t workspace_size;
    pkv_batch batch;
} attention_setup;

/* Allocate and fill. False where there is not enough memory or the library refuses; `reason` then
 * says why. attention_setup_destroy is called in either case. */
bool attention_setup_create(attention_setup *setup,
                            const attention_setup_config *config,
                            pkv_device *device,
                            const char **reason);
void attention_setup_destroy(attention_setup *setup);

/* Plan anew, for another config.chunk_size. Returns why not, or NULL. */
const char *attention_setup_plan(attention_setup *setup);

/* Write the same content through `table` into the copy that it names. */
pkv_status attention_setup_fill(attention_setup *setup, pkv_device *device, attention_table table);

/* One call of the kernel. */
pkv_status attention_setup_run(attention_setup *setup, pkv_device *device, attention_table table);

#endif
