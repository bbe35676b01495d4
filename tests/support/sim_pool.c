/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The simulator of the pool alone: an engine with its own tables, which hands in keys of its own
 * making. Some of those keys share a hash, some whole keys come with other tokens. */
#include "support/counting_alloc.h"
#include "support/sim_parts.h"

#include <string.h>

#define MAX_KEYS 96
#define MAX_LIST 80
#define NUM_TOKEN_VARIANTS 2

typedef struct pool_sim {
    test_source *source;
    sim_log *log;
    sim_counts *counts;
    counting_alloc allocator;
    pkv_pool *pool;
    model_pool model;
    model_contents contents;
    bool is_crowded; /* all keys share one hash */
    int32_t num_keys;
    pkv_block_key keys[MAX_KEYS];
    sim_consumer consumer;
    model_rejections rejections;
} pool_sim;

static pool_sim the_sim; /* too large for a stack; nothing here is allocated */

/* ---- drawing --------------------------------------------------------------------------------- */

static int32_t draw(pool_sim *sim, int32_t bound) {
    return test_draw(sim->source, bound);
}

static bool once_in(pool_sim *sim, int32_t n) {
    return test_draw_once_in(sim->source, n);
}

static int32_t draw_group(pool_sim *sim) {
    return once_in(sim, 40) ? draw(sim, 2) * 300 - 1 : draw(sim, sim->model.num_groups);
}

/* A list of ids: held ones for the most part, now and then anything, rarely out of range. */
static int32_t draw_ids(pool_sim *sim, pkv_block_id *ids, int32_t longest) {
    int32_t count = draw(sim, longest + 1);
    int32_t taste = draw(sim, 4);

    for (int32_t i = 0; i < count; i++) {
        ids[i] = draw(sim, sim->model.num_blocks);
        for (int32_t tries = 0; tries < 4 && taste != 0 && sim->model.blocks[ids[i]].ref_cnt == 0;
             tries++) {
            ids[i] = draw(sim, sim->model.num_blocks);
        }
        if (once_in(sim, 200)) {
            ids[i] = draw(sim, 2) == 0 ? -1 : sim->model.num_blocks;
        }
    }
    return count;
}

static bool are_in_range(const pool_sim *sim, const pkv_block_id *ids, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        if (ids[i] < 0 || ids[i] >= sim->model.num_blocks) {
            return false;
        }
    }
    return true;
}

static bool has_group(const pool_sim *sim, int32_t group) {
    return group >= 0 && group < sim->model.num_groups;
}

/* Keys and the contents that stand for them, with tokens that mostly belong to the key. */
struct key_list {
    int32_t count;
    pkv_block_key keys[MAX_LIST];
    int32_t contents[MAX_LIST];
    int32_t tokens[MAX_LIST * MODEL_MAX_BLOCK_SIZE];
};

static void draw_keys(pool_sim *sim, int32_t group, int32_t count, struct key_list *list) {
    int32_t block_size = has_group(sim, group) ? sim->model.block_sizes[group] : 1;
    int32_t next = draw(sim, sim->num_keys);

    list->count = count;
    for (int32_t i = 0; i < count; i++) {
        int32_t variant = once_in(sim, 8) ? 1 : 0;
        if (once_in(sim, 6)) {
            next = draw(sim, sim->num_keys);
        }
        list->contents[i] = next;
        list->keys[i] = sim->keys[next];
        for (int32_t j = 0; j < block_size; j++) {
            list->tokens[i * block_size + j] = next * NUM_TOKEN_VARIANTS + variant + j;
        }
        next = (next + 1) % sim->num_keys;
    }
}

static int32_t first_content(const struct key_list *list) {
    return list->count > 0 ? list->contents[0] : MODEL_NO_CONTENT;
}

static void say_ids(pool_sim *sim, const char *name, const pkv_block_id *ids, int32_t count) {
    sim_say_more(sim->log, " %s[", name);
    for (int32_t i = 0; i < count; i++) {
        sim_say_more(sim->log, " %d", ids[i]);
    }
    sim_say_more(sim->log, " ]");
}

static void judge(pool_sim *sim, pkv_status status, uint32_t allowed) {
    sim_expect_status(sim->log, sim->counts, status, allowed);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static void do_get_new_blocks(pool_sim *sim) {
    pkv_block_id ids[MAX_LIST + 1];
    pkv_block_id expected[MAX_LIST + 1];
    int32_t count = once_in(sim, 50) ? -1 : draw(sim, 6) * draw(sim, once_in(sim, 6) ? 17 : 4);
    uint32_t allowed = count < 0                     ? MODEL_INVALID
                       : count > sim->model.num_free ? MODEL_STATUS(PKV_NO_FREE_BLOCKS)
                                                     : MODEL_OK;

    sim_say(sim->log, "get_new_blocks %d", count);
    judge(sim, pkv_pool_get_new_blocks(sim->pool, count, ids), allowed);
    if (allowed == MODEL_OK) {
        model_pool_get_new_blocks(&sim->model, 0, count, expected);
        for (int32_t i = 0; i < count; i++) {
            sim_expect_equal(sim->log, "new block", ids[i], expected[i]);
        }
    }
}

static void do_match_and_acquire(pool_sim *sim) {
    struct key_list list;
    pkv_block_id hits[MAX_LIST];
    pkv_block_id new_ids[MAX_LIST];
    pkv_block_id expected[MAX_LIST];
    int32_t group = draw_group(sim);
    int32_t num_hits = -1;
    int32_t num_new = draw(sim, 6);
    int32_t num_free_hits = 0;
    uint32_t allowed = has_group(sim, group) ? 0 : MODEL_INVALID;

    draw_keys(sim, group, draw(sim, once_in(sim, 4) ? MAX_LIST : 12), &list);
    sim_say(sim->log, "match group %d keys %d from %d", group, list.count, first_content(&list));
    judge(sim,
          pkv_pool_match(sim->pool, group, list.keys, list.tokens, list.count, hits, &num_hits),
          has_group(sim, group) ? MODEL_OK : MODEL_INVALID);
    if (!has_group(sim, group)) {
        return;
    }
    for (int32_t i = 0; i < list.count; i++) {
        expected[i] =
            model_pool_find(&sim->model, group, list.contents[i],
                            &list.tokens[i * sim->model.block_sizes[group]], &sim->rejections);
        if (expected[i] == PKV_NULL_BLOCK) {
            sim_expect_equal(sim->log, "number of hits", num_hits, i);
            break;
        }
        sim_expect_equal(sim->log, "hit", hits[i], expected[i]);
    }
    if (num_hits < 0 || num_hits > list.count || sim->log->has_failed || once_in(sim, 4)) {
        return;
    }
    if (num_hits > 0 && once_in(sim, 20)) {
        hits[draw(sim, num_hits)] = draw(sim, sim->model.num_blocks);
    }
    if (num_hits > 1 && once_in(sim, 20)) {
        hits[0] = hits[num_hits - 1];
    }
    for (int32_t i = 0; i < num_hits; i++) {
        const model_block *block = &sim->model.blocks[hits[i]];
        for (int32_t j = 0; j < i; j++) {
            allowed |= hits[j] == hits[i] ? MODEL_INVALID : 0;
        }
        if (block->content != list.contents[i] || block->group != group) {
            allowed |= MODEL_STATUS(PKV_NOT_FOUND);
        }
        num_free_hits += block->ref_cnt == 0 ? 1 : 0;
    }
    if (allowed == 0 && num_free_hits + num_new > sim->model.num_free) {
        allowed = MODEL_STATUS(PKV_NO_FREE_BLOCKS);
    }
    sim_say(sim->log, "acquire group %d new %d", group, num_new);
    say_ids(sim, "hits", hits, num_hits);
    judge(sim, pkv_pool_acquire(sim->pool, group, hits, list.keys, num_hits, num_new, new_ids),
          allowed != 0 ? allowed : MODEL_OK);
    if (allowed == 0) {
        for (int32_t i = 0; i < num_hits; i++) {
            model_pool_touch(&sim->model, hits[i]);
        }
        model_pool_get_new_blocks(&sim->model, group, num_new, expected);
        for (int32_t i = 0; i < num_new; i++) {
            sim_expect_equal(sim->log, "new block", new_ids[i], expected[i]);
        }
    }
}

static void do_touch(pool_sim *sim) {
    pkv_block_id ids[MAX_LIST];
    int32_t count = draw_ids(sim, ids, 8);
    bool is_valid = are_in_range(sim, ids, count);

    sim_say(sim->log, "touch");
    say_ids(sim, "ids", ids, count);
    judge(sim, pkv_pool_touch(sim->pool, ids, count), is_valid ? MODEL_OK : MODEL_INVALID);
    for (int32_t i = 0; i < count && is_valid; i++) {
        model_pool_touch(&sim->model, ids[i]);
    }
}

static void do_free_blocks(pool_sim *sim) {
    pkv_block_id ids[MAX_LIST];
    int32_t count = draw_ids(sim, ids, once_in(sim, 6) ? MAX_LIST : 24);
    bool is_valid = are_in_range(sim, ids, count);

    for (int32_t i = 0; i < count && is_valid; i++) {
        int32_t named = 0;
        for (int32_t j = 0; j < count; j++) {
            named += ids[j] == ids[i] ? 1 : 0;
        }
        if (ids[i] != PKV_NULL_BLOCK && named > sim->model.blocks[ids[i]].ref_cnt) {
            /* Mostly leave out what cannot be freed; the rest is to be refused as a whole. */
            if (draw(sim, 8) != 0) {
                ids[i--] = ids[--count];
            } else {
                is_valid = false;
            }
        }
    }
    sim_say(sim->log, "free_blocks");
    say_ids(sim, "ids", ids, count);
    judge(sim, pkv_pool_free_blocks(sim->pool, ids, count), is_valid ? MODEL_OK : MODEL_INVALID);
    if (is_valid) {
        model_pool_free_blocks(&sim->model, ids, count);
    }
}

static void do_cache_blocks(pool_sim *sim) {
    pkv_block_id ids[MAX_LIST];
    struct key_list list;
    int32_t group = draw_group(sim);
    int32_t count = draw_ids(sim, ids, once_in(sim, 6) ? 60 : 8);
    bool is_valid = are_in_range(sim, ids, count) && has_group(sim, group);
    model_publication publication = {.group = group, .parent = MODEL_NO_CONTENT};
    int32_t num_published = 0;

    for (int32_t i = 0; i < count && is_valid; i++) {
        bool is_named_before = false;
        for (int32_t j = 0; j < i; j++) {
            is_named_before = is_named_before || ids[j] == ids[i];
        }
        if (ids[i] != PKV_NULL_BLOCK &&
            (sim->model.blocks[ids[i]].ref_cnt == 0 || is_named_before ||
             sim->model.blocks[ids[i]].content != MODEL_NO_CONTENT)) {
            if (draw(sim, 8) != 0) {
                ids[i--] = ids[--count];
            } else {
                is_valid = false;
            }
        }
    }
    draw_keys(sim, group, count, &list);
    sim_say(sim->log, "cache_blocks group %d keys from %d", group, first_content(&list));
    say_ids(sim, "ids", ids, count);
    judge(sim, pkv_pool_cache_blocks(sim->pool, group, ids, list.keys, list.tokens, count),
          is_valid ? MODEL_OK : MODEL_INVALID);
    if (!is_valid || sim->model.disable_prefix_cache || count == 0) {
        return;
    }
    publication.num_tokens = count * sim->model.block_sizes[group];
    model_pool_begin_call(&sim->model);
    for (int32_t i = 0; i < count; i++) {
        if (ids[i] != PKV_NULL_BLOCK) {
            model_pool_publish(&sim->model, ids[i], list.contents[i],
                               &list.tokens[i * sim->model.block_sizes[group]], &publication);
            num_published++;
        }
    }
    if (num_published == 0) {
        model_pool_publish_nothing(&sim->model, &publication);
    }
}

static void do_evict_blocks(pool_sim *sim) {
    pkv_block_id ids[MAX_LIST];
    int32_t count = draw_ids(sim, ids, 6);
    bool is_valid = are_in_range(sim, ids, count);

    sim_say(sim->log, "evict_blocks");
    say_ids(sim, "ids", ids, count);
    judge(sim, pkv_pool_evict_blocks(sim->pool, ids, count), is_valid ? MODEL_OK : MODEL_INVALID);
    for (int32_t i = 0; i < count && is_valid; i++) {
        if (sim->model.blocks[ids[i]].content != MODEL_NO_CONTENT) {
            model_pool_begin_call(&sim->model);
            model_pool_forget(&sim->model, ids[i]);
        }
    }
}

/* Now and then everything is freed first, else a reset would nearly always be refused. */
static void do_reset(pool_sim *sim) {
    if (once_in(sim, 3)) {
        for (pkv_block_id id = 1; id < sim->model.num_blocks; id++) {
            while (sim->model.blocks[id].ref_cnt > 0) {
                sim_say(sim->log, "free_blocks before a reset: %d", id);
                judge(sim, pkv_pool_free_blocks(sim->pool, &id, 1), MODEL_OK);
                model_pool_free_blocks(&sim->model, &id, 1);
            }
        }
    }
    sim_say(sim->log, "reset_prefix_cache");
    judge(sim, pkv_pool_reset_prefix_cache(sim->pool),
          model_pool_reset(&sim->model) ? MODEL_OK : MODEL_BUSY);
}

static void do_take_events(pool_sim *sim) {
    static pkv_event events[MODEL_MAX_EVENTS];
    static model_event expected[MODEL_MAX_EVENTS];
    int32_t capacity = once_in(sim, 4) ? draw(sim, 5) : MODEL_MAX_EVENTS;
    int32_t num_events = -1;
    int32_t num_expected;
    uint64_t num_dropped = 0;
    uint64_t num_expected_dropped;
    pkv_status status;
    pkv_status expected_status;

    sim_say(sim->log, "take_events %d", capacity);
    status = pkv_pool_take_events(sim->pool, events, capacity, &num_events, &num_dropped);
    expected_status = model_pool_take_events(&sim->model, expected, capacity, &num_expected,
                                             &num_expected_dropped);
    judge(sim, status, MODEL_STATUS(expected_status));
    sim_expect_equal(sim->log, "number of events", num_events, num_expected);
    sim_expect_equal(sim->log, "dropped events", (int64_t)num_dropped,
                     (int64_t)num_expected_dropped);
    sim_compare_events(sim->log, &sim->consumer, &sim->model, events, expected,
                       sim->log->has_failed ? 0 : num_events, num_dropped);
    if (status == PKV_OK) {
        sim_compare_consumer(sim->log, &sim->consumer, &sim->model);
    }
}

static void do_take_fills(pool_sim *sim) {
    pkv_block_id ids[MODEL_MAX_BLOCKS];
    int32_t group = draw_group(sim);
    int32_t capacity = once_in(sim, 2) ? draw(sim, 4) : MODEL_MAX_BLOCKS;
    int32_t num_fills = -1;
    int32_t num_left = has_group(sim, group) ? model_pool_num_fills(&sim->model, group) : 0;
    uint32_t allowed = !has_group(sim, group) ? MODEL_INVALID
                       : num_left > capacity  ? MODEL_MORE
                                              : MODEL_OK;

    sim_say(sim->log, "take_fills group %d capacity %d", group, capacity);
    judge(sim, pkv_pool_take_fills(sim->pool, group, ids, capacity, &num_fills), allowed);
    if (!has_group(sim, group)) {
        return;
    }
    sim_expect_equal(sim->log, "number of fills", num_fills,
                     num_left < capacity ? num_left : capacity);
    for (int32_t i = 0; i < num_fills && !sim->log->has_failed; i++) {
        if (!model_pool_take_fill(&sim->model, group, ids[i])) {
            sim_problem(sim->log, "I10: fill of block %d, which did not wait for it", ids[i]);
        }
    }
}

/* Calls that are wrong whatever the state is. None may change anything. */
static void do_fault(pool_sim *sim) {
    pkv_pool *pool = sim->pool;
    pkv_block_id id = 1;
    int32_t count;
    pkv_block_key key = sim->keys[0];
    int32_t tokens[MODEL_MAX_BLOCK_SIZE] = {0};
    int32_t fault = draw(sim, 18);
    pkv_pool_stats stats = {.struct_size = 0};
    pkv_block_info info = {.struct_size = 2};
    const pkv_status statuses[] = {
        pkv_pool_get_new_blocks(pool, fault < 9 ? -1 : INT32_MIN, &id),
        pkv_pool_get_new_blocks(pool, 1, NULL),
        pkv_pool_get_new_blocks(NULL, 1, &id),
        pkv_pool_touch(pool, NULL, 1),
        pkv_pool_touch(pool, &id, -1),
        pkv_pool_free_blocks(pool, NULL, 1),
        pkv_pool_free_blocks(pool, &id, -1),
        pkv_pool_evict_blocks(pool, NULL, 1),
        pkv_pool_evict_blocks(pool, &id, INT32_MIN),
        pkv_pool_cache_blocks(pool, 0, NULL, &key, tokens, 1),
        pkv_pool_cache_blocks(pool, 0, &id, NULL, tokens, 1),
        pkv_pool_match(pool, 0, &key, tokens, 1, NULL, &count),
        pkv_pool_match(pool, 0, &key, tokens, 1, &id, NULL),
        pkv_pool_match(pool, 0, &key, tokens, -1, &id, &count),
        pkv_pool_acquire(pool, 0, &id, &key, -1, 0, NULL),
        pkv_pool_acquire(pool, 0, NULL, NULL, 0, -1, NULL),
        pkv_pool_acquire(pool, sim->model.num_groups, NULL, NULL, 0, 0, NULL),
        pkv_pool_get_block(pool, 1, &info),
        pkv_pool_get_block(pool, sim->model.num_blocks, &info),
        pkv_pool_get_free_queue(pool, &id, -1, &count),
        pkv_pool_get_free_queue(pool, &id, 1, NULL),
        pkv_pool_take_events(pool, NULL, 1, &count, NULL),
        pkv_pool_take_events(pool, NULL, 0, NULL, NULL),
        pkv_pool_take_fills(pool, 0, NULL, 1, &count),
        pkv_pool_take_fills(pool, -1, &id, 1, &count),
        pkv_pool_get_stats(pool, NULL),
        pkv_pool_get_stats(pool, &stats),
        pkv_pool_reset_prefix_cache(NULL),
        pkv_pool_check(NULL),
    };

    sim_say(sim->log, "fault");
    for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++) {
        sim_say(sim->log, "fault %zu", i);
        judge(sim, statuses[i], MODEL_INVALID);
    }
}

/* ---- the run --------------------------------------------------------------------------------- */

/* Now and then all keys share one hash, so that they crowd in the index. */
static void draw_palette(pool_sim *sim) {
    sim->is_crowded = once_in(sim, 6);
    model_contents_clear(&sim->contents);
    sim->num_keys = sim->is_crowded ? MAX_KEYS : 4 + draw(sim, MAX_KEYS - 4);
    for (int32_t i = 0; i < sim->num_keys; i++) {
        pkv_block_key *key = &sim->keys[i];
        *key = (pkv_block_key){(uint64_t)i + 1, 0, (uint64_t)i + 1};
        if (i > 0 && (sim->is_crowded || once_in(sim, 4))) { /* the same hash, another lineage */
            key->hash_low = sim->keys[i - 1].hash_low;
            key->hash_high = sim->keys[i - 1].hash_high;
        } else if (i > 0 && once_in(sim, 6)) { /* half a hash in common */
            key->hash_low = sim->keys[i - 1].hash_low;
            key->hash_high = (uint64_t)i << 40;
        }
        (void)model_contents_intern_key(&sim->contents, key);
    }
}

static bool open_pool(pool_sim *sim) {
    static const int32_t sizes[] = {1, 2, 4, 16};
    int32_t block_sizes[3];
    pkv_pool_config config = {.struct_size = sizeof config};

    config.num_blocks = 1 + draw(sim, sim->is_crowded || once_in(sim, 10) ? 300 : 30);
    config.num_groups = sim->is_crowded ? 0 : draw(sim, 4);
    config.block_size = draw(sim, 4) * 2;
    for (int32_t i = 0; i < 3; i++) {
        block_sizes[i] = sizes[draw(sim, 4)];
    }
    config.block_sizes = config.num_groups > 0 && once_in(sim, 2) ? block_sizes : NULL;
    config.event_capacity = once_in(sim, 4) ? draw(sim, 20) : MODEL_MAX_EVENTS;
    config.disable_prefix_cache = once_in(sim, 10);
    config.store_tokens = once_in(sim, 2);
    config.fill_new_blocks = once_in(sim, 3);
    memset(&sim->allocator, 0, sizeof sim->allocator);
    sim->allocator.leaves_garbage = once_in(sim, 3);
    config.allocator = counting_alloc_hooks(&sim->allocator);
    if (pkv_pool_create(&config, &sim->pool) != PKV_OK) {
        sim_problem(sim->log, "a pool could not be created");
        return false;
    }
    model_pool_init(&sim->model, &sim->contents, &config);
    return true;
}

static void compare_rejections(pool_sim *sim) {
    pkv_pool_stats stats = {.struct_size = sizeof stats};

    if (pkv_pool_get_stats(sim->pool, &stats) != PKV_OK ||
        stats.num_collisions_rejected < sim->rejections.least ||
        stats.num_collisions_rejected > sim->rejections.most) {
        sim_problem(sim->log, "collisions rejected: the library says %llu, the model %llu to %llu",
                    (unsigned long long)stats.num_collisions_rejected,
                    (unsigned long long)sim->rejections.least,
                    (unsigned long long)sim->rejections.most);
    }
}

static void do_step(pool_sim *sim) {
    static void (*const calls[])(pool_sim *) = {
        do_get_new_blocks,    do_get_new_blocks,    do_get_new_blocks, do_match_and_acquire,
        do_match_and_acquire, do_match_and_acquire, do_touch,          do_free_blocks,
        do_free_blocks,       do_free_blocks,       do_cache_blocks,   do_cache_blocks,
        do_cache_blocks,      do_cache_blocks,      do_evict_blocks,   do_take_events,
        do_take_fills,
    };
    int32_t rare = draw(sim, 60);

    if (rare == 0) {
        do_reset(sim);
    } else if (rare == 1) {
        do_fault(sim);
    } else {
        calls[draw(sim, (int32_t)(sizeof calls / sizeof calls[0]))](sim);
    }
    if (!sim->log->has_failed) {
        sim_compare_pool(sim->log, sim->pool, &sim->model);
        compare_rejections(sim);
    }
}

void sim_run_pool(test_source *source, int64_t max_steps, sim_log *log, sim_counts *counts) {
    pool_sim *sim = &the_sim;

    sim->source = source;
    sim->log = log;
    sim->counts = counts;
    sim->rejections = (model_rejections){0, 0};
    sim_consumer_clear(&sim->consumer);
    draw_palette(sim);
    if (!open_pool(sim)) {
        return;
    }
    for (log->step = 0; log->step < max_steps && !source->is_exhausted && !log->has_failed;
         log->step++) {
        do_step(sim);
        counts->num_steps++;
    }
    sim_say(log, "destroy");
    pkv_pool_destroy(sim->pool);
    if (counting_alloc_complaint(&sim->allocator) != NULL || sim->allocator.num_calls != 1) {
        sim_problem(log, "I26: %lld allocations, %s", (long long)sim->allocator.num_calls,
                    counting_alloc_complaint(&sim->allocator));
    }
}
