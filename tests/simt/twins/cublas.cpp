/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The four functions of cuBLAS that the examples call, for programs that run over the runtime of
 * tests/simt: matrices by columns, as cuBLAS documents them. The declarations are the real ones.
 *
 * The one idea: a product is work on a stream like any other, so that reading a result which nobody
 * waited for shows here too. */
#include "tests/simt/runtime.h"

#include <cublas_v2.h>

struct cublasContext {
    cudaStream_t stream;
};

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t *handle) {
    *handle = new cublasContext{};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
    handle->stream = stream;
    return CUBLAS_STATUS_SUCCESS;
}

/* c = alpha * a' * b' + beta * c for each of the batch, a' being m x k and b' k x n. */
cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle,
                                         cublasOperation_t op_a,
                                         cublasOperation_t op_b,
                                         int m,
                                         int n,
                                         int k,
                                         const float *alpha,
                                         const float *a,
                                         int lda,
                                         long long stride_a,
                                         const float *b,
                                         int ldb,
                                         long long stride_b,
                                         const float *beta,
                                         float *c,
                                         int ldc,
                                         long long stride_c,
                                         int batch_count) {
    const bool turns_a = op_a != CUBLAS_OP_N, turns_b = op_b != CUBLAS_OP_N;

    if (lda < (turns_a ? k : m) || ldb < (turns_b ? n : k) || ldc < m) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    const cudaError_t error = simt::enqueue(handle->stream, [=, alpha = *alpha, beta = *beta] {
        for (long long i = 0; i < static_cast<long long>(batch_count) * n * m; i++) {
            const long long batch = i / n / m, column = i / m % n, row = i % m;
            float *out = c + batch * stride_c + column * ldc + row;
            float sum = 0.0f;

            for (long long at = 0; at < k; at++) {
                sum += a[batch * stride_a + (turns_a ? row * lda + at : at * lda + row)] *
                       b[batch * stride_b + (turns_b ? at * ldb + column : column * ldb + at)];
            }
            *out = alpha * sum + (beta == 0.0f ? 0.0f : beta * *out);
        }
        return cudaSuccess;
    });
    return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
}
