/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The runtime that is linked in place of the real one: the functions of cuda_runtime_api.h that the
 * backend calls, over memory, streams and graphs of its own. The declarations are the real ones.
 *
 * The one idea: a stream is a queue that runs only when somebody waits for it. A result that nobody
 * waited for is therefore not there, every time, and not once in a thousand runs. */
#ifndef PKV_TESTS_SIMT_RUNTIME_H
#define PKV_TESTS_SIMT_RUNTIME_H

#include "engine.h"

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace simt {

using work = std::function<cudaError_t()>;

/* The first `ticket` pieces of work of a stream. */
struct dependency {
    CUstream_st *stream;
    uint64_t ticket;
};

struct queued_work {
    work run;
    std::vector<dependency> after;
};

} // namespace simt

struct CUgraph_st {
    std::vector<simt::work> nodes; /* in the order of their capture, which is one that is allowed */
    bool is_invalid;
};

struct CUgraphExec_st {
    std::vector<simt::work> nodes;
};

struct CUstream_st {
    std::deque<simt::queued_work> queue;
    uint64_t num_enqueued;
    uint64_t num_done;
    uint64_t id; /* of the stream that has the handle now; of a destroyed one: when that was */
    int device;
    bool is_default;
    bool is_blocking; /* takes turns with the default stream of its device */
    bool is_destroyed;
    CUgraph_st *capture;
    bool is_capture_origin;
    cudaStreamCaptureMode mode;
};

struct CUevent_st {
    simt::dependency recorded; /* stream nullptr: never recorded */
    CUgraph_st *capture;
    bool has_timing;
    int device;
};

namespace simt {

/* Held in each call: two threads of a test may use the runtime. */
std::recursive_mutex &runtime_lock();

/* Count a call; return what simt_fail_call planted for it, or the error that a grid left behind. */
cudaError_t begin_call(const char *function);

/* Remember an error for cudaGetLastError and return it. */
cudaError_t end_call(cudaError_t error);

/* A kernel failed: every later call fails until simt_clear_error. */
void set_sticky_error(cudaError_t error);

/* Add work to a stream, or to the graph that it captures. */
cudaError_t enqueue(cudaStream_t stream, work run);

/* Run everything that was ever enqueued. */
cudaError_t drain_all();
cudaError_t run_until(dependency what);

CUstream_st *resolve_stream(cudaStream_t stream);

/* The current device of the calling thread. */
int current_device();

/* A call that may not stand in a capture: spoil those that are under way. */
cudaError_t refuse_in_capture();

bool is_host_memory(const void *address, size_t size);

/* Say whether the attributes of the kernel have been touched, so that its code is loaded. */
bool is_kernel_loaded(const void *kernel);
size_t allowed_shared_bytes(const void *kernel);
void clear_sticky_error();
void clear_recorded_error();

/* Drop all work that waits and all captures. */
void forget_work();

} // namespace simt

/* The beginning of each function of the runtime. */
#define PKVI_CALL()                                                                                \
    std::lock_guard<std::recursive_mutex> guard(simt::runtime_lock());                             \
    const cudaError_t call_error = simt::begin_call(__func__);                                     \
    if (call_error != cudaSuccess) {                                                               \
        return simt::end_call(call_error);                                                         \
    }

#endif
