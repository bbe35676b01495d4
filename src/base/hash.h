/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The two hash functions behind block keys: XXH3-128 (the only place that knows xxHash) and
 * SipHash-2-4. What goes into a key, and in which order, is the business of pool/block_hash.h.
 *
 * The one idea: one pass over a block's tokens feeds both chains, since the tokens are in cache. */
#ifndef PKVI_BASE_HASH_H
#define PKVI_BASE_HASH_H

#include <pagedkv/batch.h>

/* What both chains are keyed with. */
struct pkvi_hash_keys {
    uint64_t seed;      /* of XXH3-128 */
    uint64_t secret[2]; /* of SipHash */
};

/* A digest by both functions, of the same content. */
struct pkvi_digest {
    uint64_t hash_low, hash_high, lineage;
};

/* SipHash-2-4 with 64-bit output of `size` bytes. */
uint64_t pkvi_siphash(const uint64_t secret[2], const void *data, size_t size);

/* Both functions over the same bytes. */
struct pkvi_digest pkvi_hash_bytes(const struct pkvi_hash_keys *keys,
                                   const void *data,
                                   size_t size);

/* One link of the chains: digest of (parent, tokens as little-endian 32-bit words, extra). XXH3
 * sees the parent's hash and the extra's hash, SipHash the parent's and the extra's lineage. A NULL
 * extra adds nothing. */
pkv_block_key pkvi_hash_link(const struct pkvi_hash_keys *keys,
                             const pkv_block_key *parent,
                             const int32_t *token_ids,
                             int32_t num_tokens,
                             const struct pkvi_digest *extra);

/* XXH3-128 of `count` pieces of `size` bytes, `stride` bytes apart, as if they lay together: the
 * checksum of what is stored. */
void pkvi_checksum(const void *first,
                   size_t size,
                   int64_t stride,
                   int32_t count,
                   uint64_t seed,
                   uint64_t checksum[2]);

#endif
