/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The interface between the programs and the daemon: keys, values and numbers of the maps.
 *
 * src/bpfleakd/kernel/abi.py mirrors the structs; tests/unit/kernel/test_abi.py compiles this file and compares every
 * size, offset and number.
 */
#ifndef BPFLEAKD_ABI_H
#define BPFLEAKD_ABI_H

/* The most frames of a stack: the allocator function, then return addresses, innermost first. A power of 2. */
#define MAX_FRAMES 128

enum allocation_kind {
	KIND_HEAP = 0,
	/* File descriptors: each counts as 1 byte. */
	KIND_DESCRIPTOR = 1,
};

/* What a probed function does with its arguments; FunctionRole in src/bpfleakd/model/code/probe.py. */
enum function_role {
	ROLE_SIZE_FIRST,
	ROLE_SIZE_SECOND,
	ROLE_CALLOC,
	ROLE_REALLOC,
	ROLE_POSIX_MEMALIGN,
	ROLE_RELEASE,
	ROLE_LIBRARIES_CHANGED,
	ROLE_REALLOC_ARRAY,
	ROLE_REALLOC_OR_FREE,
	ROLE_RESIZE,
	ROLE_STRDUP,
	/* Not functions, but the probes of a sampler inside the process: sampled.h. */
	ROLE_SAMPLED_ALLOC,
	ROLE_SAMPLED_FREE,
	ROLE_CODE_RELEASED,
};

/* Where an argument of a function is at its probe point: the registers that a call may overwrite. */
enum argument_register {
	REGISTER_RDI,
	REGISTER_RSI,
	REGISTER_RDX,
	REGISTER_RCX,
	REGISTER_R8,
	REGISTER_R9,
	REGISTER_RAX,
	REGISTER_R10,
	REGISTER_R11,
};

/*
 * The cookie of a link: the role, and above it, lowest first, the registers of the role's arguments. cookie_of in
 * src/bpfleakd/kernel/abi.py.
 */
#define COOKIE_ROLE_BITS 8
#define COOKIE_REGISTER_BITS 4
/* For the roles ROLE_SAMPLED_*, in place of registers: the entry of `probe_operands` that has their arguments. */
#define COOKIE_OPERANDS_MASK 0xffffff
/* The function frees, and may do so by calling another probed function. */
#define COOKIE_CALLS_RELEASE (1ULL << 32)
/* The function allocates, and may do so by calling another probed function. */
#define COOKIE_CALLS_ALLOCATOR (1ULL << 33)
/*
 * In the highest bits: the slot of the link's process, its index in the maps that are arrays; or the mark of a link
 * that many processes share, whose programs look the slot up.
 */
#define COOKIE_SLOT_SHIFT 40
#define COOKIE_SLOT_SHARED 0xffffff

/*
 * Where the arguments of a probe are, according to the probe's note: in a register, in memory that registers point
 * to, or a constant. Registers have the numbers of machine code (rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to r15).
 * src/bpfleakd/kernel/probes/operands.py.
 */
enum operand_kind {
	OPERAND_CONSTANT,
	OPERAND_REGISTER,
	OPERAND_MEMORY,
};

#define NO_REGISTER 0xff
#define PROBE_ARGUMENTS 3

struct probe_operand {
	__s64 displacement;	/* or the constant */
	__u8 kind;
	__u8 base;		/* for memory, base and index may be NO_REGISTER */
	__u8 index;
	__u8 scale_shift;
	__u8 unused_bits;	/* 64 minus the argument's bits */
	__u8 is_signed;
	__u16 reserved;
};

struct probe_operands {
	struct probe_operand arguments[PROBE_ARGUMENTS];
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
 * CPython: where an interpreter keeps its threads and frames; all offsets are in bytes.
 * src/bpfleakd/runtimes/cpython/layout.py explains them and where they come from. `loop_count` 0: no interpreter, or
 * none with a trusted layout.
 */
#define PYTHON_LOOPS 4
#define PYTHON_FRAME_BYTES 128	/* the most that is read of a frame */
#define PYTHON_COPY_WORDS 256	/* a power of 2; less than a page */
#define PYTHON_COPY_BYTES (PYTHON_COPY_WORDS * 8)
#define PYTHON_WORDS 16		/* what is read of a thread's state, or of a code object; a power of 2 */
#define KNOWN_CODES_BITS 6

enum python_instruction {
	INSTRUCTION_BYTES,
	INSTRUCTION_UNITS,
	INSTRUCTION_POINTER,
};

enum python_entry {
	ENTRY_EACH,
	ENTRY_FLAG,
	ENTRY_OWNER,
};

struct python_loop {
	__u64 start;
	__u64 end;
};

struct python {
	__u32 loop_count;
	__u8 instruction_kind;
	__u8 entry_kind;
	/* Offset of the tid in the structure that a state's thread id points to; 0: the thread id is the tid. */
	__u16 thread_id_at;
	/* The PID namespace of the tids; inode 0: the daemon's. */
	__u64 namespace_device;
	__u64 namespace_inode;
	__u64 runtime;
	__u64 code_type;
	__u64 text_start;
	__u64 text_end;
	struct python_loop loops[PYTHON_LOOPS];
	__u16 interpreters_head;
	__u16 interpreter_next;
	__u16 threads_head;
	__u16 thread_next;
	__u16 thread_id;
	__u16 frame_path;
	/* Offset in that of another pointer, or NO_SECOND_STEP. */
	__u16 frame_path_second;
	__u16 frame_bytes;
	__u16 frame_code;
	__u16 frame_previous;
	__u16 frame_instruction;
	__u16 frame_entry;
	/*
	 * What distinguishes a code object from a later one at the same address: its first line and two of its
	 * pointers.
	 */
	__u16 code_checks[3];
	__u16 code_adaptive;
	/* Offset of the pointer to the state of the thread that has the interpreter's lock; 0: there is no such word. */
	__u16 current_state;
	/* Whether a probe counts each release of a code object in `code_releases`. */
	__u16 sees_releases;
	/* Whether local variables of the evaluation loop always lie at the same distance from its frame's end (CFA). */
	__u16 has_fixed_frames;
	/* How far below that end the cframe lies; programs find out. 0: unknown. */
	__u16 cframe_distance;
	__u64 code_releases;
};

#define NO_SECOND_STEP 0xffff

/*
 * The word of a Python frame in a stack: this bit, which no address has; the code object's address divided by 16; the
 * instruction in units of two bytes, all ones if it is unknown; and bits of a hash of the code object.
 */
#define PYTHON_FRAME (1ULL << 63)
#define PYTHON_CODE_SHIFT 20
#define PYTHON_UNIT_BITS 14
#define PYTHON_CHECK_BITS 6

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
	/* The interval of the sampler inside the process, by the last small block it announced; 0: no sampler. */
	__u64 inside_interval_bytes;
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

/*
 * Code that a process has mapped while it was recorded: code.h. If other code was at its addresses before, the words of
 * its frames have its number in `loaded_code` above the address.
 */
#define CODE_NUMBER_SHIFT 47
#define CODE_NUMBER_BITS 14
#define MAX_PROCESS_CODE 4096
#define MAX_LOADED_CODE 16384
#define KNOWN_CODE_RANGES 512		/* a power of 2 */
#define NUMBERED_CODE_RANGES 16	/* a power of 2 */
#define CODE_NAMES 16		/* a power of 2 */
#define CODE_NAME_BYTES 64

/* A file that is executable at [start, end), from `offset` on. Anonymous memory has device and inode 0. */
struct code_key {
	__u32 tgid;
	__u32 device;
	__u64 inode;
	__u64 start;
	__u64 end;
	__u64 offset;
};

struct code_name {
	char text[CODE_NAME_BYTES];
};

/*
 * The names in the path of its file, the last one first. `number` 0: the entry is being written. `was_unnumbered`: it
 * was the first code at its addresses, so words without a number belong to it.
 */
struct loaded_code {
	__u32 number;
	__u32 was_unnumbered;
	__u32 name_count;
	__u32 is_counted;	/* in process.code_changes */
	struct code_name names[CODE_NAMES];
};

struct code_range {
	__u64 start;
	__u64 end;
	/* A hash of the file and of the address at which it would begin. */
	__u64 identity;
	__u32 number;
	__u32 reserved;
};

/* Where code was lately, also before the attach; and where code with a number is now. */
struct code_ranges {
	__u64 next_known;
	__u64 next_numbered;
	struct code_range known[KNOWN_CODE_RANGES];
	struct code_range numbered[NUMBERED_CODE_RANGES];
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
 * Unwind tables: src/bpfleakd/unwind/table.py explains rows and page indexes, rules.py explains rules. Tables lie in
 * shards of equal size, each table (or piece of a large one) in one shard; its page index holds word numbers of the
 * shard.
 */
#define UNWIND_PAGE_BITS 12
#define UNWIND_PAGE_MASK 0xfff
#define UNWIND_SHARD_WORDS 0x40000	/* 1 MiB; a power of 2 */
#define MAX_UNWIND_MAPPINGS 1024	/* per process; a power of 2 */

enum cfa_kind {
	CFA_GAP,
	CFA_STOP,
	CFA_END,
	CFA_RSP,
	CFA_RBP,
	CFA_PLT,
	CFA_DEREF_RSP,
	CFA_DEREF_RBP,
	CFA_SIGNAL,
	CFA_MANAGED,
	CFA_MANAGED_TAGGED,
};

enum rbp_kind {
	RBP_SAME,
	RBP_AT_CFA,
	RBP_AT_RBP,
	RBP_AT_RSP,
	RBP_UNDEFINED,
};

/* The number of the rule for addresses without a table. */
#define RULE_GAP 0

/*
 * For CFA_MANAGED and CFA_MANAGED_TAGGED, frames of a runtime's code with a frame pointer, the fields are places.
 * `cfa_offset`: the object that identifies the function, from rbp. `cfa_addend`: another object in that one, which is
 * recorded in its place (0: none). `rbp_offset`: 4 bytes that distinguish the recorded object from others, in the
 * object or, if negative, in the frame, from rbp (0: none). `position_slot` and `caller_slot`: the position in the
 * function and the caller's rsp, in words from rbp (0: none, and rbp + 16). managed.h.
 */
struct unwind_rule {
	__u8 cfa_kind;
	__u8 rbp_kind;
	__s8 position_slot;
	__s8 caller_slot;
	__s32 cfa_offset;
	__s32 cfa_addend;
	__s32 rbp_offset;
};

/*
 * The words after the address of a managed frame in a stack: MANAGED_OBJECT, the object's address, and above it bits
 * of a hash that distinguishes it from others; then, if the rule has a position_slot, MANAGED_POSITION and the
 * position.
 */
#define MANAGED_OBJECT (2ULL << 61)
#define MANAGED_POSITION (3ULL << 61)
#define MANAGED_ADDRESS_BITS 47
#define MANAGED_CHECK_BITS 14

struct unwind_shard {
	__u32 words[UNWIND_SHARD_WORDS];
};

/*
 * Executable memory with a table: address - bias is the file's own address; the page of that plus index_base (modulo
 * 2^32) is the word in the shard where its rows begin. `gap_rule` applies where the table has no row. With ONE_RULE
 * in place of a shard, index_base is the number of the rule for the whole mapping.
 */
#define ONE_RULE 0xffff
/* In place of a shard: the table belongs to code that was here before. */
#define NO_SHARD 0xfffe

struct unwind_mapping {
	__u64 start;
	__u64 end;
	__u64 bias;
	__u16 shard;
	__u16 gap_rule;
	__u32 index_base;
};

/*
 * `pending`: tables of further mappings are still being built. `known_rules` caches the walker's results, by a hash
 * of the address: the address, and in the low KNOWN_RULE_BITS the number of its rule. It is valid for this list of
 * mappings and is replaced with it.
 */
#define KNOWN_RULES_BITS 10
#define KNOWN_RULE_BITS 16

struct unwind_mappings {
	__u32 count;
	__u32 pending;
	struct unwind_mapping sorted[MAX_UNWIND_MAPPINGS];
	__u64 known_rules[1 << KNOWN_RULES_BITS];
};

#define STACK_COPY_WORDS 256	/* a power of 2, at most a page */
#define STACK_COPY_BYTES (STACK_COPY_WORDS * 8)

enum python_phase {
	/* The next frame is a native frame. */
	PYTHON_NATIVE,
	/* The native frame of an evaluation loop was passed. */
	PYTHON_LOOP,
	/* Looking for the thread's state, after that. */
	PYTHON_SEARCH,
	/* The next frame of a state or of a loop is to be found. */
	PYTHON_NEXT,
	/* Among the Python frames of one evaluation loop. */
	PYTHON_RUN,
	/* After the last of them. */
	PYTHON_RUN_ENDS,
	/* Not tried again in this walk: the thread has no state, or a frame was not as expected. */
	PYTHON_GIVEN_UP,
};

/*
 * `frame` is the next Python frame. `rejoin_depth` and `rejoin_hash` are those of the walk after the last Python
 * frame, while only the interpreter's own code has followed (`rejoin_depth` 0: other code has, too).
 */
struct python_walk {
	__u32 phase;
	__u32 rejoin_depth;
	__u64 rejoin_hash;
	__u64 frame;
	/* A pointer to the next frame that has not been read yet; 0: there is none. */
	__u64 frame_at;
	/* ip and sp in the loop. */
	__u64 loop_ip;
	__u64 loop_sp;
	__u64 state;
	__u64 interpreter;
	/* How many code objects had been released when the walk began. */
	__u64 releases;
	__u32 run_depth;
	__u32 states_seen;
	__u32 count;
	/* Whether nothing but the proof at the end of the run shows that the thread's state is right. */
	__u32 is_unchecked;
	/* The walk before the run: its hash, depth, `count`, and the hash of code objects that the run continues. */
	__u64 run_hash;
	__u32 run_start;
	__u32 run_count;
	__u32 run_check;
	__u32 reserved;
};

/* The part of the last managed frame to record next: 0, or one of these. */
#define TAKE_OBJECT 1
#define TAKE_POSITION 2

/* What was read of the last managed frame; MANAGED_WORD_ABOVE is the word above that of the object. */
enum managed_word {
	MANAGED_WORD_POSITION,
	MANAGED_WORD_CHECK,
	MANAGED_WORD_OBJECT,
	MANAGED_WORD_ABOVE,
	MANAGED_WORD_CALLER,
	MANAGED_WORDS,
};

#define MANAGED_WORDS_ROOM 8	/* a power of 2 */

struct managed_walk {
	__u32 take;
	__u32 rule;
	__u64 words[MANAGED_WORDS_ROOM];
};

/*
 * Where a walk is. `exact`: ip is the address of an instruction; otherwise it is a return address, just after the
 * call.
 */
struct walk_state {
	__u64 ip;
	__u64 sp;
	__u64 bp;
	__u64 hash;
	__u32 exact;
	__u32 depth;
	__u32 end;
	/* Whether the walk followed a frame pointer in place of a table that is still being built. */
	__u32 guessed;
	struct managed_walk managed;
	struct python_walk python;
};

/* A code object, its hash, and the process' `code_releases` when the walk that read it began. */
struct known_code {
	__u64 address;
	__u64 check;
	__u64 releases;
};

struct walk_scratch {
	struct walk_state walk;
	__u64 python_copy_address;
	__u64 python_copy[PYTHON_COPY_WORDS];
	struct known_code known_codes[1 << KNOWN_CODES_BITS];
	__u64 copy_address;
	__u64 copy[STACK_COPY_WORDS];
	__u64 number;
};

/* An allocator call between its entry and its return. `entry_sp` 0: no call is pending. */
struct pending_call {
	__u64 entry_sp;
	__u64 return_address;
	__u64 function_ip;
	__u64 size;
	/* Of the new block; 0: the block is not recorded. */
	__u64 weight;
	/* realloc: the old block, removed from the live table during the call. */
	__u64 old_address;
	struct live_block old_block;
	/* posix_memalign: where to store the address. */
	__u64 result_pointer;
	/* At the return: the address of the new block. */
	__u64 new_address;
	__u64 old_known;
	/* While blocks are sampled: the thread's last allocation before the call, with bit 0 set. */
	__u64 allocation_before;
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

/* Per thread: uprobe programs can be preempted, so two of them could share memory per CPU. */
struct thread {
	struct pending_call pending;
	/* The block that the thread allocated last. */
	__u64 last_address;
	/* The block that a function is about to free by calling another one, whose probe comes next. */
	__u64 released;
	/* Python's state of the thread, and the thread id in it; 0: unknown. */
	__u64 python_state;
	__u64 python_thread_id;
	/* The thread's interpreter, if there is only one; otherwise 0. */
	__u64 python_interpreter;
	struct walk_scratch scratch;
	struct stack stack;
};

#endif
