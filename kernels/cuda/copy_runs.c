/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Copies of whole blocks by the runtime; see copy_runs.h. */
#include "kernels/cuda/copy_runs.h"

/* The first version with cudaMemcpyBatchAsync. */
#define MANY_COPIES_VERSION 12080

bool pkvi_cuda_takes_many_copies(int driver_version) {
    return CUDART_VERSION >= MANY_COPIES_VERSION && driver_version >= MANY_COPIES_VERSION;
}

/* Entries from `first` on whose source and target ids both rise by one. */
static int32_t count_run(const struct pkvi_move *op, int32_t first) {
    int32_t count = 1;

    while (first + count < op->num_copies &&
           op->copies[first + count].source == op->copies[first].source + count &&
           op->copies[first + count].target == op->copies[first].target + count) {
        count++;
    }
    return count;
}

static cudaError_t copy_one_by_one(const struct pkvi_cuda_copies *list, cudaStream_t stream) {
    cudaError_t error = cudaSuccess;

    for (size_t i = 0; error == cudaSuccess && i < list->count; i++) {
        error = cudaMemcpyAsync(list->targets[i], list->sources[i], list->sizes[i],
                                cudaMemcpyDefault, stream);
    }
    return error;
}

#if CUDART_VERSION >= MANY_COPIES_VERSION
static cudaError_t copy_at_once(struct pkvi_cuda_copies *list, cudaStream_t stream) {
    struct cudaMemcpyAttributes attributes = {.srcAccessOrder = cudaMemcpySrcAccessOrderStream};
    size_t first = 0;

#if CUDART_VERSION >= 13000
    return cudaMemcpyBatchAsync(list->targets, list->sources, list->sizes, list->count, &attributes,
                                &first, 1, stream);
#else
    size_t failed;

    return cudaMemcpyBatchAsync(list->targets, (void **)list->sources, list->sizes, list->count,
                                &attributes, &first, 1, &failed, stream);
#endif
}
#else
static cudaError_t copy_at_once(struct pkvi_cuda_copies *list, cudaStream_t stream) {
    (void)list;
    (void)stream;
    return cudaErrorNotSupported;
}
#endif

/* Enqueue what is in the list and empty it. */
static cudaError_t flush(struct pkvi_cuda_copies *list, bool may_batch, cudaStream_t stream) {
    cudaError_t error = cudaErrorNotSupported;

    if (may_batch && list->takes_many && list->count > 1) {
        error = copy_at_once(list, stream);
        if (error == cudaErrorNotSupported || error == cudaErrorCallRequiresNewerDriver) {
            (void)cudaGetLastError();
            list->takes_many = false;
            error = cudaErrorNotSupported;
        }
    }
    if (error == cudaErrorNotSupported) {
        error = copy_one_by_one(list, stream);
    }
    list->count = 0;
    return error;
}

cudaError_t pkvi_cuda_copy_runs(const struct pkvi_move *op,
                                struct pkvi_cuda_copies *list,
                                bool may_batch,
                                cudaStream_t stream) {
    int64_t block_bytes = op->source.shape[2];
    /* Other bytes between the blocks are not to be touched. */
    bool is_dense = op->source.stride[1] == block_bytes && op->target.stride[1] == block_bytes;
    cudaError_t error = cudaSuccess;
    int32_t count;

    list->count = 0;
    for (int32_t i = 0; error == cudaSuccess && i < op->num_copies; i += count) {
        count = is_dense ? count_run(op, i) : 1;
        for (int64_t layer = 0; error == cudaSuccess && layer < op->source.shape[0]; layer++) {
            list->targets[list->count] =
                pkvi_block_address(&op->target, layer, op->copies[i].target);
            list->sources[list->count] =
                pkvi_block_address(&op->source, layer, op->copies[i].source);
            list->sizes[list->count++] = (size_t)(count * block_bytes);
            if (list->count == PKVI_COPIES_PER_CALL) {
                error = flush(list, may_batch, stream);
            }
        }
    }
    return error != cudaSuccess || list->count == 0 ? error : flush(list, may_batch, stream);
}
