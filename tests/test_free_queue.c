/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Goal: the free queue keeps the order it was given, whatever end or middle is touched. Method:
 * after each operation the whole circle is read forwards and backwards. Block 0 is the sentinel, so
 * a queue of the blocks 0..4 of vLLM V1's tests is one of 1..5 here. */
#include "support/fixture.h"

#include "pool/free_queue.h"

#define NUM_BLOCKS 7

typedef struct queue_state {
    struct pkvi_free_queue queue;
    struct pkvi_links links[NUM_BLOCKS];
} queue_state;

/* ---- helpers --------------------------------------------------------------------------------- */

/* The queue head first; also sees that the way back is the same and that the count is right. */
static const char *order_of(const queue_state *state) {
    int32_t forwards[NUM_BLOCKS];
    int32_t num_blocks = 0;
    pkv_block_id block = state->links[0].next;

    for (; block != 0; block = state->links[block].next) {
        assert_true(num_blocks < NUM_BLOCKS);
        assert_true(pkvi_free_queue_contains(&state->queue, block));
        forwards[num_blocks++] = block;
    }
    assert_int_equal(num_blocks, state->queue.num_free);
    block = state->links[0].previous;
    for (int32_t i = num_blocks - 1; i >= 0; i--) {
        assert_int_equal(block, forwards[i]);
        block = state->links[block].previous;
    }
    assert_int_equal(block, 0);
    return ids_text(forwards, num_blocks);
}

/* A queue of 1..num_free, with room for the blocks up to NUM_BLOCKS - 1. */
static void make_queue(queue_state *state, int32_t num_free) {
    pkvi_free_queue_init(&state->queue, state->links, num_free + 1);
    for (int32_t block = num_free + 1; block < NUM_BLOCKS; block++) {
        state->links[block] = (struct pkvi_links){PKVI_NO_LINK, PKVI_NO_LINK};
    }
}

static void append_all(queue_state *state, const char *blocks) {
    const prompt *list = prompt_of("%s", blocks);

    for (int32_t i = 0; i < list->num_tokens; i++) {
        pkvi_free_queue_append(&state->queue, list->token_ids[i]);
    }
}

/* As freeing keyless blocks does: they join a chain, which goes in front as a whole. */
static void prepend_all(queue_state *state, const char *blocks) {
    const prompt *list = prompt_of("%s", blocks);
    struct pkvi_free_chain chain = {0, 0, 0};

    for (int32_t i = 0; i < list->num_tokens; i++) {
        pkvi_free_chain_join(&state->queue, &chain, list->token_ids[i]);
    }
    pkvi_free_queue_prepend(&state->queue, &chain);
}

static const char *pop(queue_state *state, int32_t count) {
    pkv_block_id block_ids[NUM_BLOCKS];

    pkvi_free_queue_pop(&state->queue, count, block_ids);
    for (int32_t i = 0; i < count; i++) {
        assert_int_equal(state->links[block_ids[i]].next, PKVI_NO_LINK);
        assert_int_equal(state->links[block_ids[i]].previous, PKVI_NO_LINK);
        assert_false(pkvi_free_queue_contains(&state->queue, block_ids[i]));
    }
    return ids_text(block_ids, count);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void free_queue_init_one_block_is_head_and_tail(void **unused) {
    queue_state state;

    (void)unused;
    make_queue(&state, 1);
    assert_int_equal(state.queue.num_free, 1);
    assert_int_equal(state.links[0].next, 1);
    assert_int_equal(state.links[0].previous, 1);
    assert_string_equal(order_of(&state), "1");
}

static void free_queue_init_no_block_is_empty(void **unused) {
    queue_state state;

    (void)unused;
    make_queue(&state, 0);
    assert_int_equal(state.queue.num_free, 0);
    assert_string_equal(order_of(&state), "");
}

static void free_queue_operations_keep_order(void **unused) {
    queue_state state;

    (void)unused;
    make_queue(&state, 5);
    assert_string_equal(pop(&state, 1), "1");
    assert_int_equal(state.queue.num_free, 4);

    pkvi_free_queue_remove(&state.queue, 3);
    assert_int_equal(state.links[2].next, 4);
    assert_int_equal(state.links[4].previous, 2);

    pkvi_free_queue_append(&state.queue, 3);
    assert_int_equal(state.links[5].next, 3);
    assert_int_equal(state.links[0].previous, 3);
    assert_string_equal(order_of(&state), "2 4 5 3");

    assert_string_equal(pop(&state, 4), "2 4 5 3");
    assert_int_equal(state.queue.num_free, 0);
    assert_string_equal(order_of(&state), "");
}

static void free_queue_remove_ends_keeps_order(void **unused) {
    queue_state state;

    (void)unused;
    make_queue(&state, 5);
    pkvi_free_queue_remove(&state.queue, 1);
    pkvi_free_queue_remove(&state.queue, 5);
    assert_string_equal(order_of(&state), "2 3 4");
    pkvi_free_queue_remove(&state.queue, 3);
    pkvi_free_queue_remove(&state.queue, 2);
    pkvi_free_queue_remove(&state.queue, 4);
    assert_string_equal(order_of(&state), "");
}

static void free_queue_append_many_keeps_list_order(void **unused) {
    queue_state state;

    (void)unused;
    make_queue(&state, 6);
    pop(&state, 6);
    append_all(&state, "");
    assert_string_equal(order_of(&state), "");
    append_all(&state, "1");
    assert_string_equal(order_of(&state), "1");
    append_all(&state, "5 6");
    assert_string_equal(order_of(&state), "1 5 6");
    append_all(&state, "2 3 4");
    assert_string_equal(order_of(&state), "1 5 6 2 3 4");
}

static void free_queue_prepend_many_keeps_list_order(void **unused) {
    queue_state state;

    (void)unused;
    make_queue(&state, 1);
    prepend_all(&state, "");
    assert_string_equal(order_of(&state), "1");
    prepend_all(&state, "5 6");
    assert_string_equal(order_of(&state), "5 6 1");
    prepend_all(&state, "2 3");
    assert_string_equal(order_of(&state), "2 3 5 6 1");
    assert_string_equal(pop(&state, 1), "2");
    assert_string_equal(pop(&state, 1), "3");
    assert_string_equal(pop(&state, 3), "5 6 1");
}

static void free_queue_prepend_into_empty_keeps_list_order(void **unused) {
    queue_state state;

    (void)unused;
    make_queue(&state, 0);
    prepend_all(&state, "4 2 6");
    assert_string_equal(order_of(&state), "4 2 6");
}

static void free_queue_pop_many_clears_links(void **unused) {
    queue_state state;

    (void)unused;
    make_queue(&state, 0);
    append_all(&state, "2 4 6 5 1 3");
    assert_string_equal(pop(&state, 0), "");
    assert_string_equal(order_of(&state), "2 4 6 5 1 3");
    assert_string_equal(pop(&state, 1), "2");
    assert_string_equal(pop(&state, 2), "4 6");
    assert_string_equal(order_of(&state), "5 1 3");
    assert_string_equal(pop(&state, 3), "5 1 3");
    assert_int_equal(state.queue.num_free, 0);
    assert_string_equal(order_of(&state), "");
}

static void free_queue_read_whole_after_changes_shows_order(void **unused) {
    queue_state state;

    (void)unused;
    make_queue(&state, 5);
    assert_string_equal(order_of(&state), "1 2 3 4 5");
    pop(&state, 1);
    pkvi_free_queue_remove(&state.queue, 3);
    pkvi_free_queue_append(&state.queue, 3);
    assert_string_equal(order_of(&state), "2 4 5 3");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(free_queue_init_one_block_is_head_and_tail),
        cmocka_unit_test(free_queue_init_no_block_is_empty),
        cmocka_unit_test(free_queue_operations_keep_order),
        cmocka_unit_test(free_queue_remove_ends_keeps_order),
        cmocka_unit_test(free_queue_append_many_keeps_list_order),
        cmocka_unit_test(free_queue_prepend_many_keeps_list_order),
        cmocka_unit_test(free_queue_prepend_into_empty_keeps_list_order),
        cmocka_unit_test(free_queue_pop_many_clears_links),
        cmocka_unit_test(free_queue_read_whole_after_changes_shows_order),
    };

    return cmocka_run_group_tests_name("free queue", tests, NULL, NULL);
}
