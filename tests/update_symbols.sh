#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: the libpagedkv authors

# Writes tests/symbols.txt from the shared library in a build folder. Look at the difference before
# committing it: each line that goes breaks somebody's program.
# usage: sh tests/update_symbols.sh BUILD_DIR
set -eu
LC_ALL=C
export LC_ALL

case ${1:-} in
--help | -h) echo "usage: sh tests/update_symbols.sh BUILD_DIR"; exit 0 ;;
esac
library=${1:-}/libpagedkv.so
if [ $# -ne 1 ] || [ ! -e "$library" ]; then
    echo "usage: sh tests/update_symbols.sh BUILD_DIR (a folder that holds libpagedkv.so)" >&2
    exit 2
fi
list=$(dirname "$0")/symbols.txt
nm -D --defined-only "$library" | awk 'NF >= 3 { print $3 }' | sort >"$list"
echo "$list: $(wc -l <"$list") names"
