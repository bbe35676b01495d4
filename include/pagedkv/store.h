/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Where blocks go that no pool holds: a store of numbered slots, as a table of functions that a
 * remote store or a transfer engine fills in; the store that is a file; and one request's cache as
 * a file. Which block goes to which slot is decided elsewhere.
 *
 * The one idea: a store may lose a block, it never gives a wrong one. A read names the key it
 * wants; what does not carry that key, or is not whole, is not returned. */
#ifndef PAGEDKV_STORE_H
#define PAGEDKV_STORE_H

#include <pagedkv/transfer.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- The store: a table of functions, yours or the file's */

/* One batch of whole blocks, in one direction. Everything it points to belongs to the store from a
 * submit that returns PKV_OK until the transfer's completion was polled. */
typedef struct pkv_store_transfer {
    uint32_t struct_size;
    bool is_write;
    int32_t num_blocks;           /* 1 .. PKV_MAX_BLOCK_LIST */
    pkv_tensor blocks;            /* [num_layers, num_blocks, block_bytes] UINT8 on the host */
    const pkv_block_copy *copies; /* write: block to slot; read: slot to block. No target twice */
    const pkv_block_key *keys;    /* [num_blocks] what is written, or what is wanted */
    const int32_t *groups;        /* [num_blocks]; NULL: all 0 */
    const int32_t *token_ids;     /* writes: [num_blocks, block_size] or NULL: not kept */
    pkv_status *statuses;         /* [num_blocks], out: what became of each block */
} pkv_store_transfer;

/* What poll reports of a transfer; each of its blocks has a status in `statuses`. */
typedef struct pkv_store_completion {
    uint64_t ticket;
    pkv_status status;  /* PKV_OK, or the status of the first block that has another */
    int32_t num_failed; /* blocks that were not moved */
} pkv_store_completion;

/* What a store holds at most. Blocks are num_layers * block_bytes bytes. */
typedef struct pkv_store_shape {
    int32_t num_layers;
    int64_t block_bytes; /* of one layer */
    int32_t block_size;  /* tokens */
    int32_t num_slots;   /* slot 0, the null block, included */
} pkv_store_shape;

/* A store. Fill it in for one of your own (docs/store.md has the whole contract); all functions
 * must be there. None is called by two threads at once, none may call back into the store.
 *
 * submit   take the transfer or refuse it as a whole; never wait for the medium. Each ticket is
 *          another number above 0.
 * poll     report up to `capacity` completions, each once, in any order. With `wait`, wait until
 *          there is one, unless nothing is in flight.
 * cancel   begin no further block of the transfer. Its completion comes all the same.
 * forget   hold these slots no longer.
 * flush    let everything that was reported as written outlive the machine.
 * close    end: wait for what touches the caller's memory, begin nothing more, report nothing. */
typedef struct pkv_store {
    uint32_t struct_size;
    pkv_store_shape shape;
    void *context;
    pkv_status (*submit)(void *context, const pkv_store_transfer *transfer, uint64_t *ticket);
    pkv_status (*poll)(void *context,
                       bool wait,
                       pkv_store_completion *completions,
                       int32_t capacity,
                       int32_t *num_completions);
    pkv_status (*cancel)(void *context, uint64_t ticket);
    pkv_status (*forget)(void *context, const pkv_block_id *slots, int32_t num_slots);
    pkv_status (*flush)(void *context);
    void (*close)(void *context);
    const char *(*last_error)(const void *context);
} pkv_store;

/* Begin a transfer.
 * [mutates store | one thread at a time per store | O(num_blocks) | never waits | no allocation |
 * all-or-nothing as to refusals]
 *
 * ticket  set on PKV_OK: names the transfer in its completion and to pkv_store_cancel.
 *
 * The arguments are checked here, for every store: the view against the shape, slots in
 * [1, num_slots), blocks in [0, num_blocks) of the view. A transfer that writes a slot of another
 * one in flight, or reads one that is being written, is refused with PKV_ERROR_BUSY.
 *
 * Each block ends with a status: PKV_OK; PKV_NOT_FOUND (read: the slot does not hold this key;
 * either: the transfer was cancelled before the block's turn); PKV_ERROR_CORRUPT (what lies there
 * is not what was written; the slot is given up); PKV_ERROR_IO (a full disk is one). The memory of
 * a block that was not read with PKV_OK holds nothing of use. A slot that was not written with
 * PKV_OK holds nothing. The others of the batch are not concerned.
 *
 * Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT (also for a store without all its functions),
 * PKV_ERROR_UNSUPPORTED (an unknown member of transfer), PKV_ERROR_LIMIT (more blocks than
 * PKV_MAX_BLOCK_LIST), PKV_ERROR_BUSY (a slot is in use, or too many transfers are in flight:
 * poll); of a store of yours, also what its submit says. */
PKV_API pkv_status pkv_store_submit(const pkv_store *store,
                                    const pkv_store_transfer *transfer,
                                    uint64_t *ticket);

/* Learn which transfers have ended, and drive those of a store without threads.
 * [mutates store | one thread at a time per store | may wait only with `wait` | no allocation]
 *
 * completions  [capacity]; may be NULL where capacity is 0.
 *
 * Returns PKV_OK with *num_completions >= 0, PKV_ERROR_INVALID_ARGUMENT; of a store of yours, also
 * what its poll says. */
PKV_API pkv_status pkv_store_poll(const pkv_store *store,
                                  bool wait,
                                  pkv_store_completion *completions,
                                  int32_t capacity,
                                  int32_t *num_completions);

/* Ask that no further block of a transfer be begun. What is under way ends as it ends.
 * [mutates store | one thread at a time per store | never waits | no allocation]
 *
 * Returns PKV_OK, PKV_NOT_FOUND (no such transfer, or it has ended), PKV_ERROR_INVALID_ARGUMENT. */
PKV_API pkv_status pkv_store_cancel(const pkv_store *store, uint64_t ticket);

/* Give up what slots hold; an empty slot is no error.
 * [mutates store | one thread at a time per store | O(num_slots) | may wait for the medium |
 * no allocation]
 *
 * slots  [num_slots], each in [1, shape.num_slots).
 *
 * Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT or PKV_ERROR_BUSY (a slot is in use), and then nothing
 * was done; PKV_ERROR_IO (they are given up, but an entry may be found again after a restart). */
PKV_API pkv_status pkv_store_forget(const pkv_store *store,
                                    const pkv_block_id *slots,
                                    int32_t num_slots);

/* Wait until all transfers have ended (they are still to be polled) and what was written is
 * durable.
 * [mutates store | one thread at a time per store | waits for the medium | no allocation]
 *
 * Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT, PKV_ERROR_IO. */
PKV_API pkv_status pkv_store_flush(const pkv_store *store);

/* End a store; afterwards the memory of transfers is the caller's again, and the statuses of blocks
 * that were not moved are PKV_NOT_FOUND.
 * [ends store | waits for what is under way]
 *
 * store  may be NULL. */
PKV_API void pkv_store_close(const pkv_store *store);

/* Say in words what went wrong last.
 * [reads store | O(1) | no allocation]
 *
 * Returns a text that stays valid until the next call on the store; "" where nothing went wrong,
 * and for NULL. */
PKV_API const char *pkv_store_last_error(const pkv_store *store);

/* ---- The store that is a file */

#define PKV_STORE_IDENTITY_SIZE 32
#define PKV_FILE_STORE_DEFAULT_QUEUE_DEPTH 32
#define PKV_FILE_STORE_DEFAULT_MAX_TRANSFERS 64
#define PKV_FILE_STORE_MAX_LAYERS 1024

/* What becomes of a store's file that belongs to another identity, key secret, shape or version, or
 * whose headers are damaged. A file that does not begin like a store's is refused either way. */
typedef enum pkv_store_mismatch {
    PKV_STORE_REFUSE = 0, /* PKV_ERROR_CORRUPT; the file is left as it is */
    PKV_STORE_EMPTY = 1   /* the file is made anew, empty */
} pkv_store_mismatch;

/* When what is written reaches the disk. Whatever is chosen, nothing wrong is ever read. */
typedef enum pkv_store_sync {
    PKV_STORE_SYNC_FLUSH = 0, /* at flush and close: a killed process loses nothing reported */
    PKV_STORE_SYNC_BATCH = 1, /* before a write is reported: nor does a machine that loses power */
    PKV_STORE_SYNC_NEVER = 2  /* not even at flush: a cache that need not survive */
} pkv_store_sync;

/* How requests reach the kernel. */
typedef enum pkv_store_uring {
    PKV_STORE_URING_AUTO =
        0,                  /* io_uring where build and kernel have it, else plain calls in poll */
    PKV_STORE_URING_ON = 1, /* io_uring or PKV_ERROR_UNSUPPORTED */
    PKV_STORE_URING_OFF = 2
} pkv_store_uring;

/* Opaque; one thread at a time. */
typedef struct pkv_file_store pkv_file_store;

typedef struct pkv_file_store_config {
    uint32_t struct_size;
    const char *path; /* made where it is not there */
    pkv_store_shape shape;
    unsigned char identity[PKV_STORE_IDENTITY_SIZE]; /* digest of weights, dtype, RoPE, shard */
    uint64_t key_secret_id; /* a number that stands for the key secret; never the secret itself */
    pkv_store_mismatch mismatch;
    pkv_store_sync sync;
    pkv_store_uring uring;
    bool direct;           /* O_DIRECT: past the page cache; UNSUPPORTED where the system refuses */
    bool verify_data;      /* read every block at open, not only the index */
    int32_t queue_depth;   /* reads and writes in the kernel at once, up to 4096; 0 =
                              PKV_FILE_STORE_DEFAULT_QUEUE_DEPTH */
    int32_t max_transfers; /* in flight or not yet polled, up to PKV_MAX_BLOCK_LIST; 0 =
                              PKV_FILE_STORE_DEFAULT_MAX_TRANSFERS */
    pkv_allocator allocator;
} pkv_file_store_config;

/* What was found at open, and counts since. */
typedef struct pkv_file_store_info {
    uint32_t struct_size;
    int32_t num_stored;  /* slots that hold a block now */
    int32_t num_damaged; /* at open: slots given up, and headers repaired */
    bool was_created;    /* the file was new, or its making had been cut off */
    bool was_emptied;    /* PKV_STORE_EMPTY took effect */
    bool uses_uring;
    bool uses_direct;
    char first_damage[128]; /* the first reason; "" where there is none */
    uint64_t num_written, num_read, num_corrupt, num_errors; /* blocks */
    uint64_t num_bytes_written, num_bytes_read;              /* of blocks that were moved */
    uint64_t file_size;
} pkv_file_store_info;

/* Bytes that a file store of this config needs.
 * [any thread | O(1) | no allocation]
 *
 * Returns 0 for a config that pkv_file_store_init refuses without looking at the file, or whose
 * size no size_t holds. */
PKV_API size_t pkv_file_store_size(const pkv_file_store_config *config);

/* Open or make the file, in the caller's memory.
 * [waits for the medium | O(slots), with verify_data O(bytes) | no allocation]
 *
 * memory  64-byte aligned, at least pkv_file_store_size bytes; the caller's, and the store's until
 *         pkv_store_close.
 * out     set on PKV_OK only; ended by pkv_store_close of the table that pkv_file_store_get_store
 *         fills in.
 *
 * What is intact is there again, the most recently written last in the order of eviction; what is
 * not is counted in pkv_file_store_info and given up. The file is locked until close; of a process
 * that was killed the kernel may hold the lock a moment longer, until its last write has ended.
 *
 * error_text, error_size  where to say why it fails; NULL: nowhere.
 *
 * Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT, PKV_ERROR_UNSUPPORTED (uring or direct cannot be
 * had), PKV_ERROR_CORRUPT (another identity, secret, shape, version or kind of file, with
 * PKV_STORE_REFUSE), PKV_ERROR_BUSY (open elsewhere), PKV_ERROR_IO. */
PKV_API pkv_status pkv_file_store_init(const pkv_file_store_config *config,
                                       void *memory,
                                       size_t size,
                                       pkv_file_store **out,
                                       char *error_text,
                                       size_t error_size);

/* Open or make the file with one allocation of pkv_file_store_size bytes, given back at close.
 * [as pkv_file_store_init | allocates once]
 *
 * out  NULL on error.
 *
 * Returns as pkv_file_store_init, or PKV_ERROR_OUT_OF_MEMORY. */
PKV_API pkv_status pkv_file_store_create(const pkv_file_store_config *config,
                                         pkv_file_store **out,
                                         char *error_text,
                                         size_t error_size);

/* Fill in the table of functions. Its close is this store's end.
 * [reads store | O(1) | no allocation]
 *
 * out  struct_size must be set, to all of pkv_store.
 *
 * Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT. */
PKV_API pkv_status pkv_file_store_get_store(pkv_file_store *store, pkv_store *out);

/* Read what is stored, least recently used first: the arrays for whoever keeps track of slots.
 * [reads store | O(slots) | no allocation]
 *
 * keys, groups, slots  [capacity]; each may be NULL.   num_blocks  always the whole count.
 *
 * Returns PKV_OK, PKV_ERROR_LIMIT (capacity too small; the arrays are as they were),
 * PKV_ERROR_INVALID_ARGUMENT. */
PKV_API pkv_status pkv_file_store_get_stored(const pkv_file_store *store,
                                             pkv_block_key *keys,
                                             int32_t *groups,
                                             pkv_block_id *slots,
                                             int32_t capacity,
                                             int32_t *num_blocks);

/* Find the slot that holds a key, the most recently written where there are several. Does not count
 * as use.
 * [reads store | O(1) on average | no allocation]
 *
 * slot  set on PKV_OK only.
 *
 * Returns PKV_OK, PKV_NOT_FOUND, PKV_ERROR_INVALID_ARGUMENT. */
PKV_API pkv_status pkv_file_store_find(const pkv_file_store *store,
                                       int32_t group,
                                       const pkv_block_key *key,
                                       pkv_block_id *slot);

/* Name the slots to be written next, for a store without anybody who keeps track: empty ones, then
 * the least recently used; none is in use. Nothing changes until they are written.
 * [reads store | O(num_slots + slots in use) | no allocation]
 *
 * slots  [num_slots]; written on PKV_OK only.
 *
 * Returns PKV_OK, PKV_NO_FREE_BLOCKS (so many are not there), PKV_ERROR_INVALID_ARGUMENT. */
PKV_API pkv_status pkv_file_store_choose_slots(const pkv_file_store *store,
                                               int32_t num_slots,
                                               pkv_block_id *slots);

/* Read the tokens that were written with the block of a slot.
 * [reads store | waits for the medium | O(block_size) | no allocation]
 *
 * token_ids  [capacity]; written on PKV_OK only.   num_tokens  with PKV_ERROR_LIMIT the need.
 *
 * Returns PKV_OK with *num_tokens 0 where none were; PKV_NOT_FOUND (the slot holds nothing),
 * PKV_ERROR_LIMIT (capacity too small), PKV_ERROR_CORRUPT (the entry is not what was written),
 * PKV_ERROR_IO, PKV_ERROR_INVALID_ARGUMENT. */
PKV_API pkv_status pkv_file_store_read_tokens(pkv_file_store *store,
                                              pkv_block_id slot,
                                              int32_t *token_ids,
                                              int32_t capacity,
                                              int32_t *num_tokens);

/* Tell what was found at open, and counts since.
 * [reads store | O(1) | no allocation]
 *
 * out  struct_size must be set.
 *
 * Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT. */
PKV_API pkv_status pkv_file_store_get_info(const pkv_file_store *store, pkv_file_store_info *out);

/* ---- One request's cache as a file */

/* What is saved, and where it is restored to. One file holds one KV-cache group. */
typedef struct pkv_session_args {
    uint32_t struct_size;
    const char *path;
    unsigned char identity[PKV_STORE_IDENTITY_SIZE];
    uint64_t key_secret_id;
    int32_t group;
    int32_t block_size;
    int32_t num_tokens;  /* save: in the cache; restore: room in token_ids */
    int32_t num_blocks;  /* save: ceil(num_tokens / block_size); restore: room in block_ids */
    int32_t *token_ids;  /* [num_tokens] */
    pkv_block_key *keys; /* [num_tokens / block_size] of the full blocks; NULL: not kept */
    pkv_tensor blocks;   /* [num_layers, any, block_bytes] UINT8 on the host */
    const pkv_block_id *block_ids; /* [num_blocks] in the order of the table, any ids but 0 */
    pkv_allocator allocator;       /* for the time of the call */
    char *error_text;              /* NULL: nowhere */
    size_t error_size;
} pkv_session_args;

/* How much a saved session holds. The tail is the last block where it is not full; its tokens are
 * saved and restored, but it has no key and no other request can share it. */
typedef struct pkv_session_info {
    uint32_t struct_size;
    int32_t num_tokens, num_blocks, num_tail_tokens;
    int32_t num_layers, block_size;
    int64_t block_bytes;
} pkv_session_info;

/* Save the blocks of one request. The file is complete and durable on PKV_OK; otherwise a file that
 * was there before is there still.
 * [any thread | waits for the medium | O(bytes) | one allocation, given back | all-or-nothing]
 *
 * args  all of it is the caller's and read only, but for error_text.
 *
 * Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT, PKV_ERROR_UNSUPPORTED (an unknown member of args),
 * PKV_ERROR_OUT_OF_MEMORY, PKV_ERROR_BUSY (somebody saves to the same path), PKV_ERROR_IO. */
PKV_API pkv_status pkv_session_save(const pkv_session_args *args);

/* Read how much a file holds, so that blocks can be allocated.
 * [any thread | waits for the medium | O(1) | no allocation]
 *
 * args  path, identity, key_secret_id, block_size and error text are looked at; block_size 0 is
 *       any.
 * out   struct_size must be set, to all of pkv_session_info.
 *
 * Returns PKV_OK, PKV_NOT_FOUND (no such file), PKV_ERROR_CORRUPT (damaged, incomplete, of another
 * identity, secret or block size, or no session), PKV_ERROR_BUSY (open elsewhere), PKV_ERROR_IO,
 * PKV_ERROR_INVALID_ARGUMENT, PKV_ERROR_UNSUPPORTED (an unknown member of args). */
PKV_API pkv_status pkv_session_get_info(const pkv_session_args *args, pkv_session_info *out);

/* Read a session into the blocks that args->block_ids names, wherever they lie.
 * [any thread | waits for the medium | O(bytes) | one allocation, given back]
 *
 * args  blocks, token_ids and, where they are not NULL, keys are written.
 *
 * With less room than the session needs (PKV_ERROR_LIMIT), or an identity, secret, group, block
 * size or layout that is not the file's (PKV_ERROR_CORRUPT), nothing is written. On
 * PKV_ERROR_CORRUPT or PKV_ERROR_IO while reading, neither the blocks nor token_ids hold anything
 * of use.
 *
 * Returns PKV_OK, PKV_NOT_FOUND (no such file), PKV_ERROR_LIMIT and PKV_ERROR_CORRUPT (above),
 * PKV_ERROR_BUSY (open elsewhere), and as pkv_session_save. */
PKV_API pkv_status pkv_session_restore(const pkv_session_args *args);

#ifdef __cplusplus
}
#endif

#endif
