/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Readers of the bytes that a kernel reads, without its arithmetic; see attention_read.h. */
#include "attention_read.h"

#include <pthread.h>

/* Keys of one work item of the plan: the readers go by it. */
#define CHUNK PKV_PLAN_DEFAULT_CHUNK_SIZE

/* Or all words of a piece; what a reader does with a byte is to have it loaded. */
static uint64_t read_piece(const unsigned char *piece, size_t size) {
    const uint64_t *words = (const uint64_t *)(const void *)piece;
    uint64_t a = 0, b = 0, c = 0, d = 0;

    for (size_t i = 0; i + 8 <= size / 8; i += 8) {
        a |= words[i] | words[i + 1];
        b |= words[i + 2] | words[i + 3];
        c |= words[i + 4] | words[i + 5];
        d |= words[i + 6] | words[i + 7];
    }
    return a | b | c | d;
}

static uint64_t read_sequential(const attention_setup *setup, int32_t part, int32_t num_parts) {
    size_t share = setup->kv_size / (size_t)num_parts / 64 * 64;

    return read_piece(setup->pool + share * (size_t)part, share);
}

uint64_t attention_read_traversal(const attention_setup *setup,
                                  attention_table table,
                                  int32_t part,
                                  int32_t num_parts) {
    const attention_setup_config *c = &setup->config;
    int which = table == TABLE_CONTIGUOUS ? 0 : 1;
    const pkv_tensor *views[] = {&setup->k_cache[which], &setup->v_cache[which]};
    int64_t element_size = (int64_t)pkv_dtype_size(c->kv_dtype);
    size_t slab = (size_t)(c->block_size * c->head_size * element_size);
    int32_t step = CHUNK / c->block_size > 0 ? CHUNK / c->block_size : 1;
    uint64_t result = 0;
    int64_t unit = 0;

    for (int32_t request = 0; request < c->num_requests; request++) {
        const pkv_block_id *row = setup->tables[table] + request * setup->num_columns;

        for (int32_t first = 0; first < setup->num_columns; first += step) {
            for (int32_t head = 0; head < c->num_kv_heads; head++, unit++) {
                if (unit % num_parts != part) {
                    continue;
                }
                for (int32_t i = first; i < first + step && i < setup->num_columns; i++) {
                    for (int half = 0; half < 2; half++) {
                        const pkv_tensor *view = views[half];
                        int64_t offset = row[i] * view->stride[0] + head * view->stride[1];
                        int32_t far = i + 1 < setup->num_columns ? i + 1 : i;
                        int64_t next = row[far] * view->stride[0] + head * view->stride[1];

                        /* The next slab comes in while this one is read, as in the kernel. */
                        for (size_t x = 0; x < slab; x += 64) {
                            __builtin_prefetch((unsigned char *)view->data + next * element_size +
                                               x);
                            result |= read_piece(
                                (unsigned char *)view->data + offset * element_size + x, 64);
                        }
                    }
                }
            }
        }
    }
    return result;
}

struct reader {
    const attention_setup *setup;
    attention_table table;
    bool is_sequential;
    int32_t part, num_parts;
    pthread_t thread;
    uint64_t result;
};

static void *run_reader(void *context) {
    struct reader *reader = context;

    reader->result = reader->is_sequential
                         ? read_sequential(reader->setup, reader->part, reader->num_parts)
                         : attention_read_traversal(reader->setup, reader->table, reader->part,
                                                    reader->num_parts);
    return NULL;
}

/* Keeps the compiler from dropping what is read. */
static volatile uint64_t sink;

static bool read_all(struct reader *readers, int32_t num_threads) {
    int32_t num_started = 1;

    while (num_started < num_threads && pthread_create(&readers[num_started].thread, NULL,
                                                       run_reader, &readers[num_started]) == 0) {
        num_started++;
    }
    (void)run_reader(&readers[0]);
    for (int32_t i = 0; i < num_started; i++) {
        if (i > 0) {
            (void)pthread_join(readers[i].thread, NULL);
        }
        sink |= readers[i].result;
    }
    return num_started == num_threads;
}

static bool read_by(const struct reader *kind, int32_t num_threads) {
    struct reader readers[PKV_MAX_CPU_THREADS];

    for (int32_t i = 0; i < num_threads; i++) {
        readers[i] = *kind;
        readers[i].part = i;
        readers[i].num_parts = num_threads;
    }
    return read_all(readers, num_threads);
}

bool attention_read(const attention_setup *setup, int32_t num_threads) {
    return read_by(&(struct reader){.setup = setup, .is_sequential = true}, num_threads);
}

bool attention_walk(const attention_setup *setup, attention_table table, int32_t num_threads) {
    return read_by(&(struct reader){.setup = setup, .table = table}, num_threads);
}
