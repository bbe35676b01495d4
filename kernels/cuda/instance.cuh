/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* What the generated translation units need: their kernels and their rows of the table.
 * kernels/cuda/instances.cmake writes one of the macros below for each line of instances.h. */
#ifndef PKVI_CUDA_INSTANCE_CUH
#define PKVI_CUDA_INSTANCE_CUH

#include "kernels/cuda/attend.cuh"
#include "kernels/cuda/attend_plain.cuh"

namespace pkvi {

/* A type of instances.h: its C++ name and its number. */
struct element_float {
    using type = float;
    static constexpr pkv_dtype dtype = PKV_DTYPE_FLOAT32;
};
struct element_half {
    using type = __half;
    static constexpr pkv_dtype dtype = PKV_DTYPE_FLOAT16;
};
struct element_bfloat16 {
    using type = __nv_bfloat16;
    static constexpr pkv_dtype dtype = PKV_DTYPE_BFLOAT16;
};
struct element_e4m3 {
    using type = e4m3;
    static constexpr pkv_dtype dtype = PKV_DTYPE_FLOAT8_E4M3;
};
struct element_int8 {
    using type = int8_t;
    static constexpr pkv_dtype dtype = PKV_DTYPE_INT8;
};

template <class query, class cache, int head, int value, bool shares, int rows, int keys>
inline attention_instance describe_instance() {
    using traits =
        attend_traits<typename query::type, typename cache::type, head, value, shares, rows, keys>;

    return {query::dtype,
            cache::dtype,
            head,
            value,
            shares,
            traits::tile_rows,
            traits::num_threads,
            attend_kernel<traits>,
            traits::stage_bytes,
            traits::query_slot_bytes,
            traits::weight_bytes + sizeof(pipe_shared<traits>)};
}

template <class cache> inline attention_instance describe_plain_instance() {
    return {PKV_DTYPE_FLOAT32,
            cache::dtype,
            PKV_MAX_HEAD_SIZE,
            PKV_MAX_HEAD_SIZE,
            false,
            0,
            plain_warps * 32,
            attend_plain_kernel<typename cache::type>,
            0,
            0,
            0};
}

} // namespace pkvi

#define PKVI_ATTENTION_UNIT(name, query, cache, head, value, shares, rows, keys)                   \
    namespace pkvi {                                                                               \
    attention_instance describe_##name() {                                                         \
        return describe_instance<element_##query, element_##cache, head, value, shares, rows,      \
                                 keys>();                                                          \
    }                                                                                              \
    }

#define PKVI_ATTENTION_PLAIN_UNIT(name, cache)                                                     \
    namespace pkvi {                                                                               \
    attention_instance describe_##name() {                                                         \
        return describe_plain_instance<element_##cache>();                                         \
    }                                                                                              \
    }

#endif
