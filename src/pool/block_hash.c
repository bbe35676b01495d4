/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Folding of extra keys, and the public key computation; see block_hash.h. */
#include "pool/block_hash.h"

#include <string.h>

#include "base/memory.h"

/* Type tags of the encoding. They are part of every stored key: never change one. */
#define TAG_ADAPTER 1
#define TAG_SALT 2
#define TAG_MEDIA 3

#define MAX_EXTRA_BYTES 48

/* One extra in bytes: tag, then payload words in little-endian order. */
struct extra {
    unsigned char bytes[MAX_EXTRA_BYTES];
    size_t size;
};

static void put_word(struct extra *extra, uint64_t word) {
    for (int i = 0; i < 8; i++) {
        extra->bytes[extra->size++] = (unsigned char)(word >> (8 * i));
    }
}

/* digest := H(digest ‖ extra), each function over its own digest. */
static void fold(const struct pkvi_hash_keys *keys,
                 struct pkvi_digest *digest,
                 const struct extra *extra) {
    struct extra message = {{0}, 0};
    unsigned char buffer[16 + MAX_EXTRA_BYTES];
    struct pkvi_digest hash;

    put_word(&message, digest->hash_low);
    put_word(&message, digest->hash_high);
    memcpy(buffer, message.bytes, 16);
    memcpy(buffer + 16, extra->bytes, extra->size);
    hash = pkvi_hash_bytes(keys, buffer, 16 + extra->size);
    digest->hash_low = hash.hash_low;
    digest->hash_high = hash.hash_high;

    message.size = 0;
    put_word(&message, digest->lineage);
    memcpy(buffer, message.bytes, 8);
    memcpy(buffer + 8, extra->bytes, extra->size);
    digest->lineage = pkvi_siphash(keys->secret, buffer, 8 + extra->size);
}

/* The salt was digested by both functions; each chain gets its own, so that the 128-bit chain does
 * not depend on the secret. */
static void fold_salt(const struct pkvi_hash_keys *keys,
                      struct pkvi_digest *digest,
                      const struct pkvi_digest *salt) {
    struct pkvi_digest by_hash = *digest;
    struct pkvi_digest by_lineage = *digest;
    struct extra extra = {{0}, 0};

    put_word(&extra, TAG_SALT);
    put_word(&extra, salt->hash_low);
    put_word(&extra, salt->hash_high);
    fold(keys, &by_hash, &extra);

    extra.size = 0;
    put_word(&extra, TAG_SALT);
    put_word(&extra, salt->lineage);
    fold(keys, &by_lineage, &extra);

    digest->hash_low = by_hash.hash_low;
    digest->hash_high = by_hash.hash_high;
    digest->lineage = by_lineage.lineage;
}

static void fold_media(const struct pkvi_hash_keys *keys,
                       struct pkvi_digest *digest,
                       const pkv_media *media,
                       int32_t first_token) {
    struct extra extra = {{0}, 0};

    put_word(&extra, TAG_MEDIA);
    put_word(&extra, (uint64_t)((int64_t)media->offset - first_token));
    memcpy(extra.bytes + extra.size, media->digest, sizeof media->digest);
    extra.size += sizeof media->digest;
    fold(keys, digest, &extra);
}

/* The first item that ends behind `first_token`, scanning on from where the last block left off. */
static int32_t first_media(const struct pkvi_key_extras *extras,
                           int32_t first_token,
                           int32_t index) {
    while (index < extras->num_media &&
           (int64_t)extras->media[index].offset + extras->media[index].num_tokens <= first_token) {
        index++;
    }
    return index;
}

struct pkvi_digest pkvi_digest_salt(const struct pkvi_hash_keys *keys,
                                    const void *salt,
                                    size_t salt_size) {
    return pkvi_hash_bytes(keys, salt, salt_size);
}

pkv_block_key pkvi_compute_block_key(const struct pkvi_hash_keys *keys,
                                     const struct pkvi_key_extras *extras,
                                     const pkv_block_key *parent,
                                     int32_t first_token,
                                     const int32_t *token_ids,
                                     int32_t block_size,
                                     int32_t *media_index) {
    static const pkv_block_key no_parent = {0, 0, 0};
    struct pkvi_digest digest = {0, 0, 0};
    bool has_extra = false;

    if (extras->adapter_id != 0) {
        struct extra adapter = {{0}, 0};
        put_word(&adapter, TAG_ADAPTER);
        put_word(&adapter, extras->adapter_id);
        fold(keys, &digest, &adapter);
        has_extra = true;
    }
    if (extras->has_salt && first_token == 0) {
        fold_salt(keys, &digest, &extras->salt);
        has_extra = true;
    }
    *media_index = first_media(extras, first_token, *media_index);
    for (int32_t i = *media_index;
         i < extras->num_media && extras->media[i].offset < first_token + (int64_t)block_size;
         i++) {
        fold_media(keys, &digest, &extras->media[i], first_token);
        has_extra = true;
    }
    return pkvi_hash_link(keys, parent != NULL ? parent : &no_parent, token_ids, block_size,
                          has_extra ? &digest : NULL);
}

bool pkvi_media_are_valid(const pkv_media *media, int32_t num_media) {
    int64_t end = 0;

    if (num_media < 0 || (num_media > 0 && media == NULL)) {
        return false;
    }
    for (int32_t i = 0; i < num_media; i++) {
        if (media[i].offset < end || media[i].num_tokens < 1) {
            return false;
        }
        end = (int64_t)media[i].offset + media[i].num_tokens;
    }
    return true;
}

pkv_status pkv_compute_block_keys(const pkv_key_args *args,
                                  const pkv_block_key *parent,
                                  int32_t first_token,
                                  const int32_t *token_ids,
                                  int32_t num_tokens,
                                  pkv_block_key *keys,
                                  int32_t *num_keys) {
    pkv_key_args own;
    struct pkvi_hash_keys hash_keys;
    struct pkvi_key_extras extras;
    int32_t media_index = 0;
    int32_t count = 0;
    pkv_status status = pkvi_read_struct(&own, sizeof own, sizeof own.struct_size, args);

    if (status != PKV_OK) {
        return status;
    }
    own.block_size = own.block_size == 0 ? PKV_DEFAULT_BLOCK_SIZE : own.block_size;
    if (own.block_size < 0 || num_tokens < 0 || first_token < 0 ||
        (int64_t)first_token + num_tokens > INT32_MAX || first_token % own.block_size != 0 ||
        (first_token == 0) != (parent == NULL) || (num_tokens > 0 && token_ids == NULL) ||
        (num_tokens >= own.block_size && keys == NULL) || (own.salt_size > 0 && own.salt == NULL) ||
        !pkvi_media_are_valid(own.media, own.num_media)) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    hash_keys = (struct pkvi_hash_keys){own.hash_seed, {own.secret[0], own.secret[1]}};
    extras = (struct pkvi_key_extras){
        own.adapter_id, own.salt_size > 0, {0, 0, 0}, own.media, own.num_media};
    if (extras.has_salt) {
        extras.salt = pkvi_digest_salt(&hash_keys, own.salt, own.salt_size);
    }
    for (; (count + 1) * (int64_t)own.block_size <= num_tokens; count++) {
        keys[count] = pkvi_compute_block_key(
            &hash_keys, &extras, count == 0 ? parent : &keys[count - 1],
            first_token + count * own.block_size,
            token_ids + (size_t)count * (size_t)own.block_size, own.block_size, &media_index);
    }
    if (num_keys != NULL) {
        *num_keys = count;
    }
    return PKV_OK;
}
