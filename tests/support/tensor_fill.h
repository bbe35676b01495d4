/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Tensors for tests: views, values that depend on their logical place only, and conversions of each
 * dtype by arithmetic that shares nothing with the library's. */
#ifndef TESTS_SUPPORT_TENSOR_FILL_H
#define TESTS_SUPPORT_TENSOR_FILL_H

#include <pagedkv/device.h>

/* A value in [-1, 1) that depends on its arguments alone. */
double tensor_value(uint64_t seed, int64_t a, int64_t b, int64_t c, int64_t d);

/* A whole number in [0, limit). */
uint64_t tensor_index(uint64_t seed, int64_t a, uint64_t limit);

/* Element `index` behind `base` as a number; NaN for the NaN patterns. */
double tensor_decode(const void *base, pkv_dtype dtype, int64_t index);

/* The nearest value of the dtype, ties to even. FLOAT8_E4M3 saturates at 448, INT8 at 127. */
void tensor_encode(void *base, pkv_dtype dtype, int64_t index, double value);

/* Elements first to first + count - 1 become offset + factor * tensor_value(seed, a, b, c, d), with
 * d from 0. */
struct tensor_row {
    uint64_t seed;
    int64_t a, b, c;
    double offset, factor;
};
void tensor_fill_row(
    void *base, pkv_dtype dtype, int64_t first, int64_t count, const struct tensor_row *row);

/* A contiguous view. */
pkv_tensor tensor_view(void *data, pkv_dtype dtype, int32_t rank, const int64_t *shape);

/* Number of elements of a view. */
int64_t tensor_count(const pkv_tensor *tensor);

/* Memory that ends at a page that cannot be touched, filled with `byte`. `size` is rounded up to
 * 16. */
void *guarded_allocate(size_t size, int byte);
void guarded_release(void *memory, size_t size);

#endif
