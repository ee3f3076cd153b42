/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Python frames. The walk records them in place of the native frames of CPython's evaluation loop, which runs them.
 *
 * The state of a thread leads to a list of its frames, newest first. One evaluation loop runs some of them, a *run*;
 * enum python_entry says where a run ends. Between two loops, native frames of the interpreter are left out, as in
 * Python's own tracebacks. Native frames of extensions stay.
 *
 * In 3.11 and 3.12, each loop has a local variable with a pointer to its newest frame (the cframe). The first search
 * shows where in the loop's native frame it lies, and from then on the walk finds it there, without the thread's state.
 *
 * The state is found by the thread's id, not by who holds the interpreter's lock, because code without the lock
 * allocates too. It is remembered with the thread. It is still right if it has the same thread id and its interpreter
 * is still the only one. A thread has a state in each interpreter that it has run. The walk takes those that have
 * frames one after the other, newest interpreter first: the list of interpreters begins with it, and an older one
 * called it.
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

/* The search for a thread's state ends after so many; the thread then has native frames only. */
#define PYTHON_STATES_MAX 512

/* A remembered state is checked after so many frames of a run, because the walk may not get to the proof at its end. */
#define PYTHON_UNPROVEN_MAX 48

/* A number with this bit is no number of releases: it is the time of a walk, which only that walk has in its thread. */
#define OWN_RELEASES (1ULL << 63)

/* What the walk is to do next. */
enum {
	NATIVE_WORD,	/* record the native frame, except that of a loop (PYTHON_LOOP), and go to its caller */
	PYTHON_WORD,	/* record *word */
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
	walk->python.frame_at = 0;
	walk->python.rejoin_depth = 0;
	/* 0: the walk has met no evaluation loop yet. */
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

static __always_inline u32 tid_of(struct python *python, u64 thread_id)
{
	return (u32)(python->thread_id_at ? read_python_word(thread_id + python->thread_id_at) : thread_id);
}

/*
 * Words of the process, on the program's stack, which is cheaper (above); zeroes if they cannot be read. The zeroes
 * before that are for the verifier, which would otherwise distinguish states by what was there on the stack before.
 */
struct python_words {
	u64 words[PYTHON_WORDS];
};

static __always_inline u64 word_at(struct python_words *read, u32 offset)
{
	return read->words[(offset >> 3) & (PYTHON_WORDS - 1)];
}

/*
 * The thread id in a thread's state, and in *path the pointer that leads to its newest frame. One read has both, except
 * in 3.9 and 3.10, where they are too far from each other.
 */
static __always_inline u64 read_state(struct python *python, u64 state, u64 *path)
{
	u32 offset = python->thread_id - python->frame_path;
	struct python_words read = {};

	read_user(&read, sizeof(read), (void *)(state + python->frame_path));
	*path = read.words[0];
	if (offset >= sizeof(read)) {
		read_user(&read, sizeof(u64), (void *)(state + python->thread_id));
		offset = 0;
	}
	return word_at(&read, offset);
}

/*
 * Whether an address lies in the native frame of the loop that the walk has just passed: the walk is at its caller, so
 * sp is the frame's end. `loop_sp` is too large if the end was guessed.
 */
static __always_inline bool is_in_loop_frame(volatile struct walk_state *walk, u64 address)
{
	return address >= walk->python.loop_sp && address < walk->sp;
}

/*
 * Begin a run with the next frame. If a local variable of a loop points to it, that part of the stack is copied already.
 * A state without a frame belongs to another loop: look for the next one. One place for all, because each copy of
 * read_word() multiplies what the verifier follows.
 */
static __always_inline void find_frame(struct thread *thread, struct python *python,
				       volatile struct walk_state *walk)
{
	u64 frame = walk->python.frame;

	if (walk->python.frame_at && !read_word(&thread->scratch, walk->python.frame_at, &frame))
		frame = 0;
	walk->python.frame = frame;
	walk->python.frame_at = 0;
	walk->python.phase = PYTHON_RUN;
	if (frame)
		return;
	thread->python_state = 0;
	if (walk->python.interpreter) {
		walk->python.state = read_python_word(walk->python.state + python->thread_next);
		walk->python.phase = PYTHON_SEARCH;
	}
}

/*
 * The next frame is the newest one of a thread's state. If the loop is the one that runs it, its cframe shows the place
 * for all loops, because they are the same function.
 */
static __always_inline void take_state(struct python *python, volatile struct walk_state *walk, u64 path)
{
	walk->python.phase = PYTHON_NEXT;
	walk->python.frame = path;
	if (python->frame_path_second == NO_SECOND_STEP || !path)
		return;
	walk->python.frame_at = path + python->frame_path_second;
	if (python->has_fixed_frames && is_in_loop_frame(walk, path) && walk->sp - path <= 0xffff)
		python->cframe_distance = walk->sp - path;
}

/* Whether the end of a run shows that the loop runs it. */
static __always_inline bool has_proof(struct python *python, volatile struct walk_state *walk)
{
	return python->entry_kind == ENTRY_OWNER && walk->python.loop_sp < walk->sp;
}

static __always_inline u64 newest_interpreter(struct python *python)
{
	return read_python_word(python->runtime + python->interpreters_head);
}

/* Forget the thread's state, and return the first state of an interpreter, 0 if there is none. */
static __always_inline u64 begin_search(struct thread *thread, struct python *python, u64 interpreter)
{
	thread->python_state = 0;
	return interpreter ? read_python_word(interpreter + python->threads_head) : 0;
}

/*
 * The number of code objects that were released so far. Code objects read since then are still valid. A walk that
 * cannot rely on the count gets a number of its own.
 */
static __always_inline u64 releases_now(struct python *python, bool is_certain)
{
	if (python->sees_releases && is_certain)
		return *(volatile u64 *)&python->code_releases;
	return OWN_RELEASES | bpf_ktime_get_ns();
}

/*
 * The state that the thread runs, if it has another one than the remembered: until 3.11, `_PyRuntime` names the state of
 * the thread that has the interpreter's lock.
 */
static __always_inline u64 state_now(struct thread *thread, struct python *python, u64 state)
{
	u64 current = read_python_word(python->runtime + python->current_state);

	if (!current || current == state ||
	    read_python_word(current + python->thread_id) != thread->python_thread_id)
		return state;
	return current;
}

/* The walk has passed the native frame of a loop: find its newest frame, or look for the thread's state. */
static __always_inline void enter_loop(struct thread *thread, struct python *python,
				       volatile struct walk_state *walk)
{
	u64 state = thread->python_state, newest, cframe = walk->sp - python->cframe_distance;

	walk->python.phase = PYTHON_NEXT;
	if (python->cframe_distance && is_in_loop_frame(walk, cframe)) {
		walk->python.frame_at = cframe + python->frame_path_second;
		if (!walk->python.states_seen)
			walk->python.releases = releases_now(python, true);
		walk->python.states_seen = 1;
		walk->python.interpreter = 0;
		walk->python.is_unchecked = 0;
		return;
	}
	if (walk->python.states_seen)
		return;
	walk->python.states_seen = 1;
	walk->python.is_unchecked = state && thread->python_interpreter && has_proof(python, walk);
	newest = walk->python.is_unchecked ? thread->python_interpreter : newest_interpreter(python);
	if (!state || newest != thread->python_interpreter)
		state = begin_search(thread, python, newest);
	else if (python->current_state)
		state = state_now(thread, python, state);
	walk->python.interpreter = newest;
	walk->python.state = state;
	walk->python.phase = PYTHON_SEARCH;
}

/* Remember the state of the thread. Remember its interpreter if it is the only one: the first, with none behind it. */
static __always_inline void note_state(struct thread *thread, struct python *python, u64 interpreter, u64 state,
				       u64 thread_id)
{
	bool is_only = interpreter == newest_interpreter(python) &&
		       !read_python_word(interpreter + python->interpreter_next);

	thread->python_state = state;
	thread->python_thread_id = thread_id;
	thread->python_interpreter = is_only ? interpreter : 0;
}

/*
 * Look at one state: the remembered one first, then those of the list. In phase PYTHON_RUN without a frame, the run ends
 * at once.
 */
static __always_inline void search_state(struct thread *thread, struct python *python,
					 volatile struct walk_state *walk)
{
	u64 state = walk->python.state, thread_id, path;
	bool is_known;

	if (walk->python.states_seen++ > PYTHON_STATES_MAX || !walk->python.interpreter) {
		thread->python_state = 0;
		walk->python.phase = PYTHON_RUN;
		return;
	}
	if (!state) {
		walk->python.interpreter = read_python_word(walk->python.interpreter + python->interpreter_next);
		if (walk->python.interpreter)
			walk->python.state =
				read_python_word(walk->python.interpreter + python->threads_head);
		return;
	}
	is_known = state == thread->python_state;
	thread_id = read_state(python, state, &path);
	if (is_known && thread_id != thread->python_thread_id) {
		walk->python.interpreter = newest_interpreter(python);
		walk->python.state = begin_search(thread, python, walk->python.interpreter);
		return;
	}
	if (is_known || (thread_id && tid_of(python, thread_id) == python_tid(python))) {
		walk->python.releases = releases_now(python, is_known);
		if (is_known)
			/* It is the thread's only state: none is searched after it. */
			walk->python.interpreter = 0;
		else
			note_state(thread, python, walk->python.interpreter, state, thread_id);
		take_state(python, walk, path);
		return;
	}
	walk->python.state = read_python_word(state + python->thread_next);
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

/*
 * The hash of a code object, 0 if there is none at the address. It is read again only after a release of any code
 * object: until then, no other can have taken its address.
 */
static __always_inline u64 check_of(struct walk_scratch *scratch, struct python *python,
				    volatile struct walk_state *walk, u64 code)
{
	u64 place = (code * 0x9e3779b97f4a7c15ULL) >> (64 - KNOWN_CODES_BITS);
	volatile struct known_code *known = &scratch->known_codes[place & ((1 << KNOWN_CODES_BITS) - 1)];

	if (known->address == code && known->releases == walk->python.releases)
		return known->check;
	return read_code(python, walk, known, code);
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
