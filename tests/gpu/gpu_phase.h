/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* What the phase programs of tests/gpu.sh share: JSON lines on stdout, checks that are counted, the
 * CUDA device, options with a number. C and C++.
 *
 * The one idea: a check that fails is printed and counted and the phase goes on; what makes going
 * on pointless (no memory, a failed launch) ends the program at once. */
#ifndef PKV_TESTS_GPU_PHASE_H
#define PKV_TESTS_GPU_PHASE_H

#include <stdbool.h>
#include <stdint.h>

#include <cuda_runtime_api.h>

#include <pagedkv/cuda.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Exit codes, as those of tests/gpu.sh. */
#define PHASE_EXIT_OK 0
#define PHASE_EXIT_FAILED 1
#define PHASE_EXIT_USAGE 2
#define PHASE_EXIT_NO_DEVICE 3
#define PHASE_EXIT_SKIPPED 77

/* An option "--name N"; its default is what *value holds. */
typedef struct phase_option {
    const char *name; /* with the dashes */
    int64_t *value;
    int64_t min, max;
    const char *help;
} phase_option;

/* Read the command line; --help is answered here, and what is not understood ends the program. */
void phase_begin(const char *phase,
                 const char *summary,
                 const phase_option *options,
                 int num_options,
                 int argc,
                 char **argv);

/* The device; ends the program with PHASE_EXIT_NO_DEVICE and the reason where there is none, and as
 * failed where there is one that the library cannot use. */
pkv_device *phase_device(void);

/* Count a check; where it fails, print what it was. Returns is_good. */
bool phase_check(bool is_good, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* End the program where a CUDA call or one of the library failed. */
void phase_cuda(cudaError_t error, const char *what);
void phase_status(pkv_device *device, pkv_status status, const char *what);

/* End the program: with a status, a reason and an exit code, or as failed. */
void phase_leave(const char *status, const char *reason, int exit_code);
void phase_stop(const char *what, const char *why);

/* Device memory, or the end of the program. */
void *phase_allocate(size_t size);
void *phase_upload(const void *source, size_t size); /* a copy on the device */

/* Zeroed host memory, and a copy of device memory in such; for free(). */
void *phase_host(size_t size);
void *phase_fetch(const void *memory, size_t size);

/* One JSON line {"phase":..., "case":..., "metric":..., "value":...}. */
void phase_metric(const char *case_name, const char *metric, double value);

/* Say why the phase does not run, and end the program with PHASE_EXIT_SKIPPED. */
void phase_skip(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The number of checks as a JSON line; the exit code. */
int phase_end(void);

/* A number in [-1, 1) that depends on the seed and the index alone. */
float phase_value(uint64_t seed, uint64_t index);

#ifdef __cplusplus
}
#endif

#endif
