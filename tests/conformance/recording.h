/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* A recording as text: its lines, the fields of a line, and the tokens that segments stand for. It
 * knows nothing of the library.
 *
 * The one idea: every line is held against a pattern before anything is replayed, so that the
 * replay can read fields without asking whether they are there. */
#ifndef CONFORMANCE_RECORDING_H
#define CONFORMANCE_RECORDING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* lines: [num_lines], 0-terminated, pointing into `text`. Line numbers count from 1. */
struct recording {
    const char *path;
    char *text;
    char **lines;
    int32_t num_lines;
};

/* Read a file. Returns false, with a message on stderr, when it cannot be read or is not text. */
bool recording_load(struct recording *recording, const char *path);
void recording_free(struct recording *recording);

/* Print "path:line: what" on stderr; always returns false. line_index counts from 0. */
bool recording_refuse(const struct recording *recording, int32_t line_index, const char *what);

/* Say whether the line's first word is `word`. */
bool line_starts_with(const char *line, const char *word);

/* The rest of a line, read field by field. Fields are separated by exactly one blank. A field that
 * is not there, or not what was asked for, makes is_valid false for good and reads as 0. */
struct fields {
    const char *rest;
    bool is_valid;
};

/* Start behind the line's first word. */
struct fields fields_of(const char *line);
int64_t fields_number(struct fields *fields, int64_t smallest, int64_t largest);
int32_t fields_count(struct fields *fields);
/* Two numbers joined by a colon. */
struct fields_pair {
    int32_t left, right;
};
struct fields_pair fields_pair(struct fields *fields);
bool fields_word(struct fields *fields, const char *word);
bool fields_at_end(const struct fields *fields);

/* Say whether the fields that are left are exactly what the pattern asks for, one letter each:
 *   n  number >= 0          i  number of either sign      d  digest of 16 hexadecimal digits
 *   l  list of numbers      p  list of a:b                t  list of a:b:c
 *   g  list of segments     o  list of request and segments       w  one of the words W, R, P
 * where a list is its length and then that many elements. */
bool fields_match(struct fields fields, const char *pattern);

/* Tokens of the segments at the cursor, which moves behind them.
 *
 * token_ids  room for all; NULL only counts them. */
int32_t fields_segments(struct fields *fields, int64_t vocabulary, int32_t *token_ids);

/* Token of a stream at an offset. */
int32_t recording_token(int64_t stream, int64_t offset, int64_t vocabulary);

#endif
