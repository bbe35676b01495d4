/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The CUDA device: how it is made, its operations, its table of functions. Streams and fences are
 * in streams_cuda.c, questions about memory in memory_cuda.c, the kernels and their launches in the
 * other files of this folder.
 *
 * The one idea: an operation is one call of PKVI_ON_CUDA_DEVICE, and none waits or allocates. */
#include <stdio.h>

#include "kernels/cuda/device_cuda.h"

/* Tensor cores of 16-bit types and cp.async begin here. */
#define LEAST_COMPUTE_MAJOR 8

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

static size_t carve(unsigned char *base, struct pkvi_cuda_device **device, void **check_memory) {
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
    struct pkvi_cuda_device *device;
    pkv_cuda_config known;
    void *check_memory;

    return read_config(config, &known) == PKV_OK ? carve(NULL, &device, &check_memory) : 0;
}

static const struct pkvi_backend cuda_backend;

/* What the device is. */
static cudaError_t probe(struct pkvi_cuda_device *device, int *major, int *minor) {
    int multiprocessors = 0, pageable = 0, block_shared = 0, multiprocessor_shared = 0;
    int driver_version = 0;
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
    if (error == cudaSuccess) {
        error = cudaDriverGetVersion(&driver_version);
    }
    device->copies.takes_many = pkvi_cuda_takes_many_copies(driver_version);
    pkvi_cuda_find_allocation_question(device);
    return error;
}

/* So that no later operation loads a kernel: in a capture that is an error. */
static cudaError_t load_kernels(const struct pkvi_cuda_device *device) {
    cudaError_t error = pkvi_cuda_load_cache_kernels();

    if (error == cudaSuccess) {
        error = pkvi_cuda_load_block_kernels();
    }
    return error != cudaSuccess ? error : pkvi_cuda_load_attention_kernels(&device->limits);
}

/* Fill a device of a read config in; it owns nothing but its memory. */
static pkv_status build(const pkv_cuda_config *config, void *memory, pkv_device **out) {
    struct pkvi_cuda_device *device;
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
    error = pkvi_cuda_enter(device->ordinal, &previous);
    if (error == cudaSuccess) {
        error = probe(device, &major, &minor);
    }
    bool is_too_old = error == cudaSuccess && major < LEAST_COMPUTE_MAJOR;
    if (error == cudaSuccess && !is_too_old) {
        error = load_kernels(device);
    }
    error = pkvi_cuda_leave(device->ordinal, previous, error);
    if (error != cudaSuccess) {
        log_failure(config, "the CUDA device cannot be used", error);
        return PKV_ERROR_DEVICE;
    }
    device->base.backend = &cuda_backend;
    device->base.allocator = config->allocator;
    device->check_memory = check_memory;
    device->ignores_stream_order = config->ignores_stream_order;
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
    int ordinal = pkvi_cuda_of(device)->ordinal, previous;
    cudaError_t error = pkvi_cuda_enter(ordinal, &previous);

    if (error == cudaSuccess) {
        error = cudaDeviceSynchronize();
    }
    if (pkvi_cuda_leave(ordinal, previous, error) != cudaSuccess) {
        (void)cudaGetLastError();
    }
}

static void cuda_get_info(const pkv_device *device, pkv_device_info *out) {
    const struct pkvi_cuda_device *cuda = (const struct pkvi_cuda_device *)(const void *)device;

    out->num_workers = 2 * cuda->limits.num_multiprocessors;
    memcpy(out->description, cuda->description, sizeof out->description);
}

/* ---- Operations */

static const char *cuda_refuse_shape(const pkv_device *device, const pkv_attention_shape *shape) {
    const struct pkvi_cuda_device *cuda = (const struct pkvi_cuda_device *)(const void *)device;

    return pkvi_cuda_refuse_attention(shape, &cuda->limits);
}

static void *cuda_check_memory(pkv_device *device) {
    return pkvi_cuda_of(device)->check_memory;
}

static pkv_status cuda_attention(pkv_device *device,
                                 const struct pkvi_attention *op,
                                 pkv_stream stream) {
    const char *reason = pkvi_cuda_refuse_attention_views(op);
    pkv_status status;

    if (reason != NULL) {
        return PKVI_DEVICE_FAIL(device, PKV_ERROR_UNSUPPORTED, "%s", reason);
    }
    PKVI_ON_CUDA_DEVICE(
        device, "attention",
        pkvi_cuda_attention(op, &pkvi_cuda_of(device)->limits, pkvi_cuda_stream(stream)), status);
    return status;
}

static pkv_status cuda_merge_states(pkv_device *device,
                                    const struct pkvi_merge *op,
                                    pkv_stream stream) {
    pkv_status status;

    PKVI_ON_CUDA_DEVICE(device, "merge_states",
                        pkvi_cuda_merge_states(op, pkvi_cuda_stream(stream)), status);
    return status;
}

static cudaError_t write_kv(struct pkvi_cuda_device *cuda,
                            const struct pkvi_write_kv *op,
                            pkv_stream stream) {
    cudaError_t error = pkvi_cuda_write_kv(op, pkvi_cuda_stream(stream));

    if (error == cudaSuccess) {
        pkvi_cuda_note_written(cuda, &op->args);
    }
    return error;
}

static pkv_status cuda_write_kv(pkv_device *device,
                                const struct pkvi_write_kv *op,
                                pkv_stream stream) {
    pkv_status status;

    PKVI_ON_CUDA_DEVICE(device, "write_kv", write_kv(pkvi_cuda_of(device), op, stream), status);
    return status;
}

static pkv_status cuda_update_block_table(pkv_device *device,
                                          const pkv_table_args *op,
                                          pkv_stream stream) {
    pkv_status status;

    PKVI_ON_CUDA_DEVICE(device, "update_block_table",
                        pkvi_cuda_update_block_table(op, pkvi_cuda_stream(stream)), status);
    return status;
}

static pkv_status cuda_compute_slot_mapping(pkv_device *device,
                                            const pkv_slot_mapping_args *op,
                                            pkv_stream stream) {
    pkv_status status;

    PKVI_ON_CUDA_DEVICE(device, "compute_slot_mapping",
                        pkvi_cuda_compute_slot_mapping(op, pkvi_cuda_stream(stream)), status);
    return status;
}

static pkv_status cuda_gather(pkv_device *device, const struct pkvi_gather *op, pkv_stream stream) {
    pkv_status status;

    PKVI_ON_CUDA_DEVICE(device, "gather", pkvi_cuda_gather(op, pkvi_cuda_stream(stream)), status);
    return status;
}

/* ---- Whole blocks: a kernel where the device reaches both pools, else copies by the runtime */

static cudaError_t look_at_both(const struct pkvi_cuda_device *cuda,
                                const struct pkvi_move *op,
                                struct pkvi_cuda_memory *source,
                                struct pkvi_cuda_memory *target) {
    cudaError_t error = pkvi_cuda_look_at_memory(cuda, &op->source, source);

    return error != cudaSuccess ? error : pkvi_cuda_look_at_memory(cuda, &op->target, target);
}

/* Kernels touch what is on the device. Host memory is left to the copy engines. */
static cudaError_t move_blocks(struct pkvi_cuda_device *cuda,
                               const struct pkvi_move *op,
                               enum cudaMemoryType source,
                               enum cudaMemoryType target,
                               pkv_stream stream) {
    if ((source == cudaMemoryTypeDevice || source == cudaMemoryTypeManaged) &&
        (target == cudaMemoryTypeDevice || target == cudaMemoryTypeManaged)) {
        return pkvi_cuda_move_blocks(op, pkvi_cuda_stream(stream));
    }
    bool may_batch = source != cudaMemoryTypeUnregistered && target != cudaMemoryTypeUnregistered &&
                     pkvi_cuda_takes_batches(cuda);
    return pkvi_cuda_copy_runs(op, &cuda->copies, may_batch, pkvi_cuda_stream(stream));
}

static pkv_status cuda_move_blocks(pkv_device *device,
                                   const struct pkvi_move *op,
                                   pkv_stream stream) {
    struct pkvi_cuda_device *cuda = pkvi_cuda_of(device);
    int32_t known = pkvi_cuda_begin_ordered(cuda);
    struct pkvi_cuda_memory source, target;
    pkv_status status;

    PKVI_ON_CUDA_DEVICE(device, "move_blocks", look_at_both(cuda, op, &source, &target), status);
    if (status == PKV_OK) {
        status = pkvi_cuda_check_order(device, op, source.allocation, known);
    }
    if (status != PKV_OK) {
        return status;
    }
    PKVI_ON_CUDA_DEVICE(device, "move_blocks",
                        move_blocks(cuda, op, source.type, target.type, stream), status);
    for (int32_t i = 0; status == PKV_OK && i < op->num_copies; i++) {
        pkvi_order_wrote_block(&cuda->order, known,
                               pkvi_block_address(&op->target, 0, op->copies[i].target),
                               target.allocation);
    }
    return status;
}

static pkv_status cuda_fill_blocks(pkv_device *device,
                                   const struct pkvi_fill *op,
                                   pkv_stream stream) {
    struct pkvi_cuda_device *cuda = pkvi_cuda_of(device);
    struct pkvi_cuda_memory memory;
    int32_t known;
    pkv_status status;

    PKVI_ON_CUDA_DEVICE(device, "fill_blocks", pkvi_cuda_look_at_memory(cuda, &op->blocks, &memory),
                        status);
    if (status != PKV_OK) {
        return status;
    }
    if (memory.type == cudaMemoryTypeUnregistered && !cuda->reaches_pageable) {
        return PKVI_DEVICE_FAIL(device, PKV_ERROR_INVALID_ARGUMENT,
                                "blocks.data is host memory that the device cannot reach");
    }
    known = pkvi_cuda_begin_ordered(cuda);
    PKVI_ON_CUDA_DEVICE(device, "fill_blocks", pkvi_cuda_fill_blocks(op, pkvi_cuda_stream(stream)),
                        status);
    for (int32_t i = 0; status == PKV_OK && i < op->num_blocks; i++) {
        pkvi_order_wrote_block(&cuda->order, known,
                               pkvi_block_address(&op->blocks, 0, op->block_ids[i]),
                               memory.allocation);
    }
    return status;
}

static const struct pkvi_backend cuda_backend = {
    .destroy = cuda_destroy,
    .get_info = cuda_get_info,
    .check_stream = pkvi_cuda_check_stream,
    .synchronize = pkvi_cuda_synchronize,
    .fence_create = pkvi_cuda_fence_create,
    .fence_record = pkvi_cuda_fence_record,
    .fence_wait = pkvi_cuda_fence_wait,
    .fence_query = pkvi_cuda_fence_query,
    .fence_destroy = pkvi_cuda_fence_destroy,
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
