/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Hits that go on into a block, by looking at every block of the pool and comparing token by
 * token. */
#include <pagedkv/sharing.h>

#include "support/model_manager.h"

/* Whether the block's content is there, and follows what the request has before block `index`. */
static bool is_candidate(const model_manager *model,
                         const model_request *request,
                         int32_t group,
                         int32_t index,
                         pkv_block_id id) {
    const model_block *block = &model->pool.blocks[id];
    int32_t past = index == 0 ? MODEL_NO_CONTENT : request->contents[index - 1];

    return block->content != MODEL_NO_CONTENT && block->group == group && block->listed != 0 &&
           block->parent == past;
}

/* How many candidates are younger: only so many are looked at. */
static int32_t num_younger(const model_manager *model,
                           const model_request *request,
                           int32_t group,
                           int32_t index,
                           pkv_block_id id) {
    int32_t count = 0;

    for (int32_t i = 1; i < model->pool.num_blocks; i++) {
        count += is_candidate(model, request, group, index, i) &&
                         model->pool.blocks[i].listed > model->pool.blocks[id].listed
                     ? 1
                     : 0;
    }
    return count;
}

/* Tokens, at most `most`, that could be copied from this block; 0 where it is not what the request
 * would have there. */
static int32_t tokens_in_common(const model_manager *model,
                                const model_request *request,
                                int32_t index,
                                int32_t most,
                                pkv_block_id id) {
    const model_block *block = &model->pool.blocks[id];
    model_content wanted;
    int32_t count = 0;

    model_content_with(model, request, index, block->tokens, &wanted);
    if (!model_content_is_same(&wanted, &model->contents.items[block->content])) {
        return 0;
    }
    while (count < most &&
           block->tokens[count] == request->tokens[index * model->hash_block_size + count]) {
        count++;
    }
    return count;
}

/* The youngest of the blocks that serve most tokens; `*most` becomes how many. */
static pkv_block_id best_source(const model_manager *model,
                                const model_request *request,
                                int32_t group,
                                int32_t index,
                                int32_t *most) {
    pkv_block_id best = PKV_NULL_BLOCK;
    int32_t longest = 0;

    for (int32_t i = 1; i < model->pool.num_blocks; i++) {
        int32_t count;

        if (!is_candidate(model, request, group, index, i) ||
            num_younger(model, request, group, index, i) >= PKV_MAX_PARTIAL_CANDIDATES) {
            continue;
        }
        count = tokens_in_common(model, request, index, *most, i);
        if (count > longest || (count == longest && count > 0 &&
                                model->pool.blocks[i].listed > model->pool.blocks[best].listed)) {
            longest = count;
            best = i;
        }
    }
    *most = longest;
    return best;
}

int32_t model_partial(const model_manager *model,
                      const model_request *request,
                      int32_t whole,
                      int32_t max_tokens,
                      pkv_block_id *sources) {
    int32_t most = max_tokens - whole;

    most = most < model->alignment ? most : model->alignment - 1;
    if (model->min_partial_tokens == 0 || request->skip_cache_read || request->has_caller_keys) {
        return 0;
    }
    /* First how many all groups can serve, then who serves them. */
    for (int32_t group = 0; group < 2 * model->num_groups; group++) {
        int32_t index = whole / model->alignment;
        sources[group % model->num_groups] =
            best_source(model, request, group % model->num_groups, index, &most);
    }
    return most < model->min_partial_tokens ? 0 : most;
}

int32_t model_extend_partial(model_manager *model,
                             model_request *request,
                             int32_t group,
                             pkv_block_id source,
                             int64_t *num_spare) {
    model_table *table = &request->tables[group];
    pkv_block_id *cell = &table->ids[table->num_blocks++];
    bool was_free = model->pool.blocks[source].ref_cnt == 1;

    if (was_free && *num_spare == 0) {
        model_pool_begin_call(&model->pool);
        model_pool_forget(&model->pool, source);
        model->pool.num_allocated++;
        model->pool.num_evicted++;
        *cell = source;
        return 0;
    }
    *num_spare -= was_free ? 1 : 0;
    model_pool_get_new_blocks(&model->pool, group, 1, cell);
    model_queue_copy(model, source, *cell);
    return 1;
}
