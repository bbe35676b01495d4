/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Assertions about our own code. Not for input: public functions answer bad input with a status.
 *
 * PKV_CHECK 0: nothing is checked. 1: PKV_ASSERT, O(1) each. 2: also PKV_ASSERT_SLOW, which may
 * walk a whole object. */
#ifndef PKVI_BASE_CHECK_H
#define PKVI_BASE_CHECK_H

#ifndef PKV_CHECK
#define PKV_CHECK 0
#endif

#if PKV_CHECK >= 1
#include <stdlib.h>
#define PKV_ASSERT(condition) ((condition) ? (void)0 : abort())
#else
#define PKV_ASSERT(condition) ((void)0)
#endif

#if PKV_CHECK >= 2
#define PKV_ASSERT_SLOW(condition) PKV_ASSERT(condition)
#else
#define PKV_ASSERT_SLOW(condition) ((void)0)
#endif

#if defined(__GNUC__)
#define PKVI_PREFETCH(address) __builtin_prefetch(address)
#define PKVI_LIKELY(condition) __builtin_expect(!!(condition), 1)
#define PKVI_UNLIKELY(condition) __builtin_expect(!!(condition), 0)
#define PKVI_PRINTF(text, first) __attribute__((format(printf, text, first)))
#define PKVI_ALWAYS_INLINE inline __attribute__((always_inline))
#else
#define PKVI_PREFETCH(address) ((void)(address))
#define PKVI_LIKELY(condition) (condition)
#define PKVI_UNLIKELY(condition) (condition)
#define PKVI_PRINTF(text, first)
#define PKVI_ALWAYS_INLINE inline
#endif

#endif
