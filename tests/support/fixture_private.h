/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* What the two halves of the fixture know of each other. Tests include fixture.h only. */
#ifndef PKV_TESTS_SUPPORT_FIXTURE_PRIVATE_H
#define PKV_TESTS_SUPPORT_FIXTURE_PRIVATE_H

#include "support/fixture.h"

#define FIXTURE_MAX_OBJECTS 64

typedef struct fixture_objects {
    struct {
        pkv_manager *manager;
        int32_t num_groups;
    } managers[FIXTURE_MAX_OBJECTS];
    int32_t num_managers;
    pkv_pool *pools[FIXTURE_MAX_OBJECTS];
    int32_t num_pools;
    int32_t num_allocations;
    size_t live_size; /* bytes allocated and not released */
} fixture_objects;

/* Number of KV-cache groups of a manager that the running test made. */
int32_t fixture_num_groups(const pkv_manager *manager);

#endif
