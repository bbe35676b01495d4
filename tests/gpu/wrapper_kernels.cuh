/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* One small kernel for each group of wrappers of kernels/cuda/simt.cuh. What has to come out is not
 * said here.
 *
 * The one idea: every kernel turns words into words, and its result does not depend on the order of
 * threads, so that a device and the host twins of the wrappers can be compared word by word. */
#ifndef PKV_TESTS_GPU_WRAPPER_KERNELS_CUH
#define PKV_TESTS_GPU_WRAPPER_KERNELS_CUH

#include "kernels/cuda/simt.cuh"

namespace wrappers {

/* What a kernel gets: words in, words out. */
struct words {
    const uint32_t *in;
    uint32_t *out;
    int32_t count; /* of the outputs */
};

/* ---- One word to one word */

#define PKV_MAP(name, expression)                                                                  \
    struct name {                                                                                  \
        static PKVI_WRAPPER uint32_t apply(uint32_t x) {                                           \
            return expression;                                                                     \
        }                                                                                          \
    };
#define PKV_AS_FLOAT simt::bits_as<float>(x)

PKV_MAP(map_exp2, simt::bits_as<uint32_t>(simt::exp2_approx(PKV_AS_FLOAT)))
PKV_MAP(map_log2, simt::bits_as<uint32_t>(simt::log2_approx(PKV_AS_FLOAT)))
PKV_MAP(map_reciprocal, simt::bits_as<uint32_t>(simt::reciprocal_approx(PKV_AS_FLOAT)))
PKV_MAP(map_tanh, simt::bits_as<uint32_t>(simt::tanh_exact(PKV_AS_FLOAT)))
PKV_MAP(map_to_int, static_cast<uint32_t>(simt::float_to_int_nearest(PKV_AS_FLOAT)))
/* Selectors without the bit that CUDA leaves unsaid. */
PKV_MAP(map_permute, simt::byte_permute(0x83c2a1e0u, 0x97765544u, x & 0x7777u))
PKV_MAP(map_e4m3_to_half, simt::e4m3x2_to<__half>(x))
PKV_MAP(map_e4m3_to_bfloat16, simt::e4m3x2_to<__nv_bfloat16>(x))
PKV_MAP(map_int8_to_half, simt::int8x2_to<__half>(x))
PKV_MAP(map_int8_to_bfloat16, simt::int8x2_to<__nv_bfloat16>(x))
PKV_MAP(map_to_e4m3, simt::float_to_e4m3(PKV_AS_FLOAT))
PKV_MAP(map_from_e4m3, simt::bits_as<uint32_t>(simt::e4m3_to_float(static_cast<uint8_t>(x))))
PKV_MAP(map_pack_half, simt::pack2<__half>(PKV_AS_FLOAT, -PKV_AS_FLOAT))
PKV_MAP(map_pack_bfloat16, simt::pack2<__nv_bfloat16>(PKV_AS_FLOAT, -PKV_AS_FLOAT))
PKV_MAP(map_unpack_half, simt::bits_as<uint32_t>(simt::unpack2<__half>(x).x))
PKV_MAP(map_unpack_bfloat16, simt::bits_as<uint32_t>(simt::unpack2<__nv_bfloat16>(x).y))
#undef PKV_AS_FLOAT
#undef PKV_MAP

template <class map> __global__ void map_kernel(words w) {
    const int32_t step = static_cast<int32_t>(gridDim.x * blockDim.x);

    for (int32_t i = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x); i < w.count;
         i += step) {
        w.out[i] = map::apply(w.in[i]);
    }
}

/* ---- The warp: 16 outputs a lane */

__global__ void warp_kernel(words w) {
    const int lane = simt::lane_index();
    const uint32_t x = w.in[lane];
    const float real = static_cast<float>(lane) * 0.5f;
    uint32_t *out = w.out + lane * 16;

    out[0] = simt::shuffle(x, 5);
    out[1] = simt::shuffle(x, lane * 7);
    out[2] = simt::shuffle_xor(x, 1);
    out[3] = simt::shuffle_xor(x, 2);
    out[4] = simt::shuffle_xor(x, 16);
    out[5] = simt::shuffle_up(x, 3);
    out[6] = simt::shuffle_down(x, 5);
    out[7] = simt::bits_as<uint32_t>(simt::shuffle_xor(real, 4));
    out[8] = simt::ballot((x & 1u) != 0);
    out[9] = simt::any(lane == 31) ? 1u : 0u;
    out[10] = simt::all(lane < 32) ? 1u : 0u;
    out[11] = simt::all(lane < 31) ? 1u : 0u;
    out[12] = simt::ballot((x & 2u) != 0);
    out[13] = simt::shuffle_xor(x, 8);
    simt::sync_warp();
    out[14] = simt::any(x == 0xffffffffu) ? 1u : 0u;
    out[15] = static_cast<uint32_t>(simt::warp_index());
}

/* ---- Vectors: 7 words of each lane come back by way of shared memory */

__global__ void vector_kernel(words w) {
    PKVI_SHARED(uint4, sixteens, 32);
    PKVI_SHARED(uint2, eights, 32);
    PKVI_SHARED(uint32_t, fours, 32);
    const int lane = simt::lane_index();
    const uint32_t *in = w.in;
    uint32_t *out = w.out;

    simt::prefetch_l2(in);
    simt::store_shared_16(&sixteens[lane], simt::load_global_const_16(in + lane * 4));
    simt::store_shared_8(&eights[lane], simt::load_global_const_8(in + 128 + lane * 2));
    simt::store_shared_4(&fours[lane], simt::load_global_const_4(in + 192 + lane));
    simt::sync_block();
    simt::store_global_16(out + lane * 4, simt::load_shared_16(&sixteens[31 - lane]));
    simt::store_global_8(out + 128 + lane * 2, simt::load_shared_8(&eights[31 - lane]));
    simt::store_global_4(out + 192 + lane, simt::load_shared_4(&fours[31 - lane]));
    out += 224;
    simt::store_global_16(out + lane * 4, simt::load_global_16(in + lane * 4));
    simt::store_global_8(out + 128 + lane * 2, simt::load_global_8(in + 128 + lane * 2));
    simt::store_global_4(out + 192 + lane, simt::load_global_4(in + 192 + lane));
}

/* ---- Asynchronous copies: thread i copies i % 17 bytes of 16, i % 9 of 8, i % 5 of 4 */

__global__ void copy_kernel(words w) {
    PKVI_SHARED(uint4, target, 64 * 3);
    auto *bytes = reinterpret_cast<unsigned char *>(target);
    const int i = static_cast<int>(threadIdx.x);
    const uint4 filler = {0xa5a5a5a5u, 0xa5a5a5a5u, 0xa5a5a5a5u, 0xa5a5a5a5u};

    for (int part = 0; part < 3; part++) {
        simt::store_shared_16(&target[part * 64 + i], filler);
    }
    simt::sync_block();
    simt::copy_async_16(bytes + i * 16, w.in + i * 4, i % 17);
    simt::copy_async_commit();
    simt::copy_async_8(bytes + 1024 + i * 16, w.in + 256 + i * 4, i % 9);
    simt::copy_async_commit();
    simt::copy_async_4(bytes + 2048 + i * 16, w.in + 512 + i * 4, i % 5);
    simt::copy_async_commit();
    simt::copy_async_wait<2>();
    simt::copy_async_wait<0>();
    simt::sync_block();
    for (int part = 0; part < 3; part++) {
        const uint4 copied = simt::load_shared_16(&target[part * 64 + (i + 7) % 64]);

        simt::store_global_16(w.out + (part * 64 + i) * 4, copied);
    }
}

/* ---- Matrix loads: 12 words of each lane, from 32 rows of 16 bytes */

__global__ void ldmatrix_kernel(words w) {
    PKVI_SHARED(uint4, rows, 32);
    const int lane = simt::lane_index();
    uint32_t four[4], two[2];
    uint32_t *out = w.out + lane * 12;

    simt::store_shared_16(&rows[lane], simt::load_global_16(w.in + lane * 4));
    simt::sync_block();
    simt::ldmatrix_x4(four, &rows[lane]);
    for (int i = 0; i < 4; i++) {
        out[i] = four[i];
    }
    simt::ldmatrix_x4_trans(four, &rows[lane]);
    for (int i = 0; i < 4; i++) {
        out[4 + i] = four[i];
    }
    simt::ldmatrix_x2(two, &rows[lane % 16]);
    out[8] = two[0];
    out[9] = two[1];
    simt::ldmatrix_x2_trans(two, &rows[lane % 16]);
    out[10] = two[0];
    out[11] = two[1];
}

/* ---- Matrix products: in: 16 x 16 and 16 x 8 elements as halves of words, 16 x 8 floats; the
 * fragments are made here by the documented layout, one element at a time. */

constexpr int product_words = 128 + 64 + 128;

PKVI_WRAPPER uint32_t pair_at(const uint16_t *matrix, int first, int second) {
    return static_cast<uint32_t>(matrix[first]) | static_cast<uint32_t>(matrix[second]) << 16;
}

template <class element> __global__ void product_kernel(words w) {
    const uint32_t *in = w.in + blockIdx.x * product_words;
    const auto *a = reinterpret_cast<const uint16_t *>(in);
    const auto *b = a + 256;
    const int group = simt::lane_index() / 4, pair = simt::lane_index() % 4 * 2;
    uint32_t *out = w.out + blockIdx.x * 128;
    uint32_t left[4], right[2];
    float d[4];

    for (int i = 0; i < 4; i++) {
        const int place = (group + 8 * (i & 1)) * 16 + pair + 8 * (i >> 1);

        left[i] = pair_at(a, place, place + 1);
        d[i] = simt::bits_as<float>(in[192 + (group + 8 * (i >> 1)) * 8 + pair + (i & 1)]);
    }
    for (int i = 0; i < 2; i++) {
        const int k = pair + 8 * i;

        right[i] = pair_at(b, k * 8 + group, (k + 1) * 8 + group);
    }
    simt::mma_m16n8k16<element>(d, left, right[0], right[1]);
    for (int i = 0; i < 4; i++) {
        out[(group + 8 * (i >> 1)) * 8 + pair + (i & 1)] = simt::bits_as<uint32_t>(d[i]);
    }
}

/* ---- Barriers, atomics, launches */

/* Two warps hand words to two others at named barriers: one that waits, one that only arrives. */
__global__ void named_kernel(words w) {
    PKVI_SHARED(uint32_t, mail, 64);
    const int i = static_cast<int>(threadIdx.x);

    if (i < 64) {
        mail[i] = w.in[i] + 1u;
        simt::fence_block();
        simt::arrive_named(1, 128);
        simt::sync_named(2, 128);
        w.out[i] = mail[63 - i];
    } else {
        simt::sync_named(1, 128);
        const uint32_t x = mail[(i + 1) % 64];
        simt::sync_named(3, 64);
        mail[i - 64] = x * 2u;
        simt::sync_named(2, 128);
        w.out[i] = x;
    }
}

/* Every thread of the grid adds; the sums are small numbers, so that their order does not show. */
__global__ void atomic_kernel(words w) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    auto *integers = reinterpret_cast<int *>(w.out);

    (void)simt::atomic_add(&integers[0], i - 100);
    (void)simt::atomic_add(&w.out[1], static_cast<unsigned>(i));
    (void)simt::atomic_add(reinterpret_cast<float *>(&w.out[2]), static_cast<float>(i));
    (void)simt::atomic_max(&integers[3], (i * 37) % 1000 - 500);
    if (simt::atomic_cas(&integers[4 + i % 4], 0, i % 4 + 1) == 0) {
        simt::fence_device();
        (void)simt::atomic_add(&integers[8 + i % 4], 1); /* exactly one thread of each four */
    }
}

/* A word for each thread, by way of as much shared memory as a block may ask for. */
__global__ void large_shared_kernel(words w) {
    PKVI_DYNAMIC_SHARED(memory);
    auto *shared = reinterpret_cast<uint32_t *>(memory);
    const int32_t per_thread = w.count / static_cast<int32_t>(blockDim.x);
    const int32_t first = static_cast<int32_t>(threadIdx.x) * per_thread;

    for (int32_t i = first; i < first + per_thread; i++) {
        shared[i] = w.in[i % 64] + static_cast<uint32_t>(i);
    }
    simt::sync_block();
    for (int32_t i = first; i < first + per_thread; i++) {
        w.out[i] = shared[w.count - 1 - i];
    }
}

/* A chain of dependent grids: each adds one to what the grid before it wrote. */
__global__ void chain_kernel(words w) {
    const int32_t i = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);

    simt::launch_dependents();
    simt::wait_for_previous_grid();
    if (i < w.count) {
        w.out[i] = w.out[w.count + i] + 1u;
        w.out[w.count + i] = w.out[i];
    }
}

} // namespace wrappers

#endif
