/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Hits that continue into a block: which cached block starts as the request goes on, and how its
 * rows come to the request.
 *
 * The one idea: what follows the last block of a hit is found through the child index, and believed
 * only when the key that the request itself would have with the tokens stored there is the key that
 * the block carries. So past, adapter, salt and media are compared as strictly as for a whole
 * block. */
#include <pagedkv/sharing.h>

#include "manager/manager.h"

static int32_t common_start(const int32_t *left, const int32_t *right, int32_t most) {
    int32_t count = 0;

    while (count < most && left[count] == right[count]) {
        count++;
    }
    return count;
}

/* Whether the block is what the request's block `index` would be with the tokens stored there. */
static bool continues(const pkv_manager *manager,
                      const struct pkvi_request *request,
                      int32_t index,
                      pkv_block_id block) {
    pkv_block_key key = pkvi_request_key_with(
        &manager->requests, request, index, pkvi_prefix_index_tokens(manager->pool->index, block));

    return pkvi_key_equal(&manager->pool->index->entries[block].key, &key);
}

/* The youngest of the children in one group that share the most tokens with the request's block
 * `index`, at most *num_tokens; PKV_NULL_BLOCK where none shares enough. */
static pkv_block_id find_source(const pkv_manager *manager,
                                int32_t g,
                                const struct pkvi_request *request,
                                int32_t index,
                                int32_t *num_tokens) {
    const pkv_pool *pool = manager->pool;
    const pkv_block_key *parent =
        index == 0 ? NULL : pkvi_request_key(&manager->requests, request, index - 1);
    const int32_t *wanted = pkvi_request_tokens(&manager->requests, request, index);
    pkv_block_id children[PKV_MAX_PARTIAL_CANDIDATES];
    int32_t count = pkvi_child_index_find(&pool->children, pkvi_child_index_hash(g, parent),
                                          children, PKV_MAX_PARTIAL_CANDIDATES);
    int32_t longest = manager->min_partial_tokens - 1;
    pkv_block_id source = PKV_NULL_BLOCK;

    for (int32_t i = 0; i < count; i++) {
        PKVI_PREFETCH(pkvi_prefix_index_tokens(pool->index, children[i]));
    }
    for (int32_t i = 0; i < count && longest < *num_tokens; i++) {
        int32_t length =
            common_start(pkvi_prefix_index_tokens(pool->index, children[i]), wanted, *num_tokens);

        if (length > longest && continues(manager, request, index, children[i])) {
            longest = length;
            source = children[i];
        }
    }
    *num_tokens = longest;
    return source;
}

int32_t pkvi_partial_find(const pkv_manager *manager,
                          const struct pkvi_request *request,
                          int32_t hit_tokens,
                          int32_t max_tokens,
                          pkv_block_id *sources) {
    int32_t block_size = manager->groups[0].block_size;
    int32_t longest = max_tokens - hit_tokens;
    int32_t num_agreed = 0;

    longest = longest < block_size - 1 ? longest : block_size - 1;
    if (longest < manager->min_partial_tokens) {
        return 0;
    }
    /* Each group may shorten what the ones before it found. They choose again then, so that the
     * choice depends on the length alone, and not on how a lookup came to it. */
    for (int32_t g = 0; num_agreed < manager->num_groups; g = (g + 1) % manager->num_groups) {
        int32_t before = longest;

        sources[g] = find_source(manager, g, request, hit_tokens / block_size, &longest);
        if (sources[g] == PKV_NULL_BLOCK) {
            return 0;
        }
        num_agreed = longest == before ? num_agreed + 1 : 1;
    }
    return longest;
}

void pkvi_partial_hold(pkv_manager *manager) {
    for (int32_t g = 0; g < manager->num_groups; g++) {
        pkvi_pool_touch_block(manager->pool, manager->lookup->sources[g]);
    }
}

int32_t pkvi_partial_extend(pkv_manager *manager,
                            int32_t g,
                            int32_t row_number,
                            int64_t *num_spare) {
    struct pkvi_table_row *row = pkvi_manager_row(manager, g, row_number);
    pkv_block_id *cell = &pkvi_manager_cells(manager, g, row_number)[row->num_blocks];
    pkv_block_id source = manager->lookup->sources[g];
    bool was_free = manager->pool->states[source].ref_cnt == 1; /* now held by this call alone */
    bool is_kept = !was_free || *num_spare > 0;

    if (is_kept) {
        *num_spare -= was_free ? 1 : 0;
        pkvi_pool_take(manager->pool, g, 1, cell);
        pkvi_copy_list_add(&manager->copies, manager->pool, source, *cell);
    } else {
        /* As if it had been evicted and handed out, but for its content. */
        pkvi_pool_forget(manager->pool, source);
        manager->pool->num_blocks_allocated++;
        manager->pool->num_blocks_evicted++;
        *cell = source;
    }
    pkvi_table_mark(row, row->num_blocks, row->num_blocks + 1);
    row->num_blocks++;
    return is_kept ? 1 : 0;
}
