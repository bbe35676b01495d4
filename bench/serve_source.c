/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The two kinds of sources of serve_source.h.
 *
 * The one idea: nothing but lengths, times and the relation between turns is stored; tokens are
 * computed when they are asked for. */
#include "serve_source.h"

#include "random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Where --rate says nothing: new chats, and arrivals of a trace that has no times, a second. */
#define DEFAULT_CHAT_RATE 3.0
#define DEFAULT_RATE 4.0

_Static_assert(SERVE_MAX_ERROR >= WORKLOAD_MAX_ERROR, "a reader's message fits");

static bool open_chats(const serve_options *options, serve_source *source, char *error) {
    chat_config config = {.seed = options->seed,
                          .num_turns = options->num_requests,
                          .chats_per_second =
                              options->rate > 0 ? options->rate : DEFAULT_CHAT_RATE};
    const char *reason = NULL;

    if (!chat_make(&config, &source->chats, &reason)) {
        snprintf(error, SERVE_MAX_ERROR, "chats: %s", reason);
        return false;
    }
    source->name = "chats";
    source->is_chats = true;
    source->num_requests = source->chats.num_turns;
    source->max_total_tokens = source->chats.max_total_tokens;
    return true;
}

static bool open_trace(const serve_options *options, serve_source *source, char *error) {
    if (!workload_read_trace(options->trace, &source->trace, error)) {
        return false;
    }
    source->name = source->trace.name;
    source->num_requests = source->trace.num_items;
    if (options->num_requests > 0 && options->num_requests < source->num_requests) {
        source->num_requests = options->num_requests;
    }
    source->arrival_seconds = calloc((size_t)source->num_requests, sizeof(double));
    if (source->arrival_seconds == NULL) {
        snprintf(error, SERVE_MAX_ERROR, "no memory for the arrivals");
        return false;
    }

    bool is_poisson = options->rate > 0 || !source->trace.has_arrivals;
    double mean_gap = 1.0 / (options->rate > 0 ? options->rate : DEFAULT_RATE);
    double now = 0.0;
    uint64_t state = random_mix(options->seed);
    for (int32_t i = 0; i < source->num_requests; i++) {
        const workload_item *item = &source->trace.items[i];
        int32_t num_tokens = item->num_input_tokens + item->num_output_tokens;

        now = is_poisson ? now + random_exponential(&state, mean_gap) : item->arrival_seconds;
        source->arrival_seconds[i] = now;
        if (num_tokens > source->max_total_tokens) {
            source->max_total_tokens = num_tokens;
        }
    }
    return true;
}

bool serve_source_open(const serve_options *options, serve_source *out, char *error) {
    memset(out, 0, sizeof *out);
    bool is_open =
        options->trace == NULL ? open_chats(options, out, error) : open_trace(options, out, error);
    if (!is_open) {
        serve_source_close(out);
    }
    return is_open;
}

void serve_source_close(serve_source *source) {
    chat_release(&source->chats);
    workload_release(&source->trace);
    free(source->arrival_seconds);
    memset(source, 0, sizeof *source);
}

serve_item serve_source_get_item(const serve_source *source, int32_t index) {
    if (source->is_chats) {
        const chat_turn *turn = &source->chats.turns[index];

        return (serve_item){.num_prompt_tokens = turn->num_prompt_tokens,
                            .num_output_tokens = turn->num_answer_tokens,
                            .after = turn->after,
                            .delay_seconds = turn->delay_seconds};
    }
    const workload_item *item = &source->trace.items[index];

    return (serve_item){.num_prompt_tokens = item->num_input_tokens,
                        .num_output_tokens = item->num_output_tokens,
                        .after = -1,
                        .delay_seconds = source->arrival_seconds[index]};
}

void serve_source_get_tokens(const serve_source *source,
                             int32_t index,
                             int32_t first,
                             int32_t num_tokens,
                             int32_t *token_ids) {
    if (source->is_chats) {
        chat_get_tokens(&source->chats, index, first, num_tokens, token_ids);
    } else {
        workload_get_tokens(&source->trace, index, first, num_tokens, token_ids);
    }
}
