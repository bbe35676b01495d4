/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Prefill in bench_attention: the kernel through a random table beside the same on contiguous
 * blocks, beside the peak of the arithmetic units and, where one was found, the way by hand with a
 * BLAS, all in turn in each round. What is to be timed is checked first, the result of the BLAS
 * too. */
#ifndef PKV_BENCH_ATTENTION_PREFILL_H
#define PKV_BENCH_ATTENTION_PREFILL_H

#include "attention_setup.h"
#include "report.h"

/* How to measure and print. */
typedef struct attention_run {
    pkv_device *device;
    int32_t threads, rounds; /* of device and peers; at most 64 rounds */
    bool json;
    int64_t (*now)(void); /* nanoseconds */
    bench_progress *progress;
} attention_run;

/* One case of one request. False where a number is wrong or a call failed. */
bool attention_prefill(const attention_run *run,
                       const attention_setup_config *config,
                       const char *name,
                       bench_table *table);

#endif
