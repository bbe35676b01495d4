/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The host half of kernels/cuda/simt.cuh: for each of its wrappers a twin of the same name that
 * does on a processor what the instruction does. Included by simt.cuh alone, inside a kernel source
 * that is compiled as C++. The work behind the twins is in the other files of this folder.
 *
 * The one idea: a twin checks what the hardware leaves undefined (alignment, bounds, lanes that do
 * not take part) and hands its call site on, so that an error names a line of the kernel. */
#ifndef PKV_TESTS_SIMT_HOST_H
#define PKV_TESTS_SIMT_HOST_H

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <tuple>
#include <type_traits>
#include <vector_functions.h>
#include <vector_types.h>

#undef __shared__
#undef __launch_bounds__
#undef __grid_constant__
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static_assert(false, "use PKVI_SHARED or PKVI_DYNAMIC_SHARED");

#define PKVI_WRAPPER inline
/* Twins report their accesses themselves, at the line of their caller. */
#define PKVI_NOT_INSTRUMENTED __attribute__((no_sanitize("thread")))
#define PKVI_DYNAMIC_SHARED(name) unsigned char *const name = ::simt::dynamic_shared()
/* The address of a static variable in a lambda tells one use in one template instance from all
 * others. */
#define PKVI_SHARED(type, name, count)                                                             \
    type(&name)[count] = *static_cast<type(*)[count]>(::simt::static_shared(                       \
        [] {                                                                                       \
            static char key;                                                                       \
            return static_cast<const void *>(&key);                                                \
        }(),                                                                                       \
        sizeof(type) * (count), alignof(type)))

using std::max;
using std::min;

/* One block runs at a time, in one thread of the system: these need not be thread-local. */
extern uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace simt {

/* A place in a kernel. A default argument `site{__builtin_FILE(), __builtin_LINE()}` would name the
 * line of its declaration with g++ 12: hence a function with default arguments of its own. */
struct site {
    const char *file;
    int line;

    static constexpr site here(const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
        return site{file, line};
    }
};

/* ---- What the engine offers to the twins */

/* Record an error of the running thread, give up its grid and never return. */
[[noreturn]] void fail(site where, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Whether the test wants this mistake (simt_options.mistake). */
bool has_mistake(pkvi_mistake which);

unsigned char *dynamic_shared();
void *static_shared(const void *key, size_t size, size_t alignment);
bool is_in_shared(const void *address, size_t size);
void note_access(const void *address, size_t size, bool is_write, site where);

/* The arguments of all lanes of `mask` that call the same collective; the last lane to arrive runs
 * the function over them, and results are written where each lane's own argument says. */
struct lane_calls {
    void *arguments[32];
    uint32_t mask;
    site where;
};
using collective = void (*)(lane_calls &);
void run_collective(collective function,
                    const char *name,
                    uint32_t mask,
                    void *argument,
                    bool orders_memory,
                    site where);
void vote_collective(lane_calls &calls);
void empty_collective(lane_calls &calls);

void block_barrier(site where);
void named_barrier(int id, int num_threads, bool waits, site where);

void begin_copy(void *shared, const void *global, int size, int num_bytes, site where);
void commit_copies();
void wait_copies(int num_pending);

void load_matrices(uint32_t *result, int num_matrices, bool is_transposed, const void *row, site);
void multiply_matrices(float *d, const uint32_t *a, const uint32_t *b, bool is_bfloat, site where);

/* A kernel with its arguments; `size` is that of the whole object. */
struct kernel_call {
    size_t size;

    explicit kernel_call(size_t object_size) : size(object_size) {
    }
    virtual ~kernel_call() = default;
    virtual void run() const = 0;
};
cudaError_t enqueue_grid(const void *kernel,
                         std::unique_ptr<const kernel_call> call,
                         const launch_shape &shape);

template <class... parameters> struct typed_kernel_call : kernel_call {
    void (*kernel)(parameters...);
    std::tuple<std::decay_t<parameters>...> values;

    typed_kernel_call(void (*function)(parameters...), std::decay_t<parameters>... arguments)
        : kernel_call(sizeof(*this)), kernel(function), values(arguments...) {
    }

    void run() const override {
        auto copy = values;
        std::apply(kernel, copy);
    }
};

/* ---- Launch */

template <class... parameters, class... arguments>
inline cudaError_t launch(void (*kernel)(parameters...),
                          const launch_shape &shape,
                          const arguments &...values) {
    return enqueue_grid(reinterpret_cast<const void *>(kernel),
                        std::make_unique<const typed_kernel_call<parameters...>>(
                            kernel, static_cast<parameters>(values)...),
                        shape);
}

/* ---- Barriers and the warp */

inline void sync_block(site where = site::here()) {
    block_barrier(where);
}

inline void sync_named(int id, int num_threads, site where = site::here()) {
    named_barrier(id, num_threads, true, where);
}

inline void arrive_named(int id, int num_threads, site where = site::here()) {
    named_barrier(id, num_threads, false, where);
}

inline void sync_warp(uint32_t mask = full_warp, site where = site::here()) {
    run_collective(&empty_collective, "sync_warp", mask, nullptr, true, where);
}

enum class shuffle_kind { index, exclusive_or, up, down };

template <class value_type> struct shuffle_call {
    value_type in;
    value_type out;
    int operand;
    shuffle_kind kind;
};

inline int shuffle_source(int lane, int operand, shuffle_kind kind) {
    int source = lane;

    switch (kind) {
    case shuffle_kind::index:
        return operand & 31;
    case shuffle_kind::exclusive_or:
        source = lane ^ operand;
        break;
    case shuffle_kind::up:
        source = lane - operand;
        break;
    case shuffle_kind::down:
        source = lane + operand;
        break;
    }
    return source < 0 || source > 31 ? lane : source;
}

template <class value_type> PKVI_NOT_INSTRUMENTED void shuffle_collective(lane_calls &calls) {
    for (int lane = 0; lane < 32; lane++) {
        if ((calls.mask >> lane & 1) != 0) {
            auto *own = static_cast<shuffle_call<value_type> *>(calls.arguments[lane]);
            const int source = shuffle_source(lane, own->operand, own->kind);
            if ((calls.mask >> source & 1) == 0) {
                fail(calls.where, "shuffle: lane %d reads lane %d, which is not in the mask %08x",
                     lane, source, calls.mask);
            }
            own->out = static_cast<shuffle_call<value_type> *>(calls.arguments[source])->in;
        }
    }
}

template <class value_type>
PKVI_NOT_INSTRUMENTED inline value_type shuffle_any(
    value_type value, int operand, shuffle_kind kind, const char *name, uint32_t mask, site where) {
    static_assert(std::is_trivially_copyable<value_type>::value, "registers only");
    shuffle_call<value_type> call{value, value, operand, kind};
    run_collective(&shuffle_collective<value_type>, name, mask, &call, false, where);
    return call.out;
}

template <class value_type>
inline value_type shuffle(value_type value,
                          int source,
                          uint32_t mask = full_warp,
                          site where = site::here()) {
    return shuffle_any(value, source, shuffle_kind::index, "shuffle", mask, where);
}

template <class value_type>
inline value_type shuffle_xor(value_type value,
                              int lane_mask,
                              uint32_t mask = full_warp,
                              site where = site::here()) {
    return shuffle_any(value, lane_mask, shuffle_kind::exclusive_or, "shuffle_xor", mask, where);
}

template <class value_type>
inline value_type shuffle_up(value_type value,
                             int distance,
                             uint32_t mask = full_warp,
                             site where = site::here()) {
    return shuffle_any(value, distance, shuffle_kind::up, "shuffle_up", mask, where);
}

template <class value_type>
inline value_type shuffle_down(value_type value,
                               int distance,
                               uint32_t mask = full_warp,
                               site where = site::here()) {
    return shuffle_any(value, distance, shuffle_kind::down, "shuffle_down", mask, where);
}

struct vote_call {
    bool predicate;
    uint32_t votes;
};

PKVI_NOT_INSTRUMENTED inline uint32_t ballot(bool predicate,
                                             uint32_t mask = full_warp,
                                             site where = site::here()) {
    vote_call call{predicate, 0};
    run_collective(&vote_collective, "ballot", mask, &call, false, where);
    return call.votes;
}

inline bool any(bool predicate, uint32_t mask = full_warp, site where = site::here()) {
    return ballot(predicate, mask, where) != 0;
}

inline bool all(bool predicate, uint32_t mask = full_warp, site where = site::here()) {
    return ballot(predicate, mask, where) == mask;
}

/* ---- Loads and stores */

PKVI_NOT_INSTRUMENTED inline void check_vector(
    const void *address, size_t size, bool is_shared, const char *name, site where) {
    if (reinterpret_cast<uintptr_t>(address) % size != 0) {
        fail(where, "%s of %zu bytes: the address %p is not aligned", name, size, address);
    }
    if (is_in_shared(address, size) != is_shared) {
        fail(where, "%s of %zu bytes: the address is %s shared memory", name, size,
             is_shared ? "outside of" : "in");
    }
}

template <class vector>
PKVI_NOT_INSTRUMENTED inline vector load_vector(const void *address, bool is_shared, site where) {
    check_vector(address, sizeof(vector), is_shared, is_shared ? "shared load" : "global load",
                 where);
    note_access(address, sizeof(vector), false, where);
    return *static_cast<const vector *>(address);
}

template <class vector>
PKVI_NOT_INSTRUMENTED inline void store_vector(void *address,
                                               vector value,
                                               bool is_shared,
                                               site where) {
    check_vector(address, sizeof(vector), is_shared, is_shared ? "shared store" : "global store",
                 where);
    note_access(address, sizeof(vector), true, where);
    *static_cast<vector *>(address) = value;
}

#define PKVI_VECTOR_TWINS(vector, size)                                                            \
    inline vector load_global_const_##size(const void *address, site where = site::here()) {       \
        return load_vector<vector>(address, false, where);                                         \
    }                                                                                              \
    inline vector load_global_##size(const void *address, site where = site::here()) {             \
        return load_vector<vector>(address, false, where);                                         \
    }                                                                                              \
    inline vector load_shared_##size(const void *address, site where = site::here()) {             \
        return load_vector<vector>(address, true, where);                                          \
    }                                                                                              \
    inline void store_global_##size(void *address, vector value, site where = site::here()) {      \
        store_vector<vector>(address, value, false, where);                                        \
    }                                                                                              \
    inline void store_shared_##size(void *address, vector value, site where = site::here()) {      \
        store_vector<vector>(address, value, true, where);                                         \
    }

PKVI_VECTOR_TWINS(uint4, 16)
PKVI_VECTOR_TWINS(uint2, 8)
PKVI_VECTOR_TWINS(uint32_t, 4)
#undef PKVI_VECTOR_TWINS

/* ---- Asynchronous copies */

inline void copy_async_16(void *shared,
                          const void *global,
                          int num_bytes = 16,
                          site where = site::here()) {
    begin_copy(shared, global, 16, num_bytes, where);
}

inline void copy_async_8(void *shared,
                         const void *global,
                         int num_bytes = 8,
                         site where = site::here()) {
    begin_copy(shared, global, 8, num_bytes, where);
}

inline void copy_async_4(void *shared,
                         const void *global,
                         int num_bytes = 4,
                         site where = site::here()) {
    begin_copy(shared, global, 4, num_bytes, where);
}

inline void copy_async_commit() {
    commit_copies();
}

template <int num_pending> inline void copy_async_wait() {
    wait_copies(num_pending);
}

/* ---- Matrices */

inline void ldmatrix_x4(uint32_t (&r)[4], const void *row, site where = site::here()) {
    load_matrices(r, 4, false, row, where);
}

inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void *row, site where = site::here()) {
    load_matrices(r, 4, true, row, where);
}

inline void ldmatrix_x2(uint32_t (&r)[2], const void *row, site where = site::here()) {
    load_matrices(r, 2, false, row, where);
}

inline void ldmatrix_x2_trans(uint32_t (&r)[2], const void *row, site where = site::here()) {
    load_matrices(r, 2, true, row, where);
}

template <class element>
inline void mma_m16n8k16(
    float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, site where = site::here()) {
    static_assert(sizeof(element) == 2, "half or bfloat16");
    const uint32_t b[2] = {b0, b1};
    multiply_matrices(d, a, b, std::is_same<element, __nv_bfloat16>::value, where);
}

/* ---- Arithmetic: what an approximate instruction rounds differently is not modelled */

inline float flush_subnormal(float x) {
    return std::fabs(x) < 1.17549435e-38f ? std::copysign(0.0f, x) : x;
}

inline float exp2_approx(float x) {
    return flush_subnormal(exp2f(flush_subnormal(x)));
}

inline float log2_approx(float x) {
    return log2f(flush_subnormal(x));
}

inline float reciprocal_approx(float x) {
    return flush_subnormal(1.0f / flush_subnormal(x));
}

inline int float_to_int_nearest(float x) {
    if (std::isnan(x)) {
        return 0;
    }
    if (x >= 2147483648.0f || x < -2147483648.0f) {
        return x > 0 ? INT32_MAX : INT32_MIN;
    }
    return static_cast<int>(std::nearbyint(x));
}

inline uint32_t byte_permute(uint32_t low, uint32_t high, uint32_t selector) {
    const uint64_t bytes = static_cast<uint64_t>(high) << 32 | low;
    uint32_t result = 0;

    for (int i = 0; i < 4; i++) {
        const uint32_t choice = selector >> (4 * i) & 15;
        uint32_t byte = static_cast<uint32_t>(bytes >> (8 * (choice & 7)) & 0xff);
        byte = (choice & 8) == 0 ? byte : (byte & 0x80) != 0 ? 0xff : 0;
        result |= byte << (8 * i);
    }
    return result;
}

PKVI_NOT_INSTRUMENTED inline uint32_t e4m3x2_to_half2(uint32_t codes) {
    const __half2_raw pair =
        __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes & 0xffff), __NV_E4M3);
    return static_cast<uint32_t>(pair.y) << 16 | pair.x;
}

/* ---- Ordering and hints */

inline void fence_block() {
}

inline void fence_device() {
}

int atomic_add(int *address, int value);
unsigned atomic_add(unsigned *address, unsigned value);
float atomic_add(float *address, float value);
int atomic_max(int *address, int value);
int atomic_cas(int *address, int expected, int desired);

inline void prefetch_l2(const void *) {
}

void wait_for_previous_grid();

inline void launch_dependents() {
}

} // namespace simt

inline float rsqrtf(float x) {
    return 1.0f / std::sqrt(x);
}

#endif
