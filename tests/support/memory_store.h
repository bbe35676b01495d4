/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* A store in memory for tests of whoever uses one: it takes its time, ends transfers in another
 * order and loses blocks, by seed. It is also the shortest example of the table of functions. */
#ifndef PKV_TESTS_SUPPORT_MEMORY_STORE_H
#define PKV_TESTS_SUPPORT_MEMORY_STORE_H

#include <pagedkv/store.h>

typedef struct memory_store memory_store;

typedef struct memory_store_config {
    pkv_store_shape shape;
    uint64_t seed;
    int32_t most_polls;   /* a transfer takes 1 .. this many polls; 0: one */
    int32_t fail_once_in; /* a block fails with PKV_ERROR_IO once in so many; 0: never */
} memory_store_config;

/* Make a store; its close frees it. */
pkv_store memory_store_create(const memory_store_config *config);

#endif
