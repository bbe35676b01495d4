/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The templates as AVX2 kernels: 8 lanes, 16 registers. */
#include "kernels/cpu/vector_avx2.h"

#include "kernels/cpu/attend_few_template.h"
#include "kernels/cpu/attend_many_template.h"
#include "kernels/cpu/rows_template.h"

const struct pkvi_cpu_kernels pkvi_cpu_kernels_avx2 = {
    .name = "avx2",
    .instructions = PKV_CPU_AVX2,
    .max_few_rows = FEW_MAX_ROWS,
    .e4m3_unit = VECTOR_E4M3_UNIT,
    .load_row = load_row,
    .store_row = store_row,
    .attend_few = attend_few,
    .attend_many = attend_many,
};
