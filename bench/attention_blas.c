/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Attention by hand with a BLAS; see attention_blas.h. Built without one, it says so. */
#include "attention_blas.h"

#include <math.h>
#include <stdlib.h>

#ifdef PKV_BENCH_OPENBLAS
#include <cblas.h>

void openblas_set_num_threads(int num_threads);

const char *attention_blas_name(void) {
    return "by hand with OpenBLAS, float32, contiguous";
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

double attention_blas_time(const attention_setup_config *config,
                           int32_t num_threads,
                           int64_t (*now)(void)) {
    int32_t q = config->query_len, n = config->seq_len, d = config->head_size;
    size_t inputs = (size_t)(q + 2 * n) * (size_t)d;
    float *memory =
        malloc((inputs + (size_t)q * (size_t)n + (size_t)q * (size_t)d) * sizeof(float));
    double result = NAN;

    if (memory != NULL) {
        float *query = memory, *keys = query + (size_t)q * (size_t)d;
        float *values = keys + (size_t)n * (size_t)d, *scores = values + (size_t)n * (size_t)d;
        float *output = scores + (size_t)q * (size_t)n;

        openblas_set_num_threads(num_threads);
        for (size_t i = 0; i < inputs; i++) {
            memory[i] = (float)(i % 97) * 0.02f - 1.0f;
        }
        int64_t start = now();
        for (int32_t head = 0; head < config->num_query_heads; head++) {
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, q, n, d, 1.0f / sqrtf((float)d),
                        query, d, keys, d, 0.0f, scores, n);
            softmax_rows(scores, q, n);
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, q, d, n, 1.0f, scores, n, values,
                        d, 0.0f, output, d);
        }
        result = (double)(now() - start);
    }
    free(memory);
    return result;
}
#else
const char *attention_blas_name(void) {
    return NULL;
}

double attention_blas_time(const attention_setup_config *config,
                           int32_t num_threads,
                           int64_t (*now)(void)) {
    (void)config;
    (void)now;
    (void)num_threads;
    return NAN;
}
#endif
