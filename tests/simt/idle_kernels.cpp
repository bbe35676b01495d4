/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Which attention kernels of the library never computed anything (simt_control.h). A part of the library's
 * archive, since it asks for the table of kernels; the engine knows none.
 *
 * The one idea: the table comes from the list that also gives the names, so that a kernel which is
 * new is asked for by itself. */
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/instances.h"
#include "simt_control.h"

#include <cstdio>

int simt_print_idle_kernels(void) {
#define NAME(name, ...) #name,
    static const char *const names[] = {PKVI_ATTENTION_INSTANCES(NAME)
                                            PKVI_ATTENTION_PLAIN_INSTANCES(NAME)};
#undef NAME
    int32_t count = 0;
    const pkvi::attention_instance *table = pkvi::attention_instances(&count);
    int num_idle = 0;

    for (int32_t i = 0; i < count; i++) {
        /* Both tile sizes are launched for many rows; which of them computed, its loads tell. */
        const int64_t num_loads =
            simt_num_matrix_loads(reinterpret_cast<const void *>(table[i].kernel));
        const bool is_plain = table[i].tile_rows == 0;

        if (is_plain ? num_loads < 0 : num_loads <= 0) {
            fprintf(stderr, "never executed: the attention kernel %s\n", names[i]);
            num_idle++;
        }
    }
    fprintf(stderr, "%d of %d attention kernels executed\n", static_cast<int>(count) - num_idle,
            static_cast<int>(count));
    return num_idle;
}
