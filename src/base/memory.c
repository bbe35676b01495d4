/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Carving, allocation, struct_size and error texts; see memory.h. */
#include "base/memory.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *pkvi_carve(struct pkvi_carver *carver, size_t count, size_t element_size) {
    size_t start = carver->offset;
    size_t size;

    if (carver->overflowed || (element_size != 0 && count > SIZE_MAX / element_size)) {
        carver->overflowed = true;
        return NULL;
    }
    size = count * element_size;
    if (size > SIZE_MAX - (PKVI_ALIGNMENT - 1) - start) {
        carver->overflowed = true;
        return NULL;
    }
    size = (size + PKVI_ALIGNMENT - 1) / PKVI_ALIGNMENT * PKVI_ALIGNMENT;
    carver->offset = start + size;
    return carver->base == NULL ? NULL : carver->base + start;
}

void *pkvi_allocate(const pkv_allocator *allocator, size_t size) {
    if (allocator->allocate != NULL) {
        return allocator->allocate(allocator->context, size, PKVI_ALIGNMENT);
    }
    /* aligned_alloc wants a multiple of the alignment; the carver only hands out such sizes. */
    return aligned_alloc(PKVI_ALIGNMENT, size);
}

void pkvi_release(const pkv_allocator *allocator, void *memory, size_t size) {
    if (allocator->release != NULL) {
        allocator->release(allocator->context, memory, size);
        return;
    }
    free(memory);
}

bool pkvi_allocator_is_valid(const pkv_allocator *allocator) {
    return (allocator->allocate == NULL) == (allocator->release == NULL);
}

pkv_status pkvi_read_struct(void *target, size_t own_size, size_t least_size, const void *source) {
    uint32_t size;
    size_t known;

    if (source == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    memcpy(&size, source, sizeof size);
    if (size < least_size) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    for (size_t i = own_size; i < size; i++) {
        if (((const unsigned char *)source)[i] != 0) {
            return PKV_ERROR_UNSUPPORTED;
        }
    }
    known = size < own_size ? size : own_size;
    memcpy(target, source, known);
    memset((unsigned char *)target + known, 0, own_size - known);
    return PKV_OK;
}

pkv_status pkvi_write_struct(void *target, const void *source, size_t own_size, size_t least_size) {
    uint32_t size;
    size_t known;

    if (target == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    memcpy(&size, target, sizeof size);
    if (size < least_size) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    known = size < own_size ? size : own_size;
    memcpy((unsigned char *)target + sizeof size, (const unsigned char *)source + sizeof size,
           known - sizeof size);
    return PKV_OK;
}

pkv_status pkvi_fail(struct pkvi_error_text *error, pkv_status status, const char *format, ...) {
    va_list arguments;

    va_start(arguments, format);
    (void)vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
    return status;
}
