/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The two replays of serve_curve.h.
 *
 * The one idea: keys are computed once, from tokens that are a function of the block id, by the
 * library's own chain; every size then replays the same keys. */
#include "serve_curve.h"

#include "random.h"
#include "report.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Hit rates in percent of an independent simulation: in-order replay of all requests, an LRU list
 * of ids, the last of a prompt included. */
typedef struct reference_point {
    const char *trace;
    int32_t num_requests, num_blocks;
    double percent;
} reference_point;

static const reference_point references[] = {
    {"conversation_trace.jsonl", 12031, 1000, 4.5},
    {"conversation_trace.jsonl", 12031, 5000, 11.2},
    {"conversation_trace.jsonl", 12031, 10000, 21.2},
    {"conversation_trace.jsonl", 12031, 20000, 28.8},
    {"conversation_trace.jsonl", 12031, 50000, 35.5},
    {"conversation_trace.jsonl", 12031, 100000, 36.4},
    {"conversation_trace.jsonl", 12031, 0, 36.6},
    {"synthetic_trace.jsonl", 3993, 1000, 8.4},
    {"synthetic_trace.jsonl", 3993, 5000, 27.9},
    {"synthetic_trace.jsonl", 3993, 10000, 42.4},
    {"synthetic_trace.jsonl", 3993, 20000, 57.2},
    {"synthetic_trace.jsonl", 3993, 50000, 64.0},
    {"synthetic_trace.jsonl", 3993, 100000, 64.0},
    {"synthetic_trace.jsonl", 3993, 0, 64.0},
};

typedef struct curve {
    const workload_list *trace;
    int32_t num_requests;
    int32_t block_size;
    int64_t num_ids;        /* of these requests */
    int32_t max_ids;        /* of one request */
    pkv_block_key *keys;    /* [num_ids] in the order of the requests */
    int32_t *token_ids;     /* [max_ids * block_size] */
    pkv_block_id *table;    /* [max_ids] */
    pkv_block_id *reversed; /* [max_ids] */
    char *error;
} curve;

static bool fail(curve *c, const char *what, pkv_status status) {
    snprintf(c->error, SERVE_MAX_ERROR, "hit curve: %s: %s", what, pkv_status_name(status));
    return false;
}

static double find_reference(const curve *c, int32_t num_blocks) {
    for (size_t i = 0; i < sizeof references / sizeof *references; i++) {
        const reference_point *reference = &references[i];

        if (strcmp(reference->trace, c->trace->name) == 0 &&
            reference->num_requests == c->num_requests && reference->num_blocks == num_blocks) {
            return reference->percent;
        }
    }
    return NAN;
}

/* ---- keys ------------------------------------------------------------------------------------ */

static void fill_block_tokens(int64_t id, int32_t block_size, int32_t *token_ids) {
    uint64_t owner = random_mix((uint64_t)id);

    for (int32_t i = 0; i < block_size; i++) {
        token_ids[i] = (int32_t)(random_mix(owner + (uint64_t)i) >> 40);
    }
}

static bool compute_keys(curve *c) {
    pkv_key_args args = {.struct_size = sizeof args, .block_size = c->block_size};
    int64_t num_done = 0;

    for (int32_t i = 0; i < c->num_requests; i++) {
        const workload_item *item = &c->trace->items[i];

        for (int32_t k = 0; k < item->num_hashes; k++) {
            fill_block_tokens(c->trace->hash_ids[item->first_hash + k], c->block_size,
                              &c->token_ids[(size_t)k * (size_t)c->block_size]);
        }
        pkv_status status =
            pkv_compute_block_keys(&args, NULL, 0, c->token_ids, item->num_hashes * c->block_size,
                                   &c->keys[num_done], NULL);
        if (status != PKV_OK) {
            return fail(c, "pkv_compute_block_keys", status);
        }
        num_done += item->num_hashes;
    }
    return true;
}

/* ---- through the pool ------------------------------------------------------------------------ */

/* One request comes, is served and goes. Returns PKV_NO_FREE_BLOCKS when it is larger than the
 * pool. */
static pkv_status pass_request(
    curve *c, pkv_pool *pool, const pkv_block_key *keys, int32_t num_blocks, int32_t *num_hits) {
    pkv_status status = pkv_pool_match(pool, 0, keys, NULL, num_blocks, c->table, num_hits);

    if (status != PKV_OK) {
        return status;
    }
    int32_t num_new = num_blocks - *num_hits;
    pkv_block_id *new_blocks = &c->table[*num_hits];
    status = pkv_pool_acquire(pool, 0, c->table, keys, *num_hits, num_new, new_blocks);
    if (status != PKV_OK) {
        return status;
    }
    status = pkv_pool_cache_blocks(pool, 0, new_blocks, &keys[*num_hits], NULL, num_new);
    if (status != PKV_OK) {
        return status;
    }
    for (int32_t i = 0; i < num_blocks; i++) {
        c->reversed[i] = c->table[num_blocks - 1 - i];
    }
    return pkv_pool_free_blocks(pool, c->reversed, num_blocks);
}

static bool replay_pool(curve *c, int32_t num_usable, serve_curve_point *point) {
    pkv_pool_config config = {
        .struct_size = sizeof config, .num_blocks = num_usable + 1, .block_size = c->block_size};
    pkv_pool *pool = NULL;
    pkv_status status = pkv_pool_create(&config, &pool);
    int64_t num_done = 0;

    for (int32_t i = 0; i < c->num_requests && status == PKV_OK; i++) {
        int32_t num_blocks = c->trace->items[i].num_hashes;
        int32_t num_hits = 0;

        if (num_blocks > num_usable) {
            point->num_too_long += 1;
        } else {
            status = pass_request(c, pool, &c->keys[num_done], num_blocks, &num_hits);
            point->num_ids += num_blocks;
            point->num_pool_hits += num_hits;
        }
        num_done += num_blocks;
    }
    pkv_pool_destroy(pool);
    return status == PKV_OK || fail(c, "replay through the pool", status);
}

/* ---- through the manager --------------------------------------------------------------------- */

static pkv_status pass_prompt(curve *c,
                              pkv_manager *manager,
                              int32_t num_tokens,
                              int32_t *num_hit_tokens) {
    pkv_request_args args = {.struct_size = sizeof args,
                             .token_ids = c->token_ids,
                             .num_tokens = num_tokens,
                             .max_num_tokens = num_tokens};
    pkv_request request;
    pkv_status status = pkv_request_open(manager, &args, &request);

    if (status == PKV_OK) {
        status = pkv_get_computed_blocks(manager, request, num_hit_tokens);
    }
    if (status == PKV_OK) {
        pkv_slots_args slots = {.struct_size = sizeof slots,
                                .num_new_computed_tokens = *num_hit_tokens,
                                .num_new_tokens = num_tokens - *num_hit_tokens};
        status = pkv_allocate_slots(manager, request, &slots, NULL);
    }
    return status == PKV_OK ? pkv_request_close(manager, request) : status;
}

static bool replay_manager(curve *c, int32_t num_usable, serve_curve_point *point) {
    int32_t max_tokens = c->max_ids * c->block_size;
    pkv_manager_config config = {.struct_size = sizeof config,
                                 .num_blocks = num_usable + 1,
                                 .block_size = c->block_size,
                                 .max_model_len = max_tokens,
                                 .max_rows = 1,
                                 .max_requests = 1,
                                 .max_total_tokens = max_tokens};
    pkv_manager *manager = NULL;
    pkv_status status = pkv_manager_create(&config, &manager);

    for (int32_t i = 0; i < c->num_requests && status == PKV_OK; i++) {
        const workload_item *item = &c->trace->items[i];
        int32_t num_hit_tokens = 0;

        if (item->num_hashes <= num_usable) {
            for (int32_t k = 0; k < item->num_hashes; k++) {
                fill_block_tokens(c->trace->hash_ids[item->first_hash + k], c->block_size,
                                  &c->token_ids[(size_t)k * (size_t)c->block_size]);
            }
            status = pass_prompt(c, manager, item->num_input_tokens, &num_hit_tokens);
            point->num_full_blocks += item->num_input_tokens / c->block_size;
            point->num_manager_hits += num_hit_tokens / c->block_size;
        }
    }
    pkv_manager_destroy(manager);
    return status == PKV_OK || fail(c, "replay through the manager", status);
}

/* ---- the curve ------------------------------------------------------------------------------- */

static bool begin_curve(curve *c) {
    for (int32_t i = 0; i < c->num_requests; i++) {
        const workload_item *item = &c->trace->items[i];

        if (item->num_hashes != (item->num_input_tokens + c->block_size - 1) / c->block_size) {
            snprintf(c->error, SERVE_MAX_ERROR,
                     "hit curve: request %" PRId32 " has %" PRId32 " ids for %" PRId32 " tokens", i,
                     item->num_hashes, item->num_input_tokens);
            return false;
        }
        c->num_ids += item->num_hashes;
        c->max_ids = item->num_hashes > c->max_ids ? item->num_hashes : c->max_ids;
    }
    c->keys = calloc((size_t)c->num_ids, sizeof *c->keys);
    c->token_ids = calloc((size_t)c->max_ids * (size_t)c->block_size, sizeof *c->token_ids);
    c->table = calloc((size_t)c->max_ids, sizeof *c->table);
    c->reversed = calloc((size_t)c->max_ids, sizeof *c->reversed);
    if (c->keys == NULL || c->token_ids == NULL || c->table == NULL || c->reversed == NULL) {
        return fail(c, "arrays", PKV_ERROR_OUT_OF_MEMORY);
    }
    return compute_keys(c);
}

static void end_curve(curve *c) {
    free(c->keys);
    free(c->token_ids);
    free(c->table);
    free(c->reversed);
}

static bool measure_point(curve *c, int32_t num_blocks, serve_curve_point *point) {
    int32_t num_usable = num_blocks > 0 ? num_blocks : (int32_t)c->num_ids;

    *point = (serve_curve_point){.num_blocks = num_blocks,
                                 .reference_percent = find_reference(c, num_blocks)};
    int64_t begin_ns = bench_now_ns();
    if (!replay_pool(c, num_usable, point)) {
        return false;
    }
    int64_t middle_ns = bench_now_ns();
    if (!replay_manager(c, num_usable, point)) {
        return false;
    }
    point->pool_seconds = (double)(middle_ns - begin_ns) / 1e9;
    point->manager_seconds = (double)(bench_now_ns() - middle_ns) / 1e9;
    return true;
}

bool serve_curve_measure(const workload_list *trace,
                         int32_t num_requests,
                         const int32_t *sizes,
                         int32_t num_sizes,
                         serve_curve_point *points,
                         char *error) {
    curve c = {.trace = trace,
               .num_requests = num_requests,
               .block_size = trace->hash_block_size,
               .error = error};
    bench_progress progress;

    if (trace->hash_block_size == 0) {
        snprintf(error, SERVE_MAX_ERROR, "hit curve: %s has no block ids", trace->name);
        return false;
    }
    bench_progress_begin(&progress);
    bool is_done = begin_curve(&c);
    for (int32_t i = 0; i < num_sizes && is_done; i++) {
        bench_progress_update(&progress, "hit curve", (double)i / num_sizes);
        is_done = measure_point(&c, sizes[i], &points[i]);
    }
    bench_progress_end(&progress);
    end_curve(&c);
    return is_done;
}

static double get_percent(int64_t part, int64_t whole) {
    return whole == 0 ? 0.0 : 100.0 * (double)part / (double)whole;
}

double serve_curve_get_pool_percent(const serve_curve_point *point) {
    return get_percent(point->num_pool_hits, point->num_ids);
}

double serve_curve_get_manager_percent(const serve_curve_point *point) {
    return get_percent(point->num_manager_hits, point->num_ids);
}

bool serve_curve_agrees(const serve_curve_point *point) {
    return isnan(point->reference_percent) ||
           fabs(serve_curve_get_pool_percent(point) - point->reference_percent) <= 0.0501;
}
