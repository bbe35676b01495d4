/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Transfers of the file store: submit, the stages, requests to the kernel, completions; see
 * file_store.h. */
#include <errno.h>
#include <string.h>

#include "base/hash.h"
#include "transfer/file_store.h"

/* ---- Lists */

static void append(struct pkvi_transfer_list *list, struct pkvi_transfer *transfer) {
    transfer->next = NULL;
    if (list->last != NULL) {
        list->last->next = transfer;
    } else {
        list->first = transfer;
    }
    list->last = transfer;
}

static struct pkvi_transfer *take_first(struct pkvi_transfer_list *list) {
    struct pkvi_transfer *transfer = list->first;

    list->first = transfer->next;
    if (list->first == NULL) {
        list->last = NULL;
    }
    return transfer;
}

static void take(struct pkvi_transfer_list *list, struct pkvi_transfer *transfer) {
    struct pkvi_transfer *before = NULL;

    for (struct pkvi_transfer *at = list->first; at != transfer; at = at->next) {
        before = at;
    }
    if (before == NULL) {
        (void)take_first(list);
        return;
    }
    before->next = transfer->next;
    if (list->last == transfer) {
        list->last = before;
    }
}

/* ---- Blocks of a transfer */

static pkv_block_id slot_of(const pkv_store_transfer *args, int32_t item) {
    return args->is_write ? args->copies[item].target : args->copies[item].source;
}

static unsigned char *memory_of(const pkv_store_transfer *args, int32_t item) {
    int64_t block = args->is_write ? args->copies[item].source : args->copies[item].target;

    return (unsigned char *)args->blocks.data + block * args->blocks.stride[1];
}

static void checksum_block(const struct pkvi_transfer *transfer,
                           int32_t item,
                           uint64_t checksum[2]) {
    const pkv_tensor *blocks = &transfer->args.blocks;

    pkvi_checksum(memory_of(&transfer->args, item), (size_t)blocks->shape[2], blocks->stride[0],
                  (int32_t)blocks->shape[0], 0, checksum);
}

static void copy_block(const struct pkvi_transfer *transfer,
                       int32_t item,
                       unsigned char *bytes,
                       bool is_from_block) {
    const pkv_tensor *blocks = &transfer->args.blocks;
    unsigned char *block = memory_of(&transfer->args, item);

    for (int64_t layer = 0; layer < blocks->shape[0]; layer++) {
        unsigned char *inside = block + layer * blocks->stride[0];
        unsigned char *outside = bytes + layer * blocks->shape[2];

        memcpy(is_from_block ? outside : inside, is_from_block ? inside : outside,
               (size_t)blocks->shape[2]);
    }
}

static void fail_block(pkv_file_store *store,
                       struct pkvi_transfer *transfer,
                       int32_t item,
                       pkv_status status,
                       const char *why) {
    transfer->args.statuses[item] = status;
    if (status == PKV_ERROR_CORRUPT) {
        store->info.num_corrupt++;
    } else if (status < 0) {
        store->info.num_errors++;
    }
    if (status < 0) {
        (void)pkvi_fail(&store->error, status, "%s slot %d: %s",
                        transfer->args.is_write ? "writing" : "reading",
                        (int)slot_of(&transfer->args, item), why);
    }
}

/* ---- Submit */

static void release_slots(pkv_file_store *store, const pkv_store_transfer *args, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        struct pkvi_slot *slot = &store->slots.slots[slot_of(args, i)];

        if (args->is_write) {
            slot->is_writing = false;
        } else {
            slot->num_readers--;
        }
    }
}

static pkv_status claim_slots(pkv_file_store *store, const pkv_store_transfer *args) {
    for (int32_t i = 0; i < args->num_blocks; i++) {
        pkv_block_id id = slot_of(args, i);
        struct pkvi_slot *slot = &store->slots.slots[id];

        if (slot->is_writing || (args->is_write && slot->num_readers > 0)) {
            release_slots(store, args, i);
            return pkvi_fail(&store->error, PKV_ERROR_BUSY, "slot %d is in use by a transfer",
                             (int)id);
        }
        if (args->is_write) {
            slot->is_writing = true;
        } else {
            slot->num_readers++;
        }
    }
    return PKV_OK;
}

static void pump(pkv_file_store *store, int32_t budget);

pkv_status pkvi_file_store_submit(void *context, const pkv_store_transfer *args, uint64_t *ticket) {
    pkv_file_store *store = context;
    struct pkvi_transfer *transfer;

    if (store->free_transfers.first == NULL) {
        return pkvi_fail(&store->error, PKV_ERROR_BUSY, "%d transfers are in flight or not polled",
                         (int)store->config.max_transfers);
    }
    if (claim_slots(store, args) != PKV_OK) {
        return PKV_ERROR_BUSY;
    }
    transfer = take_first(&store->free_transfers);
    *transfer = (struct pkvi_transfer){.args = *args,
                                       .ticket = ++store->last_ticket,
                                       .stage = args->is_write ? STAGE_INVALIDATE : STAGE_DATA};
    for (int32_t i = 0; i < args->num_blocks; i++) {
        args->statuses[i] = PKV_IN_PROGRESS;
        if (args->is_write) {
            pkvi_slots_remove(&store->slots, slot_of(args, i));
        }
    }
    append(&store->active, transfer);
    *ticket = transfer->ticket;
    if (store->info.uses_uring) {
        pump(store, 0);
        pkvi_uring_enter(&store->ring, false);
    }
    return PKV_OK;
}

/* ---- What a block asks of the kernel in each stage; false: nothing */

static bool prepare_entry(pkv_file_store *store, struct pkvi_request *request, bool is_new) {
    struct pkvi_transfer *transfer = request->transfer;
    const pkv_store_transfer *args = &transfer->args;
    int32_t item = request->item;
    struct pkvi_slot *slot = &store->slots.slots[slot_of(args, item)];
    struct pkvi_file_entry entry = {.slot = slot_of(args, item), .key = args->keys[item]};

    if (is_new) {
        entry.group = args->groups != NULL ? args->groups[item] : 0;
        entry.num_tokens = slot->num_tokens;
        entry.sequence = ++store->last_sequence;
        memcpy(entry.checksum, slot->checksum, sizeof entry.checksum);
        slot->sequence = entry.sequence;
        slot->may_have_entry = true;
        pkvi_file_encode_entry(&store->layout, &entry,
                               entry.num_tokens == 0
                                   ? NULL
                                   : args->token_ids +
                                         (int64_t)item * store->header.shape.block_size,
                               request->entry_bytes);
    } else {
        if (!slot->may_have_entry) {
            return false;
        }
        memset(request->entry_bytes, 0, (size_t)store->layout.entry_size);
    }
    request->parts[0] = (struct iovec){request->entry_bytes, (size_t)store->layout.entry_size};
    request->num_parts = 1;
    request->offset = pkvi_file_entry_offset(&store->layout, entry.slot);
    request->remaining = store->layout.entry_size;
    request->is_write = true;
    return true;
}

static int32_t tokens_of_block(const pkv_file_store *store, const pkv_store_transfer *args) {
    return args->token_ids != NULL ? store->header.shape.block_size : 0;
}

static bool wants_bounce(const pkv_file_store *store, const pkv_store_transfer *args) {
    return store->info.uses_direct && ((uintptr_t)args->blocks.data % PKVI_FILE_ALIGNMENT != 0 ||
                                       args->blocks.stride[0] % PKVI_FILE_ALIGNMENT != 0 ||
                                       args->blocks.stride[1] % PKVI_FILE_ALIGNMENT != 0 ||
                                       args->blocks.shape[2] % PKVI_FILE_ALIGNMENT != 0);
}

static bool prepare_data(pkv_file_store *store, struct pkvi_request *request) {
    struct pkvi_transfer *transfer = request->transfer;
    const pkv_store_transfer *args = &transfer->args;
    int32_t item = request->item, group = args->groups != NULL ? args->groups[item] : 0;
    struct pkvi_slot *slot = &store->slots.slots[slot_of(args, item)];
    const pkv_block_key *key = &args->keys[item];

    if (args->is_write) {
        slot->num_tokens = tokens_of_block(store, args);
        checksum_block(transfer, item, slot->checksum);
    } else if (!slot->is_stored || slot->group != group || slot->key.hash_low != key->hash_low ||
               slot->key.hash_high != key->hash_high || slot->key.lineage != key->lineage) {
        fail_block(store, transfer, item, PKV_NOT_FOUND, "");
        return false;
    }
    request->is_write = args->is_write;
    request->is_data = true;
    request->is_bounced = wants_bounce(store, args);
    request->offset = pkvi_file_data_offset(&store->layout, slot_of(args, item));
    request->remaining = store->layout.slot_bytes;
    if (request->is_bounced) {
        if (args->is_write) {
            copy_block(transfer, item, request->bounce, true);
        }
        request->remaining = store->layout.slot_stride;
        request->parts[0] = (struct iovec){request->bounce, (size_t)request->remaining};
        request->num_parts = 1;
        return true;
    }
    request->num_parts = (int)args->blocks.shape[0];
    for (int layer = 0; layer < request->num_parts; layer++) {
        request->parts[layer] = (struct iovec){
            memory_of(args, item) + layer * args->blocks.stride[0], (size_t)args->blocks.shape[2]};
    }
    return true;
}

/* ---- Requests */

static void complete_request(pkv_file_store *store, struct pkvi_request *request, int64_t result);

/* Hand a request to the kernel; without a ring it is done when this returns. */
static void start_request(pkv_file_store *store, struct pkvi_request *request) {
    const struct iovec *parts = request->parts + request->first_part;
    int num_parts = request->num_parts - request->first_part;
    bool is_sync = request->item < 0;
    int64_t result;

    if (store->info.uses_uring) {
        if (is_sync) {
            pkvi_uring_push_sync(&store->ring, store->file.descriptor,
                                 (uint64_t)(request - store->requests));
        } else {
            pkvi_uring_push(&store->ring, request->is_write,
                            request->is_data ? store->file.data_descriptor : store->file.descriptor,
                            parts, num_parts, request->offset,
                            (uint64_t)(request - store->requests));
        }
        store->num_in_kernel++;
        return;
    }
    if (is_sync) {
        result = store->io.sync(store->io.context);
    } else if (request->is_write) {
        result =
            store->io.write(store->io.context, request->is_data, parts, num_parts, request->offset);
    } else {
        result =
            store->io.read(store->io.context, request->is_data, parts, num_parts, request->offset);
    }
    complete_request(store, request, result);
}

/* Leave out what was moved. */
static void advance(struct pkvi_request *request, int64_t moved) {
    request->offset += moved;
    request->remaining -= moved;
    while (moved > 0) {
        struct iovec *part = &request->parts[request->first_part];
        int64_t count = moved < (int64_t)part->iov_len ? moved : (int64_t)part->iov_len;

        part->iov_base = (unsigned char *)part->iov_base + count;
        part->iov_len -= (size_t)count;
        moved -= count;
        request->first_part += part->iov_len == 0;
    }
}

/* A block of data was read as a whole: is it what was written? */
static void accept_block(pkv_file_store *store, struct pkvi_request *request) {
    struct pkvi_transfer *transfer = request->transfer;
    pkv_block_id slot = slot_of(&transfer->args, request->item);
    const uint64_t *wanted = store->slots.slots[slot].checksum;
    uint64_t found[2];

    if (request->is_bounced) {
        copy_block(transfer, request->item, request->bounce, false);
    }
    checksum_block(transfer, request->item, found);
    if (found[0] != wanted[0] || found[1] != wanted[1]) {
        fail_block(store, transfer, request->item, PKV_ERROR_CORRUPT,
                   "the data is not what was written");
        pkvi_slots_remove(&store->slots, slot);
        (void)pkvi_file_store_clear_entry(store, slot);
        return;
    }
    transfer->args.statuses[request->item] = PKV_OK;
    pkvi_slots_touch(&store->slots, slot);
    store->info.num_read++;
    store->info.num_bytes_read += (uint64_t)store->layout.slot_bytes;
}

static void end_request(pkv_file_store *store, struct pkvi_request *request) {
    request->transfer->num_outstanding--;
    request->next_free = store->free_requests;
    store->free_requests = request;
}

static void complete_request(pkv_file_store *store, struct pkvi_request *request, int64_t result) {
    struct pkvi_transfer *transfer = request->transfer;
    char text[96];

    if (result == -EINTR || result == -EAGAIN ||
        (request->item >= 0 && result > 0 && result < request->remaining)) {
        if (result > 0) {
            advance(request, result);
        }
        start_request(store, request);
        return;
    }
    if (request->item < 0) {
        for (int32_t i = 0; result < 0 && i < transfer->args.num_blocks; i++) {
            if (transfer->args.statuses[i] == PKV_IN_PROGRESS) {
                fail_block(store, transfer, i, PKV_ERROR_IO, pkvi_file_error(result, text));
            }
        }
    } else if (result < 0) {
        fail_block(store, transfer, request->item, PKV_ERROR_IO, pkvi_file_error(result, text));
    } else if (result == 0 && request->is_write) {
        fail_block(store, transfer, request->item, PKV_ERROR_IO, pkvi_file_error(-ENOSPC, text));
    } else if (result == 0) {
        fail_block(store, transfer, request->item, PKV_ERROR_CORRUPT, "the file ends before it");
    } else if (!request->is_write) {
        accept_block(store, request);
    } else if (transfer->stage == STAGE_INVALIDATE) {
        store->slots.slots[slot_of(&transfer->args, request->item)].may_have_entry = false;
    }
    end_request(store, request);
}

/* ---- Stages */

static bool is_sync_stage(enum pkvi_stage stage) {
    return stage == STAGE_SYNC_INVALID || stage == STAGE_SYNC_DATA || stage == STAGE_SYNC_ENTRIES;
}

static int32_t count_items(const pkv_file_store *store, const struct pkvi_transfer *transfer) {
    if (is_sync_stage(transfer->stage)) {
        return store->config.sync == PKV_STORE_SYNC_BATCH ? 1 : 0;
    }
    return transfer->args.num_blocks;
}

static void start_item(pkv_file_store *store, struct pkvi_transfer *transfer, int32_t item) {
    struct pkvi_request *request = store->free_requests;
    bool is_sync = is_sync_stage(transfer->stage), is_needed = true;

    if (!is_sync && transfer->args.statuses[item] != PKV_IN_PROGRESS) {
        return;
    }
    if (transfer->is_cancelled && transfer->stage <= STAGE_DATA && !is_sync) {
        fail_block(store, transfer, item, PKV_NOT_FOUND, "");
        return;
    }
    request->transfer = transfer;
    request->item = is_sync ? -1 : item;
    request->first_part = request->num_parts = 0;
    request->remaining = 0;
    request->is_data = request->is_bounced = request->is_write = false;
    if (transfer->stage == STAGE_DATA) {
        is_needed = prepare_data(store, request);
    } else if (!is_sync) {
        is_needed = prepare_entry(store, request, transfer->stage == STAGE_ENTRIES);
    }
    if (is_needed) {
        store->free_requests = request->next_free;
        transfer->num_outstanding++;
        start_request(store, request);
    }
}

static void finish(pkv_file_store *store, struct pkvi_transfer *transfer) {
    const pkv_store_transfer *args = &transfer->args;

    release_slots(store, args, args->num_blocks);
    for (int32_t i = 0; args->is_write && i < args->num_blocks; i++) {
        pkv_block_id id = slot_of(args, i);
        const struct pkvi_slot *slot = &store->slots.slots[id];
        struct pkvi_file_entry entry = {.slot = id,
                                        .group = args->groups != NULL ? args->groups[i] : 0,
                                        .num_tokens = slot->num_tokens,
                                        .key = args->keys[i],
                                        .sequence = slot->sequence,
                                        .checksum = {slot->checksum[0], slot->checksum[1]}};

        if (args->statuses[i] == PKV_IN_PROGRESS) {
            args->statuses[i] = PKV_OK;
            pkvi_slots_store(&store->slots, &entry);
            store->info.num_written++;
            store->info.num_bytes_written += (uint64_t)store->layout.slot_bytes;
        }
    }
    take(&store->active, transfer);
    append(&store->done, transfer);
}

/* Begin what can be begun, oldest transfer first. Without a ring at most `budget` items, each of
 * which is done at once; 0: no limit. */
static void pump(pkv_file_store *store, int32_t budget) {
    struct pkvi_transfer *next;
    int32_t num_started = 0;

    for (struct pkvi_transfer *transfer = store->active.first; transfer != NULL; transfer = next) {
        next = transfer->next;
        while (transfer->stage != STAGE_DONE) {
            while (transfer->next_item < count_items(store, transfer) &&
                   store->free_requests != NULL) {
                if (budget > 0 && num_started++ == budget) {
                    return;
                }
                start_item(store, transfer, transfer->next_item++);
            }
            if (transfer->next_item < count_items(store, transfer) ||
                transfer->num_outstanding > 0) {
                break;
            }
            transfer->stage = transfer->args.is_write ? transfer->stage + 1 : STAGE_DONE;
            transfer->next_item = 0;
        }
        if (transfer->stage == STAGE_DONE) {
            finish(store, transfer);
        }
    }
}

/* Take what the kernel has done; with `wait`, at least one. */
static void reap(pkv_file_store *store, bool wait) {
    uint64_t number;
    int64_t result;

    pkvi_uring_enter(&store->ring, wait && store->num_in_kernel > 0);
    while (pkvi_uring_pop(&store->ring, &number, &result)) {
        store->num_in_kernel--;
        complete_request(store, &store->requests[number], result);
    }
}

static void drive(pkv_file_store *store, bool wait) {
    if (!store->info.uses_uring) {
        pump(store, wait ? 0 : store->config.queue_depth);
        return;
    }
    reap(store, false);
    pump(store, 0);
    pkvi_uring_enter(&store->ring, false);
    while (wait && store->done.first == NULL && store->active.first != NULL) {
        reap(store, true);
        pump(store, 0);
    }
}

pkv_status pkvi_file_store_poll(void *context,
                                bool wait,
                                pkv_store_completion *completions,
                                int32_t capacity,
                                int32_t *num_completions) {
    pkv_file_store *store = context;
    int32_t count = 0;

    drive(store, wait && capacity > 0 && store->done.first == NULL);
    while (count < capacity && store->done.first != NULL) {
        struct pkvi_transfer *transfer = take_first(&store->done);
        pkv_store_completion *completion = &completions[count++];

        *completion = (pkv_store_completion){.ticket = transfer->ticket, .status = PKV_OK};
        for (int32_t i = 0; i < transfer->args.num_blocks; i++) {
            pkv_status status = transfer->args.statuses[i];

            if (status != PKV_OK && completion->num_failed++ == 0) {
                completion->status = status;
            }
        }
        append(&store->free_transfers, transfer);
    }
    *num_completions = count;
    return PKV_OK;
}

pkv_status pkvi_file_store_cancel(void *context, uint64_t ticket) {
    pkv_file_store *store = context;

    for (struct pkvi_transfer *at = store->active.first; at != NULL; at = at->next) {
        if (at->ticket == ticket) {
            at->is_cancelled = true;
            return PKV_OK;
        }
    }
    return PKV_NOT_FOUND;
}

pkv_status pkvi_file_store_flush(void *context) {
    pkv_file_store *store = context;
    int64_t result = 0;
    char text[96];

    pump(store, 0);
    while (store->active.first != NULL) {
        if (store->info.uses_uring) {
            reap(store, true);
        }
        pump(store, 0);
    }
    if (store->config.sync != PKV_STORE_SYNC_NEVER) {
        result = store->io.sync(store->io.context);
    }
    return result < 0
               ? pkvi_fail(&store->error, PKV_ERROR_IO, "flush: %s", pkvi_file_error(result, text))
               : PKV_OK;
}

void pkvi_file_store_close(void *context) {
    pkv_file_store *store = context;
    pkv_allocator allocator = store->config.allocator;

    /* The kernel may still write into blocks; no stage is begun any more. */
    while (store->num_in_kernel > 0) {
        reap(store, true);
    }
    for (struct pkvi_transfer *at = store->active.first; at != NULL; at = at->next) {
        for (int32_t i = 0; i < at->args.num_blocks; i++) {
            if (at->args.statuses[i] == PKV_IN_PROGRESS) {
                at->args.statuses[i] = PKV_NOT_FOUND;
            }
        }
    }
    if (store->config.sync != PKV_STORE_SYNC_NEVER) {
        (void)store->io.sync(store->io.context);
    }
    if (store->info.uses_uring) {
        pkvi_uring_close(&store->ring);
    }
    store->io.close(store->io.context);
    if (store->owned_memory != NULL) {
        pkvi_release(&allocator, store->owned_memory, store->owned_size);
    }
}
