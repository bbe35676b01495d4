/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* A stand-in for CMocka where the suites of the data tower are compiled for another processor, for
 * which no CMocka is installed: the few words that they use. A failed assertion prints where and
 * ends the program with 1.
 *
 * The one idea: a cross run asks "does it pass", nothing finer; the native run has the real
 * thing. */
#ifndef PKV_TESTS_CROSS_CMOCKA_H
#define PKV_TESTS_CROSS_CMOCKA_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CMUnitTest {
    const char *name;
    void (*test_func)(void **state);
    void (*setup_func)(void **state);
    void (*teardown_func)(void **state);
    void *initial_state;
};

#define cmocka_unit_test(function)                                                                 \
    { #function, function, NULL, NULL, NULL }

/* Run the tests in order; returns 0, since a failure does not return. */
static inline int _cmocka_run_group_tests(
    const char *group, const struct CMUnitTest *tests, size_t count, void *a, void *b) {
    (void)a;
    (void)b;
    for (size_t i = 0; i < count; i++) {
        void *state = tests[i].initial_state;

        (void)fprintf(stderr, "%s: %s\n", group, tests[i].name);
        tests[i].test_func(&state);
    }
    (void)fprintf(stderr, "%s: %zu tests passed\n", group, count);
    return 0;
}

#define cmocka_run_group_tests(tests, setup, teardown)                                             \
    _cmocka_run_group_tests(#tests, tests, sizeof(tests) / sizeof(tests)[0], setup, teardown)

#define assert_true(condition)                                                                     \
    ((condition)                                                                                   \
         ? (void)0                                                                                 \
         : ((void)fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition), exit(1)))
#define assert_false(condition) assert_true(!(condition))
#define assert_null(pointer) assert_true((pointer) == NULL)
#define assert_non_null(pointer) assert_true((pointer) != NULL)
#define assert_int_equal(a, b) assert_true((long long)(a) == (long long)(b))
#define assert_int_not_equal(a, b) assert_true((long long)(a) != (long long)(b))
#define assert_string_equal(a, b) assert_true(strcmp(a, b) == 0)
#define assert_memory_equal(a, b, size) assert_true(memcmp(a, b, size) == 0)
#define print_error(...) ((void)fprintf(stderr, __VA_ARGS__))
#define print_message(...) ((void)fprintf(stderr, __VA_ARGS__))
#define skip() return

#endif
