/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* What a file store remembers of its slots: the key in each, an index from keys to slots, the order
 * of use, who is busy. No bytes are moved here.
 *
 * The one idea: slot 0 is never used, so it heads the list of use and ends every chain. */
#ifndef PKVI_TRANSFER_FILE_SLOTS_H
#define PKVI_TRANSFER_FILE_SLOTS_H

#include "base/memory.h"
#include "transfer/file_format.h"

struct pkvi_slot {
    pkv_block_key key;
    uint64_t checksum[2];
    uint64_t sequence;
    int32_t group;
    int32_t num_tokens;
    pkv_block_id previous, next; /* list of use, from the one to be written next */
    pkv_block_id chain;          /* next slot in the same bucket */
    int32_t num_readers;
    bool is_stored;      /* holds a block that may be read */
    bool is_writing;     /* a transfer owns it */
    bool may_have_entry; /* the file's entry may not be zero */
};

struct pkvi_slots {
    struct pkvi_slot *slots; /* [num_slots] */
    pkv_block_id *buckets;   /* [num_buckets] */
    pkv_block_id *order;     /* [num_slots] scratch of sorting */
    int32_t num_slots, num_stored;
    uint32_t num_buckets; /* a power of two */
    uint64_t last_sequence;
};

void pkvi_slots_carve(struct pkvi_slots *slots, struct pkvi_carver *carver, int32_t num_slots);
void pkvi_slots_reset(struct pkvi_slots *slots);

/* A slot holds the block of this entry from now on, as the one used last. */
void pkvi_slots_store(struct pkvi_slots *slots, const struct pkvi_file_entry *entry);
/* A slot holds nothing from now on and is the first to be written. Nothing happens where it held
 * nothing. */
void pkvi_slots_remove(struct pkvi_slots *slots, pkv_block_id slot);
void pkvi_slots_touch(struct pkvi_slots *slots, pkv_block_id slot);
/* Slot with this key that was written last; 0: none. */
pkv_block_id pkvi_slots_find(const struct pkvi_slots *slots,
                             int32_t group,
                             const pkv_block_key *key);
/* Bring the list of use into the order of the sequence numbers; empty slots first, by number. */
void pkvi_slots_sort(struct pkvi_slots *slots);

#endif
