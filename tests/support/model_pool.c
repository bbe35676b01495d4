/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The pool of the naive model: an array of blocks and an array that is the free queue. */
#include "support/model.h"

#include <string.h>

void model_pool_init(model_pool *pool, model_contents *contents, const pkv_pool_config *config) {
    int32_t fallback = config->block_size != 0 ? config->block_size : PKV_DEFAULT_BLOCK_SIZE;

    memset(pool, 0, sizeof *pool);
    pool->contents = contents;
    pool->num_blocks = config->num_blocks;
    pool->num_groups = config->num_groups != 0 ? config->num_groups : 1;
    for (int32_t i = 0; i < pool->num_groups; i++) {
        pool->block_sizes[i] = config->block_sizes != NULL ? config->block_sizes[i] : fallback;
    }
    pool->disable_prefix_cache = config->disable_prefix_cache;
    pool->store_tokens = config->store_tokens;
    pool->lists_fills = config->fill_new_blocks;
    pool->event_capacity = config->disable_prefix_cache ? 0 : config->event_capacity;
    for (int32_t i = 0; i < pool->num_blocks; i++) {
        pool->blocks[i].content = MODEL_NO_CONTENT;
    }
    for (int32_t i = 1; i < pool->num_blocks; i++) {
        pool->queue[pool->num_free++] = i;
    }
}

/* ---- keys ------------------------------------------------------------------------------------ */

static bool has_tokens(const model_pool *pool,
                       int32_t group,
                       pkv_block_id block,
                       const int32_t *own) {
    for (int32_t i = 0; i < pool->block_sizes[group] && pool->store_tokens; i++) {
        if (pool->blocks[block].tokens[i] != own[i]) {
            return false;
        }
    }
    return true;
}

/* Keys of one hash count once for each key; copies of one key with other tokens each. */
static void count_rejections(const model_pool *pool,
                             int32_t group,
                             int32_t content,
                             const int32_t *tokens,
                             pkv_block_id answer,
                             model_rejections *rejections) {
    for (int32_t i = 1; i < pool->num_blocks; i++) {
        const model_block *block = &pool->blocks[i];
        bool is_first = true;
        if (block->content == MODEL_NO_CONTENT || block->group != group) {
            continue;
        }
        if (block->content == content) {
            bool is_tried =
                !has_tokens(pool, group, i, tokens) &&
                (answer == PKV_NULL_BLOCK || block->published < pool->blocks[answer].published);
            rejections->least += is_tried ? 1 : 0;
            rejections->most += is_tried ? 1 : 0;
            continue;
        }
        for (int32_t j = 1; j < i && is_first; j++) {
            is_first = pool->blocks[j].content != block->content || pool->blocks[j].group != group;
        }
        if (is_first && model_contents_hash_collides(pool->contents, block->content, content)) {
            bool has_key = model_pool_num_copies(pool, group, content) > 0;
            rejections->least += has_key ? 0 : 1;
            rejections->most++;
        }
    }
}

pkv_block_id model_pool_find(const model_pool *pool,
                             int32_t group,
                             int32_t content,
                             const int32_t *tokens,
                             model_rejections *rejections) {
    pkv_block_id oldest = PKV_NULL_BLOCK;

    for (int32_t i = 1; i < pool->num_blocks; i++) {
        const model_block *block = &pool->blocks[i];
        if (block->content != content || block->group != group || content == MODEL_NO_CONTENT ||
            !has_tokens(pool, group, i, tokens)) {
            continue;
        }
        if (oldest == PKV_NULL_BLOCK || block->published < pool->blocks[oldest].published) {
            oldest = i;
        }
    }
    if (rejections != NULL) {
        count_rejections(pool, group, content, tokens, oldest, rejections);
    }
    return oldest;
}

int32_t model_pool_num_copies(const model_pool *pool, int32_t group, int32_t content) {
    int32_t count = 0;

    for (int32_t i = 1; i < pool->num_blocks; i++) {
        if (pool->blocks[i].content == content && pool->blocks[i].group == group) {
            count++;
        }
    }
    return content == MODEL_NO_CONTENT ? 0 : count;
}

int32_t model_pool_num_cached(const model_pool *pool) {
    int32_t count = 0;

    for (int32_t i = 1; i < pool->num_blocks; i++) {
        count += pool->blocks[i].content != MODEL_NO_CONTENT ? 1 : 0;
    }
    return count;
}

int32_t model_pool_num_distinct(const model_pool *pool) {
    int32_t count = 0;

    for (int32_t i = 1; i < pool->num_blocks; i++) {
        bool is_first = pool->blocks[i].content != MODEL_NO_CONTENT;
        for (int32_t j = 1; j < i && is_first; j++) {
            is_first = pool->blocks[j].content != pool->blocks[i].content ||
                       pool->blocks[j].group != pool->blocks[i].group;
        }
        count += is_first ? 1 : 0;
    }
    return count;
}

/* ---- events ---------------------------------------------------------------------------------- */

static void add_event(model_pool *pool, model_event event) {
    if (pool->event_capacity == 0) {
        return;
    }
    event.sequence_number = pool->next_sequence++;
    event.call_index = pool->next_call - 1;
    if (pool->num_events == pool->event_capacity) {
        pool->num_dropped++;
        pool->num_dropped_since_take++;
        return;
    }
    pool->events[pool->num_events++] = event;
}

void model_pool_begin_call(model_pool *pool) {
    pool->next_call++;
}

static model_event stored_event(const model_publication *publication) {
    return (model_event){
        .type = PKV_EVENT_BLOCK_STORED,
        .group = publication->group,
        .request = publication->request,
        .content = MODEL_NO_CONTENT,
        .parent = publication->parent,
        .first_token = publication->first_token,
        .num_tokens = publication->num_tokens,
        .adapter_id = publication->adapter_id,
    };
}

void model_pool_publish(model_pool *pool,
                        pkv_block_id id,
                        int32_t content,
                        const int32_t *tokens,
                        const model_publication *publication) {
    model_block *block = &pool->blocks[id];
    model_event event = stored_event(publication);

    block->content = content;
    block->group = publication->group;
    block->published = pool->publish_clock++;
    block->step = publication->step;
    block->publisher = publication->request;
    block->lease = publication->lease;
    block->listed = 0;
    for (int32_t i = 0; i < pool->block_sizes[block->group] && tokens != NULL; i++) {
        block->tokens[i] = tokens[i];
    }
    pool->num_published++;
    event.num_keys = 1;
    event.block_id = id;
    event.content = content;
    event.remaining_copies = model_pool_num_copies(pool, block->group, content);
    add_event(pool, event);
}

void model_pool_publish_nothing(model_pool *pool, const model_publication *publication) {
    add_event(pool, stored_event(publication));
}

void model_pool_forget(model_pool *pool, pkv_block_id id) {
    model_block *block = &pool->blocks[id];
    model_event event = {.type = PKV_EVENT_BLOCK_REMOVED,
                         .group = block->group,
                         .num_keys = 1,
                         .block_id = id,
                         .content = block->content,
                         .parent = MODEL_NO_CONTENT};

    if (block->content == MODEL_NO_CONTENT) {
        return;
    }
    block->content = MODEL_NO_CONTENT;
    block->step = 0;
    block->listed = 0;
    event.remaining_copies = model_pool_num_copies(pool, event.group, event.content);
    add_event(pool, event);
}

/* ---- references ------------------------------------------------------------------------------ */

static void queue_insert(model_pool *pool, int32_t place, pkv_block_id id) {
    for (int32_t i = pool->num_free; i > place; i--) {
        pool->queue[i] = pool->queue[i - 1];
    }
    pool->queue[place] = id;
    pool->num_free++;
}

static void queue_remove(model_pool *pool, pkv_block_id id) {
    int32_t place = 0;

    while (pool->queue[place] != id) {
        place++;
    }
    pool->num_free--;
    for (int32_t i = place; i < pool->num_free; i++) {
        pool->queue[i] = pool->queue[i + 1];
    }
}

void model_pool_get_new_blocks(model_pool *pool, int32_t group, int32_t num, pkv_block_id *out) {
    for (int32_t i = 0; i < num; i++) {
        model_block *block = &pool->blocks[pool->queue[0]];
        out[i] = pool->queue[0];
        queue_remove(pool, out[i]);
        if (block->content != MODEL_NO_CONTENT) {
            pool->num_evicted++;
            model_pool_begin_call(pool);
            model_pool_forget(pool, out[i]);
        }
        block->ref_cnt = 1;
        block->group = group;
        block->needs_fill = pool->lists_fills;
        pool->num_allocated++;
    }
}

void model_pool_touch(model_pool *pool, pkv_block_id id) {
    if (id == PKV_NULL_BLOCK) {
        return;
    }
    if (pool->blocks[id].ref_cnt++ == 0) {
        queue_remove(pool, id);
    }
}

void model_pool_free_blocks(model_pool *pool, const pkv_block_id *ids, int32_t num_blocks) {
    int32_t num_first = 0;

    for (int32_t i = 0; i < num_blocks; i++) {
        model_block *block = &pool->blocks[ids[i]];
        if (ids[i] == PKV_NULL_BLOCK || --block->ref_cnt > 0) {
            continue;
        }
        if (block->content == MODEL_NO_CONTENT) {
            queue_insert(pool, num_first++, ids[i]);
        } else {
            queue_insert(pool, pool->num_free, ids[i]);
        }
    }
}

bool model_pool_reset(model_pool *pool) {
    for (int32_t i = 1; i < pool->num_blocks; i++) {
        if (pool->blocks[i].ref_cnt > 0) {
            return false;
        }
    }
    for (int32_t i = 1; i < pool->num_blocks; i++) {
        pool->blocks[i].content = MODEL_NO_CONTENT;
        pool->blocks[i].step = 0;
        pool->blocks[i].listed = 0;
    }
    model_pool_begin_call(pool);
    add_event(pool, (model_event){.type = PKV_EVENT_ALL_BLOCKS_CLEARED,
                                  .content = MODEL_NO_CONTENT,
                                  .parent = MODEL_NO_CONTENT});
    return true;
}

/* ---- drains ---------------------------------------------------------------------------------- */

pkv_status model_pool_take_events(model_pool *pool,
                                  model_event *events,
                                  int32_t capacity,
                                  int32_t *num_events,
                                  uint64_t *num_dropped) {
    int32_t count = capacity < pool->num_events ? capacity : pool->num_events;

    for (int32_t i = 0; i < count; i++) {
        events[i] = pool->events[i];
    }
    for (int32_t i = count; i < pool->num_events; i++) {
        pool->events[i - count] = pool->events[i];
    }
    pool->num_events -= count;
    *num_events = count;
    *num_dropped = pool->num_dropped_since_take;
    pool->num_dropped_since_take = 0;
    return pool->num_events > 0 ? PKV_MORE : PKV_OK;
}

int32_t model_pool_num_fills(const model_pool *pool, int32_t group) {
    int32_t count = 0;

    for (int32_t i = 1; i < pool->num_blocks; i++) {
        count += pool->blocks[i].needs_fill && pool->blocks[i].group == group ? 1 : 0;
    }
    return count;
}

bool model_pool_take_fill(model_pool *pool, int32_t group, pkv_block_id id) {
    model_block *block = &pool->blocks[id];

    if (!block->needs_fill || block->group != group) {
        return false;
    }
    block->needs_fill = false;
    return true;
}
