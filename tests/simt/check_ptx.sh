#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: the libpagedkv authors

# Compiles the device code to PTX and looks at the instructions that make it what it is: in the two
# instances of the attention kernel that are compiled here the tensor core, matrix loads and
# asynchronous copies of 16 bytes are there, and nothing at all has gone to local memory. No GPU is
# needed.
# usage: check_ptx.sh [NVCC]      exit 0: as it should be, 1: not, 77: no compiler
set -u
LC_ALL=C
export LC_ALL

case ${1:-} in
--help | -h) echo "usage: check_ptx.sh [NVCC]"; exit 0 ;;
esac
compiler=${1:-nvcc}
if ! command -v "$compiler" >/dev/null 2>&1; then
    echo "skipped: no CUDA compiler ($compiler)"
    exit 77
fi
cd "$(dirname "$0")/../.." || exit 2
scratch=$(mktemp -d) || exit 2
trap 'rm -rf "$scratch"' EXIT
num_failed=0

# Print how many instructions of the PTX in $1 match $2.
count() {
    grep -cE "$2" "$1"
}

# Compile $1 for the architecture $2, to unit.ptx.
compile() {
    "$compiler" -std=c++17 -O3 -ptx -arch="sm_$2" -I. -Iinclude -Isrc "$1" -o "$scratch/unit.ptx"
}

# Compile the source file $1 and check that it does not use local memory.
check_file() {
    if ! compile "$1" 80; then
        echo "$1: does not compile" >&2
        num_failed=$((num_failed + 1))
    elif [ "$(count "$scratch/unit.ptx" '(ld|st)\.local')" -ne 0 ]; then
        echo "$1: something is in local memory" >&2
        num_failed=$((num_failed + 1))
    else
        echo "$1, sm_80: 0 local"
    fi
}

# Compile the instance $1 with the macro arguments $2 for the architecture $3 and check it.
check() {
    printf '#include "kernels/cuda/instance.cuh"\nPKVI_ATTENTION_UNIT(%s, %s)\n' "$1" "$2" \
        >"$scratch/unit.cu"
    if ! compile "$scratch/unit.cu" "$3"; then
        echo "$1, sm_$3: does not compile" >&2
        num_failed=$((num_failed + 1))
        return
    fi
    products=$(count "$scratch/unit.ptx" 'mma\.sync')
    loads=$(count "$scratch/unit.ptx" 'ldmatrix\.sync')
    transposed=$(count "$scratch/unit.ptx" 'ldmatrix\.sync.*\.trans')
    copies=$(count "$scratch/unit.ptx" 'cp\.async\.cg')
    locals=$(count "$scratch/unit.ptx" '(ld|st)\.local')
    echo "$1, sm_$3: $products mma, $loads ldmatrix ($transposed trans), $copies cp.async.cg," \
        "$locals local"
    if [ "$products" -eq 0 ] || [ "$loads" -eq 0 ] || [ "$transposed" -eq 0 ] ||
        [ "$copies" -eq 0 ] || [ "$locals" -ne 0 ]; then
        echo "$1, sm_$3: an instruction is missing, or a fragment is in local memory" >&2
        num_failed=$((num_failed + 1))
    fi
}

check half_half_128_small "half, half, 128, 128, false, 1, 4" 80
check bfloat16_bfloat16_128_large "bfloat16, bfloat16, 128, 128, false, 4, 1" 90
for source in kernels/cuda/*.cu; do
    check_file "$source"
done
[ "$num_failed" -eq 0 ]
