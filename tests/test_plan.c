/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The plan: every (request, key, row) is in exactly one work item, the list stays within the sizes
 * that the maxima gave, it is valid for exactly the lengths that pkv_plan_covers says, and bad
 * batches are refused without a byte written. Random batches print their seed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "attention/plan.h"
#include "support/tensor_fill.h"

#define MAX_REQUESTS 24
#define MAX_SEQ_LEN 2000

struct fixture {
    pkv_plan_config config;
    pkv_plan *plan;
    size_t size, workspace_size;
    unsigned char *host_plan;
    int32_t rows[MAX_REQUESTS], seq_lens[MAX_REQUESTS], starts[MAX_REQUESTS + 1];
    pkv_batch batch;
};

static pkv_plan_config default_config(void) {
    pkv_plan_config config = {
        .struct_size = sizeof config,
        .shape = {.struct_size = sizeof config.shape,
                  .num_query_heads = 8,
                  .num_kv_heads = 2,
                  .head_size = 64,
                  .block_size = 16,
                  .query_dtype = PKV_DTYPE_FLOAT16},
        .max_requests = MAX_REQUESTS,
        .max_tokens = 512,
        .max_seq_len = MAX_SEQ_LEN,
        .chunk_size = 128,
    };

    return config;
}

static void open_fixture(struct fixture *f, const pkv_plan_config *config) {
    memset(f, 0, sizeof *f);
    f->config = *config;
    assert_int_equal(pkv_plan_create(config, &f->plan, NULL), PKV_OK);
    assert_int_equal(pkv_plan_sizes(f->plan, &f->size, &f->workspace_size), PKV_OK);
    f->host_plan = guarded_allocate(f->size, 0xee);
    f->batch = (pkv_batch){.struct_size = sizeof f->batch,
                           .max_requests = MAX_REQUESTS,
                           .rows = f->rows,
                           .seq_lens = f->seq_lens,
                           .query_start_loc = f->starts};
}

static void close_fixture(struct fixture *f) {
    guarded_release(f->host_plan, f->size);
    pkv_plan_destroy(f->plan);
}

static void add_request(struct fixture *f, int32_t num_queries, int32_t seq_len) {
    int32_t i = f->batch.num_requests++;

    f->rows[i] = 100 + i;
    f->seq_lens[i] = seq_len;
    f->starts[i + 1] = f->starts[i] + num_queries;
    f->batch.num_tokens = f->starts[i + 1];
}

static const struct pkvi_plan_header *header_of(const struct fixture *f) {
    return (const struct pkvi_plan_header *)(const void *)f->host_plan;
}

/* Count for each (row, key) of one request how many items hold it. */
static void count_request(const struct fixture *f, int32_t request, unsigned char *counts) {
    const struct pkvi_plan_header *header = header_of(f);
    const struct pkvi_plan_request *planned = &pkvi_plan_requests(header)[request];
    int32_t group = f->config.shape.num_query_heads / f->config.shape.num_kv_heads;
    int64_t num_rows = (int64_t)planned->num_queries * group, num_keys = f->seq_lens[request];

    for (int32_t i = 0; i < header->num_items; i++) {
        const struct pkvi_work_item *item = &pkvi_plan_items(header)[i];
        int64_t tile_rows = pkvi_tile_rows(num_rows);
        int64_t first = item->chunk < 0 ? 0 : (int64_t)item->chunk * header->chunk_size;
        int64_t end = item->chunk < 0 ? num_keys : first + header->chunk_size;

        if (item->request != request) {
            continue;
        }
        assert_int_equal(item->table_row, 100 + request);
        for (int64_t row = item->row_tile * tile_rows;
             row < (item->row_tile + 1) * tile_rows && row < num_rows; row++) {
            for (int64_t key = first; key < end && key < num_keys; key++) {
                counts[row * num_keys + key]++;
            }
        }
    }
}

/* Every row sees every key that its mask lets it see in one item, and none in two. */
static void check_partition(const struct fixture *f) {
    const struct pkvi_plan_header *header = header_of(f);
    int32_t group = f->config.shape.num_query_heads / f->config.shape.num_kv_heads;
    int64_t partial_rows = 0;

    for (int32_t request = 0; request < f->batch.num_requests; request++) {
        const struct pkvi_plan_request *planned = &pkvi_plan_requests(header)[request];
        int64_t num_keys = f->seq_lens[request];
        int64_t num_rows = (int64_t)planned->num_queries * group;
        unsigned char *counts = calloc((size_t)(num_rows * num_keys + 1), 1);

        assert_non_null(counts);
        count_request(f, request, counts);
        for (int64_t row = 0; row < num_rows; row++) {
            int64_t position = num_keys - planned->num_queries + row / group;
            int64_t low = f->config.window > 0 ? position - f->config.window + 1 : 0;

            for (int64_t key = 0; key < num_keys; key++) {
                int count = counts[row * num_keys + key];

                assert_true(count <= 1);
                assert_true(count == 1 || key < low);
            }
        }
        free(counts);
        if (planned->end_chunk - planned->first_chunk > 1) {
            assert_int_equal(planned->first_partial_row, partial_rows);
            partial_rows += (planned->end_chunk - planned->first_chunk) * num_rows;
        }
    }
    assert_int_equal(partial_rows, header->num_partial_rows);
    assert_true((size_t)header->used_size <= f->size);
    assert_true((size_t)partial_rows * 2 * (64 + 2) * sizeof(float) <= f->workspace_size ||
                f->config.shape.head_size != 64);
    assert_int_equal(pkv_plan_used_size(f->host_plan), header->used_size);
}

static void random_batches_are_partitions(void **state) {
    static const int32_t groups[] = {1, 2, 4, 7, 71, 128};

    (void)state;
    for (uint64_t seed = 1; seed <= 120; seed++) {
        pkv_plan_config config = default_config();
        struct fixture f;
        int32_t group = groups[tensor_index(seed, 1, 6)];

        config.shape.num_query_heads = 2 * group;
        config.window = tensor_index(seed, 2, 3) == 0 ? 1 + (int32_t)tensor_index(seed, 3, 400) : 0;
        config.flags = tensor_index(seed, 4, 4) == 0 ? PKV_PLAN_THROUGHPUT : 0;
        config.flags |= tensor_index(seed, 6, 4) == 0 ? PKV_PLAN_NON_CAUSAL : 0;
        config.max_split_query_len = tensor_index(seed, 7, 2) == 0 ? 0 : 40;
        open_fixture(&f, &config);
        int32_t count = (int32_t)tensor_index(seed, 5, 9);
        for (int32_t i = 0; i < count; i++) {
            int32_t seq_len = (int32_t)tensor_index(seed, 100 + i, 600);
            bool is_causal = (config.flags & PKV_PLAN_NON_CAUSAL) == 0;
            int32_t limit = is_causal && seq_len < 50 ? seq_len : 50;
            int32_t num_queries = tensor_index(seed, 200 + i, 2) == 0
                                      ? (limit > 0 ? 1 : 0)
                                      : (int32_t)tensor_index(seed, 300 + i, (uint64_t)limit + 1);

            add_request(&f, num_queries, seq_len);
        }
        pkv_status status = pkv_plan_build(f.plan, &f.batch, f.host_plan, f.size);
        if (status != PKV_OK) {
            print_error("seed %llu: %s\n", (unsigned long long)seed, pkv_status_name(status));
        }
        assert_int_equal(status, PKV_OK);
        assert_true(pkv_plan_covers(f.plan, f.host_plan, &f.batch));
        check_partition(&f);
        close_fixture(&f);
    }
}

static void order_is_whole_full_then_tails_longest_first(void **state) {
    pkv_plan_config config = default_config();
    struct fixture f;
    int32_t last = INT32_MAX;
    int stage = 0;

    (void)state;
    open_fixture(&f, &config);
    add_request(&f, 1, 130);
    add_request(&f, 1, 250);
    add_request(&f, 100, 300);
    add_request(&f, 1, 384);
    assert_int_equal(pkv_plan_build(f.plan, &f.batch, f.host_plan, f.size), PKV_OK);
    const struct pkvi_plan_header *header = header_of(&f);
    for (int32_t i = 0; i < header->num_items; i++) {
        const struct pkvi_work_item *item = &pkvi_plan_items(header)[i];
        int32_t left = f.seq_lens[item->request] - item->chunk * 128;
        int kind = item->chunk < 0 ? 0 : left > 128 ? 1 : 2;

        assert_true(kind >= stage);
        stage = kind;
        if (kind == 2) {
            assert_true(left <= last);
            last = left;
        }
    }
    assert_int_equal(stage, 2);
    close_fixture(&f);
}

static void covers_until_the_chunk_is_full(void **state) {
    pkv_plan_config config = default_config();
    struct fixture f;

    (void)state;
    open_fixture(&f, &config);
    add_request(&f, 1, 129);
    assert_int_equal(pkv_plan_build(f.plan, &f.batch, f.host_plan, f.size), PKV_OK);
    for (int32_t seq_len = 1; seq_len <= 256; seq_len++) {
        f.seq_lens[0] = seq_len;
        assert_true(pkv_plan_covers(f.plan, f.host_plan, &f.batch));
    }
    f.seq_lens[0] = 257;
    assert_false(pkv_plan_covers(f.plan, f.host_plan, &f.batch));
    f.seq_lens[0] = 200;
    f.rows[0]++;
    assert_false(pkv_plan_covers(f.plan, f.host_plan, &f.batch));
    f.rows[0]--;
    f.starts[1] = 2;
    assert_false(pkv_plan_covers(f.plan, f.host_plan, &f.batch));
    close_fixture(&f);
}

static void a_windowed_plan_covers_its_chunk_only(void **state) {
    pkv_plan_config config = default_config();
    struct fixture f;

    (void)state;
    config.window = 10;
    open_fixture(&f, &config);
    add_request(&f, 1, 500);
    assert_int_equal(pkv_plan_build(f.plan, &f.batch, f.host_plan, f.size), PKV_OK);
    /* Lengths 385 .. 512 see keys from 375 on: chunks 2 and 3. */
    assert_int_equal(header_of(&f)->num_items, 2);
    f.seq_lens[0] = 385;
    assert_true(pkv_plan_covers(f.plan, f.host_plan, &f.batch));
    f.seq_lens[0] = 384;
    assert_false(pkv_plan_covers(f.plan, f.host_plan, &f.batch));
    close_fixture(&f);
}

static void expect_refusal(struct fixture *f, pkv_status wanted) {
    memset(f->host_plan, 0xee, f->size);
    assert_int_equal(pkv_plan_build(f->plan, &f->batch, f->host_plan, f->size), wanted);
    for (size_t i = 0; i < f->size; i++) {
        assert_int_equal(f->host_plan[i], 0xee);
    }
}

static void bad_batches_are_refused_untouched(void **state) {
    pkv_plan_config config = default_config();
    struct fixture f;

    (void)state;
    config.max_query_len = 20;
    open_fixture(&f, &config);
    add_request(&f, 4, 100);
    add_request(&f, 1, 50);
    f.starts[0] = 1;
    expect_refusal(&f, PKV_ERROR_INVALID_ARGUMENT);
    f.starts[0] = 0;
    f.starts[2] = 3; /* falls */
    expect_refusal(&f, PKV_ERROR_INVALID_ARGUMENT);
    f.starts[2] = 5;
    f.seq_lens[0] = 3; /* more queries than keys */
    expect_refusal(&f, PKV_ERROR_INVALID_ARGUMENT);
    f.seq_lens[0] = -1;
    expect_refusal(&f, PKV_ERROR_INVALID_ARGUMENT);
    f.seq_lens[0] = MAX_SEQ_LEN + 1;
    expect_refusal(&f, PKV_ERROR_LIMIT);
    f.seq_lens[0] = 100;
    f.rows[1] = -1;
    expect_refusal(&f, PKV_ERROR_INVALID_ARGUMENT);
    f.rows[1] = 7;
    f.starts[1] = 21; /* beyond max_query_len */
    f.starts[2] = 22;
    expect_refusal(&f, PKV_ERROR_LIMIT);
    f.starts[1] = 4;
    f.starts[2] = 5;
    f.batch.query_start_loc = NULL;
    expect_refusal(&f, PKV_ERROR_INVALID_ARGUMENT);
    f.batch.query_start_loc = f.starts;
    f.batch.max_requests = 1; /* fewer entries than requests */
    expect_refusal(&f, PKV_ERROR_INVALID_ARGUMENT);
    f.batch.max_requests = MAX_REQUESTS;
    f.batch.num_requests = MAX_REQUESTS + 1;
    f.batch.max_requests = 0;
    expect_refusal(&f, PKV_ERROR_LIMIT);
    f.batch.num_requests = 2;
    assert_int_equal(pkv_plan_build(f.plan, &f.batch, f.host_plan, 64), PKV_ERROR_LIMIT);
    assert_int_equal(pkv_plan_build(f.plan, &f.batch, f.host_plan, f.size), PKV_OK);
    close_fixture(&f);
}

static void padding_gives_no_work(void **state) {
    pkv_plan_config config = default_config();
    struct fixture f;

    (void)state;
    open_fixture(&f, &config);
    add_request(&f, 1, 100);
    f.batch.padded_requests = 4;
    for (int i = 1; i < 4; i++) {
        f.rows[i] = PKV_NULL_ROW;
        f.seq_lens[i] = 0;
        f.starts[i + 1] = 1;
    }
    assert_int_equal(pkv_plan_build(f.plan, &f.batch, f.host_plan, f.size), PKV_OK);
    assert_int_equal(header_of(&f)->num_items, 1);
    assert_int_equal(header_of(&f)->num_requests, 4);
    close_fixture(&f);
}

static void expect_config_refused(pkv_plan_config config, pkv_status wanted) {
    pkv_plan *plan = NULL;
    const char *reason = NULL;

    assert_int_equal(pkv_plan_create(&config, &plan, &reason), wanted);
    assert_non_null(reason);
    assert_null(plan);
    assert_int_equal(pkv_plan_size(&config), 0);
}

static void configs_are_refused_with_a_reason(void **state) {
    pkv_plan_config config = default_config();

    (void)state;
    config.shape.head_size = 100;
    expect_config_refused(config, PKV_ERROR_UNSUPPORTED);
    config = default_config();
    config.shape.head_size = 584;
    expect_config_refused(config, PKV_ERROR_UNSUPPORTED);
    config = default_config();
    config.shape.num_query_heads = 7;
    expect_config_refused(config, PKV_ERROR_UNSUPPORTED);
    config = default_config();
    config.shape.block_size = 0;
    expect_config_refused(config, PKV_ERROR_UNSUPPORTED);
    config = default_config();
    config.shape.block_size = 257;
    expect_config_refused(config, PKV_ERROR_UNSUPPORTED);
    config = default_config();
    config.shape.kv_dtype = PKV_DTYPE_FLOAT32; /* float16 queries over float32 keys */
    expect_config_refused(config, PKV_ERROR_UNSUPPORTED);
    config = default_config();
    config.chunk_size = 100;
    expect_config_refused(config, PKV_ERROR_INVALID_ARGUMENT);
    config = default_config();
    config.flags = 0x80;
    expect_config_refused(config, PKV_ERROR_INVALID_ARGUMENT);
    config = default_config();
    config.max_requests = 1 << 20;
    config.max_seq_len = 1 << 20;
    config.max_tokens = 1 << 20;
    expect_config_refused(config, PKV_ERROR_LIMIT);
    config = default_config();
    config.max_split_query_len = -1;
    expect_config_refused(config, PKV_ERROR_INVALID_ARGUMENT);
    config = default_config();
    config.max_tokens = config.max_seq_len = config.max_split_query_len = INT32_MAX;
    expect_config_refused(config, PKV_ERROR_LIMIT);
    config = default_config();
    config.struct_size = 2;
    expect_config_refused(config, PKV_ERROR_INVALID_ARGUMENT);
}

static void init_takes_the_callers_memory(void **state) {
    pkv_plan_config config = default_config();
    size_t size = pkv_plan_size(&config);
    void *memory = guarded_allocate(size, 0xee);
    pkv_plan *plan;

    (void)state;
    assert_true(size > 0);
    assert_int_equal(pkv_plan_init(&config, memory, size - 1, &plan, NULL),
                     PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_plan_init(&config, memory, size, &plan, NULL), PKV_OK);
    pkv_plan_destroy(plan);
    pkv_plan_destroy(NULL);
    guarded_release(memory, size);
}

/* Twenty decodes of some 1,900 keys are 15 items each, or 300; 2 workers want 8 for both kv heads. */
static void throughput_gives_fewer_items_of_whole_chunks(void **state) {
    pkv_plan_config config = default_config();
    struct fixture by_chunk, by_batch;

    (void)state;
    config.num_workers = 2;
    open_fixture(&by_chunk, &config);
    config.flags = PKV_PLAN_THROUGHPUT;
    open_fixture(&by_batch, &config);
    for (int i = 0; i < 20; i++) {
        add_request(&by_chunk, 1, 1900 - i);
        add_request(&by_batch, 1, 1900 - i);
    }
    assert_int_equal(
        pkv_plan_build(by_chunk.plan, &by_chunk.batch, by_chunk.host_plan, by_chunk.size), PKV_OK);
    assert_int_equal(
        pkv_plan_build(by_batch.plan, &by_batch.batch, by_batch.host_plan, by_batch.size), PKV_OK);
    /* Without the flag num_workers counts for nothing. */
    assert_int_equal(header_of(&by_chunk)->chunk_size, 128);
    assert_int_equal(header_of(&by_chunk)->num_items, 20 * 15);
    assert_int_equal(header_of(&by_chunk)->num_split_requests, 20);
    /* 20 requests are more than 8 items however long a chunk is: it covers the longest. */
    assert_int_equal(header_of(&by_batch)->chunk_size, 2048);
    assert_int_equal(header_of(&by_batch)->num_items, 20);
    assert_int_equal(header_of(&by_batch)->num_split_requests, 0);
    check_partition(&by_chunk);
    check_partition(&by_batch);
    close_fixture(&by_chunk);
    close_fixture(&by_batch);
}

/* Four times as many items as workers and no more: one decode of 1,920 keys is 15 chunks for each
 * of 2 kv heads, doubled once 8, twice 4, three times 2. */
static void throughput_chunks_grow_until_the_items_are_few(void **state) {
    static const struct {
        int32_t num_workers, chunk_size, num_items;
    } rows[] = {{8, 128, 15}, {7, 256, 8}, {4, 256, 8}, {3, 512, 4}, {1, 1024, 2}};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        pkv_plan_config config = default_config();
        struct fixture f;

        config.flags = PKV_PLAN_THROUGHPUT;
        config.num_workers = rows[i].num_workers;
        open_fixture(&f, &config);
        add_request(&f, 1, 1920);
        assert_int_equal(pkv_plan_build(f.plan, &f.batch, f.host_plan, f.size), PKV_OK);
        assert_int_equal(header_of(&f)->chunk_size, rows[i].chunk_size);
        assert_int_equal(header_of(&f)->num_items, rows[i].num_items);
        check_partition(&f);
        close_fixture(&f);
    }
}

/* A small chunk of a prefill over a long context: few tiles, so its keys are work for many. */
static void small_chunks_of_a_prefill_are_split_on_demand(void **state) {
    pkv_plan_config config = default_config();
    struct fixture f;
    size_t workspace_size;

    (void)state;
    config.max_seq_len = 1 << 17;
    open_fixture(&f, &config);
    workspace_size = f.workspace_size;
    add_request(&f, 32, 1 << 17);
    assert_int_equal(pkv_plan_build(f.plan, &f.batch, f.host_plan, f.size), PKV_OK);
    assert_int_equal(header_of(&f)->num_items, 2);
    close_fixture(&f);
    config.max_split_query_len = 32;
    open_fixture(&f, &config);
    assert_true(f.workspace_size > workspace_size);
    add_request(&f, 32, 1 << 17);
    add_request(&f, 33, 1 << 17);
    assert_int_equal(pkv_plan_build(f.plan, &f.batch, f.host_plan, f.size), PKV_OK);
    assert_int_equal(header_of(&f)->num_items, 2 * (1 << 17) / 128 + 3);
    assert_int_equal(header_of(&f)->num_split_requests, 1);
    close_fixture(&f);
}

/* 9,000,000 keys of one request are 70,313 items: nothing in the list is a 16-bit number. */
static void long_and_wide_batches_fit(void **state) {
    pkv_plan_config config = default_config();
    struct fixture f;

    (void)state;
    config.max_seq_len = 1 << 24;
    config.max_total_seq_len = 1 << 24;
    open_fixture(&f, &config);
    add_request(&f, 1, 9000000);
    assert_int_equal(pkv_plan_build(f.plan, &f.batch, f.host_plan, f.size), PKV_OK);
    assert_int_equal(header_of(&f)->num_items, (9000000 + 127) / 128);
    add_request(&f, 1, 9000000);
    assert_int_equal(pkv_plan_build(f.plan, &f.batch, f.host_plan, f.size), PKV_ERROR_LIMIT);
    close_fixture(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_batches_are_partitions),
        cmocka_unit_test(order_is_whole_full_then_tails_longest_first),
        cmocka_unit_test(covers_until_the_chunk_is_full),
        cmocka_unit_test(a_windowed_plan_covers_its_chunk_only),
        cmocka_unit_test(bad_batches_are_refused_untouched),
        cmocka_unit_test(padding_gives_no_work),
        cmocka_unit_test(configs_are_refused_with_a_reason),
        cmocka_unit_test(small_chunks_of_a_prefill_are_split_on_demand),
        cmocka_unit_test(throughput_gives_fewer_items_of_whole_chunks),
        cmocka_unit_test(throughput_chunks_grow_until_the_items_are_few),
        cmocka_unit_test(init_takes_the_callers_memory),
        cmocka_unit_test(long_and_wide_batches_fit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
