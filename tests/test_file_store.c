/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The file store on real files: round trips in every way of asking the kernel, the life of slots,
 * refusals, two openers, a process that is killed. What a failing disk does to it is in
 * test_file_store_crash.c. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "store_disk.h"

static char folder[64], path[96], other_path[96];

static int set_up(void **state) {
    (void)state;
    strcpy(folder, "/tmp/pkv_store_XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/store", folder);
    snprintf(other_path, sizeof other_path, "%s/other", folder);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    (void)unlink(path);
    (void)unlink(other_path);
    return rmdir(folder);
}

static pkv_file_store_config real_config(void) {
    pkv_file_store_config config = small_config();

    config.path = path;
    return config;
}

static pkv_file_store_info info_of(const struct opened *opened) {
    pkv_file_store_info info = {.struct_size = sizeof info};

    assert_int_equal(pkv_file_store_get_info(opened->file, &info), PKV_OK);
    return info;
}

static void write_standard(struct opened *opened) {
    static const int32_t numbers[] = {0, 1, 2};
    static const pkv_block_id slots[] = {3, 1, 4};
    pkv_status statuses[3];

    assert_int_equal(write_numbers(opened, numbers, slots, 3, statuses), PKV_OK);
}

static void expect_standard(struct opened *opened) {
    bool is_found[4];

    check_content(opened, is_found, 4);
    assert_true(is_found[0] && is_found[1] && is_found[2] && !is_found[3]);
}

static void stored_blocks_are_there_after_reopening_in_order_of_use(void **state) {
    pkv_file_store_config config = real_config();
    struct opened opened;
    pkv_block_key keys[4];
    pkv_block_id slots[4], slot;
    int32_t groups[4], num_blocks, num_tokens, tokens[4];

    (void)state;
    assert_int_equal(open_on(&opened, &config, NULL), PKV_OK);
    assert_true(info_of(&opened).was_created);
    write_standard(&opened);
    close_opened(&opened);

    assert_int_equal(open_on(&opened, &config, NULL), PKV_OK);
    assert_false(info_of(&opened).was_created);
    assert_int_equal(info_of(&opened).num_stored, 3);
    assert_int_equal(info_of(&opened).num_damaged, 0);
    assert_int_equal(pkv_file_store_get_stored(opened.file, keys, groups, slots, 2, &num_blocks),
                     PKV_ERROR_LIMIT);
    assert_int_equal(num_blocks, 3);
    assert_int_equal(pkv_file_store_get_stored(opened.file, keys, groups, slots, 4, &num_blocks),
                     PKV_OK);
    assert_int_equal(slots[0], 3);
    assert_int_equal(slots[1], 1);
    assert_int_equal(slots[2], 4);
    assert_true(keys[1].lineage == key_of(1).lineage && groups[1] == 1);
    const pkv_block_key key = key_of(2);
    assert_int_equal(pkv_file_store_find(opened.file, 0, &key, &slot), PKV_OK);
    assert_int_equal(slot, 4);
    assert_int_equal(pkv_file_store_find(opened.file, 1, &key, &slot), PKV_NOT_FOUND);
    assert_int_equal(pkv_file_store_read_tokens(opened.file, 4, tokens, 4, &num_tokens), PKV_OK);
    assert_int_equal(tokens[3], 23);
    assert_int_equal(pkv_file_store_read_tokens(opened.file, 4, tokens, 3, &num_tokens),
                     PKV_ERROR_LIMIT);
    expect_standard(&opened);
    close_opened(&opened);
}

/* Write the same in a file of its own way of asking and compare the bytes of the two files. */
static void every_way_of_asking_the_kernel_gives_the_same_bytes(void **state) {
    static unsigned char bytes[2][DISK_CAPACITY];
    size_t sizes[2];
    struct opened opened;
    int num_rings = 0;

    (void)state;
    for (int sync = PKV_STORE_SYNC_FLUSH; sync <= PKV_STORE_SYNC_NEVER; sync++) {
        for (int way = 0; way < 4; way++) {
            pkv_file_store_config config = real_config();
            pkv_status status;

            config.uring = way % 2 == 0 ? PKV_STORE_URING_OFF : PKV_STORE_URING_ON;
            config.direct = way >= 2;
            config.sync = (pkv_store_sync)sync;
            config.path = way == 0 ? path : other_path;
            (void)unlink(config.path);
            status = open_on(&opened, &config, NULL);
            if (status == PKV_ERROR_UNSUPPORTED) {
                fprintf(stderr, "SKIPPED: %s: %s\n", config.direct ? "O_DIRECT" : "io_uring",
                        opened.error.text);
                continue;
            }
            assert_int_equal(status, PKV_OK);
            assert_int_equal(info_of(&opened).uses_uring, way % 2 == 1);
            num_rings += info_of(&opened).uses_uring;
            write_standard(&opened);
            write_standard(&opened); /* over itself */
            expect_standard(&opened);
            close_opened(&opened);
            FILE *file = fopen(config.path, "rb");
            assert_non_null(file);
            sizes[way != 0] = fread(bytes[way != 0], 1, DISK_CAPACITY, file);
            fclose(file);
            /* Padding behind a block is not defined where it passes a bounce buffer. */
            for (int slot = 0; slot < 4 && way >= 2; slot++) {
                memset(bytes[1] + 12288 + slot * 4096 + 80, 0, 4016);
            }
            if (way != 0) {
                assert_int_equal(sizes[0], sizes[1]);
                assert_memory_equal(bytes[0], bytes[1], sizes[0]);
            }
        }
    }
    if (num_rings == 0) {
        fprintf(stderr, "SKIPPED: no io_uring here\n");
    }
}

static void another_identity_layout_or_size_is_refused_or_emptied(void **state) {
    struct opened opened;

    (void)state;
    for (int way = 0; way < 6; way++) {
        pkv_file_store_config config = real_config();

        (void)unlink(path);
        assert_int_equal(open_on(&opened, &config, NULL), PKV_OK);
        write_standard(&opened);
        close_opened(&opened);
        config.identity[31] = way == 0;
        config.key_secret_id += way == 1;
        config.shape.block_size += way == 2;
        config.shape.num_layers += way == 3;
        config.shape.block_bytes += way == 4;
        config.shape.num_slots += way == 5;
        assert_int_equal(open_on(&opened, &config, NULL), PKV_ERROR_CORRUPT);
        assert_true(strlen(opened.error.text) > 10);
        pkv_file_store_config same = real_config();
        assert_int_equal(open_on(&opened, &same, NULL), PKV_OK);
        assert_int_equal(info_of(&opened).num_stored, 3);
        close_opened(&opened);
        config.mismatch = PKV_STORE_EMPTY;
        assert_int_equal(open_on(&opened, &config, NULL), PKV_OK);
        assert_true(info_of(&opened).was_emptied);
        assert_int_equal(info_of(&opened).num_stored, 0);
        close_opened(&opened);
    }
}

static void file_of_another_program_is_never_touched(void **state) {
    static const char text[] = "Dear diary, today nobody overwrote me.\n";
    pkv_file_store_config config = real_config();
    struct opened opened;
    char found[sizeof text] = "";
    FILE *file = fopen(path, "w");

    (void)state;
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    fclose(file);
    config.mismatch = PKV_STORE_EMPTY;
    assert_int_equal(open_on(&opened, &config, NULL), PKV_ERROR_CORRUPT);
    file = fopen(path, "r");
    assert_non_null(fgets(found, sizeof found, file));
    fclose(file);
    assert_string_equal(found, text);
}

static void second_opener_is_refused_until_the_first_closes(void **state) {
    pkv_file_store_config config = real_config();
    struct opened first, second;

    (void)state;
    assert_int_equal(open_on(&first, &config, NULL), PKV_OK);
    assert_int_equal(open_on(&second, &config, NULL), PKV_ERROR_BUSY);
    assert_non_null(strstr(second.error.text, "elsewhere"));
    close_opened(&first);
    assert_int_equal(open_on(&second, &config, NULL), PKV_OK);
    close_opened(&second);
}

static void slots_are_chosen_empty_first_then_least_recently_used(void **state) {
    pkv_file_store_config config = real_config();
    struct opened opened;
    pkv_block_id slots[5] = {0};
    bool is_right;

    (void)state;
    assert_int_equal(open_on(&opened, &config, NULL), PKV_OK);
    write_standard(&opened);
    assert_int_equal(read_number(&opened, 0, 3, &is_right), PKV_OK);
    assert_int_equal(pkv_file_store_choose_slots(opened.file, 4, slots), PKV_OK);
    assert_int_equal(slots[0], 2);
    assert_int_equal(slots[1], 1);
    assert_int_equal(slots[2], 4);
    assert_int_equal(slots[3], 3);
    slots[0] = 77;
    assert_int_equal(pkv_file_store_choose_slots(opened.file, 5, slots), PKV_NO_FREE_BLOCKS);
    assert_int_equal(slots[0], 77);
    const pkv_block_id forgotten = 4;
    assert_int_equal(pkv_store_forget(&opened.store, &forgotten, 1), PKV_OK);
    assert_int_equal(read_number(&opened, 2, 4, &is_right), PKV_NOT_FOUND);
    assert_int_equal(pkv_file_store_choose_slots(opened.file, 1, slots), PKV_OK);
    assert_int_equal(slots[0], 4);
    close_opened(&opened);
    assert_int_equal(open_on(&opened, &config, NULL), PKV_OK);
    assert_int_equal(info_of(&opened).num_stored, 2);
    close_opened(&opened);
}

/* A transfer of one block that is not waited for. */
struct pending {
    unsigned char memory[POOL_SIZE];
    pkv_tensor pool;
    pkv_block_copy copies[2];
    pkv_block_key keys[2];
    pkv_status statuses[2];
    uint64_t ticket;
};

static pkv_status begin(struct opened *opened,
                        struct pending *pending,
                        bool is_write,
                        int32_t number,
                        pkv_block_id slot,
                        int32_t count) {
    pending->pool = pool_in(pending->memory);
    for (int i = 0; i < 2; i++) {
        if (is_write) {
            fill_block(&pending->pool, i + 1, number);
        }
        pending->copies[i] =
            is_write ? (pkv_block_copy){i + 1, slot} : (pkv_block_copy){slot, i + 1};
        pending->keys[i] = key_of(number);
    }
    pkv_store_transfer transfer = {.struct_size = sizeof transfer,
                                   .is_write = is_write,
                                   .num_blocks = count,
                                   .blocks = pending->pool,
                                   .copies = pending->copies,
                                   .keys = pending->keys,
                                   .statuses = pending->statuses};
    return pkv_store_submit(&opened->store, &transfer, &pending->ticket);
}

static int32_t poll_all(struct opened *opened) {
    pkv_store_completion completions[8];
    int32_t count, total = 0;

    do {
        assert_int_equal(pkv_store_poll(&opened->store, true, completions, 8, &count), PKV_OK);
        total += count;
    } while (count > 0);
    return total;
}

static void slot_in_flight_is_busy_for_others(void **state) {
    static struct pending pendings[6];
    pkv_file_store_config config = real_config();
    struct opened opened;
    const pkv_block_id slot = 2;

    (void)state;
    config.uring = PKV_STORE_URING_OFF; /* nothing moves but in poll */
    assert_int_equal(open_on(&opened, &config, NULL), PKV_OK);
    write_standard(&opened);
    /* Two blocks into one slot in one batch, as in one step: refused as a whole. */
    assert_int_equal(begin(&opened, &pendings[0], true, 8, 2, 2), PKV_ERROR_BUSY);
    assert_int_equal(begin(&opened, &pendings[0], true, 8, 2, 1), PKV_OK);
    assert_int_equal(begin(&opened, &pendings[1], true, 6, 2, 1), PKV_ERROR_BUSY);
    assert_int_equal(begin(&opened, &pendings[1], false, 8, 2, 1), PKV_ERROR_BUSY);
    assert_int_equal(pkv_store_forget(&opened.store, &slot, 1), PKV_ERROR_BUSY);
    assert_int_equal(begin(&opened, &pendings[1], false, 0, 3, 1), PKV_OK);
    assert_int_equal(begin(&opened, &pendings[2], false, 0, 3, 1), PKV_OK);
    assert_int_equal(begin(&opened, &pendings[3], true, 4, 3, 1), PKV_ERROR_BUSY);
    assert_int_equal(begin(&opened, &pendings[3], false, 0, 3, 1), PKV_OK);
    assert_int_equal(begin(&opened, &pendings[4], false, 0, 3, 1), PKV_ERROR_BUSY);
    assert_non_null(strstr(pkv_store_last_error(&opened.store), "in flight"));
    assert_int_equal(poll_all(&opened), 4);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pendings[i].statuses[0], PKV_OK);
        assert_true(block_is(&pendings[i].pool, 1, i == 0 ? 8 : 0));
    }
    close_opened(&opened);
}

static void cancelled_transfer_completes_without_its_blocks(void **state) {
    static struct pending write, read;
    pkv_file_store_config config = real_config();
    struct opened opened;
    bool is_right;

    (void)state;
    config.uring = PKV_STORE_URING_OFF;
    assert_int_equal(open_on(&opened, &config, NULL), PKV_OK);
    write_standard(&opened);
    assert_int_equal(begin(&opened, &write, true, 8, 2, 1), PKV_OK);
    assert_int_equal(begin(&opened, &read, false, 0, 3, 1), PKV_OK);
    assert_int_equal(pkv_store_cancel(&opened.store, write.ticket), PKV_OK);
    assert_int_equal(pkv_store_cancel(&opened.store, read.ticket), PKV_OK);
    assert_int_equal(pkv_store_cancel(&opened.store, 999), PKV_NOT_FOUND);
    assert_int_equal(poll_all(&opened), 2);
    assert_int_equal(write.statuses[0], PKV_NOT_FOUND);
    assert_int_equal(read.statuses[0], PKV_NOT_FOUND);
    assert_int_equal(pkv_store_cancel(&opened.store, read.ticket), PKV_NOT_FOUND);
    assert_int_equal(read_number(&opened, 0, 3, &is_right), PKV_OK);
    close_opened(&opened);
}

static void close_ends_what_is_in_flight(void **state) {
    static struct pending pendings[2];
    struct opened opened;
    bool is_found[9];

    (void)state;
    for (int uring = PKV_STORE_URING_AUTO; uring <= PKV_STORE_URING_OFF; uring += 2) {
        pkv_file_store_config config = real_config();

        config.uring = (pkv_store_uring)uring;
        assert_int_equal(open_on(&opened, &config, NULL), PKV_OK);
        write_standard(&opened);
        assert_int_equal(begin(&opened, &pendings[0], true, 8, 3, 1), PKV_OK);
        assert_int_equal(begin(&opened, &pendings[1], false, 2, 4, 1), PKV_OK);
        close_opened(&opened);
        assert_int_equal(pendings[0].statuses[0], PKV_NOT_FOUND);
        assert_true(pendings[1].statuses[0] == PKV_NOT_FOUND || pendings[1].statuses[0] == PKV_OK);
        assert_int_equal(open_on(&opened, &config, NULL), PKV_OK);
        check_content(&opened, is_found, 9);
        assert_true(is_found[1] && is_found[2] && !is_found[8]);
        close_opened(&opened);
    }
}

/* A child writes on and on and is killed somewhere. */
static void killed_process_leaves_only_whole_blocks(void **state) {
    pkv_file_store_config config = real_config();
    bool is_found[40];
    int num_found = 0;

    (void)state;
    for (int round = 0; round < 12; round++) {
        struct opened opened;
        pid_t child = fork();

        assert_true(child >= 0);
        if (child == 0) {
            config.uring = round % 2 == 0 ? PKV_STORE_URING_AUTO : PKV_STORE_URING_OFF;
            if (open_on(&opened, &config, NULL) != PKV_OK) {
                _exit(1);
            }
            for (int32_t i = 0;; i = (i + 1) % 40) {
                pkv_block_id slot = i % 4 + 1;
                pkv_status status;

                if (write_numbers(&opened, &i, &slot, 1, &status) != PKV_OK) {
                    _exit(1);
                }
            }
        }
        struct timespec pause = {0, 3000000 + round * 1700000};
        (void)nanosleep(&pause, NULL);
        int result;
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, &result, 0), child);
        assert_true(WIFSIGNALED(result));
        config.uring = PKV_STORE_URING_AUTO;
        /* The kernel ends a ring, and with it the lock, a moment after its process. */
        pkv_status status = PKV_ERROR_BUSY;
        for (int i = 0; i < 2000 && status == PKV_ERROR_BUSY; i++) {
            struct timespec moment = {0, 1000000};
            status = open_on(&opened, &config, NULL);
            (void)(status == PKV_ERROR_BUSY ? nanosleep(&moment, NULL) : 0);
        }
        assert_int_equal(status, PKV_OK);
        check_content(&opened, is_found, 40);
        for (int i = 0; i < 40; i++) {
            num_found += is_found[i];
        }
        close_opened(&opened);
    }
    assert_true(num_found > 0);
}

static void bad_configurations_are_refused(void **state) {
    pkv_file_store *file = NULL;
    char text[64] = "";

    (void)state;
    for (int way = 0; way < 9; way++) {
        pkv_file_store_config config = real_config();

        config.struct_size = way == 0 ? 4 : config.struct_size;
        config.path = way == 1 ? NULL : config.path;
        config.shape.num_layers = way == 2 ? 0 : config.shape.num_layers;
        config.shape.block_bytes = way == 3 ? INT64_MAX : config.shape.block_bytes;
        config.shape.block_size = way == 4 ? -1 : config.shape.block_size;
        config.shape.num_slots = way == 5 ? 1 : config.shape.num_slots;
        config.queue_depth = way == 6 ? -1 : config.queue_depth;
        config.sync = way == 7 ? (pkv_store_sync)9 : config.sync;
        config.allocator.context = &config;
        config.allocator.release = way == 8 ? NULL : config.allocator.release;
        if (way == 8) {
            config.uring = (pkv_store_uring)9;
        }
        assert_int_equal(pkv_file_store_size(&config), 0);
        assert_int_equal(pkv_file_store_create(&config, &file, text, sizeof text),
                         PKV_ERROR_INVALID_ARGUMENT);
        assert_true(strlen(text) > 5);
    }
    assert_int_equal(pkv_file_store_create(NULL, &file, NULL, 0), PKV_ERROR_INVALID_ARGUMENT);
    pkv_file_store_config config = real_config();
    config.path = "/nowhere/at/all";
    assert_int_equal(pkv_file_store_create(&config, &file, text, sizeof text), PKV_ERROR_IO);
    assert_non_null(strstr(text, "no such file"));
}

static void one_allocation_is_made_and_given_back(void **state) {
    pkv_file_store_config config = real_config();
    pkv_store store = {.struct_size = sizeof store};
    pkv_file_store *file = NULL;

    (void)state;
    assert_int_equal(pkv_file_store_create(&config, &file, NULL, 0), PKV_OK);
    assert_int_equal(pkv_file_store_get_store(file, &store), PKV_OK);
    assert_int_equal(store.shape.num_slots, NUM_SLOTS);
    pkv_store_close(&store); /* a memory checker sees what stays */
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(stored_blocks_are_there_after_reopening_in_order_of_use),
        TEST(every_way_of_asking_the_kernel_gives_the_same_bytes),
        TEST(another_identity_layout_or_size_is_refused_or_emptied),
        TEST(file_of_another_program_is_never_touched),
        TEST(second_opener_is_refused_until_the_first_closes),
        TEST(slots_are_chosen_empty_first_then_least_recently_used),
        TEST(slot_in_flight_is_busy_for_others),
        TEST(cancelled_transfer_completes_without_its_blocks),
        TEST(close_ends_what_is_in_flight),
        TEST(killed_process_leaves_only_whole_blocks),
        TEST(bad_configurations_are_refused),
        TEST(one_allocation_is_made_and_given_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
