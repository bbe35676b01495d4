/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Tiers: blocks of a manager kept in another medium (host memory, a file, a remote store), and the
 * copies under way between the two. A tier moves nothing itself: it plans copies as arrays, the
 * caller runs them, and says how they ended. No device, no I/O, no thread is here.
 *
 * The one idea: a tier is a pool of another medium whose blocks are called slots; a swap pins both
 * ends of its copies until it is committed or aborted, and its targets become findable only then.
 * Only full, keyed, completed blocks move; the tokens after them are computed again.
 *
 * A swap outlives its request: freeing and closing never wait for it. Where every later writer is
 * ordered after the copy (an event on the stream), pkv_swap_detach frees the sources at once, so
 * that nobody waits for a copy before a block can be used again.
 *
 * Unsaid below: a tier belongs to its manager's thread and is destroyed before the manager;
 * pointers are not NULL; a call that returns an error, or any status but PKV_OK where nothing else
 * is said, has changed nothing; nothing is allocated after creation; every function that takes a
 * struct with struct_size may return PKV_ERROR_UNSUPPORTED for a field of a later version. */
#ifndef PAGEDKV_TIER_H
#define PAGEDKV_TIER_H

#include <pagedkv/manager.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Defaults of the configuration, taken where a field is zero. */
#define PKV_DEFAULT_MAX_SWAPS 64

#define PKV_MAX_SWAPS 65536

#define PKV_TIER_FINGERPRINT_SIZE 32

typedef struct pkv_tier pkv_tier;

/* Handle of an open swap, by value; {0, 0} is never valid. */
typedef struct pkv_swap {
    uint32_t index, generation;
} pkv_swap;

/* Configuration of a tier; zero a whole one, set struct_size, manager and num_blocks. */
typedef struct pkv_tier_config {
    uint32_t struct_size;
    int32_t num_blocks;           /* slots; slot 0, the null one, included; >= 2 */
    pkv_manager *manager;         /* whose blocks are kept; with a prefix cache */
    int32_t max_swaps;            /* open at once; 0 = PKV_DEFAULT_MAX_SWAPS */
    int32_t max_blocks_in_flight; /* pinned by open swaps; 0 = num_blocks - 1 */
    uint8_t identity[32];         /* caller's digest of weights, dtype, RoPE, layout and shard */
    pkv_allocator allocator;
} pkv_tier_config;

/* What is to be copied. The caller owns the arrays. */
typedef struct pkv_swap_plan {
    uint32_t struct_size;
    int32_t capacity;   /* in: copies that the arrays hold */
    int32_t num_copies; /* out; with PKV_ERROR_LIMIT what the capacity must be */
    int32_t num_tokens; /* out; swap-in: tokens that the copies bring, swap-out: tokens at the start
                           of the request that this and other open swaps and the tier cover, in the
                           group where they are fewest */
    pkv_block_copy *copies; /* [capacity]; swap-out: block to slot, swap-in: slot to block. No
                               target twice; a source may repeat */
    int32_t *groups;        /* [capacity] group of each copy; NULL = not wanted */
    pkv_block_key *keys;    /* [capacity] identity of each block; NULL = not wanted */
    int32_t *token_ids;     /* [capacity][largest block size of the groups]; NULL = not wanted */
} pkv_swap_plan;

/* ---- life ------------------------------------------------------------------------------------ */

/* Say what is wrong with a configuration. [any thread | O(1)]
 *
 * reason  may be NULL; else a static text ("" for PKV_OK).
 *
 * Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT, PKV_ERROR_UNSUPPORTED (a later version's field, or a
 * manager with disable_prefix_cache, whose blocks have no keys). */
PKV_API pkv_status pkv_tier_config_check(const pkv_tier_config *config, const char **reason);

/* Compute how many bytes pkv_tier_init needs. [any thread | O(groups)]
 *
 * Returns 0 for a configuration that pkv_tier_config_check refuses, or whose size no size_t holds
 * (pkv_tier_create then says PKV_ERROR_OUT_OF_MEMORY). */
PKV_API size_t pkv_tier_size(const pkv_tier_config *config);

/* Make a tier in memory that the caller owns: 64-byte aligned, >= pkv_tier_size bytes.
 * [mutates manager | O(size) | no allocation | all-or-nothing]
 *
 * out  to be given to pkv_tier_destroy, which does not release this memory but lets go of the
 *      manager.
 *
 * Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT, PKV_ERROR_UNSUPPORTED. */
PKV_API pkv_status pkv_tier_init(const pkv_tier_config *config,
                                 void *memory,
                                 size_t size,
                                 pkv_tier **out);

/* Make a tier with one allocation. [mutates manager | O(size) | allocates once | all-or-nothing]
 *
 * out  the caller's, to be given to pkv_tier_destroy; NULL on error. A manager may have several.
 *
 * Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT, PKV_ERROR_UNSUPPORTED, PKV_ERROR_OUT_OF_MEMORY. */
PKV_API pkv_status pkv_tier_create(const pkv_tier_config *config, pkv_tier **out);

/* End a tier; NULL is a no-op. Open swaps are aborted. [mutates manager | O(blocks in flight)] */
PKV_API void pkv_tier_destroy(pkv_tier *tier);

/* Text of the last call on this tier that returned an error; "" when there was none. Valid until
 * the next failing call. [reads tier | O(1)] */
PKV_API const char *pkv_tier_last_error(const pkv_tier *tier);

/* Digest of all that the keys and contents of this tier depend on: the configured identity, the
 * manager's groups with their block sizes, its hash seed, and (by a keyed digest) its key secret.
 * A store writes it into its header and opens empty, or refuses, where it differs.
 * [reads tier | O(groups)]
 *
 * fingerprint  [PKV_TIER_FINGERPRINT_SIZE] bytes, stable across processes and byte orders.
 *
 * Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT. */
PKV_API pkv_status pkv_tier_get_fingerprint(const pkv_tier *tier, uint8_t *fingerprint);

/* ---- lookup and swaps ------------------------------------------------------------------------ */

/* Find how many tokens behind those computed already the tier could bring: the longest prefix that
 * all groups agree on, and of windowed groups only what the hit needs.
 * [reads tier | O(blocks found), in windowed groups O(blocks of the request)]
 *
 * num_computed_tokens  from pkv_get_computed_blocks; only for a request without blocks.
 * num_external_tokens  0 when there are none, or none that any later token sees;
 *                      num_computed_tokens + it is at most num_tokens - 1, since the last token
 *                      must run to give logits.
 *
 * Takes no reference and changes no order. Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT,
 * PKV_ERROR_STALE_HANDLE. */
PKV_API pkv_status pkv_tier_lookup(const pkv_tier *tier,
                                   pkv_request request,
                                   int32_t num_computed_tokens,
                                   int32_t *num_external_tokens);

/* Plan the copies that keep a request's blocks in the tier: those that are full, keyed and of
 * completed steps. What the tier has already is not copied again but counts as used just now, and
 * what another open swap brings is left to it. Slots come from the end of the tier that was used
 * longest ago.
 * [mutates tier and manager | O(blocks held) | all-or-nothing]
 *
 * The request keeps its blocks; pkv_free may follow at once. Give steps numbers, or call this only
 * when the steps of the request have run: a block of step 0 counts as computed.
 *
 * Returns PKV_OK, PKV_NOT_FOUND (nothing is to be copied; no swap is opened), PKV_NO_FREE_BLOCKS
 * (too many slots are pinned), PKV_IN_PROGRESS (max_swaps or max_blocks_in_flight: end a swap
 * first), PKV_ERROR_LIMIT (capacity of the plan, then num_copies is set; more blocks than
 * max_blocks_in_flight or than the tier has slots), PKV_ERROR_INVALID_ARGUMENT,
 * PKV_ERROR_STALE_HANDLE. */
PKV_API pkv_status pkv_swap_out(pkv_tier *tier,
                                pkv_request request,
                                pkv_swap_plan *plan,
                                pkv_swap *out);

/* Admit a request whose tokens the tier holds, in one transaction: look up, allocate, pin both
 * ends, plan the copies; or nothing.
 * [mutates tier and manager | as pkv_tier_lookup and pkv_allocate_slots | all-or-nothing]
 *
 * args   as for pkv_allocate_slots, of a request without blocks. num_external_computed_tokens 0
 *        takes what pkv_tier_lookup finds; else exactly so many. num_new_tokens may be 0: load now,
 *        compute later; even so the request belongs to args->step and is freed if that fails, since
 *        it may have hit what the step was to compute.
 * slots  may be NULL. plan->num_tokens says how many tokens come.
 *
 * Run the copies after what wrote the slots, after the fills of the blocks (pkv_take_fills), after
 * the copies of every list that pkv_take_copies gave before, and before the step that reads them;
 * what is being loaded is not computed meanwhile. Nothing of the request is published before the
 * commit; then the loaded blocks are, and the others by the next pkv_allocate_slots or
 * pkv_cache_blocks. After an abort what the table holds behind num_new_computed_tokens is garbage:
 * pkv_free the request and admit it again.
 *
 * Returns PKV_OK, PKV_NOT_FOUND (the tier has nothing, or a part of either hit is gone: look up
 * again), PKV_IN_PROGRESS (as pkv_swap_out), PKV_NO_FREE_BLOCKS, PKV_NO_FREE_ROWS and
 * PKV_NEVER_FITS (of the manager), PKV_ERROR_LIMIT (capacity of the plan, then num_copies is set;
 * more blocks than max_blocks_in_flight; as pkv_allocate_slots), PKV_ERROR_INVALID_ARGUMENT,
 * PKV_ERROR_STALE_HANDLE. */
PKV_API pkv_status pkv_swap_in(pkv_tier *tier,
                               pkv_request request,
                               const pkv_slots_args *args,
                               pkv_slots *slots,
                               pkv_swap_plan *plan,
                               pkv_swap *out);

/* Let go of the sources at once, because all who write them later are ordered after the copy.
 * [mutates tier and manager | O(blocks of the swap)]  A second call does nothing.
 *
 * Returns PKV_OK, PKV_ERROR_STALE_HANDLE. */
PKV_API pkv_status pkv_swap_detach(pkv_tier *tier, pkv_swap swap);

/* Say that the copies have run: the targets become findable, all pins go.
 * [mutates tier and manager | O(blocks of the swap)]
 *
 * A block whose key was withdrawn or evicted while it was being copied out, and not detached, is
 * not published, since its content may be wrong; nor is what the tier got meanwhile.
 *
 * Returns PKV_OK, PKV_ERROR_STALE_HANDLE. */
PKV_API pkv_status pkv_swap_commit(pkv_tier *tier, pkv_swap swap);

/* Say that the copies failed or never ran: nothing becomes findable, all pins go.
 * [mutates tier and manager | O(blocks of the swap)]
 *
 * The copies must not be running any more. Returns PKV_OK, PKV_ERROR_STALE_HANDLE. */
PKV_API pkv_status pkv_swap_abort(pkv_tier *tier, pkv_swap swap);

/* ---- the content of the tier ----------------------------------------------------------------- */

/* Tell an empty or partly filled tier what its medium holds, after a restart: a store's index, as
 * arrays. [mutates tier | O(num_blocks) | all-or-nothing]
 *
 * slots      [num_blocks] free slots without key, none twice; used longest ago first. keys and
 *            groups as the plans of swap-outs gave them. Of equal content the first is kept.
 * token_ids  [num_blocks][largest block size of the groups], as the plans gave them. Wanted where
 *            the manager has store_tokens, whose hits compare them; else not read and may be NULL.
 *
 * Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT (a slot out of range, in use, with a key or named
 * twice; a group that the manager does not have). */
PKV_API pkv_status pkv_tier_restore(pkv_tier *tier,
                                    const pkv_block_key *keys,
                                    const int32_t *groups,
                                    const pkv_block_id *slots,
                                    const int32_t *token_ids,
                                    int32_t num_blocks);

/* Forget what the given slots hold, such as those that could not be read. Pins stay.
 * [mutates tier | O(num_blocks) | all-or-nothing]
 *
 * Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT (a slot out of range). */
PKV_API pkv_status pkv_tier_evict(pkv_tier *tier, const pkv_block_id *slots, int32_t num_blocks);

/* Forget everything, such as after a change of weights. [mutates tier | O(slots)]
 *
 * Returns PKV_OK, PKV_ERROR_BUSY (a swap is open). */
PKV_API pkv_status pkv_tier_reset(pkv_tier *tier);

/* ---- statistics, self-check ------------------------------------------------------------------ */

/* Levels now, counters since creation. Counters of blocks count copies. */
typedef struct pkv_tier_stats {
    uint32_t struct_size;
    int32_t num_blocks, num_free_blocks, num_cached_blocks; /* slots; free: not pinned */
    int32_t num_swaps;                                      /* open */
    int32_t num_blocks_in_flight; /* pinned pairs of open swaps, and slots that they keep */
    int32_t num_pinned_blocks;    /* references to the manager's blocks held by open swaps */
    uint64_t num_swap_outs, num_swap_ins, num_commits, num_aborts;
    uint64_t num_blocks_out, num_blocks_in; /* planned */
    uint64_t num_blocks_kept;               /* of swap-outs: in the tier already, not copied */
    uint64_t num_blocks_dropped; /* copied out, and not published: key gone, or a duplicate */
    uint64_t num_blocks_evicted; /* slots given to others while they held a key */
    uint64_t num_tokens_in;      /* loaded instead of computed, planned */
    uint64_t num_collisions_rejected;
} pkv_tier_stats;

/* Read levels and counters. [reads tier | O(1)]  out->struct_size must be set.
 *
 * Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT. */
PKV_API pkv_status pkv_tier_get_stats(const pkv_tier *tier, pkv_tier_stats *out);

/* The tier's pool of slots, for the readers of pool.h only. [reads tier | O(1)]
 *
 * Owned by the tier, valid as long as it. */
PKV_API const pkv_pool *pkv_tier_get_pool(const pkv_tier *tier);

/* Check every invariant of docs/invariants.md that concerns tiers. The manager's own are checked by
 * pkv_manager_check, which knows the pins. [reads tier | O(slots + blocks)]
 *
 * Returns PKV_OK, PKV_ERROR_CORRUPT (pkv_tier_last_error names the invariant). */
PKV_API pkv_status pkv_tier_check(const pkv_tier *tier);

#ifdef __cplusplus
}
#endif

#endif
