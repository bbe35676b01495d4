/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Attention by hand with a BLAS; see attention_blas.h. Built without one, it says so. */
#include "attention_blas.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifdef PKV_BENCH_OPENBLAS
#include <cblas.h>

#include "attention_check.h"

void openblas_set_num_threads(int num_threads);

const char *attention_blas_name(void) {
    return "by hand with OpenBLAS, float32, contiguous";
}

bool attention_blas_open(attention_blas *blas, const attention_setup *setup) {
    const attention_setup_config *c = &setup->config;
    bool is_scaled = c->kv_dtype == PKV_DTYPE_FLOAT8_E4M3 || c->kv_dtype == PKV_DTYPE_INT8;
    size_t num_rows = (size_t)c->query_len * (size_t)(c->num_query_heads * c->head_size);
    size_t half = setup->kv_size / 2 / pkv_dtype_size(c->kv_dtype);
    const float scale = is_scaled ? setup->scale : 1.0f;

    *blas = (attention_blas){.num_queries = c->query_len,
                             .num_keys = c->seq_len,
                             .num_query_heads = c->num_query_heads,
                             .num_kv_heads = c->num_kv_heads,
                             .head_size = c->head_size,
                             .head_stride = setup->k_cache[0].stride[1]};
    blas->query = malloc(num_rows * sizeof(float));
    blas->output = malloc(num_rows * sizeof(float));
    blas->keys = malloc(half * sizeof(float));
    blas->values = malloc(half * sizeof(float));
    blas->scores = malloc((size_t)c->query_len * (size_t)c->seq_len * sizeof(float));
    if (c->num_requests != 1 || blas->query == NULL || blas->output == NULL || blas->keys == NULL ||
        blas->values == NULL || blas->scores == NULL) {
        return false;
    }
    for (size_t i = 0; i < num_rows; i++) {
        blas->query[i] = attention_value(setup->query, c->query_dtype, i);
    }
    for (size_t i = 0; i < half; i++) {
        blas->keys[i] = scale * attention_value(setup->k_cache[0].data, c->kv_dtype, i);
        blas->values[i] = scale * attention_value(setup->v_cache[0].data, c->kv_dtype, i);
    }
    return true;
}

void attention_blas_close(attention_blas *blas) {
    free(blas->query);
    free(blas->output);
    free(blas->keys);
    free(blas->values);
    free(blas->scores);
    memset(blas, 0, sizeof *blas);
}

/* Softmax of each row over the keys that its query sees; the others get weight 0. */
static void softmax_rows(float *scores, int32_t num_queries, int32_t num_keys) {
    for (int32_t i = 0; i < num_queries; i++) {
        float *row = scores + (int64_t)i * num_keys;
        int32_t end = num_keys - num_queries + i + 1;
        float maximum = row[0], sum = 0.0f;

        for (int32_t j = 1; j < end; j++) {
            maximum = row[j] > maximum ? row[j] : maximum;
        }
        for (int32_t j = 0; j < end; j++) {
            row[j] = expf(row[j] - maximum);
            sum += row[j];
        }
        for (int32_t j = 0; j < num_keys; j++) {
            row[j] = j < end ? row[j] / sum : 0.0f;
        }
    }
}

double attention_blas_run(attention_blas *blas, int32_t num_threads, int64_t (*now)(void)) {
    const int32_t q = blas->num_queries, n = blas->num_keys, d = blas->head_size;
    const int32_t pitch = blas->num_query_heads * d;
    const int32_t group = blas->num_query_heads / blas->num_kv_heads;

    openblas_set_num_threads(num_threads);
    int64_t start = now();
    for (int32_t head = 0; head < blas->num_query_heads; head++) {
        const float *keys = blas->keys + head / group * blas->head_stride;
        const float *values = blas->values + head / group * blas->head_stride;

        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, q, n, d, 1.0f / sqrtf((float)d),
                    blas->query + head * d, pitch, keys, d, 0.0f, blas->scores, n);
        softmax_rows(blas->scores, q, n);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, q, d, n, 1.0f, blas->scores, n,
                    values, d, 0.0f, blas->output + head * d, pitch);
    }
    return (double)(now() - start);
}
#else
const char *attention_blas_name(void) {
    return NULL;
}

bool attention_blas_open(attention_blas *blas, const attention_setup *setup) {
    (void)setup;
    memset(blas, 0, sizeof *blas);
    return false;
}

void attention_blas_close(attention_blas *blas) {
    (void)blas;
}

double attention_blas_run(attention_blas *blas, int32_t num_threads, int64_t (*now)(void)) {
    (void)blas;
    (void)num_threads;
    (void)now;
    return NAN;
}
#endif
