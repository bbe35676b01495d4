/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The shape of the source tree: include directions, no circles, short files and functions, the
 * licence lines, device instructions in one place. The rules are in support/layer_rules.c.
 *
 * Method: the last test checks the real tree. The others plant one violation each in a tree of
 * their own and want it to be found where it was planted, and nothing else to be found. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/layer_rules.h"

#define LICENCE                                                                                    \
    "/* SPDX-License-Identifier: Apache-2.0 */\n"                                                  \
    "/* SPDX-FileCopyrightText: the libpagedkv authors */\n"
#define SCRIPT                                                                                     \
    "#!/bin/sh\n"                                                                                  \
    "# SPDX-License-Identifier: Apache-2.0\n"                                                      \
    "# SPDX-FileCopyrightText: the libpagedkv authors\n"

enum { MAX_PATH = 512, MAX_TEXT = 1 << 16 };

typedef struct planted_tree {
    char root[64];
    source_tree tree;
    layer_report report;
} planted_tree;

static int set_up(void **state) {
    planted_tree *fixture = calloc(1, sizeof(*fixture));

    assert_non_null(fixture);
    strcpy(fixture->root, "/tmp/pkv_layers_");
    memset(fixture->root + strlen(fixture->root), 'X', 6); /* what mkdtemp replaces */
    assert_non_null(mkdtemp(fixture->root));
    *state = fixture;
    return 0;
}

static int tear_down(void **state) {
    planted_tree *fixture = *state;
    char command[MAX_PATH];

    snprintf(command, sizeof(command), "rm -rf '%s'", fixture->root);
    assert_int_equal(system(command), 0);
    source_tree_free(&fixture->tree);
    free(fixture->report.text);
    free(fixture);
    return 0;
}

/* Write a file into the planted tree, with the folders that it needs. */
static void plant_raw(const planted_tree *fixture, const char *path, const char *text) {
    char full_path[MAX_PATH];
    FILE *stream;

    snprintf(full_path, sizeof(full_path), "%s/%s", fixture->root, path);
    for (char *slash = full_path + strlen(fixture->root) + 1; (slash = strchr(slash, '/')) != NULL;
         slash++) {
        *slash = '\0';
        mkdir(full_path, 0700);
        *slash = '/';
    }
    stream = fopen(full_path, "w");
    assert_non_null(stream);
    assert_true(fputs(text, stream) >= 0);
    assert_int_equal(fclose(stream), 0);
}

static void plant(const planted_tree *fixture, const char *path, const char *text) {
    char whole[1024];

    snprintf(whole, sizeof(whole), LICENCE "%s", text);
    plant_raw(fixture, path, whole);
}

/* A small tree that keeps all rules and has a file in each kind of place. */
static void plant_good_tree(const planted_tree *fixture) {
    plant(fixture, "include/pagedkv/base.h", "#include <stdint.h>\n");
    plant(fixture, "include/pagedkv/batch.h", "#include <pagedkv/base.h>\n");
    plant(fixture, "include/pagedkv/pool.h", "#include <pagedkv/batch.h>\n");
    plant(fixture, "include/pagedkv/manager.h", "#include <pagedkv/pool.h>\n");
    plant(fixture, "include/pagedkv/device.h", "#include <pagedkv/base.h>\n");
    plant(fixture, "include/pagedkv.h",
          "#include <pagedkv/device.h>\n#include <pagedkv/manager.h>\n");
    plant(fixture, "src/base/check.h", "\n");
    plant(fixture, "src/base/paged.h", "#include <pagedkv/batch.h>\n");
    plant(fixture, "src/pool/pool.h", "#include <pagedkv/pool.h>\n#include \"base/check.h\"\n");
    plant(fixture, "src/pool/pool.c", "#include \"pool.h\"\n#include <string.h>\n");
    plant(fixture, "src/manager/step.h", "#include \"pool/pool.h\"\n#include \"base/check.h\"\n");
    plant(fixture, "src/device/backend.h", "#include <pagedkv/device.h>\n");
    plant(fixture, "kernels/cpu/reference.c",
          "#include \"base/paged.h\"\n#include \"device/backend.h\"\n");
    plant(fixture, "tests/support/model.h", "#include <pagedkv.h>\n");
    plant(fixture, "tests/test_pool.c", "#include \"pool/pool.h\"\n#include \"support/model.h\"\n");
    plant(fixture, "bench/scheduler.h", "#include <pagedkv.h>\n");
    plant(fixture, "bench/bench_serve.c", "#include \"scheduler.h\"\n");
    plant(fixture, "tests/conformance/replay.c", "#include \"bench/scheduler.h\"\n");
    plant(fixture, "examples/01_blocks.c", "#include <pagedkv.h>\n");
    plant_raw(fixture, "bench/run.sh", SCRIPT "usage() { echo; }\nmain() {\n    usage\n}\n");
}

static void check(planted_tree *fixture) {
    source_tree_load(&fixture->tree, fixture->root);
    layer_rules_check(&fixture->tree, &fixture->report);
}

/* Check the planted tree and want `expected` and no other violation. */
static void expect_only(planted_tree *fixture, const char *expected) {
    check(fixture);
    if (fixture->report.num_violations != 1 || strstr(fixture->report.text, expected) == NULL) {
        print_error("wanted: %s\nfound:\n%s\n", expected,
                    fixture->report.text == NULL ? "nothing" : fixture->report.text);
        fail();
    }
}

static void layers_good_tree_has_no_violation(void **state) {
    planted_tree *fixture = *state;

    plant_good_tree(fixture);
    check(fixture);

    assert_int_equal(fixture->tree.num_files, 20);
    if (fixture->report.num_violations != 0) {
        fail_msg("%s", fixture->report.text);
    }
}

/* One planted include and the violation it must give. */
typedef struct planted_include {
    const char *path;
    const char *text;
    const char *violation;
} planted_include;

static const planted_include planted_includes[] = {
    {"include/pagedkv/base.h", "#include <unistd.h>\n", "base.h:3: a public header includes"},
    {"include/pagedkv/base.h", "#include \"batch.h\"\n", "base.h:1: is part of an include circle"},
    {"include/pagedkv/device.h", "#include <pagedkv/batch.h>\n",
     "device.h:3: include/pagedkv/device.h may not include include/pagedkv/batch.h"},
    {"src/base/check.h", "#include <pagedkv/pool.h>\n", "src/base/ may not include"},
    {"src/pool/event_ring.c", "#include \"manager/step.h\"\n",
     "src/pool/ may not include src/manager/step.h"},
    {"src/manager/batch.c", "\n  #  include   \"device/backend.h\" // bad\n",
     "src/manager/batch.c:4: src/manager/ may not include src/device/backend.h"},
    {"src/manager/batch.c", "#include <pagedkv.h>\n", "src/manager/ may not include"},
    {"src/device/device.c", "#include \"pool/pool.h\"\n", "src/device/ may not include"},
    {"kernels/cpu/decode.c", "#include \"manager/step.h\"\n", "kernels/cpu/ may not include"},
    {"kernels/cpu/decode.c", "#include \"base/check.h\"\n", "kernels/cpu/ may not include"},
    {"kernels/cuda/decode.cu", "#include \"pool/pool.h\"\n", "kernels/cuda/ may not include"},
    {"kernels/cpu/decode.c", "#include <pagedkv/pool.h>\n", "kernels/cpu/ may not include"},
    {"tests/test_two.c", "#include \"pool/pool.h\"\n#include \"base/check.h\"\n",
     "tests/test_two.c:4: includes src/base/check.h, but its subject is src/pool/"},
    {"tests/test_two.c", "#include \"bench/scheduler.h\"\n#include \"base/paged.h\"\n",
     "tests/test_two.c:4: includes src/base/paged.h, but its subject is bench/"},
    {"tests/support/load.c", "#include \"bench/scheduler.h\"\n", "tests/support/ may not include"},
    {"tests/support/sim.c", "#include \"pool/pool.h\"\n", "tests/support/ may not include"},
    {"tests/conformance/trace.c", "#include \"pool/pool.h\"\n", "tests/conformance/ may not"},
    {"bench/bench_pool.c", "#include \"pool/pool.h\"\n", "bench/ may not include"},
    {"bench/bench_pool.c", "#include \"support/model.h\"\n", "bench/ may not include"},
    {"examples/02_prefix.c", "#include \"../src/pool/pool.h\"\n", "\"../src/pool/pool.h\""},
    {"examples/02_prefix.c", "#include \"bench/scheduler.h\"\n", "examples/ may not include"},
    {"src/pool/all.c", "#include \"pool.c\"\n", "includes the source file src/pool/pool.c"},
    {"src/pool/lost.c", "#include \"pool/lost.h\"\n", "lost.c:3: includes \"pool/lost.h\", which"},
    {"src/scheduler/x.c", "\n", "src/scheduler/x.c:1: belongs to no room"},
};

static void layers_each_planted_include_is_found(void **state) {
    for (size_t i = 0; i < sizeof(planted_includes) / sizeof(planted_includes[0]); i++) {
        const planted_include *planted = &planted_includes[i];
        void *inner = NULL;
        planted_tree *fixture;

        (void)state;
        assert_int_equal(set_up(&inner), 0);
        fixture = inner;
        plant_good_tree(fixture);
        plant(fixture, planted->path, planted->text);
        check(fixture);
        if (fixture->report.num_violations == 0 ||
            strstr(fixture->report.text, planted->violation) == NULL) {
            fail_msg("planted in %s: %s\nwanted: %s\nfound: %s", planted->path, planted->text,
                     planted->violation,
                     fixture->report.text == NULL ? "nothing" : fixture->report.text);
        }
        assert_int_equal(tear_down(&inner), 0);
    }
}

static void layers_include_in_comment_is_no_include(void **state) {
    planted_tree *fixture = *state;

    plant_good_tree(fixture);
    plant(fixture, "bench/bench_pool.c",
          "/*\n#include \"pool/pool.h\"\n*/\n// #include \"pool/pool.h\"\n"
          "const char *text = \"/*\";\n#include \"scheduler.h\"\n");
    check(fixture);

    assert_int_equal(fixture->report.num_violations, 0);
}

static void layers_circle_of_three_is_found_and_nothing_else(void **state) {
    planted_tree *fixture = *state;

    plant_good_tree(fixture);
    plant(fixture, "src/pool/a.h", "#include \"pool/b.h\"\n");
    plant(fixture, "src/pool/b.h", "#include \"c.h\"\n");
    plant(fixture, "src/pool/c.h", "#include \"pool/a.h\"\n#include \"base/check.h\"\n");
    plant(fixture, "src/pool/user.c", "#include \"a.h\"\n");
    check(fixture);

    assert_int_equal(fixture->report.num_violations, 3);
    assert_non_null(strstr(fixture->report.text, "src/pool/a.h:1: is part of an include circle"));
    assert_non_null(strstr(fixture->report.text, "src/pool/b.h:1: is part of an include circle"));
    assert_non_null(strstr(fixture->report.text, "src/pool/c.h:1: is part of an include circle"));
}

/* Write `head`, then `line` so often that the whole has `num_lines` lines, then `tail`. */
static void plant_long(const planted_tree *fixture,
                       const char *path,
                       const char *head,
                       const char *line,
                       int num_lines,
                       const char *tail) {
    static char text[MAX_TEXT];
    size_t size = (size_t)snprintf(text, sizeof(text), "%s", head);

    for (int i = 0; i < num_lines; i++) {
        size += (size_t)snprintf(text + size, sizeof(text) - size, "%s", line);
    }
    snprintf(text + size, sizeof(text) - size, "%s", tail);
    plant_raw(fixture, path, text);
}

static void layers_file_of_601_lines_is_found(void **state) {
    planted_tree *fixture = *state;

    plant_long(fixture, "src/pool/fits.c", LICENCE, "\n", 598, "");
    plant_long(fixture, "src/pool/long.c", LICENCE, "\n", 599, "");

    expect_only(fixture, "src/pool/long.c:601: the file has 601 lines");
}

static void layers_function_of_71_lines_is_found(void **state) {
    planted_tree *fixture = *state;

    plant_long(fixture, "src/pool/fits.c", LICENCE "int f(int a,\n      int b) {\n", "    a++;\n",
               67, "}\n");
    plant_long(fixture, "src/pool/long.c",
               LICENCE "#define OPEN {\nstruct x { int a; };\n"
                       "static const int table[] = {1, 2};\n\nint too_long(int a,\n  int b) {\n",
               "    if (a) { b = '{'; } /* } */\n", 68, "}\nint g(void) {\n    return 0;\n}\n");

    expect_only(fixture, "src/pool/long.c:7: the function too_long has 71 lines");
}

static void layers_long_table_is_no_function(void **state) {
    planted_tree *fixture = *state;

    plant_long(fixture, "src/pool/table.c", LICENCE "static int table[] = {\n", "    F(1),\n", 100,
               "};\n");
    plant_long(fixture, "src/pool/enum.h", LICENCE "enum x {\n", "    A = (1),\n", 100, "};\n");
    check(fixture);

    assert_int_equal(fixture->report.num_violations, 0);
}

static void layers_long_function_in_namespace_is_found(void **state) {
    planted_tree *fixture = *state;

    plant_long(fixture, "kernels/cuda/decode.cu",
               LICENCE "namespace {\ntemplate <int N>\n__global__ void decode(int n = 1'000) {\n",
               "    n++;\n", 68, "}\n}\nextern \"C\" {\nint x;\n}\n");

    expect_only(fixture, "kernels/cuda/decode.cu:4: the function decode has 71 lines");
}

static void layers_long_script_function_is_found(void **state) {
    planted_tree *fixture = *state;

    plant_long(fixture, "bench/run.sh", SCRIPT "short() { echo; }\nmain() {\n", "    : }\n", 69,
               "}\n");

    expect_only(fixture, "bench/run.sh:5: the function main has 71 lines");
}

static void layers_unmatched_brace_is_found(void **state) {
    planted_tree *fixture = *state;

    plant(fixture, "src/pool/odd.c", "int f(void) {\n    return 0;\n");

    expect_only(fixture, "src/pool/odd.c:4: its braces do not match");
}

static void layers_missing_licence_is_found(void **state) {
    planted_tree *fixture = *state;

    plant_raw(fixture, "src/pool/bare.c", "/* SPDX-License-Identifier: Apache-2.0 */\n\n");

    expect_only(fixture, "src/pool/bare.c:1: does not open with the two SPDX lines");
}

static void layers_device_instruction_outside_of_the_wrappers_is_found(void **state) {
    static const char *const lines[][2] = {
        {"asm volatile(\"nop;\");", "has asm"},
        {"__asm__(\"nop;\");", "has __asm__"},
        {"kernel<<<1, 32>>>();", "has <<<"},
        {"#if __CUDA_ARCH__ >= 900", "has __CUDA_ARCH"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        char expected[MAX_PATH];
        void *own;

        assert_int_equal(set_up(&own), 0);
        plant(own, "kernels/cuda/simt.cuh", lines[i][0]);
        plant(own, "kernels/cuda/decode.cuh", lines[i][0]);
        snprintf(expected, sizeof(expected), "kernels/cuda/decode.cuh:3: %s", lines[i][1]);
        expect_only(own, expected);
        assert_int_equal(tear_down(&own), 0);
    }
}

static void layers_words_of_the_processor_are_no_device_code(void **state) {
    planted_tree *fixture = *state;

    plant(fixture, "kernels/cpu/count.c", "__asm__(\"nop\");\n");
    plant(fixture, "kernels/cuda/plasma.cuh", "/* asm, <<< */ int plasma, asm_like, a = 1 << 3;\n");
    check(fixture);

    assert_int_equal(fixture->report.num_violations, 0);
}

/* The towers of the table itself: whatever the files do, it must not let them meet. */
static void layers_table_keeps_the_towers_apart(void **state) {
    static const char *const control[] = {"src/pool/", "src/manager/", "src/tier/"};
    static const char *const data[] = {"src/device/", "src/attention/", "src/transfer/",
                                       "kernels/cpu/", "kernels/cuda/"};
    static const char *const control_header[] = {
        "include/pagedkv/pool.h", "include/pagedkv/manager.h", "include/pagedkv/tier.h"};
    static const char *const data_header[] = {
        "include/pagedkv/device.h", "include/pagedkv/attention.h", "include/pagedkv/transfer.h"};
    char path[MAX_PATH];

    (void)state;
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < 5; k++) {
            snprintf(path, sizeof(path), "%sx.h", data[k]);
            assert_false(layer_rules_allow(control[i], path));
            snprintf(path, sizeof(path), "%sx.h", control[i]);
            assert_false(layer_rules_allow(data[k], path));
            assert_false(layer_rules_allow(data[k], control_header[i]));
        }
        for (int k = 0; k < 3; k++) {
            assert_false(layer_rules_allow(control[i], data_header[k]));
            assert_false(layer_rules_allow(control_header[i], data_header[k]));
            assert_false(layer_rules_allow(data_header[k], control_header[i]));
        }
    }
    assert_true(layer_rules_allow("src/tier/", "src/base/check.h"));
    assert_true(layer_rules_allow("src/attention/", "include/pagedkv/base.h"));
}

static void layers_real_tree_keeps_all_rules(void **state) {
    planted_tree *fixture = *state;

    source_tree_load(&fixture->tree, PKV_SOURCE_DIR);
    layer_rules_check(&fixture->tree, &fixture->report);

    assert_true(source_tree_find(&fixture->tree, "include/pagedkv/base.h") >= 0);
    assert_true(source_tree_find(&fixture->tree, "tests/test_layers.c") >= 0);
    if (fixture->report.num_violations != 0) {
        print_error("%s", fixture->report.text);
        fail();
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(layers_good_tree_has_no_violation),
        TEST(layers_each_planted_include_is_found),
        TEST(layers_include_in_comment_is_no_include),
        TEST(layers_circle_of_three_is_found_and_nothing_else),
        TEST(layers_file_of_601_lines_is_found),
        TEST(layers_function_of_71_lines_is_found),
        TEST(layers_long_table_is_no_function),
        TEST(layers_long_function_in_namespace_is_found),
        TEST(layers_long_script_function_is_found),
        TEST(layers_unmatched_brace_is_found),
        TEST(layers_missing_licence_is_found),
        TEST(layers_device_instruction_outside_of_the_wrappers_is_found),
        TEST(layers_words_of_the_processor_are_no_device_code),
        TEST(layers_table_keeps_the_towers_apart),
        TEST(layers_real_tree_keeps_all_rules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
