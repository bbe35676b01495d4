/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The file store against a disk that stops, lies and rots: whatever happens to the file, an opened
 * store returns nothing but what was written under the key it is asked for, and what is intact is
 * found again.
 *
 * Method: the content of a block is a function of its key, so that "nothing wrong" can be checked
 * without knowing what happened. The disk is in memory (store_disk.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "store_disk.h"

enum { NUM_NUMBERS = 8, NUM_BATCHES = 4 };

static struct store_disk disk;

/* Four slots, seven blocks: the later batches overwrite. */
static const struct {
    int32_t count, numbers[3];
    pkv_block_id slots[3];
} batches[NUM_BATCHES] = {{3, {0, 1, 2}, {1, 2, 3}},
                          {1, {3, 0, 0}, {4, 0, 0}},
                          {2, {4, 5, 0}, {2, 3, 0}},
                          {1, {6, 0, 0}, {2, 0, 0}}};

/* Run the batches until the disk is dead. `is_reported[n]`: block n was reported as written and its
 * slot not touched since; `was_touched[n]`: its writing was begun. */
static void run_batches(const pkv_file_store_config *config,
                        bool is_reported[NUM_NUMBERS],
                        bool was_touched[NUM_NUMBERS]) {
    struct pkvi_file_io io = store_disk_io(&disk);
    struct opened opened;

    memset(is_reported, 0, NUM_NUMBERS * sizeof *is_reported);
    memset(was_touched, 0, NUM_NUMBERS * sizeof *was_touched);
    if (open_on(&opened, config, &io) != PKV_OK) {
        return;
    }
    int32_t owner[NUM_SLOTS] = {-1, -1, -1, -1, -1};
    for (int b = 0; b < NUM_BATCHES; b++) {
        pkv_status statuses[3];

        for (int i = 0; i < batches[b].count; i++) {
            int32_t *in_slot = &owner[batches[b].slots[i]];

            if (*in_slot >= 0) {
                is_reported[*in_slot] = false;
            }
            *in_slot = batches[b].numbers[i];
            was_touched[*in_slot] = true;
        }
        (void)write_numbers(&opened, batches[b].numbers, batches[b].slots, batches[b].count,
                            statuses);
        for (int i = 0; i < batches[b].count; i++) {
            is_reported[batches[b].numbers[i]] = statuses[i] == PKV_OK;
        }
    }
    close_opened(&opened);
}

/* Open the image and check it. Opening may be refused only where `may_refuse`. */
static int32_t check_image(const pkv_file_store_config *config,
                           bool is_found[NUM_NUMBERS],
                           bool may_refuse) {
    struct pkvi_file_io io = store_disk_io(&disk);
    pkv_file_store_info info = {.struct_size = sizeof info};
    struct opened opened;
    pkv_status status = open_on(&opened, config, &io);

    memset(is_found, 0, NUM_NUMBERS * sizeof *is_found);
    if (status != PKV_OK) {
        assert_true(may_refuse && status == PKV_ERROR_CORRUPT && opened.error.text[0] != '\0');
        return -1;
    }
    assert_int_equal(pkv_file_store_get_info(opened.file, &info), PKV_OK);
    assert_true((info.num_damaged > 0) == (info.first_damage[0] != '\0'));
    check_content(&opened, is_found, NUM_NUMBERS);
    /* It can be written to as before. */
    const int32_t number = 7;
    const pkv_block_id slot = 1;
    bool is_right;
    assert_int_equal(write_numbers(&opened, &number, &slot, 1, &status), PKV_OK);
    assert_int_equal(read_number(&opened, 7, 1, &is_right), PKV_OK);
    assert_true(is_right);
    close_opened(&opened);
    return info.num_damaged;
}

static int64_t count_writes(const pkv_file_store_config *config) {
    bool is_reported[NUM_NUMBERS], was_touched[NUM_NUMBERS];

    store_disk_reset(&disk);
    run_batches(config, is_reported, was_touched);
    for (int n = 0; n < 7; n++) {
        assert_int_equal(is_reported[n], n != 1 && n != 2 && n != 4);
    }
    return disk.num_writes;
}

static void kill_at_every_write_loses_nothing_that_was_reported(void **state) {
    static const int64_t torn[] = {0, 1, 17, 40, 70, 4000};
    pkv_file_store_config config = small_config();
    bool is_reported[NUM_NUMBERS], was_touched[NUM_NUMBERS], is_found[NUM_NUMBERS];
    int64_t num_writes = count_writes(&config);

    (void)state;
    assert_true(num_writes > 18);
    for (int64_t stop = 0; stop <= num_writes; stop++) {
        for (size_t t = 0; t < sizeof torn / sizeof torn[0]; t++) {
            store_disk_reset(&disk);
            disk.stop_after = stop;
            disk.torn_bytes = torn[t];
            run_batches(&config, is_reported, was_touched);
            store_disk_kill(&disk);
            (void)check_image(&config, is_found, false);
            for (int n = 0; n < NUM_NUMBERS; n++) {
                assert_true(!is_reported[n] || is_found[n]);
                assert_true(was_touched[n] || !is_found[n]);
            }
        }
    }
}

static void loss_of_power_never_gives_a_wrong_block(void **state) {
    static const pkv_store_sync policies[] = {PKV_STORE_SYNC_FLUSH, PKV_STORE_SYNC_BATCH,
                                              PKV_STORE_SYNC_NEVER};
    bool is_reported[NUM_NUMBERS], was_touched[NUM_NUMBERS], is_found[NUM_NUMBERS];

    (void)state;
    for (int p = 0; p < 3; p++) {
        pkv_file_store_config config = small_config();
        config.sync = policies[p];
        int64_t num_writes = count_writes(&config);

        for (int64_t stop = 0; stop <= num_writes; stop++) {
            for (uint64_t seed = 0; seed < 20; seed++) {
                test_source source = test_source_of_seed(seed * 1000 + (uint64_t)stop);

                store_disk_reset(&disk);
                disk.stop_after = stop;
                disk.torn_bytes = (int64_t)seed * 7;
                run_batches(&config, is_reported, was_touched);
                store_disk_lose_power(&disk, &source);
                config.mismatch = PKV_STORE_EMPTY;
                (void)check_image(&config, is_found, false);
                config.mismatch = PKV_STORE_REFUSE;
                for (int n = 0; n < NUM_NUMBERS; n++) {
                    assert_true(policies[p] != PKV_STORE_SYNC_BATCH || !is_reported[n] ||
                                is_found[n]);
                }
            }
        }
    }
}

/* Leave a good file on the disk: blocks 0, 3, 5, 6 in slots 1, 4, 3, 2. */
static void make_good_image(unsigned char *image, int64_t *size) {
    pkv_file_store_config config = small_config();
    bool is_reported[NUM_NUMBERS], was_touched[NUM_NUMBERS];

    store_disk_reset(&disk);
    run_batches(&config, is_reported, was_touched);
    assert_true(is_reported[0] && is_reported[3] && is_reported[5] && is_reported[6]);
    memcpy(image, disk.bytes, (size_t)disk.size);
    *size = disk.size;
}

static int count_found(const bool is_found[NUM_NUMBERS]) {
    return is_found[0] + is_found[3] + is_found[5] + is_found[6];
}

static unsigned char good[DISK_CAPACITY];

static void flip_at_every_byte_costs_one_block_at_most(void **state) {
    pkv_file_store_config config = small_config();
    bool is_found[NUM_NUMBERS];
    int64_t size, num_costly = 0;

    (void)state;
    make_good_image(good, &size);
    for (int64_t i = 0; i < size; i++) {
        for (int way = 0; way < 2; way++) {
            memcpy(disk.bytes, good, (size_t)size);
            disk.size = size;
            disk.num_unsynced = 0;
            disk.log_size = 0;
            disk.bytes[i] ^= (unsigned char)(way == 0 ? 1 << (i % 8) : 0xff);
            config.verify_data = way == 1;
            int32_t num_damaged = check_image(&config, is_found, false);
            int found = count_found(is_found);

            assert_true(found >= 3 && num_damaged >= 0 && num_damaged <= 1);
            /* With verify_data the loss of a block is known at open. */
            assert_true(way == 0 || found == 4 || num_damaged == 1);
            num_costly += way == 1 && found < 4;
        }
    }
    /* Four entries of 128 bytes and four blocks of 80. */
    assert_int_equal(num_costly, 4 * (128 + 80));
}

static void truncation_at_every_length_keeps_what_is_whole(void **state) {
    pkv_file_store_config config = small_config();
    bool is_found[NUM_NUMBERS];
    int64_t size;

    (void)state;
    make_good_image(good, &size);
    for (int64_t length = 0; length <= size; length++) {
        memset(disk.bytes, 0, sizeof disk.bytes);
        memcpy(disk.bytes, good, (size_t)length);
        disk.size = length;
        disk.num_unsynced = 0;
        disk.log_size = 0;
        (void)check_image(&config, is_found, length < 8192);
        /* Slots 1 to 4 begin at 12,288, 4,096 bytes each; 80 of them count. */
        assert_int_equal(is_found[0], length >= 12288 + 80);
        assert_int_equal(is_found[6], length >= 16384 + 80);
        assert_int_equal(is_found[5], length >= 20480 + 80);
        assert_int_equal(is_found[3], length >= 24576 + 80);
    }
}

static void garbage_is_refused_or_passed_over(void **state) {
    bool is_found[NUM_NUMBERS];
    int64_t size;
    int num_refused = 0;

    (void)state;
    make_good_image(good, &size);
    for (uint64_t seed = 0; seed < 3000; seed++) {
        test_source source = test_source_of_seed(seed);
        pkv_file_store_config config = small_config();
        int64_t start = seed % 2 == 0 ? 0 : test_draw(&source, (int32_t)size);
        int64_t end = start + test_draw(&source, (int32_t)(size - start));

        config.verify_data = seed % 3 == 0;
        memcpy(disk.bytes, good, (size_t)size);
        for (int64_t i = start; i < end; i++) {
            disk.bytes[i] = (unsigned char)test_rand_next(&source.generator);
        }
        disk.size = size;
        disk.num_unsynced = 0;
        disk.log_size = 0;
        num_refused += check_image(&config, is_found, true) < 0;
    }
    assert_true(num_refused > 100 && num_refused < 2900);
}

static void full_disk_is_an_error_of_the_blocks_it_hits(void **state) {
    pkv_file_store_config config = small_config();
    struct pkvi_file_io io = store_disk_io(&disk);
    const int32_t numbers[] = {0, 1, 2};
    const pkv_block_id slots[] = {1, 2, 3};
    pkv_status statuses[3];
    bool is_right, is_found[NUM_NUMBERS];
    struct opened opened;

    (void)state;
    store_disk_reset(&disk);
    assert_int_equal(open_on(&opened, &config, &io), PKV_OK);
    disk.space = 16384 + 30; /* in the middle of slot 2 */
    assert_int_equal(write_numbers(&opened, numbers, slots, 3, statuses), PKV_ERROR_IO);
    assert_int_equal(statuses[0], PKV_OK);
    assert_int_equal(statuses[1], PKV_ERROR_IO);
    assert_int_equal(statuses[2], PKV_ERROR_IO);
    assert_non_null(strstr(pkv_store_last_error(&opened.store), "no space left"));
    assert_int_equal(read_number(&opened, 0, 1, &is_right), PKV_OK);
    assert_true(is_right);
    assert_int_equal(read_number(&opened, 1, 2, &is_right), PKV_NOT_FOUND);
    disk.space = 0; /* there is room again */
    assert_int_equal(write_numbers(&opened, numbers + 1, slots + 1, 2, statuses), PKV_OK);
    check_content(&opened, is_found, NUM_NUMBERS);
    assert_true(is_found[0] && is_found[1] && is_found[2]);
    close_opened(&opened);

    store_disk_reset(&disk);
    disk.space = 4096; /* no room for the headers */
    assert_int_equal(open_on(&opened, &config, &io), PKV_ERROR_IO);
    assert_non_null(strstr(opened.error.text, "no space left"));
}

static void short_and_interrupted_calls_are_resumed(void **state) {
    pkv_file_store_config config = small_config();
    bool is_reported[NUM_NUMBERS], was_touched[NUM_NUMBERS], is_found[NUM_NUMBERS];

    (void)state;
    for (int32_t most = 7; most < 100; most += 13) {
        store_disk_reset(&disk);
        disk.most_at_once = most * 8;
        disk.interrupt_each = 3;
        run_batches(&config, is_reported, was_touched);
        assert_true(is_reported[0] && is_reported[3] && is_reported[5] && is_reported[6]);
        assert_int_equal(check_image(&config, is_found, false), 0);
        assert_int_equal(count_found(is_found), 4);
    }
}

static void sync_that_fails_is_reported_where_it_was_asked_for(void **state) {
    pkv_file_store_config config = small_config();
    struct pkvi_file_io io = store_disk_io(&disk);
    const int32_t number = 0;
    const pkv_block_id slot = 1;
    pkv_status status;
    struct opened opened;

    (void)state;
    config.sync = PKV_STORE_SYNC_BATCH;
    store_disk_reset(&disk);
    assert_int_equal(open_on(&opened, &config, &io), PKV_OK);
    disk.fails_sync = true;
    assert_int_equal(write_numbers(&opened, &number, &slot, 1, &status), PKV_ERROR_IO);
    assert_int_equal(pkv_store_flush(&opened.store), PKV_ERROR_IO);
    close_opened(&opened);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kill_at_every_write_loses_nothing_that_was_reported),
        cmocka_unit_test(loss_of_power_never_gives_a_wrong_block),
        cmocka_unit_test(flip_at_every_byte_costs_one_block_at_most),
        cmocka_unit_test(truncation_at_every_length_keeps_what_is_whole),
        cmocka_unit_test(garbage_is_refused_or_passed_over),
        cmocka_unit_test(full_disk_is_an_error_of_the_blocks_it_hits),
        cmocka_unit_test(short_and_interrupted_calls_are_resumed),
        cmocka_unit_test(sync_that_fails_is_reported_where_it_was_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
