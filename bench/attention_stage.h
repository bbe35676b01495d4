/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Where the time of a decode goes: its stages by themselves, as plain AVX2 loops over the batch of
 * attention_setup.h in the order of the kernel. They are not the kernel's own code, which does the
 * same work in register blocks: what they show is what each stage costs at least in this order. */
#ifndef PKV_BENCH_ATTENTION_STAGE_H
#define PKV_BENCH_ATTENTION_STAGE_H

#include "attention_setup.h"

typedef enum attention_stage {
    STAGE_READ,       /* load keys and values, no arithmetic */
    STAGE_QK,         /* scores of all keys; values are not touched */
    STAGE_QK_SOFTMAX, /* and the weights of each chunk */
    STAGE_PV,         /* values summed with fixed weights; keys are not touched */
    STAGE_FULL,       /* pkv_attention */
    NUM_STAGES
} attention_stage;

extern const char *const attention_stage_names[NUM_STAGES];

/* Whether this processor has the stages between STAGE_READ and STAGE_FULL: it needs AVX2 and FMA.
 * The batch must have float or bfloat16 keys and values, four query heads a kv head, heads of 128
 * and a block size that divides a chunk. */
bool attention_has_stages(void);

/* Run one stage on the calling thread; false where a call failed. */
bool attention_stage_run(attention_setup *setup,
                         pkv_device *device,
                         attention_table table,
                         attention_stage stage);

/* Say whether the stages, put together, give for the last request what the kernel gives. The keys
 * of a request must fill their blocks. */
bool attention_stage_check(attention_setup *setup, pkv_device *device, attention_table table);

/* Bytes of keys and values that the stage loads. */
size_t attention_stage_bytes(const attention_setup *setup, attention_stage stage);

/* Whether that is a stage's name, or "all". */
bool attention_is_stage(const char *name);

/* Check the kernel and the stages, then run those of float and bfloat16, 8 requests of 8192 / divide
 * keys, on three tables in turn in each round, and print the stage asked for: its time, and its share of the whole kernel's in
 * the same round, by the clock `now` (nanoseconds). False where a call failed. */
bool attention_stages_report(pkv_device *device,
                             const char *stage,
                             int32_t num_rounds,
                             int32_t divide,
                             bool json,
                             int64_t (*now)(void));

#endif
