/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Runs one case of the memory comparison and takes means. Who holds which slot is counted in
 * fragmentation_contiguous.c and fragmentation_paged.c.
 *
 * The one idea: means of batches of steps give the mean and, from their spread, its standard
 * error. */
#include "fragmentation.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Steps between two comparisons with the library's own statistics and self-check. */
#define CHECK_INTERVAL 4999

const char *slot_use_name(slot_use use) {
    static const char *const names[SLOTS_NUM_USES] = {"live", "reserved", "internal", "external",
                                                      "free"};

    return names[use];
}

/* ---- the queue and the running requests ------------------------------------------------------ */

bool memory_state_begin(memory_state *state, const memory_setup *setup, int32_t capacity) {
    state->setup = setup;
    state->next_serial = setup->first_item;
    state->capacity = capacity;
    state->running = calloc((size_t)capacity, sizeof(memory_request));
    return state->running != NULL;
}

memory_request memory_take_next(memory_state *state) {
    const workload_list *list = state->setup->list;
    int64_t serial = state->next_serial++;
    const workload_item *item = &list->items[serial % list->num_items];

    return (memory_request){
        .serial = serial,
        .num_input_tokens = item->num_input_tokens,
        .num_total_tokens = item->num_input_tokens + item->num_output_tokens,
    };
}

bool memory_add_running(memory_state *state, const memory_request *request) {
    if (state->num_running == state->capacity) {
        int32_t larger = state->capacity * 2;
        memory_request *running = realloc(state->running, (size_t)larger * sizeof(*running));

        if (running == NULL) {
            snprintf(state->error, MEMORY_MAX_ERROR, "no memory for running requests");
            return false;
        }
        state->running = running;
        state->capacity = larger;
    }
    state->running[state->num_running++] = *request;
    return true;
}

/* ---- one run --------------------------------------------------------------------------------- */

/* Sums while a case runs. Batches cover the steps that are not discarded, points all steps. */
typedef struct memory_sums {
    double batch_slots[MEMORY_NUM_BATCHES][SLOTS_NUM_USES];
    int32_t batch_steps[MEMORY_NUM_BATCHES];
    int64_t time_ns[MEMORY_NUM_TIMES], time_tokens[MEMORY_NUM_TIMES];
    int32_t point_steps[MEMORY_NUM_POINTS];
    double num_requests, num_entries, num_refused_steps;
} memory_sums;

/* A case of either kind. */
typedef struct memory_runner {
    contiguous_simulation *contiguous;
    paged_simulation *paged;
    memory_state *state;
    memory_sums sums;
} memory_runner;

bool memory_can_hold(const memory_setup *setup, int32_t block_size, char *error) {
    int64_t num_blocks = setup->num_slots / block_size;
    int64_t num_admissible = num_blocks - 1 - num_blocks * MEMORY_WATERMARK_PERCENT / 100;

    if (num_admissible * block_size >= setup->list->max_total_tokens) {
        return true;
    }
    snprintf(error, MEMORY_MAX_ERROR,
             "%lld slots in blocks of %d cannot hold the longest request (%d tokens)",
             (long long)setup->num_slots, block_size, setup->list->max_total_tokens);
    return false;
}

static bool begin_case(memory_runner *runner,
                       const memory_setup *setup,
                       const memory_case *of,
                       char *error) {
    if (of->layout == LAYOUT_PAGED) {
        if (!memory_can_hold(setup, of->block_size, error)) {
            return false;
        }
        runner->paged = paged_begin(setup, of);
        runner->state = runner->paged != NULL ? paged_get_state(runner->paged) : NULL;
    } else {
        runner->contiguous = contiguous_begin(setup, of->layout);
        runner->state =
            runner->contiguous != NULL ? contiguous_get_state(runner->contiguous) : NULL;
    }
    if (runner->state == NULL) {
        snprintf(error, MEMORY_MAX_ERROR, "no memory for case %s", of->name);
        return false;
    }
    return true;
}

/* Every slot has one use: the sum is all slots, and no use is negative. */
static bool check_counts(const slot_counts *counts, int64_t num_slots, char *error) {
    int64_t sum = 0;

    for (int32_t use = 0; use < SLOTS_NUM_USES; use++) {
        if (counts->slots[use] < 0) {
            snprintf(error, MEMORY_MAX_ERROR, "%lld slots are %s", (long long)counts->slots[use],
                     slot_use_name((slot_use)use));
            return false;
        }
        sum += counts->slots[use];
    }
    if (sum != num_slots) {
        snprintf(error, MEMORY_MAX_ERROR, "the uses of %lld slots sum up to %lld",
                 (long long)num_slots, (long long)sum);
        return false;
    }
    return true;
}

static bool step_case(memory_runner *runner, int32_t step, slot_counts *counts, char *error) {
    const memory_setup *setup = runner->state->setup;
    bool is_good = runner->paged != NULL ? paged_step(runner->paged, counts)
                                         : contiguous_step(runner->contiguous, counts);

    if (is_good && runner->paged != NULL &&
        (step % CHECK_INTERVAL == CHECK_INTERVAL - 1 || step == setup->num_steps - 1)) {
        is_good = paged_check(runner->paged, counts);
    }
    if (!is_good) {
        snprintf(error, MEMORY_MAX_ERROR, "%s", runner->state->error);
        return false;
    }
    if (runner->state->num_running == 0) {
        snprintf(error, MEMORY_MAX_ERROR, "the head of the queue was refused by empty memory");
        return false;
    }
    return check_counts(counts, setup->num_slots, error);
}

static int32_t spread(int32_t index, int32_t num_indices, int32_t num_parts) {
    return (int32_t)((int64_t)index * num_parts / num_indices);
}

static void add_step(memory_runner *runner,
                     int32_t step,
                     const slot_counts *counts,
                     int64_t ns,
                     int64_t num_tokens,
                     memory_result *out) {
    const memory_state *state = runner->state;
    const memory_setup *setup = state->setup;
    memory_sums *sums = &runner->sums;
    int32_t point = spread(step, setup->num_steps, out->num_points);
    int32_t measured_step = step - setup->num_discarded;

    sums->point_steps[point]++;
    for (int32_t use = 0; use < SLOTS_NUM_USES; use++) {
        out->timeline[point][use] += (double)counts->slots[use];
    }
    if (measured_step < 0) {
        return;
    }

    int32_t num_measured = setup->num_steps - setup->num_discarded;
    int32_t batch = spread(measured_step, num_measured, MEMORY_NUM_BATCHES);
    int32_t time = spread(measured_step, num_measured, MEMORY_NUM_TIMES);

    sums->batch_steps[batch]++;
    sums->time_ns[time] += ns;
    sums->time_tokens[time] += num_tokens;
    for (int32_t use = 0; use < SLOTS_NUM_USES; use++) {
        sums->batch_slots[batch][use] += (double)counts->slots[use];
    }
    sums->num_requests += state->num_running;
    sums->num_entries += (double)state->num_table_entries;
    sums->num_refused_steps += state->is_head_refused && state->was_enough_free;
}

static double take_median_time(const memory_sums *sums) {
    double ns_per_token[MEMORY_NUM_TIMES];
    int32_t num_times = 0;

    for (int32_t i = 0; i < MEMORY_NUM_TIMES; i++) {
        if (sums->time_tokens[i] > 0) {
            ns_per_token[num_times++] = (double)sums->time_ns[i] / (double)sums->time_tokens[i];
        }
    }
    return num_times > 0 ? bench_median(ns_per_token, num_times) : 0.0;
}

static void take_means(const memory_sums *sums, const memory_setup *setup, memory_result *out) {
    double num_steps = setup->num_steps - setup->num_discarded;
    int32_t num_batches = 0;

    for (int32_t use = 0; use < SLOTS_NUM_USES; use++) {
        double sum = 0.0;
        double sum_squares = 0.0;

        num_batches = 0;
        for (int32_t batch = 0; batch < MEMORY_NUM_BATCHES; batch++) {
            double mean = 100.0 * sums->batch_slots[batch][use] / (double)setup->num_slots;

            if (sums->batch_steps[batch] == 0) {
                continue;
            }
            out->percent[use] += mean / num_steps;
            mean /= sums->batch_steps[batch];
            sum += mean;
            sum_squares += mean * mean;
            num_batches++;
        }
        if (num_batches > 1) {
            double variance = (sum_squares - sum * sum / num_batches) / (num_batches - 1);

            out->error_percent[use] = sqrt(fmax(variance, 0.0) / num_batches);
        }
        for (int32_t point = 0; point < out->num_points; point++) {
            out->timeline[point][use] *=
                100.0 / ((double)setup->num_slots * sums->point_steps[point]);
        }
    }
    out->ns_per_token = take_median_time(sums);
    out->mean_batch = sums->num_requests / num_steps;
    out->entries_per_request = sums->num_entries / sums->num_requests;
    out->refused_percent = 100.0 * sums->num_refused_steps / num_steps;
}

static bool check_percents(const memory_result *result, char *error) {
    double sum = 0.0;

    for (int32_t use = 0; use < SLOTS_NUM_USES; use++) {
        sum += result->percent[use];
    }
    if (!(fabs(sum - 100.0) <= 0.1)) {
        snprintf(error, MEMORY_MAX_ERROR, "shares sum up to %f%%", sum);
        return false;
    }
    return true;
}

static bool run_steps(memory_runner *runner,
                      const memory_case *of,
                      bench_progress *progress,
                      memory_result *out,
                      char *error) {
    memory_state *state = runner->state;
    const memory_setup *setup = state->setup;

    for (int32_t step = 0; step < setup->num_steps; step++) {
        int64_t ns_before = state->manager_ns;
        int64_t tokens_before = state->num_written_tokens;
        slot_counts counts;
        char what[MEMORY_MAX_ERROR];

        if (!step_case(runner, step, &counts, what)) {
            snprintf(error, MEMORY_MAX_ERROR, "case %s, step %d: %.400s", of->name, step, what);
            return false;
        }
        add_step(runner, step, &counts, state->manager_ns - ns_before,
                 state->num_written_tokens - tokens_before, out);
        if (step % 256 == 0 && progress != NULL) {
            bench_progress_update(progress, of->name, (double)step / setup->num_steps);
        }
    }
    return true;
}

bool memory_run(const memory_setup *setup,
                const memory_case *of,
                bench_progress *progress,
                memory_result *out,
                char *error) {
    memory_runner *runner = calloc(1, sizeof(*runner));

    memset(out, 0, sizeof(*out));
    out->of = *of;
    out->num_slots = setup->num_slots;
    out->num_points = setup->num_steps < MEMORY_NUM_POINTS ? setup->num_steps : MEMORY_NUM_POINTS;
    if (runner == NULL) {
        snprintf(error, MEMORY_MAX_ERROR, "no memory");
        return false;
    }

    bool is_good =
        begin_case(runner, setup, of, error) && run_steps(runner, of, progress, out, error);

    if (is_good) {
        const memory_state *state = runner->state;

        out->num_blocks = runner->paged != NULL ? paged_get_num_blocks(runner->paged) : 0;
        out->num_preemptions = state->num_preemptions;
        out->num_recomputed_tokens = state->num_recomputed_tokens;
        out->num_finished = state->num_finished;
        out->num_written_tokens = state->num_written_tokens;
        out->num_row_waits = state->num_row_waits;
        take_means(&runner->sums, setup, out);
        is_good = check_percents(out, error);
    }
    contiguous_end(runner->contiguous);
    paged_end(runner->paged);
    free(runner);
    return is_good;
}
