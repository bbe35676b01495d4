/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The mistakes that stand in the kernels on purpose. A build for a device has none of them; where
 * the kernels run on the processor, a test plants one at a time and wants it noticed
 * (tests/simt/test_mistakes.c).
 *
 * The one idea: who checks kernels is checked as well, every time, and by the same compiled kernels
 * that pass the suites. */
#ifndef PKVI_CUDA_MISTAKES_H
#define PKVI_CUDA_MISTAKES_H

enum pkvi_mistake {
    PKVI_MISTAKE_NONE,
    PKVI_MISTAKE_KEY_TOO_MANY,     /* a row sees the key behind its own position */
    PKVI_MISTAKE_KEY_BEHIND_END,   /* the first slot behind the sequence is read */
    PKVI_MISTAKE_NARROW_PLACES,    /* 32 bits for the place of a key */
    PKVI_MISTAKE_NARROW_SLOTS,     /* 32 bits for the place of a written row */
    PKVI_MISTAKE_EARLY_USE,        /* one copy too few is waited for */
    PKVI_MISTAKE_EARLY_LOAD,       /* the next copies start before the barrier */
    PKVI_MISTAKE_UNSYNCED_MAXIMA,  /* no barrier between the warps' maxima and their use */
    PKVI_MISTAKE_UNSYNCED_WEIGHTS, /* no barrier between the weights and their use */
    PKVI_MISTAKE_UNSYNCED_PARTS,   /* no barrier between the parts' sums and their use */
    PKVI_MISTAKE_MISSING_SUM,      /* one warp's sums are never written */
    PKVI_MISTAKE_UNTRANSPOSED,     /* values are loaded as keys are */
    PKVI_MISTAKE_SHORT_SHARED,     /* a launch with 16 bytes of shared memory too few */
    PKVI_MISTAKE_NO_SWIZZLE,       /* rows of a panel lie in the same banks */
};

#endif
