/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Goal: the benches' length tables have the published means, every trace format is read right, and
 * a line that is not understood is named.
 * Method: small traces written to a temporary file; tables made with several seeds. */
#include "bench/workload.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char trace_path[] = "/tmp/pagedkv-trace-XXXXXX";

static int make_trace_file(void **state) {
    int file = mkstemp(trace_path);

    (void)state;
    return file < 0 || close(file) != 0;
}

static int remove_trace_file(void **state) {
    (void)state;
    return unlink(trace_path);
}

static void write_trace(const char *text, size_t size) {
    FILE *file = fopen(trace_path, "w");

    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static workload_list read_text(const char *text) {
    workload_list list;
    char error[WORKLOAD_MAX_ERROR] = "";

    write_trace(text, strlen(text));
    if (!workload_read_trace(trace_path, &list, error)) {
        fail_msg("%s", error);
    }
    return list;
}

/* Reading must fail with the message "FILE:LINE: ...", or "FILE: ..." for line 0, that holds
 * `what`. */
static void assert_refused(const char *text, int line, const char *what) {
    workload_list list;
    char error[WORKLOAD_MAX_ERROR] = "";
    char start[64];

    write_trace(text, strlen(text));
    assert_false(workload_read_trace(trace_path, &list, error));
    if (line > 0) {
        snprintf(start, sizeof(start), "%s:%d: ", trace_path, line);
    } else {
        snprintf(start, sizeof(start), "%s: ", trace_path);
    }
    if (strncmp(error, start, strlen(start)) != 0 || strstr(error, what) == NULL) {
        fail_msg("message '%s' does not begin with '%s' or lacks '%s'", error, start, what);
    }
    assert_null(list.items);
    assert_null(list.hash_ids);
}

static void assert_lengths(const workload_list *list,
                           int32_t index,
                           int32_t input,
                           int32_t output) {
    assert_int_equal(list->items[index].num_input_tokens, input);
    assert_int_equal(list->items[index].num_output_tokens, output);
}

static void assert_near(double value, double wanted, double tolerance) {
    if (!(fabs(value - wanted) <= tolerance)) {
        fail_msg("%f is not within %f of %f", value, tolerance, wanted);
    }
}

/* ---- tables ---------------------------------------------------------------------------------- */

static void table_means_are_the_published_ones(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        workload_list list;
        char error[WORKLOAD_MAX_ERROR];

        assert_true(workload_make_table("sharegpt", seed, 20000, &list, error));
        assert_near(list.mean_input_tokens, 161.3, 0.05);
        assert_near(list.mean_output_tokens, 337.9, 0.05);
        for (int32_t i = 0; i < list.num_items; i++) {
            assert_in_range(list.items[i].num_input_tokens, 1, 1024);
            assert_in_range(list.items[i].num_output_tokens, 1, 1024);
        }
        workload_release(&list);

        assert_true(workload_make_table("alpaca", seed, 20000, &list, error));
        assert_near(list.mean_input_tokens, 19.3, 0.05);
        assert_near(list.mean_output_tokens, 58.5, 0.05);
        workload_release(&list);
    }
}

static void table_is_a_function_of_its_seed(void **state) {
    workload_list first, again, other;
    char error[WORKLOAD_MAX_ERROR];
    int32_t num_equal = 0;

    (void)state;
    assert_true(workload_make_table("sharegpt", 7, 1000, &first, error));
    assert_true(workload_make_table("sharegpt", 7, 1000, &again, error));
    assert_true(workload_make_table("sharegpt", 8, 1000, &other, error));

    for (int32_t i = 0; i < 1000; i++) {
        assert_lengths(&first, i, again.items[i].num_input_tokens,
                       again.items[i].num_output_tokens);
        assert_int_equal(workload_get_token(&first, i, 0), workload_get_token(&again, i, 0));
        num_equal += first.items[i].num_output_tokens == other.items[i].num_output_tokens;
    }
    assert_in_range(num_equal, 0, 50);
    workload_release(&first);
    workload_release(&again);
    workload_release(&other);
}

static void table_unknown_name_is_refused(void **state) {
    workload_list list;
    char error[WORKLOAD_MAX_ERROR] = "";

    (void)state;
    assert_false(workload_make_table("share", 1, 10, &list, error));
    assert_non_null(strstr(error, "share"));
}

/* ---- formats --------------------------------------------------------------------------------- */

static void trace_azure_gives_lengths_and_arrivals(void **state) {
    workload_list list = read_text("TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
                                   "2023-12-31 23:59:59.5000000,374,44\r\n"
                                   "2024-01-01 00:00:01.2500000,396,109\r\n"
                                   "2024-03-01 00:00:00,1,1\r\n");

    (void)state;
    assert_int_equal(list.format, WORKLOAD_AZURE_CSV);
    assert_true(list.has_arrivals);
    assert_int_equal(list.num_items, 3);
    assert_lengths(&list, 0, 374, 44);
    assert_lengths(&list, 1, 396, 109);
    assert_near(list.items[0].arrival_seconds, 0.0, 1e-6);
    assert_near(list.items[1].arrival_seconds, 1.75, 1e-6);
    /* 60 days of January and February 2024, a leap year. */
    assert_near(list.items[2].arrival_seconds, 60 * 86400.0 + 0.5, 1e-3);
    workload_release(&list);
}

static void trace_azure_is_ordered_by_arrival(void **state) {
    workload_list list = read_text("TIMESTAMP,ContextTokens,GeneratedTokens\n"
                                   "2023-11-16 18:15:50.0,2,1\n"
                                   "2023-11-16 18:15:46.0,1,1\n"
                                   "2023-11-16 18:15:50.0,3,1\n");

    (void)state;
    for (int32_t i = 0; i < 3; i++) {
        assert_int_equal(list.items[i].num_input_tokens, i + 1);
    }
    assert_int_equal(list.items[0].file_index, 1);
    assert_near(list.items[2].arrival_seconds, 4.0, 1e-6);
    workload_release(&list);
}

static void trace_mooncake_shares_tokens_by_hash(void **state) {
    workload_list list = read_text(
        "{\"timestamp\": 0, \"input_length\": 700, \"output_length\": 5, "
        "\"hash_ids\": [0, 14]}\n"
        "\n"
        "{\"extra\": {\"a\": [1, \"}\\\"\"]}, \"hash_ids\": [0, 15], \"input_length\": 513, "
        "\"output_length\": 6, \"timestamp\": 3500}\n");

    (void)state;
    assert_int_equal(list.format, WORKLOAD_MOONCAKE);
    assert_int_equal(list.num_items, 2);
    assert_lengths(&list, 0, 700, 5);
    assert_lengths(&list, 1, 513, 6);
    assert_near(list.items[1].arrival_seconds, 3.5, 1e-9);

    int32_t first[705], second[519];
    int32_t num_equal = 0;

    workload_get_tokens(&list, 0, 0, 705, first);
    workload_get_tokens(&list, 1, 0, 519, second);
    assert_memory_equal(first, second, 512 * sizeof(int32_t));
    for (int32_t i = 512; i < 519; i++) {
        num_equal += first[i] == second[i];
    }
    assert_int_equal(num_equal, 0);
    assert_int_equal(second[518], workload_get_token(&list, 1, 518));
    for (int32_t i = 0; i < 705; i++) {
        assert_in_range(first[i], 0, WORKLOAD_VOCABULARY - 1);
    }
    workload_release(&list);
}

static void trace_vidur_columns_are_found_by_name(void **state) {
    workload_list list =
        read_text("arrived_at,num_decode_tokens,num_prefill_tokens,num_total_tokens,pd_ratio\n"
                  "0.5,54,3772.0,3826,69.85\n"
                  "1.5,156,2015,2171,12.9\n");

    (void)state;
    assert_int_equal(list.format, WORKLOAD_VIDUR_CSV);
    assert_lengths(&list, 0, 3772, 54);
    assert_lengths(&list, 1, 2015, 156);
    assert_near(list.items[1].arrival_seconds, 1.0, 1e-9);
    assert_int_equal(list.max_total_tokens, 3826);
    workload_release(&list);
}

static void trace_two_columns_with_and_without_header(void **state) {
    workload_list list = read_text("\xef\xbb\xbfinput_tokens,output_tokens\n62,222\n\n 462 , 336 ");

    (void)state;
    assert_int_equal(list.format, WORKLOAD_TWO_COLUMNS);
    assert_false(list.has_arrivals);
    assert_int_equal(list.num_items, 2);
    assert_lengths(&list, 1, 462, 336);
    workload_release(&list);

    list = read_text("62,222\n462,336\n");
    assert_int_equal(list.num_items, 2);
    assert_lengths(&list, 0, 62, 222);
    assert_near(list.mean_input_tokens, 262.0, 1e-9);
    workload_release(&list);
}

static void trace_lines_without_work_are_counted(void **state) {
    workload_list list = read_text("input,output\n0,5\n5,0\n5,6\n");

    (void)state;
    assert_int_equal(list.num_items, 1);
    assert_int_equal(list.num_skipped_items, 2);
    assert_lengths(&list, 0, 5, 6);
    workload_release(&list);
}

static void trace_drop_longer_keeps_the_rest(void **state) {
    workload_list list = read_text("1,2\n300,400\n5,6\n");

    (void)state;
    assert_int_equal(workload_drop_longer(&list, 11), 1);
    assert_int_equal(list.num_items, 2);
    assert_lengths(&list, 1, 5, 6);
    assert_int_equal(list.max_total_tokens, 11);
    assert_near(list.mean_output_tokens, 4.0, 1e-9);
    workload_release(&list);
}

/* ---- broken files ---------------------------------------------------------------------------- */

static void trace_broken_csv_line_is_named(void **state) {
    (void)state;
    assert_refused("input,output\n1,2\n1,x\n", 3, "'x' is not a number");
    assert_refused("input,output\n1,2\n\n1\n", 4, "1 fields");
    assert_refused("1,2\n3,4,5\n", 2, "3 fields");
    assert_refused("1,2\n3,-4\n", 2, "-4");
    assert_refused("1,2\n3,4.5\n", 2, "4.5");
    assert_refused("1,2\n3,1e30\n", 2, "whole number");
    assert_refused("1,2\nnan,1\n", 2, "whole number");
    assert_refused("1,2\n,1\n", 2, "not a number");
    assert_refused("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-13-01 00:00:00,1,1\n", 2,
                   "timestamp");
    assert_refused("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n", 2, "timestamp");
    assert_refused("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-01-01 00:00:00+02:00,1,1\n", 2,
                   "UTC");
}

static void trace_broken_json_line_is_named(void **state) {
    static const char good[] = "{\"input_length\": 1, \"output_length\": 1, \"hash_ids\": [3]}\n";
    static const struct {
        const char *line, *what;
    } cases[] = {
        {"{\"input_length\": 6758, \"output_len", "inside a string"},
        {"{\"input_length\": 5}", "no output_length"},
        {"{\"output_length\": 5}", "no input_length"},
        {"{\"input_length\": 5, \"output_length\": \"6\"}", "number is missing"},
        {"{\"input_length\": 5, \"output_length\": 6", "end with }"},
        {"{\"input_length\": 5, \"output_length\": 6} x", "more after"},
        {"{\"input_length\": 513, \"output_length\": 6, \"hash_ids\": [1]}", "hash_ids"},
        {"{\"input_length\": 5, \"output_length\": 6, \"hash_ids\": [1.5]}", "hash_ids"},
        {"{\"input_length\": 5, \"output_length\": 6, \"hash_ids\": [a]}", "hash_ids"},
        {"{\"input_length\": 5, \"output_length\": 6, \"other\": }", "value"},
        {"{\"input_length\": 5, \"output_length\": 6, \"other\": [1, 2", "inside a value"},
        {"{\"input_length\": -5, \"output_length\": 6}", "-5"},
        {"{\"input_length\" 5, \"output_length\": 6}", "colon"},
        {"1,2", "not a JSON object"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[512];

        snprintf(text, sizeof(text), "%s%s\n", good, cases[i].line);
        assert_refused(text, 2, cases[i].what);
    }
}

static void trace_that_is_none_is_refused(void **state) {
    workload_list list;
    char error[WORKLOAD_MAX_ERROR] = "";

    (void)state;
    assert_refused("", 0, "no request");
    assert_refused("input,output\n0,0\n", 0, "no request");
    assert_refused("a,b,c\n1,2,3\n", 1, "unknown format");
    assert_refused("input,1\n", 1, "unknown format");

    write_trace("1,2\n3\0,4\n", 9);
    assert_false(workload_read_trace(trace_path, &list, error));
    assert_non_null(strstr(error, ":2: a zero byte"));

    assert_false(workload_read_trace("/tmp", &list, error));
    assert_false(workload_read_trace("/no/such/file", &list, error));
    assert_non_null(strstr(error, "/no/such/file: "));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_means_are_the_published_ones),
        cmocka_unit_test(table_is_a_function_of_its_seed),
        cmocka_unit_test(table_unknown_name_is_refused),
        cmocka_unit_test(trace_azure_gives_lengths_and_arrivals),
        cmocka_unit_test(trace_azure_is_ordered_by_arrival),
        cmocka_unit_test(trace_mooncake_shares_tokens_by_hash),
        cmocka_unit_test(trace_vidur_columns_are_found_by_name),
        cmocka_unit_test(trace_two_columns_with_and_without_header),
        cmocka_unit_test(trace_lines_without_work_are_counted),
        cmocka_unit_test(trace_drop_longer_keeps_the_rest),
        cmocka_unit_test(trace_broken_csv_line_is_named),
        cmocka_unit_test(trace_broken_json_line_is_named),
        cmocka_unit_test(trace_that_is_none_is_refused),
    };

    return cmocka_run_group_tests(tests, make_trace_file, remove_trace_file);
}
