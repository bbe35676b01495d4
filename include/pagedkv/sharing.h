/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Blocks that several requests write behind: fork, copy-on-write, taking tokens back, and hits that
 * go on into a block. For beam search, parallel sampling, and text that is edited or generated
 * again. All of it is beyond vLLM V1, whose behaviour does not change where none of it is used.
 *
 * The one idea: sharing costs nothing until somebody writes. pkv_fork and pkv_truncate copy no
 * block; pkv_allocate_slots, which knows who writes where, decides every copy, counts its block as
 * needed, and puts the pair on a list that the caller takes and runs before the step's writes.
 *
 * Hits that go on into a block. With min_partial_tokens, pkv_get_computed_blocks looks for a cached
 * block that follows the last whole block of the hit and starts with the request's next tokens, and
 * says so many tokens more. Pass the number on as num_new_computed_tokens as usual, or rounded down
 * to whole blocks to do without. pkv_allocate_slots then gives the request a block of its own and
 * queues the copy; where not one block is to spare for keeping both, the cached block itself is
 * taken, as if it had been evicted, so that such a hit never needs a block more than one without.
 * It is among the new blocks then and holds tokens already: leave clearing to fill_new_blocks.
 * Compared are the youngest PKV_MAX_PARTIAL_CANDIDATES blocks with that past, and everything that a
 * whole block is compared by: tokens, adapter, salt, media of the block. Only content that is there
 * is copied: of blocks whose step is complete, and of those that pkv_cache_blocks published, which
 * therefore must not run ahead of what steps launched before have written. So give steps numbers
 * and complete them; what pkv_allocate_slots published as step 0 is never copied from. Not for
 * requests with has_caller_keys, and not together with num_external_computed_tokens: what is loaded
 * begins at a block (round down for pkv_tier_lookup and pkv_swap_in, too). min_partial_tokens must
 * be below the block size and needs store_tokens; it is refused with disable_prefix_cache, and with
 * PKV_ERROR_UNSUPPORTED for groups of several block sizes, eagle and zero_on_free.
 *
 * Counted in pkv_stats: num_forks; num_copies, pairs queued, whether they were run or cancelled;
 * num_partial_hits, admissions whose hit went on into a block, and num_partial_hit_tokens, by how
 * many tokens, which are among the hit tokens, too.
 *
 * Order within a step: all forks, appends, closes, then pkv_allocate_slots for each request, then
 * pkv_take_fills and pkv_take_copies, group by group. On the device: the previous step's writes,
 * then fills, copies, and this step's writes.
 *
 * What is unsaid in manager.h is unsaid here. */
#ifndef PAGEDKV_SHARING_H
#define PAGEDKV_SHARING_H

#include <pagedkv/manager.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Most cached blocks of a group that a lookup compares to go on into the next block. */
#define PKV_MAX_PARTIAL_CANDIDATES 32

/* Open a request that continues like another: same tokens, keys, salt, adapter, media and
 * max_num_tokens (reserved anew), and the same blocks for the first num_computed_tokens tokens.
 * [mutates manager | O(tokens + blocks shared) | all-or-nothing]
 *
 * num_computed_tokens  tokens of the parent whose place in the cache has been or will be written by
 *                      steps before the child's first; at most its tokens, and what its blocks
 *                      hold. Columns behind them (lookahead, rejected drafts) are not shared. 0:
 *                      the child holds no blocks and is admitted like any other.
 * child                valid until pkv_request_close; it has a row of its own if it has blocks.
 *
 * Both go on with pkv_allocate_slots; whoever first writes into a block that both hold gets a copy
 * of it. In windowed groups the child takes only what its next token can see. When a step fails
 * that the parent took part in before the fork, the child is one of its requests, too.
 *
 * Returns PKV_OK, PKV_NO_FREE_ROWS, PKV_ERROR_LIMIT (handles or tokens: max_requests,
 * max_total_tokens; or the caller's keys give one block more than PKV_MAX_REF_CNT owners),
 * PKV_ERROR_BUSY (a swap-in of the parent is open), PKV_ERROR_INVALID_ARGUMENT
 * (a count out of range, or the parent has dropped blocks behind its window that the child would
 * see). */
PKV_API pkv_status pkv_fork(pkv_manager *manager,
                            pkv_request parent,
                            int32_t num_computed_tokens,
                            pkv_request *child);

/* Take back all tokens but the first num_tokens, with their keys and the blocks that only they
 * need: after a stop string, an edit, or to generate anew. Not for rejected drafts, which were
 * never appended. [mutates manager | O(blocks freed) | all-or-nothing]
 *
 * num_tokens  1 .. the request's tokens, with which nothing happens. Lookahead columns go, too. The
 *             caller's count of computed tokens must be at most num_tokens from now on.
 *
 * What was published stays findable: a block that is cut in the middle keeps its key and content
 * for others until this request writes into it, and is copied then, or loses its key where nobody
 * else holds it. A step that has not run and will not is withdrawn first, with pkv_unschedule.
 * Media that begin behind the cut are forgotten with their tokens.
 *
 * Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT (a count out of range, a cut within a media item, or a
 * window that has passed what the last token left sees: pkv_free first), PKV_ERROR_BUSY (a swap-in
 * of the request is open). */
PKV_API pkv_status pkv_truncate(pkv_manager *manager, pkv_request request, int32_t num_tokens);

/* Hand over the copies of one group that pkv_allocate_slots queued, to be run after the previous
 * step's writes (and this step's fills) and before this step's writes.
 * [mutates manager | O(copies pending)]
 *
 * No block is a target twice, and none is both source and target, so the pairs may run in parallel;
 * all pieces of one list (PKV_MORE), too. A list is run before another step's list is taken. Until
 * it is taken a pair keeps its source from being handed out, and freeing its target cancels it;
 * pkv_batch_build and the exports return PKV_ERROR_BUSY while copies of the group wait. Once taken,
 * a source may be handed out again: whatever writes blocks that were given out later (steps,
 * pkv_swap_in, external loads) runs after the copies of every list taken before.
 *
 * Copying whole blocks is enough. Returns PKV_OK, PKV_MORE, PKV_ERROR_INVALID_ARGUMENT. */
PKV_API pkv_status pkv_take_copies(pkv_manager *manager,
                                   int32_t group,
                                   pkv_block_copy *copies,
                                   int32_t capacity,
                                   int32_t *num_copies);

#ifdef __cplusplus
}
#endif

#endif
