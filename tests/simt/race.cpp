/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Watches every access of an instrumented kernel: accesses of shared memory that no barrier puts in
 * an order, reads of what was never written or is still in flight, and accesses that leave the
 * memory of the device.
 *
 * The one idea: each thread has a clock of all threads. An access is ordered behind another if the
 * accessing thread's clock has reached the epoch of the other, whatever order they happened to run
 * in; so one run finds a race that many runs might not show. */
#include "engine.h"

#include <cstdio>
#include <cstring>
#include <dlfcn.h>
#include <link.h>

namespace simt {

namespace {

constexpr uint32_t clock_bits = 20;
constexpr uint32_t clock_mask = (1u << clock_bits) - 1;

uint32_t *clock_of(unsigned which) {
    return &g_block.clocks[static_cast<size_t>(which) * g_block.num_threads];
}

void begin_epoch(unsigned which) {
    uint32_t *clock = clock_of(which);

    if (++clock[which] > clock_mask) {
        fail(site{}, "more barriers in one block than the race detector can count");
    }
}

/* Say whether the epoch is of another thread and not ordered before what `which` does now. */
bool is_unordered(uint32_t epoch, unsigned which) {
    const unsigned other = (epoch >> clock_bits) - 1;

    return epoch != 0 && other != which && clock_of(which)[other] < (epoch & clock_mask);
}

/* "file:line" of an instruction, from addr2line; empty where that is not to be had. */
const char *find_line(const void *program_counter) {
    static char text[256];
    char command[768];
    Dl_info info;
    FILE *output = nullptr;

    text[0] = '\0';
    if (program_counter == nullptr || dladdr(program_counter, &info) == 0 ||
        info.dli_fname == nullptr) {
        return text;
    }
    snprintf(command, sizeof(command), "addr2line -s -e '%s' 0x%zx 2>/dev/null", info.dli_fname,
             static_cast<size_t>(static_cast<const char *>(program_counter) - 1 -
                                 static_cast<const char *>(info.dli_fbase)));
    output = popen(command, "r");
    if (output != nullptr) {
        if (fgets(text, sizeof(text), output) == nullptr) {
            text[0] = '\0';
        }
        pclose(output);
    }
    text[strcspn(text, "\n ")] = '\0';
    return text;
}

const char *describe_place(const void *program_counter, site where) {
    return where.file != nullptr ? describe(where) : find_line(program_counter);
}

/* Data of the program itself: constants, virtual tables. */
bool is_program_data(const char *address) {
    static std::vector<std::pair<const char *, const char *>> parts;

    if (parts.empty()) {
        dl_iterate_phdr(
            [](dl_phdr_info *info, size_t, void *list) {
                for (int i = 0; i < info->dlpi_phnum; i++) {
                    const char *start = reinterpret_cast<const char *>(info->dlpi_addr +
                                                                       info->dlpi_phdr[i].p_vaddr);
                    if (info->dlpi_phdr[i].p_type == PT_LOAD) {
                        static_cast<decltype(parts) *>(list)->push_back(
                            {start, start + info->dlpi_phdr[i].p_memsz});
                    }
                }
                return 0;
            },
            &parts);
    }
    for (const auto &part : parts) {
        if (address >= part.first && address < part.second) {
            return true;
        }
    }
    return false;
}

/* Memory that belongs to the thread or comes with the launch. */
bool is_private(const char *address) {
    const block_state &b = g_block;
    const fiber &stack = b.current->stack;
    const char *call = reinterpret_cast<const char *>(b.call);

    return (address >= stack.stack && address < stack.stack + stack.stack_size) ||
           (address >= call && address < call + b.call->size) || is_program_data(address);
}

void check_global(
    const char *address, size_t size, bool is_write, const void *program_counter, site where) {
    const block_state &b = g_block;

    if (is_private(address)) {
        return;
    }
    if (!simt_get_options()->allows_pageable_access && !is_device_accessible(address, size)) {
        fail(where, "%s of %zu bytes at %p, which is no memory of the device, at %s",
             is_write ? "write" : "read", size, static_cast<const void *>(address),
             describe_place(program_counter, where));
    }
    if (is_forbidden(address, size)) {
        fail(where, "%s of %zu bytes at %p, which is nobody's memory here, at %s",
             is_write ? "write" : "read", size, static_cast<const void *>(address),
             describe_place(program_counter, where));
    }
    if (b.is_dependent && !b.current->has_waited_for_grid) {
        fail(where, "global memory is accessed before wait_for_previous_grid at %s",
             describe_place(program_counter, where));
    }
}

} // namespace

void reset_races() {
    block_state &b = g_block;
    const size_t used = static_cast<size_t>(b.dynamic_base - b.arena) + b.dynamic_bytes;

    b.clocks.assign(static_cast<size_t>(b.num_threads) * b.num_threads, 0);
    for (unsigned i = 0; i < b.num_threads; i++) {
        clock_of(i)[i] = 1;
    }
    b.shadow.assign(used, shadow_byte{});
}

void publish_clock(unsigned which, std::vector<uint32_t> &clock) {
    const uint32_t *own = clock_of(which);

    for (unsigned i = 0; i < g_block.num_threads; i++) {
        clock[i] = std::max(clock[i], own[i]);
    }
    begin_epoch(which);
}

void adopt_clock(unsigned which, const std::vector<uint32_t> &clock) {
    uint32_t *own = clock_of(which);

    for (unsigned i = 0; i < g_block.num_threads; i++) {
        own[i] = std::max(own[i], clock[i]);
    }
}

void join_clocks(const unsigned *members, unsigned num_members) {
    static std::vector<uint32_t> joined;

    joined.assign(g_block.num_threads, 0);
    for (unsigned i = 0; i < num_members; i++) {
        publish_clock(members[i], joined);
    }
    for (unsigned i = 0; i < num_members; i++) {
        adopt_clock(members[i], joined);
    }
}

void set_in_flight(const char *address, size_t size, bool is_in_flight) {
    const size_t offset = static_cast<size_t>(address - g_block.arena);

    for (size_t i = offset; i < offset + size; i++) {
        g_block.shadow[i].is_in_flight = is_in_flight ? 1 : 0;
    }
}

void check_shared(const char *address,
                  size_t size,
                  bool is_write,
                  unsigned which,
                  const void *program_counter,
                  site where) {
    block_state &b = g_block;
    const size_t offset = static_cast<size_t>(address - b.arena);
    const uint32_t epoch = (which + 1) << clock_bits | clock_of(which)[which];

    for (size_t i = 0; i < size; i++) {
        shadow_byte &byte = b.shadow[offset + i];
        uint32_t against = 0;
        const char *kind = is_write ? "write after write" : "read after write";

        if (is_unordered(byte.write, which)) {
            against = byte.write;
        } else if (is_write && is_unordered(byte.reads[0], which)) {
            against = byte.reads[0];
            kind = "write after read";
        } else if (is_write && is_unordered(byte.reads[1], which)) {
            against = byte.reads[1];
            kind = "write after read";
        }
        if (against != 0) {
            fail(where,
                 "shared memory race (%s) on %s: thread %u at %s, no barrier since thread %u", kind,
                 describe_shared(address + i), which, describe_place(program_counter, where),
                 (against >> clock_bits) - 1);
        }
        if (byte.is_in_flight != 0) {
            fail(where, "%s of %s before the copy to it was waited for, at %s",
                 is_write ? "write" : "read", describe_shared(address + i),
                 describe_place(program_counter, where));
        }
        if (!is_write && byte.write == 0) {
            fail(where, "read of %s, which was never written, at %s", describe_shared(address + i),
                 describe_place(program_counter, where));
        }
        if (is_write) {
            byte.write = epoch;
        } else {
            byte.reads[1] =
                (byte.reads[0] >> clock_bits) == which + 1 ? byte.reads[1] : byte.reads[0];
            byte.reads[0] = epoch;
        }
    }
}

void access(
    const void *address, size_t size, bool is_write, const void *program_counter, site where) {
    block_state &b = g_block;
    const char *at = static_cast<const char *>(address);

    if (b.current == nullptr) {
        return;
    }
    if (at >= b.arena && at < b.arena + b.arena_size) {
        b.counts.num_shared_accesses++;
        if (!is_in_shared(at, size)) {
            fail(where, "shared memory: %s of %zu bytes out of bounds at %s: %s",
                 is_write ? "write" : "read", size, describe_place(program_counter, where),
                 describe_shared(at));
        }
        if (b.checks_races) {
            check_shared(at, size, is_write, b.current->linear, program_counter, where);
        }
    } else {
        check_global(at, size, is_write, program_counter, where);
    }
    if (b.preempt_mask != 0) {
        b.random ^= b.random << 13;
        b.random ^= b.random >> 7;
        b.random ^= b.random << 17;
        if ((static_cast<uint32_t>(b.random >> 16) & b.preempt_mask) == 0) {
            yield();
        }
    }
}

void note_access(const void *address, size_t size, bool is_write, site where) {
    if (g_block.is_instrumented) {
        access(address, size, is_write, nullptr, where);
    }
}

} // namespace simt
