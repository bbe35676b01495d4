/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The table of attention cases that every device must pass. */
#ifndef TESTS_SUPPORT_ATTENTION_TABLE_H
#define TESTS_SUPPORT_ATTENTION_TABLE_H

#include "support/attention_case.h"

/* All cases; they live as long as the program. */
const struct attention_case *attention_table(int *count);

#endif
