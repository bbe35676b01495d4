/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Right before fast: what bench_attention holds the numbers of a batch against before it times it.
 * The suites in tests/ look at every kernel and shape; here it is what is about to be timed. */
#ifndef PKV_BENCH_ATTENTION_CHECK_H
#define PKV_BENCH_ATTENTION_CHECK_H

#include "attention_setup.h"

/* Element i as it is stored, without its scale. */
float attention_value(const void *values, pkv_dtype dtype, size_t i);

/* The difference of all values together, against the size of those wanted: the ratio of their
 * Euclidean lengths. NaN where one of them is. */
double attention_error(
    const void *values, pkv_dtype dtype, const void *wanted, pkv_dtype wanted_dtype, size_t count);

/* Where the output has this dtype, what that may be at most: rounding of the output, and with 16
 * bits of the weights, which an instruction set may round. One wrong block among some thousands of
 * keys is more. */
double attention_largest_error(pkv_dtype query_dtype);

/* Say whether `device` computes what it should, on stderr where it does not. First and last query
 * tokens of the last request are those of the CPU's reference device, on a contiguous copy that the
 * reference has written; through each other table the device writes and reads the same bytes for
 * the whole batch; in decode one block everywhere gives what it gives the reference. The pool is
 * left written through the random table. */
bool attention_check(attention_setup *setup, pkv_device *device, const char *name);

#endif
