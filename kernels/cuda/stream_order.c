/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The order of streams as the host knows it; see stream_order.h. */
#include "kernels/cuda/stream_order.h"

#include <stddef.h>
#include <string.h>

/* Of the default stream, which is always known. */
#define DEFAULT_STREAM 0

/* ---- Clocks */

static void join(struct pkvi_clock *clock, const struct pkvi_clock *other) {
    for (int32_t i = 0; i < PKVI_ORDER_STREAMS; i++) {
        if (clock->seen[i] < other->seen[i]) {
            clock->seen[i] = other->seen[i];
        }
    }
}

/* Everything that was begun anywhere. */
static struct pkvi_clock now(const struct pkvi_stream_order *order) {
    struct pkvi_clock clock = {{0}};

    for (int32_t i = 0; i < PKVI_ORDER_STREAMS; i++) {
        clock.seen[i] = order->clocks[i].seen[i];
    }
    return clock;
}

static bool is_behind(const struct pkvi_stream_order *order,
                      int32_t stream,
                      struct pkvi_writer writer) {
    return stream == PKVI_ORDER_UNKNOWN || stream == writer.stream ||
           order->clocks[stream].seen[writer.stream] >= writer.time;
}

static struct pkvi_writer writer_of(const struct pkvi_stream_order *order,
                                    int32_t stream,
                                    uint64_t allocation) {
    return (struct pkvi_writer){order->clocks[stream].seen[stream], allocation, stream};
}

/* Whether what was written is gone, with other memory at its address. */
static bool is_gone(struct pkvi_writer writer, uint64_t allocation) {
    return writer.allocation != 0 && allocation != 0 && writer.allocation != allocation;
}

/* ---- Streams */

int32_t pkvi_order_find(const struct pkvi_stream_order *order, const void *handle) {
    if (handle == NULL) {
        return DEFAULT_STREAM;
    }
    for (int32_t i = 1; i <= order->num_streams; i++) {
        if (order->streams[i].handle == handle) {
            return i;
        }
    }
    return PKVI_ORDER_UNKNOWN;
}

int32_t pkvi_order_meet(struct pkvi_stream_order *order, const void *handle, uint64_t id) {
    int32_t met = PKVI_ORDER_UNKNOWN;

    for (int32_t i = 1; i <= order->num_streams; i++) {
        if (order->streams[i].id == id) {
            order->streams[i].handle = handle;
            met = i;
        } else if (order->streams[i].handle == handle) {
            order->streams[i].handle = NULL;
        }
    }
    return met;
}

/* A free slot, else that of a stream that is gone: it keeps its time, so that what was written
 * before stays older than what the new stream writes. */
static int32_t take_stream(struct pkvi_stream_order *order) {
    if (order->num_streams + 1 < PKVI_ORDER_STREAMS) {
        return ++order->num_streams;
    }
    for (int32_t i = 1; i < PKVI_ORDER_STREAMS; i++) {
        if (order->streams[i].handle == NULL) {
            if (order->streams[i].takes_turns) {
                join(&order->clocks[DEFAULT_STREAM], &order->clocks[i]);
            }
            return i;
        }
    }
    return PKVI_ORDER_UNKNOWN;
}

int32_t pkvi_order_add(struct pkvi_stream_order *order,
                       const void *handle,
                       uint64_t id,
                       bool takes_turns) {
    int32_t stream = take_stream(order);

    if (stream != PKVI_ORDER_UNKNOWN) {
        const uint64_t time = order->clocks[stream].seen[stream];

        order->clocks[stream] = order->host;
        order->clocks[stream].seen[stream] = time;
        order->streams[stream].id = id;
        order->streams[stream].handle = handle;
        order->streams[stream].takes_turns = takes_turns;
    }
    return stream;
}

void pkvi_order_begin(struct pkvi_stream_order *order, int32_t stream) {
    if (stream == PKVI_ORDER_UNKNOWN) {
        return;
    }
    for (int32_t i = 1; i <= order->num_streams && stream == DEFAULT_STREAM; i++) {
        if (order->streams[i].takes_turns) {
            join(&order->clocks[DEFAULT_STREAM], &order->clocks[i]);
        }
    }
    if (stream != DEFAULT_STREAM && order->streams[stream].takes_turns) {
        join(&order->clocks[stream], &order->clocks[DEFAULT_STREAM]);
    }
    order->clocks[stream].seen[stream]++;
}

/* ---- Blocks whose writer is known */

/* The slot of an address, or the free one where it would be. */
static int32_t find_block(const struct pkvi_stream_order *order, uintptr_t address) {
    uint32_t slot = (uint32_t)((address >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 40);

    for (slot %= PKVI_ORDER_BLOCKS;
         order->blocks[slot].writer.time != 0 && order->blocks[slot].address != address;
         slot = (slot + 1) % PKVI_ORDER_BLOCKS) {
    }
    return (int32_t)slot;
}

void pkvi_order_wrote_block(struct pkvi_stream_order *order,
                            int32_t stream,
                            const void *address,
                            uint64_t allocation) {
    if (stream == PKVI_ORDER_UNKNOWN) {
        return;
    }
    if (2 * order->num_blocks >= PKVI_ORDER_BLOCKS) {
        memset(order->blocks, 0, sizeof order->blocks);
        order->num_blocks = 0;
    }
    int32_t slot = find_block(order, (uintptr_t)address);
    order->num_blocks += order->blocks[slot].writer.time == 0;
    order->blocks[slot].address = (uintptr_t)address;
    order->blocks[slot].writer = writer_of(order, stream, allocation);
}

bool pkvi_order_sees_block(const struct pkvi_stream_order *order,
                           int32_t stream,
                           const void *address,
                           uint64_t allocation) {
    const struct pkvi_writer writer = order->blocks[find_block(order, (uintptr_t)address)].writer;

    return writer.time == 0 || is_gone(writer, allocation) || is_behind(order, stream, writer);
}

/* ---- Memory of which it is not known what was written */

bool pkvi_order_knows_range(const struct pkvi_stream_order *order,
                            int32_t stream,
                            const struct pkvi_memory *range) {
    for (int32_t i = 0; i < order->num_ranges; i++) {
        if (order->ranges[i].start == (uintptr_t)range->start &&
            order->ranges[i].writer.stream == stream &&
            !is_gone(order->ranges[i].writer, range->allocation)) {
            return true;
        }
    }
    return false;
}

static bool overlaps(const struct pkvi_stream_order *order,
                     int32_t index,
                     const struct pkvi_memory *range) {
    const uintptr_t start = (uintptr_t)range->start;

    return order->ranges[index].start < start + (uintptr_t)range->size &&
           start < order->ranges[index].end;
}

void pkvi_order_wrote_range(struct pkvi_stream_order *order,
                            int32_t stream,
                            const struct pkvi_memory *range) {
    int32_t index = 0;

    if (stream == PKVI_ORDER_UNKNOWN || pkvi_order_knows_range(order, stream, range)) {
        return;
    }
    /* What is gone makes room, else a program that frees and allocates fills the table. */
    while (index < order->num_ranges &&
           !(overlaps(order, index, range) &&
             is_gone(order->ranges[index].writer, range->allocation))) {
        index++;
    }
    if (index == PKVI_ORDER_RANGES) {
        return;
    }
    order->num_ranges += index == order->num_ranges;
    order->ranges[index].start = (uintptr_t)range->start;
    order->ranges[index].end = (uintptr_t)range->start + (uintptr_t)range->size;
    order->ranges[index].writer = writer_of(order, stream, range->allocation);
}

bool pkvi_order_sees_range(const struct pkvi_stream_order *order,
                           int32_t stream,
                           const struct pkvi_memory *range) {
    for (int32_t i = 0; i < order->num_ranges; i++) {
        if (overlaps(order, i, range) && !is_gone(order->ranges[i].writer, range->allocation) &&
            !is_behind(order, stream, order->ranges[i].writer)) {
            return false;
        }
    }
    return true;
}

/* ---- Fences */

/* The first slot with this handle, NULL: the first free one. -1: there is none. */
static int32_t find_fence(const struct pkvi_stream_order *order, const void *fence) {
    for (int32_t i = 0; i < PKVI_ORDER_FENCES; i++) {
        if (order->fences[i].handle == fence) {
            return i;
        }
    }
    return -1;
}

void pkvi_order_fence_create(struct pkvi_stream_order *order, const void *fence) {
    const int32_t index = find_fence(order, NULL);

    if (index >= 0) {
        order->fences[index].handle = fence;
        memset(&order->fences[index].clock, 0, sizeof order->fences[index].clock);
    }
}

void pkvi_order_fence_destroy(struct pkvi_stream_order *order, const void *fence) {
    const int32_t index = find_fence(order, fence);

    if (index >= 0) {
        order->fences[index].handle = NULL;
    }
}

void pkvi_order_fence_record(struct pkvi_stream_order *order, const void *fence, int32_t stream) {
    const int32_t index = find_fence(order, fence);

    if (index >= 0 && stream == PKVI_ORDER_UNKNOWN) {
        order->fences[index].clock = now(order);
    } else if (index >= 0) {
        pkvi_order_begin(order, stream);
        order->fences[index].clock = order->clocks[stream];
    }
}

/* What is known of a fence that is not: nothing, so everything. */
static struct pkvi_clock clock_of(const struct pkvi_stream_order *order, const void *fence) {
    const int32_t index = find_fence(order, fence);

    return index < 0 ? now(order) : order->fences[index].clock;
}

void pkvi_order_fence_wait(struct pkvi_stream_order *order, const void *fence, int32_t stream) {
    const struct pkvi_clock clock = clock_of(order, fence);

    if (stream != PKVI_ORDER_UNKNOWN) {
        join(&order->clocks[stream], &clock);
    }
}

static void join_all(struct pkvi_stream_order *order, const struct pkvi_clock *clock) {
    join(&order->host, clock);
    for (int32_t i = 0; i < PKVI_ORDER_STREAMS; i++) {
        join(&order->clocks[i], clock);
    }
}

void pkvi_order_fence_passed(struct pkvi_stream_order *order, const void *fence) {
    const struct pkvi_clock clock = clock_of(order, fence);

    join_all(order, &clock);
}

void pkvi_order_synchronized(struct pkvi_stream_order *order, int32_t stream) {
    const struct pkvi_clock clock =
        stream == PKVI_ORDER_UNKNOWN ? now(order) : order->clocks[stream];

    join_all(order, &clock);
}
