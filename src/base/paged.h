/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Where a token is: position of a sequence -> physical block and offset -> element of a tensor. The
 * one definition of it, for C11 and for nvcc; everything that follows a block table includes this.
 *
 * The one idea: physical_block_number = table[position / block_size], physical_block_offset =
 * position % block_size, and a slot is number * block_size + offset, as pkv_compute_slot says it.
 * All arithmetic is 64-bit: number * stride passes 2^31 in ordinary pools. */
#ifndef PKVI_BASE_PAGED_H
#define PKVI_BASE_PAGED_H

#include <pagedkv/batch.h>

#if defined(__CUDACC__)
#define PKVI_HOST_DEVICE __host__ __device__
#else
#define PKVI_HOST_DEVICE
#endif

/* A divisor made ready for division without the instruction; values below 2^31. */
struct pkvi_divisor {
    uint32_t multiplier, shift;
    int32_t divisor;
};

static inline struct pkvi_divisor pkvi_make_divisor(int32_t divisor) {
    struct pkvi_divisor made;
    uint64_t value = (uint64_t)divisor;

    made.shift = 0;
    while (((uint64_t)1 << made.shift) < value) {
        made.shift++;
    }
    made.multiplier =
        (uint32_t)((((uint64_t)1 << 32) * (((uint64_t)1 << made.shift) - value)) / value + 1);
    made.divisor = divisor;
    return made;
}

PKVI_HOST_DEVICE static inline int32_t pkvi_divide(int32_t value, struct pkvi_divisor by) {
    uint32_t high = (uint32_t)((uint64_t)(uint32_t)value * by.multiplier >> 32);

    return (int32_t)((high + (uint32_t)value) >> by.shift);
}

/* A token's place in the pool. */
struct pkvi_place {
    int64_t physical_block_number;
    int64_t physical_block_offset;
};

/* Follow the block table. The entry of `position` may be the null block, which is readable. */
PKVI_HOST_DEVICE static inline struct pkvi_place pkvi_place_of_position(
    const pkv_block_id *block_table, int32_t block_size, int64_t position) {
    struct pkvi_place place;
    int64_t column = position / block_size;

    place.physical_block_number = block_table[column];
    place.physical_block_offset = position - column * block_size;
    return place;
}

/* The same in two steps, for who reads the table long before he needs the place: the column of
 * `position`, and the place once the column's entry is there. */
PKVI_HOST_DEVICE static inline int32_t pkvi_column_of_position(int32_t position,
                                                               struct pkvi_divisor block_size) {
    return pkvi_divide(position, block_size);
}

PKVI_HOST_DEVICE static inline struct pkvi_place pkvi_place_in_column(
    pkv_block_id entry, int32_t column, int32_t position, struct pkvi_divisor block_size) {
    struct pkvi_place place;

    place.physical_block_number = entry;
    place.physical_block_offset = position - column * block_size.divisor;
    return place;
}

/* Take a slot apart: the inverse of pkv_compute_slot. */
PKVI_HOST_DEVICE static inline struct pkvi_place pkvi_place_of_slot(int64_t slot,
                                                                    int32_t block_size) {
    struct pkvi_place place;

    place.physical_block_number = slot / block_size;
    place.physical_block_offset = slot - place.physical_block_number * block_size;
    return place;
}

/* The slot of a place, as pkv_compute_slot gives it: PKV_NO_SLOT in the null block. */
PKVI_HOST_DEVICE static inline int64_t pkvi_slot_of_place(struct pkvi_place place,
                                                          int32_t block_size) {
    return place.physical_block_number == PKV_NULL_BLOCK
               ? PKV_NO_SLOT
               : place.physical_block_number * block_size + place.physical_block_offset;
}

/* Element index of (place, head) in a cache or scale tensor [num_blocks, num_kv_heads, block_size,
 * ...]; `stride` is the tensor's. */
PKVI_HOST_DEVICE static inline int64_t pkvi_place_element(struct pkvi_place place,
                                                          int64_t head,
                                                          const int64_t *stride) {
    return place.physical_block_number * stride[0] + head * stride[1] +
           place.physical_block_offset * stride[2];
}

/* Entries of a block table that hold `seq_len` tokens. */
PKVI_HOST_DEVICE static inline int64_t pkvi_num_columns(int64_t seq_len, int32_t block_size) {
    return (seq_len + block_size - 1) / block_size;
}

#endif
