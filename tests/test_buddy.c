/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Goal: the contiguous allocators that the memory bench compares with place what can be placed,
 * never twice, and refuse only what cannot be placed.
 * Method: random operations in lock-step with a bitmap of slots that is searched naively. */
#include "bench/buddy.h"
#include "bench/first_fit.h"
#include "bench/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MAX_SLOTS 1024
#define MAX_TAKEN 512
#define NUM_OPERATIONS 20000

typedef struct taken_range {
    int64_t offset, size;
} taken_range;

/* One byte a slot: 1 where it is taken. */
typedef struct bitmap {
    int64_t num_slots;
    uint8_t is_taken[MAX_SLOTS];
} bitmap;

static bool is_free_run(const bitmap *map, int64_t offset, int64_t size) {
    for (int64_t i = 0; i < size; i++) {
        if (map->is_taken[offset + i] != 0) {
            return false;
        }
    }
    return true;
}

/* Lowest multiple of `step` from which `size` slots are free; -1 if there is none. */
static int64_t find_run(const bitmap *map, int64_t size, int64_t step) {
    for (int64_t offset = 0; offset + size <= map->num_slots; offset += step) {
        if (is_free_run(map, offset, size)) {
            return offset;
        }
    }
    return -1;
}

static int64_t largest_power_run(const bitmap *map) {
    int64_t largest = 0;

    for (int64_t size = 1; size <= map->num_slots; size *= 2) {
        if (find_run(map, size, size) >= 0) {
            largest = size;
        }
    }
    return largest;
}

static int64_t longest_run(const bitmap *map) {
    int64_t longest = 0;
    int64_t length = 0;

    for (int64_t i = 0; i < map->num_slots; i++) {
        length = map->is_taken[i] != 0 ? 0 : length + 1;
        longest = length > longest ? length : longest;
    }
    return longest;
}

static int64_t count_free(const bitmap *map) {
    int64_t num_free = 0;

    for (int64_t i = 0; i < map->num_slots; i++) {
        num_free += map->is_taken[i] == 0;
    }
    return num_free;
}

static int64_t round_to_power(int64_t size) {
    int64_t power = 1;

    while (power < size) {
        power *= 2;
    }
    return power;
}

static int64_t draw_size(uint64_t *state, int64_t num_slots) {
    /* Mostly small, now and then anything. */
    int64_t limit = random_below(state, 8) == 0 ? num_slots : num_slots / 16 + 1;

    return 1 + random_below(state, (int32_t)limit);
}

static void run_buddy(int64_t num_slots, uint64_t seed) {
    bitmap map = {.num_slots = num_slots};
    taken_range taken[MAX_TAKEN];
    int32_t num_taken = 0;
    uint64_t state = seed;
    buddy *allocator = buddy_create(num_slots);

    assert_non_null(allocator);
    print_message("buddy: %d slots, seed %d\n", (int)num_slots, (int)seed);
    for (int32_t i = 0; i < NUM_OPERATIONS; i++) {
        if (random_below(&state, 100) < 52 && num_taken < MAX_TAKEN) {
            int64_t size = draw_size(&state, num_slots);
            int64_t rounded = round_to_power(size);
            bool is_possible = rounded <= num_slots && find_run(&map, rounded, rounded) >= 0;
            int64_t offset = buddy_allocate(allocator, size);

            assert_int_equal(offset >= 0, is_possible);
            if (offset >= 0) {
                assert_int_equal(offset % rounded, 0);
                assert_true(offset + rounded <= num_slots);
                assert_true(is_free_run(&map, offset, rounded));
                assert_int_equal(buddy_get_size(allocator, offset), rounded);
                memset(map.is_taken + offset, 1, (size_t)rounded);
                taken[num_taken++] = (taken_range){offset, rounded};
            }
        } else if (num_taken > 0) {
            int32_t chosen = random_below(&state, num_taken);

            assert_int_equal(buddy_free(allocator, taken[chosen].offset), taken[chosen].size);
            assert_int_equal(buddy_free(allocator, taken[chosen].offset), 0);
            memset(map.is_taken + taken[chosen].offset, 0, (size_t)taken[chosen].size);
            taken[chosen] = taken[--num_taken];
        }
        assert_int_equal(buddy_get_num_free_slots(allocator), count_free(&map));
        assert_int_equal(buddy_get_largest_free(allocator), largest_power_run(&map));
    }
    buddy_destroy(allocator);
}

static void buddy_random_operations_agree_with_bitmap(void **state) {
    static const int64_t sizes[] = {1, 7, 64, 100, 785, 1024};

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        run_buddy(sizes[i], 11 + i);
    }
}

static void buddy_takes_lowest_of_the_smallest(void **state) {
    buddy *allocator = buddy_create(64);

    (void)state;
    assert_int_equal(buddy_allocate(allocator, 16), 0);
    assert_int_equal(buddy_allocate(allocator, 9), 16);
    assert_int_equal(buddy_allocate(allocator, 16), 32);
    assert_int_equal(buddy_free(allocator, 16), 16);

    /* 32 slots are free, in two halves that are no neighbours. */
    assert_int_equal(buddy_get_num_free_slots(allocator), 32);
    assert_int_equal(buddy_allocate(allocator, 17), -1);
    assert_int_equal(buddy_allocate(allocator, 3), 16);
    buddy_destroy(allocator);
}

static void buddy_refuses_what_makes_no_sense(void **state) {
    buddy *allocator = buddy_create(64);

    (void)state;
    assert_null(buddy_create(0));
    assert_null(buddy_create(-5));
    assert_null(buddy_create(((int64_t)1 << 30) + 1));
    assert_int_equal(buddy_allocate(allocator, 0), -1);
    assert_int_equal(buddy_allocate(allocator, 65), -1);
    assert_int_equal(buddy_free(allocator, 0), 0);
    assert_int_equal(buddy_free(allocator, 64), 0);
    assert_int_equal(buddy_free(allocator, -1), 0);
    assert_int_equal(buddy_get_largest_free(allocator), 64);
    buddy_destroy(allocator);
    buddy_destroy(NULL);
}

static void run_first_fit(int64_t num_slots, uint64_t seed) {
    bitmap map = {.num_slots = num_slots};
    taken_range taken[MAX_TAKEN];
    int32_t num_taken = 0;
    uint64_t state = seed;
    first_fit *allocator = first_fit_create(num_slots);

    assert_non_null(allocator);
    print_message("first fit: %d slots, seed %d\n", (int)num_slots, (int)seed);
    for (int32_t i = 0; i < NUM_OPERATIONS; i++) {
        if (random_below(&state, 100) < 52 && num_taken < MAX_TAKEN) {
            int64_t size = draw_size(&state, num_slots);
            int64_t offset = first_fit_allocate(allocator, size);

            assert_int_equal(offset, find_run(&map, size, 1));
            if (offset >= 0) {
                memset(map.is_taken + offset, 1, (size_t)size);
                taken[num_taken++] = (taken_range){offset, size};
            }
        } else if (num_taken > 0) {
            int32_t chosen = random_below(&state, num_taken);
            taken_range range = taken[chosen];

            assert_true(first_fit_free(allocator, range.offset, range.size));
            assert_false(first_fit_free(allocator, range.offset, range.size));
            memset(map.is_taken + range.offset, 0, (size_t)range.size);
            taken[chosen] = taken[--num_taken];
        }
        assert_int_equal(first_fit_get_num_free_slots(allocator), count_free(&map));
        assert_int_equal(first_fit_get_largest_free(allocator), longest_run(&map));
    }
    first_fit_destroy(allocator);
}

static void first_fit_random_operations_agree_with_bitmap(void **state) {
    static const int64_t sizes[] = {1, 7, 100, 1024};

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        run_first_fit(sizes[i], 23 + i);
    }
}

static void first_fit_free_outside_changes_nothing(void **state) {
    first_fit *allocator = first_fit_create(10);

    (void)state;
    assert_int_equal(first_fit_allocate(allocator, 10), 0);
    assert_false(first_fit_free(allocator, 8, 3));
    assert_false(first_fit_free(allocator, -1, 3));
    assert_false(first_fit_free(allocator, 3, 0));
    assert_int_equal(first_fit_get_num_free_slots(allocator), 0);
    first_fit_destroy(allocator);
    first_fit_destroy(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buddy_random_operations_agree_with_bitmap),
        cmocka_unit_test(buddy_takes_lowest_of_the_smallest),
        cmocka_unit_test(buddy_refuses_what_makes_no_sense),
        cmocka_unit_test(first_fit_random_operations_agree_with_bitmap),
        cmocka_unit_test(first_fit_free_outside_changes_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
