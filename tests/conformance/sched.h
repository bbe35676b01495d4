/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* A `.sched` recording as numbers: its configuration, and how large a manager and a scheduler its
 * operations need. Replaying it is sched_replay.c. */
#ifndef CONFORMANCE_SCHED_H
#define CONFORMANCE_SCHED_H

#include "grammar.h"
#include "recording.h"

#include <pagedkv.h>

/* max_num_tokens: of all requests together; longest_request, longest_run: tokens of a prompt or of
 * one operation's output. */
struct sched {
    int32_t block_size, num_blocks, max_running_requests, max_step_tokens, max_draft_tokens;
    int32_t num_watermark_blocks, long_prefill_threshold, max_model_len;
    bool has_caching, has_priorities, must_fit;
    int64_t vocabulary;
    int32_t first_line; /* index of the line behind the configuration */
    int32_t num_requests, longest_request, longest_run;
    int64_t max_num_tokens;
};

enum { SCHED_NUM_FORMS = 7 };
extern const struct operation_form sched_forms[SCHED_NUM_FORMS];

/* The numbers of an `add` line; segments: the fields that are left. */
struct sched_addition {
    int32_t request, priority, arrival, max_output_tokens, salt;
    struct fields segments;
};

struct sched_addition sched_read_addition(const char *line);

/* Read and check the whole recording. Returns false, with a message on stderr, where it is
 * malformed. */
bool sched_scan(struct sched *sched, const struct recording *recording);

#endif
