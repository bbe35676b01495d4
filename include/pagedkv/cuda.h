/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The CUDA device: how it is made, and how its streams are named. Opt-in: <pagedkv.h> does not
 * include it. It needs no CUDA header, since a cudaStream_t is a pointer to struct CUstream_st.
 *
 * The one idea: every function of this header is in every build. Without the backend
 * pkv_has_feature(PKV_FEATURE_CUDA_DEVICE) is false and making a device gives
 * PKV_ERROR_UNSUPPORTED.
 *
 * What the CUDA device adds to the contracts of device.h, attention.h and transfer.h:
 *
 *   stream      A pkv_stream is a cudaStream_t of the device; NULL is the legacy default stream. It
 *               is the caller's and lives as long as work that was enqueued on it is waited for. A
 *               stream that is made after another was destroyed is a new one, under the same
 *               handle, too.
 *   order       Operations are enqueued and run in the order of their stream. Nothing waits for the
 *               device but pkv_device_synchronize and pkv_device_destroy.
 *   streams     What one stream writes and another one copies wants a fence between them: recorded
 *               behind the write, waited for before the copy; or pkv_device_synchronize, or a fence
 *               that pkv_fence_query has found passed. pkv_copy_blocks and pkv_swap_blocks refuse
 *               with PKV_ERROR_INVALID_ARGUMENT a source block that a fill, copy or swap of another
 *               stream wrote last, and a source that pkv_write_kv writes to on another stream, as
 *               long as their stream has never waited for that one. The device knows the order of
 *               its own fences only, and of the last few thousand blocks; what it does not know it
 *               lets pass. A caller with events or synchronisations of its own sets
 *               ignores_stream_order. In a capture nothing is refused. Nobody has written to what
 *               CUDA has allocated anew, at whatever address; memory that an allocator of the
 *               caller's hands out again is the same memory.
 *   memory      Tensors and arrays are in memory that the device reaches. Lists that are said to be
 *               "on the host until the call returns" travel in the arguments of the kernels. All
 *               else that an operation reads and writes lives until the operation has run.
 *   trust       What stands in device memory (slots, positions, block tables, lengths) is not
 *               checked; a wrong value is the caller's error, as in any kernel.
 *   capture     Every operation may be captured into a CUDA graph; host lists are captured by
 *               value. What waits or asks (pkv_device_synchronize, pkv_fence_query) may not, and
 *               swaps keep pointing to the host pool.
 *   device      The calling thread's current CUDA device is what it was, after each call.
 *   fences      A fence is a CUDA event without timing. What it is recorded on, and what waits for
 *               it, are streams of the device that made it.
 *   shapes      What pkv_attention computes depends on the shared memory that a block of the device
 *               may have: pkv_attention_supports says it of one device, docs/kernels.md of all. */
#ifndef PAGEDKV_CUDA_H
#define PAGEDKV_CUDA_H

#include <pagedkv/device.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;

/* As device_ordinal: the device that is current in the calling thread. */
#define PKV_CUDA_CURRENT_DEVICE (-1)

/* How a CUDA device is made. Zero means default: device 0, malloc, no log. */
typedef struct pkv_cuda_config {
    uint32_t struct_size;
    int32_t device_ordinal; /* as cudaSetDevice counts, or PKV_CUDA_CURRENT_DEVICE */
    pkv_allocator allocator;
    pkv_log_fn log; /* told once, at creation: what was found, or in CUDA's words why not */
    void *log_context;
    bool ignores_stream_order; /* the caller orders streams by means of its own, see above */
} pkv_cuda_config;

/* Host bytes that a CUDA device of this config needs, under 1 MiB. It owns no device memory.
 * [any thread | O(1) | no allocation]
 *
 * config  NULL is the default config; read during the call only.
 *
 * Returns 0 for a config that pkv_device_create_cuda refuses whatever device there is, and in
 * builds without the backend. No CUDA call is made. */
PKV_API size_t pkv_device_cuda_size(const pkv_cuda_config *config);

/* Make a CUDA device in the caller's memory. Loads every kernel of the library, so that no later
 * operation loads one while a graph is captured; not to be called during a capture.
 * [makes the CUDA context where there is none | O(kernels), slow | no allocation but CUDA's own |
 * all-or-nothing]
 *
 * config  NULL is the default config; read during the call only.
 * memory  64-byte aligned host memory of at least pkv_device_cuda_size bytes; the caller's, and the
 *         device's until pkv_device_destroy, which waits for all that the CUDA device does and does
 *         not release it.
 * size    bytes of memory.
 * out     valid until pkv_device_destroy; set on PKV_OK only.
 *
 * Returns PKV_OK; PKV_ERROR_INVALID_ARGUMENT (memory, its size or alignment; out NULL; an ordinal
 * below PKV_CUDA_CURRENT_DEVICE; struct_size; one of the allocator's functions without the other);
 * PKV_ERROR_UNSUPPORTED (no backend in this build, an unknown member of config, or a device older
 * than compute capability 8.0); PKV_ERROR_DEVICE (no driver, no such device, or CUDA failed:
 * config.log has the text). Nothing stays then. */
PKV_API pkv_status pkv_device_init_cuda(const pkv_cuda_config *config,
                                        void *memory,
                                        size_t size,
                                        pkv_device **out);

/* Make a CUDA device with one allocation of pkv_device_cuda_size bytes.
 * [as pkv_device_init_cuda | allocates once on the host | all-or-nothing]
 *
 * config, out  as pkv_device_init_cuda; pkv_device_destroy gives the memory back to the allocator.
 *
 * Returns as pkv_device_init_cuda, or PKV_ERROR_OUT_OF_MEMORY. */
PKV_API pkv_status pkv_device_create_cuda(const pkv_cuda_config *config, pkv_device **out);

/* Name a cudaStream_t as operations want it. The name is valid as long as the stream.
 * [any thread | O(1) | no allocation]
 *
 * Returns NULL for NULL, the legacy default stream; it does not look at the stream. */
static inline pkv_stream pkv_stream_of_cuda(struct CUstream_st *stream) {
    return (pkv_stream)(void *)stream;
}

/* The cudaStream_t of a name, the other way round.
 * [any thread | O(1) | no allocation]
 *
 * Returns NULL for NULL. */
static inline struct CUstream_st *pkv_cuda_of_stream(pkv_stream stream) {
    return (struct CUstream_st *)(void *)stream;
}

#ifdef __cplusplus
}
#endif

#endif
