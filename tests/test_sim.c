/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Goal: pool and manager never differ from the naive model, whatever is called in whatever order.
 * Method: seeded episodes of the three simulators of support/sim.h, each with a configuration of
 * its own; a failure prints the seed of its episode, the step and the call, and how to run it
 * again. */
#include "support/sim.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_SEED 1
#define DEFAULT_STEPS 100000
#define DEFAULT_SWAP_STEPS 25000 /* its steps compare two pools */
#define STEPS_PER_EPISODE 400
#define EPISODES_PER_REPEAT 20

static const char *const kind_names[SIM_NUM_KINDS] = {"pool", "chaos", "engine", "swap"};

/* What runs now, for the last words of a crash. */
static sim_log the_log;
static uint64_t the_seed;
static int the_kind;

typedef struct options {
    uint64_t seed;
    int64_t num_steps;
    int64_t steps_per_episode;
    bool is_one_episode, is_traced;
    int kind; /* -1: all */
} options;

static void print_help(void) {
    printf("usage: test_sim [--seed S] [--steps N] [--kind pool|chaos|engine|swap] [--episode E] "
           "[--trace]\n"
           "\n"
           "Runs library and naive model in lock-step, N steps of each kind.\n"
           "\n"
           "  --seed S      of the first episode; the following ones count up (default %d)\n"
           "  --steps N     default %d, %d of the kind swap\n"
           "  --kind K      one kind only (default: all)\n"
           "  --episode E   one episode only, of seed E\n"
           "  --trace       print each call and its status to stderr\n"
           "  --help        this text\n"
           "\n"
           "Exit status: 0 no difference, 1 a difference, 2 wrong usage.\n",
           DEFAULT_SEED, DEFAULT_STEPS, DEFAULT_SWAP_STEPS);
}

static void print_last_words(const char *what) {
    fprintf(stderr,
            "test_sim: %s, seed %llu, step %lld\n  call: %s\n  %s\n"
            "  again: test_sim --kind %s --episode %llu --steps %lld --trace\n",
            kind_names[the_kind], (unsigned long long)the_seed, (long long)the_log.step,
            the_log.operation, what, kind_names[the_kind], (unsigned long long)the_seed,
            (long long)the_log.step + 1);
}

/* Not what a handler should do, yet the process is lost already and the seed should not be. */
static void on_crash(int number) {
    signal(number, SIG_DFL);
    print_last_words(number == SIGABRT ? "aborted" : "crashed");
    raise(number);
}

/* Read the options; false for wrong usage. */
static bool read_options(int argc, char **argv, options *own) {
    *own = (options){DEFAULT_SEED, DEFAULT_STEPS, STEPS_PER_EPISODE, false, false, -1};
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        char *end = NULL;
        unsigned long long number = value == NULL ? 0 : strtoull(value, &end, 10);
        bool is_number = value != NULL && end != value && *end == '\0';
        if (strcmp(argv[i], "--trace") == 0) {
            own->is_traced = true;
            continue;
        }
        if (strcmp(argv[i], "--kind") == 0 && value != NULL) {
            for (int kind = 0; kind < SIM_NUM_KINDS; kind++) {
                own->kind = strcmp(value, kind_names[kind]) == 0 ? kind : own->kind;
            }
            if (own->kind < 0) {
                return false;
            }
        } else if (strcmp(argv[i], "--seed") == 0 && is_number) {
            own->seed = number;
        } else if (strcmp(argv[i], "--steps") == 0 && is_number) {
            own->num_steps = (int64_t)number;
        } else if (strcmp(argv[i], "--episode") == 0 && is_number) {
            own->seed = number;
            own->is_one_episode = true;
        } else {
            return false;
        }
        i++;
    }
    return true;
}

static void print_counts(int kind, const sim_counts *counts) {
    printf("%s: %lld steps in %lld episodes, %lld admissions with a hit, %lld reads right, "
           "%lld copies, %lld partial hits, %lld blocks swapped out, %lld in, %lld swaps aborted; "
           "calls:",
           kind_names[kind], (long long)counts->num_steps, (long long)counts->num_episodes,
           (long long)counts->num_hits, (long long)counts->num_reads_verified,
           (long long)counts->num_copies, (long long)counts->num_partial_hits,
           (long long)counts->num_swapped_out, (long long)counts->num_swapped_in,
           (long long)counts->num_aborts);
    for (int i = 0; i < SIM_NUM_STATUSES; i++) {
        if (counts->num_calls[i] > 0) {
            printf(" %s %lld", pkv_status_name((pkv_status)(i + PKV_ERROR_CORRUPT)),
                   (long long)counts->num_calls[i]);
        }
    }
    printf("\n");
}

/* A run that never met an outcome that the library can have would prove little. */
static bool is_worth_something(const options *own, int kind, const sim_counts *counts) {
    static const pkv_status of_pool[] = {PKV_NO_FREE_BLOCKS, PKV_NOT_FOUND, PKV_MORE,
                                         PKV_ERROR_INVALID_ARGUMENT, PKV_ERROR_BUSY};
    static const pkv_status of_manager[] = {
        PKV_NO_FREE_BLOCKS,     PKV_NOT_FOUND,    PKV_MORE,
        PKV_NEVER_FITS,         PKV_NO_FREE_ROWS, PKV_ERROR_INVALID_ARGUMENT,
        PKV_ERROR_STALE_HANDLE, PKV_ERROR_LIMIT,  PKV_ERROR_UNSUPPORTED,
        PKV_ERROR_BUSY};
    static const pkv_status of_engine[] = {PKV_NO_FREE_BLOCKS, PKV_NO_FREE_ROWS, PKV_NEVER_FITS};
    static const pkv_status of_swap[] = {PKV_NO_FREE_BLOCKS, PKV_NOT_FOUND, PKV_IN_PROGRESS,
                                         PKV_ERROR_BUSY, PKV_ERROR_LIMIT};
    static const struct {
        const pkv_status *statuses;
        size_t num_statuses;
    } wanted[SIM_NUM_KINDS] = {{of_pool, sizeof of_pool / sizeof of_pool[0]},
                               {of_manager, sizeof of_manager / sizeof of_manager[0]},
                               {of_engine, sizeof of_engine / sizeof of_engine[0]},
                               {of_swap, sizeof of_swap / sizeof of_swap[0]}};
    bool is_worth =
        (kind == SIM_POOL || (counts->num_hits > 0 && counts->num_partial_hits > 0)) &&
        (kind < SIM_ENGINE || (counts->num_reads_verified > 0 && counts->num_copies > 0)) &&
        (kind != SIM_SWAP ||
         (counts->num_swapped_out > 0 && counts->num_swapped_in > 0 && counts->num_aborts > 0));

    if (own->num_steps < DEFAULT_STEPS / 2 || own->is_one_episode) {
        return true;
    }
    for (size_t i = 0; i < wanted[kind].num_statuses; i++) {
        if (counts->num_calls[wanted[kind].statuses[i] - PKV_ERROR_CORRUPT] == 0) {
            fprintf(stderr, "test_sim: no %s call met %s\n", kind_names[kind],
                    pkv_status_name(wanted[kind].statuses[i]));
            is_worth = false;
        }
    }
    return is_worth;
}

/* Run one episode into the_log; returns false after a difference. */
static bool run_episode(const options *own, int kind, uint64_t seed, sim_counts *counts) {
    test_source source = test_source_of_seed(seed * SIM_NUM_KINDS + (uint64_t)kind);
    int64_t rest = own->num_steps - counts->num_steps;

    memset(&the_log, 0, sizeof the_log);
    the_log.is_traced = own->is_traced;
    the_seed = seed;
    the_kind = kind;
    sim_run_episode((sim_kind)kind, &source,
                    rest < own->steps_per_episode ? rest : own->steps_per_episode, &the_log,
                    counts);
    if (the_log.has_failed) {
        print_last_words(the_log.problem);
    }
    return !the_log.has_failed;
}

/* I28: the same calls once more, from the same memory, have the same answers. */
static bool repeats(const options *own,
                    int kind,
                    uint64_t seed,
                    const sim_counts *before,
                    const sim_counts *after) {
    sim_counts again = *before;

    if (!run_episode(own, kind, seed, &again)) {
        return false;
    }
    if (again.digest != after->digest) {
        print_last_words("I28: the same calls had other answers the second time");
        return false;
    }
    return true;
}

/* Run one kind; returns false after a difference. */
static bool run_kind(const options *own, int kind, sim_counts *counts) {
    for (uint64_t seed = own->seed; counts->num_steps < own->num_steps; seed++) {
        sim_counts before = *counts;

        if (!run_episode(own, kind, seed, counts)) {
            return false;
        }
        if ((seed - own->seed) % EPISODES_PER_REPEAT == 0 && !own->is_traced &&
            !repeats(own, kind, seed, &before, counts)) {
            return false;
        }
        if (own->is_one_episode) {
            break;
        }
    }
    print_counts(kind, counts);
    return true;
}

int main(int argc, char **argv) {
    options own;

    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        print_help();
        return 0;
    }
    if (!read_options(argc, argv, &own)) {
        fprintf(stderr, "test_sim: wrong usage; try --help\n");
        return 2;
    }
    signal(SIGABRT, on_crash);
    signal(SIGSEGV, on_crash);
    for (int kind = 0; kind < SIM_NUM_KINDS; kind++) {
        sim_counts counts = {0};
        options of_kind = own;

        if (own.kind >= 0 && own.kind != kind) {
            continue;
        }
        if (kind == SIM_SWAP && own.num_steps == DEFAULT_STEPS) {
            of_kind.num_steps = DEFAULT_SWAP_STEPS;
        }
        if (!run_kind(&of_kind, kind, &counts)) {
            return 1;
        }
        if (!is_worth_something(&own, kind, &counts)) {
            fprintf(stderr, "test_sim: the %s run proves little\n", kind_names[kind]);
            return 1;
        }
    }
    return 0;
}
