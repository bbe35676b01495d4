/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Replays inputs of a fuzz target where there is no fuzzer: each argument is a file, or a folder of
 * files. A failing target aborts and so ends the program; the last name printed is the culprit. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_INPUT (1 << 20)
#define MAX_PATH 4096

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int num_replayed;

static int replay_file(const char *path) {
    static uint8_t buffer[MAX_INPUT];
    FILE *file = fopen(path, "rb");
    uint8_t *exact;
    size_t size;

    if (file == NULL) {
        fprintf(stderr, "cannot open %s\n", path);
        return 2;
    }
    size = fread(buffer, 1, sizeof buffer, file);
    fclose(file);
    printf("%s\n", path);
    fflush(stdout);
    /* A copy of exactly its size, so that a sanitizer sees a read past the end. */
    exact = malloc(size > 0 ? size : 1);
    if (exact == NULL) {
        return 2;
    }
    memcpy(exact, buffer, size);
    (void)LLVMFuzzerTestOneInput(exact, size);
    free(exact);
    num_replayed++;
    return 0;
}

static int replay_folder(const char *path) {
    DIR *folder = opendir(path);
    const struct dirent *entry;
    int status = 0;

    if (folder == NULL) {
        fprintf(stderr, "cannot open %s\n", path);
        return 2;
    }
    while (status == 0 && (entry = readdir(folder)) != NULL) {
        char name[MAX_PATH];
        if (entry->d_name[0] != '.') {
            (void)snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
            status = replay_file(name);
        }
    }
    closedir(folder);
    return status;
}

int main(int argc, char **argv) {
    int status = 0;

    if (argc < 2 || strcmp(argv[1], "--help") == 0) {
        printf("usage: %s FILE|FOLDER...\n\nReplays the inputs; aborts at the first that fails.\n"
               "Exit status: 0 all replayed, 2 an input could not be read or there was none.\n",
               argv[0]);
        return argc < 2 ? 2 : 0;
    }
    for (int i = 1; i < argc && status == 0; i++) {
        struct stat info;
        if (stat(argv[i], &info) == 0 && S_ISDIR(info.st_mode)) {
            status = replay_folder(argv[i]);
        } else {
            status = replay_file(argv[i]);
        }
    }
    printf("%d inputs replayed\n", num_replayed);
    return status != 0 || num_replayed == 0 ? 2 : 0;
}
