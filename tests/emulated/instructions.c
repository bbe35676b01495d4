/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Takes the place of kernels/cpu/instructions.c where AVX-512 is emulated: the two sets are there,
 * since their instructions are plain C in this build. */
#include "kernels/cpu/cpu.h"

const struct pkvi_cpu_kernels *pkvi_cpu_find_kernels(pkv_cpu_instructions instructions,
                                                     const char **reason) {
    *reason = NULL;
    switch (instructions) {
    case PKV_CPU_REFERENCE:
        return NULL;
    case PKV_CPU_PORTABLE:
        return &pkvi_cpu_kernels_portable;
    case PKV_CPU_AVX512:
        return &pkvi_cpu_kernels_avx512;
    case PKV_CPU_AVX512_BF16:
        return &pkvi_cpu_kernels_avx512bf16;
    default:
        *reason = "not in the build that emulates AVX-512";
        return NULL;
    }
}

pkv_cpu_instructions pkvi_cpu_best_instructions(void) {
    return PKV_CPU_AVX512_BF16;
}

bool pkv_cpu_has_instructions(pkv_cpu_instructions instructions, const char **reason) {
    const char *why = NULL;

    (void)pkvi_cpu_find_kernels(instructions == PKV_CPU_AUTO ? PKV_CPU_PORTABLE : instructions,
                                &why);
    if (reason != NULL) {
        *reason = why;
    }
    return why == NULL;
}
