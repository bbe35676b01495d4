/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The CUDA device: how it is made, its streams and fences, its table of functions. The kernels and
 * their launches are in the other files of this folder.
 *
 * The one idea: each call makes its device current, does one thing, puts the caller's device back
 * and turns CUDA's answer into a status whose text is CUDA's own. No call waits or allocates. */
#include <stdio.h>
#include <string.h>

#include <pagedkv/cuda.h>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/launch_attention.h"

/* Tensor cores of 16-bit types and cp.async begin here. */
#define LEAST_COMPUTE_MAJOR 8

struct cuda_device {
    struct pkv_device base;
    int ordinal;
    struct pkvi_cuda_limits limits;
    bool reaches_pageable; /* kernels may read and write any memory of the process */
    void *check_memory;
    char description[64];
};

static struct cuda_device *cuda_of(pkv_device *device) {
    return (struct cuda_device *)(void *)device;
}

static cudaStream_t stream_of(pkv_stream stream) {
    return pkv_cuda_of_stream(stream);
}

/* ---- The current device, and errors */

/* Make `ordinal` current. `previous` is for leave. */
static cudaError_t enter(int ordinal, int *previous) {
    cudaError_t error = cudaGetDevice(previous);

    if (error != cudaSuccess) {
        *previous = ordinal;
        return error;
    }
    return *previous == ordinal ? cudaSuccess : cudaSetDevice(ordinal);
}

/* Put the caller's device back; an error of the work itself comes first. */
static cudaError_t leave(int ordinal, int previous, cudaError_t error) {
    cudaError_t restored = previous == ordinal ? cudaSuccess : cudaSetDevice(previous);

    return error != cudaSuccess ? error : restored;
}

/* The status of CUDA's answer. The runtime keeps the last error until it is asked for: it is taken
 * away here, so that the caller does not find ours. */
static pkv_status finish(pkv_device *device, const char *what, cudaError_t error) {
    if (error == cudaSuccess) {
        return PKV_OK;
    }
    (void)cudaGetLastError();
    if (error == cudaErrorNotReady) {
        return PKV_IN_PROGRESS;
    }
    return PKVI_DEVICE_FAIL(
        device,
        error == cudaErrorInvalidResourceHandle ? PKV_ERROR_INVALID_ARGUMENT : PKV_ERROR_DEVICE,
        "%s: %s (%s)", what, cudaGetErrorString(error), cudaGetErrorName(error));
}

/* ---- Making and ending */

static void log_failure(const pkv_cuda_config *config, const char *what, cudaError_t error) {
    char text[160];

    (void)cudaGetLastError();
    if (config->log != NULL) {
        (void)snprintf(text, sizeof text, "%s: %s (%s)", what, cudaGetErrorString(error),
                       cudaGetErrorName(error));
        config->log(config->log_context, PKV_LOG_ERROR, text);
    }
}

static size_t carve(unsigned char *base, struct cuda_device **device, void **check_memory) {
    struct pkvi_carver carver = {.base = base};

    *device = pkvi_carve(&carver, 1, sizeof **device);
    *check_memory = pkvi_carve(&carver, 1, PKVI_CHECK_MEMORY_SIZE);
    return carver.offset;
}

static pkv_status read_config(const pkv_cuda_config *given, pkv_cuda_config *config) {
    const pkv_cuda_config nothing = {.struct_size = sizeof nothing};
    pkv_status status =
        pkvi_read_struct(config, sizeof *config, offsetof(pkv_cuda_config, allocator),
                         given == NULL ? &nothing : given);

    if (status != PKV_OK) {
        return status;
    }
    return config->device_ordinal < PKV_CUDA_CURRENT_DEVICE ||
                   !pkvi_allocator_is_valid(&config->allocator)
               ? PKV_ERROR_INVALID_ARGUMENT
               : PKV_OK;
}

size_t pkv_device_cuda_size(const pkv_cuda_config *config) {
    struct cuda_device *device;
    pkv_cuda_config known;
    void *check_memory;

    return read_config(config, &known) == PKV_OK ? carve(NULL, &device, &check_memory) : 0;
}

static const struct pkvi_backend cuda_backend;

/* What the device is. */
static cudaError_t probe(struct cuda_device *device, int *major, int *minor) {
    int multiprocessors = 0, pageable = 0, block_shared = 0, multiprocessor_shared = 0;
    const struct {
        enum cudaDeviceAttr attribute;
        int *value;
    } questions[] = {
        {cudaDevAttrComputeCapabilityMajor, major},
        {cudaDevAttrComputeCapabilityMinor, minor},
        {cudaDevAttrMultiProcessorCount, &multiprocessors},
        {cudaDevAttrPageableMemoryAccess, &pageable},
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, &block_shared},
        {cudaDevAttrMaxSharedMemoryPerMultiprocessor, &multiprocessor_shared},
    };
    cudaError_t error = cudaSuccess;

    for (size_t i = 0; error == cudaSuccess && i < sizeof questions / sizeof questions[0]; i++) {
        error = cudaDeviceGetAttribute(questions[i].value, questions[i].attribute, device->ordinal);
    }
    device->limits.num_multiprocessors = multiprocessors;
    device->limits.block_shared_bytes = (size_t)block_shared;
    device->limits.multiprocessor_shared_bytes = (size_t)multiprocessor_shared;
    device->reaches_pageable = pageable != 0;
    return error;
}

/* So that no later operation loads a kernel: in a capture that is an error. */
static cudaError_t load_kernels(const struct cuda_device *device) {
    cudaError_t error = pkvi_cuda_load_cache_kernels();

    if (error == cudaSuccess) {
        error = pkvi_cuda_load_block_kernels();
    }
    return error != cudaSuccess ? error : pkvi_cuda_load_attention_kernels(&device->limits);
}

/* Fill a device of a read config in; it owns nothing but its memory. */
static pkv_status build(const pkv_cuda_config *config, void *memory, pkv_device **out) {
    struct cuda_device *device;
    void *check_memory;
    int previous = 0, major = 0, minor = 0, num_devices = 0;
    cudaError_t error = cudaGetDeviceCount(&num_devices);

    (void)carve(memory, &device, &check_memory);
    memset(device, 0, sizeof *device);
    if (error == cudaSuccess) {
        error = cudaGetDevice(&previous);
    }
    device->ordinal =
        config->device_ordinal == PKV_CUDA_CURRENT_DEVICE ? previous : config->device_ordinal;
    if (error == cudaSuccess && device->ordinal >= num_devices) {
        error = cudaErrorInvalidDevice;
    }
    if (error != cudaSuccess) {
        log_failure(config, "no CUDA device", error);
        return PKV_ERROR_DEVICE;
    }
    error = enter(device->ordinal, &previous);
    if (error == cudaSuccess) {
        error = probe(device, &major, &minor);
    }
    bool is_too_old = error == cudaSuccess && major < LEAST_COMPUTE_MAJOR;
    if (error == cudaSuccess && !is_too_old) {
        error = load_kernels(device);
    }
    error = leave(device->ordinal, previous, error);
    if (error != cudaSuccess) {
        log_failure(config, "the CUDA device cannot be used", error);
        return PKV_ERROR_DEVICE;
    }
    device->base.backend = &cuda_backend;
    device->base.allocator = config->allocator;
    device->check_memory = check_memory;
    (void)snprintf(device->description, sizeof device->description,
                   "cuda %d, compute %d.%d, %d multiprocessors%s", device->ordinal, major, minor,
                   device->limits.num_multiprocessors, is_too_old ? ": too old" : "");
    if (config->log != NULL) {
        config->log(config->log_context, is_too_old ? PKV_LOG_ERROR : PKV_LOG_INFO,
                    device->description);
    }
    if (is_too_old) {
        return PKV_ERROR_UNSUPPORTED;
    }
    *out = &device->base;
    return PKV_OK;
}

pkv_status pkv_device_init_cuda(const pkv_cuda_config *config,
                                void *memory,
                                size_t size,
                                pkv_device **out) {
    pkv_cuda_config known;
    pkv_status status = read_config(config, &known);

    if (status != PKV_OK) {
        return status;
    }
    if (out == NULL || !pkvi_memory_fits(memory, size, pkv_device_cuda_size(config))) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    return build(&known, memory, out);
}

pkv_status pkv_device_create_cuda(const pkv_cuda_config *config, pkv_device **out) {
    pkv_cuda_config known;
    pkv_status status = read_config(config, &known);

    if (status != PKV_OK) {
        return status;
    }
    if (out == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    size_t size = pkv_device_cuda_size(config);
    void *memory = pkvi_allocate(&known.allocator, size);
    if (memory == NULL) {
        return PKV_ERROR_OUT_OF_MEMORY;
    }
    status = build(&known, memory, out);
    if (status != PKV_OK) {
        pkvi_release(&known.allocator, memory, size);
        return status;
    }
    (*out)->allocated_size = size;
    return PKV_OK;
}

/* The operations on all streams are waited for; what they report can no longer be told. */
static void cuda_destroy(pkv_device *device) {
    int ordinal = cuda_of(device)->ordinal, previous;
    cudaError_t error = enter(ordinal, &previous);

    if (error == cudaSuccess) {
        error = cudaDeviceSynchronize();
    }
    if (leave(ordinal, previous, error) != cudaSuccess) {
        (void)cudaGetLastError();
    }
}

static void cuda_get_info(const pkv_device *device, pkv_device_info *out) {
    const struct cuda_device *cuda = (const struct cuda_device *)(const void *)device;

    out->num_workers = 2 * cuda->limits.num_multiprocessors;
    memcpy(out->description, cuda->description, sizeof out->description);
}

/* ---- Streams and fences */

/* A handle says nothing about itself; one of another device is refused where it is used. */
static pkv_status cuda_check_stream(pkv_device *device, pkv_stream stream) {
    (void)device;
    (void)stream;
    return PKV_OK;
}

/* Run `statement` (it sets `error`) on the device and return its status. */
#define ON_DEVICE(device, what, statement)                                                         \
    do {                                                                                           \
        int ordinal = cuda_of(device)->ordinal, previous;                                          \
        cudaError_t error = enter(ordinal, &previous);                                             \
        if (error == cudaSuccess) {                                                                \
            error = (statement);                                                                   \
        }                                                                                          \
        return finish((device), (what), leave(ordinal, previous, error));                          \
    } while (0)

static pkv_status cuda_synchronize(pkv_device *device, pkv_stream stream) {
    ON_DEVICE(device, "synchronize", cudaStreamSynchronize(stream_of(stream)));
}

static pkv_status cuda_fence_create(pkv_device *device, pkv_fence *out) {
    ON_DEVICE(device, "fence_create",
              cudaEventCreateWithFlags((cudaEvent_t *)(void *)out, cudaEventDisableTiming));
}

static pkv_status cuda_fence_record(pkv_device *device, pkv_fence fence, pkv_stream stream) {
    ON_DEVICE(device, "fence_record",
              cudaEventRecord((cudaEvent_t)(void *)fence, stream_of(stream)));
}

static pkv_status cuda_fence_wait(pkv_device *device, pkv_fence fence, pkv_stream stream) {
    ON_DEVICE(device, "fence_wait",
              cudaStreamWaitEvent(stream_of(stream), (cudaEvent_t)(void *)fence, 0));
}

static pkv_status cuda_fence_query(pkv_device *device, pkv_fence fence) {
    ON_DEVICE(device, "fence_query", cudaEventQuery((cudaEvent_t)(void *)fence));
}

static void cuda_fence_destroy(pkv_device *device, pkv_fence fence) {
    (void)device;
    (void)cudaEventDestroy((cudaEvent_t)(void *)fence);
}

/* ---- Operations */

static const char *cuda_refuse_shape(const pkv_device *device, const pkv_attention_shape *shape) {
    const struct cuda_device *cuda = (const struct cuda_device *)(const void *)device;

    return pkvi_cuda_refuse_attention(shape, &cuda->limits);
}

static void *cuda_check_memory(pkv_device *device) {
    return cuda_of(device)->check_memory;
}

static pkv_status cuda_attention(pkv_device *device,
                                 const struct pkvi_attention *op,
                                 pkv_stream stream) {
    const char *reason = pkvi_cuda_refuse_attention_views(op);

    if (reason != NULL) {
        return PKVI_DEVICE_FAIL(device, PKV_ERROR_UNSUPPORTED, "%s", reason);
    }
    ON_DEVICE(device, "attention",
              pkvi_cuda_attention(op, &cuda_of(device)->limits, stream_of(stream)));
}

static pkv_status cuda_merge_states(pkv_device *device,
                                    const struct pkvi_merge *op,
                                    pkv_stream stream) {
    ON_DEVICE(device, "merge_states", pkvi_cuda_merge_states(op, stream_of(stream)));
}

static pkv_status cuda_write_kv(pkv_device *device,
                                const struct pkvi_write_kv *op,
                                pkv_stream stream) {
    ON_DEVICE(device, "write_kv", pkvi_cuda_write_kv(op, stream_of(stream)));
}

static pkv_status cuda_update_block_table(pkv_device *device,
                                          const pkv_table_args *op,
                                          pkv_stream stream) {
    ON_DEVICE(device, "update_block_table", pkvi_cuda_update_block_table(op, stream_of(stream)));
}

static pkv_status cuda_compute_slot_mapping(pkv_device *device,
                                            const pkv_slot_mapping_args *op,
                                            pkv_stream stream) {
    ON_DEVICE(device, "compute_slot_mapping",
              pkvi_cuda_compute_slot_mapping(op, stream_of(stream)));
}

static pkv_status cuda_gather(pkv_device *device, const struct pkvi_gather *op, pkv_stream stream) {
    ON_DEVICE(device, "gather", pkvi_cuda_gather(op, stream_of(stream)));
}

/* ---- Whole blocks: a kernel where the device reaches both pools, else copies by the runtime */

/* Whether kernels should touch this memory. Host memory is left to the copy engines. */
static cudaError_t is_on_device(const void *memory, bool *out) {
    struct cudaPointerAttributes attributes;
    cudaError_t error = cudaPointerGetAttributes(&attributes, memory);

    *out = error == cudaSuccess &&
           (attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged);
    return error;
}

static unsigned char *block_address(const pkv_tensor *blocks,
                                    int64_t layer,
                                    pkv_block_id block_id) {
    return (unsigned char *)blocks->data + layer * blocks->stride[0] + block_id * blocks->stride[1];
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

/* One copy for each layer and run; for each block where other bytes stand between the blocks. */
static cudaError_t copy_runs(const struct pkvi_move *op, cudaStream_t stream) {
    int64_t block_bytes = op->source.shape[2];
    bool is_dense = op->source.stride[1] == block_bytes && op->target.stride[1] == block_bytes;
    cudaError_t error = cudaSuccess;
    int32_t count;

    for (int32_t i = 0; error == cudaSuccess && i < op->num_copies; i += count) {
        count = is_dense ? count_run(op, i) : 1;
        for (int64_t layer = 0; error == cudaSuccess && layer < op->source.shape[0]; layer++) {
            error = cudaMemcpyAsync(block_address(&op->target, layer, op->copies[i].target),
                                    block_address(&op->source, layer, op->copies[i].source),
                                    (size_t)(count * block_bytes), cudaMemcpyDefault, stream);
        }
    }
    return error;
}

static cudaError_t move_blocks(const struct pkvi_move *op, cudaStream_t stream) {
    bool source_is_on_device = false, target_is_on_device = false;
    cudaError_t error = is_on_device(op->source.data, &source_is_on_device);

    if (error == cudaSuccess) {
        error = is_on_device(op->target.data, &target_is_on_device);
    }
    if (error != cudaSuccess) {
        return error;
    }
    return source_is_on_device && target_is_on_device ? pkvi_cuda_move_blocks(op, stream)
                                                      : copy_runs(op, stream);
}

static pkv_status cuda_move_blocks(pkv_device *device,
                                   const struct pkvi_move *op,
                                   pkv_stream stream) {
    ON_DEVICE(device, "move_blocks", move_blocks(op, stream_of(stream)));
}

static pkv_status cuda_fill_blocks(pkv_device *device,
                                   const struct pkvi_fill *op,
                                   pkv_stream stream) {
    struct cudaPointerAttributes attributes;
    cudaError_t found = cudaPointerGetAttributes(&attributes, op->blocks.data);

    if (found != cudaSuccess) {
        return finish(device, "fill_blocks", found);
    }
    if (attributes.type == cudaMemoryTypeUnregistered && !cuda_of(device)->reaches_pageable) {
        return PKVI_DEVICE_FAIL(device, PKV_ERROR_INVALID_ARGUMENT,
                                "blocks.data is host memory that the device cannot reach");
    }
    ON_DEVICE(device, "fill_blocks", pkvi_cuda_fill_blocks(op, stream_of(stream)));
}

static const struct pkvi_backend cuda_backend = {
    .destroy = cuda_destroy,
    .get_info = cuda_get_info,
    .check_stream = cuda_check_stream,
    .synchronize = cuda_synchronize,
    .fence_create = cuda_fence_create,
    .fence_record = cuda_fence_record,
    .fence_wait = cuda_fence_wait,
    .fence_query = cuda_fence_query,
    .fence_destroy = cuda_fence_destroy,
    .refuse_shape = cuda_refuse_shape,
    .check_memory = cuda_check_memory,
    .attention = cuda_attention,
    .write_kv = cuda_write_kv,
    .merge_states = cuda_merge_states,
    .update_block_table = cuda_update_block_table,
    .compute_slot_mapping = cuda_compute_slot_mapping,
    .move_blocks = cuda_move_blocks,
    .fill_blocks = cuda_fill_blocks,
    .gather = cuda_gather,
};
