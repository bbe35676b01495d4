/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Replaying a `.sched`: the recording is the engine, which adds requests, runs steps and delivers
 * tokens; the scheduler of the benches answers. */
#include "bench/scheduler.h"
#include "replay_files.h"
#include "sched.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* requests: [num_requests] by their number in the recording; NULL before they are added and after
 * they have ended. outputs: one for each running request at most. */
struct sched_run {
    struct replay *replay;
    struct sched sched;
    struct scheduler *scheduler;
    scheduler_request **requests;
    const scheduler_step *step;
    scheduler_output *outputs;
    int32_t *token_ids; /* room for the longest prompt and for the tokens of one step */
};

/* ---- answers --------------------------------------------------------------------------------- */

/* Start the next answer line. */
static struct text *begin(struct sched_run *run, const char *word, int32_t num_elements) {
    text_clear(&run->replay->actual);
    text_add(&run->replay->actual, "%s %" PRId32, word, num_elements);
    return &run->replay->actual;
}

static bool check(struct sched_run *run, const char *call, pkv_status status) {
    if (status != PKV_OK) {
        replay_report_status(run->replay, call, status);
    }
    return status == PKV_OK;
}

static void expect_queues(struct sched_run *run) {
    int32_t num_running, num_waiting;
    scheduler_request *const *running = scheduler_get_running(run->scheduler, &num_running);
    const scheduler_request *waiting = scheduler_get_first_waiting(run->scheduler, &num_waiting);

    struct text *line = begin(run, "u", num_running);
    for (int32_t i = 0; i < num_running; i++) {
        text_add(line, " %" PRId32, running[i]->id);
    }
    replay_expect(run->replay);
    begin(run, "w", num_waiting);
    for (; waiting != NULL; waiting = waiting->next) {
        text_add(line, " %" PRId32, waiting->id);
    }
    replay_expect(run->replay);
}

static void expect_scheduled(struct sched_run *run) {
    const scheduler_step *step = run->step;
    int32_t num_with_drafts = 0;

    struct text *line = begin(run, "t", step->num_entries);
    for (int32_t i = 0; i < step->num_entries; i++) {
        const scheduler_entry *entry = &step->entries[i];
        text_add(line, " %" PRId32 ":%" PRId32, entry->request->id, entry->num_new_tokens);
        num_with_drafts += entry->num_drafts > 0;
    }
    replay_expect(run->replay);
    begin(run, "d", num_with_drafts);
    for (int32_t i = 0; i < step->num_entries; i++) {
        const scheduler_entry *entry = &step->entries[i];
        if (entry->num_drafts > 0) {
            text_add(line, " %" PRId32 ":%" PRId32, entry->request->id, entry->num_drafts);
        }
    }
    replay_expect(run->replay);
    begin(run, "p", step->num_preempted);
    for (int32_t i = 0; i < step->num_preempted; i++) {
        text_add(line, " %" PRId32, step->preempted[i]->id);
    }
    replay_expect(run->replay);
}

static void expect_tables(struct sched_run *run) {
    for (int32_t i = 0; i < run->step->num_entries; i++) {
        const scheduler_request *request = run->step->entries[i].request;
        const pkv_block_id *block_ids = NULL;
        int32_t num_blocks = 0;
        check(
            run, "pkv_get_block_table",
            pkv_get_block_table(run->replay->manager, request->handle, 0, &block_ids, &num_blocks));
        struct text *line = begin(run, "b", request->id);
        text_add(line, " %" PRId32, request->num_computed_tokens);
        text_add_list(line, block_ids, num_blocks);
        replay_expect(run->replay);
    }
}

static void expect_common_prefix(struct sched_run *run) {
    int32_t num_running;
    scheduler_request *const *running = scheduler_get_running(run->scheduler, &num_running);
    int32_t num_blocks = 0;

    if (num_running > 0) {
        check(run, "pkv_get_num_common_prefix_blocks",
              pkv_get_num_common_prefix_blocks(run->replay->manager, running[0]->handle, 0,
                                               &num_blocks));
    }
    begin(run, "x", num_blocks);
    replay_expect(run->replay);
}

/* ---- operations ------------------------------------------------------------------------------ */

static void replay_add(struct sched_run *run, const char *line) {
    struct sched_addition addition = sched_read_addition(line);
    int32_t num_tokens = fields_segments(&addition.segments, run->sched.vocabulary, run->token_ids);
    scheduler_request_args args = {.token_ids = run->token_ids,
                                   .num_tokens = num_tokens,
                                   .max_output_tokens = addition.max_output_tokens,
                                   .priority = addition.priority,
                                   .arrival = addition.arrival,
                                   .salt = &addition.salt,
                                   .salt_size = addition.salt != 0 ? sizeof addition.salt : 0};

    check(run, "scheduler_add",
          scheduler_add(run->scheduler, &args, &run->requests[addition.request]));
    expect_queues(run);
}

/* Their structs are only valid until the next step. */
static void forget_ended(struct sched_run *run) {
    int32_t num_ended;
    scheduler_request *const *ended = scheduler_get_ended(run->scheduler, &num_ended);

    for (int32_t i = 0; i < num_ended; i++) {
        run->requests[ended[i]->id] = NULL;
    }
}

/* No output is recorded for a step that sampled nothing. */
static void finish_open_step(struct sched_run *run) {
    if (run->step == NULL || run->step->num_entries == 0) {
        return;
    }
    memset(run->outputs, 0, (size_t)run->step->num_entries * sizeof run->outputs[0]);
    check(run, "scheduler_complete_step (no output)",
          scheduler_complete_step(run->scheduler, run->outputs));
    run->step = NULL;
}

static void replay_step(struct sched_run *run) {
    finish_open_step(run);
    if (!check(run, "scheduler_schedule", scheduler_schedule(run->scheduler, &run->step))) {
        run->step = NULL;
        return;
    }
    forget_ended(run);
    expect_scheduled(run);
    expect_queues(run);
    expect_tables(run);
    expect_common_prefix(run);
    replay_expect_state(run->replay);
}

/* Put the recorded tokens beside the entries of the step; a request without tokens gets none. */
static void read_outputs(struct sched_run *run, struct fields fields) {
    int32_t num_requests = fields_count(&fields);
    int32_t num_tokens = 0;

    memset(run->outputs, 0, (size_t)run->step->num_entries * sizeof run->outputs[0]);
    for (int32_t i = 0; i < num_requests; i++) {
        int32_t id = fields_count(&fields);
        int32_t *token_ids = run->token_ids + num_tokens;
        int32_t length = fields_segments(&fields, run->sched.vocabulary, token_ids);
        bool is_scheduled = false;
        for (int32_t j = 0; j < run->step->num_entries; j++) {
            if (run->step->entries[j].request->id == id) {
                run->outputs[j] = (scheduler_output){token_ids, length};
                is_scheduled = true;
            }
        }
        if (!is_scheduled) {
            replay_report(run->replay, "(output for a scheduled request)",
                          "output for a request that is not in the step");
        }
        num_tokens += length;
    }
}

static void expect_ends(struct sched_run *run, int32_t num_ended_before) {
    const scheduler_step *step = run->step;
    int32_t num_ended;
    scheduler_request *const *ended = scheduler_get_ended(run->scheduler, &num_ended);
    int32_t num_left = 0;

    struct text *line = begin(run, "f", num_ended - num_ended_before);
    for (int32_t i = num_ended_before; i < num_ended; i++) {
        text_add(line, " %" PRId32, ended[i]->id);
    }
    replay_expect(run->replay);
    for (int32_t i = 0; i < step->num_entries; i++) {
        num_left += step->entries[i].request->state == SCHEDULER_RUNNING;
    }
    begin(run, "c", num_left);
    for (int32_t i = 0; i < step->num_entries; i++) {
        const scheduler_request *request = step->entries[i].request;
        if (request->state == SCHEDULER_RUNNING) {
            text_add(line, " %" PRId32 ":%" PRId32 ":%" PRId32, request->id,
                     request->num_computed_tokens, request->num_tokens);
        }
    }
    replay_expect(run->replay);
}

static void replay_output(struct sched_run *run, struct fields fields) {
    int32_t num_ended;

    if (run->step == NULL) {
        replay_report(run->replay, "(a step in flight)", "no step is in flight");
        return;
    }
    scheduler_get_ended(run->scheduler, &num_ended);
    read_outputs(run, fields);
    if (run->step->num_entries > 0) {
        check(run, "scheduler_complete_step",
              scheduler_complete_step(run->scheduler, run->outputs));
    }
    expect_ends(run, num_ended);
    forget_ended(run);
    run->step = NULL;
    expect_queues(run);
    replay_expect_state(run->replay);
}

static void replay_drafts(struct sched_run *run, struct fields fields) {
    int32_t num_requests = fields_count(&fields);

    for (int32_t i = 0; i < num_requests; i++) {
        struct fields_pair pair = fields_pair(&fields);
        if (run->requests[pair.left] != NULL) {
            scheduler_set_drafts(run->scheduler, run->requests[pair.left], pair.right);
        }
    }
}

static void replay_abort(struct sched_run *run, struct fields fields) {
    scheduler_request *request = run->requests[fields_count(&fields)];

    if (request != NULL) {
        check(run, "scheduler_abort", scheduler_abort(run->scheduler, request));
        forget_ended(run);
    }
    expect_queues(run);
    replay_expect_state(run->replay);
}

static void replay_reset(struct sched_run *run, struct fields fields) {
    bool preempt_running = fields_count(&fields) != 0;
    pkv_status status = scheduler_reset_prefix_cache(run->scheduler, preempt_running);

    if (status != PKV_ERROR_BUSY) {
        check(run, "scheduler_reset_prefix_cache", status);
    }
    begin(run, "=", status == PKV_OK ? 1 : 0);
    replay_expect(run->replay);
    expect_queues(run);
    replay_expect_state(run->replay);
}

static void replay_operation(struct sched_run *run, const char *line) {
    const char *name = grammar_find_form(sched_forms, SCHED_NUM_FORMS, line)->name;
    struct fields fields = grammar_arguments(line);

    if (strcmp(name, "add") == 0) {
        replay_add(run, line);
    } else if (strcmp(name, "step") == 0) {
        replay_step(run);
    } else if (strcmp(name, "output") == 0) {
        replay_output(run, fields);
    } else if (strcmp(name, "drafts") == 0) {
        replay_drafts(run, fields);
    } else if (strcmp(name, "abort") == 0) {
        replay_abort(run, fields);
    } else if (strcmp(name, "reset") == 0) {
        replay_reset(run, fields);
    }
}

/* ---- the whole file -------------------------------------------------------------------------- */

/* A table holds a request's tokens, the drafts of this step and the places for those of the
 * next. */
static pkv_status make_manager(const struct sched *sched,
                               pkv_manager **manager,
                               int32_t *max_blocks) {
    int64_t num_slots = (int64_t)sched->longest_request + 2 * (int64_t)sched->max_draft_tokens;
    int32_t num_rows = sched->max_running_requests;

    if (num_rows > sched->num_requests) {
        num_rows = sched->num_requests > 0 ? sched->num_requests : 1;
    }
    if (num_slots > sched->max_model_len) {
        num_slots = sched->max_model_len;
    }
    *max_blocks = (int32_t)((num_slots + sched->block_size - 1) / sched->block_size) + 1;
    pkv_manager_config config = {.struct_size = sizeof config,
                                 .num_blocks = sched->num_blocks,
                                 .max_model_len = sched->max_model_len,
                                 .block_size = sched->block_size,
                                 .max_rows = num_rows,
                                 .max_requests = sched->num_requests + 1,
                                 .max_blocks_per_request = *max_blocks,
                                 .max_total_tokens = sched->max_num_tokens + 1,
                                 .disable_prefix_cache = !sched->has_caching};
    return pkv_manager_create(&config, manager);
}

static pkv_status make_scheduler(const struct sched *sched,
                                 pkv_manager *manager,
                                 struct scheduler **scheduler) {
    scheduler_config config = {
        .manager = manager,
        .policy = sched->has_priorities ? SCHEDULER_PRIORITY : SCHEDULER_FCFS,
        .max_requests = sched->num_requests + 1,
        .max_model_len = sched->max_model_len,
        .max_running_requests = sched->max_running_requests,
        .max_step_tokens = sched->max_step_tokens,
        .long_prefill_threshold = sched->long_prefill_threshold,
        .max_draft_tokens = sched->max_draft_tokens,
        .num_watermark_blocks = sched->num_watermark_blocks,
        .admit_partial_sequences = !sched->must_fit,
        .keep_unfitting_requests = true,
        .disable_prefix_cache = !sched->has_caching,
    };
    return scheduler_create(&config, scheduler);
}

static bool start(struct sched_run *run) {
    const struct sched *sched = &run->sched;
    int32_t max_blocks = 0;
    pkv_manager *manager;

    if (make_manager(sched, &manager, &max_blocks) != PKV_OK) {
        return recording_refuse(run->replay->recording, sched->first_line,
                                "no manager can be made for this configuration");
    }
    replay_attach(run->replay, manager, sched->num_blocks, max_blocks);
    if (make_scheduler(sched, manager, &run->scheduler) != PKV_OK) {
        return recording_refuse(run->replay->recording, sched->first_line,
                                "no scheduler can be made for this configuration");
    }
    int32_t num_tokens = sched->longest_request + sched->longest_run;
    run->token_ids = conformance_allocate((size_t)num_tokens, sizeof(int32_t));
    run->outputs =
        conformance_allocate((size_t)sched->max_running_requests, sizeof run->outputs[0]);
    run->requests = conformance_allocate((size_t)sched->num_requests, sizeof run->requests[0]);
    return true;
}

static void replay_lines(struct sched_run *run) {
    struct replay *replay = run->replay;

    replay->line = run->sched.first_line;
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
    replay_finish_operation(replay, true);
}

bool sched_replay(struct replay *replay) {
    struct sched_run run = {.replay = replay};

    bool is_valid = sched_scan(&run.sched, replay->recording) && start(&run);
    if (is_valid) {
        replay_lines(&run);
    }
    scheduler_destroy(run.scheduler);
    free(run.requests);
    free(run.outputs);
    free(run.token_ids);
    return is_valid;
}
