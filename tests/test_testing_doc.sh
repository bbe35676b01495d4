#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: the libpagedkv authors

# docs/testing.md and docs/testing-attention.md name tests: each of them is a function of a test
# program, and that program runs it, or a case by its name. The list of failures of the first counts
# from 1 to 59 without a gap. Whether a test tests what the row says, it cannot tell.
set -u
LC_ALL=C
export LC_ALL

case ${1:-} in
--help | -h) echo "usage: test_testing_doc.sh      (from anywhere)"; exit 0 ;;
esac
cd "$(dirname "$0")/.." || exit 2
scratch=$(mktemp -d) || exit 2
trap 'rm -rf "$scratch"' EXIT
num_failed=0
num_checked=0

fail() {
    echo "$1" >&2
    num_failed=$((num_failed + 1))
}

# A name of at least three words in backquotes in a row of a table is a test. What else is in
# backquotes in a numbered row, and is no path and no call, is the name of a case.
check_names() {
    grep '^|' "$1" | grep -o '`[^`]*`' | tr -d '`' |
        grep -E '^[a-z0-9]+(_[a-z0-9]+){2,}$' | sort -u >"$scratch/names"
    while read -r name; do
        num_checked=$((num_checked + 1))
        files=$(grep -lE "^static void $name\(void \*\*" tests/*.c)
        [ -n "$files" ] || fail "$1: there is no test $name"
        for file in $files; do
            [ "$(grep -cw "$name" "$file")" -ge 2 ] || fail "$file: $name is never run"
        done
    done <"$scratch/names"
    grep -E '^\| [0-9]+ \|' "$1" | grep -o '`[^`]*`' | tr -d '`' |
        grep -vE '^[a-z0-9]+(_[a-z0-9]+){2,}$|[/(]' | sort -u >"$scratch/names"
    while read -r name; do
        num_checked=$((num_checked + 1))
        grep -qF "{\"$name\"," tests/*.c || grep -qF ".name = \"$name\"," \
            tests/support/attention_table.c tests/test_attention*.c ||
            fail "$1: there is no case '$name'"
    done <"$scratch/names"
}

check_names docs/testing.md
check_names docs/testing-attention.md

document=docs/testing.md
grep -oE '^\| [0-9]+ \|' "$document" | tr -dc '0-9\n' >"$scratch/numbers"
seq 1 59 >"$scratch/wanted"
if ! cmp -s "$scratch/numbers" "$scratch/wanted"; then
    fail "$document: the failures are not numbered from 1 to 59"
fi
[ "$num_checked" -gt 100 ] || fail "$document: only $num_checked names of tests were found"

echo "$num_checked names of tests checked, $num_failed wrong"
[ "$num_failed" -eq 0 ]
