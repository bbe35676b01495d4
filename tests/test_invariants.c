/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Goal: the checkers notice what they promise to notice, and name its number.
 * Method: a manager in the middle of its life is spoilt in one place from the inside; the first
 * number in the checker's text must be the right one. Nothing is mended: each case has a manager of
 * its own. */
#include <pagedkv/sharing.h>

#include "manager/manager.h"

#include "support/fixture.h"

#include <string.h>

#define HELD_STEP 9

static int32_t row_of(pkv_manager *manager, uint32_t index) {
    return manager->requests.requests[index].row;
}

static pkv_block_id *cells_of(pkv_manager *manager, int32_t group) {
    return pkvi_manager_cells(manager, group, row_of(manager, 0));
}

static struct pkvi_table_row *table_row_of(pkv_manager *manager, int32_t group) {
    return pkvi_manager_row(manager, group, row_of(manager, 0));
}

/* Two groups, events, fills; one request with keyed and keyless blocks, one that shares its start,
 * one without blocks, one whose table waits for a step. */
static pkv_manager *make_busy_manager(void) {
    static const pkv_request_args plain = {.struct_size = sizeof plain};
    pkv_group_config groups[2] = {full_group(4), window_group(4, 64)};
    pkv_manager_config config = small_config(40, 4);
    pkv_manager *manager = NULL;
    pkv_slots_args args = slots_of(0, 12);
    pkv_request requests[5];
    pkv_request child;

    config.num_groups = 2;
    config.groups = groups;
    config.event_capacity = 8;
    config.fill_new_blocks = true;
    config.store_tokens = true;
    config.min_partial_tokens = 1;
    assert_int_equal(pkv_manager_create(&config, &manager), PKV_OK);
    requests[0] = open_prompt_as(manager, &plain, "1..12");
    args.num_lookahead_tokens = 8;
    args.step = 3;
    assert_int_equal(pkv_allocate_slots(manager, requests[0], &args, NULL), PKV_OK);
    requests[1] = open_prompt(manager, "1..9");
    assert_int_equal(admit_in_step(manager, requests[1], 3), 8);
    requests[2] = open_prompt(manager, "7");
    /* Two that go on from the second, and a copy that waits. */
    assert_int_equal(pkv_fork(manager, requests[1], 9, &child), PKV_OK);
    assert_int_equal(allocate_in_step(manager, child, 9, 1, 3), PKV_OK);
    assert_int_equal(manager->copies.num_pending, 2);
    assert_int_equal(pkv_fork(manager, requests[1], 9, &child), PKV_OK);
    requests[3] = open_prompt(manager, "50..58");
    assert_int_equal(admit_in_step(manager, requests[3], 3), 0);
    assert_int_equal(pkv_free_after(manager, requests[3], HELD_STEP), PKV_OK);
    /* And one whose block others may copy rows from. */
    args = slots_of(0, 4);
    args.delay_caching = true;
    requests[4] = open_prompt(manager, "80..83");
    assert_int_equal(pkv_allocate_slots(manager, requests[4], &args, NULL), PKV_OK);
    assert_int_equal(pkv_cache_blocks(manager, requests[4], 4), PKV_OK);
    assert_int_equal(manager->pool->children.num_added, 2);
    assert_int_equal(pkv_manager_check(manager), PKV_OK);
    return manager;
}

/* ---- one way to spoil it each ---------------------------------------------------------------- */

static void spoil_null_block(pkv_manager *manager) {
    manager->pool->states[0].ref_cnt = 1;
}

/* Free by its links and its count, yet nowhere in the queue. */
static void spoil_sum(pkv_manager *manager) {
    struct pkvi_free_queue *queue = &manager->pool->free_queue;
    pkv_block_id first = queue->links[0].next;

    queue->links[0].next = queue->links[first].next;
    queue->links[queue->links[first].next].previous = 0;
    queue->num_free--;
}

static void spoil_owner(pkv_manager *manager) {
    manager->pool->states[cells_of(manager, 0)[0]].ref_cnt = 0;
}

static void spoil_queue_order(pkv_manager *manager) {
    struct pkvi_free_queue *queue = &manager->pool->free_queue;

    queue->links[queue->links[0].next].previous = queue->links[0].previous;
}

static void spoil_index_key(pkv_manager *manager) {
    manager->pool->index->entries[cells_of(manager, 0)[0]].key.hash_low ^= 1;
}

static void spoil_copies(pkv_manager *manager) {
    pkv_block_id block = cells_of(manager, 0)[0];

    manager->pool->index->entries[block].copies.next = cells_of(manager, 0)[1];
}

static void spoil_keyed_count(pkv_manager *manager) {
    manager->pool->index->num_keyed++;
}

static void spoil_distinct_count(pkv_manager *manager) {
    manager->pool->index->num_distinct--;
}

static void spoil_caching(pkv_manager *manager) {
    manager->pool->is_caching = false;
}

static void spoil_keyless_key(pkv_manager *manager) {
    pkv_block_id block = manager->pool->free_queue.links[0].next;

    manager->pool->index->entries[block].key.lineage = 5;
}

static void spoil_events(pkv_manager *manager) {
    manager->pool->events.num_events = manager->pool->events.capacity + 1;
}

static void spoil_fill_mark(pkv_manager *manager) {
    manager->pool->fills.is_listed[manager->pool->fills.block_ids[0]] = 0;
}

static void spoil_fill_block(pkv_manager *manager) {
    manager->pool->fills.block_ids[0] = PKV_NULL_BLOCK;
}

static void spoil_references(pkv_manager *manager) {
    manager->pool->states[cells_of(manager, 1)[0]].ref_cnt++;
}

static void spoil_cell(pkv_manager *manager) {
    cells_of(manager, 0)[4] = manager->pool->num_blocks;
}

static void spoil_group(pkv_manager *manager) {
    manager->pool->states[cells_of(manager, 0)[4]].group = 1;
}

/* The keyless tail, so that no key is in a foreign column. */
static void spoil_distinct(pkv_manager *manager) {
    cells_of(manager, 0)[4] = cells_of(manager, 0)[3];
}

static void spoil_row_owner(pkv_manager *manager) {
    manager->rows.owner_of[row_of(manager, 0)] = 2;
}

static void spoil_row_count(pkv_manager *manager) {
    manager->rows.num_free_rows--;
}

static void spoil_settled(pkv_manager *manager) {
    table_row_of(manager, 1)->num_cached = table_row_of(manager, 1)->num_blocks + 1;
}

static void spoil_column_key(pkv_manager *manager) {
    pkv_block_id *cells = cells_of(manager, 0);
    pkv_block_id first = cells[0];

    cells[0] = cells[1];
    cells[1] = first;
}

static void spoil_num_keys(pkv_manager *manager) {
    manager->requests.requests[0].num_keys--;
}

static void spoil_arena(pkv_manager *manager) {
    manager->requests.num_reserved_tokens++;
}

static void spoil_pages(pkv_manager *manager) {
    manager->requests.num_free_pages--;
}

static void spoil_handles(pkv_manager *manager) {
    manager->requests.num_open++;
}

static void spoil_generation(pkv_manager *manager) {
    manager->requests.requests[0].generation = 0;
}

static void spoil_completed_step(pkv_manager *manager) {
    manager->pool->log.completed_step = 3;
}

static void spoil_held_step(pkv_manager *manager) {
    manager->rows.held[0].step = 0;
}

static void spoil_dirty(pkv_manager *manager) {
    table_row_of(manager, 0)->dirty_end = table_row_of(manager, 0)->num_blocks + 1;
}

static void spoil_pins(pkv_manager *manager) {
    manager->copies.num_pins[manager->copies.source_of[manager->copies.targets[0]]]++;
}

static void spoil_source(pkv_manager *manager) {
    manager->copies.source_of[manager->copies.targets[0]] = PKV_NULL_BLOCK;
}

static void spoil_target(pkv_manager *manager) {
    manager->copies.source_of[1] = 2;
}

/* The third column of the request that was forked is shared by its child. */
static void spoil_look(pkv_manager *manager) {
    manager->requests.requests[1].look_until = 0;
}

/* A bucket that is not empty. */
static pkv_block_id *head_of_child(pkv_manager *manager) {
    pkv_block_id *head = manager->pool->children.heads;

    while (*head == PKV_NULL_BLOCK) {
        head++;
    }
    return head;
}

static void spoil_child_list(pkv_manager *manager) {
    *head_of_child(manager) = PKV_NULL_BLOCK;
}

static void spoil_child_bucket(pkv_manager *manager) {
    manager->pool->children.parents[*head_of_child(manager)] ^= UINT32_C(1) << 31;
}

static void spoil_child_key(pkv_manager *manager) {
    *head_of_child(manager) = manager->copies.targets[0]; /* it carries none */
}

static const struct spoilt_case {
    const char *number;
    void (*spoil)(pkv_manager *manager);
} cases[] = {
    {"I1:", spoil_null_block},      {"I2:", spoil_sum},
    {"I3:", spoil_owner},           {"I3:", spoil_queue_order},
    {"I4:", spoil_index_key},       {"I5:", spoil_copies},
    {"I6:", spoil_keyed_count},     {"I6:", spoil_distinct_count},
    {"I7:", spoil_caching},         {"I8:", spoil_keyless_key},
    {"I9:", spoil_events},          {"I10:", spoil_fill_mark},
    {"I10:", spoil_fill_block},     {"I11:", spoil_references},
    {"I11:", spoil_cell},           {"I12:", spoil_group},
    {"I12:", spoil_distinct},       {"I13:", spoil_row_owner},
    {"I13:", spoil_row_count},      {"I14:", spoil_settled},
    {"I15:", spoil_column_key},     {"I16:", spoil_num_keys},
    {"I17:", spoil_arena},          {"I17:", spoil_pages},
    {"I18:", spoil_handles},        {"I18:", spoil_generation},
    {"I19:", spoil_completed_step}, {"I20:", spoil_held_step},
    {"I21:", spoil_dirty},          {"I29:", spoil_pins},
    {"I29:", spoil_source},         {"I29:", spoil_target},
    {"I30:", spoil_look},           {"I31:", spoil_child_list},
    {"I31:", spoil_child_bucket},   {"I31:", spoil_child_key},
};

static void checker_names_the_invariant_that_is_broken(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pkv_manager *manager = make_busy_manager();
        const char *text;

        cases[i].spoil(manager);
        assert_int_equal(pkv_manager_check(manager), PKV_ERROR_CORRUPT);
        text = pkv_manager_last_error(manager);
        if (strncmp(text, cases[i].number, strlen(cases[i].number)) != 0) {
            fail_msg("case %zu: the checker says \"%s\", not %s", i, text, cases[i].number);
        }
        pkv_manager_destroy(manager);
    }
}

static void checker_of_the_pool_alone_names_it_too(void **state) {
    pkv_manager *manager = make_busy_manager();
    (void)state;

    spoil_index_key(manager);

    assert_int_equal(pkv_pool_check(manager->pool), PKV_ERROR_CORRUPT);
    assert_memory_equal(pkv_pool_last_error(manager->pool), "I4:", 3);
    pkv_manager_destroy(manager);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        fixture_test(checker_names_the_invariant_that_is_broken),
        fixture_test(checker_of_the_pool_alone_names_it_too),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
