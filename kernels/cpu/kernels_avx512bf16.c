/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The AVX-512 kernels, with the products of bfloat16 where query and cache are both of it. */
#define VECTOR_HAS_PAIRS 1
#include "kernels/cpu/vector_avx512.h"

#include "kernels/cpu/attend_few_template.h"
#include "kernels/cpu/attend_many_template.h"
#include "kernels/cpu/rows_template.h"

#include "kernels/cpu/attend_avx512bf16.h"

const struct pkvi_cpu_kernels pkvi_cpu_kernels_avx512bf16 = {
    .name = "avx512bf16",
    .instructions = PKV_CPU_AVX512_BF16,
    .max_few_rows = FEW_MAX_ROWS,
    .e4m3_unit = VECTOR_E4M3_UNIT,
    .load_row = load_row,
    .store_row = store_row,
    .attend_few = attend_few_pairs,
    .attend_many = attend_many_pairs,
};
