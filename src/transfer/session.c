/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* One request's cache as a file: a file store with as many slots as the request has blocks, block i
 * of the table in slot i + 1. It is written beside its place and moved there when it is durable.
 *
 * The one idea: the file knows columns of the table, never block ids, so any free blocks serve to
 * restore it. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "transfer/file_store.h"

#define MAX_PATH_LENGTH 4000
#define BLOCKS_AT_ONCE 256
#define SESSION_QUEUE_DEPTH 8

/* What one call works with; everything but the store is one allocation. */
struct session {
    pkv_session_args args;
    struct pkvi_error_text error;
    char path[MAX_PATH_LENGTH + 16];
    pkv_file_store_config config;
    pkv_file_store *file;
    pkv_store store;
    void *memory;
    size_t memory_size;
    pkv_block_copy *copies;  /* [BLOCKS_AT_ONCE] */
    pkv_block_key *keys;     /* [BLOCKS_AT_ONCE] */
    int32_t *groups;         /* [BLOCKS_AT_ONCE] */
    pkv_status *statuses;    /* [BLOCKS_AT_ONCE] */
    int32_t *tail_token_ids; /* [block_size] */
};

static pkv_status finish(struct session *session, pkv_status status) {
    if (session->file != NULL) {
        pkv_store_close(&session->store);
    }
    if (session->memory != NULL) {
        pkvi_release(&session->args.allocator, session->memory, session->memory_size);
    }
    if (status != PKV_OK && session->args.error_text != NULL && session->args.error_size > 0) {
        (void)snprintf(session->args.error_text, session->args.error_size, "%s",
                       session->error.text);
    }
    return status;
}

static pkv_status read_args(struct session *session, const pkv_session_args *args) {
    pkv_status status;

    memset(session, 0, sizeof *session);
    status = pkvi_read_struct(&session->args, sizeof session->args, sizeof session->args, args);
    if (status != PKV_OK) {
        memset(&session->args, 0, sizeof session->args);
        return status;
    }
    if (session->args.path == NULL || strlen(session->args.path) > MAX_PATH_LENGTH ||
        !pkvi_allocator_is_valid(&session->args.allocator)) {
        return pkvi_fail(&session->error, PKV_ERROR_INVALID_ARGUMENT, "path or allocator");
    }
    return PKV_OK;
}

static int32_t blocks_of(int32_t num_tokens, int32_t block_size) {
    return (int32_t)(((int64_t)num_tokens + block_size - 1) / block_size);
}

static pkv_status check_blocks(struct session *session, int32_t num_blocks) {
    const pkv_session_args *args = &session->args;

    if (args->block_ids == NULL || args->token_ids == NULL || args->blocks.data == NULL ||
        args->blocks.dtype != PKV_DTYPE_UINT8 || args->blocks.rank != 3 ||
        args->blocks.shape[0] < 1 || args->blocks.shape[0] > PKV_FILE_STORE_MAX_LAYERS ||
        args->blocks.shape[2] < 1) {
        return pkvi_fail(&session->error, PKV_ERROR_INVALID_ARGUMENT,
                         "block_ids, token_ids or the view of the blocks");
    }
    for (int32_t i = 0; i < num_blocks; i++) {
        if (args->block_ids[i] < 1 || args->block_ids[i] >= args->blocks.shape[1]) {
            return pkvi_fail(&session->error, PKV_ERROR_INVALID_ARGUMENT,
                             "block_ids[%d] is %d: out of range, or the null block", (int)i,
                             (int)args->block_ids[i]);
        }
    }
    return PKV_OK;
}

/* Open the store at session->path. */
static pkv_status open_store(struct session *session, int32_t num_tokens, int32_t block_size) {
    const pkv_session_args *args = &session->args;
    struct pkvi_carver carver = {0};
    size_t store_size;
    pkv_status status;

    session->config =
        (pkv_file_store_config){.struct_size = sizeof session->config,
                                .path = session->path,
                                .shape = {.num_layers = (int32_t)args->blocks.shape[0],
                                          .block_bytes = args->blocks.shape[2],
                                          .block_size = block_size,
                                          .num_slots = blocks_of(num_tokens, block_size) + 1},
                                .key_secret_id = args->key_secret_id,
                                .queue_depth = SESSION_QUEUE_DEPTH,
                                .max_transfers = 1};
    memcpy(session->config.identity, args->identity, PKV_STORE_IDENTITY_SIZE);
    store_size = pkv_file_store_size(&session->config);
    if (store_size == 0) {
        return pkvi_fail(&session->error, PKV_ERROR_INVALID_ARGUMENT, "layout of the blocks");
    }
    for (int pass = 0; pass < 2; pass++) {
        carver = (struct pkvi_carver){.base = session->memory};
        (void)pkvi_carve(&carver, store_size, 1);
        session->copies = pkvi_carve(&carver, BLOCKS_AT_ONCE, sizeof *session->copies);
        session->keys = pkvi_carve(&carver, BLOCKS_AT_ONCE, sizeof *session->keys);
        session->groups = pkvi_carve(&carver, BLOCKS_AT_ONCE, sizeof *session->groups);
        session->statuses = pkvi_carve(&carver, BLOCKS_AT_ONCE, sizeof *session->statuses);
        session->tail_token_ids = pkvi_carve(&carver, (size_t)block_size, sizeof(int32_t));
        session->memory_size = carver.offset;
        if (pass == 0) {
            session->memory = pkvi_allocate(&args->allocator, carver.offset);
        }
        if (session->memory == NULL) {
            return pkvi_fail(&session->error, PKV_ERROR_OUT_OF_MEMORY, "%zu bytes refused",
                             carver.offset);
        }
    }
    status = pkvi_file_store_init(&session->config, num_tokens, NULL, session->memory, store_size,
                                  &session->file, &session->error);
    if (status == PKV_OK) {
        session->store.struct_size = sizeof session->store;
        status = pkv_file_store_get_store(session->file, &session->store);
    }
    return status;
}

/* Move blocks [first, first + count) of the table and wait. */
static pkv_status move_blocks(struct session *session,
                              bool is_write,
                              int32_t first,
                              int32_t count,
                              const int32_t *token_ids) {
    const pkv_session_args *args = &session->args;
    pkv_store_transfer transfer = {.struct_size = sizeof transfer,
                                   .is_write = is_write,
                                   .num_blocks = count,
                                   .blocks = args->blocks,
                                   .copies = session->copies,
                                   .keys = session->keys,
                                   .groups = session->groups,
                                   .token_ids = token_ids,
                                   .statuses = session->statuses};
    pkv_store_completion completion;
    int32_t num_completions = 0;
    uint64_t ticket;
    pkv_status status;

    for (int32_t i = 0; i < count; i++) {
        pkv_block_id block = args->block_ids[first + i], slot = first + i + 1;

        session->copies[i] =
            is_write ? (pkv_block_copy){block, slot} : (pkv_block_copy){slot, block};
        session->groups[i] = args->group;
        if (!is_write) {
            session->keys[i] = session->file->slots.slots[slot].key;
        } else if (args->keys != NULL && first + i < args->num_tokens / args->block_size) {
            session->keys[i] = args->keys[first + i];
        } else {
            session->keys[i] = (pkv_block_key){0, 0, 0};
        }
    }
    status = pkv_store_submit(&session->store, &transfer, &ticket);
    while (status == PKV_OK && num_completions == 0) {
        status = pkv_store_poll(&session->store, true, &completion, 1, &num_completions);
    }
    if (status == PKV_OK) {
        status = completion.status;
    }
    if (status == PKV_NOT_FOUND) {
        return pkvi_fail(&session->error, PKV_ERROR_CORRUPT,
                         "a block is of another group, or not there");
    }
    return status == PKV_OK
               ? PKV_OK
               : pkvi_fail(&session->error, status, "%s", pkv_store_last_error(&session->store));
}

/* ---- Save */

static pkv_status write_session(struct session *session) {
    const pkv_session_args *args = &session->args;
    int32_t num_full = args->num_tokens / args->block_size;
    int32_t num_tail = args->num_tokens - num_full * args->block_size;
    pkv_status status = PKV_OK;

    for (int32_t first = 0; status == PKV_OK && first < num_full; first += BLOCKS_AT_ONCE) {
        int32_t count = num_full - first < BLOCKS_AT_ONCE ? num_full - first : BLOCKS_AT_ONCE;

        status = move_blocks(session, true, first, count,
                             args->token_ids + (int64_t)first * args->block_size);
    }
    if (status == PKV_OK && num_tail > 0) {
        memset(session->tail_token_ids, 0, (size_t)args->block_size * sizeof(int32_t));
        memcpy(session->tail_token_ids, args->token_ids + (int64_t)num_full * args->block_size,
               (size_t)num_tail * sizeof(int32_t));
        status = move_blocks(session, true, num_full, 1, session->tail_token_ids);
    }
    if (status == PKV_OK && pkv_store_flush(&session->store) != PKV_OK) {
        status =
            pkvi_fail(&session->error, PKV_ERROR_IO, "%s", pkv_store_last_error(&session->store));
    }
    return status;
}

pkv_status pkv_session_save(const pkv_session_args *source) {
    struct session session;
    const pkv_session_args *args = &session.args;
    pkv_status status = read_args(&session, source);
    struct pkvi_file left;
    int64_t result;
    char text[96];

    if (status != PKV_OK) {
        return finish(&session, status);
    }
    if (args->block_size < 1 || args->num_tokens < 1 ||
        args->num_blocks != blocks_of(args->num_tokens, args->block_size)) {
        return finish(&session, pkvi_fail(&session.error, PKV_ERROR_INVALID_ARGUMENT,
                                          "num_tokens, num_blocks or block_size"));
    }
    status = check_blocks(&session, args->num_blocks);
    if (status != PKV_OK) {
        return finish(&session, status);
    }
    (void)snprintf(session.path, sizeof session.path, "%s.saving", args->path);
    /* What a save that was cut off has left is of no use; while somebody saves, it is locked. */
    if (pkvi_file_open(&left, session.path, false, false) == 0) {
        struct pkvi_file_io io = pkvi_file_get_io(&left);

        pkvi_file_remove(session.path);
        io.close(io.context);
    }
    status = open_store(&session, args->num_tokens, args->block_size);
    if (status != PKV_OK) {
        return finish(&session, status);
    }
    status = write_session(&session);
    if (status == PKV_OK) {
        result = pkvi_file_replace(session.path, args->path);
        if (result < 0) {
            status = pkvi_fail(&session.error, PKV_ERROR_IO, "%s: %s", args->path,
                               pkvi_file_error(result, text));
        }
    }
    if (status != PKV_OK) {
        pkvi_file_remove(session.path);
    }
    return finish(&session, status);
}

/* ---- Restore */

/* Read what the file says of itself and compare it with what the caller says. */
static pkv_status read_header(struct session *session, struct pkvi_file_header *header) {
    const pkv_session_args *args = &session->args;
    unsigned char scratch[2 * PKVI_FILE_ALIGNMENT];
    struct pkvi_file file;
    struct pkvi_file_io io;
    const char *reason = "there is no header";
    bool looks_like;
    int32_t num_damaged;
    enum pkvi_file_found found;
    int64_t result = pkvi_file_open(&file, args->path, false, false);
    char text[96];

    if (result < 0) {
        pkv_status status = result == -ENOENT        ? PKV_NOT_FOUND
                            : result == -EWOULDBLOCK ? PKV_ERROR_BUSY
                                                     : PKV_ERROR_IO;

        return pkvi_fail(&session->error, status, "%s: %s", args->path,
                         pkvi_file_error(result, text));
    }
    io = pkvi_file_get_io(&file);
    found = pkvi_file_store_read_header(&io, scratch, header, &looks_like, &num_damaged, &reason,
                                        &result);
    io.close(io.context);
    if (result < 0) {
        return pkvi_fail(&session->error, PKV_ERROR_IO, "%s: %s", args->path,
                         pkvi_file_error(result, text));
    }
    if (found == PKVI_FOUND_INTACT) {
        reason = header->session_tokens < 1 ||
                         blocks_of(header->session_tokens, header->shape.block_size) + 1 !=
                             header->shape.num_slots
                     ? "the file is no session"
                 : memcmp(header->identity, args->identity, PKV_STORE_IDENTITY_SIZE) != 0
                     ? "the session is of another identity"
                 : header->key_secret_id != args->key_secret_id
                     ? "the session's keys are of another secret"
                 : args->block_size != 0 && args->block_size != header->shape.block_size
                     ? "the session has another block size"
                     : NULL;
    }
    return reason == NULL
               ? PKV_OK
               : pkvi_fail(&session->error, PKV_ERROR_CORRUPT, "%s: %s", args->path, reason);
}

pkv_status pkv_session_get_info(const pkv_session_args *source, pkv_session_info *out) {
    struct session session;
    struct pkvi_file_header header;
    pkv_status status = read_args(&session, source);

    if (status == PKV_OK) {
        status = read_header(&session, &header);
    }
    if (status == PKV_OK) {
        pkv_session_info info = {.num_tokens = header.session_tokens,
                                 .num_blocks = header.shape.num_slots - 1,
                                 .num_tail_tokens = header.session_tokens % header.shape.block_size,
                                 .num_layers = header.shape.num_layers,
                                 .block_size = header.shape.block_size,
                                 .block_bytes = header.shape.block_bytes};

        status = pkvi_write_struct(out, &info, sizeof info, sizeof info);
    }
    return finish(&session, status);
}

static pkv_status read_session(struct session *session, int32_t num_tokens, int32_t block_size) {
    const pkv_session_args *args = &session->args;
    int32_t num_blocks = blocks_of(num_tokens, block_size), count;
    pkv_status status = PKV_OK;

    if (session->file->slots.num_stored != num_blocks) {
        return pkvi_fail(&session->error, PKV_ERROR_CORRUPT, "%d of %d blocks are not there: %s",
                         (int)(num_blocks - session->file->slots.num_stored), (int)num_blocks,
                         session->file->info.first_damage);
    }
    for (int32_t first = 0; status == PKV_OK && first < num_blocks; first += BLOCKS_AT_ONCE) {
        count = num_blocks - first < BLOCKS_AT_ONCE ? num_blocks - first : BLOCKS_AT_ONCE;
        status = move_blocks(session, false, first, count, NULL);
    }
    for (int32_t i = 0; status == PKV_OK && i < num_blocks; i++) {
        int32_t start = i * block_size;
        int32_t here = num_tokens - start < block_size ? num_tokens - start : block_size;

        status = pkv_file_store_read_tokens(session->file, i + 1, session->tail_token_ids,
                                            block_size, &count);
        if (status != PKV_OK || count != block_size) {
            return pkvi_fail(&session->error, status == PKV_ERROR_IO ? status : PKV_ERROR_CORRUPT,
                             "the tokens of block %d are not there", (int)i);
        }
        memcpy(args->token_ids + start, session->tail_token_ids, (size_t)here * sizeof(int32_t));
        if (args->keys != NULL && here == block_size) {
            args->keys[i] = session->file->slots.slots[i + 1].key;
        }
    }
    return status;
}

pkv_status pkv_session_restore(const pkv_session_args *source) {
    struct session session;
    struct pkvi_file_header header;
    const pkv_session_args *args = &session.args;
    pkv_status status = read_args(&session, source);

    if (status == PKV_OK) {
        status = read_header(&session, &header);
    }
    if (status != PKV_OK) {
        return finish(&session, status);
    }
    if (args->num_tokens < header.session_tokens || args->num_blocks < header.shape.num_slots - 1) {
        return finish(&session,
                      pkvi_fail(&session.error, PKV_ERROR_LIMIT,
                                "the session has %d tokens in %d blocks",
                                (int)header.session_tokens, (int)header.shape.num_slots - 1));
    }
    status = check_blocks(&session, header.shape.num_slots - 1);
    if (status == PKV_OK && (args->blocks.shape[0] != header.shape.num_layers ||
                             args->blocks.shape[2] != header.shape.block_bytes)) {
        status = pkvi_fail(&session.error, PKV_ERROR_CORRUPT, "the session has another layout");
    }
    if (status == PKV_OK) {
        (void)snprintf(session.path, sizeof session.path, "%s", args->path);
        status = open_store(&session, header.session_tokens, header.shape.block_size);
    }
    if (status == PKV_OK) {
        status = read_session(&session, header.session_tokens, header.shape.block_size);
    }
    return finish(&session, status);
}
