/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The inside of a tier: the pool of slots, the open swaps and their flights, and the helpers that
 * its files share. Life and content are in tier.c, what the tier holds of a request in find.c, what
 * a swap-out would do in draft.c, planning in swap.c, the ends of swaps in flight.c, the checker in
 * check.c.
 *
 * The one idea: a flight is one block under way, and the only thing that pins: everything that a
 * swap holds is in its list of flights, so that ending a swap is walking that list. */
#ifndef PKVI_TIER_TIER_H
#define PKVI_TIER_TIER_H

#include <pagedkv/tier.h>

#include "manager/manager.h"

#define PKVI_NO_FLIGHT (-1)

/* A block of the manager and a slot, one of which is to get what the other holds. T3: in the list
 * of one open swap, or on the free list. */
struct pkvi_flight {
    pkv_block_key key;
    pkv_block_id block; /* PKV_NULL_BLOCK: nothing is copied, the slot is kept from eviction */
    pkv_block_id slot;
    int32_t group;
    int32_t column; /* of the block in the request's table */
    int32_t previous, next;
    int32_t older; /* open flight that copies the same block out, see flight_of */
    bool is_open;
};

/* An open swap, or a free place. Its flights stand by group and rising column. */
struct pkvi_swap {
    uint32_t generation;
    bool is_open;
    bool is_inward;   /* from slots to blocks */
    bool is_detached; /* the sources are pinned no more */
    int32_t first_flight, last_flight;
    int32_t num_flights;
    int32_t next_free;
    pkv_request request; /* inward: whose table holds the blocks, while it does */
    int32_t allocation;
    int32_t num_tokens; /* inward: tokens at the start of the request that are there after it */
};

struct pkvi_tier_counters {
    uint64_t num_swap_outs, num_swap_ins, num_commits, num_aborts;
    uint64_t num_blocks_out, num_blocks_in, num_blocks_kept, num_blocks_dropped;
    uint64_t num_tokens_in;
};

struct pkv_tier {
    struct pkvi_holder holder; /* first, so that the manager's pointer leads back here */
    pkv_manager *manager;
    pkv_pool *pool; /* of slots */
    struct pkvi_swap *swaps;
    int32_t max_swaps;
    int32_t first_free_swap; /* -1 when all are open */
    struct pkvi_flight *flights;
    int32_t max_flights;
    int32_t first_free_flight;
    int32_t num_flights;  /* of open swaps */
    int32_t num_pins;     /* references to blocks of the manager */
    int32_t *flight_of;   /* [blocks of the manager] open flight that copies it out, the youngest; a
                             block that was detached and used again has older ones, see T5 */
    pkv_block_id **found; /* [groups][width] slots of the last search, by column */
    struct pkvi_error_text *error; /* apart, since const readers can fail */
    struct pkvi_tier_counters counters;
    uint8_t identity[32];
    pkv_allocator allocator;
    size_t memory_size;
    bool owns_memory;
};

/* Note an error; for guards. */
#define PKVI_TIER_FAIL(tier, status, ...) pkvi_fail((tier)->error, status, __VA_ARGS__)

/* The request of a handle. Else NULL, and *status says why. */
struct pkvi_request *pkvi_tier_request(const pkv_tier *tier,
                                       pkv_request handle,
                                       pkv_status *status);

/* Columns [first, end) of group g that a load of tokens [local, total) fills. */
struct pkvi_tier_range {
    int32_t first, end;
};

static inline struct pkvi_tier_range pkvi_tier_columns(const struct pkvi_group *group,
                                                       int32_t local,
                                                       int32_t total) {
    int32_t skipped = (int32_t)pkvi_group_num_skipped_blocks(group, total);
    struct pkvi_tier_range range = {local / group->block_size, total / group->block_size};

    range.first = range.first > skipped ? range.first : skipped;
    return range;
}

/* Copies that such a load is, in all groups; none where windows see nothing of these tokens. */
int32_t pkvi_tier_count_columns(const pkv_tier *tier, int32_t local, int32_t total);

/* The largest total <= `most`, above `local`, so that the tier holds all that every group needs of
 * tokens [local, total); or `local`. The slots go to tier->found. */
int32_t pkvi_tier_find(const pkv_tier *tier,
                       const struct pkvi_request *request,
                       int32_t local,
                       int32_t most);

/* The same with no limit but the request's own, and a block less for draft layers; `local` where
 * nothing would be copied. */
int32_t pkvi_tier_find_longest(const pkv_tier *tier,
                               const struct pkvi_request *request,
                               int32_t local);

/* A swap-out that is not decided yet. The first num_flights of the free list are drafts, where it
 * has so many, and know the one before them. */
struct pkvi_draft {
    int32_t next_free; /* the flight that the next draft takes */
    int32_t last;      /* that was drafted; PKVI_NO_FLIGHT: none */
    int32_t num_flights;
    int32_t num_copies;
    int32_t num_kept_free; /* slots to keep that nobody else pins */
    int32_t num_tokens;
};

void pkvi_tier_draft(const pkv_tier *tier,
                     const struct pkvi_request *request,
                     struct pkvi_draft *draft);

/* Slots that are in the tier already only become the last to be evicted, the end of the prefix
 * first. */
void pkvi_tier_touch_kept(const pkv_tier *tier, const struct pkvi_draft *draft);

/* End a swap: publish its targets where `publishes`, let go of everything. */
void pkvi_tier_end_swap(pkv_tier *tier, struct pkvi_swap *swap, bool publishes);

/* In level-2 builds, check everything after a mutation. */
#define PKVI_TIER_CHECK_AFTER(tier)                                                                \
    PKV_ASSERT_SLOW(pkv_tier_check(tier) == PKV_OK && pkv_manager_check((tier)->manager) == PKV_OK)

#endif
