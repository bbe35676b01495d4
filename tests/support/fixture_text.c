/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Readers of fixture.h: the state of pools and managers as numbers and text. They call public
 * readers only and change nothing.
 *
 * The one idea: every text is built in a buffer of a ring, so that no test has to free one. */
#include "support/fixture.h"

#include "support/fixture_private.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define TEXT_RING 32
#define TEXT_SIZE 16384
#define STATE_RING 2
#define MEMORY_RING 8
#define STATE_SIZE (1 << 20)
#define MAX_IDS 65536

typedef struct text {
    char *buffer;
    size_t size, capacity;
} text;

static char text_ring[TEXT_RING][TEXT_SIZE];
static char state_ring[STATE_RING][STATE_SIZE];
static char memory_ring[MEMORY_RING][STATE_SIZE];

/* ---- building text --------------------------------------------------------------------------- */

static text text_begin(void) {
    static unsigned next;
    char *buffer = text_ring[next++ % TEXT_RING];

    buffer[0] = '\0';
    return (text){buffer, 0, TEXT_SIZE};
}

static text state_begin(void) {
    static unsigned next;
    char *buffer = state_ring[next++ % STATE_RING];

    buffer[0] = '\0';
    return (text){buffer, 0, STATE_SIZE};
}

__attribute__((format(printf, 2, 3))) static void text_add(text *target, const char *format, ...) {
    va_list values;
    int size;

    va_start(values, format);
    size =
        vsnprintf(target->buffer + target->size, target->capacity - target->size, format, values);
    va_end(values);
    assert_true(size >= 0 && (size_t)size < target->capacity - target->size);
    target->size += (size_t)size;
}

/* Add a number, with a blank before all but the first. */
static void text_add_number(text *target, int64_t number) {
    text_add(target, "%s%" PRId64, target->size == 0 ? "" : " ", number);
}

const char *ids_text(const int32_t *ids, int32_t num_ids) {
    text result = text_begin();

    for (int32_t i = 0; i < num_ids; i++) {
        text_add_number(&result, ids[i]);
    }
    return result.buffer;
}

const char *slots_text(const int64_t *slots, int32_t num_slots) {
    text result = text_begin();

    for (int32_t i = 0; i < num_slots; i++) {
        text_add_number(&result, slots[i]);
    }
    return result.buffer;
}

/* ---- numbers --------------------------------------------------------------------------------- */

pkv_stats stats_of(const pkv_manager *manager) {
    pkv_stats stats = {.struct_size = sizeof stats};

    assert_int_equal(pkv_get_stats(manager, &stats), PKV_OK);
    return stats;
}

pkv_request_info info_of(const pkv_manager *manager, pkv_request request) {
    pkv_request_info info = {.struct_size = sizeof info};

    assert_int_equal(pkv_request_get_info(manager, request, &info), PKV_OK);
    return info;
}

pkv_block_info block_of(const pkv_pool *pool, pkv_block_id block_id) {
    pkv_block_info info = {.struct_size = sizeof info};

    assert_int_equal(pkv_pool_get_block(pool, block_id, &info), PKV_OK);
    return info;
}

pkv_block_info manager_block_of(const pkv_manager *manager, pkv_block_id block_id) {
    return block_of(pkv_manager_get_pool(manager), block_id);
}

int32_t num_free_blocks(const pkv_manager *manager) {
    return pkv_pool_get_num_free_blocks(pkv_manager_get_pool(manager));
}

int32_t num_table_blocks(const pkv_manager *manager, pkv_request request, int32_t group) {
    const pkv_block_id *table;
    int32_t num_blocks = -1;

    assert_int_equal(pkv_get_block_table(manager, request, group, &table, &num_blocks), PKV_OK);
    return num_blocks;
}

bool keys_are_equal(pkv_block_key left, pkv_block_key right) {
    return left.hash_low == right.hash_low && left.hash_high == right.hash_high &&
           left.lineage == right.lineage;
}

static int32_t pool_num_blocks(const pkv_pool *pool) {
    pkv_pool_stats stats = {.struct_size = sizeof stats};

    assert_int_equal(pkv_pool_get_stats(pool, &stats), PKV_OK);
    return stats.num_blocks;
}

/* ---- tables ---------------------------------------------------------------------------------- */

const char *table_text(const pkv_manager *manager, pkv_request request, int32_t group) {
    const pkv_block_id *block_ids;
    int32_t num_blocks = -1;

    assert_int_equal(pkv_get_block_table(manager, request, group, &block_ids, &num_blocks), PKV_OK);
    return ids_text(block_ids, num_blocks);
}

const char *new_text(const pkv_manager *manager, pkv_request request, int32_t group) {
    const pkv_block_id *block_ids;
    int32_t num_blocks = -1;

    assert_int_equal(pkv_get_new_block_ids(manager, request, group, &block_ids, &num_blocks),
                     PKV_OK);
    return ids_text(block_ids, num_blocks);
}

const char *hit_text(pkv_manager *manager, pkv_request request, int32_t group) {
    static pkv_block_id block_ids[FIXTURE_MAX_TOKENS];
    int32_t num_blocks = -1;

    assert_int_equal(pkv_get_computed_block_ids(manager, request, group, block_ids,
                                                FIXTURE_MAX_TOKENS, &num_blocks),
                     PKV_OK);
    return ids_text(block_ids, num_blocks);
}

/* ---- the pool -------------------------------------------------------------------------------- */

const char *pool_queue_text(const pkv_pool *pool) {
    static pkv_block_id block_ids[MAX_IDS];
    int32_t num_blocks = -1;

    assert_int_equal(pkv_pool_get_free_queue(pool, block_ids, MAX_IDS, &num_blocks), PKV_OK);
    assert_int_equal(num_blocks, pkv_pool_get_num_free_blocks(pool));
    return ids_text(block_ids, num_blocks);
}

const char *queue_text(const pkv_manager *manager) {
    return pool_queue_text(pkv_manager_get_pool(manager));
}

const char *pool_refs_text(const pkv_pool *pool, pkv_block_id first, pkv_block_id last) {
    text result = text_begin();

    for (pkv_block_id block_id = first; block_id <= last; block_id++) {
        text_add_number(&result, block_of(pool, block_id).ref_cnt);
    }
    return result.buffer;
}

const char *refs_text(const pkv_manager *manager, pkv_block_id first, pkv_block_id last) {
    return pool_refs_text(pkv_manager_get_pool(manager), first, last);
}

const char *pool_keyed_text(const pkv_pool *pool) {
    text result = text_begin();
    int32_t num_blocks = pool_num_blocks(pool);

    for (pkv_block_id block_id = 0; block_id < num_blocks; block_id++) {
        if (block_of(pool, block_id).is_keyed) {
            text_add_number(&result, block_id);
        }
    }
    return result.buffer;
}

const char *keyed_text(const pkv_manager *manager) {
    return pool_keyed_text(pkv_manager_get_pool(manager));
}

const char *keyed_columns_text(const pkv_manager *manager, pkv_request request, int32_t group) {
    const pkv_block_id *block_ids;
    int32_t num_blocks = -1;
    text result = text_begin();

    assert_int_equal(pkv_get_block_table(manager, request, group, &block_ids, &num_blocks), PKV_OK);
    for (int32_t column = 0; column < num_blocks; column++) {
        if (manager_block_of(manager, block_ids[column]).is_keyed) {
            text_add_number(&result, column);
        }
    }
    return result.buffer;
}

/* ---- the whole state ------------------------------------------------------------------------- */

static void state_add_pool(text *target, const pkv_pool *pool) {
    pkv_pool_stats stats = {.struct_size = sizeof stats};

    assert_int_equal(pkv_pool_get_stats(pool, &stats), PKV_OK);
    text_add(target, "free %d cached %d keys %d allocated %" PRIu64 " published %" PRIu64 "\n",
             stats.num_free_blocks, stats.num_cached_blocks, stats.num_distinct_keys,
             stats.num_blocks_allocated, stats.num_keys_published);
    text_add(target, "queue %s\n", pool_queue_text(pool));
    for (pkv_block_id block_id = 0; block_id < stats.num_blocks; block_id++) {
        pkv_block_info block = block_of(pool, block_id);

        text_add(target, "block %d ref %d group %d copies %d keyed %d free %d step %" PRIu64,
                 block_id, block.ref_cnt, block.group, block.num_copies, block.is_keyed,
                 block.is_free, block.step);
        text_add(target, " key %" PRIx64 " %" PRIx64 " %" PRIx64 "\n", block.key.hash_low,
                 block.key.hash_high, block.key.lineage);
    }
}

const char *pool_state_text(const pkv_pool *pool) {
    text result = state_begin();

    state_add_pool(&result, pool);
    return result.buffer;
}

const char *state_text(const pkv_manager *manager,
                       const pkv_request *requests,
                       int32_t num_requests) {
    pkv_stats stats = stats_of(manager);
    text result = state_begin();

    state_add_pool(&result, pkv_manager_get_pool(manager));
    text_add(&result, "requests %d rows %d pending %d frees %" PRIu64 " withdrawn %" PRIu64 "\n",
             stats.num_requests, stats.num_rows, stats.num_pending_blocks, stats.num_frees,
             stats.num_keys_withdrawn);
    for (int32_t i = 0; i < num_requests; i++) {
        pkv_request_info info = info_of(manager, requests[i]);

        text_add(&result, "request %d tokens %d max %d keys %d row %d allocations %d\n", i,
                 info.num_tokens, info.max_num_tokens, info.num_keys, info.row,
                 info.num_allocations);
        for (int32_t group = 0; group < fixture_num_groups(manager); group++) {
            text_add(&result, "  group %d table %s\n", group,
                     table_text(manager, requests[i], group));
        }
    }
    return result.buffer;
}

static const char *remember(const char *state) {
    static unsigned next;
    char *buffer = memory_ring[next++ % MEMORY_RING];

    memcpy(buffer, state, strlen(state) + 1);
    return buffer;
}

const char *remember_pool_state(const pkv_pool *pool) {
    return remember(pool_state_text(pool));
}

const char *remember_state(const pkv_manager *manager,
                           const pkv_request *requests,
                           int32_t num_requests) {
    return remember(state_text(manager, requests, num_requests));
}
