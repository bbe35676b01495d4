/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The publication log; see publish_log.h. */
#include "pool/publish_log.h"

void pkvi_publish_log_init(struct pkvi_publish_log *log,
                           struct pkvi_links *links,
                           struct pkvi_block_state *states,
                           int32_t num_blocks) {
    log->links = links;
    log->states = states;
    log->newest_step = 0;
    log->completed_step = 0;
    links[0].previous = 0;
    links[0].next = 0;
    for (int32_t block = 1; block < num_blocks; block++) {
        links[block].previous = PKVI_NO_LINK;
        links[block].next = PKVI_NO_LINK;
    }
}

void pkvi_publish_log_complete(struct pkvi_publish_log *log, uint64_t step) {
    while (log->links[0].next != 0 && pkvi_publish_log_step(log, log->links[0].next) <= step) {
        pkvi_publish_log_remove(log, log->links[0].next);
    }
    if (step > log->completed_step) {
        log->completed_step = step;
    }
    if (step > log->newest_step) {
        log->newest_step = step;
    }
}

pkv_block_id pkvi_publish_log_last(const struct pkvi_publish_log *log, uint64_t step) {
    pkv_block_id last = log->links[0].previous;

    return last != 0 && pkvi_publish_log_step(log, last) >= step ? last : PKV_NULL_BLOCK;
}

void pkvi_publish_log_clear(struct pkvi_publish_log *log) {
    while (log->links[0].next != 0) {
        pkvi_publish_log_remove(log, log->links[0].next);
    }
}
