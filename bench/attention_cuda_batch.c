/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The batch of bench_attention on a CUDA device; see attention_cuda_batch.h. */
#include "attention_cuda_batch.h"

#ifdef PKV_BENCH_CUDA
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention_check.h"

bool attention_cuda_complain(const char *name, const char *what) {
    (void)fprintf(stderr, "%s: %s\n", name, what);
    return false;
}

bool attention_cuda_is_good(cudaError_t error, const char *what) {
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        return attention_cuda_complain(what, cudaGetErrorString(error));
    }
    return true;
}

/* ---- The batch on the device */

static bool copy_up(void **out, const void *source, size_t size) {
    *out = NULL;
    return attention_cuda_is_good(cudaMalloc(out, size + 256), "cudaMalloc") &&
           (source == NULL ||
            attention_cuda_is_good(cudaMemcpy(*out, source, size, cudaMemcpyHostToDevice),
                                   "cudaMemcpy"));
}

static size_t output_size(const attention_setup_config *c) {
    return (size_t)c->num_requests * (size_t)c->query_len *
           (size_t)(c->num_query_heads * c->head_size) * pkv_dtype_size(c->query_dtype);
}

static size_t pool_size(const attention_setup *setup) {
    return setup->kv_size / (size_t)(setup->num_blocks - 1) * (size_t)setup->num_blocks;
}

/* Plan data and workspace of the twin, for the plan that it has now. */
static bool upload_plan(attention_setup *twin, const void *host_plan) {
    size_t size = twin->workspace_size > ATTENTION_CUDA_LEAST_WORKSPACE
                      ? twin->workspace_size
                      : ATTENTION_CUDA_LEAST_WORKSPACE;

    return copy_up(&twin->plan_data, host_plan, pkv_plan_used_size(host_plan)) &&
           copy_up(&twin->workspace, NULL, size);
}

static bool open_twin(attention_cuda_batch *batch) {
    const attention_setup *host = &batch->host;
    attention_setup *twin = &batch->twin;
    const attention_setup_config *c = &host->config;
    size_t requests = (size_t)c->num_requests;
    bool is_up;

    *twin = *host;
    twin->contiguous = twin->pool = NULL;
    twin->query = twin->output = twin->plan_data = twin->workspace = NULL;
    twin->seq_lens = twin->query_start_loc = NULL;
    twin->scale_data = NULL;
    memset(twin->tables, 0, sizeof twin->tables);
    is_up = copy_up((void **)&twin->contiguous, host->contiguous, host->kv_size) &&
            copy_up((void **)&twin->pool, host->pool, pool_size(host)) &&
            copy_up(&twin->query, host->query, output_size(c)) &&
            copy_up(&twin->output, NULL, output_size(c)) &&
            copy_up((void **)&twin->seq_lens, host->seq_lens, requests * sizeof(int32_t)) &&
            copy_up((void **)&twin->query_start_loc, host->query_start_loc,
                    (requests + 1) * sizeof(int32_t)) &&
            copy_up((void **)&twin->scale_data, &host->scale, sizeof host->scale) &&
            upload_plan(twin, host->plan_data);
    for (int i = 0; i < NUM_TABLES && is_up; i++) {
        is_up = copy_up((void **)&twin->tables[i], host->tables[i],
                        (size_t)host->num_blocks * sizeof(pkv_block_id));
    }
    /* The views, moved from one memory to the other. */
    for (int i = 0; i < 2 && is_up; i++) {
        const unsigned char *from = i == 0 ? host->contiguous : host->pool;
        unsigned char *to = i == 0 ? twin->contiguous : twin->pool;

        twin->k_cache[i].data = to + ((unsigned char *)host->k_cache[i].data - from);
        twin->v_cache[i].data = to + ((unsigned char *)host->v_cache[i].data - from);
    }
    return is_up;
}

bool attention_cuda_replan(attention_cuda_batch *batch, int32_t chunk_size) {
    attention_setup *host = &batch->host, *twin = &batch->twin;

    (void)cudaFree(twin->plan_data);
    (void)cudaFree(twin->workspace);
    twin->plan_data = twin->workspace = NULL;
    host->config.chunk_size = twin->config.chunk_size = chunk_size;
    const char *reason = attention_setup_plan(host);
    if (reason != NULL) {
        return attention_cuda_complain("planning", reason);
    }
    twin->plan = host->plan;
    twin->workspace_size = host->workspace_size;
    return upload_plan(twin, host->plan_data);
}

void attention_cuda_close(attention_cuda_batch *batch) {
    attention_setup *twin = &batch->twin;
    void *const memory[] = {
        twin->contiguous, twin->pool,     twin->query,           twin->output,     twin->plan_data,
        twin->workspace,  twin->seq_lens, twin->query_start_loc, twin->scale_data, batch->scores};

    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++) {
        (void)cudaFree(memory[i]);
    }
    for (int i = 0; i < NUM_TABLES; i++) {
        (void)cudaFree(twin->tables[i]);
    }
    attention_setup_destroy(&batch->host);
}

/* ---- Right before fast */

/* The error of all outputs together, against their size. Weights are rounded to 16 bits and sums
 * are in another order, which gives less than half of it. A wrong block among many may give less,
 * too: the suites see that. */
#define LARGEST_ERROR 0.01

static bool validate(attention_cuda_shared *b, attention_cuda_batch *batch, const char *name) {
    const attention_setup_config *c = &batch->host.config;
    size_t size = output_size(c);
    unsigned char *first = malloc(size), *second = malloc(size);
    bool is_right = first != NULL && second != NULL;

    is_right = is_right && attention_setup_run(&batch->host, b->cpu, TABLE_CONTIGUOUS) == PKV_OK;
    is_right = is_right && attention_setup_run(&batch->twin, b->cuda, TABLE_CONTIGUOUS) == PKV_OK &&
               attention_cuda_is_good(
                   cudaMemcpy(first, batch->twin.output, size, cudaMemcpyDeviceToHost), name) &&
               attention_setup_run(&batch->twin, b->cuda, TABLE_RANDOM) == PKV_OK &&
               attention_cuda_is_good(
                   cudaMemcpy(second, batch->twin.output, size, cudaMemcpyDeviceToHost), name);
    if (!is_right) {
        free(first);
        free(second);
        return attention_cuda_complain(name, pkv_device_last_error(b->cuda));
    }
    is_right = attention_error(first, c->query_dtype, batch->host.output, c->query_dtype,
                               size / pkv_dtype_size(c->query_dtype)) <= LARGEST_ERROR;
    if (!is_right) {
        (void)attention_cuda_complain(name, "the CUDA device differs from the CPU device");
    } else if (memcmp(first, second, size) != 0) {
        is_right = attention_cuda_complain(name, "paged and contiguous differ");
    }
    free(first);
    free(second);
    return is_right;
}

bool attention_cuda_open(attention_cuda_shared *b,
                         attention_cuda_batch *batch,
                         const attention_setup_config *config,
                         const char *name) {
    const char *reason;

    memset(batch, 0, sizeof *batch);
    if (!attention_setup_create(&batch->host, config, b->cpu, &reason)) {
        return attention_cuda_complain(name, reason);
    }
    return open_twin(batch) && validate(b, batch, name) &&
           (b->cublas == NULL || pkv_dtype_size(config->query_dtype) != 2 ||
            config->kv_dtype != config->query_dtype ||
            copy_up(&batch->scores, NULL, attention_cublas_scores_size(&batch->twin)));
}

int attention_cuda_find_launches(attention_cuda_shared *b,
                                 attention_cuda_batch *batch,
                                 const char *name,
                                 attention_cuda_launch *out) {
    attention_setup *twin = &batch->twin;
    const size_t size = output_size(&batch->host.config);
    unsigned char *usual = malloc(size), *other = malloc(size);
    int count = 0;
    bool is_right =
        usual != NULL && other != NULL &&
        attention_setup_run(twin, b->cuda, TABLE_RANDOM) == PKV_OK &&
        attention_cuda_is_good(cudaMemcpy(usual, twin->output, size, cudaMemcpyDeviceToHost), name);

    for (int i = 0; i < ATTENTION_CUDA_MOST_LAUNCHES && is_right; i++) {
        const attention_cuda_launch launch = {ATTENTION_CUDA_LEAST_STAGES +
                                                  i / ATTENTION_CUDA_MOST_BLOCKS,
                                              1 + i % ATTENTION_CUDA_MOST_BLOCKS};

        /* What the library wrote must not stand there still. */
        is_right = attention_cuda_is_good(cudaMemset(twin->output, 0xff, size), "cudaMemset");
        int error = is_right ? attention_cuda_variant_run(twin, TABLE_RANDOM, launch.num_stages,
                                                          launch.num_blocks, NULL)
                             : ATTENTION_CUDA_NO_ROOM;
        if (error == ATTENTION_CUDA_NO_ROOM) {
            continue;
        }
        is_right = attention_cuda_is_good((cudaError_t)error, name) &&
                   attention_cuda_is_good(
                       cudaMemcpy(other, twin->output, size, cudaMemcpyDeviceToHost), name) &&
                   (memcmp(usual, other, size) == 0 ||
                    attention_cuda_complain(name, "another launch gives other numbers"));
        out[count++] = launch;
    }
    free(usual);
    free(other);
    return is_right ? count : -1;
}
#endif
