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

static struct pkvi_writer writer_of(const struct pkvi_stream_order *order, int32_t stream) {
    return (struct pkvi_writer){order->clocks[stream].seen[stream], stream};
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

int32_t pkvi_order_add(struct pkvi_stream_order *order, const void *handle, bool takes_turns) {
    if (order->num_streams + 1 == PKVI_ORDER_STREAMS) {
        return PKVI_ORDER_UNKNOWN;
    }
    int32_t stream = ++order->num_streams;
    order->streams[stream].handle = handle;
    order->streams[stream].takes_turns = takes_turns;
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

void pkvi_order_wrote_block(struct pkvi_stream_order *order, int32_t stream, const void *address) {
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
    order->blocks[slot].writer = writer_of(order, stream);
}

bool pkvi_order_sees_block(const struct pkvi_stream_order *order,
                           int32_t stream,
                           const void *address) {
    const struct pkvi_writer writer = order->blocks[find_block(order, (uintptr_t)address)].writer;

    return writer.time == 0 || is_behind(order, stream, writer);
}

/* ---- Memory of which it is not known what was written */

static int32_t find_range(const struct pkvi_stream_order *order, int32_t stream, uintptr_t start) {
    for (int32_t i = 0; i < order->num_ranges; i++) {
        if (order->ranges[i].start == start && order->ranges[i].writer.stream == stream) {
            return i;
        }
    }
    return -1;
}

bool pkvi_order_knows_range(const struct pkvi_stream_order *order,
                            int32_t stream,
                            const void *start) {
    return find_range(order, stream, (uintptr_t)start) >= 0;
}

void pkvi_order_wrote_range(struct pkvi_stream_order *order,
                            int32_t stream,
                            const void *start,
                            uint64_t size) {
    if (stream == PKVI_ORDER_UNKNOWN || order->num_ranges == PKVI_ORDER_RANGES ||
        pkvi_order_knows_range(order, stream, start)) {
        return;
    }
    order->ranges[order->num_ranges].start = (uintptr_t)start;
    order->ranges[order->num_ranges].end = (uintptr_t)start + (uintptr_t)size;
    order->ranges[order->num_ranges++].writer = writer_of(order, stream);
}

bool pkvi_order_sees_range(const struct pkvi_stream_order *order,
                           int32_t stream,
                           const void *start,
                           uint64_t size) {
    for (int32_t i = 0; i < order->num_ranges; i++) {
        if (order->ranges[i].start < (uintptr_t)start + (uintptr_t)size &&
            (uintptr_t)start < order->ranges[i].end &&
            !is_behind(order, stream, order->ranges[i].writer)) {
            return false;
        }
    }
    return true;
}

/* ---- Fences */

static struct pkvi_clock *find_fence(struct pkvi_stream_order *order, const void *fence) {
    for (int32_t i = 0; i < PKVI_ORDER_FENCES; i++) {
        if (order->fences[i].handle == fence) {
            return &order->fences[i].clock;
        }
    }
    return NULL;
}

void pkvi_order_fence_create(struct pkvi_stream_order *order, const void *fence) {
    for (int32_t i = 0; i < PKVI_ORDER_FENCES; i++) {
        if (order->fences[i].handle == NULL) {
            order->fences[i].handle = fence;
            memset(&order->fences[i].clock, 0, sizeof order->fences[i].clock);
            return;
        }
    }
}

void pkvi_order_fence_destroy(struct pkvi_stream_order *order, const void *fence) {
    for (int32_t i = 0; i < PKVI_ORDER_FENCES; i++) {
        if (order->fences[i].handle == fence) {
            order->fences[i].handle = NULL;
        }
    }
}

void pkvi_order_fence_record(struct pkvi_stream_order *order, const void *fence, int32_t stream) {
    struct pkvi_clock *clock = find_fence(order, fence);

    if (clock != NULL && stream == PKVI_ORDER_UNKNOWN) {
        *clock = now(order);
    } else if (clock != NULL) {
        pkvi_order_begin(order, stream);
        *clock = order->clocks[stream];
    }
}

/* What is known of a fence that is not: nothing, so everything. */
static struct pkvi_clock clock_of(struct pkvi_stream_order *order, const void *fence) {
    const struct pkvi_clock *clock = find_fence(order, fence);

    return clock == NULL ? now(order) : *clock;
}

void pkvi_order_fence_wait(struct pkvi_stream_order *order, const void *fence, int32_t stream) {
    const struct pkvi_clock clock = clock_of(order, fence);

    if (stream != PKVI_ORDER_UNKNOWN) {
        join(&order->clocks[stream], &clock);
    }
}

static void join_all(struct pkvi_stream_order *order, const struct pkvi_clock *clock) {
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
