/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* What the kernels of bench_attention are compared with: reads of the same memory on as many
 * threads, in address order and in the order of the kernel, without arithmetic. */
#ifndef PKV_BENCH_ATTENTION_READ_H
#define PKV_BENCH_ATTENTION_READ_H

#include "attention_setup.h"

/* Load every byte of keys and values once, from start to end. False where a thread cannot start. */
bool attention_read(const attention_setup *setup, int32_t num_threads);

/* Load them in the order of the decode kernel: request, chunk, head, and in there the keys of a
 * step, then its values; what comes next is fetched ahead as there. Rows are whole cache lines. */
bool attention_walk(const attention_setup *setup, attention_table table, int32_t num_threads);

/* One thread's part of that walk; the result keeps the loads alive. */
uint64_t attention_read_traversal(const attention_setup *setup,
                                  attention_table table,
                                  int32_t part,
                                  int32_t num_parts);

#endif
