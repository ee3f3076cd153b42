/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The interface to the daemon: the layout of a CPython interpreter, and the words of its frames in stacks. */
#ifndef BPFLEAKD_ABI_PYTHON_H
#define BPFLEAKD_ABI_PYTHON_H

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

#endif
