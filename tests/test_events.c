/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Goal: whoever replays the events knows exactly which keys are findable, and can fill in what a
 * message to a router needs. Method: the event cases of vLLM V1 by hand, then a seeded run of a
 * small engine whose events are replayed into a table that must equal the pool's. */
#include "support/fixture.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MAX_EVENTS 4096

static pkv_event events[MAX_EVENTS];

/* ---- helpers --------------------------------------------------------------------------------- */

static pkv_manager_config config_with_events(int32_t num_blocks, int32_t block_size) {
    pkv_manager_config config = small_config(num_blocks, block_size);

    config.event_capacity = MAX_EVENTS;
    return config;
}

static pkv_manager *make_manager_with_events(int32_t num_blocks, int32_t block_size) {
    pkv_manager_config config = config_with_events(num_blocks, block_size);

    return make_manager(&config);
}

static int32_t count_type(pkv_event_type type, int32_t num_events) {
    int32_t count = 0;

    for (int32_t i = 0; i < num_events; i++) {
        count += events[i].type == type ? 1 : 0;
    }
    return count;
}

/* ---- stored, removed, cleared ---------------------------------------------------------------- */

/* Store `num_blocks` blocks into a pool of just so many, again after a free, then clear. */
static void store_remove_clear(int32_t num_blocks) {
    pkv_manager *manager = make_manager_with_events(num_blocks + 1, 16);
    pkv_request first = open_prompt(manager, "0..%d", num_blocks * 16 - 1);
    pkv_request second = open_prompt(manager, "0..%d", num_blocks * 16 - 1);
    pkv_block_key keys[16];

    assert_int_equal(pkv_request_get_keys(manager, first, 0, num_blocks, keys), PKV_OK);
    assert_int_equal(allocate(manager, first, 0, num_blocks * 16), PKV_OK);
    assert_int_equal(take_events(manager, events, MAX_EVENTS), num_blocks);
    for (int32_t i = 0; i < num_blocks; i++) {
        assert_int_equal(events[i].type, PKV_EVENT_BLOCK_STORED);
        assert_int_equal(events[i].call_index, events[0].call_index);
        assert_int_equal(events[i].sequence_number, events[0].sequence_number + (uint64_t)i);
        assert_int_equal(events[i].num_keys, 1);
        assert_int_equal(events[i].block_id, 1 + i);
        assert_true(keys_are_equal(events[i].key, keys[i]));
        assert_false(events[i].has_parent);
        assert_int_equal(events[i].first_token, 0);
        assert_int_equal(events[i].num_tokens, num_blocks * 16);
        assert_int_equal(events[i].remaining_copies, 1);
        assert_memory_equal(&events[i].request, &first, sizeof first);
    }

    /* Without a lookup, so that each block is evicted and then stored again. */
    end_request(manager, first);
    assert_int_equal(allocate(manager, second, 0, num_blocks * 16), PKV_OK);
    assert_int_equal(take_events(manager, events, MAX_EVENTS), 2 * num_blocks);
    for (int32_t i = 0; i < num_blocks; i++) {
        assert_int_equal(events[i].type, PKV_EVENT_BLOCK_REMOVED);
        assert_true(keys_are_equal(events[i].key, keys[num_blocks - 1 - i]));
        assert_int_equal(events[i].num_keys, 1);
        assert_int_equal(events[i].remaining_copies, 0);
        assert_int_equal(events[i].request.generation, 0);
        assert_int_equal(events[num_blocks + i].type, PKV_EVENT_BLOCK_STORED);
        assert_int_equal(events[num_blocks + i].call_index, events[num_blocks].call_index);
    }

    end_request(manager, second);
    assert_int_equal(pkv_reset_prefix_cache(manager), PKV_OK);
    assert_int_equal(take_events(manager, events, MAX_EVENTS), 1);
    assert_int_equal(events[0].type, PKV_EVENT_ALL_BLOCKS_CLEARED);
}

static void events_of_two_three_and_ten_blocks_store_remove_and_clear(void **state) {
    (void)state;
    store_remove_clear(2);
    store_remove_clear(3);
    store_remove_clear(10);
}

static void events_parent_is_the_requests_own_key_even_where_the_block_lost_it(void **state) {
    pkv_manager *manager = make_manager_with_events(11, 16);
    pkv_request request = open_prompt(manager, "0..31");
    pkv_block_key keys[3];

    (void)state;
    assert_int_equal(allocate(manager, request, 0, 32), PKV_OK);
    evict_columns(manager, request, 0, "1");
    take_events(manager, events, MAX_EVENTS);

    append_tokens(manager, request, "32..47");
    assert_int_equal(allocate(manager, request, 32, 16), PKV_OK);
    assert_int_equal(pkv_request_get_keys(manager, request, 0, 3, keys), PKV_OK);
    assert_int_equal(take_events(manager, events, MAX_EVENTS), 1);
    assert_true(events[0].has_parent);
    assert_true(keys_are_equal(events[0].parent_key, keys[1]));
    assert_true(keys_are_equal(events[0].key, keys[2]));
    assert_int_equal(events[0].first_token, 32);
    assert_int_equal(events[0].num_tokens, 16);
}

static void events_parent_of_a_window_may_be_a_null_block(void **state) {
    const pkv_group_config group = window_group(4, 4);
    pkv_manager_config config = config_with_events(21, 4);
    pkv_manager *manager;
    pkv_request first, second;
    pkv_block_key keys[4];

    (void)state;
    config.groups = &group;
    config.num_groups = 1;
    manager = make_manager(&config);
    first = open_prompt(manager, "0..8");
    admit(manager, first);
    second = open_prompt(manager, "0..8 9..14");
    assert_int_equal(find_hit(manager, second), 8);
    assert_string_equal(hit_text(manager, second, 0), "0 2");
    take_events(manager, events, MAX_EVENTS);

    admit(manager, second);
    assert_int_equal(pkv_request_get_keys(manager, second, 0, 3, keys), PKV_OK);
    assert_int_equal(take_events(manager, events, MAX_EVENTS), 1);
    assert_true(keys_are_equal(events[0].parent_key, keys[1]));
    assert_int_equal(events[0].first_token, 8);
    assert_int_equal(events[0].num_tokens, 4);
}

static void events_skipped_blocks_count_in_tokens_not_in_keys(void **state) {
    pkv_group_config groups[] = {window_group(8, 8), full_group(32)};
    pkv_manager_config config = config_with_events(41, 8);
    pkv_manager *manager;
    int32_t num_stored = 0;

    (void)state;
    config.groups = groups;
    config.num_groups = 2;
    manager = make_manager(&config);
    /* The window publishes one block of four, and says so for all 64 tokens. */
    admit(manager, open_prompt(manager, "0..63"));
    for (int32_t i = 0, count = take_events(manager, events, MAX_EVENTS); i < count; i++) {
        if (events[i].group == 0) {
            num_stored++;
            assert_int_equal(events[i].num_tokens, 64);
        }
    }
    assert_int_equal(num_stored, 2);

    /* One that publishes none still gives an event, as vLLM V1 sends a message without hashes. */
    groups[0].retention_interval = PKV_RETENTION_TAIL_ONLY;
    manager = make_manager(&config);
    admit(manager, open_prompt(manager, "0..31"));
    num_stored = 0;
    for (int32_t i = 0, count = take_events(manager, events, MAX_EVENTS); i < count; i++) {
        if (events[i].group == 0) {
            num_stored++;
            assert_int_equal(events[i].type, PKV_EVENT_BLOCK_STORED);
            assert_int_equal(events[i].num_keys, 0);
            assert_int_equal(events[i].num_tokens, 32);
        }
    }
    assert_int_equal(num_stored, 1);
}

static void events_carry_the_adapter(void **state) {
    pkv_manager *manager = make_manager_with_events(11, 16);
    const pkv_request_args adapted = {.adapter_id = 42};

    (void)state;
    admit(manager, open_prompt_as(manager, &adapted, "0..15"));
    admit(manager, open_prompt(manager, "0..15"));
    assert_int_equal(take_events(manager, events, MAX_EVENTS), 2);
    assert_int_equal(events[0].adapter_id, 42);
    assert_int_equal(events[1].adapter_id, 0);
}

static void events_carry_the_group(void **state) {
    const pkv_group_config groups[] = {full_group(16), window_group(16, 32)};
    pkv_manager_config config = config_with_events(5, 16);
    pkv_manager *manager;
    pkv_request request;

    (void)state;
    config.groups = groups;
    config.num_groups = 2;
    manager = make_manager(&config);
    request = open_prompt(manager, "0..31");
    admit(manager, request);
    assert_int_equal(take_events(manager, events, MAX_EVENTS), 4);
    assert_int_equal(events[0].group, 0);
    assert_int_equal(events[1].group, 0);
    assert_int_equal(events[2].group, 1);
    assert_int_equal(events[3].group, 1);
    assert_true(events[1].call_index != events[2].call_index);
    assert_true(keys_are_equal(events[0].key, events[2].key));

    end_request(manager, request);
    admit(manager, open_prompt(manager, "100..131"));
    assert_int_equal(take_events(manager, events, MAX_EVENTS), 8);
    assert_int_equal(count_type(PKV_EVENT_BLOCK_REMOVED, 8), 4);
    for (int32_t i = 0; i < 8; i++) {
        if (events[i].type == PKV_EVENT_BLOCK_REMOVED) {
            assert_int_equal(events[i].group, events[i].block_id <= 2 ? 0 : 1);
        }
    }
}

static void events_of_a_hit_are_none(void **state) {
    pkv_manager *manager = make_manager_with_events(11, 16);

    (void)state;
    admit(manager, open_prompt(manager, COMMON " 7*3"));
    take_events(manager, events, MAX_EVENTS);
    assert_int_equal(admit(manager, open_prompt(manager, COMMON " 5*3")), 48);
    assert_int_equal(take_events(manager, events, MAX_EVENTS), 0);
}

static void events_of_copies_say_how_many_are_left(void **state) {
    pkv_manager *manager = make_manager_with_events(11, 16);
    const pkv_request_args skip = {.skip_cache_read = true};
    pkv_request first = open_prompt(manager, "0..15");
    pkv_request second = open_prompt_as(manager, &skip, "0..15");

    (void)state;
    admit(manager, first);
    admit(manager, second);
    assert_int_equal(take_events(manager, events, MAX_EVENTS), 2);
    assert_int_equal(events[0].remaining_copies, 1);
    assert_int_equal(events[1].remaining_copies, 2);

    evict_columns(manager, first, 0, "0");
    evict_columns(manager, second, 0, "0");
    evict_columns(manager, second, 0, "0");
    assert_int_equal(take_events(manager, events, MAX_EVENTS), 2);
    assert_int_equal(events[0].type, PKV_EVENT_BLOCK_REMOVED);
    assert_int_equal(events[0].remaining_copies, 1);
    assert_int_equal(events[1].remaining_copies, 0);
}

static void events_of_a_failed_step_take_the_keys_back(void **state) {
    pkv_manager *manager = make_manager_with_events(11, 16);

    (void)state;
    admit_in_step(manager, open_prompt(manager, COMMON " 7*3"), 1);
    assert_int_equal(take_events(manager, events, MAX_EVENTS), 3);
    assert_int_equal(pkv_step_fail(manager, 1), PKV_OK);
    assert_int_equal(take_events(manager, events, MAX_EVENTS), 3);
    assert_int_equal(count_type(PKV_EVENT_BLOCK_REMOVED, 3), 3);
}

/* ---- the ring -------------------------------------------------------------------------------- */

static void events_beyond_the_ring_are_dropped_counted_and_leave_a_gap(void **state) {
    pkv_manager_config config = config_with_events(11, 4);
    pkv_manager *manager;
    int32_t num_events;
    uint64_t num_dropped;

    (void)state;
    config.event_capacity = 3;
    manager = make_manager(&config);
    admit(manager, open_prompt(manager, "0..19"));
    assert_int_equal(pkv_take_events(manager, events, 2, &num_events, &num_dropped), PKV_MORE);
    assert_int_equal(num_events, 2);
    assert_int_equal(num_dropped, 2);
    assert_int_equal(events[0].sequence_number, 0);
    assert_int_equal(pkv_take_events(manager, events, 2, &num_events, &num_dropped), PKV_OK);
    assert_int_equal(num_events, 1);
    assert_int_equal(num_dropped, 0);
    assert_int_equal(events[0].sequence_number, 2);

    admit(manager, open_prompt(manager, "100..103"));
    assert_int_equal(pkv_take_events(manager, events, 2, &num_events, NULL), PKV_OK);
    assert_int_equal(events[0].sequence_number, 5);
    assert_int_equal(stats_of(manager).num_events_dropped, 2);
}

static void events_off_are_none(void **state) {
    pkv_manager *manager = make_small_manager(11, 4);

    (void)state;
    admit(manager, open_prompt(manager, "0..19"));
    assert_int_equal(take_events(manager, events, MAX_EVENTS), 0);
    assert_int_equal(stats_of(manager).num_events_dropped, 0);
}

static void events_token_ids_are_read_through_the_request(void **state) {
    pkv_manager *manager = make_manager_with_events(11, 4);
    pkv_request request = open_prompt(manager, "7 8 9 10 11 12 13 14 15");
    int32_t token_ids[8];

    (void)state;
    admit(manager, request);
    assert_int_equal(pkv_free(manager, request), PKV_OK);
    assert_int_equal(take_events(manager, events, MAX_EVENTS), 2);
    assert_int_equal(pkv_request_get_tokens(manager, events[0].request, events[0].first_token,
                                            events[0].num_tokens, token_ids),
                     PKV_OK);
    assert_string_equal(ids_text(token_ids, events[0].num_tokens), "7 8 9 10 11 12 13 14");
    assert_int_equal(pkv_request_close(manager, request), PKV_OK);
    assert_int_equal(pkv_request_get_tokens(manager, events[0].request, 0, 8, token_ids),
                     PKV_ERROR_STALE_HANDLE);
}

static void events_of_a_pool_alone_have_no_request(void **state) {
    const pkv_pool_config config = {
        .struct_size = sizeof config, .num_blocks = 6, .block_size = 4, .event_capacity = 8};
    pkv_pool *pool = make_pool(&config);
    pkv_block_id block_ids[2];
    pkv_block_key keys[2];
    int32_t num_events;

    (void)state;
    assert_int_equal(compute_keys(keys, 4, "0..7"), 2);
    assert_int_equal(pkv_pool_get_new_blocks(pool, 2, block_ids), PKV_OK);
    assert_int_equal(pkv_pool_cache_blocks(pool, 0, block_ids, keys, NULL, 2), PKV_OK);
    assert_int_equal(pkv_pool_evict_blocks(pool, block_ids, 1), PKV_OK);
    assert_int_equal(pkv_pool_take_events(pool, events, 8, &num_events, NULL), PKV_OK);
    assert_int_equal(num_events, 3);
    assert_int_equal(events[0].request.generation, 0);
    assert_int_equal(events[0].num_tokens, 8);
    assert_true(keys_are_equal(events[1].key, keys[1]));
    assert_int_equal(events[2].type, PKV_EVENT_BLOCK_REMOVED);
    assert_true(keys_are_equal(events[2].key, keys[0]));
}

/* ---- messages of vLLM's form ----------------------------------------------------------------- */

#define MAX_MESSAGES_SIZE 4096

/* The 64-bit form of a key: the low 64 bits of its digest read as a big-endian number. */
static uint64_t integer_key(pkv_block_key key) {
    return key.hash_low;
}

/* Group events into messages as docs/events.md says: the stored events of one call are one message,
 * all others stand alone. One line a message: type, group, parent, hashes, number of tokens. */
static const char *messages_of(const pkv_event *list, int32_t num_events) {
    static char text[MAX_MESSAGES_SIZE];
    size_t size = 0;

    for (int32_t i = 0; i < num_events;) {
        const pkv_event *first = &list[i];
        static const char *const names[] = {"", "BlockStored", "BlockRemoved", "AllBlocksCleared"};

        size += (size_t)snprintf(text + size, sizeof text - size, "%s", names[first->type]);
        if (first->type == PKV_EVENT_BLOCK_STORED) {
            size += (size_t)snprintf(text + size, sizeof text - size, " parent=%" PRIx64,
                                     first->has_parent ? integer_key(first->parent_key) : 0);
        }
        for (; i < num_events && list[i].call_index == first->call_index; i++) {
            if (list[i].num_keys == 1) {
                size += (size_t)snprintf(text + size, sizeof text - size, " %" PRIx64,
                                         integer_key(list[i].key));
            }
        }
        size +=
            (size_t)snprintf(text + size, sizeof text - size, " tokens=%d\n", first->num_tokens);
        assert_true(size < sizeof text);
    }
    return text;
}

static void events_of_one_call_make_one_message(void **state) {
    pkv_manager *manager = make_manager_with_events(5, 4);
    pkv_request first = open_prompt(manager, "0..8");
    pkv_request second = open_prompt(manager, "0..8 9 10 11");
    const pkv_event *list = events;
    pkv_block_key keys[3];
    char expected[512];

    (void)state;
    assert_int_equal(pkv_request_get_keys(manager, second, 0, 3, keys), PKV_OK);
    admit(manager, first);
    admit(manager, second);
    end_request(manager, first);
    end_request(manager, second);
    admit(manager, open_prompt(manager, "50..52"));
    (void)snprintf(expected, sizeof expected,
                   "BlockStored parent=0 %" PRIx64 " %" PRIx64 " tokens=8\n"
                   "BlockStored parent=%" PRIx64 " %" PRIx64 " tokens=4\n",
                   keys[0].hash_low, keys[1].hash_low, keys[1].hash_low, keys[2].hash_low);
    assert_string_equal(messages_of(list, take_events(manager, events, MAX_EVENTS)), expected);

    /* The only keyless block is in use: the next one handed out is the end of the prefix. */
    admit(manager, open_prompt(manager, "60 61"));
    (void)snprintf(expected, sizeof expected, "BlockRemoved %" PRIx64 " tokens=0\n",
                   keys[2].hash_low);
    assert_string_equal(messages_of(list, take_events(manager, events, MAX_EVENTS)), expected);
}

/* ---- replay ---------------------------------------------------------------------------------- */

typedef struct replica {
    bool is_keyed[64];
    int32_t group[64];
    pkv_block_key key[64];
    uint64_t next_sequence;
} replica;

static int32_t replica_copies(const replica *copy, int32_t group, pkv_block_key key) {
    int32_t count = 0;

    for (int32_t block = 0; block < 64; block++) {
        count += copy->is_keyed[block] && copy->group[block] == group &&
                 keys_are_equal(copy->key[block], key);
    }
    return count;
}

static void replica_apply(replica *copy, const pkv_event *event) {
    assert_int_equal(event->sequence_number, copy->next_sequence++);
    if (event->type == PKV_EVENT_ALL_BLOCKS_CLEARED) {
        memset(copy->is_keyed, 0, sizeof copy->is_keyed);
        return;
    }
    if (event->num_keys == 0) {
        return;
    }
    assert_in_range(event->block_id, 1, 63);
    assert_int_equal(copy->is_keyed[event->block_id], event->type == PKV_EVENT_BLOCK_REMOVED);
    copy->is_keyed[event->block_id] = event->type == PKV_EVENT_BLOCK_STORED;
    copy->group[event->block_id] = event->group;
    copy->key[event->block_id] = event->key;
    assert_int_equal(event->remaining_copies, replica_copies(copy, event->group, event->key));
}

static void replica_update_and_compare(replica *copy, pkv_manager *manager) {
    int32_t num_events = take_events(manager, events, MAX_EVENTS);

    for (int32_t i = 0; i < num_events; i++) {
        replica_apply(copy, &events[i]);
    }
    for (pkv_block_id block = 1; block < 40; block++) {
        pkv_block_info info = manager_block_of(manager, block);

        assert_int_equal(info.is_keyed, copy->is_keyed[block]);
        assert_true(!info.is_keyed || keys_are_equal(info.key, copy->key[block]));
        assert_true(!info.is_keyed || info.group == copy->group[block]);
    }
}

static void events_replayed_give_the_set_of_findable_blocks(void **state) {
    const pkv_group_config groups[] = {full_group(4), window_group(4, 8)};
    pkv_manager_config config = config_with_events(40, 4);
    static replica copy;
    pkv_manager *manager;
    uint64_t seed = 11;

    (void)state;
    memset(&copy, 0, sizeof copy);
    config.groups = groups;
    config.num_groups = 2;
    manager = make_manager(&config);
    for (uint64_t round = 1; round < 2000; round++) {
        pkv_request request;
        int32_t num_tokens;

        seed = seed * UINT64_C(6364136223846793005) + 1;
        num_tokens = 1 + (int32_t)(seed >> 40) % 40;
        request = open_prompt(manager, "%d*%d %d", num_tokens, (int32_t)(seed >> 50) % 3,
                              (int32_t)round % 11);
        if (seed >> 62 == 0) {
            assert_int_equal(allocate_in_step(manager, request, 0, num_tokens, round), PKV_OK);
        } else {
            admit_in_step(manager, request, round);
        }
        if (round % 5 == 0) {
            assert_int_equal(pkv_step_fail(manager, round), PKV_OK);
        }
        replica_update_and_compare(&copy, manager);
        end_request(manager, request);
        assert_int_equal(pkv_step_complete(manager, round), PKV_OK);
        if (round % 301 == 0) {
            assert_int_equal(pkv_reset_prefix_cache(manager), PKV_OK);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        fixture_test(events_of_two_three_and_ten_blocks_store_remove_and_clear),
        fixture_test(events_parent_is_the_requests_own_key_even_where_the_block_lost_it),
        fixture_test(events_parent_of_a_window_may_be_a_null_block),
        fixture_test(events_skipped_blocks_count_in_tokens_not_in_keys),
        fixture_test(events_carry_the_adapter),
        fixture_test(events_carry_the_group),
        fixture_test(events_of_a_hit_are_none),
        fixture_test(events_of_copies_say_how_many_are_left),
        fixture_test(events_of_a_failed_step_take_the_keys_back),
        fixture_test(events_beyond_the_ring_are_dropped_counted_and_leave_a_gap),
        fixture_test(events_off_are_none),
        fixture_test(events_token_ids_are_read_through_the_request),
        fixture_test(events_of_a_pool_alone_have_no_request),
        fixture_test(events_of_one_call_make_one_message),
        fixture_test(events_replayed_give_the_set_of_findable_blocks),
    };

    return cmocka_run_group_tests_name("events", tests, NULL, NULL);
}
