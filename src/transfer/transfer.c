/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The public operations of transfer.h: check the views and the lists, hand over to the device. No
 * byte is moved here.
 *
 * The one idea: a list is refused as a whole unless its pairs may run in any order at once. */
#include <inttypes.h>
#include <string.h>

#include "device/tensor.h"

/* Refuse with INVALID_ARGUMENT. */
#define REFUSE(device, ...) PKVI_DEVICE_FAIL(device, PKV_ERROR_INVALID_ARGUMENT, __VA_ARGS__)

/* ---- A set of block ids, open addressing at half load, in the device's check memory */

#define SET_CAPACITY (2u * PKV_MAX_BLOCK_LIST)
#define SET_EMPTY ((pkv_block_id)-1)

_Static_assert((SET_CAPACITY & (SET_CAPACITY - 1)) == 0, "the set's capacity is a power of two");

static uint32_t set_find(const pkv_block_id *set, pkv_block_id block_id) {
    uint32_t index = ((uint32_t)block_id * 2654435769u) >> 7 & (SET_CAPACITY - 1);

    while (set[index] != SET_EMPTY && set[index] != block_id) {
        index = (index + 1) & (SET_CAPACITY - 1);
    }
    return index;
}

/* ---- Checks */

static pkv_status check_stream(pkv_device *device, pkv_stream stream) {
    return device == NULL ? PKV_ERROR_INVALID_ARGUMENT
                          : device->backend->check_stream(device, stream);
}

static pkv_status check_blocks(pkv_device *device, const char *name, const pkv_tensor *blocks) {
    const struct pkvi_axis axes[] = {{"num_layers", PKVI_ANY_SIZE},
                                     {"num_blocks", PKVI_ANY_SIZE},
                                     {"block_bytes", PKVI_ANY_SIZE}};

    if (blocks == NULL) {
        return REFUSE(device, "%s is NULL", name);
    }
    pkv_status status = pkvi_tensor_check(
        &device->error, name, blocks, PKVI_DTYPE_BIT(PKV_DTYPE_UINT8), 3, axes, PKVI_ROWS_PLAIN);
    if (status != PKV_OK) {
        return status;
    }
    if (blocks->shape[0] < 1 || blocks->shape[1] < 1 || blocks->shape[2] < 1) {
        return REFUSE(device, "%s has an axis of size 0", name);
    }
    if (blocks->shape[1] > INT32_MAX ||
        (blocks->shape[1] > 1 && blocks->stride[1] < blocks->shape[2])) {
        return REFUSE(device,
                      "%s: num_blocks must be below 2^31, and stride[1] %" PRId64
                      " not below block_bytes %" PRId64,
                      name, blocks->stride[1], blocks->shape[2]);
    }
    return PKV_OK;
}

static pkv_status check_count(pkv_device *device, int32_t count, const void *list) {
    if (count < 0 || (count > 0 && list == NULL)) {
        return REFUSE(device, "the list is NULL or its length %d negative", (int)count);
    }
    if (count > PKV_MAX_BLOCK_LIST) {
        return PKVI_DEVICE_FAIL(device, PKV_ERROR_LIMIT, "%d entries, at most %d in one call",
                                (int)count, PKV_MAX_BLOCK_LIST);
    }
    return PKV_OK;
}

/* Ranges, null blocks, and that no target comes twice. `in_place`: nor is it any pair's source. */
static pkv_status check_pairs(pkv_device *device, const struct pkvi_move *op, bool in_place) {
    pkv_block_id *targets = device->backend->check_memory(device);

    memset(targets, 0xff, PKVI_CHECK_MEMORY_SIZE);
    for (int32_t i = 0; i < op->num_copies; i++) {
        pkv_block_copy copy = op->copies[i];

        if (copy.source < 0 || copy.source >= op->source.shape[1] || copy.target < 0 ||
            copy.target >= op->target.shape[1] || copy.target == PKV_NULL_BLOCK) {
            return REFUSE(device, "copies[%d]: %d -> %d is out of range, or writes the null block",
                          (int)i, (int)copy.source, (int)copy.target);
        }
        uint32_t index = set_find(targets, copy.target);
        if (targets[index] != SET_EMPTY) {
            return REFUSE(device, "copies[%d]: block %d is a target twice", (int)i,
                          (int)copy.target);
        }
        targets[index] = copy.target;
    }
    for (int32_t i = 0; in_place && i < op->num_copies; i++) {
        if (targets[set_find(targets, op->copies[i].source)] != SET_EMPTY) {
            return REFUSE(device, "copies[%d]: block %d is both source and target", (int)i,
                          (int)op->copies[i].source);
        }
    }
    return PKV_OK;
}

/* ---- Operations */

pkv_status pkv_copy_blocks(pkv_device *device,
                           const pkv_tensor *blocks,
                           const pkv_block_copy *copies,
                           int32_t num_copies,
                           pkv_stream stream) {
    struct pkvi_move op = {.copies = copies, .num_copies = num_copies};
    pkv_status status = check_stream(device, stream);

    if (status == PKV_OK) {
        status = check_blocks(device, "blocks", blocks);
    }
    if (status == PKV_OK) {
        status = check_count(device, num_copies, copies);
    }
    if (status != PKV_OK || num_copies == 0) {
        return status;
    }
    op.source = *blocks;
    op.target = *blocks;
    status = check_pairs(device, &op, true);
    return status != PKV_OK ? status : device->backend->move_blocks(device, &op, stream);
}

pkv_status pkv_swap_blocks(pkv_device *device,
                           const pkv_tensor *source,
                           const pkv_tensor *target,
                           const pkv_block_copy *copies,
                           int32_t num_copies,
                           pkv_stream stream) {
    struct pkvi_move op = {.copies = copies, .num_copies = num_copies};
    pkv_status status = check_stream(device, stream);

    if (status == PKV_OK) {
        status = check_blocks(device, "source", source);
    }
    if (status == PKV_OK) {
        status = check_blocks(device, "target", target);
    }
    if (status == PKV_OK) {
        status = check_count(device, num_copies, copies);
    }
    if (status != PKV_OK) {
        return status;
    }
    if (source->shape[0] != target->shape[0] || source->shape[2] != target->shape[2]) {
        return REFUSE(device, "source and target differ in num_layers or block_bytes");
    }
    uintptr_t source_start = (uintptr_t)source->data;
    uintptr_t target_start = (uintptr_t)target->data;
    if (source_start < target_start + pkvi_tensor_extent(target) &&
        target_start < source_start + pkvi_tensor_extent(source)) {
        return REFUSE(device, "source and target overlap; inside one pool use pkv_copy_blocks");
    }
    if (num_copies == 0) {
        return PKV_OK;
    }
    op.source = *source;
    op.target = *target;
    status = check_pairs(device, &op, false);
    return status != PKV_OK ? status : device->backend->move_blocks(device, &op, stream);
}

pkv_status pkv_fill_blocks(pkv_device *device,
                           const pkv_tensor *blocks,
                           const pkv_block_id *block_ids,
                           int32_t num_blocks,
                           pkv_fill fill,
                           pkv_stream stream) {
    struct pkvi_fill op = {.block_ids = block_ids, .num_blocks = num_blocks};
    pkv_status status = check_stream(device, stream);

    if (status == PKV_OK) {
        status = check_blocks(device, "blocks", blocks);
    }
    if (status == PKV_OK) {
        status = check_count(device, num_blocks, block_ids);
    }
    if (status != PKV_OK) {
        return status;
    }
    if (fill != PKV_FILL_ZERO && fill != PKV_FILL_POISON) {
        return REFUSE(device, "fill is %d, wanted PKV_FILL_ZERO or PKV_FILL_POISON", (int)fill);
    }
    for (int32_t i = 0; i < num_blocks; i++) {
        if (block_ids[i] <= PKV_NULL_BLOCK || block_ids[i] >= blocks->shape[1]) {
            return REFUSE(device, "block_ids[%d] is %d: out of range, or the null block", (int)i,
                          (int)block_ids[i]);
        }
    }
    if (num_blocks == 0) {
        return PKV_OK;
    }
    op.blocks = *blocks;
    op.byte = fill == PKV_FILL_POISON ? 0xff : 0x00;
    return device->backend->fill_blocks(device, &op, stream);
}

/* One of the two outputs of a gather. */
static pkv_status check_gather_output(pkv_device *device,
                                      const char *name,
                                      const pkv_tensor *tensor,
                                      const struct pkvi_gather *op,
                                      int32_t head_size,
                                      int64_t *num_keys) {
    const struct pkvi_axis axes[] = {{"num_keys", *num_keys},
                                     {"num_kv_heads", op->cache.num_kv_heads},
                                     {"head_size", head_size}};

    if (pkvi_tensor_is_absent(tensor) != (head_size == 0)) {
        return REFUSE(device, "%s goes with its cache: one of the two is absent", name);
    }
    if (head_size == 0) {
        return PKV_OK;
    }
    pkv_status status = pkvi_tensor_check(&device->error, name, tensor, PKVI_DTYPES_FLOAT, 3, axes,
                                          PKVI_ROWS_ALIGNED);
    if (status == PKV_OK) {
        *num_keys = tensor->shape[0];
    }
    return status;
}

pkv_status pkv_gather(pkv_device *device, const pkv_gather_args *args, pkv_stream stream) {
    struct pkvi_gather op = {0};
    int64_t num_keys = PKVI_ANY_SIZE;
    pkv_status status = check_stream(device, stream);

    if (status != PKV_OK) {
        return status;
    }
    status =
        pkvi_read_struct(&op.args, sizeof op.args, offsetof(pkv_gather_args, key_start_loc), args);
    if (status != PKV_OK) {
        return PKVI_DEVICE_FAIL(device, status,
                                "args: NULL, a wrong struct_size, or unknown members");
    }
    status = pkvi_tensor_check_caches(&device->error, &op.args.k_cache, &op.args.v_cache,
                                      &op.args.k_scale, &op.args.v_scale, &op.cache);
    if (status == PKV_OK) {
        status =
            check_gather_output(device, "key", &op.args.key, &op, op.cache.head_size, &num_keys);
    }
    if (status == PKV_OK) {
        status = check_gather_output(device, "value", &op.args.value, &op, op.cache.v_head_size,
                                     &num_keys);
    }
    if (status != PKV_OK) {
        return status;
    }
    if (op.args.num_requests < 0 || op.args.block_table_stride < 0) {
        return REFUSE(device, "num_requests or block_table_stride is negative");
    }
    if (op.args.num_requests == 0) {
        return PKV_OK;
    }
    if (op.args.block_table == NULL || op.args.rows == NULL || op.args.key_start_loc == NULL) {
        return REFUSE(device, "block_table, rows or key_start_loc is NULL");
    }
    op.num_keys = num_keys;
    return device->backend->gather(device, &op, stream);
}
