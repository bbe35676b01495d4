/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* A disk in memory for tests of the file store: it stops after so many writes, tears the last one,
 * loses and reorders what was not synchronised, runs full, does less than asked, is interrupted.
 * Also blocks whose content is a function of their key, and the check that nothing else is read.
 *
 * The one idea: a crash is an image; whatever a store finds in it must be what the key says. */
#ifndef PKV_TESTS_STORE_DISK_H
#define PKV_TESTS_STORE_DISK_H

#include "support/rand.h"
#include "transfer/file_store.h"

enum { DISK_CAPACITY = 1 << 17, DISK_MAX_WRITES = 512, DISK_LOG_BYTES = 1 << 20 };

struct store_disk {
    unsigned char bytes[DISK_CAPACITY];   /* as a process sees it */
    unsigned char durable[DISK_CAPACITY]; /* what surely survives a loss of power */
    int64_t size;
    int64_t num_writes;     /* changes of any kind so far */
    int64_t stop_after;     /* this many changes are done, then the disk is dead; -1: never */
    int64_t torn_bytes;     /* of the change after that */
    int64_t space;          /* offsets from here on are "full"; 0: never */
    int32_t most_at_once;   /* bytes of one call; 0: all */
    int32_t interrupt_each; /* every n-th call answers EINTR; 0: none */
    int64_t num_calls;
    bool fails_sync;
    bool is_dead;
    struct {
        int64_t offset, size, log_offset;
    } unsynced[DISK_MAX_WRITES];
    int32_t num_unsynced;
    int64_t log_size;
    unsigned char log[DISK_LOG_BYTES];
};

void store_disk_reset(struct store_disk *disk);
struct pkvi_file_io store_disk_io(struct store_disk *disk);
/* Power is lost: what was synchronised stays, of the rest a part drawn from `source`, in any order,
 * torn. The disk lives again. */
void store_disk_lose_power(struct store_disk *disk, test_source *source);
/* The process is killed: everything written stays. The disk lives again. */
void store_disk_kill(struct store_disk *disk);

/* ---- Blocks of known content */

enum { BLOCK_LAYERS = 2, BLOCK_BYTES = 40, BLOCK_TOKENS = 4, POOL_BLOCKS = 16, NUM_SLOTS = 5 };

pkv_block_key key_of(int32_t number);
void fill_block(pkv_tensor *pool, pkv_block_id block, int32_t number);
bool block_is(const pkv_tensor *pool, pkv_block_id block, int32_t number);
/* A pool with gaps between blocks, in `memory` of POOL_SIZE bytes. */
enum { POOL_SIZE = BLOCK_LAYERS * POOL_BLOCKS * 64 };
pkv_tensor pool_in(unsigned char memory[POOL_SIZE]);

pkv_file_store_config small_config(void);

/* A store over a disk. */
struct opened {
    pkv_file_store *file;
    pkv_store store;
    unsigned char *memory;
    size_t size;
    struct pkvi_error_text error;
};
pkv_status open_on(struct opened *opened,
                   const pkv_file_store_config *config,
                   const struct pkvi_file_io *io);
void close_opened(struct opened *opened);

/* Write the blocks first_number .. to slots, or read them, and wait. The first status that is not
 * PKV_OK. */
pkv_status write_numbers(struct opened *opened,
                         const int32_t *numbers,
                         const pkv_block_id *slots,
                         int32_t count,
                         pkv_status *statuses);
pkv_status read_number(struct opened *opened, int32_t number, pkv_block_id slot, bool *is_right);

/* Read everything that is listed. Aborts the test where anything is read with PKV_OK that is not
 * what its key says. Sets is_found[number]. */
void check_content(struct opened *opened, bool *is_found, int32_t num_numbers);

#endif
