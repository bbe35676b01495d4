/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* What the unit tests share: managers and pools that are checked and ended with the test, prompts
 * written as text, and readers that put the state of a pool or manager into text.
 *
 * The one idea: a test says what it expects as a line of text ("5 4 6 7"), so that a failure shows
 * both sides whole. Texts live in a ring of buffers: a few may be used side by side, none is kept.
 *
 * A prompt is a list of words: `7` is token 7, `16*3` sixteen times token 3, `10..25` the tokens 10
 * to 25. The whole text is a printf format. */
#ifndef PKV_TESTS_SUPPORT_FIXTURE_H
#define PKV_TESTS_SUPPORT_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pagedkv/manager.h>

#define FIXTURE_MAX_TOKENS 16384
#define FIXTURE_MAX_MODEL_LEN 4096

/* The 48 tokens that most requests of a test begin with: three blocks of 16. */
#define COMMON "16*0 16*1 16*2"

typedef struct prompt {
    int32_t num_tokens;
    int32_t token_ids[FIXTURE_MAX_TOKENS];
} prompt;

/* ---- life: to be given to cmocka_unit_test_setup_teardown ------------------------------------ */

#define fixture_test(function)                                                                     \
    cmocka_unit_test_setup_teardown(function, fixture_setup, fixture_teardown)

int fixture_setup(void **state);

/* Check every manager and pool of the test, end them, and see that each was one allocation. */
int fixture_teardown(void **state);

/* ---- making managers and pools --------------------------------------------------------------- */

/* One full-attention group, no events, room for 64 requests of FIXTURE_MAX_MODEL_LEN tokens. */
pkv_manager_config small_config(int32_t num_blocks, int32_t block_size);

pkv_group_config full_group(int32_t block_size);
pkv_group_config window_group(int32_t block_size, int32_t window);
pkv_group_config chunked_group(int32_t block_size, int32_t chunk);

pkv_manager *make_manager(const pkv_manager_config *config);
pkv_manager *make_small_manager(int32_t num_blocks, int32_t block_size);
pkv_manager *make_hybrid_manager(int32_t num_blocks,
                                 const pkv_group_config *groups,
                                 int32_t num_groups);
pkv_pool *make_pool(const pkv_pool_config *config);
pkv_pool *make_small_pool(int32_t num_blocks, int32_t block_size);

/* ---- prompts and requests -------------------------------------------------------------------- */

const prompt *prompt_of(const char *format, ...) __attribute__((format(printf, 1, 2)));

pkv_request open_prompt(pkv_manager *manager, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* As open_prompt, with everything but the tokens taken from `args`. */
pkv_request open_prompt_as(pkv_manager *manager,
                           const pkv_request_args *args,
                           const char *format,
                           ...) __attribute__((format(printf, 3, 4)));

void append_tokens(pkv_manager *manager, pkv_request request, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Keys of the full blocks of a prompt without adapter, salt and media. Returns how many. */
int32_t compute_keys(pkv_block_key *keys, int32_t block_size, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- verbs in short form --------------------------------------------------------------------- */

pkv_slots_args slots_of(int32_t num_computed_tokens, int32_t num_new_tokens);
pkv_slots make_slots(void);
pkv_status allocate(pkv_manager *manager,
                    pkv_request request,
                    int32_t num_computed_tokens,
                    int32_t num_new_tokens);
pkv_status allocate_in_step(pkv_manager *manager,
                            pkv_request request,
                            int32_t num_computed_tokens,
                            int32_t num_new_tokens,
                            uint64_t step);

/* Tokens that a lookup finds. */
int32_t find_hit(const pkv_manager *manager, pkv_request request);

/* Look up and allocate the whole rest, which must succeed. Returns the hit in tokens. */
int32_t admit(pkv_manager *manager, pkv_request request);
int32_t admit_in_step(pkv_manager *manager, pkv_request request, uint64_t step);

/* Free and close, which must succeed. */
void end_request(pkv_manager *manager, pkv_request request);

/* Forget the keys of the blocks in these columns of the request's table. */
void evict_columns(pkv_manager *manager, pkv_request request, int32_t group, const char *columns);

/* Take all events; they must fit into `capacity`. Returns how many. */
int32_t take_events(pkv_manager *manager, pkv_event *events, int32_t capacity);

/* ---- the state as numbers and text ----------------------------------------------------------- */

pkv_stats stats_of(const pkv_manager *manager);
pkv_request_info info_of(const pkv_manager *manager, pkv_request request);
pkv_block_info block_of(const pkv_pool *pool, pkv_block_id block_id);
pkv_block_info manager_block_of(const pkv_manager *manager, pkv_block_id block_id);
int32_t num_free_blocks(const pkv_manager *manager);
int32_t num_table_blocks(const pkv_manager *manager, pkv_request request, int32_t group);
bool keys_are_equal(pkv_block_key left, pkv_block_key right);

const char *ids_text(const int32_t *ids, int32_t num_ids);
const char *slots_text(const int64_t *slots, int32_t num_slots);
const char *table_text(const pkv_manager *manager, pkv_request request, int32_t group);
const char *new_text(const pkv_manager *manager, pkv_request request, int32_t group);
const char *hit_text(pkv_manager *manager, pkv_request request, int32_t group);
const char *queue_text(const pkv_manager *manager);
const char *pool_queue_text(const pkv_pool *pool);

/* Ref counts of blocks first..last. */
const char *refs_text(const pkv_manager *manager, pkv_block_id first, pkv_block_id last);
const char *pool_refs_text(const pkv_pool *pool, pkv_block_id first, pkv_block_id last);

/* Blocks that carry a key, ascending; columns of a table whose block carries one. */
const char *keyed_text(const pkv_manager *manager);
const char *pool_keyed_text(const pkv_pool *pool);
const char *keyed_columns_text(const pkv_manager *manager, pkv_request request, int32_t group);

/* Everything that an operation without effect must leave as it was: queue, blocks with keys and
 * steps, levels, and of each request its numbers and tables. What the first two give is overwritten
 * by their next but one call; what is remembered is not, by up to 7 that are remembered later. */
const char *pool_state_text(const pkv_pool *pool);
const char *state_text(const pkv_manager *manager,
                       const pkv_request *requests,
                       int32_t num_requests);
const char *remember_pool_state(const pkv_pool *pool);
const char *remember_state(const pkv_manager *manager,
                           const pkv_request *requests,
                           int32_t num_requests);

#endif
