/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The list of attention kernels. Each line becomes a line of a translation unit
 * (kernels/cuda/instances.cmake) and a row of the table (instances.cu).
 *
 * The one idea: X(name, query, cache, head class, value class, shares keys, row warps, key warps),
 * classes ascending, so that the first that is large enough is the one. */
#ifndef PKVI_CUDA_INSTANCES_H
#define PKVI_CUDA_INSTANCES_H

/* A test build that has some of the kernels only brings the two lists below itself. */
#ifdef PKVI_ATTENTION_LIST
#include PKVI_ATTENTION_LIST
#else

#define PKVI_ATTENTION_CLASSES(X, name, query, cache)                                              \
    X(name##_64_small, query, cache, 64, 64, false, 1, 4)                                          \
    X(name##_64_large, query, cache, 64, 64, false, 4, 1)                                          \
    X(name##_128_small, query, cache, 128, 128, false, 1, 4)                                       \
    X(name##_128_large, query, cache, 128, 128, false, 4, 1)                                       \
    X(name##_192_small, query, cache, 192, 128, false, 1, 4)                                       \
    X(name##_192_large, query, cache, 192, 128, false, 4, 1)                                       \
    X(name##_256_small, query, cache, 256, 256, false, 1, 4)                                       \
    X(name##_256_large, query, cache, 256, 256, false, 4, 1)                                       \
    X(name##_latent_small, query, cache, 576, 512, true, 1, 4)                                     \
    X(name##_latent_large, query, cache, 576, 512, true, 4, 2)

#define PKVI_ATTENTION_INSTANCES(X)                                                                \
    PKVI_ATTENTION_CLASSES(X, half_half, half, half)                                               \
    PKVI_ATTENTION_CLASSES(X, half_e4m3, half, e4m3)                                               \
    PKVI_ATTENTION_CLASSES(X, half_int8, half, int8)                                               \
    PKVI_ATTENTION_CLASSES(X, bfloat16_bfloat16, bfloat16, bfloat16)                               \
    PKVI_ATTENTION_CLASSES(X, bfloat16_e4m3, bfloat16, e4m3)                                       \
    PKVI_ATTENTION_CLASSES(X, bfloat16_int8, bfloat16, int8)

/* X(name, cache) */
#define PKVI_ATTENTION_PLAIN_INSTANCES(X)                                                          \
    X(plain_float, float)                                                                          \
    X(plain_half, half)                                                                            \
    X(plain_bfloat16, bfloat16)                                                                    \
    X(plain_e4m3, e4m3)                                                                            \
    X(plain_int8, int8)

#endif
#endif
