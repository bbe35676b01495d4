/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The disk in memory and the blocks of known content; see store_disk.h. */
#include "store_disk.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void store_disk_reset(struct store_disk *disk) {
    memset(disk->bytes, 0, sizeof disk->bytes);
    memset(disk->durable, 0, sizeof disk->durable);
    disk->size = disk->num_writes = disk->num_calls = disk->torn_bytes = disk->space = 0;
    disk->log_size = 0;
    disk->stop_after = -1;
    disk->most_at_once = disk->interrupt_each = disk->num_unsynced = 0;
    disk->is_dead = disk->fails_sync = false;
}

static bool is_interrupted(struct store_disk *disk) {
    return disk->interrupt_each > 0 && disk->num_calls++ % disk->interrupt_each == 0;
}

static int64_t disk_read(
    void *context, bool is_data, const struct iovec *parts, int num_parts, int64_t offset) {
    struct store_disk *disk = context;
    int64_t moved = 0, most = disk->most_at_once > 0 ? disk->most_at_once : INT64_MAX;

    (void)is_data;
    if (disk->is_dead) {
        return -EIO;
    }
    if (is_interrupted(disk)) {
        return -EINTR;
    }
    for (int i = 0; i < num_parts && offset + moved < disk->size && moved < most; i++) {
        int64_t count = (int64_t)parts[i].iov_len;

        count = count < disk->size - offset - moved ? count : disk->size - offset - moved;
        count = count < most - moved ? count : most - moved;
        memcpy(parts[i].iov_base, disk->bytes + offset + moved, (size_t)count);
        moved += count;
        if (count < (int64_t)parts[i].iov_len) {
            break;
        }
    }
    return moved;
}

/* Note a change that is not synchronised, and make it for the process. */
static void change(struct store_disk *disk, const unsigned char *bytes, int64_t size, int64_t at) {
    if (size == 0) {
        return;
    }
    assert_true(at + size <= DISK_CAPACITY && disk->num_unsynced < DISK_MAX_WRITES &&
                disk->log_size + size <= DISK_LOG_BYTES);
    memcpy(disk->bytes + at, bytes, (size_t)size);
    memcpy(disk->log + disk->log_size, bytes, (size_t)size);
    disk->unsynced[disk->num_unsynced].offset = at;
    disk->unsynced[disk->num_unsynced].size = size;
    disk->unsynced[disk->num_unsynced++].log_offset = disk->log_size;
    disk->log_size += size;
    disk->size = at + size > disk->size ? at + size : disk->size;
}

static int64_t disk_write(
    void *context, bool is_data, const struct iovec *parts, int num_parts, int64_t offset) {
    struct store_disk *disk = context;
    int64_t moved = 0, most = disk->most_at_once > 0 ? disk->most_at_once : INT64_MAX;
    bool is_last;

    (void)is_data;
    if (disk->is_dead) {
        return -EIO;
    }
    if (is_interrupted(disk)) {
        return -EINTR;
    }
    if (disk->space > 0 && offset >= disk->space) {
        return -ENOSPC;
    }
    if (disk->space > 0 && disk->space - offset < most) {
        most = disk->space - offset;
    }
    is_last = disk->stop_after >= 0 && disk->num_writes >= disk->stop_after;
    if (is_last) {
        most = disk->torn_bytes;
    }
    for (int i = 0; i < num_parts && moved < most; i++) {
        int64_t count = (int64_t)parts[i].iov_len;

        count = count < most - moved ? count : most - moved;
        change(disk, parts[i].iov_base, count, offset + moved);
        moved += count;
    }
    disk->num_writes++;
    disk->is_dead = is_last;
    return is_last ? -EIO : moved;
}

static int64_t disk_sync(void *context) {
    struct store_disk *disk = context;

    if (disk->is_dead || disk->fails_sync) {
        return -EIO;
    }
    memcpy(disk->durable, disk->bytes, sizeof disk->durable);
    disk->num_unsynced = 0;
    disk->log_size = 0;
    return 0;
}

static int64_t disk_get_size(void *context) {
    const struct store_disk *disk = context;

    return disk->is_dead ? -EIO : disk->size;
}

static int64_t disk_set_size(void *context, int64_t size) {
    struct store_disk *disk = context;

    if (disk->is_dead || size > DISK_CAPACITY) {
        return -EIO;
    }
    if (disk->stop_after >= 0 && disk->num_writes >= disk->stop_after) {
        disk->is_dead = true;
        return -EIO;
    }
    disk->num_writes++;
    if (size < disk->size) {
        memset(disk->bytes + size, 0, (size_t)(disk->size - size));
        memcpy(disk->durable, disk->bytes, sizeof disk->durable);
        disk->num_unsynced = 0;
        disk->log_size = 0;
    }
    disk->size = size;
    return 0;
}

static void disk_close(void *context) {
    (void)context;
}

struct pkvi_file_io store_disk_io(struct store_disk *disk) {
    return (struct pkvi_file_io){.context = disk,
                                 .read = disk_read,
                                 .write = disk_write,
                                 .sync = disk_sync,
                                 .get_size = disk_get_size,
                                 .set_size = disk_set_size,
                                 .close = disk_close};
}

void store_disk_kill(struct store_disk *disk) {
    disk->is_dead = false;
    disk->stop_after = -1;
}

void store_disk_lose_power(struct store_disk *disk, test_source *source) {
    int32_t count = disk->num_unsynced;

    memcpy(disk->bytes, disk->durable, sizeof disk->bytes);
    for (int32_t i = 0; i < count; i++) {
        int32_t chosen = test_draw(source, count);
        int64_t size = disk->unsynced[chosen].size, first = 0;

        if (test_draw(source, 3) == 0) {
            continue;
        }
        if (test_draw(source, 2) == 0) {
            first = test_draw(source, (int32_t)size);
            size = first + test_draw(source, (int32_t)(size - first));
        }
        memcpy(disk->bytes + disk->unsynced[chosen].offset + first,
               disk->log + disk->unsynced[chosen].log_offset + first, (size_t)(size - first));
    }
    memcpy(disk->durable, disk->bytes, sizeof disk->durable);
    disk->num_unsynced = 0;
    disk->log_size = 0;
    store_disk_kill(disk);
}

/* ---- Blocks */

pkv_block_key key_of(int32_t number) {
    test_rand generator = {(uint64_t)number};
    pkv_block_key key;

    key.hash_low = test_rand_next(&generator);
    key.hash_high = test_rand_next(&generator);
    key.lineage = test_rand_next(&generator);
    return key;
}

static unsigned char byte_of(int32_t number, int layer, int64_t i) {
    test_rand generator = {(uint64_t)number * 1000003 + (uint64_t)layer * 1009 + (uint64_t)i};

    return (unsigned char)test_rand_next(&generator);
}

static unsigned char *block_at(const pkv_tensor *pool, pkv_block_id block, int layer) {
    return (unsigned char *)pool->data + layer * pool->stride[0] + block * pool->stride[1];
}

void fill_block(pkv_tensor *pool, pkv_block_id block, int32_t number) {
    for (int layer = 0; layer < pool->shape[0]; layer++) {
        for (int64_t i = 0; i < pool->shape[2]; i++) {
            block_at(pool, block, layer)[i] = byte_of(number, layer, i);
        }
    }
}

bool block_is(const pkv_tensor *pool, pkv_block_id block, int32_t number) {
    for (int layer = 0; layer < pool->shape[0]; layer++) {
        for (int64_t i = 0; i < pool->shape[2]; i++) {
            if (block_at(pool, block, layer)[i] != byte_of(number, layer, i)) {
                return false;
            }
        }
    }
    return true;
}

pkv_tensor pool_in(unsigned char memory[POOL_SIZE]) {
    memset(memory, 0xa5, POOL_SIZE);
    return (pkv_tensor){.data = memory,
                        .dtype = PKV_DTYPE_UINT8,
                        .rank = 3,
                        .shape = {BLOCK_LAYERS, POOL_BLOCKS, BLOCK_BYTES},
                        .stride = {POOL_BLOCKS * 64, 64, 1}};
}

pkv_file_store_config small_config(void) {
    return (pkv_file_store_config){.struct_size = sizeof(pkv_file_store_config),
                                   .path = "disk",
                                   .shape = {BLOCK_LAYERS, BLOCK_BYTES, BLOCK_TOKENS, NUM_SLOTS},
                                   .identity = {1, 2, 3},
                                   .key_secret_id = 77,
                                   .queue_depth = 3,
                                   .max_transfers = 4};
}

pkv_status open_on(struct opened *opened,
                   const pkv_file_store_config *config,
                   const struct pkvi_file_io *io) {
    pkv_status status;

    memset(opened, 0, sizeof *opened);
    opened->size = pkv_file_store_size(config);
    assert_true(opened->size > 0);
    opened->memory = aligned_alloc(64, opened->size);
    assert_non_null(opened->memory);
    memset(opened->memory, 0x5a, opened->size);
    status = pkvi_file_store_init(config, 0, io, opened->memory, opened->size, &opened->file,
                                  &opened->error);
    if (status != PKV_OK) {
        free(opened->memory);
        return status;
    }
    opened->store.struct_size = sizeof opened->store;
    assert_int_equal(pkv_file_store_get_store(opened->file, &opened->store), PKV_OK);
    return PKV_OK;
}

void close_opened(struct opened *opened) {
    pkv_store_close(&opened->store);
    free(opened->memory);
}

static pkv_status transfer_and_wait(struct opened *opened, const pkv_store_transfer *transfer) {
    pkv_store_completion completion;
    int32_t num_completions = 0;
    uint64_t ticket = 0;
    pkv_status status = pkv_store_submit(&opened->store, transfer, &ticket);

    if (status != PKV_OK) {
        return status;
    }
    assert_int_equal(pkv_store_poll(&opened->store, true, &completion, 1, &num_completions),
                     PKV_OK);
    assert_int_equal(num_completions, 1);
    assert_true(completion.ticket == ticket);
    return completion.status;
}

pkv_status write_numbers(struct opened *opened,
                         const int32_t *numbers,
                         const pkv_block_id *slots,
                         int32_t count,
                         pkv_status *statuses) {
    unsigned char memory[POOL_SIZE];
    pkv_tensor pool = pool_in(memory);
    pkv_block_copy copies[POOL_BLOCKS];
    pkv_block_key keys[POOL_BLOCKS];
    int32_t groups[POOL_BLOCKS], tokens[POOL_BLOCKS * BLOCK_TOKENS];
    pkv_store_transfer transfer = {.struct_size = sizeof transfer,
                                   .is_write = true,
                                   .num_blocks = count,
                                   .blocks = pool,
                                   .copies = copies,
                                   .keys = keys,
                                   .groups = groups,
                                   .token_ids = tokens,
                                   .statuses = statuses};

    for (int32_t i = 0; i < count; i++) {
        fill_block(&pool, i + 1, numbers[i]);
        copies[i] = (pkv_block_copy){i + 1, slots[i]};
        keys[i] = key_of(numbers[i]);
        groups[i] = numbers[i] % 2;
        for (int32_t k = 0; k < BLOCK_TOKENS; k++) {
            tokens[i * BLOCK_TOKENS + k] = numbers[i] * 10 + k;
        }
    }
    return transfer_and_wait(opened, &transfer);
}

pkv_status read_number(struct opened *opened, int32_t number, pkv_block_id slot, bool *is_right) {
    unsigned char memory[POOL_SIZE];
    pkv_tensor pool = pool_in(memory);
    const pkv_block_copy copy = {slot, 7};
    const pkv_block_key key = key_of(number);
    const int32_t group = number % 2;
    pkv_status status, result;
    pkv_store_transfer transfer = {.struct_size = sizeof transfer,
                                   .num_blocks = 1,
                                   .blocks = pool,
                                   .copies = &copy,
                                   .keys = &key,
                                   .groups = &group,
                                   .statuses = &status};

    result = transfer_and_wait(opened, &transfer);
    *is_right = block_is(&pool, 7, number);
    assert_int_equal(result, status);
    return result;
}

void check_content(struct opened *opened, bool *is_found, int32_t num_numbers) {
    pkv_block_key keys[NUM_SLOTS];
    int32_t groups[NUM_SLOTS], num_blocks, num_tokens, tokens[BLOCK_TOKENS];
    pkv_block_id slots[NUM_SLOTS];

    memset(is_found, 0, (size_t)num_numbers * sizeof *is_found);
    assert_int_equal(
        pkv_file_store_get_stored(opened->file, keys, groups, slots, NUM_SLOTS, &num_blocks),
        PKV_OK);
    for (int32_t i = 0; i < num_blocks; i++) {
        int32_t number = 0;
        bool is_right = false;
        pkv_status status;

        while (number < num_numbers && key_of(number).hash_low != keys[i].hash_low) {
            number++;
        }
        assert_true(number < num_numbers);
        assert_int_equal(groups[i], number % 2);
        if (pkv_file_store_read_tokens(opened->file, slots[i], tokens, BLOCK_TOKENS, &num_tokens) ==
            PKV_OK) {
            assert_int_equal(num_tokens, BLOCK_TOKENS);
            assert_int_equal(tokens[1], number * 10 + 1);
        }
        status = read_number(opened, number, slots[i], &is_right);
        assert_true(status == PKV_ERROR_CORRUPT || (status == PKV_OK && is_right));
        is_found[number] = is_found[number] || status == PKV_OK;
    }
}
