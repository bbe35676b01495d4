/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Clock, medians, JSON lines, CSV fields, text tables and progress of the benches.
 *
 * The one idea: a number is printed so that reading it back gives the same number; rounding is done
 * only in tables for people. */
#include "report.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- numbers --------------------------------------------------------------------------------- */

int64_t bench_now_ns(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int compare_doubles(const void *left, const void *right) {
    double a = *(const double *)left;
    double b = *(const double *)right;

    return a < b ? -1 : a > b;
}

double bench_percentile(double *values, int32_t num_values, double percent) {
    qsort(values, (size_t)num_values, sizeof(values[0]), compare_doubles);

    double place = percent / 100.0 * (num_values - 1);
    int32_t below = (int32_t)place;

    if (below + 1 >= num_values) {
        return values[num_values - 1];
    }
    return values[below] + (place - below) * (values[below + 1] - values[below]);
}

double bench_median(double *values, int32_t num_values) {
    return bench_percentile(values, num_values, 50.0);
}

double bench_median_of(const double *values, int32_t num_values) {
    double copy[BENCH_MAX_ROUNDS];

    memcpy(copy, values, (size_t)num_values * sizeof copy[0]);
    return bench_median(copy, num_values);
}

double bench_median_ratio(const double *a, const double *b, int32_t num_values) {
    double ratios[BENCH_MAX_ROUNDS];

    for (int32_t i = 0; i < num_values; i++) {
        ratios[i] = a[i] / b[i];
    }
    return bench_median(ratios, num_values);
}

/* ---- JSON lines ------------------------------------------------------------------------------ */

static void json_string(FILE *file, const char *text) {
    if (text == NULL) {
        fputs("null", file);
        return;
    }
    putc('"', file);
    for (const unsigned char *at = (const unsigned char *)text; *at != '\0'; at++) {
        if (*at == '"' || *at == '\\') {
            fprintf(file, "\\%c", *at);
        } else if (*at < 0x20) {
            fprintf(file, "\\u%04x", *at);
        } else {
            putc(*at, file);
        }
    }
    putc('"', file);
}

/* Shortest of 15 to 17 digits that reads back as the same value. */
static void exact_number(FILE *file, double value, const char *not_finite) {
    char text[40];

    if (!isfinite(value)) {
        fputs(not_finite, file);
        return;
    }
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, value);
        if (strtod(text, NULL) == value) {
            break;
        }
    }
    fputs(text, file);
}

void bench_json_line(FILE *file,
                     const char *bench,
                     const char *case_name,
                     const char *metric,
                     const char *unit,
                     double value,
                     const char *peer,
                     double peer_value) {
    fputs("{\"bench\":", file);
    json_string(file, bench);
    fputs(",\"case\":", file);
    json_string(file, case_name);
    fputs(",\"metric\":", file);
    json_string(file, metric);
    fputs(",\"unit\":", file);
    json_string(file, unit);
    fputs(",\"value\":", file);
    exact_number(file, value, "null");
    fputs(",\"peer\":", file);
    json_string(file, peer);
    fputs(",\"peer_value\":", file);
    exact_number(file, peer == NULL ? NAN : peer_value, "null");
    fputs("}\n", file);
}

/* ---- CSV ------------------------------------------------------------------------------------- */

void bench_csv_text(FILE *file, bool is_first, const char *text) {
    if (!is_first) {
        putc(',', file);
    }
    if (strpbrk(text, ",\"\r\n") == NULL) {
        fputs(text, file);
        return;
    }
    putc('"', file);
    for (const char *at = text; *at != '\0'; at++) {
        if (*at == '"') {
            putc('"', file);
        }
        putc(*at, file);
    }
    putc('"', file);
}

void bench_csv_number(FILE *file, bool is_first, double value) {
    if (!is_first) {
        putc(',', file);
    }
    exact_number(file, value, "");
}

bool bench_make_folder(const char *path) {
    char partial[4096];
    size_t length = strlen(path);
    struct stat status;

    if (length == 0 || length >= sizeof(partial)) {
        return false;
    }
    memcpy(partial, path, length + 1);
    for (size_t i = 1; i <= length; i++) {
        if (partial[i] != '/' && partial[i] != '\0') {
            continue;
        }
        partial[i] = '\0';
        if (mkdir(partial, 0777) != 0 && errno != EEXIST) {
            return false;
        }
        partial[i] = path[i];
    }
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

/* ---- tables for people ----------------------------------------------------------------------- */

/* Places that a UTF-8 text takes on a terminal: its bytes without continuation bytes. */
static int32_t display_width(const char *text) {
    int32_t width = 0;

    for (; *text != '\0'; text++) {
        width += ((unsigned char)*text & 0xc0) != 0x80;
    }
    return width;
}

static void split_row(bench_table *table, const char *text) {
    if (table->num_rows == table->capacity) {
        int32_t larger = table->capacity * 2 + 16;
        void *cells = realloc(table->cells, (size_t)larger * sizeof(table->cells[0]));

        if (cells == NULL) {
            fprintf(stderr, "out of memory for a table\n");
            exit(1);
        }
        table->cells = cells;
        table->capacity = larger;
    }

    char(*row)[BENCH_MAX_CELL] = table->cells[table->num_rows++];

    memset(row, 0, sizeof(table->cells[0]));
    for (int32_t column = 0; column < BENCH_MAX_COLUMNS; column++) {
        size_t length = strcspn(text, "|");
        size_t kept = length < BENCH_MAX_CELL - 1 ? length : BENCH_MAX_CELL - 1;

        memcpy(row[column], text, kept);
        if (column + 1 > table->num_columns) {
            table->num_columns = column + 1;
        }
        if (text[length] == '\0') {
            return;
        }
        text += length + 1;
    }
}

void bench_table_begin(bench_table *table, const char *headings) {
    memset(table, 0, sizeof(*table));
    split_row(table, headings);
    for (int32_t column = 0; column < table->num_columns; column++) {
        char *heading = table->cells[0][column];

        table->is_left[column] = column == 0 || heading[0] == '<';
        if (heading[0] == '<') {
            memmove(heading, heading + 1, strlen(heading));
        }
    }
}

void bench_table_row(bench_table *table, const char *format, ...) {
    char text[BENCH_MAX_COLUMNS * BENCH_MAX_CELL];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    split_row(table, text);
}

static void print_cells(
    const bench_table *table, FILE *file, int32_t indent, int32_t row, const int32_t *widths) {
    int32_t num_columns = table->num_columns;

    /* No blanks at the end of a line. */
    while (num_columns > 1 && table->cells[row][num_columns - 1][0] == '\0') {
        num_columns--;
    }
    fprintf(file, "%*s", indent, "");
    for (int32_t column = 0; column < num_columns; column++) {
        const char *cell = table->cells[row][column];
        int32_t padding = widths[column] - display_width(cell);
        bool is_last = column + 1 == num_columns;

        if (table->is_left[column]) {
            fprintf(file, "%s%*s", cell, is_last ? 0 : padding, "");
        } else {
            fprintf(file, "%*s%s", padding, "", cell);
        }
        fputs(is_last ? "\n" : "  ", file);
    }
}

void bench_table_print(bench_table *table, FILE *file, int32_t indent) {
    int32_t widths[BENCH_MAX_COLUMNS] = {0};
    int32_t total = 2 * (table->num_columns - 1);

    for (int32_t column = 0; column < table->num_columns; column++) {
        for (int32_t row = 0; row < table->num_rows; row++) {
            int32_t width = display_width(table->cells[row][column]);

            widths[column] = width > widths[column] ? width : widths[column];
        }
        total += widths[column];
    }
    for (int32_t row = 0; row < table->num_rows; row++) {
        print_cells(table, file, indent, row, widths);
        if (row == 0) {
            fprintf(file, "%*s", indent, "");
            for (int32_t i = 0; i < total; i++) {
                putc('-', file);
            }
            putc('\n', file);
        }
    }
    free(table->cells);
    memset(table, 0, sizeof(*table));
}

/* ---- progress on a terminal ------------------------------------------------------------------ */

void bench_progress_begin(bench_progress *progress) {
    progress->is_on = isatty(STDERR_FILENO) == 1;
    progress->last_ns = 0;
}

void bench_progress_update(bench_progress *progress, const char *what, double share) {
    if (!progress->is_on) {
        return;
    }

    int64_t now = bench_now_ns();

    if (now - progress->last_ns < 100000000) {
        return;
    }
    progress->last_ns = now;
    fprintf(stderr, "\r\033[K%s: %.0f%%", what, 100.0 * share);
    fflush(stderr);
}

void bench_progress_end(bench_progress *progress) {
    if (progress->is_on) {
        fprintf(stderr, "\r\033[K");
        fflush(stderr);
    }
}

void bench_progress_round(bench_progress *progress,
                          const char *what,
                          int32_t round,
                          int32_t count) {
    if (round <= 0) {
        bench_progress_begin(progress);
    }
    bench_progress_update(progress, what, (double)(round + 1) / (double)count);
    if (round + 1 == count) {
        bench_progress_end(progress);
    }
}
