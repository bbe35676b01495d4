/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The source tree as the style tests see it: every source file of the project with its includes,
 * its number of lines and its functions. It knows nothing of what is allowed (layer_rules.h).
 *
 * The one idea: comments and literals are blanked in a copy of the text that keeps every position,
 * so that a scanner of a few lines is enough, and no compiler is needed. */
#ifndef PKV_TESTS_SOURCE_TREE_H
#define PKV_TESTS_SOURCE_TREE_H

#include <stdbool.h>

typedef struct source_include {
    char *target; /* as written between the quotes or brackets */
    bool is_quoted;
    int line;
    int file_index; /* the file of the tree it names, or -1 */
} source_include;

typedef struct source_file {
    char *path; /* relative to the root, with slashes */
    char *text; /* as it is on disk, ends with a NUL */
    char *code; /* the same without comments and literals */
    int num_lines;
    source_include *includes;
    int num_includes;
} source_file;

typedef struct source_tree {
    source_file *files; /* sorted by path */
    int num_files;
} source_tree;

/* Called for each function: its name, its first line, and how many lines it has from the first one
 * of its signature to its closing brace. */
typedef void (*source_function_visitor)(void *context, const char *name, int line, int num_lines);

/* Read every .c, .h, .cpp, .cu, .cuh and .sh file below the source folders of `root` and resolve
 * their includes. Folders that do not exist are empty. Stops the program where a file cannot be
 * read, since a check of half a tree proves nothing. */
void source_tree_load(source_tree *tree, const char *root);

void source_tree_free(source_tree *tree);

/* Return the index of the file with this path, or -1. */
int source_tree_find(const source_tree *tree, const char *path);

/* Say whether the file's name ends with `suffix`. */
bool source_file_has_suffix(const source_file *file, const char *suffix);

/* Visit the functions of a file in order. Returns false where the braces do not match. */
bool source_file_visit_functions(const source_file *file,
                                 source_function_visitor visit,
                                 void *context);

#endif
