/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The hit that all groups agree on, and the memory of the last one. What a hit is for one kind of
 * group stands in group.h.
 *
 * The one idea: each kind may only shorten what the others found, so going round until nobody
 * shortens ends at the longest common hit. */
#ifndef PKVI_MANAGER_COORDINATOR_H
#define PKVI_MANAGER_COORDINATOR_H

#include "manager/group.h"

/* Result of a lookup. It is true as long as no key was published or forgotten since; after keys
 * were only published it may be shorter than possible, but each of its blocks is still the right
 * one. */
struct pkvi_lookup {
    bool is_set;
    pkv_request request;
    int32_t num_tokens; /* of the request when it was made */
    int32_t num_keys;
    int32_t max_tokens; /* how far it searched */
    uint64_t num_keys_published;
    uint64_t num_keys_forgotten;
    uint64_t num_children_added;
    int32_t hit_tokens; /* whole blocks, and partial_tokens of the next one */
    int32_t partial_tokens;
    pkv_block_id *sources;  /* [num_groups] of partial_tokens, where it is not 0 */
    int32_t longest_tokens; /* of any class alone, in the first round */
    int32_t shared_prefix_boundary;
    pkv_block_id **block_ids; /* [num_groups][width of the group] */
};

/* Find the longest hit of at most `max_tokens`. Writes hit_tokens, the boundary and the blocks. */
void pkvi_coordinator_find(const struct pkvi_lookup_scope *scope,
                           int32_t max_tokens,
                           struct pkvi_lookup *lookup);

#endif
