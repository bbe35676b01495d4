/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The public side of the file store: creation, the table of functions, what is stored. */
#include <string.h>

#include "transfer/file_store.h"

static pkv_status tell(const struct pkvi_error_text *error,
                       pkv_status status,
                       char *text,
                       size_t size) {
    if (status != PKV_OK && text != NULL && size > 0) {
        size_t length = strlen(error->text);

        length = length < size - 1 ? length : size - 1;
        memcpy(text, error->text, length);
        text[length] = '\0';
    }
    return status;
}

pkv_status pkv_file_store_init(const pkv_file_store_config *config,
                               void *memory,
                               size_t size,
                               pkv_file_store **out,
                               char *error_text,
                               size_t error_size) {
    struct pkvi_error_text error = {""};

    return tell(&error, pkvi_file_store_init(config, 0, NULL, memory, size, out, &error),
                error_text, error_size);
}

pkv_status pkv_file_store_create(const pkv_file_store_config *config,
                                 pkv_file_store **out,
                                 char *error_text,
                                 size_t error_size) {
    size_t size = pkv_file_store_size(config);
    struct pkvi_error_text error = {""};
    pkv_allocator allocator;
    pkv_status status;
    void *memory;
    unsigned char none[PKVI_ALIGNMENT];

    if (out != NULL) {
        *out = NULL;
    }
    if (size == 0 || out == NULL) {
        /* Only to learn the reason; `none` is never taken for memory. */
        status = pkvi_file_store_init(config, 0, NULL, none, 0, out, &error);
        return tell(&error, status, error_text, error_size);
    }
    memset(&allocator, 0, sizeof allocator);
    if (PKVI_HAS_MEMBER(config, allocator)) {
        allocator = config->allocator;
    }
    memory = pkvi_allocate(&allocator, size);
    if (memory == NULL) {
        (void)pkvi_fail(&error, PKV_ERROR_OUT_OF_MEMORY, "%zu bytes refused", size);
        return tell(&error, PKV_ERROR_OUT_OF_MEMORY, error_text, error_size);
    }
    status = pkvi_file_store_init(config, 0, NULL, memory, size, out, &error);
    if (status != PKV_OK) {
        pkvi_release(&allocator, memory, size);
        return tell(&error, status, error_text, error_size);
    }
    (*out)->owned_memory = memory;
    (*out)->owned_size = size;
    return PKV_OK;
}

/* ---- The table */

pkv_status pkvi_file_store_clear_entry(pkv_file_store *store, pkv_block_id slot) {
    int64_t result, size = store->layout.entry_size;
    char text[96];

    if (!store->slots.slots[slot].may_have_entry) {
        return PKV_OK;
    }
    memset(store->scratch, 0, (size_t)size);
    result = pkvi_file_write_all(&store->io, store->scratch, size,
                                 pkvi_file_entry_offset(&store->layout, slot));
    if (result < 0) {
        return pkvi_fail(&store->error, PKV_ERROR_IO, "forgetting slot %d: %s", (int)slot,
                         pkvi_file_error(result, text));
    }
    store->slots.slots[slot].may_have_entry = false;
    return PKV_OK;
}

static pkv_status forget(void *context, const pkv_block_id *slots, int32_t num_slots) {
    pkv_file_store *store = context;
    pkv_status status = PKV_OK;

    for (int32_t i = 0; i < num_slots; i++) {
        const struct pkvi_slot *slot = &store->slots.slots[slots[i]];

        if (slot->is_writing || slot->num_readers > 0) {
            return pkvi_fail(&store->error, PKV_ERROR_BUSY, "slot %d is in use by a transfer",
                             (int)slots[i]);
        }
    }
    for (int32_t i = 0; i < num_slots; i++) {
        pkvi_slots_remove(&store->slots, slots[i]);
        if (pkvi_file_store_clear_entry(store, slots[i]) != PKV_OK) {
            status = PKV_ERROR_IO;
        }
    }
    return status;
}

static const char *last_error(const void *context) {
    return ((const pkv_file_store *)context)->error.text;
}

pkv_status pkv_file_store_get_store(pkv_file_store *store, pkv_store *out) {
    pkv_store table = {.shape = store != NULL ? store->header.shape : (pkv_store_shape){0},
                       .context = store,
                       .submit = pkvi_file_store_submit,
                       .poll = pkvi_file_store_poll,
                       .cancel = pkvi_file_store_cancel,
                       .forget = forget,
                       .flush = pkvi_file_store_flush,
                       .close = pkvi_file_store_close,
                       .last_error = last_error};

    if (store == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    return pkvi_write_struct(out, &table, sizeof table, sizeof table);
}

/* ---- What is stored */

pkv_status pkv_file_store_get_stored(const pkv_file_store *store,
                                     pkv_block_key *keys,
                                     int32_t *groups,
                                     pkv_block_id *slots,
                                     int32_t capacity,
                                     int32_t *num_blocks) {
    int32_t count = 0;

    if (store == NULL || num_blocks == NULL || capacity < 0) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    *num_blocks = store->slots.num_stored;
    if (*num_blocks > capacity) {
        return PKV_ERROR_LIMIT;
    }
    for (pkv_block_id id = store->slots.slots[0].next; id != 0; id = store->slots.slots[id].next) {
        const struct pkvi_slot *slot = &store->slots.slots[id];

        if (!slot->is_stored) {
            continue;
        }
        if (keys != NULL) {
            keys[count] = slot->key;
        }
        if (groups != NULL) {
            groups[count] = slot->group;
        }
        if (slots != NULL) {
            slots[count] = id;
        }
        count++;
    }
    return PKV_OK;
}

pkv_status pkv_file_store_find(const pkv_file_store *store,
                               int32_t group,
                               const pkv_block_key *key,
                               pkv_block_id *slot) {
    pkv_block_id found;

    if (store == NULL || key == NULL || slot == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    found = pkvi_slots_find(&store->slots, group, key);
    if (found == 0) {
        return PKV_NOT_FOUND;
    }
    *slot = found;
    return PKV_OK;
}

pkv_status pkv_file_store_choose_slots(const pkv_file_store *store,
                                       int32_t num_slots,
                                       pkv_block_id *slots) {
    int32_t count = 0;
    bool is_writing = false;

    if (store == NULL || num_slots < 0 || (num_slots > 0 && slots == NULL)) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    /* Twice, so that nothing is written where there are too few. */
    for (int pass = 0; pass < 2; pass++) {
        count = 0;
        for (pkv_block_id id = store->slots.slots[0].next; id != 0 && count < num_slots;
             id = store->slots.slots[id].next) {
            const struct pkvi_slot *slot = &store->slots.slots[id];

            if (slot->is_writing || slot->num_readers > 0) {
                continue;
            }
            if (is_writing) {
                slots[count] = id;
            }
            count++;
        }
        if (count < num_slots) {
            return PKV_NO_FREE_BLOCKS;
        }
        is_writing = true;
    }
    return PKV_OK;
}

pkv_status pkv_file_store_read_tokens(pkv_file_store *store,
                                      pkv_block_id slot,
                                      int32_t *token_ids,
                                      int32_t capacity,
                                      int32_t *num_tokens) {
    struct pkvi_file_entry entry;
    const char *reason = "the entry is gone";
    int64_t result, num_read;
    char text[96];

    if (store == NULL || num_tokens == NULL || slot < 1 || slot >= store->header.shape.num_slots ||
        capacity < 0 || (capacity > 0 && token_ids == NULL)) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    if (!store->slots.slots[slot].is_stored) {
        return PKV_NOT_FOUND;
    }
    result = pkvi_file_read_all(&store->io, store->scratch, store->layout.entry_size,
                                pkvi_file_entry_offset(&store->layout, slot), &num_read);
    if (result < 0) {
        return pkvi_fail(&store->error, PKV_ERROR_IO, "reading the entry of slot %d: %s", (int)slot,
                         pkvi_file_error(result, text));
    }
    if (num_read < store->layout.entry_size ||
        pkvi_file_decode_entry(&store->layout, &store->header.shape, slot, store->scratch, &entry,
                               &reason) != PKVI_FOUND_INTACT ||
        entry.sequence != store->slots.slots[slot].sequence) {
        return pkvi_fail(&store->error, PKV_ERROR_CORRUPT, "slot %d: %s", (int)slot, reason);
    }
    *num_tokens = entry.num_tokens;
    if (entry.num_tokens > capacity) {
        return PKV_ERROR_LIMIT;
    }
    for (int32_t i = 0; i < entry.num_tokens; i++) {
        token_ids[i] = pkvi_file_entry_token(store->scratch, i);
    }
    return PKV_OK;
}

pkv_status pkv_file_store_get_info(const pkv_file_store *store, pkv_file_store_info *out) {
    pkv_file_store_info info;

    if (store == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    info = store->info;
    info.num_stored = store->slots.num_stored;
    info.file_size = (uint64_t)store->layout.file_size;
    return pkvi_write_struct(out, &info, sizeof info, offsetof(pkv_file_store_info, num_damaged));
}
