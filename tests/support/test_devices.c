/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Devices for tests, and the runner of tests x devices; see test_devices.h. */
#include "support/test_devices.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifdef TEST_CUDA
#include <cuda_runtime_api.h>

#include <pagedkv/cuda.h>

/* ---- Builds for a CUDA device, real or executed on the processor, list that device alone */

static void require(cudaError_t error, const char *what) {
    if (error != cudaSuccess) {
        (void)fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
        abort();
    }
}

static void *cuda_allocate(void *context, size_t size) {
    void *memory = NULL;

    (void)context;
    require(cudaMalloc(&memory, size == 0 ? 1 : size), "cudaMalloc");
    return memory;
}

static void cuda_release(void *context, void *memory, size_t size) {
    (void)context;
    (void)size;
    require(cudaFree(memory), "cudaFree");
}

static void cuda_copy(void *context, void *target, const void *source, size_t size) {
    (void)context;
    require(cudaMemcpy(target, source, size, cudaMemcpyDefault), "cudaMemcpy");
}

static const struct attention_memory cuda_memory = {cuda_allocate, cuda_release, cuda_copy,
                                                    cuda_copy, NULL};
static char cuda_reason[256];

static void keep_reason(void *context, int level, const char *message) {
    (void)context;
    (void)level;
    (void)snprintf(cuda_reason, sizeof cuda_reason, "%s", message);
}

int test_devices_open(struct test_device *devices, int32_t num_threads) {
    pkv_cuda_config config = {.struct_size = sizeof config, .log = keep_reason};

    (void)num_threads;
    memset(devices, 0, sizeof *devices);
    devices->name = "cuda";
    devices->memory = &cuda_memory;
    if (pkv_device_create_cuda(&config, &devices->device) != PKV_OK) {
        devices->device = NULL;
        devices->reason = cuda_reason;
    }
    return 1;
}
#else
int test_devices_open(struct test_device *devices, int32_t num_threads) {
    static const struct {
        const char *name;
        pkv_cpu_instructions instructions;
    } kinds[] = {
        {"cpu-reference", PKV_CPU_REFERENCE},
        {"cpu-portable", PKV_CPU_PORTABLE},
        {"cpu-avx2", PKV_CPU_AVX2},
        {"cpu-avx512", PKV_CPU_AVX512},
        {"cpu-avx512bf16", PKV_CPU_AVX512_BF16},
        {"cpu-neon", PKV_CPU_NEON},
    };
    int count = 0;

    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
#ifdef TEST_ONLY_INSTRUCTIONS
        if (kinds[i].instructions != TEST_ONLY_INSTRUCTIONS) {
            continue;
        }
#endif
        struct test_device *device = &devices[count++];
        pkv_cpu_config config = {.struct_size = sizeof config,
                                 .instructions = kinds[i].instructions,
                                 .num_threads = num_threads};

        memset(device, 0, sizeof *device);
        device->name = kinds[i].name;
        device->instructions = kinds[i].instructions;
        if (pkv_cpu_has_instructions(kinds[i].instructions, &device->reason) &&
            pkv_device_create_cpu(&config, &device->device) != PKV_OK) {
            (void)fprintf(stderr, "%s: the device cannot be made\n", kinds[i].name);
            abort();
        }
    }
    return count;
}
#endif

void test_devices_close(struct test_device *devices, int count) {
    for (int i = 0; i < count; i++) {
        pkv_device_destroy(devices[i].device);
        devices[i].device = NULL;
    }
}

/* ---- Twins */

void device_twins_open(struct device_twins *twins, const struct test_device *device) {
    memset(twins, 0, sizeof *twins);
    twins->device = device;
}

static void *add_twin(struct device_twins *twins, const void *read, void *write, size_t size) {
    const struct attention_memory *memory = twins->device->memory;
    const void *host = write != NULL ? write : read;

    if (memory == NULL || host == NULL) {
        return (void *)(uintptr_t)host;
    }
    assert_true(twins->count < TEST_MAX_TWINS);
    void *twin = memory->allocate(memory->context, size);
    memory->upload(memory->context, twin, host, size);
    twins->entries[twins->count].host = write;
    twins->entries[twins->count].twin = twin;
    twins->entries[twins->count++].size = size;
    return twin;
}

void *device_twins_read(struct device_twins *twins, const void *host, size_t size) {
    return add_twin(twins, host, NULL, size);
}

void *device_twins_write(struct device_twins *twins, void *host, size_t size) {
    return add_twin(twins, NULL, host, size);
}

pkv_status device_twins_close(struct device_twins *twins, pkv_status status) {
    const struct attention_memory *memory = twins->device->memory;
    pkv_status waited = pkv_device_synchronize(twins->device->device, NULL);

    for (int i = 0; i < twins->count; i++) {
        if (twins->entries[i].host != NULL) {
            memory->download(memory->context, twins->entries[i].host, twins->entries[i].twin,
                             twins->entries[i].size);
        }
        memory->release(memory->context, twins->entries[i].twin, twins->entries[i].size);
    }
    return status != PKV_OK ? status : waited;
}

/* ---- Tests x devices */

/* A test with its device, as CMocka's state. */
struct bound_test {
    const struct device_test *test;
    const struct test_device *device;
    char name[160];
};

static void run_bound(void **state) {
    const struct bound_test *bound = *state;

    bound->test->run(bound->device, bound->test->context);
}

/* PKV_TEST_SHARD=k/n in the environment: every n-th test from the k-th on. Otherwise all. */
static void read_shard(const char *group, int *first, int *step) {
    const char *text = getenv("PKV_TEST_SHARD");

    *first = 0;
    *step = 1;
    if (text == NULL) {
        return;
    }
    if (sscanf(text, "%d/%d", first, step) != 2 || *first < 0 || *first >= *step) {
        (void)fprintf(stderr, "PKV_TEST_SHARD is k/n with 0 <= k < n\n");
        exit(2);
    }
    (void)fprintf(stderr, "%s: shard %d of %d\n", group, *first, *step);
}

int device_tests_run(const char *group,
                     const struct device_test *tests,
                     int num_tests,
                     const struct test_device *devices,
                     int num_devices) {
    size_t total = (size_t)num_tests * (size_t)num_devices;
    struct bound_test *bound = calloc(total, sizeof *bound);
    struct CMUnitTest *units = calloc(total, sizeof *units);
    size_t count = 0;
    int first, step;

    if (bound == NULL || units == NULL) {
        abort();
    }
    read_shard(group, &first, &step);
    for (int d = 0; d < num_devices; d++) {
        if (devices[d].device == NULL) {
            (void)fprintf(stderr, "%s: SKIPPED on %s: %s (%d tests)\n", group, devices[d].name,
                          devices[d].reason, num_tests);
            continue;
        }
        for (int t = first; t < num_tests; t += step) {
            bound[count].test = &tests[t];
            bound[count].device = &devices[d];
            (void)snprintf(bound[count].name, sizeof bound[count].name, "%s @ %s", tests[t].name,
                           devices[d].name);
            units[count].name = bound[count].name;
            units[count].test_func = run_bound;
            units[count].initial_state = &bound[count];
            count++;
        }
    }
    int failures = _cmocka_run_group_tests(group, units, count, NULL, NULL);
    free(units);
    free(bound);
    return failures;
}
