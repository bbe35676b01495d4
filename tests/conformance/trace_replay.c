/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Replaying a `.trace`: each operation is one call of the manager. What a scheduler knows of a
 * request (computed tokens, whether it was preempted) is kept here, as the manager keeps none of
 * it. */
#include "replay_files.h"
#include "trace.h"
#include "trace_events.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct traced_request {
    pkv_request handle;
    int32_t num_tokens, num_computed_tokens;
    bool skips_lookup, was_preempted;
};

/* token_ids: room for the longest request. counters: of the stats line, in its order. */
struct traced_run {
    struct replay *replay;
    struct trace trace;
    struct trace_events events;
    struct traced_request *requests;
    int32_t *token_ids;
    int64_t counters[6];
};

/* ---- answers --------------------------------------------------------------------------------- */

static void expect_number(struct traced_run *run, int32_t number) {
    text_clear(&run->replay->actual);
    text_add(&run->replay->actual, "= %" PRId32, number);
    replay_expect(run->replay);
}

/* The result line of a call that gave a status which no recording has. */
static void expect_status(struct traced_run *run, const char *call, pkv_status status) {
    text_clear(&run->replay->actual);
    text_add(&run->replay->actual, "= (%s returned %s: %s)", call, pkv_status_name(status),
             pkv_manager_last_error(run->replay->manager));
    replay_expect(run->replay);
}

/* For operations without a result line. */
static void check_status(struct traced_run *run, const char *call, pkv_status status) {
    if (status != PKV_OK) {
        replay_report_status(run->replay, call, status);
    }
}

static void expect_tables(struct traced_run *run, int32_t request) {
    for (int32_t group = 0; group < run->trace.num_groups; group++) {
        const pkv_block_id *block_ids = NULL;
        int32_t num_blocks = 0;
        pkv_status status = pkv_get_block_table(run->replay->manager, run->requests[request].handle,
                                                group, &block_ids, &num_blocks);
        check_status(run, "pkv_get_block_table", status);
        replay_expect_table(run->replay, request, group, block_ids, num_blocks);
    }
}

static void expect_new_ids(struct traced_run *run, int32_t request) {
    for (int32_t group = 0; group < run->trace.num_groups; group++) {
        const pkv_block_id *block_ids = NULL;
        int32_t num_blocks = 0;
        pkv_status status = pkv_get_new_block_ids(
            run->replay->manager, run->requests[request].handle, group, &block_ids, &num_blocks);
        check_status(run, "pkv_get_new_block_ids", status);
        replay_expect_ids(run->replay, group, block_ids, num_blocks);
    }
}

/* The lines that end every operation that may change the pool. */
static void expect_state(struct traced_run *run) {
    if (run->trace.has_events) {
        trace_events_expect(&run->events, run->replay);
    }
    replay_expect_state(run->replay);
}

/* ---- operations ------------------------------------------------------------------------------ */

static void replay_new(struct traced_run *run, struct fields fields) {
    int32_t request = fields_count(&fields);
    int32_t salt = fields_count(&fields);
    int32_t adapter = fields_count(&fields);
    bool skips_lookup = fields_count(&fields) != 0;
    int32_t num_tokens = fields_segments(&fields, run->trace.vocabulary, run->token_ids);
    pkv_request_args args = {.struct_size = sizeof args,
                             .token_ids = run->token_ids,
                             .num_tokens = num_tokens,
                             .max_num_tokens = run->trace.max_tokens[request],
                             .adapter_id = (uint64_t)adapter,
                             .salt = &salt,
                             .salt_size = salt != 0 ? sizeof salt : 0,
                             .skip_cache_read = skips_lookup};
    struct traced_request *traced = &run->requests[request];

    traced->num_tokens = num_tokens;
    traced->skips_lookup = skips_lookup;
    pkv_status status = pkv_request_open(run->replay->manager, &args, &traced->handle);
    if (status != PKV_OK) {
        expect_status(run, "pkv_request_open", status);
        return;
    }
    expect_number(run, num_tokens);
}

static void replay_append(struct traced_run *run, struct fields fields) {
    struct traced_request *traced = &run->requests[fields_count(&fields)];
    int32_t num_tokens = fields_segments(&fields, run->trace.vocabulary, run->token_ids);
    pkv_status status =
        pkv_request_append(run->replay->manager, traced->handle, run->token_ids, num_tokens);

    if (status != PKV_OK) {
        expect_status(run, "pkv_request_append", status);
        return;
    }
    traced->num_tokens += num_tokens;
    expect_number(run, traced->num_tokens);
}

/* The recordings count lookups where they are made; the manager itself counts admissions. */
static void count_lookup(struct traced_run *run,
                         const struct traced_request *traced,
                         int32_t num_hit_tokens) {
    if (!run->trace.has_caching || traced->skips_lookup) {
        return;
    }
    int64_t *counters = &run->counters[traced->was_preempted ? 3 : 0];
    counters[0]++;
    counters[1] += traced->num_tokens;
    counters[2] += num_hit_tokens;
}

static void replay_lookup(struct traced_run *run, struct fields fields) {
    struct traced_request *traced = &run->requests[fields_count(&fields)];
    pkv_manager *manager = run->replay->manager;
    int32_t num_hit_tokens = 0;
    pkv_status status = pkv_get_computed_blocks(manager, traced->handle, &num_hit_tokens);

    if (status != PKV_OK) {
        expect_status(run, "pkv_get_computed_blocks", status);
    } else {
        expect_number(run, num_hit_tokens);
        count_lookup(run, traced, num_hit_tokens);
    }
    for (int32_t group = 0; group < run->trace.num_groups; group++) {
        int32_t num_blocks = 0;
        status = pkv_get_computed_block_ids(manager, traced->handle, group, run->replay->ids,
                                            run->replay->num_ids, &num_blocks);
        check_status(run, "pkv_get_computed_block_ids", status);
        replay_expect_ids(run->replay, group, run->replay->ids, status == PKV_OK ? num_blocks : 0);
    }
    expect_state(run);
}

static void replay_alloc(struct traced_run *run, const char *line) {
    struct trace_allocation allocation = trace_read_allocation(line);
    const struct traced_request *traced = &run->requests[allocation.request];
    pkv_slots_args args = {
        .struct_size = sizeof args,
        .num_computed_tokens = traced->num_computed_tokens,
        .num_new_tokens = allocation.num_new_tokens,
        .num_new_computed_tokens = allocation.uses_lookup ? allocation.num_hit_tokens : 0,
        .num_external_computed_tokens = allocation.num_external_tokens,
        .num_lookahead_tokens = allocation.num_lookahead_tokens,
        .num_in_flight_tokens = allocation.num_in_flight_tokens,
        .num_watermark_blocks = allocation.has_watermark ? run->trace.num_watermark_blocks : 0,
        .num_reserved_blocks = allocation.num_reserved_blocks,
        .full_sequence_must_fit = allocation.must_fit,
        .delay_caching = allocation.delays_caching};
    pkv_slots slots = {.struct_size = sizeof slots};
    pkv_status status = pkv_allocate_slots(run->replay->manager, traced->handle, &args, &slots);

    if (status == PKV_OK) {
        text_clear(&run->replay->actual);
        text_add(&run->replay->actual, "= ok");
        replay_expect(run->replay);
        expect_new_ids(run, allocation.request);
    } else if (status == PKV_NO_FREE_BLOCKS || status == PKV_NEVER_FITS) {
        text_clear(&run->replay->actual);
        text_add(&run->replay->actual, "= none");
        replay_expect(run->replay);
    } else {
        expect_status(run, "pkv_allocate_slots", status);
    }
    expect_tables(run, allocation.request);
    expect_state(run);
}

static void replay_setc(struct traced_run *run, struct fields fields) {
    struct traced_request *traced = &run->requests[fields_count(&fields)];

    traced->num_computed_tokens = fields_count(&fields);
}

static void replay_free(struct traced_run *run, struct fields fields) {
    int32_t request = fields_count(&fields);

    check_status(run, "pkv_free", pkv_free(run->replay->manager, run->requests[request].handle));
    expect_tables(run, request);
    expect_state(run);
}

static void replay_preempt(struct traced_run *run, struct fields fields) {
    struct fields same = fields;
    struct traced_request *traced = &run->requests[fields_count(&fields)];

    traced->num_computed_tokens = 0;
    traced->was_preempted = true;
    replay_free(run, same);
}

static void replay_reset(struct traced_run *run) {
    pkv_status status = pkv_reset_prefix_cache(run->replay->manager);

    if (status == PKV_OK || status == PKV_ERROR_BUSY) {
        expect_number(run, status == PKV_OK ? 1 : 0);
    } else {
        expect_status(run, "pkv_reset_prefix_cache", status);
    }
    expect_state(run);
}

static void replay_evict(struct traced_run *run, struct fields fields) {
    int32_t num_ids = fields_count(&fields);
    int32_t *ids = conformance_allocate((size_t)num_ids, sizeof(int32_t));

    for (int32_t i = 0; i < num_ids; i++) {
        ids[i] = fields_count(&fields);
    }
    check_status(run, "pkv_evict_blocks", pkv_evict_blocks(run->replay->manager, ids, num_ids));
    free(ids);
    expect_state(run);
}

static void replay_common(struct traced_run *run, struct fields fields) {
    const struct traced_request *traced = &run->requests[fields_count(&fields)];
    struct text line = {NULL, 0, 0};

    text_add(&line, "=");
    for (int32_t group = 0; group < run->trace.num_groups; group++) {
        int32_t num_blocks = 0;
        pkv_status status = pkv_get_num_common_prefix_blocks(run->replay->manager, traced->handle,
                                                             group, &num_blocks);
        check_status(run, "pkv_get_num_common_prefix_blocks", status);
        text_add(&line, " %" PRId32, num_blocks);
    }
    text_clear(&run->replay->actual);
    text_add(&run->replay->actual, "%s", line.characters);
    text_free(&line);
    replay_expect(run->replay);
}

static void replay_cacheb(struct traced_run *run, struct fields fields) {
    int32_t request = fields_count(&fields);
    int32_t num_tokens = fields_count(&fields);
    pkv_status status =
        pkv_cache_blocks(run->replay->manager, run->requests[request].handle, num_tokens);

    check_status(run, "pkv_cache_blocks", status);
    expect_tables(run, request);
    expect_state(run);
}

static void replay_rmskip(struct traced_run *run, struct fields fields) {
    int32_t request = fields_count(&fields);
    int32_t num_tokens = fields_count(&fields);
    pkv_status status =
        pkv_remove_skipped_blocks(run->replay->manager, run->requests[request].handle, num_tokens);

    check_status(run, "pkv_remove_skipped_blocks", status);
    expect_tables(run, request);
    expect_state(run);
}

/* `inflight` needs nothing: each `alloc` says its in-flight count again. */
static void replay_operation(struct traced_run *run, const char *line) {
    const char *name = grammar_find_form(trace_forms, TRACE_NUM_FORMS, line)->name;
    struct fields fields = grammar_arguments(line);

    if (strcmp(name, "new") == 0) {
        replay_new(run, fields);
    } else if (strcmp(name, "append") == 0) {
        replay_append(run, fields);
    } else if (strcmp(name, "lookup") == 0) {
        replay_lookup(run, fields);
    } else if (strcmp(name, "alloc") == 0) {
        replay_alloc(run, line);
    } else if (strcmp(name, "setc") == 0) {
        replay_setc(run, fields);
    } else if (strcmp(name, "free") == 0) {
        replay_free(run, fields);
    } else if (strcmp(name, "preempt") == 0) {
        replay_preempt(run, fields);
    } else if (strcmp(name, "reset") == 0) {
        replay_reset(run);
    } else if (strcmp(name, "evict") == 0) {
        replay_evict(run, fields);
    } else if (strcmp(name, "common") == 0) {
        replay_common(run, fields);
    } else if (strcmp(name, "cacheb") == 0) {
        replay_cacheb(run, fields);
    } else if (strcmp(name, "rmskip") == 0) {
        replay_rmskip(run, fields);
    }
}

/* ---- the whole file -------------------------------------------------------------------------- */

/* Requests stay open to the end, since a recording may name a freed one again. */
static pkv_status make_manager(struct traced_run *run, pkv_manager **manager) {
    const struct trace *trace = &run->trace;
    int64_t num_tokens = 0;
    int32_t num_requests = trace->num_requests > 0 ? trace->num_requests : 1;

    for (int32_t i = 0; i < trace->num_requests; i++) {
        num_tokens += trace->max_tokens[i];
    }
    pkv_manager_config config = {.struct_size = sizeof config,
                                 .num_blocks = trace->num_blocks,
                                 .max_model_len = trace->max_model_len,
                                 .block_size = trace->block_size,
                                 .num_groups = trace->num_groups,
                                 .groups = trace->groups,
                                 .max_rows = num_requests,
                                 .max_requests = num_requests,
                                 .max_blocks_per_request = trace->max_blocks + 1,
                                 .max_total_tokens = num_tokens + 1,
                                 .event_capacity = run->events.capacity,
                                 .disable_prefix_cache = !trace->has_caching};
    return pkv_manager_create(&config, manager);
}

static bool start(struct traced_run *run) {
    struct replay *replay = run->replay;
    const struct trace *trace = &run->trace;
    int32_t longest = 0;
    pkv_manager *manager;

    if (trace->has_events) {
        /* An operation takes each block's key at most once and stores at most one per block. */
        trace_events_init(&run->events, 4 * trace->num_blocks + 64);
    }
    pkv_status status = make_manager(run, &manager);
    if (status != PKV_OK) {
        return recording_refuse(replay->recording, trace->first_line,
                                "no manager can be made for this configuration");
    }
    replay_attach(replay, manager, trace->num_blocks, trace->max_blocks + 1);
    for (int32_t i = 0; i < trace->num_requests; i++) {
        longest = trace->max_tokens[i] > longest ? trace->max_tokens[i] : longest;
    }
    run->token_ids = conformance_allocate((size_t)longest, sizeof(int32_t));
    run->requests =
        conformance_allocate((size_t)trace->num_requests, sizeof(struct traced_request));
    return true;
}

static void replay_lines(struct traced_run *run) {
    struct replay *replay = run->replay;

    replay->line = run->trace.first_line;
    replay_expect_state(replay);
    replay_finish_operation(replay, true);
    while (line_starts_with(replay_peek(replay), ">")) {
        const char *line = replay_peek(replay);
        replay->num_operations++;
        replay_advance(replay);
        replay_operation(run, line);
        replay_finish_operation(replay, false);
    }
    if (line_starts_with(replay_peek(replay), "s")) {
        replay_expect_state(replay);
    }
    text_clear(&replay->actual);
    text_add(&replay->actual, "stats");
    for (int i = 0; i < 6; i++) {
        text_add(&replay->actual, " %" PRId64, run->counters[i]);
    }
    replay_expect(replay);
    replay_finish_operation(replay, true);
}

bool trace_replay(struct replay *replay) {
    struct traced_run run = {.replay = replay};

    bool is_valid = trace_scan(&run.trace, replay->recording) && start(&run);
    if (is_valid) {
        replay_lines(&run);
    }
    free(run.requests);
    free(run.token_ids);
    trace_events_free(&run.events);
    trace_free(&run.trace);
    return is_valid;
}
