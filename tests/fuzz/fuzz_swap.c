/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Property: an engine that also swaps never lets a request read what is not its own, and nothing,
 * in either medium, differs from the naive model. */
#include "fuzz/simulate.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_simulate(SIM_SWAP, data, size);
    return 0;
}
