/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* What a kernel needs beyond C++: the only file of the library with intrinsics, inline PTX and a
 * kernel launch. No arithmetic of attention, no layout of the cache.
 *
 * The one idea: each wrapper is one instruction and has a twin for the host (tests/simt, chosen by
 * PKVI_SIMT_HOST), so that a kernel written against this file runs unchanged on a processor.
 *
 *   indices      threadIdx, blockIdx, blockDim, gridDim as in CUDA; lane_index(), warp_index()
 *   shared       PKVI_DYNAMIC_SHARED(name), PKVI_SHARED(type, name, count); never __shared__
 *   launch       launch(kernel, shape, arguments...), allow_shared_bytes(kernel, bytes)
 *   barriers     sync_block, sync_named, arrive_named, sync_warp
 *   warp         shuffle, shuffle_xor, shuffle_up, shuffle_down, ballot, any, all
 *   loads        load_global_const_16, load_global_16, load_shared_16; the same with 8 and 4
 *   stores       store_global_16, store_shared_16; the same with 8 and 4
 *   copies       copy_async_16 (cg, L2::128B, zero fill), copy_async_8, copy_async_4 (ca),
 *                copy_async_commit, copy_async_wait<n>
 *   matrices     ldmatrix_x4, ldmatrix_x4_trans, ldmatrix_x2, ldmatrix_x2_trans,
 *                mma_m16n8k16<element>(d, a, b0, b1), element = __half or __nv_bfloat16
 *   arithmetic   exp2_approx, log2_approx, reciprocal_approx, tanh_exact, float_to_int_nearest
 *   conversions  to_float, from_float<element>, pack2<element>, unpack2<element>,
 *                e4m3x2_to<element>, int8x2_to<element>, float_to_e4m3, e4m3_to_float, byte_permute
 *   ordering     fence_block, fence_device, atomic_add, atomic_max, atomic_cas
 *   hints        prefetch_l2, wait_for_previous_grid, launch_dependents
 *   mistakes     has_mistake(which): one that a test has planted (mistakes.h)
 *
 * An address of shared memory is an ordinary pointer. A warp is always 32 threads of x. */
#ifndef PKVI_CUDA_SIMT_CUH
#define PKVI_CUDA_SIMT_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime_api.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cuda/mistakes.h"

namespace simt {

constexpr uint32_t full_warp = 0xffffffffu;
constexpr int warp_size = 32;

/* The shape of one launch. With `is_dependent` the grid may start while its predecessor on the
 * stream still runs; such a kernel calls wait_for_previous_grid before it reads anything. */
struct launch_shape {
    dim3 grid;
    dim3 block;
    size_t shared_bytes;
    cudaStream_t stream;
    bool is_dependent;
};

} // namespace simt

#ifdef PKVI_SIMT_HOST
#include <simt_host.h>
#else
#include <cuda_runtime.h>

#define PKVI_DYNAMIC_SHARED(name) extern __shared__ __align__(1024) unsigned char name[]
#define PKVI_SHARED(type, name, count) __shared__ type name[count]
#define PKVI_WRAPPER __device__ __forceinline__

namespace simt {

constexpr __host__ __device__ bool has_mistake(pkvi_mistake) {
    return false;
}

/* ---- Launch */

/* Start `kernel`; errors that show only later come from the stream. It sets no attribute, so that
 * it may stand inside a capture: more than 48 KiB of dynamic shared memory need
 * allow_shared_bytes beforehand. */
template <class... parameters, class... arguments>
inline cudaError_t launch(void (*kernel)(parameters...),
                          const launch_shape &shape,
                          const arguments &...values) {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute = {};

    config.gridDim = shape.grid;
    config.blockDim = shape.block;
    config.dynamicSmemBytes = shape.shared_bytes;
    config.stream = shape.stream;
    if (shape.is_dependent) {
        attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute.val.programmaticStreamSerializationAllowed = 1;
        config.attrs = &attribute;
        config.numAttrs = 1;
    }
    return cudaLaunchKernelEx(&config, kernel, static_cast<parameters>(values)...);
}

/* ---- Barriers and the warp */

PKVI_WRAPPER void sync_block() {
    __syncthreads();
}

/* Wait until `num_threads` threads (a multiple of 32) have come to the barrier `id`, 1 to 15. */
PKVI_WRAPPER void sync_named(int id, int num_threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(num_threads) : "memory");
}

/* Count as arrived at the barrier `id` without waiting for it. */
PKVI_WRAPPER void arrive_named(int id, int num_threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(num_threads) : "memory");
}

PKVI_WRAPPER void sync_warp(uint32_t mask = full_warp) {
    __syncwarp(mask);
}

template <class value_type>
PKVI_WRAPPER value_type shuffle(value_type value, int source, uint32_t mask = full_warp) {
    return __shfl_sync(mask, value, source);
}

template <class value_type>
PKVI_WRAPPER value_type shuffle_xor(value_type value, int lane_mask, uint32_t mask = full_warp) {
    return __shfl_xor_sync(mask, value, lane_mask);
}

template <class value_type>
PKVI_WRAPPER value_type shuffle_up(value_type value, int distance, uint32_t mask = full_warp) {
    return __shfl_up_sync(mask, value, static_cast<unsigned>(distance));
}

template <class value_type>
PKVI_WRAPPER value_type shuffle_down(value_type value, int distance, uint32_t mask = full_warp) {
    return __shfl_down_sync(mask, value, static_cast<unsigned>(distance));
}

PKVI_WRAPPER uint32_t ballot(bool predicate, uint32_t mask = full_warp) {
    return __ballot_sync(mask, predicate);
}

PKVI_WRAPPER bool any(bool predicate, uint32_t mask = full_warp) {
    return __any_sync(mask, predicate) != 0;
}

PKVI_WRAPPER bool all(bool predicate, uint32_t mask = full_warp) {
    return __all_sync(mask, predicate) != 0;
}

/* ---- Loads and stores of whole vectors; the address is a multiple of the size */

PKVI_WRAPPER uint32_t shared_address(const void *address) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(address));
}

/* Through the read-only path: nothing may write these bytes while the kernel runs. */
PKVI_WRAPPER uint4 load_global_const_16(const void *address) {
    uint4 value;
    asm("ld.global.nc.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
        : "l"(address));
    return value;
}

PKVI_WRAPPER uint2 load_global_const_8(const void *address) {
    return __ldg(static_cast<const uint2 *>(address));
}

PKVI_WRAPPER uint32_t load_global_const_4(const void *address) {
    return __ldg(static_cast<const unsigned *>(address));
}

PKVI_WRAPPER uint4 load_global_16(const void *address) {
    return *static_cast<const uint4 *>(address);
}

PKVI_WRAPPER uint2 load_global_8(const void *address) {
    return *static_cast<const uint2 *>(address);
}

PKVI_WRAPPER uint32_t load_global_4(const void *address) {
    return *static_cast<const uint32_t *>(address);
}

PKVI_WRAPPER uint4 load_shared_16(const void *address) {
    return *static_cast<const uint4 *>(address);
}

PKVI_WRAPPER uint2 load_shared_8(const void *address) {
    return *static_cast<const uint2 *>(address);
}

PKVI_WRAPPER uint32_t load_shared_4(const void *address) {
    return *static_cast<const uint32_t *>(address);
}

PKVI_WRAPPER void store_global_16(void *address, uint4 value) {
    *static_cast<uint4 *>(address) = value;
}

PKVI_WRAPPER void store_global_8(void *address, uint2 value) {
    *static_cast<uint2 *>(address) = value;
}

PKVI_WRAPPER void store_global_4(void *address, uint32_t value) {
    *static_cast<uint32_t *>(address) = value;
}

PKVI_WRAPPER void store_shared_16(void *address, uint4 value) {
    *static_cast<uint4 *>(address) = value;
}

PKVI_WRAPPER void store_shared_8(void *address, uint2 value) {
    *static_cast<uint2 *>(address) = value;
}

PKVI_WRAPPER void store_shared_4(void *address, uint32_t value) {
    *static_cast<uint32_t *>(address) = value;
}

/* ---- Copies from global to shared memory that go on while the kernel computes */

/* Read `num_bytes` (0 to 16) and fill the rest of the 16 with zeros. With 0 nothing is read, but
 * the source has to be a valid address all the same. */
PKVI_WRAPPER void copy_async_16(void *shared, const void *global, int num_bytes = 16) {
    asm volatile(
        "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
        "l"(global), "r"(num_bytes)
        : "memory");
}

PKVI_WRAPPER void copy_async_8(void *shared, const void *global, int num_bytes = 8) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared_address(shared)),
                 "l"(global), "r"(num_bytes)
                 : "memory");
}

PKVI_WRAPPER void copy_async_4(void *shared, const void *global, int num_bytes = 4) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(shared)),
                 "l"(global), "r"(num_bytes)
                 : "memory");
}

/* Close the group of the copies that this thread has begun since the last one; it may be empty. */
PKVI_WRAPPER void copy_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Wait until all but this thread's youngest `num_pending` groups have arrived. Other threads see
 * them only after a barrier. */
template <int num_pending> PKVI_WRAPPER void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(num_pending) : "memory");
}

/* ---- Matrices: every lane of the warp takes part */

/* Lane 8i + r names row r of matrix i; register i gets this lane's two elements of matrix i. */
PKVI_WRAPPER void ldmatrix_x4(uint32_t (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

PKVI_WRAPPER void ldmatrix_x4_trans(uint32_t (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/* Only lanes 0 to 15 name rows. */
PKVI_WRAPPER void ldmatrix_x2(uint32_t (&r)[2], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(shared_address(row))
                 : "memory");
}

PKVI_WRAPPER void ldmatrix_x2_trans(uint32_t (&r)[2], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(shared_address(row))
                 : "memory");
}

/* d += a * b with a 16 x 16, b 16 x 8 and d 16 x 8, fp32 sums. With g = lane / 4 and t = lane % 4,
 * half h of a[i] is a[g + 8 (i & 1)][2t + h + 8 (i >> 1)], half h of b_i is b[2t + h + 8i][g], and
 * d[i] is d[g + 8 (i >> 1)][2t + (i & 1)]. */
template <class element>
PKVI_WRAPPER void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

template <>
PKVI_WRAPPER void mma_m16n8k16<__half>(float (&d)[4],
                                       const uint32_t (&a)[4],
                                       uint32_t b0,
                                       uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
PKVI_WRAPPER void mma_m16n8k16<__nv_bfloat16>(float (&d)[4],
                                              const uint32_t (&a)[4],
                                              uint32_t b0,
                                              uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* ---- Arithmetic */

PKVI_WRAPPER float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

PKVI_WRAPPER float log2_approx(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

PKVI_WRAPPER float reciprocal_approx(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Ties go to the even number, a NaN to 0, what does not fit to the nearest that does. */
PKVI_WRAPPER int float_to_int_nearest(float x) {
    return __float2int_rn(x);
}

PKVI_WRAPPER uint32_t byte_permute(uint32_t low, uint32_t high, uint32_t selector) {
    return __byte_perm(low, high, selector);
}

/* Two e4m3 in 16 bits to two halves; NaN stays NaN. */
PKVI_WRAPPER uint32_t e4m3x2_to_half2(uint32_t codes) {
#if __CUDA_ARCH__ >= 890
    uint32_t halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(codes)));
    return halves;
#else
    /* Sign, exponent and fraction stand as in a half whose exponent is 8 too small, subnormals
     * included; only the NaN codes come out as 480. */
    const uint32_t spread = __byte_perm(codes, 0, 0x1404);
    const uint32_t bits = (spread & 0x80008000u) | ((spread & 0x7f007f00u) >> 1);
    const uint32_t is_nan = __vcmpeq2(spread & 0x7f007f00u, 0x7f007f00u) & 0x7e007e00u;
    uint32_t scaled;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(scaled) : "r"(bits), "r"(0x5c005c00u));
    return scaled | is_nan;
#endif
}

/* ---- Ordering and hints */

PKVI_WRAPPER void fence_block() {
    __threadfence_block();
}

PKVI_WRAPPER void fence_device() {
    __threadfence();
}

PKVI_WRAPPER int atomic_add(int *address, int value) {
    return atomicAdd(address, value);
}

PKVI_WRAPPER unsigned atomic_add(unsigned *address, unsigned value) {
    return atomicAdd(address, value);
}

PKVI_WRAPPER float atomic_add(float *address, float value) {
    return atomicAdd(address, value);
}

PKVI_WRAPPER int atomic_max(int *address, int value) {
    return atomicMax(address, value);
}

PKVI_WRAPPER int atomic_cas(int *address, int expected, int desired) {
    return atomicCAS(address, expected, desired);
}

PKVI_WRAPPER void prefetch_l2(const void *address) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

/* Wait until the grid before this one on the stream has finished and its writes are visible. */
PKVI_WRAPPER void wait_for_previous_grid() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Allow a dependent grid behind this one to start. */
PKVI_WRAPPER void launch_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

} // namespace simt
#endif

/* ---- The same text on both sides */

namespace simt {

/* Allow `kernel` launches with up to `bytes` of dynamic shared memory on the current device. */
template <class... parameters>
inline cudaError_t allow_shared_bytes(void (*kernel)(parameters...), size_t bytes) {
    return cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel),
                                cudaFuncAttributeMaxDynamicSharedMemorySize,
                                static_cast<int>(bytes));
}

PKVI_WRAPPER int lane_index() {
    return static_cast<int>(threadIdx.x % warp_size);
}

PKVI_WRAPPER int warp_index() {
    return static_cast<int>(threadIdx.x / warp_size);
}

/* The bits of `from` as another type of the same size. */
template <class to, class from_type> PKVI_WRAPPER to bits_as(const from_type &from) {
    static_assert(sizeof(to) == sizeof(from_type), "sizes differ");
    to result;
    memcpy(static_cast<void *>(&result), static_cast<const void *>(&from), sizeof(to));
    return result;
}

/* 1 - 2 / (1 + e^2x): within some 2e-7 of the true value, unlike the instruction (5e-4). */
PKVI_WRAPPER float tanh_exact(float x) {
    return 1.0f - 2.0f * reciprocal_approx(1.0f + exp2_approx(2.885390081777927f * x));
}

PKVI_WRAPPER float to_float(float value) {
    return value;
}

PKVI_WRAPPER float to_float(__half value) {
    return __half2float(value);
}

PKVI_WRAPPER float to_float(__nv_bfloat16 value) {
    return __bfloat162float(value);
}

/* Round to the nearest, ties to even. */
template <class element> PKVI_WRAPPER element from_float(float value);

template <> PKVI_WRAPPER float from_float<float>(float value) {
    return value;
}

template <> PKVI_WRAPPER __half from_float<__half>(float value) {
    return __float2half_rn(value);
}

template <> PKVI_WRAPPER __nv_bfloat16 from_float<__nv_bfloat16>(float value) {
    return __float2bfloat16_rn(value);
}

/* Two elements of 16 bits in a register, the first one below. */
template <class element> PKVI_WRAPPER uint32_t pack2(float low, float high);

template <> PKVI_WRAPPER uint32_t pack2<__half>(float low, float high) {
    return bits_as<uint32_t>(__floats2half2_rn(low, high));
}

template <> PKVI_WRAPPER uint32_t pack2<__nv_bfloat16>(float low, float high) {
    return bits_as<uint32_t>(__floats2bfloat162_rn(low, high));
}

template <class element> PKVI_WRAPPER float2 unpack2(uint32_t pair);

template <> PKVI_WRAPPER float2 unpack2<__half>(uint32_t pair) {
    /* __half22float2 is for the device only in CUDA 12.0 and 12.1. */
    const __half2 both = bits_as<__half2>(pair);
    return make_float2(__low2float(both), __high2float(both));
}

template <> PKVI_WRAPPER float2 unpack2<__nv_bfloat16>(uint32_t pair) {
    return make_float2(bits_as<float>(pair << 16), bits_as<float>(pair & 0xffff0000u));
}

/* Two e4m3 in the low 16 bits to two elements; exact, since both have more bits of each kind. */
template <class element> PKVI_WRAPPER uint32_t e4m3x2_to(uint32_t codes);

template <> PKVI_WRAPPER uint32_t e4m3x2_to<__half>(uint32_t codes) {
    return e4m3x2_to_half2(codes);
}

template <> PKVI_WRAPPER uint32_t e4m3x2_to<__nv_bfloat16>(uint32_t codes) {
    const float2 pair = unpack2<__half>(e4m3x2_to_half2(codes));
    return pack2<__nv_bfloat16>(pair.x, pair.y);
}

/* Two int8 in the low 16 bits to two elements; exact. In 2^23 + u the last byte of a float is u. */
template <class element> PKVI_WRAPPER uint32_t int8x2_to(uint32_t codes) {
    const uint32_t biased = codes ^ 0x8080u;
    const float low = bits_as<float>(byte_permute(biased, 0x4b000000u, 0x7440));
    const float high = bits_as<float>(byte_permute(biased, 0x4b000000u, 0x7441));
    return pack2<element>(low - 8388736.0f, high - 8388736.0f);
}

/* Round to the nearest e4m3; what is too large becomes 448, NaN stays NaN. */
PKVI_WRAPPER uint8_t float_to_e4m3(float value) {
    return static_cast<uint8_t>(__nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3));
}

PKVI_WRAPPER float e4m3_to_float(uint8_t code) {
    return unpack2<__half>(e4m3x2_to_half2(code)).x;
}

} // namespace simt

#endif
