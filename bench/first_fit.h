/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* A first-fit allocator over token slots: contiguous ranges of exactly the size asked for. It
 * stands beside the buddy allocator to show how much of that one's waste is rounding.
 *
 * The one idea: free ranges are kept sorted by offset, neighbours joined; a request gets the start
 * of the first one that is long enough. */
#ifndef PKV_BENCH_FIRST_FIT_H
#define PKV_BENCH_FIRST_FIT_H

#include <stdbool.h>
#include <stdint.h>

typedef struct first_fit first_fit;

/* Make an allocator over `num_slots` >= 1 slots; NULL without memory. */
first_fit *first_fit_create(int64_t num_slots);
void first_fit_destroy(first_fit *allocator); /* NULL is a no-op */

/* Take `size` >= 1 slots in a row. Returns their offset, or -1 where no free range is long
 * enough. */
int64_t first_fit_allocate(first_fit *allocator, int64_t size);

/* Give back exactly what was taken at `offset`. Returns false, and changes nothing, where a part of
 * it is free already or lies outside, or without memory for one more range. */
bool first_fit_free(first_fit *allocator, int64_t offset, int64_t size);

int64_t first_fit_get_num_free_slots(const first_fit *allocator);

/* Length of the longest free range; 0 when nothing is free. */
int64_t first_fit_get_largest_free(const first_fit *allocator);

#endif
