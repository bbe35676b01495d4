/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Goal: levels are what the tables say, and counters count what they name once. Method: small cases
 * computed by hand; a seeded run in which levels must add up after every call; the Prometheus text
 * is read back. */
#include "support/fixture.h"

#include <inttypes.h>
#include <locale.h>
#include <stdio.h>
#include <string.h>

/* ---- levels ---------------------------------------------------------------------------------- */

static void stats_of_an_unused_manager_are_zero_but_for_the_pool(void **state) {
    pkv_manager *manager = make_small_manager(11, 16);
    pkv_stats stats = stats_of(manager);
    pkv_stats expected = {.struct_size = sizeof expected, .num_blocks = 11, .num_free_blocks = 10};

    (void)state;
    assert_true(stats.usage >= 0.0 && stats.usage <= 0.0);
    stats.usage = 0.0;
    assert_memory_equal(&stats, &expected, sizeof stats);
}

static void usage_counts_cached_but_unused_blocks_as_free(void **state) {
    pkv_manager *manager = make_small_manager(11, 16);
    pkv_request request = open_prompt(manager, COMMON " 7*3");
    pkv_stats stats;

    (void)state;
    admit(manager, request);
    stats = stats_of(manager);
    assert_true(stats.usage > 0.399 && stats.usage < 0.401);
    assert_int_equal(stats.num_cached_blocks, 3);
    assert_int_equal(stats.num_distinct_keys, 3);
    assert_int_equal(stats.num_requests, 1);
    assert_int_equal(stats.num_rows, 1);

    assert_int_equal(pkv_free(manager, request), PKV_OK);
    stats = stats_of(manager);
    assert_true(stats.usage >= 0.0 && stats.usage < 0.001);
    assert_int_equal(stats.num_cached_blocks, 3);
    assert_int_equal(stats.num_requests, 1);
    assert_int_equal(stats.num_rows, 0);
}

static void usage_of_a_pool_without_blocks_is_zero(void **state) {
    pkv_manager *manager = make_small_manager(1, 16);

    (void)state;
    assert_true(stats_of(manager).usage >= 0.0 && stats_of(manager).usage <= 0.0);
}

static void slots_are_live_reserved_or_internal(void **state) {
    pkv_manager *manager = make_small_manager(11, 16);
    const pkv_request_args short_args = {.max_num_tokens = 25};
    pkv_request short_one = open_prompt_as(manager, &short_args, "0..19");
    pkv_request long_one = open_prompt(manager, "100..119");
    pkv_slots_args args = slots_of(0, 20);
    pkv_stats stats;

    (void)state;
    /* 32 slots: 20 are written, 5 more may be, 7 never will. */
    admit(manager, short_one);
    stats = stats_of(manager);
    assert_int_equal(stats.num_live_slots, 20);
    assert_int_equal(stats.num_reserved_slots, 5);
    assert_int_equal(stats.num_internal_slots, 7);
    assert_int_equal(stats.num_external_slots, 0);

    /* 48 slots with lookahead: 20 written, and any of the others may be. */
    args.num_lookahead_tokens = 20;
    assert_int_equal(pkv_allocate_slots(manager, long_one, &args, NULL), PKV_OK);
    stats = stats_of(manager);
    assert_int_equal(stats.num_live_slots, 40);
    assert_int_equal(stats.num_reserved_slots, 5 + 28);
    assert_int_equal(stats.num_internal_slots, 7);
}

static void slots_of_shared_blocks_count_once(void **state) {
    pkv_manager *manager = make_small_manager(11, 16);
    pkv_stats stats;

    (void)state;
    admit(manager, open_prompt(manager, COMMON " 7*3"));
    admit(manager, open_prompt(manager, COMMON " 5*3"));
    stats = stats_of(manager);
    assert_int_equal(stats.num_live_slots, 48 + 7 + 5);
    assert_int_equal(stats.num_live_slots + stats.num_reserved_slots + stats.num_internal_slots,
                     5 * 16);
}

/* Columns that the caller let drop ahead of its tokens hold nothing. */
static void slots_of_columns_dropped_ahead_are_not_counted(void **state) {
    const pkv_group_config group = window_group(4, 4);
    pkv_manager *manager = make_hybrid_manager(41, &group, 1);
    pkv_request request = open_prompt(manager, "0..7");
    pkv_slots_args args = slots_of(0, 8);
    pkv_stats stats;

    (void)state;
    args.num_lookahead_tokens = 16;
    assert_int_equal(pkv_allocate_slots(manager, request, &args, NULL), PKV_OK);
    assert_int_equal(pkv_remove_skipped_blocks(manager, request, 19), PKV_OK);
    assert_string_equal(table_text(manager, request, 0), "0 0 0 0 5 6");
    stats = stats_of(manager);
    assert_int_equal(stats.num_live_slots, 0);
    assert_int_equal(stats.num_reserved_slots, 8);
    assert_int_equal(stats.num_internal_slots, 0);
}

/* Its blocks are written, and others read them, wherever this one's caller wants to begin anew. */
static void slots_of_shared_blocks_stay_live_where_one_owner_goes_back(void **state) {
    pkv_manager *manager = make_small_manager(11, 16);
    const pkv_request_args whole = {.max_num_tokens = 64};
    pkv_request first = open_prompt_as(manager, &whole, COMMON " 7*3");
    pkv_stats stats;

    (void)state;
    admit(manager, first);
    admit(manager, open_prompt_as(manager, &whole, COMMON " 5*3"));
    assert_int_equal(allocate(manager, first, 0, 1), PKV_OK);
    stats = stats_of(manager);
    assert_int_equal(stats.num_live_slots, 48 + 5);
    assert_int_equal(stats.num_reserved_slots, 16 + 11);
    assert_int_equal(stats.num_internal_slots, 0);
}

static void slots_of_groups_count_by_their_block_sizes(void **state) {
    const pkv_group_config groups[] = {full_group(32), window_group(8, 64)};
    pkv_manager *manager = make_hybrid_manager(41, groups, 2);
    pkv_stats stats;

    (void)state;
    admit(manager, open_prompt(manager, "0..39"));
    stats = stats_of(manager);
    /* Two blocks of 32 and five of 8. */
    assert_int_equal(stats.num_live_slots, 80);
    assert_int_equal(stats.num_live_slots + stats.num_reserved_slots + stats.num_internal_slots,
                     2 * 32 + 5 * 8);
}

/* ---- counters -------------------------------------------------------------------------------- */

static void hits_are_counted_at_admission_not_at_lookup(void **state) {
    pkv_manager *manager = make_small_manager(11, 16);
    pkv_request first = open_prompt(manager, COMMON " 7*3");
    pkv_request second = open_prompt(manager, COMMON " 5*3");
    pkv_slots_args args = slots_of(0, 5);

    (void)state;
    admit(manager, first);
    assert_int_equal(find_hit(manager, second), 48);
    assert_int_equal(find_hit(manager, second), 48);
    assert_int_equal(stats_of(manager).num_lookups, 1);

    args.num_new_computed_tokens = 48;
    args.num_watermark_blocks = 100;
    assert_int_equal(pkv_allocate_slots(manager, second, &args, NULL), PKV_NO_FREE_BLOCKS);
    assert_int_equal(stats_of(manager).num_lookups, 1);
    assert_int_equal(admit(manager, second), 48);
    assert_int_equal(stats_of(manager).num_lookups, 2);
    assert_int_equal(stats_of(manager).num_lookup_tokens, 55 + 53);
    assert_int_equal(stats_of(manager).num_hit_tokens, 48);

    append_tokens(manager, second, "9");
    assert_int_equal(allocate(manager, second, 53, 1), PKV_OK);
    assert_int_equal(stats_of(manager).num_lookups, 2);
    assert_int_equal(stats_of(manager).num_allocations, 3);
    assert_int_equal(stats_of(manager).num_no_free_blocks, 1);
}

static void resumes_are_counted_apart(void **state) {
    pkv_manager *manager = make_small_manager(11, 16);
    pkv_request request = open_prompt(manager, COMMON " 7*3");
    pkv_stats stats;

    (void)state;
    admit(manager, request);
    assert_int_equal(pkv_free(manager, request), PKV_OK);
    append_tokens(manager, request, "9");
    assert_int_equal(admit(manager, request), 48);
    stats = stats_of(manager);
    assert_int_equal(stats.num_lookups, 1);
    assert_int_equal(stats.num_hit_tokens, 0);
    assert_int_equal(stats.num_resumes, 1);
    assert_int_equal(stats.num_resume_tokens, 56);
    assert_int_equal(stats.num_resume_hit_tokens, 48);
    assert_int_equal(stats.num_frees, 1);
}

static void lookups_that_may_not_read_are_not_counted(void **state) {
    pkv_manager_config config = small_config(11, 16);
    const pkv_request_args skip = {.skip_cache_read = true};
    pkv_manager *manager = make_manager(&config);

    (void)state;
    admit(manager, open_prompt_as(manager, &skip, COMMON));
    assert_int_equal(stats_of(manager).num_lookups, 0);
    config.disable_prefix_cache = true;
    manager = make_manager(&config);
    admit(manager, open_prompt(manager, COMMON));
    assert_int_equal(stats_of(manager).num_lookups, 0);
    assert_int_equal(stats_of(manager).num_keys_published, 0);
}

static void counters_of_blocks_and_keys_follow_their_history(void **state) {
    pkv_manager *manager = make_small_manager(4, 16);
    pkv_request first = open_prompt(manager, "0..31");
    pkv_request second = open_prompt(manager, "100..147");
    pkv_stats stats;

    (void)state;
    admit(manager, first);
    end_request(manager, first);
    admit(manager, second);
    stats = stats_of(manager);
    assert_int_equal(stats.num_blocks_allocated, 5);
    assert_int_equal(stats.num_blocks_evicted, 2);
    assert_int_equal(stats.num_keys_published, 5);
    assert_int_equal(stats.num_keys_withdrawn, 0);
    assert_true(stats.num_index_slots_probed > 0);
}

/* ---- levels that add up ---------------------------------------------------------------------- */

static void levels_add_up_after_every_call_of_a_random_walk(void **state) {
    pkv_manager *manager = make_small_manager(33, 4);
    pkv_request requests[6];
    uint64_t seed = 35270;

    (void)state;
    for (int32_t i = 0; i < 6; i++) {
        requests[i] = open_prompt(manager, "20*%d 0..11", i % 2);
    }
    for (int32_t round = 0; round < 10000; round++) {
        pkv_request request;
        pkv_stats stats;
        int64_t num_held = 0;

        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        request = requests[(seed >> 33) % 6];
        if (info_of(manager, request).row == PKV_NULL_ROW) {
            pkv_slots_args args = slots_of(0, 0);

            args.num_new_computed_tokens = find_hit(manager, request);
            args.num_new_tokens = 32 - args.num_new_computed_tokens;
            (void)pkv_allocate_slots(manager, request, &args, NULL);
        } else {
            assert_int_equal(pkv_free(manager, request), PKV_OK);
        }
        stats = stats_of(manager);
        for (pkv_block_id block = 1; block < 33; block++) {
            num_held += manager_block_of(manager, block).ref_cnt > 0 ? 1 : 0;
        }
        assert_int_equal(stats.num_free_blocks + num_held, 32);
        assert_int_equal(stats.num_live_slots + stats.num_reserved_slots + stats.num_internal_slots,
                         num_held * 4);
        assert_true(stats.num_distinct_keys <= stats.num_cached_blocks);
        assert_int_equal(stats.num_pending_blocks, 0);
    }
}

/* ---- Prometheus ------------------------------------------------------------------------------ */

/* The value of a sample line, or -1. */
static int64_t sample_of(const char *text, const char *name_and_labels) {
    const char *line = text;
    size_t size = strlen(name_and_labels);
    int64_t value = -1;

    while (line != NULL) {
        if (strncmp(line, name_and_labels, size) == 0 && line[size] == ' ') {
            assert_int_equal(sscanf(line + size, "%" SCNd64, &value), 1);
            return value;
        }
        line = strchr(line, '\n');
        line = line == NULL ? NULL : line + 1;
    }
    return value;
}

static void prometheus_text_has_a_type_and_a_sample_for_each_metric(void **state) {
    pkv_manager *manager = make_small_manager(11, 16);
    char text[8192];
    size_t size = 0;
    pkv_stats stats;
    int32_t num_types = 0;
    int32_t num_samples = 0;

    (void)state;
    admit(manager, open_prompt(manager, COMMON " 7*3"));
    admit(manager, open_prompt(manager, COMMON " 5*3"));
    stats = stats_of(manager);
    assert_int_equal(pkv_format_prometheus(&stats, "engine=\"0\"", text, sizeof text, &size),
                     PKV_OK);
    assert_int_equal(strlen(text), size);
    assert_int_equal(text[size - 1], '\n');
    for (char *line = text; line != NULL && *line != '\0';) {
        num_types += strncmp(line, "# TYPE ", 7) == 0 ? 1 : 0;
        num_samples += line[0] != '#' ? 1 : 0;
        line = strchr(line, '\n');
        line = line == NULL ? NULL : line + 1;
    }
    assert_int_equal(num_types, num_samples);
    assert_int_equal(sample_of(text, "pagedkv_free_blocks{engine=\"0\"}"), 5);
    assert_int_equal(sample_of(text, "pagedkv_prefix_cache_queries_total{engine=\"0\"}"), 108);
    assert_int_equal(sample_of(text, "pagedkv_prefix_cache_hits_total{engine=\"0\"}"), 48);

    assert_int_equal(pkv_format_prometheus(&stats, NULL, text, sizeof text, &size), PKV_OK);
    assert_int_equal(sample_of(text, "pagedkv_free_blocks"), 5);
    assert_null(strchr(text, '{'));
}

static void prometheus_buffer_too_small_is_cut_and_tells_the_need(void **state) {
    pkv_manager *manager = make_small_manager(11, 16);
    pkv_stats stats = stats_of(manager);
    static char whole[8192], cut[8192];
    size_t whole_size, cut_size;

    (void)state;
    assert_int_equal(pkv_format_prometheus(&stats, "", whole, sizeof whole, &whole_size), PKV_OK);
    memset(cut, 0x7b, sizeof cut);
    assert_int_equal(pkv_format_prometheus(&stats, "", cut, 100, &cut_size), PKV_ERROR_LIMIT);
    assert_int_equal(cut_size, whole_size);
    assert_int_equal(strlen(cut), 99);
    assert_memory_equal(cut, whole, 99);
    assert_int_equal(cut[100], 0x7b);
    assert_int_equal(pkv_format_prometheus(&stats, "", NULL, 0, &cut_size), PKV_ERROR_LIMIT);
    assert_int_equal(cut_size, whole_size);
    assert_int_equal(pkv_format_prometheus(&stats, "", cut, whole_size, &cut_size),
                     PKV_ERROR_LIMIT);
    assert_int_equal(pkv_format_prometheus(&stats, "", cut, whole_size + 1, &cut_size), PKV_OK);
    assert_string_equal(cut, whole);
}

/* The format wants a point, whatever the program's locale writes. */
static void prometheus_usage_has_a_point_in_every_locale(void **state) {
    static const char *const locales[] = {"C", "de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8",
                                          "fr_FR.utf8"};
    static const struct {
        double usage;
        const char *text;
    } cases[] = {{0.0, " 0.000000\n"},
                 {0.4, " 0.400000\n"},
                 {1.0 / 3.0, " 0.333333\n"},
                 {2.0 / 3.0, " 0.666667\n"},
                 {0.9999999, " 1.000000\n"},
                 {1.0, " 1.000000\n"},
                 /* No manager says these. */
                 {1e300, " 1.000000\n"},
                 {-1.0, " 0.000000\n"}};
    char text[8192];
    size_t size;
    bool has_comma = false;

    (void)state;
    for (size_t l = 0; l < sizeof locales / sizeof locales[0]; l++) {
        if (setlocale(LC_NUMERIC, locales[l]) == NULL) {
            continue;
        }
        has_comma = has_comma || *localeconv()->decimal_point != '.';
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            const pkv_stats stats = {.struct_size = sizeof stats, .usage = cases[i].usage};

            assert_int_equal(pkv_format_prometheus(&stats, NULL, text, sizeof text, &size), PKV_OK);
            assert_memory_equal(strstr(text, "\npagedkv_usage_ratio ") + 20, cases[i].text, 10);
        }
    }
    assert_non_null(setlocale(LC_NUMERIC, "C"));
    if (!has_comma) {
        print_message("this machine has no locale with a comma; only its own were tried\n");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        fixture_test(stats_of_an_unused_manager_are_zero_but_for_the_pool),
        fixture_test(usage_counts_cached_but_unused_blocks_as_free),
        fixture_test(usage_of_a_pool_without_blocks_is_zero),
        fixture_test(slots_are_live_reserved_or_internal),
        fixture_test(slots_of_shared_blocks_count_once),
        fixture_test(slots_of_columns_dropped_ahead_are_not_counted),
        fixture_test(slots_of_shared_blocks_stay_live_where_one_owner_goes_back),
        fixture_test(slots_of_groups_count_by_their_block_sizes),
        fixture_test(hits_are_counted_at_admission_not_at_lookup),
        fixture_test(resumes_are_counted_apart),
        fixture_test(lookups_that_may_not_read_are_not_counted),
        fixture_test(counters_of_blocks_and_keys_follow_their_history),
        fixture_test(levels_add_up_after_every_call_of_a_random_walk),
        fixture_test(prometheus_text_has_a_type_and_a_sample_for_each_metric),
        fixture_test(prometheus_buffer_too_small_is_cut_and_tells_the_need),
        fixture_test(prometheus_usage_has_a_point_in_every_locale),
    };

    return cmocka_run_group_tests_name("stats", tests, NULL, NULL);
}
