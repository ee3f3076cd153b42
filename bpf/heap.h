/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Calls of heap functions, from entry to return.
 *
 * Rules:
 *  - Only the outermost of nested allocator calls counts: musl's calloc calls malloc, and wrappers call the function
 *    they wrap. A call is nested if its stack pointer is below that of the pending call.
 *  - A block is recorded at the return, when its address is known. It is removed at the entry of free and realloc,
 *    before another thread can be given the same address.
 *  - The entry decides whether a block is recorded, as soon as the size is known. If it is not recorded, a function
 *    that calls no other allocating function declines its return probe. Other functions keep the return probe,
 *    because the inner call would otherwise be a second chance to record the block.
 *  - A call that never returns (an exception, a thread that exits) must not hide later calls: a call at or above its
 *    stack pointer replaces it and counts it as missed.
 */

/* Decides at random whether to record a block: its weight, or 0 if it is not recorded. */
static __always_inline u64 draw(const struct process *process, u64 size)
{
	u32 shift = process->sample_shift;
	struct sampling_curve *curve;
	int zero = 0;
	u64 weight;

	if (!shift)
		return sampled_bytes(size);
	curve = sampling_curves.lookup(&zero);
	if (!curve)
		return 0;
	weight = weight_of(curve, shift, size);
	return is_drawn(size, weight) ? weight : 0;
}

/*
 * The end of a thread takes a few milliseconds: a thread that still frees this long after an unknown free was not
 * ending then.
 */
#define THREAD_END_NS 500000000ULL

/*
 * While blocks are sampled, two events are counted without looking at single blocks: allocations that were not
 * recorded, and frees of unknown blocks. With the recorded blocks, their difference is exactly by how many blocks the
 * process has grown. If the estimates of the sites exceed it, the difference was freed from older memory.
 */

/* One in this many frees of unknown blocks is checked for whether it frees anything. A power of 2. */
#define UNKNOWN_FREES_PER_LOOK 64
/* The C library's allocator is one object file, malloc.o, so code this near to free() belongs to the allocator. */
#define ALLOCATOR_CODE_BYTES 0x6000

static __always_inline void count_unrecorded(struct process *process)
{
	__sync_fetch_and_add(&call_counter(process)->unrecorded, 1);
}

/*
 * Whether a call of free() releases no block of the program. When a thread ends, glibc frees the blocks in the
 * thread's cache, which the program has freed already, a second time (malloc.c, tcache_thread_shutdown). A free
 * inside another allocator call, such as realloc, is part of that call.
 */
static __always_inline bool frees_nothing(struct pt_regs *ctx, u64 id)
{
	struct thread *thread = threads.lookup(&id);
	u64 caller = 0;

	if (thread && thread->pending.entry_sp)
		return true;
	read_user(&caller, sizeof(caller), (void *)PT_REGS_SP(ctx));
	return caller - PT_REGS_IP(ctx) + ALLOCATOR_CODE_BYTES < 2 * ALLOCATOR_CODE_BYTES;
}

/* After a function that `calls_release`, the inner free counts the block: it no longer finds it in the table. */
static __always_inline void count_free_while_sampling(struct pt_regs *ctx, struct process *process, u64 id,
						      bool is_known, bool calls_release)
{
	u64 *unknown_frees = &call_counter(process)->unknown_frees;

	if (is_known && calls_release)
		count_unrecorded(process);
	if (is_known || calls_release)
		return;
	if ((__sync_fetch_and_add(unknown_frees, 1) & (UNKNOWN_FREES_PER_LOOK - 1)) == 0 && frees_nothing(ctx, id))
		__sync_fetch_and_add(&process->false_frees, UNKNOWN_FREES_PER_LOOK);
}

/*
 * Counts a free of an unknown block. Such a block is older: from before the attach, or from when not every block was
 * recorded. But a thread's end frees some blocks a second time, so these frees count only once the thread has lived
 * for THREAD_END_NS longer; thread_exit drops those of its last moments. The clock is read for unknown blocks only.
 */
static __always_inline void count_unmatched_free(struct process *process, u64 id)
{
	struct unproven_frees *known, new = { .count = 1 };

	new.first_ns = bpf_ktime_get_ns();
	known = unproven_frees.lookup(&id);
	if (!known) {
		if (unproven_frees.update(&id, &new))
			__sync_fetch_and_add(&process->unmatched_frees, 1);
	} else if (new.first_ns - known->first_ns < THREAD_END_NS) {
		known->count++;
	} else {
		__sync_fetch_and_add(&process->unmatched_frees, known->count);
		*known = new;
	}
}

/* Return values of a session's entry handler: run or skip the return probe. */
enum { WITH_RETURN = 0, WITHOUT_RETURN = 1 };

/* In place of a result pointer: the call leaves the block where it is and returns its size. */
#define RESULT_IS_SIZE 1
/* In place of a result pointer: the call returns a block as large as the text in it. */
#define RESULT_IS_TEXT 2

/* Texts are measured in pieces of STACK_COPY_BYTES, at most this many. */
#define MAX_TEXT_PIECES 128

/*
 * Whether code at `sp` runs inside the pending call. Its frame must lie below that call's frame, or at the same place
 * after a tail call, and the call must not have ended. During the call, the return address is that of the uprobes
 * trampoline, which is the start of a page. After a longjmp out of an allocator it is something else.
 */
static __always_inline bool is_nested(const struct pending_call *pending, u64 sp)
{
	u64 return_address = 0;

	if (!pending->entry_sp || sp > pending->entry_sp)
		return false;
	read_user(&return_address, sizeof(return_address), (void *)pending->entry_sp);
	return return_address != pending->return_address && (return_address & 0xfff) == 0;
}

/*
 * In place of the thread's last allocation, while blocks are sampled: a call is pending. No block has this address.
 */
#define CALL_UNDER_WAY 1

static __always_inline void mark_call(struct process *process, struct pending_call *pending, u64 id)
{
	u64 *last = &process->last_allocations[id % LAST_ALLOCATIONS];

	pending->allocation_before = *last | 1;
	*last = last_allocation(id, CALL_UNDER_WAY);
}

/* Ends a pending call. Returns whether an inner function has counted the block as not recorded. */
static __always_inline bool unmark_call(struct process *process, struct pending_call *pending, u64 id)
{
	u64 *last = &process->last_allocations[id % LAST_ALLOCATIONS], before = pending->allocation_before;

	/* 0: the call began before blocks were sampled. */
	pending->allocation_before = 0;
	if (before && *last == last_allocation(id, CALL_UNDER_WAY)) {
		*last = before & ~1ULL;
		return false;
	}
	return before && *last == last_allocation(id, 0);
}

static __always_inline void give_up_pending(struct process *process, u32 tgid, struct pending_call *pending)
{
	count_loss(process, LOSS_RETURN_MISSED);
	/* Whether realloc freed its old block is unknown; most calls succeed. */
	if (pending->old_known)
		subtract_from_site(process, tgid, &pending->old_block, false);
	pending->entry_sp = 0;
}

/*
 * Releases a block at the entry of free; its return carries no information. A function that `calls_release` may call
 * another probed one, which must not count the same block as unknown.
 */
static __always_inline int release(struct pt_regs *ctx, struct process *process, u32 slot, u64 id, u64 address,
				   bool calls_release)
{
	struct live_block block;
	u32 tgid = id >> 32;
	struct thread *thread;
	bool is_known;
	void *blocks;

	if (!address || process->state != STATE_RECORDING)
		return WITHOUT_RETURN;
	blocks = live.lookup(&slot);
	if (!blocks)
		return WITHOUT_RETURN;
	is_known = take_block(blocks, address, &block);
	if (is_known)
		subtract_from_site(process, tgid, &block, is_temporary(process, id, &block, address));
	if (process->sampling & SAMPLING_NOW) {
		count_free_while_sampling(ctx, process, id, is_known, calls_release);
		return WITHOUT_RETURN;
	}
	if (is_known && !calls_release)
		return WITHOUT_RETURN;

	thread = calls_release ? current_thread(process, id) : threads.lookup(&id);
	/* A free inside another allocator call is part of that call. */
	if (!is_known && !(thread && (thread->pending.entry_sp || thread->released == address)))
		count_unmatched_free(process, id);
	if (thread)
		thread->released = calls_release ? address : 0;
	return WITHOUT_RETURN;
}

/*
 * Entry of a function that allocates `size` bytes. realloc passes `old_address`; posix_memalign passes the
 * `result_pointer` through which it returns the address; other functions pass RESULT_IS_* or 0. With
 * `calls_allocator`, the function may call another probed one.
 */
static __always_inline int enter(struct pt_regs *ctx, struct process *process, u32 slot, u64 id, u64 size,
				 u64 old_address, u64 result_pointer, bool calls_allocator)
{
	u64 sp = PT_REGS_SP(ctx), weight;
	struct pending_call *pending;
	struct thread *thread;
	u32 tgid = id >> 32;
	void *blocks;

	if (process->state != STATE_RECORDING)
		return WITHOUT_RETURN;
	weight = draw(process, size);
	if (!weight && !calls_allocator) {
		count_unrecorded(process);
		note_last_allocation(process, NULL, id, 0);
		return WITHOUT_RETURN;
	}
	thread = current_thread(process, id);
	if (!thread) {
		count_loss(process, LOSS_THREAD_FULL);
		return old_address ? release(ctx, process, slot, id, old_address, false) : WITHOUT_RETURN;
	}
	pending = &thread->pending;
	if (pending->entry_sp) {
		if (is_nested(pending, sp))
			return WITHOUT_RETURN;
		give_up_pending(process, tgid, pending);
	}

	pending->old_known = 0;
	if (old_address) {
		blocks = live.lookup(&slot);
		if (!blocks)
			return WITHOUT_RETURN;
		pending->old_known = take_block(blocks, old_address, &pending->old_block);
		if (!pending->old_known && process->sampling & SAMPLING_NOW)
			__sync_fetch_and_add(&call_counter(process)->unknown_frees, 1);
		else if (!pending->old_known)
			count_unmatched_free(process, id);
	}
	if (process->sampling & SAMPLING_NOW)
		mark_call(process, pending, id);
	read_user(&pending->return_address, sizeof(pending->return_address), (void *)sp);
	pending->function_ip = PT_REGS_IP(ctx);
	pending->size = size;
	pending->weight = weight;
	pending->old_address = old_address;
	pending->result_pointer = result_pointer;
	pending->entry_sp = sp;
	return WITH_RETURN;
}

/* The length of a text in the process, including its terminator. */
static __always_inline u64 text_bytes(struct thread *thread, u64 address)
{
	u64 bytes = 0;
	int piece;
	long got;

#pragma clang loop unroll(disable)
	for (piece = 0; piece < MAX_TEXT_PIECES; piece++) {
		got = read_user_text(thread->scratch.copy, STACK_COPY_BYTES, (void *)(address + bytes));
		if (got <= 0)
			return bytes;
		if (got < STACK_COPY_BYTES)
			return bytes + got;
		/* The last byte of the copy is a terminator, not the text's. */
		bytes += STACK_COPY_BYTES - 1;
	}
	return bytes;
}

/* The address that the pending call returned; 0 if it failed. */
static __always_inline u64 result_of(struct pt_regs *ctx, struct process *process,
				     const struct pending_call *pending)
{
	u64 address = 0;

	if (!pending->result_pointer || pending->result_pointer == RESULT_IS_TEXT)
		return PT_REGS_RC(ctx);
	if (pending->result_pointer == RESULT_IS_SIZE)
		return PT_REGS_RC(ctx) >= pending->size ? pending->old_address : 0;
	if ((int)PT_REGS_RC(ctx) != 0)
		return 0;
	if (read_user(&address, sizeof(address), (void *)pending->result_pointer))
		count_loss(process, LOSS_RESULT_UNREADABLE);
	return address;
}

/* Records the new block of the pending call, whose stack has been walked. */
static __always_inline int record_block(struct process *process, void *blocks, u64 id, struct thread *thread)
{
	const struct pending_call *pending = &thread->pending;
	u64 stack_id = end_walk(process, thread);
	struct live_block block = {};
	u32 tgid = id >> 32;
	struct site *site;

	block.born_ns = bpf_ktime_get_ns();
	if (!is_attended(process, block.born_ns))
		return 0;
	if (thread->stack.end == END_READ_FAULT)
		count_loss(process, LOSS_STACK_UNREADABLE);
	site = site_of(process, tgid, KIND_HEAP, &thread->stack, &stack_id);
	if (!site)
		return 0;
	block.size = pending->size;
	block.weight = pending->weight;
	block.stack_id = stack_id;
	block.tid = (u32)id;
	block.kind = KIND_HEAP;
	note_last_allocation(process, thread, id, pending->new_address);
	/* No other thread can free the block yet: malloc has not returned its address. */
	if (put_block(process, tgid, blocks, pending->new_address, &block))
		add_to_site(process, site, &block);
	return 0;
}

/* Walks the stack, or continues the walk, and then records the block. */
static __always_inline int walk_and_record(struct pt_regs *ctx, struct process *process, u32 slot,
					   void *blocks, u64 id, struct thread *thread)
{
	walk_on(thread, &process->python, mappings_of(slot));
#ifdef WALK_BY_TAIL_CALLS
	if (thread->scratch.walk.end == WALK_GOES_ON)
		/* Returns only if there were too many tail calls. */
		continuations.call(ctx, 0);
#endif
	return record_block(process, blocks, id, thread);
}

/* Return of an allocator function. */
static __always_inline int leave(struct pt_regs *ctx)
{
	u64 id = current_id();
	struct pending_call *pending;
	struct process *process;
	u32 tgid = id >> 32, slot;
	struct thread *thread;
	bool is_counted = false;
	void *blocks;
	u64 address;

	process = linked_process(bpf_get_attach_cookie(ctx), id, &slot);
	if (!process)
		return 0;
	count_hit(process);
	thread = threads.lookup(&id);
	if (!thread)
		return 0;
	pending = &thread->pending;
	/* The return has popped one word; any other stack pointer belongs to a nested call. */
	if (!pending->entry_sp || PT_REGS_SP(ctx) != pending->entry_sp + sizeof(u64))
		return 0;
	pending->entry_sp = 0;
	if (process->sampling & SAMPLING_NOW)
		is_counted = unmark_call(process, pending, id);
	blocks = live.lookup(&slot);
	if (!blocks)
		return 0;

	address = result_of(ctx, process, pending);
	if (pending->old_known) {
		/* A failed realloc leaves the old block unchanged, but realloc(p, 0) has freed it. */
		if (address == 0 && pending->size != 0) {
			if (!put_block(process, tgid, blocks, pending->old_address, &pending->old_block))
				subtract_from_site(process, tgid, &pending->old_block, false);
			return 0;
		}
		subtract_from_site(process, tgid, &pending->old_block,
				   is_temporary(process, id, &pending->old_block, pending->old_address));
	}
	if (!address || process->state != STATE_RECORDING)
		return 0;
	if (pending->result_pointer == RESULT_IS_TEXT) {
		pending->size = text_bytes(thread, address);
		pending->weight = draw(process, pending->size);
	}
	if (!pending->weight) {
		if (!is_counted)
			count_unrecorded(process);
		note_last_allocation(process, thread, id, 0);
		return 0;
	}
	if (is_counted)
		/* The inner function counted it, but it is recorded now. */
		__sync_fetch_and_add(&call_counter(process)->unrecorded, -1);
	pending->new_address = address;
	begin_walk(thread, pending->function_ip, ctx);
	return walk_and_record(ctx, process, slot, blocks, id, thread);
}

/* Continues `leave` after a tail call. */
static __always_inline int leave_continued(struct pt_regs *ctx)
{
	u64 id = current_id();
	struct process *process;
	struct thread *thread;
	void *blocks;
	u32 slot;

	process = linked_process(bpf_get_attach_cookie(ctx), id, &slot);
	if (!process)
		return 0;
	thread = threads.lookup(&id);
	blocks = live.lookup(&slot);
	if (!thread || !blocks)
		return 0;
	return walk_and_record(ctx, process, slot, blocks, id, thread);
}

static __always_inline int note_library_change(struct process *process)
{
	__sync_fetch_and_add(&process->library_changes, 1);
	return WITHOUT_RETURN;
}

static __always_inline int note_code_release(struct process *process)
{
	__sync_fetch_and_add(&process->python.code_releases, 1);
	return WITHOUT_RETURN;
}
