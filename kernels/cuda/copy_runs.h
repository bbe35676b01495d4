/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Whole blocks between pools of which one is not on the device: copies by the runtime.
 *
 * The one idea: neighbours in both pools are one copy, and many copies are one call where the
 * runtime and the driver have it. Which of the ways is taken does not show in the bytes. */
#ifndef PKVI_CUDA_COPY_RUNS_H
#define PKVI_CUDA_COPY_RUNS_H

#include <cuda_runtime_api.h>

#include "device/backend.h"

/* Copies of one call. */
#define PKVI_COPIES_PER_CALL 512

struct pkvi_cuda_copies {
    bool takes_many; /* one call for many copies; taken back when the driver refuses it */
    size_t count;
    void *targets[PKVI_COPIES_PER_CALL];
    const void *sources[PKVI_COPIES_PER_CALL];
    size_t sizes[PKVI_COPIES_PER_CALL];
};

/* Whether this build and a driver of that version (as cudaDriverGetVersion says it) have the call
 * for many copies. */
bool pkvi_cuda_takes_many_copies(int driver_version);

/* Enqueue the copies. `list` is scratch memory; `may_batch`: the stream is one that takes the call
 * for many, and the host's memory is pinned. */
cudaError_t pkvi_cuda_copy_runs(const struct pkvi_move *op,
                                struct pkvi_cuda_copies *list,
                                bool may_batch,
                                cudaStream_t stream);

#endif
