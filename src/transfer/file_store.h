/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The file store's parts: the object, its transfers and the requests under way. Opening is in
 * file_store.c, moving in file_transfer.c.
 *
 * The one idea: a write is three stages, each begun when the one before has ended for every block
 * of the transfer: the old entries become zero, the data is written, the new entries are
 * written. */
#ifndef PKVI_TRANSFER_FILE_STORE_H
#define PKVI_TRANSFER_FILE_STORE_H

#include "transfer/file_io.h"
#include "transfer/file_slots.h"
#include "transfer/file_uring.h"

/* Stages of a transfer, in their order; a read has STAGE_DATA alone. A sync stage is passed over
 * unless every batch is to be durable. */
enum pkvi_stage {
    STAGE_INVALIDATE,
    STAGE_SYNC_INVALID,
    STAGE_DATA,
    STAGE_SYNC_DATA,
    STAGE_ENTRIES,
    STAGE_SYNC_ENTRIES,
    STAGE_DONE
};

struct pkvi_transfer {
    pkv_store_transfer args;
    struct pkvi_transfer *next; /* in the list that it is in */
    uint64_t ticket;
    enum pkvi_stage stage;
    int32_t next_item; /* of the stage, not yet begun */
    int32_t num_outstanding;
    bool is_cancelled;
};

struct pkvi_transfer_list {
    struct pkvi_transfer *first, *last;
};

/* One request to the kernel: one block of one stage, or a sync (item -1). */
struct pkvi_request {
    struct pkvi_request *next_free;
    struct pkvi_transfer *transfer;
    struct iovec *parts; /* [max(num_layers, 1)] */
    unsigned char *entry_bytes;
    unsigned char *bounce; /* slot_stride bytes, only with `direct` */
    int32_t item;
    int first_part, num_parts;
    int64_t offset, remaining;
    bool is_write, is_data, is_bounced;
};

struct pkv_file_store {
    pkv_file_store_config config;
    struct pkvi_file_header header;
    struct pkvi_file_layout layout;
    struct pkvi_file file;
    struct pkvi_file_io io;
    struct pkvi_uring ring;
    struct pkvi_slots slots;
    pkv_file_store_info info;
    struct pkvi_error_text error;
    void *owned_memory; /* to be released at close; NULL: the caller's */
    size_t owned_size;

    unsigned char *scratch;
    int64_t scratch_size;
    struct pkvi_transfer *transfers; /* [max_transfers] */
    struct pkvi_request *requests;   /* [queue_depth] */
    struct pkvi_transfer_list free_transfers, active, done;
    struct pkvi_request *free_requests;
    int32_t num_in_kernel;
    uint64_t last_ticket, last_sequence;
};

/* pkv_file_store_init, also for a session (session_tokens > 0), and with `io` over any disk (NULL:
 * config->path). */
pkv_status pkvi_file_store_init(const pkv_file_store_config *config,
                                int32_t session_tokens,
                                const struct pkvi_file_io *io,
                                void *memory,
                                size_t size,
                                pkv_file_store **out,
                                struct pkvi_error_text *error);

/* Read both headers of a file. INTACT where either is; `num_damaged` counts the others.
 * `looks_like`: what is there may have been written by this library. */
enum pkvi_file_found pkvi_file_store_read_header(const struct pkvi_file_io *io,
                                                 unsigned char *scratch,
                                                 struct pkvi_file_header *header,
                                                 bool *looks_like,
                                                 int32_t *num_damaged,
                                                 const char **reason,
                                                 int64_t *result);

/* Make an index entry zero. Waits. */
pkv_status pkvi_file_store_clear_entry(pkv_file_store *store, pkv_block_id slot);

/* The functions of the table; file_transfer.c. */
pkv_status pkvi_file_store_submit(void *context,
                                  const pkv_store_transfer *transfer,
                                  uint64_t *ticket);
pkv_status pkvi_file_store_poll(void *context,
                                bool wait,
                                pkv_store_completion *completions,
                                int32_t capacity,
                                int32_t *num_completions);
pkv_status pkvi_file_store_cancel(void *context, uint64_t ticket);
pkv_status pkvi_file_store_flush(void *context);
void pkvi_file_store_close(void *context);

#endif
