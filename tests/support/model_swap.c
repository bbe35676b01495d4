/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Swaps of the naive model: what the tier has of a request is found by trying every length, what a
 * swap pins is what is written in it, and ending one is walking that list. */
#include "support/model_swap.h"

#include <string.h>

static int32_t min_of(int32_t a, int32_t b) {
    return a < b ? a : b;
}

static int32_t max_of(int32_t a, int32_t b) {
    return a > b ? a : b;
}

/* ---- what the manager asks ------------------------------------------------------------------- */

const model_swap *model_loading_swap(const model_manager *model, const model_request *request) {
    for (int32_t i = 0; model->tier != NULL && i < MODEL_MAX_SWAPS; i++) {
        const model_swap *swap = &model->tier->swaps[i];
        if (swap->is_open && swap->is_inward && request->row != PKV_NULL_ROW &&
            swap->request.index == request->handle.index &&
            swap->request.generation == request->handle.generation &&
            swap->allocation == request->num_allocations) {
            return swap;
        }
    }
    return NULL;
}

bool model_is_loading(const model_manager *model, const model_request *request) {
    return model_loading_swap(model, request) != NULL;
}

bool model_pins_block(const model_swap *swap, const model_flight *flight) {
    return flight->block != PKV_NULL_BLOCK && (swap->is_inward || !swap->is_detached);
}

static bool pins_slot(const model_swap *swap) {
    return !swap->is_inward || !swap->is_detached;
}

bool model_is_in_flight(const model_manager *model, pkv_block_id id) {
    for (int32_t i = 0; model->tier != NULL && i < MODEL_MAX_SWAPS; i++) {
        const model_swap *swap = &model->tier->swaps[i];
        for (int32_t f = 0; swap->is_open && f < swap->num_flights; f++) {
            if (swap->flights[f].block == id && model_pins_block(swap, &swap->flights[f])) {
                return true;
            }
        }
    }
    return false;
}

int32_t model_num_open_swaps(const model_tier *tier) {
    int32_t count = 0;

    for (int32_t i = 0; i < MODEL_MAX_SWAPS; i++) {
        count += tier->swaps[i].is_open ? 1 : 0;
    }
    return count;
}

bool model_has_open_swaps(const model_manager *model) {
    return model->tier != NULL && model_num_open_swaps(model->tier) > 0;
}

int32_t model_num_open_flights(const model_tier *tier) {
    int32_t count = 0;

    for (int32_t i = 0; i < MODEL_MAX_SWAPS; i++) {
        count += tier->swaps[i].is_open ? tier->swaps[i].num_flights : 0;
    }
    return count;
}

/* ---- lookup ---------------------------------------------------------------------------------- */

static pkv_block_id find_slot(const model_tier *tier,
                              const model_request *request,
                              int32_t group,
                              int32_t column) {
    int32_t content = model_column_content(tier->manager, request, group, column);

    return content == MODEL_NO_CONTENT
               ? PKV_NULL_BLOCK
               : model_pool_find(&tier->pool, group, content,
                                 &request->tokens[column * tier->pool.block_sizes[group]], NULL);
}

/* First column that a load of tokens [local, total) brings. */
static int32_t first_loaded(const model_tier *tier, int32_t group, int32_t local, int32_t total) {
    int32_t block_size = tier->pool.block_sizes[group];

    return max_of(local / block_size,
                  model_num_skipped_tokens(tier->manager, group, total) / block_size);
}

static int32_t num_loaded(const model_tier *tier, int32_t local, int32_t total) {
    int32_t count = 0;

    for (int32_t group = 0; group < tier->manager->num_groups; group++) {
        count += max_of(
            total / tier->pool.block_sizes[group] - first_loaded(tier, group, local, total), 0);
    }
    return count;
}

static bool can_load(const model_tier *tier,
                     const model_request *request,
                     int32_t local,
                     int32_t total) {
    for (int32_t group = 0; group < tier->manager->num_groups; group++) {
        int32_t end = total / tier->pool.block_sizes[group];
        if (end > 0 &&
            model_column_content(tier->manager, request, group, end - 1) == MODEL_NO_CONTENT) {
            return false; /* a caller that has not given all keys */
        }
        for (int32_t i = first_loaded(tier, group, local, total); i < end; i++) {
            if (find_slot(tier, request, group, i) == PKV_NULL_BLOCK) {
                return false;
            }
        }
    }
    return !request->skip_cache_read;
}

static int32_t longest_load(const model_tier *tier,
                            const model_request *request,
                            int32_t local,
                            int32_t most) {
    int32_t total = most / tier->manager->alignment * tier->manager->alignment;

    while (total > local && !can_load(tier, request, local, total)) {
        total -= tier->manager->alignment;
    }
    return max_of(total, local);
}

int32_t model_tier_lookup(const model_tier *tier, const model_request *request, int32_t local) {
    int32_t total = longest_load(tier, request, local, request->num_tokens - 1);
    int32_t dropped = 0;

    for (int32_t group = 0; group < tier->manager->num_groups; group++) {
        if (tier->manager->groups[group].eagle) {
            dropped = max_of(dropped, tier->pool.block_sizes[group]);
        }
    }
    if (total > local && dropped > 0) {
        total = longest_load(tier, request, local, total - dropped);
    }
    return num_loaded(tier, local, total) > 0 ? total : local;
}

/* ---- out ------------------------------------------------------------------------------------- */

/* Whether an open swap brings the content of this block to the tier. */
static bool is_under_way(const model_tier *tier, pkv_block_id block, int32_t content) {
    for (int32_t i = 0; i < MODEL_MAX_SWAPS; i++) {
        const model_swap *swap = &tier->swaps[i];
        for (int32_t f = 0; swap->is_open && !swap->is_inward && f < swap->num_flights; f++) {
            if (swap->flights[f].block == block && swap->flights[f].content == content) {
                return true;
            }
        }
    }
    return false;
}

static void add_flight(model_swap *swap,
                       const model_tier *tier,
                       const model_request *request,
                       int32_t group,
                       int32_t column,
                       pkv_block_id block,
                       pkv_block_id slot) {
    model_flight *flight = &swap->flights[swap->num_flights++];
    int32_t block_size = tier->pool.block_sizes[group];

    flight->group = group;
    flight->column = column;
    flight->content = model_column_content(tier->manager, request, group, column);
    flight->block = block;
    flight->slot = slot;
    memcpy(flight->tokens, &request->tokens[column * block_size],
           sizeof(int32_t) * (size_t)block_size);
    swap->num_copies += block != PKV_NULL_BLOCK ? 1 : 0;
}

/* What one group's table has; returns how many tokens at its start the tier will have then. */
static int32_t draft_group(const model_tier *tier,
                           const model_request *request,
                           int32_t group,
                           model_swap *swap) {
    const model_pool *pool = &tier->manager->pool;
    const model_table *table = &request->tables[group];
    int32_t covered = INT32_MAX;
    int32_t column = 0;

    for (; column < table->num_blocks; column++) {
        pkv_block_id block = table->ids[column];
        int32_t content = model_column_content(tier->manager, request, group, column);
        pkv_block_id slot;

        if (content == MODEL_NO_CONTENT) {
            break;
        }
        if (block == PKV_NULL_BLOCK || is_under_way(tier, block, content)) {
            continue;
        }
        if (pool->blocks[block].content != content || pool->blocks[block].step != 0 ||
            model_is_target(tier->manager, block)) {
            covered = min_of(covered, column);
            continue;
        }
        slot = find_slot(tier, request, group, column);
        add_flight(swap, tier, request, group, column,
                   slot == PKV_NULL_BLOCK ? block : PKV_NULL_BLOCK, slot);
    }
    return min_of(covered, column) * tier->pool.block_sizes[group];
}

/* The slots are there already: the last of them is the first to go, but after all others. */
static void touch_kept(model_tier *tier, const model_swap *swap) {
    for (int32_t f = swap->num_flights - 1; f >= 0; f--) {
        model_pool_touch(&tier->pool, swap->flights[f].slot);
        model_pool_free_blocks(&tier->pool, &swap->flights[f].slot, 1);
    }
}

/* Refuse what does not fit. */
static model_statuses check_room(const model_tier *tier,
                                 const model_swap *draft,
                                 pkv_swap_plan *plan) {
    if (draft->num_copies > plan->capacity) {
        plan->num_copies = draft->num_copies;
        return MODEL_LIMIT;
    }
    if (draft->num_flights > tier->max_flights) {
        return MODEL_LIMIT;
    }
    if (model_num_open_swaps(tier) == tier->max_swaps ||
        model_num_open_flights(tier) + draft->num_flights > tier->max_flights) {
        return MODEL_STATUS(PKV_IN_PROGRESS);
    }
    return MODEL_OK;
}

static model_statuses check_slots(const model_tier *tier, const model_swap *draft) {
    int32_t num_free = tier->pool.num_free;

    if (draft->num_copies > tier->pool.num_blocks - 1) {
        return MODEL_LIMIT;
    }
    for (int32_t f = 0; f < draft->num_flights; f++) {
        const model_flight *flight = &draft->flights[f];
        num_free -=
            flight->block == PKV_NULL_BLOCK && tier->pool.blocks[flight->slot].ref_cnt == 0 ? 1 : 0;
    }
    return draft->num_copies > num_free ? MODEL_STATUS(PKV_NO_FREE_BLOCKS) : MODEL_OK;
}

/* Put a draft where no swap is open. */
static model_swap *begin_swap(model_tier *tier, const model_swap *draft, int32_t *place) {
    *place = 0;
    while (tier->swaps[*place].is_open) {
        ++*place;
    }
    memcpy(&tier->swaps[*place], draft, sizeof *draft);
    tier->swaps[*place].is_open = true;
    return &tier->swaps[*place];
}

static void fill_plan(const model_swap *swap, pkv_swap_plan *plan) {
    plan->num_copies = 0;
    for (int32_t f = 0; f < swap->num_flights; f++) {
        const model_flight *flight = &swap->flights[f];
        pkv_block_copy copy = {flight->block, flight->slot};
        if (flight->block == PKV_NULL_BLOCK) {
            continue;
        }
        if (swap->is_inward) {
            copy = (pkv_block_copy){flight->slot, flight->block};
        }
        plan->groups[plan->num_copies] = flight->group;
        plan->copies[plan->num_copies++] = copy;
    }
}

model_statuses model_swap_out(model_tier *tier,
                              const model_request *request,
                              pkv_swap_plan *plan,
                              int32_t *place) {
    static model_swap draft;
    model_swap *swap;
    model_statuses status;

    *place = -1;
    plan->num_copies = 0;
    plan->num_tokens = 0;
    if (request->row == PKV_NULL_ROW) {
        return MODEL_STATUS(PKV_NOT_FOUND);
    }
    memset(&draft, 0, sizeof draft);
    plan->num_tokens = request->num_tokens;
    for (int32_t group = 0; group < tier->manager->num_groups; group++) {
        plan->num_tokens = min_of(plan->num_tokens, draft_group(tier, request, group, &draft));
    }
    if (draft.num_copies == 0) {
        /* Without room for as many flights the library cannot remember which they were. */
        if (model_num_open_flights(tier) + draft.num_flights <= tier->max_flights) {
            touch_kept(tier, &draft);
        }
        return MODEL_STATUS(PKV_NOT_FOUND);
    }
    status = check_room(tier, &draft, plan);
    status = status == MODEL_OK ? check_slots(tier, &draft) : status;
    if (status != MODEL_OK) {
        return status;
    }
    swap = begin_swap(tier, &draft, place);
    for (int32_t f = 0; f < swap->num_flights; f++) {
        model_pool_touch(&tier->pool, swap->flights[f].slot);
        model_pool_touch(&tier->manager->pool, swap->flights[f].block);
    }
    for (int32_t f = 0; f < swap->num_flights; f++) {
        if (swap->flights[f].block != PKV_NULL_BLOCK) {
            model_pool_get_new_blocks(&tier->pool, swap->flights[f].group, 1,
                                      &swap->flights[f].slot);
        }
    }
    fill_plan(swap, plan);
    tier->num_swap_outs++;
    tier->num_blocks_out += (uint64_t)swap->num_copies;
    tier->num_blocks_kept += (uint64_t)(swap->num_flights - swap->num_copies);
    return MODEL_OK;
}

/* ---- in -------------------------------------------------------------------------------------- */

static model_statuses check_in(const model_tier *tier,
                               const model_request *request,
                               const pkv_slots_args *args) {
    bool is_valid = request->row == PKV_NULL_ROW && args->num_computed_tokens == 0 &&
                    args->num_new_computed_tokens >= 0 && args->num_external_computed_tokens >= 0 &&
                    args->num_new_computed_tokens % tier->manager->alignment == 0 &&
                    args->num_external_computed_tokens % tier->manager->alignment == 0;

    return is_valid ? 0 : MODEL_INVALID;
}

/* All of the load, or so much of it as is asked for; `local` where that is not there. */
static int32_t total_of(const model_tier *tier,
                        const model_request *request,
                        const pkv_slots_args *args) {
    int32_t local = args->num_new_computed_tokens;
    int32_t wanted = args->num_external_computed_tokens;
    int32_t total = model_tier_lookup(tier, request, local);

    if (wanted == 0) {
        return total;
    }
    return wanted <= total - local && can_load(tier, request, local, local + wanted)
               ? local + wanted
               : local;
}

static void pin_load(model_tier *tier,
                     const model_request *request,
                     model_swap *swap,
                     int32_t local) {
    for (int32_t f = 0; f < swap->num_flights; f++) {
        model_flight *flight = &swap->flights[f];
        flight->block = request->tables[flight->group].ids[flight->column];
        model_pool_touch(&tier->pool, flight->slot);
        model_pool_touch(&tier->manager->pool, flight->block);
    }
    swap->request = request->handle;
    swap->allocation = request->num_allocations;
    tier->num_swap_ins++;
    tier->num_blocks_in += (uint64_t)swap->num_flights;
    tier->num_tokens_in += (uint64_t)(swap->num_tokens - local);
}

model_statuses model_swap_in(model_tier *tier,
                             model_request *request,
                             const pkv_slots_args *args,
                             pkv_slots *slots,
                             pkv_swap_plan *plan,
                             int32_t *place) {
    static model_swap draft;
    pkv_slots_args own = *args;
    int32_t local = args->num_new_computed_tokens;
    model_statuses status = check_in(tier, request, args);

    *place = -1;
    plan->num_copies = 0;
    plan->num_tokens = 0;
    if (status != 0) {
        return status;
    }
    memset(&draft, 0, sizeof draft);
    draft.is_inward = true;
    draft.num_tokens = total_of(tier, request, args);
    for (int32_t group = 0; group < tier->manager->num_groups; group++) {
        int32_t end = draft.num_tokens / tier->pool.block_sizes[group];
        for (int32_t i = first_loaded(tier, group, local, draft.num_tokens); i < end; i++) {
            add_flight(&draft, tier, request, group, i, PKV_NULL_BLOCK,
                       find_slot(tier, request, group, i));
        }
    }
    draft.num_copies = draft.num_flights;
    if (draft.num_tokens == local || draft.num_flights == 0) {
        return MODEL_STATUS(PKV_NOT_FOUND);
    }
    status = check_room(tier, &draft, plan);
    if (status != MODEL_OK) {
        return status;
    }
    own.num_external_computed_tokens = draft.num_tokens - local;
    own.delay_caching = true;
    status = model_allocate(tier->manager, request, &own, slots);
    if (status == MODEL_OK) {
        model_swap *swap = begin_swap(tier, &draft, place);
        pin_load(tier, request, swap, local);
        fill_plan(swap, plan);
        plan->num_tokens = swap->num_tokens - local;
    }
    return status;
}

/* ---- ends ------------------------------------------------------------------------------------ */

int32_t model_find_swap(const model_tier *tier, pkv_swap handle) {
    for (int32_t i = 0; i < MODEL_MAX_SWAPS; i++) {
        const model_swap *swap = &tier->swaps[i];
        if (swap->is_open && swap->handle.index == handle.index &&
            swap->handle.generation == handle.generation) {
            return i;
        }
    }
    return -1;
}

static model_publication publication_of(const model_tier *tier, const model_flight *flight) {
    int32_t block_size = tier->pool.block_sizes[flight->group];

    return (model_publication){.group = flight->group,
                               .parent = MODEL_NO_CONTENT,
                               .first_token = flight->column * block_size,
                               .num_tokens = block_size};
}

static void publish_slot(model_tier *tier, const model_swap *swap, const model_flight *flight) {
    model_publication publication = publication_of(tier, flight);
    bool is_right =
        swap->is_detached || tier->manager->pool.blocks[flight->block].content == flight->content;

    if (!is_right || model_pool_find(&tier->pool, flight->group, flight->content, flight->tokens,
                                     NULL) != PKV_NULL_BLOCK) {
        tier->num_blocks_dropped++;
        return;
    }
    model_pool_publish(&tier->pool, flight->slot, flight->content, flight->tokens, &publication);
}

static void publish_block(const model_tier *tier,
                          const model_request *request,
                          const model_flight *flight) {
    model_pool *pool = &tier->manager->pool;
    model_publication publication = publication_of(tier, flight);
    bool is_right = request != NULL ? model_column_content(tier->manager, request, flight->group,
                                                           flight->column) == flight->content
                                    : pool->blocks[flight->block].ref_cnt == 1;

    if (is_right && pool->blocks[flight->block].content == MODEL_NO_CONTENT) {
        model_pool_begin_call(pool);
        model_pool_publish(pool, flight->block, flight->content, flight->tokens, &publication);
    }
}

/* What was loaded counts as offered for publication. */
static void settle(const model_tier *tier, model_request *request, const model_swap *swap) {
    for (int32_t group = 0; group < tier->manager->num_groups; group++) {
        int32_t columns = min_of(swap->num_tokens / tier->pool.block_sizes[group],
                                 request->tables[group].num_blocks);
        request->num_cached[group] = max_of(request->num_cached[group], columns);
    }
}

/* Whose table the swap loads, while that is so. */
static model_request *request_of(const model_tier *tier, const model_swap *swap) {
    int32_t slot = model_find_request(tier->manager, swap->request);
    model_request *request = slot < 0 ? NULL : &tier->manager->requests[slot];

    return request != NULL && model_loading_swap(tier->manager, request) == swap ? request : NULL;
}

void model_swap_end(model_tier *tier, model_swap *swap, bool publishes) {
    model_request *request = swap->is_inward ? request_of(tier, swap) : NULL;

    for (int32_t f = 0; f < swap->num_flights && publishes; f++) {
        if (swap->is_inward) {
            publish_block(tier, request, &swap->flights[f]);
        } else if (swap->flights[f].block != PKV_NULL_BLOCK) {
            publish_slot(tier, swap, &swap->flights[f]);
        }
    }
    if (request != NULL && publishes) {
        settle(tier, request, swap);
    }
    for (int32_t f = swap->num_flights - 1; f >= 0; f--) {
        if (model_pins_block(swap, &swap->flights[f])) {
            model_pool_free_blocks(&tier->manager->pool, &swap->flights[f].block, 1);
        }
        if (pins_slot(swap)) {
            model_pool_free_blocks(&tier->pool, &swap->flights[f].slot, 1);
        }
    }
    swap->is_open = false;
    tier->num_commits += publishes ? 1 : 0;
    tier->num_aborts += publishes ? 0 : 1;
}

void model_swap_detach(model_tier *tier, model_swap *swap) {
    for (int32_t f = swap->num_flights - 1; f >= 0 && !swap->is_detached; f--) {
        if (swap->is_inward) {
            model_pool_free_blocks(&tier->pool, &swap->flights[f].slot, 1);
        } else {
            model_pool_free_blocks(&tier->manager->pool, &swap->flights[f].block, 1);
        }
    }
    swap->is_detached = true;
}
