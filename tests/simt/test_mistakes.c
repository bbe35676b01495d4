/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Each mistake that is planted in the kernels (kernels/cuda/mistakes.h) has to be noticed by the
 * builds that are there to notice it, and in the way that they should; without one, the same cases
 * come out clean.
 *
 * The one idea: a case runs in a process of its own, since a found mistake may end it, and what the
 * process says is its verdict. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "far_pool.h"
#include "kernels/cuda/mistakes.h"
#include "simt_control.h"
#include "support/test_devices.h"

/* Small and large tiles, a request in parts, several items a block: attention of 100 rows. */
static const struct attention_case mixed = {.query_dtype = PKV_DTYPE_FLOAT16,
                                            .num_query_heads = 4,
                                            .num_kv_heads = 1,
                                            .num_requests = 4,
                                            .query_lens = {1, 3, 20, 1},
                                            .seq_lens = {300, 201, 90, 15},
                                            .chunk_size = 128};

/* 16 x 4 work items of one tile of keys each, which blocks walk one after the other. */
static const struct attention_case short_items = {
    .query_dtype = PKV_DTYPE_FLOAT16,
    .num_query_heads = 16,
    .num_kv_heads = 4,
    .num_requests = 16,
    .query_lens = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
    .seq_lens = {64, 63, 40, 64, 33, 64, 17, 64, 64, 50, 64, 64, 1, 64, 64, 60},
    .chunk_size = 128};

/* Run a case on a device of one multiprocessor, whose blocks have many items each. */
static const char *judge(const struct attention_case *c, simt_counts *counts) {
    struct test_device device;
    struct attention_run run;
    struct attention_error error;

    simt_get_device()->num_multiprocessors = 1;
    if (test_devices_open(&device, 1) != 1 || device.device == NULL) {
        return "no device";
    }
    attention_run_create(&run, c, device.memory);
    simt_reset_counts();
    if (attention_run_execute(&run, device.device) != PKV_OK) {
        return "an error";
    }
    attention_run_compare(&run, &error);
    simt_get_counts(counts);
    return error.output > 1.0 || error.lse > 1.0 ? "mismatch" : "clean";
}

/* The kernels' own results against the oracle; no two rows of a matrix in the same banks. */
static const char *judge_mixed(void) {
    simt_counts counts = {0};
    const char *verdict = judge(&mixed, &counts);

    return strcmp(verdict, "clean") != 0   ? verdict
           : counts.num_matrix_loads == 0  ? "no matrix loads"
           : counts.num_bank_conflicts > 0 ? "bank conflicts"
                                           : verdict;
}

/* Keys of the next items come while one is computed: blocks have nothing to compute at their
 * beginning and end only. A round of the kernel with a tile has four barriers, where the tile is
 * all of its item, one without has one. */
static const char *judge_short_items(void) {
    enum { NUM_ITEMS = 64, MOST_IDLE_ROUNDS = 4 };
    simt_counts counts = {0};
    const char *verdict = judge(&short_items, &counts);

    return strcmp(verdict, "clean") != 0 ? verdict
           : counts.num_block_barriers > 4 * NUM_ITEMS + MOST_IDLE_ROUNDS * counts.num_blocks
               ? "idle rounds"
               : verdict;
}

static const char *judge_far_pool(void) {
    return far_pool_is_right() ? "clean" : "mismatch";
}

/* What a process has to say in each build; NULL: it is not run there. */
struct planted {
    enum pkvi_mistake mistake;
    const char *name;
    const char *(*judge)(void);
    const char *plain, *hook, *asan;
};

static const struct planted planted[] = {
    {PKVI_MISTAKE_NONE, "none", judge_mixed, "clean", "clean", "clean"},
    {PKVI_MISTAKE_NONE, "none, far pool", judge_far_pool, "clean", "clean", NULL},
    {PKVI_MISTAKE_NONE, "none, short items", judge_short_items, "clean", "clean", NULL},
    {PKVI_MISTAKE_KEY_TOO_MANY, "key too many", judge_mixed, "mismatch", "mismatch", NULL},
    {PKVI_MISTAKE_KEY_BEHIND_END, "key behind the end", judge_mixed, "mismatch", "nobody's memory",
     "AddressSanitizer"},
    {PKVI_MISTAKE_NARROW_PLACES, "places of 32 bits", judge_far_pool, "mismatch", "mismatch", NULL},
    {PKVI_MISTAKE_NARROW_SLOTS, "slots of 32 bits", judge_far_pool, "mismatch", "mismatch", NULL},
    {PKVI_MISTAKE_EARLY_USE, "early use", judge_mixed, "copies in flight", "before the copy to it",
     NULL},
    {PKVI_MISTAKE_EARLY_LOAD, "early load", judge_mixed, NULL, "shared memory race", NULL},
    {PKVI_MISTAKE_UNSYNCED_MAXIMA, "unsynced maxima", judge_mixed, NULL, "shared memory race",
     NULL},
    {PKVI_MISTAKE_UNSYNCED_WEIGHTS, "unsynced weights", judge_mixed, NULL, "shared memory race",
     NULL},
    {PKVI_MISTAKE_UNSYNCED_PARTS, "unsynced parts", judge_mixed, NULL, "never written", NULL},
    {PKVI_MISTAKE_MISSING_SUM, "missing sum", judge_mixed, "mismatch", "never written", NULL},
    {PKVI_MISTAKE_UNTRANSPOSED, "untransposed values", judge_mixed, "mismatch", "mismatch", NULL},
    {PKVI_MISTAKE_SHORT_SHARED, "short shared memory", judge_mixed, NULL, "out of bounds",
     "AddressSanitizer"},
    {PKVI_MISTAKE_NO_SWIZZLE, "no swizzle", judge_mixed, "bank conflicts", "bank conflicts", NULL},
};

static const char *expected_of(const struct planted *which) {
    return strcmp(simt_build(), "asan") == 0   ? which->asan
           : strcmp(simt_build(), "hook") == 0 ? which->hook
                                               : which->plain;
}

/* Run a case in a child; `text` gets all that it says. */
static void run_child(const struct planted *which, char *text, size_t size) {
    int channel[2], status;
    size_t length = 0;
    ssize_t count;

    assert_int_equal(pipe(channel), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)dup2(channel[1], 1);
        (void)dup2(channel[1], 2);
        (void)close(channel[0]);
        (void)alarm(120);
        simt_get_options()->mistake = (int)which->mistake;
        (void)fprintf(stderr, "%s\n", which->judge());
        _exit(0);
    }
    (void)close(channel[1]);
    while ((count = read(channel[0], text + length, size - 1 - length)) > 0) {
        length += (size_t)count;
    }
    text[length] = '\0';
    (void)close(channel[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
}

static void the_mistake_is_noticed(void **state) {
    const struct planted *which = *state;
    const char *expected = expected_of(which);
    char text[8192];

    run_child(which, text, sizeof text);
    if (strstr(text, expected) == NULL) {
        print_error("%s build, %s: wanted \"%s\", got \"%s\"\n", simt_build(), which->name,
                    expected, text);
    }
    assert_non_null(strstr(text, expected));
}

int main(void) {
    struct CMUnitTest tests[sizeof planted / sizeof planted[0]];
    size_t count = 0;

    for (size_t i = 0; i < sizeof planted / sizeof planted[0]; i++) {
        union {
            const void *read_only;
            void *state;
        } which = {&planted[i]};

        if (expected_of(&planted[i]) != NULL) {
            tests[count++] = (struct CMUnitTest){.name = planted[i].name,
                                                 .test_func = the_mistake_is_noticed,
                                                 .initial_state = which.state};
        }
    }
    return _cmocka_run_group_tests("mistakes", tests, count, NULL, NULL);
}
