/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Goal: the parts of bench_serve that could be wrong without anybody seeing it. Method: the hit
 * curve is compared, block for block, with a naive LRU list over traces made here; the arrivals
 * with a sort. */
#include "bench/random.h"
#include "bench/serve_arrivals.h"
#include "bench/serve_curve.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { block_size = 8, num_requests = 400, max_blocks = 12, num_sizes = 4 };

/* ---- a trace of prefixes --------------------------------------------------------------------- */

/* A block id stands for a block and all before it, so ids form a tree: each request walks down an
 * old branch for a while and then opens new ids. */
typedef struct made_trace {
    workload_list list;
    int64_t parents[num_requests * max_blocks];
    int64_t num_ids_made;
} made_trace;

static int64_t choose_child(made_trace *trace, uint64_t *state, int64_t parent) {
    int64_t children[num_requests * max_blocks];
    int32_t num_children = 0;

    for (int64_t id = 0; id < trace->num_ids_made; id++) {
        if (trace->parents[id] == parent) {
            children[num_children++] = id;
        }
    }
    if (num_children > 0 && random_below(state, 100) < 75) {
        return children[random_below(state, num_children)];
    }
    trace->parents[trace->num_ids_made] = parent;
    trace->num_ids_made += 1;
    return trace->num_ids_made - 1;
}

static made_trace *make_trace(uint64_t seed) {
    made_trace *trace = calloc(1, sizeof(*trace));
    uint64_t state = random_mix(seed);

    assert_non_null(trace);
    trace->list.items = calloc(num_requests, sizeof(*trace->list.items));
    trace->list.hash_ids = calloc((size_t)num_requests * max_blocks, sizeof(int64_t));
    assert_non_null(trace->list.items);
    assert_non_null(trace->list.hash_ids);
    strcpy(trace->list.name, "made");
    trace->list.hash_block_size = block_size;
    trace->list.num_items = num_requests;
    for (int32_t i = 0; i < num_requests; i++) {
        workload_item *item = &trace->list.items[i];
        int64_t parent = -1;

        item->num_hashes = 1 + random_below(&state, max_blocks);
        /* A third of the prompts end with a full block. */
        item->num_input_tokens = item->num_hashes * block_size;
        item->num_input_tokens -= i % 3 == 0 ? 0 : random_below(&state, block_size);
        item->first_hash = trace->list.num_hash_ids;
        for (int32_t k = 0; k < item->num_hashes; k++) {
            parent = choose_child(trace, &state, parent);
            trace->list.hash_ids[trace->list.num_hash_ids++] = parent;
        }
    }
    return trace;
}

static void release_trace(made_trace *trace) {
    free(trace->list.items);
    free(trace->list.hash_ids);
    free(trace);
}

/* ---- the naive list -------------------------------------------------------------------------- */

/* ids[0] is the oldest. */
typedef struct lru_list {
    int64_t ids[num_requests * max_blocks + max_blocks];
    int32_t num_ids;
} lru_list;

static int32_t find_id(const lru_list *lru, int64_t id) {
    for (int32_t i = 0; i < lru->num_ids; i++) {
        if (lru->ids[i] == id) {
            return i;
        }
    }
    return -1;
}

static void make_youngest(lru_list *lru, int64_t id) {
    int32_t place = find_id(lru, id);

    if (place >= 0) {
        memmove(&lru->ids[place], &lru->ids[place + 1],
                (size_t)(lru->num_ids - place - 1) * sizeof(lru->ids[0]));
        lru->num_ids -= 1;
    }
    lru->ids[lru->num_ids++] = id;
}

/* Serve a run of ids; at most `max_hits` of them may be hit. Returns how many were. */
static int32_t serve_ids(
    lru_list *lru, const int64_t *ids, int32_t num_ids, int32_t max_hits, int32_t capacity) {
    int32_t num_hits = 0;

    while (num_hits < max_hits && find_id(lru, ids[num_hits]) >= 0) {
        num_hits += 1;
    }
    for (int32_t i = num_ids - 1; i >= 0; i--) {
        make_youngest(lru, ids[i]);
    }
    if (lru->num_ids > capacity) {
        int32_t num_dropped = lru->num_ids - capacity;

        memmove(lru->ids, &lru->ids[num_dropped], (size_t)capacity * sizeof(lru->ids[0]));
        lru->num_ids = capacity;
    }
    return num_hits;
}

static int64_t count_pool_hits(const workload_list *list, int32_t capacity) {
    lru_list *lru = calloc(1, sizeof(*lru));
    int64_t num_hits = 0;

    assert_non_null(lru);
    for (int32_t i = 0; i < list->num_items; i++) {
        const workload_item *item = &list->items[i];

        num_hits += serve_ids(lru, &list->hash_ids[item->first_hash], item->num_hashes,
                              item->num_hashes, capacity);
    }
    free(lru);
    return num_hits;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void hit_curve_of_pool_equals_lru_list(void **state) {
    const int32_t sizes[num_sizes] = {12, 40, 150, 0};
    serve_curve_point points[num_sizes];
    char error[SERVE_MAX_ERROR];

    (void)state;
    for (uint64_t seed = 1; seed <= 5; seed++) {
        made_trace *trace = make_trace(seed);

        assert_true(
            serve_curve_measure(&trace->list, num_requests, sizes, num_sizes, points, error));
        for (int32_t i = 0; i < num_sizes; i++) {
            int32_t capacity = sizes[i] > 0 ? sizes[i] : num_requests * max_blocks;

            assert_int_equal(points[i].num_ids, trace->list.num_hash_ids);
            assert_int_equal(points[i].num_pool_hits, count_pool_hits(&trace->list, capacity));
        }
        assert_true(points[0].num_pool_hits > 0);
        assert_true(points[0].num_pool_hits < points[1].num_pool_hits);
        release_trace(trace);
    }
}

/* Without limit nothing is evicted, so the manager hits what was seen before, up to the last token
 * but one and without partial blocks. */
static void hit_curve_of_manager_equals_full_blocks_seen_before(void **state) {
    const int32_t sizes[1] = {0};
    serve_curve_point point;
    char error[SERVE_MAX_ERROR];

    (void)state;
    for (uint64_t seed = 1; seed <= 5; seed++) {
        made_trace *trace = make_trace(seed);
        lru_list *seen = calloc(1, sizeof(*seen));
        int64_t num_hits = 0, num_full_blocks = 0;

        assert_non_null(seen);
        for (int32_t i = 0; i < num_requests; i++) {
            const workload_item *item = &trace->list.items[i];
            int32_t num_full = item->num_input_tokens / block_size;

            num_full_blocks += num_full;
            num_hits +=
                serve_ids(seen, &trace->list.hash_ids[item->first_hash], num_full,
                          (item->num_input_tokens - 1) / block_size, num_requests * max_blocks);
        }
        assert_true(serve_curve_measure(&trace->list, num_requests, sizes, 1, &point, error));
        assert_int_equal(point.num_full_blocks, num_full_blocks);
        assert_int_equal(point.num_manager_hits, num_hits);
        free(seen);
        release_trace(trace);
    }
}

static void hit_curve_leaves_out_requests_longer_than_the_cache(void **state) {
    const int32_t sizes[2] = {5, 0};
    serve_curve_point points[2];
    char error[SERVE_MAX_ERROR];
    made_trace *trace = make_trace(7);
    int32_t num_long = 0;

    (void)state;
    for (int32_t i = 0; i < num_requests; i++) {
        num_long += trace->list.items[i].num_hashes > 5;
    }
    assert_true(serve_curve_measure(&trace->list, num_requests, sizes, 2, points, error));

    assert_true(num_long > 0);
    assert_int_equal(points[0].num_too_long, num_long);
    assert_int_equal(points[1].num_too_long, 0);
    release_trace(trace);
}

static void hit_curve_refuses_a_trace_without_ids(void **state) {
    const int32_t sizes[1] = {0};
    serve_curve_point point;
    char error[SERVE_MAX_ERROR] = "";
    made_trace *trace = make_trace(7);

    (void)state;
    trace->list.hash_block_size = 0;

    assert_false(serve_curve_measure(&trace->list, num_requests, sizes, 1, &point, error));
    assert_non_null(strstr(error, "no block ids"));
    release_trace(trace);
}

static void hit_curve_refuses_ids_that_do_not_cover_the_prompt(void **state) {
    const int32_t sizes[1] = {0};
    serve_curve_point point;
    char error[SERVE_MAX_ERROR] = "";
    made_trace *trace = make_trace(7);

    (void)state;
    trace->list.items[3].num_input_tokens += block_size;

    assert_false(serve_curve_measure(&trace->list, num_requests, sizes, 1, &point, error));
    assert_non_null(strstr(error, "request 3"));
    release_trace(trace);
}

static void arrivals_come_to_the_door_by_time_then_index(void **state) {
    serve_arrivals arrivals;
    double seconds[num_requests];
    uint64_t random = 3;

    (void)state;
    assert_true(serve_arrivals_begin(&arrivals, num_requests));
    for (int32_t i = 0; i < num_requests; i++) {
        /* Many equal times, and added in an order that is not theirs. */
        seconds[i] = random_below(&random, 50);
        serve_arrivals_add(&arrivals, seconds[i], i);
    }
    for (double now = 0.0; now < 50.0; now += 1.0) {
        int32_t before = arrivals.end;

        serve_arrivals_advance(&arrivals, now);
        for (int32_t i = before; i < arrivals.end; i++) {
            assert_true(seconds[arrivals.door[i]] == now);
            assert_true(i == before || arrivals.door[i] > arrivals.door[i - 1]);
        }
        double next = serve_arrivals_get_next_seconds(&arrivals);
        assert_true(next > now || next < 0.0);
    }

    assert_int_equal(arrivals.end, num_requests);
    assert_true(serve_arrivals_get_next_seconds(&arrivals) < 0.0);
    serve_arrivals_end(&arrivals);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hit_curve_of_pool_equals_lru_list),
        cmocka_unit_test(hit_curve_of_manager_equals_full_blocks_seen_before),
        cmocka_unit_test(hit_curve_leaves_out_requests_longer_than_the_cache),
        cmocka_unit_test(hit_curve_refuses_a_trace_without_ids),
        cmocka_unit_test(hit_curve_refuses_ids_that_do_not_cover_the_prompt),
        cmocka_unit_test(arrivals_come_to_the_door_by_time_then_index),
    };

    return cmocka_run_group_tests_name("serve", tests, NULL, NULL);
}
