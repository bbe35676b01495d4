/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The plan object: the caller's constants and the sizes that follow. How a work list is cut from a
 * batch is in plan.c, how it lies in memory in device/backend.h. */
#ifndef PKVI_ATTENTION_PLAN_H
#define PKVI_ATTENTION_PLAN_H

#include "device/backend.h"

struct pkv_plan {
    pkv_plan_config config; /* every default filled in */
    uint64_t identity;
    int32_t group_size;
    int64_t max_items;        /* of one batch */
    int64_t max_partial_rows; /* of one batch */
    size_t plan_size, workspace_size;
    size_t allocated_size; /* 0: the memory is the caller's */
};

#endif
