/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The publication log: which keyed blocks were published by steps that have not completed yet, in
 * the order of publication. It lets a failed step be undone; it knows neither keys nor requests.
 *
 * The one idea: steps rise, so the list is sorted by step: completing takes from the front, failing
 * from the back, and a block that loses its key early leaves from the middle. */
#ifndef PKVI_POOL_PUBLISH_LOG_H
#define PKVI_POOL_PUBLISH_LOG_H

#include "base/check.h"
#include "pool/block.h"

/* I19: completed_step < step of every block in the list <= newest_step, rising along the list. The
 * list is circular with sentinel 0. Only 32 bits of a step are kept with a block, so the steps in
 * the list must span less than 2^32. */
struct pkvi_publish_log {
    struct pkvi_links *links;
    struct pkvi_block_state *states;
    uint64_t newest_step;
    uint64_t completed_step;
};

void pkvi_publish_log_init(struct pkvi_publish_log *log,
                           struct pkvi_links *links,
                           struct pkvi_block_state *states,
                           int32_t num_blocks);

/* Step that published the block and is not complete; 0 when there is none, or for block 0. */
static inline uint64_t pkvi_publish_log_step(const struct pkvi_publish_log *log,
                                             pkv_block_id block) {
    if (block == PKV_NULL_BLOCK || log->links[block].next == PKVI_NO_LINK) {
        return 0;
    }
    return log->newest_step - (uint32_t)((uint32_t)log->newest_step - log->states[block].step_low);
}

/* Whether `step` may be used now: 0, or above the completed ones, not below the newest one, and
 * near enough to the oldest in the list. */
static inline bool pkvi_publish_log_accepts(const struct pkvi_publish_log *log, uint64_t step) {
    pkv_block_id oldest = log->links[0].next;

    if (step == 0) {
        return true;
    }
    return step > log->completed_step && step >= log->newest_step &&
           (oldest == 0 || step - pkvi_publish_log_step(log, oldest) <= UINT32_MAX);
}

static inline void pkvi_publish_log_add(struct pkvi_publish_log *log,
                                        pkv_block_id block,
                                        uint64_t step) {
    pkv_block_id last = log->links[0].previous;

    PKV_ASSERT(step >= log->newest_step && log->links[block].next == PKVI_NO_LINK);
    log->newest_step = step;
    log->states[block].step_low = (uint32_t)step;
    log->links[block].previous = last;
    log->links[block].next = 0;
    log->links[last].next = block;
    log->links[0].previous = block;
}

/* Asked before a removal, so that untracked use does not touch the links of every block. */
static inline bool pkvi_publish_log_is_empty(const struct pkvi_publish_log *log) {
    return log->links[0].next == 0;
}

/* Take a block out, if it is in. */
static inline void pkvi_publish_log_remove(struct pkvi_publish_log *log, pkv_block_id block) {
    struct pkvi_links own = log->links[block];

    if (own.next == PKVI_NO_LINK) {
        return;
    }
    log->links[own.previous].next = own.next;
    log->links[own.next].previous = own.previous;
    log->links[block].previous = PKVI_NO_LINK;
    log->links[block].next = PKVI_NO_LINK;
}

/* Take out the blocks of every step <= `step`. */
void pkvi_publish_log_complete(struct pkvi_publish_log *log, uint64_t step);

/* The last block of the list if its step is >= `step`, else PKV_NULL_BLOCK. */
pkv_block_id pkvi_publish_log_last(const struct pkvi_publish_log *log, uint64_t step);

/* Empty the list; steps stay as they are. */
void pkvi_publish_log_clear(struct pkvi_publish_log *log);

#endif
