#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: the libpagedkv authors

# Which cases bench_attention measures for which options, in its smallest sizes and one round: that
# it leaves nothing out and that everything has a name of its own. It checks by itself the numbers
# that it times; the figures are not looked at.
set -u
LC_ALL=C
export LC_ALL

case ${1:---help} in
--help | -h) echo "usage: test_bench_attention.sh BENCH_ATTENTION"; exit 0 ;;
esac
bench=$1
scratch=$(mktemp -d) || exit 2
trap 'rm -rf "$scratch"' EXIT
num_failed=0

fail() {
    echo "$1" >&2
    num_failed=$((num_failed + 1))
}

# Run the bench with the options $2...; its lines become the file $1.
run() {
    file=$scratch/$1
    shift
    "$bench" --divide 64 --rounds 1 --json "$@" >"$file" 2>"$scratch/errors" ||
        fail "bench_attention $* failed: $(cat "$scratch/errors")"
    grep -o '"case":"[^"]*","metric":"[^"]*","unit":"[^"]*","value":[^,]*,"peer":[^,]*' "$file" |
        sed 's/,"value":[^,]*//' | sort >"$file.names"
    [ -z "$(uniq -d "$file.names")" ] || fail "bench_attention $*: a line is there twice"
}

# Say that the lines of $1 have the case $2 with each dtype, or, with $3, that they have it not.
want() {
    for dtype in float32 float16 bfloat16 e4m3 int8; do
        count=$(grep -c "\"case\":\"$2 $dtype " "$scratch/$1")
        if [ "$count" -eq 0 ] && [ -z "${3:-}" ]; then
            fail "$1: no $2 of $dtype"
        elif [ "$count" -gt 0 ] && [ -n "${3:-}" ]; then
            fail "$1: $count lines of $2 of $dtype"
        fi
    done
}

run decode --decode
want decode decode
want decode prefill not
run prefill --prefill
want prefill prefill
want prefill decode not
run both --decode --prefill
sort "$scratch/decode.names" "$scratch/prefill.names" >"$scratch/wanted"
cmp -s "$scratch/both.names" "$scratch/wanted" || fail "both options are not what each of them is"
run all
cmp -s "$scratch/all.names" "$scratch/wanted" || fail "no option is not what both of them are"
if grep -qw avx2 /proc/cpuinfo 2>/dev/null; then
    run stages --stage all
    [ "$(wc -l <"$scratch/stages.names")" -eq 60 ] ||
        fail "not two lines of five stages of two dtypes by three tables"
fi

echo "$(wc -l <"$scratch/all.names") lines, $num_failed failures"
[ "$num_failed" -eq 0 ]
