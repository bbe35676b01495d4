# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: the libpagedkv authors

# Reads what cuobjdump prints of a library (--dump-resource-usage and --dump-sass, through c++filt),
# writes a line for each kernel and architecture to the file `table`, and says which are not as they
# have to be. Exit status 1 where one is not.
#
# The one idea: a matrix kernel's products can be counted beforehand from its template arguments,
# since every loop over a fragment is unrolled. One that was not has gone to local memory, or will.

# The name without name space and parameters: attend_kernel<attend_traits<__half, ...> >.
function name_of(text) {
    sub(/^.*Function *: */, "", text)
    sub(/^.*Function /, "", text)
    sub(/:$/, "", text)
    sub(/^void /, "", text)
    gsub(/\(anonymous namespace\)::|pkvi::/, "", text)
    sub(/\(.*$/, "", text)
    return text
}

function find(architecture, text, key) {
    key = architecture "\t" name_of(text)
    if (!(key in is_known)) {
        is_known[key] = 1
        keys[num_keys++] = key
    }
    return key
}

function fail(key, text) {
    sub(/\t/, ", ", key)
    print "sm_" key ": " text | "cat >&2"
    num_failed++
}

/^arch = sm_/ { sub(/^arch = sm_/, ""); architecture = $0; next }

/^ Function .*:$/ { used = find(architecture, $0); next }
/^ +REG:/ {
    for (i = 1; i <= NF; i++) {
        split($i, part, ":")
        if (part[1] == "REG") registers[used] = part[2]
        if (part[1] == "STACK" || part[1] == "LOCAL") stack[used] += part[2]
    }
    has_usage[used] = 1
    next
}

/^\t+Function : / { current = find(architecture, $0); next }
/^ +\/\*[0-9a-f]+\*\/ / {
    operation = $2 ~ /^@/ ? $3 : $2
    sub(/;$/, "", operation)
    instructions[current]++
    if (operation ~ /^HMMA\.16816\.F32/) products[current]++
    if (operation ~ /^HMMA/) matrix[current]++
    if (operation ~ /^LDSM/) loads[current]++
    if (operation ~ /^LDSM.*\.MT88/) transposed[current]++
    if (operation ~ /^LDGSTS.*\.128/) copies[current]++
    else if (operation ~ /^LDGSTS/) small_copies[current]++
    if (operation ~ /^(LDG|STG).*\.128/) vectors[current]++
    if (operation ~ /^(LDL|STL)/) locals[current]++
}

function check(key, name, part, expected, is_quantised) {
    name = key
    sub(/^[^\t]*\t/, "", name)
    if (!has_usage[key]) fail(key, "its registers are not told")
    if (instructions[key] == 0) fail(key, "it has no instructions")
    if (stack[key] + locals[key] != 0) fail(key, "something is in local memory")
    if (name ~ /^attend_kernel</) {
        num_matrix[substr(key, 1, index(key, "\t") - 1)]++
        split(name, part, /[<>,] */)
        num_e4m3[substr(key, 1, index(key, "\t") - 1)] += part[4] ~ /e4m3/
        is_quantised = part[4] ~ /e4m3|signed char/
        expected = expected_products(part[5], part[6], part[9])
        if (products[key] != expected || matrix[key] != expected)
            fail(key, products[key] + 0 " of " matrix[key] + 0 " products, not " expected)
        if (loads[key] == 0 || transposed[key] == 0) fail(key, "matrix loads are missing")
        if (copies[key] == 0) fail(key, "no asynchronous copy of 16 bytes")
        # Rows of 16-bit caches are copied by 16 bytes only. Those of quantised caches, half as
        # long, may start or end on 8, and the scales of the tokens are single numbers.
        if (!is_quantised && small_copies[key] > 0)
            fail(key, "an asynchronous copy is smaller than 16 bytes")
    } else if (name ~ /^attend_plain_kernel</) {
        num_plain[substr(key, 1, index(key, "\t") - 1)]++
        if (matrix[key] > 0) fail(key, "a plain kernel multiplies matrices")
    } else if (name ~ /^(move_blocks|fill_blocks|gather|write_kv)_kernel/ && vectors[key] == 0) {
        fail(key, "no load or store of 16 bytes")
    }
}

# How many matrix kernels there have to be for an architecture: all, but for 89 beside 80. What runs
# there is the code of 80, except for e4m3, which 89 converts by an instruction.
function expected_matrix(architecture) {
    if (architecture == 89 && 80 in num_matrix && num_matrix[89] == num_e4m3[89])
        return num_e4m3[80]
    return num_expected_matrix
}

END {
    print "# sm\tkernel\tregisters\tinstructions\tproducts\tmatrix loads\tcopies of 16 bytes" >table
    for (i = 0; i < num_keys; i++) {
        key = keys[i]
        check(key)
        printf "%s\t%d\t%d\t%d\t%d\t%d\n", key, registers[key], instructions[key], products[key],
            loads[key], copies[key] >table
        num_kernels[substr(key, 1, index(key, "\t") - 1)]++
    }
    for (architecture in num_kernels) {
        if (num_matrix[architecture] + 0 != expected_matrix(architecture))
            fail(architecture, num_matrix[architecture] + 0 " matrix kernels, not " \
                               expected_matrix(architecture))
        if (num_plain[architecture] != num_expected_plain)
            fail(architecture, num_plain[architecture] + 0 " plain kernels, not " \
                               num_expected_plain)
        print "sm_" architecture ": " num_kernels[architecture] " kernels"
        num_architectures++
    }
    if (num_architectures == 0) fail("?", "there is no device code")
    exit num_failed > 0
}
