/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Growing text and digests; see the header. */
#include "text.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void *conformance_allocate(size_t count, size_t size) {
    void *memory = calloc(count > 0 ? count : 1, size);
    if (memory == NULL) {
        fprintf(stderr, "pkv_replay: out of memory\n");
        exit(2);
    }
    return memory;
}

void text_free(struct text *line) {
    free(line->characters);
    *line = (struct text){NULL, 0, 0};
}

void text_clear(struct text *line) {
    line->length = 0;
    if (line->capacity > 0) {
        line->characters[0] = '\0';
    }
}

static void reserve(struct text *line, size_t num_more) {
    if (line->length + num_more < line->capacity) {
        return;
    }
    size_t capacity = 2 * (line->length + num_more + 1);
    char *characters = realloc(line->characters, capacity);
    if (characters == NULL) {
        fprintf(stderr, "pkv_replay: out of memory\n");
        exit(2);
    }
    line->characters = characters;
    line->capacity = capacity;
}

void text_add(struct text *line, const char *format, ...) {
    va_list arguments;

    reserve(line, 64);
    va_start(arguments, format);
    size_t room = line->capacity - line->length;
    int length = vsnprintf(line->characters + line->length, room, format, arguments);
    va_end(arguments);
    if (length < 0) {
        return;
    }
    if ((size_t)length >= room) {
        reserve(line, (size_t)length);
        va_start(arguments, format);
        vsnprintf(line->characters + line->length, line->capacity - line->length, format,
                  arguments);
        va_end(arguments);
    }
    line->length += (size_t)length;
}

void text_add_list(struct text *line, const int32_t *values, int32_t num_values) {
    text_add(line, " %" PRId32, num_values);
    for (int32_t i = 0; i < num_values; i++) {
        text_add(line, " %" PRId32, values[i]);
    }
}

void text_add_list_digest(struct text *line, const int32_t *values, int32_t num_values) {
    uint64_t digest = TEXT_DIGEST_START;

    for (int32_t i = 0; i < num_values; i++) {
        digest = text_digest_add(digest, (uint32_t)values[i]);
    }
    text_add(line, " %" PRId32 " %016" PRIx64, num_values, digest);
}

uint64_t text_digest_add(uint64_t digest, uint32_t value) {
    return (digest ^ value) * UINT64_C(0x100000001b3);
}
