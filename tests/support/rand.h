/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Numbers for tests that must be repeatable: a seeded generator and the source that tests draw
 * from. It has no global state, and equal seeds give equal numbers on every machine.
 *
 * The one idea: a source gives numbers either of a seed or of the bytes of a fuzzer's input, so
 * that one decoder of operations serves the simulators and the fuzz targets. */
#ifndef PKV_TESTS_SUPPORT_RAND_H
#define PKV_TESTS_SUPPORT_RAND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct test_rand {
    uint64_t state;
} test_rand;

/* Next 64 bits (splitmix64). */
static inline uint64_t test_rand_next(test_rand *generator) {
    uint64_t z = generator->state += UINT64_C(0x9E3779B97F4A7C15);

    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

/* Where operations come from. With `bytes` they end when the bytes do; a seed never ends. */
typedef struct test_source {
    const uint8_t *bytes;
    size_t num_bytes, position;
    test_rand generator;
    bool is_exhausted;
} test_source;

static inline test_source test_source_of_seed(uint64_t seed) {
    return (test_source){.generator = {seed}};
}

static inline test_source test_source_of_bytes(const uint8_t *bytes, size_t num_bytes) {
    return (test_source){.bytes = bytes, .num_bytes = num_bytes, .is_exhausted = num_bytes == 0};
}

/* Next number of a source below 2^(8 * num_bytes); 0 once the bytes are used up. */
static inline uint64_t test_source_next(test_source *source, size_t num_bytes) {
    uint64_t value = 0;

    if (source->num_bytes == 0 && source->bytes == NULL && !source->is_exhausted) {
        return test_rand_next(&source->generator) >> (64 - 8 * num_bytes);
    }
    for (size_t i = 0; i < num_bytes; i++) {
        if (source->position == source->num_bytes) {
            source->is_exhausted = true;
            return 0;
        }
        value = value << 8 | source->bytes[source->position++];
    }
    return value;
}

/* A number in [0, bound); bound >= 1. */
static inline int32_t test_draw(test_source *source, int32_t bound) {
    uint64_t value;

    if (bound <= 1) {
        return 0;
    }
    value = test_source_next(source, bound <= 256 ? 1 : 4);
    return (int32_t)(value % (uint64_t)bound);
}

/* A number in [low, high]. */
static inline int32_t test_draw_between(test_source *source, int32_t low, int32_t high) {
    return low + test_draw(source, high - low + 1);
}

/* True once in `n` draws. */
static inline bool test_draw_once_in(test_source *source, int32_t n) {
    return test_draw(source, n) == n - 1;
}

#endif
