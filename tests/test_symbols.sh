#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: the libpagedkv authors

# The names that the shared library exports are exactly those of tests/symbols.txt: an internal
# function that leaks out, or a public one that is lost, is seen here and not by a user.
# usage: test_symbols.sh LIBRARY      (tests/update_symbols.sh writes the list anew)
set -eu
LC_ALL=C
export LC_ALL

[ $# -eq 1 ] || { echo "usage: test_symbols.sh LIBRARY" >&2; exit 2; }
expected=$(dirname "$0")/symbols.txt
exported=$(nm -D --defined-only "$1" | awk 'NF >= 3 { print $3 }' | sort)

foreign=$(printf '%s\n' "$exported" | grep -v '^pkv_' || true)
if [ -n "$foreign" ]; then
    printf 'exported without the prefix pkv_:\n%s\n' "$foreign" >&2
    exit 1
fi
if ! printf '%s\n' "$exported" | diff -u "$expected" - >&2; then
    echo "exported names differ from tests/symbols.txt (< listed, > exported);" >&2
    echo "where the change is meant: sh tests/update_symbols.sh BUILD_DIR" >&2
    exit 1
fi
echo "$(printf '%s\n' "$exported" | wc -l) exported names, all listed"
