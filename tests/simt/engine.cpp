/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Runs a grid block by block, chooses which thread runs next, and takes errors (engine.h). */
#include "runtime.h"

#include "sanitizer.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <unordered_map>

uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace simt {

block_state g_block;

namespace {

std::string g_error;
std::unordered_map<const void *, int64_t> g_matrix_loads; /* of each kernel that ran */

uint64_t environment_number(const char *name) {
    const char *text = getenv(name);

    return text == nullptr ? 0 : strtoull(text, nullptr, 10);
}

simt_options default_options() {
    simt_options options = {};

    options.seed = environment_number("PKV_SIMT_SEED");
    options.is_reversed = environment_number("PKV_SIMT_REVERSE") != 0;
    options.preempt_log2 = static_cast<int>(environment_number("PKV_SIMT_PREEMPT"));
    options.is_quiet = environment_number("PKV_SIMT_QUIET") != 0;
    return options;
}

uint64_t next_random(uint64_t &state) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state >> 16;
}

uint64_t seed_random(uint64_t seed) {
    const uint64_t state = (seed + 1) * 0x9e3779b97f4a7c15ull;

    return state == 0 ? 1 : state;
}

} // namespace

/* ---- Errors */

const char *describe(site where) {
    static char texts[8][256];
    static unsigned next = 0;
    char *text = texts[next++ % 8];
    const char *name = where.file == nullptr ? nullptr : strrchr(where.file, '/');

    if (where.file == nullptr) {
        return "an unknown place";
    }
    snprintf(text, sizeof(texts[0]), "%s:%d", name == nullptr ? where.file : name + 1, where.line);
    return text;
}

void record_error(const char *message) {
    if (g_error.empty()) {
        g_error = message;
        if (!simt_get_options()->is_quiet) {
            fprintf(stderr, "[simt] ERROR %s\n", message);
        }
    }
}

void clear_recorded_error() {
    g_error.clear();
}

void fail(site where, const char *format, ...) {
    block_state &b = g_block;
    char message[1536];
    int length = 0;
    va_list arguments;

    if (b.current != nullptr) {
        length = snprintf(message, sizeof(message), "block (%u,%u,%u) thread (%u,%u,%u) seed %llu",
                          blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z,
                          static_cast<unsigned long long>(simt_get_options()->seed));
    }
    if (where.file != nullptr) {
        length += snprintf(message + length, sizeof(message) - static_cast<size_t>(length),
                           " at %s", describe(where));
    }
    length += snprintf(message + length, sizeof(message) - static_cast<size_t>(length), ": ");
    va_start(arguments, format);
    vsnprintf(message + length, sizeof(message) - static_cast<size_t>(length), format, arguments);
    va_end(arguments);
    record_error(message);
    if (b.current == nullptr) {
        fprintf(stderr, "[simt] outside of a kernel: %s\n", message);
        abort();
    }
    b.has_failed = true;
    fiber_switch(b.current->stack, b.starter, false);
    abort();
}

bool has_mistake(pkvi_mistake which) {
    return simt_get_options()->mistake == static_cast<int>(which);
}

/* ---- Who runs */

void make_ready(thread &which) {
    which.state = thread_state::ready;
    g_block.ready.push_back(static_cast<uint16_t>(which.linear));
}

namespace {

/* Take the thread that runs next from those that are ready; nullptr: none is. */
thread *choose_thread() {
    block_state &b = g_block;
    uint16_t chosen = 0;

    if (b.ready.size() == b.first_ready) {
        return nullptr;
    }
    if (simt_get_options()->seed != 0) {
        const size_t num_ready = b.ready.size() - b.first_ready;
        std::swap(b.ready[b.first_ready + next_random(b.random) % num_ready], b.ready.back());
    }
    if (simt_get_options()->seed != 0 || simt_get_options()->is_reversed) {
        chosen = b.ready.back();
        b.ready.pop_back();
        return &b.threads[chosen];
    }
    chosen = b.ready[b.first_ready++];
    if (b.first_ready == b.ready.size() || b.first_ready > 4096) {
        b.ready.erase(b.ready.begin(), b.ready.begin() + static_cast<ptrdiff_t>(b.first_ready));
        b.first_ready = 0;
    }
    return &b.threads[chosen];
}

void switch_to(thread &from, thread *to, bool is_last) {
    block_state &b = g_block;

    b.counts.num_switches++;
    if (to != nullptr) {
        b.current = to;
        threadIdx = to->index;
    }
    fiber_switch(from.stack, to == nullptr ? b.starter : to->stack, is_last);
}

void run_thread() {
    fiber_arrive();
    thread &self = *g_block.current;

    g_block.call->run();
    if (!self.copies.empty()) {
        fail(self.copies[0].where, "the thread exits with %zu asynchronous copies in flight",
             self.copies.size());
    }
    self.state = thread_state::exited;
    note_exit(self);
    run_another(true);
    abort();
}

} // namespace

void run_another(bool is_last) {
    block_state &b = g_block;
    thread &self = *b.current;
    thread *next = choose_thread();

    if (next == nullptr && b.num_exited < b.num_threads) {
        report_deadlock();
    }
    if (next != &self) {
        switch_to(self, next, is_last);
    }
}

void yield() {
    make_ready(*g_block.current);
    run_another(false);
}

/* ---- Blocks and grids */

namespace {

void prepare_threads() {
    block_state &b = g_block;

    if (b.threads.size() < b.num_threads) {
        b.threads.resize(b.num_threads);
    }
    for (unsigned i = 0; i < b.num_threads; i++) {
        thread &which = b.threads[i];
        if (which.stack.stack == nullptr) {
            fiber_create(which.stack);
        }
        which.linear = i;
        which.index =
            make_uint3(i % b.block.x, i / b.block.x % b.block.y, i / b.block.x / b.block.y);
        which.has_waited_for_grid = false;
        which.copies.clear();
        which.group = 0;
        fiber_restart(which.stack, run_thread);
        make_ready(which);
    }
}

void run_block(uint64_t block_index) {
    block_state &b = g_block;

    blockIdx = make_uint3(static_cast<unsigned>(block_index % b.grid.x),
                          static_cast<unsigned>(block_index / b.grid.x % b.grid.y),
                          static_cast<unsigned>(block_index / b.grid.x / b.grid.y));
    blockDim = make_uint3(b.block.x, b.block.y, b.block.z);
    gridDim = make_uint3(b.grid.x, b.grid.y, b.grid.z);
    b.num_exited = 0;
    b.ready.clear();
    b.first_ready = 0;
    reset_barriers();
    reset_arena();
    if (b.checks_races) {
        reset_races();
    }
    prepare_threads();
    b.counts.num_blocks++;
    b.current = choose_thread();
    threadIdx = b.current->index;
    fiber_switch(b.starter, b.current->stack, false);
    b.current = nullptr;
}

bool is_valid_shape(const launch_shape &shape, size_t shared_limit) {
    const uint64_t num_threads =
        static_cast<uint64_t>(shape.block.x) * shape.block.y * shape.block.z;
    const uint64_t num_blocks = static_cast<uint64_t>(shape.grid.x) * shape.grid.y * shape.grid.z;

    return num_threads > 0 && num_threads <= max_threads && shape.block.z <= 64 && num_blocks > 0 &&
           shape.grid.x <= 0x7fffffffu && shape.grid.y <= 65535 && shape.grid.z <= 65535 &&
           shape.shared_bytes <= shared_limit;
}

/* The blocks in the order in which they run. */
std::vector<uint32_t> order_blocks(uint64_t num_blocks, uint64_t seed) {
    std::vector<uint32_t> order(num_blocks);
    uint64_t random = seed_random(seed);

    std::iota(order.begin(), order.end(), 0u);
    for (uint64_t i = num_blocks; seed != 0 && i > 1; i--) {
        std::swap(order[i - 1], order[next_random(random) % i]);
    }
    return order;
}

cudaError_t run_blocks() {
    block_state &b = g_block;
    const uint64_t seed = simt_get_options()->seed;
    const uint64_t num_blocks = static_cast<uint64_t>(b.grid.x) * b.grid.y * b.grid.z;

    for (const uint32_t block_index : order_blocks(num_blocks, seed)) {
        run_block(block_index);
        if (b.has_failed) {
            for (thread &which : b.threads) {
                fiber_abandon(which.stack);
            }
            return cudaErrorLaunchFailure;
        }
    }
    return cudaSuccess;
}

} // namespace

cudaError_t run_grid(const void *kernel, const kernel_call &call, const launch_shape &shape) {
    block_state &b = g_block;
    const simt_options &options = *simt_get_options();

    if (!is_valid_shape(shape, simt_get_device()->shared_bytes_per_block)) {
        record_error("launch: invalid grid, block or shared memory");
        return cudaErrorInvalidConfiguration;
    }
    b.kernel = kernel;
    b.call = &call;
    b.dynamic_bytes = shape.shared_bytes;
    b.is_dependent = shape.is_dependent;
    b.has_failed = false;
    b.grid = shape.grid;
    b.block = shape.block;
    b.num_threads = shape.block.x * shape.block.y * shape.block.z;
    b.random = seed_random(options.seed);
    b.checks_races = b.is_instrumented && !options.ignores_races;
    b.preempt_mask = options.preempt_log2 > 0 ? (1u << options.preempt_log2) - 1 : 0;
    prepare_arena(shape.shared_bytes);
    b.counts.num_grids++;
    int64_t &num_loads = g_matrix_loads[kernel];
    const uint64_t num_loads_before = b.counts.num_matrix_loads;
    close_forbidden();
    const cudaError_t error = run_blocks();
    open_forbidden();
    num_loads += static_cast<int64_t>(b.counts.num_matrix_loads - num_loads_before);
    return error;
}

} // namespace simt

/* ---- simt_control.h */

using simt::g_block;

simt_options *simt_get_options(void) {
    static simt_options options = simt::default_options();

    return &options;
}

void simt_get_counts(simt_counts *counts) {
    *counts = g_block.counts;
}

void simt_reset_counts(void) {
    g_block.counts = simt_counts{};
}

int64_t simt_num_matrix_loads(const void *kernel) {
    const auto found = simt::g_matrix_loads.find(kernel);

    return found == simt::g_matrix_loads.end() ? -1 : found->second;
}

const char *simt_last_error(void) {
    return simt::g_error.c_str();
}

const char *simt_build(void) {
#ifdef PKVI_ASAN
    return "asan";
#else
    return g_block.is_instrumented ? "hook" : "plain";
#endif
}
