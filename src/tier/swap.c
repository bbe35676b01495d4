/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Planning swaps: which blocks go out to the tier, and the one transaction of a swap-in. How swaps
 * end is in flight.c.
 *
 * The one idea: flights are drafted on the free list, which costs nothing to give up, and become
 * the swap's when nothing can fail any more. */
#include <string.h>

#include "tier/tier.h"

/* How far a plan reads the index ahead, and how many slots are taken together. */
#define PLAN_AHEAD 16
#define TAKE_TOGETHER 32

/* A swap-out that is not decided yet. The first num_drafted flights of the free list are drafts. */
struct draft {
    int32_t next_free; /* the flight that the next draft takes */
    int32_t num_flights;
    int32_t num_copies;
    int32_t num_kept_free; /* slots to keep that nobody else pins */
    int32_t num_tokens;
};

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
 * `last`. */
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
    for (int32_t f = swap->first_flight, before = PKVI_NO_FLIGHT; f != PKVI_NO_FLIGHT;
         before = f, f = tier->flights[f].next) {
        tier->flights[f].previous = before;
        tier->flights[f].is_open = true;
    }
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

/* Add one copy to the plan, and its tokens to the pool of the target. */
static void plan_flight(const pkv_tier *tier,
                        const struct pkvi_request *request,
                        const struct pkvi_flight *flight,
                        bool inward,
                        pkv_swap_plan *own) {
    pkv_pool *pool = inward ? tier->manager->pool : tier->pool;
    pkv_block_id target = inward ? flight->block : flight->slot;
    int32_t i = own->num_copies++;

    own->copies[i].source = inward ? flight->slot : flight->block;
    own->copies[i].target = target;
    if (own->groups != NULL) {
        own->groups[i] = flight->group;
    }
    if (own->keys != NULL) {
        own->keys[i] = flight->key;
    }
    if (own->token_ids != NULL) {
        int32_t most = 1;
        for (int32_t g = 0; g < tier->manager->num_groups; g++) {
            int32_t block_size = tier->manager->groups[g].block_size;
            most = most > block_size ? most : block_size;
        }
        write_tokens(tier, request, flight, own->token_ids + (size_t)i * (size_t)most);
    }
    if (pool->stored_tokens != NULL) {
        write_tokens(tier, request, flight,
                     pool->stored_tokens + (size_t)target * (size_t)pool->index->tokens_per_block);
    }
}

/* ---- out ------------------------------------------------------------------------------------- */

/* Whether an open swap brings the block to the tier already. */
static bool is_under_way(const pkv_tier *tier, pkv_block_id block, const pkv_block_key *key) {
    int32_t f = tier->flight_of[block];

    return f != PKVI_NO_FLIGHT && tier->flights[f].is_open && tier->flights[f].block == block &&
           pkvi_key_equal(&tier->flights[f].key, key);
}

/* Block PKV_NULL_BLOCK: only the slot is kept. */
static inline void add_draft(const pkv_tier *tier,
                             struct draft *draft,
                             const pkv_block_key *key,
                             int32_t g,
                             int32_t column,
                             pkv_block_id block,
                             pkv_block_id slot) {
    draft->num_flights++;
    draft->num_copies += block != PKV_NULL_BLOCK ? 1 : 0;
    if (draft->next_free != PKVI_NO_FLIGHT) {
        struct pkvi_flight *place = &tier->flights[draft->next_free];

        place->key = *key;
        place->block = block;
        place->slot = slot;
        place->group = g;
        place->column = column;
        draft->next_free = place->next;
    }
}

/* Draft what one group's table has: copies, and slots to keep. Coverage ends at the first block
 * that is neither in the tier nor on its way. */
static void draft_group(const pkv_tier *tier,
                        const struct pkvi_request *request,
                        int32_t g,
                        struct draft *draft) {
    const pkv_manager *manager = tier->manager;
    const struct pkvi_group *group = &manager->groups[g];
    const pkv_block_id *cells = pkvi_manager_cells(manager, g, request->row);
    bool with_tokens = tier->pool->stored_tokens != NULL;
    int32_t num_blocks = pkvi_manager_row(manager, g, request->row)->num_blocks;
    int32_t num_keyed = request->num_keys / group->key_stride;
    int32_t end = num_blocks < num_keyed ? num_blocks : num_keyed;
    int32_t covered = end;
    struct pkvi_key_cursor cursor =
        pkvi_request_keys(&manager->requests, request, group->key_stride, 0, with_tokens);
    struct pkvi_key_cursor ahead = cursor;
    int32_t num_ahead = 0;

    for (int32_t i = 0; i < end; i++, pkvi_key_cursor_advance(&cursor)) {
        const struct pkvi_block_state *state = &manager->pool->states[cells[i]];
        const pkv_block_key *key = pkvi_key_cursor_key(&cursor);
        pkv_block_id slot;

        for (; num_ahead < end && num_ahead < i + PLAN_AHEAD; num_ahead++) {
            (void)pkvi_prefix_index_approach(tier->pool->index, g, pkvi_key_cursor_key(&ahead));
            pkvi_key_cursor_advance(&ahead);
        }
        if (cells[i] == PKV_NULL_BLOCK || is_under_way(tier, cells[i], key)) {
            continue;
        }
        if (!state->is_keyed || pkvi_publish_log_step(&manager->pool->log, cells[i]) != 0) {
            covered = covered < i ? covered : i;
            continue;
        }
        slot = pkvi_prefix_index_find(tier->pool->index, g, key, pkvi_key_cursor_tokens(&cursor),
                                      group->block_size);
        if (slot != PKV_NULL_BLOCK) {
            draft->num_kept_free += tier->pool->states[slot].ref_cnt == 0 ? 1 : 0;
        }
        add_draft(tier, draft, key, g, i, slot == PKV_NULL_BLOCK ? cells[i] : PKV_NULL_BLOCK, slot);
    }
    if (covered * group->block_size < draft->num_tokens) {
        draft->num_tokens = covered * group->block_size;
    }
}

/* Give slots to the drafted copies. What is kept has been pinned, so none of it is evicted. */
static void take_slots(pkv_tier *tier, struct pkvi_swap *swap) {
    int32_t f = swap->first_flight;

    while (f != PKVI_NO_FLIGHT) {
        pkv_block_id slots[TAKE_TOGETHER];
        int32_t group = tier->flights[f].group;
        int32_t count = 0;
        int32_t last = f;

        for (;
             last != PKVI_NO_FLIGHT && tier->flights[last].group == group && count < TAKE_TOGETHER;
             last = tier->flights[last].next) {
            count += tier->flights[last].block != PKV_NULL_BLOCK ? 1 : 0;
        }
        pkvi_pool_take(tier->pool, group, count, slots);
        for (count = 0; f != last; f = tier->flights[f].next) {
            if (tier->flights[f].block != PKV_NULL_BLOCK) {
                tier->flights[f].slot = slots[count++];
            }
        }
    }
}

/* Everything that changes; nothing here can fail. */
static void perform_out(pkv_tier *tier,
                        const struct pkvi_request *request,
                        struct pkvi_swap *swap,
                        pkv_swap_plan *own) {
    for (int32_t f = swap->first_flight; f != PKVI_NO_FLIGHT; f = tier->flights[f].next) {
        const struct pkvi_flight *flight = &tier->flights[f];

        if (flight->block == PKV_NULL_BLOCK) {
            pkvi_pool_touch_block(tier->pool, flight->slot);
        } else {
            pkvi_pool_touch_block(tier->manager->pool, flight->block);
            tier->num_pins++;
            tier->flight_of[flight->block] = f;
        }
    }
    take_slots(tier, swap);
    for (int32_t f = swap->first_flight; f != PKVI_NO_FLIGHT; f = tier->flights[f].next) {
        if (tier->flights[f].block != PKV_NULL_BLOCK) {
            plan_flight(tier, request, &tier->flights[f], false, own);
        }
    }
    tier->counters.num_swap_outs++;
    tier->counters.num_blocks_out += (uint64_t)own->num_copies;
    tier->counters.num_blocks_kept += (uint64_t)(swap->num_flights - own->num_copies);
}

/* Slots that are in the tier already only become the last to be evicted, the end of the prefix
 * first. */
static void touch_kept(const pkv_tier *tier, const struct draft *draft) {
    int32_t previous = PKVI_NO_FLIGHT;
    int32_t f = tier->first_free_flight;

    for (int32_t i = 0; i < draft->num_flights; i++, f = tier->flights[f].next) {
        tier->flights[f].previous = previous;
        previous = f;
    }
    for (int32_t i = 0; i < draft->num_flights; i++, previous = tier->flights[previous].previous) {
        pkv_block_id slot = tier->flights[previous].slot;
        if (tier->pool->states[slot].ref_cnt == 0) {
            pkvi_free_queue_remove(&tier->pool->free_queue, slot);
            pkvi_free_queue_append(&tier->pool->free_queue, slot);
        }
    }
}

static pkv_status swap_out(pkv_tier *tier,
                           const struct pkvi_request *request,
                           pkv_swap_plan *own,
                           pkv_swap *out) {
    struct draft draft = {tier->first_free_flight, 0, 0, 0, request->num_tokens};
    struct pkvi_swap *swap;
    int32_t last = tier->first_free_flight;
    pkv_status status;

    for (int32_t g = 0; g < tier->manager->num_groups; g++) {
        draft_group(tier, request, g, &draft);
    }
    own->num_tokens = draft.num_tokens;
    if (draft.num_copies == 0) {
        if (draft.num_flights <= tier->max_flights - tier->num_flights) {
            touch_kept(tier, &draft);
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
    for (int32_t i = 1; i < draft.num_flights; i++) {
        last = tier->flights[last].next;
    }
    swap = open_swap(tier, draft.num_flights, last, false);
    perform_out(tier, request, swap, own);
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

static int32_t count_columns(const pkv_tier *tier, int32_t local, int32_t total) {
    int32_t count = 0;

    for (int32_t g = 0; g < tier->manager->num_groups; g++) {
        struct pkvi_tier_range range = pkvi_tier_columns(&tier->manager->groups[g], local, total);
        count += range.end > range.first ? range.end - range.first : 0;
    }
    return count;
}

/* Draft the flights of a load on the free list; returns the last. */
static int32_t draft_load(pkv_tier *tier,
                          const struct pkvi_request *request,
                          int32_t local,
                          int32_t total) {
    const pkv_manager *manager = tier->manager;
    int32_t f = tier->first_free_flight;
    int32_t last = f;

    for (int32_t g = 0; g < manager->num_groups; g++) {
        const struct pkvi_group *group = &manager->groups[g];
        const pkv_block_id *cells = pkvi_manager_cells(manager, g, request->row);
        struct pkvi_tier_range range = pkvi_tier_columns(group, local, total);
        struct pkvi_key_cursor cursor =
            pkvi_request_keys(&manager->requests, request, group->key_stride, range.first, false);

        for (int32_t i = range.first; i < range.end; i++, pkvi_key_cursor_advance(&cursor)) {
            struct pkvi_flight *flight = &tier->flights[f];
            int32_t next = flight->next;

            PKV_ASSERT(cells[i] != PKV_NULL_BLOCK && tier->found[g][i] != PKV_NULL_BLOCK);
            *flight = (struct pkvi_flight){*pkvi_key_cursor_key(&cursor),
                                           cells[i],
                                           tier->found[g][i],
                                           g,
                                           i,
                                           PKVI_NO_FLIGHT,
                                           next,
                                           false};
            last = f;
            f = next;
        }
    }
    return last;
}

/* The load of a request that has its table; nothing here can fail. */
static pkv_swap perform_in(pkv_tier *tier,
                           struct pkvi_request *request,
                           pkv_request handle,
                           int32_t local,
                           int32_t total,
                           pkv_swap_plan *own) {
    int32_t last = draft_load(tier, request, local, total);
    struct pkvi_swap *swap = open_swap(tier, count_columns(tier, local, total), last, true);

    swap->request = handle;
    swap->allocation = request->num_allocations;
    swap->num_tokens = total;
    request->loading_allocation = request->num_allocations;
    for (int32_t f = swap->first_flight; f != PKVI_NO_FLIGHT; f = tier->flights[f].next) {
        pkvi_pool_touch_block(tier->pool, tier->flights[f].slot);
        pkvi_pool_touch_block(tier->manager->pool, tier->flights[f].block);
        tier->num_pins++;
        plan_flight(tier, request, &tier->flights[f], true, own);
    }
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
    count = count_columns(tier, local, *total);
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
