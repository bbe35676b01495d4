/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The bytes of a store's file: two copies of a header, an index of one entry a slot, then the
 * slots' data. Encoding and decoding only; docs/store.md has the tables. Nothing is read or written
 * here.
 *
 * The one idea: an entry names slot, key and checksum of the data and carries a checksum of its
 * own, so that no half of anything is ever taken for the whole. */
#ifndef PKVI_TRANSFER_FILE_FORMAT_H
#define PKVI_TRANSFER_FILE_FORMAT_H

#include <pagedkv/store.h>

#define PKVI_FILE_ALIGNMENT 4096
#define PKVI_FILE_VERSION 1u
#define PKVI_FILE_ENTRY_FIXED 64 /* bytes before the tokens */

/* What the header says. */
struct pkvi_file_header {
    pkv_store_shape shape;
    int32_t session_tokens; /* of a session; 0: a store */
    unsigned char identity[PKV_STORE_IDENTITY_SIZE];
    uint64_t key_secret_id;
};

/* Where things lie; derived from the shape. */
struct pkvi_file_layout {
    int64_t entry_size, index_offset, data_offset, file_size;
    int64_t slot_bytes;  /* that count */
    int64_t slot_stride; /* with padding */
};

struct pkvi_file_entry {
    pkv_block_id slot;
    int32_t group;
    int32_t num_tokens; /* 0: not kept */
    pkv_block_key key;
    uint64_t sequence; /* rises with each entry that is written */
    uint64_t checksum[2];
};

enum pkvi_file_found {
    PKVI_FOUND_EMPTY,   /* all zero */
    PKVI_FOUND_DAMAGED, /* not what was written */
    PKVI_FOUND_INTACT
};

/* False for a shape that no file can have. */
bool pkvi_file_compute_layout(const pkv_store_shape *shape, struct pkvi_file_layout *layout);

/* `bytes` is PKVI_FILE_ALIGNMENT long. `reason` is set to a static sentence where damaged. */
void pkvi_file_encode_header(const struct pkvi_file_header *header, unsigned char *bytes);
enum pkvi_file_found pkvi_file_decode_header(const unsigned char *bytes,
                                             struct pkvi_file_header *header,
                                             const char **reason);

/* `bytes` is entry_size long; token_ids may be NULL where num_tokens is 0. */
void pkvi_file_encode_entry(const struct pkvi_file_layout *layout,
                            const struct pkvi_file_entry *entry,
                            const int32_t *token_ids,
                            unsigned char *bytes);
enum pkvi_file_found pkvi_file_decode_entry(const struct pkvi_file_layout *layout,
                                            const pkv_store_shape *shape,
                                            pkv_block_id slot,
                                            const unsigned char *bytes,
                                            struct pkvi_file_entry *entry,
                                            const char **reason);
/* Token `i` of an entry that was decoded. */
int32_t pkvi_file_entry_token(const unsigned char *bytes, int32_t i);

static inline int64_t pkvi_file_entry_offset(const struct pkvi_file_layout *layout,
                                             pkv_block_id slot) {
    return layout->index_offset + (int64_t)(slot - 1) * layout->entry_size;
}

static inline int64_t pkvi_file_data_offset(const struct pkvi_file_layout *layout,
                                            pkv_block_id slot) {
    return layout->data_offset + (int64_t)(slot - 1) * layout->slot_stride;
}

#endif
