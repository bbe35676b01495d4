/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Seeded random numbers for the benches (splitmix64), the same on every machine. Not for secrets.
 *
 * The one idea: the state is one counter, so mixing a value gives a hash and mixing a counter gives
 * a generator. */
#ifndef PKV_BENCH_RANDOM_H
#define PKV_BENCH_RANDOM_H

#include <math.h>
#include <stdint.h>

/* Mix 64 bits so that every input bit reaches every output bit. */
static inline uint64_t random_mix(uint64_t value) {
    value += UINT64_C(0x9e3779b97f4a7c15);
    value = (value ^ (value >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    value = (value ^ (value >> 27)) * UINT64_C(0x94d049bb133111eb);
    return value ^ (value >> 31);
}

static inline uint64_t random_next(uint64_t *state) {
    uint64_t value = random_mix(*state);

    *state += UINT64_C(0x9e3779b97f4a7c15);
    return value;
}

/* Uniform in [0, 1). */
static inline double random_uniform(uint64_t *state) {
    return (double)(random_next(state) >> 11) * 0x1p-53;
}

/* Uniform in [0, limit), limit >= 1; the bias below 2^-32 does not matter to a bench. */
static inline int32_t random_below(uint64_t *state, int32_t limit) {
    return (int32_t)(((random_next(state) >> 32) * (uint64_t)(uint32_t)limit) >> 32);
}

/* Standard normal (Box-Muller, one of the pair). */
static inline double random_normal(uint64_t *state) {
    double radius = sqrt(-2.0 * log(1.0 - random_uniform(state)));

    return radius * cos(6.283185307179586 * random_uniform(state));
}

/* Exponential with the given mean. */
static inline double random_exponential(uint64_t *state, double mean) {
    return -mean * log(1.0 - random_uniform(state));
}

#endif
