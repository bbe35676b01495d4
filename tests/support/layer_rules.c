/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The table of rooms and the checks over a source tree.
 *
 * The one idea: a room is a folder, or one public header; it lists only its nearest neighbours, and
 * what they may include it may include as well. A single file in a list opens that file alone. */
#include "support/layer_rules.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NUM_ELEMENTS(array) (sizeof(array) / sizeof((array)[0]))
#define PUBLIC_HEADER(name) "include/pagedkv/" name

enum { MAX_NEIGHBOURS = 5 };

typedef struct layer_room {
    const char *name; /* a folder ends with a slash */
    const char *may_include[MAX_NEIGHBOURS];
    bool has_one_subject; /* each of its files may include the headers of one room on top */
} layer_room;

/* Of two rooms that hold a file, the longer name wins. */
static const layer_room rooms[] = {
    {PUBLIC_HEADER("base.h"), {NULL}, false},
    {PUBLIC_HEADER("batch.h"), {PUBLIC_HEADER("base.h")}, false},
    {PUBLIC_HEADER("pool.h"), {PUBLIC_HEADER("batch.h")}, false},
    {PUBLIC_HEADER("manager.h"), {PUBLIC_HEADER("pool.h")}, false},
    {PUBLIC_HEADER("sharing.h"), {PUBLIC_HEADER("manager.h")}, false},
    {PUBLIC_HEADER("tier.h"), {PUBLIC_HEADER("manager.h"), PUBLIC_HEADER("sharing.h")}, false},
    {PUBLIC_HEADER("device.h"), {PUBLIC_HEADER("base.h")}, false},
    {PUBLIC_HEADER("attention.h"), {PUBLIC_HEADER("device.h"), PUBLIC_HEADER("batch.h")}, false},
    {PUBLIC_HEADER("transfer.h"), {PUBLIC_HEADER("device.h"), PUBLIC_HEADER("batch.h")}, false},
    {PUBLIC_HEADER("store.h"), {PUBLIC_HEADER("transfer.h")}, false},
    {PUBLIC_HEADER("cuda.h"), {PUBLIC_HEADER("device.h")}, false},
    {"include/pagedkv.h",
     {PUBLIC_HEADER("tier.h"), PUBLIC_HEADER("attention.h"), PUBLIC_HEADER("store.h")},
     false},

    {"src/base/", {PUBLIC_HEADER("batch.h")}, false},
    {"src/pool/", {"src/base/", PUBLIC_HEADER("pool.h")}, false},
    {"src/manager/", {"src/pool/", PUBLIC_HEADER("sharing.h")}, false},
    {"src/tier/", {"src/manager/", PUBLIC_HEADER("tier.h")}, false},
    {"src/device/",
     {"src/base/", PUBLIC_HEADER("attention.h"), PUBLIC_HEADER("transfer.h"),
      PUBLIC_HEADER("cuda.h")},
     false},
    {"src/attention/", {"src/device/"}, false},
    {"src/transfer/", {"src/device/", PUBLIC_HEADER("store.h")}, false},

    {"kernels/cpu/",
     {"src/device/backend.h", "src/base/paged.h", PUBLIC_HEADER("attention.h"),
      PUBLIC_HEADER("transfer.h")},
     false},
    {"kernels/cuda/",
     {"src/device/backend.h", "src/base/paged.h", PUBLIC_HEADER("attention.h"),
      PUBLIC_HEADER("transfer.h"), PUBLIC_HEADER("cuda.h")},
     false},

    {"tests/", {"include/", "tests/support/", "tests/simt/simt_control.h"}, true},
    {"tests/fuzz/", {"include/", "tests/support/"}, true},
    {"tests/support/", {"include/"}, false},
    {"tests/install/", {"include/"}, false},
    {"tests/conformance/", {"include/", "tests/support/", "bench/scheduler.h"}, false},
    {"tests/simt/", {"include/", "tests/support/", "kernels/cuda/", "kernels/cpu/"}, false},
    {"tests/gpu/",
     {"include/", "tests/support/", "tests/simt/simt_control.h", "kernels/cuda/",
      "bench/attention_cuda.h"},
     false},
    {"bench/", {"include/"}, false},
    {"examples/", {"include/"}, false},
};

/* What a public header may take from outside: ISO C, so that it compiles everywhere. */
static const char *const c_headers[] = {"assert.h", "float.h",    "inttypes.h", "limits.h",
                                        "math.h",   "stdalign.h", "stdarg.h",   "stdbool.h",
                                        "stddef.h", "stdint.h",   "string.h"};

static void report_add(layer_report *report,
                       const source_file *file,
                       int line,
                       const char *format,
                       ...) __attribute__((format(printf, 4, 5)));

static void report_add(
    layer_report *report, const source_file *file, int line, const char *format, ...) {
    char what[512];
    va_list arguments;
    size_t size;
    char *text;

    va_start(arguments, format);
    vsnprintf(what, sizeof(what), format, arguments);
    va_end(arguments);
    size = report->size + strlen(file->path) + strlen(what) + 32;
    text = realloc(report->text, size);
    if (text == NULL) {
        abort();
    }
    report->text = text;
    report->size += (size_t)snprintf(text + report->size, size - report->size, "%s:%d: %s\n",
                                     file->path, line, what);
    report->num_violations++;
}

/* ---- Rooms */

static bool is_inside(const char *path, const char *place) {
    const size_t length = strlen(place);
    const bool is_folder = length > 0 && place[length - 1] == '/';

    return is_folder ? strncmp(path, place, length) == 0 : strcmp(path, place) == 0;
}

/* Return the index of the room that holds `path`, or -1. */
static int find_room(const char *path) {
    int best = -1;

    for (int i = 0; i < (int)NUM_ELEMENTS(rooms); i++) {
        if (is_inside(path, rooms[i].name) &&
            (best < 0 || strlen(rooms[i].name) > strlen(rooms[best].name))) {
            best = i;
        }
    }
    return best;
}

static int find_room_by_name(const char *name) {
    for (int i = 0; i < (int)NUM_ELEMENTS(rooms); i++) {
        if (strcmp(rooms[i].name, name) == 0) {
            return i;
        }
    }
    return -1;
}

bool layer_rules_allow(const char *from, const char *path) {
    bool is_reached[NUM_ELEMENTS(rooms)] = {false};
    int queue[NUM_ELEMENTS(rooms)];
    int num_queued = 0;
    const int start = find_room_by_name(from);

    if (start < 0) {
        return false;
    }
    is_reached[start] = true;
    queue[num_queued++] = start;
    for (int head = 0; head < num_queued; head++) {
        const layer_room *room = &rooms[queue[head]];
        for (int i = 0; i < MAX_NEIGHBOURS && room->may_include[i] != NULL; i++) {
            const int next = find_room_by_name(room->may_include[i]);
            if (is_inside(path, room->may_include[i])) {
                return true;
            }
            if (next >= 0 && !is_reached[next]) {
                is_reached[next] = true;
                queue[num_queued++] = next;
            }
        }
    }
    return false;
}

/* ---- Includes */

/* Say whether a test may choose the room of `path` as its subject: the inside of the library, and
 * what the benches share, since a wrong workload makes a wrong number. */
static bool may_be_subject(const char *path) {
    return is_inside(path, "src/") || is_inside(path, "kernels/") || is_inside(path, "bench/");
}

static void check_foreign_include(const source_file *file,
                                  const source_include *include,
                                  layer_report *report) {
    if (include->is_quoted) {
        report_add(report, file, include->line, "includes \"%s\", which is not in the tree",
                   include->target);
        return;
    }
    if (strncmp(file->path, "include/", 8) != 0 ||
        strcmp(file->path, PUBLIC_HEADER("cuda.h")) == 0) {
        return;
    }
    for (size_t i = 0; i < NUM_ELEMENTS(c_headers); i++) {
        if (strcmp(include->target, c_headers[i]) == 0) {
            return;
        }
    }
    report_add(report, file, include->line, "a public header includes <%s>", include->target);
}

/* Check one file's includes. `subject` is the internal room that a test has chosen so far. */
static void check_includes(const source_tree *tree, const source_file *file, layer_report *report) {
    const int own = find_room(file->path);
    int subject = -1;

    if (own < 0) {
        report_add(report, file, 1, "belongs to no room of tests/support/layer_rules.c");
        return;
    }
    for (int i = 0; i < file->num_includes; i++) {
        const source_include *include = &file->includes[i];
        const source_file *target;
        int target_room;

        if (include->file_index < 0) {
            check_foreign_include(file, include, report);
            continue;
        }
        target = &tree->files[include->file_index];
        target_room = find_room(target->path);
        if (source_file_has_suffix(target, ".c")) {
            report_add(report, file, include->line, "includes the source file %s", target->path);
        } else if (target_room == own || layer_rules_allow(rooms[own].name, target->path)) {
            continue;
        } else if (!rooms[own].has_one_subject || !may_be_subject(target->path)) {
            report_add(report, file, include->line, "%s may not include %s", rooms[own].name,
                       target->path);
        } else if (subject >= 0 && subject != target_room) {
            report_add(report, file, include->line, "includes %s, but its subject is %s already",
                       target->path, rooms[subject].name);
        } else {
            subject = target_room;
        }
    }
}

/* Take away, until nothing changes, each file that includes none of those left and each that none
 * of those left includes. What stays is on a circle, or between two. */
static void check_circles(const source_tree *tree, layer_report *report) {
    const size_t num_files = (size_t)tree->num_files;
    bool *is_left = calloc(num_files, sizeof(*is_left));
    bool *is_included = calloc(num_files, sizeof(*is_included));
    bool is_changed = true;

    if (is_left == NULL || is_included == NULL) {
        abort();
    }
    memset(is_left, true, num_files * sizeof(*is_left));
    while (is_changed) {
        is_changed = false;
        memset(is_included, 0, num_files * sizeof(*is_included));
        for (size_t i = 0; i < num_files; i++) {
            bool has_includes = false;
            for (int k = 0; is_left[i] && k < tree->files[i].num_includes; k++) {
                const int target = tree->files[i].includes[k].file_index;
                if (target >= 0 && is_left[target]) {
                    is_included[target] = true;
                    has_includes = true;
                }
            }
            is_changed = is_changed || (is_left[i] && !has_includes);
            is_left[i] = is_left[i] && has_includes;
        }
        for (size_t i = 0; i < num_files; i++) {
            is_changed = is_changed || (is_left[i] && !is_included[i]);
            is_left[i] = is_left[i] && is_included[i];
        }
    }
    for (size_t i = 0; i < num_files; i++) {
        if (is_left[i]) {
            report_add(report, &tree->files[i], 1, "is part of an include circle");
        }
    }
    free(is_left);
    free(is_included);
}

/* ---- Sizes and the licence line */

typedef struct function_check {
    const source_file *file;
    layer_report *report;
} function_check;

static void check_function(void *context, const char *name, int line, int num_lines) {
    const function_check *check = context;

    if (num_lines > MAX_FUNCTION_LINES) {
        report_add(check->report, check->file, line, "the function %s has %d lines, more than %d",
                   name, num_lines, MAX_FUNCTION_LINES);
    }
}

static void check_sizes(const source_file *file, layer_report *report) {
    function_check check = {file, report};

    if (file->num_lines > MAX_FILE_LINES) {
        report_add(report, file, file->num_lines, "the file has %d lines, more than %d",
                   file->num_lines, MAX_FILE_LINES);
    }
    if (!source_file_visit_functions(file, check_function, &check)) {
        report_add(report, file, file->num_lines, "its braces do not match");
    }
}

static void check_licence(const source_file *file, layer_report *report) {
    static const char licence[] = " SPDX-License-Identifier: Apache-2.0";
    static const char authors[] = " SPDX-FileCopyrightText: the libpagedkv authors";
    const char *line = file->text;
    const char *next;

    if (strncmp(line, "#!", 2) == 0) {
        line += strcspn(line, "\n") + 1;
    }
    next = line + strcspn(line, "\n");
    line += strcspn(line, " \n");
    next += strcspn(next, " ");
    if (strncmp(line, licence, strlen(licence)) != 0 ||
        strncmp(next, authors, strlen(authors)) != 0) {
        report_add(report, file, 1, "does not open with the two SPDX lines");
    }
}

/* ---- What a processor cannot run in place of a GPU */

#define INSTRUCTIONS "kernels/cuda/simt.cuh"

/* Say whether `word` stands in the code at `at` as a word of its own. */
static bool is_word_at(const source_file *file, const char *at, const char *word) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    const char next = at[strlen(word)];

    return (at == file->code || strchr(letters, at[-1]) == NULL) &&
           (next == '\0' || strchr(letters, next) == NULL);
}

/* Instructions, launches and choices by architecture are the wrappers' alone: kernels are compiled
 * as C++ too, and what has no twin there would not be tested. */
static void check_device_code(const source_file *file, layer_report *report) {
    static const struct {
        const char *text;
        bool is_word, is_for_host; /* may host code have it? */
    } forbidden[] = {{"asm", true, true},
                     {"__asm", true, true},
                     {"__asm__", true, true},
                     {"<<<", false, false},
                     {"__CUDA_ARCH", false, false}};
    const bool is_device_code = source_file_has_suffix(file, ".cu") ||
                                source_file_has_suffix(file, ".cuh") ||
                                is_inside(file->path, "kernels/cuda/");

    if (strcmp(file->path, INSTRUCTIONS) == 0 || source_file_has_suffix(file, ".sh")) {
        return;
    }
    for (size_t i = 0; i < NUM_ELEMENTS(forbidden); i++) {
        const size_t length = strlen(forbidden[i].text);
        int line = 1;

        if (forbidden[i].is_for_host && !is_device_code) {
            continue;
        }
        for (const char *at = file->code; *at != '\0'; at++) {
            line += *at == '\n';
            if (strncmp(at, forbidden[i].text, length) == 0 &&
                (!forbidden[i].is_word || is_word_at(file, at, forbidden[i].text))) {
                report_add(report, file, line, "has %s, which is for " INSTRUCTIONS " alone",
                           forbidden[i].text);
            }
        }
    }
}

void layer_rules_check(const source_tree *tree, layer_report *report) {
    for (int i = 0; i < tree->num_files; i++) {
        check_includes(tree, &tree->files[i], report);
        check_sizes(&tree->files[i], report);
        check_licence(&tree->files[i], report);
        check_device_code(&tree->files[i], report);
    }
    check_circles(tree, report);
}
