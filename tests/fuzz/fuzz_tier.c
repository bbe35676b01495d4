/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Property: no sequence of steps and swaps lets a read see foreign content, leaks a block or a
 * slot, or breaks an invariant of a manager with a tier. */
#include "support/tier_sim.h"

#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    test_source source = test_source_of_bytes(data, size);
    tier_sim_counts counts = {0};
    char text[512];

    if (!tier_sim_run(&source, 4096, &counts, text, sizeof text)) {
        fprintf(stderr, "%s\n", text);
        abort();
    }
    return 0;
}
