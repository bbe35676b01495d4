#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: the libpagedkv authors

# code_rules.awk and ptx_rules.awk on listings of a library with one matrix and one plain kernel: as
# it should be, and with a mistake each.
set -u
LC_ALL=C
export LC_ALL

here=$(dirname "$0")
scratch=$(mktemp -d) || exit 2
trap 'rm -rf "$scratch"' EXIT
num_failed=0
num_refused=0
matrix='void pkvi::attend_kernel<pkvi::attend_traits<__half, __half, 64, 64, false, 1, 4> >(p)'
plain='void pkvi::attend_plain_kernel<float>(p)'

# Print a line of a listing with the instruction $1.
instruction() {
    printf '        /*0000*/   %s ;   /* 0x0 */\n' "$1"
}

# Print what cuobjdump would.
listing() {
    echo 'arch = sm_80'
    printf ' Function %s:\n  REG:96 STACK:0 SHARED:0 LOCAL:0\n' "$matrix"
    printf ' Function %s:\n  REG:40 STACK:0 SHARED:0 LOCAL:0\n' "$plain"
    printf '\t\tFunction : %s\n' "$matrix"
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do
        instruction 'HMMA.16816.F32 R4, R8, R2, R4'
    done
    instruction '@P0 LDSM.16.M88.4 R4, [R8]'
    instruction 'LDSM.16.MT88.4 R4, [R8]'
    instruction '@!P1 LDGSTS.E.BYPASS.LTC128B.128 [R1], [R2.64]'
    printf '\t\tFunction : %s\n' "$plain"
    instruction 'LDG.E R1, [R2.64]'
}

# Print the listing of a release: 80 also has a kernel of e4m3, and 89 has that one beside it.
release() {
    listing
    listing | sed 's/__half, 64/pkvi::e4m3, 64/'
    listing | sed 's/__half, 64/pkvi::e4m3, 64/; s/sm_80/sm_89/'
}

# Run the rules over standard input, for $1 matrix kernels (1); print nothing, return what they say.
judge() {
    awk -v table="$scratch/table" -v num_expected_matrix="${1:-1}" -v num_expected_plain=1 \
        -f "$here/products.awk" -f "$here/code_rules.awk" >"$scratch/out" 2>&1
}

# Print the PTX of both kernels.
ptx() {
    echo ".visible .entry ${matrix#void }"
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do
        printf '\tmma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%%f1}, {%%r1};\n'
    done
    printf '\tldmatrix.sync.aligned.m8n8.x4.shared.b16 {%%r1}, [%%r2];\n'
    printf '\tcp.async.cg.shared.global.L2::128B [%%r1], [%%rd1], 16, %%r2;\n'
    printf '\tst.global.v2.f32 [%%rd1], {%%f1, %%f2};\n'
    echo ".visible .entry ${plain#void }"
    printf '\tld.global.f32 %%f1, [%%rd1];\n'
}

judge_ptx() {
    awk -v num_expected_matrix=1 -v num_expected_plain=1 \
        -f "$here/products.awk" -f "$here/ptx_rules.awk" >"$scratch/out" 2>&1
}

# The same of ptx: after the sed command $1 it must be refused with the words $2.
refuse_ptx() {
    num_refused=$((num_refused + 1))
    if ptx | sed "$1" | judge_ptx || ! grep -q "$2" "$scratch/out"; then
        echo "PTX not refused with '$2': $1" >&2
        cat "$scratch/out" >&2
        num_failed=$((num_failed + 1))
    fi
}

# The listing (or $3, of $4 matrix kernels) after the sed command $1 must be refused with the words
# $2.
refuse() {
    num_refused=$((num_refused + 1))
    if ${3:-listing} | sed "$1" | judge "${4:-1}"; then
        echo "accepted: $1" >&2
        num_failed=$((num_failed + 1))
    elif ! grep -q "$2" "$scratch/out"; then
        echo "not refused with '$2': $1" >&2
        cat "$scratch/out" >&2
        num_failed=$((num_failed + 1))
    fi
}

if ! listing | judge || [ "$(wc -l <"$scratch/table")" -ne 3 ]; then
    echo "the listing without a mistake is refused" >&2
    cat "$scratch/out" >&2
    num_failed=$((num_failed + 1))
fi
if ! release | judge 2 || [ "$(wc -l <"$scratch/table")" -ne 6 ]; then
    echo "the listing of a release is refused" >&2
    cat "$scratch/out" >&2
    num_failed=$((num_failed + 1))
fi
refuse '/HMMA/{x;s/^/x/;/^x$/{x;d;};x;}' '15 of 15 products, not 16'
refuse 's/HMMA.16816.F32/HMMA.16816.F16/' '0 of 16 products, not 16'
refuse '/MT88/d' 'matrix loads are missing'
refuse '/LDGSTS/d' 'no asynchronous copy of 16 bytes'
refuse '/LDGSTS/{p;s/\.128 /.64 /;}' 'copy is smaller than 16 bytes'
refuse 's/LDG.E R1/LDL R1/' 'something is in local memory'
refuse 's/REG:40 STACK:0/REG:40 STACK:8/' 'something is in local memory'
refuse 's/REG:96/REGS:96/' 'its registers are not told'
refuse '/LDG.E R1/d' 'it has no instructions'
refuse 's/LDG.E R1/HMMA.16816.F32 R1/' 'a plain kernel multiplies matrices'
refuse 's/attend_plain_kernel/other_kernel/' '0 plain kernels, not 1'
refuse 's/attend_kernel/other_kernel/' '0 matrix kernels, not 1'
refuse 's/attend_plain_kernel<float>/gather_kernel/' 'no load or store of 16 bytes'
refuse 'd' 'there is no device code'
# The $ is the last line of the listing.
# shellcheck disable=SC2016
refuse '/sm_89/,$s/pkvi::e4m3/__half/' 'sm_89: 1 matrix kernels, not 2' release 2
# shellcheck disable=SC2016
refuse '/sm_89/,$s/attend_kernel/other_kernel/' 'sm_89: 0 matrix kernels, not 1' release 2
refuse 's/sm_89/sm_90/' 'sm_90: 1 matrix kernels, not 2' release 2
refuse 's/sm_80/sm_90/' 'sm_89: 1 matrix kernels, not 2' release 2
if ! ptx | judge_ptx; then
    echo "the PTX without a mistake is refused" >&2
    cat "$scratch/out" >&2
    num_failed=$((num_failed + 1))
fi
refuse_ptx '/mma/{x;s/^/x/;/^x$/{x;d;};x;}' '15 products, not 16'
refuse_ptx '/ldmatrix/d' 'matrix loads are missing'
refuse_ptx '/cp.async/d' 'no asynchronous copy'
refuse_ptx 's/v2.f32/f32/' 'no load or store of a vector'
refuse_ptx 's/ld.global.f32/ld.local.f32/' '1 uses of local memory'
refuse_ptx 's/ld.global.f32.*/mma.sync.aligned.m16n8k16/' 'a plain kernel multiplies matrices'
refuse_ptx 's/attend_kernel/other_kernel/' '0 matrix kernels, not 1'
refuse_ptx 's/attend_plain_kernel/other_kernel/' '0 plain kernels, not 1'
[ "$num_failed" -eq 0 ] && echo "$num_refused mistakes are found"
