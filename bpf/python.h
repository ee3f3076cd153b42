/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Python frames: in place of each native frame of CPython's evaluation loop, the Python frames that it runs.
 *
 * From the thread's state a list of frames leads from the newest to the oldest; one evaluation loop runs a part
 * of it (enum python_entry says where that ends). Native frames of the interpreter itself between two loops are
 * left out, as in Python's own tracebacks; those of extensions stay.
 *
 * The thread is told by its id, not by who holds the interpreter's lock: code that has let go of it allocates too.
 * The state found is remembered with the thread, and holds as long as it has the same thread id and its interpreter
 * is the only one. A thread has a state in each interpreter that it has run: those with frames are taken one after the
 * other, the newest interpreter first, since the list begins with it and the older one called it.
 *
 * Each call does one thing, a state of the list or a frame, so that the walk's own loop bounds all of it. Whatever
 * cannot be read, or is not of the type `code`, ends the Python frames of this walk, and the native ones go on.
 */

/* A program with more threads is given up: its later ones have native frames only. */
#define PYTHON_STATES_MAX 512

/* What the walk is to do next. */
enum {
	NATIVE_WORD,	/* take the native frame, and go to its caller */
	NATIVE_REPLACED,	/* go to the caller: Python frames stand for this one */
	PYTHON_WORD,	/* take *word */
	PYTHON_SEARCHES,	/* ask again */
};

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
	walk->python.check = 0;
	walk->python.rejoin_depth = 0;
	/* 0: the list of frames has not been looked for yet. */
	walk->python.states_seen = 0;
}

static __always_inline u64 read_python_word(u64 address)
{
	u64 word = 0;

	read_user(&word, sizeof(word), (void *)address);
	return word;
}

static __always_inline bool is_in_loop(struct python *python, u64 ip)
{
	u32 index;

#pragma unroll
	for (index = 0; index < PYTHON_LOOPS; index++)
		if (ip - python->loops[index].start < python->loops[index].end - python->loops[index].start)
			return true;
	return false;
}

/* The id of the current thread, as the process sees it. */
static __always_inline u32 python_tid(struct python *python)
{
	struct bpf_pidns_info here = {};

	if (!python->namespace_inode)
		return (u32)current_id();
	if (bpf_get_ns_current_pid_tgid(python->namespace_device, python->namespace_inode, &here, sizeof(here)))
		return 0;
	return here.pid;
}

/* The thread id in a state, which before Python 3.11 is an address: the C library's note of the thread is there. */
static __always_inline u64 thread_id_in(struct python *python, u64 state)
{
	return read_python_word(state + python->thread_id);
}

static __always_inline u32 tid_of(struct python *python, u64 thread_id)
{
	return (u32)(python->thread_id_at ? read_python_word(thread_id + python->thread_id_at) : thread_id);
}

/* Begin with the newest frame of a thread's state. */
static __always_inline void enter_frames(struct python *python, volatile struct walk_state *walk, u64 state)
{
	u64 frame = read_python_word(state + python->frame_path);

	if (python->frame_path_second != NO_SECOND_STEP && frame)
		frame = read_python_word(frame + python->frame_path_second);
	walk->python.frame = frame;
	walk->python.run_depth = 0;
	walk->python.phase = frame ? PYTHON_RUN : PYTHON_GIVEN_UP;
}

/* An evaluation loop is the next native frame: find the thread's state, or go on with its frames. */
static __always_inline void enter_loop(struct thread *thread, struct python *python,
				       volatile struct walk_state *walk)
{
	u64 state = thread->python_state, newest;

	if (walk->python.states_seen) {
		walk->python.run_depth = 0;
		walk->python.phase = walk->python.frame ? PYTHON_RUN : PYTHON_GIVEN_UP;
		if (!walk->python.frame && walk->python.interpreter) {
			/* The loop is that of another interpreter. */
			walk->python.state = read_python_word(walk->python.state + python->thread_next);
			walk->python.phase = PYTHON_SEARCH;
		}
		return;
	}
	walk->python.states_seen = 1;
	walk->python.interpreter = 0;
	newest = read_python_word(python->runtime + python->interpreters_head);
	if (state && newest == thread->python_interpreter &&
	    thread_id_in(python, state) == thread->python_thread_id) {
		enter_frames(python, walk, state);
		return;
	}
	thread->python_state = 0;
	walk->python.interpreter = newest;
	walk->python.state = newest ? read_python_word(newest + python->threads_head) : 0;
	walk->python.phase = PYTHON_SEARCH;
}

/* Remember the state of the thread, and its interpreter if there is no other: then it is the first and the last one. */
static __always_inline void note_state(struct thread *thread, struct python *python, u64 interpreter, u64 state,
				       u64 thread_id)
{
	bool is_only = interpreter == read_python_word(python->runtime + python->interpreters_head) &&
		       !read_python_word(interpreter + python->interpreter_next);

	thread->python_state = state;
	thread->python_thread_id = thread_id;
	thread->python_interpreter = is_only ? interpreter : 0;
}

static __always_inline void search_state(struct thread *thread, struct python *python,
					 volatile struct walk_state *walk)
{
	u64 state = walk->python.state, thread_id;

	if (walk->python.states_seen++ > PYTHON_STATES_MAX || !walk->python.interpreter) {
		walk->python.phase = PYTHON_GIVEN_UP;
		return;
	}
	if (!state) {
		walk->python.interpreter = read_python_word(walk->python.interpreter + python->interpreter_next);
		if (walk->python.interpreter)
			walk->python.state =
				read_python_word(walk->python.interpreter + python->threads_head);
		return;
	}
	thread_id = thread_id_in(python, state);
	if (thread_id && tid_of(python, thread_id) == python_tid(python)) {
		note_state(thread, python, walk->python.interpreter, state, thread_id);
		enter_frames(python, walk, state);
		if (walk->python.frame)
			return;
		walk->python.phase = PYTHON_SEARCH;
	}
	walk->python.state = read_python_word(state + python->thread_next);
}

/*
 * Have the `bytes` bytes of a frame in the copy. Most frames lie one below the other (from 3.11 on), so what is below in
 * the same page is copied at once: it is there, and costs little more.
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

/* A word of the frame at `frame`, which is in the copy. */
static __always_inline u64 frame_word(struct walk_scratch *scratch, u64 frame, u32 offset)
{
	u64 distance = frame + offset - scratch->python_copy_address;

	return scratch->python_copy[forget(scratch, distance >> 3) & (PYTHON_COPY_WORDS - 1)];
}

static __always_inline u32 frame_byte(struct walk_scratch *scratch, u64 frame, u32 offset)
{
	return frame_word(scratch, frame, offset) >> ((offset & 7) * 8) & 0xff;
}

/* How far the instruction is into the bytecode, in units of two bytes. */
static __always_inline u64 unit_of(struct walk_scratch *scratch, struct python *python, u64 frame, u64 code)
{
	u64 at = frame_word(scratch, frame, python->frame_instruction);

	if (python->instruction_kind == INSTRUCTION_POINTER) {
		at -= code + python->code_adaptive;
		/* Until 3.12 it is the instruction before, when the first is still to come. */
		at = (s64)at < 0 ? 0 : at >> 1;
	} else {
		at = python->instruction_kind == INSTRUCTION_BYTES ? (u32)at >> 1 : (u32)at;
	}
	return at < (1 << PYTHON_UNIT_BITS) - 1 ? at : (1 << PYTHON_UNIT_BITS) - 1;
}

/* The run of one loop is over. Where it had no frame of its own, the native one stays. */
static __always_inline int end_run(volatile struct walk_state *walk, u32 phase)
{
	walk->python.phase = phase;
	if (!walk->python.run_depth)
		return NATIVE_WORD;
	walk->python.rejoin_depth = walk->depth;
	walk->python.rejoin_hash = walk->hash;
	return NATIVE_REPLACED;
}

static __always_inline u64 code_word(struct walk_scratch *scratch, u32 offset)
{
	return scratch->python_code[forget(scratch, offset >> 3) & (PYTHON_CODE_WORDS - 1)];
}

/* Fold the code object just read into the stack's checks; returns the bits for the frame's word. */
static __always_inline u64 note_code(struct thread *thread, struct python *python,
				     volatile struct walk_state *walk)
{
	struct walk_scratch *scratch = &thread->scratch;
	u32 count = walk->python.count, segment = count / PYTHON_SEGMENT_FRAMES, *sum;
	u64 names = code_word(scratch, python->code_checks[2]), check;

	check = code_word(scratch, python->code_checks[0]) ^ code_word(scratch, python->code_checks[1]) << 16;
	check = hash_frame(names, check);
	walk->python.check = hash_frame(walk->python.check, check);
	if (segment >= PYTHON_SEGMENTS)
		segment = PYTHON_SEGMENTS - 1;
	sum = &thread->stack.checks[forget(scratch, segment) & (PYTHON_SEGMENTS - 1)];
	*sum = hash_frame(*sum, check);
	walk->python.count = count + 1;
	return check >> (64 - PYTHON_CHECK_BITS);
}

/* Take a frame of the run; *word is what stands for it. */
static __always_inline int take_python_frame(struct thread *thread, struct python *python,
					     volatile struct walk_state *walk, u64 *word)
{
	struct walk_scratch *scratch = &thread->scratch;
	u64 frame = walk->python.frame, code, check;
	u32 bytes = python->frame_bytes;

	if (!frame || (frame & 7) || bytes > PYTHON_FRAME_BYTES || !copy_frame(scratch, frame, bytes))
		return end_run(walk, PYTHON_GIVEN_UP);
	walk->python.frame = frame_word(scratch, frame, python->frame_previous);
	if (python->entry_kind == ENTRY_OWNER && frame_byte(scratch, frame, python->frame_entry) >= 3)
		return end_run(walk, PYTHON_NATIVE);

	/* The low bits are tags, since 3.14. */
	code = frame_word(scratch, frame, python->frame_code) & ~7ULL;
	if (read_user(scratch->python_code, PYTHON_CODE_BYTES, (void *)code) ||
	    scratch->python_code[1] != python->code_type)
		return end_run(walk, PYTHON_GIVEN_UP);
	check = note_code(thread, python, walk);
	*word = PYTHON_FRAME | (code >> 4) << PYTHON_CODE_SHIFT |
		unit_of(scratch, python, frame, code) << PYTHON_CHECK_BITS | check;

	if (!walk->python.run_depth++ && walk->python.rejoin_depth) {
		walk->depth = walk->python.rejoin_depth;
		walk->hash = walk->python.rejoin_hash;
	}
	if (python->entry_kind == ENTRY_EACH ||
	    (python->entry_kind == ENTRY_FLAG && frame_byte(scratch, frame, python->frame_entry)))
		walk->python.phase = PYTHON_RUN_ENDS;
	return PYTHON_WORD;
}

/* Whether the next frame of the walk is a Python one. */
static __always_inline int next_is_python(struct thread *thread, struct python *python,
					  volatile struct walk_state *walk, u64 *word)
{
	if (!python->loop_count)
		return NATIVE_WORD;
	switch (walk->python.phase) {
	case PYTHON_RUN_ENDS:
		return end_run(walk, PYTHON_NATIVE);
	case PYTHON_RUN:
		return take_python_frame(thread, python, walk, word);
	case PYTHON_SEARCH:
		search_state(thread, python, walk);
		return PYTHON_SEARCHES;
	case PYTHON_NATIVE:
		if (is_in_loop(python, walk->ip)) {
			enter_loop(thread, python, walk);
			return PYTHON_SEARCHES;
		}
		/* Code of others between two loops is kept, and with it all around it. */
		if (walk->ip - python->text_start >= python->text_end - python->text_start)
			walk->python.rejoin_depth = 0;
	}
	return NATIVE_WORD;
}
