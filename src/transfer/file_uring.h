/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* A ring of requests to the kernel, by raw system calls: push, enter, pop. Where the build or the
 * kernel has no io_uring, opening says so and nothing else is ever called.
 *
 * The one idea: there are never more requests under way than the ring was opened for, so that no
 * push fails and no completion is dropped. */
#ifndef PKVI_TRANSFER_FILE_URING_H
#define PKVI_TRANSFER_FILE_URING_H

#include <pagedkv/base.h>

#include <sys/uio.h>

struct pkvi_uring {
    int descriptor;
    unsigned num_pushed; /* since the last enter */
    unsigned char *submissions, *completions;
    size_t submissions_size, completions_size, requests_size;
    void *requests;
    unsigned *submission_tail, *submission_mask, *submission_array;
    unsigned *completion_head, *completion_tail, *completion_mask;
    void *completion_entries;
};

/* Returns 0 or a negative errno. */
int pkvi_uring_open(struct pkvi_uring *ring, unsigned num_entries);
void pkvi_uring_close(struct pkvi_uring *ring);

/* `parts` stay where they are until the completion with this number was popped. */
void pkvi_uring_push(struct pkvi_uring *ring,
                     bool is_write,
                     int descriptor,
                     const struct iovec *parts,
                     int num_parts,
                     int64_t offset,
                     uint64_t number);
void pkvi_uring_push_sync(struct pkvi_uring *ring, int descriptor, uint64_t number);

/* Hand over what was pushed; with `wait`, return when a completion is there. */
void pkvi_uring_enter(struct pkvi_uring *ring, bool wait);

/* Take one completion; false where there is none. `result` is as of file_io.h. */
bool pkvi_uring_pop(struct pkvi_uring *ring, uint64_t *number, int64_t *result);

#endif
