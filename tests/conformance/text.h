/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* A line of text that grows, and the digest that recordings write in place of long lists.
 *
 * The one idea: the replay writes what the library did as the very line that a recording would
 * have, so that comparing is comparing text. */
#ifndef CONFORMANCE_TEXT_H
#define CONFORMANCE_TEXT_H

#include <stddef.h>
#include <stdint.h>

/* characters: [capacity], 0-terminated at `length` unless capacity is 0. */
struct text {
    char *characters;
    size_t length, capacity;
};

/* Allocate zeroed memory for count elements, or end the program with exit status 2: a tool that is
 * out of memory has nothing to say about the library. */
void *conformance_allocate(size_t count, size_t size);

void text_free(struct text *line);
void text_clear(struct text *line);

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
void text_add(struct text *line, const char *format, ...);

/* Append " n id id ..." */
void text_add_list(struct text *line, const int32_t *values, int32_t num_values);

/* Append " n digest". */
void text_add_list_digest(struct text *line, const int32_t *values, int32_t num_values);

/* FNV-1a over whole 32-bit words, continued from `digest`. */
#define TEXT_DIGEST_START UINT64_C(0xcbf29ce484222325)
uint64_t text_digest_add(uint64_t digest, uint32_t value);

#endif
