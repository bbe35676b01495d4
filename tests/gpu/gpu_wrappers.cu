/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The second phase of tests/gpu.sh: each wrapper of kernels/cuda/simt.cuh on the device against its
 * twin on the processor. The same program is built twice: where the twins are, it writes what they
 * give to a file (--write); on a device it compares with that file (--expect).
 *
 * The one idea: what an instruction computes exactly has to be the same word, NaN for NaN; what it
 * rounds as it likes (mma, ex2, lg2, rcp) is measured against double precision on either side, has
 * a limit, and the measured error is printed. */
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tests/gpu/gpu_phase.h"
#include "tests/gpu/wrapper_kernels.cuh"

namespace {

using wrappers::words;
using word_list = std::vector<uint32_t>;

/* What a word is, for NaN: bits of an integer, a float, two halves, two bfloat16, an e4m3. */
enum class word_kind { bits, real, halves, bfloats, e4m3 };

/* What came out of a case, and how large its error is against double precision. */
struct outcome {
    word_list out;
    double error = 0.0; /* in the unit of the case */
};

struct wrapper_case {
    const char *name;
    word_kind kind;
    double limit; /* of the error; 0: every word is that of the twin */
    const char *unit;
    outcome (*run)();
};

/* ---- Running a kernel */

word_list run_kernel(void (*kernel)(words),
                     const word_list &in,
                     size_t num_out,
                     dim3 grid,
                     dim3 block,
                     size_t shared_bytes = 0) {
    const word_list zeros(num_out + 64, 0);
    word_list out(num_out);
    void *device_in = phase_upload(in.data(), in.size() * 4);
    void *device_out = phase_upload(zeros.data(), zeros.size() * 4);
    cudaFuncAttributes attributes;
    const words w = {static_cast<const uint32_t *>(device_in), static_cast<uint32_t *>(device_out),
                     static_cast<int32_t>(num_out)};

    phase_cuda(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void *>(kernel)),
               "cudaFuncGetAttributes");
    if (shared_bytes > 0) {
        phase_cuda(simt::allow_shared_bytes(kernel, shared_bytes), "allow_shared_bytes");
    }
    const simt::launch_shape shape = {grid, block, shared_bytes, nullptr, false};
    phase_cuda(simt::launch(kernel, shape, w), "launch");
    phase_cuda(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
    phase_cuda(cudaMemcpy(out.data(), device_out, num_out * 4, cudaMemcpyDeviceToHost),
               "cudaMemcpy");
    phase_cuda(cudaFree(device_in), "cudaFree");
    phase_cuda(cudaFree(device_out), "cudaFree");
    return out;
}

uint32_t bits_of(float value) {
    uint32_t bits;

    std::memcpy(&bits, &value, 4);
    return bits;
}

float real_of(uint32_t bits) {
    float value;

    std::memcpy(&value, &bits, 4);
    return value;
}

word_list random_words(size_t count, uint64_t seed) {
    word_list in(count);

    for (size_t i = 0; i < count; i++) {
        in[i] =
            bits_of(phase_value(seed, 2 * i)) * 2654435761u ^ bits_of(phase_value(seed, 2 * i + 1));
    }
    return in;
}

/* ---- Functions of one word */

/* Floats with every exponent, both signs, zeros, infinities, NaN, subnormals and ties. */
word_list all_kinds_of_floats() {
    word_list in = {0, 0x80000000u, 0x7f800000u, 0xff800000u, 0x7fc00000u, 0xffc12345u, 1u};

    for (uint32_t exponent = 0; exponent < 255; exponent++) {
        for (uint32_t i = 0; i < 16; i++) {
            const uint32_t fraction = i < 8 ? i << 20 : (i * 0x9e3779b9u) >> 9;

            in.push_back(exponent << 23 | fraction | (i & 1u) << 31);
            in.push_back(exponent << 23 | (i < 8 ? (i << 20 | 1u << 12) : 0x1000u * i) |
                         (i & 2u) << 30);
        }
    }
    return in;
}

word_list all_pairs_of_bytes() {
    word_list in(65536);

    for (uint32_t i = 0; i < 65536; i++) {
        in[i] = i;
    }
    return in;
}

word_list evenly_spaced(float from, float to) {
    word_list in;

    for (int i = 0; i <= 16384; i++) {
        in.push_back(bits_of(from + (to - from) * static_cast<float>(i) / 16384.0f));
    }
    return in;
}

template <class map> outcome run_map(const word_list &in) {
    outcome result;

    result.out = run_kernel(wrappers::map_kernel<map>, in, in.size(), dim3(4), dim3(128));
    return result;
}

template <class map> outcome map_floats() {
    return run_map<map>(all_kinds_of_floats());
}

template <class map> outcome map_bytes() {
    return run_map<map>(all_pairs_of_bytes());
}

/* Largest relative error of a function, in units of 2^-24; where the exact result is below
 * `floor`, the error relative to `floor`. */
template <class map> outcome measure(const word_list &in, double (*exact)(double), double floor) {
    outcome result = run_map<map>(in);

    for (size_t i = 0; i < in.size(); i++) {
        const double wanted = exact(static_cast<double>(real_of(in[i])));
        const double scale = std::fmax(std::fabs(wanted), floor);
        const double error =
            std::fabs(static_cast<double>(real_of(result.out[i])) - wanted) / scale * 0x1p24;

        result.error = error <= result.error ? result.error : error; /* a NaN stays */
    }
    return result;
}

outcome measure_exp2() {
    return measure<wrappers::map_exp2>(
        evenly_spaced(-120.0f, 120.0f), [](double x) { return std::exp2(x); }, 0x1p-126);
}

/* Weights are powers of differences of at most 0. */
outcome measure_exp2_near_zero() {
    return measure<wrappers::map_exp2>(
        evenly_spaced(-2.0f, 0.0f), [](double x) { return std::exp2(x); }, 0x1p-126);
}

outcome special_exp2() {
    return run_map<wrappers::map_exp2>({0x00000000u, 0x80000000u, 0x7f800000u, 0xff800000u,
                                        0x7fc00000u, bits_of(1.0f), bits_of(-1.0f), bits_of(14.0f),
                                        bits_of(-200.0f), bits_of(200.0f)});
}

outcome measure_log2() {
    return measure<wrappers::map_log2>(
        evenly_spaced(0.01f, 5000.0f), [](double x) { return std::log2(x); }, 1.0);
}

outcome measure_reciprocal() {
    return measure<wrappers::map_reciprocal>(
        evenly_spaced(0.001f, 3000.0f), [](double x) { return 1.0 / x; }, 0x1p-126);
}

outcome measure_tanh() {
    return measure<wrappers::map_tanh>(
        evenly_spaced(-12.0f, 12.0f), [](double x) { return std::tanh(x); }, 1.0);
}

/* ---- Warps, vectors, copies, matrix loads, barriers, atomics */

template <void (*kernel)(words), int num_out, int num_blocks, int num_threads> outcome plain() {
    outcome result;

    result.out =
        run_kernel(kernel, random_words(1024, 11), num_out, dim3(num_blocks), dim3(num_threads));
    return result;
}

outcome run_large_shared() {
    constexpr size_t bytes = 96 * 1024;
    outcome result;

    result.out = run_kernel(wrappers::large_shared_kernel, random_words(64, 12), bytes / 4, dim3(1),
                            dim3(256), bytes);
    return result;
}

outcome run_chain() {
    constexpr int32_t count = 4096, length = 20;
    const word_list zeros(2 * count, 0);
    void *memory = phase_upload(zeros.data(), zeros.size() * 4);
    const words w = {nullptr, static_cast<uint32_t *>(memory), count};
    cudaStream_t stream;
    outcome result;

    phase_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    for (int i = 0; i < length; i++) {
        const simt::launch_shape shape = {dim3(count / 128), dim3(128), 0, stream, i > 0};

        phase_cuda(simt::launch(wrappers::chain_kernel, shape, w), "dependent launch");
    }
    phase_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    result.out.resize(count);
    phase_cuda(cudaMemcpy(result.out.data(), memory, count * 4, cudaMemcpyDeviceToHost),
               "cudaMemcpy");
    phase_cuda(cudaStreamDestroy(stream), "cudaStreamDestroy");
    phase_cuda(cudaFree(memory), "cudaFree");
    return result;
}

/* ---- Matrix products */

template <class element> uint16_t element_bits(float value) {
    const element rounded = simt::from_float<element>(value);
    uint16_t bits;

    std::memcpy(&bits, static_cast<const void *>(&rounded), 2);
    return bits;
}

template <class element> double element_value(uint16_t bits) {
    element value;

    std::memcpy(static_cast<void *>(&value), &bits, 2);
    return static_cast<double>(simt::to_float(value));
}

/* Products of matrices whose element i of product n is value(n, i); errors in units of 2^-24 of the
 * sum of |a b| and |c|. */
template <class element> outcome multiply(float (*value)(uint64_t, uint64_t)) {
    constexpr size_t num_products = 64;
    word_list in(num_products * wrappers::product_words);
    outcome result;

    for (size_t n = 0; n < num_products; n++) {
        uint32_t *product = &in[n * wrappers::product_words];
        auto *elements = reinterpret_cast<uint16_t *>(product);

        for (size_t i = 0; i < 384; i++) {
            elements[i] = element_bits<element>(value(n, i));
        }
        for (size_t i = 0; i < 128; i++) {
            product[192 + i] = bits_of(value(n, 384 + i));
        }
    }
    result.out = run_kernel(wrappers::product_kernel<element>, in, num_products * 128,
                            dim3(num_products), dim3(32));
    for (size_t n = 0; n < num_products; n++) {
        const uint32_t *product = &in[n * wrappers::product_words];
        const auto *elements = reinterpret_cast<const uint16_t *>(product);

        for (size_t i = 0; i < 128; i++) {
            double sum = static_cast<double>(real_of(product[192 + i])), scale = std::fabs(sum);

            for (size_t k = 0; k < 16; k++) {
                const double term = element_value<element>(elements[i / 8 * 16 + k]) *
                                    element_value<element>(elements[256 + k * 8 + i % 8]);
                sum += term;
                scale += std::fabs(term);
            }
            const double error =
                std::fabs(static_cast<double>(real_of(result.out[n * 128 + i])) - sum) / scale *
                0x1p24;
            result.error = error <= result.error ? result.error : error;
        }
    }
    return result;
}

/* Small integers: exact in any order of summation. */
float small_integer(uint64_t n, uint64_t i) {
    return std::floor(phase_value(100 + n, i) * 8.0f);
}

float fraction(uint64_t n, uint64_t i) {
    return phase_value(200 + n, i);
}

/* Summands of very different size: what is aligned and cut off shows here. */
float wide_range(uint64_t n, uint64_t i) {
    return phase_value(300 + n, i) *
           static_cast<float>(std::exp2(static_cast<double>((i * 7 + n) % 13) - 6.0));
}

template <class element> outcome multiply_integers() {
    return multiply<element>(small_integer);
}

template <class element> outcome multiply_fractions() {
    return multiply<element>(fraction);
}

template <class element> outcome multiply_wide() {
    return multiply<element>(wide_range);
}

/* ---- The cases. Limits: what the instruction set promises, doubled; of mma nothing is promised,
 * and the bounds of the attention suites allow 16 units for a product of 16. */

using bf16 = __nv_bfloat16;

#define PKV_EXACT(name, kind, run)                                                                 \
    { name, word_kind::kind, 0.0, "", run }
#define PKV_MEASURED(name, limit, run)                                                             \
    { name, word_kind::real, limit, "2^-24", run }

const wrapper_case all_cases[] = {
    PKV_EXACT("shuffles, votes", bits, (plain<wrappers::warp_kernel, 512, 1, 32>)),
    PKV_EXACT("vector loads, stores", bits, (plain<wrappers::vector_kernel, 448, 1, 32>)),
    PKV_EXACT("copy_async, zero fill", bits, (plain<wrappers::copy_kernel, 768, 1, 64>)),
    PKV_EXACT("ldmatrix, trans", bits, (plain<wrappers::ldmatrix_kernel, 384, 1, 32>)),
    PKV_EXACT("named barriers", bits, (plain<wrappers::named_kernel, 128, 1, 128>)),
    PKV_EXACT("atomics", bits, (plain<wrappers::atomic_kernel, 12, 8, 128>)),
    PKV_EXACT("96 KiB of shared memory", bits, run_large_shared),
    PKV_EXACT("dependent launches", bits, run_chain),
    PKV_EXACT("mma half, integers", real, multiply_integers<__half>),
    PKV_EXACT("mma bfloat16, integers", real, multiply_integers<bf16>),
    PKV_MEASURED("mma half, fractions", 16.0, multiply_fractions<__half>),
    PKV_MEASURED("mma bfloat16, fractions", 16.0, multiply_fractions<bf16>),
    PKV_MEASURED("mma half, wide range", 16.0, multiply_wide<__half>),
    PKV_MEASURED("mma bfloat16, wide range", 16.0, multiply_wide<bf16>),
    PKV_MEASURED("exp2_approx, -120 to 120", 8.0, measure_exp2),
    PKV_MEASURED("exp2_approx, -2 to 0", 8.0, measure_exp2_near_zero),
    PKV_EXACT("exp2_approx, special values", real, special_exp2),
    PKV_MEASURED("log2_approx", 8.0, measure_log2),
    PKV_MEASURED("reciprocal_approx", 4.0, measure_reciprocal),
    PKV_MEASURED("tanh_exact", 8.0, measure_tanh),
    PKV_EXACT("float_to_int_nearest", bits, map_floats<wrappers::map_to_int>),
    PKV_EXACT("byte_permute", bits, map_bytes<wrappers::map_permute>),
    PKV_EXACT("e4m3x2_to half", halves, map_bytes<wrappers::map_e4m3_to_half>),
    PKV_EXACT("e4m3x2_to bfloat16", bfloats, map_bytes<wrappers::map_e4m3_to_bfloat16>),
    PKV_EXACT("int8x2_to half", halves, map_bytes<wrappers::map_int8_to_half>),
    PKV_EXACT("int8x2_to bfloat16", bfloats, map_bytes<wrappers::map_int8_to_bfloat16>),
    PKV_EXACT("float_to_e4m3", e4m3, map_floats<wrappers::map_to_e4m3>),
    PKV_EXACT("e4m3_to_float", real, map_bytes<wrappers::map_from_e4m3>),
    PKV_EXACT("pack2 half", halves, map_floats<wrappers::map_pack_half>),
    PKV_EXACT("pack2 bfloat16", bfloats, map_floats<wrappers::map_pack_bfloat16>),
    PKV_EXACT("unpack2 half", real, map_bytes<wrappers::map_unpack_half>),
    PKV_EXACT("unpack2 bfloat16", real, map_bytes<wrappers::map_unpack_bfloat16>),
};

/* ---- The file of the twins: for each case its number of words, then the words */

bool is_nan(uint32_t bits, word_kind kind) {
    switch (kind) {
    case word_kind::real:
        return (bits & 0x7fffffffu) > 0x7f800000u;
    case word_kind::halves:
        return (bits & 0x7fffu) > 0x7c00u;
    case word_kind::bfloats:
        return (bits & 0x7fffu) > 0x7f80u;
    case word_kind::e4m3:
        return (bits & 0x7fu) == 0x7fu;
    default:
        return false;
    }
}

bool is_same(uint32_t a, uint32_t b, word_kind kind) {
    if (a == b) {
        return true;
    }
    if (kind != word_kind::halves && kind != word_kind::bfloats) {
        return is_nan(a, kind) && is_nan(b, kind);
    }
    for (int half = 0; half < 2; half++) {
        const uint32_t x = a >> (16 * half) & 0xffffu, y = b >> (16 * half) & 0xffffu;

        if (x != y && !(is_nan(x, kind) && is_nan(y, kind))) {
            return false;
        }
    }
    return true;
}

void compare_with_twin(const wrapper_case &which, const outcome &result, FILE *file) {
    word_list twin(result.out.size());
    uint32_t count = 0;
    size_t num_different = 0, first = 0;

    if (fread(&count, 4, 1, file) != 1 || count != twin.size() ||
        fread(twin.data(), 4, count, file) != count) {
        phase_check(false, "%s: the file of the twins is of another build", which.name);
        return;
    }
    for (size_t i = twin.size(); i-- > 0;) {
        if (!is_same(twin[i], result.out[i], which.kind)) {
            num_different++;
            first = i;
        }
    }
    phase_metric(which.name, "words unlike the twin's", static_cast<double>(num_different));
    if (which.limit == 0.0) {
        phase_check(num_different == 0, "%s: word %zu is %08x, the twin's %08x", which.name, first,
                    result.out[first], twin[first]);
    }
}

void run_case(const wrapper_case &which, FILE *expected, FILE *written) {
    const outcome result = which.run();
    const auto count = static_cast<uint32_t>(result.out.size());

    if (which.limit > 0.0) {
        phase_metric(which.name, "error, 2^-24", result.error);
        phase_check(result.error <= which.limit, "%s: error %.3g %s, limit %.3g", which.name,
                    result.error, which.unit, which.limit);
    }
    if (expected != nullptr) {
        compare_with_twin(which, result, expected);
    }
    if (written != nullptr) {
        phase_check(fwrite(&count, 4, 1, written) == 1 &&
                        fwrite(result.out.data(), 4, count, written) == count,
                    "%s cannot be written", which.name);
    }
}

} // namespace

int main(int num_arguments, char **arguments) {
    const bool is_writing = num_arguments == 3 && strcmp(arguments[1], "--write") == 0;
    const bool is_comparing = num_arguments == 3 && strcmp(arguments[1], "--expect") == 0;

    if (!is_writing && !is_comparing) {
        /* Answers --help, refuses anything else. */
        phase_begin("wrappers",
                    "Each wrapper of simt.cuh against its twin on the processor.\n"
                    "gpu_wrappers --expect FILE compares with, --write FILE writes the words of "
                    "the twins.",
                    nullptr, 0, num_arguments, arguments);
        fprintf(stderr, "gpu_wrappers: --expect FILE or --write FILE is missing\n");
        return PHASE_EXIT_USAGE;
    }
    phase_begin("wrappers", "", nullptr, 0, 1, arguments);
    FILE *file = fopen(arguments[2], is_writing ? "wb" : "rb");
    if (file == nullptr) {
        fprintf(stderr, "gpu_wrappers: %s cannot be opened\n", arguments[2]);
        return PHASE_EXIT_USAGE;
    }
    int num_devices = 0;
    const cudaError_t error = cudaGetDeviceCount(&num_devices);
    if (error != cudaSuccess || num_devices == 0) {
        phase_leave("no device", cudaGetErrorString(error), PHASE_EXIT_NO_DEVICE);
    }
    for (const wrapper_case &which : all_cases) {
        run_case(which, is_comparing ? file : nullptr, is_writing ? file : nullptr);
    }
    if (is_comparing) {
        phase_check(fgetc(file) == EOF, "the file of the twins has more cases");
    }
    phase_check(fclose(file) == 0, "%s cannot be closed", arguments[2]);
    return phase_end();
}
