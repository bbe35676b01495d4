/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The templates in the compiler's own vectors of 4: what every processor of the architecture
 * has. */
#include "kernels/cpu/vector_portable.h"

#include "kernels/cpu/attend_few_template.h"
#include "kernels/cpu/attend_many_template.h"
#include "kernels/cpu/rows_template.h"

const struct pkvi_cpu_kernels pkvi_cpu_kernels_portable = {
    .name = "portable",
    .instructions = PKV_CPU_PORTABLE,
    .max_few_rows = FEW_MAX_ROWS,
    .e4m3_unit = VECTOR_E4M3_UNIT,
    .load_row = load_row,
    .store_row = store_row,
    .attend_few = attend_few,
    .attend_many = attend_many,
};
