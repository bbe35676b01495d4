/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The loop of serve_replay.h: arrivals, one step, its outputs, one sample. What a step costs is a
 * formula (base + tokens * token) and nothing else is assumed about the model.
 *
 * The one idea: the clock only moves when a step has run, or when nobody is there. */
#include "serve_replay.h"

#include "report.h"
#include "scheduler.h"
#include "serve_arrivals.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Longest requests that the default pool holds at once. */
#define DEFAULT_NUM_LONGEST 8

/* One request of the source; the scheduler carries a pointer to it. */
typedef struct serve_record {
    int32_t index;
    int32_t num_ever_computed; /* tokens that were computed at least once */
    double arrival_seconds;
    bool has_output;
} serve_record;

typedef struct replay {
    const serve_options *options;
    const serve_source *source;
    serve_result *result;
    char *error;
    pkv_manager *manager;
    struct scheduler *scheduler;
    serve_arrivals arrivals;
    serve_record *records;     /* [num_requests] */
    int32_t *prompt;           /* [max_total_tokens] */
    int32_t *output_tokens;    /* [max_running_requests] */
    scheduler_output *outputs; /* [max_running_requests] */
    pkv_batch batch;
    double now;
    bool is_door_shut;     /* the last one was refused, and nobody has left since */
    int64_t sample_stride; /* steps between two samples */
} replay;

static bool fail(replay *r, const char *what, pkv_status status) {
    snprintf(r->error, SERVE_MAX_ERROR, "%s: %s%s%s", what, pkv_status_name(status),
             r->manager == NULL ? "" : ": ",
             r->manager == NULL ? "" : pkv_manager_last_error(r->manager));
    return false;
}

int32_t serve_replay_choose_num_blocks(const serve_options *options, const serve_source *source) {
    if (options->num_blocks > 0) {
        return options->num_blocks;
    }
    int64_t num_longest_blocks = source->max_total_tokens / options->block_size + 1;
    int64_t num_blocks = DEFAULT_NUM_LONGEST * num_longest_blocks;

    return num_blocks < PKV_MAX_BLOCKS ? (int32_t)num_blocks : PKV_MAX_BLOCKS;
}

/* ---- setting up ------------------------------------------------------------------------------ */

static bool create_objects(replay *r) {
    const serve_options *options = r->options;
    int32_t num_blocks = serve_replay_choose_num_blocks(options, r->source);
    int32_t max_open = 4 * options->max_running_requests;
    pkv_manager_config manager_config = {.struct_size = sizeof manager_config,
                                         .num_blocks = num_blocks,
                                         .block_size = options->block_size,
                                         .max_model_len = r->source->max_total_tokens,
                                         .max_rows = options->max_running_requests,
                                         .max_requests = max_open,
                                         .disable_prefix_cache = options->disable_prefix_cache};
    const char *reason = "";

    pkv_status status = pkv_manager_config_check(&manager_config, &reason);
    if (status == PKV_OK) {
        status = pkv_manager_create(&manager_config, &r->manager);
    }
    if (status != PKV_OK) {
        snprintf(r->error, SERVE_MAX_ERROR, "pkv_manager_create: %s: %s", pkv_status_name(status),
                 reason);
        return false;
    }
    scheduler_config config = {.manager = r->manager,
                               .policy =
                                   options->use_priorities ? SCHEDULER_PRIORITY : SCHEDULER_FCFS,
                               .max_requests = max_open,
                               .max_model_len = r->source->max_total_tokens,
                               .max_running_requests = options->max_running_requests,
                               .max_step_tokens = options->max_step_tokens,
                               .num_watermark_blocks = (int32_t)(options->watermark * num_blocks),
                               .disable_prefix_cache = options->disable_prefix_cache};
    status = scheduler_create(&config, &r->scheduler);
    return status == PKV_OK || fail(r, "scheduler_create", status);
}

static bool allocate_arrays(replay *r) {
    size_t num_requests = (size_t)r->source->num_requests;
    size_t max_running = (size_t)r->options->max_running_requests;
    size_t max_tokens = (size_t)r->options->max_step_tokens;

    r->records = calloc(num_requests, sizeof *r->records);
    r->prompt = calloc((size_t)r->source->max_total_tokens, sizeof *r->prompt);
    r->output_tokens = calloc(max_running, sizeof *r->output_tokens);
    r->outputs = calloc(max_running, sizeof *r->outputs);
    r->result->first_token_seconds = calloc(num_requests, sizeof *r->result->first_token_seconds);
    r->result->samples = calloc(SERVE_MAX_SAMPLES, sizeof *r->result->samples);
    r->batch = (pkv_batch){.struct_size = sizeof r->batch,
                           .max_requests = (int32_t)max_running,
                           .max_tokens = (int32_t)max_tokens,
                           .rows = calloc(max_running, sizeof(int32_t)),
                           .seq_lens = calloc(max_running, sizeof(int32_t)),
                           .query_start_loc = calloc(max_running + 1, sizeof(int32_t)),
                           .slot_mapping = calloc(max_tokens, sizeof(int64_t))};
    bool is_done = r->records != NULL && r->prompt != NULL && r->output_tokens != NULL &&
                   r->outputs != NULL && r->result->first_token_seconds != NULL &&
                   r->result->samples != NULL && r->batch.rows != NULL &&
                   r->batch.seq_lens != NULL && r->batch.query_start_loc != NULL &&
                   r->batch.slot_mapping != NULL &&
                   serve_arrivals_begin(&r->arrivals, r->source->num_requests);

    return is_done || fail(r, "arrays of the replay", PKV_ERROR_OUT_OF_MEMORY);
}

static void release_replay(replay *r) {
    scheduler_destroy(r->scheduler);
    pkv_manager_destroy(r->manager);
    serve_arrivals_end(&r->arrivals);
    free(r->records);
    free(r->prompt);
    free(r->output_tokens);
    free(r->outputs);
    free(r->batch.rows);
    free(r->batch.seq_lens);
    free(r->batch.query_start_loc);
    free(r->batch.slot_mapping);
}

/* ---- arrivals -------------------------------------------------------------------------------- */

static void expect_request(replay *r, int32_t index, double seconds) {
    r->records[index].index = index;
    r->records[index].arrival_seconds = seconds;
    serve_arrivals_add(&r->arrivals, seconds, index);
}

static void expect_first_requests(replay *r) {
    for (int32_t i = 0; i < r->source->num_requests; i++) {
        serve_item item = serve_source_get_item(r->source, i);

        if (item.after < 0) {
            expect_request(r, i, item.delay_seconds);
        }
    }
}

/* A chat's next turn is the next request, where it has one. */
static void expect_successor(replay *r, int32_t index) {
    if (index + 1 < r->source->num_requests) {
        serve_item item = serve_source_get_item(r->source, index + 1);

        if (item.after == index) {
            expect_request(r, index + 1, r->now + item.delay_seconds);
        }
    }
}

/* Hand over who stands before the door, until the scheduler or the manager's token memory is
 * full. */
static bool add_arrived(replay *r) {
    serve_arrivals_advance(&r->arrivals, r->now);
    while (!r->is_door_shut && r->arrivals.first < r->arrivals.end) {
        serve_record *record = &r->records[r->arrivals.door[r->arrivals.first]];
        serve_item item = serve_source_get_item(r->source, record->index);
        scheduler_request *request;
        scheduler_request_args args = {.token_ids = r->prompt,
                                       .num_tokens = item.num_prompt_tokens,
                                       .max_output_tokens = item.num_output_tokens,
                                       .priority = record->index % 3,
                                       .arrival = r->arrivals.first,
                                       .user_data = record};

        serve_source_get_tokens(r->source, record->index, 0, item.num_prompt_tokens, r->prompt);
        pkv_status status = scheduler_add(r->scheduler, &args, &request);
        r->is_door_shut = status == PKV_ERROR_LIMIT;
        if (status < PKV_OK && !r->is_door_shut) {
            return fail(r, "scheduler_add", status);
        }
        r->arrivals.first += status == PKV_OK;
    }
    return true;
}

/* ---- one step -------------------------------------------------------------------------------- */

/* A token whose position was computed before is work done twice. */
static void count_recomputed(replay *r, serve_record *record, const scheduler_entry *entry) {
    int32_t end = entry->num_computed_tokens + entry->num_new_tokens;

    if (entry->num_computed_tokens < record->num_ever_computed) {
        int32_t last = end < record->num_ever_computed ? end : record->num_ever_computed;
        r->result->num_recomputed_tokens += last - entry->num_computed_tokens;
    }
    if (end > record->num_ever_computed) {
        record->num_ever_computed = end;
    }
}

/* The "model": the token that the source has at the place after the last. */
static void fill_outputs(replay *r, const scheduler_step *step) {
    for (int32_t i = 0; i < step->num_entries; i++) {
        const scheduler_entry *entry = &step->entries[i];
        serve_record *record = entry->request->user_data;

        count_recomputed(r, record, entry);
        r->outputs[i] = (scheduler_output){.token_ids = &r->output_tokens[i]};
        if (entry->request->is_prefilling) {
            continue;
        }
        serve_source_get_tokens(r->source, record->index, entry->request->num_tokens, 1,
                                &r->output_tokens[i]);
        r->outputs[i].num_tokens = 1;
        r->result->num_output_tokens += 1;
        if (!record->has_output) {
            record->has_output = true;
            r->result->first_token_seconds[record->index] = r->now - record->arrival_seconds;
        }
    }
}

static void count_ended(replay *r) {
    int32_t num_ended;
    scheduler_request *const *ended = scheduler_get_ended(r->scheduler, &num_ended);

    for (int32_t i = 0; i < num_ended; i++) {
        serve_record *record = ended[i]->user_data;

        if (ended[i]->state == SCHEDULER_FINISHED) {
            r->result->num_finished += 1;
        } else { /* perhaps late, having outgrown the pool: then it had output */
            r->result->num_rejected += 1;
            record->has_output = false;
        }
        expect_successor(r, record->index);
        r->is_door_shut = false;
    }
}

static bool run_step(replay *r, const scheduler_step *step) {
    const serve_options *options = r->options;

    r->now += (options->step_base_ms + options->token_us * step->num_tokens / 1e3) / 1e3;
    pkv_status status =
        pkv_batch_build(r->manager, 0, step->batch_entries, step->num_entries, &r->batch);
    if (status != PKV_OK) {
        return fail(r, "pkv_batch_build", status);
    }
    fill_outputs(r, step);
    r->result->num_steps += 1;
    r->result->num_step_tokens += step->num_tokens;
    r->result->mean_running += step->num_entries;
    status = scheduler_complete_step(r->scheduler, r->outputs);
    return status == PKV_OK || fail(r, "scheduler_complete_step", status);
}

/* ---- the timeline ---------------------------------------------------------------------------- */

/* Once the array is full every other sample goes, and only every other step is sampled from then
 * on: any length of run gives an even timeline. */
static void make_room_for_sample(replay *r) {
    serve_result *result = r->result;

    if (result->num_samples < SERVE_MAX_SAMPLES) {
        return;
    }
    for (int32_t i = 0; i < SERVE_MAX_SAMPLES / 2; i++) {
        result->samples[i] = result->samples[2 * i];
    }
    result->num_samples = SERVE_MAX_SAMPLES / 2;
    r->sample_stride *= 2;
}

static bool add_sample(replay *r, int32_t num_running, int32_t num_waiting) {
    serve_result *result = r->result;

    if (result->num_steps % r->sample_stride != 0) {
        return true;
    }
    make_room_for_sample(r);
    result->stats.struct_size = sizeof result->stats;
    pkv_status status = pkv_get_stats(r->manager, &result->stats);
    if (status != PKV_OK) {
        return fail(r, "pkv_get_stats", status);
    }
    const pkv_stats *stats = &result->stats;
    scheduler_stats counts;
    scheduler_get_stats(r->scheduler, &counts);
    int32_t num_usable = stats->num_blocks > 1 ? stats->num_blocks - 1 : 1;
    result->samples[result->num_samples] = (serve_sample){
        .seconds = r->now,
        .usage = stats->usage,
        .cached_share = (double)stats->num_cached_blocks / num_usable,
        .hit_rate = stats->num_lookup_tokens == 0
                        ? 0.0
                        : (double)stats->num_hit_tokens / (double)stats->num_lookup_tokens,
        .num_running = num_running,
        .num_waiting = num_waiting,
        .num_preemptions = (int64_t)counts.num_preemptions};
    result->num_samples += 1;
    return true;
}

/* Levels after a step, before its finished requests were freed they were higher by little. */
static bool observe(replay *r) {
    serve_result *result = r->result;
    int32_t num_running, num_waiting;
    const pkv_pool *pool = pkv_manager_get_pool(r->manager);
    int32_t num_usable = serve_replay_choose_num_blocks(r->options, r->source) - 1;
    double usage = 1.0 - (double)pkv_pool_get_num_free_blocks(pool) / num_usable;

    scheduler_get_running(r->scheduler, &num_running);
    scheduler_get_first_waiting(r->scheduler, &num_waiting);
    num_waiting += r->arrivals.end - r->arrivals.first;
    result->mean_usage += usage;
    result->peak_usage = usage > result->peak_usage ? usage : result->peak_usage;
    result->peak_waiting = num_waiting > result->peak_waiting ? num_waiting : result->peak_waiting;
    return add_sample(r, num_running, num_waiting);
}

/* ---- the loop -------------------------------------------------------------------------------- */

/* Nothing was scheduled. Either time has to pass until somebody comes, or a preemption or rejection
 * has made way and the next step will be different. Anything else would go on for ever. */
static bool skip_idle_time(replay *r, const scheduler_step *step, int32_t num_ended_before) {
    int32_t num_ended = r->result->num_finished + r->result->num_rejected;
    double next = serve_arrivals_get_next_seconds(&r->arrivals);
    int32_t num_running, num_waiting;

    scheduler_get_running(r->scheduler, &num_running);
    scheduler_get_first_waiting(r->scheduler, &num_waiting);
    if (step->num_preempted > 0 || num_ended > num_ended_before) {
        return true;
    }
    if (num_running == 0 && num_waiting == 0 && r->arrivals.first == r->arrivals.end && next >= 0) {
        r->now = next > r->now ? next : r->now;
        return true;
    }
    snprintf(r->error, SERVE_MAX_ERROR,
             "no progress at %.3f s: %" PRId32 " running, %" PRId32 " waiting, %" PRId32
             " before the door",
             r->now, num_running, num_waiting, r->arrivals.end - r->arrivals.first);
    return false;
}

static bool run_to_the_end(replay *r) {
    serve_result *result = r->result;
    bench_progress progress;

    bench_progress_begin(&progress);
    while (result->num_finished + result->num_rejected < r->source->num_requests) {
        int32_t num_ended = result->num_finished + result->num_rejected;
        const scheduler_step *step;

        if (!add_arrived(r)) {
            return false;
        }
        pkv_status status = scheduler_schedule(r->scheduler, &step);
        if (status != PKV_OK) {
            return fail(r, "scheduler_schedule", status);
        }
        bool has_run = step->num_entries > 0;
        if (has_run && !run_step(r, step)) {
            return false;
        }
        count_ended(r);
        if (has_run ? !observe(r) : !skip_idle_time(r, step, num_ended)) {
            return false;
        }
        bench_progress_update(&progress, r->source->name,
                              (double)num_ended / r->source->num_requests);
    }
    bench_progress_end(&progress);
    return true;
}

static bool close_books(replay *r) {
    serve_result *result = r->result;
    scheduler_stats counts;

    scheduler_get_stats(r->scheduler, &counts);
    result->num_preemptions = (int64_t)counts.num_preemptions;
    result->simulated_seconds = r->now;
    if (result->num_steps > 0) {
        result->mean_running /= (double)result->num_steps;
        result->mean_usage /= (double)result->num_steps;
    }
    int32_t num_kept = 0;
    for (int32_t i = 0; i < result->num_requests; i++) {
        if (r->records[i].has_output) {
            result->first_token_seconds[num_kept++] = result->first_token_seconds[i];
        }
    }
    result->stats.struct_size = sizeof result->stats;
    pkv_status status = pkv_get_stats(r->manager, &result->stats);
    if (status != PKV_OK) {
        return fail(r, "pkv_get_stats", status);
    }
    /* Whatever was handed out has come back, and every invariant holds. */
    if (result->stats.num_free_blocks != result->stats.num_blocks - 1) {
        snprintf(r->error, SERVE_MAX_ERROR,
                 "%" PRId32 " blocks are still held after the last request",
                 result->stats.num_blocks - 1 - result->stats.num_free_blocks);
        return false;
    }
    status = pkv_manager_check(r->manager);
    return status == PKV_OK || fail(r, "pkv_manager_check", status);
}

bool serve_replay(const serve_options *options,
                  const serve_source *source,
                  serve_result *out,
                  char *error) {
    replay r = {
        .options = options, .source = source, .result = out, .error = error, .sample_stride = 1};

    memset(out, 0, sizeof *out);
    out->num_requests = source->num_requests;
    bool is_done = create_objects(&r) && allocate_arrays(&r);
    if (is_done) {
        expect_first_requests(&r);
        int64_t begin_ns = bench_now_ns();
        is_done = run_to_the_end(&r);
        out->wall_seconds = (double)(bench_now_ns() - begin_ns) / 1e9;
        is_done = is_done && close_books(&r);
    }
    release_replay(&r);
    return is_done;
}

void serve_replay_release(serve_result *result) {
    free(result->first_token_seconds);
    free(result->samples);
    memset(result, 0, sizeof *result);
}
