/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* A loop over items on a fixed set of threads: one job at a time, items dealt by a counter.
 *
 * The one idea: a job is published under the mutex and ended under the mutex; in between each
 * thread only touches the item counter. Which thread runs an item never matters to a result. */
#include "kernels/cpu/thread_pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

/* A job is open while num_running > 0 or the caller still deals items. */
struct pkvi_thread_pool {
    pthread_mutex_t mutex;
    pthread_cond_t job_posted, job_done;
    pkv_parallel_body body;
    void *body_context;
    atomic_int_least32_t next_item;
    int32_t num_items;
    uint64_t generation; /* of the job; a thread takes part once in each */
    int32_t num_running; /* threads that have not yet finished this generation */
    int32_t num_threads; /* started ones, the caller not counted */
    bool is_stopping;
    struct worker {
        struct pkvi_thread_pool *pool;
        pthread_t thread;
        int32_t index;
    } workers[];
};

size_t pkvi_thread_pool_size(int32_t num_threads) {
    return offsetof(struct pkvi_thread_pool, workers) + (size_t)num_threads * sizeof(struct worker);
}

/* Take items until none is left. */
static void work(struct pkvi_thread_pool *pool, int32_t worker) {
    for (;;) {
        int32_t item = atomic_fetch_add_explicit(&pool->next_item, 1, memory_order_relaxed);

        if (item >= pool->num_items) {
            return;
        }
        pool->body(pool->body_context, item, worker);
    }
}

static void *run_worker(void *context) {
    struct worker *self = context;
    struct pkvi_thread_pool *pool = self->pool;
    uint64_t seen = 0;

    (void)pthread_mutex_lock(&pool->mutex);
    for (;;) {
        while (!pool->is_stopping && pool->generation == seen) {
            (void)pthread_cond_wait(&pool->job_posted, &pool->mutex);
        }
        if (pool->is_stopping) {
            break;
        }
        seen = pool->generation;
        (void)pthread_mutex_unlock(&pool->mutex);
        work(pool, self->index);
        (void)pthread_mutex_lock(&pool->mutex);
        pool->num_running--;
        if (pool->num_running == 0) {
            (void)pthread_cond_signal(&pool->job_done);
        }
    }
    (void)pthread_mutex_unlock(&pool->mutex);
    return NULL;
}

struct pkvi_thread_pool *pkvi_thread_pool_start(void *memory, int32_t num_threads) {
    struct pkvi_thread_pool *pool = memory;

    pool->body = NULL;
    pool->body_context = NULL;
    atomic_init(&pool->next_item, 0);
    pool->num_items = 0;
    pool->generation = 0;
    pool->num_running = 0;
    pool->num_threads = 0;
    pool->is_stopping = false;
    if (pthread_mutex_init(&pool->mutex, NULL) != 0) {
        return NULL;
    }
    if (pthread_cond_init(&pool->job_posted, NULL) != 0) {
        (void)pthread_mutex_destroy(&pool->mutex);
        return NULL;
    }
    if (pthread_cond_init(&pool->job_done, NULL) != 0) {
        (void)pthread_cond_destroy(&pool->job_posted);
        (void)pthread_mutex_destroy(&pool->mutex);
        return NULL;
    }
    for (int32_t i = 0; i < num_threads - 1; i++) {
        struct worker *worker = &pool->workers[i];

        worker->pool = pool;
        worker->index = i + 1;
        if (pthread_create(&worker->thread, NULL, run_worker, worker) != 0) {
            pkvi_thread_pool_stop(pool);
            return NULL;
        }
        pool->num_threads++;
    }
    return pool;
}

void pkvi_thread_pool_stop(struct pkvi_thread_pool *pool) {
    (void)pthread_mutex_lock(&pool->mutex);
    pool->is_stopping = true;
    (void)pthread_cond_broadcast(&pool->job_posted);
    (void)pthread_mutex_unlock(&pool->mutex);
    for (int32_t i = 0; i < pool->num_threads; i++) {
        (void)pthread_join(pool->workers[i].thread, NULL);
    }
    (void)pthread_cond_destroy(&pool->job_done);
    (void)pthread_cond_destroy(&pool->job_posted);
    (void)pthread_mutex_destroy(&pool->mutex);
}

void pkvi_thread_pool_run(struct pkvi_thread_pool *pool,
                          int32_t num_items,
                          pkv_parallel_body body,
                          void *body_context) {
    if (pool->num_threads == 0 || num_items <= 1) {
        for (int32_t item = 0; item < num_items; item++) {
            body(body_context, item, 0);
        }
        return;
    }
    (void)pthread_mutex_lock(&pool->mutex);
    pool->body = body;
    pool->body_context = body_context;
    pool->num_items = num_items;
    atomic_store_explicit(&pool->next_item, 0, memory_order_relaxed);
    pool->num_running = pool->num_threads;
    pool->generation++;
    (void)pthread_cond_broadcast(&pool->job_posted);
    (void)pthread_mutex_unlock(&pool->mutex);

    work(pool, 0);

    (void)pthread_mutex_lock(&pool->mutex);
    while (pool->num_running > 0) {
        (void)pthread_cond_wait(&pool->job_done, &pool->mutex);
    }
    (void)pthread_mutex_unlock(&pool->mutex);
}
