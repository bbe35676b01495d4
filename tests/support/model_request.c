/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Requests of the naive model: their tokens and the contents of their hash blocks. */
#include "support/model_manager.h"

#include <stddef.h>
#include <string.h>

static int32_t gcd(int32_t a, int32_t b) {
    int32_t divisor = a > b ? a : b;

    while (a % divisor != 0 || b % divisor != 0) {
        divisor--;
    }
    return divisor;
}

static int32_t or_default(int32_t value, int32_t fallback) {
    return value != 0 ? value : fallback;
}

static void init_groups(model_manager *model, const pkv_manager_config *config) {
    int32_t fallback = or_default(config->block_size, PKV_DEFAULT_BLOCK_SIZE);

    model->num_groups = or_default(config->num_groups, 1);
    model->hash_block_size = 0;
    model->alignment = 1;
    for (int32_t i = 0; i < model->num_groups; i++) {
        pkv_group_config *group = &model->groups[i];
        *group = config->num_groups != 0 ? config->groups[i] : (pkv_group_config){0};
        group->block_size = or_default(group->block_size, fallback);
        model->hash_block_size = gcd(group->block_size, model->hash_block_size);
        model->alignment =
            model->alignment / gcd(model->alignment, group->block_size) * group->block_size;
    }
}

void model_manager_init(model_manager *model, const pkv_manager_config *config) {
    int32_t block_sizes[MODEL_MAX_GROUPS];
    pkv_pool_config pool = {.num_blocks = config->num_blocks,
                            .block_sizes = block_sizes,
                            .event_capacity = config->event_capacity,
                            .disable_prefix_cache = config->disable_prefix_cache,
                            .store_tokens = config->store_tokens,
                            .fill_new_blocks = config->fill_new_blocks || config->zero_on_free};
    int32_t widest = 0;
    int64_t slots;

    memset((unsigned char *)model + offsetof(model_manager, pool), 0,
           sizeof *model - offsetof(model_manager, pool));
    init_groups(model, config);
    for (int32_t i = 0; i < model->num_groups; i++) {
        block_sizes[i] = model->groups[i].block_size;
        widest = block_sizes[i] > widest ? block_sizes[i] : widest;
        model->widths[i] =
            or_default(config->max_blocks_per_request,
                       (config->max_model_len + block_sizes[i] - 1) / block_sizes[i]);
    }
    pool.num_groups = model->num_groups;
    model_contents_clear(&model->contents);
    model_pool_init(&model->pool, &model->contents, &pool);
    model->max_model_len = config->max_model_len;
    model->max_rows = or_default(config->max_rows, PKV_DEFAULT_MAX_ROWS);
    model->max_requests =
        or_default(config->max_requests, PKV_DEFAULT_REQUESTS_PER_ROW * model->max_rows);
    model->max_held_rows = or_default(config->max_held_rows, model->max_rows);
    model->max_in_flight_tokens = or_default(config->max_in_flight_tokens, config->max_model_len);
    model->max_media_per_request =
        or_default(config->max_media_per_request, PKV_DEFAULT_MAX_MEDIA_PER_REQUEST);
    slots = (int64_t)PKV_DEFAULT_TOKENS_PER_SLOT * config->num_blocks * widest;
    model->max_total_tokens = config->max_total_tokens;
    if (model->max_total_tokens == 0) {
        model->max_total_tokens = slots > config->max_model_len ? slots : config->max_model_len;
    }
    model->zero_on_free = config->zero_on_free;
    model->min_partial_tokens = config->min_partial_tokens;
}

int32_t model_find_request(const model_manager *model, pkv_request handle) {
    for (int32_t i = 0; i < MODEL_MAX_REQUESTS; i++) {
        const model_request *request = &model->requests[i];
        if (request->is_open && request->handle.index == handle.index &&
            request->handle.generation == handle.generation) {
            return i;
        }
    }
    return -1;
}

/* ---- contents -------------------------------------------------------------------------------- */

static void add_media_parts(const model_request *request, int32_t start, model_content *content) {
    int32_t end = start + content->num_tokens;

    for (int32_t i = 0; i < request->num_media; i++) {
        const pkv_media *item = &request->media[i];
        if (item->offset < end && item->offset + item->num_tokens > start) {
            model_media_part *part = &content->media[content->num_media++];
            memcpy(part->digest, item->digest, sizeof part->digest);
            part->offset = item->offset - start;
        }
    }
}

void model_content_with(const model_manager *model,
                        const model_request *request,
                        int32_t index,
                        const int32_t *tokens,
                        model_content *content) {
    int32_t block_size = model->hash_block_size;

    *content = (model_content){
        .parent = MODEL_NO_CONTENT, .num_tokens = block_size, .adapter_id = request->adapter_id};
    if (index == 0) {
        content->salt_size = request->salt_size;
        memcpy(content->salt, request->salt, (size_t)request->salt_size);
    } else if (index <= request->num_keys) {
        content->parent = request->contents[index - 1];
    }
    for (int32_t i = 0; i < block_size; i++) {
        content->tokens[i] = tokens[i];
    }
    add_media_parts(request, index * block_size, content);
}

void model_name_contents(model_manager *model, const model_request *request, int32_t *contents) {
    int32_t block_size = model->hash_block_size;

    for (int32_t index = 0; (index + 1) * block_size <= request->num_tokens; index++) {
        model_content content;
        model_content_with(model, request, index, &request->tokens[index * block_size], &content);
        content.parent = index == 0 ? MODEL_NO_CONTENT : contents[index - 1];
        contents[index] = model_contents_intern(&model->contents, &content);
    }
}

/* Name the contents of the hash blocks that have become full. */
static void extend_contents(model_manager *model, model_request *request) {
    if (!request->has_caller_keys && !model->pool.disable_prefix_cache) {
        model_name_contents(model, request, request->contents);
        request->num_keys = request->num_tokens / model->hash_block_size;
    }
}

/* ---- open, append, close --------------------------------------------------------------------- */

static bool is_valid_media(const pkv_media *media, int32_t num_media) {
    int64_t end = 0;

    if (num_media < 0 || (num_media > 0 && media == NULL)) {
        return false;
    }
    for (int32_t i = 0; i < num_media; i++) {
        if (media[i].num_tokens < 1 || media[i].offset < end) {
            return false;
        }
        end = (int64_t)media[i].offset + media[i].num_tokens;
    }
    return true;
}

static model_statuses check_open(const model_manager *model, const pkv_request_args *args) {
    int32_t max_num_tokens = or_default(args->max_num_tokens, model->max_model_len);
    int64_t reserved = max_num_tokens;
    int32_t num_open = 0;
    model_statuses errors = 0;

    for (int32_t i = 0; i < MODEL_MAX_REQUESTS; i++) {
        if (model->requests[i].is_open) {
            num_open++;
            reserved += model->requests[i].max_num_tokens;
        }
    }
    if (args->token_ids == NULL || args->num_tokens < 1 || args->max_num_tokens < 0 ||
        max_num_tokens > model->max_model_len || args->num_tokens > max_num_tokens ||
        (args->salt_size > 0 && args->salt == NULL) ||
        !is_valid_media(args->media, args->num_media)) {
        errors |= MODEL_INVALID;
    }
    if (num_open == model->max_requests || reserved > model->max_total_tokens ||
        args->num_media > model->max_media_per_request) {
        errors |= MODEL_LIMIT;
    }
    for (int32_t i = 0; i < model->num_groups; i++) {
        if (max_num_tokens > (int64_t)model->widths[i] * model->groups[i].block_size) {
            errors |= MODEL_LIMIT;
        }
    }
    return errors;
}

model_statuses model_open(model_manager *model, const pkv_request_args *args, int32_t *slot) {
    model_statuses errors = check_open(model, args);
    model_request *request = model->requests;

    if (errors != 0) {
        return errors;
    }
    while (request->is_open) {
        request++;
    }
    memset(request, 0, sizeof *request);
    request->is_open = true;
    request->skip_cache_read = args->skip_cache_read;
    request->has_caller_keys = args->has_caller_keys;
    request->num_tokens = args->num_tokens;
    request->num_prompt_tokens = args->num_tokens;
    request->max_num_tokens = or_default(args->max_num_tokens, model->max_model_len);
    memcpy(request->tokens, args->token_ids, sizeof(int32_t) * (size_t)args->num_tokens);
    request->adapter_id = args->adapter_id;
    if (args->salt != NULL) {
        request->salt_size = (int32_t)args->salt_size;
        memcpy(request->salt, args->salt, args->salt_size);
    }
    request->num_media = args->num_media;
    for (int32_t i = 0; i < args->num_media; i++) {
        request->media[i] = args->media[i];
    }
    extend_contents(model, request);
    *slot = (int32_t)(request - model->requests);
    return MODEL_OK;
}

model_statuses model_append(model_manager *model,
                            model_request *request,
                            const int32_t *tokens,
                            int32_t num_tokens) {
    model_statuses errors = 0;

    if (tokens == NULL || num_tokens < 1) {
        errors |= MODEL_INVALID;
    }
    if (num_tokens > request->max_num_tokens - request->num_tokens) {
        errors |= MODEL_LIMIT;
    }
    if (errors != 0) {
        return errors;
    }
    memcpy(&request->tokens[request->num_tokens], tokens, sizeof(int32_t) * (size_t)num_tokens);
    request->num_tokens += num_tokens;
    extend_contents(model, request);
    return MODEL_OK;
}

model_statuses model_append_keys(model_manager *model,
                                 model_request *request,
                                 const pkv_block_key *keys,
                                 int32_t num_keys) {
    int32_t room = request->num_tokens / model->hash_block_size - request->num_keys;

    if (!request->has_caller_keys || num_keys < 0 || num_keys > room ||
        (keys == NULL && num_keys > 0)) {
        return MODEL_INVALID;
    }
    for (int32_t i = 0; i < num_keys && !model->pool.disable_prefix_cache; i++) {
        request->contents[request->num_keys++] =
            model_contents_intern_key(&model->contents, &keys[i]);
    }
    return MODEL_OK;
}

void model_close(model_manager *model, model_request *request) {
    model_free(model, request);
    request->is_open = false;
}
