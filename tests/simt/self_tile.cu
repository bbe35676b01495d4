/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Cases of the self-test: a matrix product that moves its tiles the way an attention kernel does,
 * with asynchronous copies in three stages, a swizzle, ldmatrix and mma; and the mistakes that such
 * a kernel invites, one at a time.
 *
 * The one idea: entries are small integers, so that the right result is exact in every order of
 * summation and every element is compared for equality. */
#include "self_cases.h"

#include "kernels/cuda/simt.cuh"
#include "self_support.h"
#include "simt_control.h"

namespace {

constexpr int size_k = 160;
constexpr int size_n = 64;
constexpr int size_m = 64;
constexpr int tile_k = 32;
constexpr int num_stages = 3;
constexpr int num_threads = 128;
/* The last tile is not full: 150 of its 160 rows exist, the rest is filled with zeros. */
constexpr int used_k = 150;

enum class mistake {
    none,
    no_barrier,
    copy_before_barrier,
    waits_for_too_few,
    never_waits,
    not_transposed,
    no_swizzle,
    too_little_memory,
    row_past_the_end,
    misaligned_copy,
    outside_of_shared,
    matrix_outside,
    some_lanes_only,
};

/* The 16-byte unit `unit` of row `row`; exclusive or spreads a column over all banks. */
template <mistake which>
__device__ __forceinline__ unsigned char *unit_at(unsigned char *base,
                                                  int row,
                                                  int units_per_row,
                                                  int unit) {
    const int place = which == mistake::no_swizzle ? unit : unit ^ (row & 7);
    return base + (row * units_per_row + place) * 16;
}

template <class element> struct product_arguments {
    const element *a; /* [m][64 units]: k within a row, padded to 512 */
    const element *b; /* [k][n] */
    float *c;         /* [m][n] */
};

constexpr int a_units = tile_k / 8 * 2; /* padded to 8, so that the swizzle stays inside */
constexpr int b_units = size_n / 8;
constexpr int stage_bytes = (size_m * a_units + tile_k * b_units) * 16;

template <mistake which, class element>
__device__ __forceinline__ void load_tile(const product_arguments<element> &p,
                                          unsigned char *memory,
                                          int tile) {
    unsigned char *a = memory + tile % num_stages * stage_bytes;
    unsigned char *b = a + size_m * a_units * 16;
    const int thread = static_cast<int>(threadIdx.x);

    for (int i = thread; i < size_m * (tile_k / 8); i += num_threads) {
        const int row = i / (tile_k / 8);
        const int unit = i % (tile_k / 8);
        const int k = tile * tile_k + unit * 8;
        const int left = (used_k - k) * static_cast<int>(sizeof(element));
        const int num_bytes = max(0, min(16, left));
        const element *from = p.a + row * size_k + (num_bytes > 0 ? k : 0);
        simt::copy_async_16(unit_at<which>(a, row, a_units, unit),
                            which == mistake::misaligned_copy ? from + 1 : from, num_bytes);
    }
    for (int i = thread; i < tile_k * b_units; i += num_threads) {
        const int row = i / b_units;
        const int k = tile * tile_k + row;
        const bool is_used = which == mistake::row_past_the_end ? k <= used_k : k < used_k;
        unsigned char *to = unit_at<which>(b, row, b_units, i % b_units);
        simt::copy_async_16(which == mistake::outside_of_shared && tile == 2 ? to + (1 << 20) : to,
                            p.b + (is_used ? k : 0) * size_n + i % b_units * 8, is_used ? 16 : 0);
    }
}

template <mistake which, class element>
__device__ __forceinline__ void multiply_tile(unsigned char *memory,
                                              int tile,
                                              float (&sums)[size_n / 8][4]) {
    unsigned char *a = memory + tile % num_stages * stage_bytes;
    unsigned char *b = a + size_m * a_units * 16;
    const int lane = simt::lane_index();

    for (int k = 0; k < tile_k / 16; k++) {
        uint32_t left[4];
        simt::ldmatrix_x4(left, unit_at<which>(a, simt::warp_index() * 16 + lane % 16, a_units,
                                               k * 2 + lane / 16));
        for (int n = 0; n < size_n / 16; n++) {
            uint32_t right[4];
            unsigned char *row = unit_at<which>(b, k * 16 + lane % 16, b_units, n * 2 + lane / 16);
            if (which == mistake::not_transposed) {
                simt::ldmatrix_x4(right, row);
            } else {
                simt::ldmatrix_x4_trans(
                    right, which == mistake::matrix_outside && lane == 9 ? row - (1 << 20) : row);
            }
            simt::mma_m16n8k16<element>(sums[2 * n], left, right[0], right[1]);
            simt::mma_m16n8k16<element>(sums[2 * n + 1], left, right[2], right[3]);
        }
    }
}

template <mistake which, class element>
__global__ void __launch_bounds__(num_threads) product(product_arguments<element> p) {
    PKVI_DYNAMIC_SHARED(memory);
    constexpr int num_tiles = size_k / tile_k;
    constexpr int prefetch = num_stages - 1;
    const int lane = simt::lane_index();
    float sums[size_n / 8][4] = {};

    for (int tile = 0; tile < prefetch; tile++) {
        load_tile<which>(p, memory, tile);
        simt::copy_async_commit();
    }
    for (int tile = 0; tile < num_tiles; tile++) {
        if (which == mistake::copy_before_barrier && tile + prefetch < num_tiles) {
            load_tile<which>(p, memory, tile + prefetch);
        }
        if (which == mistake::copy_before_barrier) {
            simt::copy_async_commit();
            simt::copy_async_wait<prefetch>();
        } else if (which == mistake::waits_for_too_few) {
            simt::copy_async_wait<prefetch>();
        } else {
            simt::copy_async_wait<prefetch - 1>();
        }
        if (which != mistake::no_barrier) {
            simt::sync_block();
        }
        if (which != mistake::copy_before_barrier) {
            if (tile + prefetch < num_tiles) {
                load_tile<which>(p, memory, tile + prefetch);
            }
            simt::copy_async_commit();
        }
        if (which != mistake::some_lanes_only || tile > 0 || lane < 31) {
            multiply_tile<which, element>(memory, tile, sums);
        }
    }
    if (which == mistake::never_waits) {
        simt::sync_block();
        simt::copy_async_4(memory + 4 * threadIdx.x, p.b);
        simt::copy_async_commit();
    } else {
        simt::copy_async_wait<0>();
    }
    for (int n = 0; n < size_n / 8; n++) {
        for (int i = 0; i < 4; i++) {
            const int row = simt::warp_index() * 16 + lane / 4 + 8 * (i >> 1);
            p.c[row * size_n + n * 8 + lane % 4 * 2 + (i & 1)] = sums[n][i];
        }
    }
}

int small_integer(int a, int b) {
    return (a * 7 + b * 13 + a * b) % 7 - 3;
}

template <mistake which, class element> bool run_product() {
    std::vector<element> a(size_m * size_k);
    std::vector<element> b(used_k * size_n);
    for (size_t i = 0; i < a.size(); i++) {
        const int column = static_cast<int>(i % size_k);
        a[i] = simt::from_float<element>(
            column < used_k
                ? static_cast<float>(small_integer(static_cast<int>(i / size_k), column))
                : NAN);
    }
    for (size_t i = 0; i < b.size(); i++) {
        b[i] = simt::from_float<element>(static_cast<float>(
            small_integer(static_cast<int>(i / size_n), static_cast<int>(i % size_n) + 5)));
    }
    device_vector<element> left(a);
    device_vector<element> right(b);
    device_vector<float> result(size_m * size_n);
    const size_t shared_bytes =
        num_stages * stage_bytes - (which == mistake::too_little_memory ? 16 : 0);
    simt::allow_shared_bytes(product<which, element>, shared_bytes);
    simt::launch(product<which, element>,
                 {dim3(1), dim3(num_threads), shared_bytes, nullptr, false},
                 product_arguments<element>{left.data, right.data, result.data});
    const std::vector<float> c = result.download();
    for (int m = 0; m < size_m; m++) {
        for (int n = 0; n < size_n; n++) {
            int sum = 0;
            for (int k = 0; k < used_k; k++) {
                sum += small_integer(m, k) * small_integer(k, n + 5);
            }
            if (c[static_cast<size_t>(m * size_n + n)] != static_cast<float>(sum)) {
                return false;
            }
        }
    }
    return true;
}

template <mistake which> bool run_half() {
    return run_product<which, __half>();
}

template <mistake which> bool run_bfloat() {
    return run_product<which, __nv_bfloat16>();
}

/* The figure that a kernel keeps at 0: rows of one matrix that wait for a bank. */
template <mistake which> bool has_no_conflicts() {
    simt_counts counts;

    simt_reset_counts();
    const bool is_right = run_half<which>();
    simt_get_counts(&counts);
    return is_right && counts.num_matrix_loads > 0 && counts.num_bank_conflicts == 0;
}

} // namespace

std::vector<self_case> tile_cases() {
    const char *in_flight = "before the copy to it was waited for";

    return {
        {"product, half", run_half<mistake::none>, "clean", "clean", "clean"},
        {"product, bfloat16", run_bfloat<mistake::none>, "clean", "clean", "clean"},
        {"product without conflicts", has_no_conflicts<mistake::none>, "clean", "clean", "clean"},
        {"product without swizzle", has_no_conflicts<mistake::no_swizzle>, "mismatch", "mismatch",
         "mismatch"},
        {"product without barrier", run_half<mistake::no_barrier>, "", "[simt] ERROR", ""},
        {"copy before the barrier", run_half<mistake::copy_before_barrier>, "", "[simt] ERROR", ""},
        {"waits for one group too few", run_half<mistake::waits_for_too_few>, "mismatch", in_flight,
         "mismatch"},
        {"exits with a copy in flight", run_half<mistake::never_waits>, "in flight", "in flight",
         "in flight"},
        {"matrix not transposed", run_half<mistake::not_transposed>, "mismatch", "mismatch",
         "mismatch"},
        {"shared memory 16 bytes short", run_half<mistake::too_little_memory>,
         "outside of shared memory", "outside of shared memory", "outside of shared memory"},
        {"copy of a row past the end", run_bfloat<mistake::row_past_the_end>, "signal",
         "no memory of the device", "AddressSanitizer"},
        {"misaligned copy", run_half<mistake::misaligned_copy>, "not aligned", "not aligned",
         "not aligned"},
        {"copy to outside of shared memory", run_half<mistake::outside_of_shared>,
         "outside of shared memory", "outside of shared memory", "outside of shared memory"},
        {"matrix outside of shared memory", run_half<mistake::matrix_outside>,
         "outside of shared memory", "outside of shared memory", "outside of shared memory"},
        {"matrix of 31 lanes", run_half<mistake::some_lanes_only>, "[simt] ERROR", "[simt] ERROR",
         "[simt] ERROR"},
    };
}
