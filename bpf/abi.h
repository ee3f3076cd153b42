/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What crosses from the kernel to the daemon: keys, values and numbers of the maps.
 *
 * src/bpfleakd/kernel/abi.py mirrors the structs; tests/unit/kernel/test_abi.py compiles this file and
 * compares every size, offset and number.
 */
#ifndef BPFLEAKD_ABI_H
#define BPFLEAKD_ABI_H

/* Frames kept of a stack: the allocator function, then return addresses, innermost first. A power of 2. */
#define MAX_FRAMES 128

enum allocation_kind {
	KIND_HEAP = 0,
	/* File descriptors: each counts as one, not as bytes. */
	KIND_DESCRIPTOR = 1,
};

/* What a probed function does with its arguments. src/bpfleakd/model/code/probe.py FunctionRole. */
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
	/* No functions, but the probes of a sampler inside the process: sampled.h. */
	ROLE_SAMPLED_ALLOC,
	ROLE_SAMPLED_FREE,
};

/* Where an argument of a function is at its probe point: the registers that calls may overwrite. */
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
 * The cookie of a link: the role, and above it, lowest first, the registers of the arguments that the role
 * is about. src/bpfleakd/kernel/abi.py cookie_of.
 */
#define COOKIE_ROLE_BITS 8
#define COOKIE_REGISTER_BITS 4
/* Of the roles ROLE_SAMPLED_*, in place of registers: the entry of `probe_operands` that has their arguments. */
#define COOKIE_OPERANDS_MASK 0xffffff
/* Of a function that frees: it may do so by calling another one that has a probe. */
#define COOKIE_CALLS_RELEASE (1ULL << 32)
/* Of a function that allocates: it may do so by calling another one that has a probe. */
#define COOKIE_CALLS_ALLOCATOR (1ULL << 33)
/*
 * Above them the slot of the process that the link is of: its place in the maps that are arrays. Or that the
 * link is of many processes: then the current task tells.
 */
#define COOKIE_SLOT_SHIFT 40
#define COOKIE_SLOT_SHARED 0xffffff

/*
 * Where the arguments of a probe are, as the note of the probe says it: in a register, in memory that registers point to,
 * or a constant. Registers are numbered as in machine code (rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to r15).
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
	__u8 base;		/* of memory it may be NO_REGISTER, and so may index */
	__u8 index;
	__u8 scale_shift;
	__u8 unused_bits;	/* 64 less the argument's own */
	__u8 is_signed;
	__u16 reserved;
};

struct probe_operands {
	struct probe_operand arguments[PROBE_ARGUMENTS];
};

/* What a process is allowed to add to the tables; the daemon and the exec probe write it. */
enum recording_state {
	STATE_STOPPED = 0,
	STATE_RECORDING = 1,
	/* It called exec: the addresses in its tables mean nothing any more. */
	STATE_EXECED = 2,
	/* No daemon has given a sign of life for so long that recording was stopped; frees are missed since. */
	STATE_UNATTENDED = 3,
};

/* Every way to miss something. A counter of each is kept for each process. */
enum loss {
	LOSS_LIVE_FULL,		/* a block was not recorded: the process' live table is full */
	LOSS_SITE_FULL,		/* counted at the overflow site: no room for a new call site */
	LOSS_STACK_FULL,	/* a site without its stack: no room for a new stack */
	LOSS_THREAD_FULL,	/* a call was not recorded: no room for a new thread */
	LOSS_RETURN_MISSED,	/* a call was not recorded: its return was never seen */
	LOSS_FREE_MISSED,	/* a block's address was given out again before its free was seen */
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
	/* It followed frame pointers where a table was still to come: frames may be missing. */
	END_TABLE_PENDING,
};

#define LAST_ALLOCATIONS 64	/* a power of 2 */

/* In place of an end: another program walks on. */
#define WALK_GOES_ON 0xff

/*
 * Sampling: sampling.h. An interval is 2^sample_shift bytes, at most 2^MAX_SAMPLE_SHIFT; estimates of blocks
 * are counted in fractions, and variances in units of so many bytes^2 and of one COUNT_UNITth of a block^2.
 */
#define MAX_SAMPLE_SHIFT 22
#define CURVE_STEPS 128		/* a power of 2 */
#define COUNT_UNIT 65536
#define BYTES_VARIANCE_UNIT 65536

struct sampling_curve {
	__u32 points[CURVE_STEPS + 1];
};

/*
 * CPython: where an interpreter keeps its threads and frames, all offsets in bytes.
 * src/bpfleakd/runtimes/cpython/layout.py says what they mean and where they come from. `loop_count` 0: there is no
 * interpreter, or none whose layout is trusted.
 */
#define PYTHON_LOOPS 4
#define PYTHON_FRAME_BYTES 128	/* the part of a frame that is read, at most */
#define PYTHON_COPY_WORDS 128	/* a power of 2; less than a page */
#define PYTHON_COPY_BYTES (PYTHON_COPY_WORDS * 8)
#define PYTHON_CODE_WORDS 16	/* a power of 2 */
#define PYTHON_CODE_BYTES 80	/* the head of a code object, to its first line */

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
	/* Where the tid is in what a state's thread id points to; 0: the thread id is the tid. */
	__u16 thread_id_at;
	/* The pid namespace that tids are of; inode 0: the daemon's. */
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
	/* Where that leads to another pointer, otherwise NO_SECOND_STEP. */
	__u16 frame_path_second;
	__u16 frame_bytes;
	__u16 frame_code;
	__u16 frame_previous;
	__u16 frame_instruction;
	__u16 frame_entry;
	/* What tells a code object from another that later has its address: its first line and two of its pointers. */
	__u16 code_checks[3];
	__u16 code_adaptive;
};

#define NO_SECOND_STEP 0xffff

/*
 * The word of a Python frame in a stack: this bit, which no address has; the code object's address in 16 bytes;
 * the instruction in units of two bytes, all ones if that is not known; and bits of a hash of the code object.
 */
#define PYTHON_FRAME (1ULL << 63)
#define PYTHON_CODE_SHIFT 20
#define PYTHON_UNIT_BITS 14
#define PYTHON_CHECK_BITS 6

/* Not every block was recorded, at some time; or now, so that frees of unknown ones tell nothing. */
#define SAMPLING_EVER 1
#define SAMPLING_NOW 2

#define CALL_COUNTERS 8		/* a power of 2 */

/* What happens in a process at every call, by the low bits of the processor's number: a cache line each. */
struct call_counter {
	/* How often the process ran into a program: what each time costs is the kernel's way there, mostly. */
	__u64 probe_hits;
	/*
	 * While blocks are sampled: blocks that were allocated and not recorded, and frees of unknown blocks. A call
	 * that leads through two probed functions may add one to both.
	 */
	__u64 unrecorded;
	__u64 unknown_frees;
	__u64 unused[5];
};

struct process {
	/* What every probe reads. A slot that nobody has is of tgid 0. */
	__u32 tgid;
	__u32 state;
	/* 0: every block is recorded. */
	__u32 sample_shift;
	/* SAMPLING_* */
	__u32 sampling;
	/* One more at each reading of the daemon's, from 1 on: record.h, note_change. */
	__u32 reading;
	/* Whether a site changed that found no room in `changed_sites`. Set to 0 by the daemon, which reads all then. */
	__u32 change_unlisted;
	__u64 unmatched_frees;
	/* The interval of the sampler inside the process, as the last small block of it said; 0: there is none. */
	__u64 inside_interval_bytes;
	/* How often the dynamic loader has mapped or unmapped libraries. */
	__u64 library_changes;
	__u64 losses[LOSS_KINDS];
	/* Blocks that went into the live table and out of it. */
	__u64 recorded;
	__u64 released;
	/* What it takes of the tables that all processes share: no one may take more than MAX_PROCESS_SITES. */
	__u64 site_count;
	__u64 stack_count;
	/* How many of them the daemon has removed again, to make room, and what the sites had counted. No program writes these. */
	__u64 sites_removed;
	__u64 stacks_removed;
	__u64 removed_bytes;
	__u64 removed_count;
	__u64 removed_temporary_count;
	/* How many space_events were reported since the daemon began the reading `space_reading`, and how many may be. */
	__u32 space_reading;
	__u32 space_count;
	__u32 space_quota;
	/* While the daemon removes sites, the first `reading` in which a site that stays has changed; else 0. */
	__u32 removed_before;
	/*
	 * What is live in the heap, and the most that was since the last space_event: only together with what was
	 * mapped at the same time does it make the peak of the process.
	 */
	__s64 live_bytes;
	__s64 peak_live_bytes;
	/* By the low bits of the tid: record.h, last_allocation. */
	__u64 last_allocations[LAST_ALLOCATIONS];
	/* Pieces of code in `loaded_code`, how many of them are whole, and where addresses have numbers: code.h. */
	__u64 code_count;
	__u64 code_changes;
	__u64 numbered_start;
	__u64 numbered_end;
	/* How many of the `unknown_frees` free nothing, as estimated from one in UNKNOWN_FREES_PER_LOOK. */
	__u64 false_frees;
	struct call_counter calls[CALL_COUNTERS];
	/* Written by the daemon, loop_count last. */
	struct python python;
};

/*
 * Frees of unknown blocks by a thread, the first of them at `first_ns`, that count for nothing yet: glibc gives the
 * blocks of a thread's cache to free() a second time when the thread ends (malloc.c, tcache_thread_shutdown).
 */
struct unproven_frees {
	__u64 first_ns;
	__u64 count;
};

/* `stack_id` 0 is the overflow site: allocations whose own site found no room. */
struct site_key {
	__u32 tgid;
	__u32 kind;
	__u64 stack_id;
};

/* Estimates, where blocks are sampled; counts are in units of 1/COUNT_UNIT. */
struct site {
	__s64 live_bytes;
	__s64 live_count;
	__u64 allocated_bytes;
	__u64 allocated_count;
	/* Blocks freed by the thread that allocated them, which had not allocated another since. */
	__u64 temporary_count;
	__s64 peak_live_bytes;
	/* The process' `reading` at the change that was listed last. */
	__u32 listed;
	__u32 reserved;
	/* The entry's last words, since they change only where blocks are sampled. */
	__s64 live_bytes_variance;
	__s64 live_count_variance;
};

/* A site that changed, and the `reading` of its process then. */
struct changed_site {
	__u32 tgid;
	__u32 kind;
	__u64 stack_id;
	__u32 reading;
	__u32 reserved;
};

/* Written by the daemon at each tick. A timeout of 0 is for ever. */
struct heartbeat {
	__u64 beat_ns;
	__u64 timeout_ns;
};

struct stack_key {
	__u64 tgid;
	__u64 stack_id;
};

/*
 * `checks` are hashes over the code objects of PYTHON_SEGMENT_FRAMES Python frames each, innermost first, the last
 * over all further ones.
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
 * Code that a process has mapped since it is recorded: code.h. The word of a frame in code whose addresses were other
 * code's before has the number of `loaded_code` above its address.
 */
#define CODE_NUMBER_SHIFT 47
#define CODE_NUMBER_BITS 14
#define MAX_PROCESS_CODE 4096
#define MAX_LOADED_CODE 16384
#define KNOWN_CODE_RANGES 512		/* a power of 2 */
#define NUMBERED_CODE_RANGES 16	/* a power of 2 */
#define CODE_NAMES 16		/* a power of 2 */
#define CODE_NAME_BYTES 64

/* A file that is executable at [start, end), from `offset` on; anonymous memory is of device and inode 0. */
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
 * The names in the path of its file, the last first. `number` 0: it is being written. `was_unnumbered`: it was the first
 * there, so that words without a number are of it.
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
	/* A hash over the file and where it would begin. */
	__u64 identity;
	__u32 number;
	__u32 reserved;
};

/* Where code has been: the last of it, also from before the attach. And where code with a number is now. */
struct code_ranges {
	__u64 next_known;
	__u64 next_numbered;
	struct code_range known[KNOWN_CODE_RANGES];
	struct code_range numbered[NUMBERED_CODE_RANGES];
};

/* It is recorded with the probability size/weight: sampling.h. */
struct live_block {
	__u64 size;
	__u64 weight;
	__u64 born_ns;
	__u64 stack_id;
	__u32 tid;
	__u32 kind;
};

/*
 * Unwind tables: src/bpfleakd/unwind/table.py says what rows and page index are, rules.py what a rule
 * is. Tables lie in shards of equal size, a table (or a piece of a large one) in one of them; its page
 * index holds word numbers of the shard.
 */
#define UNWIND_PAGE_BITS 12
#define UNWIND_PAGE_MASK 0xfff
#define UNWIND_SHARD_WORDS 0x40000	/* 1 MiB; a power of 2 */
#define MAX_UNWIND_MAPPINGS 1024	/* a process; a power of 2 */

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

/* The number of the rule that says that there is no table. */
#define RULE_GAP 0

/*
 * Of CFA_MANAGED and CFA_MANAGED_TAGGED, frames of a runtime's own code with a frame pointer, the fields are places:
 * `cfa_offset` of the object that says which function a frame is of, from rbp; `cfa_addend` of another in that, which is
 * recorded in its place (0: none), `rbp_offset` of 4 bytes in the recorded one that tell it from others (0: none);
 * `position_slot` and `caller_slot`, in words from rbp, of where the function is and of its caller's rsp (0: none, and
 * rbp + 16). managed.h.
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
 * What stands in a stack behind the address of a managed frame: MANAGED_OBJECT, the object's address, and above it bits
 * of a hash of what tells it from others. And behind that, if the rule says where it is, MANAGED_POSITION and the place.
 */
#define MANAGED_OBJECT (2ULL << 61)
#define MANAGED_POSITION (3ULL << 61)
#define MANAGED_ADDRESS_BITS 47
#define MANAGED_CHECK_BITS 14

struct unwind_shard {
	__u32 words[UNWIND_SHARD_WORDS];
};

/*
 * Executable memory that has a table: address - bias is the file's own address, and the page of that
 * plus index_base (modulo 2^32) the word in the shard where its rows begin. Where the table has nothing, `gap_rule` holds.
 * With ONE_RULE in place of a shard index_base is the number of the rule that holds in all of it.
 */
#define ONE_RULE 0xffff
/* In place of a shard: the table is that of other code, which was here before. */
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
 * `pending`: tables of further mappings are still being built. `known_rules` is what the walker found lately, by a
 * hash of the address: the address, and in the low KNOWN_RULE_BITS the number of its rule. It holds for this very
 * list of mappings, and goes with it.
 */
#define KNOWN_RULES_BITS 10
#define KNOWN_RULE_BITS 16

struct unwind_mappings {
	__u32 count;
	__u32 pending;
	struct unwind_mapping sorted[MAX_UNWIND_MAPPINGS];
	__u64 known_rules[1 << KNOWN_RULES_BITS];
};

#define STACK_COPY_WORDS 256	/* a power of 2, of a page at most */
#define STACK_COPY_BYTES (STACK_COPY_WORDS * 8)

enum python_phase {
	/* The next frame is a native one. */
	PYTHON_NATIVE,
	/* Looking for the thread's state; the next frame is an evaluation loop's. */
	PYTHON_SEARCH,
	/* Among the frames that one evaluation loop runs. */
	PYTHON_RUN,
	/* Behind the last of them. */
	PYTHON_RUN_ENDS,
	/* Not tried again in this walk: the thread has no state, or a frame was not what it should be. */
	PYTHON_GIVEN_UP,
};

/*
 * `frame` is the next Python frame. `rejoin_depth` and `rejoin_hash` are those of the walk after the last Python
 * frame, as long as only the interpreter's own code was met since (`rejoin_depth` 0: other code was, too).
 */
struct python_walk {
	__u32 phase;
	__u32 rejoin_depth;
	__u64 rejoin_hash;
	__u64 frame;
	__u64 state;
	__u64 interpreter;
	/* The hash over all code objects. */
	__u64 check;
	__u32 run_depth;
	__u32 states_seen;
	__u32 count;
	__u32 reserved;
};

/* What of the last frame, whose rule and frame pointer these are, is to be recorded next: 0, or one of these. */
#define TAKE_OBJECT 1
#define TAKE_POSITION 2

struct managed_walk {
	__u32 take;
	__u32 rule;
	__u64 frame;
	/* What is read of it. */
	__u64 words[3];
};

/*
 * Where a walk is. `exact`: ip is that of an instruction, otherwise it is a return address, one behind
 * the call.
 */
struct walk_state {
	__u64 ip;
	__u64 sp;
	__u64 bp;
	__u64 hash;
	__u32 exact;
	__u32 depth;
	__u32 end;
	/* Whether a frame pointer was followed in place of a table that is still to come. */
	__u32 guessed;
	struct managed_walk managed;
	struct python_walk python;
};

struct walk_scratch {
	struct walk_state walk;
	__u64 python_copy_address;
	__u64 python_copy[PYTHON_COPY_WORDS];
	__u64 python_code[PYTHON_CODE_WORDS];
	__u64 copy_address;
	__u64 copy[STACK_COPY_WORDS];
	__u64 number;
};

/* An allocator call between its entry and its return. `entry_sp` 0 means that none is under way. */
struct pending_call {
	__u64 entry_sp;
	__u64 return_address;
	__u64 function_ip;
	__u64 size;
	/* Of the new block; 0: it is not recorded. */
	__u64 weight;
	/* realloc: the block handed in, taken out of the live table for the time of the call. */
	__u64 old_address;
	struct live_block old_block;
	/* posix_memalign: where the caller wants the address. */
	__u64 result_pointer;
	/* At the return: the address of the new block. */
	__u64 new_address;
	__u64 old_known;
	/* While blocks are sampled: the thread's last allocation before the call, and 1. */
	__u64 allocation_before;
};

/*
 * A call that changed the address space, as the programs saw it; src/bpfleakd/kernel/address_space_events.py makes
 * sense of it. munmap and mremap come at their entry already, since afterwards another thread may have
 * got the same addresses.
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
	/* process.peak_live_bytes, which begins again here. */
	__s64 heap_peak_bytes;
	__u32 tgid;
	__u32 tid;
	__u32 syscall;
	__u32 phase;
	__u32 inside_allocator;
	__u32 reserved;
};

/* Per thread: uprobe programs can be preempted, so per-CPU memory would be shared by two of them. */
struct thread {
	struct pending_call pending;
	/* The block that it allocated last. */
	__u64 last_address;
	/* What a function that calls another to free it has just been given; the other's probe is next. */
	__u64 released;
	/* The state that Python has of the thread, and its thread id as it says there; 0: not known. */
	__u64 python_state;
	__u64 python_thread_id;
	/* Its interpreter, which is the only one; 0: there are several. */
	__u64 python_interpreter;
	struct walk_scratch scratch;
	struct stack stack;
};

#endif
