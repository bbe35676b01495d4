/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* An attention case may touch what is in its sequences and nothing else of the pool: while it runs,
 * kernels are kept away from all other blocks, from the slots behind the last token, from the gaps
 * that a layout has, and from the scales of all of them.
 *
 * The one idea: linked in front of attention_run_execute (--wrap), so that every suite has it in
 * the builds that watch accesses and knows nothing of it. What is owned is read from the table and
 * the lengths that the device gets, whatever a test has changed in them. */
#include <stdlib.h>

#include "simt/simt_control.h"
#include "support/attention_case.h"

pkv_status __real_attention_run_execute(struct attention_run *run, pkv_device *device);
pkv_status __wrap_attention_run_execute(struct attention_run *run, pkv_device *device);

/* Bytes [start, end). */
struct owned {
    const unsigned char *start, *end;
};

struct owned_list {
    struct owned *items;
    size_t count, capacity;
};

static void add_owned(struct owned_list *list, const void *start, size_t size) {
    if (list->count == list->capacity) {
        list->capacity = list->capacity == 0 ? 256 : 2 * list->capacity;
        list->items = realloc(list->items, list->capacity * sizeof *list->items);
        if (list->items == NULL) {
            abort();
        }
    }
    list->items[list->count++] = (struct owned){start, (const unsigned char *)start + size};
}

/* The rows of `view`, [block][head][slot] and perhaps [column], that hold a token of a sequence. */
static void add_rows(struct owned_list *list,
                     const struct attention_run *run,
                     const pkv_tensor *view) {
    const int32_t *table = run->table.host, *lens = run->lens.host;
    size_t size = pkv_dtype_size(view->dtype);
    size_t row_size = size * (size_t)(view->rank == 4 ? view->shape[3] : 1);

    for (int32_t i = 0; i < run->c.num_requests; i++) {
        for (int64_t position = 0; position < lens[i]; position++) {
            int64_t block =
                table[(int64_t)run->rows[i] * run->num_columns + position / run->c.block_size];

            /* Columns behind a window may hold anything. */
            for (int64_t head = 0; block >= 0 && block < view->shape[0] && head < view->shape[1];
                 head++) {
                int64_t element = block * view->stride[0] + head * view->stride[1] +
                                  position % run->c.block_size * view->stride[2];

                add_owned(list, (const unsigned char *)view->data + element * (int64_t)size,
                          row_size);
            }
        }
    }
}

static int compare_owned(const void *a, const void *b) {
    const struct owned *first = a, *second = b;

    return first->start < second->start ? -1 : first->start > second->start ? 1 : 0;
}

/* Forbid what is in the buffer and not in the list, which is empty afterwards. */
static void forbid_others(struct owned_list *list, const struct attention_buffer *buffer) {
    const unsigned char *at = buffer->device, *end = at + buffer->size;

    if (list->count > 0) {
        qsort(list->items, list->count, sizeof *list->items, compare_owned);
    }
    for (size_t i = 0; i < list->count; i++) {
        if (list->items[i].start > at) {
            simt_forbid(at, (size_t)(list->items[i].start - at));
        }
        at = list->items[i].end > at ? list->items[i].end : at;
    }
    if (at < end) {
        simt_forbid(at, (size_t)(end - at));
    }
    list->count = 0;
}

/* A test may point a run at the pool and the table of another one. */
static bool reads_its_own(const struct attention_run *run) {
    const unsigned char *keys = run->args.k_cache.data, *pool = run->pool.device;

    return run->args.block_table == run->table.device && keys >= pool &&
           keys < pool + run->pool.size;
}

static void forbid_foreign(const struct attention_run *run) {
    struct owned_list list = {NULL, 0, 0};

    add_rows(&list, run, &run->args.k_cache);
    add_rows(&list, run, &run->args.v_cache);
    if (run->c.layout == CASE_SCALES_INSIDE) {
        add_rows(&list, run, &run->args.k_scale);
        add_rows(&list, run, &run->args.v_scale);
    }
    forbid_others(&list, &run->pool);
    if (run->c.scales == CASE_SCALE_TOKEN && run->c.layout != CASE_SCALES_INSIDE) {
        add_rows(&list, run, &run->args.k_scale);
        forbid_others(&list, &run->k_scale);
        add_rows(&list, run, &run->args.v_scale);
        forbid_others(&list, &run->v_scale);
    }
    free(list.items);
}

pkv_status __wrap_attention_run_execute(struct attention_run *run, pkv_device *device) {
    if (reads_its_own(run)) {
        forbid_foreign(run);
    }
    pkv_status status = __real_attention_run_execute(run, device);
    simt_allow_all();
    return status;
}
