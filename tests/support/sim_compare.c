/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Comparing a manager with its model: requests, tokens, keys, tables, the pool, statistics. A call
 * that returned an error has changed nothing in the model, so this comparison is also the proof
 * that it changed nothing in the library (I25), down to the order of the free queue. */
#include "support/sim_manager.h"

#include <math.h>
#include <string.h>

static bool is_same_key(const pkv_block_key *a, const pkv_block_key *b) {
    return a->hash_low == b->hash_low && a->hash_high == b->hash_high && a->lineage == b->lineage;
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* Whether a content that was computed has this hash, or this lineage: each chain alone must tell
 * contents apart. */
static bool is_half_known(const model_contents *contents, const pkv_block_key *key) {
    for (int32_t i = 0; i < contents->num_contents; i++) {
        const pkv_block_key *other = &contents->keys[i];
        if (contents->has_key[i] && !contents->items[i].is_opaque &&
            (other->lineage == key->lineage || other->hash_low == key->hash_low ||
             other->hash_high == key->hash_high)) {
            return true;
        }
    }
    return false;
}

int32_t sim_caller_keys(sim *self, int32_t slot, pkv_block_key *keys) {
    const model_request *request = &self->model.requests[slot];
    int32_t contents[MODEL_MAX_TOKENS];
    int32_t num_keys = -1;
    pkv_key_args args = {.struct_size = sizeof args,
                         .block_size = self->model.hash_block_size,
                         .hash_seed = self->config.hash_seed,
                         .secret = {self->config.key_secret[0], self->config.key_secret[1]},
                         .adapter_id = request->adapter_id,
                         .salt = request->salt_size > 0 ? request->salt : NULL,
                         .salt_size = (size_t)request->salt_size,
                         .media = request->num_media > 0 ? request->media : NULL,
                         .num_media = request->num_media};

    if (pkv_compute_block_keys(&args, NULL, 0, request->tokens, request->num_tokens, keys,
                               &num_keys) != PKV_OK) {
        sim_problem(self->log, "keys cannot be computed");
        return 0;
    }
    sim_expect_equal(self->log, "number of computed keys", num_keys,
                     request->num_tokens / self->model.hash_block_size);
    model_name_contents(&self->model, request, contents);
    for (int32_t i = 0; i < num_keys && !self->log->has_failed; i++) {
        model_contents *all = &self->model.contents;
        if (all->has_key[contents[i]]) {
            if (!is_same_key(&all->keys[contents[i]], &keys[i])) {
                sim_problem(self->log, "equal contents have different keys (key %d)", i);
            }
        } else if (is_half_known(all, &keys[i])) {
            sim_problem(self->log, "different contents have equal hashes or lineages (key %d)", i);
        } else {
            all->has_key[contents[i]] = true;
            all->keys[contents[i]] = keys[i];
        }
    }
    return num_keys;
}

void sim_learn_keys(sim *self, int32_t slot) {
    pkv_block_key keys[MODEL_MAX_TOKENS];
    const model_request *request = &self->model.requests[slot];

    if (!request->has_caller_keys && request->num_keys > 0) {
        (void)sim_caller_keys(self, slot, keys);
    }
}

/* ---- requests -------------------------------------------------------------------------------- */

static void compare_info(sim *self, const model_request *request) {
    pkv_request_info info = {.struct_size = sizeof info};

    if (pkv_request_get_info(self->manager, request->handle, &info) != PKV_OK) {
        sim_problem(self->log, "request {%u, %u} is not there", request->handle.index,
                    request->handle.generation);
        return;
    }
    sim_expect_equal(self->log, "request num_tokens", info.num_tokens, request->num_tokens);
    sim_expect_equal(self->log, "request max_num_tokens", info.max_num_tokens,
                     request->max_num_tokens);
    sim_expect_equal(self->log, "request num_keys", info.num_keys, request->num_keys);
    sim_expect_equal(self->log, "request row", info.row, request->row);
    sim_expect_equal(self->log, "request num_allocations", info.num_allocations,
                     request->num_allocations);
    sim_expect_equal(self->log, "request adapter_id", (int64_t)info.adapter_id,
                     (int64_t)request->adapter_id);
}

static void compare_tokens_and_keys(sim *self, const model_request *request) {
    int32_t tokens[MODEL_MAX_TOKENS];
    pkv_block_key keys[MODEL_MAX_TOKENS];

    if (pkv_request_get_tokens(self->manager, request->handle, 0, request->num_tokens, tokens) !=
            PKV_OK ||
        memcmp(tokens, request->tokens, sizeof(int32_t) * (size_t)request->num_tokens) != 0) {
        sim_problem(self->log, "the tokens of request {%u, %u} differ", request->handle.index,
                    request->handle.generation);
    }
    if (pkv_request_get_keys(self->manager, request->handle, 0, request->num_keys, keys) !=
        PKV_OK) {
        sim_problem(self->log, "the keys of request {%u, %u} cannot be read", request->handle.index,
                    request->handle.generation);
        return;
    }
    for (int32_t i = 0; i < request->num_keys; i++) {
        if (!is_same_key(&keys[i], &self->model.contents.keys[request->contents[i]])) {
            sim_problem(self->log, "key %d of request {%u, %u} is not that of its content", i,
                        request->handle.index, request->handle.generation);
        }
    }
}

static void compare_cells(sim *self,
                          const model_request *request,
                          const char *what,
                          int32_t group,
                          const pkv_block_id *ids,
                          int32_t num_blocks,
                          int32_t first) {
    const model_table *table = &request->tables[group];

    if (num_blocks != table->num_blocks - first) {
        sim_problem(self->log, "%s of {%u, %u}, group %d: library %d blocks, model %d", what,
                    request->handle.index, request->handle.generation, group, num_blocks,
                    table->num_blocks - first);
        return;
    }
    for (int32_t i = 0; i < num_blocks && !self->log->has_failed; i++) {
        if (ids[i] != table->ids[first + i]) {
            sim_problem(self->log, "%s of {%u, %u}, group %d, at %d: library %d, model %d", what,
                        request->handle.index, request->handle.generation, group, i, ids[i],
                        table->ids[first + i]);
        }
    }
}

static void compare_tables(sim *self, const model_request *request) {
    for (int32_t group = 0; group < self->model.num_groups; group++) {
        const pkv_block_id *ids = NULL;
        int32_t num_blocks = -1;
        if (pkv_get_block_table(self->manager, request->handle, group, &ids, &num_blocks) !=
            PKV_OK) {
            sim_problem(self->log, "a block table cannot be read");
            return;
        }
        compare_cells(self, request, "block table", group, ids, num_blocks, 0);
        if (pkv_get_new_block_ids(self->manager, request->handle, group, &ids, &num_blocks) !=
            PKV_OK) {
            sim_problem(self->log, "new block ids cannot be read");
            return;
        }
        compare_cells(self, request, "new block ids", group, ids, num_blocks,
                      request->first_new[group]);
    }
}

/* ---- statistics ------------------------------------------------------------------------------ */

static void compare_levels(sim *self, const pkv_stats *library, const pkv_stats *model) {
    sim_log *log = self->log;

    sim_expect_equal(log, "num_blocks", library->num_blocks, model->num_blocks);
    sim_expect_equal(log, "num_free_blocks", library->num_free_blocks, model->num_free_blocks);
    sim_expect_equal(log, "num_cached_blocks", library->num_cached_blocks,
                     model->num_cached_blocks);
    sim_expect_equal(log, "num_distinct_keys", library->num_distinct_keys,
                     model->num_distinct_keys);
    sim_expect_equal(log, "num_pending_blocks", library->num_pending_blocks,
                     model->num_pending_blocks);
    sim_expect_equal(log, "num_requests", library->num_requests, model->num_requests);
    sim_expect_equal(log, "num_rows", library->num_rows, model->num_rows);
    sim_expect_equal(log, "num_live_slots", library->num_live_slots, model->num_live_slots);
    sim_expect_equal(log, "num_reserved_slots", library->num_reserved_slots,
                     model->num_reserved_slots);
    sim_expect_equal(log, "num_internal_slots", library->num_internal_slots,
                     model->num_internal_slots);
    sim_expect_equal(log, "num_external_slots", library->num_external_slots, 0);
    if (fabs(library->usage - model->usage) > 1e-12) {
        sim_problem(log, "usage: library %g, model %g", library->usage, model->usage);
    }
}

static void compare_counters(sim *self, const pkv_stats *library, const pkv_stats *model) {
    const struct {
        const char *name;
        uint64_t library, model;
    } counters[] = {
        {"num_lookups", library->num_lookups, model->num_lookups},
        {"num_lookup_tokens", library->num_lookup_tokens, model->num_lookup_tokens},
        {"num_hit_tokens", library->num_hit_tokens, model->num_hit_tokens},
        {"num_resumes", library->num_resumes, model->num_resumes},
        {"num_resume_tokens", library->num_resume_tokens, model->num_resume_tokens},
        {"num_resume_hit_tokens", library->num_resume_hit_tokens, model->num_resume_hit_tokens},
        {"num_allocations", library->num_allocations, model->num_allocations},
        {"num_no_free_blocks", library->num_no_free_blocks, model->num_no_free_blocks},
        {"num_no_free_rows", library->num_no_free_rows, model->num_no_free_rows},
        {"num_never_fits", library->num_never_fits, model->num_never_fits},
        {"num_frees", library->num_frees, model->num_frees},
        {"num_blocks_allocated", library->num_blocks_allocated, model->num_blocks_allocated},
        {"num_blocks_evicted", library->num_blocks_evicted, model->num_blocks_evicted},
        {"num_keys_published", library->num_keys_published, model->num_keys_published},
        {"num_keys_withdrawn", library->num_keys_withdrawn, model->num_keys_withdrawn},
        {"num_events_dropped", library->num_events_dropped, model->num_events_dropped},
        {"num_forks", library->num_forks, model->num_forks},
        {"num_copies", library->num_copies, model->num_copies},
        {"num_partial_hits", library->num_partial_hits, model->num_partial_hits},
        {"num_partial_hit_tokens", library->num_partial_hit_tokens, model->num_partial_hit_tokens},
    };

    for (size_t i = 0; i < sizeof counters / sizeof counters[0]; i++) {
        sim_expect_equal(self->log, counters[i].name, (int64_t)counters[i].library,
                         (int64_t)counters[i].model);
    }
    if (!self->has_false_keys) {
        sim_expect_equal(self->log, "num_collisions_rejected",
                         (int64_t)library->num_collisions_rejected, 0);
    }
}

static void compare_stats(sim *self) {
    pkv_stats library = {.struct_size = sizeof library};
    pkv_stats model;

    if (pkv_get_stats(self->manager, &library) != PKV_OK) {
        sim_problem(self->log, "statistics cannot be read");
        return;
    }
    sim_digest(self->counts, library.num_index_slots_probed);
    model_get_stats(&self->model, &model);
    compare_levels(self, &library, &model);
    compare_counters(self, &library, &model);
}

/* ---- all ------------------------------------------------------------------------------------- */

void sim_compare(sim *self) {
    for (int32_t i = 0; i < MODEL_MAX_REQUESTS && !self->log->has_failed; i++) {
        const model_request *request = &self->model.requests[i];
        if (request->is_open) {
            compare_info(self, request);
            compare_tokens_and_keys(self, request);
            compare_tables(self, request);
        }
    }
    if (!self->log->has_failed) {
        sim_compare_pool(self->log, pkv_manager_get_pool(self->manager), &self->model.pool);
    }
    if (!self->log->has_failed) {
        compare_stats(self);
    }
    if (pkv_manager_check(self->manager) != PKV_OK) {
        sim_problem(self->log, "the checker: %s", pkv_manager_last_error(self->manager));
    }
    if (self->tier != NULL) {
        sim_compare_tier(self);
    }
}
