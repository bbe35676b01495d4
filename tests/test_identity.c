/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Goal: content is shared iff it is the same content for the same tenant, adapter and media, and a
 * block whose key only looks right is refused. Method: pairs of requests that differ in one thing;
 * collisions are made by keys that the test invents. The values of keys are in test_keys.c. */
#include "support/fixture.h"

#include <string.h>

/* ---- salts and adapters ---------------------------------------------------------------------- */

static pkv_request open_salted(pkv_manager *manager, const void *salt, size_t salt_size) {
    const pkv_request_args args = {.salt = salt, .salt_size = salt_size};

    return open_prompt_as(manager, &args, COMMON " 7*3");
}

static void salt_same_hits_other_does_not(void **state) {
    pkv_manager *manager = make_small_manager(31, 16);
    pkv_request first = open_salted(manager, "salt-a", 6);

    (void)state;
    assert_int_equal(admit(manager, first), 0);
    assert_int_equal(find_hit(manager, open_salted(manager, "salt-a", 6)), 48);
    assert_int_equal(find_hit(manager, open_salted(manager, "salt-b", 6)), 0);
    assert_int_equal(find_hit(manager, open_salted(manager, "salt-", 5)), 0);
    assert_int_equal(find_hit(manager, open_salted(manager, "salt-aa", 7)), 0);
    assert_int_equal(find_hit(manager, open_salted(manager, NULL, 0)), 0);
}

static void salt_three_tenants_hold_disjoint_blocks(void **state) {
    pkv_manager *manager = make_small_manager(31, 16);
    pkv_request tenants[] = {open_salted(manager, "a", 1), open_salted(manager, "b", 1),
                             open_salted(manager, NULL, 0)};

    (void)state;
    for (int32_t i = 0; i < 3; i++) {
        assert_int_equal(admit(manager, tenants[i]), 0);
    }
    assert_string_equal(table_text(manager, tenants[0], 0), "1 2 3 4");
    assert_string_equal(table_text(manager, tenants[1], 0), "5 6 7 8");
    assert_string_equal(table_text(manager, tenants[2], 0), "9 10 11 12");
    assert_int_equal(stats_of(manager).num_distinct_keys, 9);
    assert_string_equal(hit_text(manager, open_salted(manager, "b", 1), 0), "5 6 7");
}

static void salt_of_size_zero_is_no_salt(void **state) {
    pkv_manager *manager = make_small_manager(11, 16);
    pkv_request first = open_salted(manager, "anything", 0);

    (void)state;
    admit(manager, first);
    assert_int_equal(find_hit(manager, open_salted(manager, NULL, 0)), 48);
    assert_int_equal(find_hit(manager, open_salted(manager, NULL, 0)), 48);
}

static void salt_is_copied_at_open(void **state) {
    pkv_manager *manager = make_small_manager(31, 16);
    char salt[] = "mine";
    pkv_request request = open_salted(manager, salt, 4);

    (void)state;
    memcpy(salt, "none", 4);
    append_tokens(manager, request, "20*4");
    admit(manager, request);
    assert_int_equal(find_hit(manager, open_salted(manager, "mine", 4)), 48);
    assert_int_equal(find_hit(manager, open_salted(manager, "none", 4)), 0);
}

static void adapters_share_only_with_themselves(void **state) {
    pkv_manager *manager = make_small_manager(31, 16);

    (void)state;
    for (uint64_t adapter_id = 0; adapter_id < 3; adapter_id++) {
        const pkv_request_args args = {.adapter_id = adapter_id};
        pkv_request request = open_prompt_as(manager, &args, COMMON " 7*3");

        assert_int_equal(admit(manager, request), 0);
        assert_int_equal(info_of(manager, request).adapter_id, adapter_id);
    }
    for (uint64_t adapter_id = 0; adapter_id < 3; adapter_id++) {
        const pkv_request_args args = {.adapter_id = adapter_id};

        assert_int_equal(find_hit(manager, open_prompt_as(manager, &args, COMMON " 9")), 48);
    }
}

static void salt_never_equals_an_adapter_of_the_same_bytes(void **state) {
    pkv_manager *manager = make_small_manager(31, 16);
    const uint8_t bytes[8] = {42, 0, 0, 0, 0, 0, 0, 0};
    const pkv_request_args adapter = {.adapter_id = 42};
    const pkv_request_args both = {.adapter_id = 42, .salt = bytes, .salt_size = 8};

    (void)state;
    admit(manager, open_prompt_as(manager, &adapter, COMMON " 7*3"));
    assert_int_equal(find_hit(manager, open_salted(manager, bytes, 8)), 0);
    assert_int_equal(find_hit(manager, open_prompt_as(manager, &both, COMMON " 7*3")), 0);
}

/* ---- media ----------------------------------------------------------------------------------- */

/* Three items over 59 tokens: tokens 11..20, 30..47 and 48..54. */
static void fill_media(pkv_media *media, const char *digests) {
    const int32_t offsets[] = {11, 30, 48};
    const int32_t counts[] = {10, 18, 7};

    memset(media, 0, 3 * sizeof *media);
    for (int32_t i = 0; i < 3; i++) {
        memset(media[i].digest, digests[i], sizeof media[i].digest);
        media[i].offset = offsets[i];
        media[i].num_tokens = counts[i];
    }
}

static pkv_request open_media(pkv_manager *manager, const pkv_media *media, int32_t num_media) {
    const pkv_request_args args = {.media = media, .num_media = num_media};

    return open_prompt_as(manager, &args, "0..10 10*99 21..29 25*99 4*5");
}

static void media_change_keys_from_the_first_block_they_overlap(void **state) {
    const struct {
        const char *digests;
        int32_t hit;
    } cases[] = {
        {"abc", 48}, /* the same items */
        {"Abc", 0},  /* the first begins in block 0 */
        {"aBc", 16}, /* the second begins in block 1 */
        {"abC", 48}, /* the third begins in block 3, which is not full */
        {"bac", 0},  /* the same items in other places */
    };
    pkv_manager *manager = make_small_manager(31, 16);
    pkv_media media[3];

    (void)state;
    fill_media(media, "abc");
    assert_int_equal(admit(manager, open_media(manager, media, 3)), 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fill_media(media, cases[i].digests);
        assert_int_equal(find_hit(manager, open_media(manager, media, 3)), cases[i].hit);
    }
    assert_int_equal(find_hit(manager, open_media(manager, NULL, 0)), 0);
}

static void media_ending_in_a_later_block_count_there(void **state) {
    pkv_manager *manager = make_small_manager(31, 16);
    pkv_media media[3];

    (void)state;
    fill_media(media, "abc");
    admit(manager, open_media(manager, media, 3));

    /* Without the first item block 0 differs; without the second the keys of block 1 on do, but
     * block 0, which the first item reaches from, stays the same. */
    assert_int_equal(find_hit(manager, open_media(manager, media + 1, 2)), 0);
    media[1] = media[2];
    assert_int_equal(find_hit(manager, open_media(manager, media, 2)), 16);
}

static void media_at_another_offset_do_not_hit(void **state) {
    pkv_manager *manager = make_small_manager(31, 16);
    pkv_media media[3];

    (void)state;
    fill_media(media, "abc");
    admit(manager, open_media(manager, media, 3));

    media[1].offset = 31;
    media[1].num_tokens = 17;
    assert_int_equal(find_hit(manager, open_media(manager, media, 3)), 16);
    fill_media(media, "abc");
    media[0].offset = 12;
    media[0].num_tokens = 9;
    assert_int_equal(find_hit(manager, open_media(manager, media, 3)), 0);
}

static void media_digest_is_compared_to_its_last_byte(void **state) {
    pkv_manager *manager = make_small_manager(31, 16);
    pkv_media media[3];

    (void)state;
    fill_media(media, "abc");
    admit(manager, open_media(manager, media, 3));
    media[1].digest[31] ^= 1;
    assert_int_equal(find_hit(manager, open_media(manager, media, 3)), 16);
}

static void media_only_placeholders_share_the_text_before_them(void **state) {
    pkv_manager *manager = make_small_manager(61, 16);
    pkv_media image = {.offset = 8, .num_tokens = 64};
    pkv_request_args args = {.media = &image, .num_media = 1};

    (void)state;
    /* 8 tokens of text, 64 placeholders, 8 of text: block 0 mixes text and image. */
    memset(image.digest, 1, sizeof image.digest);
    admit(manager, open_prompt_as(manager, &args, "0..7 64*99 0..7 5"));
    assert_int_equal(find_hit(manager, open_prompt_as(manager, &args, "0..7 64*99 0..7 6")), 80);
    memset(image.digest, 2, sizeof image.digest);
    assert_int_equal(find_hit(manager, open_prompt_as(manager, &args, "0..7 64*99 0..7 6")), 0);

    /* 16 tokens of text before the image are one block that both share. */
    image.offset = 16;
    memset(image.digest, 1, sizeof image.digest);
    admit(manager, open_prompt_as(manager, &args, "0..15 64*99 5"));
    memset(image.digest, 2, sizeof image.digest);
    assert_int_equal(find_hit(manager, open_prompt_as(manager, &args, "0..15 64*99 6")), 16);
}

static void media_keys_do_not_depend_on_how_tokens_arrive(void **state) {
    pkv_manager *manager = make_small_manager(61, 16);
    pkv_media media[3];
    pkv_request_args args = {.media = media, .num_media = 3};
    pkv_request whole, grown;
    pkv_block_key whole_keys[5], grown_keys[5];

    (void)state;
    fill_media(media, "abc");
    whole = open_prompt_as(manager, &args, "0..10 10*99 21..29 25*99 25*5");
    grown = open_prompt_as(manager, &args, "0..10 10*99 21..29 25*99");
    for (int32_t i = 0; i < 25; i++) {
        append_tokens(manager, grown, "5");
    }
    assert_int_equal(info_of(manager, whole).num_keys, 5);
    assert_int_equal(info_of(manager, grown).num_keys, 5);
    assert_int_equal(pkv_request_get_keys(manager, whole, 0, 5, whole_keys), PKV_OK);
    assert_int_equal(pkv_request_get_keys(manager, grown, 0, 5, grown_keys), PKV_OK);
    assert_memory_equal(whole_keys, grown_keys, sizeof whole_keys);
}

/* ---- verification ---------------------------------------------------------------------------- */

static pkv_request open_with_keys(pkv_manager *manager,
                                  const pkv_block_key *keys,
                                  int32_t num_keys,
                                  const char *tokens) {
    const pkv_request_args args = {.has_caller_keys = true};
    pkv_request request = open_prompt_as(manager, &args, "%s", tokens);

    assert_int_equal(pkv_request_append_keys(manager, request, keys, num_keys), PKV_OK);
    return request;
}

static void equal_hash_with_other_lineage_is_rejected_and_counted(void **state) {
    pkv_manager *manager = make_small_manager(11, 16);
    const pkv_block_key honest[2] = {{1, 1, 100}, {2, 2, 200}};
    const pkv_block_key forged[2] = {{1, 1, 100}, {2, 2, 201}};
    pkv_request first = open_with_keys(manager, honest, 2, "0..32");

    (void)state;
    assert_int_equal(admit(manager, first), 0);
    assert_int_equal(find_hit(manager, open_with_keys(manager, honest, 2, "0..32")), 32);
    assert_int_equal(stats_of(manager).num_collisions_rejected, 0);

    assert_int_equal(find_hit(manager, open_with_keys(manager, forged, 2, "0..15 16*7 1")), 16);
    assert_true(stats_of(manager).num_collisions_rejected >= 1);
}

static void equal_hash_two_lineages_each_finds_its_own(void **state) {
    pkv_manager *manager = make_small_manager(11, 16);
    const pkv_block_key left[1] = {{1, 1, 100}};
    const pkv_block_key right[1] = {{1, 1, 101}};

    (void)state;
    admit(manager, open_with_keys(manager, left, 1, "0..16"));
    admit(manager, open_with_keys(manager, right, 1, "100..116"));
    assert_string_equal(hit_text(manager, open_with_keys(manager, left, 1, "0..16"), 0), "1");
    assert_string_equal(hit_text(manager, open_with_keys(manager, right, 1, "100..116"), 0), "3");
}

static void store_tokens_equal_key_with_other_tokens_is_rejected(void **state) {
    pkv_manager_config config = small_config(11, 16);
    const pkv_block_key keys[2] = {{1, 1, 100}, {2, 2, 200}};
    pkv_manager *manager;

    (void)state;
    config.store_tokens = true;
    manager = make_manager(&config);
    admit(manager, open_with_keys(manager, keys, 2, "0..32"));
    assert_int_equal(find_hit(manager, open_with_keys(manager, keys, 2, "0..32")), 32);
    assert_int_equal(stats_of(manager).num_collisions_rejected, 0);

    /* One token of the second block differs, at its end. */
    assert_int_equal(find_hit(manager, open_with_keys(manager, keys, 2, "0..30 9 9")), 16);
    assert_true(stats_of(manager).num_collisions_rejected >= 1);
    assert_int_equal(find_hit(manager, open_with_keys(manager, keys, 2, "9 1..32")), 0);
}

static void store_tokens_honest_requests_hit_as_without(void **state) {
    pkv_manager_config config = small_config(31, 4);
    pkv_manager *manager;
    pkv_request request;

    (void)state;
    config.store_tokens = true;
    manager = make_manager(&config);
    request = open_prompt(manager, "0..5");
    admit(manager, request);
    append_tokens(manager, request, "6..12");
    assert_int_equal(allocate(manager, request, 6, 7), PKV_OK);
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..12")), 12);
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..6 8 8 8 8 8 8")), 4);
    end_request(manager, request);
    assert_int_equal(admit(manager, open_prompt(manager, "0..12")), 12);
    assert_int_equal(stats_of(manager).num_collisions_rejected, 0);
}

static void another_secret_or_seed_gives_other_keys_and_the_same_behaviour(void **state) {
    pkv_manager_config config = small_config(11, 16);
    pkv_block_key keys[3][3];

    (void)state;
    for (int32_t i = 0; i < 3; i++) {
        pkv_manager *manager;
        pkv_request request;

        config.hash_seed = i == 1 ? 7 : 0;
        config.key_secret[1] = i == 2 ? 7 : 0;
        manager = make_manager(&config);
        request = open_prompt(manager, COMMON " 7*3");
        admit(manager, request);
        assert_int_equal(find_hit(manager, open_prompt(manager, COMMON " 9")), 48);
        assert_int_equal(pkv_request_get_keys(manager, request, 0, 3, keys[i]), PKV_OK);
    }
    assert_true(keys[1][0].hash_low != keys[0][0].hash_low);
    assert_true(keys[1][0].hash_high != keys[0][0].hash_high);
    assert_true(keys[2][0].hash_low == keys[0][0].hash_low);
    assert_true(keys[2][0].hash_high == keys[0][0].hash_high);
    assert_true(keys[2][0].lineage != keys[0][0].lineage);
}

/* ---- keys of the caller ---------------------------------------------------------------------- */

static void caller_keys_are_kept_bit_for_bit(void **state) {
    pkv_manager *manager = make_small_manager(11, 4);
    const pkv_block_key keys[4] = {
        {0, 1, 0},
        {1, 0, UINT64_MAX},
        {UINT64_C(1) << 63, UINT64_MAX, 1},
        {UINT64_MAX, UINT64_MAX, UINT64_C(1) << 63},
    };
    pkv_request request = open_with_keys(manager, keys, 4, "0..16");
    pkv_block_key read[4];

    (void)state;
    assert_int_equal(pkv_request_get_keys(manager, request, 0, 4, read), PKV_OK);
    assert_memory_equal(read, keys, sizeof keys);
    admit(manager, request);
    for (int32_t i = 0; i < 4; i++) {
        assert_true(keys_are_equal(manager_block_of(manager, 1 + i).key, keys[i]));
    }
    assert_int_equal(find_hit(manager, open_with_keys(manager, keys, 4, "0..16")), 16);
}

static void caller_keys_that_come_later_make_no_full_block_findable_before(void **state) {
    pkv_manager *manager = make_small_manager(11, 4);
    const pkv_request_args args = {.has_caller_keys = true};
    const pkv_block_key keys[3] = {{1, 1, 1}, {2, 2, 2}, {3, 3, 3}};
    pkv_request request = open_prompt_as(manager, &args, "0..12");
    const char *before;

    (void)state;
    assert_int_equal(info_of(manager, request).num_keys, 0);
    assert_int_equal(find_hit(manager, request), 0);
    assert_int_equal(pkv_request_append_keys(manager, request, keys, 2), PKV_OK);
    assert_int_equal(info_of(manager, request).num_keys, 2);
    assert_int_equal(pkv_request_append_keys(manager, request, keys + 2, 1), PKV_OK);

    /* Twelve tokens are three full blocks: a fourth key has nothing to name. */
    before = remember_state(manager, &request, 1);
    assert_int_equal(pkv_request_append_keys(manager, request, keys, 1),
                     PKV_ERROR_INVALID_ARGUMENT);
    assert_string_equal(state_text(manager, &request, 1), before);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        fixture_test(salt_same_hits_other_does_not),
        fixture_test(salt_three_tenants_hold_disjoint_blocks),
        fixture_test(salt_of_size_zero_is_no_salt),
        fixture_test(salt_is_copied_at_open),
        fixture_test(adapters_share_only_with_themselves),
        fixture_test(salt_never_equals_an_adapter_of_the_same_bytes),
        fixture_test(media_change_keys_from_the_first_block_they_overlap),
        fixture_test(media_ending_in_a_later_block_count_there),
        fixture_test(media_at_another_offset_do_not_hit),
        fixture_test(media_digest_is_compared_to_its_last_byte),
        fixture_test(media_only_placeholders_share_the_text_before_them),
        fixture_test(media_keys_do_not_depend_on_how_tokens_arrive),
        fixture_test(equal_hash_with_other_lineage_is_rejected_and_counted),
        fixture_test(equal_hash_two_lineages_each_finds_its_own),
        fixture_test(store_tokens_equal_key_with_other_tokens_is_rejected),
        fixture_test(store_tokens_honest_requests_hit_as_without),
        fixture_test(another_secret_or_seed_gives_other_keys_and_the_same_behaviour),
        fixture_test(caller_keys_are_kept_bit_for_bit),
        fixture_test(caller_keys_that_come_later_make_no_full_block_findable_before),
    };

    return cmocka_run_group_tests_name("identity", tests, NULL, NULL);
}
