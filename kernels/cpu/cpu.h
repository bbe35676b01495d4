/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* What the files of the CPU backend share: the device, the table of functions that an instruction
 * set provides, and the tile of work that its attention kernels get.
 *
 * The one idea: everything that needs no vector registers (addresses, masks, merging) is compiled
 * once; an instruction set brings two attention kernels and two row conversions. */
#ifndef PKVI_CPU_CPU_H
#define PKVI_CPU_CPU_H

#include "device/backend.h"

#include "kernels/cpu/thread_pool.h"

/* Rows of a tile, and keys that a kernel takes in one step. */
#define PKVI_CPU_MAX_ROWS 64
#define PKVI_CPU_MANY_KEYS 64
#define PKVI_CPU_FEW_KEYS 32

/* Rows of a tile for attend_few, and how many of those tiles go together: 4 gain what 8 would. */
#define PKVI_CPU_FEW_ROWS 8
#define PKVI_CPU_MAX_TILES 4

/* Rows of floats in scratch memory are padded so that a kernel may work on whole vectors. */
#define PKVI_CPU_MAX_PITCH (PKV_MAX_HEAD_SIZE + 64)

/* Arrays of one worker. All are 64-byte aligned. */
struct pkvi_cpu_scratch {
    float query[PKVI_CPU_MAX_ROWS * PKVI_CPU_MAX_PITCH];        /* as loaded, [row][pitch] */
    float packed_query[PKVI_CPU_MAX_ROWS * PKVI_CPU_MAX_PITCH]; /* as the kernel wants it */
    float accumulator[PKVI_CPU_MAX_ROWS * PKVI_CPU_MAX_PITCH];  /* [row][pitch], not divided */
    float keys[PKVI_CPU_MANY_KEYS * PKVI_CPU_MAX_PITCH];
    float values[PKVI_CPU_MANY_KEYS * PKVI_CPU_MAX_PITCH];
    float scores[PKVI_CPU_MANY_KEYS * PKVI_CPU_MAX_ROWS]; /* [key][row] */
    float maximum[PKVI_CPU_MAX_ROWS];
    float sum[PKVI_CPU_MAX_ROWS];
    float factor[PKVI_CPU_MAX_ROWS];
    float rounded_sum[PKVI_CPU_MAX_ROWS]; /* of the weights as the product had them */
};

/* Rows of one request and one kv head against a range of keys. Logits are in base 2: the logarithm
 * of e is in the loaded query rows, or in `second_scale` where soft cap or ALiBi stand between the
 * two. */
struct pkvi_cpu_tile {
    const struct pkvi_attention *op;
    const pkv_block_id *table;
    struct pkvi_cpu_scratch *scratch;
    float *query, *packed_query, *accumulator, *maximum, *sum; /* this tile's part of the scratch */
    int64_t first_key, end_key; /* none of the rows sees keys outside */
    int32_t head;               /* kv head */
    int32_t num_rows;
    int32_t query_pitch;       /* multiple of 16; columns behind head_size are zero */
    int32_t accumulator_pitch; /* multiple of 32; attend_many sets its own, a multiple of 16 */
    float second_scale;        /* 1 where nothing stands between */
    int64_t tree_start;        /* key that bit 0 of the tree mask stands for */
    int64_t max_low, min_high; /* keys [max_low, min_high) are seen by every row, tree mask aside */
    int64_t low[PKVI_CPU_MAX_ROWS], high[PKVI_CPU_MAX_ROWS]; /* keys that a row sees */
    int64_t position[PKVI_CPU_MAX_ROWS];
    float slope[PKVI_CPU_MAX_ROWS];
    const uint32_t *tree_words[PKVI_CPU_MAX_ROWS]; /* NULL without a tree mask */
};

/* Addresses of the keys and values of one step. */
struct pkvi_cpu_rows {
    const unsigned char *key[PKVI_CPU_MANY_KEYS];
    const unsigned char *value[PKVI_CPU_MANY_KEYS];
    int32_t count;
};

/* What an instruction set provides. Counts are multiples of 8. */
struct pkvi_cpu_kernels {
    const char *name;
    pkv_cpu_instructions instructions;
    int32_t max_few_rows; /* tiles of up to so many rows go to attend_few */
    float e4m3_unit;      /* the kernels read e4m3 values divided by this */
    /* Read or write `count` elements. */
    void (*load_row)(float *target, const void *source, pkv_dtype dtype, int32_t count);
    void (*store_row)(void *target, const float *source, pkv_dtype dtype, int32_t count);
    /* Fill accumulator, maximum and sum of each tile from its query rows. Tiles that are given
     * together have the same rows and keys and are of heads that follow each other. */
    void (*attend_few)(struct pkvi_cpu_tile *tiles, int32_t num_tiles);
    void (*attend_many)(struct pkvi_cpu_tile *tile);
};

struct pkvi_cpu_device {
    struct pkv_device base;
    const struct pkvi_cpu_kernels *kernels; /* NULL: reference */
    pkv_cpu_instructions instructions;
    int32_t num_threads;
    pkv_parallel_for parallel_for; /* the engine's, or NULL */
    void *parallel_context;
    struct pkvi_thread_pool *pool;
    struct pkvi_cpu_scratch *scratch; /* [num_threads] */
    void *check_memory;
};

/* Tables of the instruction sets that this build has. */
extern const struct pkvi_cpu_kernels pkvi_cpu_kernels_portable;
#if defined(__x86_64__)
extern const struct pkvi_cpu_kernels pkvi_cpu_kernels_avx2;
extern const struct pkvi_cpu_kernels pkvi_cpu_kernels_avx512;
extern const struct pkvi_cpu_kernels pkvi_cpu_kernels_avx512bf16;
#endif
#if defined(__aarch64__)
extern const struct pkvi_cpu_kernels pkvi_cpu_kernels_neon;
#endif

/* Find the table of `instructions` (never AUTO) where build, processor and system have it.
 * Returns NULL with a sentence in `reason`; the reference has no table and gives NULL, NULL. */
const struct pkvi_cpu_kernels *pkvi_cpu_find_kernels(pkv_cpu_instructions instructions,
                                                     const char **reason);

/* The best that this processor has. */
pkv_cpu_instructions pkvi_cpu_best_instructions(void);

static inline struct pkvi_cpu_device *pkvi_cpu_of(pkv_device *device) {
    return (struct pkvi_cpu_device *)(void *)device;
}

/* Run `body` for each item on the device's threads. */
void pkvi_cpu_parallel_for(struct pkvi_cpu_device *device,
                           int32_t num_items,
                           pkv_parallel_body body,
                           void *body_context);

/* ---- Checks of what stands in device memory, for the reference and the fast backend */

pkv_status pkvi_cpu_check_attention(pkv_device *device, const struct pkvi_attention *op);
pkv_status pkvi_cpu_check_write_kv(pkv_device *device, const struct pkvi_write_kv *op);
pkv_status pkvi_cpu_check_gather(pkv_device *device, const struct pkvi_gather *op);

/* ---- Operations. The reference's are the specification; the fast ones use device->kernels. */

void pkvi_cpu_reference_attention(const struct pkvi_attention *op);
void pkvi_cpu_reference_write_kv(const struct pkvi_write_kv *op);
void pkvi_cpu_reference_merge(const struct pkvi_merge *op);
void pkvi_cpu_reference_gather(const struct pkvi_gather *op);

void pkvi_cpu_attention(struct pkvi_cpu_device *device, const struct pkvi_attention *op);
void pkvi_cpu_write_kv(struct pkvi_cpu_device *device, const struct pkvi_write_kv *op);
void pkvi_cpu_merge(struct pkvi_cpu_device *device, const struct pkvi_merge *op);
void pkvi_cpu_gather(struct pkvi_cpu_device *device, const struct pkvi_gather *op);

/* Integers and bytes: one implementation. */
void pkvi_cpu_update_block_table(const pkv_table_args *op);
void pkvi_cpu_compute_slot_mapping(const pkv_slot_mapping_args *op);
void pkvi_cpu_move_blocks(struct pkvi_cpu_device *device, const struct pkvi_move *op);
void pkvi_cpu_fill_blocks(struct pkvi_cpu_device *device, const struct pkvi_fill *op);

/* ---- What kernels ask about a tile (tile.c) */

/* Find the addresses of keys [first, first + count). `before`: the keys in front of these, whose
 * addresses may go on in them; NULL: none. */
void pkvi_cpu_find_rows(const struct pkvi_cpu_tile *tile,
                        int64_t first,
                        int32_t count,
                        const struct pkvi_cpu_rows *before,
                        struct pkvi_cpu_rows *out);

/* The three passes over scores[key][row_pitch] of keys [first, first + count), in this order with
 * the kernel's own soft cap behind the first: scale of each key, ALiBi and second scale, mask. The
 * first two do nothing where they are not asked for; the mask, which the kernel asks for with
 * pkvi_cpu_needs_mask, sets what a row does not see to -inf. */
void pkvi_cpu_scale_scores(const struct pkvi_cpu_tile *tile,
                           int64_t first,
                           int32_t count,
                           int32_t row_pitch,
                           float *scores);
void pkvi_cpu_bias_scores(const struct pkvi_cpu_tile *tile,
                          int64_t first,
                          int32_t count,
                          int32_t row_pitch,
                          float *scores);
void pkvi_cpu_mask_scores(const struct pkvi_cpu_tile *tile,
                          int64_t first,
                          int32_t count,
                          int32_t row_pitch,
                          float *scores);

/* Multiply the weights of each key by its v_scale, where there is one per token. */
void pkvi_cpu_scale_weights(const struct pkvi_cpu_tile *tile,
                            int64_t first,
                            int32_t count,
                            int32_t row_pitch,
                            float *weights);

/* Whether some row does not see some key of [first, first + count). */
static inline bool pkvi_cpu_needs_mask(const struct pkvi_cpu_tile *tile,
                                       int64_t first,
                                       int32_t count) {
    return first < tile->max_low || first + count > tile->min_high ||
           (tile->tree_words[0] != NULL && first + count > tile->tree_start);
}

#endif
