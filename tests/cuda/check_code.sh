#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: the libpagedkv authors

# Looks at the device code inside of a built library, without running it: that every kernel is there
# for every architecture, multiplies with tensor cores, copies 16 bytes at once, and keeps nothing
# in local memory (code_rules.awk, ptx_rules.awk), and that all of it is not too large. Leaves a
# table of the kernels.
# usage: check_code.sh CUOBJDUMP LIBRARY TABLE      exit 0: as it should be, 1: not, 77: no tool
set -u
LC_ALL=C
export LC_ALL

case ${1:-} in
--help | -h) echo "usage: check_code.sh CUOBJDUMP LIBRARY TABLE"; exit 0 ;;
esac
[ $# -eq 3 ] || { echo "usage: check_code.sh CUOBJDUMP LIBRARY TABLE" >&2; exit 2; }
cuobjdump=$1
library=$2
table=$3
if ! command -v "$cuobjdump" >/dev/null 2>&1; then
    echo "skipped: no cuobjdump; sh tests/run.sh --cuda fetches one"
    exit 77
fi
# It calls nvdisasm, which is beside it.
PATH=$(dirname "$cuobjdump"):$PATH
if ! command -v nvdisasm >/dev/null 2>&1; then
    echo "skipped: no nvdisasm; sh tests/run.sh --cuda fetches one"
    exit 77
fi
scratch=$(mktemp -d) || exit 2
trap 'rm -rf "$scratch"' EXIT
here=$(dirname "$0")

# Twice six pairs of types, five classes each; five types of cache with float queries.
num_matrix=60
num_plain=5

# For the architectures of a release.
max_bytes=4194304

if ! "$cuobjdump" --dump-resource-usage "$library" >"$scratch/usage" ||
    ! "$cuobjdump" --dump-sass "$library" >"$scratch/sass"; then
    echo "$library: cuobjdump failed" >&2
    exit 1
fi
status=0
cat "$scratch/usage" "$scratch/sass" | c++filt -p |
    awk -v table="$table" -v num_expected_matrix=$num_matrix -v num_expected_plain=$num_plain \
        -f "$here/products.awk" -f "$here/code_rules.awk" || status=1

# What newer devices compile when they load it.
if ! "$cuobjdump" --dump-ptx "$library" >"$scratch/ptx"; then
    echo "$library: cuobjdump failed" >&2
    status=1
fi
c++filt -p <"$scratch/ptx" |
    awk -v num_expected_matrix=$num_matrix -v num_expected_plain=$num_plain \
        -f "$here/products.awk" -f "$here/ptx_rules.awk" || status=1

# Compressed, as it lies in a program.
bytes=$(size -A "$library" | awk '/^\.nv_fatbin/ { sum += $2 } END { print sum + 0 }')
echo "device code: $bytes bytes"
if [ "$bytes" -gt "$max_bytes" ]; then
    echo "$library: more than $max_bytes bytes of device code" >&2
    status=1
fi
exit $status
