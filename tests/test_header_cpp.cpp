/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The public headers in a C++11 program that is linked with the C library: they parse without a
 * warning, their names have C linkage, their inline functions and values work from C++.
 * What the functions do is tested in C. */
#include <pagedkv/batch.h>
#include <pagedkv/device.h>

#include <cstdio>
#include <cstring>

static int check(bool is_true, const char *what) {
    if (!is_true) {
        std::fprintf(stderr, "failed: %s\n", what);
    }
    return is_true ? 0 : 1;
}

int main() {
    const pkv_block_id block_table[] = {7, 3};
    int num_failed = 0;

    num_failed += check(pkv_version() == PKV_VERSION, "header and library have one version");
    num_failed += check(std::strcmp(pkv_status_name(PKV_OK), "OK") == 0, "a status has its name");
    num_failed += check(pkv_compute_slot(block_table, 16, 20) == 3 * 16 + 4,
                        "the slot of position 20 is in the second block");
    return num_failed == 0 ? 0 : 1;
}
