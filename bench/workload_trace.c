/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Reads request traces: Azure CSV, Mooncake JSON lines, vidur and vattention CSV, two-column CSV.
 * JSON itself is taken apart in workload_json.c.
 *
 * The one idea: the first line that is not empty says the format and the columns; after that every
 * line either gives a request, is counted as skipped (no input or no output), or fails with its
 * number. */
#include "workload.h"

#include "workload_json.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#define MOONCAKE_BLOCK_SIZE 512
#define MAX_FIELDS 64
/* Sums of two lengths must stay far from the end of int32_t. */
#define MAX_TOKENS 100000000

/* Where the reader stands. Columns are -1 where a file has none. */
typedef struct trace_reader {
    const char *path;
    int64_t line_number;
    char *error;
    workload_list *out;
    int32_t item_capacity;
    int64_t hash_capacity;
    int32_t input_column, output_column, arrival_column, num_columns;
    bool is_arrival_date; /* "2023-11-16 18:17:03.97" and not a number of seconds */
    double first_arrival;
} trace_reader;

static bool fail(trace_reader *reader, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static bool fail(trace_reader *reader, const char *format, ...) {
    va_list arguments;
    int length;

    if (reader->line_number > 0) {
        length = snprintf(reader->error, WORKLOAD_MAX_ERROR, "%s:%lld: ", reader->path,
                          (long long)reader->line_number);
    } else {
        length = snprintf(reader->error, WORKLOAD_MAX_ERROR, "%s: ", reader->path);
    }
    if (length >= 0 && length < WORKLOAD_MAX_ERROR) {
        va_start(arguments, format);
        vsnprintf(reader->error + length, (size_t)(WORKLOAD_MAX_ERROR - length), format, arguments);
        va_end(arguments);
    }
    return false;
}

/* ---- fields ---------------------------------------------------------------------------------- */

/* Split a CSV line in place, blanks and quotes around a field removed. */
static int32_t split_fields(char *line, char **fields) {
    int32_t num_fields = 0;
    char *at = line;

    while (num_fields < MAX_FIELDS) {
        char *end = at + strcspn(at, ",");
        bool is_last = *end == '\0';

        *end = '\0';
        while (isspace((unsigned char)*at)) {
            at++;
        }
        for (char *tail = end; tail > at && isspace((unsigned char)tail[-1]); tail--) {
            tail[-1] = '\0';
        }

        size_t length = strlen(at);

        if (length >= 2 && at[0] == '"' && at[length - 1] == '"') {
            at[length - 1] = '\0';
            at++;
        }
        fields[num_fields++] = at;
        if (is_last) {
            break;
        }
        at = end + 1;
    }
    return num_fields;
}

static bool is_number(const char *text) {
    char *end = NULL;

    strtod(text, &end);
    return end != text && *end == '\0';
}

/* Read a token count: a whole number, also as "12.0". */
static bool read_count(trace_reader *reader, const char *what, const char *text, int32_t *out) {
    char *end = NULL;
    double value = strtod(text, &end);

    if (end == text || *end != '\0') {
        return fail(reader, "%s: '%.40s' is not a number", what, text);
    }
    if (!(value >= 0.0 && value <= MAX_TOKENS) || value != (int32_t)value) {
        return fail(reader, "%s: %.40s is not a whole number from 0 to %d", what, text, MAX_TOKENS);
    }
    *out = (int32_t)value;
    return true;
}

/* Days from 1970-01-01 in the Gregorian calendar. Years begin in March, so that the leap day is the
 * last day of a year. */
static int64_t days_from_date(int32_t year, int32_t month, int32_t day) {
    int64_t shifted_year = month <= 2 ? year - 1 : year;
    int64_t shifted_month = month <= 2 ? month + 9 : month - 3;
    int64_t leap_days = shifted_year / 4 - shifted_year / 100 + shifted_year / 400;

    return 365 * shifted_year + leap_days + (153 * shifted_month + 2) / 5 + day - 719469;
}

static bool read_date(trace_reader *reader, const char *text, double *seconds) {
    int year, month, day, hour, minute;
    int length = 0;
    double second;

    if (sscanf(text, "%4d-%2d-%2d%*1[ T]%2d:%2d:%lf%n", &year, &month, &day, &hour, &minute,
               &second, &length) != 6 ||
        month < 1 || month > 12 || day < 1 || day > 31 || hour > 23 || minute > 59 ||
        !(second >= 0.0 && second < 61.0) || hour < 0 || minute < 0 || year < 1970) {
        return fail(reader, "timestamp '%.40s' is not YYYY-MM-DD hh:mm:ss", text);
    }
    if (text[length] != '\0' && strcmp(text + length, "Z") != 0 &&
        strcmp(text + length, "+00:00") != 0) {
        return fail(reader, "timestamp '%.40s': only UTC is known", text);
    }
    *seconds =
        (double)days_from_date(year, month, day) * 86400.0 + hour * 3600.0 + minute * 60.0 + second;
    return true;
}

/* ---- items ----------------------------------------------------------------------------------- */

static bool add_item(trace_reader *reader,
                     int32_t num_input_tokens,
                     int32_t num_output_tokens,
                     double arrival_seconds) {
    workload_list *out = reader->out;

    if (num_input_tokens == 0 || num_output_tokens == 0) {
        out->num_skipped_items++;
        return true;
    }
    if (out->num_items == reader->item_capacity) {
        int32_t larger = reader->item_capacity * 2 + 1024;
        workload_item *items = NULL;

        if (larger < INT32_MAX / 4) {
            items = realloc(out->items, (size_t)larger * sizeof(*items));
        }
        if (items == NULL) {
            return fail(reader, "no memory for more requests");
        }
        out->items = items;
        reader->item_capacity = larger;
    }
    out->items[out->num_items] = (workload_item){
        .arrival_seconds = arrival_seconds,
        .num_input_tokens = num_input_tokens,
        .num_output_tokens = num_output_tokens,
        .sequence_id = (uint64_t)out->num_items,
        .file_index = out->num_items,
    };
    out->num_items++;
    return true;
}

static bool add_hashes(trace_reader *reader, const json_request *request) {
    workload_list *out = reader->out;
    workload_item *item = &out->items[out->num_items - 1];

    if (out->num_hash_ids + request->num_hash_ids > reader->hash_capacity) {
        int64_t larger = reader->hash_capacity * 2 + request->num_hash_ids + 4096;
        int64_t *hash_ids = realloc(out->hash_ids, (size_t)larger * sizeof(*hash_ids));

        if (hash_ids == NULL) {
            return fail(reader, "no memory for more hash ids");
        }
        out->hash_ids = hash_ids;
        reader->hash_capacity = larger;
    }
    item->first_hash = out->num_hash_ids;
    item->num_hashes = (int32_t)request->num_hash_ids;
    memcpy(out->hash_ids + out->num_hash_ids, request->hash_ids,
           (size_t)request->num_hash_ids * sizeof(int64_t));
    out->num_hash_ids += request->num_hash_ids;
    return true;
}

/* ---- lines ----------------------------------------------------------------------------------- */

static bool read_json_line(trace_reader *reader, const char *line, json_request *request) {
    const char *message = json_read_request(line, request);
    int32_t num_input_tokens = 0;
    int32_t num_output_tokens = 0;

    if (message != NULL) {
        return fail(reader, "%s", message);
    }
    if (!read_count(reader, "input_length", request->input_length, &num_input_tokens) ||
        !read_count(reader, "output_length", request->output_length, &num_output_tokens)) {
        return false;
    }

    int64_t needed = (num_input_tokens + MOONCAKE_BLOCK_SIZE - 1) / MOONCAKE_BLOCK_SIZE;
    double arrival_seconds = 0.0;

    if (request->num_hash_ids > 0 && request->num_hash_ids != needed) {
        return fail(reader, "%lld hash_ids, but input_length %d has %lld blocks of %d tokens",
                    (long long)request->num_hash_ids, num_input_tokens, (long long)needed,
                    MOONCAKE_BLOCK_SIZE);
    }
    if (request->timestamp[0] != '\0') {
        if (!is_number(request->timestamp)) {
            return fail(reader, "timestamp '%s' is not a number", request->timestamp);
        }
        arrival_seconds = strtod(request->timestamp, NULL) / 1000.0;
        reader->out->has_arrivals = true;
    }

    int32_t num_before = reader->out->num_items;

    if (!add_item(reader, num_input_tokens, num_output_tokens, arrival_seconds)) {
        return false;
    }
    return reader->out->num_items == num_before || add_hashes(reader, request);
}

static bool read_csv_line(trace_reader *reader, char *line) {
    char *fields[MAX_FIELDS];
    int32_t num_fields = split_fields(line, fields);
    int32_t num_input_tokens = 0;
    int32_t num_output_tokens = 0;
    double arrival_seconds = 0.0;

    if (num_fields != reader->num_columns) {
        return fail(reader, "%d fields, but the first line has %d", num_fields,
                    reader->num_columns);
    }
    if (!read_count(reader, "input tokens", fields[reader->input_column], &num_input_tokens) ||
        !read_count(reader, "output tokens", fields[reader->output_column], &num_output_tokens)) {
        return false;
    }
    if (reader->arrival_column >= 0) {
        const char *text = fields[reader->arrival_column];

        if (reader->is_arrival_date) {
            if (!read_date(reader, text, &arrival_seconds)) {
                return false;
            }
        } else if (is_number(text)) {
            arrival_seconds = strtod(text, NULL);
        } else {
            return fail(reader, "arrival '%.40s' is not a number", text);
        }
    }
    return add_item(reader, num_input_tokens, num_output_tokens, arrival_seconds);
}

/* Understand the first line. `*is_header` tells whether it is used up. */
static bool detect_format(trace_reader *reader, const char *first_line, bool *is_header) {
    char line[1024];
    char *fields[MAX_FIELDS];

    reader->input_column = reader->output_column = reader->arrival_column = -1;
    *is_header = false;
    if (first_line[0] == '{') {
        reader->out->format = WORKLOAD_MOONCAKE;
        reader->out->hash_block_size = MOONCAKE_BLOCK_SIZE;
        return true;
    }
    snprintf(line, sizeof(line), "%s", first_line);
    reader->num_columns = split_fields(line, fields);
    for (int32_t i = 0; i < reader->num_columns; i++) {
        const char *name = fields[i];
        bool is_azure = strcmp(name, "ContextTokens") == 0;

        if (is_azure || strcmp(name, "num_prefill_tokens") == 0) {
            reader->input_column = i;
            reader->out->format = is_azure ? WORKLOAD_AZURE_CSV : WORKLOAD_VIDUR_CSV;
        } else if (strcmp(name, "GeneratedTokens") == 0 || strcmp(name, "num_decode_tokens") == 0) {
            reader->output_column = i;
        } else if (strcmp(name, "TIMESTAMP") == 0 || strcmp(name, "arrived_at") == 0) {
            reader->arrival_column = i;
            reader->is_arrival_date = name[0] == 'T';
        }
    }
    reader->out->has_arrivals = reader->arrival_column >= 0;
    *is_header = true;
    if (reader->input_column >= 0 && reader->output_column >= 0) {
        return true;
    }
    if (reader->num_columns == 2 && is_number(fields[0]) == is_number(fields[1])) {
        reader->out->format = WORKLOAD_TWO_COLUMNS;
        reader->out->has_arrivals = false;
        reader->input_column = 0;
        reader->output_column = 1;
        reader->arrival_column = -1;
        *is_header = !is_number(fields[0]);
        return true;
    }
    return fail(reader, "unknown format; known are Azure CSV (TIMESTAMP,ContextTokens,"
                        "GeneratedTokens), Mooncake JSON lines, vidur CSV (num_prefill_tokens,"
                        "num_decode_tokens,...) and two columns (input,output)");
}

/* Take the line end, a byte order mark and blanks off; NULL for bytes that no text has. */
static char *trim_line(char *line, ssize_t length, bool is_first) {
    if (memchr(line, '\0', (size_t)length) != NULL) {
        return NULL;
    }
    while (length > 0 && isspace((unsigned char)line[length - 1])) {
        line[--length] = '\0';
    }
    if (is_first && strncmp(line, "\xef\xbb\xbf", 3) == 0) {
        line += 3;
    }
    while (isspace((unsigned char)*line)) {
        line++;
    }
    return line;
}

static bool read_lines(trace_reader *reader, FILE *file, char **buffer, json_request *request) {
    size_t capacity = 0;
    bool is_known = false;
    ssize_t length;

    while (errno = 0, (length = getline(buffer, &capacity, file)) >= 0) {
        reader->line_number++;

        char *line = trim_line(*buffer, length, reader->line_number == 1);

        if (line == NULL) {
            return fail(reader, "a zero byte; this is not a text file");
        }
        if (*line == '\0') {
            continue;
        }
        if (!is_known) {
            bool is_header;

            if (!detect_format(reader, line, &is_header)) {
                return false;
            }
            is_known = true;
            if (is_header) {
                continue;
            }
        }
        if (reader->out->format == WORKLOAD_MOONCAKE ? !read_json_line(reader, line, request)
                                                     : !read_csv_line(reader, line)) {
            return false;
        }
    }
    reader->line_number = 0;
    if (ferror(file)) {
        return fail(reader, "%s", strerror(errno));
    }
    if (reader->out->num_items == 0) {
        return fail(reader, "no request in it");
    }
    return true;
}

/* ---- the whole file -------------------------------------------------------------------------- */

static int compare_arrivals(const void *left, const void *right) {
    const workload_item *a = left;
    const workload_item *b = right;

    if (a->arrival_seconds != b->arrival_seconds) {
        return a->arrival_seconds < b->arrival_seconds ? -1 : 1;
    }
    return a->file_index < b->file_index ? -1 : a->file_index > b->file_index;
}

/* Order by arrival and let the first one arrive at 0. */
static void order_items(workload_list *out) {
    qsort(out->items, (size_t)out->num_items, sizeof(out->items[0]), compare_arrivals);

    double first = out->items[0].arrival_seconds;

    for (int32_t i = 0; i < out->num_items; i++) {
        out->items[i].arrival_seconds -= first;
    }
}

bool workload_read_trace(const char *path, workload_list *out, char *error) {
    trace_reader reader = {.path = path, .error = error, .out = out};
    json_request request = {0};
    char *buffer = NULL;
    const char *name = strrchr(path, '/');

    *out = (workload_list){0};
    snprintf(out->name, sizeof(out->name), "%s", name != NULL ? name + 1 : path);

    FILE *file = fopen(path, "r");

    if (file == NULL) {
        return fail(&reader, "%s", strerror(errno));
    }

    bool is_read = read_lines(&reader, file, &buffer, &request);

    free(buffer);
    free(request.hash_ids);
    fclose(file);
    if (!is_read) {
        workload_release(out);
        return false;
    }
    order_items(out);
    workload_drop_longer(out, INT32_MAX);
    return true;
}
