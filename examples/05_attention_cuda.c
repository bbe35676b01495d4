/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* One layer of paged attention on a CUDA device, checked against cuBLAS over contiguous memory:
 * logits by a batched product, softmax on the host, outputs by another product.
 *
 * The one idea: scattered blocks change where numbers come from and not what comes out. */
#include "tiny_cuda.h"

#include <cublas_v2.h>
#include <math.h>
#include <string.h>

enum { group_size = num_heads / num_kv_heads };

/* What cuBLAS gets, one sequence at a time: the same numbers as floats, without holes. */
struct contiguous {
    float kv[2][num_kv_heads * max_len * head_size]; /* each [num_kv_heads][seq_len][head_size] */
    float query[num_heads * head_size], output[num_heads * head_size];
    float logits[num_heads * max_len]; /* [num_heads][seq_len] */
};
static struct contiguous host;
static struct contiguous *plain; /* on the device */
static struct inputs in;
static cublasHandle_t blas;

static void check_blas(cublasStatus_t status) {
    if (status != CUBLAS_STATUS_SUCCESS) {
        fprintf(stderr, "cuBLAS: status %d\n", (int)status);
        exit(1);
    }
}

static void widen(const uint16_t *bits, int count, float *out) { /* to the upper half of a float */
    for (int i = 0; i < count; i++) {
        const uint32_t wide = (uint32_t)bits[i] << 16;
        memcpy(&out[i], &wide, sizeof wide);
    }
}

/* Follow the block table; the last token of the sequence is the new one. */
static void make_contiguous(int r, int len) {
    widen(in.query[r], num_heads * head_size, host.query);
    for (int half = 0; half < 2; half++) {
        for (int i = 0; i < num_kv_heads * len; i++) {
            const int head = i / len, token = i % len;
            const int64_t slot = pkv_compute_slot(at_start.table[r + 1], block_size, token);
            const uint16_t *row = at_start.pool[slot / block_size][half][head][slot % block_size];
            widen(token == len - 1 ? &in.kv[half][r][head * head_size] : row, head_size,
                  &host.kv[half][i * head_size]);
        }
    }
}

static void softmax(float *logits, int len) {
    float maximum = logits[0], sum = 0;
    for (int t = 1; t < len; t++) {
        maximum = fmaxf(maximum, logits[t]);
    }
    for (int t = 0; t < len; t++) {
        logits[t] = expf(logits[t] - maximum);
        sum += logits[t];
    }
    for (int t = 0; t < len; t++) {
        logits[t] /= sum;
    }
}

/* For each kv head: out = scale * op(cache) * right, with the heads of its group as columns. cuBLAS
 * counts by columns, so that our rows are its columns and the cache is [head_size, seq_len]. */
static void multiply(
    cublasOperation_t op, int m, int k, float scale, float *cache, float *right, float *out) {
    const long long step = (long long)m * k, right_step = (long long)k * group_size;
    const float zero = 0;
    check_blas(cublasSgemmStridedBatched(blas, op, CUBLAS_OP_N, m, group_size, k, &scale, cache,
                                         head_size, step, right, k, right_step, &zero, out, m,
                                         (long long)m * group_size, num_kv_heads));
}

static void copy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind) {
    check_cuda(cudaMemcpyAsync(to, from, size, kind, stream));
    check_cuda(cudaStreamSynchronize(stream));
}

int main(void) {
    static float output[num_requests][num_heads * head_size];
    float worst = 0;

    start();
    check_cuda(cudaMalloc((void **)&plain, sizeof *plain));
    check_blas(cublasCreate(&blas));
    check_blas(cublasSetStream(blas, stream));
    make_inputs(&in, 7);
    copy(on_device, &at_start, sizeof at_start, cudaMemcpyHostToDevice);
    copy(&on_device->in, &in, sizeof in, cudaMemcpyHostToDevice);
    update_plan(&in, true);
    decode();
    copy(output, on_device->output, sizeof output, cudaMemcpyDeviceToHost);
    for (int r = 0; r < num_requests; r++) {
        const int len = in.seq_lens[r];
        const float scale = 1 / sqrtf(head_size);
        make_contiguous(r, len);
        copy(plain, &host, sizeof host, cudaMemcpyHostToDevice);
        multiply(CUBLAS_OP_T, len, head_size, scale, plain->kv[0], plain->query, plain->logits);
        copy(host.logits, plain->logits, sizeof host.logits, cudaMemcpyDeviceToHost);
        for (int h = 0; h < num_heads; h++) {
            softmax(&host.logits[h * len], len);
        }
        copy(plain->logits, host.logits, sizeof host.logits, cudaMemcpyHostToDevice);
        multiply(CUBLAS_OP_N, head_size, len, 1, plain->kv[1], plain->logits, plain->output);
        copy(host.output, plain->output, sizeof host.output, cudaMemcpyDeviceToHost);
        for (int i = 0; i < num_heads * head_size; i++) {
            worst = fmaxf(worst, fabsf(output[r][i] - host.output[i]));
        }
    }
    /* A bfloat16 weight is off by up to one part in 512, and values reach 2. */
    const bool is_right = worst < 2.0f / 256;
    printf("%d and %d scattered tokens: %s\n", in.seq_lens[0], in.seq_lens[1],
           is_right ? "as cuBLAS over contiguous ones" : "WRONG");
    check_blas(cublasDestroy(blas));
    check_cuda(cudaFree(plain));
    stop();
    return is_right ? 0 : 1;
}
