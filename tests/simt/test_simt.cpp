/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Self-test of the engine: runs each case of self_cases.h in a process of its own, since under a
 * sanitizer a found mistake ends the process, and compares what came out with what has to.
 *
 * The one idea: cases that come out clean or wrong whatever the order of the threads are run under
 * several orders. */
#include "self_cases.h"

#include "simt_control.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

namespace {

struct schedule {
    const char *name;
    simt_options options;
};

const schedule schedules[] = {
    {"in order", {0, false, 0, false, false, false, false, 0}},
    {"reversed", {0, true, 0, false, false, false, false, 0}},
    {"seed 1", {1, false, 0, false, false, false, false, 0}},
    {"seed 2, preempted", {2, false, 3, false, false, false, false, 0}},
};

/* Run a case in a child and return everything that it printed, and how it ended. */
std::string run_child(const self_case &which, const simt_options &options) {
    int channel[2];
    std::string text;
    char part[512];
    ssize_t length = 0;
    int status = 0;

    fflush(stdout);
    if (pipe(channel) != 0) {
        return "no pipe";
    }
    const pid_t child = fork();
    if (child == 0) {
        close(channel[0]);
        dup2(channel[1], 2);
        *simt_get_options() = options;
        alarm(60);
        const bool is_right = which.run();
        if (*simt_last_error() == '\0') {
            fprintf(stderr, "%s\n", is_right ? "clean" : "mismatch");
        }
        fflush(stderr);
        _exit(0);
    }
    close(channel[1]);
    while ((length = read(channel[0], part, sizeof(part))) > 0) {
        text.append(part, static_cast<size_t>(length));
    }
    close(channel[0]);
    if (waitpid(child, &status, 0) == child && WIFSIGNALED(status)) {
        text += WTERMSIG(status) == SIGALRM ? "\ntimeout" : "\nsignal";
    }
    return text;
}

const char *expected_text(const self_case &which) {
    if (strcmp(simt_build(), "asan") == 0) {
        return which.asan;
    }
    return strcmp(simt_build(), "hook") == 0 ? which.hook : which.plain;
}

/* Run a case under every schedule; return the number of results that had to be different. */
int check_case(const self_case &which) {
    const char *expected = expected_text(which);
    int num_wrong = 0;

    for (const schedule &order : schedules) {
        const std::string text = run_child(which, order.options);
        const bool is_right = *expected == '\0' ? text.find("timeout") == std::string::npos
                                                : text.find(expected) != std::string::npos;
        if (!is_right) {
            printf("not ok %s (%s): expected \"%s\", got \"%.1200s\"\n", which.name, order.name,
                   expected, text.c_str());
            num_wrong++;
        }
    }
    if (num_wrong == 0) {
        printf("ok %s: %s\n", which.name, *expected == '\0' ? "not seen by this build" : expected);
    }
    return num_wrong;
}

} // namespace

int main(int num_arguments, char **arguments) {
    int num_wrong = 0;
    int num_cases = 0;

    if (num_arguments > 2 || (num_arguments == 2 && arguments[1][0] == '-')) {
        printf("usage: %s [part of a case's name]\n"
               "Self-test of the execution of kernels on the processor, build %s.\n"
               "Exit status: 0 all right, 1 a case came out wrong, 2 usage.\n",
               arguments[0], simt_build());
        return strcmp(arguments[1], "--help") == 0 ? 0 : 2;
    }
    for (const auto &cases : {block_cases(), tile_cases(), runtime_cases()}) {
        for (const self_case &which : cases) {
            if (num_arguments < 2 || strstr(which.name, arguments[1]) != nullptr) {
                num_wrong += check_case(which);
                num_cases++;
            }
        }
    }
    printf("%s build: %d cases, %d results wrong\n", simt_build(), num_cases, num_wrong);
    return num_wrong == 0 && num_cases > 0 ? 0 : 1;
}
