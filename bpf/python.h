/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Python frames. The walk records them in place of the native frames of CPython's evaluation loop, which runs them.
 *
 * The state of a thread leads to a list of its frames, newest first: python_state.h. One evaluation loop runs some of
 * them, a *run*; enum python_entry says where a run ends. Between two loops, native frames of the interpreter are left
 * out, as in Python's own tracebacks. Native frames of extensions stay.
 *
 * From 3.12 on, the last frame of a run is a local variable of its loop. It proves that the loop runs these frames, and
 * not another one that the thread has in another state. Frames without this proof are taken back.
 *
 * Each call does one step (a state of the list, or a frame), so the loop of the walk bounds all of this. If something
 * cannot be read or is not a code object, this walk takes no more Python frames and continues with native ones.
 *
 * Most of what it costs is reads of user memory: 55 ns each into the program's stack, 85 ns into a map, because the
 * kernel checks the destination of a copy and accepts its own stack at once (CONFIG_HARDENED_USERCOPY). So a thread
 * remembers the hashes of code objects until any code object of the process is released (ROLE_CODE_RELEASED).
 */

/* A remembered state is checked after so many frames of a run, because the walk may not get to the proof at its end. */
#define PYTHON_UNPROVEN_MAX 48

/* What the walk is to do next. */
enum {
	NATIVE_WORD,	/* record the native frame, except that of a loop (PYTHON_LOOP), and go to its caller */
	PYTHON_WORD,	/* record *word */
	PYTHON_SEARCHES,	/* ask again */
};

#include "python_state.h"

static __always_inline void begin_python(struct thread *thread, volatile struct walk_state *walk)
{
	u32 segment;

#pragma unroll
	for (segment = 0; segment < PYTHON_SEGMENTS; segment++)
		thread->stack.checks[segment] = 0;
	walk->python.count = 0;
	thread->scratch.python_copy_address = NO_COPY;
	walk->python.phase = PYTHON_NATIVE;
	walk->python.frame = 0;
	walk->python.frame_at = 0;
	walk->python.rejoin_depth = 0;
	/* 0: the walk has met no evaluation loop yet. */
	walk->python.states_seen = 0;
}

/*
 * Have the `bytes` bytes of a frame in the copy. From 3.11 on, the frames lie on a stack that grows upwards, so what is
 * below a frame is its callers'. As far as it is in the same page, it is mapped, and is copied with it: 2 KB cost little
 * more than a word.
 */
static __always_inline bool copy_frame(struct walk_scratch *scratch, u64 frame, u32 bytes)
{
	u64 end = frame + bytes, start = end - PYTHON_COPY_BYTES, page = frame & ~0xfffULL;

	if (frame >= scratch->python_copy_address && end <= scratch->python_copy_address + PYTHON_COPY_BYTES)
		return true;
	scratch->python_copy_address = start < page ? page : start;
	if (!read_user(scratch->python_copy, PYTHON_COPY_BYTES, (void *)scratch->python_copy_address))
		return true;
	scratch->python_copy_address = NO_COPY;
	return false;
}

/* A word of the frame at `frame`, which the copy has. */
static __always_inline u64 frame_word(struct walk_scratch *scratch, u64 frame, u32 offset)
{
	u64 distance = frame + offset - scratch->python_copy_address;

	return *(volatile u64 *)&scratch->python_copy[(distance >> 3) & (PYTHON_COPY_WORDS - 1)];
}

static __always_inline u32 frame_byte(struct walk_scratch *scratch, u64 frame, u32 offset)
{
	return frame_word(scratch, frame, offset) >> ((offset & 7) * 8) & 0xff;
}

/* The place of the current instruction in the bytecode, in units of two bytes. */
static __always_inline u64 unit_of(struct walk_scratch *scratch, struct python *python, u64 frame, u64 code)
{
	u64 at = frame_word(scratch, frame, python->frame_instruction);

	if (python->instruction_kind == INSTRUCTION_POINTER) {
		at -= code + python->code_adaptive;
		/* Until 3.12, it points before the first instruction if that has not begun. */
		at = (s64)at < 0 ? 0 : at >> 1;
	} else {
		at = python->instruction_kind == INSTRUCTION_BYTES ? (u32)at >> 1 : (u32)at;
	}
	return at < (1 << PYTHON_UNIT_BITS) - 1 ? at : (1 << PYTHON_UNIT_BITS) - 1;
}

/* The run of an evaluation loop is over. If it had no Python frame, its native frame is recorded: *word. */
static __always_inline int end_run(volatile struct walk_state *walk, u32 phase, u64 *word)
{
	walk->python.phase = phase;
	if (!walk->python.run_depth) {
		*word = walk->python.loop_ip;
		return PYTHON_WORD;
	}
	walk->python.rejoin_depth = walk->depth;
	walk->python.rejoin_hash = walk->hash;
	return PYTHON_SEARCHES;
}

/*
 * Read a code object, and return its hash: 0 if there is none at the address. One without references is not remembered:
 * it is being released at this moment, which was counted already.
 */
static __always_inline u64 read_code(struct python *python, volatile struct walk_state *walk,
				     volatile struct known_code *known, u64 code)
{
	struct python_words read = {};
	u64 check;

	read_user(&read, sizeof(read), (void *)code);
	check = word_at(&read, python->code_checks[0]) ^ word_at(&read, python->code_checks[1]) << 16;
	check = hash_frame(word_at(&read, python->code_checks[2]), check);
	if (read.words[1] != python->code_type)
		check = 0;
	known->address = check && (u32)read.words[0] ? code : NO_COPY;
	known->releases = walk->python.releases;
	known->check = check;
	return check;
}

static __always_inline volatile struct known_code *known_code_at(struct walk_scratch *scratch, u64 place)
{
	return &scratch->known_codes[place & ((1 << KNOWN_CODES_BITS) - 1)];
}

/*
 * The hash of a code object, 0 if there is none at the address. It is read again only after a release of any code
 * object: until then, no other can have taken its address. Each has two places: with one, any two of ten would share
 * theirs in every second process, and each walk would read both.
 */
static __always_inline u64 check_of(struct walk_scratch *scratch, struct python *python,
				    volatile struct walk_state *walk, u64 code)
{
	u64 place = (code * 0x9e3779b97f4a7c15ULL) >> (64 - KNOWN_CODES_BITS);
	volatile struct known_code *known = known_code_at(scratch, place), *other = known_code_at(scratch, place ^ 1);

	if (known->address == code && known->releases == walk->python.releases)
		return known->check;
	if (other->address == code && other->releases == walk->python.releases)
		return other->check;
	return read_code(python, walk, known->releases == walk->python.releases ? other : known, code);
}

/* The number of the hash that covers the Python frame behind `count` others. */
static __always_inline u32 segment_of(struct walk_scratch *scratch, u32 count)
{
	u32 segment = count / PYTHON_SEGMENT_FRAMES;

	return forget(scratch, segment < PYTHON_SEGMENTS ? segment : PYTHON_SEGMENTS - 1) & (PYTHON_SEGMENTS - 1);
}

/* Fold the hash of a frame's code object into the hashes of the stack. Its word is pushed next, and mixes them. */
static __always_inline void note_check(struct thread *thread, volatile struct walk_state *walk, u64 check)
{
	u32 count = walk->python.count, *sum = &thread->stack.checks[segment_of(&thread->scratch, count)];

	walk->hash ^= check;
	*sum = hash_frame(*sum, check);
	walk->python.count = count + 1;
}

/* Note where the run begins. */
static __always_inline void begin_run(struct thread *thread, volatile struct walk_state *walk)
{
	walk->python.run_start = walk->depth;
	walk->python.run_hash = walk->hash;
	walk->python.run_count = walk->python.count;
	walk->python.run_check = thread->stack.checks[segment_of(&thread->scratch, walk->python.count)];
}

/*
 * The run has ended without its proof: it is not the loop's, or cannot be read. Take its frames back, and have the next
 * walk search the thread's state.
 */
static __always_inline int take_back(struct thread *thread, struct python *python, volatile struct walk_state *walk,
				     u64 *word)
{
	u32 first = segment_of(&thread->scratch, walk->python.run_count), segment;

	if (!has_proof(python, walk))
		return end_run(walk, PYTHON_GIVEN_UP, word);
	thread->python_state = 0;
	if (walk->python.run_depth) {
		walk->depth = walk->python.run_start;
		walk->hash = walk->python.run_hash;
#pragma unroll
		for (segment = 0; segment < PYTHON_SEGMENTS; segment++)
			if (segment >= first)
				thread->stack.checks[segment] = segment == first ? walk->python.run_check : 0;
	}
	walk->python.run_depth = 0;
	return end_run(walk, PYTHON_GIVEN_UP, word);
}

/* Take a frame of the run. *word is its word in the stack. */
static __always_inline int take_python_frame(struct thread *thread, struct python *python,
					     volatile struct walk_state *walk, u64 *word)
{
	struct walk_scratch *scratch = &thread->scratch;
	u64 frame = walk->python.frame, code, check;
	u32 bytes = python->frame_bytes;

	/* The last one of a loop is its local variable (ENTRY_OWNER), and only that lies there. */
	if (is_in_loop_frame(walk, frame)) {
		walk->python.frame = 0;
		walk->python.frame_at = frame + python->frame_previous;
		return end_run(walk, PYTHON_NATIVE, word);
	}
	if (walk->python.is_unchecked && walk->python.run_depth == PYTHON_UNPROVEN_MAX &&
	    newest_interpreter(python) != thread->python_interpreter)
		frame = 0;
	if (!frame || (frame & 7) || bytes > PYTHON_FRAME_BYTES || !copy_frame(scratch, frame, bytes))
		return take_back(thread, python, walk, word);
	walk->python.frame = frame_word(scratch, frame, python->frame_previous);
	if (python->entry_kind == ENTRY_OWNER && frame_byte(scratch, frame, python->frame_entry) >= 3)
		return has_proof(python, walk) ? take_back(thread, python, walk, word) :
						 end_run(walk, PYTHON_NATIVE, word);

	/* Since 3.14, the low bits are tags. */
	code = frame_word(scratch, frame, python->frame_code) & ~7ULL;
	check = check_of(scratch, python, walk, code);
	if (!check)
		return take_back(thread, python, walk, word);
	*word = PYTHON_FRAME | (code >> 4) << PYTHON_CODE_SHIFT |
		unit_of(scratch, python, frame, code) << PYTHON_CHECK_BITS | check >> (64 - PYTHON_CHECK_BITS);

	if (!walk->python.run_depth++) {
		if (walk->python.rejoin_depth) {
			walk->depth = walk->python.rejoin_depth;
			walk->hash = walk->python.rejoin_hash;
		}
		begin_run(thread, walk);
	}
	note_check(thread, walk, check);
	if (python->entry_kind == ENTRY_EACH ||
	    (python->entry_kind == ENTRY_FLAG && frame_byte(scratch, frame, python->frame_entry)))
		walk->python.phase = PYTHON_RUN_ENDS;
	return PYTHON_WORD;
}

/* What the walk is to do next; with PYTHON_WORD, *word is the frame. */
static __always_inline int next_is_python(struct thread *thread, struct python *python,
					  volatile struct walk_state *walk, u64 *word)
{
	if (!python->loop_count)
		return NATIVE_WORD;
	switch (walk->python.phase) {
	case PYTHON_RUN_ENDS:
		return end_run(walk, PYTHON_NATIVE, word);
	case PYTHON_LOOP:
		enter_loop(thread, python, walk);
		return PYTHON_SEARCHES;
	case PYTHON_RUN:
		return take_python_frame(thread, python, walk, word);
	case PYTHON_NEXT:
		find_frame(thread, python, walk);
		return PYTHON_SEARCHES;
	case PYTHON_SEARCH:
		search_state(thread, python, walk);
		return PYTHON_SEARCHES;
	case PYTHON_NATIVE:
		if (is_in_loop(python, walk->ip)) {
			walk->python.loop_ip = walk->ip;
			walk->python.loop_sp = walk->sp;
			walk->python.run_depth = 0;
			walk->python.phase = PYTHON_LOOP;
			return NATIVE_WORD;
		}
		/* Code of others between two loops stays in the stack, and with it all frames around it. */
		if (walk->ip - python->text_start >= python->text_end - python->text_start)
			walk->python.rejoin_depth = 0;
	}
	return NATIVE_WORD;
}
