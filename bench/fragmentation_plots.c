/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* gnuplot scripts for the CSV files of the memory comparison. The block map draws itself, in
 * fragmentation_map.c.
 *
 * The one idea: a plot reads the CSV file that a user gets too. */
#include "fragmentation_report.h"

#include "plot.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Colours of the five uses, the same in every plot. */
static const char *const use_colours[SLOTS_NUM_USES] = {"#1b6ca8", "#9cc6e4", "#e8a33d", "#c8553d",
                                                        "#e3e3e3"};

/* gnuplot reads a file name from a string in quotes; table names are safe, a user's file may not
 * be. */
static void print_title(FILE *script, const char *what, const memory_experiment *experiment) {
    fprintf(script, "set title \"{/:Bold*1.15 %s}\\n{/*0.9 ", what);
    for (const char *at = experiment->list.name; *at != '\0'; at++) {
        /* Enhanced text takes these as commands. */
        if (strchr("\"\\{}^_@&~$`", *at) != NULL) {
            putc(*at == '_' ? '-' : ' ', script);
        } else {
            putc(*at, script);
        }
    }
    fprintf(script, ", %lld token slots, saturated queue}\"\n",
            (long long)experiment->setup.num_slots);
}

/* ---- shares ---------------------------------------------------------------------------------- */

/* Place of the first paged bar; one place is left empty before it. */
#define FIRST_PAGED_BAR (LAYOUT_PAGED + 1)

/* What stands at a place of the plot: NULL for the gap and past the end. Paging with the default
 * block size stands alone only where no block sizes were asked for. */
static const memory_result *find_bar(const memory_experiment *experiment, int32_t place) {
    if (place < LAYOUT_PAGED) {
        return &experiment->layouts[place];
    }
    if (place < FIRST_PAGED_BAR) {
        return NULL;
    }
    if (experiment->num_rows == 0 && place == FIRST_PAGED_BAR) {
        return &experiment->layouts[LAYOUT_PAGED];
    }
    place -= FIRST_PAGED_BAR;
    return place < experiment->num_rows ? &experiment->rows[place].memory : NULL;
}

static int32_t count_bars(const memory_experiment *experiment) {
    return FIRST_PAGED_BAR + (experiment->num_rows > 0 ? experiment->num_rows : 1);
}

/* The numbers stand in the script: the CSV file has a row more, and no gap. */
static void print_bars(FILE *script, const memory_experiment *experiment) {
    static const char *const names[] = {"maximum", "prompt\\n+ 2^n", "oracle",
                                        "oracle,\\nfirst fit"};

    fprintf(script, "$bars << END\n");
    for (int32_t place = 0; place < count_bars(experiment); place++) {
        const memory_result *bar = find_bar(experiment, place);

        if (bar == NULL) {
            fprintf(script, "\"\" 0 0 0 0 0\n");
            continue;
        }
        if (bar->of.layout == LAYOUT_PAGED) {
            fprintf(script, "\"%d\"", bar->of.block_size);
        } else {
            fprintf(script, "\"%s\"", names[bar->of.layout]);
        }
        for (int32_t use = 0; use < SLOTS_NUM_USES; use++) {
            fprintf(script, " %.4f", bar->percent[use]);
        }
        putc('\n', script);
    }
    fprintf(script, "END\n");
}

static void print_bar_labels(FILE *script, const memory_experiment *experiment) {
    int32_t num_bars = count_bars(experiment);

    for (int32_t place = 0; place < num_bars; place++) {
        const memory_result *bar = find_bar(experiment, place);
        double live = bar != NULL ? bar->percent[SLOTS_LIVE] : 0.0;

        if (bar != NULL) {
            fprintf(script, "set label \"%.1f\" at %d,%.2f center front tc rgb '%s' font ',12'\n",
                    live, place, live > 9.0 ? live - 4.0 : live + 3.0,
                    live > 9.0 ? "white" : "black");
        }
    }
    fprintf(script,
            "set label 'contiguous' at 1.5,graph -0.16 center\n"
            "set label 'paged by this library, tokens in a block' at %.1f,graph -0.16 center\n",
            0.5 * (FIRST_PAGED_BAR + num_bars - 1));
}

static bool draw_shares(const memory_experiment *experiment,
                        const char *folder,
                        const char *prefix) {
    char name[256];

    snprintf(name, sizeof(name), "%sshares", prefix);

    FILE *script = plot_begin(folder, name, 1000, 520);

    if (script == NULL) {
        return false;
    }
    print_bars(script, experiment);
    print_title(script, "Who uses the KV memory", experiment);
    fprintf(script, "set style data histograms\nset style histogram rowstacked\n"
                    "set style fill solid 1.0 border rgb 'white'\nset boxwidth 0.78\n"
                    "set yrange [0:100]\nset ylabel 'share of all slots, %%'\n"
                    "set key outside right center vertical Left reverse invert\nset bmargin 5.5\n"
                    "set xtics scale 0 font ',11'\n");
    print_bar_labels(script, experiment);
    fprintf(script, "plot ");
    for (int32_t use = 0; use < SLOTS_NUM_USES; use++) {
        fprintf(script, "%s$bars using %d:xtic(1) title '%s' lc rgb '%s'", use == 0 ? "" : ", ",
                use + 2, slot_use_name((slot_use)use), use_colours[use]);
    }
    putc('\n', script);
    return plot_end(script, folder, name);
}

/* ---- usage over time ------------------------------------------------------------------------- */

static bool draw_timeline(const memory_experiment *experiment,
                          const char *folder,
                          const char *prefix) {
    static const char *const titles[MEMORY_NUM_LAYOUTS] = {
        "contiguous, maximum", "contiguous, 2^n", "contiguous, oracle",
        "contiguous, oracle, first fit", "paged, block 16"};
    static const int styles[MEMORY_NUM_LAYOUTS] = {3, 2, 4, 6, 1};
    char name[256];

    snprintf(name, sizeof(name), "%stimeline", prefix);

    FILE *script = plot_begin(folder, name, 900, 480);

    if (script == NULL) {
        return false;
    }
    print_title(script, "Slots that hold a token, over time", experiment);
    fprintf(script,
            "set datafile separator ','\nset yrange [0:100]\nset xrange [0:%d]\n"
            "set xlabel 'step'\nset ylabel 'live slots, %% of all'\nset format x '%%.0f'\n"
            "set bmargin 7\nset key at screen 0.5,0.02 center bottom horizontal Left reverse "
            "maxrows 2 samplen 2\n"
            "set style rect fc rgb '#f2f2f2' fs solid noborder\n"
            "set object 1 rect from 0,graph 0 to %d,graph 1 behind\nplot ",
            experiment->setup.num_steps, experiment->setup.num_discarded);
    for (int32_t i = MEMORY_NUM_LAYOUTS - 1; i >= 0; i--) {
        fprintf(script, "'%s.csv' skip 1 using 1:%d with lines ls %d title '%s'%s", name, i + 2,
                styles[i], titles[i], i == 0 ? "\n" : ", ");
    }
    return plot_end(script, folder, name);
}

/* ---- block sizes ----------------------------------------------------------------------------- */

static bool draw_block_sizes(const memory_experiment *experiment,
                             const char *folder,
                             const char *prefix) {
    char name[256];

    if (experiment->num_rows < 2) {
        return true; /* one block size is no curve */
    }
    snprintf(name, sizeof(name), "%sblock_sizes", prefix);

    FILE *script = plot_begin(folder, name, 900, 700);

    if (script == NULL) {
        return false;
    }
    fprintf(script, "set datafile separator ','\nset logscale x 2\nset key top center Left reverse "
                    "samplen 2\nset xrange [*:*]\nset yrange [0:*]\n"
                    "set style line 11 lc rgb '#1b6ca8' lw 2 pt 7 ps 0.6\n"
                    "set multiplot layout 2,1 margins 0.10,0.90,0.10,0.90 spacing 0,0.12\n");
    print_title(script, "What the block size trades", experiment);
    fprintf(script,
            "set ylabel 'percent'\nset format x ''\n"
            "plot '%s.csv' skip 1 using 1:2 with linespoints ls 3 title 'slots without a live "
            "token', '' skip 1 using 1:7 with linespoints ls 4 title 'prefix-cache hits lost to "
            "whole blocks'\n",
            name);
    fprintf(script,
            "unset title\nset format x '%%.0f'\nset xlabel 'block size, tokens'\n"
            "set ylabel 'manager calls, ns a token'\nset border 11\nset ytics nomirror\n"
            "set y2label 'block table, bytes a request'\nset y2tics nomirror\nset y2range [0:*]\n"
            "plot '%s.csv' skip 1 using 1:5 with linespoints ls 1 title 'time, no prefix cache', "
            "'' skip 1 using 1:6 with linespoints ls 5 title 'time, prefix cache on', "
            "'' skip 1 using 1:4 axes x1y2 with linespoints ls 2 dt 2 title 'block table "
            "(right axis)'\nunset multiplot\n",
            name);
    return plot_end(script, folder, name);
}

bool memory_draw_plots(const memory_experiment *experiment,
                       const char *folder,
                       const char *prefix) {
    return draw_shares(experiment, folder, prefix) && draw_timeline(experiment, folder, prefix) &&
           draw_block_sizes(experiment, folder, prefix) &&
           memory_draw_map(&experiment->setup, folder, prefix);
}
