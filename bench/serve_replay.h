/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The simulation: requests arrive, the scheduler forms steps, the manager gives blocks, simulated
 * time passes, tokens come out. No tensor is touched.
 *
 * The one idea: everything but the model is real. Each step makes the calls that an engine makes,
 * the batch of arrays for the kernels included. */
#ifndef PKV_BENCH_SERVE_REPLAY_H
#define PKV_BENCH_SERVE_REPLAY_H

#include "serve.h"
#include "serve_source.h"

/* Blocks that the options mean for this source: --num-blocks, or what the longest request needs
 * eight times over. */
int32_t serve_replay_choose_num_blocks(const serve_options *options, const serve_source *source);

/* Serve all requests of the source.
 *
 * out  to be given to serve_replay_release, also after a failure.
 *
 * Returns false with a message when something failed. */
bool serve_replay(const serve_options *options,
                  const serve_source *source,
                  serve_result *out,
                  char *error);

void serve_replay_release(serve_result *result);

#endif
