/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* What the files behind attention_case.h share: buffers, and the content that is put into them.
 * Tests include attention_case.h. */
#ifndef TESTS_SUPPORT_ATTENTION_PARTS_H
#define TESTS_SUPPORT_ATTENTION_PARTS_H

#include "support/attention_case.h"

/* Tokens of output and query behind the last one: they must not change. */
#define EXTRA_TOKENS 2

/* Guarded memory of the host and its twin; `size` is rounded up to 16 bytes, no further. */
struct attention_buffer attention_buffer_create(const struct attention_memory *memory,
                                                size_t size,
                                                int byte);

/* A buffer for rows of the run's tokens and heads, some tokens more than there are, and its view:
 * dense, or with a gap behind each head and each token. */
struct attention_buffer attention_create_rows(
    const struct attention_run *run, pkv_dtype dtype, int64_t size, int byte, pkv_tensor *view);

void attention_buffer_upload(const struct attention_run *run,
                             const struct attention_buffer *buffer);

/* Blocks of a request. */
int32_t attention_columns(const struct attention_case *c, int32_t request);

/* In this order; each makes its buffers, fills them and sets its arguments. */
void attention_lay_out(struct attention_run *run);
void attention_fill_table(struct attention_run *run);
void attention_create_scales(struct attention_run *run, int which);
void attention_fill_cache(struct attention_run *run);
void attention_fill_query(struct attention_run *run);
void attention_fill_small(struct attention_run *run);

#endif
