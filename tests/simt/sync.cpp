/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Threads that wait for each other: barriers of the block, collectives of a warp, and what can go
 * wrong with both (engine.h). */
#include "engine.h"

#include <cstring>
#include <map>

namespace simt {

namespace {

bool is_same_place(site a, site b) {
    return a.line == b.line && (a.file == b.file || strcmp(a.file, b.file) == 0);
}

uint32_t lane_bit(const thread &which) {
    return 1u << (which.linear % 32);
}

} // namespace

void reset_barriers() {
    block_state &b = g_block;

    for (barrier_state &barrier : b.barriers) {
        barrier.num_arrived = 0;
        barrier.clock.assign(b.checks_races ? b.num_threads : 0, 0);
    }
    for (unsigned warp = 0; warp < max_threads / 32; warp++) {
        b.waiting[warp] = 0;
        b.exited[warp] = 0;
        b.existing[warp] = 0;
    }
    for (unsigned i = 0; i < b.num_threads; i++) {
        b.existing[i / 32] |= 1u << (i % 32);
    }
}

/* ---- Barriers */

void release_barrier(int id) {
    block_state &b = g_block;
    barrier_state &barrier = b.barriers[id];

    for (unsigned i = 0; i < b.num_threads; i++) {
        thread &which = b.threads[i];
        if (which.state == thread_state::at_barrier && which.barrier == id) {
            if (b.checks_races) {
                adopt_clock(i, barrier.clock);
            }
            make_ready(which);
        }
    }
    barrier.num_arrived = 0;
    if (b.checks_races) {
        barrier.clock.assign(b.num_threads, 0);
    }
    b.counts.num_block_barriers++;
}

/* Count the running thread in and, if it waits, let it wait. */
static void arrive(int id, unsigned num_expected, bool waits, site where) {
    block_state &b = g_block;
    barrier_state &barrier = b.barriers[id];
    thread &self = *b.current;

    if (barrier.num_arrived == 0) {
        barrier.num_expected = num_expected;
        barrier.where = where;
    } else if (barrier.num_expected != num_expected) {
        fail(where, "barrier %d is for %u threads here and for %u at %s", id, num_expected,
             barrier.num_expected, describe(barrier.where));
    }
    if (b.checks_races) {
        publish_clock(self.linear, barrier.clock);
    }
    barrier.num_arrived++;
    self.barrier = id;
    self.where = where;
    if (barrier.num_arrived < num_expected) {
        if (waits) {
            self.state = thread_state::at_barrier;
            run_another(false);
        }
        return;
    }
    if (b.checks_races && waits) {
        adopt_clock(self.linear, barrier.clock);
    }
    release_barrier(id);
}

void block_barrier(site where) {
    block_state &b = g_block;
    const barrier_state &barrier = b.barriers[0];
    const bool is_strict = !simt_get_options()->allows_early_exit;

    if (is_strict && b.num_exited > 0) {
        fail(where, "divergent barrier: %u threads exited before it", b.num_exited);
    }
    if (barrier.num_arrived > 0 && !is_same_place(barrier.where, where)) {
        fail(where, "divergent barrier: %u threads wait at %s", barrier.num_arrived,
             describe(barrier.where));
    }
    arrive(0, b.num_threads - b.num_exited, true, where);
}

void named_barrier(int id, int num_threads, bool waits, site where) {
    if (id < 1 || id >= static_cast<int>(max_barriers)) {
        fail(where, "barrier %d: kernels have 1 to 15", id);
    }
    if (num_threads < 32 || num_threads % 32 != 0 ||
        static_cast<unsigned>(num_threads) > g_block.num_threads) {
        fail(where, "barrier %d: %d threads of a block of %u, by warps of 32", id, num_threads,
             g_block.num_threads);
    }
    arrive(id, static_cast<unsigned>(num_threads), waits, where);
}

/* ---- Collectives */

/* Refuse a call of the running thread that the other lanes of its warp contradict. */
static void check_collective(collective function, const char *name, uint32_t mask, site where) {
    const block_state &b = g_block;
    const thread &self = *b.current;
    const unsigned warp = self.linear / 32;

    if ((mask & lane_bit(self)) == 0) {
        fail(where, "%s: the calling lane %u is not in its mask %08x", name, self.linear % 32,
             mask);
    }
    if ((mask & ~b.existing[warp]) != 0) {
        fail(where, "%s: the mask %08x names lanes that do not exist (%08x do)", name, mask,
             b.existing[warp]);
    }
    if ((mask & b.exited[warp]) != 0) {
        fail(where, "%s: the mask %08x names lanes that have exited (%08x)", name, mask,
             b.exited[warp]);
    }
    /* Lanes that wait agree with each other already, so one stands for all that are in the mask. */
    uint32_t others = b.waiting[warp];
    if (mask == full_warp) {
        others &= ~others + 1;
    }
    for (; others != 0; others &= others - 1) {
        const unsigned lane = static_cast<unsigned>(__builtin_ctz(others));
        const thread &other = b.threads[warp * 32 + lane];

        if ((mask >> lane & 1) == 0 && (other.mask & lane_bit(self)) == 0) {
            continue;
        }
        if (other.function != function || other.mask != mask ||
            !is_same_place(other.where, where)) {
            fail(where,
                 "divergent warp: lane %u in %s (mask %08x), lane %u in %s (mask %08x) at %s",
                 self.linear % 32, name, mask, lane, other.name, other.mask, describe(other.where));
        }
    }
}

void run_collective(collective function,
                    const char *name,
                    uint32_t mask,
                    void *argument,
                    bool orders_memory,
                    site where) {
    block_state &b = g_block;
    thread &self = *b.current;
    const unsigned warp = self.linear / 32;
    lane_calls calls = {};

    b.counts.num_collectives++;
    check_collective(function, name, mask, where);
    self.function = function;
    self.name = name;
    self.mask = mask;
    self.argument = argument;
    self.where = where;
    b.waiting[warp] |= lane_bit(self);
    if ((b.waiting[warp] & mask) != mask) {
        self.state = thread_state::in_collective;
        run_another(false);
        return;
    }

    unsigned members[32];
    unsigned num_members = 0;
    calls.mask = mask;
    calls.where = where;
    for (unsigned lane = 0; lane < 32; lane++) {
        if ((mask >> lane & 1) != 0) {
            members[num_members++] = warp * 32 + lane;
            calls.arguments[lane] = b.threads[warp * 32 + lane].argument;
        }
    }
    function(calls);
    if (orders_memory && b.checks_races) {
        join_clocks(members, num_members);
    }
    b.waiting[warp] &= ~mask;
    for (unsigned i = 0; i < num_members; i++) {
        if (members[i] != self.linear) {
            make_ready(b.threads[members[i]]);
        }
    }
}

void vote_collective(lane_calls &calls) {
    uint32_t votes = 0;

    for (int lane = 0; lane < 32; lane++) {
        const auto *call = static_cast<const vote_call *>(calls.arguments[lane]);
        votes |= call != nullptr && call->predicate ? 1u << lane : 0;
    }
    for (int lane = 0; lane < 32; lane++) {
        if (calls.arguments[lane] != nullptr) {
            static_cast<vote_call *>(calls.arguments[lane])->votes = votes;
        }
    }
}

void empty_collective(lane_calls &) {
}

/* ---- Exits and deadlocks */

void note_exit(thread &self) {
    block_state &b = g_block;
    const unsigned warp = self.linear / 32;
    const barrier_state &barrier = b.barriers[0];

    b.num_exited++;
    b.exited[warp] |= lane_bit(self);
    if (barrier.num_arrived > 0) {
        if (!simt_get_options()->allows_early_exit) {
            fail(barrier.where, "divergent barrier: a thread exited while %u threads wait",
                 barrier.num_arrived);
        }
        if (barrier.num_arrived == b.num_threads - b.num_exited) {
            release_barrier(0);
        }
    }
    for (unsigned lane = 0; lane < 32; lane++) {
        if ((b.waiting[warp] >> lane & 1) != 0) {
            const thread &other = b.threads[warp * 32 + lane];
            if ((other.mask & lane_bit(self)) != 0) {
                fail(other.where, "lane %u exited, but lane %u waits for it in %s",
                     self.linear % 32, lane, other.name);
            }
        }
    }
}

void report_deadlock() {
    block_state &b = g_block;
    std::map<std::string, unsigned> *waits = new std::map<std::string, unsigned>;
    static char text[1024];
    size_t length = 0;

    for (unsigned i = 0; i < b.num_threads; i++) {
        const thread &which = b.threads[i];
        if (which.state != thread_state::exited) {
            const char *what = which.state == thread_state::at_barrier ? "barrier" : which.name;
            (*waits)[std::string(what) + " at " + describe(which.where)]++;
        }
    }
    for (const auto &wait : *waits) {
        if (length < sizeof(text) - 1) {
            length +=
                static_cast<size_t>(snprintf(text + length, sizeof(text) - length,
                                             "; %u wait in %s", wait.second, wait.first.c_str()));
        }
    }
    delete waits;
    fail(site{}, "deadlock: no thread can run, %u exited%s", b.num_exited, text);
}

} // namespace simt
