/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Fork, truncate and copy-on-write of the naive model: every write looks at every block that it
 * touches. */
#include "support/model_manager.h"

#include <string.h>

static int32_t min_of(int32_t a, int32_t b) {
    return a < b ? a : b;
}

static int32_t columns_of(const model_manager *model, int32_t group, int64_t num_tokens) {
    int32_t block_size = model->groups[group].block_size;

    return (int32_t)((num_tokens + block_size - 1) / block_size);
}

/* ---- copies ---------------------------------------------------------------------------------- */

bool model_is_pinned(const model_manager *model, pkv_block_id id) {
    for (int32_t i = 0; i < model->num_copies; i++) {
        if (model->copies[i].source == id) {
            return true;
        }
    }
    return false;
}

bool model_is_target(const model_manager *model, pkv_block_id id) {
    for (int32_t i = 0; i < model->num_copies; i++) {
        if (model->copies[i].target == id) {
            return true;
        }
    }
    return false;
}

int32_t model_num_owners(const model_manager *model, pkv_block_id id) {
    int32_t count = model->pool.blocks[id].ref_cnt;

    for (int32_t i = 0; i < model->num_copies; i++) {
        count -= model->copies[i].source == id ? 1 : 0;
    }
    return count;
}

bool model_is_foreign(const model_manager *model,
                      const model_request *request,
                      int32_t group,
                      int32_t column) {
    pkv_block_id id = request->tables[group].ids[column];

    return id != PKV_NULL_BLOCK && model->pool.blocks[id].content != MODEL_NO_CONTENT &&
           model->pool.blocks[id].content != model_column_content(model, request, group, column);
}

static bool needs_copy(const model_manager *model,
                       const model_request *request,
                       int32_t group,
                       int32_t column) {
    pkv_block_id id = request->tables[group].ids[column];

    return id != PKV_NULL_BLOCK && model_num_owners(model, id) > 1 &&
           (model->pool.blocks[id].content == MODEL_NO_CONTENT ||
            model_is_foreign(model, request, group, column));
}

int32_t model_num_copies_needed(const model_manager *model,
                                const model_request *request,
                                int32_t group,
                                int64_t first,
                                int64_t end) {
    int32_t count = 0;

    for (int32_t column = 0; column < request->tables[group].num_blocks; column++) {
        int64_t block_size = model->groups[group].block_size;
        bool is_written = (column + 1) * block_size > first && column * block_size < end;
        count += is_written && needs_copy(model, request, group, column) ? 1 : 0;
    }
    return count;
}

static void end_pair(model_manager *model, int32_t index) {
    pkv_block_id source = model->copies[index].source;

    model->num_copies--;
    for (int32_t i = index; i < model->num_copies; i++) {
        model->copies[i] = model->copies[i + 1];
    }
    model_pool_free_blocks(&model->pool, &source, 1);
}

void model_cancel_freed(model_manager *model) {
    int32_t i = 0;

    while (i < model->num_copies) {
        if (model->pool.blocks[model->copies[i].target].ref_cnt == 0) {
            end_pair(model, i);
        } else {
            i++;
        }
    }
}

void model_queue_copy(model_manager *model, pkv_block_id source, pkv_block_id target) {
    pkv_block_copy *copy = &model->copies[model->num_copies];

    copy->source = source;
    copy->target = target;
    /* What will be copied into the source is copied from where it comes. */
    for (int32_t i = 0; i < model->num_copies; i++) {
        if (model->copies[i].target == source) {
            copy->source = model->copies[i].source;
        }
    }
    if (copy->source != source) {
        model_pool_touch(&model->pool, copy->source);
        model_pool_free_blocks(&model->pool, &source, 1);
    }
    model->num_copies++;
    model->num_copies_queued++;
}

static void copy_column(model_manager *model,
                        model_request *request,
                        int32_t group,
                        int32_t column) {
    pkv_block_id target;

    model_pool_get_new_blocks(&model->pool, group, 1, &target);
    model_queue_copy(model, request->tables[group].ids[column], target);
    request->tables[group].ids[column] = target;
}

int32_t model_make_writable(
    model_manager *model, model_request *request, int32_t group, int64_t first, int64_t end) {
    int32_t count = 0;

    for (int32_t column = 0; column < request->tables[group].num_blocks; column++) {
        int64_t block_size = model->groups[group].block_size;
        if ((column + 1) * block_size <= first || column * block_size >= end) {
            continue;
        }
        if (needs_copy(model, request, group, column)) {
            copy_column(model, request, group, column);
            count++;
        } else if (model_is_foreign(model, request, group, column)) {
            model_pool_begin_call(&model->pool);
            model_pool_forget(&model->pool, request->tables[group].ids[column]);
        }
    }
    return count;
}

int32_t model_num_pending_copies(const model_manager *model, int32_t group) {
    int32_t count = 0;

    for (int32_t i = 0; i < model->num_copies; i++) {
        count += model->pool.blocks[model->copies[i].target].group == group ? 1 : 0;
    }
    return count;
}

pkv_status model_take_copies(model_manager *model,
                             int32_t group,
                             pkv_block_copy *copies,
                             int32_t capacity,
                             int32_t *num_copies) {
    int32_t i = 0;

    *num_copies = 0;
    while (i < model->num_copies && *num_copies < capacity) {
        if (model->pool.blocks[model->copies[i].target].group != group) {
            i++;
            continue;
        }
        copies[(*num_copies)++] = model->copies[i];
        end_pair(model, i);
    }
    return model_num_pending_copies(model, group) > 0 ? PKV_MORE : PKV_OK;
}

/* ---- fork ------------------------------------------------------------------------------------ */

/* Whether the columns that a token at `position` sees of the first `num_tokens` are there. */
static bool has_window(const model_manager *model,
                       const model_request *request,
                       int32_t num_tokens,
                       int32_t position) {
    for (int32_t group = 0; group < model->num_groups; group++) {
        int32_t first =
            model_num_skipped_tokens(model, group, position) / model->groups[group].block_size;
        for (int32_t column = first; column < columns_of(model, group, num_tokens); column++) {
            if (request->tables[group].ids[column] == PKV_NULL_BLOCK) {
                return false;
            }
        }
    }
    return true;
}

static model_statuses check_fork(const model_manager *model,
                                 const model_request *parent,
                                 int32_t num_computed_tokens) {
    int64_t reserved = parent->max_num_tokens;
    int32_t num_open = 0;

    if (model_is_loading(model, parent)) {
        return MODEL_BUSY;
    }
    if (num_computed_tokens < 0 || num_computed_tokens > parent->num_tokens) {
        return MODEL_INVALID;
    }
    for (int32_t group = 0; group < model->num_groups; group++) {
        if (columns_of(model, group, num_computed_tokens) > parent->tables[group].num_blocks) {
            return MODEL_INVALID;
        }
    }
    if (!has_window(model, parent, num_computed_tokens, num_computed_tokens)) {
        return MODEL_INVALID;
    }
    if (num_computed_tokens > 0 && model->num_rows == model->max_rows) {
        return MODEL_STATUS(PKV_NO_FREE_ROWS);
    }
    for (int32_t i = 0; i < MODEL_MAX_REQUESTS; i++) {
        num_open += model->requests[i].is_open ? 1 : 0;
        reserved += model->requests[i].is_open ? model->requests[i].max_num_tokens : 0;
    }
    return num_open == model->max_requests || reserved > model->max_total_tokens ? MODEL_LIMIT : 0;
}

model_statuses model_fork(model_manager *model,
                          model_request *parent,
                          int32_t num_computed_tokens,
                          int32_t *slot) {
    model_statuses errors = check_fork(model, parent, num_computed_tokens);
    model_request *child = model->requests;

    if (errors != 0) {
        return errors;
    }
    while (child->is_open) {
        child++;
    }
    memcpy(child, parent, sizeof *child);
    child->row = PKV_NULL_ROW;
    child->num_allocations = num_computed_tokens > 0 ? 1 : 0;
    child->num_live_tokens = num_computed_tokens;
    model->num_rows += num_computed_tokens > 0 ? 1 : 0;
    for (int32_t group = 0; group < model->num_groups; group++) {
        model_table *table = &child->tables[group];
        int32_t block_size = model->groups[group].block_size;
        int32_t skipped = model_num_skipped_tokens(model, group, num_computed_tokens) / block_size;
        table->num_blocks = columns_of(model, group, num_computed_tokens);
        for (int32_t column = 0; column < table->num_blocks; column++) {
            if (column < skipped) {
                table->ids[column] = PKV_NULL_BLOCK;
            }
            model_pool_touch(&model->pool, table->ids[column]);
        }
        child->num_cached[group] =
            min_of(parent->num_cached[group], num_computed_tokens / block_size);
        child->num_hits[group] = child->num_cached[group];
        child->first_new[group] = table->num_blocks;
    }
    model->num_forks++;
    *slot = (int32_t)(child - model->requests);
    return MODEL_OK;
}

/* ---- truncate -------------------------------------------------------------------------------- */

static bool cuts_media(const model_request *request, int32_t num_tokens) {
    for (int32_t i = 0; i < request->num_media; i++) {
        const pkv_media *item = &request->media[i];
        if (item->offset < num_tokens && num_tokens < item->offset + item->num_tokens) {
            return true;
        }
    }
    return false;
}

static void cut_tables(model_manager *model, model_request *request, int32_t num_tokens) {
    for (int32_t group = 0; group < model->num_groups; group++) {
        model_table *table = &request->tables[group];
        int32_t num_full = num_tokens / model->groups[group].block_size;
        int32_t kept = min_of(table->num_blocks, columns_of(model, group, num_tokens));
        while (table->num_blocks > kept) {
            pkv_block_id freed[MODEL_MAX_COLUMNS];
            int32_t count = 0;
            while (table->num_blocks > kept) {
                freed[count++] = table->ids[--table->num_blocks];
            }
            model_pool_free_blocks(&model->pool, freed, count);
        }
        request->num_cached[group] = min_of(request->num_cached[group], num_full);
        request->num_hits[group] = min_of(request->num_hits[group], num_full);
        request->first_new[group] = min_of(request->first_new[group], kept);
    }
    model_cancel_freed(model);
    request->num_live_tokens = min_of(request->num_live_tokens, num_tokens);
}

model_statuses model_truncate(model_manager *model, model_request *request, int32_t num_tokens) {
    int32_t num_kept = 0;
    int32_t held = num_tokens;

    if (num_tokens < 1 || num_tokens > request->num_tokens) {
        return MODEL_INVALID;
    }
    if (num_tokens == request->num_tokens) {
        return MODEL_OK;
    }
    if (model_is_loading(model, request)) {
        return MODEL_BUSY;
    }
    for (int32_t group = 0; group < model->num_groups; group++) {
        held = min_of(held, request->tables[group].num_blocks * model->groups[group].block_size);
    }
    if (cuts_media(request, num_tokens) ||
        (request->row != PKV_NULL_ROW &&
         !has_window(model, request, held, held > 0 ? held - 1 : 0))) {
        return MODEL_INVALID;
    }
    if (request->row != PKV_NULL_ROW) {
        cut_tables(model, request, num_tokens);
    }
    for (int32_t i = 0; i < request->num_media; i++) {
        if (request->media[i].offset < num_tokens ||
            request->media[i].offset >= request->num_tokens) {
            request->media[num_kept++] = request->media[i];
        }
    }
    request->num_media = num_kept;
    request->num_tokens = num_tokens;
    request->num_prompt_tokens = min_of(request->num_prompt_tokens, num_tokens);
    request->num_keys = min_of(request->num_keys, num_tokens / model->hash_block_size);
    return MODEL_OK;
}
