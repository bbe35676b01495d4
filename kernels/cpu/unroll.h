/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* What the vector headers and the kernel templates share: forced inlining, unrolling, and the
 * polynomial of 2^x on [-1/2, 1/2] (minimax of the relative error, 2e-9, before rounding). */
#ifndef PKVI_CPU_UNROLL_H
#define PKVI_CPU_UNROLL_H

#include <pagedkv/device.h>

#include <math.h>

/* A "template": its const arguments are constants at each call. */
#define INLINE static inline __attribute__((always_inline, unused))

/* What does not depend on the cache's dtype is compiled once, not into each instance. */
#define NOINLINE static __attribute__((noinline, unused))

/* Before a loop with constant bounds whose array of vectors must become registers; and before an
 * inner loop whose own counting would cost. */
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#define UNROLL_BY_4 _Pragma("unroll 4")
#else
#define UNROLL _Pragma("GCC unroll 16")
#define UNROLL_BY_4 _Pragma("GCC unroll 4")
#endif

/* Keep a vector in a register: else the compiler reads memory anew for each use of it. */
#if defined(__x86_64__)
#define vector_keep(value)                                                                         \
    __extension__({                                                                                \
        vector kept = (value);                                                                     \
        __asm__("" : "+x"(kept));                                                                  \
        kept;                                                                                      \
    })
#else
#define vector_keep(value) (value)
#endif

#define EXP2_C1 0.693147206f
#define EXP2_C2 0.240226469f
#define EXP2_C3 0.0555032878f
#define EXP2_C4 0.00961848892f
#define EXP2_C5 0.00133999313f
#define EXP2_C6 0.000153458205f

#endif
