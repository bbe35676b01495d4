/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The counting allocator. Every piece carries a guard behind its last byte, checked at release. */
#include "support/counting_alloc.h"

#include <stdlib.h>
#include <string.h>

#define GUARD_SIZE 64
#define GUARD_BYTE 0xA5
#define FRESH_BYTE 0xC3 /* what new memory is filled with, so that nobody relies on zeroes */

static void *counting_allocate(void *context, size_t size, size_t alignment);
static void counting_release(void *context, void *memory, size_t size);

pkv_allocator counting_alloc_hooks(counting_alloc *counter) {
    return (pkv_allocator){counting_allocate, counting_release, counter};
}

const char *counting_alloc_complaint(const counting_alloc *counter) {
    if (counter->misuse != NULL) {
        return counter->misuse;
    }
    return counter->num_allocated == counter->num_released ? NULL : "memory leaked";
}

static bool is_refused(const counting_alloc *counter) {
    int64_t first = counter->refuse_from;

    return first > 0 && counter->num_calls >= first &&
           (counter->refuse_count == 0 || counter->num_calls < first + counter->refuse_count);
}

static void *counting_allocate(void *context, size_t size, size_t alignment) {
    counting_alloc *counter = context;
    size_t whole = (size + GUARD_SIZE + alignment - 1) / alignment * alignment;
    size_t index = 0;
    unsigned char *memory;

    counter->num_calls++;
    if (alignment == 0 || (alignment & (alignment - 1)) != 0 || size == 0) {
        counter->misuse = "allocate: size 0, or alignment not a power of two";
        return NULL;
    }
    if (is_refused(counter)) {
        return NULL;
    }
    while (index < COUNTING_ALLOC_MAX_LIVE && counter->live[index].memory != NULL) {
        index++;
    }
    memory = index == COUNTING_ALLOC_MAX_LIVE ? NULL : aligned_alloc(alignment, whole);
    if (memory == NULL) {
        return NULL;
    }
    if (!counter->leaves_garbage) {
        memset(memory, FRESH_BYTE, size);
    }
    memset(memory + size, GUARD_BYTE, whole - size);
    counter->live[index].memory = memory;
    counter->live[index].size = size;
    counter->live_size += size;
    counter->num_allocated++;
    return memory;
}

static void counting_release(void *context, void *memory, size_t size) {
    counting_alloc *counter = context;
    const unsigned char *guard = (const unsigned char *)memory + size;

    for (size_t i = 0; i < COUNTING_ALLOC_MAX_LIVE && memory != NULL; i++) {
        if (counter->live[i].memory != memory) {
            continue;
        }
        if (counter->live[i].size != size) {
            counter->misuse = "release: not the size that was allocated";
            return;
        }
        for (size_t j = 0; j < GUARD_SIZE; j++) {
            if (guard[j] != GUARD_BYTE) {
                counter->misuse = "release: written past the end";
            }
        }
        counter->live[i].memory = NULL;
        counter->live_size -= size;
        counter->num_released++;
        free(memory);
        return;
    }
    counter->misuse = "release: never allocated";
}
