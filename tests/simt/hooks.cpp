/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* What a compiler calls at each access of a source compiled with -fsanitize=thread. Linked in place
 * of that sanitizer's library, these functions hand the access to the engine instead. */
#include "engine.h"

#include <cstring>

using simt::access;
using simt::site;

#define PKVI_CALLER __builtin_return_address(0)

#define PKVI_HOOKS(size)                                                                           \
    void __tsan_read##size(void *address) {                                                        \
        access(address, size, false, PKVI_CALLER, site{});                                         \
    }                                                                                              \
    void __tsan_write##size(void *address) {                                                       \
        access(address, size, true, PKVI_CALLER, site{});                                          \
    }                                                                                              \
    void __tsan_unaligned_read##size(void *address) {                                              \
        access(address, size, false, PKVI_CALLER, site{});                                         \
    }                                                                                              \
    void __tsan_unaligned_write##size(void *address) {                                             \
        access(address, size, true, PKVI_CALLER, site{});                                          \
    }                                                                                              \
    void __tsan_volatile_read##size(void *address) {                                               \
        access(address, size, false, PKVI_CALLER, site{});                                         \
    }                                                                                              \
    void __tsan_volatile_write##size(void *address) {                                              \
        access(address, size, true, PKVI_CALLER, site{});                                          \
    }                                                                                              \
    void __tsan_read_write##size(void *address) {                                                  \
        access(address, size, false, PKVI_CALLER, site{});                                         \
        access(address, size, true, PKVI_CALLER, site{});                                          \
    }

extern "C" {

PKVI_HOOKS(1)
PKVI_HOOKS(2)
PKVI_HOOKS(4)
PKVI_HOOKS(8)
PKVI_HOOKS(16)

void __tsan_read_range(void *address, size_t size) {
    access(address, size, false, PKVI_CALLER, site{});
}

void __tsan_write_range(void *address, size_t size) {
    access(address, size, true, PKVI_CALLER, site{});
}

void __tsan_init() {
    simt::g_block.is_instrumented = true;
}

void __tsan_func_entry(void *) {
}

void __tsan_func_exit() {
}

void __tsan_vptr_read(void **) {
}

void __tsan_vptr_update(void **, void *) {
}

/* Whether a static of a function is made already: host code. */
uint8_t __tsan_atomic8_load(const volatile uint8_t *address, int) {
    return __atomic_load_n(address, __ATOMIC_ACQUIRE);
}

void *__tsan_memcpy(void *to, const void *from, size_t size) {
    access(from, size, false, PKVI_CALLER, site{});
    access(to, size, true, PKVI_CALLER, site{});
    return memcpy(to, from, size);
}

void *__tsan_memmove(void *to, const void *from, size_t size) {
    access(from, size, false, PKVI_CALLER, site{});
    access(to, size, true, PKVI_CALLER, site{});
    return memmove(to, from, size);
}

void *__tsan_memset(void *to, int byte, size_t size) {
    access(to, size, true, PKVI_CALLER, site{});
    return memset(to, byte, size);
}
}
