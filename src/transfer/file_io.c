/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The calls of the system behind file_io.h. */
#define _GNU_SOURCE /* O_DIRECT, preadv, flock */

#include "transfer/file_io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static int64_t or_error(int64_t result) {
    return result < 0 ? -(int64_t)errno : result;
}

static int descriptor_of(const struct pkvi_file *file, bool is_data) {
    return is_data ? file->data_descriptor : file->descriptor;
}

static int64_t read_parts(
    void *context, bool is_data, const struct iovec *parts, int num_parts, int64_t offset) {
    return or_error(preadv(descriptor_of(context, is_data), parts, num_parts, offset));
}

static int64_t write_parts(
    void *context, bool is_data, const struct iovec *parts, int num_parts, int64_t offset) {
    return or_error(pwritev(descriptor_of(context, is_data), parts, num_parts, offset));
}

static int64_t sync_file(void *context) {
    int result;

    do {
        result = fdatasync(((struct pkvi_file *)context)->descriptor);
    } while (result < 0 && errno == EINTR);
    return or_error(result);
}

static int64_t get_size(void *context) {
    struct stat status;

    return fstat(((struct pkvi_file *)context)->descriptor, &status) < 0 ? -(int64_t)errno
                                                                         : status.st_size;
}

static int64_t set_size(void *context, int64_t size) {
    int result;

    do {
        result = ftruncate(((struct pkvi_file *)context)->descriptor, size);
    } while (result < 0 && errno == EINTR);
    return or_error(result);
}

static void close_file(void *context) {
    struct pkvi_file *file = context;

    if (file->data_descriptor != file->descriptor) {
        (void)close(file->data_descriptor);
    }
    (void)close(file->descriptor); /* which ends the lock */
}

int pkvi_file_open(struct pkvi_file *file, const char *path, bool may_create, bool direct) {
    struct stat status;
    int error = 0;

    file->descriptor = open(path, O_RDWR | O_CLOEXEC | (may_create ? O_CREAT : 0), 0600);
    if (file->descriptor < 0) {
        return -errno;
    }
    file->data_descriptor = file->descriptor;
    if (fstat(file->descriptor, &status) < 0 || !S_ISREG(status.st_mode)) {
        error = EINVAL;
    } else if (flock(file->descriptor, LOCK_EX | LOCK_NB) < 0) {
        error = errno;
    }
    if (error == 0 && direct) {
#ifdef O_DIRECT
        file->data_descriptor = open(path, O_RDWR | O_CLOEXEC | O_DIRECT);
        error = file->data_descriptor < 0 ? errno : 0;
#else
        error = EINVAL;
#endif
    }
    if (error != 0) {
        (void)close(file->descriptor);
    }
    return -error;
}

struct pkvi_file_io pkvi_file_get_io(struct pkvi_file *file) {
    return (struct pkvi_file_io){.context = file,
                                 .read = read_parts,
                                 .write = write_parts,
                                 .sync = sync_file,
                                 .get_size = get_size,
                                 .set_size = set_size,
                                 .close = close_file};
}

int64_t pkvi_file_write_all(const struct pkvi_file_io *io,
                            const void *bytes,
                            int64_t size,
                            int64_t offset) {
    /* writev takes a pointer that is not const, and does not write through it. */
    unsigned char *at = (unsigned char *)(uintptr_t)bytes;

    while (size > 0) {
        struct iovec part = {at, (size_t)size};
        int64_t result = io->write(io->context, false, &part, 1, offset);

        if (result == -EINTR || result == -EAGAIN) {
            continue;
        }
        if (result <= 0) {
            return result < 0 ? result : -ENOSPC;
        }
        at += result;
        offset += result;
        size -= result;
    }
    return 0;
}

int64_t pkvi_file_read_all(
    const struct pkvi_file_io *io, void *bytes, int64_t size, int64_t offset, int64_t *num_read) {
    unsigned char *at = bytes;

    *num_read = 0;
    while (*num_read < size) {
        struct iovec part = {at + *num_read, (size_t)(size - *num_read)};
        int64_t result = io->read(io->context, false, &part, 1, offset + *num_read);

        if (result == -EINTR || result == -EAGAIN) {
            continue;
        }
        if (result < 0) {
            return result;
        }
        if (result == 0) {
            break;
        }
        *num_read += result;
    }
    return 0;
}

const char *pkvi_file_error(int64_t result, char text[96]) {
    static const struct {
        int number;
        const char *text;
    } known[] = {{ENOSPC, "no space left on the device"},
                 {EIO, "input/output error"},
                 {EACCES, "permission denied"},
                 {ENOENT, "no such file or folder"},
                 {EROFS, "read-only file system"},
                 {EINVAL, "refused by the file system"},
                 {EDQUOT, "quota exceeded"},
                 {EFBIG, "file too large"},
                 {EOPNOTSUPP, "not supported here"}};

    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (result == -known[i].number) {
            return known[i].text;
        }
    }
    (void)snprintf(text, 96, "system error %d", (int)-result);
    return text;
}

int64_t pkvi_file_replace(const char *source, const char *target) {
    char folder[4096];
    const char *slash = strrchr(target, '/');
    size_t length = slash == NULL ? 0 : (size_t)(slash - target) + 1;
    int descriptor;
    int64_t result;

    if (length + 2 > sizeof folder) {
        return -ENAMETOOLONG;
    }
    memcpy(folder, target, length);
    memcpy(folder + length, ".", 2);
    if (rename(source, target) < 0) {
        return -errno;
    }
    descriptor = open(folder, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) {
        return -errno;
    }
    result = or_error(fsync(descriptor));
    (void)close(descriptor);
    return result == -EINVAL ? 0 : result; /* some file systems sync no folders */
}

void pkvi_file_remove(const char *path) {
    (void)unlink(path);
}
