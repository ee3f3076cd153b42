/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The interface between the programs and the daemon: keys, values and numbers of the maps.
 *
 * src/bpfleakd/kernel/abi.py mirrors the structs; tests/unit/kernel/test_abi.py compiles this file, and those that it
 * includes, and compares every size, offset and number.
 */
#ifndef BPFLEAKD_ABI_H
#define BPFLEAKD_ABI_H

#include "abi_code.h"
#include "abi_probes.h"
#include "abi_python.h"
#include "abi_unwind.h"

/* The most frames of a stack: the allocator function, then return addresses, innermost first. A power of 2. */
#define MAX_FRAMES 128

enum allocation_kind {
	KIND_HEAP = 0,
	/* File descriptors: each counts as 1 byte. */
	KIND_DESCRIPTOR = 1,
};

/* Whether a process may add to the tables; the daemon and the programs write it. */
enum recording_state {
	STATE_STOPPED = 0,
	STATE_RECORDING = 1,
	/* The process called exec: the addresses in its tables are no longer valid. */
	STATE_EXECED = 2,
	/* No daemon sent a heartbeat for too long, so recording stopped; frees have been missed since. */
	STATE_UNATTENDED = 3,
};

/* Every way to miss something; each process has a counter for each. */
enum loss {
	LOSS_LIVE_FULL,		/* a block was not recorded: the process' live table is full */
	LOSS_SITE_FULL,		/* counted at the overflow site: no room for a new call site */
	LOSS_STACK_FULL,	/* a site without its stack: no room for a new stack */
	LOSS_THREAD_FULL,	/* a call was not recorded: no room for a new thread */
	LOSS_RETURN_MISSED,	/* a call was not recorded: it never returned */
	LOSS_FREE_MISSED,	/* a block's address was reused before its free was seen */
	LOSS_RESULT_UNREADABLE,	/* a block was not recorded: its address could not be read */
	LOSS_STACK_UNREADABLE,	/* a stack ended early: its memory could not be read */
	LOSS_EVENT_FULL,	/* a change of the address space was not reported: no room in the ring */
	LOSS_UNATTENDED,	/* recording was stopped: no daemon for too long */
	LOSS_DESCRIPTOR_FULL,	/* a descriptor was not recorded: the process' table of descriptors is full */
	LOSS_KINDS,
};

/* Why a walk ended; src/bpfleakd/model/code/stack.py StackEnd. */
enum stack_end {
	END_BOTTOM,
	END_DEPTH,
	END_READ_FAULT,
	END_NO_RULE,
	END_FRAME_POINTER_END,
	/* The walk followed frame pointers because a table was still being built: frames may be missing. */
	END_TABLE_PENDING,
};

#define LAST_ALLOCATIONS 64	/* a power of 2 */

/* In place of an end: another program continues the walk. */
#define WALK_GOES_ON 0xff

/*
 * Sampling: sampling.h. An interval is 2^sample_shift bytes, at most 2^MAX_SAMPLE_SHIFT. Block counts are in units of
 * 1/COUNT_UNIT; variances in units of BYTES_VARIANCE_UNIT bytes^2 and of 1/COUNT_UNIT block^2.
 */
#define MAX_SAMPLE_SHIFT 22
#define CURVE_STEPS 128		/* a power of 2 */
#define COUNT_UNIT 65536
#define BYTES_VARIANCE_UNIT 65536

struct sampling_curve {
	__u32 points[CURVE_STEPS + 1];
};

/*
 * EVER: at some time, not every block was recorded. NOW: not every block is recorded, so frees of unknown blocks
 * prove nothing.
 */
#define SAMPLING_EVER 1
#define SAMPLING_NOW 2

#define CALL_COUNTERS 8		/* a power of 2 */

/* Counts what happens at every call, by the low bits of the CPU's number: one cache line each. */
struct call_counter {
	/* Probe hits; most of the price of a hit is the kernel's way to the program. */
	__u64 probe_hits;
	/*
	 * While blocks are sampled: allocations that were not recorded, and frees of unknown blocks. A call through
	 * two probed functions may add one to both.
	 */
	__u64 unrecorded;
	__u64 unknown_frees;
	__u64 unused[5];
};

/*
 * A call by which an allocator makes its memory accessible: where mprotect enters the kernel, and to which caller it
 * returns. The daemon writes `ip` last.
 */
struct commit_call {
	__u64 caller;
	__u64 ip;
};

#define COMMIT_CALLS 4

/* The places in an allocator that sbrk returns to; 0: none. glibc's has three. */
#define BREAK_CALLERS 4

struct process {
	/* The fields that every probe reads. A free slot has tgid 0. */
	__u32 tgid;
	__u32 state;
	/* 0: every block is recorded. */
	__u32 sample_shift;
	/* SAMPLING_* */
	__u32 sampling;
	/* The daemon's readings, counted from 1: record.h, note_change. */
	__u32 reading;
	/* A changed site found no room in `changed_sites`. The daemon resets it to 0 and then reads all sites. */
	__u32 change_unlisted;
	__u64 unmatched_frees;
	/*
	 * The interval of the sampler inside the process, by the small blocks that it announced; 0: no sampler. Its
	 * threads may differ: this is the longest one in the reading `inside_reading`.
	 */
	__u64 inside_interval_bytes;
	__u32 inside_reading;
	/* Changes of the address space are seen at instructions of the process (ROLE_SYSCALL_*), not in the kernel. */
	__u32 space_at_sites;
	/* How many there were. */
	__u64 site_hits;
	/* How often the dynamic loader has loaded or unloaded libraries. */
	__u64 library_changes;
	__u64 losses[LOSS_KINDS];
	/* Blocks inserted into the live table and removed from it. */
	__u64 recorded;
	__u64 released;
	/*
	 * Use of the tables that all processes share: at most MAX_PROCESS_SITES, and half of the threads, per
	 * process.
	 */
	__u64 site_count;
	__u64 stack_count;
	__u64 thread_count;
	/*
	 * What the daemon has removed: sites and stacks, to make room, what these sites had counted, and threads
	 * whose end no program has seen. No program writes these.
	 */
	__u64 sites_removed;
	__u64 stacks_removed;
	__u64 threads_removed;
	__u64 removed_bytes;
	__u64 removed_count;
	__u64 removed_temporary_count;
	/* space_events reported since the daemon began the reading `space_reading`, and their quota. */
	__u32 space_reading;
	__u32 space_count;
	__u32 space_quota;
	/* While the daemon removes sites: the first `reading` in which a site that stays has changed; otherwise 0. */
	__u32 removed_before;
	/*
	 * What is live in the heap, and its peak since the last space_event. Only together with what was mapped at
	 * the same time does this peak give the peak of the process.
	 */
	__s64 live_bytes;
	__s64 peak_live_bytes;
	/* By the low bits of the tid: record.h, last_allocation. */
	__u64 last_allocations[LAST_ALLOCATIONS];
	/* Entries in `loaded_code`, how many of them are complete, and the range of numbered addresses: code.h. */
	__u64 code_count;
	__u64 code_changes;
	__u64 numbered_start;
	__u64 numbered_end;
	/* How many of the `unknown_frees` free nothing, estimated from one in UNKNOWN_FREES_PER_LOOK. */
	__u64 false_frees;
	/* The daemon adds them one by one. */
	struct commit_call commit_calls[COMMIT_CALLS];
	__u64 break_callers[BREAK_CALLERS];
	/*
	 * The program break after the last call of brk, and the lowest one that an allocator has moved it to since a
	 * call was reported or the daemon took this one (and wrote 0). 0: there was none.
	 */
	__u64 program_break;
	__u64 lowest_break;
	struct call_counter calls[CALL_COUNTERS];
	/* The daemon writes it, loop_count last. */
	struct python python;
};

/*
 * A thread's frees of unknown blocks since `first_ns` that do not count yet: when a thread ends, glibc frees the
 * blocks in its cache a second time (malloc.c, tcache_thread_shutdown).
 */
struct unproven_frees {
	__u64 first_ns;
	__u64 count;
};

/* `stack_id` 0 is the overflow site: allocations for whose own site there was no room. */
struct site_key {
	__u32 tgid;
	__u32 kind;
	__u64 stack_id;
};

/* Estimates if blocks are sampled; counts are in units of 1/COUNT_UNIT. */
struct site {
	__s64 live_bytes;
	__s64 live_count;
	__u64 allocated_bytes;
	__u64 allocated_count;
	/* Blocks freed by the thread that allocated them, before it allocated another one. */
	__u64 temporary_count;
	__s64 peak_live_bytes;
	/* The process' `reading` when the site was last listed as changed. */
	__u32 listed;
	__u32 reserved;
	/* At the end of the entry, because they change only if blocks are sampled. */
	__s64 live_bytes_variance;
	__s64 live_count_variance;
};

/* A site that changed, and the `reading` of its process at that time. */
struct changed_site {
	__u32 tgid;
	__u32 kind;
	__u64 stack_id;
	__u32 reading;
	__u32 reserved;
};

/* The daemon writes it at each tick. Timeout 0: never. */
struct heartbeat {
	__u64 beat_ns;
	__u64 timeout_ns;
};

struct stack_key {
	__u64 tgid;
	__u64 stack_id;
};

/*
 * `checks` are hashes of the code objects of PYTHON_SEGMENT_FRAMES Python frames each, innermost first; the last one
 * covers all further frames.
 */
#define PYTHON_SEGMENTS 8	/* a power of 2 */
#define PYTHON_SEGMENT_FRAMES 4

struct stack {
	__u32 depth;
	__u32 end;
	__u32 checks[PYTHON_SEGMENTS];
	__u64 frames[MAX_FRAMES];
};

/* Recorded with probability size/weight: sampling.h. */
struct live_block {
	__u64 size;
	__u64 weight;
	__u64 born_ns;
	__u64 stack_id;
	__u32 tid;
	__u32 kind;
};

/*
 * A call that changed the address space, as the programs saw it; src/bpfleakd/kernel/address_space_events.py
 * interprets it. munmap and mremap are reported at their entry already, because afterwards another thread may get the
 * same addresses.
 */
enum space_phase {
	SPACE_ENTRY,
	SPACE_EXIT,
};

struct space_event {
	__u64 time_ns;
	__u64 stack_id;
	__u64 arguments[6];
	__s64 result;
	/* process.peak_live_bytes, which restarts here. */
	__s64 heap_peak_bytes;
	__u32 tgid;
	__u32 tid;
	__u32 syscall;
	__u32 phase;
	__u32 inside_allocator;
	__u32 reserved;
};

#endif
