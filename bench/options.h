/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Command lines of the benches: one table of options makes the parsing and the --help text.
 *
 * The one idea: an argument that is not understood ends the program with BENCH_EXIT_USAGE and says
 * why; nothing is accepted and ignored. */
#ifndef PKV_BENCH_OPTIONS_H
#define PKV_BENCH_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

/* Exit codes of every bench. */
#define BENCH_EXIT_OK 0
#define BENCH_EXIT_FAILED 1 /* a check failed, or something that was asked for could not be made */
#define BENCH_EXIT_USAGE 2  /* wrong arguments, or input that cannot be read */

#define BENCH_MAX_LIST 32

/* A list of integers from "1,8,16". */
typedef struct bench_list {
    int32_t num_values;
    int32_t values[BENCH_MAX_LIST];
} bench_list;

typedef enum bench_option_kind {
    BENCH_FLAG = 0,   /* bool: --name sets true */
    BENCH_INT = 1,    /* int32_t in [min, max] */
    BENCH_UINT64 = 2, /* uint64_t, min and max unused */
    BENCH_DOUBLE = 3, /* double in [min, max] */
    BENCH_STRING = 4, /* const char *, into argv */
    BENCH_LIST = 5    /* bench_list, each value in [min, max] */
} bench_option_kind;

/* One option. Its default is what *target holds before parsing. */
typedef struct bench_option {
    const char *name; /* without the dashes */
    bench_option_kind kind;
    void *target;
    const char *value_name; /* "N"; NULL for a flag */
    const char *help;       /* one line, or several parted by newlines */
    double min, max;        /* of numbers */
} bench_option;

typedef struct bench_program {
    const char *name;     /* "bench_fragmentation" */
    const char *summary;  /* what it measures; one or more lines */
    const char *epilogue; /* after the options in --help; may be NULL */
    const bench_option *options;
    int32_t num_options;
} bench_program;

/* Parse argv ("--name value" and "--name=value"). --help, -h and --version are answered here.
 *
 * Returns true to go on; false to leave main with *exit_code. */
bool bench_parse_options(const bench_program *program, int argc, char **argv, int *exit_code);

#endif
