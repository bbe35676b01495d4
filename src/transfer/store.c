/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The public side of every store: arguments are checked once, here, and handed to the table of
 * functions. No store is known here.
 *
 * The one idea: whoever writes a store gets transfers that are already sound. */
#include <pagedkv/store.h>

#include "base/memory.h"

static bool is_store(const pkv_store *store) {
    return store != NULL && store->struct_size >= sizeof *store && store->submit != NULL &&
           store->poll != NULL && store->cancel != NULL && store->forget != NULL &&
           store->flush != NULL && store->close != NULL && store->last_error != NULL;
}

static bool is_view(const pkv_store_shape *shape, const pkv_tensor *blocks) {
    return blocks->data != NULL && blocks->dtype == PKV_DTYPE_UINT8 && blocks->rank == 3 &&
           blocks->shape[0] == shape->num_layers && blocks->shape[1] >= 1 &&
           blocks->shape[1] <= INT32_MAX && blocks->shape[2] == shape->block_bytes &&
           blocks->stride[2] == 1 &&
           (blocks->shape[1] == 1 || blocks->stride[1] >= blocks->shape[2]) &&
           (blocks->shape[0] == 1 || blocks->stride[0] >= blocks->shape[2]);
}

pkv_status pkv_store_submit(const pkv_store *store,
                            const pkv_store_transfer *transfer,
                            uint64_t *ticket) {
    pkv_store_transfer args;
    pkv_status status;

    if (!is_store(store) || ticket == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    status = pkvi_read_struct(&args, sizeof args, sizeof args, transfer);
    if (status != PKV_OK) {
        return status;
    }
    if (args.num_blocks > PKV_MAX_BLOCK_LIST) {
        return PKV_ERROR_LIMIT;
    }
    if (args.num_blocks < 1 || args.copies == NULL || args.keys == NULL || args.statuses == NULL ||
        !is_view(&store->shape, &args.blocks)) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    for (int32_t i = 0; i < args.num_blocks; i++) {
        pkv_block_id slot = args.is_write ? args.copies[i].target : args.copies[i].source;
        pkv_block_id block = args.is_write ? args.copies[i].source : args.copies[i].target;

        if (slot < 1 || slot >= store->shape.num_slots || block < 0 ||
            block >= args.blocks.shape[1] || (!args.is_write && block == PKV_NULL_BLOCK)) {
            return PKV_ERROR_INVALID_ARGUMENT;
        }
    }
    return store->submit(store->context, &args, ticket);
}

pkv_status pkv_store_poll(const pkv_store *store,
                          bool wait,
                          pkv_store_completion *completions,
                          int32_t capacity,
                          int32_t *num_completions) {
    if (!is_store(store) || num_completions == NULL || capacity < 0 ||
        (capacity > 0 && completions == NULL)) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    *num_completions = 0;
    return store->poll(store->context, wait, completions, capacity, num_completions);
}

pkv_status pkv_store_cancel(const pkv_store *store, uint64_t ticket) {
    return is_store(store) ? store->cancel(store->context, ticket) : PKV_ERROR_INVALID_ARGUMENT;
}

pkv_status pkv_store_forget(const pkv_store *store, const pkv_block_id *slots, int32_t num_slots) {
    if (!is_store(store) || num_slots < 0 || (num_slots > 0 && slots == NULL)) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    for (int32_t i = 0; i < num_slots; i++) {
        if (slots[i] < 1 || slots[i] >= store->shape.num_slots) {
            return PKV_ERROR_INVALID_ARGUMENT;
        }
    }
    return num_slots == 0 ? PKV_OK : store->forget(store->context, slots, num_slots);
}

pkv_status pkv_store_flush(const pkv_store *store) {
    return is_store(store) ? store->flush(store->context) : PKV_ERROR_INVALID_ARGUMENT;
}

void pkv_store_close(const pkv_store *store) {
    if (is_store(store)) {
        store->close(store->context);
    }
}

const char *pkv_store_last_error(const pkv_store *store) {
    return is_store(store) ? store->last_error(store->context) : "";
}
