/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The umbrella: includes every topic header but the opt-in ones. It declares nothing itself.
 *
 * The map:
 *   base.h      status, version, allocator, log callback, feature query
 *   batch.h     the joint: block ids, keys, slots, the batch, copies and table updates
 *   pool.h      block level, for engines that keep their own block tables
 *   manager.h   request level: lookup, allocate, free, steps, tables, events, statistics
 *   sharing.h   fork, copy-on-write, truncate
 *   tier.h      tiers: blocks kept in host memory or a store, swaps out and in
 *   device.h    tensor views, the device, its streams and fences; how a CPU device is made
 *   attention.h the plan, write_kv, attention, merge_states, block tables and slots on the device
 *   transfer.h  copy, swap, gather and fill of whole blocks
 *   store.h     stores of blocks: the table of functions, the file store, saved sessions
 *
 * Start at pkv_manager_create and pkv_allocate_slots; docs/walk.md follows one call to the end. */
#ifndef PAGEDKV_H
#define PAGEDKV_H

#include <pagedkv/attention.h>
#include <pagedkv/base.h>
#include <pagedkv/batch.h>
#include <pagedkv/device.h>
#include <pagedkv/manager.h>
#include <pagedkv/pool.h>
#include <pagedkv/sharing.h>
#include <pagedkv/store.h>
#include <pagedkv/tier.h>
#include <pagedkv/transfer.h>

#endif
