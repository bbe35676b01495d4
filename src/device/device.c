/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The device functions that every kind shares: each checks its pointers and asks the kind's table.
 * How a device of a kind is made stands with its kernels. */
#include "device/backend.h"

void pkv_device_destroy(pkv_device *device) {
    if (device == NULL) {
        return;
    }
    pkv_allocator allocator = device->allocator;
    size_t size = device->allocated_size;

    device->backend->destroy(device);
    if (size > 0) {
        pkvi_release(&allocator, device, size);
    }
}

pkv_status pkv_device_synchronize(pkv_device *device, pkv_stream stream) {
    if (device == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    pkv_status status = device->backend->check_stream(device, stream);

    return status != PKV_OK ? status : device->backend->synchronize(device, stream);
}

const char *pkv_device_last_error(const pkv_device *device) {
    return device == NULL ? "" : device->error.text;
}

pkv_status pkv_device_get_info(const pkv_device *device, pkv_device_info *out) {
    pkv_device_info info = {0};

    if (device == NULL || out == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    device->backend->get_info(device, &info);
    return pkvi_write_struct(out, &info, sizeof info, offsetof(pkv_device_info, is_cpu));
}

pkv_status pkv_fence_create(pkv_device *device, pkv_fence *out) {
    if (device == NULL || out == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    return device->backend->fence_create(device, out);
}

/* What the three calls on a fence have in common. */
static pkv_status check_fence(pkv_device *device, pkv_fence fence, pkv_stream stream) {
    if (device == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    if (fence == NULL) {
        return PKVI_DEVICE_FAIL(device, PKV_ERROR_INVALID_ARGUMENT, "fence is NULL");
    }
    return device->backend->check_stream(device, stream);
}

pkv_status pkv_fence_record(pkv_device *device, pkv_fence fence, pkv_stream stream) {
    pkv_status status = check_fence(device, fence, stream);

    return status != PKV_OK ? status : device->backend->fence_record(device, fence, stream);
}

pkv_status pkv_fence_wait(pkv_device *device, pkv_fence fence, pkv_stream stream) {
    pkv_status status = check_fence(device, fence, stream);

    return status != PKV_OK ? status : device->backend->fence_wait(device, fence, stream);
}

pkv_status pkv_fence_query(pkv_device *device, pkv_fence fence) {
    pkv_status status = check_fence(device, fence, NULL);

    return status != PKV_OK ? status : device->backend->fence_query(device, fence);
}

void pkv_fence_destroy(pkv_device *device, pkv_fence fence) {
    if (device != NULL && fence != NULL) {
        device->backend->fence_destroy(device, fence);
    }
}
