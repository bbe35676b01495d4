/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The shared memory of the block and the asynchronous copies into it (engine.h).
 *
 * The one idea: whatever a kernel may not rely on is made as wrong as it can be. Fresh memory and
 * the destination of a copy in flight hold bytes of 0xff, which are NaN in every floating type. */
#include "engine.h"

#include "sanitizer.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace simt {

namespace {

constexpr size_t guard_bytes = 4096;
constexpr size_t max_static_bytes = 48 * 1024;

size_t round_up(size_t value, size_t unit) {
    return (value + unit - 1) / unit * unit;
}

} // namespace

void prepare_arena(size_t dynamic_bytes) {
    block_state &b = g_block;
    const size_t size =
        guard_bytes + max_static_bytes + guard_bytes + round_up(dynamic_bytes, 1024) + guard_bytes;

    if (b.arena_size < size) {
        void *memory = nullptr;
        if (b.arena != nullptr) {
            ASAN_UNPOISON_MEMORY_REGION(b.arena, b.arena_size);
            free(b.arena);
        }
        if (posix_memalign(&memory, 1024, size) != 0) {
            abort();
        }
        b.arena = static_cast<char *>(memory);
        b.arena_size = size;
    }
    b.static_base = b.arena + guard_bytes;
    b.dynamic_base = b.static_base + max_static_bytes + guard_bytes;
}

void reset_arena() {
    block_state &b = g_block;
    char *dynamic_end = b.dynamic_base + b.dynamic_bytes;

    ASAN_UNPOISON_MEMORY_REGION(b.arena, b.arena_size);
    memset(b.static_base, 0xff, b.static_used);
    memset(b.dynamic_base, 0xff, b.dynamic_bytes);
    ASAN_POISON_MEMORY_REGION(b.arena, static_cast<size_t>(b.dynamic_base - b.arena));
    ASAN_POISON_MEMORY_REGION(dynamic_end,
                              static_cast<size_t>(b.arena + b.arena_size - dynamic_end));
    b.static_slots.clear();
    b.static_used = 0;
}

unsigned char *dynamic_shared() {
    return reinterpret_cast<unsigned char *>(g_block.dynamic_base);
}

void *static_shared(const void *key, size_t size, size_t alignment) {
    block_state &b = g_block;
    const auto found = b.static_slots.find(key);
    size_t offset = 0;

    if (found != b.static_slots.end()) {
        return found->second;
    }
    offset = round_up(b.static_used, std::max<size_t>(alignment, 16));
    if (offset + size > max_static_bytes) {
        fail(site{}, "static shared memory: more than 48 KiB");
    }
    ASAN_UNPOISON_MEMORY_REGION(b.static_base + offset, size);
    memset(b.static_base + offset, 0xff, size);
    b.static_used = offset + size;
    return b.static_slots[key] = b.static_base + offset;
}

bool is_in_shared(const void *address, size_t size) {
    const block_state &b = g_block;
    const char *at = static_cast<const char *>(address);

    return (at >= b.dynamic_base && at + size <= b.dynamic_base + b.dynamic_bytes) ||
           (at >= b.static_base && at + size <= b.static_base + b.static_used);
}

const char *describe_shared(const void *address) {
    static char text[96];
    const block_state &b = g_block;
    const char *at = static_cast<const char *>(address);
    const bool is_dynamic = at >= b.dynamic_base - guard_bytes / 2;

    snprintf(text, sizeof(text), "byte %td of %s shared memory (%zu bytes)",
             at - (is_dynamic ? b.dynamic_base : b.static_base), is_dynamic ? "dynamic" : "static",
             is_dynamic ? b.dynamic_bytes : b.static_used);
    return text;
}

/* ---- Copies in flight */

void begin_copy(void *shared, const void *global, int size, int num_bytes, site where) {
    block_state &b = g_block;
    thread &self = *b.current;
    const size_t bytes = static_cast<size_t>(size);
    volatile char touched = 0;

    if (reinterpret_cast<uintptr_t>(shared) % bytes != 0 ||
        reinterpret_cast<uintptr_t>(global) % bytes != 0) {
        fail(where, "asynchronous copy: %p to %p is not aligned to %d bytes", global, shared, size);
    }
    if (!is_in_shared(shared, bytes)) {
        fail(where, "asynchronous copy: the destination is outside of shared memory");
    }
    if (num_bytes < 0 || num_bytes > size || is_in_shared(global, 1)) {
        fail(where, "asynchronous copy: %d of %d bytes, from %s memory", num_bytes, size,
             is_in_shared(global, 1) ? "shared" : "global");
    }
    if (num_bytes > 0) {
        note_access(global, static_cast<size_t>(num_bytes), false, where);
    }
    /* Read now as well: a wrong source is reported at the line that names it. */
    for (int i = 0; i < num_bytes; i++) {
        touched = static_cast<const char *>(global)[i];
    }
    (void)touched;
    if (b.checks_races) {
        check_shared(static_cast<char *>(shared), bytes, true, self.linear, nullptr, where);
        set_in_flight(static_cast<char *>(shared), bytes, true);
    }
    memset(shared, 0xff, bytes);
    self.copies.push_back(pending_copy{static_cast<char *>(shared),
                                       static_cast<const char *>(global), size, num_bytes,
                                       self.group, where});
    b.counts.num_async_copies++;
}

void commit_copies() {
    g_block.current->group++;
}

void wait_copies(int num_pending) {
    block_state &b = g_block;
    thread &self = *b.current;
    size_t num_left = 0;

    for (const pending_copy &copy : self.copies) {
        if (copy.group >= self.group - num_pending) {
            self.copies[num_left++] = copy;
            continue;
        }
        const size_t num_bytes = static_cast<size_t>(copy.num_bytes);
        const size_t size = static_cast<size_t>(copy.size);
        if (num_bytes > 0) {
            memcpy(copy.shared, copy.global, num_bytes);
        }
        memset(copy.shared + num_bytes, 0, size - num_bytes);
        if (b.checks_races) {
            set_in_flight(copy.shared, size, false);
            check_shared(copy.shared, size, true, self.linear, nullptr, copy.where);
        }
    }
    self.copies.resize(num_left);
}

} // namespace simt
