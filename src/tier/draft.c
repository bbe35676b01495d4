/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Which blocks of a request a swap-out would copy, and which slots it would keep. It changes
 * nothing but flights that are free.
 *
 * The one idea: flights are drafted on the free list, which costs nothing to give up. */
#include "tier/tier.h"

/* Columns whose places in the index are read ahead together. */
#define PLAN_PIECE 16

/* Whether an open swap brings the block to the tier already. */
static inline bool is_under_way(const pkv_tier *tier,
                                pkv_block_id block,
                                const pkv_block_key *key) {
    int32_t f = tier->flight_of[block];

    while (f != PKVI_NO_FLIGHT && !pkvi_key_equal(&tier->flights[f].key, key)) {
        f = tier->flights[f].older;
    }
    return f != PKVI_NO_FLIGHT;
}

/* Whether a keyed block holds what its column's key says: no step under way is to write it, nor a
 * copy that waits. Behind the settled columns (I15) its key may be that of tokens that were taken
 * back. */
static bool is_computed(const pkv_manager *manager,
                        const struct pkvi_request *request,
                        int32_t g,
                        int32_t column,
                        pkv_block_id block) {
    return pkvi_publish_log_step(&manager->pool->log, block) == 0 &&
           (manager->copies.num_pending == 0 ||
            manager->copies.source_of[block] == PKV_NULL_BLOCK) &&
           (column < pkvi_manager_row(manager, g, request->row)->num_cached ||
            !pkvi_manager_is_foreign(manager, g, request, column));
}

/* Block PKV_NULL_BLOCK: only the slot is kept. */
static inline void add_draft(const pkv_tier *tier,
                             struct pkvi_draft *draft,
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
        place->previous = draft->last;
        draft->last = draft->next_free;
        draft->next_free = place->next;
    }
}

/* Columns of a group from `first` on whose keys lie `stride` apart, at most PLAN_PIECE. */
struct draft_piece {
    int32_t first, count;
    size_t stride;
    const pkv_block_key *keys;
    const int32_t *token_ids; /* NULL: keys are compared only */
    struct pkvi_index_home homes[PLAN_PIECE];
};

/* Read columns ahead: from piece->first on, before `end`, as far as their keys lie together. */
static void approach_piece(const pkv_tier *tier,
                           int32_t g,
                           struct pkvi_key_cursor *cursor,
                           const pkv_block_id *cells,
                           int32_t end,
                           struct draft_piece *piece) {
    int32_t together = pkvi_key_cursor_together(cursor);
    int32_t count = end - piece->first < PLAN_PIECE ? end - piece->first : PLAN_PIECE;

    count = count < together ? count : together;
    piece->keys = pkvi_key_cursor_key(cursor);
    piece->token_ids = pkvi_key_cursor_tokens(cursor);
    for (int32_t i = 0; i < count; i++) {
        piece->homes[i] = pkvi_prefix_index_approach(tier->pool->index, g,
                                                     &piece->keys[(size_t)i * piece->stride]);
        PKVI_PREFETCH(&tier->manager->pool->states[cells[piece->first + i]]);
        PKVI_PREFETCH(&tier->flight_of[cells[piece->first + i]]);
    }
    piece->count = count;
    pkvi_key_cursor_skip(cursor, count);
}

/* Draft the columns of one piece; returns the first that is neither in the tier nor on its way, or
 * `covered`. */
static int32_t draft_piece(const pkv_tier *tier,
                           const struct pkvi_request *request,
                           int32_t g,
                           const struct draft_piece *piece,
                           int32_t covered,
                           struct pkvi_draft *draft) {
    const pkv_manager *manager = tier->manager;
    const pkv_block_id *cells = pkvi_manager_cells(manager, g, request->row) + piece->first;
    int32_t block_size = manager->groups[g].block_size;
    int32_t settled = pkvi_manager_row(manager, g, request->row)->num_cached;
    bool is_quiet =
        manager->copies.num_pending == 0 && pkvi_publish_log_is_empty(&manager->pool->log);

    for (int32_t i = 0; i < piece->count; i++) {
        const pkv_block_key *key = &piece->keys[(size_t)i * piece->stride];
        int32_t column = piece->first + i;
        pkv_block_id slot;

        if (cells[i] == PKV_NULL_BLOCK || is_under_way(tier, cells[i], key)) {
            continue;
        }
        if (!manager->pool->states[cells[i]].is_keyed ||
            !((is_quiet && column < settled) ||
              is_computed(manager, request, g, column, cells[i]))) {
            covered = covered < column ? covered : column;
            continue;
        }
        slot = pkvi_prefix_index_find_at(
            tier->pool->index, g, key, piece->homes[i],
            piece->token_ids == NULL ? NULL : piece->token_ids + (size_t)i * (size_t)block_size,
            block_size);
        if (slot != PKV_NULL_BLOCK) {
            draft->num_kept_free += tier->pool->states[slot].ref_cnt == 0 ? 1 : 0;
        }
        add_draft(tier, draft, key, g, column, slot == PKV_NULL_BLOCK ? cells[i] : PKV_NULL_BLOCK,
                  slot);
    }
    return covered;
}

/* Draft what one group's table has: copies, and slots to keep. */
static void draft_group(const pkv_tier *tier,
                        const struct pkvi_request *request,
                        int32_t g,
                        struct pkvi_draft *draft) {
    const pkv_manager *manager = tier->manager;
    const struct pkvi_group *group = &manager->groups[g];
    const pkv_block_id *cells = pkvi_manager_cells(manager, g, request->row);
    int32_t num_blocks = pkvi_manager_row(manager, g, request->row)->num_blocks;
    int32_t num_keyed = request->num_keys / group->key_stride;
    int32_t end = num_blocks < num_keyed ? num_blocks : num_keyed;
    int32_t covered = end;
    struct draft_piece piece = {.stride = (size_t)group->key_stride};
    struct pkvi_key_cursor cursor = pkvi_request_keys(
        &manager->requests, request, group->key_stride, 0, tier->pool->stored_tokens != NULL);

    for (; piece.first < end; piece.first += piece.count) {
        approach_piece(tier, g, &cursor, cells, end, &piece);
        covered = draft_piece(tier, request, g, &piece, covered, draft);
    }
    if (covered * group->block_size < draft->num_tokens) {
        draft->num_tokens = covered * group->block_size;
    }
}

void pkvi_tier_draft(const pkv_tier *tier,
                     const struct pkvi_request *request,
                     struct pkvi_draft *draft) {
    *draft = (struct pkvi_draft){.next_free = tier->first_free_flight,
                                 .last = PKVI_NO_FLIGHT,
                                 .num_tokens = request->num_tokens};
    for (int32_t g = 0; g < tier->manager->num_groups; g++) {
        draft_group(tier, request, g, draft);
    }
}

void pkvi_tier_touch_kept(const pkv_tier *tier, const struct pkvi_draft *draft) {
    for (int32_t f = draft->last; f != PKVI_NO_FLIGHT; f = tier->flights[f].previous) {
        pkv_block_id slot = tier->flights[f].slot;

        if (tier->pool->states[slot].ref_cnt == 0) {
            pkvi_free_queue_remove(&tier->pool->free_queue, slot);
            pkvi_free_queue_append(&tier->pool->free_queue, slot);
        }
    }
}
