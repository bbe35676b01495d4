/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* XXH3-128 through xxHash, inlined so that no symbol of it leaks, and SipHash-2-4. */
#include "base/hash.h"

#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

/* Blocks up to this many tokens are hashed from one buffer; longer ones are streamed. Both give the
 * same digest. */
#define MAX_BUFFERED_TOKENS 256

struct sip {
    uint64_t v0, v1, v2, v3;
};

static inline uint64_t rotate_left(uint64_t value, int count) {
    return (value << count) | (value >> (64 - count));
}

static inline uint64_t swap_bytes(uint64_t value) {
    uint64_t swapped = 0;

    for (int i = 0; i < 8; i++) {
        swapped = (swapped << 8) | ((value >> (8 * i)) & 0xff);
    }
    return swapped;
}

/* Turn a word of this machine into the word whose bytes are little-endian, and back. */
static inline uint64_t little_endian(uint64_t value) {
    const uint16_t probe = 1;

    return *(const unsigned char *)&probe == 1 ? value : swap_bytes(value);
}

static inline uint64_t load_word(const unsigned char *bytes) {
    uint64_t word;

    memcpy(&word, bytes, sizeof word);
    return little_endian(word);
}

static inline void sip_round(struct sip *sip) {
    sip->v0 += sip->v1;
    sip->v2 += sip->v3;
    sip->v1 = rotate_left(sip->v1, 13) ^ sip->v0;
    sip->v3 = rotate_left(sip->v3, 16) ^ sip->v2;
    sip->v0 = rotate_left(sip->v0, 32);
    sip->v2 += sip->v1;
    sip->v0 += sip->v3;
    sip->v1 = rotate_left(sip->v1, 17) ^ sip->v2;
    sip->v3 = rotate_left(sip->v3, 21) ^ sip->v0;
    sip->v2 = rotate_left(sip->v2, 32);
}

static inline struct sip sip_start(const uint64_t secret[2]) {
    struct sip sip = {secret[0] ^ 0x736f6d6570736575u, secret[1] ^ 0x646f72616e646f6du,
                      secret[0] ^ 0x6c7967656e657261u, secret[1] ^ 0x7465646279746573u};
    return sip;
}

static inline void sip_word(struct sip *sip, uint64_t word) {
    sip->v3 ^= word;
    sip_round(sip);
    sip_round(sip);
    sip->v0 ^= word;
}

/* `tail` holds the last size % 8 bytes in its low bytes. */
static inline uint64_t sip_finish(struct sip *sip, uint64_t tail, size_t size) {
    sip_word(sip, tail | ((uint64_t)size << 56));
    sip->v2 ^= 0xff;
    sip_round(sip);
    sip_round(sip);
    sip_round(sip);
    sip_round(sip);
    return sip->v0 ^ sip->v1 ^ sip->v2 ^ sip->v3;
}

uint64_t pkvi_siphash(const uint64_t secret[2], const void *data, size_t size) {
    const unsigned char *bytes = data;
    struct sip sip = sip_start(secret);
    size_t whole = size / 8 * 8;
    uint64_t tail = 0;

    for (size_t i = 0; i < whole; i += 8) {
        sip_word(&sip, load_word(bytes + i));
    }
    for (size_t i = whole; i < size; i++) {
        tail |= (uint64_t)bytes[i] << (8 * (i - whole));
    }
    return sip_finish(&sip, tail, size);
}

struct pkvi_digest pkvi_hash_bytes(const struct pkvi_hash_keys *keys,
                                   const void *data,
                                   size_t size) {
    XXH128_hash_t hash = XXH3_128bits_withSeed(data, size, keys->seed);
    struct pkvi_digest digest = {hash.low64, hash.high64, pkvi_siphash(keys->secret, data, size)};

    return digest;
}

/* Two tokens as the little-endian word of their eight bytes. */
static inline uint64_t token_pair(const int32_t *token_ids) {
    uint64_t word;

    if (little_endian(1) != 1) {
        return (uint32_t)token_ids[0] | (uint64_t)(uint32_t)token_ids[1] << 32;
    }
    memcpy(&word, token_ids, sizeof word);
    return word;
}

/* SipHash over lineage ‖ tokens ‖ extra lineage, two tokens a word. An odd token count shifts the
 * extra by half a word, as the bytes demand. */
static uint64_t link_lineage(const struct pkvi_hash_keys *keys,
                             uint64_t parent,
                             const int32_t *token_ids,
                             int32_t num_tokens,
                             const uint64_t *extra) {
    struct sip sip = sip_start(keys->secret);
    size_t size = 8 + (size_t)num_tokens * 4 + (extra != NULL ? 8 : 0);
    uint64_t tail = 0;
    int32_t i;

    sip_word(&sip, parent);
    for (i = 0; i + 1 < num_tokens; i += 2) {
        sip_word(&sip, token_pair(token_ids + i));
    }
    if (i < num_tokens) {
        tail = (uint32_t)token_ids[i];
        if (extra != NULL) {
            sip_word(&sip, tail | *extra << 32);
            tail = *extra >> 32;
        }
    } else if (extra != NULL) {
        sip_word(&sip, *extra);
    }
    return sip_finish(&sip, tail, size);
}

static void store_words(unsigned char *bytes, uint64_t low, uint64_t high) {
    low = little_endian(low);
    high = little_endian(high);
    memcpy(bytes, &low, 8);
    memcpy(bytes + 8, &high, 8);
}

static inline void store_tokens(unsigned char *bytes,
                                const int32_t *token_ids,
                                int32_t num_tokens) {
    if (little_endian(1) == 1) {
        memcpy(bytes, token_ids, (size_t)num_tokens * 4);
        return;
    }
    for (int32_t i = 0; i < num_tokens; i++) {
        for (int32_t k = 0; k < 4; k++) {
            bytes[i * 4 + k] = (unsigned char)((uint32_t)token_ids[i] >> (8 * k));
        }
    }
}

static XXH128_hash_t stream_hash(uint64_t seed,
                                 const unsigned char prefix[16],
                                 const int32_t *token_ids,
                                 int32_t num_tokens,
                                 const unsigned char *suffix) {
    unsigned char buffer[MAX_BUFFERED_TOKENS * 4];
    XXH3_state_t state;

    XXH3_INITSTATE(&state);
    (void)XXH3_128bits_reset_withSeed(&state, seed);
    (void)XXH3_128bits_update(&state, prefix, 16);
    while (num_tokens > 0) {
        int32_t count = num_tokens < MAX_BUFFERED_TOKENS ? num_tokens : MAX_BUFFERED_TOKENS;
        store_tokens(buffer, token_ids, count);
        (void)XXH3_128bits_update(&state, buffer, (size_t)count * 4);
        token_ids += count;
        num_tokens -= count;
    }
    if (suffix != NULL) {
        (void)XXH3_128bits_update(&state, suffix, 16);
    }
    return XXH3_128bits_digest(&state);
}

pkv_block_key pkvi_hash_link(const struct pkvi_hash_keys *keys,
                             const pkv_block_key *parent,
                             const int32_t *token_ids,
                             int32_t num_tokens,
                             const struct pkvi_digest *extra) {
    unsigned char buffer[16 + MAX_BUFFERED_TOKENS * 4 + 16];
    unsigned char suffix[16];
    pkv_block_key key;
    XXH128_hash_t hash;

    store_words(buffer, parent->hash_low, parent->hash_high);
    if (extra != NULL) {
        store_words(suffix, extra->hash_low, extra->hash_high);
    }
    if (num_tokens <= MAX_BUFFERED_TOKENS) {
        size_t size = 16 + (size_t)num_tokens * 4;
        store_tokens(buffer + 16, token_ids, num_tokens);
        if (extra != NULL) {
            memcpy(buffer + size, suffix, 16);
            size += 16;
        }
        hash = XXH3_128bits_withSeed(buffer, size, keys->seed);
    } else {
        hash = stream_hash(keys->seed, buffer, token_ids, num_tokens, extra ? suffix : NULL);
    }
    key.hash_low = hash.low64;
    key.hash_high = hash.high64;
    key.lineage = link_lineage(keys, parent->lineage, token_ids, num_tokens,
                               extra != NULL ? &extra->lineage : NULL);
    return key;
}

void pkvi_checksum(const void *first,
                   size_t size,
                   int64_t stride,
                   int32_t count,
                   uint64_t seed,
                   uint64_t checksum[2]) {
    const unsigned char *piece = first;
    XXH3_state_t state;
    XXH128_hash_t hash;

    if (count == 1) {
        hash = XXH3_128bits_withSeed(piece, size, seed);
    } else {
        XXH3_INITSTATE(&state);
        (void)XXH3_128bits_reset_withSeed(&state, seed);
        for (int32_t i = 0; i < count; i++) {
            (void)XXH3_128bits_update(&state, piece + (int64_t)i * stride, size);
        }
        hash = XXH3_128bits_digest(&state);
    }
    checksum[0] = hash.low64;
    checksum[1] = hash.high64;
}
