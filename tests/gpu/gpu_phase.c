/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* What the phase programs share, but for the device of the library; see gpu_phase.h. */
#include "gpu_phase.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *phase_name = "";
static int32_t num_checks, num_failed;

/* ---- The command line */

static void print_help(const char *summary, const phase_option *options, int num_options) {
    (void)printf("usage: gpu_%s [--help]", phase_name);
    for (int i = 0; i < num_options; i++) {
        (void)printf(" [%s N]", options[i].name);
    }
    (void)printf("\n%s\n\n", summary);
    for (int i = 0; i < num_options; i++) {
        (void)printf("  %s N  %s (%lld)\n", options[i].name, options[i].help,
                     (long long)*options[i].value);
    }
    (void)printf("\nExit status: 0 passed, 1 a check failed, 2 usage, 3 no CUDA device, 77 "
                 "skipped.\n");
}

static void usage_error(const char *what, const char *argument) {
    (void)fprintf(stderr, "gpu_%s: %s '%s'; try --help\n", phase_name, what, argument);
    exit(PHASE_EXIT_USAGE);
}

void phase_begin(const char *phase,
                 const char *summary,
                 const phase_option *options,
                 int num_options,
                 int argc,
                 char **argv) {
    phase_name = phase;
    for (int i = 1; i < argc; i++) {
        int option = 0;
        char *end;

        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            print_help(summary, options, num_options);
            exit(PHASE_EXIT_OK);
        }
        while (option < num_options && strcmp(options[option].name, argv[i]) != 0) {
            option++;
        }
        if (option == num_options) {
            usage_error("unknown argument", argv[i]);
        }
        if (i + 1 == argc) {
            usage_error("a number is missing after", argv[i]);
        }
        i++;
        errno = 0;
        long long value = strtoll(argv[i], &end, 10);
        if (errno != 0 || end == argv[i] || *end != '\0' || value < options[option].min ||
            value > options[option].max) {
            usage_error("not a number in range:", argv[i]);
        }
        *options[option].value = value;
    }
}

/* ---- JSON */

static void print_text(const char *text) {
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;

        if (c == '"' || c == '\\') {
            (void)printf("\\%c", c);
        } else {
            (void)putchar(c < 0x20 ? ' ' : c);
        }
    }
}

void phase_metric(const char *case_name, const char *metric, double value) {
    (void)printf("{\"phase\":\"%s\",\"case\":\"", phase_name);
    print_text(case_name);
    (void)printf("\",\"metric\":\"%s\",\"value\":%.6g}\n", metric, value);
    (void)fflush(stdout);
}

static void print_reason(const char *status, const char *reason) {
    (void)printf("{\"phase\":\"%s\",\"status\":\"%s\",\"reason\":\"", phase_name, status);
    print_text(reason);
    (void)printf("\"}\n");
    (void)fflush(stdout);
}

/* ---- Checks and ends */

bool phase_check(bool is_good, const char *format, ...) {
    va_list arguments;
    char text[256];

    num_checks++;
    if (!is_good) {
        num_failed++;
        va_start(arguments, format);
        (void)vsnprintf(text, sizeof text, format, arguments);
        va_end(arguments);
        print_reason("check failed", text);
    }
    return is_good;
}

void phase_leave(const char *status, const char *reason, int exit_code) {
    print_reason(status, reason);
    exit(exit_code);
}

void phase_stop(const char *what, const char *why) {
    char text[320];

    (void)snprintf(text, sizeof text, "%s: %s", what, why);
    phase_leave("stopped", text, PHASE_EXIT_FAILED);
}

void phase_cuda(cudaError_t error, const char *what) {
    if (error != cudaSuccess) {
        phase_stop(what, cudaGetErrorString(error));
    }
}

void phase_skip(const char *format, ...) {
    va_list arguments;
    char text[256];

    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    phase_leave("skipped", text, PHASE_EXIT_SKIPPED);
}

int phase_end(void) {
    (void)printf("{\"phase\":\"%s\",\"checks\":%d,\"failed\":%d}\n", phase_name, (int)num_checks,
                 (int)num_failed);
    return num_failed == 0 && num_checks > 0 ? PHASE_EXIT_OK : PHASE_EXIT_FAILED;
}

/* ---- Memory */

void *phase_allocate(size_t size) {
    void *memory = NULL;

    phase_cuda(cudaMalloc(&memory, size == 0 ? 256 : size), "cudaMalloc");
    return memory;
}

void *phase_upload(const void *source, size_t size) {
    void *memory = phase_allocate(size);

    phase_cuda(cudaMemcpy(memory, source, size, cudaMemcpyHostToDevice), "cudaMemcpy");
    return memory;
}

void *phase_host(size_t size) {
    void *memory = calloc(1, size == 0 ? 1 : size);

    if (memory == NULL) {
        phase_stop("host memory", "there is not enough");
    }
    return memory;
}

void *phase_fetch(const void *memory, size_t size) {
    void *copy = phase_host(size);

    phase_cuda(cudaMemcpy(copy, memory, size, cudaMemcpyDeviceToHost), "cudaMemcpy");
    return copy;
}

float phase_value(uint64_t seed, uint64_t index) {
    uint64_t x = seed * 0x9e3779b97f4a7c15u + index * 0xbf58476d1ce4e5b9u + 1;

    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    x ^= x >> 31;
    return (float)((double)(x >> 40) * 0x1p-23 - 1.0);
}
