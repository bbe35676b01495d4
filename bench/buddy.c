/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The buddy allocator behind buddy.h.
 *
 * The one idea: free blocks of one order hang in a list sorted by offset; state[offset] tells what
 * begins at an offset, so a neighbour is found without a search. */
#include "buddy.h"

#include <stdlib.h>

#define MAX_ORDER 30
#define NONE (-1)

/* What begins at a slot: nothing, a free block, or one that was handed out, with its order. */
#define STATE_NOTHING 0
#define STATE_FREE(order) ((int8_t)(1 + (order)))
#define STATE_TAKEN(order) ((int8_t)(-1 - (order)))

/* Invariants: the blocks that begin where state is not STATE_NOTHING tile [0, num_slots); no two
 * free blocks are buddies of each other; num_free_slots is the sum of the free ones' sizes. */
struct buddy {
    int64_t num_slots, num_free_slots;
    int32_t heads[MAX_ORDER + 1]; /* lowest offset of each order's free list, or NONE */
    int32_t *next, *previous;     /* [num_slots], of free blocks */
    int8_t *state;                /* [num_slots] */
};

static int32_t order_of(int64_t size) {
    int32_t order = 0;

    while (((int64_t)1 << order) < size) {
        order++;
    }
    return order;
}

static void list_insert(buddy *allocator, int32_t order, int32_t offset) {
    int32_t before = NONE;
    int32_t after = allocator->heads[order];

    while (after != NONE && after < offset) {
        before = after;
        after = allocator->next[after];
    }
    allocator->next[offset] = after;
    allocator->previous[offset] = before;
    if (after != NONE) {
        allocator->previous[after] = offset;
    }
    if (before != NONE) {
        allocator->next[before] = offset;
    } else {
        allocator->heads[order] = offset;
    }
    allocator->state[offset] = STATE_FREE(order);
}

static void list_remove(buddy *allocator, int32_t order, int32_t offset) {
    int32_t before = allocator->previous[offset];
    int32_t after = allocator->next[offset];

    if (before != NONE) {
        allocator->next[before] = after;
    } else {
        allocator->heads[order] = after;
    }
    if (after != NONE) {
        allocator->previous[after] = before;
    }
    allocator->state[offset] = STATE_NOTHING;
}

buddy *buddy_create(int64_t num_slots) {
    if (num_slots < 1 || num_slots > (int64_t)1 << MAX_ORDER) {
        return NULL;
    }

    buddy *allocator = calloc(1, sizeof(*allocator));

    if (allocator == NULL) {
        return NULL;
    }
    allocator->num_slots = num_slots;
    allocator->num_free_slots = num_slots;
    allocator->next = malloc((size_t)num_slots * sizeof(int32_t));
    allocator->previous = malloc((size_t)num_slots * sizeof(int32_t));
    allocator->state = calloc((size_t)num_slots, sizeof(int8_t));
    if (allocator->next == NULL || allocator->previous == NULL || allocator->state == NULL) {
        buddy_destroy(allocator);
        return NULL;
    }
    for (int32_t order = 0; order <= MAX_ORDER; order++) {
        allocator->heads[order] = NONE;
    }

    int64_t offset = 0;

    for (int32_t order = MAX_ORDER; order >= 0; order--) {
        if ((num_slots >> order & 1) != 0) {
            list_insert(allocator, order, (int32_t)offset);
            offset += (int64_t)1 << order;
        }
    }
    return allocator;
}

void buddy_destroy(buddy *allocator) {
    if (allocator != NULL) {
        free(allocator->next);
        free(allocator->previous);
        free(allocator->state);
        free(allocator);
    }
}

int64_t buddy_allocate(buddy *allocator, int64_t size) {
    if (size < 1 || size > allocator->num_slots) {
        return -1;
    }

    int32_t wanted = order_of(size);
    int32_t order = wanted;

    while (order <= MAX_ORDER && allocator->heads[order] == NONE) {
        order++;
    }
    if (order > MAX_ORDER) {
        return -1;
    }

    int32_t offset = allocator->heads[order];

    list_remove(allocator, order, offset);
    while (order > wanted) {
        order--;
        list_insert(allocator, order, offset + (1 << order));
    }
    allocator->state[offset] = STATE_TAKEN(wanted);
    allocator->num_free_slots -= (int64_t)1 << wanted;
    return offset;
}

int64_t buddy_get_size(const buddy *allocator, int64_t offset) {
    if (offset < 0 || offset >= allocator->num_slots || allocator->state[offset] >= 0) {
        return 0;
    }
    return (int64_t)1 << (-1 - allocator->state[offset]);
}

int64_t buddy_free(buddy *allocator, int64_t offset) {
    int64_t size = buddy_get_size(allocator, offset);

    if (size == 0) {
        return 0;
    }

    int32_t order = order_of(size);
    int32_t start = (int32_t)offset;

    allocator->num_free_slots += size;
    allocator->state[start] = STATE_NOTHING;
    while (order < MAX_ORDER) {
        int32_t neighbour = start ^ (1 << order);

        if (neighbour >= allocator->num_slots || allocator->state[neighbour] != STATE_FREE(order)) {
            break;
        }
        list_remove(allocator, order, neighbour);
        start = start < neighbour ? start : neighbour;
        order++;
    }
    list_insert(allocator, order, start);
    return size;
}

int64_t buddy_get_num_free_slots(const buddy *allocator) {
    return allocator->num_free_slots;
}

int64_t buddy_get_largest_free(const buddy *allocator) {
    for (int32_t order = MAX_ORDER; order >= 0; order--) {
        if (allocator->heads[order] != NONE) {
            return (int64_t)1 << order;
        }
    }
    return 0;
}
