/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Opening the file store: memory, headers, index, what to do with damage. See file_store.h for the
 * parts and file_transfer.c for what happens afterwards. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "transfer/file_store.h"

#define SCRATCH_SIZE (1 << 16)
#define MAX_QUEUE_DEPTH 4096

/* ---- Configuration and memory */

static pkv_status read_config(const pkv_file_store_config *source,
                              pkv_file_store_config *config,
                              struct pkvi_file_layout *layout,
                              struct pkvi_error_text *error) {
    pkv_status status =
        pkvi_read_struct(config, sizeof *config, offsetof(pkv_file_store_config, mismatch), source);

    if (status != PKV_OK) {
        return pkvi_fail(error, status, "config: NULL, a wrong struct_size, or unknown members");
    }
    config->queue_depth =
        config->queue_depth == 0 ? PKV_FILE_STORE_DEFAULT_QUEUE_DEPTH : config->queue_depth;
    config->max_transfers =
        config->max_transfers == 0 ? PKV_FILE_STORE_DEFAULT_MAX_TRANSFERS : config->max_transfers;
    if (config->path == NULL || !pkvi_allocator_is_valid(&config->allocator) ||
        !pkvi_file_compute_layout(&config->shape, layout)) {
        return pkvi_fail(error, PKV_ERROR_INVALID_ARGUMENT,
                         "config: path, allocator or shape (layers, bytes, tokens, slots)");
    }
    if (config->queue_depth < 1 || config->queue_depth > MAX_QUEUE_DEPTH ||
        config->max_transfers < 1 || config->max_transfers > PKV_MAX_BLOCK_LIST ||
        (unsigned)config->mismatch > PKV_STORE_EMPTY ||
        (unsigned)config->sync > PKV_STORE_SYNC_NEVER ||
        (unsigned)config->uring > PKV_STORE_URING_OFF) {
        return pkvi_fail(error, PKV_ERROR_INVALID_ARGUMENT,
                         "config: queue_depth, max_transfers, mismatch, sync or uring");
    }
    return PKV_OK;
}

/* Lay the object out. The bounce buffers come first behind it and are aligned by hand. */
static pkv_file_store *carve(const pkv_file_store_config *config,
                             const struct pkvi_file_layout *layout,
                             struct pkvi_carver *carver) {
    size_t depth = (size_t)config->queue_depth, num_layers = (size_t)config->shape.num_layers;
    bool direct = config->direct;
    pkv_file_store fixed;
    pkv_file_store *store = pkvi_carve(carver, 1, sizeof *store);
    pkv_file_store *target = store != NULL ? store : &fixed;
    unsigned char *bounce, *entries;
    struct iovec *parts;

    memset(target, 0, sizeof *target);
    target->scratch_size = SCRATCH_SIZE;
    if (layout->entry_size > target->scratch_size) {
        target->scratch_size = layout->entry_size;
    }
    if (config->verify_data && layout->slot_stride > target->scratch_size) {
        target->scratch_size = layout->slot_stride;
    }
    pkvi_slots_carve(&target->slots, carver, config->shape.num_slots);
    target->transfers =
        pkvi_carve(carver, (size_t)config->max_transfers, sizeof *target->transfers);
    target->requests = pkvi_carve(carver, depth, sizeof *target->requests);
    parts = pkvi_carve(carver, depth * num_layers, sizeof *parts);
    entries = pkvi_carve(carver, depth, (size_t)layout->entry_size);
    target->scratch = pkvi_carve(carver, 1, (size_t)target->scratch_size);
    bounce = pkvi_carve(carver, direct ? depth : 0, (size_t)layout->slot_stride);
    (void)pkvi_carve(carver, direct ? PKVI_FILE_ALIGNMENT : 0, 1);
    if (store == NULL) {
        return NULL;
    }
    bounce += (PKVI_FILE_ALIGNMENT - (uintptr_t)bounce % PKVI_FILE_ALIGNMENT) % PKVI_FILE_ALIGNMENT;
    for (size_t i = 0; i < depth; i++) {
        store->requests[i] = (struct pkvi_request){
            .next_free = store->free_requests,
            .parts = parts + i * num_layers,
            .entry_bytes = entries + i * (size_t)layout->entry_size,
            .bounce = direct ? bounce + i * (size_t)layout->slot_stride : NULL};
        store->free_requests = &store->requests[i];
    }
    for (int32_t i = config->max_transfers; i-- > 0;) {
        store->transfers[i].next = store->free_transfers.first;
        store->free_transfers.first = &store->transfers[i];
    }
    store->free_transfers.last = &store->transfers[config->max_transfers - 1];
    pkvi_slots_reset(&store->slots);
    return store;
}

size_t pkv_file_store_size(const pkv_file_store_config *source) {
    struct pkvi_carver carver = {0};
    struct pkvi_file_layout layout;
    struct pkvi_error_text ignored;
    pkv_file_store_config config;

    if (read_config(source, &config, &layout, &ignored) != PKV_OK) {
        return 0;
    }
    (void)carve(&config, &layout, &carver);
    return carver.overflowed ? 0 : carver.offset;
}

/* ---- Headers */

static pkv_status fail_io(struct pkvi_error_text *error, const char *what, int64_t result) {
    char text[96];

    return pkvi_fail(error, PKV_ERROR_IO, "%s: %s", what, pkvi_file_error(result, text));
}

/* Where a header was torn while it was written, some of its bytes are still zero. */
static bool is_magic_or_zero(const unsigned char *bytes) {
    static const unsigned char magic[] = {'P', 'K', 'V', 'S', 'T', 'O', 'R', 'E'};

    for (size_t i = 0; i < sizeof magic; i++) {
        if (bytes[i] != 0 && bytes[i] != magic[i]) {
            return false;
        }
    }
    return true;
}

enum pkvi_file_found pkvi_file_store_read_header(const struct pkvi_file_io *io,
                                                 unsigned char *scratch,
                                                 struct pkvi_file_header *header,
                                                 bool *looks_like,
                                                 int32_t *num_damaged,
                                                 const char **reason,
                                                 int64_t *result) {
    struct pkvi_file_header copies[2];
    enum pkvi_file_found found[2];
    const char *reasons[2] = {"", "the second header is missing"};
    int64_t num_read;

    memset(scratch, 0, 2 * PKVI_FILE_ALIGNMENT);
    *num_damaged = 0;
    *result = pkvi_file_read_all(io, scratch, 2 * PKVI_FILE_ALIGNMENT, 0, &num_read);
    for (int i = 0; i < 2; i++) {
        found[i] =
            pkvi_file_decode_header(scratch + i * PKVI_FILE_ALIGNMENT, &copies[i], &reasons[i]);
    }
    *looks_like = is_magic_or_zero(scratch) && is_magic_or_zero(scratch + PKVI_FILE_ALIGNMENT);
    *looks_like = *looks_like || memcmp(scratch, "PKVSTORE", 8) == 0 ||
                  memcmp(scratch + PKVI_FILE_ALIGNMENT, "PKVSTORE", 8) == 0;
    for (int i = 0; i < 2; i++) {
        if (found[i] == PKVI_FOUND_INTACT) {
            *header = copies[i];
            if (found[1 - i] != PKVI_FOUND_INTACT) {
                *num_damaged = 1;
                *reason = found[1 - i] == PKVI_FOUND_EMPTY ? "one of the two headers is missing"
                                                           : reasons[1 - i];
            }
            return PKVI_FOUND_INTACT;
        }
    }
    /* The second header is written first. Without the first, making the file was cut off. */
    if (found[0] == PKVI_FOUND_EMPTY && *looks_like) {
        return PKVI_FOUND_EMPTY;
    }
    *reason = found[0] == PKVI_FOUND_DAMAGED ? reasons[0] : reasons[1];
    return PKVI_FOUND_DAMAGED;
}

/* Why a file's header is not the one that is wanted; NULL: it is. */
static const char *compare_headers(const struct pkvi_file_header *wanted,
                                   const struct pkvi_file_header *found) {
    if ((wanted->session_tokens > 0) != (found->session_tokens > 0)) {
        return "one is a store and the other a session";
    }
    if (memcmp(wanted->identity, found->identity, PKV_STORE_IDENTITY_SIZE) != 0) {
        return "the file is of another identity";
    }
    if (wanted->key_secret_id != found->key_secret_id) {
        return "the file's keys are of another secret";
    }
    if (wanted->shape.block_size != found->shape.block_size) {
        return "the file has another block size";
    }
    if (wanted->shape.num_layers != found->shape.num_layers ||
        wanted->shape.block_bytes != found->shape.block_bytes) {
        return "the file has another layout";
    }
    if (wanted->shape.num_slots != found->shape.num_slots ||
        wanted->session_tokens != found->session_tokens) {
        return "the file has another size";
    }
    return NULL;
}

static int64_t sync_unless_never(pkv_file_store *store) {
    return store->config.sync == PKV_STORE_SYNC_NEVER ? 0 : store->io.sync(store->io.context);
}

static int64_t write_headers(pkv_file_store *store) {
    int64_t result;

    pkvi_file_encode_header(&store->header, store->scratch);
    result =
        pkvi_file_write_all(&store->io, store->scratch, PKVI_FILE_ALIGNMENT, PKVI_FILE_ALIGNMENT);
    if (result == 0) {
        result = sync_unless_never(store);
    }
    if (result == 0) {
        result = pkvi_file_write_all(&store->io, store->scratch, PKVI_FILE_ALIGNMENT, 0);
    }
    return result == 0 ? sync_unless_never(store) : result;
}

/* Make the file anew: nothing of what was in it remains. */
static pkv_status make_file(pkv_file_store *store, struct pkvi_error_text *error) {
    int64_t result = store->io.set_size(store->io.context, 0);

    if (result == 0) {
        result = sync_unless_never(store);
    }
    if (result == 0) {
        result = store->io.set_size(store->io.context, store->layout.file_size);
    }
    if (result == 0) {
        result = write_headers(store);
    }
    return result < 0 ? fail_io(error, "making the file", result) : PKV_OK;
}

/* ---- Index */

static void note_damage(pkv_file_store *store, pkv_block_id slot, const char *reason) {
    if (store->info.num_damaged++ > 0) {
        return;
    }
    if (slot == 0) {
        (void)snprintf(store->info.first_damage, sizeof store->info.first_damage, "%s", reason);
    } else {
        (void)snprintf(store->info.first_damage, sizeof store->info.first_damage, "slot %d: %s",
                       (int)slot, reason);
    }
}

static void load_entry(pkv_file_store *store,
                       pkv_block_id slot,
                       const unsigned char *bytes,
                       int64_t file_size) {
    struct pkvi_file_entry entry;
    const char *reason = "the file ends before its data";
    enum pkvi_file_found found =
        pkvi_file_decode_entry(&store->layout, &store->header.shape, slot, bytes, &entry, &reason);

    if (found == PKVI_FOUND_EMPTY) {
        return;
    }
    store->slots.slots[slot].may_have_entry = true;
    if (found == PKVI_FOUND_INTACT &&
        pkvi_file_data_offset(&store->layout, slot) + store->layout.slot_bytes <= file_size) {
        pkvi_slots_store(&store->slots, &entry);
        return;
    }
    note_damage(store, slot, reason);
}

static int64_t load_index(pkv_file_store *store, int64_t file_size) {
    int64_t entry_size = store->layout.entry_size;
    int32_t num_slots = store->header.shape.num_slots;
    int32_t per_read = (int32_t)(store->scratch_size / entry_size);

    for (pkv_block_id slot = 1; slot < num_slots; slot += per_read) {
        int32_t count = num_slots - slot < per_read ? num_slots - slot : per_read;
        int64_t num_read, result;

        memset(store->scratch, 0, (size_t)(count * entry_size));
        result = pkvi_file_read_all(&store->io, store->scratch, count * entry_size,
                                    pkvi_file_entry_offset(&store->layout, slot), &num_read);
        if (result < 0) {
            return result;
        }
        for (int32_t i = 0; i < count; i++) {
            load_entry(store, slot + i, store->scratch + i * entry_size, file_size);
        }
        if (num_slots - slot <= per_read) {
            break; /* slot + per_read could overflow */
        }
    }
    pkvi_slots_sort(&store->slots);
    store->last_sequence = store->slots.last_sequence;
    return 0;
}

/* Read every block and give up those that are not what was written. An error of the disk is damage
 * of that block only. */
static void verify_blocks(pkv_file_store *store) {
    const struct pkvi_file_layout *layout = &store->layout;

    for (pkv_block_id slot = 1; slot < store->header.shape.num_slots; slot++) {
        const struct pkvi_slot *state = &store->slots.slots[slot];
        uint64_t checksum[2];
        int64_t num_read = 0, result;

        if (!state->is_stored) {
            continue;
        }
        result = pkvi_file_read_all(&store->io, store->scratch, layout->slot_bytes,
                                    pkvi_file_data_offset(layout, slot), &num_read);
        pkvi_checksum(store->scratch, (size_t)layout->slot_bytes, 0, 1, 0, checksum);
        if (result < 0 || num_read < layout->slot_bytes || checksum[0] != state->checksum[0] ||
            checksum[1] != state->checksum[1]) {
            note_damage(store, slot, "the data is not what was written");
            pkvi_slots_remove(&store->slots, slot);
        }
    }
}

static pkv_status load_file(pkv_file_store *store, int64_t size, struct pkvi_error_text *error) {
    int64_t result = 0;

    if (store->info.num_damaged > 0) {
        result = write_headers(store);
    }
    if (size < store->layout.file_size) {
        note_damage(store, 0, "the file was cut off");
    }
    if (result == 0) {
        result = load_index(store, size);
    }
    if (result == 0 && size < store->layout.file_size) {
        result = store->io.set_size(store->io.context, store->layout.file_size);
    }
    if (result < 0) {
        return fail_io(error, "reading the index", result);
    }
    if (store->config.verify_data) {
        verify_blocks(store);
    }
    return PKV_OK;
}

/* ---- Opening */

static pkv_status open_content(pkv_file_store *store, struct pkvi_error_text *error) {
    int64_t size = store->io.get_size(store->io.context), result;
    struct pkvi_file_header found_header;
    const char *reason = "";
    bool looks_like;
    int32_t num_damaged;
    enum pkvi_file_found found;

    if (size < 0) {
        return fail_io(error, "asking for the size", size);
    }
    found = pkvi_file_store_read_header(&store->io, store->scratch, &found_header, &looks_like,
                                        &num_damaged, &reason, &result);
    if (result < 0) {
        return fail_io(error, "reading the header", result);
    }
    if (found == PKVI_FOUND_EMPTY) {
        store->info.was_created = true;
        return make_file(store, error);
    }
    if (found == PKVI_FOUND_INTACT) {
        const char *difference = compare_headers(&store->header, &found_header);

        if (difference == NULL) {
            if (num_damaged > 0) {
                note_damage(store, 0, reason);
            }
            return load_file(store, size, error);
        }
        reason = difference;
    }
    if (store->config.mismatch == PKV_STORE_REFUSE || !looks_like) {
        return pkvi_fail(error, PKV_ERROR_CORRUPT, "%s", reason);
    }
    store->info.was_emptied = true;
    return make_file(store, error);
}

static pkv_status open_path(pkv_file_store *store, struct pkvi_error_text *error) {
    int result = pkvi_file_open(&store->file, store->config.path, true, store->config.direct);
    char text[96];

    if (result == -EWOULDBLOCK) {
        return pkvi_fail(error, PKV_ERROR_BUSY, "%s is open elsewhere", store->config.path);
    }
    if (result == -EINVAL && store->config.direct) {
        return pkvi_fail(error, PKV_ERROR_UNSUPPORTED, "%s: no regular file, or no O_DIRECT here",
                         store->config.path);
    }
    if (result < 0) {
        return pkvi_fail(error, PKV_ERROR_IO, "%s: %s", store->config.path,
                         pkvi_file_error(result, text));
    }
    store->io = pkvi_file_get_io(&store->file);
    store->info.uses_direct = store->config.direct;
    return PKV_OK;
}

static pkv_status open_ring(pkv_file_store *store, bool has_path, struct pkvi_error_text *error) {
    int result = -ENOSYS;
    char text[96];

    if (has_path && store->config.uring != PKV_STORE_URING_OFF) {
        result = pkvi_uring_open(&store->ring, (unsigned)store->config.queue_depth);
    }
    store->info.uses_uring = result == 0;
    if (result < 0 && store->config.uring == PKV_STORE_URING_ON) {
        return pkvi_fail(error, PKV_ERROR_UNSUPPORTED, "io_uring: %s",
                         pkvi_file_error(result, text));
    }
    return PKV_OK;
}

pkv_status pkvi_file_store_init(const pkv_file_store_config *source,
                                int32_t session_tokens,
                                const struct pkvi_file_io *io,
                                void *memory,
                                size_t size,
                                pkv_file_store **out,
                                struct pkvi_error_text *error) {
    struct pkvi_carver carver = {.base = memory};
    struct pkvi_file_layout layout;
    pkv_file_store_config config;
    pkv_file_store *store;
    pkv_status status = read_config(source, &config, &layout, error);

    if (status != PKV_OK) {
        return status;
    }
    if (out == NULL || !pkvi_memory_fits(memory, size, pkv_file_store_size(source))) {
        return pkvi_fail(error, PKV_ERROR_INVALID_ARGUMENT, "memory, its size or out");
    }
    store = carve(&config, &layout, &carver);
    store->config = config;
    store->layout = layout;
    store->header = (struct pkvi_file_header){.session_tokens = session_tokens,
                                              .shape = config.shape,
                                              .key_secret_id = config.key_secret_id};
    memcpy(store->header.identity, config.identity, PKV_STORE_IDENTITY_SIZE);
    if (io != NULL) {
        store->io = *io;
    } else {
        status = open_path(store, error);
        if (status != PKV_OK) {
            return status;
        }
    }
    status = open_ring(store, io == NULL, error);
    if (status == PKV_OK) {
        status = open_content(store, error);
        if (status != PKV_OK && store->info.uses_uring) {
            pkvi_uring_close(&store->ring);
        }
    }
    if (status != PKV_OK) {
        store->io.close(store->io.context);
        return status;
    }
    *out = store;
    return PKV_OK;
}
