/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* A phase of tests/gpu.sh: a decode step is captured into a CUDA graph before attention has run
 * once, then replayed after re-planning for other lengths. Each replay must give the bytes of the
 * same step run without a graph.
 *
 * The one idea: slots, write and attention in one graph, lengths and plan changed only in the
 * buffers that the graph reads, as an engine does it. */
#include <stdlib.h>
#include <string.h>

#include "gpu_batch.h"

/* Output and lse, where a call writes them and on the host. */
struct result {
    void *output, *lse;
    unsigned char *host;
};

static void open_result(struct result *result, const gpu_batch *batch) {
    result->output = phase_allocate(batch->output_size);
    result->lse = phase_allocate(batch->lse_size);
    result->host = phase_host(batch->output_size + batch->lse_size);
}

static void close_result(struct result *result) {
    phase_cuda(cudaFree(result->output), "cudaFree");
    phase_cuda(cudaFree(result->lse), "cudaFree");
    free(result->host);
}

static void clear_result(const struct result *result, const gpu_batch *batch) {
    phase_cuda(cudaMemset(result->output, 0xa5, batch->output_size), "cudaMemset");
    phase_cuda(cudaMemset(result->lse, 0xa5, batch->lse_size), "cudaMemset");
}

static void fetch_result(const struct result *result, const gpu_batch *batch, cudaStream_t stream) {
    phase_cuda(cudaStreamSynchronize(stream), "the step");
    phase_cuda(cudaMemcpy(result->host, result->output, batch->output_size, cudaMemcpyDeviceToHost),
               "cudaMemcpy");
    phase_cuda(cudaMemcpy(result->host + batch->output_size, result->lse, batch->lse_size,
                          cudaMemcpyDeviceToHost),
               "cudaMemcpy");
}

static void run_step(gpu_batch *batch,
                     pkv_device *device,
                     const struct result *result,
                     cudaStream_t stream) {
    gpu_batch_append(batch, device, pkv_stream_of_cuda(stream));
    gpu_batch_run(batch, device, result->output, result->lse, pkv_stream_of_cuda(stream));
}

static cudaGraphExec_t capture_step(gpu_batch *batch,
                                    pkv_device *device,
                                    const struct result *result,
                                    cudaStream_t stream) {
    cudaGraph_t graph;
    cudaGraphExec_t executable;

    phase_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "begin of the capture");
    run_step(batch, device, result, stream);
    phase_cuda(cudaStreamEndCapture(stream, &graph), "end of the capture");
    phase_cuda(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
    phase_cuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
    return executable;
}

enum { NUM_REQUESTS = 5 };

static int64_t chunk = 512;

/* In chunks and keys: {2, 1} is two chunks and a key. At most 2.5 chunks. */
static const struct {
    int32_t chunks, keys;
} lengths[][NUM_REQUESTS] = {
    {{0, 1}, {0, 63}, {0, 64}, {0, 33}, {0, 50}}, /* nothing is split */
    {{2, 30}, {0, 1}, {1, 1}, {2, 0}, {2, 1}},    /* nearly all are */
    {{0, 2}, {0, 2}, {0, 2}, {0, 2}, {0, 2}},     /* fewer items than before */
    {{1, 0}, {2, 31}, {2, 31}, {2, 31}, {2, 31}}, /* as many as there can be */
};
#define NUM_LENGTHS ((int)(sizeof lengths / sizeof lengths[0]))

static void plan_lengths(gpu_batch *batch, pkv_device *device, int i, cudaStream_t stream) {
    int32_t lens[NUM_REQUESTS];

    for (int request = 0; request < NUM_REQUESTS; request++) {
        lens[request] = lengths[i][request].chunks * (int32_t)chunk + lengths[i][request].keys;
    }
    gpu_batch_plan(batch, device, lens, pkv_stream_of_cuda(stream));
}

static void replay_lengths(gpu_batch *batch, pkv_device *device, const char *name) {
    const size_t size = batch->output_size + batch->lse_size;
    struct result replayed, eager;
    unsigned char *before = phase_host(size);
    cudaStream_t stream;

    phase_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    open_result(&replayed, batch);
    open_result(&eager, batch);
    gpu_batch_fill(batch, device, NULL);
    phase_cuda(cudaStreamSynchronize(NULL), "filling the pool");
    plan_lengths(batch, device, 0, stream);
    cudaGraphExec_t executable = capture_step(batch, device, &replayed, stream);

    for (int round = 0; round <= NUM_LENGTHS; round++) {
        int i = round % NUM_LENGTHS;

        plan_lengths(batch, device, i, stream);
        clear_result(&replayed, batch);
        clear_result(&eager, batch);
        phase_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
        phase_cuda(cudaGraphLaunch(executable, stream), "cudaGraphLaunch");
        fetch_result(&replayed, batch, stream);
        run_step(batch, device, &eager, stream);
        fetch_result(&eager, batch, stream);
        phase_check(memcmp(replayed.host, eager.host, size) == 0,
                    "%s: replay %d, lengths %d: not the bytes of the step without a graph", name,
                    round, i);
        phase_check(memcmp(replayed.host, before, size) != 0,
                    "%s: replay %d gives what the one before it gave", name, round);
        memcpy(before, replayed.host, size);
    }
    phase_cuda(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
    phase_cuda(cudaStreamDestroy(stream), "cudaStreamDestroy");
    close_result(&replayed);
    close_result(&eager);
    free(before);
}

/* As long as a plan covers the lengths, only they change from step to step. */
static void grow_within_a_chunk(gpu_batch *batch, pkv_device *device) {
    const size_t size = batch->output_size + batch->lse_size;
    const int32_t c = (int32_t)chunk;
    int32_t lens[NUM_REQUESTS] = {10, 20, c + 1, c + 25, 2 * c + 1};
    struct result covered, planned;
    cudaStream_t stream;

    phase_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    open_result(&covered, batch);
    open_result(&planned, batch);
    gpu_batch_plan(batch, device, lens, pkv_stream_of_cuda(stream));
    cudaGraphExec_t executable = capture_step(batch, device, &covered, stream);
    for (int step = 0; step < 5; step++) {
        for (int i = 0; i < NUM_REQUESTS; i++) {
            batch->seq_lens[i] = lens[i] += 5;
        }
        phase_cuda(cudaMemcpy(batch->device_lens, lens, sizeof lens, cudaMemcpyHostToDevice),
                   "cudaMemcpy");
        clear_result(&covered, batch);
        phase_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
        phase_cuda(cudaGraphLaunch(executable, stream), "cudaGraphLaunch");
        fetch_result(&covered, batch, stream);
        gpu_batch_plan(batch, device, lens, pkv_stream_of_cuda(stream));
        run_step(batch, device, &planned, stream);
        fetch_result(&planned, batch, stream);
        phase_check(memcmp(covered.host, planned.host, size) == 0,
                    "step %d of a covered plan: not the bytes of a new plan", step);
    }
    phase_cuda(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
    phase_cuda(cudaStreamDestroy(stream), "cudaStreamDestroy");
    close_result(&covered);
    close_result(&planned);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        pkv_dtype query, kv;
        int32_t head_size, query_len;
    } variants[] = {
        {"half", PKV_DTYPE_FLOAT16, PKV_DTYPE_FLOAT16, 128, 1},
        {"half, 6 tokens each", PKV_DTYPE_FLOAT16, PKV_DTYPE_FLOAT16, 64, 6},
        {"float over half", PKV_DTYPE_FLOAT32, PKV_DTYPE_FLOAT16, 64, 1},
    };

    const phase_option options[] = {
        {"--chunk", &chunk, 64, 4096, "keys of a chunk, a multiple of 64; requests have up to 2.5"},
    };

    phase_begin("graphs", "Capture, re-plan, replay: the bytes of the same step without a graph.",
                options, 1, argc, argv);
    pkv_device *device = phase_device();
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        const gpu_batch_config config = {.query_dtype = variants[i].query,
                                         .kv_dtype = variants[i].kv,
                                         .num_requests = NUM_REQUESTS,
                                         .query_len = variants[i].query_len,
                                         .max_seq_len = (int32_t)(2 * chunk + chunk / 2),
                                         .block_size = 16,
                                         .num_query_heads = 4,
                                         .num_kv_heads = 1,
                                         .head_size = variants[i].head_size,
                                         .chunk_size = (int32_t)chunk};
        gpu_batch batch;

        gpu_batch_create(&batch, &config, device);
        if (config.query_len == 1) {
            replay_lengths(&batch, device, variants[i].name);
            grow_within_a_chunk(&batch, device);
        } else {
            /* Lengths below the number of query tokens are not lengths of this batch. */
            gpu_batch_fill(&batch, device, NULL);
            grow_within_a_chunk(&batch, device);
        }
        gpu_batch_destroy(&batch);
    }
    pkv_device_destroy(device);
    return phase_end();
}
