/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Reading one element of a caller's array of group configurations: its defaults and its checks.
 * What a manager makes of it stands in config.c. */
#ifndef PKVI_MANAGER_GROUP_CONFIG_H
#define PKVI_MANAGER_GROUP_CONFIG_H

#include <pagedkv/manager.h>

#include "base/memory.h"

/* Read element `index` of `groups`, whose elements all have the struct_size of the first; NULL
 * stands for one full-attention group. A block_size of 0 becomes `block_size`. On a refusal
 * `reason` is a static text. */
pkv_status pkvi_group_config_read(const pkv_group_config *groups,
                                  int32_t index,
                                  int32_t block_size,
                                  pkv_group_config *out,
                                  const char **reason);

#endif
