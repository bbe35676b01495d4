/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* How a test steers the execution of kernels on the processor: the schedule of the threads, the
 * device that the runtime pretends to have, planted failures, counters. C, so that the tests of the
 * public interface can use it too. Nothing here is seen by a kernel.
 *
 * The one idea: the defaults come from the environment, so that one test program runs under many
 * schedules: PKV_SIMT_SEED, PKV_SIMT_REVERSE, PKV_SIMT_PREEMPT, PKV_SIMT_QUIET. */
#ifndef PKV_TESTS_SIMT_CONTROL_H
#define PKV_TESTS_SIMT_CONTROL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct simt_options {
    uint64_t seed;               /* 0: threads in their order; else random threads and blocks */
    bool is_reversed;            /* the thread that became ready last runs first */
    int preempt_log2;            /* hook build: n > 0 yields at one access in 2^n */
    bool allows_early_exit;      /* a block barrier may miss threads that have exited */
    bool ignores_races;          /* hook build: no race and no initialisation check */
    bool is_quiet;               /* an error is recorded, but not printed */
    bool allows_pageable_access; /* hook build: kernels may touch memory the device cannot */
    int mistake;                 /* of kernels/cuda/mistakes.h, in the kernels that run; 0: none */
} simt_options;

typedef struct simt_device {
    int num_devices; /* 0: no device; all are alike */
    int compute_major;
    int compute_minor;
    int num_multiprocessors;
    size_t shared_bytes_per_block; /* with the attribute set; 48 KiB without */
    size_t shared_bytes_per_multiprocessor;
    size_t memory_bytes; /* an allocation over this total fails */
    int driver_version;  /* as cudaDriverGetVersion says it; an older one lacks calls */
} simt_device;

typedef struct simt_counts {
    uint64_t num_grids;
    uint64_t num_blocks;
    uint64_t num_switches;
    uint64_t num_block_barriers;
    uint64_t num_collectives;
    uint64_t num_shared_accesses; /* hook build */
    uint64_t num_async_copies;
    uint64_t num_matrix_loads;
    uint64_t num_bank_conflicts; /* of ldmatrix: rows of a matrix in one bank group */
} simt_counts;

/* Valid until the program ends; changes count from the next grid on. */
simt_options *simt_get_options(void);
simt_device *simt_get_device(void);

void simt_get_counts(simt_counts *counts);
void simt_reset_counts(void);

/* Keep kernels away from bytes inside of the device's memory: each access is an error in the hook
 * build, and they are poisoned while a grid runs in the asan build. */
void simt_forbid(const void *address, size_t size);
void simt_allow_all(void);

/* Matrix loads of all grids of this kernel so far, -1 where none has run. */
int64_t simt_num_matrix_loads(const void *kernel);

/* Print the names of the library's attention kernels that have not computed anything in this
 * process; returns how many. For programs linked with the library (idle_kernels.cpp). */
int simt_print_idle_kernels(void);

/* The first error of any kernel or runtime call since simt_clear_error, "" if there was none. A
 * grid that fails makes the stream and each later call fail, as on a device. */
const char *simt_last_error(void);
void simt_clear_error(void);

/* Let the `nth` call (1: the next one) of the runtime function of that name return `error`, a
 * cudaError_t, without doing anything. NULL takes back what was planted. */
void simt_fail_call(const char *function, int nth, int error);

/* The number of runtime calls so far with that name. */
int simt_num_calls(const char *function);

/* Name of the build: "plain", "hook" or "asan". */
const char *simt_build(void);

#ifdef __cplusplus
}
#endif

#endif
