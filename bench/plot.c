/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Runs gnuplot on the scripts of the benches. What the plots show is in those scripts.
 *
 * The one idea: gnuplot is a child process in the output folder; its exit status and the file that
 * must be there afterwards decide, not its messages. */
#include "plot.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Run gnuplot with one argument in `folder` (NULL: here). Standard output is dropped, errors too
 * when `is_quiet`. True when it ended with 0. */
static bool run_gnuplot(const char *folder, const char *argument, bool is_quiet) {
    pid_t child = fork();
    int status = 0;

    if (child < 0) {
        return false;
    }
    if (child == 0) {
        int null = open("/dev/null", O_WRONLY);

        if (null < 0 || dup2(null, STDOUT_FILENO) < 0 ||
            (is_quiet && dup2(null, STDERR_FILENO) < 0) || (folder != NULL && chdir(folder) != 0)) {
            _exit(126);
        }
        execlp("gnuplot", "gnuplot", argument, (char *)NULL);
        _exit(127);
    }
    while (waitpid(child, &status, 0) < 0) {
        if (errno != EINTR) {
            return false;
        }
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool plot_is_available(void) {
    return run_gnuplot(NULL, "--version", true);
}

static bool make_path(char *path, size_t size, const char *folder, const char *name) {
    int length = snprintf(path, size, "%s/%s", folder, name);

    return length > 0 && (size_t)length < size;
}

FILE *plot_open(const char *folder, const char *name) {
    char path[4096];
    FILE *file = make_path(path, sizeof(path), folder, name) ? fopen(path, "w") : NULL;

    if (file == NULL) {
        fprintf(stderr, "cannot write %s/%s: %s\n", folder, name, strerror(errno));
    }
    return file;
}

FILE *plot_begin(const char *folder, const char *name, int width, int height) {
    /* The order of the colours is the order in which they must be told apart, also without red or
     * green. */
    static const char *const colours[] = {"#1b6ca8", "#e8a33d", "#c8553d", "#5b5f97",
                                          "#3a9d6e", "#8c8c8c", "#b5838d", "#2f3e46"};
    char file_name[256];

    snprintf(file_name, sizeof(file_name), "%s.gp", name);

    FILE *script = plot_open(folder, file_name);

    if (script == NULL) {
        return NULL;
    }
    fprintf(script, "set terminal svg size %d,%d enhanced font 'Helvetica,13' background 'white'\n",
            width, height);
    fprintf(script, "set output '%s.svg'\n", name);
    fprintf(script, "set encoding utf8\nset grid ytics lc rgb '#dddddd' lw 1\nset border 3\n"
                    "set xtics nomirror\nset ytics nomirror\nset tics scale 0.5\n");
    for (size_t i = 0; i < sizeof(colours) / sizeof(colours[0]); i++) {
        fprintf(script, "set style line %zu lc rgb '%s' lw 2 pt 7 ps 0.6\n", i + 1, colours[i]);
    }
    return script;
}

bool plot_end(FILE *script, const char *folder, const char *name) {
    char path[4096];
    char script_name[256];
    char picture_name[256];
    struct stat status;
    bool is_written = !ferror(script);

    is_written = fclose(script) == 0 && is_written;
    snprintf(script_name, sizeof(script_name), "%s.gp", name);
    snprintf(picture_name, sizeof(picture_name), "%s.svg", name);
    if (!is_written || !make_path(path, sizeof(path), folder, picture_name)) {
        fprintf(stderr, "cannot write %s/%s\n", folder, script_name);
        return false;
    }
    remove(path);
    if (!run_gnuplot(folder, script_name, false)) {
        fprintf(stderr, "gnuplot failed on %s/%s\n", folder, script_name);
        return false;
    }
    if (stat(path, &status) != 0 || status.st_size == 0) {
        fprintf(stderr, "gnuplot made no %s\n", path);
        return false;
    }
    return true;
}
