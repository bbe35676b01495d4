/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The smallest program that shows that an installed library can be found, linked and run, that its
 * headers belong to it, and that it says what it misses: a CUDA device is made only where there is
 * one, and asking is harmless elsewhere. */
#include <pagedkv/base.h>
#include <pagedkv/cuda.h>

#include <stdio.h>
#include <string.h>

static int num_told;

static void count_message(void *context, int level, const char *message) {
    (void)context;
    (void)level;
    num_told++;
    printf("consumer: %s\n", message);
}

/* Twice, since a runtime that failed to start must say so again. */
static int check_cuda(void) {
    const pkv_cuda_config config = {.struct_size = sizeof config, .log = count_message};
    const bool has_cuda = pkv_has_feature(PKV_FEATURE_CUDA_DEVICE);
    pkv_device *device;
    pkv_status status = PKV_OK;

    for (int i = 0; i < 2; i++) {
        device = NULL;
        status = pkv_device_create_cuda(&config, &device);
        if (status == PKV_OK ? !has_cuda || device == NULL
                             : status != (has_cuda ? PKV_ERROR_DEVICE : PKV_ERROR_UNSUPPORTED) ||
                                   device != NULL) {
            fprintf(stderr, "consumer: a CUDA device gives %s\n", pkv_status_name(status));
            return 1;
        }
        pkv_device_destroy(device);
    }
    return num_told == 2 ? 0 : 1;
}

int main(void) {
    if (pkv_version() != PKV_VERSION || strcmp(pkv_status_name(PKV_OK), "OK") != 0) {
        fprintf(stderr, "consumer: header %d, library %u\n", PKV_VERSION, (unsigned)pkv_version());
        return 1;
    }
    printf("consumer: libpagedkv %d.%d.%d\n", PKV_VERSION_MAJOR, PKV_VERSION_MINOR,
           PKV_VERSION_PATCH);
    return check_cuda();
}
