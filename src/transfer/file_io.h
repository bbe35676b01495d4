/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* What the file store asks of a system: a few calls on one open file, as a table, so that tests can
 * put a disk that fails in its place. Nothing is known of blocks here.
 *
 * The one idea: every call returns at least 0 or a negative errno, and may do less than asked; the
 * loops that finish the work are in one place. */
#ifndef PKVI_TRANSFER_FILE_IO_H
#define PKVI_TRANSFER_FILE_IO_H

#include <pagedkv/base.h>

#include <sys/uio.h>

/* `is_data`: this part of the file is read and written past the page cache where that was asked
 * for; headers and index never are. */
struct pkvi_file_io {
    void *context;
    int64_t (*read)(
        void *context, bool is_data, const struct iovec *parts, int num_parts, int64_t offset);
    int64_t (*write)(
        void *context, bool is_data, const struct iovec *parts, int num_parts, int64_t offset);
    int64_t (*sync)(void *context);
    int64_t (*get_size)(void *context);
    int64_t (*set_size)(void *context, int64_t size);
    void (*close)(void *context);
};

/* A file of the system, locked against other openers. */
struct pkvi_file {
    int descriptor;      /* through the page cache */
    int data_descriptor; /* O_DIRECT, or the same */
};

/* Open a file. Returns 0 or a negative errno: -EWOULDBLOCK where somebody else has it open, -EINVAL
 * where O_DIRECT is refused. */
int pkvi_file_open(struct pkvi_file *file, const char *path, bool may_create, bool direct);
struct pkvi_file_io pkvi_file_get_io(struct pkvi_file *file);

/* Write everything, or everything that is there to read; interruptions and short transfers are
 * resumed. `*num_read` is less than `size` only at the end of the file. */
int64_t pkvi_file_write_all(const struct pkvi_file_io *io,
                            const void *bytes,
                            int64_t size,
                            int64_t offset);
int64_t pkvi_file_read_all(
    const struct pkvi_file_io *io, void *bytes, int64_t size, int64_t offset, int64_t *num_read);

/* Text of a negative errno, in `text`. Needs no locale and no static buffer. */
const char *pkvi_file_error(int64_t result, char text[96]);

/* Move `source` over `target` and make that durable. Returns 0 or a negative errno. */
int64_t pkvi_file_replace(const char *source, const char *target);
void pkvi_file_remove(const char *path);

#endif
