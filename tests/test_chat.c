/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Goal: the generated chats are the same for the same seed, and two turns have equal tokens exactly
 * as far as the relation between them says. Method: write out the tokens of every turn of a few
 * hundred chats and compare them with those of the turn that it goes back to. */
#include "bench/workload_chat.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct fixture {
    chat_config config;
    chat_workload chats;
    int32_t *tokens, *other_tokens; /* room for the longest turn */
} fixture;

static int setup(void **state) {
    fixture *f = calloc(1, sizeof *f);
    const char *error = NULL;

    assert_non_null(f);
    f->config.seed = 17;
    f->config.num_turns = 1500;
    f->config.mean_system_tokens = 50;
    f->config.mean_user_tokens = 20;
    f->config.mean_answer_tokens = 30;
    f->config.max_total_tokens = 1000;
    f->config.edit_percent = 20;
    f->config.regenerate_percent = 20;
    assert_true(chat_make(&f->config, &f->chats, &error));
    f->tokens = calloc((size_t)f->chats.max_total_tokens, sizeof *f->tokens);
    f->other_tokens = calloc((size_t)f->chats.max_total_tokens, sizeof *f->other_tokens);
    assert_non_null(f->tokens);
    assert_non_null(f->other_tokens);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    fixture *f = *state;

    chat_release(&f->chats);
    free(f->tokens);
    free(f->other_tokens);
    free(f);
    return 0;
}

static int32_t get_length(const chat_turn *turn) {
    return turn->num_prompt_tokens + turn->num_answer_tokens;
}

static void get_all_tokens(const fixture *f, int32_t turn, int32_t *token_ids) {
    chat_get_tokens(&f->chats, turn, 0, get_length(&f->chats.turns[turn]), token_ids);
}

/* Leading tokens that two turns, prompt and answer, have in common. */
static int32_t count_common_tokens(fixture *f, int32_t one, int32_t other) {
    int32_t length = get_length(&f->chats.turns[one]);
    int32_t other_length = get_length(&f->chats.turns[other]);
    int32_t shorter = length < other_length ? length : other_length;
    int32_t num_common = 0;

    get_all_tokens(f, one, f->tokens);
    get_all_tokens(f, other, f->other_tokens);
    while (num_common < shorter && f->tokens[num_common] == f->other_tokens[num_common]) {
        num_common += 1;
    }
    return num_common;
}

static int32_t get_system_segment(const fixture *f, int32_t turn) {
    int32_t segment = f->chats.turns[turn].message;

    while (f->chats.segments[segment].parent >= 0) {
        segment = f->chats.segments[segment].parent;
    }
    return segment;
}

/* Two different segments begin with the same token once in 128,000 times; the seed is fixed, and a
 * turn or two of thousands may do. */
static void check_kind(fixture *f, chat_turn_kind kind, int32_t *num_accidents) {
    int32_t num_seen = 0;

    *num_accidents = 0;
    for (int32_t i = 0; i < f->chats.num_turns; i++) {
        const chat_turn *turn = &f->chats.turns[i];
        if (turn->kind != kind) {
            continue;
        }
        const chat_turn *before = &f->chats.turns[turn->after];
        int32_t num_common = count_common_tokens(f, i, turn->after);
        int32_t expected = before->num_prompt_tokens;

        if (kind == CHAT_FOLLOW_UP) {
            expected = get_length(before);
            assert_true(turn->num_prompt_tokens > expected);
        } else if (kind == CHAT_REGENERATE) {
            assert_int_equal(turn->num_prompt_tokens, expected);
            assert_int_equal(turn->message, before->message);
        } else {
            expected = f->chats.segments[turn->message].first_token;
            assert_true(expected < before->num_prompt_tokens);
        }
        assert_true(num_common >= expected);
        *num_accidents += num_common > expected;
        num_seen += 1;
    }
    assert_true(num_seen > 100);
}

static void follow_up_repeats_prompt_and_answer_of_turn_before(void **state) {
    int32_t num_accidents;

    check_kind(*state, CHAT_FOLLOW_UP, &num_accidents);

    /* The turn before is repeated to its very end, so nothing can be equal by accident. */
    assert_int_equal(num_accidents, 0);
}

static void regenerate_repeats_prompt_with_another_answer(void **state) {
    int32_t num_accidents;

    check_kind(*state, CHAT_REGENERATE, &num_accidents);

    assert_true(num_accidents <= 1);
}

static void edit_shares_what_stands_before_the_message(void **state) {
    int32_t num_accidents;

    check_kind(*state, CHAT_EDIT, &num_accidents);

    assert_true(num_accidents <= 1);
}

static void edit_reaches_messages_before_the_last(void **state) {
    fixture *f = *state;
    int32_t num_deep = 0;

    for (int32_t i = 0; i < f->chats.num_turns; i++) {
        const chat_turn *turn = &f->chats.turns[i];
        if (turn->kind == CHAT_EDIT) {
            const chat_turn *before = &f->chats.turns[turn->after];

            num_deep += f->chats.segments[turn->message].parent !=
                        f->chats.segments[before->message].parent;
        }
    }

    assert_true(num_deep > 20);
}

static void opening_turns_share_the_system_prompt_and_no_more(void **state) {
    fixture *f = *state;
    int32_t num_same = 0, num_different = 0, previous = -1;

    for (int32_t i = 0; i < f->chats.num_turns; i++) {
        if (f->chats.turns[i].kind != CHAT_FIRST) {
            continue;
        }
        if (previous >= 0) {
            int32_t system = get_system_segment(f, i);
            bool is_same = system == get_system_segment(f, previous);

            assert_int_equal(count_common_tokens(f, i, previous),
                             is_same ? f->chats.segments[system].num_tokens : 0);
            num_same += is_same;
            num_different += !is_same;
        }
        previous = i;
    }

    assert_true(num_same > 20);
    assert_true(num_different > 20);
}

static void turns_are_ordered_and_within_limits(void **state) {
    fixture *f = *state;
    double last_arrival = 0.0;
    int32_t num_chats = 0;

    assert_int_equal(f->chats.num_turns, f->config.num_turns);
    for (int32_t i = 0; i < f->chats.num_turns; i++) {
        const chat_turn *turn = &f->chats.turns[i];

        assert_true(turn->num_prompt_tokens >= 2 && turn->num_answer_tokens >= 1);
        assert_true(get_length(turn) <= f->chats.max_total_tokens);
        assert_true(turn->delay_seconds >= 0.0);
        if (turn->kind == CHAT_FIRST) {
            assert_int_equal(turn->after, -1);
            assert_true(turn->delay_seconds >= last_arrival);
            last_arrival = turn->delay_seconds;
            num_chats += 1;
        } else {
            assert_int_equal(turn->after, i - 1);
        }
        assert_int_equal(turn->chat, num_chats - 1);
    }
    assert_int_equal(f->chats.num_chats, num_chats);
    assert_true(f->chats.max_total_tokens <= f->config.max_total_tokens);
}

static void shares_and_rates_are_near_the_configuration(void **state) {
    fixture *f = *state;
    int32_t counts[CHAT_NUM_KINDS] = {0};
    double last_arrival = 0.0;

    for (int32_t i = 0; i < f->chats.num_turns; i++) {
        counts[f->chats.turns[i].kind] += 1;
        if (f->chats.turns[i].kind == CHAT_FIRST) {
            last_arrival = f->chats.turns[i].delay_seconds;
        }
    }
    int32_t num_later = f->chats.num_turns - counts[CHAT_FIRST];

    assert_in_range(counts[CHAT_EDIT] * 100 / num_later, 16, 24);
    assert_in_range(counts[CHAT_REGENERATE] * 100 / num_later, 16, 24);
    /* One chat a second is the default. */
    assert_in_range((int32_t)last_arrival, f->chats.num_chats * 4 / 5, f->chats.num_chats * 6 / 5);
}

static void same_seed_gives_the_same_chats(void **state) {
    fixture *f = *state;
    chat_workload again;
    const char *error = NULL;

    assert_true(chat_make(&f->config, &again, &error));

    assert_int_equal(again.num_segments, f->chats.num_segments);
    assert_memory_equal(again.segments, f->chats.segments,
                        (size_t)again.num_segments * sizeof *again.segments);
    for (int32_t i = 0; i < again.num_turns; i++) {
        assert_int_equal(again.turns[i].message, f->chats.turns[i].message);
        assert_int_equal(again.turns[i].answer, f->chats.turns[i].answer);
        assert_true(again.turns[i].delay_seconds == f->chats.turns[i].delay_seconds);
    }
    chat_release(&again);
}

static void other_seed_gives_other_tokens(void **state) {
    fixture *f = *state;
    chat_workload other;
    const char *error = NULL;
    int32_t token, other_token, num_equal = 0;

    f->config.seed = 18;
    assert_true(chat_make(&f->config, &other, &error));
    for (int32_t position = 0; position < 2; position++) {
        chat_get_tokens(&f->chats, 0, position, 1, &token);
        chat_get_tokens(&other, 0, position, 1, &other_token);
        num_equal += token == other_token;
    }
    chat_release(&other);

    assert_true(num_equal < 2);
}

static void get_tokens_of_a_part_equals_the_part_of_all(void **state) {
    fixture *f = *state;

    for (int32_t i = 0; i < 50; i++) {
        int32_t length = get_length(&f->chats.turns[i]);
        int32_t first = length / 3, num_tokens = length / 2;

        get_all_tokens(f, i, f->tokens);
        chat_get_tokens(&f->chats, i, first, num_tokens, f->other_tokens);
        assert_memory_equal(&f->tokens[first], f->other_tokens,
                            (size_t)num_tokens * sizeof(int32_t));
        for (int32_t k = 0; k < length; k++) {
            assert_in_range(f->tokens[k], 0, CHAT_VOCABULARY - 1);
        }
    }
}

static void long_means_are_cut_to_fit(void **state) {
    chat_config config = {.num_turns = 50,
                          .mean_system_tokens = 10,
                          .mean_user_tokens = 5000,
                          .mean_answer_tokens = 5000,
                          .max_total_tokens = 82};
    chat_workload chats;
    const char *error = NULL;

    (void)state;
    assert_true(chat_make(&config, &chats, &error));
    assert_int_equal(chats.num_turns, 50);
    assert_true(chats.max_total_tokens <= 82);
    chat_release(&chats);
}

static void make_refuses_what_makes_no_sense(void **state) {
    const chat_config refused[] = {
        {.num_turns = -1},
        {.num_system_prompts = 65},
        {.mean_user_tokens = -3},
        {.edit_percent = 60, .regenerate_percent = 60},
        {.chats_per_second = -1.0},
        {.mean_think_seconds = -1.0},
        {.max_total_tokens = 100, .mean_system_tokens = 100},
        {.mean_answer_tokens = 1 << 25},
    };

    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        chat_workload chats;
        const char *error = NULL;

        assert_false(chat_make(&refused[i], &chats, &error));
        assert_non_null(error);
        assert_null(chats.turns);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(follow_up_repeats_prompt_and_answer_of_turn_before, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(regenerate_repeats_prompt_with_another_answer, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(edit_shares_what_stands_before_the_message, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(edit_reaches_messages_before_the_last, setup, teardown),
        cmocka_unit_test_setup_teardown(opening_turns_share_the_system_prompt_and_no_more, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(turns_are_ordered_and_within_limits, setup, teardown),
        cmocka_unit_test_setup_teardown(shares_and_rates_are_near_the_configuration, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(same_seed_gives_the_same_chats, setup, teardown),
        cmocka_unit_test_setup_teardown(other_seed_gives_other_tokens, setup, teardown),
        cmocka_unit_test_setup_teardown(get_tokens_of_a_part_equals_the_part_of_all, setup,
                                        teardown),
        cmocka_unit_test(long_means_are_cut_to_fit),
        cmocka_unit_test(make_refuses_what_makes_no_sense),
    };

    return cmocka_run_group_tests_name("chat", tests, NULL, NULL);
}
