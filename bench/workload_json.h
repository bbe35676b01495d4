/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* One line of a JSON-lines trace, taken apart. Not a JSON library: one object per line, of which
 * four members are wanted and all others are skipped, whatever they hold. */
#ifndef PKV_BENCH_WORKLOAD_JSON_H
#define PKV_BENCH_WORKLOAD_JSON_H

#include <stdint.h>

/* Numbers stay text, so that the caller judges them; "" where a member is absent. */
typedef struct json_request {
    char timestamp[32], input_length[32], output_length[32];
    int64_t *hash_ids; /* grown by realloc and used again for the next line; the caller frees it */
    int64_t num_hash_ids, hash_capacity;
} json_request;

/* Read one object that must fill the line. NULL, or what is wrong with it (static text). */
const char *json_read_request(const char *line, json_request *out);

#endif
