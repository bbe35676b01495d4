/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* One element of a tensor to and from float on the device, the same bytes as on the CPU, and rows
 * that are copied as they are. Which row goes where is the kernels' affair.
 *
 * The one idea: the type is a run-time value; it is the same for all threads, so that the branch
 * costs nothing beside the memory. */
#ifndef PKVI_CUDA_CONVERT_CUH
#define PKVI_CUDA_CONVERT_CUH

#include "kernels/cuda/simt.cuh"

#include "device/backend.h"

namespace pkvi {

__device__ __forceinline__ int element_bytes(pkv_dtype dtype) {
    return dtype == PKV_DTYPE_FLOAT32 ? 4 : dtype <= PKV_DTYPE_BFLOAT16 ? 2 : 1;
}

__device__ __forceinline__ float read_element(const void *base, pkv_dtype dtype, int64_t index) {
    switch (dtype) {
    case PKV_DTYPE_FLOAT32:
        return static_cast<const float *>(base)[index];
    case PKV_DTYPE_FLOAT16:
        return simt::to_float(static_cast<const __half *>(base)[index]);
    case PKV_DTYPE_BFLOAT16:
        return simt::to_float(static_cast<const __nv_bfloat16 *>(base)[index]);
    case PKV_DTYPE_FLOAT8_E4M3:
        return simt::e4m3_to_float(static_cast<const uint8_t *>(base)[index]);
    default:
        return static_cast<float>(static_cast<const int8_t *>(base)[index]);
    }
}

/* NaN keeps its sign and the upper bits of its payload, as on the CPU. */
__device__ __forceinline__ uint16_t to_half_bits(float value) {
    const uint32_t bits = simt::bits_as<uint32_t>(value);

    if (value != value) {
        return static_cast<uint16_t>((bits >> 16 & 0x8000u) | 0x7e00u | (bits >> 13 & 0x3ffu));
    }
    return simt::bits_as<uint16_t>(simt::from_float<__half>(value));
}

__device__ __forceinline__ uint16_t to_bfloat16_bits(float value) {
    const uint32_t bits = simt::bits_as<uint32_t>(value);

    if (value != value) {
        return static_cast<uint16_t>(bits >> 16 | 0x0040u);
    }
    return simt::bits_as<uint16_t>(simt::from_float<__nv_bfloat16>(value));
}

__device__ __forceinline__ int8_t to_int8(float value) {
    const float clamped = value > 127.0f ? 127.0f : value < -127.0f ? -127.0f : value;

    return static_cast<int8_t>(simt::float_to_int_nearest(clamped));
}

__device__ __forceinline__ uint8_t to_e4m3(float value) {
    if (value != value) {
        return static_cast<uint8_t>((simt::bits_as<uint32_t>(value) >> 24 & 0x80u) | 0x7fu);
    }
    return simt::float_to_e4m3(value);
}

__device__ __forceinline__ void write_element(void *base,
                                              pkv_dtype dtype,
                                              int64_t index,
                                              float value) {
    switch (dtype) {
    case PKV_DTYPE_FLOAT32:
        static_cast<float *>(base)[index] = value;
        break;
    case PKV_DTYPE_FLOAT16:
        static_cast<uint16_t *>(base)[index] = to_half_bits(value);
        break;
    case PKV_DTYPE_BFLOAT16:
        static_cast<uint16_t *>(base)[index] = to_bfloat16_bits(value);
        break;
    case PKV_DTYPE_FLOAT8_E4M3:
        static_cast<uint8_t *>(base)[index] = to_e4m3(value);
        break;
    default:
        static_cast<int8_t *>(base)[index] = to_int8(value);
        break;
    }
}

__device__ __forceinline__ unsigned char *element_address(const pkv_tensor &tensor, int64_t index) {
    return static_cast<unsigned char *>(tensor.data) + index * element_bytes(tensor.dtype);
}

/* Copy bytes with `num_threads` threads, of which this is `thread`; in vectors of 16 where both
 * addresses and the length allow. */
__device__ __forceinline__ void copy_bytes(
    void *target, const void *source, int64_t num_bytes, int thread, int num_threads) {
    unsigned char *to = static_cast<unsigned char *>(target);
    const unsigned char *from = static_cast<const unsigned char *>(source);
    const uintptr_t odd = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) |
                          static_cast<uintptr_t>(num_bytes);

    if (odd % 16 == 0) {
        for (int64_t at = thread * 16; at < num_bytes; at += num_threads * 16) {
            simt::store_global_16(to + at, simt::load_global_16(from + at));
        }
    } else {
        for (int64_t at = thread; at < num_bytes; at += num_threads) {
            to[at] = from[at];
        }
    }
}

} // namespace pkvi

#endif
