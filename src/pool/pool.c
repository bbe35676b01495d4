/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The life of a pool (configuration, layout, creation) and the unchecked verbs that the manager and
 * pool_verbs.c share. */
#include "pool/pool.h"

#include <string.h>

/* Blocks that are evicted together: so many cache misses are under way at once. */
#define TAKE_PIECE 32

static int32_t tokens_per_block(const pkv_pool_config *config) {
    int32_t largest = config->block_sizes == NULL ? config->block_size : 1;

    for (int32_t group = 0; config->block_sizes != NULL && group < config->num_groups; group++) {
        largest = config->block_sizes[group] > largest ? config->block_sizes[group] : largest;
    }
    return largest;
}

static const char *config_problem(const pkv_pool_config *config) {
    if (config->num_blocks < 1 || config->num_blocks > PKV_MAX_BLOCKS) {
        return "num_blocks must be 1 to PKV_MAX_BLOCKS, the null block included";
    }
    if (config->num_groups < 1 || config->num_groups > PKV_MAX_GROUPS) {
        return "num_groups must be 1 to PKV_MAX_GROUPS";
    }
    if (config->block_size < 1) {
        return "block_size must not be negative";
    }
    for (int32_t group = 0; config->block_sizes != NULL && group < config->num_groups; group++) {
        if (config->block_sizes[group] < 1) {
            return "every element of block_sizes must be at least 1";
        }
    }
    if (config->event_capacity < 0) {
        return "event_capacity must not be negative";
    }
    if (!pkvi_allocator_is_valid(&config->allocator)) {
        return "the allocator must have both functions or neither";
    }
    return NULL;
}

pkv_status pkvi_pool_read_config(const pkv_pool_config *config,
                                 pkv_pool_config *own,
                                 const char **reason) {
    pkv_status status = pkvi_read_struct(own, sizeof *own, sizeof own->struct_size, config);
    const char *problem;

    if (status != PKV_OK) {
        *reason = status == PKV_ERROR_UNSUPPORTED ? "a field of a later version is set"
                                                  : "config is NULL or its struct_size is not set";
        return status;
    }
    own->num_groups = own->num_groups == 0 ? 1 : own->num_groups;
    own->block_size = own->block_size == 0 ? PKV_DEFAULT_BLOCK_SIZE : own->block_size;
    problem = config_problem(own);
    *reason = problem == NULL ? "" : problem;
    return problem == NULL ? PKV_OK : PKV_ERROR_INVALID_ARGUMENT;
}

/* Lay out the index and what it reads. */
static struct pkvi_prefix_index *carve_index(const pkv_pool_config *config,
                                             struct pkvi_carver *carver,
                                             struct pkvi_block_state *states,
                                             int32_t **stored_tokens) {
    struct pkvi_prefix_index layout;
    struct pkvi_prefix_index *index = pkvi_carve(carver, 1, sizeof *index);
    size_t num_blocks = (size_t)config->num_blocks;
    bool has_tokens = config->store_tokens && !config->disable_prefix_cache;
    bool has_counts = config->event_capacity > 0 && !config->disable_prefix_cache;
    size_t num_tokens = has_tokens ? (size_t)tokens_per_block(config) : 0;

    pkvi_prefix_index_carve(&layout, carver, config->num_blocks);
    layout.entries = pkvi_carve(carver, num_blocks, sizeof *layout.entries);
    layout.copy_counts = pkvi_carve(carver, has_counts ? num_blocks : 0, sizeof(int32_t));
    layout.copy_counts = has_counts ? layout.copy_counts : NULL;
    layout.states = states;
    layout.tokens_per_block = (int32_t)num_tokens;
    *stored_tokens = pkvi_carve(carver, num_blocks, num_tokens * sizeof(int32_t));
    *stored_tokens = has_tokens ? *stored_tokens : NULL;
    layout.stored_tokens = *stored_tokens;
    if (index != NULL) {
        memset(layout.entries, 0, num_blocks * sizeof *layout.entries);
        if (layout.copy_counts != NULL) {
            memset(layout.copy_counts, 0, num_blocks * sizeof *layout.copy_counts);
        }
        *index = layout;
    }
    return index;
}

pkv_pool *pkvi_pool_build(const pkv_pool_config *config, struct pkvi_carver *carver) {
    pkv_pool layout;
    size_t num_blocks = (size_t)config->num_blocks;
    pkv_pool *pool = pkvi_carve(carver, 1, sizeof *pool);
    struct pkvi_links *links = pkvi_carve(carver, num_blocks, sizeof *links);
    struct pkvi_links *log_links;

    memset(&layout, 0, sizeof layout);
    layout.states = pkvi_carve(carver, num_blocks, sizeof *layout.states);
    log_links = pkvi_carve(carver, num_blocks, sizeof *log_links);
    layout.error = pkvi_carve(carver, 1, sizeof *layout.error);
    layout.block_sizes = pkvi_carve(carver, (size_t)config->num_groups, sizeof(int32_t));
    layout.index = carve_index(config, carver, layout.states, &layout.stored_tokens);
    pkvi_event_ring_carve(&layout.events, carver,
                          config->disable_prefix_cache ? 0 : config->event_capacity);
    pkvi_fill_list_carve(&layout.fills, carver, config->num_blocks, config->fill_new_blocks);
    if (pool == NULL) {
        return NULL;
    }
    layout.num_blocks = config->num_blocks;
    layout.num_groups = config->num_groups;
    layout.is_caching = !config->disable_prefix_cache;
    layout.allocator = config->allocator;
    layout.fills.states = layout.states;
    memset(layout.states, 0, num_blocks * sizeof *layout.states);
    memset(layout.error, 0, sizeof *layout.error);
    for (int32_t group = 0; group < config->num_groups; group++) {
        layout.block_sizes[group] =
            config->block_sizes != NULL ? config->block_sizes[group] : config->block_size;
    }
    pkvi_free_queue_init(&layout.free_queue, links, config->num_blocks);
    pkvi_publish_log_init(&layout.log, log_links, layout.states, config->num_blocks);
    *pool = layout;
    return pool;
}

pkv_status pkv_pool_config_check(const pkv_pool_config *config, const char **reason) {
    pkv_pool_config own;
    const char *text;
    pkv_status status = pkvi_pool_read_config(config, &own, &text);

    if (reason != NULL) {
        *reason = text;
    }
    return status;
}

/* Size of a checked configuration; 0 when it does not fit into size_t. */
static size_t measure(const pkv_pool_config *own) {
    struct pkvi_carver carver = {NULL, 0, false};

    (void)pkvi_pool_build(own, &carver);
    return carver.overflowed ? 0 : carver.offset;
}

size_t pkv_pool_size(const pkv_pool_config *config) {
    pkv_pool_config own;
    const char *reason;

    return pkvi_pool_read_config(config, &own, &reason) == PKV_OK ? measure(&own) : 0;
}

pkv_status pkv_pool_init(const pkv_pool_config *config, void *memory, size_t size, pkv_pool **out) {
    pkv_pool_config own;
    const char *reason;
    struct pkvi_carver carver = {memory, 0, false};
    size_t needed;
    pkv_status status = pkvi_pool_read_config(config, &own, &reason);

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
    *out = pkvi_pool_build(&own, &carver);
    (*out)->memory_size = needed;
    return PKV_OK;
}

pkv_status pkv_pool_create(const pkv_pool_config *config, pkv_pool **out) {
    pkv_pool_config own;
    const char *reason;
    size_t size;
    void *memory;
    pkv_status status = pkvi_pool_read_config(config, &own, &reason);

    if (out == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    *out = NULL;
    if (status != PKV_OK) {
        PKVI_LOG_REFUSED(config, reason);
        return status;
    }
    size = measure(&own);
    memory = size == 0 ? NULL : pkvi_allocate(&own.allocator, size);
    if (memory == NULL) {
        return PKV_ERROR_OUT_OF_MEMORY;
    }
    status = pkv_pool_init(config, memory, size, out);
    if (status != PKV_OK) {
        pkvi_release(&own.allocator, memory, size);
        return status;
    }
    (*out)->owns_memory = true;
    return PKV_OK;
}

void pkv_pool_destroy(pkv_pool *pool) {
    if (pool != NULL && pool->owns_memory) {
        pkv_allocator allocator = pool->allocator;
        pkvi_release(&allocator, pool, pool->memory_size);
    }
}

const char *pkv_pool_last_error(const pkv_pool *pool) {
    return pool == NULL ? "" : pool->error->text;
}

/* ---- unchecked verbs ------------------------------------------------------------------------- */

static void push_removed(pkv_pool *pool,
                         pkv_block_id block,
                         const pkv_block_key *key,
                         int32_t remaining) {
    pkv_event event = {0};

    event.type = PKV_EVENT_BLOCK_REMOVED;
    event.group = (int32_t)pool->states[block].group;
    event.call_index = pool->events.next_call++;
    event.num_keys = 1;
    event.block_id = block;
    event.key = *key;
    event.remaining_copies = remaining;
    pkvi_event_ring_push(&pool->events, &event);
}

static inline void forget(pkv_pool *pool, pkv_block_id block, struct pkvi_index_home home) {
    pool->num_keys_forgotten++;
    if (!pkvi_publish_log_is_empty(&pool->log)) {
        pkvi_publish_log_remove(&pool->log, block);
    }
    if (pkvi_child_index_is_on(&pool->children)) {
        pkvi_child_index_remove(&pool->children, block);
    }
    if (pkvi_event_ring_is_on(&pool->events)) {
        pkv_block_key key = pool->index->entries[block].key;
        push_removed(pool, block, &key, pkvi_prefix_index_remove(pool->index, block, home));
        return;
    }
    (void)pkvi_prefix_index_remove(pool->index, block, home);
}

void pkvi_pool_forget(pkv_pool *pool, pkv_block_id block) {
    forget(pool, block,
           pkvi_prefix_index_home(pool->index, (int32_t)pool->states[block].group,
                                  &pool->index->entries[block].key));
}

void pkvi_pool_forget_all(pkv_pool *pool) {
    pool->num_keys_forgotten++;
    pkvi_prefix_index_clear(pool->index, pool->num_blocks);
    pkvi_publish_log_clear(&pool->log);
    if (pkvi_child_index_is_on(&pool->children)) {
        pkvi_child_index_clear(&pool->children);
    }
    if (pkvi_event_ring_is_on(&pool->events)) {
        pkv_event event = {0};
        event.type = PKV_EVENT_ALL_BLOCKS_CLEARED;
        event.call_index = pool->events.next_call++;
        pkvi_event_ring_push(&pool->events, &event);
    }
}

/* Evict what the blocks of one piece carry. The entries are read ahead while the queue is walked;
 * here their slots are, all before the first removal. */
static void evict_piece(pkv_pool *pool, const pkv_block_id *block_ids, int32_t count) {
    const struct pkvi_block_state *states = pool->states;
    const struct pkvi_block_entry *entries = pool->index->entries;
    struct pkvi_index_home homes[TAKE_PIECE];

    for (int32_t i = 0; i < count; i++) {
        homes[i] = pkvi_prefix_index_approach(pool->index, (int32_t)states[block_ids[i]].group,
                                              &entries[block_ids[i]].key);
    }
    for (int32_t i = 0; i < count; i++) {
        if (states[block_ids[i]].is_keyed) {
            forget(pool, block_ids[i], homes[i]);
            pool->num_blocks_evicted++;
        }
    }
}

/* Read ahead what evicting will touch. The blocks are still in the queue; walking it costs a cache
 * miss a block where their order is old, which hides the other misses. */
static void prefetch_piece(const pkv_pool *pool, int32_t count) {
    const struct pkvi_links *links = pool->free_queue.links;
    pkv_block_id block = links[0].next;

    for (int32_t i = 0; i < count; i++) {
        PKVI_PREFETCH(&pool->states[block]);
        PKVI_PREFETCH(&pool->index->entries[block]);
        block = links[block].next;
    }
}

void pkvi_pool_take(pkv_pool *pool, int32_t group, int32_t count, pkv_block_id *out) {
    struct pkvi_block_state *states = pool->states;

    pool->num_blocks_allocated += (uint64_t)count;
    while (count > 0) {
        int32_t piece = count < TAKE_PIECE ? count : TAKE_PIECE;
        uint32_t num_keyed = 0;

        /* Keyed blocks stand behind all keyless ones but for rare exceptions, so the first tells
         * whether there is anything to evict. */
        if (states[pool->free_queue.links[0].next].is_keyed) {
            prefetch_piece(pool, piece);
        }
        pkvi_free_queue_pop(&pool->free_queue, piece, out);
        for (int32_t i = 0; i < piece; i++) {
            num_keyed += states[out[i]].is_keyed;
        }
        if (num_keyed > 0) {
            evict_piece(pool, out, piece);
        }
        for (int32_t i = 0; i < piece; i++) {
            PKV_ASSERT(states[out[i]].ref_cnt == 0 && !states[out[i]].is_keyed);
            states[out[i]] = (struct pkvi_block_state){1, 0, (uint32_t)group & 0xff, 0};
        }
        if (pool->fills.block_ids != NULL) {
            for (int32_t i = 0; i < piece; i++) {
                pkvi_fill_list_add(&pool->fills, out[i]);
            }
        }
        out += piece;
        count -= piece;
    }
}

/* Take back what pkvi_pool_release did to the first `num_done` ids, before the chain was put into
 * the queue: newest first, so that a block named twice goes back as it came. */
static void undo_release(pkv_pool *pool,
                         const pkv_block_id *block_ids,
                         int32_t num_blocks,
                         int32_t num_done,
                         bool is_reversed) {
    for (int32_t i = num_done - 1; i >= 0; i--) {
        pkv_block_id block = block_ids[is_reversed ? num_blocks - 1 - i : i];
        struct pkvi_block_state *state = &pool->states[block];

        if (block == PKV_NULL_BLOCK) {
            continue;
        }
        if (state->ref_cnt == 0 && state->is_keyed) {
            pkvi_free_queue_remove(&pool->free_queue, block);
        } else if (state->ref_cnt == 0) {
            pool->free_queue.links[block] = (struct pkvi_links){PKVI_NO_LINK, PKVI_NO_LINK};
        }
        state->ref_cnt = (state->ref_cnt + 1) & (uint32_t)PKV_MAX_REF_CNT;
    }
}

int32_t pkvi_pool_release(pkv_pool *pool,
                          const pkv_block_id *block_ids,
                          int32_t num_blocks,
                          bool is_reversed) {
    struct pkvi_free_chain chain = {0, 0, 0};
    int32_t at = is_reversed ? num_blocks - 1 : 0;
    int32_t step = is_reversed ? -1 : 1;

    for (int32_t i = 0; i < num_blocks; i++, at += step) {
        pkv_block_id block = block_ids[at];
        struct pkvi_block_state *state;

        if (block == PKV_NULL_BLOCK) {
            continue;
        }
        if (!pkvi_pool_has_block(pool, block) || pool->states[block].ref_cnt == 0) {
            undo_release(pool, block_ids, num_blocks, i, is_reversed);
            return at;
        }
        state = &pool->states[block];
        state->ref_cnt = (state->ref_cnt - 1) & (uint32_t)PKV_MAX_REF_CNT;
        if (state->ref_cnt == 0 && state->is_keyed) {
            pkvi_free_queue_append(&pool->free_queue, block);
        } else if (state->ref_cnt == 0) {
            pkvi_free_chain_join(&pool->free_queue, &chain, block);
        }
    }
    pkvi_free_queue_prepend(&pool->free_queue, &chain);
    return -1;
}

void pkvi_pool_begin(pkv_pool *pool, struct pkvi_publication *publication) {
    publication->num_published = 0;
    if (pkvi_event_ring_is_on(&pool->events)) {
        publication->call_index = pool->events.next_call++;
    }
}

static void push_stored(pkv_pool *pool,
                        const struct pkvi_publication *publication,
                        pkv_block_id block,
                        int32_t num_copies) {
    pkv_event event = {0};

    event.type = PKV_EVENT_BLOCK_STORED;
    event.group = publication->group;
    event.call_index = publication->call_index;
    event.request = publication->request;
    event.has_parent = publication->parent != NULL;
    if (publication->parent != NULL) {
        event.parent_key = *publication->parent;
    }
    event.first_token = publication->first_token;
    event.num_tokens = publication->num_tokens;
    event.adapter_id = publication->adapter_id;
    if (block != PKV_NULL_BLOCK) {
        event.num_keys = 1;
        event.block_id = block;
        event.key = pool->index->entries[block].key;
        event.remaining_copies = num_copies;
    }
    pkvi_event_ring_push(&pool->events, &event);
}

void pkvi_pool_publish(pkv_pool *pool,
                       struct pkvi_publication *publication,
                       pkv_block_id block,
                       const pkv_block_key *key,
                       struct pkvi_index_home home,
                       const int32_t *token_ids) {
    int32_t num_copies;

    PKV_ASSERT(pool->is_caching && block != PKV_NULL_BLOCK && !pool->states[block].is_keyed);
    pool->states[block].group = (uint32_t)publication->group & 0xff;
    pool->index->entries[block].key = *key;
    if (pool->stored_tokens != NULL && token_ids != NULL) {
        memcpy(pool->stored_tokens + (size_t)block * (size_t)pool->index->tokens_per_block,
               token_ids, (size_t)pool->block_sizes[publication->group] * sizeof *token_ids);
    }
    num_copies = pkvi_prefix_index_insert(pool->index, block, home);
    pool->num_keys_published++;
    publication->num_published++;
    if (publication->step != 0) {
        pkvi_publish_log_add(&pool->log, block, publication->step);
    }
    if (pkvi_event_ring_is_on(&pool->events)) {
        push_stored(pool, publication, block, num_copies);
    }
}

void pkvi_pool_end(pkv_pool *pool, const struct pkvi_publication *publication) {
    if (publication->num_published == 0 && pkvi_event_ring_is_on(&pool->events)) {
        push_stored(pool, publication, PKV_NULL_BLOCK, 0);
    }
}
