/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* What the source tree must look like: who may include whom, no include circle, files of at most
 * 600 lines, functions of at most 70, a licence line on top, device instructions in one file. The
 * table of rooms is in layer_rules.c; reading the tree is source_tree.h. */
#ifndef PKV_TESTS_LAYER_RULES_H
#define PKV_TESTS_LAYER_RULES_H

#include <stdbool.h>
#include <stddef.h>

#include "support/source_tree.h"

enum { MAX_FILE_LINES = 600, MAX_FUNCTION_LINES = 70 };

/* Violations, one a line: "path:line: what is wrong". */
typedef struct layer_report {
    char *text; /* NULL while there are none; free it after use */
    size_t size;
    int num_violations;
} layer_report;

/* Check everything; appends to `report`. */
void layer_rules_check(const source_tree *tree, layer_report *report);

/* Say whether files of the room `from` may include `path`, directly or because a room they may
 * include may. A room is named as in the table: "src/pool/" or "include/pagedkv/pool.h". */
bool layer_rules_allow(const char *from, const char *path);

#endif
