/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The store in memory; see memory_store.h. Bytes move when a transfer ends, as late as possible, so
 * that a caller who touches them too early is seen. */
#include "support/memory_store.h"

#include <stdlib.h>
#include <string.h>

#include "support/rand.h"

enum { MAX_TRANSFERS = 16 };

struct memory_slot {
    pkv_block_key key;
    int32_t group;
    bool is_stored, is_writing;
    int32_t num_readers;
};

struct memory_transfer {
    pkv_store_transfer args;
    uint64_t ticket; /* 0: free */
    int32_t polls_left;
    bool is_cancelled;
};

struct memory_store {
    memory_store_config config;
    test_source source;
    struct memory_transfer transfers[MAX_TRANSFERS];
    uint64_t last_ticket;
    const char *error;
    struct memory_slot *slots;
    unsigned char *bytes;
};

static pkv_block_id slot_of(const pkv_store_transfer *args, int32_t i) {
    return args->is_write ? args->copies[i].target : args->copies[i].source;
}

static void release(memory_store *store, const pkv_store_transfer *args, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        struct memory_slot *slot = &store->slots[slot_of(args, i)];

        slot->is_writing = slot->is_writing && !args->is_write;
        slot->num_readers -= !args->is_write;
    }
}

static pkv_status submit(void *context, const pkv_store_transfer *args, uint64_t *ticket) {
    memory_store *store = context;
    struct memory_transfer *transfer = NULL;

    for (int i = 0; i < MAX_TRANSFERS && transfer == NULL; i++) {
        transfer = store->transfers[i].ticket == 0 ? &store->transfers[i] : NULL;
    }
    store->error = "busy";
    if (transfer == NULL) {
        return PKV_ERROR_BUSY;
    }
    for (int32_t i = 0; i < args->num_blocks; i++) {
        struct memory_slot *slot = &store->slots[slot_of(args, i)];

        if (slot->is_writing || (args->is_write && slot->num_readers > 0)) {
            release(store, args, i);
            return PKV_ERROR_BUSY;
        }
        slot->is_writing = args->is_write;
        slot->num_readers += !args->is_write;
    }
    for (int32_t i = 0; i < args->num_blocks; i++) {
        args->statuses[i] = PKV_IN_PROGRESS;
        if (args->is_write) {
            store->slots[slot_of(args, i)].is_stored = false;
        }
    }
    *transfer = (struct memory_transfer){
        .args = *args,
        .ticket = ++store->last_ticket,
        .polls_left = test_draw_between(&store->source, 1, store->config.most_polls)};
    *ticket = transfer->ticket;
    return PKV_OK;
}

static void move_layers(memory_store *store, const pkv_store_transfer *args, int32_t i) {
    size_t size = (size_t)store->config.shape.block_bytes;
    size_t num_layers = (size_t)store->config.shape.num_layers;
    int64_t block = args->is_write ? args->copies[i].source : args->copies[i].target;

    for (size_t layer = 0; layer < num_layers; layer++) {
        unsigned char *stored =
            store->bytes + ((size_t)slot_of(args, i) * num_layers + layer) * size;
        unsigned char *memory = (unsigned char *)args->blocks.data +
                                (int64_t)layer * args->blocks.stride[0] +
                                block * args->blocks.stride[1];

        memcpy(args->is_write ? stored : memory, args->is_write ? memory : stored, size);
    }
}

static pkv_status move_block(memory_store *store, const pkv_store_transfer *args, int32_t i) {
    struct memory_slot *slot = &store->slots[slot_of(args, i)];
    int32_t group = args->groups != NULL ? args->groups[i] : 0;

    if (store->config.fail_once_in > 0 &&
        test_draw_once_in(&store->source, store->config.fail_once_in)) {
        store->error = "a block failed, as it was meant to";
        return PKV_ERROR_IO;
    }
    if (args->is_write) {
        *slot = (struct memory_slot){.key = args->keys[i],
                                     .group = group,
                                     .is_stored = true,
                                     .is_writing = slot->is_writing};
    } else if (!slot->is_stored || slot->group != group ||
               memcmp(&slot->key, &args->keys[i], sizeof slot->key) != 0) {
        return PKV_NOT_FOUND;
    }
    move_layers(store, args, i);
    return PKV_OK;
}

static void finish(memory_store *store,
                   struct memory_transfer *transfer,
                   pkv_store_completion *completion) {
    const pkv_store_transfer *args = &transfer->args;

    *completion = (pkv_store_completion){.ticket = transfer->ticket};
    for (int32_t i = 0; i < args->num_blocks; i++) {
        pkv_status status = transfer->is_cancelled ? PKV_NOT_FOUND : move_block(store, args, i);

        args->statuses[i] = status;
        if (status != PKV_OK && completion->num_failed++ == 0) {
            completion->status = status;
        }
    }
    release(store, args, args->num_blocks);
    transfer->ticket = 0;
}

static pkv_status poll_transfers(void *context,
                                 bool wait,
                                 pkv_store_completion *completions,
                                 int32_t capacity,
                                 int32_t *num_completions) {
    memory_store *store = context;
    bool is_any = true;

    do {
        int first = test_draw(&store->source, MAX_TRANSFERS);

        is_any = false;
        for (int i = 0; i < MAX_TRANSFERS; i++) {
            struct memory_transfer *transfer = &store->transfers[(first + i) % MAX_TRANSFERS];

            if (transfer->ticket == 0) {
                continue;
            }
            is_any = true;
            transfer->polls_left -= transfer->polls_left > 0;
            if (transfer->polls_left == 0 && *num_completions < capacity) {
                finish(store, transfer, &completions[(*num_completions)++]);
            }
        }
    } while (wait && is_any && capacity > 0 && *num_completions == 0);
    return PKV_OK;
}

static pkv_status cancel(void *context, uint64_t ticket) {
    memory_store *store = context;

    for (int i = 0; i < MAX_TRANSFERS; i++) {
        if (ticket != 0 && store->transfers[i].ticket == ticket) {
            store->transfers[i].is_cancelled = true;
            return PKV_OK;
        }
    }
    return PKV_NOT_FOUND;
}

static pkv_status forget(void *context, const pkv_block_id *slots, int32_t num_slots) {
    memory_store *store = context;

    for (int32_t i = 0; i < num_slots; i++) {
        if (store->slots[slots[i]].is_writing || store->slots[slots[i]].num_readers > 0) {
            return PKV_ERROR_BUSY;
        }
    }
    for (int32_t i = 0; i < num_slots; i++) {
        store->slots[slots[i]].is_stored = false;
    }
    return PKV_OK;
}

static pkv_status flush(void *context) {
    (void)context; /* memory outlives nothing */
    return PKV_OK;
}

static void close_store(void *context) {
    memory_store *store = context;

    for (int i = 0; i < MAX_TRANSFERS; i++) {
        const pkv_store_transfer *args = &store->transfers[i].args;

        for (int32_t k = 0; store->transfers[i].ticket != 0 && k < args->num_blocks; k++) {
            args->statuses[k] = PKV_NOT_FOUND;
        }
    }
    free(store->bytes);
    free(store->slots);
    free(store);
}

static const char *last_error(const void *context) {
    return ((const memory_store *)context)->error;
}

pkv_store memory_store_create(const memory_store_config *config) {
    memory_store *store = calloc(1, sizeof *store);
    size_t num_slots = (size_t)config->shape.num_slots;

    if (store == NULL) {
        abort();
    }
    store->config = *config;
    store->source = test_source_of_seed(config->seed);
    store->error = "";
    store->config.most_polls = config->most_polls > 0 ? config->most_polls : 1;
    store->slots = calloc(num_slots, sizeof *store->slots);
    store->bytes =
        calloc(num_slots * (size_t)config->shape.num_layers, (size_t)config->shape.block_bytes);
    if (store->slots == NULL || store->bytes == NULL) {
        abort();
    }
    return (pkv_store){.struct_size = sizeof(pkv_store),
                       .shape = config->shape,
                       .context = store,
                       .submit = submit,
                       .poll = poll_transfers,
                       .cancel = cancel,
                       .forget = forget,
                       .flush = flush,
                       .close = close_store,
                       .last_error = last_error};
}
