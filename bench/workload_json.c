/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The reader behind workload_json.h.
 *
 * The one idea: a cursor that every function moves past what it read, or leaves with a message set;
 * after a message nothing moves any more. */
#include "workload_json.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

typedef struct json_cursor {
    const char *at;
    const char *message; /* NULL while all is well */
} json_cursor;

static void set_message(json_cursor *cursor, const char *message) {
    if (cursor->message == NULL) {
        cursor->message = message;
    }
}

static void skip_blanks(json_cursor *cursor) {
    cursor->at += strspn(cursor->at, " \t\r\n");
}

/* Step over `wanted` and the blanks around it; false leaves the cursor where it was. */
static bool take(json_cursor *cursor, char wanted) {
    skip_blanks(cursor);
    if (cursor->message != NULL || *cursor->at != wanted) {
        return false;
    }
    cursor->at++;
    skip_blanks(cursor);
    return true;
}

/* Read a string; `size` bytes of it are kept, which is enough to know the members that matter. */
static void read_string(json_cursor *cursor, char *text, size_t size) {
    size_t length = 0;

    text[0] = '\0';
    if (!take(cursor, '"')) {
        set_message(cursor, "a name in quotes is missing");
        return;
    }
    while (*cursor->at != '"') {
        if (*cursor->at == '\\') {
            cursor->at++;
        }
        if (*cursor->at == '\0') {
            set_message(cursor, "the line ends inside a string");
            return;
        }
        if (length + 1 < size) {
            text[length++] = *cursor->at;
            text[length] = '\0';
        }
        cursor->at++;
    }
    cursor->at++;
}

static void read_number(json_cursor *cursor, char *text, size_t size) {
    size_t length = strspn(cursor->at, "+-.0123456789eE");

    if (cursor->message != NULL) {
        return;
    }
    if (length == 0 || length >= size) {
        set_message(cursor, "a number is missing");
        return;
    }
    memcpy(text, cursor->at, length);
    text[length] = '\0';
    cursor->at += length;
}

static void read_hash_ids(json_cursor *cursor, json_request *out) {
    if (!take(cursor, '[')) {
        set_message(cursor, "hash_ids is not a list");
        return;
    }
    if (take(cursor, ']')) {
        return;
    }
    do {
        char *end = NULL;

        errno = 0;

        int64_t hash_id = strtoll(cursor->at, &end, 10);

        if (end == cursor->at || errno != 0) {
            set_message(cursor, "hash_ids holds something that is no whole number");
            return;
        }
        if (out->num_hash_ids == out->hash_capacity) {
            int64_t larger = out->hash_capacity * 2 + 256;
            int64_t *hash_ids = realloc(out->hash_ids, (size_t)larger * sizeof(*hash_ids));

            if (hash_ids == NULL) {
                set_message(cursor, "no memory for hash_ids");
                return;
            }
            out->hash_ids = hash_ids;
            out->hash_capacity = larger;
        }
        out->hash_ids[out->num_hash_ids++] = hash_id;
        cursor->at = end;
    } while (take(cursor, ','));
    if (!take(cursor, ']')) {
        set_message(cursor, "hash_ids does not end with ]");
    }
}

/* Skip any value: brackets are counted, strings are stepped over whole. */
static void skip_value(json_cursor *cursor) {
    char ignored[8];
    int depth = 0;

    do {
        skip_blanks(cursor);
        if (*cursor->at == '\0') {
            set_message(cursor, "the line ends inside a value");
            return;
        }
        if (*cursor->at == '"') {
            read_string(cursor, ignored, sizeof(ignored));
        } else if (*cursor->at == '[' || *cursor->at == '{') {
            depth++;
            cursor->at++;
        } else if (*cursor->at == ']' || *cursor->at == '}') {
            depth--;
            cursor->at++;
        } else if (depth > 0 && (*cursor->at == ',' || *cursor->at == ':')) {
            cursor->at++;
        } else {
            size_t length = strcspn(cursor->at, " \t\r\n,:\"[]{}");

            if (length == 0) {
                set_message(cursor, "a value is missing");
                return;
            }
            cursor->at += length;
        }
    } while (depth > 0 && cursor->message == NULL);
    if (depth < 0) {
        set_message(cursor, "a value is missing");
    }
}

static void read_member(json_cursor *cursor, json_request *out) {
    char name[32];

    read_string(cursor, name, sizeof(name));
    if (!take(cursor, ':')) {
        set_message(cursor, "a colon is missing");
    }
    if (strcmp(name, "timestamp") == 0) {
        read_number(cursor, out->timestamp, sizeof(out->timestamp));
    } else if (strcmp(name, "input_length") == 0) {
        read_number(cursor, out->input_length, sizeof(out->input_length));
    } else if (strcmp(name, "output_length") == 0) {
        read_number(cursor, out->output_length, sizeof(out->output_length));
    } else if (strcmp(name, "hash_ids") == 0) {
        out->num_hash_ids = 0;
        read_hash_ids(cursor, out);
    } else if (cursor->message == NULL) {
        skip_value(cursor);
    }
}

const char *json_read_request(const char *line, json_request *out) {
    json_cursor cursor = {.at = line};

    out->timestamp[0] = out->input_length[0] = out->output_length[0] = '\0';
    out->num_hash_ids = 0;
    if (!take(&cursor, '{')) {
        return "not a JSON object";
    }
    if (!take(&cursor, '}')) {
        do {
            read_member(&cursor, out);
        } while (take(&cursor, ','));
        if (!take(&cursor, '}')) {
            set_message(&cursor, "the object does not end with }");
        }
    }
    if (cursor.message == NULL && *cursor.at != '\0') {
        set_message(&cursor, "there is more after the object");
    }
    if (cursor.message == NULL && out->input_length[0] == '\0') {
        set_message(&cursor, "no input_length");
    }
    if (cursor.message == NULL && out->output_length[0] == '\0') {
        set_message(&cursor, "no output_length");
    }
    return cursor.message;
}
