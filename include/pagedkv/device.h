/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* What every device operation shares: tensor views, data types, the device, its streams and fences,
 * and the making of a CPU device (other kinds have an opt-in header each). It knows nothing of
 * requests, keys or the pool.
 *
 * The one idea: layout is stride. No layout enumeration exists; a view says where each element
 * is. */
#ifndef PAGEDKV_DEVICE_H
#define PAGEDKV_DEVICE_H

#include <pagedkv/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Where operations run. Opaque; one per device and engine thread. */
typedef struct pkv_device pkv_device;

/* Order of operations on a device. Opaque; NULL is the device's default order. */
typedef struct pkv_stream_handle *pkv_stream;

/* A point in a stream that another stream can wait for. Opaque. */
typedef struct pkv_fence_handle *pkv_fence;

/* Element types of tensors. Values are part of the ABI; 0 is "no tensor". */
typedef enum pkv_dtype {
    PKV_DTYPE_NONE = 0,
    PKV_DTYPE_FLOAT32 = 1,
    PKV_DTYPE_FLOAT16 = 2,
    PKV_DTYPE_BFLOAT16 = 3,
    PKV_DTYPE_FLOAT8_E4M3 = 4,
    PKV_DTYPE_INT8 = 5,
    PKV_DTYPE_INT32 = 6,
    PKV_DTYPE_INT64 = 7,
    PKV_DTYPE_UINT8 = 8
} pkv_dtype;

#define PKV_MAX_RANK 5

/* A view of memory that somebody else owns. Strides count elements, as in DLPack. Rank 0 with
 * dtype NONE means "absent". */
typedef struct pkv_tensor {
    void *data;
    pkv_dtype dtype;
    int32_t rank;
    int64_t shape[PKV_MAX_RANK];
    int64_t stride[PKV_MAX_RANK];
} pkv_tensor;

/* Bytes of one element of `dtype`; 0 for NONE and for values that are no dtype.
 * [any thread | O(1) | no allocation] */
static inline size_t pkv_dtype_size(pkv_dtype dtype) {
    switch (dtype) {
    case PKV_DTYPE_FLOAT32:
    case PKV_DTYPE_INT32:
        return 4;
    case PKV_DTYPE_FLOAT16:
    case PKV_DTYPE_BFLOAT16:
        return 2;
    case PKV_DTYPE_FLOAT8_E4M3:
    case PKV_DTYPE_INT8:
    case PKV_DTYPE_UINT8:
        return 1;
    case PKV_DTYPE_INT64:
        return 8;
    case PKV_DTYPE_NONE:
        break;
    }
    return 0;
}

/* Instruction sets of the CPU device. Values are part of the ABI. */
typedef enum pkv_cpu_instructions {
    PKV_CPU_AUTO = 0,        /* the best that this processor and system have */
    PKV_CPU_REFERENCE = 1,   /* plain loops in double precision: the specification; slow */
    PKV_CPU_PORTABLE = 2,    /* what every processor of the architecture has */
    PKV_CPU_AVX2 = 3,        /* with FMA and F16C */
    PKV_CPU_AVX512 = 4,      /* F, BW, DQ, VL */
    PKV_CPU_AVX512_BF16 = 5, /* AVX512 and BF16; where query and cache are both BFLOAT16 and a
                                request has many rows, weights are rounded to BFLOAT16 */
    PKV_CPU_NEON = 6
} pkv_cpu_instructions;

/* One item of a parallel loop. `worker` < num_threads of the device; two calls that run at the same
 * time never have the same worker. */
typedef void (*pkv_parallel_body)(void *body_context, int32_t item, int32_t worker);

/* An engine's own parallel loop: call `body` exactly once for each item of [0, num_items), in any
 * order, and return when all calls have returned. It must not fail. */
typedef void (*pkv_parallel_for)(void *context,
                                 int32_t num_items,
                                 pkv_parallel_body body,
                                 void *body_context);

/* Most threads that a CPU device uses. */
#define PKV_MAX_CPU_THREADS 256

/* Threads of a CPU device where the config says 0. */
#define PKV_CPU_DEFAULT_THREADS 1

/* How a CPU device is made. Zero means default. */
typedef struct pkv_cpu_config {
    uint32_t struct_size;
    pkv_cpu_instructions instructions; /* refused with UNSUPPORTED where the processor lacks them */
    int32_t num_threads;               /* calling thread included; 0 = PKV_CPU_DEFAULT_THREADS */
    pkv_parallel_for parallel_for;     /* NULL: num_threads - 1 threads, asleep between operations;
                                      else num_threads is its workers, and 0 is refused */
    void *parallel_context;
    pkv_allocator allocator;
    pkv_log_fn log; /* told once, at creation, which instructions were chosen */
    void *log_context;
} pkv_cpu_config;

/* What a device is. */
typedef struct pkv_device_info {
    uint32_t struct_size;
    bool is_cpu;
    pkv_cpu_instructions instructions; /* CPU only: what runs */
    int32_t num_workers;  /* how many work items run at once; a good num_workers of a plan */
    char description[64]; /* one line for logs: "cpu avx2, 2 threads" */
} pkv_device_info;

/* Say whether a CPU device can use `instructions` here.
 * [any thread | O(1) | no allocation]
 *
 * reason  may be NULL; set to a static sentence where the answer is false (build or processor lacks
 *         them, or the operating system does not save their registers), else to NULL.
 *
 * Returns true for PKV_CPU_AUTO; false for a value that is no instruction set. */
PKV_API bool pkv_cpu_has_instructions(pkv_cpu_instructions instructions, const char **reason);

/* Bytes that a CPU device of this config needs, all scratch memory of its workers included.
 * [any thread | O(1) | no allocation]
 *
 * Returns 0 for a config that pkv_device_create_cpu refuses. */
PKV_API size_t pkv_device_cpu_size(const pkv_cpu_config *config);

/* Make a CPU device in the caller's memory.
 * [starts num_threads - 1 threads, none with parallel_for | O(threads) | no allocation |
 * all-or-nothing]
 *
 * config  NULL is the default config; read during the call only.
 * memory  64-byte aligned, at least pkv_device_cpu_size bytes; the caller's, and the device's until
 *         pkv_device_destroy, which does not release it.
 * out     valid until pkv_device_destroy; set on PKV_OK only.
 *
 * Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT (memory, its size or alignment; num_threads beyond
 * PKV_MAX_CPU_THREADS, or 0 with parallel_for; one of the allocator's functions without the other),
 * PKV_ERROR_UNSUPPORTED (instructions that are not there; an unknown member of config),
 * PKV_ERROR_DEVICE (a thread cannot be started; nothing stays). */
PKV_API pkv_status pkv_device_init_cpu(const pkv_cpu_config *config,
                                       void *memory,
                                       size_t size,
                                       pkv_device **out);

/* Make a CPU device with one allocation of pkv_device_cpu_size bytes.
 * [starts threads as pkv_device_init_cpu | O(threads) | allocates once | all-or-nothing]
 *
 * config, out  as pkv_device_init_cpu; pkv_device_destroy gives the memory back.
 *
 * Returns as pkv_device_init_cpu, or PKV_ERROR_OUT_OF_MEMORY. */
PKV_API pkv_status pkv_device_create_cpu(const pkv_cpu_config *config, pkv_device **out);

/* End a device: wait for its operations, end its threads, give back the memory that it allocated.
 * [mutates device | waits | O(threads)]
 *
 * device  may be NULL. Its fences are to be destroyed before it. */
PKV_API void pkv_device_destroy(pkv_device *device);

/* Wait until everything enqueued on `stream` is done. CPU operations are done when they return.
 * [waits for the device | no allocation]
 *
 * Returns PKV_OK; PKV_ERROR_INVALID_ARGUMENT for a stream that is not of this device (a CPU device
 * has the default stream only); PKV_ERROR_DEVICE for a failure of an earlier operation. */
PKV_API pkv_status pkv_device_synchronize(pkv_device *device, pkv_stream stream);

/* Say in words why the last failing call on this device failed.
 * [reads device | O(1) | no allocation]
 *
 * device  may be NULL: "".
 *
 * Returns a text that stays valid until the next failing call; "" where none failed. */
PKV_API const char *pkv_device_last_error(const pkv_device *device);

/* Describe a device.
 * [reads device | O(1) | no allocation]
 *
 * out  struct_size must be set.
 *
 * Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT. */
PKV_API pkv_status pkv_device_get_info(const pkv_device *device, pkv_device_info *out);

/* Make a fence, not yet recorded; a fence that was never recorded counts as passed.
 * [mutates device | O(1) | no allocation on a CPU device]
 *
 * out  the caller's, to be given to pkv_fence_destroy; valid on PKV_OK only.
 *
 * Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT, PKV_ERROR_DEVICE. */
PKV_API pkv_status pkv_fence_create(pkv_device *device, pkv_fence *out);

/* Put the fence behind everything enqueued on `stream` so far. Recording again moves it.
 * [enqueues on stream | O(1) | no allocation | all-or-nothing]
 *
 * Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT (no fence of this device; a stream that is not),
 * PKV_ERROR_DEVICE. */
PKV_API pkv_status pkv_fence_record(pkv_device *device, pkv_fence fence, pkv_stream stream);

/* Let `stream` wait for the fence, as it was recorded last; the caller does not wait.
 * [enqueues on stream | O(1) | no allocation | all-or-nothing]
 *
 * Returns as pkv_fence_record. */
PKV_API pkv_status pkv_fence_wait(pkv_device *device, pkv_fence fence, pkv_stream stream);

/* Ask whether the fence has been passed.
 * [reads device | O(1), never waits | no allocation]
 *
 * Returns PKV_OK when it has, PKV_IN_PROGRESS, PKV_ERROR_INVALID_ARGUMENT (no fence of this
 * device), PKV_ERROR_DEVICE (also for a failure of an earlier operation). */
PKV_API pkv_status pkv_fence_query(pkv_device *device, pkv_fence fence);

/* Give a fence back.
 * [mutates device | O(1)]
 *
 * fence  may be NULL. */
PKV_API void pkv_fence_destroy(pkv_device *device, pkv_fence fence);

#ifdef __cplusplus
}
#endif

#endif
