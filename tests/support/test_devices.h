/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The devices that the suites of the data tower run on: each instruction set of the CPU, and
 * whatever other kinds this build has. A device that cannot be had here is listed with the reason,
 * so that it is skipped aloud. */
#ifndef TESTS_SUPPORT_TEST_DEVICES_H
#define TESTS_SUPPORT_TEST_DEVICES_H

#include "support/attention_case.h"

#define TEST_MAX_DEVICES 8

struct test_device {
    const char *name;
    pkv_device *device;                    /* NULL: not here */
    const char *reason;                    /* why not */
    const struct attention_memory *memory; /* NULL: the host's */
    pkv_cpu_instructions instructions;
};

/* Open one device of each kind, with `num_threads` threads on the CPU. Returns how many are
 * listed. */
int test_devices_open(struct test_device *devices, int32_t num_threads);
void test_devices_close(struct test_device *devices, int count);

/* A test of a suite that runs once for each device. */
struct device_test {
    const char *name;
    void (*run)(const struct test_device *device, const void *context);
    const void *context;
};

/* Run each test on each device as a CMocka group. Returns the number of failures. */
int device_tests_run(const char *group,
                     const struct device_test *tests,
                     int num_tests,
                     const struct test_device *devices,
                     int num_devices);

#endif
