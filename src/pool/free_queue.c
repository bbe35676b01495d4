/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Building the free queue; everything that runs per block is inline in free_queue.h. */
#include "pool/free_queue.h"

void pkvi_free_queue_init(struct pkvi_free_queue *queue,
                          struct pkvi_links *links,
                          int32_t num_blocks) {
    queue->links = links;
    queue->num_free = num_blocks - 1;
    for (int32_t block = 0; block < num_blocks; block++) {
        links[block].previous = block == 0 ? num_blocks - 1 : block - 1;
        links[block].next = block == num_blocks - 1 ? 0 : block + 1;
    }
}
