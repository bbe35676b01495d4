/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* A binary buddy allocator over token slots: how engines without paging place a request's KV cache.
 * It hands out offsets and owns no KV memory.
 *
 * The one idea: every block is a power of two in size and stands at a multiple of its size; a freed
 * block joins its neighbour of the same size at once, as often as it can. */
#ifndef PKV_BENCH_BUDDY_H
#define PKV_BENCH_BUDDY_H

#include <stdint.h>

typedef struct buddy buddy;

/* Make an allocator over `num_slots` slots (1 to 2^30; any number: it starts as the powers of two
 * that sum up to it, largest first). NULL without memory or for another number. */
buddy *buddy_create(int64_t num_slots);
void buddy_destroy(buddy *allocator); /* NULL is a no-op */

/* Take the smallest block that holds `size` >= 1 slots, of several the one with the lowest offset.
 * Returns its offset, or -1 where no block is large enough. */
int64_t buddy_allocate(buddy *allocator, int64_t size);

/* Give back the block at `offset`. Returns its size; 0 where no block was handed out there. */
int64_t buddy_free(buddy *allocator, int64_t offset);

/* Size of the block handed out at `offset`: the size asked for, rounded up to a power of two. 0
 * where there is none. */
int64_t buddy_get_size(const buddy *allocator, int64_t offset);

int64_t buddy_get_num_free_slots(const buddy *allocator);

/* Size of the largest free block; 0 when nothing is free. */
int64_t buddy_get_largest_free(const buddy *allocator);

#endif
