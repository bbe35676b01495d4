/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The interface of the address sanitizer, or nothing in a build without it; PKVI_ASAN says which.
 *
 * The one idea: what is asked of it is written once, and costs nothing where it is not there. */
#ifndef PKV_TESTS_SIMT_SANITIZER_H
#define PKV_TESTS_SIMT_SANITIZER_H

#if defined(__SANITIZE_ADDRESS__)
#define PKVI_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define PKVI_ASAN 1
#endif
#endif

#ifdef PKVI_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#endif

#endif
