/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* What the parts of bench_serve tell each other: what was asked for, and what came out. The parts:
 * serve_source (requests), serve_replay (the simulation), serve_timed (call latencies), serve_curve
 * (hit curves), serve_output (JSON lines, tables, files, plots). Nothing here does anything.
 *
 * The one idea: time is simulated, the library's calls are real. A step lasts as long as a stated
 * formula says, so a run gives the same numbers anywhere but for the call latencies. */
#ifndef PKV_BENCH_SERVE_H
#define PKV_BENCH_SERVE_H

#include <pagedkv.h>

#include <stdbool.h>
#include <stdint.h>

/* Points of the timeline: at most this many, at least half as many once a run is that long. */
#define SERVE_MAX_SAMPLES 2048

#define SERVE_MAX_ERROR 512

typedef struct serve_options {
    const char *trace; /* NULL: built-in chats */
    const char *out;   /* folder of the CSV files and plots; NULL: none */
    int32_t num_requests, num_blocks, block_size, max_running_requests, max_step_tokens;
    double rate;                   /* requests (chats) a second; 0: as the trace says */
    double watermark;              /* share of num_blocks */
    double step_base_ms, token_us; /* a step lasts base + tokens * token */
    uint64_t seed;
    bool use_priorities, disable_prefix_cache;
} serve_options;

/* One moment of the simulation, after a step. */
typedef struct serve_sample {
    double seconds;
    double usage;        /* share of the usable blocks that requests hold */
    double cached_share; /* share of the usable blocks that carry a key */
    double hit_rate;     /* so far, first-time lookups */
    int32_t num_running;
    int32_t num_waiting;     /* arrived and not running */
    int64_t num_preemptions; /* so far */
} serve_sample;

/* What a replay gives. Times of requests are simulated seconds. */
typedef struct serve_result {
    int32_t num_requests, num_finished, num_rejected;
    int64_t num_steps, num_step_tokens, num_output_tokens, num_recomputed_tokens;
    int64_t num_preemptions;
    double simulated_seconds, wall_seconds;
    double mean_running; /* over the steps */
    double peak_usage, mean_usage;
    int32_t peak_waiting;
    double *first_token_seconds; /* [num_finished] from arrival to the first output token */
    pkv_stats stats;             /* of the manager, at the end */
    serve_sample *samples;       /* [num_samples] */
    int32_t num_samples;
} serve_result;

#endif
