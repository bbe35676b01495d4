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

void test_devices_close(struct test_device *devices, int count) {
    for (int i = 0; i < count; i++) {
        pkv_device_destroy(devices[i].device);
        devices[i].device = NULL;
    }
}

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

int device_tests_run(const char *group,
                     const struct device_test *tests,
                     int num_tests,
                     const struct test_device *devices,
                     int num_devices) {
    size_t total = (size_t)num_tests * (size_t)num_devices;
    struct bound_test *bound = calloc(total, sizeof *bound);
    struct CMUnitTest *units = calloc(total, sizeof *units);
    size_t count = 0;

    if (bound == NULL || units == NULL) {
        abort();
    }
    for (int d = 0; d < num_devices; d++) {
        if (devices[d].device == NULL) {
            (void)fprintf(stderr, "%s: SKIPPED on %s: %s (%d tests)\n", group, devices[d].name,
                          devices[d].reason, num_tests);
            continue;
        }
        for (int t = 0; t < num_tests; t++) {
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
