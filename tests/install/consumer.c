/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The smallest program that shows that an installed library can be found, linked and run, and that
 * its headers belong to it. */
#include <pagedkv/base.h>

#include <stdio.h>
#include <string.h>

int main(void) {
    if (pkv_version() != PKV_VERSION || strcmp(pkv_status_name(PKV_OK), "OK") != 0) {
        fprintf(stderr, "consumer: header %d, library %u\n", PKV_VERSION, (unsigned)pkv_version());
        return 1;
    }
    printf("consumer: libpagedkv %d.%d.%d\n", PKV_VERSION_MAJOR, PKV_VERSION_MINOR,
           PKV_VERSION_PATCH);
    return 0;
}
