/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Plots of the benches: a gnuplot script and its data are written into a folder, gnuplot is run on
 * them, and an SVG file stands beside them. What is drawn is the caller's script.
 *
 * The one idea: data and script stay in the folder, so anybody can draw the plot anew,
 * otherwise. */
#ifndef PKV_BENCH_PLOT_H
#define PKV_BENCH_PLOT_H

#include <stdbool.h>
#include <stdio.h>

/* Say whether gnuplot can be run. */
bool plot_is_available(void);

/* Open FOLDER/NAME for writing (data, a script, a picture); NULL with a message on stderr. */
FILE *plot_open(const char *folder, const char *name);

/* Open the script FOLDER/NAME.gp and write its head: SVG terminal of the given size, output file
 * NAME.svg, fonts, grid, and the line styles 1..8 of all plots of this project. File names in the
 * script are relative to the folder. NULL with a message on stderr. */
FILE *plot_begin(const char *folder, const char *name, int width, int height);

/* Close the script, run gnuplot in the folder, and see that NAME.svg is there and not empty. False
 * with a message on stderr. */
bool plot_end(FILE *script, const char *folder, const char *name);

#endif
