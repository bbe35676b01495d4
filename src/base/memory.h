/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* One allocation per object: a carver that lays arrays out in one block of memory, the allocator
 * calls, the rules of struct_size, and the buffer of last-error texts. No object's layout is here.
 *
 * The one idea: the same function carves twice, once without memory to learn the size and once to
 * place the arrays, so that size and layout cannot disagree. */
#ifndef PKVI_BASE_MEMORY_H
#define PKVI_BASE_MEMORY_H

#include <pagedkv/base.h>

#include "base/check.h"

/* Every object and every large array starts on a cache line. */
#define PKVI_ALIGNMENT 64

/* Offset only grows; once a size overflowed, `overflowed` stays true and nothing is placed. */
struct pkvi_carver {
    unsigned char *base; /* NULL: measure only */
    size_t offset;
    bool overflowed;
};

/* Reserve `count` elements of `element_size` bytes on a cache-line boundary.
 * Returns NULL while measuring. */
void *pkvi_carve(struct pkvi_carver *carver, size_t count, size_t element_size);

/* Allocate through the hooks, or malloc where they are zero. NULL when refused. */
void *pkvi_allocate(const pkv_allocator *allocator, size_t size);
void pkvi_release(const pkv_allocator *allocator, void *memory, size_t size);

/* Whether an object of `needed` bytes, 0 for one that no size_t holds, can be laid out there. */
static inline bool pkvi_memory_fits(const void *memory, size_t size, size_t needed) {
    return memory != NULL && (uintptr_t)memory % PKVI_ALIGNMENT == 0 && needed != 0 &&
           size >= needed;
}

/* Whether an allocator has both functions or neither. */
bool pkvi_allocator_is_valid(const pkv_allocator *allocator);

/* Read a caller's struct whose first member is a uint32_t struct_size into `target`, whose size is
 * `own_size`: what the caller does not have reads as zero.
 * Returns PKV_ERROR_INVALID_ARGUMENT for NULL or a size below `least_size`, PKV_ERROR_UNSUPPORTED
 * for a non-zero byte behind what the library knows. */
pkv_status pkvi_read_struct(void *target, size_t own_size, size_t least_size, const void *source);

/* Whether a caller's struct, which may be of an older header, has `member`. */
#define PKVI_HAS_MEMBER(source, member)                                                            \
    ((source)->struct_size >=                                                                      \
     (size_t)((const char *)(&(source)->member + 1) - (const char *)(source)))

/* Tell the log of a configuration, where the caller has one, why it is refused. */
#define PKVI_LOG_REFUSED(config, reason)                                                           \
    do {                                                                                           \
        if ((config) != NULL && PKVI_HAS_MEMBER(config, log_context) && (config)->log != NULL) {   \
            (config)->log((config)->log_context, PKV_LOG_ERROR, (reason));                         \
        }                                                                                          \
    } while (0)

/* Write as much of `source` into a caller's struct as its struct_size has room for; the struct_size
 * itself stays. PKV_ERROR_INVALID_ARGUMENT for NULL or a size below `least_size`. */
pkv_status pkvi_write_struct(void *target, const void *source, size_t own_size, size_t least_size);

/* Text of the last failing call of an object. */
struct pkvi_error_text {
    char text[256];
};

/* Note why a call fails. Returns `status`, so that a guard is one statement. */
pkv_status pkvi_fail(struct pkvi_error_text *error, pkv_status status, const char *format, ...)
    PKVI_PRINTF(3, 4);

#endif
