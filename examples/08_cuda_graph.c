/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Decode steps as a CUDA graph: one step is captured and replayed while the sequences grow and the
 * work list changes; then the same steps are called, for comparison.
 *
 * The one idea: a graph holds addresses. What changes is uploaded to the same place before the
 * replay, on the same stream: tokens and lengths each time, the plan when it covers no more. */
#include "tiny_cuda.h"

#include <string.h>

enum { num_steps = 24 };

static float outputs[2][num_steps][num_requests][num_heads * head_size];

static cudaGraphExec_t capture(void) {
    cudaGraph_t graph;
    cudaGraphExec_t executable;

    check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    decode(); /* nothing runs yet */
    check_cuda(cudaStreamEndCapture(stream, &graph));
    check_cuda(cudaGraphInstantiate(&executable, graph, 0));
    check_cuda(cudaGraphDestroy(graph));
    return executable;
}

/* All steps: replayed where there is a graph, else called. Returns how many plans they needed. */
static int run(cudaGraphExec_t graph, float (*output)[num_requests][num_heads * head_size]) {
    struct inputs in;
    int num_plans = 0;

    check_cuda(
        cudaMemcpyAsync(on_device, &at_start, sizeof at_start, cudaMemcpyHostToDevice, stream));
    for (int i = 0; i < num_steps; i++) {
        make_inputs(&in, i);
        num_plans += update_plan(&in, i == 0) ? 1 : 0;
        check_cuda(cudaMemcpyAsync(&on_device->in, &in, sizeof in, cudaMemcpyHostToDevice, stream));
        if (graph != NULL) {
            check_cuda(cudaGraphLaunch(graph, stream));
        } else {
            decode();
        }
        check_cuda(cudaMemcpyAsync(output[i], on_device->output, sizeof output[i],
                                   cudaMemcpyDeviceToHost, stream));
        /* An engine would go on: with two host plans it writes one while the other is copied. */
        check_cuda(cudaStreamSynchronize(stream));
    }
    return num_plans;
}

int main(void) {
    start();
    cudaGraphExec_t graph = capture();
    int num_plans = run(graph, outputs[0]);
    printf("%d steps from 1 captured graph, with %d plans\n", num_steps, num_plans);
    run(NULL, outputs[1]);
    bool is_same = memcmp(outputs[0], outputs[1], sizeof outputs[0]) == 0;
    bool has_moved = memcmp(outputs[0][0], outputs[0][num_steps - 1], sizeof outputs[0][0]) != 0;
    puts(is_same && has_moved ? "replayed and called: bit for bit the same" : "WRONG");
    check_cuda(cudaGraphExecDestroy(graph));
    stop();
    return is_same && has_moved ? 0 : 1;
}
