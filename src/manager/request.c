/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Open requests and the arena of their tokens and keys; see request.h. */
#include "manager/request.h"

#include <string.h>

/* A page is about this part of the longest sequence, within bounds: small enough that a short
 * request wastes little, large enough that a long one has a short list of pages. */
#define PAGES_OF_LONGEST 64
#define LEAST_PAGE_TOKENS 64
#define MOST_PAGE_TOKENS 1024

static int64_t page_tokens(const struct pkvi_request_sizes *sizes) {
    int64_t wanted = sizes->max_model_len / PAGES_OF_LONGEST;

    wanted = wanted < LEAST_PAGE_TOKENS ? LEAST_PAGE_TOKENS : wanted;
    wanted = wanted > MOST_PAGE_TOKENS ? MOST_PAGE_TOKENS : wanted;
    return (wanted + sizes->alignment - 1) / sizes->alignment * sizes->alignment;
}

/* Every request may leave its last page unfilled; one page more for each keeps the promise that the
 * sum of max_num_tokens alone decides. */
static int64_t count_pages(const struct pkvi_request_sizes *sizes) {
    int64_t per_page = page_tokens(sizes);

    return (sizes->max_total_tokens + per_page - 1) / per_page + sizes->max_requests;
}

bool pkvi_request_sizes_fit(const struct pkvi_request_sizes *sizes) {
    return sizes->max_total_tokens <= INT64_MAX / 2 && page_tokens(sizes) <= INT32_MAX &&
           count_pages(sizes) <= INT32_MAX;
}

void pkvi_request_map_carve(struct pkvi_request_map *map,
                            struct pkvi_carver *carver,
                            const struct pkvi_request_sizes *sizes) {
    size_t max_requests = (size_t)sizes->max_requests;
    int64_t per_page = page_tokens(sizes);

    memset(map, 0, sizeof *map);
    map->max_requests = sizes->max_requests;
    map->max_media = sizes->max_media;
    map->hash_block_size = sizes->hash_block_size;
    map->max_total_tokens = sizes->max_total_tokens;
    map->computes_keys = sizes->computes_keys;
    map->hash_keys = sizes->hash_keys;
    map->tokens_per_page = (int32_t)per_page;
    map->keys_per_page = map->tokens_per_page / sizes->hash_block_size;
    map->num_pages = (int32_t)count_pages(sizes);
    map->num_free_pages = map->num_pages;
    map->max_pages_per_request = (int32_t)((sizes->max_model_len + per_page - 1) / per_page);
    map->requests = pkvi_carve(carver, max_requests, sizeof *map->requests);
    map->media = pkvi_carve(carver, max_requests, (size_t)map->max_media * sizeof *map->media);
    map->page_lists =
        pkvi_carve(carver, max_requests, (size_t)map->max_pages_per_request * sizeof(int32_t));
    map->free_pages = pkvi_carve(carver, (size_t)map->num_pages, sizeof(int32_t));
    map->token_pages =
        pkvi_carve(carver, (size_t)map->num_pages, (size_t)map->tokens_per_page * sizeof(int32_t));
    map->key_pages = pkvi_carve(carver, (size_t)map->num_pages,
                                (size_t)(sizes->computes_keys ? map->keys_per_page : 0) *
                                    sizeof *map->key_pages);
    if (map->requests == NULL) {
        return;
    }
    memset(map->requests, 0, max_requests * sizeof *map->requests);
    for (int32_t i = 0; i < map->max_requests; i++) {
        map->requests[i].next_free = i + 1 == map->max_requests ? -1 : i + 1;
    }
    for (int32_t i = 0; i < map->num_pages; i++) {
        map->free_pages[i] = map->num_pages - 1 - i;
    }
}

static int32_t *page_list(const struct pkvi_request_map *map, const struct pkvi_request *request) {
    return map->page_lists +
           (size_t)pkvi_request_index(map, request) * (size_t)map->max_pages_per_request;
}

static pkv_media *media_of(const struct pkvi_request_map *map, const struct pkvi_request *request) {
    return map->media + (size_t)pkvi_request_index(map, request) * (size_t)map->max_media;
}

static int32_t pages_for(const struct pkvi_request_map *map, int32_t num_tokens) {
    return (int32_t)(((int64_t)num_tokens + map->tokens_per_page - 1) / map->tokens_per_page);
}

static pkv_block_key *key_at(const struct pkvi_request_map *map,
                             const struct pkvi_request *request,
                             int32_t index) {
    int32_t page = page_list(map, request)[index / map->keys_per_page];

    return map->key_pages + (size_t)page * (size_t)map->keys_per_page +
           (size_t)(index % map->keys_per_page);
}

static int32_t *tokens_at(const struct pkvi_request_map *map,
                          const struct pkvi_request *request,
                          int32_t position) {
    int32_t page = page_list(map, request)[position / map->tokens_per_page];

    return map->token_pages + (size_t)page * (size_t)map->tokens_per_page +
           (size_t)(position % map->tokens_per_page);
}

const pkv_block_key *pkvi_request_key(const struct pkvi_request_map *map,
                                      const struct pkvi_request *request,
                                      int32_t index) {
    return key_at(map, request, index);
}

struct pkvi_key_cursor pkvi_request_keys(const struct pkvi_request_map *map,
                                         const struct pkvi_request *request,
                                         int32_t key_stride,
                                         int32_t first_block,
                                         bool with_tokens) {
    int64_t first_key = (int64_t)first_block * key_stride + key_stride - 1;
    struct pkvi_key_cursor cursor;

    cursor.keys = map->key_pages;
    cursor.token_ids = with_tokens ? map->token_pages : NULL;
    cursor.pieces = page_list(map, request);
    cursor.keys_per_piece = map->keys_per_page;
    cursor.tokens_per_key = map->hash_block_size;
    cursor.key_stride = key_stride;
    cursor.piece = (int32_t)(first_key / map->keys_per_page);
    cursor.offset = (int32_t)(first_key % map->keys_per_page);
    return cursor;
}

void pkvi_request_copy_tokens(const struct pkvi_request_map *map,
                              const struct pkvi_request *request,
                              int32_t first_token,
                              int32_t num_tokens,
                              int32_t *out) {
    while (num_tokens > 0) {
        int32_t room = map->tokens_per_page - first_token % map->tokens_per_page;
        int32_t count = num_tokens < room ? num_tokens : room;

        memcpy(out, tokens_at(map, request, first_token), (size_t)count * sizeof *out);
        out += count;
        first_token += count;
        num_tokens -= count;
    }
}

static struct pkvi_key_extras extras_of(const struct pkvi_request_map *map,
                                        const struct pkvi_request *request) {
    struct pkvi_key_extras extras = {request->adapter_id, request->has_salt, request->salt,
                                     media_of(map, request), request->num_media};

    return extras;
}

const int32_t *pkvi_request_tokens(const struct pkvi_request_map *map,
                                   const struct pkvi_request *request,
                                   int32_t index) {
    return tokens_at(map, request, index * map->hash_block_size);
}

/* The key that hash block `index` has with these tokens, behind the key of the one before it. */
static pkv_block_key key_of(const struct pkvi_request_map *map,
                            const struct pkvi_request *request,
                            const struct pkvi_key_extras *extras,
                            int32_t index,
                            const int32_t *token_ids,
                            int32_t *media_index) {
    return pkvi_compute_block_key(
        &map->hash_keys, extras, index == 0 ? NULL : key_at(map, request, index - 1),
        index * map->hash_block_size, token_ids, map->hash_block_size, media_index);
}

pkv_block_key pkvi_request_key_with(const struct pkvi_request_map *map,
                                    const struct pkvi_request *request,
                                    int32_t index,
                                    const int32_t *token_ids) {
    struct pkvi_key_extras extras = extras_of(map, request);
    int32_t media_index = 0;

    return key_of(map, request, &extras, index, token_ids, &media_index);
}

/* Compute the keys of the hash blocks that are full and have none yet. */
static void compute_keys(struct pkvi_request_map *map, struct pkvi_request *request) {
    struct pkvi_key_extras extras = extras_of(map, request);
    int32_t num_full = request->num_tokens / map->hash_block_size;

    if (request->has_caller_keys || !map->computes_keys) {
        return;
    }
    for (; request->num_keys < num_full; request->num_keys++) {
        int32_t index = request->num_keys;

        *key_at(map, request, index) =
            key_of(map, request, &extras, index, pkvi_request_tokens(map, request, index),
                   &request->media_index);
    }
}

void pkvi_request_append(struct pkvi_request_map *map,
                         struct pkvi_request *request,
                         const int32_t *token_ids,
                         int32_t num_tokens) {
    PKV_ASSERT(num_tokens <= request->max_num_tokens - request->num_tokens);
    while (num_tokens > 0) {
        int32_t room = map->tokens_per_page - request->num_tokens % map->tokens_per_page;
        int32_t count = num_tokens < room ? num_tokens : room;

        memcpy(tokens_at(map, request, request->num_tokens), token_ids,
               (size_t)count * sizeof *token_ids);
        token_ids += count;
        request->num_tokens += count;
        num_tokens -= count;
    }
    compute_keys(map, request);
}

void pkvi_request_append_keys(struct pkvi_request_map *map,
                              struct pkvi_request *request,
                              const pkv_block_key *keys,
                              int32_t num_keys) {
    if (!map->computes_keys) {
        return;
    }
    for (int32_t i = 0; i < num_keys; i++) {
        *key_at(map, request, request->num_keys++) = keys[i];
    }
}

/* Take a handle and the pages of `max_num_tokens` for a request that is set by the caller. NULL
 * and a text where one of them is missing. */
static struct pkvi_request *take_request(struct pkvi_request_map *map,
                                         int32_t max_num_tokens,
                                         struct pkvi_error_text *error) {
    struct pkvi_request *request;
    int32_t num_pages = pages_for(map, max_num_tokens);
    uint32_t generation;

    if (map->first_free < 0) {
        (void)pkvi_fail(error, PKV_ERROR_LIMIT, "max_requests: all %d are open", map->max_requests);
        return NULL;
    }
    if (max_num_tokens > map->max_total_tokens - map->num_reserved_tokens) {
        (void)pkvi_fail(
            error, PKV_ERROR_LIMIT, "max_total_tokens: %lld of %lld are reserved, %d wanted",
            (long long)map->num_reserved_tokens, (long long)map->max_total_tokens, max_num_tokens);
        return NULL;
    }
    request = &map->requests[map->first_free];
    generation = request->generation + 1;
    map->first_free = request->next_free;
    memset(request, 0, sizeof *request);
    request->generation = generation == 0 ? 1 : generation;
    request->is_open = true;
    request->max_num_tokens = max_num_tokens;
    for (int32_t i = 0; i < num_pages; i++) {
        page_list(map, request)[i] = map->free_pages[--map->num_free_pages];
    }
    map->num_open++;
    map->num_reserved_tokens += max_num_tokens;
    return request;
}

static pkv_request handle_of(const struct pkvi_request_map *map,
                             const struct pkvi_request *request) {
    pkv_request handle = {(uint32_t)pkvi_request_index(map, request), request->generation};

    return handle;
}

pkv_status pkvi_request_open(struct pkvi_request_map *map,
                             const pkv_request_args *args,
                             struct pkvi_error_text *error,
                             pkv_request *out) {
    struct pkvi_request *request;

    if (args->num_media > map->max_media) {
        return pkvi_fail(error, PKV_ERROR_LIMIT, "max_media_per_request: %d, the request has %d",
                         map->max_media, args->num_media);
    }
    request = take_request(map, args->max_num_tokens, error);
    if (request == NULL) {
        return PKV_ERROR_LIMIT;
    }
    request->skip_cache_read = args->skip_cache_read;
    request->has_caller_keys = args->has_caller_keys;
    request->num_prompt_tokens = args->num_tokens;
    request->num_media = args->num_media;
    request->adapter_id = args->adapter_id;
    request->has_salt = args->salt_size > 0;
    if (request->has_salt) {
        request->salt = pkvi_digest_salt(&map->hash_keys, args->salt, args->salt_size);
    }
    if (args->num_media > 0) {
        memcpy(media_of(map, request), args->media, (size_t)args->num_media * sizeof *args->media);
    }
    map->num_caller_keyed += request->has_caller_keys ? 1 : 0;
    pkvi_request_append(map, request, args->token_ids, args->num_tokens);
    *out = handle_of(map, request);
    return PKV_OK;
}

/* Copy the tokens and keys of `parent`, page by page and no further than it has any. */
static void copy_pages(struct pkvi_request_map *map,
                       const struct pkvi_request *parent,
                       struct pkvi_request *child) {
    int32_t num_keys = parent->num_keys;

    for (int32_t first = 0; first < parent->num_tokens; first += map->tokens_per_page) {
        int32_t count = parent->num_tokens - first;

        count = count < map->tokens_per_page ? count : map->tokens_per_page;
        memcpy(tokens_at(map, child, first), tokens_at(map, parent, first),
               (size_t)count * sizeof(int32_t));
    }
    for (int32_t first = 0; first < num_keys; first += map->keys_per_page) {
        int32_t count =
            num_keys - first < map->keys_per_page ? num_keys - first : map->keys_per_page;

        memcpy(key_at(map, child, first), key_at(map, parent, first),
               (size_t)count * sizeof(pkv_block_key));
    }
}

pkv_status pkvi_request_fork(struct pkvi_request_map *map,
                             const struct pkvi_request *parent,
                             struct pkvi_error_text *error,
                             pkv_request *out) {
    struct pkvi_request *child = take_request(map, parent->max_num_tokens, error);
    uint32_t generation;

    if (child == NULL) {
        return PKV_ERROR_LIMIT;
    }
    generation = child->generation;
    *child = *parent;
    child->generation = generation;
    child->row = PKV_NULL_ROW;
    child->num_allocations = 0;
    child->look_until = 0;
    child->loading_allocation = 0;
    if (parent->num_media > 0) {
        memcpy(media_of(map, child), media_of(map, parent),
               (size_t)parent->num_media * sizeof(pkv_media));
    }
    map->num_caller_keyed += child->has_caller_keys ? 1 : 0;
    copy_pages(map, parent, child);
    *out = handle_of(map, child);
    return PKV_OK;
}

bool pkvi_request_cuts_media(const struct pkvi_request_map *map,
                             const struct pkvi_request *request,
                             int32_t num_tokens) {
    const pkv_media *media = media_of(map, request);

    for (int32_t i = 0; i < request->num_media && num_tokens < request->num_tokens; i++) {
        if (media[i].offset < num_tokens &&
            (int64_t)media[i].offset + media[i].num_tokens > num_tokens) {
            return true;
        }
    }
    return false;
}

void pkvi_request_truncate(struct pkvi_request_map *map,
                           struct pkvi_request *request,
                           int32_t num_tokens) {
    pkv_media *media = media_of(map, request);
    int32_t num_kept = 0;

    /* Items that no token has reached yet are still to come. */
    for (int32_t i = 0; i < request->num_media; i++) {
        if (media[i].offset < num_tokens || media[i].offset >= request->num_tokens) {
            media[num_kept++] = media[i];
        }
    }
    request->num_media = num_kept;
    request->media_index = 0;
    request->num_tokens = num_tokens;
    if (request->num_keys > num_tokens / map->hash_block_size) {
        request->num_keys = num_tokens / map->hash_block_size;
    }
    if (request->num_prompt_tokens > num_tokens) {
        request->num_prompt_tokens = num_tokens;
    }
}

void pkvi_request_close(struct pkvi_request_map *map, struct pkvi_request *request) {
    int32_t num_pages = pages_for(map, request->max_num_tokens);

    for (int32_t i = num_pages - 1; i >= 0; i--) {
        map->free_pages[map->num_free_pages++] = page_list(map, request)[i];
    }
    map->num_reserved_tokens -= request->max_num_tokens;
    map->num_open--;
    map->num_caller_keyed -= request->has_caller_keys ? 1 : 0;
    request->is_open = false;
    request->next_free = map->first_free;
    map->first_free = pkvi_request_index(map, request);
}

pkv_status pkvi_request_map_check(const struct pkvi_request_map *map,
                                  struct pkvi_error_text *error) {
    int64_t num_reserved = 0;
    int32_t num_open = 0;
    int32_t num_caller_keyed = 0;
    int32_t num_free = 0;
    int32_t num_pages = map->num_free_pages;

    for (int32_t i = 0; i < map->max_requests; i++) {
        const struct pkvi_request *request = &map->requests[i];
        int32_t num_full = request->num_tokens / map->hash_block_size;

        if (!request->is_open) {
            continue;
        }
        num_open++;
        num_caller_keyed += request->has_caller_keys ? 1 : 0;
        num_reserved += request->max_num_tokens;
        num_pages += pages_for(map, request->max_num_tokens);
        if (request->generation == 0) {
            return pkvi_fail(error, PKV_ERROR_CORRUPT, "I18: request %d has generation 0", i);
        }
        if (request->num_tokens < 1 || request->num_tokens > request->max_num_tokens ||
            request->num_keys > num_full ||
            (!request->has_caller_keys && map->computes_keys && request->num_keys != num_full)) {
            return pkvi_fail(error, PKV_ERROR_CORRUPT,
                             "I16: tokens and keys of request %d disagree", i);
        }
    }
    for (int32_t i = map->first_free; i >= 0 && num_free <= map->max_requests;
         i = map->requests[i].next_free) {
        num_free++;
    }
    if (num_open != map->num_open || num_open + num_free != map->max_requests ||
        num_caller_keyed != map->num_caller_keyed) {
        return pkvi_fail(error, PKV_ERROR_CORRUPT, "I18: open and free handles do not add up");
    }
    if (num_reserved != map->num_reserved_tokens || num_reserved > map->max_total_tokens ||
        num_pages != map->num_pages) {
        return pkvi_fail(error, PKV_ERROR_CORRUPT, "I17: tokens or pages do not add up");
    }
    return PKV_OK;
}
