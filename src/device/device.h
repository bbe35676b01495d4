/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The part of a device that is the same for every kind. A kind embeds it as its first member. */
#ifndef PKVI_DEVICE_DEVICE_H
#define PKVI_DEVICE_DEVICE_H

#include <pagedkv/device.h>

#include "base/memory.h"
#include "device/backend.h"

struct pkv_device {
    const struct pkvi_backend *backend;
    struct pkvi_error_text error;
    pkv_allocator allocator;
    size_t allocated_size; /* 0: the memory is the caller's */
};

/* Note why a call on `device` fails and return the status. */
#define PKVI_DEVICE_FAIL(device, status, ...) pkvi_fail(&(device)->error, (status), __VA_ARGS__)

#endif
