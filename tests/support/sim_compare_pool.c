/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Comparing a pool with the model's, and reading events as somebody who was told nothing else. */
#include "support/sim_parts.h"

#include <string.h>

static bool is_same_key(const pkv_block_key *a, const pkv_block_key *b) {
    return a->hash_low == b->hash_low && a->hash_high == b->hash_high && a->lineage == b->lineage;
}

/* ---- the pool -------------------------------------------------------------------------------- */

static void compare_block(sim_log *log,
                          const pkv_pool *pool,
                          const model_pool *model,
                          const int32_t *num_copies,
                          pkv_block_id id) {
    static const pkv_block_key no_key = {0, 0, 0};
    const model_block *expected = &model->blocks[id];
    bool is_keyed = expected->content != MODEL_NO_CONTENT;
    pkv_block_info info = {.struct_size = sizeof info};

    if (pkv_pool_get_block(pool, id, &info) != PKV_OK) {
        sim_problem(log, "block %d cannot be read", id);
        return;
    }
    if (info.ref_cnt != expected->ref_cnt || info.is_keyed != is_keyed ||
        info.is_free != (id != PKV_NULL_BLOCK && expected->ref_cnt == 0) ||
        info.step != (is_keyed ? expected->step : 0) ||
        info.num_copies != (is_keyed ? num_copies[id] : 0) || info.group != expected->group) {
        sim_problem(log,
                    "block %d: library ref_cnt %d keyed %d free %d step %llu copies %d group %d, "
                    "model ref_cnt %d keyed %d step %llu copies %d group %d",
                    id, info.ref_cnt, info.is_keyed, info.is_free, (unsigned long long)info.step,
                    info.num_copies, info.group, expected->ref_cnt, is_keyed,
                    (unsigned long long)expected->step, num_copies[id], expected->group);
    }
    if (!is_same_key(&info.key, is_keyed ? &model->contents->keys[expected->content] : &no_key)) {
        sim_problem(log, "block %d carries another key than the model's content %d", id,
                    expected->content);
    }
}

/* Count the copies of each block's key, for all blocks at once; returns the number of distinct. */
static int32_t count_copies(const model_pool *model, int32_t *num_copies) {
    static int32_t first_of[MODEL_MAX_CONTENTS]; /* where (group, content) was seen first, or 0 */
    int32_t num_distinct = 0;

    for (int32_t group = 0; group < model->num_groups; group++) {
        for (int32_t i = 1; i < model->num_blocks; i++) {
            const model_block *block = &model->blocks[i];
            if (block->group == group && block->content != MODEL_NO_CONTENT) {
                if (first_of[block->content] == 0) {
                    first_of[block->content] = i;
                    num_copies[i] = 0;
                    num_distinct++;
                }
                num_copies[first_of[block->content]]++;
            }
        }
        for (int32_t i = model->num_blocks - 1; i >= 1; i--) {
            const model_block *block = &model->blocks[i];
            if (block->group == group && block->content != MODEL_NO_CONTENT) {
                num_copies[i] = num_copies[first_of[block->content]];
            }
        }
        for (int32_t i = 1; i < model->num_blocks; i++) {
            const model_block *block = &model->blocks[i];
            if (block->group == group && block->content != MODEL_NO_CONTENT) {
                first_of[block->content] = 0;
            }
        }
    }
    return num_distinct;
}

void sim_compare_pool(sim_log *log, const pkv_pool *pool, const model_pool *model) {
    static pkv_block_id queue[MODEL_MAX_BLOCKS];
    static int32_t num_copies[MODEL_MAX_BLOCKS];
    pkv_pool_stats stats = {.struct_size = sizeof stats};
    int32_t num_free = -1;
    int32_t num_distinct = count_copies(model, num_copies);

    if (pkv_pool_get_free_queue(pool, queue, MODEL_MAX_BLOCKS, &num_free) != PKV_OK) {
        sim_problem(log, "the free queue cannot be read");
    }
    sim_expect_equal(log, "length of the free queue", num_free, model->num_free);
    sim_expect_equal(log, "num_free_blocks", pkv_pool_get_num_free_blocks(pool), model->num_free);
    for (int32_t i = 0; i < model->num_free && !log->has_failed; i++) {
        if (queue[i] != model->queue[i]) {
            sim_problem(log, "free queue at %d: library %d, model %d", i, queue[i],
                        model->queue[i]);
        }
    }
    for (int32_t i = 0; i < model->num_blocks && !log->has_failed; i++) {
        compare_block(log, pool, model, num_copies, i);
    }
    if (pkv_pool_get_stats(pool, &stats) != PKV_OK) {
        sim_problem(log, "the pool's statistics cannot be read");
    }
    sim_expect_equal(log, "pool num_blocks", stats.num_blocks, model->num_blocks);
    sim_expect_equal(log, "pool num_free_blocks", stats.num_free_blocks, model->num_free);
    sim_expect_equal(log, "pool num_cached_blocks", stats.num_cached_blocks,
                     model_pool_num_cached(model));
    sim_expect_equal(log, "pool num_distinct_keys", stats.num_distinct_keys, num_distinct);
    sim_expect_equal(log, "pool num_blocks_allocated", (int64_t)stats.num_blocks_allocated,
                     (int64_t)model->num_allocated);
    sim_expect_equal(log, "pool num_blocks_evicted", (int64_t)stats.num_blocks_evicted,
                     (int64_t)model->num_evicted);
    sim_expect_equal(log, "pool num_keys_published", (int64_t)stats.num_keys_published,
                     (int64_t)model->num_published);
    sim_expect_equal(log, "pool num_events_dropped", (int64_t)stats.num_events_dropped,
                     (int64_t)model->num_dropped);
    if (pkv_pool_check(pool) != PKV_OK) {
        sim_problem(log, "the checker: %s", pkv_pool_last_error(pool));
    }
}

/* ---- events ---------------------------------------------------------------------------------- */

void sim_consumer_clear(sim_consumer *consumer) {
    memset(consumer, 0, sizeof *consumer);
}

static bool has_content(const model_contents *contents, const pkv_block_key *key, int32_t content) {
    return content != MODEL_NO_CONTENT && contents->has_key[content] &&
           is_same_key(key, &contents->keys[content]);
}

static void compare_event(sim_log *log,
                          const model_contents *contents,
                          const pkv_event *event,
                          const model_event *expected) {
    unsigned long long number = event->sequence_number;
    bool has_parent = expected->parent != MODEL_NO_CONTENT;

    sim_expect_equal(log, "event sequence_number", (int64_t)event->sequence_number,
                     (int64_t)expected->sequence_number);
    if (event->type != expected->type || event->group != expected->group ||
        event->num_keys != expected->num_keys || event->block_id != expected->block_id) {
        sim_problem(log, "event %llu: library type %d group %d keys %d block %d, model %d %d %d %d",
                    number, (int)event->type, event->group, event->num_keys, event->block_id,
                    (int)expected->type, expected->group, expected->num_keys, expected->block_id);
    }
    if (event->call_index != expected->call_index ||
        event->remaining_copies != expected->remaining_copies ||
        event->first_token != expected->first_token || event->num_tokens != expected->num_tokens ||
        event->adapter_id != expected->adapter_id) {
        sim_problem(log,
                    "event %llu: library call %llu copies %d first %d tokens %d adapter %llu, "
                    "model %llu %d %d %d %llu",
                    number, (unsigned long long)event->call_index, event->remaining_copies,
                    event->first_token, event->num_tokens, (unsigned long long)event->adapter_id,
                    (unsigned long long)expected->call_index, expected->remaining_copies,
                    expected->first_token, expected->num_tokens,
                    (unsigned long long)expected->adapter_id);
    }
    if (event->request.index != expected->request.index ||
        event->request.generation != expected->request.generation) {
        sim_problem(log, "event %llu: library request {%u, %u}, model {%u, %u}", number,
                    event->request.index, event->request.generation, expected->request.index,
                    expected->request.generation);
    }
    if (event->num_keys == 1 && !has_content(contents, &event->key, expected->content)) {
        sim_problem(log, "event %llu: not the key of content %d", number, expected->content);
    }
    if (event->has_parent != has_parent ||
        (has_parent && !has_content(contents, &event->parent_key, expected->parent))) {
        sim_problem(log, "event %llu: has_parent %d, or not the key of parent %d", number,
                    event->has_parent, expected->parent);
    }
}

/* What a consumer does with an event; `content` stands for the key. */
static void consume(sim_log *log, sim_consumer *consumer, const pkv_event *event, int32_t content) {
    int32_t *copies;

    if (event->sequence_number != consumer->next_sequence) {
        consumer->has_missed = true;
        consumer->num_missed += event->sequence_number - consumer->next_sequence;
    }
    if (event->call_index + 1 < consumer->next_call) {
        sim_problem(log, "events: call_index goes back");
    }
    consumer->next_sequence = event->sequence_number + 1;
    consumer->next_call = event->call_index + 1;
    if (event->type == PKV_EVENT_ALL_BLOCKS_CLEARED) {
        memset(consumer->num_copies, 0, sizeof consumer->num_copies);
        consumer->has_missed = false;
        return;
    }
    if (event->num_keys == 0 || content == MODEL_NO_CONTENT) {
        return;
    }
    copies = &consumer->num_copies[event->group][content];
    *copies += event->type == PKV_EVENT_BLOCK_STORED ? 1 : -1;
    if (!consumer->has_missed && *copies != event->remaining_copies) {
        sim_problem(log, "event %llu: remaining_copies %d, but replaying gives %d",
                    (unsigned long long)event->sequence_number, event->remaining_copies, *copies);
    }
}

void sim_compare_events(sim_log *log,
                        sim_consumer *consumer,
                        const model_pool *model,
                        const pkv_event *library,
                        const model_event *expected,
                        int32_t num_events,
                        uint64_t num_dropped) {
    for (int32_t i = 0; i < num_events && !log->has_failed; i++) {
        compare_event(log, model->contents, &library[i], &expected[i]);
        consume(log, consumer, &library[i], expected[i].content);
    }
    consumer->num_dropped += num_dropped;
}

void sim_compare_consumer(sim_log *log, const sim_consumer *consumer, const model_pool *model) {
    static int32_t expected[MODEL_MAX_BLOCKS];
    int64_t sum = 0;

    if (consumer->has_missed || consumer->num_missed != consumer->num_dropped ||
        model->event_capacity == 0) {
        return;
    }
    (void)count_copies(model, expected);
    for (int32_t i = 1; i < model->num_blocks; i++) {
        const model_block *block = &model->blocks[i];
        if (block->content != MODEL_NO_CONTENT &&
            consumer->num_copies[block->group][block->content] != expected[i]) {
            sim_problem(log, "I24: replaying events gives %d copies of the key of block %d, not %d",
                        consumer->num_copies[block->group][block->content], i, expected[i]);
        }
    }
    for (int32_t group = 0; group < model->num_groups; group++) {
        for (int32_t i = 0; i < model->contents->num_contents; i++) {
            sum += consumer->num_copies[group][i];
        }
    }
    sim_expect_equal(log, "I24: copies in all, by replaying events", sum,
                     model_pool_num_cached(model));
}
