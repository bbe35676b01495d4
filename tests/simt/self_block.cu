/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Cases of the self-test: barriers, warps, shared memory, single wrappers.
 *
 * The one idea: a kernel of a few lines with one mistake, chosen by a template argument so that the
 * right kernel and the wrong one are otherwise the same text. */
#include "self_cases.h"

#include "kernels/cuda/simt.cuh"
#include "self_support.h"
#include "simt_control.h"

#include <cstdlib>

namespace {

constexpr int num_threads = 64;

enum class mistake {
    none,
    no_barrier,
    no_second_barrier,
    uninitialised,
    past_the_end,
    two_barriers,
    early_exit,
    divergent_shuffle,
    exited_lane,
    foreign_lane,
    no_sync_warp,
    misaligned,
    lonely_barrier,
    past_global,
    pageable,
    not_dependent,
};

/* Each thread passes a value to its neighbour through shared memory, twice. */
template <mistake which> __global__ void pass_on(const float *in, float *out) {
    PKVI_DYNAMIC_SHARED(memory);
    float *values = reinterpret_cast<float *>(memory);
    const int i = static_cast<int>(threadIdx.x);
    const int next = (i + 1) % num_threads;
    float sum = 0.0f;

    if (which != mistake::not_dependent) {
        simt::wait_for_previous_grid();
    }
    if (which != mistake::uninitialised || i != 5) {
        values[i] = in[which == mistake::past_global && i == num_threads - 1 ? i + 1 : i];
    }
    if (which == mistake::two_barriers && i < 32) {
        simt::sync_block();
    } else if (which != mistake::no_barrier) {
        if (which == mistake::early_exit && i >= 32) {
            return;
        }
        simt::sync_block();
    }
    sum = values[which == mistake::past_the_end ? i + 1 : next];
    if (which != mistake::no_second_barrier) {
        simt::sync_block();
    }
    values[i] = sum + 1.0f;
    if (which == mistake::lonely_barrier) {
        if (i < 32) {
            simt::sync_named(3, 64);
        }
    }
    simt::sync_block();
    out[i] = values[next] + static_cast<float>(0 * sizeof(which));
}

template <mistake which> bool run_pass_on() {
    std::vector<float> in(num_threads);
    for (int i = 0; i < num_threads; i++) {
        in[static_cast<size_t>(i)] = static_cast<float>(i * i);
    }
    device_vector<float> source(in);
    device_vector<float> result(num_threads);
    const float *from = which == mistake::pageable ? in.data() : source.data;
    const simt::launch_shape shape = {dim3(2), dim3(num_threads), num_threads * sizeof(float),
                                      nullptr, which == mistake::not_dependent};
    simt::launch(pass_on<which>, shape, from, result.data);
    const std::vector<float> out = result.download();
    for (int i = 0; i < num_threads; i++) {
        const int from_index = (i + 2) % num_threads;
        if (out[static_cast<size_t>(i)] != static_cast<float>(from_index * from_index) + 1.0f) {
            return false;
        }
    }
    return true;
}

/* The sum of a warp's lane numbers, in ways that differ in who takes part. */
template <mistake which> __global__ void sum_warp(int *out) {
    PKVI_SHARED(int, values, 32);
    const int lane = simt::lane_index();
    int sum = lane;

    if (which == mistake::exited_lane && lane == 7) {
        return;
    }
    for (int distance = 16; distance > 0; distance /= 2) {
        if (which == mistake::divergent_shuffle && distance == 2 && lane >= 16) {
            sum += simt::shuffle_xor(sum, 2);
        } else {
            sum +=
                simt::shuffle_xor(sum, distance,
                                  which == mistake::foreign_lane ? lane < 16 ? 0xffffu : 0xffff0000u
                                                                 : simt::full_warp);
        }
    }
    values[lane] = sum;
    if (which != mistake::no_sync_warp) {
        simt::sync_warp();
    }
    out[lane] = values[31 - lane];
}

template <mistake which> bool run_sum_warp() {
    device_vector<int> result(32);
    simt::launch(sum_warp<which>, {dim3(1), dim3(32), 0, nullptr, false}, result.data);
    for (const int sum : result.download()) {
        if (sum != 496) {
            return false;
        }
    }
    return true;
}

template <mistake which> __global__ void load_vectors(const uint32_t *in, uint32_t *out) {
    const uint32_t *from = in + 4 * threadIdx.x + (which == mistake::misaligned ? 1 : 0);
    const uint4 value = simt::load_global_const_16(from);

    simt::store_global_16(out + 4 * threadIdx.x, value);
}

template <mistake which> bool run_load_vectors() {
    std::vector<uint32_t> in(256);
    for (size_t i = 0; i < in.size(); i++) {
        in[i] = static_cast<uint32_t>(i * 2654435761u);
    }
    device_vector<uint32_t> source(in);
    device_vector<uint32_t> result(128);
    simt::launch(load_vectors<which>, {dim3(1), dim3(32), 0, nullptr, false}, source.data,
                 result.data);
    const std::vector<uint32_t> out = result.download();
    return memcmp(out.data(), in.data(), 128 * sizeof(uint32_t)) == 0;
}

/* One warp fills a buffer while the other reads the one before, with two named barriers. */
__global__ void hand_over(int *out) {
    PKVI_SHARED(int, buffer, 32);
    const int lane = simt::lane_index();
    int sum = 0;

    for (int round = 0; round < 4; round++) {
        if (simt::warp_index() == 0) {
            if (round > 0) {
                simt::sync_named(2, 64);
            }
            buffer[lane] = round * 100 + lane;
            simt::arrive_named(1, 64);
        } else {
            simt::sync_named(1, 64);
            sum += buffer[31 - lane];
            if (round < 3) {
                simt::arrive_named(2, 64);
            }
        }
    }
    if (simt::warp_index() == 1) {
        out[lane] = sum;
    }
}

bool run_hand_over() {
    device_vector<int> result(32);
    simt::launch(hand_over, {dim3(3), dim3(64), 0, nullptr, false}, result.data);
    const std::vector<int> out = result.download();
    for (int lane = 0; lane < 32; lane++) {
        if (out[static_cast<size_t>(lane)] != 600 + 4 * (31 - lane)) {
            return false;
        }
    }
    return true;
}

/* Every wrapper without shared memory, against plain arithmetic. */
__global__ void use_wrappers(uint32_t *out, int *counter) {
    const int lane = simt::lane_index();
    bool is_right = simt::shuffle(lane, 3) == 3 && simt::shuffle_up(lane, 1) == max(lane - 1, 0) &&
                    simt::shuffle_down(lane, 1) == min(lane + 1, 31) &&
                    simt::ballot(lane % 2 == 0) == 0x55555555u && simt::any(lane == 4) &&
                    !simt::all(lane == 4) && simt::all(true);

    for (int code = lane; code < 256; code += 32) {
        const uint32_t pair = static_cast<uint32_t>(code) | 0x3800u;
        const float half = simt::unpack2<__half>(simt::e4m3x2_to<__half>(pair)).x;
        const float2 bfloat = simt::unpack2<__nv_bfloat16>(simt::e4m3x2_to<__nv_bfloat16>(pair));
        const float2 integer =
            simt::unpack2<__half>(simt::int8x2_to<__half>(static_cast<uint32_t>(code) | 0x8100u));
        const float byte = simt::unpack2<__nv_bfloat16>(
                               simt::int8x2_to<__nv_bfloat16>(static_cast<uint32_t>(code)))
                               .x;
        const bool is_nan = (code & 0x7f) == 0x7f;
        is_right = is_right &&
                   (is_nan ? half != half && bfloat.x != bfloat.x
                           : half == bfloat.x && simt::float_to_e4m3(half) == code) &&
                   bfloat.y == 1.0f && integer.x == static_cast<float>(static_cast<int8_t>(code)) &&
                   integer.y == -127.0f && byte == integer.x;
    }
    for (int i = -40; i <= 40; i++) {
        const float x = static_cast<float>(i * 32 + lane) / 256.0f;
        is_right = is_right && fabsf(simt::tanh_exact(x) - tanhf(x)) < 4e-7f &&
                   simt::float_to_int_nearest(x) == static_cast<int>(rintf(x)) &&
                   fabsf(simt::exp2_approx(simt::log2_approx(x + 6.0f)) - x - 6.0f) < 1e-5f;
    }
    is_right = is_right && simt::byte_permute(0x33221100u, 0x77665544u, 0x7250u) == 0x77225500u &&
               simt::tanh_exact(INFINITY) == 1.0f && simt::tanh_exact(-INFINITY) == -1.0f;
    simt::atomic_add(counter, 1);
    simt::atomic_max(counter + 1, lane);
    out[lane] = is_right ? 1 : 0;
}

bool run_wrappers() {
    device_vector<uint32_t> result(32);
    device_vector<int> counter(std::vector<int>{0, -1});
    simt::launch(use_wrappers, {dim3(1), dim3(32), 0, nullptr, false}, result.data, counter.data);
    for (const uint32_t is_right : result.download()) {
        if (is_right != 1) {
            return false;
        }
    }
    return counter.download() == std::vector<int>{32, 31};
}

} // namespace

std::vector<self_case> block_cases() {
    const char *race = "race (";
    /* A race, or a read before the write: which one comes first is up to the schedule. */
    const char *of_shared = " shared memory (";
    const char *barrier = "divergent barrier";

    return {
        {"pass on", run_pass_on<mistake::none>, "clean", "clean", "clean"},
        {"no barrier", run_pass_on<mistake::no_barrier>, "", of_shared, ""},
        {"no second barrier", run_pass_on<mistake::no_second_barrier>, "", race, ""},
        {"uninitialised", run_pass_on<mistake::uninitialised>, "mismatch", "never written",
         "mismatch"},
        {"past the end of shared memory", run_pass_on<mistake::past_the_end>, "", "out of bounds",
         "use-after-poison"},
        {"two barriers for one", run_pass_on<mistake::two_barriers>, barrier, barrier, barrier},
        {"exit before a barrier", run_pass_on<mistake::early_exit>, barrier, barrier, barrier},
        {"too few at a named barrier", run_pass_on<mistake::lonely_barrier>, "deadlock", "deadlock",
         "deadlock"},
        {"past the end of global memory", run_pass_on<mistake::past_global>, "signal",
         "no memory of the device", "AddressSanitizer"},
        {"memory the device cannot reach", run_pass_on<mistake::pageable>, "",
         "no memory of the device", ""},
        {"dependent grid that does not wait", run_pass_on<mistake::not_dependent>, "",
         "before wait_for_previous_grid", ""},
        {"sum of a warp", run_sum_warp<mistake::none>, "clean", "clean", "clean"},
        {"divergent shuffle", run_sum_warp<mistake::divergent_shuffle>, "divergent warp",
         "divergent warp", "divergent warp"},
        {"mask with an exited lane", run_sum_warp<mistake::exited_lane>, "exited", "exited",
         "exited"},
        {"shuffle from outside of the mask", run_sum_warp<mistake::foreign_lane>, "not in the mask",
         "not in the mask", "not in the mask"},
        {"no sync_warp", run_sum_warp<mistake::no_sync_warp>, "", of_shared, ""},
        {"vectors", run_load_vectors<mistake::none>, "clean", "clean", "clean"},
        {"misaligned vector", run_load_vectors<mistake::misaligned>, "not aligned", "not aligned",
         "not aligned"},
        {"hand over", run_hand_over, "clean", "clean", "clean"},
        {"wrappers", run_wrappers, "clean", "clean", "clean"},
    };
}
