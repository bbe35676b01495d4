/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* What the host knows of the order of streams: who wrote a block last, and which stream is behind
 * which piece of another one's work. No call of CUDA, no refusal; those are the backend's.
 *
 * The one idea: a vector clock for each stream and each fence, in tables of fixed size. What a
 * table has no room for is forgotten, and what is forgotten counts as ordered: an answer "not
 * ordered" is certain as far as the fences of this device go. */
#ifndef PKVI_CUDA_STREAM_ORDER_H
#define PKVI_CUDA_STREAM_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#define PKVI_ORDER_STREAMS 16
#define PKVI_ORDER_FENCES 64
#define PKVI_ORDER_RANGES 256
#define PKVI_ORDER_BLOCKS 8192 /* slots, half of them used */

/* A stream that is not known. */
#define PKVI_ORDER_UNKNOWN (-1)

/* Memory by its address and by the number of its allocation, 0 where that is not known. An address
 * with another number is other memory: nobody has written to it yet. */
struct pkvi_memory {
    const void *start;
    uint64_t size;
    uint64_t allocation;
};

/* How much of each stream lies behind: so many of its operations. */
struct pkvi_clock {
    uint64_t seen[PKVI_ORDER_STREAMS];
};

/* The operation that wrote something, and what it wrote to. `time` 0: the slot is free. */
struct pkvi_writer {
    uint64_t time;
    uint64_t allocation;
    int32_t stream;
};

struct pkvi_stream_order {
    int32_t num_streams;
    struct {
        uint64_t id;        /* no two streams of a program have the same, one after the other */
        const void *handle; /* NULL: another stream has taken it, so this one is gone */
        bool takes_turns;   /* with the default stream */
    } streams[PKVI_ORDER_STREAMS];
    struct pkvi_clock clocks[PKVI_ORDER_STREAMS];
    struct pkvi_clock host; /* what the host has seen done, and so every stream that is new */
    struct {
        const void *handle; /* NULL: free */
        struct pkvi_clock clock;
    } fences[PKVI_ORDER_FENCES];
    /* The first write of a stream to memory of which it is not known what it wrote. */
    int32_t num_ranges;
    struct {
        uintptr_t start, end;
        struct pkvi_writer writer;
    } ranges[PKVI_ORDER_RANGES];
    /* The last write to a block, by the block's address in the first layer. */
    int32_t num_blocks;
    struct {
        uintptr_t address;
        struct pkvi_writer writer;
    } blocks[PKVI_ORDER_BLOCKS];
};

/* All is zero at the beginning. The default stream is handle NULL and need not be added. `find`
 * goes by the handle alone: it is right after `meet`, which says whose the handle is now, or `add`.
 * Where the table is full a new stream takes the place of one that is gone and passes for it. */
int32_t pkvi_order_find(const struct pkvi_stream_order *order, const void *handle);
int32_t pkvi_order_meet(struct pkvi_stream_order *order, const void *handle, uint64_t id);
int32_t pkvi_order_add(struct pkvi_stream_order *order,
                       const void *handle,
                       uint64_t id,
                       bool takes_turns);

/* An operation is about to be enqueued. */
void pkvi_order_begin(struct pkvi_stream_order *order, int32_t stream);

/* What the operation that began last on `stream` writes. */
void pkvi_order_wrote_block(struct pkvi_stream_order *order,
                            int32_t stream,
                            const void *address,
                            uint64_t allocation);
void pkvi_order_wrote_range(struct pkvi_stream_order *order,
                            int32_t stream,
                            const struct pkvi_memory *range);

/* Whether the range is known as one that `stream` writes, so that it need not be said again. */
bool pkvi_order_knows_range(const struct pkvi_stream_order *order,
                            int32_t stream,
                            const struct pkvi_memory *range);

/* Whether `stream` is behind the last known write to the block, and behind one of the writes of
 * each stream that writes to the range. */
bool pkvi_order_sees_block(const struct pkvi_stream_order *order,
                           int32_t stream,
                           const void *address,
                           uint64_t allocation);
bool pkvi_order_sees_range(const struct pkvi_stream_order *order,
                           int32_t stream,
                           const struct pkvi_memory *range);

void pkvi_order_fence_create(struct pkvi_stream_order *order, const void *fence);
void pkvi_order_fence_destroy(struct pkvi_stream_order *order, const void *fence);
void pkvi_order_fence_record(struct pkvi_stream_order *order, const void *fence, int32_t stream);
void pkvi_order_fence_wait(struct pkvi_stream_order *order, const void *fence, int32_t stream);

/* The host has seen the fence passed, or the stream empty: every stream is behind that now. */
void pkvi_order_fence_passed(struct pkvi_stream_order *order, const void *fence);
void pkvi_order_synchronized(struct pkvi_stream_order *order, int32_t stream);

#endif
