/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* A cache whose blocks lie further apart than 32 bits reach, in bytes and in elements, although
 * little of it is ever touched; and the same content in a small one. */
#ifndef PKV_TESTS_SIMT_FAR_POOL_H
#define PKV_TESTS_SIMT_FAR_POOL_H

#include <stdbool.h>

/* Write, attend, gather, copy and fill in both caches. Returns whether all of them leave the same
 * bytes, and the right ones where the test knows them. */
bool far_pool_is_right(void);

#endif
