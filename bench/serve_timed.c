/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The wrappers and histograms of serve_timed.h. bench/CMakeLists.txt names the same functions to
 * the linker, which turns pkv_x into __wrap_pkv_x and __real_pkv_x into pkv_x.
 *
 * The one idea: a bucket is found from the position of the highest bit and the six bits below
 * it. */
#include "serve_timed.h"

#include "report.h"

#include <pagedkv.h>

#include <string.h>

/* 64 exact buckets, then 64 for each power of two up to 2^40 ns (18 minutes). */
#define NUM_EXACT 64
#define NUM_OCTAVES 34
#define NUM_BUCKETS (NUM_EXACT + 64 * NUM_OCTAVES)

#define NUM_CLOCK_PAIRS 4001

typedef struct histogram {
    int64_t counts[NUM_BUCKETS];
    int64_t num_calls, max_ns;
    double total_ns;
} histogram;

static histogram histograms[SERVE_NUM_CALLS];
static int64_t overhead_ns;

/* Calls that the library makes of itself go through the wrappers too; only the outermost counts. */
static int32_t depth;

static int32_t find_bucket(int64_t ns) {
    int32_t octave = 0;

    if (ns < NUM_EXACT) {
        return (int32_t)ns;
    }
    while ((ns >> octave) >= 2 * NUM_EXACT) {
        octave += 1;
    }
    if (octave >= NUM_OCTAVES) {
        return NUM_BUCKETS - 1;
    }
    return NUM_EXACT + 64 * octave + (int32_t)((ns >> octave) - NUM_EXACT);
}

/* Middle of a bucket. */
static double get_bucket_ns(int32_t bucket) {
    if (bucket < NUM_EXACT) {
        return bucket;
    }
    int32_t octave = (bucket - NUM_EXACT) / 64;
    int64_t first = (int64_t)(NUM_EXACT + (bucket - NUM_EXACT) % 64) << octave;

    return (double)first + (double)((INT64_C(1) << octave) - 1) / 2.0;
}

static void add_call(serve_call call, int64_t begin_ns, int64_t end_ns) {
    histogram *h = &histograms[call];
    int64_t ns = end_ns - begin_ns - overhead_ns;

    ns = ns < 0 ? 0 : ns;
    h->counts[find_bucket(ns)] += 1;
    h->num_calls += 1;
    h->total_ns += (double)ns;
    h->max_ns = ns > h->max_ns ? ns : h->max_ns;
}

void serve_timed_begin(void) {
    double pairs_ns[NUM_CLOCK_PAIRS];

    memset(histograms, 0, sizeof histograms);
    depth = 0;
    for (int32_t i = 0; i < NUM_CLOCK_PAIRS; i++) {
        int64_t begin_ns = bench_now_ns();

        pairs_ns[i] = (double)(bench_now_ns() - begin_ns);
    }
    overhead_ns = (int64_t)bench_median(pairs_ns, NUM_CLOCK_PAIRS);
}

int64_t serve_timed_get_overhead_ns(void) {
    return overhead_ns;
}

const char *serve_timed_get_name(serve_call call) {
    static const char *const names[SERVE_NUM_CALLS] = {
        [SERVE_OPEN] = "pkv_request_open",
        [SERVE_LOOKUP] = "pkv_get_computed_blocks",
        [SERVE_ALLOCATE_PREFILL] = "pkv_allocate_slots (prefill)",
        [SERVE_ALLOCATE_DECODE] = "pkv_allocate_slots (decode)",
        [SERVE_APPEND] = "pkv_request_append",
        [SERVE_FREE] = "pkv_free",
        [SERVE_CLOSE] = "pkv_request_close",
        [SERVE_BATCH] = "pkv_batch_build",
        [SERVE_REFUSED] = "any, refused for lack of room",
    };

    return names[call];
}

static double find_percentile(const histogram *h, double share) {
    int64_t wanted = (int64_t)(share * (double)h->num_calls), seen = 0;

    for (int32_t bucket = 0; bucket < NUM_BUCKETS; bucket++) {
        seen += h->counts[bucket];
        if (seen > wanted) {
            double ns = get_bucket_ns(bucket);
            return ns < (double)h->max_ns ? ns : (double)h->max_ns;
        }
    }
    return (double)h->max_ns;
}

serve_latency serve_timed_get(serve_call call) {
    const histogram *h = &histograms[call];

    return (serve_latency){.num_calls = h->num_calls,
                           .total_ns = h->total_ns,
                           .mean_ns = h->num_calls == 0 ? 0.0 : h->total_ns / (double)h->num_calls,
                           .p50_ns = find_percentile(h, 0.50),
                           .p99_ns = find_percentile(h, 0.99),
                           .max_ns = (double)h->max_ns};
}

/* ---- wrappers -------------------------------------------------------------------------------- */

/* WRAPPED(call, function, parameters, arguments) */
#define WRAPPED(call, function, parameters, arguments)                                             \
    pkv_status __real_##function parameters;                                                       \
    pkv_status __wrap_##function parameters;                                                       \
    pkv_status __wrap_##function parameters {                                                      \
        if (depth > 0) {                                                                           \
            return __real_##function arguments;                                                    \
        }                                                                                          \
        depth += 1;                                                                                \
        int64_t begin_ns = bench_now_ns();                                                         \
        pkv_status status = __real_##function arguments;                                           \
        int64_t end_ns = bench_now_ns();                                                           \
        add_call(status == PKV_OK ? (call) : SERVE_REFUSED, begin_ns, end_ns);                     \
        depth -= 1;                                                                                \
        return status;                                                                             \
    }

WRAPPED(SERVE_OPEN,
        pkv_request_open,
        (pkv_manager * manager, const pkv_request_args *args, pkv_request *out),
        (manager, args, out))
WRAPPED(SERVE_LOOKUP,
        pkv_get_computed_blocks,
        (const pkv_manager *manager, pkv_request request, int32_t *num_computed_tokens),
        (manager, request, num_computed_tokens))
WRAPPED(args->num_new_tokens > 1 ? SERVE_ALLOCATE_PREFILL : SERVE_ALLOCATE_DECODE,
        pkv_allocate_slots,
        (pkv_manager * manager, pkv_request request, const pkv_slots_args *args, pkv_slots *out),
        (manager, request, args, out))
WRAPPED(SERVE_APPEND,
        pkv_request_append,
        (pkv_manager * manager, pkv_request request, const int32_t *token_ids, int32_t num_tokens),
        (manager, request, token_ids, num_tokens))
WRAPPED(SERVE_FREE, pkv_free, (pkv_manager * manager, pkv_request request), (manager, request))
WRAPPED(SERVE_CLOSE,
        pkv_request_close,
        (pkv_manager * manager, pkv_request request),
        (manager, request))
WRAPPED(SERVE_BATCH,
        pkv_batch_build,
        (const pkv_manager *manager,
         int32_t group,
         const pkv_batch_entry *entries,
         int32_t num_entries,
         pkv_batch *batch),
        (manager, group, entries, num_entries, batch))
