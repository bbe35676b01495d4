/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The library's CUDA device for the phase programs; see gpu_phase.h. By itself, since gpu_wrappers
 * is linked without the library. */
#include <stdio.h>

#include "gpu_phase.h"

static char device_reason[256];

static void keep_reason(void *context, int level, const char *message) {
    (void)context;
    (void)level;
    (void)snprintf(device_reason, sizeof device_reason, "%s", message);
}

/* Whether there is a device at all, be it one that the library cannot use: code for another
 * architecture, or a driver that is too old. */
static bool has_device(void) {
    int num_devices = 0, driver_version = 0;
    cudaError_t error = cudaGetDeviceCount(&num_devices);

    (void)cudaDriverGetVersion(&driver_version); /* 0 where there is none */
    return error == cudaSuccess ? num_devices > 0
                                : error != cudaErrorNoDevice && driver_version > 0;
}

pkv_device *phase_device(void) {
    const pkv_cuda_config config = {.struct_size = sizeof config, .log = keep_reason};
    pkv_device *device;
    pkv_status status = pkv_device_create_cuda(&config, &device);

    if (status != PKV_OK) {
        const char *reason = device_reason[0] == '\0' ? pkv_status_name(status) : device_reason;

        if (has_device()) {
            phase_stop("pkv_device_create_cuda", reason);
        }
        phase_leave("no device", reason, PHASE_EXIT_NO_DEVICE);
    }
    return device;
}

void phase_status(pkv_device *device, pkv_status status, const char *what) {
    if (status != PKV_OK) {
        const char *text = device == NULL ? "" : pkv_device_last_error(device);

        phase_stop(what, *text == '\0' ? pkv_status_name(status) : text);
    }
}
