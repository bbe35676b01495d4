#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: the libpagedkv authors

# Compiles the data tower with the AVX-512 intrinsics emulated by SIMDe (Debian's libsimde-dev) and
# runs its suites on both sets, AVX-512 and AVX-512 with BF16, through the public API: their kernels
# are tested where no processor has them. Exit 77: SIMDe is missing, nothing was tested.
# usage: run.sh FOLDER (for what is built)
set -eu

case ${1:-} in
--help | -h) echo "usage: run.sh FOLDER"; exit 0 ;;
esac
[ $# -eq 1 ] || { echo "usage: run.sh FOLDER" >&2; exit 2; }
root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
out=$1
case $(uname -m) in
x86_64) ;;
*) echo "skipped: the kernels with AVX-512 are built on x86-64 only"; exit 77 ;;
esac
if ! echo '#include <simde/x86/avx512.h>' | gcc -E - >/dev/null 2>&1; then
    echo "skipped: SIMDe is missing (libsimde-dev)"
    exit 77
fi

mkdir -p "$out"
# Conversions inside of SIMDe's macros would be warned about; the native build warns about ours.
flags="-std=c11 -O2 -D_POSIX_C_SOURCE=200809L -Wall -Wextra -Wno-psabi -Werror"
flags="$flags -I$root/include -I$root/src -I$root -I$root/tests -I$root/tests/cross"
objects=
for source in "$root"/src/device/*.c "$root"/src/attention/*.c "$root"/src/transfer/transfer.c \
    "$root"/src/base/memory.c "$root"/src/base/status.c "$root"/kernels/cpu/*.c \
    "$root"/tests/emulated/instructions.c "$root"/tests/support/tensor_fill.c \
    "$root"/tests/support/attention_*.c "$root"/tests/support/test_devices.c; do
    before=
    case $source in
    */kernels/cpu/instructions.c | *_avx2.c | *_neon.c) continue ;;
    # The emulating <immintrin.h> for these files alone, and vectors that the compiler can make.
    *_avx512*.c) before="-mavx2 -I$root/tests/emulated" ;;
    esac
    object=$out/$(echo "${source#"$root"/}" | tr / _ | sed 's/\.c$/.o/')
    # Word splitting is meant: these are lists of flags.
    # shellcheck disable=SC2086
    gcc $before $flags -c "$source" -o "$object"
    objects="$objects $object"
done
for name in test_tensor test_transfer test_data_refusals test_attention_write test_attention_merge \
    test_attention_refuse test_attention_steps test_attention_bitwise test_attention_lengths \
    test_attention; do
    for set in PKV_CPU_AVX512 PKV_CPU_AVX512_BF16; do
        program=$out/${name}_$set
        # The list of devices is the one thing that differs between the two programs.
        # shellcheck disable=SC2046,SC2086
        gcc $flags -DTEST_ONLY_INSTRUCTIONS=$set "$root/tests/support/test_devices.c" \
            "$root/tests/$name.c" $(echo "$objects" | tr ' ' '\n' | grep -v test_devices) \
            -lpthread -lm -o "$program"
        if ! "$program" >"$program.log" 2>&1; then
            tail -n 5 "$program.log" >&2
            echo "$name fails with $set emulated" >&2
            exit 1
        fi
        echo "$set: $(grep 'tests passed' "$program.log")"
    done
done
