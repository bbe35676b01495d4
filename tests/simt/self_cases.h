/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The cases of the engine's self-test: small kernels, right ones and wrong ones.
 *
 * The one idea: a checker that never complains and one that always does both look like a checker.
 * Each case therefore says what it has to come to in each of the three builds. */
#ifndef PKV_TESTS_SIMT_SELF_CASES_H
#define PKV_TESTS_SIMT_SELF_CASES_H

#include <vector>

/* What a case comes to: "clean", "mismatch" (wrong values), "signal", or part of an error. An empty
 * text allows everything, for builds that cannot see the mistake. */
struct self_case {
    const char *name;
    bool (*run)(); /* returns whether the values were right */
    const char *plain;
    const char *hook;
    const char *asan;
};

std::vector<self_case> block_cases();   /* barriers, warps, shared memory */
std::vector<self_case> tile_cases();    /* copies in flight, matrices: planted bugs in one kernel */
std::vector<self_case> runtime_cases(); /* streams, events, graphs, memory */

#endif
