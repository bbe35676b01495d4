/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Tensors for tests; see tensor_fill.h. */
#define _DEFAULT_SOURCE
#include "support/tensor_fill.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

/* What tensor_value makes of all its arguments but the last. */
static uint64_t mix_row(uint64_t seed, int64_t a, int64_t b, int64_t c) {
    uint64_t x = mix(seed + 0x9e3779b97f4a7c15ull);

    x = mix(x + (uint64_t)a * 0x9e3779b97f4a7c15ull);
    x = mix(x + (uint64_t)b * 0xc2b2ae3d27d4eb4full);
    return mix(x + (uint64_t)c * 0x165667b19e3779f9ull);
}

static double value_of_row(uint64_t row, int64_t d) {
    return (double)(mix(row + (uint64_t)d * 0xd6e8feb86659fd93ull) >> 11) * 0x1p-52 - 1.0;
}

double tensor_value(uint64_t seed, int64_t a, int64_t b, int64_t c, int64_t d) {
    return value_of_row(mix_row(seed, a, b, c), d);
}

uint64_t tensor_index(uint64_t seed, int64_t a, uint64_t limit) {
    return mix(mix(seed) + (uint64_t)a * 0x9e3779b97f4a7c15ull) % limit;
}

/* 2^exponent, exact; only where that is a normal number, unlike ldexp, but at a fraction of its
 * time: the suites spend most of theirs on conversions. */
static double power_of_two(int exponent) {
    uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double power;

    memcpy(&power, &bits, sizeof power);
    return power;
}

/* A small float format: value of the bits without sign. */
static double decode_bits(unsigned bits, int mantissa_bits, int bias) {
    int exponent = (int)(bits >> mantissa_bits);
    double mantissa = (double)(bits & ((1u << mantissa_bits) - 1));

    return exponent == 0 ? mantissa * power_of_two(1 - bias - mantissa_bits)
                         : (mantissa + (double)(1u << mantissa_bits)) *
                               power_of_two(exponent - bias - mantissa_bits);
}

double tensor_decode(const void *base, pkv_dtype dtype, int64_t index) {
    const unsigned char *bytes =
        (const unsigned char *)base + index * (int64_t)pkv_dtype_size(dtype);
    unsigned bits = bytes[0];
    float value;

    switch (dtype) {
    case PKV_DTYPE_FLOAT32:
        memcpy(&value, bytes, sizeof value);
        return (double)value;
    case PKV_DTYPE_FLOAT16:
    case PKV_DTYPE_BFLOAT16: {
        int mantissa_bits = dtype == PKV_DTYPE_FLOAT16 ? 10 : 7;
        unsigned infinity = dtype == PKV_DTYPE_FLOAT16 ? 0x7c00u : 0x7f80u;
        unsigned magnitude;

        bits |= (unsigned)bytes[1] << 8;
        magnitude = bits & 0x7fffu;
        double result = magnitude > infinity ? NAN
                        : magnitude == infinity
                            ? INFINITY
                            : decode_bits(magnitude, mantissa_bits, mantissa_bits == 10 ? 15 : 127);
        return (bits & 0x8000u) != 0 ? -result : result;
    }
    case PKV_DTYPE_FLOAT8_E4M3: {
        double result = (bits & 0x7fu) == 0x7fu ? NAN : decode_bits(bits & 0x7fu, 3, 7);

        return (bits & 0x80u) != 0 ? -result : result;
    }
    case PKV_DTYPE_INT8:
        return bits < 128 ? (double)bits : (double)bits - 256.0;
    default:
        abort();
    }
}

/* Nearest bits, ties to even, of a magnitude; may carry over into the next exponent. */
static unsigned encode_bits(double magnitude, int mantissa_bits, int bias) {
    uint64_t bits;
    int exponent;
    double scaled;

    memcpy(&bits, &magnitude, sizeof bits);
    exponent = (int)(bits >> 52) - 1023; /* magnitude = 1.x * 2^exponent */
    if (exponent < 1 - bias) {
        exponent = 1 - bias; /* subnormal, or zero */
    }
    scaled = magnitude * power_of_two(mantissa_bits - exponent);
    scaled = (scaled + 0x1p52) - 0x1p52; /* to a whole number, as the processor rounds */
    if (scaled < (double)(1u << mantissa_bits)) {
        return (unsigned)scaled;
    }
    return (unsigned)scaled - (1u << mantissa_bits) +
           ((unsigned)(exponent + bias) << mantissa_bits);
}

void tensor_encode(void *base, pkv_dtype dtype, int64_t index, double value) {
    unsigned char *bytes = (unsigned char *)base + index * (int64_t)pkv_dtype_size(dtype);
    unsigned sign = signbit(value) ? 1u : 0u;
    float narrow = (float)value;
    unsigned bits;

    switch (dtype) {
    case PKV_DTYPE_FLOAT32:
        memcpy(bytes, &narrow, sizeof narrow);
        break;
    case PKV_DTYPE_FLOAT16:
    case PKV_DTYPE_BFLOAT16: {
        bool is_half = dtype == PKV_DTYPE_FLOAT16;
        unsigned infinity = is_half ? 0x7c00u : 0x7f80u;

        bits = isnan(value)   ? (is_half ? 0x7e00u : 0x7fc0u)
               : isinf(value) ? infinity
                              : encode_bits(fabs(value), is_half ? 10 : 7, is_half ? 15 : 127);
        bits = (bits > infinity && !isnan(value) ? infinity : bits) | sign << 15;
        bytes[0] = (unsigned char)bits;
        bytes[1] = (unsigned char)(bits >> 8);
        break;
    }
    case PKV_DTYPE_FLOAT8_E4M3:
        bits = isnan(value) ? 0x7fu : fabs(value) >= 448.0 ? 0x7eu : encode_bits(fabs(value), 3, 7);
        bytes[0] = (unsigned char)((bits > 0x7eu && !isnan(value) ? 0x7eu : bits) | sign << 7);
        break;
    case PKV_DTYPE_INT8:
        value = isnan(value) ? 0.0 : nearbyint(fmin(fmax(value, -127.0), 127.0));
        bytes[0] = (unsigned char)(int)value;
        break;
    default:
        abort();
    }
}

void tensor_fill_row(
    void *base, pkv_dtype dtype, int64_t first, int64_t count, const struct tensor_row *row) {
    uint64_t mixed = mix_row(row->seed, row->a, row->b, row->c);

    for (int64_t d = 0; d < count; d++) {
        tensor_encode(base, dtype, first + d, row->offset + row->factor * value_of_row(mixed, d));
    }
}

pkv_tensor tensor_view(void *data, pkv_dtype dtype, int32_t rank, const int64_t *shape) {
    pkv_tensor tensor = {.data = data, .dtype = dtype, .rank = rank};
    int64_t stride = 1;

    for (int32_t axis = rank - 1; axis >= 0; axis--) {
        tensor.shape[axis] = shape[axis];
        tensor.stride[axis] = stride;
        stride *= shape[axis];
    }
    return tensor;
}

int64_t tensor_count(const pkv_tensor *tensor) {
    int64_t count = 1;

    for (int32_t axis = 0; axis < tensor->rank; axis++) {
        count *= tensor->shape[axis];
    }
    return count;
}

/* Pages of `size` rounded up to 16 bytes, and their number of bytes. */
static size_t guarded_pages(size_t *size) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    *size = *size == 0 ? 16 : (*size + 15) / 16 * 16;
    return (*size + page - 1) / page * page;
}

void *guarded_allocate(size_t size, int byte) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t pages = guarded_pages(&size);
    unsigned char *start =
        mmap(NULL, pages + 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (start == MAP_FAILED || mprotect(start, page, PROT_NONE) != 0 ||
        mprotect(start + page + pages, page, PROT_NONE) != 0) {
        abort();
    }
    memset(start + page, byte, pages);
    return start + page + pages - size;
}

void guarded_release(void *memory, size_t size) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t pages = guarded_pages(&size);

    if (memory != NULL) {
        (void)munmap((unsigned char *)memory + size - pages - page, pages + 2 * page);
    }
}
