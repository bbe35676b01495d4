#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: the libpagedkv authors

# Compiles the data tower and its suites for aarch64 and runs them under qemu-user, so that the NEON
# kernels are tested where there is no such processor. Exit 77: a tool is missing, nothing was tested.
# usage: run.sh FOLDER (for what is built)
set -eu

case ${1:-} in
--help | -h) echo "usage: run.sh FOLDER"; exit 0 ;;
esac
[ $# -eq 1 ] || { echo "usage: run.sh FOLDER" >&2; exit 2; }
root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
out=$1
for tool in aarch64-linux-gnu-gcc qemu-aarch64; do
    if ! command -v $tool >/dev/null 2>&1; then
        echo "skipped: $tool is missing (gcc-aarch64-linux-gnu, libc6-dev-arm64-cross, qemu-user)"
        exit 77
    fi
done

mkdir -p "$out"
flags="-std=c11 -O2 -D_POSIX_C_SOURCE=200809L -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror"
# The other instruction sets are tested natively, and much faster.
flags="$flags -DTEST_ONLY_INSTRUCTIONS=PKV_CPU_NEON"
flags="$flags -I$root/include -I$root/src -I$root -I$root/tests -I$root/tests/cross"
objects=
for source in "$root"/src/device/*.c "$root"/src/attention/*.c "$root"/src/transfer/transfer.c \
    "$root"/src/base/memory.c "$root"/src/base/status.c "$root"/kernels/cpu/*.c \
    "$root"/tests/support/tensor_fill.c "$root"/tests/support/attention_*.c \
    "$root"/tests/support/test_devices.c; do
    case $source in
    *_avx*) continue ;;
    esac
    object=$out/$(echo "${source#"$root"/}" | tr / _ | sed 's/\.c$/.o/')
    # Word splitting is meant: these are lists of flags.
    # shellcheck disable=SC2086
    if [ ! -e "$object" ] || [ -n "$(find "$source" -newer "$object")" ]; then
        aarch64-linux-gnu-gcc $flags -c "$source" -o "$object"
    fi
    objects="$objects $object"
done
for name in test_device test_tensor test_transfer test_data_refusals test_attention_write \
    test_attention_merge test_attention_refuse test_attention_steps test_attention_bitwise \
    test_attention_lengths test_attention; do
    # shellcheck disable=SC2086
    aarch64-linux-gnu-gcc $flags "$root/tests/$name.c" $objects -static -lpthread -lm \
        -o "$out/$name"
    if ! qemu-aarch64 "$out/$name" >"$out/$name.log" 2>&1; then
        tail -n 5 "$out/$name.log" >&2
        echo "$name fails on aarch64" >&2
        exit 1
    fi
    grep 'tests passed' "$out/$name.log"
done
