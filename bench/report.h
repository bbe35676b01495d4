/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* What the benches print: JSON lines, CSV files, tables for people, progress; and the clock and the
 * medians behind the numbers. It knows nothing of what is measured.
 *
 * The one idea: stdout carries results only (a report, or JSON lines, never both), stderr the
 * rest. */
#ifndef PKV_BENCH_REPORT_H
#define PKV_BENCH_REPORT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* ---- numbers --------------------------------------------------------------------------------- */

/* Monotonic time. */
int64_t bench_now_ns(void);

/* Median and percentile (0..100, linear between neighbours) of `num_values` >= 1 values; the array
 * is sorted in place. */
double bench_median(double *values, int32_t num_values);
double bench_percentile(double *values, int32_t num_values, double percent);

/* Rounds that the next two take. */
#define BENCH_MAX_ROUNDS 128

/* The median of values that stay in their order, and the median of the ratios a[i] / b[i] of the same
 * rounds. */
double bench_median_of(const double *values, int32_t num_values);
double bench_median_ratio(const double *a, const double *b, int32_t num_values);

/* ---- JSON lines ------------------------------------------------------------------------------ */

/* One line {"bench","case","metric","unit","value","peer","peer_value"}. peer NULL, or a value that
 * is not finite, is written as null. */
void bench_json_line(FILE *file,
                     const char *bench,
                     const char *case_name,
                     const char *metric,
                     const char *unit,
                     double value,
                     const char *peer,
                     double peer_value);

/* ---- CSV ------------------------------------------------------------------------------------- */

/* Write one CSV field, quoted where needed, with a comma before it unless it is the first. */
void bench_csv_text(FILE *file, bool is_first, const char *text);
void bench_csv_number(FILE *file, bool is_first, double value);

/* Create a folder and its parents; true when it is there afterwards. */
bool bench_make_folder(const char *path);

/* ---- tables for people ----------------------------------------------------------------------- */

#define BENCH_MAX_COLUMNS 16
#define BENCH_MAX_CELL 64

/* A text table with aligned columns: the first column left, the others right unless told. Rows are
 * printed by bench_table_print, which also empties the table. */
typedef struct bench_table {
    int32_t num_columns, num_rows, capacity;
    bool is_left[BENCH_MAX_COLUMNS];
    char (*cells)[BENCH_MAX_COLUMNS][BENCH_MAX_CELL]; /* [capacity] */
} bench_table;

/* Start a table; `headings` parted by '|', a heading that begins with '<' is a left column. */
void bench_table_begin(bench_table *table, const char *headings);
/* Add a row; printf-style, cells parted by '|'. A missing cell is empty. */
void bench_table_row(bench_table *table, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Print heading, rule and rows, each line after `indent` spaces; then empty the table. */
void bench_table_print(bench_table *table, FILE *file, int32_t indent);

/* ---- progress on a terminal ------------------------------------------------------------------ */

/* One line on stderr that overwrites itself; silent unless stderr is a terminal. */
typedef struct bench_progress {
    bool is_on;
    int64_t last_ns;
} bench_progress;

void bench_progress_begin(bench_progress *progress);
/* Show "what: 42%"; cheap to call often, it draws ten times a second at most. */
void bench_progress_update(bench_progress *progress, const char *what, double share);
void bench_progress_end(bench_progress *progress); /* clears the line */
/* Round `round` of `count` is done, counted from 0 or from warming up, -1: begins with the first and
 * ends with the last. */
void bench_progress_round(bench_progress *progress, const char *what, int32_t round, int32_t count);

#endif
