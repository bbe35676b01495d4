/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* What decode fetches ahead: the values of a step while its keys are used, the next keys while its
 * values are.
 *
 * The one idea: a processor drops a prefetch when all its places for lines under way are taken, and
 * the line is then waited for where it is used. So lines are fetched one at a time, evenly between
 * the multiply-adds, never rows in a burst. */
#ifndef PKVI_CPU_FEW_STREAM_H
#define PKVI_CPU_FEW_STREAM_H

#include "kernels/cpu/unroll.h"

/* Bytes of a cache line. */
#define LINE 64

/* Keys and values of one step: a part of a window. */
struct few_step {
    const unsigned char *const *key, *const *value;
    int32_t count;
};

/* Rows that are fetched line by line. */
struct few_stream {
    const unsigned char *const *rows;
    int64_t size; /* of a row */
    int32_t next, count, lines_per_call;
    const unsigned char *line, *end; /* in the row before `next` */
};

/* Fetch all rows in `num_calls` calls of few_fetch, or fewer. */
INLINE struct few_stream few_start_fetch(const unsigned char *const *rows,
                                         int32_t count,
                                         int64_t size,
                                         int64_t num_calls) {
    int64_t num_lines = count * ((size + LINE - 1) / LINE);
    struct few_stream stream = {
        .rows = rows,
        .size = size,
        .count = count,
        .lines_per_call =
            (int32_t)(num_calls > 0 ? (num_lines + num_calls - 1) / num_calls : num_lines),
    };

    return stream;
}

INLINE void few_fetch(struct few_stream *stream) {
    for (int32_t i = stream->lines_per_call; i > 0; i--) {
        if (stream->line >= stream->end) {
            if (stream->next >= stream->count) {
                return;
            }
            stream->line = stream->rows[stream->next++];
            stream->end = stream->line + stream->size;
        }
        __builtin_prefetch(stream->line);
        stream->line += LINE;
    }
}

#endif
