#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: the libpagedkv authors

# The documents say what is there: relative links lead to files and headings, paths and functions that
# stand in backquotes exist, the C of the README compiles, and its picture of an example is what that
# example prints. Whether a sentence is true it cannot tell.
# usage: test_docs.sh CC      (from anywhere; CC compiles the README's code)
set -u
LC_ALL=C
export LC_ALL

case ${1:-} in
"" | --help | -h) echo "usage: test_docs.sh CC"; [ $# -eq 1 ] && exit 0; exit 2 ;;
esac
compiler=$1
cd "$(dirname "$0")/.." || exit 2
scratch=$(mktemp -d) || exit 2
trap 'rm -rf "$scratch"' EXIT
num_failed=0
num_checked=0

fail() {
    echo "$1" >&2
    num_failed=$((num_failed + 1))
}

# Print the anchors of the headings of $1, as code hosts make them.
anchors() {
    awk '/^```/ { is_code = !is_code }
         /^#+ / && !is_code {
             sub(/^#+ /, "")
             text = tolower($0)
             gsub(/[^a-z0-9 _-]/, "", text)
             gsub(/ /, "-", text)
             print text
         }' "$1"
}

# Check the links "](target)" of the document $1.
check_links() {
    grep -o ']([^) ]*)' "$1" | sed 's/^](//; s/)$//' | sort -u >"$scratch/links"
    while read -r link; do
        case $link in
        http://* | https://* | mailto:*) continue ;;
        esac
        num_checked=$((num_checked + 1))
        path=${link%%#*}
        file=$1
        [ -z "$path" ] || file=$(dirname "$1")/$path
        if [ ! -e "$file" ]; then
            fail "$1: the link $link leads nowhere"
        elif [ "$path" != "$link" ] && ! anchors "$file" | grep -qxF "${link#*#}"; then
            fail "$1: $file has no heading for $link"
        fi
    done <"$scratch/links"
}

# Check what stands in backquotes in the document $1, outside of blocks of code.
check_names() {
    awk '/^```/ { is_code = !is_code; next } !is_code' "$1" | tr '\n' ' ' |
        grep -o '`[^`]*`' | tr -d '`' | sort -u >"$scratch/names"
    while read -r name; do
        case $name in
        *[*{}\<]* | *" "*) ;;
        kernels/cuda) ;; # named as a place for what comes; CMakeLists.txt looks for it as well
        include/* | src/* | kernels/* | tests/* | bench/* | examples/* | docs/* | cmake/*)
            num_checked=$((num_checked + 1))
            # A test program may be named without the .c of its source.
            [ -e "$name" ] || [ -e "$name.c" ] || fail "$1: there is no $name"
            ;;
        pkv_*[!a-z0-9_]* | pkvi_*[!a-z0-9_]* | PKV_*[!A-Z0-9_]*) ;;
        pkv_* | pkvi_* | PKV_*)
            num_checked=$((num_checked + 1))
            grep -rqw -e "$name" include src kernels tests bench CMakeLists.txt CMakePresets.json ||
                fail "$1: nothing is called $name"
            ;;
        *[!a-z0-9_]*) ;;
        *) # The walk names the static functions as well.
            [ "$1" = docs/walk.md ] || continue
            num_checked=$((num_checked + 1))
            grep -rqw -e "$name" include src kernels || fail "$1: nothing is called $name"
            ;;
        esac
    done <"$scratch/names"
}

for document in *.md docs/*.md; do
    check_links "$document"
    check_names "$document"
done

# The README's code, one file a block.
awk -v scratch="$scratch" '
    /^```c$/ { num_blocks++; is_code = 1; next }
    /^```/ { is_code = 0 }
    is_code { print > (scratch "/readme_" num_blocks ".c") }' README.md
for source in "$scratch"/readme_*.c; do
    num_checked=$((num_checked + 1))
    "$compiler" -std=c11 -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror -I include \
        -fsyntax-only "$source" || fail "README.md: its code does not compile"
done

# The README's picture of the first example, line by line.
awk '/^```text$/ { is_text = 1; next } /^```/ { is_text = 0 } is_text && NF' README.md \
    >"$scratch/picture"
[ -s "$scratch/picture" ] || fail "README.md: the picture of examples/01_blocks.c is gone"
if [ -e examples/01_blocks.expected ]; then
    num_checked=$((num_checked + 1))
    if grep -vxF -f examples/01_blocks.expected "$scratch/picture" >&2; then
        fail "README.md: examples/01_blocks.c does not print these lines"
    fi
fi

echo "$num_checked links, names and programs checked, $num_failed wrong"
[ "$num_failed" -eq 0 ]
