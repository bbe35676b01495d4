/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* What all simulators share: saying what they do, comparing, and choosing which of them runs. */
#include "support/sim.h"

#include "support/model.h"
#include "support/sim_parts.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void sim_say(sim_log *log, const char *format, ...) {
    va_list arguments;

    if (log->has_failed) {
        return;
    }
    va_start(arguments, format);
    (void)vsnprintf(log->operation, sizeof log->operation, format, arguments);
    va_end(arguments);
}

void sim_say_more(sim_log *log, const char *format, ...) {
    size_t length = strlen(log->operation);
    va_list arguments;

    if (log->has_failed) {
        return;
    }
    va_start(arguments, format);
    (void)vsnprintf(log->operation + length, sizeof log->operation - length, format, arguments);
    va_end(arguments);
}

void sim_problem(sim_log *log, const char *format, ...) {
    va_list arguments;

    if (log->has_failed) {
        return;
    }
    log->has_failed = true;
    va_start(arguments, format);
    (void)vsnprintf(log->problem, sizeof log->problem, format, arguments);
    va_end(arguments);
}

void sim_expect_equal(sim_log *log, const char *what, int64_t library, int64_t model) {
    if (library != model) {
        sim_problem(log, "%s: the library says %lld, the model %lld", what, (long long)library,
                    (long long)model);
    }
}

void sim_digest(sim_counts *counts, uint64_t value) {
    test_rand generator = {counts->digest ^ value};

    counts->digest = test_rand_next(&generator);
}

void sim_expect_status(sim_log *log, sim_counts *counts, pkv_status status, uint32_t allowed) {
    char names[256] = "";

    if (log->is_traced && !log->has_failed) {
        fprintf(stderr, "%lld %s: %s\n", (long long)log->step, log->operation,
                pkv_status_name(status));
    }
    sim_digest(counts, (uint64_t)(int64_t)status);
    if (status >= PKV_ERROR_CORRUPT && status <= PKV_NO_FREE_ROWS) {
        counts->num_calls[status - PKV_ERROR_CORRUPT]++;
        if ((allowed & MODEL_STATUS(status)) != 0) {
            return;
        }
    }
    for (int value = PKV_ERROR_CORRUPT; value <= PKV_NO_FREE_ROWS; value++) {
        if ((allowed & MODEL_STATUS(value)) != 0) {
            size_t length = strlen(names);
            (void)snprintf(names + length, sizeof names - length, " %s",
                           pkv_status_name((pkv_status)value));
        }
    }
    sim_problem(log, "status: the library says %s, the model%s", pkv_status_name(status), names);
}

void sim_run_episode(
    sim_kind kind, test_source *source, int64_t max_steps, sim_log *log, sim_counts *counts) {
    counts->num_episodes++;
    switch (kind) {
    case SIM_POOL:
        sim_run_pool(source, max_steps, log, counts);
        break;
    case SIM_CHAOS:
        sim_run_chaos(source, max_steps, log, counts);
        break;
    case SIM_ENGINE:
        sim_run_engine(source, max_steps, log, counts, false);
        break;
    case SIM_SWAP:
        sim_run_engine(source, max_steps, log, counts, true);
        break;
    default:
        sim_problem(log, "there is no simulator %d", (int)kind);
        break;
    }
}
