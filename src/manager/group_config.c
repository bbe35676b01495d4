/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Reading one group's configuration; see group_config.h. */
#include "manager/group_config.h"

#include <string.h>

static const char *group_problem(const pkv_group_config *group) {
    if (group->block_size < 1) {
        return "a group's block_size is negative";
    }
    if (group->kind == PKV_GROUP_FULL_ATTENTION) {
        return group->window != 0 || group->retention_interval != 0
                   ? "a full-attention group has no window and no retention interval"
                   : NULL;
    }
    if (group->window < 1) {
        return "a windowed group needs a window of at least one token";
    }
    if (group->kind == PKV_GROUP_CHUNKED_LOCAL) {
        return group->eagle || group->retention_interval != 0
                   ? "a chunked group has no eagle and no retention interval"
                   : NULL;
    }
    return group->retention_interval < PKV_RETENTION_TAIL_ONLY
               ? "retention_interval must be -1, 0 or positive"
               : NULL;
}

pkv_status pkvi_group_config_read(const pkv_group_config *groups,
                                  int32_t index,
                                  int32_t block_size,
                                  pkv_group_config *out,
                                  const char **reason) {
    const unsigned char *first = (const unsigned char *)groups;
    uint32_t stride;
    pkv_status status;

    *reason = "";
    if (first == NULL) {
        memset(out, 0, sizeof *out);
        out->block_size = block_size;
        return PKV_OK;
    }
    memcpy(&stride, first, sizeof stride);
    status =
        pkvi_read_struct(out, sizeof *out, sizeof out->struct_size, first + (size_t)index * stride);
    if (status == PKV_OK && out->struct_size != stride) {
        status = PKV_ERROR_INVALID_ARGUMENT;
    }
    if (status != PKV_OK) {
        *reason = "a group's struct_size is not set, differs, or a later field is set";
        return status;
    }
    if (out->kind == PKV_GROUP_RECURRENT) {
        *reason = "recurrent groups are not supported";
        return PKV_ERROR_UNSUPPORTED;
    }
    if (out->kind < PKV_GROUP_FULL_ATTENTION || out->kind > PKV_GROUP_RECURRENT) {
        *reason = "a group's kind is unknown";
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    out->block_size = out->block_size == 0 ? block_size : out->block_size;
    *reason = group_problem(out);
    if (*reason != NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    *reason = "";
    return PKV_OK;
}
