/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Linked to a program, it takes away the device that the runtime of tests/simt pretends to have. */
#include "tests/simt/simt_control.h"

static void take_device_away(void) __attribute__((constructor));

static void take_device_away(void) {
    simt_get_device()->num_devices = 0;
}
