/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Goal: files do not depend on what the kernel allows, nor on whether the build has io_uring, and a
 * process that is killed while it saves a session leaves the old one or the new one.
 * Method: children with a seccomp filter that forbids io_uring_setup, the digest of a file in
 * the source, and calls that are counted (the linker puts functions of this file in their way)
 * until one of them, torn, is the last that the process does. Built twice: as everything, and with
 * sources that were compiled without io_uring. */
#define _GNU_SOURCE /* syscall */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "store_disk.h"

enum { KILLED = 9, UNFILTERED = 77, NUM_TOKENS = 14, NUM_BLOCKS = 4, MOST_CHANGES = 64 };

/* The file of write_standard, FNV-1a of its bytes. That these bytes are right is not said here, but
 * that they are the same in both builds, whatever the kernel forbids. */
#define STANDARD_DIGEST UINT64_C(0x1ceacd685c272c1a)

static char folder[64], path[96], saving[112], text[256];

static int set_up(void **state) {
    (void)state;
    strcpy(folder, "/tmp/pkv_kernel_XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/file", folder);
    snprintf(saving, sizeof saving, "%s.saving", path);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    (void)unlink(path);
    (void)unlink(saving);
    return rmdir(folder);
}

/* ---- counted calls --------------------------------------------------------------------------- */

/* Changes that are still done; -1: all. The one behind them is cut off after `torn_bytes`. */
static int changes_left = -1;
static size_t torn_bytes;

ssize_t __real_pwritev(int descriptor, const struct iovec *parts, int num_parts, off_t offset);
int __real_ftruncate(int descriptor, off_t size);
int __real_fdatasync(int descriptor);
int __real_fsync(int descriptor);
int __real_rename(const char *source, const char *target);
ssize_t __wrap_pwritev(int descriptor, const struct iovec *parts, int num_parts, off_t offset);
int __wrap_ftruncate(int descriptor, off_t size);
int __wrap_fdatasync(int descriptor);
int __wrap_fsync(int descriptor);
int __wrap_rename(const char *source, const char *target);

static bool is_last_change(void) {
    return changes_left >= 0 && changes_left-- == 0;
}

ssize_t __wrap_pwritev(int descriptor, const struct iovec *parts, int num_parts, off_t offset) {
    if (is_last_change()) {
        struct iovec torn = parts[0];
        torn.iov_len = torn.iov_len < torn_bytes ? torn.iov_len : torn_bytes;
        (void)!__real_pwritev(descriptor, &torn, 1, offset);
        _exit(KILLED);
    }
    return __real_pwritev(descriptor, parts, num_parts, offset);
}

int __wrap_ftruncate(int descriptor, off_t size) {
    if (is_last_change()) {
        _exit(KILLED);
    }
    return __real_ftruncate(descriptor, size);
}

int __wrap_fdatasync(int descriptor) {
    if (is_last_change()) {
        _exit(KILLED);
    }
    return __real_fdatasync(descriptor);
}

int __wrap_fsync(int descriptor) {
    if (is_last_change()) {
        _exit(KILLED);
    }
    return __real_fsync(descriptor);
}

int __wrap_rename(const char *source, const char *target) {
    if (is_last_change()) {
        _exit(KILLED);
    }
    return __real_rename(source, target);
}

/* ---- children -------------------------------------------------------------------------------- */

/* Let io_uring_setup answer with that error from now on. False where that cannot be asked for. */
static bool forbid_uring(int error) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof code[0], code};

    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0 &&
           syscall(SYS_io_uring_setup, 1, NULL) == -1 && errno == error;
}

/* Run something in a child; returns its exit status. */
static int in_child(int (*run)(int), int argument) {
    int status = 0;
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        _exit(run(argument));
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* ---- a store whose ring is forbidden --------------------------------------------------------- */

static pkv_status write_standard(const pkv_file_store_config *config, bool *uses_uring) {
    static const int32_t numbers[] = {0, 1, 2};
    static const pkv_block_id slots[] = {3, 1, 4};
    pkv_file_store_info info = {.struct_size = sizeof info};
    struct opened opened;
    pkv_status statuses[3];
    pkv_status status = open_on(&opened, config, NULL);

    if (status != PKV_OK) {
        return status;
    }
    (void)pkv_file_store_get_info(opened.file, &info);
    *uses_uring = info.uses_uring;
    status = write_numbers(&opened, numbers, slots, 3, statuses);
    close_opened(&opened);
    return status;
}

static uint64_t digest_of_file(void) {
    uint64_t digest = UINT64_C(0xcbf29ce484222325);
    FILE *file = fopen(path, "rb");

    assert_non_null(file);
    for (int byte = fgetc(file); byte != EOF; byte = fgetc(file)) {
        digest = (digest ^ (uint64_t)byte) * UINT64_C(0x100000001b3);
    }
    fclose(file);
    return digest;
}

/* 0: written by plain calls; 1: not; 2: one who insists on a ring was not refused. */
static int write_without_ring(int error) {
    pkv_file_store_config config = small_config();
    bool uses_uring = true;

    if (!forbid_uring(error)) {
        return UNFILTERED;
    }
    config.path = path;
    config.uring = PKV_STORE_URING_ON;
    if (write_standard(&config, &uses_uring) != PKV_ERROR_UNSUPPORTED) {
        return 2;
    }
    config.uring = PKV_STORE_URING_AUTO;
    return write_standard(&config, &uses_uring) == PKV_OK && !uses_uring ? 0 : 1;
}

static void forbidden_ring_gives_the_same_file_by_plain_calls(void **state) {
    static const int errors[] = {EPERM, ENOSYS, ENOMEM};
    pkv_file_store_config config = small_config();
    bool uses_uring = false;

    (void)state;
    config.path = path;
    config.uring = PKV_STORE_URING_AUTO; /* with a ring, where there is one */
    assert_int_equal(write_standard(&config, &uses_uring), PKV_OK);
    assert_int_equal(digest_of_file(), STANDARD_DIGEST);
#ifndef PKV_HAVE_URING
    assert_false(uses_uring);
#endif
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        int result;
        (void)unlink(path);
        result = in_child(write_without_ring, errors[i]);
        if (result == UNFILTERED) {
            fprintf(stderr, "SKIPPED: no seccomp filters here\n");
            return;
        }
        assert_int_equal(result, 0);
        assert_int_equal(digest_of_file(), STANDARD_DIGEST);
    }
}

/* ---- a save that is killed ------------------------------------------------------------------- */

/* Save the session whose blocks are first .. first + 3. */
static pkv_status save_session(int32_t first) {
    static const pkv_block_id block_ids[] = {2, 3, 4, 5};
    unsigned char memory[POOL_SIZE];
    pkv_tensor pool = pool_in(memory);
    int32_t token_ids[16];
    pkv_block_key keys[NUM_BLOCKS];
    pkv_session_args args = {.struct_size = sizeof args,
                             .path = path,
                             .block_size = BLOCK_TOKENS,
                             .num_tokens = NUM_TOKENS,
                             .num_blocks = NUM_BLOCKS,
                             .token_ids = token_ids,
                             .keys = keys,
                             .block_ids = block_ids};

    for (int32_t i = 0; i < NUM_BLOCKS; i++) {
        fill_block(&pool, block_ids[i], first + i);
        keys[i] = key_of(first + i);
    }
    for (int32_t i = 0; i < 16; i++) {
        token_ids[i] = first * 10 + i;
    }
    args.blocks = pool;
    return pkv_session_save(&args);
}

/* The session that is found: its first block's number. */
static int32_t restored_session(void) {
    static const pkv_block_id block_ids[] = {7, 1, 6, 3};
    unsigned char memory[POOL_SIZE];
    pkv_tensor pool = pool_in(memory);
    int32_t token_ids[16] = {0};
    pkv_block_key keys[NUM_BLOCKS];
    pkv_session_args args = {.struct_size = sizeof args,
                             .path = path,
                             .num_tokens = NUM_TOKENS,
                             .num_blocks = NUM_BLOCKS,
                             .token_ids = token_ids,
                             .keys = keys,
                             .blocks = pool,
                             .block_ids = block_ids,
                             .error_text = text,
                             .error_size = sizeof text};
    int32_t first;

    text[0] = '\0';
    if (pkv_session_restore(&args) != PKV_OK) {
        fail_msg("%s", text);
    }
    first = token_ids[0] / 10;
    for (int32_t i = 0; i < NUM_BLOCKS; i++) {
        assert_true(block_is(&pool, block_ids[i], first + i));
        assert_true(i == NUM_BLOCKS - 1 || keys[i].lineage == key_of(first + i).lineage);
    }
    for (int32_t i = 0; i < NUM_TOKENS; i++) {
        assert_int_equal(token_ids[i], first * 10 + i);
    }
    return first;
}

/* By plain calls, which are those that are counted. */
static int save_until(int num_changes) {
    if (!forbid_uring(EPERM)) {
        return UNFILTERED;
    }
    changes_left = num_changes;
    return save_session(20) == PKV_OK ? 0 : 1;
}

static void save_killed_at_every_change_leaves_the_old_session_or_the_new(void **state) {
    static const size_t torn[] = {0, 1, 40, 4000};
    int num_old = 0;
    int num_new = 0;

    (void)state;
    for (size_t t = 0; t < sizeof torn / sizeof torn[0]; t++) {
        int result = KILLED;
        torn_bytes = torn[t];
        assert_int_equal(save_session(10), PKV_OK);
        for (int stop = 0; result == KILLED; stop++) {
            int32_t found;
            assert_true(stop < MOST_CHANGES);
            result = in_child(save_until, stop);
            if (result == UNFILTERED) {
                fprintf(stderr, "SKIPPED: no seccomp filters here\n");
                return;
            }
            found = restored_session();
            assert_true(result == KILLED || (result == 0 && found == 20));
            assert_true(found == 10 || found == 20);
            num_old += found == 10;
            num_new += found == 20;
            /* What was left of the save is no hindrance to the next one. */
            assert_int_equal(save_session(10), PKV_OK);
            assert_int_equal(restored_session(), 10);
            assert_int_equal(access(saving, F_OK), -1);
        }
    }
    assert_true(num_old > 4 * 10 && num_new > 4);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(forbidden_ring_gives_the_same_file_by_plain_calls),
        TEST(save_killed_at_every_change_leaves_the_old_session_or_the_new),
    };

    return cmocka_run_group_tests_name("files and the kernel", tests, NULL, NULL);
}
