/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The first phase of tests/gpu.sh: what device, driver and runtime there are, as JSON lines, and
 * whether the library takes the device. */
#include <stdio.h>
#include <string.h>

#include "gpu_phase.h"

static const struct {
    const char *name;
    enum cudaDeviceAttr attribute;
} questions[] = {
    {"compute capability, major", cudaDevAttrComputeCapabilityMajor},
    {"compute capability, minor", cudaDevAttrComputeCapabilityMinor},
    {"multiprocessors", cudaDevAttrMultiProcessorCount},
    {"shared bytes of a block", cudaDevAttrMaxSharedMemoryPerBlockOptin},
    {"shared bytes of a multiprocessor", cudaDevAttrMaxSharedMemoryPerMultiprocessor},
    {"L2 bytes", cudaDevAttrL2CacheSize},
    {"memory bus bits", cudaDevAttrGlobalMemoryBusWidth},
    {"clock, kHz at most", cudaDevAttrClockRate},
    {"memory clock, kHz at most", cudaDevAttrMemoryClockRate},
    {"reaches pageable memory", cudaDevAttrPageableMemoryAccess},
    {"ECC", cudaDevAttrEccEnabled},
};

int main(int argc, char **argv) {
    pkv_device_info info = {.struct_size = sizeof info};
    int ordinal = 0, driver = 0, runtime = 0;
    size_t free_bytes, total_bytes;

    phase_begin("probe", "What device, driver and runtime there are, as JSON lines.", NULL, 0, argc,
                argv);
    /* The driver's version is readable without a device; 0 says that there is no driver. */
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    phase_metric("driver", "version", driver);
    phase_metric("runtime", "version", runtime);
    pkv_device *device = phase_device();
    phase_status(device, pkv_device_get_info(device, &info), "pkv_device_get_info");
    phase_cuda(cudaGetDevice(&ordinal), "cudaGetDevice");
    for (size_t i = 0; i < sizeof questions / sizeof questions[0]; i++) {
        int value;

        /* What one runtime or device does not know is no reason to stop. */
        if (cudaDeviceGetAttribute(&value, questions[i].attribute, ordinal) == cudaSuccess) {
            phase_metric(info.description, questions[i].name, value);
        } else {
            (void)cudaGetLastError();
        }
    }
    phase_cuda(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
    phase_metric(info.description, "memory bytes", (double)total_bytes);
    phase_metric(info.description, "free memory bytes", (double)free_bytes);
    phase_check(!info.is_cpu && info.num_workers > 0, "the device describes itself as %s",
                info.description);
    pkv_device_destroy(device);
    return phase_end();
}
