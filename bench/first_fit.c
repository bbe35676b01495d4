/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The first-fit allocator behind first_fit.h.
 *
 * The one idea: a handful of requests leave a handful of free ranges, so a sorted array and memmove
 * are enough. */
#include "first_fit.h"

#include <stdlib.h>
#include <string.h>

typedef struct free_range {
    int64_t offset, size;
} free_range;

/* Invariants: ranges are sorted, not empty, and a taken slot lies between any two of them. */
struct first_fit {
    int64_t num_slots;
    free_range *ranges;
    int32_t num_ranges, capacity;
};

first_fit *first_fit_create(int64_t num_slots) {
    first_fit *allocator = calloc(1, sizeof(*allocator));

    if (allocator == NULL) {
        return NULL;
    }
    allocator->capacity = 64;
    allocator->ranges = malloc((size_t)allocator->capacity * sizeof(free_range));
    if (allocator->ranges == NULL) {
        free(allocator);
        return NULL;
    }
    allocator->num_slots = num_slots;
    allocator->num_ranges = 1;
    allocator->ranges[0] = (free_range){0, num_slots};
    return allocator;
}

void first_fit_destroy(first_fit *allocator) {
    if (allocator != NULL) {
        free(allocator->ranges);
        free(allocator);
    }
}

static void remove_range(first_fit *allocator, int32_t index) {
    free_range *range = &allocator->ranges[index];

    allocator->num_ranges--;
    memmove(range, range + 1, (size_t)(allocator->num_ranges - index) * sizeof(*range));
}

/* Taking never adds a range, so that only a free can need room: it is made here, ahead of it. */
static bool reserve_range(first_fit *allocator) {
    if (allocator->num_ranges + 1 < allocator->capacity) {
        return true;
    }

    int32_t larger = allocator->capacity * 2;
    free_range *ranges = realloc(allocator->ranges, (size_t)larger * sizeof(*ranges));

    if (ranges == NULL) {
        return false;
    }
    allocator->ranges = ranges;
    allocator->capacity = larger;
    return true;
}

int64_t first_fit_allocate(first_fit *allocator, int64_t size) {
    if (size < 1) {
        return -1;
    }
    for (int32_t i = 0; i < allocator->num_ranges; i++) {
        free_range *range = &allocator->ranges[i];
        int64_t offset = range->offset;

        if (range->size < size) {
            continue;
        }
        range->offset += size;
        range->size -= size;
        if (range->size == 0) {
            remove_range(allocator, i);
        }
        return offset;
    }
    return -1;
}

bool first_fit_free(first_fit *allocator, int64_t offset, int64_t size) {
    int32_t index = 0;

    if (offset < 0 || size < 1 || offset + size > allocator->num_slots) {
        return false;
    }
    while (index < allocator->num_ranges && allocator->ranges[index].offset < offset) {
        index++;
    }

    free_range *after = &allocator->ranges[index];
    free_range *before = after - 1;
    bool has_after = index < allocator->num_ranges;

    if ((has_after && offset + size > after->offset) ||
        (index > 0 && before->offset + before->size > offset)) {
        return false;
    }
    if (index > 0 && before->offset + before->size == offset) {
        before->size += size;
        if (has_after && before->offset + before->size == after->offset) {
            before->size += after->size;
            remove_range(allocator, index);
        }
        return true;
    }
    if (has_after && offset + size == after->offset) {
        after->offset = offset;
        after->size += size;
        return true;
    }
    if (!reserve_range(allocator)) {
        return false;
    }
    after = &allocator->ranges[index];
    memmove(after + 1, after, (size_t)(allocator->num_ranges - index) * sizeof(*after));
    *after = (free_range){offset, size};
    allocator->num_ranges++;
    return true;
}

int64_t first_fit_get_num_free_slots(const first_fit *allocator) {
    int64_t sum = 0;

    for (int32_t i = 0; i < allocator->num_ranges; i++) {
        sum += allocator->ranges[i].size;
    }
    return sum;
}

int64_t first_fit_get_largest_free(const first_fit *allocator) {
    int64_t largest = 0;

    for (int32_t i = 0; i < allocator->num_ranges; i++) {
        if (allocator->ranges[i].size > largest) {
            largest = allocator->ranges[i].size;
        }
    }
    return largest;
}
