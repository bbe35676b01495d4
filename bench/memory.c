/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Memory in large or small pages; see memory.h. */
#define _GNU_SOURCE /* madvise */

#include "memory.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef __linux__
#include <sys/mman.h>
#endif

/* A large page; also what everything is aligned to, so that two runs differ in nothing else. */
#define LARGE_PAGE ((size_t)2 << 20)

static bool has_small_pages;

void bench_memory_use_small_pages(bool is_small) {
    has_small_pages = is_small;
}

void *bench_memory_allocate(size_t size) {
    size_t whole = (size + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE;
    void *memory = whole < size ? NULL : aligned_alloc(LARGE_PAGE, whole);

#ifdef MADV_HUGEPAGE
    if (memory != NULL) { /* advice: a system that has none keeps its small pages */
        (void)madvise(memory, whole, has_small_pages ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
    }
#endif
    return memory;
}

double bench_memory_large_share(const void *memory, size_t size) {
    uintptr_t first = (uintptr_t)memory, end = first + size;
    uint64_t from = 0, to = 0, low, high, kib, large = 0;
    FILE *file = fopen("/proc/self/smaps", "r");
    char line[512];

    /* Each mapping: a line with its addresses, then lines of "Name: value kB". */
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "AnonHugePages: %" SCNu64, &kib) == 1) {
            large += from < end && to > first ? kib * 1024 : 0;
        } else if (sscanf(line, "%" SCNx64 "-%" SCNx64 " ", &low, &high) == 2) {
            from = low;
            to = high;
        }
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return large < size ? (double)large / (double)size : 1.0;
}
