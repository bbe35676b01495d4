/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Readers of the bytes that a kernel reads, without its arithmetic; see attention_read.h. */
#include "attention_read.h"

#include <pthread.h>

/* How the decode kernel walks, which is not public: kernels/cpu/few_walk.h, for the heads that go
 * together attend.c and for the window PKVI_CPU_FEW_KEYS in cpu.h. They must follow it. A work
 * item of the plan is a chunk; the addresses of a window of its keys are found at once,
 * TOUCH_WINDOWS before they are used, and the pages of slabs that do not follow the one before are
 * touched then. A step is the window, halved down to MIN_STEP until its keys have STEP_BYTES at
 * most. */
#define CHUNK PKV_PLAN_DEFAULT_CHUNK_SIZE
#define WINDOW 32
#define TOUCH_WINDOWS 3
#define STEP_BYTES 6144
#define MIN_STEP 8
#define LONGEST_PART 4096
#define TOGETHER_BYTES 16384
#define MAX_TOGETHER 4
#define PAGE 4096
#define LINE 64

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

/* Rows of one tensor, in the order of keys. */
struct rows {
    const unsigned char *row[WINDOW];
};

/* One work item: keys [first, end) of a request and head. */
struct walk {
    const attention_setup *setup;
    const pkv_tensor *views[2]; /* keys, values */
    const pkv_block_id *blocks;
    int32_t head, first, end, found;
    int64_t row_size;
    struct rows windows[TOUCH_WINDOWS + 1][2];
};

static void touch_pages(const unsigned char *slab, const unsigned char *expected, int64_t size) {
    for (int64_t x = 0; slab != expected && x < size; x += PAGE) {
        __builtin_prefetch(slab + x, 0, 2);
    }
}

/* Find the rows of the next window. */
static void find_window(struct walk *walk) {
    const attention_setup_config *c = &walk->setup->config;
    int32_t left = walk->end - walk->found, number = (walk->found - walk->first) / WINDOW;
    struct rows *out = walk->windows[number % (TOUCH_WINDOWS + 1)];
    const struct rows *before = walk->windows[(number + TOUCH_WINDOWS) % (TOUCH_WINDOWS + 1)];
    const unsigned char *expected[2] = {NULL, NULL};
    int32_t i = 0;

    left = left < WINDOW ? left : WINDOW;
    for (int half = 0; half < 2 && number > 0; half++) {
        expected[half] = before[half].row[WINDOW - 1] + walk->row_size;
    }
    while (i < left) {
        int32_t column = (walk->found + i) / c->block_size;
        int32_t offset = (walk->found + i) % c->block_size;
        int32_t count = c->block_size - offset < left - i ? c->block_size - offset : left - i;

        for (int half = 0; half < 2; half++) {
            const pkv_tensor *view = walk->views[half];
            const unsigned char *row =
                (const unsigned char *)view->data +
                (walk->blocks[column] * view->stride[0] + walk->head * view->stride[1]) *
                    (int64_t)pkv_dtype_size(c->kv_dtype) +
                offset * walk->row_size;

            touch_pages(row, expected[half], count * walk->row_size);
            for (int32_t n = 0; n < count; n++, row += walk->row_size) {
                out[half].row[i + n] = row;
            }
            expected[half] = row;
        }
        i += count;
    }
    walk->found += left > 0 ? left : 0;
}

static const unsigned char *const *rows_at(const struct walk *walk, int32_t key, int half) {
    int32_t place = key - walk->first;

    return walk->windows[place / WINDOW % (TOUCH_WINDOWS + 1)][half].row + place % WINDOW;
}

/* Read rows line by line; with each a line of the rows that come next is fetched. */
static uint64_t read_rows(const unsigned char *const *rows,
                          int32_t count,
                          const unsigned char *const *next,
                          int32_t num_next,
                          int64_t size) {
    uint64_t result = 0;

    for (int32_t i = 0; i < count; i++) {
        for (int64_t x = 0; x < size; x += LINE) {
            if (i < num_next) {
                __builtin_prefetch(next[i] + x);
            }
            result |= read_piece(rows[i] + x, LINE);
        }
    }
    return result;
}

/* Keys of a step, then its values; then the next head's of the same step; and so step by step. */
static uint64_t read_items(struct walk *walks, int32_t num_walks, int32_t step) {
    int32_t first = walks->first, end = walks->end;
    uint64_t result = 0;

    for (int32_t i = 0; i < num_walks; i++) {
        walks[i].found = first;
        for (int window = 0; window < TOUCH_WINDOWS; window++) {
            find_window(&walks[i]);
        }
    }
    for (int32_t key = first; key < end; key += step) {
        int32_t left = end - key < step ? end - key : step;
        int32_t ahead = end - key - left < step ? end - key - left : step;

        for (int32_t i = 0; i < num_walks && (key - first) % WINDOW == 0; i++) {
            find_window(&walks[i]);
        }
        for (int32_t i = 0; i < num_walks; i++) {
            const struct walk *walk = &walks[i];
            bool is_last = i + 1 == num_walks;

            result |=
                read_rows(rows_at(walk, key, 0), left, rows_at(walk, key, 1), left, walk->row_size);
            result |= read_rows(rows_at(walk, key, 1), left,
                                rows_at(&walks[is_last ? 0 : i + 1], is_last ? key + step : key, 0),
                                is_last ? ahead : left, walk->row_size);
        }
    }
    return result;
}

/* Heads that go through a block together: those whose parts of a block lie one behind the other and
 * are short, as many as fill TOGETHER_BYTES with query rows and accumulators. */
static int32_t count_together(const attention_setup *setup, const pkv_tensor *keys) {
    const attention_setup_config *c = &setup->config;
    int64_t part = (int64_t)c->block_size * c->head_size;
    int64_t num_bytes =
        2 * (int64_t)sizeof(float) * c->head_size * (c->num_query_heads / c->num_kv_heads);
    int64_t count = TOGETHER_BYTES / num_bytes;

    if (keys->stride[1] != part || part * (int64_t)pkv_dtype_size(c->kv_dtype) > LONGEST_PART ||
        count < 1) {
        return 1;
    }
    count = count < MAX_TOGETHER ? count : MAX_TOGETHER;
    return count < c->num_kv_heads ? (int32_t)count : c->num_kv_heads;
}

uint64_t attention_read_traversal(const attention_setup *setup,
                                  attention_table table,
                                  int32_t part,
                                  int32_t num_parts) {
    const attention_setup_config *c = &setup->config;
    int which = table == TABLE_CONTIGUOUS ? 0 : 1;
    int32_t together = count_together(setup, &setup->k_cache[which]);
    const struct walk walk = {.setup = setup,
                              .views = {&setup->k_cache[which], &setup->v_cache[which]},
                              .row_size = c->head_size * (int64_t)pkv_dtype_size(c->kv_dtype)};
    struct walk walks[MAX_TOGETHER];
    int32_t step = WINDOW;
    uint64_t result = 0;
    int64_t unit = 0;

    while (step > MIN_STEP && step * walk.row_size > STEP_BYTES) {
        step /= 2;
    }
    /* The last chunk of each request comes after all others, as in a plan. */
    const int32_t last = (c->seq_len - 1) / CHUNK * CHUNK;
    for (int32_t i = 0; i < 2 * c->num_requests; i++) {
        bool is_last = i >= c->num_requests;
        int32_t end = is_last ? c->seq_len : last;

        for (int32_t first = is_last ? last : 0; first < end; first += CHUNK) {
            for (int32_t head = 0; head < c->num_kv_heads; head += together, unit++) {
                int32_t count = c->num_kv_heads - head;

                count = count < together ? count : together;
                for (int32_t n = 0; n < count; n++) {
                    walks[n] = walk;
                    walks[n].blocks =
                        setup->tables[table] + i % c->num_requests * setup->num_columns;
                    walks[n].head = head + n;
                    walks[n].first = first;
                    walks[n].end = is_last ? end : first + CHUNK;
                }
                result |= unit % num_parts == part ? read_items(walks, count, step) : 0;
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
