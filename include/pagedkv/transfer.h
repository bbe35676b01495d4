/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Moving whole blocks: copy inside a pool, swap between pools, gather into contiguous tensors,
 * fill. Which blocks move is decided elsewhere.
 *
 * The one idea: a block is block_bytes bytes at number * stride, in each layer. A byte view
 * [num_layers, num_blocks, block_bytes] of UINT8 says all of it; bytes between block_bytes and the
 * stride belong to somebody else and are never touched. */
#ifndef PAGEDKV_TRANSFER_H
#define PAGEDKV_TRANSFER_H

#include <pagedkv/batch.h>
#include <pagedkv/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Most pairs or blocks of one call. */
#define PKV_MAX_BLOCK_LIST 65536

/* Copy blocks inside one pool, in all layers.
 * [enqueues on stream | O(pairs * layers * block_bytes) | no allocation | all-or-nothing as to
 * refusals]
 *
 * blocks  [num_layers, num_blocks, block_bytes] UINT8, no axis empty; the caller's memory. Strides
 *         are bytes: the innermost 1, none negative, that of a block at least block_bytes.
 * copies  on the host until the call returns. No target twice, none both source and target, never
 *         the null block as target: so the pairs may run in parallel.
 *
 * Returns PKV_OK (also for no pairs), PKV_ERROR_INVALID_ARGUMENT, PKV_ERROR_UNSUPPORTED (a dtype
 * that is not UINT8; an innermost stride that is not 1, or a negative one), PKV_ERROR_LIMIT (more
 * than PKV_MAX_BLOCK_LIST pairs), PKV_ERROR_DEVICE (some may have been copied).
 * pkv_device_last_error says which pair. */
PKV_API pkv_status pkv_copy_blocks(pkv_device *device,
                                   const pkv_tensor *blocks,
                                   const pkv_block_copy *copies,
                                   int32_t num_copies,
                                   pkv_stream stream);

/* Copy blocks from one pool to another, such as device to host.
 * [enqueues on stream | O(pairs * layers * block_bytes) | no allocation | all-or-nothing as to
 * refusals]
 *
 * source, target  as above, with the same num_layers and block_bytes; they must not overlap.
 * copies          on the host until the call returns; source numbers blocks of `source`, target
 *                 those of `target`. No target twice, none the null block; a source may repeat.
 *
 * Returns as pkv_copy_blocks. */
PKV_API pkv_status pkv_swap_blocks(pkv_device *device,
                                   const pkv_tensor *source,
                                   const pkv_tensor *target,
                                   const pkv_block_copy *copies,
                                   int32_t num_copies,
                                   pkv_stream stream);

/* What a fill writes. */
typedef enum pkv_fill {
    PKV_FILL_ZERO = 0,
    PKV_FILL_POISON = 1 /* 0xFF in each byte: NaN in every floating-point type of the cache */
} pkv_fill;

/* Fill blocks, in all layers.
 * [enqueues on stream | O(blocks * layers * block_bytes) | no allocation | all-or-nothing as to
 * refusals]
 *
 * blocks     as pkv_copy_blocks.
 * block_ids  on the host until the call returns; none the null block; repetition is allowed.
 *
 * Returns as pkv_copy_blocks; a `fill` that is none of the two is PKV_ERROR_INVALID_ARGUMENT. */
PKV_API pkv_status pkv_fill_blocks(pkv_device *device,
                                   const pkv_tensor *blocks,
                                   const pkv_block_id *block_ids,
                                   int32_t num_blocks,
                                   pkv_fill fill,
                                   pkv_stream stream);

typedef struct pkv_gather_args {
    uint32_t struct_size;
    int32_t num_requests;
    pkv_tensor k_cache;              /* [N, Hkv, B, D], any cache dtype; absent with key */
    pkv_tensor v_cache;              /* [N, Hkv, B, Dv]; absent with value */
    pkv_tensor k_scale, v_scale;     /* as pkv_attention_args */
    pkv_tensor key;                  /* [L, Hkv, D] FLOAT32, FLOAT16 or BFLOAT16 */
    pkv_tensor value;                /* [L, Hkv, Dv] any of the three */
    const pkv_block_id *block_table; /* row r starts at r * block_table_stride; of a row the entries
                                        of the positions that are gathered are read */
    int64_t block_table_stride;      /* entries, not negative */
    const int32_t *rows;             /* [num_requests] */
    const int32_t *first_positions;  /* [num_requests] or NULL: 0 */
    const int32_t *key_start_loc; /* [num_requests + 1] prefix sum of the numbers of keys; the last
                                       one is at most L */
} pkv_gather_args;

/* Copy the keys and values of requests out of the cache into contiguous tensors, dequantised.
 * [enqueues on stream | O(keys * Hkv * (D + Dv)) | no allocation | all-or-nothing as to refusals]
 *
 * Request i fills rows key_start_loc[i] to key_start_loc[i + 1] - 1 of key and value with its
 * positions from first_positions[i] on; the other rows stay as they are. A CPU device refuses rows,
 * positions and block ids that are out of range before it writes anything; other devices trust
 * them.
 *
 * Returns PKV_OK (also for no requests), PKV_ERROR_INVALID_ARGUMENT, PKV_ERROR_UNSUPPORTED (dtypes,
 * strides, head and block sizes, an unknown member of args), PKV_ERROR_DEVICE. */
PKV_API pkv_status pkv_gather(pkv_device *device, const pkv_gather_args *args, pkv_stream stream);

#ifdef __cplusplus
}
#endif

#endif
