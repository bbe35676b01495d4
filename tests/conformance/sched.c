/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Reading a `.sched` recording before it is replayed; see the header. */
#include "sched.h"

#include <string.h>

const struct operation_form sched_forms[SCHED_NUM_FORMS] = {
    {"", "", NULL, "sq?"},
    {"add", "niinng", NULL, "uw"},
    {"step", "", NULL, "tdpuwb*xsq?"},
    {"output", "o", NULL, "fcuwsq?"},
    {"drafts", "p", NULL, ""},
    {"abort", "n", NULL, "uwsq?"},
    {"reset", "n", "n", "uwsq?"},
};

struct sched_addition sched_read_addition(const char *line) {
    struct fields fields = grammar_arguments(line);
    struct sched_addition addition = {.segments = {NULL, false}};

    addition.request = fields_count(&fields);
    addition.priority = (int32_t)fields_number(&fields, INT32_MIN, INT32_MAX);
    addition.arrival = (int32_t)fields_number(&fields, INT32_MIN, INT32_MAX);
    addition.max_output_tokens = fields_count(&fields);
    addition.salt = fields_count(&fields);
    addition.segments = fields;
    return addition;
}

/* Read the setting that must come next. */
static int64_t setting(struct fields *fields, const char *name, int64_t smallest, int64_t largest) {
    if (!fields_word(fields, name)) {
        fields->is_valid = false;
        return 0;
    }
    return fields_number(fields, smallest, largest);
}

static bool read_config(struct sched *sched, const char *line) {
    struct fields fields = fields_of(line);

    sched->block_size = (int32_t)setting(&fields, "block_size", 1, INT32_MAX);
    sched->num_blocks = (int32_t)setting(&fields, "num_blocks", 1, PKV_MAX_BLOCKS);
    sched->has_caching = setting(&fields, "caching", 0, 1) != 0;
    if (!fields_word(&fields, "policy")) {
        return false;
    }
    sched->has_priorities = fields_word(&fields, "priority");
    if (!sched->has_priorities && !fields_word(&fields, "fcfs")) {
        return false;
    }
    sched->max_running_requests = (int32_t)setting(&fields, "max_seqs", 1, INT32_MAX);
    sched->max_step_tokens = (int32_t)setting(&fields, "max_tokens", 1, INT32_MAX);
    sched->max_draft_tokens = (int32_t)setting(&fields, "drafts", 0, INT32_MAX);
    sched->must_fit = setting(&fields, "must_fit", 0, 1) != 0;
    sched->num_watermark_blocks = (int32_t)setting(&fields, "watermark_blocks", 0, INT32_MAX);
    sched->long_prefill_threshold = (int32_t)setting(&fields, "long_prefill", 0, INT32_MAX);
    sched->max_model_len = (int32_t)setting(&fields, "max_model_len", 2, INT32_MAX);
    sched->vocabulary = setting(&fields, "vocab", 1, (int64_t)INT32_MAX + 1);
    return line_starts_with(line, "config") && fields_at_end(&fields);
}

static bool read_header(struct sched *sched, const struct recording *recording) {
    int32_t line = grammar_skip_comments(recording, 0);

    if (line >= recording->num_lines || strcmp(recording->lines[line], "pkvsched 1") != 0) {
        return recording_refuse(recording, line, "not a scheduler recording of version 1");
    }
    line = grammar_skip_comments(recording, line + 1);
    if (line >= recording->num_lines || !read_config(sched, recording->lines[line])) {
        return recording_refuse(recording, line, "malformed configuration");
    }
    sched->first_line = grammar_skip_comments(recording, line + 1);
    return true;
}

/* Say whether the operation names a request that is not there, and count what it adds. */
static bool measure_operation(struct sched *sched, const char *name, const char *line) {
    struct fields fields = grammar_arguments(line);

    if (strcmp(name, "add") == 0) {
        struct sched_addition addition = sched_read_addition(line);
        int32_t num_tokens = fields_segments(&addition.segments, sched->vocabulary, NULL);
        int64_t max_num_tokens = (int64_t)num_tokens + addition.max_output_tokens;
        if (max_num_tokens > sched->max_model_len) {
            max_num_tokens = sched->max_model_len;
        }
        if (addition.request != sched->num_requests || num_tokens < 1 ||
            num_tokens >= sched->max_model_len || addition.max_output_tokens < 1) {
            return false;
        }
        if (max_num_tokens > sched->longest_request) {
            sched->longest_request = (int32_t)max_num_tokens;
        }
        sched->max_num_tokens += max_num_tokens;
        sched->num_requests++;
    } else if (strcmp(name, "abort") == 0) {
        return fields_count(&fields) < sched->num_requests;
    } else if (strcmp(name, "drafts") == 0) {
        int32_t num_requests = fields_count(&fields);
        for (int32_t i = 0; i < num_requests; i++) {
            if (fields_pair(&fields).left >= sched->num_requests) {
                return false;
            }
        }
    } else if (strcmp(name, "output") == 0) {
        int32_t num_requests = fields_count(&fields);
        int64_t num_tokens = 0;
        for (int32_t i = 0; i < num_requests; i++) {
            if (fields_count(&fields) >= sched->num_requests) {
                return false;
            }
            num_tokens += fields_segments(&fields, sched->vocabulary, NULL);
        }
        if (num_tokens > INT32_MAX || !fields_at_end(&fields)) {
            return false;
        }
        if (num_tokens > sched->longest_run) {
            sched->longest_run = (int32_t)num_tokens;
        }
    }
    return true;
}

bool sched_scan(struct sched *sched, const struct recording *recording) {
    memset(sched, 0, sizeof *sched);
    if (!read_header(sched, recording) ||
        !grammar_check(recording, sched_forms, SCHED_NUM_FORMS, sched->first_line, 1, false)) {
        return false;
    }
    for (int32_t i = sched->first_line; i < recording->num_lines; i++) {
        const char *line = recording->lines[i];
        const struct operation_form *form = grammar_find_form(sched_forms, SCHED_NUM_FORMS, line);
        if (form != NULL && !measure_operation(sched, form->name, line)) {
            return recording_refuse(recording, i, "not the numbers of a request");
        }
    }
    return true;
}
