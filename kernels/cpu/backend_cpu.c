/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The CPU device: how it is made, and its table of functions. Operations run in the calling thread
 * and the device's workers and are done when they return, so that streams and fences are
 * trivial. */
#include <stdio.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

/* ---- Making and ending */

struct parts {
    struct pkvi_cpu_device *device;
    struct pkvi_cpu_scratch *scratch;
    void *check_memory;
    void *pool;
};

/* Lay a device out. Returns its size; 0 where it overflows. */
static size_t carve(unsigned char *base, int32_t num_threads, struct parts *parts) {
    struct pkvi_carver carver = {.base = base};

    parts->device = pkvi_carve(&carver, 1, sizeof *parts->device);
    parts->check_memory = pkvi_carve(&carver, 1, PKVI_CHECK_MEMORY_SIZE);
    parts->pool = pkvi_carve(&carver, 1, pkvi_thread_pool_size(num_threads));
    parts->scratch = pkvi_carve(&carver, (size_t)num_threads, sizeof *parts->scratch);
    return carver.overflowed ? 0 : carver.offset;
}

/* Read a config, fill in defaults and find the kernels. */
static pkv_status prepare(const pkv_cpu_config *given,
                          pkv_cpu_config *config,
                          const struct pkvi_cpu_kernels **kernels) {
    const pkv_cpu_config nothing = {.struct_size = sizeof nothing};
    const char *reason;
    pkv_status status =
        pkvi_read_struct(config, sizeof *config, offsetof(pkv_cpu_config, parallel_for),
                         given == NULL ? &nothing : given);

    if (status != PKV_OK) {
        return status;
    }
    if (config->num_threads < 0 || config->num_threads > PKV_MAX_CPU_THREADS ||
        (config->parallel_for != NULL && config->num_threads == 0) ||
        !pkvi_allocator_is_valid(&config->allocator)) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    if (config->num_threads == 0) {
        config->num_threads = PKV_CPU_DEFAULT_THREADS;
    }
    if (config->instructions == PKV_CPU_AUTO) {
        config->instructions = pkvi_cpu_best_instructions();
    }
    *kernels = pkvi_cpu_find_kernels(config->instructions, &reason);
    return reason == NULL ? PKV_OK : PKV_ERROR_UNSUPPORTED;
}

size_t pkv_device_cpu_size(const pkv_cpu_config *config) {
    const struct pkvi_cpu_kernels *kernels;
    pkv_cpu_config known;
    struct parts parts;

    return prepare(config, &known, &kernels) == PKV_OK ? carve(NULL, known.num_threads, &parts) : 0;
}

static const struct pkvi_backend cpu_backend;

static void describe(const struct pkvi_cpu_device *device, char *text, size_t size) {
    (void)snprintf(text, size, "cpu %s, %d thread%s%s",
                   device->kernels == NULL ? "reference" : device->kernels->name,
                   (int)device->num_threads, device->num_threads == 1 ? "" : "s",
                   device->parallel_for == NULL ? "" : " of the engine");
}

/* Make a device of a prepared config. */
static pkv_status build(const pkv_cpu_config *config,
                        const struct pkvi_cpu_kernels *kernels,
                        void *memory,
                        pkv_device **out) {
    struct parts parts;
    char text[64];

    (void)carve(memory, config->num_threads, &parts);
    struct pkvi_cpu_device *device = parts.device;
    memset(device, 0, sizeof *device);
    device->base.backend = &cpu_backend;
    device->base.allocator = config->allocator;
    device->kernels = kernels;
    device->instructions = config->instructions;
    device->num_threads = config->num_threads;
    device->parallel_for = config->parallel_for;
    device->parallel_context = config->parallel_context;
    device->scratch = parts.scratch;
    device->check_memory = parts.check_memory;
    device->pool =
        pkvi_thread_pool_start(parts.pool, config->parallel_for == NULL ? config->num_threads : 1);
    if (device->pool == NULL) {
        return PKV_ERROR_DEVICE;
    }
    if (config->log != NULL) {
        describe(device, text, sizeof text);
        config->log(config->log_context, PKV_LOG_INFO, text);
    }
    *out = &device->base;
    return PKV_OK;
}

pkv_status pkv_device_init_cpu(const pkv_cpu_config *config,
                               void *memory,
                               size_t size,
                               pkv_device **out) {
    const struct pkvi_cpu_kernels *kernels;
    pkv_cpu_config known;
    struct parts parts;
    pkv_status status = prepare(config, &known, &kernels);

    if (status != PKV_OK) {
        return status;
    }
    if (out == NULL || !pkvi_memory_fits(memory, size, carve(NULL, known.num_threads, &parts))) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    return build(&known, kernels, memory, out);
}

pkv_status pkv_device_create_cpu(const pkv_cpu_config *config, pkv_device **out) {
    const struct pkvi_cpu_kernels *kernels;
    pkv_cpu_config known;
    struct parts parts;
    pkv_status status = prepare(config, &known, &kernels);

    if (status != PKV_OK) {
        return status;
    }
    if (out == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    size_t size = carve(NULL, known.num_threads, &parts);
    void *memory = pkvi_allocate(&known.allocator, size);
    if (memory == NULL) {
        return PKV_ERROR_OUT_OF_MEMORY;
    }
    status = build(&known, kernels, memory, out);
    if (status != PKV_OK) {
        pkvi_release(&known.allocator, memory, size);
        return status;
    }
    (*out)->allocated_size = size;
    return PKV_OK;
}

/* ---- The table */

static void cpu_destroy(pkv_device *device) {
    pkvi_thread_pool_stop(pkvi_cpu_of(device)->pool);
}

static void cpu_get_info(const pkv_device *device, pkv_device_info *out) {
    const struct pkvi_cpu_device *cpu = (const struct pkvi_cpu_device *)(const void *)device;

    out->is_cpu = true;
    out->instructions = cpu->instructions;
    out->num_workers = cpu->num_threads;
    describe(cpu, out->description, sizeof out->description);
}

static pkv_status cpu_check_stream(pkv_device *device, pkv_stream stream) {
    return stream == NULL ? PKV_OK
                          : PKVI_DEVICE_FAIL(device, PKV_ERROR_INVALID_ARGUMENT,
                                             "a CPU device has the default stream NULL only");
}

static pkv_status cpu_synchronize(pkv_device *device, pkv_stream stream) {
    (void)device;
    (void)stream;
    return PKV_OK;
}

/* Nothing is ever pending, so one object serves as every fence. */
static pkv_status cpu_fence_create(pkv_device *device, pkv_fence *out) {
    *out = (pkv_fence)(void *)device;
    return PKV_OK;
}

static pkv_status cpu_fence_use(pkv_device *device, pkv_fence fence, pkv_stream stream) {
    (void)stream;
    return (void *)fence == (void *)device ? PKV_OK
                                           : PKVI_DEVICE_FAIL(device, PKV_ERROR_INVALID_ARGUMENT,
                                                              "the fence is of another device");
}

static pkv_status cpu_fence_query(pkv_device *device, pkv_fence fence) {
    return cpu_fence_use(device, fence, NULL);
}

static void cpu_fence_destroy(pkv_device *device, pkv_fence fence) {
    (void)device;
    (void)fence;
}

/* The general rules are all that the CPU kernels ask for. */
static const char *cpu_refuse_shape(const pkv_device *device, const pkv_attention_shape *shape) {
    (void)device;
    (void)shape;
    return NULL;
}

static void *cpu_check_memory(pkv_device *device) {
    return pkvi_cpu_of(device)->check_memory;
}

void pkvi_cpu_parallel_for(struct pkvi_cpu_device *device,
                           int32_t num_items,
                           pkv_parallel_body body,
                           void *body_context) {
    if (num_items > 0 && device->parallel_for != NULL) {
        device->parallel_for(device->parallel_context, num_items, body, body_context);
    } else if (num_items > 0) {
        pkvi_thread_pool_run(device->pool, num_items, body, body_context);
    }
}

static pkv_status cpu_attention(pkv_device *device,
                                const struct pkvi_attention *op,
                                pkv_stream stream) {
    struct pkvi_cpu_device *cpu = pkvi_cpu_of(device);
    pkv_status status = pkvi_cpu_check_attention(device, op);

    (void)stream;
    if (status != PKV_OK) {
        return status;
    }
    if (cpu->kernels == NULL) {
        pkvi_cpu_reference_attention(op);
    } else {
        pkvi_cpu_attention(cpu, op);
    }
    return PKV_OK;
}

static pkv_status cpu_write_kv(pkv_device *device,
                               const struct pkvi_write_kv *op,
                               pkv_stream stream) {
    struct pkvi_cpu_device *cpu = pkvi_cpu_of(device);
    pkv_status status = pkvi_cpu_check_write_kv(device, op);

    (void)stream;
    if (status != PKV_OK) {
        return status;
    }
    if (cpu->kernels == NULL) {
        pkvi_cpu_reference_write_kv(op);
    } else {
        pkvi_cpu_write_kv(cpu, op);
    }
    return PKV_OK;
}

static pkv_status cpu_merge_states(pkv_device *device,
                                   const struct pkvi_merge *op,
                                   pkv_stream stream) {
    struct pkvi_cpu_device *cpu = pkvi_cpu_of(device);

    (void)stream;
    if (cpu->kernels == NULL) {
        pkvi_cpu_reference_merge(op);
    } else {
        pkvi_cpu_merge(cpu, op);
    }
    return PKV_OK;
}

static pkv_status cpu_update_block_table(pkv_device *device,
                                         const pkv_table_args *op,
                                         pkv_stream stream) {
    (void)device;
    (void)stream;
    pkvi_cpu_update_block_table(op);
    return PKV_OK;
}

static pkv_status cpu_compute_slot_mapping(pkv_device *device,
                                           const pkv_slot_mapping_args *op,
                                           pkv_stream stream) {
    (void)device;
    (void)stream;
    pkvi_cpu_compute_slot_mapping(op);
    return PKV_OK;
}

static pkv_status cpu_move_blocks(pkv_device *device,
                                  const struct pkvi_move *op,
                                  pkv_stream stream) {
    (void)stream;
    pkvi_cpu_move_blocks(pkvi_cpu_of(device), op);
    return PKV_OK;
}

static pkv_status cpu_fill_blocks(pkv_device *device,
                                  const struct pkvi_fill *op,
                                  pkv_stream stream) {
    (void)stream;
    pkvi_cpu_fill_blocks(pkvi_cpu_of(device), op);
    return PKV_OK;
}

static pkv_status cpu_gather(pkv_device *device, const struct pkvi_gather *op, pkv_stream stream) {
    struct pkvi_cpu_device *cpu = pkvi_cpu_of(device);
    pkv_status status = pkvi_cpu_check_gather(device, op);

    (void)stream;
    if (status != PKV_OK) {
        return status;
    }
    if (cpu->kernels == NULL) {
        pkvi_cpu_reference_gather(op);
    } else {
        pkvi_cpu_gather(cpu, op);
    }
    return PKV_OK;
}

static const struct pkvi_backend cpu_backend = {
    .destroy = cpu_destroy,
    .get_info = cpu_get_info,
    .check_stream = cpu_check_stream,
    .synchronize = cpu_synchronize,
    .fence_create = cpu_fence_create,
    .fence_record = cpu_fence_use,
    .fence_wait = cpu_fence_use,
    .fence_query = cpu_fence_query,
    .fence_destroy = cpu_fence_destroy,
    .refuse_shape = cpu_refuse_shape,
    .check_memory = cpu_check_memory,
    .attention = cpu_attention,
    .write_kv = cpu_write_kv,
    .merge_states = cpu_merge_states,
    .update_block_table = cpu_update_block_table,
    .compute_slot_mapping = cpu_compute_slot_mapping,
    .move_blocks = cpu_move_blocks,
    .fill_blocks = cpu_fill_blocks,
    .gather = cpu_gather,
};
