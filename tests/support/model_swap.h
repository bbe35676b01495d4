/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The tiers of the naive model: a pool of slots, and swaps that are lists of what they pin. Written
 * from the contract of tier.h; it shares no code with the library.
 *
 * As elsewhere each verb returns the set of statuses that are right, and what is the library's free
 * choice, the handle of a new swap, is told to the model afterwards. */
#ifndef PKV_TESTS_SUPPORT_MODEL_SWAP_H
#define PKV_TESTS_SUPPORT_MODEL_SWAP_H

#include "support/model_manager.h"

#include <pagedkv/tier.h>

#define MODEL_MAX_SWAPS 6
#define MODEL_MAX_FLIGHTS 512

/* One block under way; or, without a block, a slot that is kept from eviction. */
typedef struct model_flight {
    int32_t group, column, content;
    pkv_block_id block, slot;
    int32_t tokens[MODEL_MAX_BLOCK_SIZE];
} model_flight;

typedef struct model_swap {
    bool is_open, is_inward, is_detached;
    pkv_swap handle;
    int32_t num_flights, num_copies;
    model_flight flights[MODEL_MAX_FLIGHTS]; /* by group and rising column */
    pkv_request request;                     /* inward: whose table is loaded, */
    int32_t allocation;                      /* in which of its stays, */
    int32_t num_tokens;                      /* and how many tokens are there then */
} model_swap;

typedef struct model_tier {
    model_manager *manager;
    model_pool pool;
    int32_t max_swaps, max_flights;
    model_swap swaps[MODEL_MAX_SWAPS];
    uint64_t num_swap_outs, num_swap_ins, num_commits, num_aborts;
    uint64_t num_blocks_out, num_blocks_in, num_blocks_kept, num_blocks_dropped, num_tokens_in;
} model_tier;

/* Give the manager a tier; `config` must fit into the maxima of the model. */
void model_tier_init(model_tier *tier, model_manager *manager, const pkv_tier_config *config);

int32_t model_num_open_swaps(const model_tier *tier);
int32_t model_num_open_flights(const model_tier *tier);

/* Whether an open swap holds the block of a flight of its. */
bool model_pins_block(const model_swap *swap, const model_flight *flight);

int32_t model_tier_lookup(const model_tier *tier, const model_request *request, int32_t local);

/* `*place` is where the new swap stands, -1 when none was opened; its handle is still to be set.
 * Without one, num_copies of `plan` is what a too small capacity must be. */
model_statuses model_swap_out(model_tier *tier,
                              const model_request *request,
                              pkv_swap_plan *plan,
                              int32_t *place);
model_statuses model_swap_in(model_tier *tier,
                             model_request *request,
                             const pkv_slots_args *args,
                             pkv_slots *slots,
                             pkv_swap_plan *plan,
                             int32_t *place);

/* The open swap that loads what a request holds now, or NULL. */
const model_swap *model_loading_swap(const model_manager *model, const model_request *request);

/* Place of the open swap with this handle, or -1. */
int32_t model_find_swap(const model_tier *tier, pkv_swap handle);
void model_swap_detach(model_tier *tier, model_swap *swap);
void model_swap_end(model_tier *tier, model_swap *swap, bool publishes);

model_statuses model_tier_evict(model_tier *tier, const pkv_block_id *slots, int32_t num_blocks);
model_statuses model_tier_reset(model_tier *tier);
void model_tier_get_stats(const model_tier *tier, pkv_tier_stats *out);

#endif
