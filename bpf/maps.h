/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The maps. None evicts entries: the oldest entries are the leak. If there is no room, the new entry is refused and
 * counted in process.losses. The daemon makes room by removing call sites without blocks (record.h,
 * is_being_removed). README.md lists the writers and readers of each map.
 *
 * MAX_* come from the configuration, as compiler flags.
 */
#define ALLOCATED_ON_DEMAND 1	/* BPF_F_NO_PREALLOC */
#define MAPPED_BY_DAEMON 0x400	/* BPF_F_MMAPABLE */

/* slot -> state, sampling, losses. Written by the daemon at attach. Full: the attach is refused. */
BPF_F_TABLE("array", int, struct process, processes, MAX_PROCESSES, MAPPED_BY_DAEMON);

/* tgid -> slot, for programs whose link does not have the slot. */
BPF_F_TABLE("hash", u32, u32, slots, MAX_PROCESSES, ALLOCATED_ON_DEMAND);

/* slot -> (address -> block). One inner map per process, created and sized by the daemon. */
BPF_F_TABLE("hash", u64, struct live_block, live_template, 1, ALLOCATED_ON_DEMAND);
BPF_ARRAY_OF_MAPS(live, "live_template", MAX_PROCESSES);

/*
 * slot -> (descriptor -> block). Exists while the process' descriptors are recorded; created and sized by the daemon.
 */
BPF_ARRAY_OF_MAPS(descriptors, "live_template", MAX_PROCESSES);

/* 0 -> weights of blocks by size. Written once, by the loader. */
BPF_ARRAY(sampling_curves, struct sampling_curve, 1);

/* (tgid, kind, stack) -> counters. Full: counted at the overflow site. */
BPF_F_TABLE("hash", struct site_key, struct site, sites, MAX_SITES, ALLOCATED_ON_DEMAND);

/* struct changed_site, at a site's first change since a reading. Full: the daemon reads all sites. */
BPF_RINGBUF_OUTPUT(changed_sites, CHANGED_SITE_PAGES);

/* (tgid, stack) -> frames. Written before the site that refers to it. Full: the site has no stack. */
BPF_F_TABLE("hash", struct stack_key, struct stack, stacks, MAX_STACKS, ALLOCATED_ON_DEMAND);

/* (tgid, tid) -> pending call and scratch memory. Full: the thread's allocations are not recorded. */
BPF_F_TABLE("hash", u64, struct thread, threads, MAX_THREADS, ALLOCATED_ON_DEMAND);

/* (tgid, tid) -> frees of unknown blocks that may belong to the end of a thread. Full: they count at once. */
BPF_F_TABLE("hash", u64, struct unproven_frees, unproven_frees, MAX_THREADS, ALLOCATED_ON_DEMAND);

/* Number -> where the arguments of a probe are. The daemon adds an entry before a cookie refers to it. */
BPF_ARRAY(probe_operands, struct probe_operands, MAX_PROBE_OPERANDS);

/* 0 -> the daemon's last heartbeat. */
BPF_ARRAY(heartbeat, struct heartbeat, 1);

/* A zeroed value to insert threads from: it is larger than a program's stack. */
BPF_ARRAY(new_thread, struct thread, 1);

/* Number -> rule, shared by all tables. Written before the rows that refer to it. */
BPF_ARRAY(unwind_rules, struct unwind_rule, MAX_UNWIND_RULES);

/*
 * Shard -> array of one struct unwind_shard, created by the daemon. The template's value is bytes, because bcc is
 * very slow with large arrays of structs.
 */
struct shard_bytes {
	char bytes[sizeof(struct unwind_shard)];
};
BPF_F_TABLE("array", int, struct shard_bytes, shard_template, 1, MAPPED_BY_DAEMON);
BPF_ARRAY_OF_MAPS(unwind_shards, "shard_template", MAX_UNWIND_SHARDS);

/* slot -> array of one struct unwind_mappings. Replaced as a whole, so it is always sorted. */
struct mappings_bytes {
	char bytes[sizeof(struct unwind_mappings)];
};
BPF_F_TABLE("array", int, struct mappings_bytes, mappings_template, 1, 0);
BPF_ARRAY_OF_MAPS(unwind_mappings, "mappings_template", MAX_PROCESSES);

/* (tgid, file, place) -> number, names. Written when code is mapped. Full: words of stacks have CODE_UNKNOWN. */
BPF_F_TABLE("hash", struct code_key, struct loaded_code, loaded_code, MAX_LOADED_CODE, ALLOCATED_ON_DEMAND);

/* A zeroed value to insert code from. */
BPF_ARRAY(new_code, struct loaded_code, 1);

/* tgid -> where code was and is. Created by the daemon at attach. */
BPF_F_TABLE("hash", u32, struct code_ranges, code_ranges, MAX_PROCESSES, ALLOCATED_ON_DEMAND);

/* struct space_event. Full: the event is dropped, and the daemon reads /proc/PID/maps again. */
BPF_RINGBUF_OUTPUT(space_events, SPACE_EVENT_PAGES);

#ifdef WALK_BY_TAIL_CALLS
/* Programs that continue a walk that one program could not finish. Filled by the loader. */
BPF_PROG_ARRAY(continuations, 1);
BPF_PROG_ARRAY(syscall_continuations, 1);
BPF_PROG_ARRAY(code_programs, 1);
#endif
