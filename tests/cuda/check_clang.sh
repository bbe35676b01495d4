#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: the libpagedkv authors

# The device code as another compiler sees it: clang's warnings are others than nvcc's. It compiles
# nothing to the end; clang knows older toolkits than ours, and no older clang reads these headers.
# usage: check_clang.sh CLANG CUDA_FOLDER SCRATCH SOURCE...
# exit 0: no warning, 1: some, 77: no such compiler, or one that cannot read the headers at all
set -u

case ${1:-} in
--help | -h) echo "usage: check_clang.sh CLANG CUDA_FOLDER SCRATCH SOURCE..."; exit 0 ;;
esac
[ $# -ge 4 ] || { echo "usage: check_clang.sh CLANG CUDA_FOLDER SCRATCH SOURCE..." >&2; exit 2; }
clang=$1
toolkit=$2
scratch=$3
shift 3
if ! command -v "$clang" >/dev/null 2>&1; then
    echo "skipped: no clang that knows CUDA 12 ($clang)"
    exit 77
fi
cd "$(dirname "$0")/../.." || exit 2
mkdir -p "$scratch" || exit 2
# CUDA 13 no longer has two headers that clang includes by itself; nothing of them is used.
for header in texture_fetch_functions.h surface_functions.h; do
    [ -e "$toolkit/include/$header" ] || : >"$scratch/$header"
done

# Look at the source $2 for the architecture $1.
look() {
    "$clang" -x cuda --cuda-device-only --cuda-gpu-arch="sm_$1" --cuda-path="$toolkit" -nogpulib \
        -fsyntax-only -std=c++17 -O3 -Wall -Wextra -Wshadow -Wno-unknown-cuda-version \
        -Wno-unknown-attributes -Werror \
        -DPKV_BUILDING_LIBRARY -I. -Iinclude -Isrc -isystem "$scratch" "$2"
}

echo '__global__ void nothing() {}' >"$scratch/nothing.cu"
if ! look 80 "$scratch/nothing.cu" >"$scratch/nothing.log" 2>&1; then
    echo "skipped: $clang cannot read the CUDA headers of $toolkit:" \
        "$(grep -m 1 'error:' "$scratch/nothing.log")"
    exit 77
fi
# In turn for one architecture and the other: what differs between them is in a header of all.
num_failed=0
architecture=80
for source in "$@"; do
    look "$architecture" "$source" || num_failed=$((num_failed + 1))
    architecture=$((170 - architecture))
done
echo "$# sources, $num_failed with warnings"
[ "$num_failed" -eq 0 ]
