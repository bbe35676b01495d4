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

# Print the packages without which single stages are skipped and that are missing here.
setup_missing_optional() {
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
    optional=
    [ -e "$stamp" ] || optional=$(setup_missing_optional | tr '\n' ' ')
    required=${required% }
    optional=${optional% }
    if [ -z "$required$optional" ]; then
        return 0
    fi
    if ! setup_can_install; then
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
            echo "   could not install $package; its stage will be skipped"
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

# Where no toolkit is installed, put the CUDA headers into build/cuda-headers/include, from the
# Python packages that carry them. $1: 1 downloads nothing. Says why where that does not work; the
# tests that want the headers are then skipped.
setup_cuda_headers() {
    if [ -n "$(setup_find_cuda_headers)" ] || [ -e build/cuda-headers/include/cuda_fp8.h ]; then
        return 0
    fi
    if [ "$1" -eq 1 ]; then
        echo "   no CUDA headers: --offline, nothing is downloaded"
        return 0
    fi
    mkdir -p build
    if ! python3 -m venv build/cuda-venv >build/cuda-headers.log 2>&1; then
        echo "   no CUDA headers: python3 with venv is needed (build/cuda-headers.log)"
    elif ! build/cuda-venv/bin/pip install --no-deps --quiet nvidia-cuda-runtime==13.0.96 \
        nvidia-cuda-crt==13.0.88 nvidia-cuda-cccl==13.0.85 >>build/cuda-headers.log 2>&1; then
        echo "   no CUDA headers: their packages cannot be had (build/cuda-headers.log)"
    else
        ln -sfn "$(cd build/cuda-venv/lib/python3*/site-packages/nvidia/cu13 && pwd)" \
            build/cuda-headers
    fi
}

# Where no CUDA compiler is installed, put one beside the headers. $1: 1 downloads nothing.
setup_cuda_compiler() {
    if command -v nvcc >/dev/null 2>&1 || [ -e build/cuda-headers/bin/nvcc ] ||
        [ -n "$(setup_find_cuda_headers)" ]; then
        return 0
    fi
    if [ "$1" -eq 1 ] || [ ! -e build/cuda-headers ]; then
        echo "   no CUDA compiler: its packages are not downloaded without the headers' or offline"
    elif ! build/cuda-venv/bin/pip install --no-deps --quiet nvidia-cuda-nvcc==13.0.88 \
        nvidia-nvvm==13.0.88 >>build/cuda-headers.log 2>&1; then
        echo "   no CUDA compiler: its packages cannot be had (build/cuda-headers.log)"
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
