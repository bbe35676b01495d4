/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The life of a tier (configuration, layout, creation), its content as a whole, and statistics. */
#include "tier/tier.h"

#include <string.h>

/* Read a caller's configuration, put the defaults in, and check it. */
static pkv_status read_config(const pkv_tier_config *config,
                              pkv_tier_config *own,
                              const char **reason) {
    pkv_status status = pkvi_read_struct(own, sizeof *own, sizeof own->struct_size, config);

    *reason = "";
    if (status != PKV_OK) {
        *reason = status == PKV_ERROR_UNSUPPORTED ? "a field of a later version is set"
                                                  : "config is NULL or its struct_size is not set";
        return status;
    }
    own->max_swaps = own->max_swaps == 0 ? PKV_DEFAULT_MAX_SWAPS : own->max_swaps;
    if (own->max_blocks_in_flight == 0) {
        own->max_blocks_in_flight = own->num_blocks - 1;
    }
    if (own->manager == NULL) {
        *reason = "manager is NULL";
    } else if (own->num_blocks < 2 || own->num_blocks > PKV_MAX_BLOCKS) {
        *reason = "num_blocks must be 2 to PKV_MAX_BLOCKS, the null slot included";
    } else if (own->max_swaps < 1 || own->max_swaps > PKV_MAX_SWAPS) {
        *reason = "max_swaps must be 1 to PKV_MAX_SWAPS";
    } else if (own->max_blocks_in_flight < 1 || own->max_blocks_in_flight > PKV_MAX_BLOCKS) {
        *reason = "max_blocks_in_flight must be 1 to PKV_MAX_BLOCKS";
    } else if (!pkvi_allocator_is_valid(&own->allocator)) {
        *reason = "the allocator must have both functions or neither";
    } else if (!own->manager->pool->is_caching) {
        *reason = "the manager's blocks have no keys: disable_prefix_cache";
        return PKV_ERROR_UNSUPPORTED;
    }
    return **reason == '\0' ? PKV_OK : PKV_ERROR_INVALID_ARGUMENT;
}

/* Pins of this tier, for the manager's checker and its count of pending blocks. */
static int32_t count_pins(const struct pkvi_holder *holder, int32_t delta) {
    const pkv_tier *tier = (const pkv_tier *)(const void *)holder;
    struct pkvi_block_state *states = tier->manager->pool->states;
    int32_t count = 0;

    for (int32_t s = 0; s < tier->max_swaps && tier->num_pins > 0; s++) {
        const struct pkvi_swap *swap = &tier->swaps[s];

        if (!swap->is_open || (!swap->is_inward && swap->is_detached)) {
            continue;
        }
        for (int32_t f = swap->first_flight; f != PKVI_NO_FLIGHT; f = tier->flights[f].next) {
            struct pkvi_block_state *state = &states[tier->flights[f].block];
            if (tier->flights[f].block != PKV_NULL_BLOCK) {
                state->ref_cnt = (state->ref_cnt + (uint32_t)delta) & (uint32_t)PKV_MAX_REF_CNT;
                count += state->ref_cnt == 0 ? 1 : 0;
            }
        }
    }
    return count;
}

static void link_free(pkv_tier *tier) {
    for (int32_t i = 0; i < tier->max_swaps; i++) {
        tier->swaps[i] = (struct pkvi_swap){0};
        tier->swaps[i].next_free = i + 1 < tier->max_swaps ? i + 1 : -1;
    }
    for (int32_t i = 0; i < tier->max_flights; i++) {
        memset(&tier->flights[i], 0, sizeof tier->flights[i]);
        tier->flights[i].next = i + 1 < tier->max_flights ? i + 1 : PKVI_NO_FLIGHT;
    }
    for (int32_t i = 0; i < tier->manager->pool->num_blocks; i++) {
        tier->flight_of[i] = PKVI_NO_FLIGHT;
    }
}

static pkv_tier *build(const pkv_tier_config *config, struct pkvi_carver *carver) {
    const pkv_manager *manager = config->manager;
    pkv_pool_config pool_config = {.struct_size = sizeof pool_config,
                                   .num_blocks = config->num_blocks,
                                   .num_groups = manager->num_groups,
                                   .block_sizes = manager->pool->block_sizes,
                                   .block_size = PKV_DEFAULT_BLOCK_SIZE,
                                   .store_tokens = manager->pool->stored_tokens != NULL};
    pkv_tier layout;
    pkv_tier *tier = pkvi_carve(carver, 1, sizeof *tier);

    memset(&layout, 0, sizeof layout);
    layout.swaps = pkvi_carve(carver, (size_t)config->max_swaps, sizeof *layout.swaps);
    layout.flights =
        pkvi_carve(carver, (size_t)config->max_blocks_in_flight, sizeof *layout.flights);
    layout.flight_of = pkvi_carve(carver, (size_t)manager->pool->num_blocks, sizeof(int32_t));
    layout.error = pkvi_carve(carver, 1, sizeof *layout.error);
    layout.found = pkvi_carve(carver, (size_t)manager->num_groups, sizeof *layout.found);
    for (int32_t g = 0; g < manager->num_groups; g++) {
        pkv_block_id *found =
            pkvi_carve(carver, (size_t)manager->groups[g].table.width, sizeof *found);
        if (tier != NULL) {
            layout.found[g] = found;
        }
    }
    layout.pool = pkvi_pool_build(&pool_config, carver);
    if (tier == NULL) {
        return NULL;
    }
    layout.manager = config->manager;
    layout.max_swaps = config->max_swaps;
    layout.max_flights = config->max_blocks_in_flight;
    layout.allocator = config->allocator;
    layout.holder.count = count_pins;
    memcpy(layout.identity, config->identity, sizeof layout.identity);
    memset(layout.error, 0, sizeof *layout.error);
    *tier = layout;
    link_free(tier);
    tier->holder.next = config->manager->holders;
    config->manager->holders = &tier->holder;
    return tier;
}

/* Size of a checked configuration; 0 when it does not fit into size_t. */
static size_t measure(const pkv_tier_config *own) {
    struct pkvi_carver carver = {NULL, 0, false};

    (void)build(own, &carver);
    return carver.overflowed ? 0 : carver.offset;
}

pkv_status pkv_tier_config_check(const pkv_tier_config *config, const char **reason) {
    pkv_tier_config own;
    const char *text;
    pkv_status status = read_config(config, &own, &text);

    if (reason != NULL) {
        *reason = text;
    }
    return status;
}

size_t pkv_tier_size(const pkv_tier_config *config) {
    pkv_tier_config own;
    const char *reason;

    return read_config(config, &own, &reason) == PKV_OK ? measure(&own) : 0;
}

pkv_status pkv_tier_init(const pkv_tier_config *config, void *memory, size_t size, pkv_tier **out) {
    pkv_tier_config own;
    const char *reason;
    struct pkvi_carver carver = {memory, 0, false};
    size_t needed;
    pkv_status status = read_config(config, &own, &reason);

    if (out == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    *out = NULL;
    if (status != PKV_OK) {
        return status;
    }
    needed = measure(&own);
    if (!pkvi_memory_fits(memory, size, needed)) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    *out = build(&own, &carver);
    (*out)->memory_size = needed;
    return PKV_OK;
}

pkv_status pkv_tier_create(const pkv_tier_config *config, pkv_tier **out) {
    pkv_tier_config own;
    const char *reason;
    size_t size;
    void *memory;
    pkv_status status = read_config(config, &own, &reason);

    if (out == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    *out = NULL;
    if (status != PKV_OK) {
        return status;
    }
    size = measure(&own);
    memory = size == 0 ? NULL : pkvi_allocate(&own.allocator, size);
    if (memory == NULL) {
        return PKV_ERROR_OUT_OF_MEMORY;
    }
    status = pkv_tier_init(config, memory, size, out);
    if (status != PKV_OK) {
        pkvi_release(&own.allocator, memory, size);
        return status;
    }
    (*out)->owns_memory = true;
    return PKV_OK;
}

void pkv_tier_destroy(pkv_tier *tier) {
    struct pkvi_holder **link;

    if (tier == NULL) {
        return;
    }
    for (int32_t i = 0; i < tier->max_swaps; i++) {
        if (tier->swaps[i].is_open) {
            pkvi_tier_end_swap(tier, &tier->swaps[i], false);
        }
    }
    link = &tier->manager->holders;
    while (*link != &tier->holder) {
        link = &(*link)->next;
    }
    *link = tier->holder.next;
    if (tier->owns_memory) {
        pkv_allocator allocator = tier->allocator;
        pkvi_release(&allocator, tier, tier->memory_size);
    }
}

const char *pkv_tier_last_error(const pkv_tier *tier) {
    return tier == NULL ? "" : tier->error->text;
}

struct pkvi_request *pkvi_tier_request(const pkv_tier *tier,
                                       pkv_request handle,
                                       pkv_status *status) {
    struct pkvi_request *request;

    if (tier == NULL) {
        *status = PKV_ERROR_INVALID_ARGUMENT;
        return NULL;
    }
    request = pkvi_request_get(&tier->manager->requests, handle);
    if (request == NULL) {
        *status = PKVI_TIER_FAIL(tier, PKV_ERROR_STALE_HANDLE, "request {%u, %u} is not open",
                                 handle.index, handle.generation);
    }
    return request;
}

/* ---- identity -------------------------------------------------------------------------------- */

static void put(uint8_t *target, uint64_t value) {
    for (int32_t i = 0; i < 8; i++) {
        target[i] = (uint8_t)(value >> (8 * i));
    }
}

/* A chain of digests over fixed records: what was so far, then four numbers. */
static void mix(uint8_t *state, uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
    static const struct pkvi_hash_keys keys[2] = {{0, {0, 0}}, {1, {1, 1}}};
    uint8_t record[PKV_TIER_FINGERPRINT_SIZE + 32];
    struct pkvi_digest digest;

    memcpy(record, state, PKV_TIER_FINGERPRINT_SIZE);
    put(record + PKV_TIER_FINGERPRINT_SIZE, a);
    put(record + PKV_TIER_FINGERPRINT_SIZE + 8, b);
    put(record + PKV_TIER_FINGERPRINT_SIZE + 16, c);
    put(record + PKV_TIER_FINGERPRINT_SIZE + 24, d);
    digest = pkvi_hash_bytes(&keys[0], record, sizeof record);
    put(state, digest.hash_low);
    put(state + 8, digest.hash_high);
    digest = pkvi_hash_bytes(&keys[1], record, sizeof record);
    put(state + 16, digest.hash_low);
    put(state + 24, digest.hash_high);
}

pkv_status pkv_tier_get_fingerprint(const pkv_tier *tier, uint8_t *fingerprint) {
    static const char subject[] = "pagedkv tier";
    const struct pkvi_hash_keys *keys;
    uint8_t state[PKV_TIER_FINGERPRINT_SIZE];

    if (tier == NULL || fingerprint == NULL) {
        return tier == NULL
                   ? PKV_ERROR_INVALID_ARGUMENT
                   : PKVI_TIER_FAIL(tier, PKV_ERROR_INVALID_ARGUMENT, "fingerprint is NULL");
    }
    keys = &tier->manager->requests.hash_keys;
    memcpy(state, tier->identity, sizeof state);
    mix(state, 1, (uint64_t)tier->manager->num_groups, keys->seed,
        pkvi_siphash(keys->secret, subject, sizeof subject));
    for (int32_t g = 0; g < tier->manager->num_groups; g++) {
        const struct pkvi_group *group = &tier->manager->groups[g];
        mix(state, (uint64_t)group->kind, (uint64_t)group->block_size, (uint64_t)group->window,
            (uint64_t)tier->manager->requests.hash_block_size);
    }
    memcpy(fingerprint, state, sizeof state);
    return PKV_OK;
}

/* ---- content --------------------------------------------------------------------------------- */

/* Check that every slot can be given a key, and that none is named twice: marks by is_keyed. */
static pkv_status check_restored(const pkv_tier *tier,
                                 const int32_t *groups,
                                 const pkv_block_id *slots,
                                 int32_t num_blocks) {
    struct pkvi_block_state *states = tier->pool->states;
    int32_t num_checked = 0;

    for (; num_checked < num_blocks; num_checked++) {
        pkv_block_id slot = slots[num_checked];

        if (slot == PKV_NULL_BLOCK || !pkvi_pool_has_block(tier->pool, slot) ||
            states[slot].ref_cnt != 0 || states[slot].is_keyed ||
            !pkvi_pool_has_group(tier->pool, groups[num_checked])) {
            break;
        }
        states[slot].is_keyed = 1;
    }
    for (int32_t i = 0; i < num_checked; i++) {
        states[slots[i]].is_keyed = 0;
    }
    return num_checked == num_blocks
               ? PKV_OK
               : PKVI_TIER_FAIL(tier, PKV_ERROR_INVALID_ARGUMENT,
                                "slot %d at index %d is out of range, in use, keyed or named "
                                "twice, or its group does not exist",
                                slots[num_checked], num_checked);
}

pkv_status pkv_tier_restore(pkv_tier *tier,
                            const pkv_block_key *keys,
                            const int32_t *groups,
                            const pkv_block_id *slots,
                            const int32_t *token_ids,
                            int32_t num_blocks) {
    bool has_tokens = tier != NULL && tier->pool->stored_tokens != NULL;
    pkv_status status;

    if (tier == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    if (num_blocks < 0 || (num_blocks > 0 && (keys == NULL || groups == NULL || slots == NULL ||
                                              (has_tokens && token_ids == NULL)))) {
        return PKVI_TIER_FAIL(tier, PKV_ERROR_INVALID_ARGUMENT,
                              "num_blocks is negative, or an array is NULL; with store_tokens "
                              "token_ids is wanted, too");
    }
    status = check_restored(tier, groups, slots, num_blocks);
    for (int32_t i = 0; i < num_blocks && status == PKV_OK; i++) {
        struct pkvi_publication call = {0};
        const int32_t *own =
            has_tokens ? token_ids + (size_t)i * (size_t)tier->pool->index->tokens_per_block : NULL;

        if (pkvi_prefix_index_find(tier->pool->index, groups[i], &keys[i], own,
                                   tier->pool->block_sizes[groups[i]]) != PKV_NULL_BLOCK) {
            continue;
        }
        call.group = groups[i];
        pkvi_pool_touch_block(tier->pool, slots[i]);
        pkvi_pool_publish(tier->pool, &call, slots[i], &keys[i],
                          pkvi_prefix_index_home(tier->pool->index, groups[i], &keys[i]), own);
        (void)pkvi_pool_release(tier->pool, &slots[i], 1, false);
    }
    PKVI_TIER_CHECK_AFTER(tier);
    return status;
}

pkv_status pkv_tier_evict(pkv_tier *tier, const pkv_block_id *slots, int32_t num_blocks) {
    pkv_status status;

    if (tier == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    status = pkv_pool_evict_blocks(tier->pool, slots, num_blocks);
    return status == PKV_OK ? PKV_OK
                            : PKVI_TIER_FAIL(tier, status, "%s", pkv_pool_last_error(tier->pool));
}

pkv_status pkv_tier_reset(pkv_tier *tier) {
    if (tier == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    if (tier->holder.num_open > 0) {
        return PKVI_TIER_FAIL(tier, PKV_ERROR_BUSY, "%d swaps are open", tier->holder.num_open);
    }
    pkvi_pool_forget_all(tier->pool);
    PKVI_TIER_CHECK_AFTER(tier);
    return PKV_OK;
}

/* ---- statistics ------------------------------------------------------------------------------ */

pkv_status pkv_tier_get_stats(const pkv_tier *tier, pkv_tier_stats *out) {
    pkv_tier_stats stats = {0};

    if (tier == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    stats.num_blocks = tier->pool->num_blocks;
    stats.num_free_blocks = tier->pool->free_queue.num_free;
    stats.num_cached_blocks = tier->pool->index->num_keyed;
    stats.num_swaps = tier->holder.num_open;
    stats.num_blocks_in_flight = tier->num_flights;
    stats.num_pinned_blocks = tier->num_pins;
    stats.num_swap_outs = tier->counters.num_swap_outs;
    stats.num_swap_ins = tier->counters.num_swap_ins;
    stats.num_commits = tier->counters.num_commits;
    stats.num_aborts = tier->counters.num_aborts;
    stats.num_blocks_out = tier->counters.num_blocks_out;
    stats.num_blocks_in = tier->counters.num_blocks_in;
    stats.num_blocks_kept = tier->counters.num_blocks_kept;
    stats.num_blocks_dropped = tier->counters.num_blocks_dropped;
    stats.num_blocks_evicted = tier->pool->num_blocks_evicted;
    stats.num_tokens_in = tier->counters.num_tokens_in;
    stats.num_collisions_rejected = tier->pool->index->num_collisions_rejected;
    return pkvi_write_struct(out, &stats, sizeof stats, sizeof stats.struct_size) == PKV_OK
               ? PKV_OK
               : PKVI_TIER_FAIL(tier, PKV_ERROR_INVALID_ARGUMENT,
                                "out is NULL or its struct_size is not set");
}

const pkv_pool *pkv_tier_get_pool(const pkv_tier *tier) {
    return tier == NULL ? NULL : tier->pool;
}
