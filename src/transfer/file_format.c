/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Encoding and decoding of headers and entries; see file_format.h. All numbers are little-endian,
 * written byte by byte, so that a file may change machines. */
#include "transfer/file_format.h"

#include <string.h>

#include "base/hash.h"

#define HEADER_BYTES 112 /* that mean something; the checksum is behind them */
#define ENTRY_MAGIC 0x45564b50u
#define MAX_FILE_SIZE ((int64_t)1 << 62)

static const unsigned char header_magic[8] = {'P', 'K', 'V', 'S', 'T', 'O', 'R', 'E'};

/* Seeds part the two kinds of checksum: no entry can be taken for a header. */
enum { HEADER_SEED = 1, ENTRY_SEED = 2 };

static void put(unsigned char *bytes, uint64_t value, int size) {
    for (int i = 0; i < size; i++) {
        bytes[i] = (unsigned char)(value >> (8 * i));
    }
}

static uint64_t get(const unsigned char *bytes, int size) {
    uint64_t value = 0;

    for (int i = 0; i < size; i++) {
        value |= (uint64_t)bytes[i] << (8 * i);
    }
    return value;
}

static int64_t round_up(int64_t value, int64_t unit) {
    return (value + unit - 1) / unit * unit;
}

static bool is_zero(const unsigned char *bytes, int64_t size) {
    for (int64_t i = 0; i < size; i++) {
        if (bytes[i] != 0) {
            return false;
        }
    }
    return true;
}

static void put_checksum(unsigned char *bytes, int64_t size, uint64_t seed) {
    uint64_t checksum[2];

    pkvi_checksum(bytes, (size_t)size, 0, 1, seed, checksum);
    put(bytes + size, checksum[0], 8);
    put(bytes + size + 8, checksum[1], 8);
}

static bool has_checksum(const unsigned char *bytes, int64_t size, uint64_t seed) {
    uint64_t checksum[2];

    pkvi_checksum(bytes, (size_t)size, 0, 1, seed, checksum);
    return get(bytes + size, 8) == checksum[0] && get(bytes + size + 8, 8) == checksum[1];
}

bool pkvi_file_compute_layout(const pkv_store_shape *shape, struct pkvi_file_layout *layout) {
    int64_t num_slots = (int64_t)shape->num_slots - 1;

    if (shape->num_layers < 1 || shape->num_layers > PKV_FILE_STORE_MAX_LAYERS ||
        shape->block_bytes < 1 || shape->block_bytes > INT64_C(1) << 31 || shape->block_size < 1 ||
        shape->block_size > 1 << 20 || num_slots < 1) {
        return false;
    }
    layout->slot_bytes = shape->num_layers * shape->block_bytes;
    layout->slot_stride = round_up(layout->slot_bytes, PKVI_FILE_ALIGNMENT);
    if (layout->slot_bytes > INT64_C(1) << 31 || layout->slot_stride > MAX_FILE_SIZE / num_slots) {
        return false;
    }
    layout->entry_size = round_up(PKVI_FILE_ENTRY_FIXED + 4 * (int64_t)shape->block_size + 16, 64);
    layout->index_offset = 2 * PKVI_FILE_ALIGNMENT;
    layout->data_offset =
        layout->index_offset + round_up(num_slots * layout->entry_size, PKVI_FILE_ALIGNMENT);
    layout->file_size = layout->data_offset + num_slots * layout->slot_stride;
    return true;
}

void pkvi_file_encode_header(const struct pkvi_file_header *header, unsigned char *bytes) {
    memset(bytes, 0, PKVI_FILE_ALIGNMENT);
    memcpy(bytes, header_magic, 8);
    put(bytes + 8, PKVI_FILE_VERSION, 4);
    put(bytes + 12, (uint64_t)header->session_tokens, 4);
    memcpy(bytes + 16, header->identity, PKV_STORE_IDENTITY_SIZE);
    put(bytes + 48, (uint64_t)header->shape.num_layers, 4);
    put(bytes + 52, (uint64_t)header->shape.block_size, 4);
    put(bytes + 56, (uint64_t)header->shape.block_bytes, 8);
    put(bytes + 64, (uint64_t)header->shape.num_slots, 8);
    put(bytes + 72, header->key_secret_id, 8);
    put(bytes + 80, PKVI_FILE_ALIGNMENT, 4);
    put_checksum(bytes, HEADER_BYTES, HEADER_SEED);
}

enum pkvi_file_found pkvi_file_decode_header(const unsigned char *bytes,
                                             struct pkvi_file_header *header,
                                             const char **reason) {
    struct pkvi_file_layout layout;
    uint64_t num_slots = get(bytes + 64, 8);

    if (is_zero(bytes, PKVI_FILE_ALIGNMENT)) {
        return PKVI_FOUND_EMPTY;
    }
    *reason = "this is no file of blocks";
    if (memcmp(bytes, header_magic, 8) != 0) {
        return PKVI_FOUND_DAMAGED;
    }
    *reason = "the header is damaged";
    if (!has_checksum(bytes, HEADER_BYTES, HEADER_SEED)) {
        return PKVI_FOUND_DAMAGED;
    }
    *reason = "the file is of another version";
    if (get(bytes + 8, 4) != PKVI_FILE_VERSION || get(bytes + 80, 4) != PKVI_FILE_ALIGNMENT ||
        !is_zero(bytes + 84, HEADER_BYTES - 84) || get(bytes + 12, 4) > INT32_MAX) {
        return PKVI_FOUND_DAMAGED;
    }
    header->session_tokens = (int32_t)get(bytes + 12, 4);
    memcpy(header->identity, bytes + 16, PKV_STORE_IDENTITY_SIZE);
    header->shape.num_layers = (int32_t)get(bytes + 48, 4);
    header->shape.block_size = (int32_t)get(bytes + 52, 4);
    header->shape.block_bytes = (int64_t)get(bytes + 56, 8);
    header->shape.num_slots = (int32_t)num_slots;
    header->key_secret_id = get(bytes + 72, 8);
    *reason = "the header names an impossible shape";
    if (num_slots > INT32_MAX || !pkvi_file_compute_layout(&header->shape, &layout)) {
        return PKVI_FOUND_DAMAGED;
    }
    return PKVI_FOUND_INTACT;
}

void pkvi_file_encode_entry(const struct pkvi_file_layout *layout,
                            const struct pkvi_file_entry *entry,
                            const int32_t *token_ids,
                            unsigned char *bytes) {
    memset(bytes, 0, (size_t)layout->entry_size);
    put(bytes, ENTRY_MAGIC, 4);
    put(bytes + 4, (uint64_t)entry->slot, 4);
    put(bytes + 8, (uint32_t)entry->group, 4);
    put(bytes + 12, (uint64_t)entry->num_tokens, 4);
    put(bytes + 16, entry->key.hash_low, 8);
    put(bytes + 24, entry->key.hash_high, 8);
    put(bytes + 32, entry->key.lineage, 8);
    put(bytes + 40, entry->sequence, 8);
    put(bytes + 48, entry->checksum[0], 8);
    put(bytes + 56, entry->checksum[1], 8);
    for (int32_t i = 0; i < entry->num_tokens; i++) {
        put(bytes + PKVI_FILE_ENTRY_FIXED + 4 * (int64_t)i, (uint32_t)token_ids[i], 4);
    }
    put_checksum(bytes, layout->entry_size - 16, ENTRY_SEED);
}

enum pkvi_file_found pkvi_file_decode_entry(const struct pkvi_file_layout *layout,
                                            const pkv_store_shape *shape,
                                            pkv_block_id slot,
                                            const unsigned char *bytes,
                                            struct pkvi_file_entry *entry,
                                            const char **reason) {
    if (is_zero(bytes, layout->entry_size)) {
        return PKVI_FOUND_EMPTY;
    }
    *reason = "an entry of the index is damaged";
    if (get(bytes, 4) != ENTRY_MAGIC || !has_checksum(bytes, layout->entry_size - 16, ENTRY_SEED)) {
        return PKVI_FOUND_DAMAGED;
    }
    *reason = "an entry of the index belongs elsewhere";
    if (get(bytes + 4, 4) != (uint64_t)slot || get(bytes + 12, 4) > (uint64_t)shape->block_size) {
        return PKVI_FOUND_DAMAGED;
    }
    entry->slot = slot;
    entry->group = (int32_t)(uint32_t)get(bytes + 8, 4);
    entry->num_tokens = (int32_t)get(bytes + 12, 4);
    entry->key.hash_low = get(bytes + 16, 8);
    entry->key.hash_high = get(bytes + 24, 8);
    entry->key.lineage = get(bytes + 32, 8);
    entry->sequence = get(bytes + 40, 8);
    entry->checksum[0] = get(bytes + 48, 8);
    entry->checksum[1] = get(bytes + 56, 8);
    return PKVI_FOUND_INTACT;
}

int32_t pkvi_file_entry_token(const unsigned char *bytes, int32_t i) {
    return (int32_t)(uint32_t)get(bytes + PKVI_FILE_ENTRY_FIXED + 4 * (int64_t)i, 4);
}
