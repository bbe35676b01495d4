#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: the libpagedkv authors

# The library starts on a plain x86-64: outside of the kernels whose files are named after an
# instruction set, the static library has no instruction that came after SSE2. The same search must
# find such instructions in those kernels, or it finds nothing anywhere.
# usage: test_baseline.sh LIBRARY [OBJDUMP]
set -u
LC_ALL=C
export LC_ALL

case ${1:-} in
"" | --help | -h) echo "usage: test_baseline.sh LIBRARY [OBJDUMP]"; [ $# -eq 1 ] && exit 0; exit 2 ;;
esac
library=$1
objdump=${2:-objdump}
if ! command -v "$objdump" >/dev/null 2>&1; then
    echo "skipped: there is no $objdump to look into the library with"
    exit 77
fi
[ -r "$library" ] || { echo "$library cannot be read" >&2; exit 2; }
scratch=$(mktemp -d) || exit 2
trap 'rm -rf "$scratch"' EXIT

"$objdump" -d --no-show-raw-insn "$library" >"$scratch/code" || exit 2

# A line an object: its name, how many newer instructions it has, and the first of them. What begins
# with v, or names a wide register, is AVX; then SSE3 to SSE4.2, and what came beside AVX.
awk '
    BEGIN {
        newer = "^(v|(add|h(add|sub))subp|h(add|sub)p|movddup|mov(sh|sl)dup|lddqu|pshufb|pabs|ph(add|sub)"
        newer = newer "|pmaddubsw|pmulhrsw|psign|palignr|blend|dpp[sd]|extractps|insertps|mpsadbw|packusdw"
        newer = newer "|pblend|pcmpeqq|pcmpgtq|pcmp[ei]str|pextr[bdq]|pinsr[bdq]|phmin|pm(ax|in)(s[bd]|u[wd])"
        newer = newer "|pmov[sz]x|pmuldq|pmulld|ptest|round[ps]|crc32|popcnt|lzcnt|movbe|andn[lq]?$|bextr"
        newer = newer "|bls|mulx|p(dep|ext)[lq]?$|rorx|s[ah][lr]x|aes|pclmul|sha(1|256))"
    }
    /:[ \t]+file format/ {
        object = $1
        sub(/:$/, "", object)
        sub(/.*\(/, "", object)
        sub(/\)$/, "", object)
        count[object] += 0
        next
    }
    /^ *[0-9a-f]+:[ \t]/ {
        if ($2 ~ newer || $0 ~ /%[yz]mm|%k[0-7]/) {
            if (count[object]++ == 0) {
                first[object] = $2
            }
        }
    }
    END {
        for (object in count) {
            print object, count[object], first[object]
        }
    }' "$scratch/code" | sort >"$scratch/counts"

num_plain=0
num_wide=0
num_failed=0
while read -r object count first; do
    case $object in
    kernels_avx*)
        num_wide=$((num_wide + 1))
        [ "$count" -gt 0 ] && continue
        echo "$object: the search finds nothing where it must" >&2
        ;;
    *)
        num_plain=$((num_plain + 1))
        [ "$count" -eq 0 ] && continue
        echo "$object: $count instructions that a plain x86-64 does not have, such as $first" >&2
        ;;
    esac
    num_failed=$((num_failed + 1))
done <"$scratch/counts"
if [ "$num_plain" -lt 20 ] || [ "$num_wide" -lt 3 ]; then
    echo "only $num_plain objects and $num_wide of wide kernels are in $library" >&2
    num_failed=$((num_failed + 1))
fi
echo "$num_plain objects for every x86-64, $num_wide of wide kernels, $num_failed wrong"
[ "$num_failed" -eq 0 ]
