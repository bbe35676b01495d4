/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The block map: which request holds which slot, step by step, under three layouts in a small
 * memory of two requests of maximal length.
 *
 * The one idea: a request in contiguous memory is one rectangle of time and slots, its written part
 * a rising polygon; a paged request is as many rectangles as it has blocks. */
#include "fragmentation_report.h"

#include "plot.h"

#include <stdio.h>
#include <stdlib.h>

#define MAP_NUM_BLOCKS 256
#define MAP_FIRST_STEP 1000
#define MAP_NUM_STEPS 600
#define MAP_MAX_RANGES 256

/* Pairs of a full and a pale colour; requests take them in turn. */
#define MAP_NUM_COLOURS 6
static const char *const full_colours[MAP_NUM_COLOURS] = {"1b6ca8", "d98a1f", "b5442d",
                                                          "5b5f97", "2f8f60", "7a4f7a"};
static const char *const pale_colours[MAP_NUM_COLOURS] = {"cfe1ef", "f8e3c3", "efcfc8",
                                                          "dcddea", "cde7da", "e2d5e2"};

static const char *colour_of(const char *const *colours, int64_t serial) {
    return colours[serial % MAP_NUM_COLOURS];
}

/* ---- contiguous ------------------------------------------------------------------------------ */

/* A request's range from the step at which the map first saw it. */
typedef struct map_range {
    int64_t serial, offset, num_held;
    int32_t first_step, first_live, last_step, last_live;
    bool is_seen;
} map_range;

static void draw_range(FILE *script, const map_range *range) {
    long long low = range->offset;
    int32_t end = range->last_step + 1;

    fprintf(script,
            "set object rect from %d,%lld to %d,%lld fc rgb '#%s' fs solid border rgb 'white' lw "
            "0.5\n",
            range->first_step, low, end, low + range->num_held,
            colour_of(pale_colours, range->serial));
    fprintf(script,
            "set object polygon from %d,%lld to %d,%lld to %d,%lld to %d,%lld to %d,%lld fc rgb "
            "'#%s' fs solid noborder\n",
            range->first_step, low, range->first_step, low + range->first_live, end,
            low + range->last_live, end, low, range->first_step, low,
            colour_of(full_colours, range->serial));
}

static void see_ranges(const contiguous_simulation *simulation,
                       const memory_state *state,
                       int32_t step,
                       map_range *ranges,
                       int32_t *num_ranges) {
    for (int32_t i = 0; i < *num_ranges; i++) {
        ranges[i].is_seen = false;
    }
    for (int32_t i = 0; i < state->num_running; i++) {
        const memory_request *request = &state->running[i];
        int32_t at = 0;

        while (at < *num_ranges && ranges[at].serial != request->serial) {
            at++;
        }
        if (at == MAP_MAX_RANGES) {
            continue;
        }
        if (at == *num_ranges) {
            ranges[at] = (map_range){
                .serial = request->serial,
                .offset = request->offset,
                .num_held = contiguous_get_held(simulation, request),
                .first_step = step,
                .first_live = request->num_live_tokens,
            };
            *num_ranges += 1;
        }
        ranges[at].last_step = step;
        ranges[at].last_live = request->num_live_tokens;
        ranges[at].is_seen = true;
    }
}

/* Draw those that left (all of them with `is_end`) and keep the others. */
static void flush_ranges(FILE *script, bool is_end, map_range *ranges, int32_t *num_ranges) {
    int32_t num_kept = 0;

    for (int32_t i = 0; i < *num_ranges; i++) {
        if (ranges[i].is_seen && !is_end) {
            ranges[num_kept++] = ranges[i];
        } else {
            draw_range(script, &ranges[i]);
        }
    }
    *num_ranges = num_kept;
}

static bool map_contiguous(const memory_setup *setup, memory_layout layout, FILE *script) {
    contiguous_simulation *simulation = contiguous_begin(setup, layout);
    map_range ranges[MAP_MAX_RANGES];
    int32_t num_ranges = 0;
    slot_counts counts;
    bool is_good = simulation != NULL;

    for (int32_t step = 0; is_good && step < MAP_FIRST_STEP + MAP_NUM_STEPS; step++) {
        is_good = contiguous_step(simulation, &counts);
        if (is_good && step >= MAP_FIRST_STEP) {
            see_ranges(simulation, contiguous_get_state(simulation), step, ranges, &num_ranges);
            flush_ranges(script, false, ranges, &num_ranges);
        }
    }
    flush_ranges(script, true, ranges, &num_ranges);
    contiguous_end(simulation);
    return is_good;
}

/* ---- paged ----------------------------------------------------------------------------------- */

/* Who holds a block since when, and when the last of its slots was written. */
typedef struct map_block {
    int64_t serial; /* -1: nobody */
    int32_t first_step, full_step;
} map_block;

static void draw_block(FILE *data, int32_t block, const map_block *held, int32_t end) {
    int32_t full = held->full_step < end ? held->full_step : end;

    if (held->serial < 0) {
        return;
    }
    if (full > held->first_step) {
        fprintf(data, "%d %d %d %d 0x%s\n", held->first_step, full, block, block + 1,
                colour_of(pale_colours, held->serial));
    }
    if (end > full) {
        fprintf(data, "%d %d %d %d 0x%s\n", full, end, block, block + 1,
                colour_of(full_colours, held->serial));
    }
}

static bool see_blocks(paged_simulation *simulation,
                       int32_t block_size,
                       int32_t step,
                       map_block *now) {
    const memory_state *state = paged_get_state(simulation);

    for (int32_t i = 0; i < paged_get_num_blocks(simulation); i++) {
        now[i].serial = -1;
    }
    for (int32_t i = 0; i < state->num_running; i++) {
        const memory_request *request = &state->running[i];
        const pkv_block_id *block_ids;
        int32_t num_blocks;

        if (pkv_get_block_table(paged_get_manager(simulation), request->request, 0, &block_ids,
                                &num_blocks) != PKV_OK) {
            return false;
        }
        for (int32_t column = 0; column < num_blocks; column++) {
            int32_t num_missing = (column + 1) * block_size - request->num_live_tokens;

            now[block_ids[column]] = (map_block){
                .serial = request->serial,
                .first_step = step,
                .full_step = step + (num_missing > 0 ? num_missing : 0),
            };
        }
    }
    return true;
}

static bool map_paged(const memory_setup *setup, int32_t block_size, FILE *data) {
    memory_case of = {.name = "map", .layout = LAYOUT_PAGED, .block_size = block_size};
    paged_simulation *simulation = paged_begin(setup, &of);
    int32_t num_blocks = simulation != NULL ? paged_get_num_blocks(simulation) : 0;
    map_block *held = calloc((size_t)num_blocks + 1, sizeof(*held));
    map_block *now = calloc((size_t)num_blocks + 1, sizeof(*now));
    bool is_good = simulation != NULL && held != NULL && now != NULL;
    int32_t end = MAP_FIRST_STEP + MAP_NUM_STEPS;
    slot_counts counts;

    for (int32_t i = 0; is_good && i < num_blocks; i++) {
        held[i].serial = -1;
    }
    for (int32_t step = 0; is_good && step < end; step++) {
        is_good = paged_step(simulation, &counts);
        if (!is_good || step < MAP_FIRST_STEP) {
            continue;
        }
        is_good = see_blocks(simulation, block_size, step, now);
        for (int32_t i = 0; i < num_blocks; i++) {
            if (now[i].serial != held[i].serial) {
                draw_block(data, i, &held[i], step);
                held[i] = now[i];
            }
        }
    }
    for (int32_t i = 0; is_good && i < num_blocks; i++) {
        draw_block(data, i, &held[i], end);
    }
    free(held);
    free(now);
    paged_end(simulation);
    return is_good;
}

/* ---- the picture ----------------------------------------------------------------------------- */

static void begin_panel(FILE *script, const char *title, int64_t num_slots) {
    fprintf(script, "unset object\nset title '%s'\nset xrange [%d:%d]\nset yrange [0:%lld]\n",
            title, MAP_FIRST_STEP, MAP_FIRST_STEP + MAP_NUM_STEPS, (long long)num_slots);
}

static void print_caption(FILE *script, const memory_setup *setup, int32_t block_size) {
    fprintf(script,
            "unset key\nset border 3 lw 0.5\nunset grid\nset xtics 200\n"
            "set multiplot layout 1,3 margins 0.09,0.985,0.10,0.84 spacing 0.035,0 title "
            "\"{/:Bold*1.15 Who holds which slot: %lld slots, paged in blocks of %d}\\n{/*0.9 one "
            "colour a "
            "request; full: written, pale: held but not written, white: held by nobody}\"\n"
            "set xlabel 'step'\nset ylabel 'token slot'\n",
            (long long)setup->num_slots, block_size);
}

static bool write_map(const memory_setup *setup,
                      int32_t block_size,
                      const char *data_name,
                      FILE *script,
                      FILE *data) {
    print_caption(script, setup, block_size);
    begin_panel(script, "contiguous, maximum", setup->num_slots);
    if (!map_contiguous(setup, LAYOUT_MAX, script)) {
        return false;
    }
    fprintf(script, "plot NaN\nset format y ''\nunset ylabel\n");
    begin_panel(script, "contiguous, oracle", setup->num_slots);
    if (!map_contiguous(setup, LAYOUT_ORACLE, script)) {
        return false;
    }
    fprintf(script, "plot NaN\n");
    begin_panel(script, "paged", setup->num_slots);
    if (!map_paged(setup, block_size, data)) {
        return false;
    }
    fprintf(script,
            "set style fill solid 1.0 noborder\nB = %d\n"
            "plot '%s' using 1:($3*B):1:2:($3*B):($4*B):5 with boxxyerror lc rgb variable\n"
            "unset multiplot\n",
            block_size, data_name);
    return true;
}

bool memory_draw_map(const memory_setup *setup, const char *folder, const char *prefix) {
    memory_setup small = *setup;
    int32_t block_size = MEMORY_DEFAULT_BLOCK_SIZE;
    char name[256];
    char data_name[256];

    small.num_slots = 2 * (int64_t)setup->max_length;
    if (small.num_slots / block_size > MAP_NUM_BLOCKS) {
        block_size = (int32_t)(small.num_slots / MAP_NUM_BLOCKS);
    }
    snprintf(name, sizeof(name), "%sblock_map", prefix);
    snprintf(data_name, sizeof(data_name), "%.240s.dat", name);

    FILE *script = plot_begin(folder, name, 1100, 700);
    FILE *data = script != NULL ? plot_open(folder, data_name) : NULL;

    if (data == NULL) {
        if (script != NULL) {
            fclose(script);
        }
        return false;
    }

    bool is_good = write_map(&small, block_size, data_name, script, data);

    is_good = fclose(data) == 0 && is_good;
    if (!is_good) {
        fprintf(stderr, "the block map failed\n");
        fclose(script);
        return false;
    }
    return plot_end(script, folder, name);
}
