/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Twins of ldmatrix and of the m16n8k16 product, and the other twins that need a source of their
 * own: atomics, which an instrumented kernel would otherwise turn into calls of a sanitizer.
 *
 * The one idea: gather the fragments of 32 lanes into whole matrices, work on those, scatter. */
#include "engine.h"

#include <cstring>

namespace simt {

namespace {

struct load_call {
    uint32_t *result;
    const void *row;
    int num_matrices;
    bool is_transposed;
};

/* Read row `row` of matrix `index`, named by lane 8 * index + row. */
void read_row(const lane_calls &calls, int index, int row, uint16_t (&elements)[8]) {
    const unsigned lane = static_cast<unsigned>(index * 8 + row);
    const void *address = static_cast<const load_call *>(calls.arguments[lane])->row;

    if (reinterpret_cast<uintptr_t>(address) % 16 != 0) {
        fail(calls.where, "ldmatrix: the row of lane %u is not aligned to 16 bytes", lane);
    }
    if (!is_in_shared(address, 16)) {
        fail(calls.where, "ldmatrix: the row of lane %u is outside of shared memory", lane);
    }
    if (g_block.checks_races) {
        check_shared(static_cast<const char *>(address), 16, false,
                     g_block.current->linear / 32 * 32 + lane, nullptr, calls.where);
    }
    memcpy(elements, address, 16);
}

/* The rows of a matrix that have to wait for another one in the same group of banks. */
unsigned count_conflicts(const lane_calls &calls, int index) {
    uintptr_t units[8];
    unsigned num_conflicts = 0;

    for (int row = 0; row < 8; row++) {
        const auto *call = static_cast<const load_call *>(calls.arguments[index * 8 + row]);
        bool is_conflict = false;
        units[row] = reinterpret_cast<uintptr_t>(call->row) / 16;
        for (int before = 0; before < row; before++) {
            /* The same row twice is one read. */
            is_conflict =
                is_conflict || (units[before] % 8 == units[row] % 8 && units[before] != units[row]);
        }
        num_conflicts += is_conflict ? 1 : 0;
    }
    return num_conflicts;
}

void load_collective(lane_calls &calls) {
    const load_call first = *static_cast<const load_call *>(calls.arguments[0]);

    g_block.counts.num_matrix_loads++;
    for (int index = 0; index < first.num_matrices; index++) {
        uint16_t matrix[8][8];
        for (int row = 0; row < 8; row++) {
            read_row(calls, index, row, matrix[row]);
        }
        g_block.counts.num_bank_conflicts += count_conflicts(calls, index);
        for (int lane = 0; lane < 32; lane++) {
            const int row = lane / 4;
            const int column = lane % 4 * 2;
            const uint16_t low = first.is_transposed ? matrix[column][row] : matrix[row][column];
            const uint16_t high =
                first.is_transposed ? matrix[column + 1][row] : matrix[row][column + 1];
            static_cast<load_call *>(calls.arguments[lane])->result[index] =
                low | static_cast<uint32_t>(high) << 16;
        }
    }
}

struct product_call {
    float *d;
    const uint32_t *a;
    const uint32_t *b;
    bool is_bfloat;
};

float element_of(uint32_t pair, int half, bool is_bfloat) {
    const uint32_t bits = pair >> (16 * half) & 0xffff;

    if (is_bfloat) {
        return bits_as<float>(bits << 16);
    }
    return to_float(bits_as<__half>(static_cast<uint16_t>(bits)));
}

void product_collective(lane_calls &calls) {
    float a[16][16];
    float b[16][8];

    for (int lane = 0; lane < 32; lane++) {
        const auto *call = static_cast<const product_call *>(calls.arguments[lane]);
        const int group = lane / 4;
        const int pair = lane % 4 * 2;
        for (int half = 0; half < 2; half++) {
            for (int i = 0; i < 4; i++) {
                a[group + 8 * (i & 1)][pair + half + 8 * (i >> 1)] =
                    element_of(call->a[i], half, call->is_bfloat);
            }
            for (int i = 0; i < 2; i++) {
                b[pair + half + 8 * i][group] = element_of(call->b[i], half, call->is_bfloat);
            }
        }
    }
    for (int lane = 0; lane < 32; lane++) {
        float *d = static_cast<const product_call *>(calls.arguments[lane])->d;
        for (int i = 0; i < 4; i++) {
            const int row = lane / 4 + 8 * (i >> 1);
            const int column = lane % 4 * 2 + (i & 1);
            for (int k = 0; k < 16; k++) {
                d[i] += a[row][k] * b[k][column];
            }
        }
    }
}

} // namespace

void load_matrices(
    uint32_t *result, int num_matrices, bool is_transposed, const void *row, site where) {
    load_call call = {result, row, num_matrices, is_transposed};

    run_collective(&load_collective, is_transposed ? "ldmatrix.trans" : "ldmatrix", full_warp,
                   &call, false, where);
}

void multiply_matrices(float *d, const uint32_t *a, const uint32_t *b, bool is_bfloat, site where) {
    product_call call = {d, a, b, is_bfloat};

    run_collective(&product_collective, is_bfloat ? "mma.bf16" : "mma.f16", full_warp, &call, false,
                   where);
}

/* ---- Atomics: one thread runs at a time, so that any sequence without a switch is one */

int atomic_add(int *address, int value) {
    const int before = *address;
    *address = static_cast<int>(static_cast<unsigned>(before) + static_cast<unsigned>(value));
    return before;
}

unsigned atomic_add(unsigned *address, unsigned value) {
    const unsigned before = *address;
    *address = before + value;
    return before;
}

float atomic_add(float *address, float value) {
    const float before = *address;
    *address = before + value;
    return before;
}

int atomic_max(int *address, int value) {
    const int before = *address;
    *address = std::max(before, value);
    return before;
}

int atomic_cas(int *address, int expected, int desired) {
    const int before = *address;
    *address = before == expected ? desired : before;
    return before;
}

void wait_for_previous_grid() {
    g_block.current->has_waited_for_grid = true;
}

} // namespace simt
