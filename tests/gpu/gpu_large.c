/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* A phase of tests/gpu.sh: offsets beyond 4 GiB and beyond 2^32 elements. One batch lies all over a
 * pool of 10 GiB, the same batch in ascending blocks of a small pool; writing, attention, gather,
 * copies and fills must give the same bytes.
 *
 * The one idea: numbers do not depend on where blocks lie, so that a small pool is the
 * reference. */
#include <stdlib.h>
#include <string.h>

#include "gpu_batch.h"

static bool is_same_memory(const void *a, const void *b, size_t size) {
    void *first = phase_fetch(a, size), *second = phase_fetch(b, size);
    bool is_same = memcmp(first, second, size) == 0;

    free(first);
    free(second);
    return is_same;
}

/* Keys and values of all requests, contiguous. */
static void gather(gpu_batch *batch, pkv_device *device, void *key, void *value) {
    const gpu_batch_config *c = &batch->config;
    int32_t *starts = phase_host(((size_t)c->num_requests + 1) * sizeof *starts);

    for (int32_t i = 0; i <= c->num_requests; i++) {
        starts[i] = i * c->max_seq_len;
    }
    void *device_starts = phase_upload(starts, ((size_t)c->num_requests + 1) * sizeof *starts);
    pkv_gather_args args = {.struct_size = sizeof args,
                            .num_requests = c->num_requests,
                            .k_cache = batch->k_cache,
                            .v_cache = batch->v_cache,
                            .block_table = batch->device_table,
                            .block_table_stride = batch->num_columns,
                            .rows = batch->device_rows,
                            .key_start_loc = device_starts};

    args.key = (pkv_tensor){
        key,
        c->kv_dtype,
        3,
        {(int64_t)c->num_requests * c->max_seq_len, c->num_kv_heads, c->head_size},
        {(int64_t)c->num_kv_heads * c->head_size, c->head_size, 1},
    };
    args.value = args.key;
    args.value.data = value;
    phase_status(device, pkv_gather(device, &args, NULL), "pkv_gather");
    phase_cuda(cudaStreamSynchronize(NULL), "gather");
    phase_cuda(cudaFree(device_starts), "cudaFree");
    free(starts);
}

static void compare_operators(gpu_batch *large, gpu_batch *small, pkv_device *device) {
    size_t size = (size_t)small->config.num_requests * (size_t)small->config.max_seq_len *
                  (size_t)(small->config.num_kv_heads * small->config.head_size) *
                  pkv_dtype_size(small->config.kv_dtype);
    gpu_batch *const batches[2] = {large, small};
    void *key[2], *value[2], *output[2], *lse[2];

    for (int i = 0; i < 2; i++) {
        key[i] = phase_allocate(size);
        value[i] = phase_allocate(size);
        output[i] = phase_allocate(small->output_size);
        lse[i] = phase_allocate(small->lse_size);
        gpu_batch_fill(batches[i], device, NULL);
        gpu_batch_run(batches[i], device, output[i], lse[i], NULL);
        gather(batches[i], device, key[i], value[i]);
    }
    phase_check(is_same_memory(key[0], key[1], size), "gathered keys differ");
    phase_check(is_same_memory(value[0], value[1], size), "gathered values differ");
    phase_check(is_same_memory(output[0], output[1], small->output_size),
                "outputs of attention differ");
    phase_check(is_same_memory(lse[0], lse[1], small->lse_size), "lse of attention differs");
    for (int i = 0; i < 2; i++) {
        phase_cuda(cudaFree(key[i]), "cudaFree");
        phase_cuda(cudaFree(value[i]), "cudaFree");
        phase_cuda(cudaFree(output[i]), "cudaFree");
        phase_cuda(cudaFree(lse[i]), "cudaFree");
    }
}

/* From the lowest block to the highest unused one and back, to pinned memory, filled. */
static void move_blocks(gpu_batch *batch, pkv_device *device) {
    pkv_tensor blocks = gpu_batch_blocks(batch), host = blocks;
    size_t block_bytes = (size_t)blocks.shape[2];
    pkv_block_id low = batch->table[0], high = (pkv_block_id)batch->config.num_blocks - 2;
    const pkv_block_copy up = {low, high}, out = {high, 1};
    unsigned char *low_block = batch->pool + (size_t)low * block_bytes;
    unsigned char *high_block = batch->pool + (size_t)high * block_bytes;

    host.shape[1] = 2;
    phase_cuda(cudaMallocHost(&host.data, 2 * block_bytes), "cudaMallocHost");
    host.stride[0] = 2 * (int64_t)block_bytes;
    phase_status(device, pkv_copy_blocks(device, &blocks, &up, 1, NULL), "pkv_copy_blocks");
    phase_status(device, pkv_swap_blocks(device, &blocks, &host, &out, 1, NULL), "pkv_swap_blocks");
    phase_cuda(cudaStreamSynchronize(NULL), "moving blocks");
    unsigned char *wanted = phase_fetch(low_block, block_bytes);
    unsigned char *got = phase_fetch(high_block, block_bytes);
    phase_check(memcmp(wanted, got, block_bytes) == 0, "copy to block %d", (int)high);
    phase_check(memcmp(wanted, (unsigned char *)host.data + block_bytes, block_bytes) == 0,
                "block %d in pinned memory", (int)high);
    free(got);
    phase_status(device, pkv_fill_blocks(device, &blocks, &high, 1, PKV_FILL_ZERO, NULL),
                 "pkv_fill_blocks");
    phase_cuda(cudaStreamSynchronize(NULL), "filling a block");
    got = phase_fetch(high_block, block_bytes);
    size_t num_zeros = 0;
    while (num_zeros < block_bytes && got[num_zeros] == 0) {
        num_zeros++;
    }
    phase_check(num_zeros == block_bytes, "block %d is not zero", (int)high);
    free(got);
    got = phase_fetch(low_block, block_bytes);
    phase_check(memcmp(wanted, got, block_bytes) == 0, "the fill of block %d changed block %d",
                (int)high, (int)low);
    free(got);
    free(wanted);
    phase_cuda(cudaFreeHost(host.data), "cudaFreeHost");
}

int main(int argc, char **argv) {
    int64_t pool_mib = 10240;
    const phase_option options[] = {
        {"--pool-mib", &pool_mib, 16, 1 << 20,
         "size of the large pool; beyond 8192 offsets pass "
         "2^32 elements"},
    };
    gpu_batch_config config = {.query_dtype = PKV_DTYPE_FLOAT16,
                               .kv_dtype = PKV_DTYPE_FLOAT16,
                               .num_requests = 3,
                               .query_len = 1,
                               .max_seq_len = 530,
                               .block_size = 16,
                               .num_query_heads = 4,
                               .num_kv_heads = 2,
                               .head_size = 128};
    size_t free_bytes, total_bytes;
    gpu_batch large, small;

    phase_begin("large", "A batch all over a large pool gives the bytes of a small pool.", options,
                1, argc, argv);
    pkv_device *device = phase_device();
    phase_cuda(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
    if ((uint64_t)free_bytes >> 20 < (uint64_t)pool_mib + 512) {
        pkv_device_destroy(device);
        phase_skip("%d MiB of device memory are free, %d are needed", (int)(free_bytes >> 20),
                   (int)pool_mib + 512);
    }
    gpu_batch_create(&small, &config, device);
    config.num_blocks =
        (pool_mib << 20) / (int64_t)(small.pool_size / (size_t)small.config.num_blocks);
    config.is_spread = true;
    gpu_batch_create(&large, &config, device);
    phase_metric("pool", "bytes", (double)large.pool_size);
    phase_metric("pool", "largest element offset",
                 (double)(large.config.num_blocks - 1) * (double)large.k_cache.stride[0]);
    compare_operators(&large, &small, device);
    move_blocks(&large, device);
    gpu_batch_destroy(&large);
    gpu_batch_destroy(&small);
    pkv_device_destroy(device);
    return phase_end();
}
