/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* What the files of the simulators share among themselves: the three runs, and comparing a pool and
 * its events with the model's. */
#ifndef PKV_TESTS_SUPPORT_SIM_PARTS_H
#define PKV_TESTS_SUPPORT_SIM_PARTS_H

#include "support/model_manager.h"
#include "support/sim.h"

void sim_run_pool(test_source *source, int64_t max_steps, sim_log *log, sim_counts *counts);
void sim_run_chaos(test_source *source, int64_t max_steps, sim_log *log, sim_counts *counts);
void sim_run_engine(
    test_source *source, int64_t max_steps, sim_log *log, sim_counts *counts, bool has_tier);

/* Compare everything that can be read of a pool: the queue, each block, the levels, the checker. */
void sim_compare_pool(sim_log *log, const pkv_pool *pool, const model_pool *model);

/* A consumer of events, who knows only what they say. */
typedef struct sim_consumer {
    bool has_missed; /* a gap was seen: the rest proves nothing until all is cleared */
    uint64_t num_missed, num_dropped; /* by gaps, and by what takes say: the end may be missing */
    uint64_t next_sequence, next_call;
    int32_t num_copies[MODEL_MAX_GROUPS][MODEL_MAX_CONTENTS];
} sim_consumer;

void sim_consumer_clear(sim_consumer *consumer);

/* Compare the events of one take with the model's, and let the consumer read them. */
void sim_compare_events(sim_log *log,
                        sim_consumer *consumer,
                        const model_pool *model,
                        const pkv_event *library,
                        const model_event *expected,
                        int32_t num_events,
                        uint64_t num_dropped);

/* After all events were taken: the consumer knows exactly what the index holds. */
void sim_compare_consumer(sim_log *log, const sim_consumer *consumer, const model_pool *model);

#endif
