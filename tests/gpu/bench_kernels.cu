/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The kernels that bench_attention holds the library's against (bench/attention_cuda.h): a plain
 * reader of memory, a reader of the same slabs in the same order, the decode kernel of which only the
 * loads, or the loads and Q K', are left, and the whole of it with other launches.
 *
 * The one idea: the stages stand on the library's own pipeline (kernels/cuda/pipe.cuh) and walk the
 * same plan, so that the differences between them are what each stage costs. */
#include <cmath>

#include "bench/attention_cuda.h"
#include "kernels/cuda/attend.cuh"

namespace {

/* ---- Readers. What was read is written only if it is a number that it is not, which no compiler
 * knows. */

constexpr int reader_threads = 256;
constexpr size_t loads_at_once = 8;

PKVI_WRAPPER uint32_t fold(uint4 value) {
    return value.x | value.y | value.z | value.w;
}

__global__ void __launch_bounds__(reader_threads)
    read_kernel(const unsigned char *memory, size_t num_pieces, uint32_t *sink) {
    const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
    size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    uint32_t seen = 0;

    for (; i + (loads_at_once - 1) * step < num_pieces; i += loads_at_once * step) {
        uint4 pieces[loads_at_once];

#pragma unroll
        for (size_t n = 0; n < loads_at_once; n++) {
            pieces[n] = simt::load_global_const_16(memory + (i + n * step) * 16);
        }
#pragma unroll
        for (size_t n = 0; n < loads_at_once; n++) {
            seen |= fold(pieces[n]);
        }
    }
    for (; i < num_pieces; i += step) {
        seen |= fold(simt::load_global_const_16(memory + i * 16));
    }
    if (seen == 0x5bd1e995u && sink != nullptr) {
        *sink = seen;
    }
}

struct walk_parameters {
    const unsigned char *keys, *values;
    const pkv_block_id *table;
    int64_t block_stride, head_stride; /* bytes */
    int32_t num_columns, chunk_columns, num_chunks, num_heads;
    int32_t slab_pieces; /* 16 bytes each, of one block and head */
    uint32_t *sink;
};

constexpr int walk_threads = 128;

__global__ void __launch_bounds__(walk_threads) walk_kernel(walk_parameters w) {
    const int32_t unit = static_cast<int32_t>(blockIdx.x);
    const int32_t head = unit % w.num_heads;
    const int32_t chunk = unit / w.num_heads % w.num_chunks;
    const int64_t request = unit / w.num_heads / w.num_chunks;
    const int32_t first = chunk * w.chunk_columns;
    const int32_t end = pkvi::smaller(first + w.chunk_columns, w.num_columns);
    const pkv_block_id *row = w.table + request * w.num_columns;
    const int32_t num_pieces = (end - first) * w.slab_pieces;
    uint32_t seen = 0;

    /* The loads of several iterations are under way at once. */
#pragma unroll 4
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < num_pieces; i += walk_threads) {
        const int32_t column = i / w.slab_pieces;
        const int64_t place = row[first + column] * w.block_stride + head * w.head_stride +
                              (i - column * w.slab_pieces) * 16;

        seen |= fold(simt::load_global_const_16(w.keys + place));
        seen |= fold(simt::load_global_const_16(w.values + place));
    }
    if (seen == 0x5bd1e995u && w.sink != nullptr) {
        *w.sink = seen;
    }
}

/* ---- Stages of the decode kernel */

using stage_traits = pkvi::attend_traits<__half, __half, 128, 128, false, 1, 4>;

template <bool has_scores>
__global__ void __launch_bounds__(stage_traits::num_threads)
    stage_kernel(pkvi::attention_parameters p) {
    PKVI_DYNAMIC_SHARED(memory);
    unsigned char *stages = memory;
    unsigned char *queries = stages + p.num_stages * stage_traits::stage_bytes;
    unsigned char *weights = queries + p.num_query_slots * stage_traits::query_slot_bytes;
    auto &shared =
        *reinterpret_cast<pkvi::pipe_shared<stage_traits> *>(weights + stage_traits::weight_bytes);
    pkvi::pipe<stage_traits> pipe(p, shared, stages, queries);
    pkvi::attend<stage_traits> attend(p, shared, weights);
    float seen = 0.0f;

    if (threadIdx.x == 0) {
        shared.num_items[0] = shared.is_end[0] = 0;
        shared.num_items[1] = shared.is_end[1] = 0;
    }
    for (;;) {
        const bool has_tile = pipe.pipe_wait();

        pipe.produce();
        if (has_tile) {
            if (has_scores) {
                attend.compute_scores(queries + pipe.compute_slot * stage_traits::query_slot_bytes,
                                      stages + pipe.compute_stage * stage_traits::stage_bytes);
#pragma unroll
                for (int i = 0; i < stage_traits::num_score_tiles; i++) {
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        seen += attend.scores[i][e];
                    }
                }
            }
            pipe.pipe_release();
        } else if (pipe.is_end && pipe.computed.item == pipe.num_known) {
            break;
        }
    }
    if (has_scores) { /* each thread has a float of its own in the workspace */
        p.workspace[blockIdx.x * stage_traits::num_threads + threadIdx.x] = seen;
    }
}

cudaError_t count_multiprocessors(int *count, int *block_shared, int *multiprocessor_shared) {
    int device = 0;
    cudaError_t error = cudaGetDevice(&device);

    if (error == cudaSuccess) {
        error = cudaDeviceGetAttribute(count, cudaDevAttrMultiProcessorCount, device);
    }
    if (error == cudaSuccess) {
        error =
            cudaDeviceGetAttribute(block_shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    }
    if (error == cudaSuccess) {
        error = cudaDeviceGetAttribute(multiprocessor_shared,
                                       cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
    }
    return error;
}

void fill_parameters(const attention_setup *setup,
                     attention_table table,
                     pkvi::attention_parameters *p) {
    const attention_setup_config &c = setup->config;
    const pkv_tensor &keys = setup->k_cache[table == TABLE_CONTIGUOUS ? 0 : 1];
    const pkv_tensor &values = setup->v_cache[table == TABLE_CONTIGUOUS ? 0 : 1];

    *p = {};
    p->query = static_cast<const unsigned char *>(setup->query);
    p->k_cache = static_cast<const unsigned char *>(keys.data);
    p->v_cache = static_cast<const unsigned char *>(values.data);
    p->workspace = static_cast<float *>(setup->workspace);
    p->block_table = setup->tables[table];
    p->seq_lens = setup->seq_lens;
    p->plan = static_cast<const pkvi_plan_header *>(setup->plan_data);
    p->query_stride[0] = static_cast<int64_t>(c.num_query_heads) * c.head_size;
    p->query_stride[1] = c.head_size;
    for (int i = 0; i < 3; i++) {
        p->k_stride[i] = keys.stride[i] * 2;
        p->v_stride[i] = values.stride[i] * 2;
    }
    p->block_table_stride = setup->num_columns;
    p->block_size = pkvi_make_divisor(c.block_size);
    p->group_size = pkvi_make_divisor(c.num_query_heads / c.num_kv_heads);
    p->num_kv_heads = pkvi_make_divisor(c.num_kv_heads);
    p->softmax_scale = 1.0f;
    p->head_size = p->v_head_size = c.head_size;
    p->num_tokens = c.num_requests * c.query_len;
    p->num_query_heads = c.num_query_heads;
    p->query_dtype = c.query_dtype;
    p->has_wide_rows = true;
}

/* Loading a kernel may wait for the device: before anything is timed, by the first call. */
template <class kernel_type> cudaError_t load_kernel(kernel_type *kernel) {
    cudaFuncAttributes attributes;

    return cudaFuncGetAttributes(&attributes, reinterpret_cast<const void *>(kernel));
}

/* A launch of the small tile over FLOAT16, heads of 128, as the library would size it. */
struct half_launch {
    const pkvi::attention_instance *instance;
    pkvi::attention_parameters p;
    int num_multiprocessors, block_shared, multiprocessor_shared;
    size_t bytes; /* of shared memory a block */
};

cudaError_t size_half_launch(const attention_setup *setup,
                             attention_table table,
                             half_launch *launch) {
    cudaError_t error = count_multiprocessors(&launch->num_multiprocessors, &launch->block_shared,
                                              &launch->multiprocessor_shared);

    launch->instance =
        pkvi::find_attention_instance(PKV_DTYPE_FLOAT16, PKV_DTYPE_FLOAT16, 128, 128, 16);
    if (error != cudaSuccess || launch->instance == nullptr || setup->config.head_size != 128 ||
        setup->config.query_dtype != PKV_DTYPE_FLOAT16 ||
        setup->config.kv_dtype != PKV_DTYPE_FLOAT16) {
        return error != cudaSuccess ? error : cudaErrorInvalidValue;
    }
    fill_parameters(setup, table, &launch->p);
    launch->bytes =
        pkvi::size_attention_shared(launch->instance, static_cast<size_t>(launch->block_shared),
                                    static_cast<size_t>(launch->multiprocessor_shared),
                                    &launch->p.num_stages, &launch->p.num_query_slots);
    return cudaSuccess;
}

} // namespace

int attention_cuda_read(const void *memory, size_t size, struct CUstream_st *stream) {
    int count = 0, block_shared = 0, multiprocessor_shared = 0;
    cudaError_t error = count_multiprocessors(&count, &block_shared, &multiprocessor_shared);

    if (error == cudaSuccess) {
        error = load_kernel(read_kernel);
    }
    if (error == cudaSuccess) {
        const simt::launch_shape shape = {dim3(static_cast<unsigned>(count) * 8),
                                          dim3(reader_threads), 0, stream, false};

        error = simt::launch(read_kernel, shape, static_cast<const unsigned char *>(memory),
                             size / 16, static_cast<uint32_t *>(nullptr));
    }
    return error;
}

int attention_cuda_walk(const attention_setup *setup,
                        attention_table table,
                        struct CUstream_st *stream) {
    const attention_setup_config &c = setup->config;
    const pkv_tensor &keys = setup->k_cache[table == TABLE_CONTIGUOUS ? 0 : 1];
    const pkv_tensor &values = setup->v_cache[table == TABLE_CONTIGUOUS ? 0 : 1];
    const auto element = static_cast<int64_t>(pkv_dtype_size(c.kv_dtype));
    walk_parameters w = {};
    cudaError_t error = load_kernel(walk_kernel);

    w.keys = static_cast<const unsigned char *>(keys.data);
    w.values = static_cast<const unsigned char *>(values.data);
    w.table = setup->tables[table];
    w.block_stride = keys.stride[0] * element;
    w.head_stride = keys.stride[1] * element;
    w.num_columns = setup->num_columns;
    w.chunk_columns = PKV_PLAN_DEFAULT_CHUNK_SIZE / c.block_size;
    w.num_chunks = (w.num_columns + w.chunk_columns - 1) / w.chunk_columns;
    w.num_heads = c.num_kv_heads;
    w.slab_pieces = static_cast<int32_t>(c.block_size * c.head_size * element / 16);
    const auto num_units = static_cast<unsigned>(c.num_requests * w.num_chunks * w.num_heads);
    const simt::launch_shape shape = {dim3(num_units), dim3(walk_threads), 0, stream, false};
    return error == cudaSuccess ? simt::launch(walk_kernel, shape, w) : error;
}

int attention_cuda_stage_run(const attention_setup *setup,
                             attention_table table,
                             attention_cuda_stage stage,
                             struct CUstream_st *stream) {
    auto *const kernel = stage == CUDA_STAGE_LOADS ? stage_kernel<false> : stage_kernel<true>;
    half_launch launch = {};
    cudaError_t error = size_half_launch(setup, table, &launch);

    if (error != cudaSuccess) {
        return error;
    }
    /* As many blocks as the library starts: attention.cu. */
    const size_t fitting =
        static_cast<size_t>(launch.multiprocessor_shared) / (launch.bytes + 1024);
    const auto num_blocks = static_cast<unsigned>(fitting < 1   ? 1
                                                  : fitting < 4 ? fitting
                                                                : 4) *
                            static_cast<unsigned>(launch.num_multiprocessors);
    if (num_blocks * stage_traits::num_threads * sizeof(float) > ATTENTION_CUDA_LEAST_WORKSPACE) {
        return cudaErrorInvalidValue;
    }
    error = load_kernel(kernel);
    if (error == cudaSuccess) {
        error = simt::allow_shared_bytes(kernel, launch.bytes);
    }
    const simt::launch_shape shape = {dim3(num_blocks), dim3(stage_traits::num_threads),
                                      launch.bytes, stream, false};
    return error == cudaSuccess ? simt::launch(kernel, shape, launch.p) : error;
}

int attention_cuda_variant_run(const attention_setup *setup,
                               attention_table table,
                               int32_t num_stages,
                               int32_t num_blocks,
                               struct CUstream_st *stream) {
    half_launch launch = {};
    cudaError_t error = size_half_launch(setup, table, &launch);

    if (error != cudaSuccess) {
        return error;
    }
    const pkvi::attention_instance *instance = launch.instance;
    pkvi::attention_parameters &p = launch.p;
    p.output = static_cast<unsigned char *>(setup->output);
    p.output_stride[0] = p.query_stride[0];
    p.output_stride[1] = p.query_stride[1];
    p.softmax_scale = static_cast<float>(1.0 / sqrt(static_cast<double>(p.head_size)));
    /* In a small tile a query goes with each stage. */
    p.num_stages = p.num_query_slots = num_stages;
    const size_t bytes =
        static_cast<size_t>(num_stages) * (instance->stage_bytes + instance->query_slot_bytes) +
        instance->other_bytes;
    if (bytes > static_cast<size_t>(launch.block_shared) ||
        static_cast<size_t>(num_blocks) * (bytes + 1024) >
            static_cast<size_t>(launch.multiprocessor_shared)) {
        return ATTENTION_CUDA_NO_ROOM;
    }
    /* The library's own launches go on. */
    error = simt::allow_shared_bytes(instance->kernel, bytes > launch.bytes ? bytes : launch.bytes);
    const simt::launch_shape shape = {
        dim3(static_cast<unsigned>(num_blocks) * static_cast<unsigned>(launch.num_multiprocessors)),
        dim3(static_cast<unsigned>(instance->num_threads)), bytes, stream, false};
    if (error == cudaSuccess) {
        error = simt::launch(instance->kernel, shape, p);
    }
    return error == cudaSuccess ? pkvi::launch_merge(p, stream) : error;
}
