/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The files and pictures of serve_output.h: a CSV file each, and a gnuplot script over it. */
#include "plot.h"
#include "report.h"
#include "serve_output.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

static bool close_data(FILE *file, const char *folder, const char *name) {
    bool is_written = !ferror(file);

    is_written = fclose(file) == 0 && is_written;
    if (!is_written) {
        fprintf(stderr, "cannot write %s/%s\n", folder, name);
    }
    return is_written;
}

static bool write_timeline(const char *folder, const serve_result *result) {
    FILE *file = plot_open(folder, "serve_timeline.csv");

    if (file == NULL) {
        return false;
    }
    fprintf(file, "seconds,usage,cached_share,hit_rate,running,waiting,preemptions\n");
    for (int32_t i = 0; i < result->num_samples; i++) {
        const serve_sample *sample = &result->samples[i];

        fprintf(file, "%.6f,%.6f,%.6f,%.6f,%" PRId32 ",%" PRId32 ",%" PRId64 "\n", sample->seconds,
                sample->usage, sample->cached_share, sample->hit_rate, sample->num_running,
                sample->num_waiting, sample->num_preemptions);
    }
    return close_data(file, folder, "serve_timeline.csv");
}

/* Titles come from file names, which gnuplot would take for its own markup. */
static void print_plain(FILE *script, const char *text) {
    for (; *text != '\0'; text++) {
        if (*text == '\'') {
            fputs("''", script);
        } else {
            putc(*text, script);
        }
    }
}

bool serve_output_draw_timeline(const char *folder, const char *title, const serve_result *result) {
    if (!write_timeline(folder, result)) {
        return false;
    }
    if (!plot_is_available()) {
        fprintf(stderr, "bench_serve: no gnuplot, so no picture of %s/serve_timeline.csv\n",
                folder);
        return true;
    }
    int64_t num_preemptions = result->num_preemptions;
    FILE *script = plot_begin(folder, "serve_timeline", 1000, 760);
    if (script == NULL) {
        return false;
    }
    fprintf(script,
            "set datafile separator ','\n"
            "set multiplot layout 3,1 margins 0.08,0.92,0.08,0.93 spacing 0.07\n"
            "set key at graph 1,1.13 right horizontal samplen 2\n"
            "set xrange [0:%.6f]\nset format x ''\n",
            result->simulated_seconds > 0 ? result->simulated_seconds : 1.0);
    fprintf(script, "set label 1 '");
    print_plain(script, title);
    fprintf(script,
            "' noenhanced at screen 0.015,0.975\n"
            "set ylabel 'blocks, %%'\nset yrange [0:100]\n"
            "plot 'serve_timeline.csv' skip 1 using 1:($3*100) with lines ls 2 title 'with a key', "
            "'' skip 1 using 1:($2*100) with lines ls 1 title 'held by requests'\n"
            "unset label 1\n"
            "set ylabel 'requests'\nset yrange [0:*]\n"
            "plot 'serve_timeline.csv' skip 1 using 1:6 with lines ls 3 title 'waiting', "
            "'' skip 1 using 1:5 with lines ls 1 title 'running'\n"
            "set format x '%%g'\nset xlabel 'simulated seconds' offset 0,0.5\n"
            "set ylabel 'hit rate so far, %%'\nset yrange [0:100]\n"
            "set y2tics\nset y2range [0:%.0f]\nset y2label 'preemptions so far'\n"
            "plot 'serve_timeline.csv' skip 1 using 1:($4*100) with lines ls 5 title 'hit rate', "
            "'' skip 1 using 1:7 axes x1y2 with lines ls 4 title 'preemptions'\n"
            "unset multiplot\n",
            num_preemptions > 0 ? 1.05 * (double)num_preemptions : 1.0);
    return plot_end(script, folder, "serve_timeline");
}

/* The unlimited cache stands at the right end, at twice the largest size. */
static double get_plotted_size(const serve_curve_point *points, int32_t num_points, int32_t i) {
    double size = points[i].num_blocks;

    if (points[i].num_blocks == 0) {
        size = num_points > 1 ? 2.0 * points[num_points - 2].num_blocks : 1.0;
    }
    return size;
}

static bool write_curve(const char *folder, const serve_curve_point *points, int32_t num_points) {
    FILE *file = plot_open(folder, "serve_hit_curve.csv");

    if (file == NULL) {
        return false;
    }
    fprintf(file, "blocks,plotted_at,pool_percent,manager_percent,reference_percent\n");
    for (int32_t i = 0; i < num_points; i++) {
        fprintf(file, "%" PRId32 ",%.0f,%.4f,%.4f,", points[i].num_blocks,
                get_plotted_size(points, num_points, i), serve_curve_get_pool_percent(&points[i]),
                serve_curve_get_manager_percent(&points[i]));
        if (!isnan(points[i].reference_percent)) {
            fprintf(file, "%.1f", points[i].reference_percent);
        }
        fprintf(file, "\n");
    }
    return close_data(file, folder, "serve_hit_curve.csv");
}

bool serve_output_draw_curve(const char *folder,
                             const char *title,
                             const serve_curve_point *points,
                             int32_t num_points) {
    if (!write_curve(folder, points, num_points)) {
        return false;
    }
    if (!plot_is_available()) {
        fprintf(stderr, "bench_serve: no gnuplot, so no picture of %s/serve_hit_curve.csv\n",
                folder);
        return true;
    }
    FILE *script = plot_begin(folder, "serve_hit_curve", 800, 480);
    if (script == NULL) {
        return false;
    }
    fprintf(script,
            "set datafile separator ','\nset key top left\nset logscale x\n"
            "set xlabel 'blocks in the cache'\nset ylabel 'blocks found, %%'\n"
            "set yrange [0:*]\nset xrange [%.0f:%.0f]\nset title '",
            0.7 * get_plotted_size(points, num_points, 0),
            1.4 * get_plotted_size(points, num_points, num_points - 1));
    print_plain(script, title);
    fprintf(script, "' noenhanced\nset xtics (");
    for (int32_t i = 0; i < num_points; i++) {
        if (points[i].num_blocks == 0) {
            fprintf(script, "%s'unlimited' ", i == 0 ? "" : ", ");
        } else {
            fprintf(script, "%s'%gk' ", i == 0 ? "" : ", ", points[i].num_blocks / 1000.0);
        }
        fprintf(script, "%.0f", get_plotted_size(points, num_points, i));
    }
    fprintf(script,
            ")\nplot 'serve_hit_curve.csv' skip 1 using 2:3 with linespoints ls 1 title 'pool', "
            "'' skip 1 using 2:4 with linespoints ls 2 title 'manager', "
            "'' skip 1 using 2:5 with points ls 3 pt 6 ps 1.4 title 'reference LRU'\n");
    return plot_end(script, folder, "serve_hit_curve");
}
