/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Reading recordings; see the header. */
#include "recording.h"

#include "text.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- files ----------------------------------------------------------------------------------- */

static char *read_all(FILE *file, size_t *size) {
    size_t capacity = 1 << 16;
    char *text = conformance_allocate(capacity, 1);

    *size = 0;
    for (;;) {
        *size += fread(text + *size, 1, capacity - *size - 1, file);
        if (*size < capacity - 1) {
            break;
        }
        char *larger = conformance_allocate(2 * capacity, 1);
        memcpy(larger, text, *size);
        free(text);
        text = larger;
        capacity *= 2;
    }
    text[*size] = '\0';
    return text;
}

static void split_lines(struct recording *recording, size_t size) {
    char *text = recording->text;
    int32_t num_lines = 0;

    for (size_t i = 0; i < size; i++) {
        num_lines += text[i] == '\n';
    }
    num_lines += size > 0 && text[size - 1] != '\n';
    recording->lines = conformance_allocate((size_t)num_lines, sizeof(char *));
    char *start = text;
    for (int32_t i = 0; i < num_lines; i++) {
        char *end = strchr(start, '\n');
        recording->lines[i] = start;
        if (end != NULL) {
            *end = '\0';
            start = end + 1;
        }
    }
    recording->num_lines = num_lines;
}

bool recording_load(struct recording *recording, const char *path) {
    size_t size;

    memset(recording, 0, sizeof *recording);
    recording->path = path;
    errno = 0;
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        fprintf(stderr, "%s:1: cannot be opened: %s\n", path, strerror(errno));
        return false;
    }
    recording->text = read_all(file, &size);
    bool is_read = ferror(file) == 0;
    fclose(file);
    if (!is_read || size > INT_MAX || memchr(recording->text, '\0', size) != NULL) {
        fprintf(stderr, "%s:1: cannot be read as text\n", path);
        recording_free(recording);
        return false;
    }
    split_lines(recording, size);
    return true;
}

void recording_free(struct recording *recording) {
    free(recording->text);
    free(recording->lines);
    recording->text = NULL;
    recording->lines = NULL;
}

bool recording_refuse(const struct recording *recording, int32_t line_index, const char *what) {
    fprintf(stderr, "%s:%d: %s", recording->path, (int)line_index + 1, what);
    if (line_index < recording->num_lines) {
        fprintf(stderr, ": %.80s", recording->lines[line_index]);
    }
    fputc('\n', stderr);
    return false;
}

/* ---- fields ---------------------------------------------------------------------------------- */

bool line_starts_with(const char *line, const char *word) {
    size_t length = strlen(word);

    return strncmp(line, word, length) == 0 && (line[length] == '\0' || line[length] == ' ');
}

struct fields fields_of(const char *line) {
    return (struct fields){line + strcspn(line, " "), true};
}

static int64_t fail(struct fields *fields) {
    fields->is_valid = false;
    fields->rest = "";
    return 0;
}

/* Digits with an optional minus, bounded so that no sum of two of them overflows. */
static int64_t read_digits(struct fields *fields) {
    const char *at = fields->rest;
    bool is_negative = *at == '-';
    int64_t value = 0;

    at += is_negative;
    if (*at < '0' || *at > '9') {
        return fail(fields);
    }
    for (; *at >= '0' && *at <= '9'; at++) {
        if (value > (INT64_MAX >> 4)) {
            return fail(fields);
        }
        value = 10 * value + (*at - '0');
    }
    fields->rest = at;
    return is_negative ? -value : value;
}

static void skip_blank(struct fields *fields) {
    if (*fields->rest == ' ') {
        fields->rest++;
    } else {
        fail(fields);
    }
}

int64_t fields_number(struct fields *fields, int64_t smallest, int64_t largest) {
    skip_blank(fields);
    int64_t value = read_digits(fields);
    if (value < smallest || value > largest || (*fields->rest != ' ' && *fields->rest != '\0')) {
        return fail(fields);
    }
    return value;
}

int32_t fields_count(struct fields *fields) {
    return (int32_t)fields_number(fields, 0, INT32_MAX);
}

static int32_t read_count(struct fields *fields) {
    int64_t value = read_digits(fields);

    return (int32_t)(value >= 0 && value <= INT32_MAX ? value : fail(fields));
}

struct fields_pair fields_pair(struct fields *fields) {
    struct fields_pair pair = {0, 0};

    skip_blank(fields);
    pair.left = read_count(fields);
    if (*fields->rest != ':') {
        fail(fields);
        return pair;
    }
    fields->rest++;
    pair.right = read_count(fields);
    return pair;
}

bool fields_word(struct fields *fields, const char *word) {
    if (*fields->rest == ' ' && line_starts_with(fields->rest + 1, word)) {
        fields->rest += 1 + strlen(word);
        return true;
    }
    return false;
}

bool fields_at_end(const struct fields *fields) {
    return fields->is_valid && *fields->rest == '\0';
}

/* ---- patterns -------------------------------------------------------------------------------- */

static void match_digest(struct fields *fields) {
    skip_blank(fields);
    if (strspn(fields->rest, "0123456789abcdef") == 16) {
        fields->rest += 16;
    } else {
        fail(fields);
    }
}

/* A number and num_colons more, joined by colons. */
static void match_joined(struct fields *fields, int num_colons) {
    skip_blank(fields);
    read_count(fields);
    for (int i = 0; i < num_colons; i++) {
        if (*fields->rest != ':') {
            fail(fields);
            return;
        }
        fields->rest++;
        read_count(fields);
    }
}

static void match_letter(struct fields *fields, char letter);

/* Lengths are checked by running out of fields, so a huge one ends soon. */
static void match_list(struct fields *fields, const char *element) {
    int32_t num_elements = fields_count(fields);

    for (int32_t i = 0; i < num_elements && fields->is_valid; i++) {
        for (const char *letter = element; *letter != '\0'; letter++) {
            match_letter(fields, *letter);
        }
    }
}

static void match_letter(struct fields *fields, char letter) {
    switch (letter) {
    case 'n':
        fields_number(fields, 0, INT32_MAX);
        break;
    case 'i':
        fields_number(fields, INT32_MIN, INT32_MAX);
        break;
    case 'd':
        match_digest(fields);
        break;
    case 'l':
        match_list(fields, "n");
        break;
    case ':':
        match_joined(fields, 1);
        break;
    case ';':
        match_joined(fields, 2);
        break;
    case 'p':
        match_list(fields, ":");
        break;
    case 't':
        match_list(fields, ";");
        break;
    case 'g':
        match_list(fields, "nnn");
        break;
    case 'o':
        match_list(fields, "ng");
        break;
    case 'w':
        if (!fields_word(fields, "W") && !fields_word(fields, "R") && !fields_word(fields, "P")) {
            fail(fields);
        }
        break;
    default:
        fail(fields);
        break;
    }
}

bool fields_match(struct fields fields, const char *pattern) {
    for (; *pattern != '\0'; pattern++) {
        match_letter(&fields, *pattern);
    }
    return fields_at_end(&fields);
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static uint64_t splitmix64(uint64_t x) {
    uint64_t z = x + UINT64_C(0x9E3779B97F4A7C15);

    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

int32_t recording_token(int64_t stream, int64_t offset, int64_t vocabulary) {
    uint64_t position = ((uint64_t)stream << 32) | (uint64_t)offset;

    return (int32_t)(splitmix64(position) % (uint64_t)vocabulary);
}

int32_t fields_segments(struct fields *fields, int64_t vocabulary, int32_t *token_ids) {
    int32_t num_segments = fields_count(fields);
    int32_t num_tokens = 0;

    for (int32_t i = 0; i < num_segments && fields->is_valid; i++) {
        int32_t stream = fields_count(fields);
        int32_t offset = fields_count(fields);
        int32_t length = fields_count(fields);
        if (length > INT32_MAX - num_tokens) {
            return (int32_t)fail(fields);
        }
        for (int32_t j = 0; token_ids != NULL && j < length; j++) {
            token_ids[num_tokens + j] = recording_token(stream, (int64_t)offset + j, vocabulary);
        }
        num_tokens += length;
    }
    return num_tokens;
}
