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

/* Host arrays of a test and their twins on the device; on a CPU device they are the same. */
#define TEST_MAX_TWINS 132 /* a merge of 64 parts and its result */
struct device_twins {
    const struct test_device *device;
    int count;
    struct {
        void *host, *twin; /* host NULL: the twin is only read */
        size_t size;
    } entries[TEST_MAX_TWINS];
};

void device_twins_open(struct device_twins *twins, const struct test_device *device);

/* The address that an operation gets for `size` bytes at `host`: of a twin with the same content.
 * NULL gives NULL. What the second one names is brought back by device_twins_close. */
void *device_twins_read(struct device_twins *twins, const void *host, size_t size);
void *device_twins_write(struct device_twins *twins, void *host, size_t size);

/* Wait for the device, bring back what may have been written, release the twins. Returns `status`,
 * or the error of the wait. */
pkv_status device_twins_close(struct device_twins *twins, pkv_status status);

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
