/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* A manager and its model side by side, and each call as one function that makes it on both and
 * compares. Which calls are made, in what order and with what numbers, is decided by the callers:
 * sim_chaos.c and sim_engine.c. */
#ifndef PKV_TESTS_SUPPORT_SIM_MANAGER_H
#define PKV_TESTS_SUPPORT_SIM_MANAGER_H

#include "support/counting_alloc.h"
#include "support/model_swap.h"
#include "support/sim_parts.h"

#include <pagedkv/sharing.h>

#define SIM_MAX_HANDLES 4096
#define SIM_MAX_UPDATES 2048
#define SIM_NUM_CALLER_KEYS 12
#define SIM_NUM_MEDIA 3

/* What the caller of a manager keeps of a request. */
typedef struct sim_request {
    int32_t num_computed_tokens, num_in_flight_tokens;
    uint64_t step;
} sim_request;

/* Arrays of a plan of a swap. */
typedef struct sim_plan {
    pkv_block_copy copies[MODEL_MAX_FLIGHTS];
    int32_t groups[MODEL_MAX_FLIGHTS];
    pkv_block_key keys[MODEL_MAX_FLIGHTS];
    int32_t token_ids[MODEL_MAX_FLIGHTS * MODEL_MAX_BLOCK_SIZE];
} sim_plan;

typedef struct sim {
    test_source *source;
    sim_log *log;
    sim_counts *counts;
    pkv_manager_config config;
    pkv_group_config groups[MODEL_MAX_GROUPS];
    counting_alloc allocator;
    pkv_manager *manager;
    model_manager model;
    pkv_tier *tier; /* NULL: none */
    model_tier tier_model;
    sim_consumer consumer;
    sim_request states[MODEL_MAX_REQUESTS];
    int32_t vocabulary;
    uint64_t step;
    bool has_false_keys; /* callers' keys may collide: rejections cannot be predicted */
    pkv_request handles[SIM_MAX_HANDLES]; /* all ever opened */
    int32_t num_handles;
    pkv_block_id mirror[MODEL_MAX_GROUPS][MODEL_MAX_ROWS + 1]
                       [MODEL_MAX_COLUMNS]; /* on the device */
} sim;

/* ---- drawing, sim_config.c ------------------------------------------------------------------- */

/* Draw a configuration that the library must accept, and create manager and model. `is_engine` asks
 * for one in which an engine can live; one in `tier_in` has a tier. */
bool sim_open(sim *self,
              test_source *source,
              sim_log *log,
              sim_counts *counts,
              bool is_engine,
              int32_t tier_in);

/* Destroy, and complain of leaks. */
void sim_close(sim *self);

int32_t sim_draw(sim *self, int32_t bound);
int32_t sim_draw_between(sim *self, int32_t low, int32_t high);
bool sim_once_in(sim *self, int32_t n);

/* A prompt from one of a few families, so that prefixes are shared. */
void sim_draw_tokens(sim *self, int32_t *tokens, int32_t num_tokens);

/* Slot of a random open request; -1 when none is open. */
int32_t sim_draw_slot(sim *self);

/* ---- calls, sim_calls.c and sim_readers.c ---------------------------------------------------- */

/* Compare a status with the allowed ones, and count it. */
pkv_status sim_judge(sim *self, pkv_status status, model_statuses allowed);

/* Each makes a call on library and model and returns the library's status. `*slot` is the model's
 * request of the new handle, -1 when none was opened. */
pkv_status sim_call_open(sim *self, const pkv_request_args *args, int32_t *slot);
pkv_status sim_call_append(sim *self,
                           pkv_request handle,
                           const int32_t *tokens,
                           int32_t num_tokens);
pkv_status sim_call_append_keys(sim *self,
                                pkv_request handle,
                                const pkv_block_key *keys,
                                int32_t num_keys);
pkv_status sim_call_close(sim *self, pkv_request handle);
pkv_status sim_call_lookup(sim *self, pkv_request handle, int32_t *num_hit_tokens);
pkv_status sim_call_allocate(sim *self,
                             pkv_request handle,
                             const pkv_slots_args *args,
                             pkv_slots *out);
pkv_status sim_call_cache_blocks(sim *self, pkv_request handle, int32_t num_tokens);
pkv_status sim_call_remove_skipped(sim *self, pkv_request handle, int32_t num_tokens);
pkv_status sim_call_free(sim *self, pkv_request handle);
pkv_status sim_call_free_after(sim *self, pkv_request handle, uint64_t step);
pkv_status sim_call_step_complete(sim *self, uint64_t step);
pkv_status sim_call_step_fail(sim *self, uint64_t step);
pkv_status sim_call_unschedule(sim *self, pkv_request handle, uint64_t step);
pkv_status sim_call_evict(sim *self, const pkv_block_id *ids, int32_t num_blocks);
pkv_status sim_call_reset(sim *self);

/* sim_sharing.c. `*slot` is the model's request of the child, -1 when there is none; `copies` may
 * be NULL, else it has room for MODEL_MAX_BLOCKS. */
pkv_status sim_call_fork(sim *self, pkv_request parent, int32_t num_computed_tokens, int32_t *slot);
pkv_status sim_call_truncate(sim *self, pkv_request handle, int32_t num_tokens);
pkv_status sim_call_take_copies(
    sim *self, int32_t group, int32_t capacity, pkv_block_copy *copies, int32_t *num_copies);

/* sim_swap.c. `*place` is where the new swap stands in the model, -1 when there is none. A tier is
 * drawn for a manager that has a prefix cache. */
bool sim_open_tier(sim *self);
void sim_close_tier(sim *self);
pkv_status sim_call_tier_lookup(sim *self, pkv_request handle, int32_t local, int32_t *external);
pkv_status sim_call_swap_out(sim *self, pkv_request handle, int32_t capacity, int32_t *place);
pkv_status sim_call_swap_in(
    sim *self, pkv_request handle, const pkv_slots_args *args, int32_t capacity, int32_t *place);
pkv_status sim_call_swap_detach(sim *self, pkv_swap handle);
pkv_status sim_call_swap_end(sim *self, pkv_swap handle, bool commits);
pkv_status sim_call_tier_evict(sim *self, const pkv_block_id *slots, int32_t num_blocks);
pkv_status sim_call_tier_reset(sim *self);
void sim_compare_tier(sim *self);

/* Tell the model what the library chose: a handle, a row. */
void sim_note_handle(sim *self, int32_t slot, pkv_request handle);
void sim_adopt_row(sim *self, model_request *request, int32_t row);

pkv_status sim_call_common_prefix(sim *self, pkv_request handle, int32_t group);
pkv_status sim_call_take_updates(sim *self, int32_t group, int32_t capacity);
pkv_status sim_call_mark_dirty(sim *self);
pkv_status sim_call_take_events(sim *self, int32_t capacity);
/* `ids` may be NULL; else it has room for MODEL_MAX_BLOCKS. */
pkv_status sim_call_take_fills(
    sim *self, int32_t group, int32_t capacity, pkv_block_id *ids, int32_t *num_fills);
pkv_status sim_call_batch_build(sim *self,
                                int32_t group,
                                const pkv_batch_entry *entries,
                                int32_t num_entries,
                                pkv_batch *batch);
pkv_status sim_call_export_padded(sim *self,
                                  int32_t group,
                                  const pkv_batch_entry *entries,
                                  int32_t num_entries,
                                  int64_t row_stride);
pkv_status sim_call_export_csr(sim *self,
                               int32_t group,
                               const pkv_batch_entry *entries,
                               int32_t num_entries,
                               bool skip_leading_null,
                               int32_t capacity);

/* Wrong calls whose status does not depend on the state, sim_faults.c. */
void sim_call_faults(sim *self);

/* ---- comparing, sim_compare.c ---------------------------------------------------------------- */

/* Compare everything that can be read without changing it, and run the checker. */
void sim_compare(sim *self);

/* Tell the model the keys that the library computed, after checking them. */
void sim_learn_keys(sim *self, int32_t slot);

/* Keys that a caller would compute for all full hash blocks of a request; returns how many. */
int32_t sim_caller_keys(sim *self, int32_t slot, pkv_block_key *keys);

#endif
