/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* pkv_replay: replays recordings of the reference manager on this library and compares everything
 * that they say. This file reads the command line and adds up; the rest is in the files beside
 * it. */
#include "replay_files.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_CHECK_INTERVAL 16

enum { EXIT_SAME = 0, EXIT_DIFFERENT = 1, EXIT_BAD_INPUT = 2 };

static const char usage[] =
    "usage: pkv_replay [--check N] FILE...\n"
    "\n"
    "Replays recordings (.trace: manager, .sched: scheduler) and compares every answer and every\n"
    "state with what the library does. Shows the first 10 differences of each file.\n"
    "\n"
    "  --check N  let the library check itself after every N-th operation, and at the start and "
    "the\n"
    "             end of each file; 0 = only there (default 16)\n"
    "  --help     this text\n"
    "\n"
    "The last line says `replayed N operations, D differences`.\n"
    "Exit status: 0 no difference, 1 differences, 2 wrong usage, or a file that cannot be read or\n"
    "is malformed.\n";

struct totals {
    int64_t num_operations, num_differences;
    bool has_bad_input;
};

/* What a recording is stands in its first line; its name may be anything. */
static bool replay_file(struct replay *replay) {
    const struct recording *recording = replay->recording;

    if (recording->num_lines > 0 && line_starts_with(recording->lines[0], "pkvtrace")) {
        return trace_replay(replay);
    }
    if (recording->num_lines > 0 && line_starts_with(recording->lines[0], "pkvsched")) {
        return sched_replay(replay);
    }
    return recording_refuse(recording, 0, "not a recording");
}

static void replay_path(const char *path, int32_t check_interval, struct totals *totals) {
    struct recording recording;
    struct replay replay = {.recording = &recording, .check_interval = check_interval};

    if (!recording_load(&recording, path)) {
        totals->has_bad_input = true;
        return;
    }
    if (!replay_file(&replay)) {
        totals->has_bad_input = true;
    }
    if (replay.num_differences > REPLAY_MAX_DIFFERENCES_SHOWN) {
        printf("%s: %" PRId64 " differences, the first %d are shown\n", path,
               replay.num_differences, REPLAY_MAX_DIFFERENCES_SHOWN);
    }
    totals->num_operations += replay.num_operations;
    totals->num_differences += replay.num_differences;
    replay_release(&replay);
    recording_free(&recording);
}

/* Returns false when the text is not a number that can be an interval. */
static bool read_interval(const char *text, int32_t *interval) {
    char *end;
    long value = strtol(text, &end, 10);

    *interval = (int32_t)value;
    return end != text && *end == '\0' && value >= 0 && value <= INT32_MAX;
}

int main(int argc, char **argv) {
    int32_t check_interval = DEFAULT_CHECK_INTERVAL;
    struct totals totals = {0, 0, false};
    int first = 1;

    for (; first < argc && argv[first][0] == '-'; first++) {
        if (strcmp(argv[first], "--help") == 0 || strcmp(argv[first], "-h") == 0) {
            fputs(usage, stdout);
            return EXIT_SAME;
        }
        bool is_check = strcmp(argv[first], "--check") == 0 && first + 1 < argc;
        if (!is_check || !read_interval(argv[++first], &check_interval)) {
            fprintf(stderr, "pkv_replay: cannot make sense of '%s'; try --help\n", argv[first]);
            return EXIT_BAD_INPUT;
        }
    }
    if (first == argc) {
        fprintf(stderr, "pkv_replay: no file given; try --help\n");
        return EXIT_BAD_INPUT;
    }
    for (int i = first; i < argc; i++) {
        replay_path(argv[i], check_interval, &totals);
    }
    fflush(stderr);
    printf("replayed %" PRId64 " operations, %" PRId64 " differences\n", totals.num_operations,
           totals.num_differences);
    if (totals.has_bad_input) {
        return EXIT_BAD_INPUT;
    }
    return totals.num_differences > 0 ? EXIT_DIFFERENT : EXIT_SAME;
}
