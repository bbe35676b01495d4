/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Reads the source tree: walks the folders, blanks comments, collects includes and finds what they
 * name. Finding functions in the text is source_functions.c. */
#include "support/source_tree.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char *const source_folders[] = {"include", "src",   "kernels",
                                             "tests",   "bench", "examples"};
static const char *const source_suffixes[] = {".c", ".h", ".cpp", ".cu", ".cuh", ".sh"};
/* Where the build looks for includes, in its order; the includer's own folder comes before. */
static const char *const include_folders[] = {"include/", "src/", "", "tests/"};

#define NUM_ELEMENTS(array) (sizeof(array) / sizeof((array)[0]))

static void stop(const char *what, const char *path) {
    fprintf(stderr, "source tree: %s: %s\n", what, path);
    exit(1);
}

static void *checked(void *memory) {
    if (memory == NULL) {
        stop("out of memory", "");
    }
    return memory;
}

/* Concatenate up to three strings into fresh memory. */
static char *join(const char *first, const char *second, const char *third) {
    const size_t size = strlen(first) + strlen(second) + strlen(third) + 1;
    char *joined = checked(malloc(size));
    snprintf(joined, size, "%s%s%s", first, second, third);
    return joined;
}

static bool has_suffix(const char *text, const char *suffix) {
    const size_t length = strlen(text);
    const size_t suffix_length = strlen(suffix);
    return length > suffix_length && strcmp(text + length - suffix_length, suffix) == 0;
}

bool source_file_has_suffix(const source_file *file, const char *suffix) {
    return has_suffix(file->path, suffix);
}

static bool is_source(const char *name) {
    for (size_t i = 0; i < NUM_ELEMENTS(source_suffixes); i++) {
        if (has_suffix(name, source_suffixes[i])) {
            return true;
        }
    }
    return false;
}

static char *read_text(const char *path) {
    FILE *stream = fopen(path, "rb");
    long size = -1;
    char *text;

    if (stream == NULL) {
        stop("cannot open", path);
        return NULL;
    }
    if (fseek(stream, 0, SEEK_END) == 0) {
        size = ftell(stream);
    }
    if (size < 0) {
        stop("cannot measure", path);
    }
    rewind(stream);
    text = checked(calloc((size_t)size + 1, 1));
    if (fread(text, 1, (size_t)size, stream) != (size_t)size) {
        stop("cannot read", path);
    }
    fclose(stream);
    return text;
}

/* Length of the comment or literal that starts at `at`, or 0 where none does. `previous` is the
 * character before it: in 1'000 the apostrophe starts no literal. */
static size_t opaque_length(const char *at, char previous) {
    size_t length = 1;

    if (at[0] == '/' && at[1] == '/') {
        return strcspn(at, "\n");
    }
    if (at[0] == '/' && at[1] == '*') {
        const char *end = strstr(at + 2, "*/");
        return end == NULL ? strlen(at) : (size_t)(end - at) + 2;
    }
    if (at[0] != '"' && (at[0] != '\'' || isalnum((unsigned char)previous))) {
        return 0;
    }
    while (at[length] != at[0] && at[length] != '\0' && at[length] != '\n') {
        length += at[length] == '\\' && at[length + 1] != '\0' ? 2 : 1;
    }
    return at[length] == at[0] ? length + 1 : length;
}

static char *blank_comments(const char *text) {
    const size_t size = strlen(text);
    char *code = join(text, "", "");
    size_t position = 0;

    while (position < size) {
        const char previous = position > 0 ? text[position - 1] : ' ';
        const size_t length = opaque_length(text + position, previous);
        for (size_t i = position; i < position + length; i++) {
            code[i] = text[i] == '\n' ? '\n' : ' ';
        }
        position += length > 0 ? length : 1;
    }
    return code;
}

/* Take the include of the line that starts at `offset`, if it is one. The blanked copy says that
 * the line is code, the text says what is included. */
static void collect_include(source_file *file, size_t offset, int line) {
    const char *code = file->code + offset;
    const char *text;
    size_t length;
    source_include *include;

    code += strspn(code, " \t");
    if (*code != '#') {
        return;
    }
    code++;
    code += strspn(code, " \t");
    if (strncmp(code, "include", 7) != 0) {
        return;
    }
    text = file->text + (code - file->code) + 7;
    text += strspn(text, " \t");
    if (*text != '"' && *text != '<') {
        return;
    }
    length = strcspn(text + 1, "\">\n");
    file->includes = checked(
        realloc(file->includes, (size_t)(file->num_includes + 1) * sizeof(file->includes[0])));
    include = &file->includes[file->num_includes++];
    include->target = join(text + 1, "", "");
    include->target[length] = '\0';
    include->is_quoted = *text == '"';
    include->line = line;
    include->file_index = -1;
}

static void scan_file(source_file *file, const char *root) {
    char *full_path = join(root, "/", file->path);
    const bool is_script = source_file_has_suffix(file, ".sh");

    file->text = read_text(full_path);
    free(full_path);
    file->code = is_script ? join(file->text, "", "") : blank_comments(file->text);
    for (size_t offset = 0; file->text[offset] != '\0';) {
        const char *end = strchr(file->text + offset, '\n');
        file->num_lines++;
        if (!is_script) {
            collect_include(file, offset, file->num_lines);
        }
        offset = end == NULL ? strlen(file->text) : (size_t)(end - file->text) + 1;
    }
}

/* The folders that are still to be walked: a tree of folders without recursion. */
typedef struct folder_list {
    char **paths;
    int num_paths;
} folder_list;

static void add_folder(folder_list *folders, char *path) {
    folders->paths =
        checked(realloc(folders->paths, (size_t)(folders->num_paths + 1) * sizeof(char *)));
    folders->paths[folders->num_paths++] = path;
}

static void add_file(source_tree *tree, char *path) {
    source_file *file;

    tree->files =
        checked(realloc(tree->files, (size_t)(tree->num_files + 1) * sizeof(tree->files[0])));
    file = &tree->files[tree->num_files++];
    memset(file, 0, sizeof(*file));
    file->path = path;
}

static void walk_folder(source_tree *tree, folder_list *folders, const char *root, char *path) {
    char *full_path = join(root, "/", path);
    DIR *directory = opendir(full_path);
    struct dirent *entry;

    while (directory != NULL && (entry = readdir(directory)) != NULL) {
        char *child = join(path, "/", entry->d_name);
        char *full_child = join(root, "/", child);
        struct stat status;

        if (entry->d_name[0] != '.' && stat(full_child, &status) == 0) {
            if (S_ISDIR(status.st_mode)) {
                add_folder(folders, child);
                child = NULL;
            } else if (is_source(entry->d_name)) {
                add_file(tree, child);
                child = NULL;
            }
        }
        free(full_child);
        free(child);
    }
    if (directory != NULL) {
        closedir(directory);
    }
    free(full_path);
    free(path);
}

static int compare_paths(const void *left, const void *right) {
    return strcmp(((const source_file *)left)->path, ((const source_file *)right)->path);
}

int source_tree_find(const source_tree *tree, const char *path) {
    source_file key = {0};
    const source_file *found;

    if (tree->num_files == 0) {
        return -1;
    }
    key.path = join(path, "", "");
    found =
        bsearch(&key, tree->files, (size_t)tree->num_files, sizeof(tree->files[0]), compare_paths);
    free(key.path);
    return found == NULL ? -1 : (int)(found - tree->files);
}

static void resolve_include(const source_tree *tree,
                            const source_file *file,
                            source_include *include) {
    if (include->is_quoted) {
        char *path = join(file->path, "/", include->target);
        strcpy(path + (strrchr(file->path, '/') - file->path) + 1, include->target);
        include->file_index = source_tree_find(tree, path);
        free(path);
    }
    for (size_t i = 0; i < NUM_ELEMENTS(include_folders) && include->file_index < 0; i++) {
        char *path = join(include_folders[i], include->target, "");
        include->file_index = source_tree_find(tree, path);
        free(path);
    }
}

void source_tree_load(source_tree *tree, const char *root) {
    folder_list folders = {NULL, 0};

    tree->files = NULL;
    tree->num_files = 0;
    for (size_t i = 0; i < NUM_ELEMENTS(source_folders); i++) {
        add_folder(&folders, join(source_folders[i], "", ""));
    }
    while (folders.num_paths > 0) {
        folders.num_paths--;
        walk_folder(tree, &folders, root, folders.paths[folders.num_paths]);
    }
    free(folders.paths);
    if (tree->num_files == 0) {
        return;
    }
    qsort(tree->files, (size_t)tree->num_files, sizeof(tree->files[0]), compare_paths);
    for (int i = 0; i < tree->num_files; i++) {
        scan_file(&tree->files[i], root);
    }
    for (int i = 0; i < tree->num_files; i++) {
        for (int k = 0; k < tree->files[i].num_includes; k++) {
            resolve_include(tree, &tree->files[i], &tree->files[i].includes[k]);
        }
    }
}

void source_tree_free(source_tree *tree) {
    for (int i = 0; i < tree->num_files; i++) {
        source_file *file = &tree->files[i];
        for (int k = 0; k < file->num_includes; k++) {
            free(file->includes[k].target);
        }
        free(file->includes);
        free(file->path);
        free(file->text);
        free(file->code);
    }
    free(tree->files);
    tree->files = NULL;
    tree->num_files = 0;
}
