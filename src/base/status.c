/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Names of status codes, the version and the feature query. */
#include <pagedkv/base.h>

const char *pkv_status_name(pkv_status status) {
    switch (status) {
    case PKV_OK:
        return "OK";
    case PKV_NO_FREE_BLOCKS:
        return "NO_FREE_BLOCKS";
    case PKV_NOT_FOUND:
        return "NOT_FOUND";
    case PKV_IN_PROGRESS:
        return "IN_PROGRESS";
    case PKV_MORE:
        return "MORE";
    case PKV_NEVER_FITS:
        return "NEVER_FITS";
    case PKV_NO_FREE_ROWS:
        return "NO_FREE_ROWS";
    case PKV_ERROR_INVALID_ARGUMENT:
        return "ERROR_INVALID_ARGUMENT";
    case PKV_ERROR_STALE_HANDLE:
        return "ERROR_STALE_HANDLE";
    case PKV_ERROR_OUT_OF_MEMORY:
        return "ERROR_OUT_OF_MEMORY";
    case PKV_ERROR_LIMIT:
        return "ERROR_LIMIT";
    case PKV_ERROR_UNSUPPORTED:
        return "ERROR_UNSUPPORTED";
    case PKV_ERROR_BUSY:
        return "ERROR_BUSY";
    case PKV_ERROR_DEVICE:
        return "ERROR_DEVICE";
    case PKV_ERROR_IO:
        return "ERROR_IO";
    case PKV_ERROR_CORRUPT:
        return "ERROR_CORRUPT";
    }
    return "UNKNOWN";
}

uint32_t pkv_version(void) {
    return PKV_VERSION;
}

bool pkv_has_feature(pkv_feature feature) {
    switch (feature) {
    case PKV_FEATURE_FULL_ATTENTION_GROUPS:
    case PKV_FEATURE_SLIDING_WINDOW_GROUPS:
    case PKV_FEATURE_CHUNKED_LOCAL_GROUPS:
    case PKV_FEATURE_PREFIX_CACHE:
    case PKV_FEATURE_STEP_UNDO:
    case PKV_FEATURE_FORK:
    case PKV_FEATURE_TRUNCATE:
    case PKV_FEATURE_SWAP:
    case PKV_FEATURE_PARTIAL_HITS:
    case PKV_FEATURE_CPU_DEVICE:
        return true;
    case PKV_FEATURE_CUDA_DEVICE:
#ifdef PKV_HAS_CUDA
        return true;
#else
        return false;
#endif
    case PKV_FEATURE_RECURRENT_GROUPS:
    case PKV_FEATURE_POSITION_SHIFT:
    case PKV_FEATURE_COMPACTION:
        return false;
    }
    return false;
}
