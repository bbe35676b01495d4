/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Lookups of a request's longest cached prefix, and the memory that saves pkv_allocate_slots the
 * second walk. How a hit is found stands in coordinator.c and group.c. */
#include <string.h>

#include "manager/manager.h"

static struct pkvi_lookup_scope scope_of(const pkv_manager *manager,
                                         const struct pkvi_request *request) {
    struct pkvi_lookup_scope scope = {manager->pool, &manager->requests, request, manager->groups,
                                      manager->num_groups};

    return scope;
}

static pkv_request handle_of(const pkv_manager *manager, const struct pkvi_request *request) {
    pkv_request handle = {(uint32_t)pkvi_request_index(&manager->requests, request),
                          request->generation};

    return handle;
}

/* Whether the remembered lookup is of this request as it is now, with no key forgotten since, nor a
 * source added where it names any. */
static bool is_remembered(const pkv_manager *manager, const struct pkvi_request *request) {
    const struct pkvi_lookup *lookup = manager->lookup;
    pkv_request handle = handle_of(manager, request);

    return lookup->is_set && lookup->request.index == handle.index &&
           lookup->request.generation == handle.generation &&
           lookup->num_tokens == request->num_tokens && lookup->num_keys == request->num_keys &&
           lookup->num_keys_forgotten == manager->pool->num_keys_forgotten &&
           (lookup->partial_tokens == 0 ||
            lookup->num_children_added == manager->pool->children.num_added);
}

static void find(const pkv_manager *manager,
                 const struct pkvi_request *request,
                 int32_t max_tokens) {
    struct pkvi_lookup_scope scope = scope_of(manager, request);
    struct pkvi_lookup *lookup = manager->lookup;

    lookup->is_set = true;
    lookup->request = handle_of(manager, request);
    lookup->num_tokens = request->num_tokens;
    lookup->num_keys = request->num_keys;
    lookup->max_tokens = max_tokens;
    lookup->num_keys_published = manager->pool->num_keys_published;
    lookup->num_keys_forgotten = manager->pool->num_keys_forgotten;
    lookup->num_children_added = manager->pool->children.num_added;
    lookup->hit_tokens = 0;
    lookup->partial_tokens = 0;
    lookup->shared_prefix_boundary = 0;
    if (manager->pool->is_caching && !request->skip_cache_read) {
        pkvi_coordinator_find(&scope, max_tokens, lookup);
    }
    if (manager->min_partial_tokens > 0 && !request->skip_cache_read && !request->has_caller_keys) {
        lookup->partial_tokens =
            pkvi_partial_find(manager, request, lookup->hit_tokens, max_tokens, lookup->sources);
        lookup->hit_tokens += lookup->partial_tokens;
    }
}

const struct pkvi_lookup *pkvi_manager_look_up(const pkv_manager *manager,
                                               const struct pkvi_request *request) {
    if (!is_remembered(manager, request) ||
        manager->lookup->max_tokens != request->num_tokens - 1 ||
        manager->lookup->num_keys_published != manager->pool->num_keys_published ||
        manager->lookup->num_children_added != manager->pool->children.num_added) {
        find(manager, request, request->num_tokens - 1);
    }
    return manager->lookup;
}

bool pkvi_manager_confirm_hit(const pkv_manager *manager,
                              const struct pkvi_request *request,
                              int32_t hit_tokens) {
    int64_t further = 0;

    if (is_remembered(manager, request) && manager->lookup->hit_tokens == hit_tokens) {
        return true;
    }
    find(manager, request, request->num_tokens - 1);
    if (manager->lookup->hit_tokens <= hit_tokens) {
        return manager->lookup->hit_tokens == hit_tokens;
    }
    /* More is cached than when the caller looked, or than the caller wants: search only so far. An
     * eagle group drops a block, so it looks one further. */
    for (int32_t g = 0; g < manager->num_groups; g++) {
        if (manager->groups[g].eagle && manager->groups[g].block_size > further) {
            further = manager->groups[g].block_size;
        }
    }
    further += hit_tokens;
    if (further > request->num_tokens - 1) {
        further = request->num_tokens - 1;
    }
    find(manager, request, (int32_t)further);
    return manager->lookup->hit_tokens == hit_tokens;
}

pkv_status pkv_get_computed_blocks(const pkv_manager *manager,
                                   pkv_request handle,
                                   int32_t *num_computed_tokens) {
    const struct pkvi_request *request;
    pkv_status status = PKV_OK;

    request = pkvi_manager_request(manager, handle, &status);
    if (request == NULL) {
        return status;
    }
    if (num_computed_tokens == NULL) {
        return PKVI_INVALID(manager, "num_computed_tokens is NULL");
    }
    *num_computed_tokens = pkvi_manager_look_up(manager, request)->hit_tokens;
    return PKV_OK;
}

pkv_status pkv_get_computed_block_ids(const pkv_manager *manager,
                                      pkv_request handle,
                                      int32_t group,
                                      pkv_block_id *block_ids,
                                      int32_t capacity,
                                      int32_t *num_blocks) {
    const struct pkvi_request *request;
    const struct pkvi_lookup *lookup;
    pkv_status status = PKV_OK;

    request = pkvi_manager_request(manager, handle, &status);
    if (request == NULL) {
        return status;
    }
    if (!pkvi_manager_has_group(manager, group) || num_blocks == NULL || capacity < 0 ||
        (capacity > 0 && block_ids == NULL)) {
        return PKVI_INVALID(manager, "no such group, a NULL array, or a negative capacity");
    }
    lookup = pkvi_manager_look_up(manager, request);
    *num_blocks = lookup->hit_tokens / manager->groups[group].block_size;
    if (*num_blocks > capacity) {
        return pkvi_fail(manager->error, PKV_ERROR_LIMIT, "capacity must be %d", *num_blocks);
    }
    if (*num_blocks > 0) {
        memcpy(block_ids, lookup->block_ids[group], (size_t)*num_blocks * sizeof *block_ids);
    }
    return PKV_OK;
}
