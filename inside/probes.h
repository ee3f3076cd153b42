/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The probes at which tracers see sampled blocks and their ends.
 *
 * They follow the convention `otel_memory` (opentelemetry-ebpf-profiler, design-docs/00003):
 *
 *	alloc(void *ptr, uint64_t size, uint64_t weighted_bytes)	free(void *ptr)
 *
 * The kernel asks every tracer of a probe at each hit, whichever process makes it: where fifty processes are traced at
 * one probe, an event takes ten times as long. So besides the probes of the convention there are 64 more of each, by
 * the provider `bpfleak`. They all announce the same: a tracer attaches to one place in each process, and to
 * different ones in different processes.
 *
 * A tracer that finds a process' events too expensive attaches to some of the probes `bpfleak:coarser`, which are never
 * hit: each whose semaphore is up doubles the interval of all threads.
 */
#ifndef BPFLEAK_PROBES_H
#define BPFLEAK_PROBES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Whether a tracer is attached that wants to see blocks. */
bool are_blocks_wanted(void);

#define MAX_WANTED_DOUBLINGS 4

/* How often tracers want the interval to be doubled. */
unsigned int wanted_doublings(void);

void announce_block(void *block, size_t size, uint64_t weighted_bytes);
void announce_block_end(void *block);

#endif
