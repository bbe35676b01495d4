/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The naive model of the pool and the manager: arrays that are searched from end to end, tokens
 * that are compared one by one, no hashes, no index, no links. It is written from the contracts of
 * the public headers and from the described behaviour of vLLM V1, and shares no code with the
 * library.
 *
 * The one idea: what is hard to get right fast is easy to get right slowly; wherever the library
 * and this file differ, one of the two has misread the contract. */
#ifndef PKV_TESTS_SUPPORT_MODEL_H
#define PKV_TESTS_SUPPORT_MODEL_H

#include <pagedkv/manager.h>

#define MODEL_MAX_BLOCKS 1024
#define MODEL_MAX_GROUPS 6
#define MODEL_MAX_REQUESTS 40
#define MODEL_MAX_ROWS 24
#define MODEL_MAX_TOKENS 320 /* of a request */
#define MODEL_MAX_COLUMNS 360
#define MODEL_MAX_BLOCK_SIZE 16
#define MODEL_MAX_EVENTS 4096
#define MODEL_MAX_MEDIA 4
#define MODEL_MAX_SALT 8
#define MODEL_MAX_CONTENTS 24000
#define MODEL_MAX_HELD 24
#define MODEL_NO_CONTENT (-1)

/* ---- statuses that a call may answer with ---------------------------------------------------- */

/* A set of statuses. Where a call is wrong in two ways at once, either answer is right. */
typedef uint32_t model_statuses;

#define MODEL_STATUS(status) (UINT32_C(1) << ((int)(status) + 16))
#define MODEL_OK MODEL_STATUS(PKV_OK)
#define MODEL_MORE MODEL_STATUS(PKV_MORE)
#define MODEL_BUSY MODEL_STATUS(PKV_ERROR_BUSY)
#define MODEL_INVALID MODEL_STATUS(PKV_ERROR_INVALID_ARGUMENT)
#define MODEL_LIMIT MODEL_STATUS(PKV_ERROR_LIMIT)
#define MODEL_STALE MODEL_STATUS(PKV_ERROR_STALE_HANDLE)

/* ---- contents -------------------------------------------------------------------------------- */

typedef struct model_media_part {
    uint8_t digest[32];
    int32_t offset; /* of the item, seen from the start of the block */
} model_media_part;

/* What one hash block holds, with its whole past through `parent`. Two blocks hold the same iff
 * they have the same content. A caller's key is a content of its own, without tokens. */
typedef struct model_content {
    int32_t parent; /* MODEL_NO_CONTENT at the start of a sequence */
    int32_t num_tokens;
    int32_t tokens[MODEL_MAX_BLOCK_SIZE];
    uint64_t adapter_id;
    int32_t salt_size; /* only at the start of a sequence */
    uint8_t salt[MODEL_MAX_SALT];
    int32_t num_media;
    model_media_part media[MODEL_MAX_MEDIA];
    bool is_opaque; /* a caller's key: nothing else is known of it */
    int32_t first_child, next_sibling;
} model_content;

/* The keys are told by whoever drives the library; the model only hands them back. */
typedef struct model_contents {
    int32_t num_contents, first_root;
    model_content items[MODEL_MAX_CONTENTS];
    bool has_key[MODEL_MAX_CONTENTS];
    pkv_block_key keys[MODEL_MAX_CONTENTS];
} model_contents;

void model_contents_clear(model_contents *contents);

/* The number of a content, added when it is new; MODEL_NO_CONTENT when there is no room. */
int32_t model_contents_intern(model_contents *contents, const model_content *wanted);

/* Whether two contents are the same. */
bool model_content_is_same(const model_content *a, const model_content *b);

/* The number of the content that a caller's key stands for, added as opaque when it is new. */
int32_t model_contents_intern_key(model_contents *contents, const pkv_block_key *key);

/* The number of the content that has this key, or MODEL_NO_CONTENT. */
int32_t model_contents_find_key(const model_contents *contents, const pkv_block_key *key);

/* Equal 128-bit hash, though not equal keys. */
bool model_contents_hash_collides(const model_contents *contents, int32_t a, int32_t b);

/* ---- pool ------------------------------------------------------------------------------------ */

/* An event as the model says it: contents instead of keys. */
typedef struct model_event {
    pkv_event_type type;
    int32_t group;
    uint64_t sequence_number, call_index;
    pkv_request request;
    int32_t num_keys;
    pkv_block_id block_id;
    int32_t content;
    int32_t parent; /* MODEL_NO_CONTENT: has_parent is false */
    int32_t first_token, num_tokens, remaining_copies;
    uint64_t adapter_id;
} model_event;

typedef struct model_block {
    int32_t ref_cnt, group, content; /* MODEL_NO_CONTENT: not keyed */
    int32_t tokens[MODEL_MAX_BLOCK_SIZE];
    uint64_t published; /* age of its key: smaller is older */
    uint64_t step;      /* that published it and is not complete; 0 = none */
    pkv_request publisher;
    int32_t lease;   /* which stay of the publisher: how often it had been admitted */
    bool needs_fill; /* handed out since its fill was taken */
    int32_t parent;  /* content before its own, as the publisher has it */
    uint64_t listed; /* when its content became one to copy rows from; 0 = not yet, or never */
} model_block;

/* Who publishes, and how a stored event describes the call. */
typedef struct model_publication {
    int32_t group, parent, first_token, num_tokens, lease;
    pkv_request request;
    uint64_t adapter_id, step;
    bool is_computed; /* the content of what is published is there */
} model_publication;

typedef struct model_pool {
    int32_t num_blocks, num_groups;
    int32_t block_sizes[MODEL_MAX_GROUPS];
    bool disable_prefix_cache, store_tokens, lists_fills;
    int32_t event_capacity;
    model_contents *contents;
    model_block blocks[MODEL_MAX_BLOCKS];
    pkv_block_id queue[MODEL_MAX_BLOCKS]; /* head first */
    int32_t num_free;
    model_event events[MODEL_MAX_EVENTS]; /* oldest first */
    int32_t num_events;
    uint64_t next_sequence, next_call, num_dropped_since_take, num_dropped;
    uint64_t num_allocated, num_evicted, num_published, num_withdrawn;
    uint64_t publish_clock, list_clock;
} model_pool;

void model_pool_init(model_pool *pool, model_contents *contents, const pkv_pool_config *config);

/* How many candidates a lookup may have had to reject. Which keys of one hash it meets before the
 * right one is its own affair, so there are two bounds. */
typedef struct model_rejections {
    uint64_t least, most;
} model_rejections;

/* The oldest block of a group with this content (and tokens, where they are stored), or the null
 * block. `rejections` may be NULL; else it grows by what this lookup rejected. */
pkv_block_id model_pool_find(const model_pool *pool,
                             int32_t group,
                             int32_t content,
                             const int32_t *tokens,
                             model_rejections *rejections);

/* How many blocks of a group carry this content. */
int32_t model_pool_num_copies(const model_pool *pool, int32_t group, int32_t content);
int32_t model_pool_num_cached(const model_pool *pool);
int32_t model_pool_num_distinct(const model_pool *pool);

/* The verbs, without their checks: callers have made sure that they can be done. */
void model_pool_get_new_blocks(model_pool *pool, int32_t group, int32_t num, pkv_block_id *out);
void model_pool_touch(model_pool *pool, pkv_block_id block);
void model_pool_free_blocks(model_pool *pool, const pkv_block_id *blocks, int32_t num_blocks);
void model_pool_begin_call(model_pool *pool);
void model_pool_publish(model_pool *pool,
                        pkv_block_id block,
                        int32_t content,
                        const int32_t *tokens,
                        const model_publication *publication);
void model_pool_publish_nothing(model_pool *pool, const model_publication *publication);
void model_pool_forget(model_pool *pool, pkv_block_id block);
bool model_pool_reset(model_pool *pool); /* false: a block is held */

/* Hand over the oldest events; the result is PKV_OK or PKV_MORE. */
pkv_status model_pool_take_events(model_pool *pool,
                                  model_event *events,
                                  int32_t capacity,
                                  int32_t *num_events,
                                  uint64_t *num_dropped);

/* Blocks of a group that wait to be filled. No order is promised, so the caller says which it got:
 * false when that one did not wait. */
int32_t model_pool_num_fills(const model_pool *pool, int32_t group);
bool model_pool_take_fill(model_pool *pool, int32_t group, pkv_block_id block);

#endif
