/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The manager of the naive model: requests, tables, lookup, allocation, steps, batches.
 *
 * Each verb returns the set of statuses that the contract allows. A set of one ordinary status
 * has been carried out; a set with errors in it has changed nothing. Two things are the
 * library's free choice and are told to the model afterwards: the handle of a new request and
 * the row of a table. */
#ifndef PKV_TESTS_SUPPORT_MODEL_MANAGER_H
#define PKV_TESTS_SUPPORT_MODEL_MANAGER_H

#include "support/model.h"

typedef struct model_table {
    int32_t num_blocks;
    pkv_block_id ids[MODEL_MAX_COLUMNS];
} model_table;

typedef struct model_request {
    bool is_open, skip_cache_read, has_caller_keys;
    pkv_request handle;
    int32_t num_tokens, num_prompt_tokens, max_num_tokens;
    int32_t tokens[MODEL_MAX_TOKENS];
    uint64_t adapter_id;
    int32_t salt_size;
    uint8_t salt[MODEL_MAX_SALT];
    int32_t num_media;
    pkv_media media[MODEL_MAX_MEDIA];
    int32_t num_keys;
    int32_t contents[MODEL_MAX_TOKENS]; /* of its hash blocks */

    int32_t row; /* PKV_NULL_ROW: it holds nothing and all below is empty */
    int32_t num_allocations;
    model_table tables[MODEL_MAX_GROUPS];
    int32_t num_cached[MODEL_MAX_GROUPS]; /* columns that were offered for publication */
    int32_t num_hits[MODEL_MAX_GROUPS];   /* columns it began with, published by others */
    int32_t first_new[MODEL_MAX_GROUPS];  /* column from which the last allocation added blocks */
    int32_t shared_boundary; /* tokens; where another request's prefix ended for some group */
    int32_t num_live_tokens; /* of the last allocation: written by its step at the latest */
} model_request;

typedef struct model_held {
    uint64_t step;
    model_table tables[MODEL_MAX_GROUPS];
} model_held;

struct model_tier;

typedef struct model_manager {
    model_contents contents;
    model_pool pool;
    const struct model_tier *tier; /* whose swaps pin blocks, see model_swap.h; NULL: none */
    pkv_group_config groups[MODEL_MAX_GROUPS];
    int32_t num_groups, hash_block_size, alignment;
    int32_t max_model_len, max_rows, max_requests, max_held_rows;
    int32_t widths[MODEL_MAX_GROUPS]; /* columns of a row */
    int32_t max_in_flight_tokens, max_media_per_request;
    int64_t max_total_tokens;
    int32_t min_partial_tokens;
    bool zero_on_free;
    model_request requests[MODEL_MAX_REQUESTS];
    int32_t num_rows;
    model_held held[MODEL_MAX_HELD]; /* oldest first */
    int32_t num_held;
    pkv_block_copy copies[MODEL_MAX_BLOCKS]; /* not taken yet, oldest first */
    int32_t num_copies;
    uint64_t newest_step, completed_step;
    uint64_t num_lookups, num_lookup_tokens, num_hit_tokens;
    uint64_t num_resumes, num_resume_tokens, num_resume_hit_tokens;
    uint64_t num_allocations, num_no_free_blocks, num_no_free_rows, num_never_fits, num_frees;
    uint64_t num_withdrawn;
    uint64_t num_forks, num_copies_queued, num_partial_hits, num_partial_hit_tokens;
    int32_t num_missing_blocks, num_pending_blocks; /* of the last refused allocation */
} model_manager;

/* `config` must fit into the maxima of the model; nothing is checked. */
void model_manager_init(model_manager *model, const pkv_manager_config *config);

/* ---- requests -------------------------------------------------------------------------------- */

/* Slot of the request with this handle; -1 for a handle that is not open. */
int32_t model_find_request(const model_manager *model, pkv_request handle);

/* `*slot` is where the new request stands; its handle is still to be set. */
model_statuses model_open(model_manager *model, const pkv_request_args *args, int32_t *slot);
model_statuses model_append(model_manager *model,
                            model_request *request,
                            const int32_t *tokens,
                            int32_t num_tokens);
model_statuses model_append_keys(model_manager *model,
                                 model_request *request,
                                 const pkv_block_key *keys,
                                 int32_t num_keys);
void model_close(model_manager *model, model_request *request);

/* What the tokens of a request make its hash blocks hold, whoever gives the keys. */
void model_name_contents(model_manager *model, const model_request *request, int32_t *contents);

/* ---- lookup, one group's arithmetic ---------------------------------------------------------- */

/* Content of a column of a group; MODEL_NO_CONTENT where the request has no key for it. */
int32_t model_column_content(const model_manager *model,
                             const model_request *request,
                             int32_t group,
                             int32_t column);

/* First tokens that a sequence with `num_computed` computed tokens never looks at again. */
int32_t model_num_skipped_tokens(const model_manager *model, int32_t group, int32_t num_computed);

/* Blocks that the admission gate counts at most. */
int32_t model_admission_cap(const model_manager *model, int32_t group);

/* Whether the group publishes this column of the request. */
bool model_is_retained(const model_manager *model,
                       const model_request *request,
                       int32_t group,
                       int32_t column);

/* Whether the group could serve a hit of that many tokens; and, if so, its table for it. */
bool model_can_serve(const model_manager *model,
                     const model_request *request,
                     int32_t group,
                     int32_t num_tokens);
bool model_can_all_serve(const model_manager *model,
                         const model_request *request,
                         int32_t num_tokens);
void model_hit_table(const model_manager *model,
                     const model_request *request,
                     int32_t group,
                     int32_t num_tokens,
                     model_table *table);
int32_t model_lookup(const model_manager *model, const model_request *request); /* whole blocks */
int32_t model_shared_boundary(const model_manager *model, const model_request *request);

/* ---- hits that go on into a block ------------------------------------------------------------ */

/* What hash block `index` of a request would hold with other tokens. */
void model_content_with(const model_manager *model,
                        const model_request *request,
                        int32_t index,
                        const int32_t *tokens,
                        model_content *content);

/* By how many tokens a hit of `whole` tokens can go on, up to `max_tokens` in all; and from which
 * block of each group. */
int32_t model_partial(const model_manager *model,
                      const model_request *request,
                      int32_t whole,
                      int32_t max_tokens,
                      pkv_block_id *sources);

/* Give a group's table the block behind its last; the source is held. Returns copies queued. */
int32_t model_extend_partial(model_manager *model,
                             model_request *request,
                             int32_t group,
                             pkv_block_id source,
                             int64_t *num_spare);

/* ---- allocate, publish, free ----------------------------------------------------------------- */

/* Everything but `row` of `out` is set by the model. */
model_statuses model_allocate(model_manager *model,
                              model_request *request,
                              const pkv_slots_args *args,
                              pkv_slots *out);
model_statuses model_cache_blocks(model_manager *model, model_request *request, int32_t num_tokens);
model_statuses model_remove_skipped(model_manager *model,
                                    model_request *request,
                                    int32_t num_processed_tokens);
void model_free(model_manager *model, model_request *request);

/* Publish what is full of the first `num_tokens` tokens, as step `step`. */
void model_publish(model_manager *model,
                   model_request *request,
                   int32_t num_tokens,
                   uint64_t step,
                   bool is_computed);
void model_drop_skipped(model_manager *model, model_request *request, int32_t num_processed_tokens);
void model_release_tables(model_manager *model, model_table *tables);

/* ---- swaps, model_swap.c --------------------------------------------------------------------- */

/* Whether the blocks of the request wait for a swap-in that is open. */
bool model_is_loading(const model_manager *model, const model_request *request);

/* Whether an open swap pins this block. */
bool model_is_in_flight(const model_manager *model, pkv_block_id id);
bool model_has_open_swaps(const model_manager *model);

/* ---- sharing --------------------------------------------------------------------------------- */

/* `*slot` is where the child stands; its handle and, where it holds blocks, its row are still to be
 * set. */
model_statuses model_fork(model_manager *model,
                          model_request *parent,
                          int32_t num_computed_tokens,
                          int32_t *slot);
model_statuses model_truncate(model_manager *model, model_request *request, int32_t num_tokens);

/* Owners of a block: pairs that will read it are none. */
int32_t model_num_owners(const model_manager *model, pkv_block_id id);
bool model_is_target(const model_manager *model, pkv_block_id id);
bool model_is_pinned(const model_manager *model, pkv_block_id id);
bool model_is_foreign(const model_manager *model,
                      const model_request *request,
                      int32_t group,
                      int32_t column);
int32_t model_num_copies_needed(const model_manager *model,
                                const model_request *request,
                                int32_t group,
                                int64_t first,
                                int64_t end);
int32_t model_make_writable(
    model_manager *model, model_request *request, int32_t group, int64_t first, int64_t end);
void model_cancel_freed(model_manager *model);

/* Queue a copy; one reference of `source` goes to the pair. */
void model_queue_copy(model_manager *model, pkv_block_id source, pkv_block_id target);
int32_t model_num_pending_copies(const model_manager *model, int32_t group);

/* Hand over up to `capacity` pairs of a group. PKV_OK or PKV_MORE. */
pkv_status model_take_copies(model_manager *model,
                             int32_t group,
                             pkv_block_copy *copies,
                             int32_t capacity,
                             int32_t *num_copies);

/* ---- steps, cache, drains -------------------------------------------------------------------- */

model_statuses model_free_after(model_manager *model, model_request *request, uint64_t step);
model_statuses model_step_complete(model_manager *model, uint64_t step);
model_statuses model_step_fail(model_manager *model, uint64_t step);
model_statuses model_unschedule(model_manager *model, model_request *request, uint64_t step);
model_statuses model_evict(model_manager *model, const pkv_block_id *ids, int32_t num_blocks);
model_statuses model_reset(model_manager *model);
int32_t model_num_common_prefix_blocks(const model_manager *model,
                                       const model_request *request,
                                       int32_t group);
int32_t model_num_pending_blocks(const model_manager *model);
void model_get_stats(const model_manager *model, pkv_stats *out);

/* ---- batches --------------------------------------------------------------------------------- */

/* An entry of a batch, with the slot of its request; -1 for a handle that is not open. */
typedef struct model_entry {
    int32_t slot, num_computed_tokens, num_new_tokens;
} model_entry;

/* Arrays of `batch` are those of the model, as large as the caller's capacities. */
model_statuses model_batch_build(const model_manager *model,
                                 int32_t group,
                                 const model_entry *entries,
                                 int32_t num_entries,
                                 pkv_batch *batch);
model_statuses model_export_padded(const model_manager *model,
                                   int32_t group,
                                   const model_entry *entries,
                                   int32_t num_entries,
                                   pkv_block_id *table,
                                   int64_t row_stride,
                                   pkv_block_id fill);
model_statuses model_export_csr(const model_manager *model,
                                int32_t group,
                                const model_entry *entries,
                                int32_t num_entries,
                                bool skip_leading_null,
                                int32_t *indptr,
                                pkv_block_id *indices,
                                int32_t capacity,
                                int32_t *last_page_len,
                                int32_t *num_indices);

#endif
