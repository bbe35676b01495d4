/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Replaying one recording of each kind. */
#ifndef CONFORMANCE_REPLAY_FILES_H
#define CONFORMANCE_REPLAY_FILES_H

#include "replay.h"

/* replay: recording and check_interval set, the rest zero; its counts are the result.
 *
 * Return false, with a message on stderr, where the recording is malformed or no manager can be
 * made for it. replay_release also after a failure. */
bool trace_replay(struct replay *replay);
bool sched_replay(struct replay *replay);

#endif
