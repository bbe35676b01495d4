/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* What the fuzz targets of the simulators share: the bytes decide what is called, the naive model
 * what is right. */
#ifndef PKV_TESTS_FUZZ_SIMULATE_H
#define PKV_TESTS_FUZZ_SIMULATE_H

#include "support/sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FUZZ_MAX_STEPS 20000

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static inline void fuzz_simulate(sim_kind kind, const uint8_t *data, size_t size) {
    static sim_log log;
    test_source source = test_source_of_bytes(data, size);
    sim_counts counts = {0};

    memset(&log, 0, sizeof log);
    sim_run_episode(kind, &source, FUZZ_MAX_STEPS, &log, &counts);
    if (log.has_failed) {
        fprintf(stderr, "step %lld: %s\n  %s\n", (long long)log.step, log.operation, log.problem);
        abort();
    }
}

#endif
