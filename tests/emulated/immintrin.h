/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Stands before the compiler's <immintrin.h> where the AVX-512 kernels are tested on a processor
 * that lacks it: the intrinsics come from SIMDe, which computes them with plain C, and the few that
 * SIMDe 0.7.4 lacks are here.
 *
 * The one idea: no instruction of the emulated set is ever executed, so that what is tested is the
 * kernels' own source, element for element, and nothing of the processor. */
#ifndef PKV_TESTS_EMULATED_IMMINTRIN_H
#define PKV_TESTS_EMULATED_IMMINTRIN_H

#define SIMDE_NO_NATIVE
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/convert.h"

/* Vectors of 64 bytes are in memory here: what asks for registers of x86-64 takes the way of other
 * processors. Every header of the system that looks at this name has been read above. */
#undef __x86_64__

/* Names that SIMDe has under its own prefix only. */
typedef simde__mmask16 __mmask16;
typedef simde__mmask32 __mmask32;
#define _MM_FROUND_NO_EXC SIMDE_MM_FROUND_NO_EXC

/* A function from one vector to another, lane by lane: `read` and `written` are the lanes' types,
 * `value` the expression that makes one of the other. */
#define EMULATE_LANES(name, to, written, from, read, lanes, value)                                 \
    static inline to name(from source) {                                                           \
        read in[sizeof(from) / sizeof(read)];                                                      \
        written out[sizeof(to) / sizeof(written)] = {0};                                           \
        to result;                                                                                 \
        memcpy(in, &source, sizeof source);                                                        \
        for (int i = 0; i < (lanes); i++) {                                                        \
            read x = in[i];                                                                        \
            out[i] = (value);                                                                      \
        }                                                                                          \
        memcpy(&result, out, sizeof result);                                                       \
        return result;                                                                             \
    }

/* BF16 instructions take what is below the smallest normal number for zero. */
static inline float emulate_flush(float x) {
    return fabsf(x) < 0x1p-126f ? 0.0f : x;
}

EMULATE_LANES(emulate_cvtepi32_epi16, __m256i, int16_t, __m512i, int32_t, 16, (int16_t)x)
EMULATE_LANES(emulate_cvtepi32_ps, __m512, float, __m512i, int32_t, 16, (float)x)
EMULATE_LANES(emulate_cvtepi8_epi32, __m512i, int32_t, __m128i, int8_t, 16, x)
EMULATE_LANES(emulate_cvtepu16_epi32, __m512i, int32_t, __m256i, uint16_t, 16, x)
EMULATE_LANES(emulate_cvtph_ps, __m512, float, __m256i, uint16_t, 16, pkvi_cpu_from_float16(x))
EMULATE_LANES(emulate_zextps, __m512, float, __m256, float, 8, x)
EMULATE_LANES(emulate_cvtneps_pbh,
              __m256bh,
              uint16_t,
              __m512,
              float,
              16,
              pkvi_cpu_to_bfloat16(emulate_flush(x)))
/* Out of range and NaN give the indefinite integer. */
EMULATE_LANES(emulate_cvtps_epi32,
              __m512i,
              int32_t,
              __m512,
              float,
              16,
              x >= -0x1p31f && x < 0x1p31f ? (int32_t)nearbyintf(x) : INT32_MIN)
EMULATE_LANES(emulate_cvtps_ph, __m256i, uint16_t, __m512, float, 16, pkvi_cpu_to_float16(x))

static inline __m256 emulate_extract(__m512 source, int half) {
    __m256 result;

    memcpy(&result, (const char *)&source + half * 32, sizeof result);
    return result;
}

/* What the mask does not name is not touched. */
static inline void emulate_load_masked(void *target, uint32_t mask, const void *source, int lanes) {
    for (int i = 0; i < lanes; i++) {
        if ((mask >> i & 1u) != 0) {
            memcpy((char *)target + 2 * i, (const char *)source + 2 * i, 2);
        } else {
            memset((char *)target + 2 * i, 0, 2);
        }
    }
}

static inline __m512i emulate_load_masked_512(uint32_t mask, const void *source) {
    __m512i result;

    emulate_load_masked(&result, mask, source, 32);
    return result;
}

static inline __m256i emulate_load_masked_256(uint32_t mask, const void *source) {
    __m256i result;

    emulate_load_masked(&result, mask, source, 16);
    return result;
}

#define _mm512_cvtepi32_epi16(a) emulate_cvtepi32_epi16(a)
#define _mm512_cvtepi32_ps(a) emulate_cvtepi32_ps(a)
#define _mm512_cvtepi8_epi32(a) emulate_cvtepi8_epi32(a)
#define _mm512_cvtepu16_epi32(a) emulate_cvtepu16_epi32(a)
#define _mm512_cvtph_ps(a) emulate_cvtph_ps(a)
#define _mm512_cvtps_ph(a, rounding) ((void)(rounding), emulate_cvtps_ph(a))
#define _mm512_cvtps_epi32(a) emulate_cvtps_epi32(a)
#define _mm512_cvtneps_pbh(a) emulate_cvtneps_pbh(a)
#define _mm512_zextps256_ps512(a) emulate_zextps(a)
#define _mm512_extractf32x8_ps(a, half) emulate_extract(a, half)
#define _mm512_maskz_loadu_epi16(mask, source) emulate_load_masked_512(mask, source)
#define _mm256_maskz_loadu_epi16(mask, source) emulate_load_masked_256(mask, source)

#endif
