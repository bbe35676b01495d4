/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Comparing: the lines of a recording on one side, what the library did on the other. Which
 * operations there are is trace_replay.c and sched_replay.c.
 *
 * The one idea: the replay says its answers in the order of the recording, each as a whole line; a
 * line that is not answered, or not there, is a difference as much as one that differs. */
#ifndef CONFORMANCE_REPLAY_H
#define CONFORMANCE_REPLAY_H

#include "grammar.h"
#include "recording.h"
#include "text.h"

#include <pagedkv.h>

#define REPLAY_MAX_DIFFERENCES_SHOWN 10

/* ids: [num_ids], room for every block of the pool and for the longest block table. ref_cnts,
 * is_keyed: [num_blocks], as the last state line found them. */
struct replay {
    const struct recording *recording;
    int32_t line; /* index of the next line to be compared */
    int32_t
        check_interval; /* operations between two self-checks of the library; 0 = only at the end */
    int64_t num_operations, num_differences;
    pkv_manager *manager;
    const pkv_pool *pool;
    int32_t num_blocks, num_ids;
    int32_t *ids, *ref_cnts, *is_keyed;
    struct text actual;
};

/* Attach a manager, made for num_blocks blocks, whose tables have at most max_blocks columns. */
void replay_attach(struct replay *replay,
                   pkv_manager *manager,
                   int32_t num_blocks,
                   int32_t max_blocks);
void replay_release(struct replay *replay);

/* The next line; "" behind the last. */
const char *replay_peek(const struct replay *replay);
void replay_advance(struct replay *replay);

/* Count a difference, and show it while there are not too many. */
void replay_report(struct replay *replay, const char *expected, const char *actual);

/* Report that a call of the library failed that cannot fail here. */
void replay_report_status(struct replay *replay, const char *call, pkv_status status);

/* Compare `actual` with the next line that has the same first word, or whose digest form it is. */
void replay_expect(struct replay *replay);

/* Compare a list of block ids that an operation gave, `+` or `*`, and a block table, `b` or `B`. */
void replay_expect_ids(struct replay *replay, int32_t group, const int32_t *ids, int32_t num_ids);
void replay_expect_table(
    struct replay *replay, int32_t request, int32_t group, const int32_t *ids, int32_t num_ids);

/* Compare the state lines that stand here: s always, q, r and h where they are. */
void replay_expect_state(struct replay *replay);

/* End an operation: whatever is left of its lines was not answered. Now and then, and when is_last,
 * let the library check itself. */
void replay_finish_operation(struct replay *replay, bool is_last);

#endif
