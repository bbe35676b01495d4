/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* io_uring by raw system calls; see file_uring.h. */
#define _GNU_SOURCE /* syscall, mmap */

#include "transfer/file_uring.h"

#include <errno.h>
#include <string.h>

#if defined(PKV_HAVE_URING)

#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static void *map(int descriptor, size_t size, uint64_t offset) {
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, (off_t)offset);

    return memory == MAP_FAILED ? NULL : memory;
}

static void unmap(void *memory, size_t size) {
    if (memory != NULL) {
        (void)munmap(memory, size);
    }
}

static bool map_rings(struct pkvi_uring *ring, const struct io_uring_params *params) {
    ring->submissions_size = params->sq_off.array + params->sq_entries * sizeof(unsigned);
    ring->completions_size = params->cq_off.cqes + params->cq_entries * sizeof(struct io_uring_cqe);
    ring->requests_size = params->sq_entries * sizeof(struct io_uring_sqe);
    ring->submissions = map(ring->descriptor, ring->submissions_size, IORING_OFF_SQ_RING);
    ring->completions = map(ring->descriptor, ring->completions_size, IORING_OFF_CQ_RING);
    ring->requests = map(ring->descriptor, ring->requests_size, IORING_OFF_SQES);
    if (ring->submissions == NULL || ring->completions == NULL || ring->requests == NULL) {
        return false;
    }
    /* The kernel's offsets are multiples of four into mappings of whole pages. */
    ring->submission_tail = (void *)(ring->submissions + params->sq_off.tail);
    ring->submission_mask = (void *)(ring->submissions + params->sq_off.ring_mask);
    ring->submission_array = (void *)(ring->submissions + params->sq_off.array);
    ring->completion_head = (void *)(ring->completions + params->cq_off.head);
    ring->completion_tail = (void *)(ring->completions + params->cq_off.tail);
    ring->completion_mask = (void *)(ring->completions + params->cq_off.ring_mask);
    ring->completion_entries = ring->completions + params->cq_off.cqes;
    return true;
}

int pkvi_uring_open(struct pkvi_uring *ring, unsigned num_entries) {
    struct io_uring_params params;

    memset(ring, 0, sizeof *ring);
    memset(&params, 0, sizeof params);
    ring->descriptor = (int)syscall(__NR_io_uring_setup, num_entries, &params);
    if (ring->descriptor < 0) {
        return -errno;
    }
    if (!map_rings(ring, &params)) {
        pkvi_uring_close(ring);
        return -ENOMEM;
    }
    return 0;
}

void pkvi_uring_close(struct pkvi_uring *ring) {
    unmap(ring->submissions, ring->submissions_size);
    unmap(ring->completions, ring->completions_size);
    unmap(ring->requests, ring->requests_size);
    (void)close(ring->descriptor);
}

static struct io_uring_sqe *begin_push(struct pkvi_uring *ring, uint64_t number) {
    unsigned index = *ring->submission_tail & *ring->submission_mask;
    struct io_uring_sqe *request = (struct io_uring_sqe *)ring->requests + index;

    memset(request, 0, sizeof *request);
    request->user_data = number;
    ring->submission_array[index] = index;
    ring->num_pushed++;
    return request;
}

/* The kernel may read the request from here on. */
static void end_push(struct pkvi_uring *ring) {
    __atomic_store_n(ring->submission_tail, *ring->submission_tail + 1, __ATOMIC_RELEASE);
}

void pkvi_uring_push(struct pkvi_uring *ring,
                     bool is_write,
                     int descriptor,
                     const struct iovec *parts,
                     int num_parts,
                     int64_t offset,
                     uint64_t number) {
    struct io_uring_sqe *request = begin_push(ring, number);

    request->opcode = is_write ? IORING_OP_WRITEV : IORING_OP_READV;
    request->fd = descriptor;
    request->addr = (uint64_t)(uintptr_t)parts;
    request->len = (uint32_t)num_parts;
    request->off = (uint64_t)offset;
    end_push(ring);
}

void pkvi_uring_push_sync(struct pkvi_uring *ring, int descriptor, uint64_t number) {
    struct io_uring_sqe *request = begin_push(ring, number);

    request->opcode = IORING_OP_FSYNC;
    request->fd = descriptor;
    request->fsync_flags = IORING_FSYNC_DATASYNC;
    end_push(ring);
}

void pkvi_uring_enter(struct pkvi_uring *ring, bool wait) {
    while (ring->num_pushed > 0 || wait) {
        long result = syscall(__NR_io_uring_enter, ring->descriptor, ring->num_pushed, wait ? 1 : 0,
                              wait ? IORING_ENTER_GETEVENTS : 0, NULL, 0);

        if (result >= 0) {
            ring->num_pushed -= (unsigned)result;
            wait = false;
        } else if (errno != EINTR) {
            /* EAGAIN, EBUSY: the kernel is short of memory; what is under way comes first. */
            return;
        }
    }
}

bool pkvi_uring_pop(struct pkvi_uring *ring, uint64_t *number, int64_t *result) {
    unsigned head = *ring->completion_head;
    const struct io_uring_cqe *entry;

    if (head == __atomic_load_n(ring->completion_tail, __ATOMIC_ACQUIRE)) {
        return false;
    }
    entry = (const struct io_uring_cqe *)ring->completion_entries + (head & *ring->completion_mask);
    *number = entry->user_data;
    *result = entry->res;
    __atomic_store_n(ring->completion_head, head + 1, __ATOMIC_RELEASE);
    return true;
}

#else

int pkvi_uring_open(struct pkvi_uring *ring, unsigned num_entries) {
    (void)num_entries;
    memset(ring, 0, sizeof *ring);
    return -ENOSYS;
}

void pkvi_uring_close(struct pkvi_uring *ring) {
    (void)ring;
}

void pkvi_uring_push(struct pkvi_uring *ring,
                     bool is_write,
                     int descriptor,
                     const struct iovec *parts,
                     int num_parts,
                     int64_t offset,
                     uint64_t number) {
    (void)ring, (void)is_write, (void)descriptor, (void)parts, (void)num_parts, (void)offset;
    (void)number;
}

void pkvi_uring_push_sync(struct pkvi_uring *ring, int descriptor, uint64_t number) {
    (void)ring, (void)descriptor, (void)number;
}

void pkvi_uring_enter(struct pkvi_uring *ring, bool wait) {
    (void)ring, (void)wait;
}

bool pkvi_uring_pop(struct pkvi_uring *ring, uint64_t *number, int64_t *result) {
    (void)ring, (void)number, (void)result;
    return false;
}

#endif
