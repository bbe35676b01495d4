/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* How long the library's calls take, whoever makes them: the linker sends each call of a measured
 * function through a wrapper that reads the clock before and after (ld's --wrap), so the scheduler
 * is measured as it is.
 *
 * The one idea: every call that is made from outside is counted, none sampled. Durations fall into
 * buckets that are exact to 64 ns and 1.6 % wide above, so a percentile costs no memory however
 * long the run is.
 *
 * State is the program's: one thread, one measurement at a time. */
#ifndef PKV_BENCH_SERVE_TIMED_H
#define PKV_BENCH_SERVE_TIMED_H

#include <stdint.h>

typedef enum serve_call {
    SERVE_OPEN = 0,         /* pkv_request_open: copies the prompt and computes its keys */
    SERVE_LOOKUP,           /* pkv_get_computed_blocks */
    SERVE_ALLOCATE_PREFILL, /* pkv_allocate_slots of more than one token */
    SERVE_ALLOCATE_DECODE,  /* pkv_allocate_slots of one token */
    SERVE_APPEND,           /* pkv_request_append */
    SERVE_FREE,             /* pkv_free: preemption */
    SERVE_CLOSE,            /* pkv_request_close: the end of a request */
    SERVE_BATCH,            /* pkv_batch_build */
    SERVE_REFUSED,          /* whichever of these, ended with another status than PKV_OK */
    SERVE_NUM_CALLS
} serve_call;

/* Of one kind of call, in nanoseconds, the timer's own share subtracted (never below 0). */
typedef struct serve_latency {
    int64_t num_calls;
    double total_ns, mean_ns;
    double p50_ns, p99_ns, max_ns; /* in steps of the clock, often 10 ns or more */
} serve_latency;

/* Forget everything and measure what two clock readings cost. */
void serve_timed_begin(void);

/* That cost: median of back-to-back readings, subtracted from every call. */
int64_t serve_timed_get_overhead_ns(void);

const char *serve_timed_get_name(serve_call call);

serve_latency serve_timed_get(serve_call call);

#endif
