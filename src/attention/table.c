/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The two operations that keep a block table and slots on the device: checks and dispatch. */
#include "device/backend.h"

/* Refuse with INVALID_ARGUMENT. */
#define REFUSE(device, ...) PKVI_DEVICE_FAIL(device, PKV_ERROR_INVALID_ARGUMENT, __VA_ARGS__)

pkv_status pkv_update_block_table(pkv_device *device,
                                  const pkv_table_args *args,
                                  pkv_stream stream) {
    pkv_table_args known;

    if (device == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    pkv_status status =
        pkvi_read_struct(&known, sizeof known, offsetof(pkv_table_args, num_updates), args);
    if (status != PKV_OK) {
        return PKVI_DEVICE_FAIL(device, status,
                                "args: NULL, a wrong struct_size, or unknown members");
    }
    status = device->backend->check_stream(device, stream);
    if (status != PKV_OK) {
        return status;
    }
    if (known.num_updates < 0 || known.num_rows < 0 || known.num_columns < 0 ||
        known.block_table_stride < known.num_columns) {
        return REFUSE(device, "num_updates, num_rows and num_columns must not be negative, "
                              "block_table_stride not below num_columns");
    }
    if (known.num_updates > 0 && (known.block_table == NULL || known.updates == NULL)) {
        return REFUSE(device, "block_table or updates is NULL");
    }
    for (int32_t i = 0; i < known.num_updates; i++) {
        pkv_table_update update = known.updates[i];

        if (update.row < 0 || update.row >= known.num_rows || update.column < 0 ||
            update.column >= known.num_columns || update.block_id < 0) {
            return REFUSE(device,
                          "updates[%d]: row %d, column %d, block %d is not in a %d x %d table",
                          (int)i, (int)update.row, (int)update.column, (int)update.block_id,
                          (int)known.num_rows, (int)known.num_columns);
        }
    }
    return known.num_updates == 0 ? PKV_OK
                                  : device->backend->update_block_table(device, &known, stream);
}

pkv_status pkv_compute_slot_mapping(pkv_device *device,
                                    const pkv_slot_mapping_args *args,
                                    pkv_stream stream) {
    pkv_slot_mapping_args known;

    if (device == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    pkv_status status =
        pkvi_read_struct(&known, sizeof known, offsetof(pkv_slot_mapping_args, slot_mapping), args);
    if (status != PKV_OK) {
        return PKVI_DEVICE_FAIL(device, status,
                                "args: NULL, a wrong struct_size, or unknown members");
    }
    status = device->backend->check_stream(device, stream);
    if (status != PKV_OK) {
        return status;
    }
    if (known.num_requests < 0 || known.num_tokens < 0 || known.num_columns < 0 ||
        known.block_table_stride < 0 || known.block_size < 1 ||
        known.block_size > PKV_MAX_BLOCK_SIZE) {
        return REFUSE(device, "block_size is %d, wanted 1 .. %d; counts must not be negative",
                      (int)known.block_size, PKV_MAX_BLOCK_SIZE);
    }
    if (known.num_tokens == 0) {
        return PKV_OK;
    }
    if (known.slot_mapping == NULL || known.query_start_loc == NULL ||
        (known.num_requests > 0 && (known.block_table == NULL || known.rows == NULL ||
                                    (known.seq_lens == NULL && known.positions == NULL)))) {
        return REFUSE(device, "an array of the slot mapping is NULL");
    }
    return device->backend->compute_slot_mapping(device, &known, stream);
}
