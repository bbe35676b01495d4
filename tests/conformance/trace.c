/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Reading a `.trace` recording before it is replayed; see the header. */
#include "trace.h"

#include "text.h"

#include <stdlib.h>
#include <string.h>

#define STATE "sq?r?h?"

const struct operation_form trace_forms[TRACE_NUM_FORMS] = {
    {"", "", NULL, STATE},
    {"new", "nnnng", "n", ""},
    {"append", "ng", "n", ""},
    {"lookup", "n", "n", "+*" STATE},
    {"alloc", "nnnnnnnnnwnn", "?", "+*b*e?" STATE},
    {"setc", "nn", NULL, ""},
    {"inflight", "nn", NULL, ""},
    {"free", "n", NULL, "b*e?" STATE},
    {"preempt", "n", NULL, "b*e?" STATE},
    {"reset", "", "n", "e?" STATE},
    {"evict", "l", NULL, "e?" STATE},
    {"common", "n", "*", ""},
    {"cacheb", "nn", NULL, "b*e?" STATE},
    {"rmskip", "nn", NULL, "b*e?" STATE},
};

struct trace_allocation trace_read_allocation(const char *line) {
    struct fields fields = grammar_arguments(line);
    struct trace_allocation allocation = {0};

    allocation.request = fields_count(&fields);
    allocation.num_new_tokens = fields_count(&fields);
    allocation.uses_lookup = fields_count(&fields) != 0;
    allocation.num_hit_tokens = fields_count(&fields);
    allocation.num_lookahead_tokens = fields_count(&fields);
    allocation.num_external_tokens = fields_count(&fields);
    allocation.delays_caching = fields_count(&fields) != 0;
    allocation.must_fit = fields_count(&fields) != 0;
    allocation.num_reserved_blocks = fields_count(&fields);
    bool is_admission = fields_word(&fields, "W") || fields_word(&fields, "P");
    if (!is_admission) {
        fields_word(&fields, "R");
    }
    allocation.has_watermark = fields_count(&fields) != 0 && is_admission;
    allocation.num_in_flight_tokens = fields_count(&fields);
    return allocation;
}

/* ---- header ---------------------------------------------------------------------------------- */

/* Read the setting that must come next. */
static int64_t setting(struct fields *fields, const char *name, int64_t smallest, int64_t largest) {
    if (!fields_word(fields, name)) {
        fields->is_valid = false;
        return 0;
    }
    return fields_number(fields, smallest, largest);
}

static bool read_config(struct trace *trace, const char *line) {
    struct fields fields = fields_of(line);

    trace->block_size = (int32_t)setting(&fields, "block_size", 1, INT32_MAX);
    trace->num_blocks = (int32_t)setting(&fields, "num_blocks", 1, PKV_MAX_BLOCKS);
    trace->has_caching = setting(&fields, "caching", 0, 1) != 0;
    trace->has_eagle = setting(&fields, "eagle", 0, 1) != 0;
    trace->has_events = setting(&fields, "events", 0, 1) != 0;
    trace->max_model_len = (int32_t)setting(&fields, "max_model_len", 1, INT32_MAX);
    trace->num_watermark_blocks = (int32_t)setting(&fields, "watermark_blocks", 0, INT32_MAX);
    trace->retention = (int32_t)setting(&fields, "retention", -1, INT32_MAX);
    trace->vocabulary = setting(&fields, "vocab", 1, (int64_t)INT32_MAX + 1);
    return line_starts_with(line, "config") && fields_at_end(&fields);
}

/* In recordings -1 is dense retention and 0 keeps only the tail; here it is the other way round. */
static int32_t translate_retention(int32_t retention) {
    if (retention == -1) {
        return PKV_RETENTION_DENSE;
    }
    return retention == 0 ? PKV_RETENTION_TAIL_ONLY : retention;
}

static bool read_group(struct trace *trace, const char *line) {
    struct fields fields = fields_of(line);
    pkv_group_config *group = &trace->groups[trace->num_groups];

    group->struct_size = sizeof *group;
    group->block_size = trace->block_size;
    group->eagle = trace->has_eagle;
    if (fields_number(&fields, 0, PKV_MAX_GROUPS) != trace->num_groups) {
        return false;
    }
    if (fields_word(&fields, "swa")) {
        group->kind = PKV_GROUP_SLIDING_WINDOW;
    } else if (fields_word(&fields, "chunk")) {
        group->kind = PKV_GROUP_CHUNKED_LOCAL;
    } else if (fields_word(&fields, "full")) {
        group->kind = PKV_GROUP_FULL_ATTENTION;
    } else {
        return false;
    }
    group->window = fields_count(&fields);
    if (group->kind != PKV_GROUP_FULL_ATTENTION) {
        group->retention_interval = translate_retention(trace->retention);
    }
    trace->num_groups++;
    return fields_at_end(&fields);
}

static bool read_header(struct trace *trace, const struct recording *recording) {
    int32_t line = grammar_skip_comments(recording, 0);

    if (line >= recording->num_lines || strcmp(recording->lines[line], "pkvtrace 1") != 0) {
        return recording_refuse(recording, line, "not a trace of version 1");
    }
    line = grammar_skip_comments(recording, line + 1);
    if (line >= recording->num_lines || !read_config(trace, recording->lines[line])) {
        return recording_refuse(recording, line, "malformed configuration");
    }
    line = grammar_skip_comments(recording, line + 1);
    while (line < recording->num_lines && line_starts_with(recording->lines[line], "group")) {
        if (trace->num_groups == PKV_MAX_GROUPS || !read_group(trace, recording->lines[line])) {
            return recording_refuse(recording, line, "malformed group");
        }
        line = grammar_skip_comments(recording, line + 1);
    }
    if (trace->num_groups == 0) {
        return recording_refuse(recording, line, "a group was expected here");
    }
    trace->first_line = line;
    return true;
}

/* ---- operations ------------------------------------------------------------------------------ */

/* Requests are numbered as they are made, and only made ones can be named. */
static bool check_request_numbers(struct trace *trace, const struct recording *recording) {
    for (int32_t i = trace->first_line; i < recording->num_lines; i++) {
        const char *line = recording->lines[i];
        const struct operation_form *form = grammar_find_form(trace_forms, TRACE_NUM_FORMS, line);
        if (form == NULL || strcmp(form->name, "reset") == 0 || strcmp(form->name, "evict") == 0) {
            continue;
        }
        struct fields fields = grammar_arguments(line);
        int32_t request = fields_count(&fields);
        bool is_new = strcmp(form->name, "new") == 0;
        if (is_new ? request != trace->num_requests : request >= trace->num_requests) {
            return recording_refuse(recording, i, "not the number of a request");
        }
        trace->num_requests += is_new;
    }
    return true;
}

/* A block table must be able to hold so many tokens. */
static void widen(struct trace *trace, int64_t num_tokens) {
    if (num_tokens > trace->max_model_len) {
        num_tokens = trace->max_model_len;
    }
    int32_t num_blocks = (int32_t)((num_tokens + trace->block_size - 1) / trace->block_size);
    if (num_blocks > trace->max_blocks) {
        trace->max_blocks = num_blocks;
    }
}

/* Follow one operation; computed: [num_requests] counts of computed tokens. */
static bool measure_operation(struct trace *trace,
                              const char *line,
                              const struct operation_form *form,
                              int32_t *computed) {
    struct fields fields = grammar_arguments(line);

    if (strcmp(form->name, "alloc") == 0) {
        struct trace_allocation allocation = trace_read_allocation(line);
        int64_t num_tokens = (int64_t)computed[allocation.request] + allocation.num_hit_tokens +
                             allocation.num_external_tokens + allocation.num_new_tokens +
                             allocation.num_lookahead_tokens;
        widen(trace, num_tokens);
    } else if (strcmp(form->name, "setc") == 0) {
        int32_t request = fields_count(&fields);
        computed[request] = fields_count(&fields);
    } else if (strcmp(form->name, "preempt") == 0) {
        computed[fields_count(&fields)] = 0;
    } else if (strcmp(form->name, "new") == 0 || strcmp(form->name, "append") == 0) {
        int32_t request = fields_count(&fields);
        for (int i = 0; i < 3 && strcmp(form->name, "new") == 0; i++) {
            fields_count(&fields);
        }
        int32_t num_tokens = fields_segments(&fields, trace->vocabulary, NULL);
        if (!fields_at_end(&fields) || num_tokens > INT32_MAX - trace->max_tokens[request]) {
            return false;
        }
        trace->max_tokens[request] += num_tokens;
    }
    return true;
}

static bool measure(struct trace *trace, const struct recording *recording) {
    int32_t *computed = conformance_allocate((size_t)trace->num_requests, sizeof(int32_t));
    bool is_valid = true;

    trace->max_tokens = conformance_allocate((size_t)trace->num_requests, sizeof(int32_t));
    for (int32_t i = trace->first_line; i < recording->num_lines && is_valid; i++) {
        const char *line = recording->lines[i];
        const struct operation_form *form = grammar_find_form(trace_forms, TRACE_NUM_FORMS, line);
        if (form != NULL && !measure_operation(trace, line, form, computed)) {
            is_valid = recording_refuse(recording, i, "more tokens than a request can have");
        }
    }
    free(computed);
    for (int32_t i = 0; i < trace->num_requests; i++) {
        widen(trace, trace->max_tokens[i]);
    }
    return is_valid;
}

bool trace_scan(struct trace *trace, const struct recording *recording) {
    memset(trace, 0, sizeof *trace);
    return read_header(trace, recording) &&
           grammar_check(recording, trace_forms, TRACE_NUM_FORMS, trace->first_line,
                         trace->num_groups, true) &&
           check_request_numbers(trace, recording) && measure(trace, recording);
}

void trace_free(struct trace *trace) {
    free(trace->max_tokens);
    trace->max_tokens = NULL;
}
