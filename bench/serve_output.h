/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* How bench_serve says what it found: one row a number, as JSON lines, as CSV or as a table for
 * people; and files with plots in the output folder.
 *
 * The one idea: each number goes through one function, so the three formats cannot differ. */
#ifndef PKV_BENCH_SERVE_OUTPUT_H
#define PKV_BENCH_SERVE_OUTPUT_H

#include "serve.h"
#include "serve_curve.h"

typedef enum serve_format { SERVE_TEXT = 0, SERVE_JSON = 1, SERVE_CSV = 2 } serve_format;

/* To be called once, before the first report. */
void serve_output_begin(serve_format format);

/* Report a replay, call latencies included. `result` may be reordered (percentiles sort). */
void serve_output_replay(const char *case_name,
                         const serve_options *options,
                         int32_t num_blocks,
                         serve_result *result);

void serve_output_curve(const char *case_name, const serve_curve_point *points, int32_t num_points);

/* Write FOLDER/serve_timeline.csv and, where gnuplot is there, .svg. False with a message. */
bool serve_output_draw_timeline(const char *folder, const char *title, const serve_result *result);

/* The same with FOLDER/serve_hit_curve. */
bool serve_output_draw_curve(const char *folder,
                             const char *title,
                             const serve_curve_point *points,
                             int32_t num_points);

#endif
