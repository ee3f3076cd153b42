/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What a thread keeps between two programs: its current call, its walk, and memory for both. */
#ifndef BPFLEAKD_THREAD_H
#define BPFLEAKD_THREAD_H

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
	/* What an allocator made accessible that is not reported yet: space.h, report_commit. */
	__u64 commit_start;
	__u64 commit_end;
	struct walk_scratch scratch;
	struct stack stack;
};

#endif
