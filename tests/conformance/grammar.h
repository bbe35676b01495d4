/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Which lines may stand where in a recording. It reads no meaning into them.
 *
 * The one idea: an operation and its answers are said in one row of a table, so that a line that
 * the replay would not compare is refused instead of skipped. */
#ifndef CONFORMANCE_GRAMMAR_H
#define CONFORMANCE_GRAMMAR_H

#include "recording.h"

/* pattern: of the operation's fields, as fields_match reads it.
 * result: of its `=` line; NULL = none, "?" = `ok` or `none`, "*" = one number per group.
 * answers: its other lines in their order, named by their first character (the digest forms B and *
 *   count as b and +): alone = exactly once, `?` = any number, `*` = once per group, or once per
 *   element of the `t` line before. */
struct operation_form {
    const char *name, *pattern, *result, *answers;
};

/* forms[0] stands for the state that comes before the first operation, and may come once more
 * behind the last.
 *
 * Returns false, with a message on stderr, at the first line that does not fit. The lines from
 * first_line on must be operations with their answers, then `stats` where has_stats, then `end`
 * with the number of operations. */
bool grammar_check(const struct recording *recording,
                   const struct operation_form *forms,
                   int32_t num_forms,
                   int32_t first_line,
                   int32_t num_groups,
                   bool has_stats);

/* Index of the first line from line_index on that is not a comment; num_lines when there is
 * none. */
int32_t grammar_skip_comments(const struct recording *recording, int32_t line_index);

/* The form of the operation that the line asks for; NULL when it is not an operation. */
const struct operation_form *grammar_find_form(const struct operation_form *forms,
                                               int32_t num_forms,
                                               const char *line);

/* The fields of an operation, behind its name. */
struct fields grammar_arguments(const char *line);

#endif
