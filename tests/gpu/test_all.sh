#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: the libpagedkv authors

# tests/gpu.sh with programs that run over the simulated runtime, in small sizes: every phase that a
# GPU would see, checked and measured.
# usage: test_all.sh PHASES TWINS SUITES
# the folder of the phases, gpu_wrappers_twins, and the folder of the suites' programs
set -u
LC_ALL=C
export LC_ALL

if [ $# -ne 3 ]; then
    echo "usage: test_all.sh PHASES TWINS SUITES"
    [ "${1:-}" = --help ]
    exit
fi
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd) || exit 2
scratch=$(mktemp -d) || exit 2
trap 'rm -rf "$scratch"' EXIT

for program in "$1"/*; do
    ln -s "$program" "$scratch/" || exit 2
done
ln -s "$2" "$scratch/gpu_wrappers" || exit 2
"$2" --write "$scratch/wrappers.twins" >/dev/null || exit 1
for suite in test_transfer test_attention_write test_attention test_attention_merge \
    test_attention_bitwise test_attention_refuse; do
    ln -s "$3/${suite}_cuda_plain" "$scratch/$suite" || exit 2
done

# Time limits are for a GPU; what is slow here is not wrong.
run() {
    sh "$here/../gpu.sh" --binaries "$scratch" --small --patience 20 --limit 3600 "$@" \
        >"$scratch/out" || {
        cat "$scratch/out"
        exit 1
    }
    grep '"status"' "$scratch/out"
}

run
run --bench
