/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* What every other header stands on: version, export mark, status codes, allocator, log callback
 * and the feature query. It knows nothing of blocks, requests or devices.
 *
 * The one idea: a status above zero is an ordinary outcome of scheduling, zero is success, below
 * zero is an error; and a call that returns an error has changed nothing. */
#ifndef PAGEDKV_BASE_H
#define PAGEDKV_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PKV_VERSION_MAJOR 0
#define PKV_VERSION_MINOR 1
#define PKV_VERSION_PATCH 0
#define PKV_VERSION (PKV_VERSION_MAJOR * 10000 + PKV_VERSION_MINOR * 100 + PKV_VERSION_PATCH)

#if defined(PKV_BUILDING_LIBRARY) && defined(__GNUC__)
#define PKV_API __attribute__((visibility("default")))
#else
#define PKV_API
#endif

/* Status of every call that can do anything but succeed. Values are part of the ABI. */
typedef enum pkv_status {
    PKV_OK = 0,
    PKV_NO_FREE_BLOCKS = 1, /* the pool cannot serve this now: preempt, or wait, and retry */
    PKV_NOT_FOUND = 2,      /* what was looked up is not (or no longer) there: look up again */
    PKV_IN_PROGRESS = 3,    /* an asynchronous operation has not finished */
    PKV_MORE = 4,         /* the given capacity was too small; the rest is kept for the next call */
    PKV_NEVER_FITS = 5,   /* cannot be served even by an empty pool: reject the request */
    PKV_NO_FREE_ROWS = 6, /* every block-table row is leased: wait for a request to end */
    PKV_ERROR_INVALID_ARGUMENT = -1,
    PKV_ERROR_STALE_HANDLE = -2,
    PKV_ERROR_OUT_OF_MEMORY = -3,
    PKV_ERROR_LIMIT = -4, /* a maximum of the configuration, or a capacity given to a reader */
    PKV_ERROR_UNSUPPORTED = -5,
    PKV_ERROR_BUSY = -6,
    PKV_ERROR_DEVICE = -7,
    PKV_ERROR_IO = -8,
    PKV_ERROR_CORRUPT = -9
} pkv_status;

/* Name a status as its constant is spelled, without the prefix ("NO_FREE_BLOCKS").
 * [any thread | O(1) | no allocation]
 *
 * Returns a static string; "UNKNOWN" for a value that is no status. */
PKV_API const char *pkv_status_name(pkv_status status);

/* Report the version of the library that is linked, as PKV_VERSION was when it was built.
 * [any thread | O(1) | no allocation] */
PKV_API uint32_t pkv_version(void);

/* Memory hooks; all zero means malloc and free. The library calls `allocate` once per object, at
 * creation, and `release` once, at destruction. `alignment` is a power of two. `allocate` returns
 * NULL when it refuses. */
typedef struct pkv_allocator {
    void *(*allocate)(void *context, size_t size, size_t alignment);
    void (*release)(void *context, void *memory, size_t size);
    void *context;
} pkv_allocator;

/* Levels of the log callback. The library itself never prints. */
#define PKV_LOG_ERROR 0
#define PKV_LOG_WARNING 1
#define PKV_LOG_INFO 2

/* Called with one finished line of text (no newline). `message` is valid during the call only. The
 * callback must not call back into the object that logs. */
typedef void (*pkv_log_fn)(void *context, int level, const char *message);

/* Things that a caller may ask for before relying on them. Values are part of the ABI. */
typedef enum pkv_feature {
    PKV_FEATURE_FULL_ATTENTION_GROUPS = 1,
    PKV_FEATURE_SLIDING_WINDOW_GROUPS = 2,
    PKV_FEATURE_CHUNKED_LOCAL_GROUPS = 3,
    PKV_FEATURE_RECURRENT_GROUPS = 4, /* one state block a request (Mamba and its kin) */
    PKV_FEATURE_PREFIX_CACHE = 5,
    PKV_FEATURE_STEP_UNDO = 6,       /* pkv_step_fail, pkv_unschedule, pkv_free_after */
    PKV_FEATURE_FORK = 7,            /* sharing a running request's blocks, copy-on-write */
    PKV_FEATURE_TRUNCATE = 8,        /* taking back appended tokens */
    PKV_FEATURE_SWAP = 9,            /* tiers on host memory and disk */
    PKV_FEATURE_POSITION_SHIFT = 10, /* moving cached keys to other positions */
    PKV_FEATURE_COMPACTION = 11,     /* moving blocks to make free space contiguous */
    PKV_FEATURE_CPU_DEVICE = 12,
    PKV_FEATURE_CUDA_DEVICE = 13,
    PKV_FEATURE_PARTIAL_HITS = 14 /* hits that go on into a block: min_partial_tokens */
} pkv_feature;

/* Say whether this build of the library can do `feature`.
 * [any thread | O(1) | no allocation]
 *
 * Returns false for what is refused with PKV_ERROR_UNSUPPORTED and for values it does not know. */
PKV_API bool pkv_has_feature(pkv_feature feature);

#ifdef __cplusplus
}
#endif

#endif
