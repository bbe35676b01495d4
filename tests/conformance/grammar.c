/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Checking the order and the shape of lines; see the header. */
#include "grammar.h"

#include <string.h>

/* The cursor of one check: the next line, and how often a line with `*` comes. */
struct position {
    const struct recording *recording;
    int32_t line;
    int32_t num_repeats;
    bool has_failed_allocation;
};

int32_t grammar_skip_comments(const struct recording *recording, int32_t line_index) {
    while (line_index < recording->num_lines && recording->lines[line_index][0] == '#') {
        line_index++;
    }
    return line_index;
}

const struct operation_form *grammar_find_form(const struct operation_form *forms,
                                               int32_t num_forms,
                                               const char *line) {
    if (!line_starts_with(line, ">") || line[1] == '\0') {
        return NULL;
    }
    for (int32_t i = 1; i < num_forms; i++) {
        if (line_starts_with(line + 2, forms[i].name)) {
            return &forms[i];
        }
    }
    return NULL;
}

struct fields grammar_arguments(const char *line) {
    return fields_of(line + 2);
}

static const char *current(const struct position *position) {
    const struct recording *recording = position->recording;

    return position->line < recording->num_lines ? recording->lines[position->line] : "";
}

static void advance(struct position *position) {
    position->line = grammar_skip_comments(position->recording, position->line + 1);
}

static bool refuse(const struct position *position, const char *what) {
    return recording_refuse(position->recording, position->line, what);
}

/* The character that names an answer line; 0 for operations, `stats`, `end` and everything else. */
static char kind_of(const char *line) {
    if (line[0] == '\0' || line[0] == '>' || (line[1] != ' ' && line[1] != '\0')) {
        return '\0';
    }
    switch (line[0]) {
    case '*':
        return '+';
    case 'B':
        return 'b';
    default:
        return line[0];
    }
}

static bool event_is_valid(const char *line) {
    struct fields fields = fields_of(line);

    if (fields_word(&fields, "stored")) {
        return fields_match(fields, "ninl");
    }
    if (fields_word(&fields, "removed")) {
        return fields_match(fields, "nl");
    }
    return fields_word(&fields, "cleared") && fields_at_end(&fields);
}

static bool answer_is_valid(const char *line) {
    static const struct {
        char kind;
        const char *pattern;
    } patterns[] = {{'+', "nl"},      {'*', "nnd"}, {'b', "nnl"}, {'B', "nnnd"},
                    {'s', "nnnnddd"}, {'q', "l"},   {'r', "p"},   {'h', "l"},
                    {'t', "p"},       {'d', "p"},   {'p', "l"},   {'u', "l"},
                    {'w', "l"},       {'x', "n"},   {'f', "l"},   {'c', "t"}};

    if (line[0] == 'e') {
        return event_is_valid(line);
    }
    for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; i++) {
        if (patterns[i].kind == line[0]) {
            return fields_match(fields_of(line), patterns[i].pattern);
        }
    }
    return false;
}

static bool check_result(struct position *position, const char *result) {
    const char *line = current(position);
    struct fields fields = fields_of(line);
    bool is_valid = false;

    if (kind_of(line) != '=') {
        return refuse(position, "a result line was expected here");
    }
    if (strcmp(result, "?") == 0) {
        position->has_failed_allocation = fields_word(&fields, "none");
        is_valid = position->has_failed_allocation || fields_word(&fields, "ok");
        is_valid = is_valid && fields_at_end(&fields);
    } else if (strcmp(result, "*") == 0) {
        for (int32_t i = 0; i < position->num_repeats; i++) {
            fields_count(&fields);
        }
        is_valid = fields_at_end(&fields);
    } else {
        is_valid = fields_match(fields, result);
    }
    if (!is_valid) {
        return refuse(position, "not a result of this operation");
    }
    advance(position);
    return true;
}

/* Check all lines of one kind that stand here, and how many they are. */
static bool check_answers_of_kind(struct position *position, char kind, char quantity) {
    int32_t num_wanted = quantity == '*' ? position->num_repeats : 1;
    int32_t num_found = 0;

    if (kind == '+' && position->has_failed_allocation) {
        num_wanted = 0;
    }
    while (kind_of(current(position)) == kind && (quantity == '?' || num_found < num_wanted)) {
        const char *line = current(position);
        if (!answer_is_valid(line)) {
            return refuse(position, "malformed line");
        }
        if (kind == 't') {
            struct fields fields = fields_of(line);
            position->num_repeats = fields_count(&fields);
        }
        num_found++;
        advance(position);
    }
    if (quantity != '?' && num_found != num_wanted) {
        char what[] = "a line ' ' was expected here";
        what[8] = kind;
        return refuse(position, what);
    }
    return true;
}

static bool check_operation(struct position *position, const struct operation_form *form) {
    position->has_failed_allocation = false;
    if (form->result != NULL && !check_result(position, form->result)) {
        return false;
    }
    for (const char *kind = form->answers; *kind != '\0'; kind++) {
        char quantity = kind[1] == '?' || kind[1] == '*' ? kind[1] : '1';
        if (!check_answers_of_kind(position, *kind, quantity)) {
            return false;
        }
        kind += quantity != '1';
    }
    return true;
}

static bool check_end(struct position *position,
                      const struct operation_form *state,
                      int32_t num_operations,
                      bool has_stats) {
    if (kind_of(current(position)) == 's' && !check_operation(position, state)) {
        return false;
    }
    if (has_stats) {
        if (!line_starts_with(current(position), "stats") ||
            !fields_match(fields_of(current(position)), "nnnnnn")) {
            return refuse(position, "an operation or 'stats' with six counts was expected here");
        }
        advance(position);
    }
    struct fields fields = fields_of(current(position));
    if (!line_starts_with(current(position), "end")) {
        return refuse(position, "an operation or 'end' was expected here");
    }
    if (fields_count(&fields) != num_operations || !fields_at_end(&fields)) {
        return refuse(position, "not the number of operations");
    }
    advance(position);
    if (position->line != position->recording->num_lines) {
        return refuse(position, "nothing was expected behind 'end'");
    }
    return true;
}

bool grammar_check(const struct recording *recording,
                   const struct operation_form *forms,
                   int32_t num_forms,
                   int32_t first_line,
                   int32_t num_groups,
                   bool has_stats) {
    struct position position = {.recording = recording,
                                .line = grammar_skip_comments(recording, first_line)};
    int32_t num_operations = 0;

    position.num_repeats = num_groups;
    if (!check_operation(&position, &forms[0])) {
        return false;
    }
    while (line_starts_with(current(&position), ">")) {
        const char *line = current(&position);
        const struct operation_form *form = grammar_find_form(forms, num_forms, line);
        if (form == NULL) {
            return refuse(&position, "unknown operation");
        }
        if (!fields_match(grammar_arguments(line), form->pattern)) {
            return refuse(&position, "not the arguments of this operation");
        }
        advance(&position);
        position.num_repeats = num_groups;
        if (!check_operation(&position, form)) {
            return false;
        }
        num_operations++;
    }
    return check_end(&position, &forms[0], num_operations, has_stats);
}
