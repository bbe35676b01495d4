/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* An engine in miniature on top of a manager: requests whose whole future is known to the test,
 * steps that are built, launched, and then complete or fail, and an array that stands for the cache
 * on the device.
 *
 * The one idea: the value of a slot is a function of everything that attention would have put into
 * it: group, salt, adapter, media and all tokens up to that position. Each step writes through the
 * slot_mapping it was launched with and then reads all that it can see through the device's tables;
 * one wrong value, and some request has read what is not its own (I27). */
#ifndef PKV_TESTS_SUPPORT_SIM_ENGINE_H
#define PKV_TESTS_SUPPORT_SIM_ENGINE_H

#include "support/sim_manager.h"

#define ENGINE_MAX_TOKENS 200 /* of a request, lookahead and drafts included */
#define ENGINE_MAX_ENTRIES 12
#define ENGINE_MAX_STEPS 4 /* in flight, and the one being built */
#define ENGINE_POISON UINT64_C(0xdead)
#define ENGINE_GARBAGE UINT64_C(0xbad)

/* What the engine knows of a request, by the model's slot. */
typedef struct engine_request {
    int32_t num_computed_tokens;  /* scheduled ones included */
    int32_t num_in_flight_tokens; /* of these: launched or being scheduled, not complete */
    int32_t num_expected_tokens;  /* known ones and those that steps in flight will sample */
    int32_t epoch;                /* rises when it starts anew: older output is void */
    uint64_t newest_step;         /* it took part in, even if it was withdrawn */
    bool is_loading;
    uint64_t load_step; /* the step whose fills come before the load */
    int32_t load_first, load_end;
    int32_t tokens[ENGINE_MAX_TOKENS]; /* all of them, known to the request or not */
    uint64_t values[ENGINE_MAX_TOKENS];
} engine_request;

/* The part of one request in one step. */
typedef struct engine_entry {
    int32_t slot, epoch;
    pkv_request handle;
    int32_t num_computed_tokens, num_new_tokens;
    int32_t first_wrong; /* position of the first draft that will be rejected; behind all if none */
    int32_t num_sampled; /* tokens that become known when the step completes */
    int32_t num_rejected;         /* drafts that turn out wrong */
    int32_t load_first, load_end; /* tokens loaded from elsewhere at the start of the step */
    bool publishes_late;
    uint64_t values[ENGINE_MAX_TOKENS];
    int64_t slots[MODEL_MAX_GROUPS][ENGINE_MAX_TOKENS];       /* of the new tokens */
    pkv_block_id tables[MODEL_MAX_GROUPS][ENGINE_MAX_TOKENS]; /* as the device saw them */
} engine_entry;

typedef struct engine_step {
    uint64_t number;
    bool has_run; /* on the device; the host has yet to hear of it */
    int32_t num_entries;
    engine_entry entries[ENGINE_MAX_ENTRIES];
    int32_t num_fills;
    pkv_block_id fills[MODEL_MAX_BLOCKS];
    int32_t num_copies;
    pkv_block_copy copies[MODEL_MAX_BLOCKS];
} engine_step;

/* A swap of the tier's model, as the engine sees it; by the model's place. */
typedef struct engine_swap {
    bool has_run, has_failed;
    bool is_bound;       /* its copies run with the step that reads them */
    uint64_t ready_step; /* inward: the step whose fills come before the copies */
} engine_swap;

typedef struct engine {
    sim sim;
    bool is_tracked;    /* steps have numbers and may fail */
    int32_t max_flight; /* 1: synchronous */
    engine_request requests[MODEL_MAX_REQUESTS];
    engine_step steps[ENGINE_MAX_STEPS]; /* oldest first; the last one is being built */
    int32_t num_steps;                   /* the one being built included */
    uint64_t num_executed;               /* number of the last step that ran */
    uint64_t cache[MODEL_MAX_BLOCKS][MODEL_MAX_BLOCK_SIZE];
    engine_swap swaps[MODEL_MAX_SWAPS];
    uint64_t host[MODEL_MAX_BLOCKS][MODEL_MAX_BLOCK_SIZE]; /* the slots of the tier */
} engine;

static inline engine_step *engine_current(engine *self) {
    return &self->steps[self->num_steps - 1];
}

/* ---- sim_engine.c ---------------------------------------------------------------------------- */

/* Whether a request may enter the step that is being built: one that holds nothing. */
bool engine_can_admit(const engine *self, int32_t slot);

/* How much of what is left a request computes now; drafts behind its last token if it decodes. */
void engine_draw_work(engine *self, int32_t slot, engine_entry *entry);
void engine_add_entry(engine *self, int32_t slot, engine_entry *entry);

/* Take a request out of the step being built. False where that cannot be. */
bool engine_withdraw(engine *self, int32_t slot);

/* Give its blocks back: at once, or when the last step that uses them is over. */
void engine_give_back(engine *self, int32_t slot);

/* ---- sim_engine_cache.c ---------------------------------------------------------------------- */

/* Compute the values of all positions of a request from its tokens and its args. */
void engine_compute_values(engine *self, int32_t slot);

/* Fill, copy, load, write, then read and verify, as the device does for one step. */
void engine_execute(engine *self, const engine_step *step);

/* What a step may have done before it failed: its fills, and anything at all in its slots. */
void engine_execute_failing(engine *self, const engine_step *step);

/* Write what is loaded for a request that computes nothing yet. */
void engine_execute_load(engine *self, int32_t slot);

/* ---- sim_engine_sharing.c -------------------------------------------------------------------- */

/* Fork a request, or take tokens back, where an engine may. */
void engine_fork(engine *self, int32_t slot);
void engine_truncate(engine *self, int32_t slot);

/* ---- sim_engine_swap.c ----------------------------------------------------------------------- */

/* Do something with the tier: keep blocks, load them, end a swap, forget. */
void engine_act_on_tier(engine *self, int32_t slot);

/* Whether a request that is being loaded may be computed behind that. */
bool engine_can_compute(const engine *self, int32_t slot);

/* Run the loads that a step brings with it, after its fills. A step that fails may bring garbage;
 * then those of later steps wait for fills that come with another step. */
void engine_run_loads(engine *self, const engine_step *step, bool succeeds);
void engine_unbind_loads(engine *self);

/* ---- sim_engine_steps.c ---------------------------------------------------------------------- */

/* Index of the entry of a request in a step, by the model's slot and its handle; -1 when it has
 * none. */
int32_t engine_find_entry(const engine *self, const engine_step *step, int32_t slot);
void engine_remove_entry(engine_step *step, int32_t index);

/* Launch the step that is being built, and begin the next. */
void engine_launch(engine *self);

/* The oldest step in flight has run. */
void engine_complete(engine *self);

/* A step in flight failed, and with it all later ones. */
void engine_fail(engine *self);

/* Make a request start anew after its blocks were given back. */
void engine_restart(engine *self, int32_t slot);

/* The number that a call of the step being built passes. */
uint64_t engine_step_argument(const engine *self);

#endif
