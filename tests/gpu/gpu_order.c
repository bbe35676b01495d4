/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* A phase of tests/gpu.sh: order and repetition. One stream writes keys and values, another
 * computes attention behind a fence, with nobody waiting in between; and a hundred runs of one
 * call give one and the same bytes while other work fills the device. */
#include <stdlib.h>
#include <string.h>

#include "gpu_batch.h"

static gpu_batch_config usual = {.query_dtype = PKV_DTYPE_BFLOAT16,
                                 .kv_dtype = PKV_DTYPE_BFLOAT16,
                                 .num_requests = 6,
                                 .query_len = 1,
                                 .max_seq_len = 1100,
                                 .block_size = 16,
                                 .num_query_heads = 8,
                                 .num_kv_heads = 2,
                                 .head_size = 128,
                                 .chunk_size = 256};

static pkv_fence make_fence(pkv_device *device) {
    pkv_fence fence;

    phase_status(device, pkv_fence_create(device, &fence), "pkv_fence_create");
    return fence;
}

/* Poison and content on one stream, attention on the other; each try waits for the one before it by
 * fences alone. A missing order would show poison, which is NaN. */
static void two_streams(pkv_device *device, int64_t num_tries) {
    gpu_batch batch;
    cudaStream_t writer, reader;

    gpu_batch_create(&batch, &usual, device);
    gpu_batch_fill(&batch, device, NULL);
    void *output = phase_allocate(batch.output_size), *lse = phase_allocate(batch.lse_size);
    gpu_batch_run(&batch, device, output, lse, NULL);
    phase_cuda(cudaStreamSynchronize(NULL), "attention");
    unsigned char *expected = phase_fetch(output, batch.output_size);
    pkv_tensor blocks = gpu_batch_blocks(&batch);
    int32_t count = batch.config.num_requests * batch.num_columns;
    pkv_fence written = make_fence(device), read = make_fence(device);

    phase_cuda(cudaStreamCreateWithFlags(&writer, cudaStreamNonBlocking), "cudaStreamCreate");
    phase_cuda(cudaStreamCreateWithFlags(&reader, cudaStreamNonBlocking), "cudaStreamCreate");
    for (int64_t i = 0; i < num_tries; i++) {
        phase_status(device, pkv_fence_wait(device, read, pkv_stream_of_cuda(writer)),
                     "pkv_fence_wait");
        phase_status(device,
                     pkv_fill_blocks(device, &blocks, batch.table, count, PKV_FILL_POISON,
                                     pkv_stream_of_cuda(writer)),
                     "pkv_fill_blocks");
        gpu_batch_fill(&batch, device, pkv_stream_of_cuda(writer));
        phase_status(device, pkv_fence_record(device, written, pkv_stream_of_cuda(writer)),
                     "pkv_fence_record");
        phase_status(device, pkv_fence_wait(device, written, pkv_stream_of_cuda(reader)),
                     "pkv_fence_wait");
        gpu_batch_run(&batch, device, output, lse, pkv_stream_of_cuda(reader));
        phase_status(device, pkv_fence_record(device, read, pkv_stream_of_cuda(reader)),
                     "pkv_fence_record");
        phase_status(device, pkv_device_synchronize(device, pkv_stream_of_cuda(reader)),
                     "pkv_device_synchronize");
        unsigned char *got = phase_fetch(output, batch.output_size);
        phase_check(memcmp(got, expected, batch.output_size) == 0,
                    "two streams, try %d: not the bytes of one stream", (int)i);
        free(got);
    }
    phase_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    pkv_fence_destroy(device, written);
    pkv_fence_destroy(device, read);
    phase_cuda(cudaStreamDestroy(writer), "cudaStreamDestroy");
    phase_cuda(cudaStreamDestroy(reader), "cudaStreamDestroy");
    phase_cuda(cudaFree(output), "cudaFree");
    phase_cuda(cudaFree(lse), "cudaFree");
    free(expected);
    gpu_batch_destroy(&batch);
}

/* All runs are enqueued before one is waited for; two other streams keep the device busy. */
static void repeats_under_load(pkv_device *device,
                               const gpu_batch_config *config,
                               const char *name,
                               int64_t num_repeats) {
    gpu_batch batch, other;
    cudaStream_t streams[3];

    gpu_batch_create(&batch, config, device);
    gpu_batch_create(&other, &usual, device);
    gpu_batch_fill(&batch, device, NULL);
    gpu_batch_fill(&other, device, NULL);
    size_t stride = (batch.output_size + batch.lse_size + 255) / 256 * 256;
    unsigned char *results = phase_allocate(stride * (size_t)num_repeats);
    void *output = phase_allocate(other.output_size), *lse = phase_allocate(other.lse_size);
    void *from = phase_allocate((size_t)1 << 20), *to = phase_allocate((size_t)1 << 20);

    phase_cuda(cudaMemset(results, 0, stride * (size_t)num_repeats), "cudaMemset");
    phase_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    for (int i = 0; i < 3; i++) {
        phase_cuda(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking),
                   "cudaStreamCreate");
    }
    for (int64_t i = 0; i < num_repeats; i++) {
        unsigned char *result = results + stride * (size_t)i;

        gpu_batch_run(&other, device, output, lse, pkv_stream_of_cuda(streams[1]));
        phase_cuda(cudaMemcpyAsync(to, from, (size_t)1 << 20, cudaMemcpyDeviceToDevice, streams[2]),
                   "cudaMemcpyAsync");
        gpu_batch_run(&batch, device, result, result + batch.output_size,
                      pkv_stream_of_cuda(streams[0]));
    }
    phase_cuda(cudaDeviceSynchronize(), "the runs");
    unsigned char *all = phase_fetch(results, stride * (size_t)num_repeats);
    int64_t num_different = 0;
    for (int64_t i = 1; i < num_repeats; i++) {
        num_different += memcmp(all, all + stride * (size_t)i, stride) != 0;
    }
    phase_metric(name, "runs unlike the first", (double)num_different);
    phase_check(num_different == 0, "%s: %d of %d runs differ from the first", name,
                (int)num_different, (int)num_repeats);
    free(all);
    for (int i = 0; i < 3; i++) {
        phase_cuda(cudaStreamDestroy(streams[i]), "cudaStreamDestroy");
    }
    phase_cuda(cudaFree(results), "cudaFree");
    phase_cuda(cudaFree(output), "cudaFree");
    phase_cuda(cudaFree(lse), "cudaFree");
    phase_cuda(cudaFree(from), "cudaFree");
    phase_cuda(cudaFree(to), "cudaFree");
    gpu_batch_destroy(&batch);
    gpu_batch_destroy(&other);
}

int main(int argc, char **argv) {
    int64_t num_repeats = 100, num_tries = 20, num_keys = usual.max_seq_len;
    const phase_option options[] = {
        {"--repeats", &num_repeats, 2, 10000, "runs of one call under load"},
        {"--tries", &num_tries, 1, 10000, "rounds of two streams"},
        {"--keys", &num_keys, 40, 100000, "keys of a request; chunks are of 256"},
    };
    gpu_batch_config config;

    phase_begin("order", "Two streams and a fence; repeats under load give the same bytes.",
                options, 3, argc, argv);
    usual.max_seq_len = (int32_t)num_keys;
    config = usual;
    pkv_device *device = phase_device();
    two_streams(device, num_tries);
    config.query_dtype = config.kv_dtype = PKV_DTYPE_FLOAT16;
    repeats_under_load(device, &config, "decode, split in chunks", num_repeats);
    config.query_len = 40;
    config.num_requests = 2;
    repeats_under_load(device, &config, "prefill, large tiles", num_repeats);
    config.query_dtype = PKV_DTYPE_FLOAT32;
    config.query_len = 1;
    repeats_under_load(device, &config, "float queries", num_repeats);
    pkv_device_destroy(device);
    return phase_end();
}
