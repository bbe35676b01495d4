# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: the libpagedkv authors

# To be sourced by tests/run.sh and bench/run.sh: finds out which tools are missing and installs
# them on Debian and its kin. Where nothing is missing it starts no package manager at all.

# Print the packages that the build and the tests cannot do without and that are missing here.
setup_missing_required() {
    command -v cmake >/dev/null 2>&1 || echo cmake
    command -v gcc >/dev/null 2>&1 || echo gcc
    command -v g++ >/dev/null 2>&1 || echo g++
    command -v pkg-config >/dev/null 2>&1 || echo pkg-config
    if ! command -v ninja >/dev/null 2>&1 && ! command -v make >/dev/null 2>&1; then
        echo ninja-build
    fi
    setup_has_header xxhash.h || echo libxxhash-dev
    # The C library's own headers come only as a recommendation of gcc.
    setup_has_header stdint.h || echo libc6-dev
    setup_has_header cmocka.h || echo libcmocka-dev
}

# Say whether the compiler finds the header $1.
setup_has_header() {
    if command -v gcc >/dev/null 2>&1; then
        echo "#if !__has_include(<$1>)
#error
#endif" | gcc -E - >/dev/null 2>&1
    else
        test -e "/usr/include/$1"
    fi
}

# Say whether gcc finds OpenBLAS and its header.
setup_has_openblas() {
    echo '#include <cblas.h>
int main(void) { return cblas_sdot(0, 0, 1, 0, 1) != 0; }' |
        gcc -x c -o /dev/null - -lopenblas >/dev/null 2>&1
}

# Print what the packages of the CUDA headers want, where these are to be had and it is missing.
setup_missing_venv() {
    if [ "${offline:-0}" -eq 0 ] && [ -z "$(setup_find_cuda_headers)" ] &&
        [ ! -e build/cuda-headers/include/cuda_fp8.h ] &&
        ! python3 -c 'import ensurepip' >/dev/null 2>&1; then
        echo python3-venv
    fi
}

# Print the packages that are missing here and without which single stages, or with for_benches=1 a
# peer of the benches, are left out. $1: setup_install's stamp. Where that is there only what is
# asked for each time: without a venv not one stage but every suite of the CUDA kernels is skipped.
setup_missing_optional() {
    if [ "${for_benches:-0}" -eq 1 ]; then
        [ -e "$1" ] || setup_has_openblas || echo libopenblas-dev
        return 0
    fi
    setup_missing_venv
    [ ! -e "$1" ] || return 0
    command -v clang >/dev/null 2>&1 || echo clang
    command -v clang-format >/dev/null 2>&1 || echo clang-format
    command -v valgrind >/dev/null 2>&1 || echo valgrind
    # The long run also takes other processors: NEON under an emulator, AVX-512 in plain C.
    if [ "${full:-0}" -eq 1 ]; then
        setup_has_header simde/x86/avx512.h || echo libsimde-dev
        command -v aarch64-linux-gnu-gcc >/dev/null 2>&1 ||
            echo gcc-aarch64-linux-gnu libc6-dev-arm64-cross
        command -v qemu-aarch64 >/dev/null 2>&1 || echo qemu-user
    fi
    # The first clang that reads the headers of CUDA 13.
    if [ "${cuda:-0}" -eq 1 ]; then
        command -v clang++-19 >/dev/null 2>&1 || echo clang-19
    fi
}

# Run apt-get with the arguments given, as root.
setup_apt_get() {
    if [ "$(id -u)" -eq 0 ]; then
        DEBIAN_FRONTEND=noninteractive apt-get "$@"
    else
        sudo -n env DEBIAN_FRONTEND=noninteractive apt-get "$@"
    fi
}

# Say whether this user can install packages here.
setup_can_install() {
    command -v apt-get >/dev/null 2>&1 || return 1
    [ "$(id -u)" -eq 0 ] && return 0
    command -v sudo >/dev/null 2>&1 && sudo -n true >/dev/null 2>&1
}

# Install what is missing. $1: a file that remembers that the optional packages were tried, so that
# one that this system does not have is not asked for again; the rest: packages that are missing
# and that the caller needs on top. Exits with 2 where something needed cannot be had.
setup_install() {
    stamp=$1
    shift
    required=$(setup_missing_required | tr '\n' ' ')$*
    optional=$(setup_missing_optional "$stamp" | tr '\n' ' ')
    required=${required% }
    optional=${optional% }
    if [ -z "$required$optional" ]; then
        return 0
    fi
    if [ "${offline:-0}" -eq 1 ] || ! setup_can_install; then
        [ -n "$required" ] || return 0
        echo "Missing: $required. Install with, as root:" >&2
        echo "    apt-get update && apt-get install -y --no-install-recommends $required" >&2
        exit 2
    fi

    echo "== setup: installing${required:+ }$required${optional:+ }$optional"
    mkdir -p "$(dirname "$stamp")"
    log=$(dirname "$stamp")/setup.log
    if ! setup_apt_get update >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        [ -z "$required" ] || { echo "apt-get update failed" >&2; exit 2; }
    fi
    # Word splitting is meant: these are lists of packages.
    # shellcheck disable=SC2086
    if [ -n "$required" ] &&
        ! setup_apt_get install -y --no-install-recommends $required >>"$log" 2>&1; then
        tail -n 20 "$log" >&2
        echo "apt-get install failed; needed: $required" >&2
        exit 2
    fi
    # shellcheck disable=SC2086
    for package in $optional; do
        setup_apt_get install -y --no-install-recommends "$package" >>"$log" 2>&1 ||
            echo "   could not install $package; what wants it is left out"
    done
    : >"$stamp"
}

# Print the folder of an installed CUDA toolkit's headers, or nothing.
setup_find_cuda_headers() {
    for folder in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda; do
        if [ -n "$folder" ] && [ -e "$folder/include/cuda_fp8.h" ]; then
            echo "$folder/include"
            return 0
        fi
    done
}

# Tell the caller $1, and keep it in $setup_reasons, a line each: why something of CUDA is missing.
setup_tell() {
    echo "   $1"
    setup_reasons="${setup_reasons:-}$1
"
}

# Install the Python packages $2... for the purpose $1, into build/cuda-venv and without what they
# depend on. Says why where that does not work.
setup_cuda_packages() {
    purpose=$1
    shift
    mkdir -p build
    if [ ! -e build/cuda-venv/bin/pip ] &&
        ! python3 -m venv build/cuda-venv >>build/cuda-venv.log 2>&1; then
        setup_tell "no $purpose: python3 with venv is needed (python3-venv; build/cuda-venv.log)"
        return 1
    fi
    if ! build/cuda-venv/bin/pip install --no-deps --quiet "$@" >>build/cuda-venv.log 2>&1; then
        setup_tell "no $purpose: pip cannot get the packages (build/cuda-venv.log)"
        return 1
    fi
    cuda_folder=$(cd build/cuda-venv/lib/python3*/site-packages/nvidia/cu13 && pwd)
}

# Where no toolkit is installed, put the CUDA headers into build/cuda-headers/include, from the
# Python packages that carry them. $1: 1 downloads nothing. Says why where that does not work; the
# tests that want the headers are then skipped.
setup_cuda_headers() {
    if [ -n "$(setup_find_cuda_headers)" ] || [ -e build/cuda-headers/include/cuda_fp8.h ]; then
        return 0
    fi
    if [ "$1" -eq 1 ]; then
        setup_tell "no CUDA headers: --offline, nothing is downloaded"
    elif setup_cuda_packages "CUDA headers" nvidia-cuda-runtime==13.0.96 \
        nvidia-cuda-crt==13.0.88 nvidia-cuda-cccl==13.0.85; then
        ln -sfn "$cuda_folder" build/cuda-headers
    fi
}

# Print the CUDA compiler that there is, or nothing: an installed one, else that of the packages.
setup_find_cuda_compiler() {
    command -v nvcc && return 0
    for folder in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda "$PWD/build/cuda-headers"; do
        if [ -n "$folder" ] && [ -x "$folder/bin/nvcc" ]; then
            echo "$folder/bin/nvcc"
            return 0
        fi
    done
}

# Where no CUDA compiler is installed, put one beside the headers. $1: 1 downloads nothing.
setup_cuda_compiler() {
    if [ -n "$(setup_find_cuda_compiler)" ]; then
        return 0
    fi
    if [ "$1" -eq 1 ]; then
        setup_tell "no CUDA compiler: --offline, nothing is downloaded"
    elif [ ! -e build/cuda-headers ]; then
        setup_tell "no CUDA compiler: its packages want those of the headers beside them"
    elif setup_cuda_packages "CUDA compiler" nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88; then
        # Where a toolkit would have them, and under the name that a linker looks for.
        ln -sfn lib "$cuda_folder/lib64"
        ln -sfn libcudart.so.13 "$cuda_folder/lib/libcudart.so"
    fi
}

# Where there is no disassembler for device code, put one into build/cuda-tools/bin. A later version
# reads what an earlier compiler wrote. $1: 1 downloads nothing.
setup_cuda_tools() {
    if { command -v cuobjdump && command -v nvdisasm; } >/dev/null 2>&1 ||
        [ -x build/cuda-tools/bin/cuobjdump ]; then
        return 0
    fi
    if [ "$1" -eq 1 ]; then
        setup_tell "no cuobjdump: --offline, nothing is downloaded"
    elif setup_cuda_packages cuobjdump nvidia-cuda-cuobjdump==13.2.86 \
        nvidia-cuda-nvdisasm==13.2.86; then
        ln -sfn "$cuda_folder" build/cuda-tools
    fi
}

# Choose ninja where it is there, for build folders that are made from here on.
setup_choose_generator() {
    if [ -z "${CMAKE_GENERATOR:-}" ] && command -v ninja >/dev/null 2>&1; then
        CMAKE_GENERATOR=Ninja
        export CMAKE_GENERATOR
    fi
}

# Print how many jobs to run at once: PKV_JOBS, else the processors this process may use.
setup_jobs() {
    echo "${PKV_JOBS:-$(nproc 2>/dev/null || echo 2)}"
}
