/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The element types of a cache as the kernels name them, and one element as a float. Whole vectors
 * are converted where they are used. */
#ifndef PKVI_CUDA_ELEMENTS_CUH
#define PKVI_CUDA_ELEMENTS_CUH

#include "kernels/cuda/simt.cuh"

namespace pkvi {

struct e4m3 {
    uint8_t code;
};

PKVI_WRAPPER float element_to_float(float value) {
    return value;
}

PKVI_WRAPPER float element_to_float(__half value) {
    return simt::to_float(value);
}

PKVI_WRAPPER float element_to_float(__nv_bfloat16 value) {
    return simt::to_float(value);
}

PKVI_WRAPPER float element_to_float(e4m3 value) {
    return simt::e4m3_to_float(value.code);
}

PKVI_WRAPPER float element_to_float(int8_t value) {
    return static_cast<float>(value);
}

} // namespace pkvi

#endif
