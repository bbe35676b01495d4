/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Memory of caches that a bench measures on: large, and by default in large pages where the system
 * has them, as an engine should ask for it. */
#ifndef PKV_BENCH_MEMORY_H
#define PKV_BENCH_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

/* Pages of all that is allocated from now on. */
void bench_memory_use_small_pages(bool is_small);

/* NULL where there is not enough. Freed with free(). */
void *bench_memory_allocate(size_t size);

/* How much of `size` written bytes lies in large pages, 0 to 1; 0 where the system does not tell.
 * Mappings that grew together count together. */
double bench_memory_large_share(const void *memory, size_t size);

#endif
