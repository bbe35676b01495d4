/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The requests that bench_serve replays, whatever they come from: a trace file or the built-in
 * chats.
 *
 * The one idea: a request arrives at a stated time, or a stated time after another one has ended.
 * Traces are open loop (all times are known), chats are closed loop (nobody goes on before the
 * answer is there). */
#ifndef PKV_BENCH_SERVE_SOURCE_H
#define PKV_BENCH_SERVE_SOURCE_H

#include "serve.h"
#include "workload.h"
#include "workload_chat.h"

typedef struct serve_item {
    int32_t num_prompt_tokens, num_output_tokens;
    int32_t after;        /* index of the request that must end first; -1: none */
    double delay_seconds; /* after that end; without `after`: since the start */
} serve_item;

typedef struct serve_source {
    const char *name; /* "chats", or the name of the trace's file */
    int32_t num_requests;
    int32_t max_total_tokens;
    bool is_chats;
    chat_workload chats;
    workload_list trace;
    double *arrival_seconds; /* of a trace [num_requests] */
} serve_source;

/* Read the trace or make the chats. A trace without times, or with --rate, gets Poisson
 * arrivals. */
bool serve_source_open(const serve_options *options, serve_source *out, char *error);

void serve_source_close(serve_source *source);

serve_item serve_source_get_item(const serve_source *source, int32_t index);

/* Write tokens [first, first + num_tokens) of a request's prompt and output. */
void serve_source_get_tokens(const serve_source *source,
                             int32_t index,
                             int32_t first,
                             int32_t num_tokens,
                             int32_t *token_ids);

#endif
