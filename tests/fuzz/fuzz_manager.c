/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Property: no sequence of calls on a manager, however wrong, breaks an invariant or differs from
 * the naive model. */
#include "fuzz/simulate.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_simulate(SIM_CHAOS, data, size);
    return 0;
}
