/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Finds the functions of a C, C++, CUDA or shell file by its braces.
 *
 * The one idea: outside of functions, what stands before an opening brace says what it opens. With
 * an equals sign it is an initializer; else with parentheses it is a function; else it is a struct,
 * an enum, a namespace or an extern block, and what it holds is looked at like the file itself. */
#include "support/source_tree.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { MAX_NAME = 64 };

typedef struct function_scanner {
    source_function_visitor visit;
    void *context;
    int line;
    int depth;       /* open braces of structs, namespaces and the like */
    int body_depth;  /* open braces of a function or an initializer */
    int parentheses; /* open parentheses outside of bodies */
    int first_line;  /* of the declaration at hand; 0: nothing of it was seen */
    bool has_equals; /* the declaration at hand has one outside of parentheses */
    bool has_arguments;
    char name[MAX_NAME]; /* the identifier before its first parenthesis */
    size_t name_length;
    bool is_name_open; /* the identifier goes on with the next character */
} function_scanner;

static void start_declaration(function_scanner *scanner) {
    scanner->parentheses = 0;
    scanner->first_line = 0;
    scanner->has_equals = false;
    scanner->has_arguments = false;
    scanner->name_length = 0;
    scanner->is_name_open = false;
}

static void take_name(function_scanner *scanner, char c) {
    const bool is_identifier = isalnum((unsigned char)c) || c == '_';

    if (is_identifier && !scanner->has_arguments) {
        if (!scanner->is_name_open) {
            scanner->name_length = 0;
        }
        if (scanner->name_length + 1 < MAX_NAME) {
            scanner->name[scanner->name_length++] = c;
        }
    }
    scanner->is_name_open = is_identifier;
}

static void scan_outside(function_scanner *scanner, char c) {
    if (!isspace((unsigned char)c) && scanner->first_line == 0) {
        scanner->first_line = scanner->line;
    }
    take_name(scanner, c);
    switch (c) {
    case '(':
        scanner->parentheses++;
        scanner->has_arguments = true;
        break;
    case ')':
        scanner->parentheses--;
        break;
    case '=':
        scanner->has_equals = scanner->has_equals || scanner->parentheses == 0;
        break;
    case ';':
        start_declaration(scanner);
        break;
    case '{':
        if (scanner->has_equals || scanner->has_arguments) {
            scanner->body_depth = 1;
        } else {
            scanner->depth++;
            start_declaration(scanner);
        }
        break;
    case '}':
        scanner->depth--;
        start_declaration(scanner);
        break;
    default:
        break;
    }
}

static void scan_body(function_scanner *scanner, char c) {
    if (c == '{') {
        scanner->body_depth++;
    } else if (c == '}') {
        scanner->body_depth--;
    }
    if (scanner->body_depth == 0) {
        if (!scanner->has_equals) {
            scanner->name[scanner->name_length] = '\0';
            scanner->visit(scanner->context, scanner->name, scanner->first_line,
                           scanner->line - scanner->first_line + 1);
        }
        start_declaration(scanner);
    }
}

/* Return what follows the preprocessor line at `at`, whose last line may be continued. */
static const char *skip_directive(const char *at, int *line) {
    while (*at != '\0' && *at != '\n') {
        if (at[0] == '\\' && at[1] == '\n') {
            (*line)++;
            at++;
        }
        at++;
    }
    return at;
}

static bool visit_c_functions(const source_file *file, function_scanner *scanner) {
    bool is_line_start = true;

    start_declaration(scanner);
    for (const char *at = file->code; *at != '\0'; at++) {
        if (is_line_start && *at == '#') {
            at = skip_directive(at, &scanner->line);
            if (*at == '\0') {
                break;
            }
        }
        if (scanner->body_depth > 0) {
            scan_body(scanner, *at);
        } else {
            scan_outside(scanner, *at);
        }
        if (scanner->depth < 0) {
            return false;
        }
        if (*at == '\n') {
            scanner->line++;
        }
        is_line_start = *at == '\n' || (is_line_start && isspace((unsigned char)*at));
    }
    return scanner->depth == 0 && scanner->body_depth == 0;
}

/* In a script a function starts with "name() {" and ends with "}" at the start of a line. */
static bool visit_script_functions(const source_file *file, function_scanner *scanner) {
    char name[MAX_NAME] = "";
    int first_line = 0;

    for (const char *at = file->text; *at != '\0'; scanner->line++) {
        const char *end = strchr(at, '\n');
        const bool is_closed = *at == '}' || (end != NULL && end > at && end[-1] == '}');
        int name_end = 0;

        if (first_line == 0 && sscanf(at, "%63[A-Za-z0-9_]() {%n", name, &name_end) == 1 &&
            name_end > 0 && !is_closed) {
            first_line = scanner->line;
        } else if (first_line != 0 && *at == '}') {
            scanner->visit(scanner->context, name, first_line, scanner->line - first_line + 1);
            first_line = 0;
        }
        at = end == NULL ? at + strlen(at) : end + 1;
    }
    return first_line == 0;
}

bool source_file_visit_functions(const source_file *file,
                                 source_function_visitor visit,
                                 void *context) {
    function_scanner scanner = {0};

    scanner.visit = visit;
    scanner.context = context;
    scanner.line = 1;
    return source_file_has_suffix(file, ".sh") ? visit_script_functions(file, &scanner)
                                               : visit_c_functions(file, &scanner);
}
