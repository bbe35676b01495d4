/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The inside of a manager, for this room and for the tiers on top: the struct and the few helpers
 * that several files of verbs share. Life is in config.c, pkv_allocate_slots in manager.c, the
 * other scheduling verbs in verbs.c, requests in open.c, lookups in lookup.c, steps in step.c,
 * readers and batches in batch.c, statistics in stats.c, fork, truncate and copy-on-write in
 * sharing.c, hits that continue into a block in partial.c.
 *
 * The one idea: a verb first computes what it needs without changing anything, then changes
 * everything without being able to fail. */
#ifndef PKVI_MANAGER_MANAGER_H
#define PKVI_MANAGER_MANAGER_H

#include "manager/coordinator.h"
#include "manager/copy_list.h"

/* Counters of pkv_stats that are kept here. */
struct pkvi_counters {
    uint64_t num_lookups, num_lookup_tokens, num_hit_tokens;
    uint64_t num_resumes, num_resume_tokens, num_resume_hit_tokens;
    uint64_t num_allocations, num_no_free_blocks, num_no_free_rows, num_never_fits;
    uint64_t num_frees;
    uint64_t num_keys_withdrawn;
    uint64_t num_forks, num_copies, num_partial_hits, num_partial_hit_tokens;
};

/* Somebody beside the tables who holds blocks of the pool: a tier, for the copies under way. */
struct pkvi_holder {
    struct pkvi_holder *next;
    int32_t num_open; /* pieces of work under way; the cache is not reset meanwhile */
    /* Drop (-1) or add (+1) every reference held, in the counts only; returns how many blocks are
     * without owner after that. */
    int32_t (*count)(const struct pkvi_holder *holder, int32_t delta);
};

struct pkv_manager {
    struct pkvi_holder *holders;
    pkv_pool *pool;
    struct pkvi_group *groups;
    int32_t num_groups;
    int32_t max_model_len;
    int32_t min_partial_tokens; /* 0: a hit ends at a block's end */
    bool zero_on_free;
    struct pkvi_request_map requests;
    struct pkvi_row_map rows;
    struct pkvi_copy_list copies;
    struct pkvi_lookup *lookup;    /* apart, since const readers remember their lookup */
    struct pkvi_error_text *error; /* apart, since const readers can fail */
    struct pkvi_counters counters;
    pkv_allocator allocator;
    size_t memory_size;
    bool owns_memory;
};

/* The highest bit of a reference count. No block of a manager has so many owners: max_rows and
 * max_held_rows see to it, and pkv_allocate_slots where the caller made the keys. */
#define PKVI_OWNER_MARK (((uint32_t)PKV_MAX_REF_CNT + 1) / 2)

/* Note an error; for guards. */
#define PKVI_INVALID(manager, ...)                                                                 \
    pkvi_fail((manager)->error, PKV_ERROR_INVALID_ARGUMENT, __VA_ARGS__)

/* Note a handle that is not open. */
pkv_status pkvi_manager_stale(const pkv_manager *manager, pkv_request handle);

/* The request of a handle. Else NULL, and *status says why: PKV_ERROR_STALE_HANDLE, or
 * PKV_ERROR_INVALID_ARGUMENT without a manager. Every verb on a request begins with it. */
static inline struct pkvi_request *pkvi_manager_request(const pkv_manager *manager,
                                                        pkv_request handle,
                                                        pkv_status *status) {
    struct pkvi_request *request;

    if (PKVI_UNLIKELY(manager == NULL)) {
        *status = PKV_ERROR_INVALID_ARGUMENT;
        return NULL;
    }
    request = pkvi_request_get(&manager->requests, handle);
    if (PKVI_UNLIKELY(request == NULL)) {
        *status = pkvi_manager_stale(manager, handle);
    }
    return request;
}

static inline bool pkvi_manager_has_group(const pkv_manager *manager, int32_t group) {
    return group >= 0 && group < manager->num_groups;
}

/* Row state and cells of a request that holds a row. */
static inline struct pkvi_table_row *pkvi_manager_row(const pkv_manager *manager,
                                                      int32_t group,
                                                      int32_t row) {
    return &manager->groups[group].table.rows[manager->rows.storage_of[row]];
}

static inline pkv_block_id *pkvi_manager_cells(const pkv_manager *manager,
                                               int32_t group,
                                               int32_t row) {
    return pkvi_table_cells(&manager->groups[group].table, manager->rows.storage_of[row]);
}

/* Whether blocks of the request are being loaded into its present table. */
static inline bool pkvi_manager_is_loading(const struct pkvi_request *request) {
    return request->loading_allocation != 0 &&
           request->loading_allocation == request->num_allocations;
}

/* pkv_allocate_slots with arguments that are read already. */
pkv_status pkvi_manager_allocate(pkv_manager *manager,
                                 struct pkvi_request *request,
                                 const pkv_slots_args *args,
                                 pkv_slots *slots);

/* Give the blocks of one storage back to the pool, group by group, tail first. */
void pkvi_manager_release_storage(pkv_manager *manager, int32_t storage);

/* Drop the blocks of windowed groups that no token at or behind `num_processed` can see. */
void pkvi_manager_remove_skipped(pkv_manager *manager, int32_t row_number, int64_t num_processed);

/* Publish the full blocks of the first `num_tokens` tokens of a request that holds a row; nothing
 * while a load is under way. is_computed: their content is there already. */
void pkvi_manager_commit(pkv_manager *manager,
                         struct pkvi_request *request,
                         int32_t num_tokens,
                         uint64_t step,
                         bool is_computed);

/* The longest hit of a request, remembered. NULL-free; hit_tokens 0 where it may not read. */
const struct pkvi_lookup *pkvi_manager_look_up(const pkv_manager *manager,
                                               const struct pkvi_request *request);

/* Make the remembered lookup one of exactly `hit_tokens`; false when that is not cached any
 * more. */
bool pkvi_manager_confirm_hit(const pkv_manager *manager,
                              const struct pkvi_request *request,
                              int32_t hit_tokens);

/* Blocks whose only owners are tables that wait for a step, and copies under way. O(cells of held
 * tables + blocks in flight). */
int32_t pkvi_manager_count_pending(const pkv_manager *manager);

/* Continue a hit of `hit_tokens`, whole blocks, into the next one, up to `max_tokens` in all. Returns
 * by how many tokens; 0, or at least min_partial_tokens. sources[g] is whom to copy them from. */
int32_t pkvi_partial_find(const pkv_manager *manager,
                          const struct pkvi_request *request,
                          int32_t hit_tokens,
                          int32_t max_tokens,
                          pkv_block_id *sources);

/* Hold the sources of the remembered lookup, whose hit continues into a block, in all groups before
 * anything is taken. */
void pkvi_partial_hold(pkv_manager *manager);

/* Give the row of one group, which ends where the source begins, a block that gets the source's
 * rows: a new one and a copy; or the source itself, without its key, where nobody else holds it and
 * no block is to spare (num_spare) for keeping both. Returns how many copies were queued. */
int32_t pkvi_partial_extend(pkv_manager *manager,
                            int32_t g,
                            int32_t row_number,
                            int64_t *num_spare);

/* Owners of a block; pending copies that read it do not count. */
static inline int32_t pkvi_manager_num_owners(const pkv_manager *manager, pkv_block_id block) {
    return pkvi_copy_list_num_owners(&manager->copies, manager->pool, block);
}

/* Whether the block in a column of a request carries a key that is not the request's own there. */
bool pkvi_manager_is_foreign(const pkv_manager *manager,
                             int32_t g,
                             const struct pkvi_request *request,
                             int32_t column);

/* The most owners that a block may get from one table; room is left for one from every other. */
static inline uint32_t pkvi_manager_most_owners(const pkv_manager *manager) {
    return PKVI_OWNER_MARK - 1 - (uint32_t)manager->rows.num_storages;
}

/* Add an owner to the held blocks in [first, end), up to one that has the most; returns where it
 * stopped. */
int64_t pkvi_manager_add_owners(const pkv_manager *manager,
                                const pkv_block_id *block_ids,
                                int64_t first,
                                int64_t end);

/* Let every write before token `end` look for other owners and foreign keys. */
void pkvi_manager_look_until(struct pkvi_request *request, int64_t end);

/* The columns in which the request, which holds a row, cannot write the tokens [first, end) without
 * a copy: how many there are. */
int32_t pkvi_manager_count_copies(const pkv_manager *manager,
                                  int32_t g,
                                  const struct pkvi_request *request,
                                  int64_t first,
                                  int64_t end);

/* Make the tokens [first, end) writable: take a block for each such column and queue the copy, and
 * take foreign keys away. Returns how many copies were queued. */
int32_t pkvi_manager_make_writable(
    pkv_manager *manager, int32_t g, struct pkvi_request *request, int64_t first, int64_t end);

/* In level-2 builds, check everything after a mutation. */
#define PKVI_CHECK_AFTER(manager) PKV_ASSERT_SLOW(pkv_manager_check(manager) == PKV_OK)

#endif
