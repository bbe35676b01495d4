#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: the libpagedkv authors

# gpu_wrappers against what it wrote itself, and against a file in which one byte is another one:
# the comparison sees a single bit.
# usage: test_wrappers.sh PROGRAM
set -u
LC_ALL=C
export LC_ALL

case ${1:---help} in
--help | -h) echo "usage: test_wrappers.sh PROGRAM"; exit 0 ;;
esac
program=$1
scratch=$(mktemp -d) || exit 2
trap 'rm -rf "$scratch"' EXIT

"$program" --write "$scratch/twins" || exit 1
"$program" --expect "$scratch/twins" >"$scratch/out" || {
    cat "$scratch/out"
    exit 1
}
# The byte at 1,000 belongs to the vectors, whose words have to be equal.
{
    head -c 1000 "$scratch/twins"
    printf '\125'
    tail -c +1002 "$scratch/twins"
} >"$scratch/changed"
cmp -s "$scratch/twins" "$scratch/changed" && {
    echo "the file was not changed" >&2
    exit 1
}
"$program" --expect "$scratch/changed" >"$scratch/out"
if [ $? -ne 1 ] || [ "$(grep -c '"check failed"' "$scratch/out")" -ne 1 ]; then
    echo "a changed byte was not noticed, or more than that" >&2
    cat "$scratch/out" >&2
    exit 1
fi
# The programs of the other build must not pass for want of something to compare with.
: >"$scratch/empty"
"$program" --expect "$scratch/empty" >"$scratch/out" && exit 1
[ "$("$program" --help | grep -c "^usage")" -eq 1 ]
