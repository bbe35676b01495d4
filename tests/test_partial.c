/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Hits that go on into a block: how far, from whom, and what a copy that waits does to everything
 * else. Contents of slots are followed on a mirror device. */
#include <pagedkv/sharing.h>

#include <string.h>

#include "support/mirror_device.h"

#define assert_ok(call) assert_int_equal(call, PKV_OK)

static pkv_manager_config partial_config(int32_t num_blocks, int32_t block_size, int32_t least) {
    pkv_manager_config config = small_config(num_blocks, block_size);

    config.max_rows = MAX_ROWS - 1;
    config.max_model_len = 256;
    config.store_tokens = true;
    config.min_partial_tokens = least;
    return config;
}

static pkv_manager *make_partial_manager(int32_t num_blocks, int32_t block_size, int32_t least) {
    pkv_manager_config config = partial_config(num_blocks, block_size, least);

    return make_manager(&config);
}

static pkv_manager *make_two_groups(int32_t num_blocks, const pkv_group_config *groups) {
    pkv_manager_config config = partial_config(num_blocks, 4, 1);

    config.groups = groups;
    config.num_groups = 2;
    return make_manager(&config);
}

/* A prompt that is computed by a step of its own, and gone. */
static void cache_as(pkv_manager *manager, pkv_request_args args, uint64_t step, const char *text) {
    pkv_request request;

    args.struct_size = sizeof args;
    request = open_prompt_as(manager, &args, "%s", text);
    (void)admit_in_step(manager, request, step);
    assert_ok(pkv_step_complete(manager, step));
    assert_ok(pkv_take_copies(manager, 0, (pkv_block_copy[4]){{0, 0}}, 4, &(int32_t){0}));
    end_request(manager, request);
}

static void cache_prompt(pkv_manager *manager, uint64_t step, const char *text) {
    cache_as(manager, (pkv_request_args){0}, step, text);
}

static const char *copies_text(pkv_manager *manager) {
    pkv_block_copy copies[8];
    int32_t ids[16];
    int32_t count = 0;

    assert_ok(pkv_take_copies(manager, 0, copies, 8, &count));
    for (int32_t i = 0; i < count; i++) {
        ids[2 * i] = copies[i].source;
        ids[2 * i + 1] = copies[i].target;
    }
    return ids_text(ids, 2 * count);
}

/* ---- configuration --------------------------------------------------------------------------- */

static pkv_status check(const pkv_manager_config *config) {
    const char *reason = "";
    pkv_status status = pkv_manager_config_check(config, &reason);

    assert_true((status == PKV_OK) == (reason[0] == '\0'));
    return status;
}

static void what_cannot_be_right_is_refused_at_create(void **state) {
    pkv_group_config groups[2] = {full_group(4), window_group(4, 6)};
    pkv_manager_config config = partial_config(20, 4, 3);

    (void)state;
    assert_int_equal(check(&config), PKV_OK);
    config.min_partial_tokens = 4;
    assert_int_equal(check(&config), PKV_ERROR_INVALID_ARGUMENT);
    config.min_partial_tokens = -1;
    assert_int_equal(check(&config), PKV_ERROR_INVALID_ARGUMENT);
    config = partial_config(20, 4, 1);
    config.store_tokens = false;
    assert_int_equal(check(&config), PKV_ERROR_INVALID_ARGUMENT);
    config = partial_config(20, 4, 1);
    config.disable_prefix_cache = true;
    assert_int_equal(check(&config), PKV_ERROR_INVALID_ARGUMENT);
    config = partial_config(20, 4, 1);
    config.zero_on_free = true;
    assert_int_equal(check(&config), PKV_ERROR_UNSUPPORTED);
    config = partial_config(20, 4, 1);
    config.groups = groups;
    config.num_groups = 2;
    assert_int_equal(check(&config), PKV_OK);
    groups[1].eagle = true;
    assert_int_equal(check(&config), PKV_ERROR_UNSUPPORTED);
    groups[1] = window_group(8, 6);
    assert_int_equal(check(&config), PKV_ERROR_UNSUPPORTED);
}

/* ---- how far --------------------------------------------------------------------------------- */

static void hit_goes_on_into_the_block_that_starts_alike(void **state) {
    pkv_manager *manager = make_partial_manager(20, 4, 1);
    pkv_request request;
    pkv_slots slots = make_slots();
    pkv_slots_args args = slots_of(0, 2);

    (void)state;
    cache_prompt(manager, 1, "0..11"); /* blocks 1 2 3 */
    request = open_prompt(manager, "0..6 90 91");
    assert_int_equal(find_hit(manager, request), 7);
    assert_string_equal(hit_text(manager, request, 0), "1");
    args.num_new_computed_tokens = 7;
    assert_ok(pkv_allocate_slots(manager, request, &args, &slots));
    assert_int_equal(slots.num_copies, 1);
    assert_int_equal(slots.num_new_blocks, 2);
    assert_string_equal(table_text(manager, request, 0), "1 4 5");
    assert_string_equal(new_text(manager, request, 0), "4 5");
    assert_string_equal(copies_text(manager), "2 4");
    assert_int_equal(stats_of(manager).num_partial_hits, 1);
    assert_int_equal(stats_of(manager).num_partial_hit_tokens, 3);
    assert_int_equal(stats_of(manager).num_copies, 1);
}

static void last_token_is_always_computed(void **state) {
    pkv_manager *manager = make_partial_manager(20, 4, 1);

    (void)state;
    cache_prompt(manager, 1, "0..11");
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..7")), 7);
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..6")), 6);
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..4")), 4);
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..3")), 3);
    assert_int_equal(find_hit(manager, open_prompt(manager, "0")), 0);
}

static void fewer_tokens_than_the_least_are_not_copied(void **state) {
    pkv_manager *manager = make_partial_manager(20, 8, 3);

    (void)state;
    cache_prompt(manager, 1, "0..15");
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..9 90..99")), 8);
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..10 90..99")), 11);
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..1 90..99")), 0);
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..2 90..99")), 3);
}

static void longest_start_wins_and_among_equals_the_youngest(void **state) {
    pkv_manager *manager = make_partial_manager(30, 4, 1);
    pkv_request request;

    (void)state;
    cache_prompt(manager, 1, "0..3 4 5 60 61");
    cache_prompt(manager, 2, "0..3 4 70 71 72");
    cache_prompt(manager, 3, "0..3 4 5 80 81");
    request = open_prompt(manager, "0..3 4 5 90 91");
    assert_int_equal(admit_in_step(manager, request, 4), 6);
    assert_string_equal(copies_text(manager), "4 5");
    request = open_prompt(manager, "0..3 4 70 90 91");
    assert_int_equal(admit_in_step(manager, request, 4), 6);
    assert_string_equal(copies_text(manager), "3 6");
}

static void no_more_candidates_are_compared_than_promised(void **state) {
    pkv_manager *manager = make_partial_manager(200, 4, 1);
    uint64_t step = 1;

    (void)state;
    cache_prompt(manager, step++, "0..6 60");
    while (step <= PKV_MAX_PARTIAL_CANDIDATES) { /* the last block is made anew each time */
        cache_prompt(manager, step++, "0..3 7 7 7 7");
    }
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..6 90")), 7);
    cache_prompt(manager, step, "0..3 7 7 7 7");
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..6 90")), 4);
}

static void off_is_as_vllm(void **state) {
    pkv_manager *manager = make_partial_manager(20, 4, 0);
    pkv_request request;
    pkv_slots_args args = slots_of(0, 2);

    (void)state;
    cache_prompt(manager, 1, "0..11");
    request = open_prompt(manager, "0..6 90 91");
    assert_int_equal(find_hit(manager, request), 4);
    args.num_new_computed_tokens = 7;
    assert_int_equal(pkv_allocate_slots(manager, request, &args, NULL), PKV_NOT_FOUND);
}

/* ---- from whom ------------------------------------------------------------------------------- */

static void only_content_that_is_there_is_copied(void **state) {
    pkv_manager *manager = make_partial_manager(20, 4, 1);
    pkv_request writer = open_prompt(manager, "0..7");
    pkv_request reader = open_prompt(manager, "0..6 90");

    (void)state;
    (void)admit_in_step(manager, writer, 1);
    assert_int_equal(find_hit(manager, reader), 4); /* to be written by this very step */
    assert_ok(pkv_step_complete(manager, 1));
    assert_int_equal(find_hit(manager, reader), 7);
}

static void untracked_steps_make_no_sources_but_late_publication_does(void **state) {
    pkv_manager *manager = make_partial_manager(20, 4, 1);
    pkv_request early = open_prompt(manager, "0..7");
    pkv_request late = open_prompt(manager, "50..57");
    pkv_slots_args args = slots_of(0, 8);

    (void)state;
    (void)admit(manager, early);
    assert_ok(pkv_step_complete(manager, 1));
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..6 90")), 4);
    args.delay_caching = true;
    assert_ok(pkv_allocate_slots(manager, late, &args, NULL));
    assert_ok(pkv_cache_blocks(manager, late, 8));
    assert_int_equal(find_hit(manager, open_prompt(manager, "50..56 90")), 7);
}

static void failed_step_leaves_no_source(void **state) {
    pkv_manager *manager = make_partial_manager(20, 4, 1);
    pkv_request writer = open_prompt(manager, "0..7");

    (void)state;
    (void)admit_in_step(manager, writer, 1);
    assert_ok(pkv_step_fail(manager, 1));
    assert_ok(pkv_step_complete(manager, 1));
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..6 90")), 0);
}

static void evicted_or_forgotten_blocks_are_no_sources(void **state) {
    pkv_manager *manager = make_partial_manager(20, 4, 1);
    const pkv_block_id second = 2;

    (void)state;
    cache_prompt(manager, 1, "0..7");
    assert_ok(pkv_evict_blocks(manager, &second, 1));
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..6 90")), 4);
    cache_prompt(manager, 2, "0..7");
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..6 90")), 7);
    assert_ok(pkv_reset_prefix_cache(manager));
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..6 90")), 0);
}

static int32_t hit_as(pkv_manager *manager, pkv_request_args args, const char *text) {
    args.struct_size = sizeof args;
    return find_hit(manager, open_prompt_as(manager, &args, "%s", text));
}

static void adapter_salt_and_media_must_be_the_same(void **state) {
    pkv_manager *manager = make_partial_manager(60, 4, 1);
    pkv_media cat = {.offset = 1, .num_tokens = 2};
    pkv_media dog = cat;
    pkv_media later = {.offset = 3, .num_tokens = 1};
    pkv_request_args salted = {.salt = "a", .salt_size = 1};
    pkv_request_args pictured = {.media = &cat, .num_media = 1};

    (void)state;
    dog.digest[0] = 1;
    cache_as(manager, (pkv_request_args){.adapter_id = 7}, 1, "0..7");
    assert_int_equal(hit_as(manager, (pkv_request_args){.adapter_id = 7}, "0..2 90"), 3);
    assert_int_equal(hit_as(manager, (pkv_request_args){.adapter_id = 8}, "0..2 90"), 0);
    assert_int_equal(hit_as(manager, (pkv_request_args){0}, "0..2 90"), 0);
    cache_as(manager, salted, 2, "20..27");
    assert_int_equal(hit_as(manager, salted, "20..22 90"), 3);
    assert_int_equal(hit_as(manager, salted, "20..26 90"), 7);
    salted.salt = "b";
    assert_int_equal(hit_as(manager, salted, "20..22 90"), 0);
    assert_int_equal(hit_as(manager, (pkv_request_args){0}, "20..22 90"), 0);
    cache_as(manager, pictured, 3, "40..47");
    assert_int_equal(hit_as(manager, pictured, "40..42 90"), 3);
    assert_int_equal(hit_as(manager, (pkv_request_args){0}, "40..42 90"), 0);
    pictured.media = &dog;
    assert_int_equal(hit_as(manager, pictured, "40..42 90"), 0);
    /* An item that begins behind what would be copied: careful, not wrong. */
    pictured.media = &later;
    assert_int_equal(hit_as(manager, pictured, "20..22 90"), 0);
}

static void callers_keys_and_skipped_reads_do_without(void **state) {
    pkv_manager *manager = make_partial_manager(20, 4, 1);
    pkv_block_key keys[2];
    pkv_request request;

    (void)state;
    cache_prompt(manager, 1, "0..7");
    assert_int_equal(hit_as(manager, (pkv_request_args){.skip_cache_read = true}, "0..6 90"), 0);
    request = open_prompt_as(
        manager,
        &(pkv_request_args){.struct_size = sizeof(pkv_request_args), .has_caller_keys = true},
        "0..6 90 91");
    assert_int_equal(compute_keys(keys, 4, "0..6 90"), 2);
    assert_ok(pkv_request_append_keys(manager, request, keys, 2));
    assert_int_equal(find_hit(manager, request), 4);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static void source_waits_for_the_copy_and_goes_back(void **state) {
    pkv_manager *manager = make_partial_manager(20, 4, 1);
    pkv_request request = {0, 0};

    (void)state;
    cache_prompt(manager, 1, "0..7");
    request = open_prompt(manager, "0..6 90");
    (void)admit_in_step(manager, request, 2);
    assert_string_equal(refs_text(manager, 1, 3), "1 1 1");
    assert_string_equal(copies_text(manager), "2 3");
    assert_string_equal(refs_text(manager, 1, 3), "1 0 1");
    assert_string_equal(keyed_text(manager), "1 2 3");
}

static void freeing_or_aborting_the_request_cancels_the_copy(void **state) {
    pkv_manager *manager = make_partial_manager(20, 4, 1);
    pkv_request request;

    (void)state;
    cache_prompt(manager, 1, "0..7");
    request = open_prompt(manager, "0..6 90 91");
    (void)admit_in_step(manager, request, 2);
    assert_ok(pkv_unschedule(manager, request, 2));
    assert_ok(pkv_free(manager, request));
    assert_string_equal(copies_text(manager), "");
    assert_string_equal(refs_text(manager, 1, 4), "0 0 0 0");
    /* It comes back and finds the same. */
    assert_int_equal(admit_in_step(manager, request, 2), 7);
    assert_ok(pkv_request_close(manager, request));
    assert_string_equal(copies_text(manager), "");
}

static void request_taken_out_of_the_step_keeps_copy_and_blocks(void **state) {
    pkv_manager *manager = make_partial_manager(20, 4, 1);
    device target = make_device(0, 4, 0);
    pkv_request writer = open_prompt(manager, "0..7");
    pkv_request request = open_prompt(manager, "0..6 90 91");
    pkv_block_copy copy;
    int32_t count;

    (void)state;
    (void)admit_in_step(manager, writer, 1);
    run_step(&target, manager, (pkv_batch_entry[]){{writer, 0, 8}}, 1);
    assert_ok(pkv_step_complete(manager, 1));
    assert_int_equal(admit_in_step(manager, request, 2), 7);
    assert_ok(pkv_unschedule(manager, request, 2));
    assert_ok(allocate_in_step(manager, request, 7, 2, 3));
    assert_ok(pkv_take_copies(manager, 0, &copy, 1, &count));
    assert_int_equal(count, 1);
    memcpy(&target.slots[copy.target * 4], &target.slots[copy.source * 4], 4 * sizeof(int32_t));
    run_step(&target, manager, (pkv_batch_entry[]){{request, 7, 2}}, 1);
}

static void batch_waits_until_the_copy_was_taken(void **state) {
    pkv_manager *manager = make_partial_manager(20, 4, 1);
    pkv_batch batch = {.struct_size = sizeof batch, .max_requests = 1, .max_tokens = 8};
    pkv_request request;

    (void)state;
    cache_prompt(manager, 1, "0..7");
    request = open_prompt(manager, "0..6 90");
    (void)admit_in_step(manager, request, 2);
    assert_int_equal(pkv_batch_build(manager, 0, &(pkv_batch_entry){request, 7, 1}, 1, &batch),
                     PKV_ERROR_BUSY);
    assert_string_equal(copies_text(manager), "2 3");
    assert_ok(pkv_batch_build(manager, 0, &(pkv_batch_entry){request, 7, 1}, 1, &batch));
}

/* Blocks 1 and 2 cached, all others held. */
static pkv_manager *make_full_manager(void) {
    pkv_manager *manager = make_partial_manager(12, 4, 1);
    pkv_request other;

    cache_prompt(manager, 1, "0..7");
    other = open_prompt(manager, "36*5");
    (void)admit_in_step(manager, other, 2);
    assert_int_equal(num_free_blocks(manager), 2);
    return manager;
}

static void without_a_block_to_spare_the_source_itself_is_taken(void **state) {
    pkv_manager *manager = make_full_manager();
    pkv_request request = open_prompt(manager, "0..6 90");
    pkv_slots_args args = slots_of(0, 1);
    pkv_slots slots = make_slots();

    (void)state;
    assert_int_equal(find_hit(manager, request), 7);
    args.num_new_computed_tokens = 7;
    args.step = 3;
    assert_ok(pkv_allocate_slots(manager, request, &args, &slots));
    assert_string_equal(table_text(manager, request, 0), "1 2");
    assert_string_equal(new_text(manager, request, 0), "2");
    assert_int_equal(slots.num_new_blocks, 1);
    assert_int_equal(slots.num_copies, 0);
    assert_string_equal(copies_text(manager), "");
    assert_int_equal(num_free_blocks(manager), 0);
    /* Published anew, under its own content. */
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..6 90 91")), 8);
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..6 7 91")), 4);
}

static void partial_hit_is_refused_only_where_none_would_fit(void **state) {
    pkv_manager *manager = make_full_manager();
    pkv_request requests[1] = {open_prompt(manager, "0..6 90..94")}; /* three blocks, two free */
    pkv_slots_args args = slots_of(0, 5);
    pkv_slots slots = make_slots();
    const char *before;

    (void)state;
    assert_int_equal(find_hit(manager, requests[0]), 7);
    args.num_new_computed_tokens = 7;
    before = remember_state(manager, requests, 1);
    assert_int_equal(pkv_allocate_slots(manager, requests[0], &args, &slots), PKV_NO_FREE_BLOCKS);
    assert_int_equal(slots.num_missing_blocks, 1);
    assert_string_equal(state_text(manager, requests, 1), before);
    args.num_new_tokens = 1;
    assert_ok(pkv_allocate_slots(manager, requests[0], &args, &slots));
}

/* ---- calls that contradict ------------------------------------------------------------------- */

static void caller_may_round_down_but_not_up(void **state) {
    pkv_manager *manager = make_partial_manager(20, 4, 2);
    pkv_request request;
    pkv_slots_args args = slots_of(0, 1);

    (void)state;
    cache_prompt(manager, 1, "0..7");
    request = open_prompt(manager, "0..6 90");
    args.num_new_computed_tokens = 5; /* below the least */
    assert_int_equal(pkv_allocate_slots(manager, request, &args, NULL), PKV_NOT_FOUND);
    args.num_new_computed_tokens = 8;
    assert_int_equal(pkv_allocate_slots(manager, request, &args, NULL), PKV_NOT_FOUND);
    args.num_new_computed_tokens = 6;
    assert_ok(pkv_allocate_slots(manager, request, &args, NULL));
    assert_string_equal(copies_text(manager), "2 3");
    assert_ok(pkv_free(manager, request));
    args.num_new_computed_tokens = 4;
    assert_ok(pkv_allocate_slots(manager, request, &args, NULL));
    assert_string_equal(copies_text(manager), "");
}

static void source_that_went_since_the_lookup_is_not_found(void **state) {
    pkv_manager *manager = make_partial_manager(20, 4, 1);
    pkv_request requests[1];
    pkv_slots_args args = slots_of(0, 1);
    const pkv_block_id second = 2;
    const char *before;

    (void)state;
    cache_prompt(manager, 1, "0..7");
    requests[0] = open_prompt(manager, "0..6 90");
    args.num_new_computed_tokens = find_hit(manager, requests[0]);
    assert_int_equal(args.num_new_computed_tokens, 7);
    assert_ok(pkv_evict_blocks(manager, &second, 1));
    before = remember_state(manager, requests, 1);
    assert_int_equal(pkv_allocate_slots(manager, requests[0], &args, NULL), PKV_NOT_FOUND);
    assert_string_equal(state_text(manager, requests, 1), before);
}

static void loads_begin_at_a_block(void **state) {
    pkv_manager *manager = make_partial_manager(20, 4, 1);
    pkv_request request;
    pkv_slots_args args = slots_of(0, 1);

    (void)state;
    cache_prompt(manager, 1, "0..7");
    request = open_prompt(manager, "0..6 90..99");
    args.num_external_computed_tokens = 4;
    args.num_new_computed_tokens = 7;
    assert_int_equal(pkv_allocate_slots(manager, request, &args, NULL), PKV_ERROR_INVALID_ARGUMENT);
    args.num_new_computed_tokens = 4;
    assert_ok(pkv_allocate_slots(manager, request, &args, NULL));
}

/* ---- groups and sharing ---------------------------------------------------------------------- */

static void groups_agree_on_the_shorter_start(void **state) {
    pkv_group_config groups[2] = {full_group(4), window_group(4, 6)};
    pkv_manager *manager = make_two_groups(40, groups);
    pkv_request request;
    pkv_request other;
    pkv_slots_args args = slots_of(0, 1);
    pkv_slots slots = make_slots();

    (void)state;
    cache_as(manager, (pkv_request_args){0}, 1, "0..3 4 5 6 70");
    other = open_prompt(manager, "0..3 4 60 61 62");
    (void)admit_in_step(manager, other, 2);
    assert_ok(pkv_step_complete(manager, 2));
    for (int32_t g = 0; g < 2; g++) {
        int32_t count;
        (void)pkv_take_copies(manager, g, (pkv_block_copy[4]){{0, 0}}, 4, &count);
    }
    request = open_prompt(manager, "0..3 4 5 6 90");
    assert_int_equal(find_hit(manager, request), 7);
    { /* Take the better one away in the window's group alone. */
        pkv_request probe = open_prompt(manager, "0..3 4 5 6 70 71");
        pkv_block_id ids[2];
        int32_t count;
        assert_ok(pkv_get_computed_block_ids(manager, probe, 1, ids, 2, &count));
        assert_ok(pkv_evict_blocks(manager, &ids[1], 1));
    }
    assert_int_equal(find_hit(manager, request), 5);
    args.num_new_computed_tokens = 5;
    args.num_new_tokens = 3;
    assert_ok(pkv_allocate_slots(manager, request, &args, &slots));
    assert_int_equal(slots.num_copies, 2);
}

static void what_is_to_spare_is_shared_by_the_groups(void **state) {
    pkv_group_config groups[2] = {full_group(4), full_group(4)};
    pkv_manager *manager = make_two_groups(6, groups);
    pkv_request request;
    pkv_slots_args args = slots_of(0, 1);
    pkv_slots slots = make_slots();

    (void)state;
    cache_prompt(manager, 1, "0..7"); /* four blocks; one is left */
    request = open_prompt(manager, "0..6 90");
    args.num_new_computed_tokens = find_hit(manager, request);
    assert_int_equal(args.num_new_computed_tokens, 7);
    assert_ok(pkv_allocate_slots(manager, request, &args, &slots));
    assert_int_equal(slots.num_copies, 1);
    assert_int_equal(slots.num_new_blocks, 2);
    assert_int_equal(num_free_blocks(manager), 0);
    assert_int_equal(stats_of(manager).num_blocks_evicted, 1);
}

static void fork_behind_a_waiting_copy_reads_where_it_reads(void **state) {
    pkv_manager *manager = make_partial_manager(20, 4, 1);
    device target = make_device(0, 4, 0);
    pkv_request writer = open_prompt(manager, "0..7");
    pkv_request request = open_prompt(manager, "0..5 90");
    pkv_request child;
    pkv_block_copy copies[2];
    int32_t count;

    (void)state;
    (void)admit_in_step(manager, writer, 1);
    run_step(&target, manager, (pkv_batch_entry[]){{writer, 0, 8}}, 1);
    assert_ok(pkv_step_complete(manager, 1));
    assert_int_equal(admit_in_step(manager, request, 2), 6);
    assert_ok(pkv_fork(manager, request, 6, &child));
    assert_ok(allocate_in_step(manager, child, 6, 1, 2));
    assert_ok(pkv_take_copies(manager, 0, copies, 2, &count));
    assert_int_equal(count, 2);
    for (int32_t i = 0; i < count; i++) {
        assert_int_equal(copies[i].source, 2);
        memcpy(&target.slots[copies[i].target * 4], &target.slots[copies[i].source * 4],
               4 * sizeof(int32_t));
    }
    run_step(&target, manager, (pkv_batch_entry[]){{request, 6, 1}, {child, 6, 1}}, 2);
    assert_int_equal((int32_t)stats_of(manager).num_forks, 1);
    assert_int_equal((int32_t)stats_of(manager).num_copies, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        fixture_test(what_cannot_be_right_is_refused_at_create),
        fixture_test(hit_goes_on_into_the_block_that_starts_alike),
        fixture_test(last_token_is_always_computed),
        fixture_test(fewer_tokens_than_the_least_are_not_copied),
        fixture_test(longest_start_wins_and_among_equals_the_youngest),
        fixture_test(no_more_candidates_are_compared_than_promised),
        fixture_test(off_is_as_vllm),
        fixture_test(only_content_that_is_there_is_copied),
        fixture_test(untracked_steps_make_no_sources_but_late_publication_does),
        fixture_test(failed_step_leaves_no_source),
        fixture_test(evicted_or_forgotten_blocks_are_no_sources),
        fixture_test(adapter_salt_and_media_must_be_the_same),
        fixture_test(callers_keys_and_skipped_reads_do_without),
        fixture_test(source_waits_for_the_copy_and_goes_back),
        fixture_test(freeing_or_aborting_the_request_cancels_the_copy),
        fixture_test(request_taken_out_of_the_step_keeps_copy_and_blocks),
        fixture_test(batch_waits_until_the_copy_was_taken),
        fixture_test(without_a_block_to_spare_the_source_itself_is_taken),
        fixture_test(partial_hit_is_refused_only_where_none_would_fit),
        fixture_test(caller_may_round_down_but_not_up),
        fixture_test(source_that_went_since_the_lookup_is_not_found),
        fixture_test(loads_begin_at_a_block),
        fixture_test(groups_agree_on_the_shorter_start),
        fixture_test(what_is_to_spare_is_shared_by_the_groups),
        fixture_test(fork_behind_a_waiting_copy_reads_where_it_reads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
