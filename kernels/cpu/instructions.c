/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Which instruction sets this processor and operating system have, and which table goes with each.
 *
 * The one idea: an instruction set counts only when the system also saves its registers, which
 * XGETBV tells; a processor's word alone is not enough under every hypervisor. */
#include "kernels/cpu/cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>

/* Register state that the system saves: bits of XCR0. */
#define STATE_AVX 0x06u
#define STATE_AVX512 0xe6u

static uint32_t read_saved_state(void) {
    uint32_t low, high;

    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

/* Whether all of `bits` are set in a leaf's register. */
static bool has_bits(uint32_t value, uint32_t bits) {
    return (value & bits) == bits;
}

static const char *refuse_x86(pkv_cpu_instructions instructions) {
    const uint32_t leaf1_ecx = 1u << 12 | 1u << 27 | 1u << 28 | 1u << 29; /* FMA OSXSAVE AVX F16C */
    const uint32_t leaf7_avx2 = 1u << 5;
    const uint32_t leaf7_avx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31; /* F DQ BW VL */
    const uint32_t leaf7_1_bf16 = 1u << 5;
    uint32_t eax, ebx = 0, ecx = 0, edx;

    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || !has_bits(ecx, leaf1_ecx)) {
        return "the processor has no AVX with FMA and F16C";
    }
    uint32_t state = read_saved_state();
    if (!has_bits(state, STATE_AVX)) {
        return "the operating system does not save AVX registers";
    }
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || !has_bits(ebx, leaf7_avx2)) {
        return "the processor has no AVX2";
    }
    if (instructions == PKV_CPU_AVX2) {
        return NULL;
    }
    if (!has_bits(ebx, leaf7_avx512)) {
        return "the processor has no AVX-512 F, DQ, BW and VL";
    }
    if (!has_bits(state, STATE_AVX512)) {
        return "the operating system does not save AVX-512 registers";
    }
    if (instructions == PKV_CPU_AVX512) {
        return NULL;
    }
    /* eax of part 0 is the number of the leaf's last part. */
    if (eax < 1 || __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) == 0 ||
        !has_bits(eax, leaf7_1_bf16)) {
        return "the processor has no AVX-512 BF16";
    }
    return NULL;
}
#endif

const struct pkvi_cpu_kernels *pkvi_cpu_find_kernels(pkv_cpu_instructions instructions,
                                                     const char **reason) {
    *reason = NULL;
    switch (instructions) {
    case PKV_CPU_REFERENCE:
        return NULL;
    case PKV_CPU_PORTABLE:
        return &pkvi_cpu_kernels_portable;
#if defined(__x86_64__)
    case PKV_CPU_AVX2:
    case PKV_CPU_AVX512:
    case PKV_CPU_AVX512_BF16:
        *reason = refuse_x86(instructions);
        if (*reason != NULL) {
            return NULL;
        }
        return instructions == PKV_CPU_AVX2     ? &pkvi_cpu_kernels_avx2
               : instructions == PKV_CPU_AVX512 ? &pkvi_cpu_kernels_avx512
                                                : &pkvi_cpu_kernels_avx512bf16;
#endif
#if defined(__aarch64__)
    case PKV_CPU_NEON:
        return &pkvi_cpu_kernels_neon;
#endif
    default:
        *reason = "this build has no kernels for these instructions";
        return NULL;
    }
}

pkv_cpu_instructions pkvi_cpu_best_instructions(void) {
    const pkv_cpu_instructions order[] = {PKV_CPU_AVX512_BF16, PKV_CPU_AVX512, PKV_CPU_AVX2,
                                          PKV_CPU_NEON, PKV_CPU_PORTABLE};
    const char *reason;

    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++) {
        if (pkvi_cpu_find_kernels(order[i], &reason) != NULL) {
            return order[i];
        }
    }
    return PKV_CPU_REFERENCE;
}

bool pkv_cpu_has_instructions(pkv_cpu_instructions instructions, const char **reason) {
    const char *why = NULL;

    if (instructions != PKV_CPU_AUTO) {
        (void)pkvi_cpu_find_kernels(instructions, &why);
    }
    if (reason != NULL) {
        *reason = why;
    }
    return why == NULL;
}
