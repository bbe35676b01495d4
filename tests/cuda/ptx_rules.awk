# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: the libpagedkv authors

# Reads what cuobjdump prints of a library's PTX, through c++filt, and says which attention kernels
# are not as they have to be: what newer devices compile when they load it. The rules over machine
# code are in code_rules.awk. Exit status 1 where a kernel is wrong or one is missing.

function fail(text) {
    print "PTX, " kernel ": " text | "cat >&2"
    num_failed++
}

function end_kernel(part, expected) {
    if (kernel == "") return
    if (locals > 0) fail(locals " uses of local memory")
    if (kernel ~ /^attend_kernel</) {
        num_matrix++
        split(kernel, part, /[<>,] */)
        expected = expected_products(part[5], part[6], part[9])
        if (products != expected) fail(products " products, not " expected)
        if (loads == 0) fail("matrix loads are missing")
        if (copies == 0) fail("no asynchronous copy")
        # Output and partial rows go in pairs at least.
        if (vectors == 0) fail("no load or store of a vector")
    } else if (kernel ~ /^attend_plain_kernel</) {
        num_plain++
        if (products > 0) fail("a plain kernel multiplies matrices")
    }
    kernel = ""
}

/^\.visible \.entry / {
    end_kernel()
    kernel = $0
    sub(/^\.visible \.entry (void )?/, "", kernel)
    gsub(/\(anonymous namespace\)::|pkvi::/, "", kernel)
    sub(/\(.*$/, "", kernel)
    products = loads = copies = vectors = locals = 0
    next
}
/mma\.sync\.aligned\.m16n8k16/ { products++ }
/ldmatrix\.sync/ { loads++ }
/cp\.async\.c[ag]/ { copies++ }
/(ld|st)\.global[a-z0-9.:]*\.v[248]/ { vectors++ }
/(ld|st)\.local|^[ \t]*\.local/ { locals++ }

END {
    end_kernel()
    kernel = "all"
    if (num_matrix + 0 != num_expected_matrix)
        fail(num_matrix + 0 " matrix kernels, not " num_expected_matrix)
    if (num_plain + 0 != num_expected_plain)
        fail(num_plain + 0 " plain kernels, not " num_expected_plain)
    if (num_failed == 0) print "PTX: " num_matrix + num_plain " attention kernels"
    exit num_failed > 0
}
