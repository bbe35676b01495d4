/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Linear probing with backward-shift deletion over 32-bit slots; see prefix_index.h. */
#include "pool/prefix_index.h"

#include <string.h>

/* How many keys a match works on together: first all their slots are read ahead, then all the
 * entries that these name, then all are compared. Enough to hide a miss, few enough to waste little
 * where the first keys miss. */
#define MATCH_PIECE 16

#define NO_SLOT UINT32_MAX

static inline uint32_t next_slot(const struct pkvi_prefix_index *index, uint32_t slot) {
    return slot + 1 == index->num_slots ? 0 : slot + 1;
}

static inline pkv_block_id block_in(const struct pkvi_prefix_index *index, uint32_t value) {
    return (pkv_block_id)(value & index->id_mask);
}

static inline uint32_t pack(const struct pkvi_prefix_index *index,
                            pkv_block_id block,
                            uint32_t distance,
                            uint32_t tag) {
    uint32_t field = distance < index->distance_mask ? distance : index->distance_mask;

    return (uint32_t)block | field << index->distance_shift | tag;
}

void pkvi_prefix_index_carve(struct pkvi_prefix_index *index,
                             struct pkvi_carver *carver,
                             int32_t num_blocks) {
    uint32_t id_bits = 1;
    uint32_t distance_bits;

    while ((uint32_t)(num_blocks - 1) >> id_bits != 0) {
        id_bits++;
    }
    distance_bits = 32 - id_bits < 5 ? 32 - id_bits : 5;
    memset(index, 0, sizeof *index);
    index->num_slots = 2 * (uint32_t)num_blocks;
    index->id_mask = (1u << id_bits) - 1;
    index->distance_shift = id_bits;
    index->distance_mask = (1u << distance_bits) - 1;
    index->tag_mask = ~(index->id_mask | index->distance_mask << id_bits);
    index->slots = pkvi_carve(carver, index->num_slots, sizeof *index->slots);
    if (index->slots != NULL) {
        memset(index->slots, 0, index->num_slots * sizeof *index->slots);
    }
}

/* Whether the block in a used slot has this group and key. Equal hash with another lineage counts
 * as a collision where a lookup asks. */
static inline bool slot_matches(struct pkvi_prefix_index *index,
                                uint32_t value,
                                int32_t group,
                                const pkv_block_key *key,
                                struct pkvi_index_home home,
                                bool is_lookup) {
    pkv_block_id block = block_in(index, value);
    const pkv_block_key *other = &index->entries[block].key;

    if ((value & index->tag_mask) != home.tag || other->hash_low != key->hash_low ||
        other->hash_high != key->hash_high || index->states[block].group != (uint32_t)group) {
        return false;
    }
    if (PKVI_LIKELY(other->lineage == key->lineage)) {
        return true;
    }
    index->num_collisions_rejected += is_lookup ? 1 : 0;
    return false;
}

/* Find the slot of (group, key), or NO_SLOT; then `*empty` is the slot where it would go, at
 * `*distance` from its home. */
static inline uint32_t find_slot(struct pkvi_prefix_index *index,
                                 int32_t group,
                                 const pkv_block_key *key,
                                 struct pkvi_index_home home,
                                 bool is_lookup,
                                 uint32_t *empty,
                                 uint32_t *distance) {
    uint32_t slot = home.slot;
    uint32_t num_probed = 0;

    for (;; slot = next_slot(index, slot)) {
        uint32_t value = index->slots[slot];

        num_probed++;
        if (value == 0) {
            *empty = slot;
            *distance = num_probed - 1;
            slot = NO_SLOT;
            break;
        }
        if (slot_matches(index, value, group, key, home, is_lookup)) {
            break;
        }
    }
    index->num_probes += num_probed;
    return slot;
}

/* The oldest copy whose own tokens are `token_ids`; PKV_NULL_BLOCK when none is. */
static pkv_block_id oldest_with_tokens(struct pkvi_prefix_index *index,
                                       pkv_block_id oldest,
                                       const int32_t *token_ids,
                                       int32_t num_tokens) {
    pkv_block_id block = oldest;

    if (token_ids == NULL || index->stored_tokens == NULL) {
        return oldest;
    }
    do {
        const int32_t *stored = pkvi_prefix_index_tokens(index, block);
        if (memcmp(stored, token_ids, (size_t)num_tokens * sizeof *token_ids) == 0) {
            return block;
        }
        index->num_collisions_rejected++;
        block = index->entries[block].copies.next;
    } while (block != oldest);
    return PKV_NULL_BLOCK;
}

/* A call for each block of a match would cost a fifth of it. */
static PKVI_ALWAYS_INLINE pkv_block_id find_block(struct pkvi_prefix_index *index,
                                                  int32_t group,
                                                  const pkv_block_key *key,
                                                  struct pkvi_index_home home,
                                                  const int32_t *token_ids,
                                                  int32_t num_tokens) {
    uint32_t empty = 0;
    uint32_t distance = 0;
    uint32_t slot = find_slot(index, group, key, home, true, &empty, &distance);

    if (slot == NO_SLOT) {
        return PKV_NULL_BLOCK;
    }
    return oldest_with_tokens(index, block_in(index, index->slots[slot]), token_ids, num_tokens);
}

pkv_block_id pkvi_prefix_index_find(struct pkvi_prefix_index *index,
                                    int32_t group,
                                    const pkv_block_key *key,
                                    const int32_t *token_ids,
                                    int32_t num_tokens) {
    return find_block(index, group, key, pkvi_prefix_index_home(index, group, key), token_ids,
                      num_tokens);
}

pkv_block_id pkvi_prefix_index_find_at(struct pkvi_prefix_index *index,
                                       int32_t group,
                                       const pkv_block_key *key,
                                       struct pkvi_index_home home,
                                       const int32_t *token_ids,
                                       int32_t num_tokens) {
    return find_block(index, group, key, home, token_ids, num_tokens);
}

/* Match `count` <= MATCH_PIECE keys that lie `stride` apart; returns how many were found. */
static int32_t match_piece(struct pkvi_prefix_index *index,
                           const struct pkvi_key_cursor *cursor,
                           int32_t group,
                           int32_t count,
                           pkv_block_id *hits) {
    const pkv_block_key *keys = pkvi_key_cursor_key(cursor);
    const int32_t *token_ids = pkvi_key_cursor_tokens(cursor);
    size_t stride = (size_t)cursor->key_stride;
    int32_t num_tokens = cursor->key_stride * cursor->tokens_per_key;
    struct pkvi_index_home homes[MATCH_PIECE];

    for (int32_t i = 0; i < count; i++) {
        homes[i] = pkvi_prefix_index_approach(index, group, &keys[(size_t)i * stride]);
    }
    for (int32_t i = 0; i < count; i++) {
        pkv_block_id block = block_in(index, index->slots[homes[i].slot]);
        PKVI_PREFETCH(&index->entries[block]);
        PKVI_PREFETCH(&index->states[block]);
    }
    for (int32_t i = 0; i < count; i++) {
        hits[i] =
            find_block(index, group, &keys[(size_t)i * stride], homes[i], token_ids, num_tokens);
        if (hits[i] == PKV_NULL_BLOCK) {
            return i;
        }
        token_ids = token_ids == NULL ? NULL : token_ids + num_tokens;
    }
    return count;
}

int32_t pkvi_prefix_index_match(struct pkvi_prefix_index *index,
                                const struct pkvi_index_query *query,
                                pkv_block_id *hits) {
    struct pkvi_key_cursor cursor = query->cursor;
    int32_t num_hits = 0;

    while (num_hits < query->num_keys) {
        int32_t left = query->num_keys - num_hits;
        int32_t together = pkvi_key_cursor_together(&cursor);
        int32_t count = left < MATCH_PIECE ? left : MATCH_PIECE;
        int32_t found;

        count = together < count ? together : count;
        found = match_piece(index, &cursor, query->group, count, hits + num_hits);
        num_hits += found;
        if (found < count) {
            break;
        }
        pkvi_key_cursor_skip(&cursor, count);
    }
    return num_hits;
}

int32_t pkvi_prefix_index_num_copies(const struct pkvi_prefix_index *index, pkv_block_id block) {
    int32_t count = 0;
    pkv_block_id other = block;

    do {
        count++;
        other = index->entries[other].copies.next;
    } while (other != block);
    return count;
}

int32_t pkvi_prefix_index_insert(struct pkvi_prefix_index *index,
                                 pkv_block_id block,
                                 struct pkvi_index_home home) {
    struct pkvi_block_entry *entry = &index->entries[block];
    int32_t group = (int32_t)index->states[block].group;
    uint32_t empty = 0;
    uint32_t distance = 0;
    uint32_t slot = find_slot(index, group, &entry->key, home, false, &empty, &distance);

    PKV_ASSERT(!index->states[block].is_keyed);
    index->states[block].is_keyed = 1;
    index->num_keyed++;
    if (slot != NO_SLOT) {
        pkv_block_id oldest = block_in(index, index->slots[slot]);
        pkv_block_id youngest = index->entries[oldest].copies.previous;

        entry->copies.previous = youngest;
        entry->copies.next = oldest;
        index->entries[youngest].copies.next = block;
        index->entries[oldest].copies.previous = block;
        return index->copy_counts != NULL ? ++index->copy_counts[oldest] : 1;
    }
    entry->copies.previous = block;
    entry->copies.next = block;
    index->slots[empty] = pack(index, block, distance, home.tag);
    index->num_distinct++;
    if (index->copy_counts != NULL) {
        index->copy_counts[block] = 1;
    }
    return 1;
}

/* How far the block in `slot` is from its home. */
static uint32_t distance_of(const struct pkvi_prefix_index *index, uint32_t slot) {
    uint32_t value = index->slots[slot];
    uint32_t field = value >> index->distance_shift & index->distance_mask;
    pkv_block_id block = block_in(index, value);
    uint32_t home;

    if (field < index->distance_mask) {
        return field;
    }
    home = pkvi_prefix_index_home(index, (int32_t)index->states[block].group,
                                  &index->entries[block].key)
               .slot;
    return slot >= home ? slot - home : slot + index->num_slots - home;
}

/* Empty `hole`, moving followers back so that no probe meets a gap before its end. */
static void shift_back(struct pkvi_prefix_index *index, uint32_t hole) {
    uint32_t slot = hole;
    uint32_t gap = 0;
    uint32_t num_probed = 0;

    for (;;) {
        uint32_t distance;
        uint32_t value;

        slot = next_slot(index, slot);
        gap++;
        num_probed++;
        value = index->slots[slot];
        if (value == 0) {
            break;
        }
        distance = distance_of(index, slot);
        if (distance >= gap) {
            index->slots[hole] =
                pack(index, block_in(index, value), distance - gap, value & index->tag_mask);
            hole = slot;
            gap = 0;
        }
    }
    index->slots[hole] = 0;
    index->num_probes += num_probed;
}

/* The slot that names `block`, found by number so that no key is read; NO_SLOT when an older copy
 * has the slot. */
static uint32_t slot_naming(struct pkvi_prefix_index *index,
                            pkv_block_id block,
                            struct pkvi_index_home home) {
    uint32_t slot = home.slot;
    uint32_t num_probed = 1;

    while (index->slots[slot] != 0 && block_in(index, index->slots[slot]) != block) {
        slot = next_slot(index, slot);
        num_probed++;
    }
    index->num_probes += num_probed;
    return index->slots[slot] == 0 ? NO_SLOT : slot;
}

/* Take one out of the count of copies, which moves when the oldest goes. Returns the rest. */
static int32_t uncount_copy(struct pkvi_prefix_index *index,
                            pkv_block_id block,
                            struct pkvi_index_home home,
                            uint32_t slot) {
    const struct pkvi_block_entry *entry = &index->entries[block];
    pkv_block_id oldest = block;
    pkv_block_id heir = entry->copies.next;
    int32_t count;

    if (index->copy_counts == NULL) {
        return 0;
    }
    if (slot == NO_SLOT) {
        int32_t group = (int32_t)index->states[block].group;
        uint32_t empty = 0;
        uint32_t distance;
        slot = find_slot(index, group, &entry->key, home, false, &empty, &distance);
        oldest = block_in(index, index->slots[slot]);
        heir = oldest;
    }
    count = index->copy_counts[oldest] - 1;
    index->copy_counts[oldest] = 0;
    index->copy_counts[heir] = count;
    return count;
}

int32_t pkvi_prefix_index_remove(struct pkvi_prefix_index *index,
                                 pkv_block_id block,
                                 struct pkvi_index_home home) {
    struct pkvi_block_entry *entry = &index->entries[block];
    uint32_t slot = slot_naming(index, block, home);
    struct pkvi_links copies = entry->copies;
    int32_t count = uncount_copy(index, block, home, slot);

    PKV_ASSERT(index->states[block].is_keyed);
    if (copies.next == block) {
        PKV_ASSERT(slot != NO_SLOT);
        shift_back(index, slot);
        index->num_distinct--;
    } else if (slot != NO_SLOT) {
        index->slots[slot] = (index->slots[slot] & ~index->id_mask) | (uint32_t)copies.next;
    }
    index->entries[copies.previous].copies.next = copies.next;
    index->entries[copies.next].copies.previous = copies.previous;
    memset(entry, 0, sizeof *entry);
    index->states[block].is_keyed = 0;
    index->num_keyed--;
    return count;
}

void pkvi_prefix_index_clear(struct pkvi_prefix_index *index, int32_t num_blocks) {
    memset(index->slots, 0, index->num_slots * sizeof *index->slots);
    memset(index->entries, 0, (size_t)num_blocks * sizeof *index->entries);
    for (int32_t block = 0; block < num_blocks; block++) {
        index->states[block].is_keyed = 0;
    }
    index->num_distinct = 0;
    index->num_keyed = 0;
}

/* Check one used slot: distance, tag, no gap before it, and its circle of copies. */
static const char *check_slot(const struct pkvi_prefix_index *index,
                              uint32_t slot,
                              int32_t num_blocks,
                              int32_t *num_keyed) {
    uint32_t value = index->slots[slot];
    pkv_block_id oldest = block_in(index, value);
    pkv_block_id block = oldest;
    struct pkvi_index_home home;
    uint32_t distance = 0;

    if (oldest <= 0 || oldest >= num_blocks || !index->states[oldest].is_keyed) {
        return "I4: an index slot names a block without key";
    }
    home = pkvi_prefix_index_home(index, (int32_t)index->states[oldest].group,
                                  &index->entries[oldest].key);
    distance = distance_of(index, slot);
    if (home.tag != (value & index->tag_mask) ||
        (home.slot + distance) % index->num_slots != slot) {
        return "I4: an index slot disagrees with the key of its block";
    }
    for (uint32_t at = home.slot; at != slot; at = next_slot(index, at)) {
        if (index->slots[at] == 0) {
            return "I4: an index entry cannot be reached by probing";
        }
    }
    do {
        pkv_block_id next = index->entries[block].copies.next;
        if (next <= 0 || next >= num_blocks || index->entries[next].copies.previous != block ||
            ++*num_keyed > index->num_keyed) {
            return "I5: the circle of copies is broken";
        }
        if (!index->states[next].is_keyed ||
            index->states[next].group != index->states[oldest].group ||
            !pkvi_key_equal(&index->entries[next].key, &index->entries[oldest].key)) {
            return "I5: copies in one circle differ in key or group";
        }
        block = next;
    } while (block != oldest);
    return NULL;
}

const char *pkvi_prefix_index_check(const struct pkvi_prefix_index *index,
                                    int32_t num_blocks,
                                    pkv_block_id *culprit) {
    int32_t num_keyed = 0;
    int32_t num_distinct = 0;

    for (uint32_t slot = 0; slot < index->num_slots; slot++) {
        const char *problem;

        if (index->slots[slot] == 0) {
            continue;
        }
        *culprit = block_in(index, index->slots[slot]);
        num_distinct++;
        problem = check_slot(index, slot, num_blocks, &num_keyed);
        if (problem != NULL) {
            return problem;
        }
    }
    *culprit = 0;
    if (num_keyed != index->num_keyed || num_distinct != index->num_distinct) {
        return "I6: the counts of keyed blocks or distinct keys are wrong";
    }
    for (int32_t block = 0; block < num_blocks; block++) {
        num_keyed -= (int32_t)index->states[block].is_keyed;
    }
    return num_keyed == 0 ? NULL : "I4: a keyed block is missing from the index";
}
