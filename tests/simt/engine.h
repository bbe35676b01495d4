/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The state of the one block that runs, for the files of the engine: engine.cpp starts grids and
 * chooses who runs, sync.cpp makes threads wait for each other, shared.cpp is the shared memory
 * with its copies in flight, matrix.cpp the tensor core, race.cpp and hooks.cpp watch every access.
 *
 * The one idea: a thread of a kernel is a fiber. Only one runs, so that nothing here needs a lock,
 * and every order in which threads may run can be asked for. */
#ifndef PKV_TESTS_SIMT_ENGINE_H
#define PKV_TESTS_SIMT_ENGINE_H

/* The types that simt.cuh brings with it, twins included. */
#ifndef PKVI_SIMT_HOST
#define PKVI_SIMT_HOST 1
#endif
#include "kernels/cuda/simt.cuh"

#include "fiber.h"
#include "simt_control.h"

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace simt {

constexpr unsigned max_threads = 1024;
constexpr unsigned max_barriers = 16;

enum class thread_state { ready, at_barrier, in_collective, exited };

struct pending_copy {
    char *shared;
    const char *global;
    int size;
    int num_bytes;
    int group;
    site where;
};

struct thread {
    fiber stack;
    uint3 index;
    unsigned linear;
    thread_state state;
    bool has_waited_for_grid;
    site where; /* of the wait, as are the next five */
    int barrier;
    collective function;
    const char *name;
    uint32_t mask;
    void *argument;
    std::vector<pending_copy> copies;
    int group; /* of the copies that come next */
};

struct barrier_state {
    unsigned num_arrived;
    unsigned num_expected;
    site where;
    std::vector<uint32_t> clock; /* the latest of all that arrived */
};

/* What race.cpp knows of one byte of shared memory: who wrote it last, two who read it since, and
 * whether a copy to it is in flight. An epoch is (thread + 1) << 20 | clock; 0: none. */
struct shadow_byte {
    uint32_t write;
    uint32_t reads[2];
    uint32_t is_in_flight;
};

struct block_state {
    /* The grid */
    const void *kernel;
    const kernel_call *call;
    size_t dynamic_bytes;
    bool is_dependent;
    bool has_failed;
    dim3 grid;
    dim3 block;

    /* Threads */
    std::vector<thread> threads; /* of the largest block so far; the first num_threads count */
    unsigned num_threads;
    unsigned num_exited;
    thread *current; /* nullptr: no kernel runs */
    fiber starter;
    std::vector<uint16_t> ready;
    size_t first_ready;
    uint64_t random;
    barrier_state barriers[max_barriers];
    uint32_t waiting[max_threads / 32]; /* lanes of a warp in a collective */
    uint32_t exited[max_threads / 32];
    uint32_t existing[max_threads / 32];

    /* Shared memory: guard, static part, guard, dynamic part, guard */
    char *arena;
    size_t arena_size;
    char *static_base;
    size_t static_used;
    char *dynamic_base;
    std::unordered_map<const void *, void *> static_slots;

    /* The hook build */
    bool is_instrumented;
    bool checks_races;
    uint32_t preempt_mask;
    std::vector<uint32_t> clocks; /* num_threads rows of num_threads */
    std::vector<shadow_byte> shadow;

    simt_counts counts;
};

extern block_state g_block;

/* ---- engine.cpp */

/* Run a whole grid now. */
cudaError_t run_grid(const void *kernel, const kernel_call &call, const launch_shape &shape);

/* Remember `message` as the error, if it is the first. */
void record_error(const char *message);

/* "file:line"; valid until some more calls. */
const char *describe(site where);

void make_ready(thread &which);

/* Leave the running thread until it is made ready again. */
void run_another(bool is_last);

/* Let another thread run first; the running one stays ready. */
void yield();

/* ---- shared.cpp */

void prepare_arena(size_t dynamic_bytes);
void reset_arena();

/* Name the byte at `address`: "byte n of dynamic shared memory". */
const char *describe_shared(const void *address);

/* ---- sync.cpp */

void reset_barriers();
void note_exit(thread &which);
void release_barrier(int id);
[[noreturn]] void report_deadlock();

/* ---- race.cpp */

void reset_races();

/* Let all of `members` see what each of them has done. */
void join_clocks(const unsigned *members, unsigned num_members);

/* Add what `which` has done to `clock`; then `which` begins a new epoch. */
void publish_clock(unsigned which, std::vector<uint32_t> &clock);
void adopt_clock(unsigned which, const std::vector<uint32_t> &clock);

void check_shared(const char *address,
                  size_t size,
                  bool is_write,
                  unsigned which,
                  const void *program_counter,
                  site where);
void set_in_flight(const char *address, size_t size, bool is_in_flight);

/* One access of the running thread, at `program_counter` or, where a twin reports it, at
 * `where`. */
void access(
    const void *address, size_t size, bool is_write, const void *program_counter, site where);

/* ---- forbidden.cpp */

/* While a grid runs, what a test has forbidden is closed to it. */
void close_forbidden();
void open_forbidden();
bool is_forbidden(const char *address, size_t size);

/* ---- runtime_memory.cpp */

/* Say whether a kernel on the device may access these bytes. */
bool is_device_accessible(const void *address, size_t size);

/* Let kernels and copies reach the memory of the device, which is closed to everyone else. */
void open_device_memory();
void close_device_memory();

} // namespace simt

#endif
