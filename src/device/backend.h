/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* What a kind of device must be able to do: one table of functions, the operations as they reach
 * it, and the part of a device that is the same for every kind. Views, dtypes and sizes have been
 * checked before; what stands in device memory has not.
 *
 * The one idea: an operation arrives as the caller's own args, read and with defaults filled in,
 * and with its dimensions by name, so that no backend looks into a shape again. */
#ifndef PKVI_DEVICE_BACKEND_H
#define PKVI_DEVICE_BACKEND_H

#include <assert.h>

#include <pagedkv/attention.h>
#include <pagedkv/transfer.h>

#include "base/memory.h"
#include "base/paged.h"

/* ---- What a view says (tensor.c) */

/* Whether it says "absent". */
bool pkvi_tensor_is_absent(const pkv_tensor *tensor);

/* Bytes from the first element to behind the last that it reaches; no axis is of size 0. */
uint64_t pkvi_tensor_extent(const pkv_tensor *tensor);

/* ---- The plan as it lies in host_plan and plan_data */

#define PKVI_PLAN_MAGIC 0x314e4c50564b5056ull

/* Packed rows of a request: row r is query token r / group_size and head r % group_size of the
 * kv head. Up to SMALL rows make one small tile, more make tiles of LARGE. */
#define PKVI_SMALL_TILE_ROWS 16
#define PKVI_LARGE_TILE_ROWS 64

/* The chunk of a work item that walks all keys. */
#define PKVI_ALL_CHUNKS (-1)

/* One work item, for each of the num_kv_heads heads. Keys: [chunk * chunk_size, (chunk + 1) *
 * chunk_size) cut at the length that stands on the device. */
struct pkvi_work_item {
    int32_t request, table_row, row_tile, chunk;
};

/* What the kernels need of one request. Chunks [first_chunk, end_chunk) have work items; when there
 * are several, the partial results of chunk c, row r are at first_partial_row +
 * (c - first_chunk) * num_rows + r. */
struct pkvi_plan_request {
    int64_t first_partial_row;
    int32_t table_row;
    int32_t query_start, num_queries;
    int32_t first_chunk, end_chunk; /* of the split request; 0, 0: each tile walks all keys */
    int32_t planned_chunks;         /* chunks up to the planned length */
};

/* Head of the plan; behind it num_requests requests, then num_items items. */
struct pkvi_plan_header {
    uint64_t magic;
    uint64_t plan_identity; /* of the configuration: a plan_data of another plan is refused */
    int64_t num_partial_rows;
    int64_t items_offset; /* bytes from the header */
    int64_t used_size;
    int32_t num_requests, num_tokens, num_items;
    int32_t chunk_size;
    int32_t num_split_requests; /* requests with more than one chunk */
    int32_t is_non_causal;
};

static_assert(sizeof(struct pkvi_work_item) == 16, "a work item is 16 bytes");
static_assert(sizeof(struct pkvi_plan_request) % 8 == 0, "requests keep the items aligned");
static_assert(sizeof(struct pkvi_plan_header) % 8 == 0, "the header keeps the requests aligned");

PKVI_HOST_DEVICE static inline const struct pkvi_plan_request *pkvi_plan_requests(
    const struct pkvi_plan_header *header) {
    return (const struct pkvi_plan_request *)(const void *)(header + 1);
}

PKVI_HOST_DEVICE static inline const struct pkvi_work_item *pkvi_plan_items(
    const struct pkvi_plan_header *header) {
    return (const struct pkvi_work_item *)(const void *)((const unsigned char *)header +
                                                         header->items_offset);
}

/* Rows of a tile for a request of `num_rows` packed rows. */
PKVI_HOST_DEVICE static inline int32_t pkvi_tile_rows(int64_t num_rows) {
    return num_rows <= PKVI_SMALL_TILE_ROWS ? PKVI_SMALL_TILE_ROWS : PKVI_LARGE_TILE_ROWS;
}

/* Floats of workspace for one partial row: the output, then maximum and sum. */
PKVI_HOST_DEVICE static inline int64_t pkvi_partial_floats(int32_t v_head_size) {
    return (int64_t)v_head_size + 2;
}

/* ---- Operations, checked */

/* How a scale tensor is indexed. */
enum pkvi_scale_kind {
    PKVI_SCALE_NONE,
    PKVI_SCALE_TENSOR,     /* [1] */
    PKVI_SCALE_HEAD,       /* [Hkv] */
    PKVI_SCALE_TOKEN_HEAD, /* [N, Hkv, B] */
};

/* The dimensions that all cache operations share. */
struct pkvi_cache_shape {
    int64_t num_blocks;
    int32_t num_kv_heads, block_size;
    int32_t head_size, v_head_size; /* 0: that half is absent */
    enum pkvi_scale_kind k_scale_kind, v_scale_kind;
};

struct pkvi_attention {
    pkv_attention_args args; /* softmax_scale resolved */
    struct pkvi_cache_shape cache;
    int64_t num_tokens;
    int32_t num_query_heads, group_size;
    uint64_t plan_identity;
    int32_t max_requests; /* of the plan */
};

struct pkvi_write_kv {
    pkv_write_kv_args args;
    struct pkvi_cache_shape cache;
    int64_t num_tokens;
    int32_t num_query_heads; /* 0: no query to rotate */
    int32_t tail_size;       /* E: dimensions that come from key_tail */
    int32_t rotary_size;     /* 0: no rotation */
    int64_t max_position;
};

struct pkvi_merge {
    pkv_merge_args args;
    int64_t num_tokens;
    int32_t num_heads, v_head_size;
};

struct pkvi_gather {
    pkv_gather_args args;
    struct pkvi_cache_shape cache;
    int64_t num_keys; /* L */
};

/* Whole blocks, the pairs valid. Source and target are the same view for a copy. */
struct pkvi_move {
    pkv_tensor source, target;
    const pkv_block_copy *copies;
    int32_t num_copies;
};

/* Where a block begins in one layer of a view of whole blocks. */
static inline unsigned char *pkvi_block_address(const pkv_tensor *blocks,
                                                int64_t layer,
                                                pkv_block_id block_id) {
    return (unsigned char *)blocks->data + layer * blocks->stride[0] + block_id * blocks->stride[1];
}

struct pkvi_fill {
    pkv_tensor blocks;
    const pkv_block_id *block_ids;
    int32_t num_blocks;
    unsigned char byte;
};

struct pkvi_backend {
    void (*destroy)(pkv_device *device);
    void (*get_info)(const pkv_device *device, pkv_device_info *out);
    pkv_status (*check_stream)(pkv_device *device, pkv_stream stream);
    pkv_status (*synchronize)(pkv_device *device, pkv_stream stream);
    pkv_status (*fence_create)(pkv_device *device, pkv_fence *out);
    pkv_status (*fence_record)(pkv_device *device, pkv_fence fence, pkv_stream stream);
    pkv_status (*fence_wait)(pkv_device *device, pkv_fence fence, pkv_stream stream);
    pkv_status (*fence_query)(pkv_device *device, pkv_fence fence);
    void (*fence_destroy)(pkv_device *device, pkv_fence fence);
    /* NULL where the shape is computed, else a static sentence; the general rules hold already. */
    const char *(*refuse_shape)(const pkv_device *device, const pkv_attention_shape *shape);
    /* Host memory for checks of lists, at least PKVI_CHECK_MEMORY_SIZE bytes. */
    void *(*check_memory)(pkv_device *device);

    pkv_status (*attention)(pkv_device *device, const struct pkvi_attention *op, pkv_stream stream);
    pkv_status (*write_kv)(pkv_device *device, const struct pkvi_write_kv *op, pkv_stream stream);
    pkv_status (*merge_states)(pkv_device *device, const struct pkvi_merge *op, pkv_stream stream);
    pkv_status (*update_block_table)(pkv_device *device,
                                     const pkv_table_args *op,
                                     pkv_stream stream);
    pkv_status (*compute_slot_mapping)(pkv_device *device,
                                       const pkv_slot_mapping_args *op,
                                       pkv_stream stream);
    pkv_status (*move_blocks)(pkv_device *device, const struct pkvi_move *op, pkv_stream stream);
    pkv_status (*fill_blocks)(pkv_device *device, const struct pkvi_fill *op, pkv_stream stream);
    pkv_status (*gather)(pkv_device *device, const struct pkvi_gather *op, pkv_stream stream);
};

/* A set of PKV_MAX_BLOCK_LIST block ids at half load. */
#define PKVI_CHECK_MEMORY_SIZE (2u * PKV_MAX_BLOCK_LIST * sizeof(pkv_block_id))

/* ---- A device: each kind has this as its first member */

struct pkv_device {
    const struct pkvi_backend *backend;
    struct pkvi_error_text error;
    pkv_allocator allocator;
    size_t allocated_size; /* 0: the memory is the caller's */
};

/* Note why a call on `device` fails and return the status. */
#define PKVI_DEVICE_FAIL(device, status, ...) pkvi_fail(&(device)->error, (status), __VA_ARGS__)

#endif
