/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Property: whatever a store's file holds, opening it ends, and no block is returned whose bytes
 * are not what was stored under its key; the store can be written to afterwards.
 *
 * The input is a list of edits to a good file of four blocks (a byte put somewhere, or the file cut
 * off), or, after a first byte of 255, the file itself. A block is checked by its checksum being
 * that of its content, which is a function of its key. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/rand.h"
#include "transfer/file_store.h"

enum { CAPACITY = 1 << 15, BYTES = 24, SLOTS = 5 };

static unsigned char bytes[CAPACITY];
static int64_t size;

static void require(bool condition, const char *what) {
    if (!condition) {
        fprintf(stderr, "fuzz_store: %s\n", what);
        abort();
    }
}

static int64_t read_parts(
    void *context, bool is_data, const struct iovec *parts, int num_parts, int64_t offset) {
    int64_t count = offset < size ? size - offset : 0;

    (void)context, (void)is_data, (void)num_parts;
    count = count < (int64_t)parts[0].iov_len ? count : (int64_t)parts[0].iov_len;
    memcpy(parts[0].iov_base, bytes + offset, (size_t)count);
    return count;
}

static int64_t write_parts(
    void *context, bool is_data, const struct iovec *parts, int num_parts, int64_t offset) {
    int64_t end = offset + (int64_t)parts[0].iov_len;

    (void)context, (void)is_data, (void)num_parts;
    require(end <= CAPACITY, "a write beyond the file");
    memcpy(bytes + offset, parts[0].iov_base, parts[0].iov_len);
    size = end > size ? end : size;
    return (int64_t)parts[0].iov_len;
}

static int64_t sync_nothing(void *context) {
    (void)context;
    return 0;
}

static int64_t get_size(void *context) {
    (void)context;
    return size;
}

static int64_t set_size(void *context, int64_t wanted) {
    (void)context;
    require(wanted <= CAPACITY, "a file that is too large");
    if (wanted < size) {
        memset(bytes + wanted, 0, (size_t)(size - wanted));
    }
    size = wanted;
    return 0;
}

static void close_nothing(void *context) {
    (void)context;
}

static const struct pkvi_file_io io = {.read = read_parts,
                                       .write = write_parts,
                                       .sync = sync_nothing,
                                       .get_size = get_size,
                                       .set_size = set_size,
                                       .close = close_nothing};

static unsigned char byte_of(uint64_t number, int i) {
    return (unsigned char)(number * 41 + (uint64_t)i * 3);
}

static pkv_status move(pkv_file_store *file, bool is_write, uint64_t number, pkv_block_id slot) {
    unsigned char block[2][BYTES];
    pkv_store store = {.struct_size = sizeof store};
    const pkv_block_copy copy = {is_write ? 1 : slot, is_write ? slot : 1};
    const pkv_block_key key = {number, 1, 2};
    pkv_status status;
    pkv_store_transfer transfer = {.struct_size = sizeof transfer,
                                   .is_write = is_write,
                                   .num_blocks = 1,
                                   .blocks = {.data = block,
                                              .dtype = PKV_DTYPE_UINT8,
                                              .rank = 3,
                                              .shape = {1, 2, BYTES},
                                              .stride = {2 * BYTES, BYTES, 1}},
                                   .copies = &copy,
                                   .keys = &key,
                                   .statuses = &status};
    pkv_store_completion done;
    uint64_t ticket;
    int32_t count;

    for (int i = 0; i < BYTES; i++) {
        block[1][i] = is_write ? byte_of(number, i) : 0xee;
    }
    require(pkv_file_store_get_store(file, &store) == PKV_OK, "no table");
    require(pkv_store_submit(&store, &transfer, &ticket) == PKV_OK, "submit is refused");
    require(pkv_store_poll(&store, true, &done, 1, &count) == PKV_OK && count == 1, "no end");
    for (int i = 0; i < BYTES && !is_write && status == PKV_OK; i++) {
        require(block[1][i] == byte_of(number, i), "a wrong block was returned");
    }
    return status;
}

static pkv_status open_store(pkv_file_store **file, void **memory, bool verify_data) {
    pkv_file_store_config config = {.struct_size = sizeof config,
                                    .path = "memory",
                                    .shape = {1, BYTES, 2, SLOTS},
                                    .mismatch = verify_data ? PKV_STORE_EMPTY : PKV_STORE_REFUSE,
                                    .verify_data = verify_data,
                                    .queue_depth = 1,
                                    .max_transfers = 1};
    struct pkvi_error_text error;
    size_t wanted = pkv_file_store_size(&config);

    *memory = aligned_alloc(64, wanted);
    require(*memory != NULL, "no memory");
    return pkvi_file_store_init(&config, 0, &io, *memory, wanted, file, &error);
}

static void make_good_file(void) {
    pkv_file_store *file;
    void *memory;

    memset(bytes, 0, sizeof bytes);
    size = 0;
    require(open_store(&file, &memory, false) == PKV_OK, "a new file is refused");
    for (pkv_block_id slot = 1; slot < SLOTS; slot++) {
        require(move(file, true, (uint64_t)slot, slot) == PKV_OK, "a good write fails");
    }
    pkvi_file_store_close(file);
    free(memory);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t data_size) {
    test_source source = test_source_of_bytes(data, data_size);
    bool is_edit = data_size == 0 || data[0] != 255;

    for (int verify = 0; verify < 2; verify++) {
        pkv_block_key keys[SLOTS];
        pkv_block_id slots[SLOTS];
        int32_t num_blocks;
        pkv_file_store *file;
        void *memory;

        make_good_file();
        source.position = 0;
        source.is_exhausted = false;
        while (is_edit && source.position < source.num_bytes) {
            int32_t place = test_draw(&source, (int32_t)size > 0 ? (int32_t)size : 1);

            if (test_draw_once_in(&source, 16)) {
                (void)set_size(NULL, place);
            } else if (place < size) {
                bytes[place] = (unsigned char)test_draw(&source, 256);
            }
        }
        if (!is_edit) {
            (void)set_size(NULL, 0);
            size = (int64_t)(data_size - 1 < CAPACITY ? data_size - 1 : CAPACITY);
            memcpy(bytes, data + 1, (size_t)size);
        }
        if (open_store(&file, &memory, verify == 1) != PKV_OK) {
            free(memory);
            continue;
        }
        require(pkv_file_store_get_stored(file, keys, NULL, slots, SLOTS, &num_blocks) == PKV_OK,
                "more blocks than slots");
        for (int32_t i = 0; i < num_blocks; i++) {
            pkv_status status = move(file, false, keys[i].hash_low, slots[i]);

            require(status == PKV_OK || status == PKV_ERROR_CORRUPT || status == PKV_NOT_FOUND,
                    "a read ends oddly");
        }
        require(move(file, true, 77, 2) == PKV_OK && move(file, false, 77, 2) == PKV_OK,
                "the store cannot be used");
        pkvi_file_store_close(file);
        free(memory);
    }
    return 0;
}
