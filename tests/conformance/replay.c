/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Comparing lines, and writing the state lines; see the header. */
#include "replay.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void replay_attach(struct replay *replay,
                   pkv_manager *manager,
                   int32_t num_blocks,
                   int32_t max_blocks) {
    replay->manager = manager;
    replay->pool = pkv_manager_get_pool(manager);
    replay->num_blocks = num_blocks;
    replay->num_ids = num_blocks > max_blocks ? num_blocks : max_blocks;
    replay->ids = conformance_allocate((size_t)replay->num_ids, sizeof(int32_t));
    replay->ref_cnts = conformance_allocate((size_t)num_blocks, sizeof(int32_t));
    replay->is_keyed = conformance_allocate((size_t)num_blocks, sizeof(int32_t));
}

void replay_release(struct replay *replay) {
    pkv_manager_destroy(replay->manager);
    free(replay->ids);
    free(replay->ref_cnts);
    free(replay->is_keyed);
    text_free(&replay->actual);
}

const char *replay_peek(const struct replay *replay) {
    const struct recording *recording = replay->recording;

    return replay->line < recording->num_lines ? recording->lines[replay->line] : "";
}

void replay_advance(struct replay *replay) {
    replay->line = grammar_skip_comments(replay->recording, replay->line + 1);
}

/* ---- differences ----------------------------------------------------------------------------- */

/* Print the part of a long line that holds the first difference. */
static void print_excerpt(const char *label, const char *line, size_t first_difference) {
    size_t start = first_difference > 100 ? first_difference - 60 : 0;

    printf("  %s %s%.160s%s\n", label, start > 0 ? "... " : "", line + start,
           strlen(line + start) > 160 ? " ..." : "");
}

void replay_report(struct replay *replay, const char *expected, const char *actual) {
    replay->num_differences++;
    if (replay->num_differences > REPLAY_MAX_DIFFERENCES_SHOWN) {
        return;
    }
    size_t first_difference = 0;
    while (expected[first_difference] != '\0' &&
           expected[first_difference] == actual[first_difference]) {
        first_difference++;
    }
    printf("%s:%d: difference\n", replay->recording->path, (int)replay->line + 1);
    print_excerpt("expected:", expected, first_difference);
    print_excerpt("actual:  ", actual, first_difference);
}

void replay_report_status(struct replay *replay, const char *call, pkv_status status) {
    struct text actual = {NULL, 0, 0};

    text_add(&actual, "%s returned %s: %s", call, pkv_status_name(status),
             pkv_manager_last_error(replay->manager));
    replay_report(replay, "(success)", actual.characters);
    text_free(&actual);
}

/* ---- comparing ------------------------------------------------------------------------------- */

static bool is_answer(const char *line) {
    return line[0] != '\0' && line[0] != '>' && !line_starts_with(line, "stats") &&
           !line_starts_with(line, "end");
}

static bool has_same_word(const char *left, const char *right) {
    size_t length = strcspn(left, " ");

    return length == strcspn(right, " ") && strncmp(left, right, length) == 0;
}

/* Among the answers of this operation, the line that `actual` is to be compared with; -1 = none. */
static int32_t find_partner(const struct replay *replay) {
    const struct recording *recording = replay->recording;

    for (int32_t i = replay->line; i < recording->num_lines; i++) {
        const char *line = recording->lines[i];
        if (line[0] == '#') {
            continue;
        }
        if (has_same_word(line, replay->actual.characters)) {
            return i;
        }
        if (!is_answer(line)) {
            break;
        }
    }
    return -1;
}

void replay_expect(struct replay *replay) {
    int32_t partner = find_partner(replay);

    if (partner < 0) {
        replay_report(replay, "(no such line)", replay->actual.characters);
        return;
    }
    while (replay->line < partner) {
        replay_report(replay, replay_peek(replay), "(nothing)");
        replay_advance(replay);
    }
    if (strcmp(replay_peek(replay), replay->actual.characters) != 0) {
        replay_report(replay, replay_peek(replay), replay->actual.characters);
    }
    replay_advance(replay);
}

/* Write the ids, or their digest where the recording has that: what it takes for long is its own
 * affair, and may differ between lists and tables. */
static void expect_ids(struct replay *replay, bool is_digest, const int32_t *ids, int32_t num_ids) {
    if (is_digest) {
        text_add_list_digest(&replay->actual, ids, num_ids);
    } else {
        text_add_list(&replay->actual, ids, num_ids);
    }
    replay_expect(replay);
}

void replay_expect_ids(struct replay *replay, int32_t group, const int32_t *ids, int32_t num_ids) {
    bool is_digest = line_starts_with(replay_peek(replay), "*");

    text_clear(&replay->actual);
    text_add(&replay->actual, "%c %" PRId32, is_digest ? '*' : '+', group);
    expect_ids(replay, is_digest, ids, num_ids);
}

void replay_expect_table(
    struct replay *replay, int32_t request, int32_t group, const int32_t *ids, int32_t num_ids) {
    bool is_digest = line_starts_with(replay_peek(replay), "B");

    text_clear(&replay->actual);
    text_add(&replay->actual, "%c %" PRId32 " %" PRId32, is_digest ? 'B' : 'b', request, group);
    expect_ids(replay, is_digest, ids, num_ids);
}

/* ---- state ----------------------------------------------------------------------------------- */

static void read_blocks(struct replay *replay) {
    for (int32_t i = 1; i < replay->num_blocks; i++) {
        pkv_block_info info = {.struct_size = sizeof info};
        pkv_status status = pkv_pool_get_block(replay->pool, i, &info);
        if (status != PKV_OK) {
            replay_report_status(replay, "pkv_pool_get_block", status);
        }
        replay->ref_cnts[i] = info.ref_cnt;
        replay->is_keyed[i] = info.is_keyed ? 1 : 0;
    }
}

static uint64_t digest_of(const int32_t *values, int32_t num_values) {
    uint64_t digest = TEXT_DIGEST_START;

    for (int32_t i = 0; i < num_values; i++) {
        digest = text_digest_add(digest, (uint32_t)values[i]);
    }
    return digest;
}

/* Read the free queue and the blocks, and write the summary of both. */
static int32_t expect_summary(struct replay *replay) {
    int32_t num_free = 0;
    pkv_pool_stats stats = {.struct_size = sizeof stats};
    pkv_status status =
        pkv_pool_get_free_queue(replay->pool, replay->ids, replay->num_blocks, &num_free);
    if (status != PKV_OK) {
        replay_report_status(replay, "pkv_pool_get_free_queue", status);
        num_free = 0;
    }
    status = pkv_pool_get_stats(replay->pool, &stats);
    if (status != PKV_OK) {
        replay_report_status(replay, "pkv_pool_get_stats", status);
    }
    read_blocks(replay);
    int64_t num_cached = 0;
    int64_t num_references = 0;
    for (int32_t i = 1; i < replay->num_blocks; i++) {
        num_cached += replay->is_keyed[i];
        num_references += replay->ref_cnts[i];
    }
    if (num_cached != stats.num_cached_blocks || num_free != stats.num_free_blocks) {
        replay_report(replay, "(levels that agree with the blocks)", "pkv_pool_get_stats");
    }

    int32_t num_others = replay->num_blocks - 1;
    text_clear(&replay->actual);
    text_add(&replay->actual,
             "s %" PRId32 " %" PRId64 " %" PRId32 " %" PRId64 " %016" PRIx64 " %016" PRIx64
             " %016" PRIx64,
             num_free, num_cached, stats.num_distinct_keys, num_references,
             digest_of(replay->ids, num_free), digest_of(replay->ref_cnts + 1, num_others),
             digest_of(replay->is_keyed + 1, num_others));
    replay_expect(replay);
    return num_free;
}

static void expect_references(struct replay *replay) {
    int32_t num_held = 0;

    for (int32_t i = 1; i < replay->num_blocks; i++) {
        num_held += replay->ref_cnts[i] > 0;
    }
    text_clear(&replay->actual);
    text_add(&replay->actual, "r %" PRId32, num_held);
    for (int32_t i = 1; i < replay->num_blocks; i++) {
        if (replay->ref_cnts[i] > 0) {
            text_add(&replay->actual, " %" PRId32 ":%" PRId32, i, replay->ref_cnts[i]);
        }
    }
    replay_expect(replay);
}

static void expect_keyed(struct replay *replay) {
    int32_t num_keyed = 0;

    for (int32_t i = 1; i < replay->num_blocks; i++) {
        if (replay->is_keyed[i] != 0) {
            replay->ids[num_keyed++] = i;
        }
    }
    text_clear(&replay->actual);
    text_add(&replay->actual, "h");
    text_add_list(&replay->actual, replay->ids, num_keyed);
    replay_expect(replay);
}

void replay_expect_state(struct replay *replay) {
    int32_t num_free = expect_summary(replay);

    if (line_starts_with(replay_peek(replay), "q")) {
        text_clear(&replay->actual);
        text_add(&replay->actual, "q");
        text_add_list(&replay->actual, replay->ids, num_free);
        replay_expect(replay);
    }
    if (line_starts_with(replay_peek(replay), "r")) {
        expect_references(replay);
    }
    if (line_starts_with(replay_peek(replay), "h")) {
        expect_keyed(replay);
    }
}

/* Whether the state that ends the recording stands here; it belongs to no operation. */
static bool is_at_closing_state(const struct replay *replay) {
    const struct recording *recording = replay->recording;
    int32_t line = grammar_skip_comments(recording, replay->line + 1);

    while (line < recording->num_lines && strchr("qrh", recording->lines[line][0]) != NULL) {
        line = grammar_skip_comments(recording, line + 1);
    }
    return line_starts_with(replay_peek(replay), "s") && line < recording->num_lines &&
           (line_starts_with(recording->lines[line], "stats") ||
            line_starts_with(recording->lines[line], "end"));
}

void replay_finish_operation(struct replay *replay, bool is_last) {
    while (is_answer(replay_peek(replay)) && !is_at_closing_state(replay)) {
        replay_report(replay, replay_peek(replay), "(nothing)");
        replay_advance(replay);
    }
    bool is_due =
        replay->check_interval > 0 && replay->num_operations % replay->check_interval == 0;
    if (is_last || is_due) {
        pkv_status status = pkv_manager_check(replay->manager);
        if (status != PKV_OK) {
            replay_report_status(replay, "pkv_manager_check", status);
        }
    }
}
