/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * CPython's state of the current thread, and the newest frame of an evaluation loop.
 *
 * In 3.11 and 3.12, each loop has a local variable with a pointer to its newest frame (the cframe). The first search
 * shows where in the loop's native frame it lies, and from then on the walk finds it there, without the thread's state.
 *
 * The state is found by the thread's id, not by who holds the interpreter's lock, because code without the lock
 * allocates too. It is remembered with the thread. It is still right if it has the same thread id and its interpreter
 * is still the only one. A thread has a state in each interpreter that it has run. The walk takes those that have
 * frames one after the other, newest interpreter first: the list of interpreters begins with it, and an older one
 * called it.
 */

/* The search for a thread's state ends after so many; the thread then has native frames only. */
#define PYTHON_STATES_MAX 512

/* A number with this bit is no number of releases: it is the time of a walk, which only that walk has in its thread. */
#define OWN_RELEASES (1ULL << 63)

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
 * cannot rely on the count gets a number that no other walk has.
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
