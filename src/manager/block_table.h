/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Block tables: the rows that requests lease while they hold blocks, one matrix of cells a group,
 * and which cells changed since the caller took them. Which block goes where is decided elsewhere.
 *
 * The one idea: a row is a number that the device knows; where its cells lie on the host is another
 * number, its storage. Freeing after a step keeps the storage and gives the row back at once. */
#ifndef PKVI_MANAGER_BLOCK_TABLE_H
#define PKVI_MANAGER_BLOCK_TABLE_H

#include <pagedkv/manager.h>

#include "base/memory.h"

/* Table of one storage in one group. I14: num_cached <= num_blocks <= width. I21: the dirty columns
 * [dirty_begin, dirty_end) lie within [0, num_blocks]. */
struct pkvi_table_row {
    int32_t num_blocks;
    int32_t num_cached; /* leading blocks whose publication is settled: nc of vLLM V1 */
    int32_t num_hits;   /* leading blocks that the row began with, published by others */
    int32_t first_new;  /* column of the first block of the last allocation */
    int32_t dirty_begin, dirty_end;
};

/* All tables of one group. */
struct pkvi_table {
    pkv_block_id *cells;         /* [num_storages][width] */
    struct pkvi_table_row *rows; /* [num_storages] */
    int32_t width;
};

/* A table that waits for a step. */
struct pkvi_held_table {
    uint64_t step;
    int32_t storage;
};

/* Rows and storages. I13: leased + free rows == max_rows, row 0 is never leased. */
struct pkvi_row_map {
    int32_t max_rows;
    int32_t max_held;
    int32_t num_storages; /* max_rows + max_held */
    int32_t num_leased;
    int32_t num_free_rows;
    int32_t num_free_storages;
    int32_t num_held;
    int32_t *free_rows;     /* stack, [max_rows] */
    int32_t *free_storages; /* stack, [num_storages] */
    int32_t *storage_of;    /* [max_rows + 1]; -1 for a row that is not leased */
    int32_t *owner_of;      /* [max_rows + 1]; request index, -1 when not leased */
    int32_t *num_live;      /* [max_rows + 1]; tokens after the last allocation, for statistics */
    struct pkvi_held_table *held; /* [max_held], in the order of the calls */
};

void pkvi_row_map_carve(struct pkvi_row_map *map,
                        struct pkvi_carver *carver,
                        int32_t max_rows,
                        int32_t max_held);

void pkvi_table_carve(struct pkvi_table *table,
                      struct pkvi_carver *carver,
                      int32_t num_storages,
                      int32_t width);

/* Lease a row with a storage for a request; the caller has checked that a row is free. A storage is
 * free then, since every held table has one of its own. */
int32_t pkvi_row_lease(struct pkvi_row_map *map, int32_t owner);

/* Give a row back; its storage, too, unless it is kept for a held table. Returns the storage. */
int32_t pkvi_row_return(struct pkvi_row_map *map, int32_t row, bool keeps_storage);

void pkvi_storage_return(struct pkvi_row_map *map, int32_t storage);

static inline pkv_block_id *pkvi_table_cells(const struct pkvi_table *table, int32_t storage) {
    return table->cells + (size_t)storage * (size_t)table->width;
}

/* Note that the columns [begin, end) changed. */
static inline void pkvi_table_mark(struct pkvi_table_row *row, int32_t begin, int32_t end) {
    if (begin >= end) {
        return;
    }
    if (row->dirty_begin == row->dirty_end) {
        row->dirty_begin = begin;
        row->dirty_end = end;
        return;
    }
    row->dirty_begin = begin < row->dirty_begin ? begin : row->dirty_begin;
    row->dirty_end = end > row->dirty_end ? end : row->dirty_end;
}

/* Emit changed cells of all leased rows, by rising row. Returns PKV_OK or PKV_MORE. */
pkv_status pkvi_table_take_updates(struct pkvi_table *table,
                                   const struct pkvi_row_map *map,
                                   pkv_table_update *updates,
                                   int32_t capacity,
                                   int32_t *num_updates);

#endif
