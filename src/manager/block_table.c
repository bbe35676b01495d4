/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Rows, storages and dirty intervals; see block_table.h. */
#include "manager/block_table.h"

#include <string.h>

void pkvi_row_map_carve(struct pkvi_row_map *map,
                        struct pkvi_carver *carver,
                        int32_t max_rows,
                        int32_t max_held) {
    size_t num_rows = (size_t)max_rows + 1;

    memset(map, 0, sizeof *map);
    map->max_rows = max_rows;
    map->max_held = max_held;
    map->num_storages = max_rows + max_held;
    map->num_free_rows = max_rows;
    map->num_free_storages = map->num_storages;
    map->free_rows = pkvi_carve(carver, (size_t)max_rows, sizeof(int32_t));
    map->free_storages = pkvi_carve(carver, (size_t)map->num_storages, sizeof(int32_t));
    map->storage_of = pkvi_carve(carver, num_rows, sizeof(int32_t));
    map->owner_of = pkvi_carve(carver, num_rows, sizeof(int32_t));
    map->num_live = pkvi_carve(carver, num_rows, sizeof(int32_t));
    map->held = pkvi_carve(carver, (size_t)max_held, sizeof *map->held);
    if (map->free_rows == NULL) {
        return;
    }
    for (int32_t i = 0; i < max_rows; i++) {
        map->free_rows[i] = max_rows - i;
    }
    for (int32_t i = 0; i < map->num_storages; i++) {
        map->free_storages[i] = map->num_storages - 1 - i;
    }
    for (int32_t row = 0; row <= max_rows; row++) {
        map->storage_of[row] = -1;
        map->owner_of[row] = -1;
        map->num_live[row] = 0;
    }
}

void pkvi_table_carve(struct pkvi_table *table,
                      struct pkvi_carver *carver,
                      int32_t num_storages,
                      int32_t width) {
    table->width = width;
    table->cells = pkvi_carve(carver, (size_t)num_storages, (size_t)width * sizeof *table->cells);
    table->rows = pkvi_carve(carver, (size_t)num_storages, sizeof *table->rows);
    if (table->rows != NULL) {
        memset(table->rows, 0, (size_t)num_storages * sizeof *table->rows);
    }
}

int32_t pkvi_row_lease(struct pkvi_row_map *map, int32_t owner) {
    int32_t row = map->free_rows[--map->num_free_rows];

    map->storage_of[row] = map->free_storages[--map->num_free_storages];
    map->owner_of[row] = owner;
    map->num_live[row] = 0;
    map->num_leased++;
    return row;
}

int32_t pkvi_row_return(struct pkvi_row_map *map, int32_t row, bool keeps_storage) {
    int32_t storage = map->storage_of[row];

    map->storage_of[row] = -1;
    map->owner_of[row] = -1;
    map->num_live[row] = 0;
    map->free_rows[map->num_free_rows++] = row;
    map->num_leased--;
    if (!keeps_storage) {
        pkvi_storage_return(map, storage);
    }
    return storage;
}

void pkvi_storage_return(struct pkvi_row_map *map, int32_t storage) {
    map->free_storages[map->num_free_storages++] = storage;
}

pkv_status pkvi_table_take_updates(struct pkvi_table *table,
                                   const struct pkvi_row_map *map,
                                   pkv_table_update *updates,
                                   int32_t capacity,
                                   int32_t *num_updates) {
    int32_t count = 0;

    *num_updates = 0;
    for (int32_t row = 1; row <= map->max_rows; row++) {
        struct pkvi_table_row *state;
        const pkv_block_id *cells;

        if (map->storage_of[row] < 0) {
            continue;
        }
        state = &table->rows[map->storage_of[row]];
        cells = pkvi_table_cells(table, map->storage_of[row]);
        for (; state->dirty_begin < state->dirty_end; state->dirty_begin++) {
            if (count == capacity) {
                *num_updates = count;
                return PKV_MORE;
            }
            updates[count++] =
                (pkv_table_update){row, state->dirty_begin, cells[state->dirty_begin]};
        }
        state->dirty_begin = 0;
        state->dirty_end = 0;
    }
    *num_updates = count;
    return PKV_OK;
}
