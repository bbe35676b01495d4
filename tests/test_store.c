/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The contract of every store: what is refused before the store sees it, and that one which delays,
 * reorders and fails still gives each block its own status and its own bytes. The store is the one
 * in memory; the file store's own tests say the same of files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <pagedkv/store.h>

#include "support/memory_store.h"
#include "support/rand.h"

enum { LAYERS = 3, BYTES = 48, SLOTS = 9, BLOCKS = 12, TRANSFERS = 6 };

static const pkv_store_shape shape = {LAYERS, BYTES, 4, SLOTS};
static unsigned char memory[LAYERS * BLOCKS * BYTES];

static pkv_tensor view(void) {
    return (pkv_tensor){.data = memory,
                        .dtype = PKV_DTYPE_UINT8,
                        .rank = 3,
                        .shape = {LAYERS, BLOCKS, BYTES},
                        .stride = {BLOCKS * BYTES, BYTES, 1}};
}

static unsigned char byte_of(uint64_t number, int layer) {
    return (unsigned char)(number * 31 + (uint64_t)layer * 7);
}

static void fill(pkv_block_id block, uint64_t number) {
    for (int layer = 0; layer < LAYERS; layer++) {
        memset(memory + (layer * BLOCKS + block) * BYTES, byte_of(number, layer), BYTES);
    }
}

static bool holds(pkv_block_id block, uint64_t number) {
    for (int layer = 0; layer < LAYERS; layer++) {
        for (int i = 0; i < BYTES; i++) {
            if (memory[(layer * BLOCKS + block) * BYTES + i] != byte_of(number, layer)) {
                return false;
            }
        }
    }
    return true;
}

static void transfers_that_make_no_sense_never_reach_the_store(void **state) {
    const memory_store_config config = {.shape = shape};
    pkv_store store = memory_store_create(&config);
    const pkv_block_copy good = {1, 1}, bad[] = {{1, 0}, {1, SLOTS}, {-1, 1}, {BLOCKS, 1}, {1, -1}};
    const pkv_block_copy to_null = {1, 0};
    const pkv_block_key key = {1, 2, 3};
    pkv_status status = PKV_OK;
    uint64_t ticket = 0;
    pkv_store_transfer transfer = {.struct_size = sizeof transfer,
                                   .is_write = true,
                                   .num_blocks = 1,
                                   .blocks = view(),
                                   .keys = &key,
                                   .statuses = &status};
    pkv_store broken = store;
    pkv_store_completion completion;
    int32_t count;

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        transfer.copies = &bad[i];
        assert_int_equal(pkv_store_submit(&store, &transfer, &ticket), PKV_ERROR_INVALID_ARGUMENT);
    }
    transfer.copies = &to_null;
    transfer.is_write = false; /* into the null block of the pool */
    assert_int_equal(pkv_store_submit(&store, &transfer, &ticket), PKV_ERROR_INVALID_ARGUMENT);
    transfer.copies = &good;
    transfer.is_write = true;
    for (int way = 0; way < 10; way++) {
        pkv_store_transfer other = transfer;

        other.struct_size = way == 0 ? 8 : other.struct_size;
        other.num_blocks = way == 1 ? 0 : other.num_blocks;
        other.copies = way == 2 ? NULL : other.copies;
        other.keys = way == 3 ? NULL : other.keys;
        other.statuses = way == 4 ? NULL : other.statuses;
        other.blocks.shape[0] -= way == 5;
        other.blocks.shape[2] -= way == 6;
        other.blocks.stride[1] -= way == 7;
        other.blocks.dtype = way == 8 ? PKV_DTYPE_INT8 : other.blocks.dtype;
        other.blocks.data = way == 9 ? NULL : other.blocks.data;
        assert_int_equal(pkv_store_submit(&store, &other, &ticket), PKV_ERROR_INVALID_ARGUMENT);
    }
    transfer.num_blocks = PKV_MAX_BLOCK_LIST + 1;
    assert_int_equal(pkv_store_submit(&store, &transfer, &ticket), PKV_ERROR_LIMIT);
    transfer.num_blocks = 1;
    assert_int_equal(pkv_store_submit(&store, &transfer, NULL), PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(ticket, 0);
    assert_int_equal(pkv_store_poll(&store, true, &completion, 1, &count), PKV_OK);
    assert_int_equal(count, 0);
    assert_int_equal(pkv_store_poll(&store, true, NULL, 1, &count), PKV_ERROR_INVALID_ARGUMENT);
    const pkv_block_id slots[] = {1, 0};
    assert_int_equal(pkv_store_forget(&store, slots, 2), PKV_ERROR_INVALID_ARGUMENT);
    broken.cancel = NULL;
    assert_int_equal(pkv_store_flush(&broken), PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_store_submit(NULL, &transfer, &ticket), PKV_ERROR_INVALID_ARGUMENT);
    assert_string_equal(pkv_store_last_error(NULL), "");
    pkv_store_close(NULL);
    pkv_store_close(&store);
}

/* One transfer of one block; memory block and slot of the same number. */
struct flight {
    pkv_block_copy copy;
    pkv_block_key key;
    pkv_status status;
    uint64_t ticket, number;
    bool is_write;
};

struct walk {
    pkv_store store;
    test_source source;
    struct flight flights[TRANSFERS];
    uint64_t held[SLOTS]; /* number in each slot; 0: nothing */
    uint64_t last_number;
    int num_ok, num_failed, num_missing;
};

static void begin(struct walk *walk, struct flight *flight) {
    pkv_block_id slot = test_draw_between(&walk->source, 1, SLOTS - 1);
    pkv_store_transfer transfer = {.struct_size = sizeof transfer,
                                   .num_blocks = 1,
                                   .blocks = view(),
                                   .copies = &flight->copy,
                                   .keys = &flight->key,
                                   .statuses = &flight->status};

    for (int i = 0; i < TRANSFERS; i++) {
        if (walk->flights[i].ticket != 0 && (walk->flights[i].copy.source == slot)) {
            return; /* one user of a block at a time, as in an engine */
        }
    }
    flight->is_write = test_draw(&walk->source, 2) == 0;
    flight->number = flight->is_write ? ++walk->last_number : walk->held[slot];
    flight->copy = (pkv_block_copy){slot, slot};
    flight->key = (pkv_block_key){flight->number, 5, 6};
    fill(slot, flight->is_write ? flight->number : 999999);
    transfer.is_write = flight->is_write;
    assert_int_equal(pkv_store_submit(&walk->store, &transfer, &flight->ticket), PKV_OK);
    if (flight->is_write) {
        walk->held[slot] = 0;
    }
}

static void end(struct walk *walk, const pkv_store_completion *completion) {
    struct flight *flight = walk->flights;
    pkv_block_id slot;

    while (flight->ticket != completion->ticket) {
        flight++;
        assert_true(flight < walk->flights + TRANSFERS);
    }
    slot = flight->copy.source;
    assert_int_equal(completion->status, flight->status);
    assert_int_equal(completion->num_failed, flight->status != PKV_OK);
    if (flight->status == PKV_OK && flight->is_write) {
        walk->held[slot] = flight->number;
    } else if (flight->status == PKV_OK) {
        assert_true(flight->number != 0 && holds(slot, flight->number));
    }
    walk->num_ok += flight->status == PKV_OK;
    walk->num_failed += flight->status == PKV_ERROR_IO;
    walk->num_missing += flight->status == PKV_NOT_FOUND;
    flight->ticket = 0;
}

static void store_that_delays_reorders_and_fails_keeps_its_contract(void **state) {
    const memory_store_config config = {
        .shape = shape, .seed = 4, .most_polls = 7, .fail_once_in = 6};
    struct walk walk = {.store = memory_store_create(&config), .source = test_source_of_seed(11)};

    (void)state;
    for (int step = 0; step < 4000; step++) {
        pkv_store_completion completions[3];
        struct flight *flight = &walk.flights[test_draw(&walk.source, TRANSFERS)];
        int32_t count = 0;

        if (flight->ticket == 0) {
            begin(&walk, flight);
        } else if (test_draw(&walk.source, 8) == 0) {
            assert_int_equal(pkv_store_cancel(&walk.store, flight->ticket), PKV_OK);
        }
        assert_int_equal(pkv_store_poll(&walk.store, step % 5 == 0, completions, 3, &count),
                         PKV_OK);
        for (int32_t i = 0; i < count; i++) {
            end(&walk, &completions[i]);
        }
    }
    assert_true(walk.num_ok > 1000 && walk.num_failed > 100 && walk.num_missing > 100);
    assert_int_equal(pkv_store_flush(&walk.store), PKV_OK);
    pkv_store_close(&walk.store);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transfers_that_make_no_sense_never_reach_the_store),
        cmocka_unit_test(store_that_delays_reorders_and_fails_keeps_its_contract),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
