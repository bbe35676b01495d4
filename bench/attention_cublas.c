/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Attention as two products of cuBLAS; see attention_cublas.h. Built without it, it says so. */
#include "attention_cublas.h"

#ifdef PKV_BENCH_CUBLAS
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include <cublas_v2.h>

struct attention_cublas {
    void *library;
    cublasHandle_t handle;
    __typeof__(&cublasDestroy_v2) destroy;
    __typeof__(&cublasSetStream_v2) set_stream;
    __typeof__(&cublasGemmStridedBatchedEx) multiply;
};

/* A function of the library; POSIX lets a pointer of dlsym be one, ISO C wants it copied. */
static bool find(void *library, const char *name, void *function) {
    void *symbol = dlsym(library, name);

    memcpy(function, &symbol, sizeof symbol);
    return symbol != NULL;
}

attention_cublas *attention_cublas_open(const char **reason) {
    static const char *const names[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so"};
    attention_cublas *cublas = calloc(1, sizeof *cublas);
    __typeof__(&cublasCreate_v2) create;

    *reason = "out of memory";
    if (cublas == NULL) {
        return NULL;
    }
    for (size_t i = 0; cublas->library == NULL && i < sizeof names / sizeof names[0]; i++) {
        cublas->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    }
    *reason = "there is no libcublas";
    if (cublas->library != NULL) {
        *reason = "cublasCreate fails";
        if (find(cublas->library, "cublasCreate_v2", &create) &&
            find(cublas->library, "cublasDestroy_v2", &cublas->destroy) &&
            find(cublas->library, "cublasSetStream_v2", &cublas->set_stream) &&
            find(cublas->library, "cublasGemmStridedBatchedEx", &cublas->multiply) &&
            create(&cublas->handle) == CUBLAS_STATUS_SUCCESS) {
            return cublas;
        }
        (void)dlclose(cublas->library);
    }
    free(cublas);
    return NULL;
}

void attention_cublas_close(attention_cublas *cublas) {
    if (cublas != NULL) {
        (void)cublas->destroy(cublas->handle);
        (void)dlclose(cublas->library);
        free(cublas);
    }
}

size_t attention_cublas_scores_size(const attention_setup *setup) {
    const attention_setup_config *c = &setup->config;

    return (size_t)c->num_requests * (size_t)c->num_query_heads * (size_t)c->query_len *
           (size_t)c->seq_len * 2;
}

/* Row-major in our words is column-major with the sides turned in cuBLAS's. One product for each
 * request and kv head; its rows are the group's heads (decode), or one product for each query head
 * (prefill, one request). */
bool attention_cublas_run(attention_cublas *cublas,
                          const attention_setup *setup,
                          void *scores,
                          struct CUstream_st *stream) {
    const attention_setup_config *c = &setup->config;
    const cudaDataType type = c->query_dtype == PKV_DTYPE_FLOAT16 ? CUDA_R_16F : CUDA_R_16BF;
    const int group = c->num_query_heads / c->num_kv_heads, size = c->head_size;
    const bool is_decode = c->query_len == 1;
    const int rows = is_decode ? group : c->query_len;
    const int batch = is_decode ? c->num_requests * c->num_kv_heads : c->num_query_heads / group;
    const int query_pitch = is_decode ? size : c->num_query_heads * size;
    const long long keys_stride = (long long)setup->num_columns * c->block_size * size;
    const long long scores_stride = (long long)rows * c->seq_len;
    const float one = 1.0f, zero = 0.0f;

    if (cublas->set_stream(cublas->handle, stream) != CUBLAS_STATUS_SUCCESS ||
        (!is_decode && c->num_requests != 1)) {
        return false;
    }
    /* In prefill the heads of a group share keys: a call for each member of the groups. */
    for (int member = 0; member < (is_decode ? 1 : group); member++) {
        const long long offset = (long long)member * size;
        const long long query_stride = (long long)group * size;
        const uint16_t *query = (const uint16_t *)setup->query + offset;
        uint16_t *output = (uint16_t *)setup->output + offset;

        if (cublas->multiply(cublas->handle, CUBLAS_OP_T, CUBLAS_OP_N, c->seq_len, rows, size, &one,
                             setup->contiguous, type, size, keys_stride, query, type, query_pitch,
                             query_stride, &zero, scores, type, c->seq_len, scores_stride, batch,
                             CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT) != CUBLAS_STATUS_SUCCESS ||
            cublas->multiply(cublas->handle, CUBLAS_OP_N, CUBLAS_OP_N, size, rows, c->seq_len, &one,
                             setup->contiguous + setup->kv_size / 2, type, size, keys_stride,
                             scores, type, c->seq_len, scores_stride, &zero, output, type,
                             query_pitch, query_stride, batch, CUBLAS_COMPUTE_32F,
                             CUBLAS_GEMM_DEFAULT) != CUBLAS_STATUS_SUCCESS) {
            return false;
        }
    }
    return true;
}
#else
attention_cublas *attention_cublas_open(const char **reason) {
    *reason = "this program was built without cuBLAS's headers";
    return NULL;
}

void attention_cublas_close(attention_cublas *cublas) {
    (void)cublas;
}

size_t attention_cublas_scores_size(const attention_setup *setup) {
    (void)setup;
    return 0;
}

bool attention_cublas_run(attention_cublas *cublas,
                          const attention_setup *setup,
                          void *scores,
                          struct CUstream_st *stream) {
    (void)cublas;
    (void)setup;
    (void)scores;
    (void)stream;
    return false;
}
#endif
