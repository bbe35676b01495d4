/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The CPU device's own threads. They sleep between operations and take part in nothing else. */
#ifndef PKVI_CPU_THREAD_POOL_H
#define PKVI_CPU_THREAD_POOL_H

#include <pagedkv/device.h>

struct pkvi_thread_pool;

/* Bytes for `num_threads` threads, the calling one included. */
size_t pkvi_thread_pool_size(int32_t num_threads);

/* Start num_threads - 1 threads. Returns NULL when one cannot be started; none stays then. */
struct pkvi_thread_pool *pkvi_thread_pool_start(void *memory, int32_t num_threads);

/* End and join all threads. */
void pkvi_thread_pool_stop(struct pkvi_thread_pool *pool);

/* Call `body` once for each item of [0, num_items); returns when all have returned. The caller
 * works too, as worker 0. */
void pkvi_thread_pool_run(struct pkvi_thread_pool *pool,
                          int32_t num_items,
                          pkv_parallel_body body,
                          void *body_context);

#endif
