/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The one parser of all benches' command lines. What the options mean is not known here.
 *
 * The one idea: --help is printed from the table that parses. */
#include "options.h"

#include <pagedkv.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Column of the help texts. */
#define HELP_COLUMN 24

static void print_indented(const char *text, int indent) {
    for (const char *at = text; *at != '\0'; at++) {
        putchar(*at);
        if (*at == '\n') {
            printf("%*s", indent, "");
        }
    }
    putchar('\n');
}

static void print_option(const char *name, const char *value_name, const char *help) {
    int width = printf("  --%s%s%s", name, value_name != NULL ? " " : "",
                       value_name != NULL ? value_name : "");

    if (width >= HELP_COLUMN) {
        printf("\n%*s", HELP_COLUMN, "");
    } else {
        printf("%*s", HELP_COLUMN - width, "");
    }
    print_indented(help, HELP_COLUMN);
}

static void print_help(const bench_program *program) {
    printf("usage: %s [options]\n\n%s\n\n", program->name, program->summary);
    for (int32_t i = 0; i < program->num_options; i++) {
        const bench_option *option = &program->options[i];

        print_option(option->name, option->value_name, option->help);
    }
    print_option("help", NULL, "this text");
    print_option("version", NULL, "version of the library");
    if (program->epilogue != NULL) {
        printf("\n%s\n", program->epilogue);
    }
    printf("\nExit status: 0 ok, 1 a check failed or an output could not be made, 2 wrong usage or "
           "bad input.\n");
}

static bool usage_error(const bench_program *program, const char *name, const char *what) {
    fprintf(stderr, "%s: --%s: %s; try --help\n", program->name, name, what);
    return false;
}

static bool parse_number(const char *text, double min, double max, bool is_integer, double *out) {
    char *end = NULL;

    errno = 0;
    *out = strtod(text, &end);
    if (end == text || *end != '\0' || errno != 0 || !(*out >= min && *out <= max)) {
        return false;
    }
    return !is_integer || (*out >= INT32_MIN && *out <= INT32_MAX && *out == (int32_t)*out);
}

static bool parse_list(const char *text, double min, double max, bench_list *out) {
    char buffer[32];

    out->num_values = 0;
    for (;;) {
        size_t length = strcspn(text, ",");
        double value;

        if (length == 0 || length >= sizeof(buffer) || out->num_values == BENCH_MAX_LIST) {
            return false;
        }
        memcpy(buffer, text, length);
        buffer[length] = '\0';
        if (!parse_number(buffer, min, max, true, &value)) {
            return false;
        }
        out->values[out->num_values++] = (int32_t)value;
        if (text[length] == '\0') {
            return true;
        }
        text += length + 1;
    }
}

static bool set_value(const bench_option *option, const char *text) {
    double number;
    char *end = NULL;

    switch (option->kind) {
    case BENCH_FLAG:
        break;
    case BENCH_INT:
        if (!parse_number(text, option->min, option->max, true, &number)) {
            return false;
        }
        *(int32_t *)option->target = (int32_t)number;
        return true;
    case BENCH_DOUBLE:
        return parse_number(text, option->min, option->max, false, option->target);
    case BENCH_UINT64:
        errno = 0;
        *(uint64_t *)option->target = strtoull(text, &end, 0);
        return end != text && *end == '\0' && errno == 0 && strchr(text, '-') == NULL;
    case BENCH_STRING:
        *(const char **)option->target = text;
        return true;
    case BENCH_LIST:
        return parse_list(text, option->min, option->max, option->target);
    }
    return false;
}

/* Take argv[*index] and, where the option has a value that is not behind '=', the next one. */
static bool parse_one(const bench_program *program, int argc, char **argv, int *index) {
    const char *argument = argv[*index];

    if (strncmp(argument, "--", 2) != 0) {
        fprintf(stderr, "%s: unexpected argument '%s'; try --help\n", program->name, argument);
        return false;
    }

    const char *name = argument + 2;
    size_t length = strcspn(name, "=");
    const char *text = name[length] == '=' ? name + length + 1 : NULL;

    for (int32_t i = 0; i < program->num_options; i++) {
        const bench_option *option = &program->options[i];

        if (strlen(option->name) != length || strncmp(option->name, name, length) != 0) {
            continue;
        }
        if (option->kind == BENCH_FLAG) {
            *(bool *)option->target = true;
            return text == NULL || usage_error(program, option->name, "takes no value");
        }
        if (text == NULL && *index + 1 < argc) {
            *index += 1;
            text = argv[*index];
        }
        if (text == NULL) {
            return usage_error(program, option->name, "needs a value");
        }
        if (!set_value(option, text)) {
            fprintf(stderr, "%s: --%s: '%s' is not valid", program->name, option->name, text);
            if (option->max > option->min) {
                fprintf(stderr, " (from %.0f to %.0f)", option->min, option->max);
            }
            fprintf(stderr, "; try --help\n");
            return false;
        }
        return true;
    }
    fprintf(stderr, "%s: unknown option '%s'; try --help\n", program->name, argument);
    return false;
}

bool bench_parse_options(const bench_program *program, int argc, char **argv, int *exit_code) {
    *exit_code = BENCH_EXIT_OK;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            print_help(program);
            return false;
        }
        if (strcmp(argv[i], "--version") == 0) {
            uint32_t version = pkv_version();

            printf("libpagedkv %u.%u.%u\n", version / 10000, version / 100 % 100, version % 100);
            return false;
        }
        if (!parse_one(program, argc, argv, &i)) {
            *exit_code = BENCH_EXIT_USAGE;
            return false;
        }
    }
    return true;
}
