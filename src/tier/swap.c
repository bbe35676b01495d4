/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Planning swaps: what a draft of draft.c becomes, and the one transaction of a swap-in. How swaps
 * end is in flight.c.
 *
 * The one idea: flights become the swap's when nothing can fail any more. */
#include <string.h>

#include "tier/tier.h"

/* How many slots are taken together. */
#define TAKE_TOGETHER 32

/* Read a caller's plan. Its arrays are the caller's, so only the struct is copied. */
static pkv_status read_plan(const pkv_tier *tier, const pkv_swap_plan *plan, pkv_swap_plan *own) {
    pkv_status status = pkvi_read_struct(own, sizeof *own, sizeof own->struct_size, plan);

    if (status != PKV_OK || own->capacity < 0 || (own->capacity > 0 && own->copies == NULL)) {
        return PKVI_TIER_FAIL(tier, status == PKV_OK ? PKV_ERROR_INVALID_ARGUMENT : status,
                              "plan is NULL, its struct_size is not set, a later field is set, or "
                              "it has no copies array");
    }
    own->num_copies = 0;
    own->num_tokens = 0;
    return PKV_OK;
}

/* Refuse what does not fit into the plan, the flights or the swaps. */
static pkv_status check_room(const pkv_tier *tier,
                             pkv_swap_plan *own,
                             int32_t num_copies,
                             int32_t num_flights) {
    if (num_copies > own->capacity) {
        own->num_copies = num_copies;
        return PKVI_TIER_FAIL(tier, PKV_ERROR_LIMIT, "capacity of the plan must be %d", num_copies);
    }
    if (num_flights > tier->max_flights) {
        return PKVI_TIER_FAIL(tier, PKV_ERROR_LIMIT, "max_blocks_in_flight: %d, wanted %d",
                              tier->max_flights, num_flights);
    }
    if (num_flights > tier->max_flights - tier->num_flights || tier->first_free_swap < 0) {
        return PKV_IN_PROGRESS;
    }
    return PKV_OK;
}

/* Take a place for a swap, and the first `num_flights` of the free list, the last of which is
 * `last`; they are to be marked open. */
static struct pkvi_swap *open_swap(pkv_tier *tier, int32_t num_flights, int32_t last, bool inward) {
    struct pkvi_swap *swap = &tier->swaps[tier->first_free_swap];
    uint32_t generation = swap->generation + 1;

    tier->first_free_swap = swap->next_free;
    memset(swap, 0, sizeof *swap);
    swap->generation = generation == 0 ? 1 : generation;
    swap->is_open = true;
    swap->is_inward = inward;
    swap->num_flights = num_flights;
    swap->first_flight = tier->first_free_flight;
    swap->last_flight = last;
    tier->first_free_flight = tier->flights[last].next;
    tier->flights[last].next = PKVI_NO_FLIGHT;
    tier->num_flights += num_flights;
    tier->holder.num_open++;
    return swap;
}

static pkv_swap handle_of(const pkv_tier *tier, const struct pkvi_swap *swap) {
    pkv_swap handle = {(uint32_t)(swap - tier->swaps), swap->generation};

    return handle;
}

static void write_tokens(const pkv_tier *tier,
                         const struct pkvi_request *request,
                         const struct pkvi_flight *flight,
                         int32_t *out) {
    int32_t block_size = tier->manager->groups[flight->group].block_size;

    pkvi_request_copy_tokens(&tier->manager->requests, request, flight->column * block_size,
                             block_size, out);
}

/* Tokens of a copy: to the plan, and to the pool of the target. */
static void plan_tokens(const pkv_tier *tier,
                        const struct pkvi_request *request,
                        const struct pkvi_flight *flight,
                        bool inward,
                        const pkv_swap_plan *own) {
    const pkv_pool *pool = inward ? tier->manager->pool : tier->pool;
    size_t target = (size_t)(inward ? flight->block : flight->slot);

    if (own->token_ids != NULL) {
        size_t most = 1;
        for (int32_t g = 0; g < tier->manager->num_groups; g++) {
            size_t block_size = (size_t)tier->manager->groups[g].block_size;
            most = most > block_size ? most : block_size;
        }
        write_tokens(tier, request, flight, own->token_ids + (size_t)own->num_copies * most);
    }
    if (pool->stored_tokens != NULL) {
        write_tokens(tier, request, flight,
                     pool->stored_tokens + target * (size_t)pool->index->tokens_per_block);
    }
}

/* Add one copy to the plan. */
static inline void plan_flight(const pkv_tier *tier,
                               const struct pkvi_request *request,
                               const struct pkvi_flight *flight,
                               bool inward,
                               pkv_swap_plan *own) {
    int32_t i = own->num_copies;

    own->copies[i].source = inward ? flight->slot : flight->block;
    own->copies[i].target = inward ? flight->block : flight->slot;
    if (own->groups != NULL) {
        own->groups[i] = flight->group;
    }
    if (own->keys != NULL) {
        own->keys[i] = flight->key;
    }
    if (own->token_ids != NULL || tier->pool->stored_tokens != NULL) {
        plan_tokens(tier, request, flight, inward, own);
    }
    own->num_copies++;
}

/* ---- out ------------------------------------------------------------------------------------- */

/* Pin the slots that a swap keeps, so that none of them is evicted for its copies. */
static void pin_kept(pkv_tier *tier, const struct pkvi_swap *swap) {
    for (int32_t f = swap->first_flight; f != PKVI_NO_FLIGHT; f = tier->flights[f].next) {
        if (tier->flights[f].block == PKV_NULL_BLOCK) {
            pkvi_pool_touch_block(tier->pool, tier->flights[f].slot);
        }
    }
}

/* Give slots to copies of one group, pin their blocks and plan them. */
static void take_piece(pkv_tier *tier,
                       const struct pkvi_request *request,
                       const int32_t *flights,
                       int32_t count,
                       pkv_swap_plan *own) {
    pkv_block_id slots[TAKE_TOGETHER];

    if (count == 0) {
        return;
    }
    pkvi_pool_take(tier->pool, tier->flights[flights[0]].group, count, slots);
    for (int32_t i = 0; i < count; i++) {
        struct pkvi_flight *flight = &tier->flights[flights[i]];

        flight->slot = slots[i];
        flight->older = tier->flight_of[flight->block];
        tier->flight_of[flight->block] = flights[i];
        pkvi_pool_touch_block(tier->manager->pool, flight->block);
        plan_flight(tier, request, flight, false, own);
    }
}

/* Everything that changes; nothing here can fail. */
static void perform_out(pkv_tier *tier,
                        const struct pkvi_request *request,
                        const struct pkvi_swap *swap,
                        int32_t num_copies,
                        pkv_swap_plan *own) {
    int32_t piece[TAKE_TOGETHER];
    int32_t count = 0;
    int32_t group = 0;

    if (num_copies < swap->num_flights) {
        pin_kept(tier, swap);
    }
    for (int32_t f = swap->first_flight; f != PKVI_NO_FLIGHT; f = tier->flights[f].next) {
        struct pkvi_flight *flight = &tier->flights[f];

        flight->is_open = true;
        if (flight->block == PKV_NULL_BLOCK) {
            continue;
        }
        if (count == TAKE_TOGETHER || flight->group != group) {
            take_piece(tier, request, piece, count, own);
            count = 0;
        }
        group = flight->group;
        piece[count++] = f;
    }
    take_piece(tier, request, piece, count, own);
    tier->num_pins += num_copies;
    tier->counters.num_swap_outs++;
    tier->counters.num_blocks_out += (uint64_t)num_copies;
    tier->counters.num_blocks_kept += (uint64_t)(swap->num_flights - num_copies);
}

static pkv_status swap_out(pkv_tier *tier,
                           const struct pkvi_request *request,
                           pkv_swap_plan *own,
                           pkv_swap *out) {
    struct pkvi_draft draft;
    struct pkvi_swap *swap;
    pkv_status status;

    pkvi_tier_draft(tier, request, &draft);
    own->num_tokens = draft.num_tokens;
    if (draft.num_copies == 0) {
        if (draft.num_flights <= tier->max_flights - tier->num_flights) {
            pkvi_tier_touch_kept(tier, &draft);
        }
        return PKV_NOT_FOUND;
    }
    status = check_room(tier, own, draft.num_copies, draft.num_flights);
    if (status == PKV_OK && draft.num_copies > tier->pool->num_blocks - 1) {
        status = PKVI_TIER_FAIL(tier, PKV_ERROR_LIMIT, "the tier has %d slots, wanted %d",
                                tier->pool->num_blocks - 1, draft.num_copies);
    }
    if (status == PKV_OK &&
        draft.num_copies > tier->pool->free_queue.num_free - draft.num_kept_free) {
        status = PKV_NO_FREE_BLOCKS;
    }
    if (status != PKV_OK) {
        return status;
    }
    swap = open_swap(tier, draft.num_flights, draft.last, false);
    perform_out(tier, request, swap, draft.num_copies, own);
    *out = handle_of(tier, swap);
    return PKV_OK;
}

pkv_status pkv_swap_out(pkv_tier *tier, pkv_request handle, pkv_swap_plan *plan, pkv_swap *out) {
    const struct pkvi_request *request;
    pkv_swap_plan own;
    pkv_status status = PKV_OK;

    request = pkvi_tier_request(tier, handle, &status);
    if (request == NULL) {
        return status;
    }
    status = read_plan(tier, plan, &own);
    if (status != PKV_OK) {
        return status;
    }
    if (out == NULL) {
        return PKVI_TIER_FAIL(tier, PKV_ERROR_INVALID_ARGUMENT, "out is NULL");
    }
    status = request->row == PKV_NULL_ROW ? PKV_NOT_FOUND : swap_out(tier, request, &own, out);
    (void)pkvi_write_struct(plan, &own, sizeof own, sizeof own.struct_size);
    PKVI_TIER_CHECK_AFTER(tier);
    return status;
}

/* ---- in -------------------------------------------------------------------------------------- */

static pkv_status check_in(const pkv_tier *tier,
                           const struct pkvi_request *request,
                           const pkv_slots_args *args) {
    int32_t alignment = tier->manager->groups[0].alignment;

    if (request->row != PKV_NULL_ROW || args->num_computed_tokens != 0) {
        return PKVI_TIER_FAIL(tier, PKV_ERROR_INVALID_ARGUMENT, "the request holds blocks");
    }
    if (args->num_new_computed_tokens < 0 || args->num_external_computed_tokens < 0 ||
        args->num_new_computed_tokens % alignment != 0 ||
        args->num_external_computed_tokens % alignment != 0) {
        return PKVI_TIER_FAIL(tier, PKV_ERROR_INVALID_ARGUMENT,
                              "a hit is negative or not of whole blocks");
    }
    return PKV_OK;
}

/* Tokens at the start that are there after the load; the local ones where the tier has nothing, or
 * not what is asked for. */
static int32_t find_total(const pkv_tier *tier,
                          const struct pkvi_request *request,
                          const pkv_slots_args *args) {
    int32_t local = args->num_new_computed_tokens;
    int32_t total = pkvi_tier_find_longest(tier, request, local);
    int32_t wanted = args->num_external_computed_tokens;

    if (wanted == 0) {
        return total;
    }
    if (wanted > total - local ||
        pkvi_tier_find(tier, request, local, local + wanted) != local + wanted) {
        return local;
    }
    return local + wanted;
}

/* Fill flights of the free list with the columns of a load, pin both ends of each and plan it;
 * returns the last. */
static int32_t load_columns(pkv_tier *tier,
                            const struct pkvi_request *request,
                            int32_t local,
                            int32_t total,
                            pkv_swap_plan *own) {
    const pkv_manager *manager = tier->manager;
    int32_t previous = PKVI_NO_FLIGHT;
    int32_t f = tier->first_free_flight;

    for (int32_t g = 0; g < manager->num_groups; g++) {
        const struct pkvi_group *group = &manager->groups[g];
        const pkv_block_id *cells = pkvi_manager_cells(manager, g, request->row);
        struct pkvi_tier_range range = pkvi_tier_columns(group, local, total);
        struct pkvi_key_cursor cursor =
            pkvi_request_keys(&manager->requests, request, group->key_stride, range.first, false);

        for (int32_t i = range.first; i < range.end; i++, pkvi_key_cursor_advance(&cursor)) {
            struct pkvi_flight *flight = &tier->flights[f];

            PKV_ASSERT(cells[i] != PKV_NULL_BLOCK && tier->found[g][i] != PKV_NULL_BLOCK);
            flight->key = *pkvi_key_cursor_key(&cursor);
            flight->block = cells[i];
            flight->slot = tier->found[g][i];
            flight->group = g;
            flight->column = i;
            flight->previous = previous;
            flight->is_open = true;
            pkvi_pool_touch_block(tier->pool, flight->slot);
            pkvi_pool_touch_block(manager->pool, flight->block);
            plan_flight(tier, request, flight, true, own);
            previous = f;
            f = flight->next;
        }
    }
    return previous;
}

/* The load of a request that has its table; nothing here can fail. */
static pkv_swap perform_in(pkv_tier *tier,
                           struct pkvi_request *request,
                           pkv_request handle,
                           int32_t local,
                           int32_t total,
                           pkv_swap_plan *own) {
    int32_t last = load_columns(tier, request, local, total, own);
    struct pkvi_swap *swap = open_swap(tier, own->num_copies, last, true);

    swap->request = handle;
    swap->allocation = request->num_allocations;
    swap->num_tokens = total;
    request->loading_allocation = request->num_allocations;
    tier->num_pins += own->num_copies;
    own->num_tokens = total - local;
    tier->counters.num_swap_ins++;
    tier->counters.num_blocks_in += (uint64_t)own->num_copies;
    tier->counters.num_tokens_in += (uint64_t)own->num_tokens;
    return handle_of(tier, swap);
}

static pkv_status swap_in(pkv_tier *tier,
                          struct pkvi_request *request,
                          pkv_slots_args *args,
                          pkv_slots *slots,
                          int32_t *total,
                          pkv_swap_plan *own) {
    int32_t local = args->num_new_computed_tokens;
    int32_t count;
    pkv_status status = check_in(tier, request, args);

    if (status != PKV_OK) {
        return status;
    }
    *total = find_total(tier, request, args);
    count = pkvi_tier_count_columns(tier, local, *total);
    if (*total == local || count == 0) {
        return PKV_NOT_FOUND;
    }
    status = check_room(tier, own, count, count);
    if (status != PKV_OK) {
        return status;
    }
    args->num_external_computed_tokens = *total - local;
    args->delay_caching = true;
    status = pkvi_manager_allocate(tier->manager, request, args, slots);
    return status < PKV_OK ? PKVI_TIER_FAIL(tier, status, "%s", tier->manager->error->text)
                           : status;
}

pkv_status pkv_swap_in(pkv_tier *tier,
                       pkv_request handle,
                       const pkv_slots_args *args,
                       pkv_slots *slots,
                       pkv_swap_plan *plan,
                       pkv_swap *out) {
    struct pkvi_request *request;
    pkv_slots own_slots = {0};
    pkv_slots_args own_args;
    pkv_swap_plan own;
    int32_t total = 0;
    pkv_status status = PKV_OK;

    request = pkvi_tier_request(tier, handle, &status);
    if (request == NULL) {
        return status;
    }
    status = read_plan(tier, plan, &own);
    if (status != PKV_OK) {
        return status;
    }
    status = pkvi_read_struct(&own_args, sizeof own_args, sizeof own_args.struct_size, args);
    if (status != PKV_OK || out == NULL ||
        (slots != NULL && slots->struct_size < sizeof slots->struct_size)) {
        return PKVI_TIER_FAIL(tier, status == PKV_OK ? PKV_ERROR_INVALID_ARGUMENT : status,
                              "out is NULL, a struct_size is not set, or a later field is set");
    }
    status = swap_in(tier, request, &own_args, &own_slots, &total, &own);
    if (status == PKV_OK) {
        *out = perform_in(tier, request, handle, own_args.num_new_computed_tokens, total, &own);
    }
    if (slots != NULL && status >= PKV_OK) {
        (void)pkvi_write_struct(slots, &own_slots, sizeof own_slots, sizeof own_slots.struct_size);
    }
    (void)pkvi_write_struct(plan, &own, sizeof own, sizeof own.struct_size);
    PKVI_TIER_CHECK_AFTER(tier);
    return status;
}
