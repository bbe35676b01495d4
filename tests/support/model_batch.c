/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Batches and exported tables of the naive model, cell by cell. */
#include "support/model_manager.h"

/* Tokens of an entry after the step. */
static int64_t length_of(const model_entry *entry) {
    return (int64_t)entry->num_computed_tokens + entry->num_new_tokens;
}

static const model_table *table_of(const model_manager *model, int32_t group, int32_t slot) {
    return &model->requests[slot].tables[group];
}

/* What all three readers check: the group, and that every entry's tokens have blocks. */
static model_statuses check_entries(const model_manager *model,
                                    int32_t group,
                                    const model_entry *entries,
                                    int32_t num_entries) {
    model_statuses errors = 0;

    if (group < 0 || group >= model->num_groups || num_entries < 0 ||
        (num_entries > 0 && entries == NULL)) {
        return MODEL_INVALID;
    }
    for (int32_t i = 0; i < num_entries; i++) {
        if (entries[i].slot < 0) {
            errors |= MODEL_STALE;
        } else if (entries[i].num_computed_tokens < 0 || entries[i].num_new_tokens < 0 ||
                   length_of(&entries[i]) >
                       (int64_t)table_of(model, group, entries[i].slot)->num_blocks *
                           model->groups[group].block_size) {
            errors |= MODEL_INVALID;
        }
    }
    if (model->zero_on_free && model_pool_num_fills(&model->pool, group) > 0) {
        errors |= MODEL_BUSY;
    }
    errors |= model_num_pending_copies(model, group) > 0 ? MODEL_BUSY : 0;
    return errors;
}

static void fill_batch(const model_manager *model,
                       int32_t group,
                       const model_entry *entries,
                       pkv_batch *batch) {
    int32_t at = 0;

    for (int32_t i = 0; i < batch->num_requests || i < batch->padded_requests; i++) {
        bool is_real = i < batch->num_requests;
        const model_request *request = is_real ? &model->requests[entries[i].slot] : NULL;
        if (batch->rows != NULL) {
            batch->rows[i] = is_real ? request->row : PKV_NULL_ROW;
        }
        if (batch->seq_lens != NULL) {
            batch->seq_lens[i] = is_real ? (int32_t)length_of(&entries[i]) : 0;
        }
        if (batch->query_start_loc != NULL) {
            batch->query_start_loc[i] = at;
            batch->query_start_loc[i + 1] = at + (is_real ? entries[i].num_new_tokens : 0);
        }
        for (int32_t j = 0; is_real && j < entries[i].num_new_tokens; j++, at++) {
            int64_t block_size = model->groups[group].block_size;
            int64_t position = entries[i].num_computed_tokens + j;
            int64_t block = request->tables[group].ids[position / block_size];
            if (batch->slot_mapping != NULL) {
                batch->slot_mapping[at] = block == PKV_NULL_BLOCK
                                              ? PKV_NO_SLOT
                                              : block * block_size + position % block_size;
            }
        }
    }
    for (; at < batch->padded_tokens && batch->slot_mapping != NULL; at++) {
        batch->slot_mapping[at] = PKV_NO_SLOT;
    }
    if (batch->num_requests == 0 && batch->padded_requests == 0 && batch->query_start_loc != NULL) {
        batch->query_start_loc[0] = 0;
    }
}

model_statuses model_batch_build(const model_manager *model,
                                 int32_t group,
                                 const model_entry *entries,
                                 int32_t num_entries,
                                 pkv_batch *batch) {
    model_statuses errors = check_entries(model, group, entries, num_entries);
    bool has_requests =
        batch->rows != NULL || batch->seq_lens != NULL || batch->query_start_loc != NULL;
    int64_t num_tokens = 0;

    if (batch->max_requests < 0 || batch->max_tokens < 0 || batch->padded_requests < 0 ||
        batch->padded_tokens < 0) {
        errors |= MODEL_INVALID;
    }
    if (errors != 0) {
        return errors;
    }
    for (int32_t i = 0; i < num_entries; i++) {
        num_tokens += entries[i].num_new_tokens;
    }
    batch->num_requests = num_entries;
    batch->num_tokens = (int32_t)num_tokens;
    if ((has_requests &&
         (num_entries > batch->max_requests || batch->padded_requests > batch->max_requests)) ||
        (batch->slot_mapping != NULL &&
         (num_tokens > batch->max_tokens || batch->padded_tokens > batch->max_tokens))) {
        return MODEL_LIMIT;
    }
    fill_batch(model, group, entries, batch);
    return MODEL_OK;
}

static int32_t columns_of(const model_manager *model, int32_t group, const model_entry *entry) {
    int32_t block_size = model->groups[group].block_size;

    return (int32_t)((length_of(entry) + block_size - 1) / block_size);
}

model_statuses model_export_padded(const model_manager *model,
                                   int32_t group,
                                   const model_entry *entries,
                                   int32_t num_entries,
                                   pkv_block_id *table,
                                   int64_t row_stride,
                                   pkv_block_id fill) {
    model_statuses errors = check_entries(model, group, entries, num_entries);

    if (row_stride < 0 || (num_entries > 0 && row_stride > 0 && table == NULL)) {
        errors |= MODEL_INVALID;
    }
    if (errors != 0) {
        return errors;
    }
    for (int32_t i = 0; i < num_entries; i++) {
        errors |= columns_of(model, group, &entries[i]) > row_stride ? MODEL_LIMIT : 0;
    }
    for (int32_t i = 0; i < num_entries && errors == 0; i++) {
        for (int64_t column = 0; column < row_stride; column++) {
            table[i * row_stride + column] =
                column < columns_of(model, group, &entries[i])
                    ? table_of(model, group, entries[i].slot)->ids[column]
                    : fill;
        }
    }
    return errors != 0 ? errors : MODEL_OK;
}

model_statuses model_export_csr(const model_manager *model,
                                int32_t group,
                                const model_entry *entries,
                                int32_t num_entries,
                                bool skip_leading_null,
                                int32_t *indptr,
                                pkv_block_id *indices,
                                int32_t capacity,
                                int32_t *last_page_len,
                                int32_t *num_indices) {
    model_statuses errors = check_entries(model, group, entries, num_entries);
    int32_t at = 0;

    if (errors != 0 || capacity < 0) {
        return errors | (capacity < 0 ? MODEL_INVALID : 0);
    }
    indptr[0] = 0;
    for (int32_t i = 0; i < num_entries; i++) {
        const model_table *table = table_of(model, group, entries[i].slot);
        int32_t num_columns = columns_of(model, group, &entries[i]);
        int32_t block_size = model->groups[group].block_size;
        bool is_leading = skip_leading_null;
        for (int32_t column = 0; column < num_columns; column++) {
            is_leading = is_leading && table->ids[column] == PKV_NULL_BLOCK;
            if (!is_leading) {
                if (at < capacity) {
                    indices[at] = table->ids[column];
                }
                at++;
            }
        }
        indptr[i + 1] = at;
        last_page_len[i] =
            at == indptr[i] ? 0 : (int32_t)length_of(&entries[i]) - (num_columns - 1) * block_size;
    }
    *num_indices = at;
    return at > capacity ? MODEL_LIMIT : MODEL_OK;
}
