/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* A picture of a few slots, row by row, one row an allocator. It draws what it is told and decides
 * nothing. */
#ifndef PKV_BENCH_FRAGMENTATION_PICTURE_H
#define PKV_BENCH_FRAGMENTATION_PICTURE_H

#include <stdbool.h>
#include <stdint.h>

#define PICTURE_NUM_SLOTS 64
#define PICTURE_BLOCK_SIZE 16
#define PICTURE_NUM_REQUESTS 4
#define PICTURE_NUM_ROWS 3

typedef struct picture_row {
    const char *title;
    char owner[PICTURE_NUM_SLOTS]; /* 'A', 'B', 'C', or 0: free */
    bool is_written[PICTURE_NUM_SLOTS];
    int32_t num_free, longest_free; /* when C asked */
    bool is_placed;                 /* C got in ... */
    int32_t num_blocks;             /* ... in these blocks, paged */
    int32_t block_ids[PICTURE_NUM_SLOTS / PICTURE_BLOCK_SIZE];
} picture_row;

/* Write FOLDER/NAME as SVG; `num_asked` is what C asks for. False with a message on stderr. */
bool picture_draw(const picture_row rows[PICTURE_NUM_ROWS],
                  int32_t num_asked,
                  const char *folder,
                  const char *name);

#endif
