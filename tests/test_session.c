/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Saving one request's cache and restoring it elsewhere: other block ids, the tail that fills no
 * block, what is refused, what a damaged or half-written file gives. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store_disk.h"

enum { NUM_TOKENS = 14, NUM_BLOCKS = 4 }; /* three blocks of four and a tail of two */

static char folder[64], path[96], saving[112], text[256];
static unsigned char memory[POOL_SIZE];
static pkv_tensor pool;
static int32_t token_ids[16];
static pkv_block_key keys[4];

static int set_up(void **state) {
    (void)state;
    strcpy(folder, "/tmp/pkv_session_XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/session", folder);
    snprintf(saving, sizeof saving, "%s.saving", path);
    text[0] = '\0';
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    (void)unlink(path);
    (void)unlink(saving);
    return rmdir(folder);
}

static pkv_session_args args_of(const pkv_block_id *block_ids) {
    return (pkv_session_args){.struct_size = sizeof(pkv_session_args),
                              .path = path,
                              .identity = {9},
                              .key_secret_id = 5,
                              .group = 1,
                              .block_size = BLOCK_TOKENS,
                              .num_tokens = NUM_TOKENS,
                              .num_blocks = NUM_BLOCKS,
                              .token_ids = token_ids,
                              .keys = keys,
                              .blocks = pool,
                              .block_ids = block_ids,
                              .error_text = text,
                              .error_size = sizeof text};
}

static void save_standard(void) {
    static const pkv_block_id block_ids[] = {2, 3, 4, 5};
    pkv_session_args args;

    pool = pool_in(memory);
    for (int i = 0; i < 4; i++) {
        fill_block(&pool, block_ids[i], 100 + i);
        keys[i] = key_of(100 + i);
    }
    for (int i = 0; i < 16; i++) {
        token_ids[i] = 1000 + i;
    }
    args = args_of(block_ids);
    if (pkv_session_save(&args) != PKV_OK) {
        fail_msg("%s", text);
    }
    memset(token_ids, 0, sizeof token_ids);
    memset(keys, 0, sizeof keys);
    pool = pool_in(memory); /* nothing is left */
}

static void session_is_restored_into_scattered_blocks(void **state) {
    static const pkv_block_id scattered[] = {7, 1, 5, 3};
    pkv_session_info info = {.struct_size = sizeof info};
    pkv_session_args args;

    (void)state;
    save_standard();
    assert_int_equal(access(saving, F_OK), -1);
    args = args_of(scattered);
    assert_int_equal(pkv_session_get_info(&args, &info), PKV_OK);
    assert_int_equal(info.num_tokens, NUM_TOKENS);
    assert_int_equal(info.num_blocks, NUM_BLOCKS);
    assert_int_equal(info.num_tail_tokens, 2);
    assert_int_equal(info.block_bytes, BLOCK_BYTES);
    assert_int_equal(pkv_session_restore(&args), PKV_OK);
    for (int i = 0; i < 4; i++) {
        assert_true(block_is(&pool, scattered[i], 100 + i));
    }
    for (int i = 0; i < 16; i++) {
        assert_int_equal(token_ids[i], i < NUM_TOKENS ? 1000 + i : 0);
    }
    for (int i = 0; i < 4; i++) {
        assert_true(keys[i].lineage == (i < 3 ? key_of(100 + i).lineage : 0));
    }
    /* Nothing else was written. */
    assert_int_equal(((unsigned char *)pool.data)[2 * 64], 0xa5);
    assert_int_equal(((unsigned char *)pool.data)[7 * 64 + BLOCK_BYTES], 0xa5);
}

static void session_that_does_not_fit_is_refused_and_nothing_is_written(void **state) {
    static const pkv_block_id ids[] = {7, 1, 5, 3}, null_ids[] = {7, 1, 0, 3};
    unsigned char before[POOL_SIZE];

    (void)state;
    save_standard();
    memcpy(before, memory, sizeof before);
    for (int way = 0; way < 9; way++) {
        pkv_session_args args = args_of(way == 6 ? null_ids : ids);
        pkv_status wanted = way < 2    ? PKV_ERROR_LIMIT
                            : way == 6 ? PKV_ERROR_INVALID_ARGUMENT
                            : way == 8 ? PKV_NOT_FOUND
                                       : PKV_ERROR_CORRUPT;

        args.num_blocks -= way == 0;
        args.num_tokens -= way == 1;
        args.block_size += way == 2;
        args.identity[0] = way == 3 ? 8 : 9;
        args.key_secret_id += way == 4;
        args.blocks.shape[0] -= way == 5;
        args.group += way == 7;
        args.path = way == 8 ? "/tmp/no/such/session" : path;
        text[0] = '\0';
        assert_int_equal(pkv_session_restore(&args), wanted);
        assert_true(strlen(text) > 5);
        assert_memory_equal(memory, before, sizeof before);
        assert_int_equal(token_ids[0], 0);
    }
}

static void save_that_fails_leaves_the_old_session(void **state) {
    static const pkv_block_id ids[] = {2, 3, 4, 5}, bad[] = {2, 3, 4, 99};
    pkv_session_args args;
    pkv_file_store_config config = small_config();
    struct opened other;

    (void)state;
    save_standard();
    args = args_of(bad);
    assert_int_equal(pkv_session_save(&args), PKV_ERROR_INVALID_ARGUMENT);
    args = args_of(ids);
    args.num_blocks = 3;
    assert_int_equal(pkv_session_save(&args), PKV_ERROR_INVALID_ARGUMENT);
    /* Somebody else is saving to the same place. */
    config.path = saving;
    assert_int_equal(open_on(&other, &config, NULL), PKV_OK);
    args = args_of(ids);
    assert_int_equal(pkv_session_save(&args), PKV_ERROR_BUSY);
    close_opened(&other);
    args = args_of(ids);
    assert_int_equal(pkv_session_restore(&args), PKV_OK);
    assert_true(block_is(&pool, 5, 103));
    /* What a save that was cut off has left is no hindrance. */
    save_standard();
    /* A store is no session, and a session no store. */
    config.path = path;
    assert_int_equal(open_on(&other, &config, NULL), PKV_ERROR_CORRUPT);
}

static void damaged_session_is_never_restored_wrong(void **state) {
    static const pkv_block_id ids[] = {7, 1, 5, 3};
    static unsigned char bytes[DISK_CAPACITY];
    size_t size;
    FILE *file;
    int num_refused = 0;

    (void)state;
    save_standard();
    file = fopen(path, "rb");
    assert_non_null(file);
    size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    assert_int_equal(size, 12288 + NUM_BLOCKS * 4096);
    for (size_t i = 0; i < size; i += i < 8192 || i >= 8192 + 512 ? 37 : 1) {
        pkv_session_args args = args_of(ids);
        pkv_status status;

        file = fopen(path, "r+b");
        assert_non_null(file);
        assert_int_equal(fseek(file, (long)i, SEEK_SET), 0);
        assert_int_equal(fputc(bytes[i] ^ 0x10, file), bytes[i] ^ 0x10);
        fclose(file);
        pool = pool_in(memory);
        status = pkv_session_restore(&args);
        assert_true(status == PKV_OK || status == PKV_ERROR_CORRUPT);
        for (int k = 0; k < 4 && status == PKV_OK; k++) {
            assert_true(block_is(&pool, ids[k], 100 + k) && token_ids[k] == 1000 + k);
        }
        num_refused += status != PKV_OK;
        file = fopen(path, "r+b");
        assert_non_null(file);
        assert_int_equal(fwrite(bytes, 1, size, file), size);
        fclose(file);
    }
    assert_true(num_refused > 470);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(session_is_restored_into_scattered_blocks),
        TEST(session_that_does_not_fit_is_refused_and_nothing_is_written),
        TEST(save_that_fails_leaves_the_old_session),
        TEST(damaged_session_is_never_restored_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
