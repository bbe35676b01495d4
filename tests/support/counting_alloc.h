/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* An allocator for configurations that counts, refuses on demand, and notices misuse: a release of
 * what was never allocated, with another size, or after a write past the end. */
#ifndef PKV_TESTS_SUPPORT_COUNTING_ALLOC_H
#define PKV_TESTS_SUPPORT_COUNTING_ALLOC_H

#include <pagedkv/base.h>

#define COUNTING_ALLOC_MAX_LIVE 16

typedef struct counting_alloc {
    int64_t num_calls;     /* of allocate, refused ones included */
    int64_t num_allocated; /* that succeeded */
    int64_t num_released;
    int64_t refuse_from;  /* the n-th call from 1 and later ones are refused; 0 = never */
    int64_t refuse_count; /* how many from there; 0 = all */
    bool leaves_garbage; /* do not fill new memory: a memory checker sees what is not initialised */
    const char *misuse;  /* NULL, or what was done wrong */
    size_t live_size;
    struct {
        void *memory;
        size_t size;
    } live[COUNTING_ALLOC_MAX_LIVE];
} counting_alloc;

/* The hooks for a configuration. `counter` must outlive what is allocated with them. */
pkv_allocator counting_alloc_hooks(counting_alloc *counter);

/* Say what leaked or was misused; NULL when nothing. */
const char *counting_alloc_complaint(const counting_alloc *counter);

#endif
