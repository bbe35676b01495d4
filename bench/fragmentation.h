/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Who uses the slots of a KV cache, step by step, under contiguous allocation and under paging by
 * the library. Requests come from one saturated queue, first come first served; each running one
 * grows by one token a step. How results are shown is not decided here.
 *
 * The one idea: after each step every slot has exactly one use, read from the allocator's own state
 * (sizes of its blocks, number of its free slots), so the uses must sum up to all slots; a step
 * where they do not ends the run. */
#ifndef PKV_BENCH_FRAGMENTATION_H
#define PKV_BENCH_FRAGMENTATION_H

#include "report.h"
#include "workload.h"

#include <pagedkv/manager.h>

#include <stdbool.h>
#include <stdint.h>

/* Geometry of the published comparison: 15,700 slots beside a 13B model's weights, 2,048 tokens at
 * most in a request. */
#define MEMORY_DEFAULT_SLOTS 15700
#define MEMORY_DEFAULT_LENGTH 2048
#define MEMORY_DEFAULT_STEPS 80000
#define MEMORY_DEFAULT_DISCARDED 2000
#define MEMORY_DEFAULT_BLOCK_SIZE 16
/* Blocks kept free when a request is admitted, as vLLM does: 1 percent of the usable ones. */
#define MEMORY_WATERMARK_PERCENT 1

#define MEMORY_MAX_ERROR 512
#define MEMORY_NUM_BATCHES 20
/* Time is taken over many short runs of steps, so that few of them hold what others did on the
 * machine, and their median none. */
#define MEMORY_NUM_TIMES 1000
#define MEMORY_NUM_POINTS 400

/* What a slot is used for:
 *   live      holds a written token;
 *   reserved  is not written, and the request that holds it will write it;
 *   internal  is held by a request that will never write it;
 *   external  is held by nobody, and neither the waiting head of the queue nor a running request
 *             can take it; or the allocator added it by rounding; or it can never be used (what
 *             remains of the slots after whole blocks, the null block);
 *   free      is held by nobody and can be taken. */
typedef enum slot_use {
    SLOTS_LIVE = 0,
    SLOTS_RESERVED = 1,
    SLOTS_INTERNAL = 2,
    SLOTS_EXTERNAL = 3,
    SLOTS_FREE = 4,
    SLOTS_NUM_USES = 5
} slot_use;

/* "live", "reserved", ... */
const char *slot_use_name(slot_use use);

typedef struct slot_counts {
    int64_t slots[SLOTS_NUM_USES];
} slot_counts;

/* Max reserves max_length, Pow2 the prompt and the next power of two of the output, Oracle exactly
 * what will be written; these three by the buddy allocator. First fit does without its rounding. */
typedef enum memory_layout {
    LAYOUT_MAX = 0,
    LAYOUT_POW2 = 1,
    LAYOUT_ORACLE = 2,
    LAYOUT_ORACLE_FIRST_FIT = 3,
    LAYOUT_PAGED = 4
} memory_layout;

typedef struct memory_case {
    char name[32]; /* as in JSON: "max", "paged", "paged-b8" */
    memory_layout layout;
    int32_t block_size;    /* paged only */
    bool use_prefix_cache; /* paged only */
} memory_case;

typedef struct memory_setup {
    const workload_list *list;
    int32_t first_item; /* the queue starts here and goes round */
    int64_t num_slots;
    int32_t max_length;
    int32_t num_steps, num_discarded; /* discarded: the first ones, while memory fills */
} memory_setup;

/* A request that holds slots, or (paged) waits to hold them again. */
typedef struct memory_request {
    int64_t serial; /* its number in the queue, from setup->first_item on */
    int32_t num_input_tokens, num_total_tokens; /* total: prompt + output */
    int32_t num_live_tokens;                    /* written */
    int32_t num_known_tokens;                   /* paged: appended; live or live + 1 */
    int64_t offset, num_wanted_slots; /* contiguous: place, and what the policy asked for */
    pkv_request request;              /* paged */
} memory_request;

/* What both kinds of simulation have. */
typedef struct memory_state {
    const memory_setup *setup;
    int64_t next_serial;
    memory_request *running; /* [num_running], by admission */
    int32_t num_running, capacity;
    bool is_head_refused; /* the queue's head did not get in this step ... */
    bool was_enough_free; /* ... although as many slots as it needs were free */
    int64_t num_preemptions, num_recomputed_tokens, num_finished, num_written_tokens;
    int64_t num_row_waits;     /* paged: admissions that waited for a block-table row */
    int64_t num_table_entries; /* paged: of the running requests, now */
    int64_t manager_ns;        /* paged: time in the manager's calls so far */
    char error[MEMORY_MAX_ERROR];
} memory_state;

/* A simulation of one case; begin, then any number of steps, then end. Each returns false with
 * state->error set. A step lets running requests grow, admits from the queue, and counts; the next
 * step begins by letting those leave that are complete. */
typedef struct contiguous_simulation contiguous_simulation;
typedef struct paged_simulation paged_simulation;

contiguous_simulation *contiguous_begin(const memory_setup *setup, memory_layout layout);
bool contiguous_step(contiguous_simulation *simulation, slot_counts *counts);
memory_state *contiguous_get_state(contiguous_simulation *simulation);
/* Size of the range that a running request holds. */
int64_t contiguous_get_held(const contiguous_simulation *simulation, const memory_request *request);
void contiguous_end(contiguous_simulation *simulation);

paged_simulation *paged_begin(const memory_setup *setup, const memory_case *of);
bool paged_step(paged_simulation *simulation, slot_counts *counts);
memory_state *paged_get_state(paged_simulation *simulation);
const pkv_manager *paged_get_manager(const paged_simulation *simulation);
int32_t paged_get_num_blocks(const paged_simulation *simulation); /* null block included */
/* Compare with the library's own statistics and run its self-check. */
bool paged_check(paged_simulation *simulation, const slot_counts *counts);
void paged_end(paged_simulation *simulation);

/* What all of them do with requests and the queue. */
bool memory_state_begin(memory_state *state, const memory_setup *setup, int32_t capacity);
memory_request memory_take_next(memory_state *state);
bool memory_add_running(memory_state *state, const memory_request *request);

/* Means over the steps that are not discarded. */
typedef struct memory_result {
    memory_case of;
    int64_t num_slots;
    int32_t num_blocks; /* paged: null block included */
    double percent[SLOTS_NUM_USES];
    double error_percent[SLOTS_NUM_USES]; /* standard error, from the means of batches of steps */
    double mean_batch;
    double refused_percent; /* of steps: head refused although enough slots were free */
    double entries_per_request;
    double ns_per_token; /* manager calls per token written; median of MEMORY_NUM_TIMES */
    int64_t num_preemptions, num_recomputed_tokens, num_finished, num_written_tokens;
    int64_t num_row_waits;
    int32_t num_points;
    double timeline[MEMORY_NUM_POINTS][SLOTS_NUM_USES]; /* percent, means of equal runs of steps */
} memory_result;

/* Say whether a request of the longest length can be admitted by a pool of such blocks; else false
 * with a message. */
bool memory_can_hold(const memory_setup *setup, int32_t block_size, char *error);

/* Run one case. Returns false with a message: the accounting broke, the library refused what it
 * must not refuse, or the geometry cannot hold the longest request. */
bool memory_run(const memory_setup *setup,
                const memory_case *of,
                bench_progress *progress,
                memory_result *out,
                char *error);

#endif
