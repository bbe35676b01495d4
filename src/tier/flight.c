/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The ends of swaps: detach, commit, abort; and counting what they pin, for the manager. */
#include "tier/tier.h"

static struct pkvi_swap *open_swap(const pkv_tier *tier, pkv_swap handle) {
    struct pkvi_swap *swap;

    if (handle.index >= (uint32_t)tier->max_swaps) {
        return NULL;
    }
    swap = &tier->swaps[handle.index];
    return swap->is_open && swap->generation == handle.generation ? swap : NULL;
}

static pkv_status stale(const pkv_tier *tier, pkv_swap handle) {
    return PKVI_TIER_FAIL(tier, PKV_ERROR_STALE_HANDLE, "swap {%u, %u} is not open", handle.index,
                          handle.generation);
}

static void release_block(pkv_tier *tier, const struct pkvi_flight *flight) {
    if (flight->block != PKV_NULL_BLOCK) {
        (void)pkvi_pool_release(tier->manager->pool, &flight->block, 1, false);
        tier->num_pins--;
    }
}

static void release_slot(pkv_tier *tier, const struct pkvi_flight *flight) {
    (void)pkvi_pool_release(tier->pool, &flight->slot, 1, false);
}

static void publish(pkv_pool *pool, const struct pkvi_flight *flight, pkv_block_id block) {
    struct pkvi_publication call = {0};

    call.group = flight->group;
    call.first_token = flight->column * pool->block_sizes[flight->group];
    call.num_tokens = pool->block_sizes[flight->group];
    pkvi_pool_begin(pool, &call);
    pkvi_pool_publish(pool, &call, block, &flight->key,
                      pkvi_prefix_index_home(pool->index, flight->group, &flight->key), NULL);
    pkvi_pool_end(pool, &call);
}

/* A slot whose content the tier did not get meanwhile, of a block that was right all the time. */
static void publish_slot(pkv_tier *tier,
                         const struct pkvi_swap *swap,
                         const struct pkvi_flight *flight) {
    const pkv_pool *source = tier->manager->pool;
    const int32_t *token_ids = NULL;

    if (tier->pool->stored_tokens != NULL) {
        token_ids = tier->pool->stored_tokens +
                    (size_t)flight->slot * (size_t)tier->pool->index->tokens_per_block;
    }
    if ((!swap->is_detached &&
         !(source->states[flight->block].is_keyed &&
           pkvi_key_equal(&source->index->entries[flight->block].key, &flight->key))) ||
        pkvi_prefix_index_find(tier->pool->index, flight->group, &flight->key, token_ids,
                               tier->pool->block_sizes[flight->group]) != PKV_NULL_BLOCK) {
        tier->counters.num_blocks_dropped++;
        return;
    }
    publish(tier->pool, flight, flight->slot);
}

/* The request whose table the swap loads, while that is so. */
static struct pkvi_request *loading_request(const pkv_tier *tier, const struct pkvi_swap *swap) {
    struct pkvi_request *request = pkvi_request_get(&tier->manager->requests, swap->request);

    return swap->is_inward && request != NULL && request->row != PKV_NULL_ROW &&
                   request->loading_allocation == swap->allocation &&
                   pkvi_manager_is_loading(request)
               ? request
               : NULL;
}

/* A block is published under the key that its column has now; where nobody's table says so any
 * more, only if nobody's table names it. */
static void publish_block(pkv_tier *tier,
                          const struct pkvi_request *request,
                          const struct pkvi_flight *flight) {
    const pkv_manager *manager = tier->manager;
    const struct pkvi_block_state *state = &manager->pool->states[flight->block];
    int32_t key = (flight->column + 1) * manager->groups[flight->group].key_stride - 1;
    bool is_right = state->ref_cnt == 1;

    if (request != NULL) {
        is_right = key < request->num_keys &&
                   pkvi_key_equal(pkvi_request_key(&manager->requests, request, key), &flight->key);
    }
    if (is_right && !state->is_keyed) {
        publish(manager->pool, flight, flight->block);
    }
}

/* The load is over: the columns up to its end are settled, the others may be published now. */
static void settle(const pkv_tier *tier,
                   struct pkvi_request *request,
                   const struct pkvi_swap *swap,
                   bool publishes) {
    request->loading_allocation = 0;
    for (int32_t g = 0; g < tier->manager->num_groups && publishes; g++) {
        struct pkvi_table_row *row = pkvi_manager_row(tier->manager, g, request->row);
        int32_t columns = swap->num_tokens / tier->manager->groups[g].block_size;

        columns = columns < row->num_blocks ? columns : row->num_blocks;
        row->num_cached = row->num_cached > columns ? row->num_cached : columns;
    }
}

/* Take a flight out of those that copy its block out. */
static void forget_copy(const pkv_tier *tier, int32_t f) {
    int32_t *link = &tier->flight_of[tier->flights[f].block];

    while (*link != f) {
        link = &tier->flights[*link].older;
    }
    *link = tier->flights[f].older;
}

static void close_flights(pkv_tier *tier, struct pkvi_swap *swap) {
    if (swap->num_flights > 0) {
        for (int32_t f = swap->first_flight; f != PKVI_NO_FLIGHT; f = tier->flights[f].next) {
            if (!swap->is_inward && tier->flights[f].block != PKV_NULL_BLOCK) {
                forget_copy(tier, f);
            }
            tier->flights[f].is_open = false;
        }
        tier->flights[swap->last_flight].next = tier->first_free_flight;
        tier->first_free_flight = swap->first_flight;
        tier->num_flights -= swap->num_flights;
    }
    swap->is_open = false;
    swap->next_free = tier->first_free_swap;
    tier->first_free_swap = (int32_t)(swap - tier->swaps);
    tier->holder.num_open--;
}

void pkvi_tier_end_swap(pkv_tier *tier, struct pkvi_swap *swap, bool publishes) {
    struct pkvi_request *request = loading_request(tier, swap);

    for (int32_t f = swap->first_flight; f != PKVI_NO_FLIGHT && publishes;
         f = tier->flights[f].next) {
        if (swap->is_inward) {
            publish_block(tier, request, &tier->flights[f]);
        } else if (tier->flights[f].block != PKV_NULL_BLOCK) {
            publish_slot(tier, swap, &tier->flights[f]);
        }
    }
    if (request != NULL) {
        settle(tier, request, swap, publishes);
    }
    /* Backwards, so that the end of a prefix is evicted before its start. */
    for (int32_t f = swap->last_flight; f != PKVI_NO_FLIGHT; f = tier->flights[f].previous) {
        if (swap->is_inward || !swap->is_detached) {
            release_block(tier, &tier->flights[f]);
        }
        if (!swap->is_inward || !swap->is_detached) {
            release_slot(tier, &tier->flights[f]);
        }
    }
    close_flights(tier, swap);
}

pkv_status pkv_swap_detach(pkv_tier *tier, pkv_swap handle) {
    struct pkvi_swap *swap;

    if (tier == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    swap = open_swap(tier, handle);
    if (swap == NULL) {
        return stale(tier, handle);
    }
    for (int32_t f = swap->last_flight; f != PKVI_NO_FLIGHT && !swap->is_detached;
         f = tier->flights[f].previous) {
        if (swap->is_inward) {
            release_slot(tier, &tier->flights[f]);
        } else {
            release_block(tier, &tier->flights[f]);
        }
    }
    swap->is_detached = true;
    PKVI_TIER_CHECK_AFTER(tier);
    return PKV_OK;
}

static pkv_status end(pkv_tier *tier, pkv_swap handle, bool publishes) {
    struct pkvi_swap *swap;

    if (tier == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    swap = open_swap(tier, handle);
    if (swap == NULL) {
        return stale(tier, handle);
    }
    pkvi_tier_end_swap(tier, swap, publishes);
    PKVI_TIER_CHECK_AFTER(tier);
    return PKV_OK;
}

pkv_status pkv_swap_commit(pkv_tier *tier, pkv_swap swap) {
    pkv_status status = end(tier, swap, true);

    if (status == PKV_OK) {
        tier->counters.num_commits++;
    }
    return status;
}

pkv_status pkv_swap_abort(pkv_tier *tier, pkv_swap swap) {
    pkv_status status = end(tier, swap, false);

    if (status == PKV_OK) {
        tier->counters.num_aborts++;
    }
    return status;
}
