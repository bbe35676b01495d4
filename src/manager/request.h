/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Open requests: handles with generations, their tokens, their key chains and their media. Blocks
 * and rows are not here.
 *
 * The one idea: tokens and keys of all requests share one arena of equal pages, so that any free
 * page serves any request and max_total_tokens is the only limit. A page holds whole blocks of
 * every group, so the tokens of a block always lie together. */
#ifndef PKVI_MANAGER_REQUEST_H
#define PKVI_MANAGER_REQUEST_H

#include <pagedkv/manager.h>

#include "pool/block_hash.h"
#include "pool/pool.h"

/* One request. A free one has is_open false and next_free set. What every step reads comes first
 * and shares a cache line; two lines hold it all. */
struct pkvi_request {
    _Alignas(64) uint32_t generation;
    bool is_open;
    bool skip_cache_read;
    bool has_caller_keys;
    bool has_salt;
    int32_t row; /* PKV_NULL_ROW while it holds no blocks */
    int32_t num_tokens;
    int32_t max_num_tokens;
    int32_t look_until; /* tokens; a write below it looks for other owners and foreign keys: I30 */
    int32_t num_keys;   /* I16 */
    int32_t num_prompt_tokens;
    int32_t num_allocations;
    int32_t loading_allocation;     /* allocation whose table is being loaded, 0 = none */
    int32_t shared_prefix_boundary; /* longest hit of one group, where groups disagreed */
    int32_t num_media;
    int32_t media_index; /* where the scan over media stands, for the next key */
    int32_t next_free;
    uint64_t adapter_id;
    struct pkvi_digest salt;
};

/* I17: every page belongs to one open request or stands on the free stack.
 * I18: open + free requests == max_requests. */
struct pkvi_request_map {
    struct pkvi_request *requests; /* [max_requests] */
    int32_t max_requests;
    int32_t num_open;
    int32_t first_free;
    int32_t max_media;
    pkv_media *media;    /* [max_requests][max_media] */
    int32_t *page_lists; /* [max_requests][max_pages_per_request] */
    int32_t max_pages_per_request;
    int32_t *free_pages; /* stack */
    int32_t num_free_pages;
    int32_t num_pages;
    int32_t *token_pages;     /* [num_pages][tokens_per_page] */
    pkv_block_key *key_pages; /* [num_pages][keys_per_page] */
    int32_t tokens_per_page;
    int32_t keys_per_page;
    int32_t hash_block_size; /* tokens of a key */
    int64_t max_total_tokens;
    int64_t num_reserved_tokens; /* sum of max_num_tokens of open requests */
    int32_t num_caller_keyed;    /* open requests whose keys the caller makes */
    bool computes_keys;
    struct pkvi_hash_keys hash_keys;
};

/* Sizes that the map is laid out by; all checked by the caller. */
struct pkvi_request_sizes {
    int32_t max_requests;
    int32_t max_model_len;
    int32_t max_media;
    int32_t hash_block_size;
    int32_t alignment; /* tokens; a multiple of every group's block size */
    int64_t max_total_tokens;
    bool computes_keys;
    struct pkvi_hash_keys hash_keys;
};

/* Whether the arena of these sizes can be indexed. */
bool pkvi_request_sizes_fit(const struct pkvi_request_sizes *sizes);

void pkvi_request_map_carve(struct pkvi_request_map *map,
                            struct pkvi_carver *carver,
                            const struct pkvi_request_sizes *sizes);

/* The request of a live handle, or NULL. */
static inline struct pkvi_request *pkvi_request_get(const struct pkvi_request_map *map,
                                                    pkv_request handle) {
    struct pkvi_request *request;

    if (handle.index >= (uint32_t)map->max_requests) {
        return NULL;
    }
    request = &map->requests[handle.index];
    return request->is_open && request->generation == handle.generation ? request : NULL;
}

static inline int32_t pkvi_request_index(const struct pkvi_request_map *map,
                                         const struct pkvi_request *request) {
    return (int32_t)(request - map->requests);
}

/* Open a request; the arguments have been read and checked. PKV_ERROR_LIMIT names in `error` what
 * ran out. */
pkv_status pkvi_request_open(struct pkvi_request_map *map,
                             const pkv_request_args *args,
                             struct pkvi_error_text *error,
                             pkv_request *out);

/* Open a request that is a copy of another, without row. PKV_ERROR_LIMIT as for an open. */
pkv_status pkvi_request_fork(struct pkvi_request_map *map,
                             const struct pkvi_request *parent,
                             struct pkvi_error_text *error,
                             pkv_request *out);

/* Whether a cut at `num_tokens` falls within a media item. */
bool pkvi_request_cuts_media(const struct pkvi_request_map *map,
                             const struct pkvi_request *request,
                             int32_t num_tokens);

/* Take back all tokens but the first `num_tokens`, with their keys and media. */
void pkvi_request_truncate(struct pkvi_request_map *map,
                           struct pkvi_request *request,
                           int32_t num_tokens);

/* Append tokens that fit into max_num_tokens, and compute the keys that become possible. */
void pkvi_request_append(struct pkvi_request_map *map,
                         struct pkvi_request *request,
                         const int32_t *token_ids,
                         int32_t num_tokens);

/* Append keys of the caller, which the tokens cover. */
void pkvi_request_append_keys(struct pkvi_request_map *map,
                              struct pkvi_request *request,
                              const pkv_block_key *keys,
                              int32_t num_keys);

void pkvi_request_close(struct pkvi_request_map *map, struct pkvi_request *request);

/* A walk over the keys of blocks of key_stride keys, beginning with block `first_block`. */
struct pkvi_key_cursor pkvi_request_keys(const struct pkvi_request_map *map,
                                         const struct pkvi_request *request,
                                         int32_t key_stride,
                                         int32_t first_block,
                                         bool with_tokens);

/* Key number `index` of the request. */
const pkv_block_key *pkvi_request_key(const struct pkvi_request_map *map,
                                      const struct pkvi_request *request,
                                      int32_t index);

/* Tokens of hash block `index`, which has at least one; they lie together. */
const int32_t *pkvi_request_tokens(const struct pkvi_request_map *map,
                                   const struct pkvi_request *request,
                                   int32_t index);

/* The key that hash block `index` of the request would have with these tokens: its past, adapter,
 * salt and media, other tokens. The block before it, if any, has a key. */
pkv_block_key pkvi_request_key_with(const struct pkvi_request_map *map,
                                    const struct pkvi_request *request,
                                    int32_t index,
                                    const int32_t *token_ids);

/* Copy tokens out. */
void pkvi_request_copy_tokens(const struct pkvi_request_map *map,
                              const struct pkvi_request *request,
                              int32_t first_token,
                              int32_t num_tokens,
                              int32_t *out);

/* I16, I17, I18. */
pkv_status pkvi_request_map_check(const struct pkvi_request_map *map,
                                  struct pkvi_error_text *error);

#endif
