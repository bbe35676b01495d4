/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* How keys and values come to shared memory: the flat stream of (item, tile), read ahead over the
 * ends of items, behind pipe_acquire, load_tile, pipe_commit, pipe_wait and pipe_release. No
 * arithmetic on what is loaded.
 *
 * The one idea: three cursors walk the same stream, each one step behind the other, and each step
 * hands over at the one barrier of an iteration: entries of the block table are read into a
 * register, become places in shared memory in the next iteration, and copies in the one after. So
 * no thread waits for a chain of loads, and items are read by the first warp long before. */
#ifndef PKVI_CUDA_PIPE_CUH
#define PKVI_CUDA_PIPE_CUH

#include "kernels/cuda/work.cuh"

namespace pkvi {

/* Items that are known ahead; half of them are read at once. */
constexpr int32_t work_ring = 32;
constexpr int32_t work_batch = 16;
/* Tiles whose places are known ahead, and tiles whose token scales are. */
constexpr int32_t place_ring = 2;
constexpr int32_t scale_ring = 8;

/* 16-byte chunk `chunk` of row `row` in panels [chunk / 8][rows][128 bytes], swizzled so that the
 * eight rows that a matrix load reads at once lie in different banks. */
PKVI_WRAPPER unsigned char *panel_chunk(unsigned char *base, int rows, int row, int chunk) {
    const int swizzle = has_mistake(PKVI_MISTAKE_NO_SWIZZLE) ? 0 : row & 7;

    return base + ((chunk >> 3) * rows + row) * 128 + (((chunk & 7) ^ swizzle) << 4);
}

struct key_place {
    int64_t key, value; /* bytes from the cache's start; -1: no key */
};

/* What stands in front of tiles and queries in shared memory. */
template <class traits> struct pipe_shared {
    work items[work_ring];
    key_place places[place_ring][traits::tile_keys];
    int32_t num_items[2]; /* read so far; ping-pong, as who reads it comes an iteration later */
    int32_t is_end[2];
    float scales[traits::is_quantised ? scale_ring : 1][2][traits::tile_keys];
    float maxima[4][traits::shared_rows];
    float sums[4][traits::shared_rows];
};

/* A place in the stream. */
struct stream_cursor {
    int32_t item, tile, count; /* count: tiles before this place */

    PKVI_WRAPPER void advance(int32_t num_tiles) {
        count++;
        tile++;
        if (tile == num_tiles) {
            tile = 0;
            item++;
        }
    }
};

template <class traits> struct pipe {
    const attention_parameters &p;
    pipe_shared<traits> &shared;
    unsigned char *stages, *queries;
    stream_cursor table = {0, 0, 0}, loaded = {0, 0, 0}, computed = {0, 0, 0};
    int32_t load_stage = 0, compute_stage = 0, load_slot = 0, compute_slot = 0;
    int32_t num_known = 0;                                 /* items that all threads may look at */
    int32_t next_index = static_cast<int32_t>(blockIdx.x); /* of the first warp: where it reads */
    int32_t num_read = 0, parity = 0;
    pkv_block_id entry = 0;
    bool is_staged = false, is_end = false;

    PKVI_WRAPPER pipe(const attention_parameters &parameters,
                      pipe_shared<traits> &shared_part,
                      unsigned char *stage_memory,
                      unsigned char *query_memory)
        : p(parameters), shared(shared_part), stages(stage_memory), queries(query_memory) {
    }

    PKVI_WRAPPER const work &item_at(int32_t index) const {
        return shared.items[index % work_ring];
    }

    /* First warp: read up to work_batch items, keep those with our kind of rows, in order. */
    PKVI_WRAPPER void read_items() {
        const int32_t total = p.plan->num_items * p.num_kv_heads.divisor;
        const int32_t lane = simt::lane_index();
        bool is_found = false;

        while (!is_found && num_read - computed.item <= work_ring - work_batch &&
               next_index < total) {
            const int64_t index =
                next_index + static_cast<int64_t>(lane) * static_cast<int64_t>(gridDim.x);
            work item;
            const bool is_ours = lane < work_batch && index < total &&
                                 read_work(p, static_cast<int32_t>(index), traits::tile_rows,
                                           traits::tile_keys, item);
            const uint32_t ours = simt::ballot(is_ours);
            const uint32_t before = ours & ((1u << lane) - 1u);

            if (is_ours) {
                shared.items[(num_read + __builtin_popcount(before)) % work_ring] = item;
            }
            num_read += __builtin_popcount(ours);
            const int64_t next = next_index + static_cast<int64_t>(work_batch) * gridDim.x;
            next_index = next < total ? static_cast<int32_t>(next) : total;
            is_found = ours != 0;
        }
        if (lane == 0) {
            shared.num_items[parity] = num_read;
            shared.is_end[parity] = next_index >= total;
        }
    }

    /* Read the table's entry of this thread's key of the tile at `table`. */
    PKVI_WRAPPER void stage_entry() {
        const work &item = item_at(table.item);
        const int32_t key =
            item.first_key + table.tile * traits::tile_keys + static_cast<int32_t>(threadIdx.x);

        entry = 0;
        if (threadIdx.x < traits::tile_keys &&
            key < item.end_key + has_mistake(PKVI_MISTAKE_KEY_BEHIND_END)) {
            entry = p.block_table[item.table_row * p.block_table_stride +
                                  pkvi_column_of_position(key, p.block_size)];
        }
        is_staged = true;
    }

    /* Turn the entry into a place; start the copies of scales per token, which end with those of
     * the next tile that is loaded, and that is this one or an earlier one. */
    PKVI_WRAPPER void write_place() {
        const work &item = item_at(table.item);
        const int32_t index = static_cast<int32_t>(threadIdx.x);
        const int32_t key = item.first_key + table.tile * traits::tile_keys + index;

        if (index < traits::tile_keys) {
            const pkvi_place place = pkvi_place_in_column(
                entry, pkvi_column_of_position(key, p.block_size), key, p.block_size);
            const bool is_key = key < item.end_key + has_mistake(PKVI_MISTAKE_KEY_BEHIND_END);
            key_place &out = shared.places[table.count % place_ring][index];

            out.key = is_key ? pkvi_place_element(place, item.head, p.k_stride) : -1;
            out.value = is_key ? pkvi_place_element(place, item.head, p.v_stride) : -1;
            if (has_mistake(PKVI_MISTAKE_NARROW_PLACES)) {
                out.key = is_key ? out.key & INT64_C(0xffffffff) : -1;
            }
            if constexpr (traits::is_quantised) {
                copy_scale(0, p.k_scale, p.k_scale_kind, p.k_scale_stride, place, is_key);
                copy_scale(1, p.v_scale, p.v_scale_kind, p.v_scale_stride, place, is_key);
            }
        }
        table.advance(item.num_tiles);
        is_staged = false;
    }

    PKVI_WRAPPER void copy_scale(int which,
                                 const float *scale,
                                 int32_t kind,
                                 const int64_t *stride,
                                 pkvi_place place,
                                 bool is_key) {
        if (kind == PKVI_SCALE_TOKEN_HEAD) {
            const int64_t element =
                is_key ? pkvi_place_element(place, item_at(table.item).head, stride) : 0;

            simt::copy_async_4(&shared.scales[table.count % scale_ring][which][threadIdx.x],
                               scale + element, is_key ? 4 : 0);
        }
    }

    /* Copy one chunk of a row, zeros from byte `row_bytes` on. */
    PKVI_WRAPPER void copy_chunk(unsigned char *target,
                                 const unsigned char *cache,
                                 int64_t place,
                                 int32_t chunk,
                                 int32_t row_bytes) {
        const int32_t left = place < 0 ? 0 : row_bytes - chunk * 16;
        const unsigned char *source = left > 0 ? cache + place + chunk * 16 : cache;

        if (traits::cache_bytes == 2 || p.has_wide_rows) {
            simt::copy_async_16(target, source, left > 0 ? 16 : 0);
        } else {
            simt::copy_async_8(target, source, left > 0 ? 8 : 0);
            simt::copy_async_8(target + 8, left > 8 ? source + 8 : cache, left > 8 ? 8 : 0);
        }
    }

    PKVI_WRAPPER void load_query(const work &item) {
        unsigned char *slot = queries + load_slot * traits::query_slot_bytes;

        for (int32_t i = static_cast<int32_t>(threadIdx.x);
             i < traits::tile_rows * traits::query_chunks; i += traits::num_threads) {
            const int32_t row = i / traits::query_chunks, chunk = i % traits::query_chunks;
            const row_view view = view_row(p, item, row);
            const bool is_there = row < item.num_rows && chunk * 8 < p.head_size;
            const int64_t element =
                view.token * p.query_stride[0] + view.query_head * p.query_stride[1] + chunk * 8;

            simt::copy_async_16(panel_chunk(slot, traits::tile_rows, row, chunk),
                                p.query + (is_there ? element * 2 : 0), is_there ? 16 : 0);
        }
    }

    /* Start the copies of the tile at `loaded`, of its item's query with the first tile. */
    PKVI_WRAPPER void load_tile() {
        const work &item = item_at(loaded.item);
        const key_place *places = shared.places[loaded.count % place_ring];
        unsigned char *keys = stages + load_stage * traits::stage_bytes;
        unsigned char *values = keys + traits::key_bytes;
        const int32_t key_row = p.head_size * traits::cache_bytes;
        const int32_t value_row = p.v_head_size * traits::cache_bytes;

        if (loaded.tile == 0) {
            load_query(item);
        }
        for (int32_t i = static_cast<int32_t>(threadIdx.x);
             i < traits::tile_keys * traits::key_chunks; i += traits::num_threads) {
            const int32_t row = i / traits::key_chunks, chunk = i % traits::key_chunks;

            copy_chunk(panel_chunk(keys, traits::tile_keys, row, chunk), p.k_cache, places[row].key,
                       chunk, key_row);
        }
        for (int32_t i = static_cast<int32_t>(threadIdx.x);
             !traits::shares_keys && i < traits::tile_keys * traits::value_chunks;
             i += traits::num_threads) {
            const int32_t row = i / traits::value_chunks, chunk = i % traits::value_chunks;

            copy_chunk(panel_chunk(values, traits::tile_keys, row, chunk), p.v_cache,
                       places[row].value, chunk, value_row);
        }
    }

    /* Whether the stage and the query slot of the next tile are free. */
    PKVI_WRAPPER bool pipe_acquire() const {
        return loaded.count < computed.count + p.num_stages &&
               loaded.item < computed.item + p.num_query_slots;
    }

    PKVI_WRAPPER void pipe_commit() {
        const int32_t item = loaded.item;

        simt::copy_async_commit();
        loaded.advance(item_at(loaded.item).num_tiles);
        load_stage = load_stage + 1 == p.num_stages ? 0 : load_stage + 1;
        if (loaded.item != item) {
            load_slot = load_slot + 1 == p.num_query_slots ? 0 : load_slot + 1;
        }
    }

    /* Wait for the tile at `computed` and for all threads. True where there is one. */
    PKVI_WRAPPER bool pipe_wait() {
        const int32_t num_younger = loaded.count - computed.count - 1;

        if (num_younger >= 2) {
            simt::copy_async_wait<2>();
        } else if (num_younger == 1 || has_mistake(PKVI_MISTAKE_EARLY_USE)) {
            simt::copy_async_wait<1>();
        } else {
            simt::copy_async_wait<0>();
        }
        if (has_mistake(PKVI_MISTAKE_EARLY_LOAD)) {
            produce();
        }
        simt::sync_block();
        return num_younger >= 0;
    }

    /* One step of each cursor. */
    PKVI_WRAPPER void produce() {
        const int32_t num_placed = table.count, num_loaded = loaded.count;

        parity ^= 1;
        num_known = shared.num_items[parity ^ 1];
        is_end = shared.is_end[parity ^ 1] != 0;
        while (loaded.count < num_placed && pipe_acquire()) {
            load_tile();
            pipe_commit();
        }
        if (is_staged && table.count < num_loaded + place_ring) {
            write_place();
        }
        if (!is_staged && table.item < num_known) {
            stage_entry();
        }
        if (simt::warp_index() == 0) {
            read_items();
        }
    }

    /* Give back the tile at `computed`. */
    PKVI_WRAPPER void pipe_release() {
        const int32_t item = computed.item;

        computed.advance(item_at(computed.item).num_tiles);
        compute_stage = compute_stage + 1 == p.num_stages ? 0 : compute_stage + 1;
        if (computed.item != item) {
            compute_slot = compute_slot + 1 == p.num_query_slots ? 0 : compute_slot + 1;
        }
    }
};

} // namespace pkvi

#endif
