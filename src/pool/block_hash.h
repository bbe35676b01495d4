/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* What goes into a block key beside tokens and parent, and in which order: the typed extra keys.
 * The hash functions themselves are in base/hash.h.
 *
 * The one idea: each extra is folded into one digest behind its own type tag, so an adapter never
 * equals a salt, and a block without extras adds nothing. */
#ifndef PKVI_POOL_BLOCK_HASH_H
#define PKVI_POOL_BLOCK_HASH_H

#include <pagedkv/pool.h>

#include "base/hash.h"

/* The extras of one sequence. `has_salt` tells an absent salt from any digest. */
struct pkvi_key_extras {
    uint64_t adapter_id;
    bool has_salt;
    struct pkvi_digest salt;
    const pkv_media *media; /* ascending by offset, not overlapping */
    int32_t num_media;
};

/* Digest a salt. */
struct pkvi_digest pkvi_digest_salt(const struct pkvi_hash_keys *keys,
                                    const void *salt,
                                    size_t salt_size);

/* Compute the key of the block of `block_size` tokens that starts at `first_token`. `parent` NULL
 * for the first block. `media_index` carries the scan over the media from block to block; it starts
 * at 0 and never goes back. */
pkv_block_key pkvi_compute_block_key(const struct pkvi_hash_keys *keys,
                                     const struct pkvi_key_extras *extras,
                                     const pkv_block_key *parent,
                                     int32_t first_token,
                                     const int32_t *token_ids,
                                     int32_t block_size,
                                     int32_t *media_index);

/* Whether media are ascending, not overlapping, and with positive lengths. */
bool pkvi_media_are_valid(const pkv_media *media, int32_t num_media);

#endif
