/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* A tier of the naive model as a whole: its life, its content, its statistics. */
#include "support/model_swap.h"

#include <string.h>

void model_tier_init(model_tier *tier, model_manager *manager, const pkv_tier_config *config) {
    pkv_pool_config pool = {.num_blocks = config->num_blocks,
                            .num_groups = manager->num_groups,
                            .block_sizes = manager->pool.block_sizes,
                            .store_tokens = manager->pool.store_tokens};

    memset(tier, 0, sizeof *tier);
    model_pool_init(&tier->pool, &manager->contents, &pool);
    tier->manager = manager;
    tier->max_swaps = config->max_swaps != 0 ? config->max_swaps : PKV_DEFAULT_MAX_SWAPS;
    tier->max_flights =
        config->max_blocks_in_flight != 0 ? config->max_blocks_in_flight : config->num_blocks - 1;
    manager->tier = tier;
}

/* ---- content --------------------------------------------------------------------------------- */

model_statuses model_tier_evict(model_tier *tier, const pkv_block_id *slots, int32_t num_blocks) {
    if (num_blocks < 0 || (num_blocks > 0 && slots == NULL)) {
        return MODEL_INVALID;
    }
    for (int32_t i = 0; i < num_blocks; i++) {
        if (slots[i] < 0 || slots[i] >= tier->pool.num_blocks) {
            return MODEL_INVALID;
        }
    }
    for (int32_t i = 0; i < num_blocks; i++) {
        model_pool_forget(&tier->pool, slots[i]);
    }
    return MODEL_OK;
}

model_statuses model_tier_reset(model_tier *tier) {
    if (model_num_open_swaps(tier) > 0) {
        return MODEL_BUSY;
    }
    return model_pool_reset(&tier->pool) ? MODEL_OK : MODEL_BUSY;
}

void model_tier_get_stats(const model_tier *tier, pkv_tier_stats *out) {
    memset(out, 0, sizeof *out);
    out->struct_size = sizeof *out;
    out->num_blocks = tier->pool.num_blocks;
    out->num_free_blocks = tier->pool.num_free;
    out->num_cached_blocks = model_pool_num_cached(&tier->pool);
    out->num_swaps = model_num_open_swaps(tier);
    out->num_blocks_in_flight = model_num_open_flights(tier);
    for (int32_t i = 0; i < MODEL_MAX_SWAPS; i++) {
        const model_swap *swap = &tier->swaps[i];
        for (int32_t f = 0; swap->is_open && f < swap->num_flights; f++) {
            out->num_pinned_blocks += model_pins_block(swap, &swap->flights[f]) ? 1 : 0;
        }
    }
    out->num_swap_outs = tier->num_swap_outs;
    out->num_swap_ins = tier->num_swap_ins;
    out->num_commits = tier->num_commits;
    out->num_aborts = tier->num_aborts;
    out->num_blocks_out = tier->num_blocks_out;
    out->num_blocks_in = tier->num_blocks_in;
    out->num_blocks_kept = tier->num_blocks_kept;
    out->num_blocks_dropped = tier->num_blocks_dropped;
    out->num_blocks_evicted = tier->pool.num_evicted;
    out->num_tokens_in = tier->num_tokens_in;
}
