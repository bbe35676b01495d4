/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Property: whatever an engine schedules, preempts, loads, aborts or fails, a request reads its own
 * tokens only, and nothing differs from the naive model. */
#include "fuzz/simulate.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_simulate(SIM_ENGINE, data, size);
    return 0;
}
