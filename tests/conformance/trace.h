/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* A `.trace` recording as numbers: its configuration, and how large a manager its operations need.
 * Replaying it is trace_replay.c.
 *
 * The one idea: a recording is read once to the end before it is replayed, so that nothing in the
 * manager is larger or smaller than this recording wants. */
#ifndef CONFORMANCE_TRACE_H
#define CONFORMANCE_TRACE_H

#include "grammar.h"
#include "recording.h"

#include <pagedkv.h>

/* groups: [num_groups]. max_tokens: [num_requests], most tokens that each request ever has.
 * max_blocks: columns of the longest block table. */
struct trace {
    int32_t block_size, num_blocks, max_model_len, num_watermark_blocks, retention;
    bool has_caching, has_eagle, has_events;
    int64_t vocabulary;
    int32_t num_groups;
    pkv_group_config groups[PKV_MAX_GROUPS];
    int32_t first_line; /* index of the line behind the groups */
    int32_t num_requests, max_blocks;
    int32_t *max_tokens;
};

enum { TRACE_NUM_FORMS = 14 };
extern const struct operation_form trace_forms[TRACE_NUM_FORMS];

/* The numbers of an `alloc` line. */
struct trace_allocation {
    int32_t request, num_new_tokens, num_hit_tokens, num_lookahead_tokens, num_external_tokens;
    int32_t num_reserved_blocks, num_in_flight_tokens;
    bool uses_lookup, delays_caching, must_fit, has_watermark;
};

struct trace_allocation trace_read_allocation(const char *line);

/* Read and check the whole recording. Returns false, with a message on stderr, where it is
 * malformed. trace_free also after a failure. */
bool trace_scan(struct trace *trace, const struct recording *recording);
void trace_free(struct trace *trace);

#endif
