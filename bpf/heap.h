/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Calls of heap functions, from entry to return.
 *
 * Rules:
 *  - Only the outermost of nested allocator calls counts: musl's calloc calls malloc, wrappers call what
 *    they wrap. A call is nested while its stack pointer is below that of the one under way.
 *  - A block is recorded at the return, when its address is known; it is taken out at the entry of free
 *    and realloc, before another thread can be given the same address.
 *  - Whether a block is recorded is settled at the entry, as soon as its size is known. A function that calls
 *    no other allocating one needs no return probe if not; of the others the return is seen all the same,
 *    since what they call would otherwise have a second chance of being recorded.
 *  - A call that never returns (an exception, a thread that ends) must not hide those that follow: a
 *    later call at or above its stack pointer replaces it, and it is counted as missed.
 */

/* Throw the coin for a block of the process: its weight, or 0 if it is not recorded. */
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

/* So much later a thread that frees has not been ending: what it does then takes a few milliseconds. */
#define THREAD_END_NS 500000000ULL

/*
 * While blocks are sampled, calls are counted that say nothing of single blocks: how many were allocated and not
 * recorded, and how many unknown ones were freed. Their difference, with the recorded ones, is how many blocks the
 * process has more, exactly; what the estimates of the sites exceed it by was freed of older memory.
 */

/* One in so many frees of unknown blocks is looked at: whether it frees anything. A power of 2. */
#define UNKNOWN_FREES_PER_LOOK 64
/* The C library's allocator is one object file, malloc.o: so near free() is code of the allocator itself. */
#define ALLOCATOR_CODE_BYTES 0x6000

static __always_inline void count_unrecorded(struct process *process)
{
	__sync_fetch_and_add(&call_counter(process)->unrecorded, 1);
}

/*
 * Whether a call of free() frees what the program has freed already: glibc gives the blocks of a thread's cache to it
 * a second time when the thread ends (malloc.c, tcache_thread_shutdown). And inside another allocator call, such as
 * realloc, it is that call's own business.
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

/* A function that `calls_release` leaves the count to the other, which does not know the block any more. */
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
 * Frees of unknown blocks tell of older ones, from before the attach or from when not every block was recorded, unless
 * a thread's end frees them a second time. So they count when the thread has gone on for a while; thread_exit drops
 * those of its last moments. The time is read for unknown blocks only.
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

/* What a session's entry handler returns to go without, or with, the return probe. */
enum { WITH_RETURN = 0, WITHOUT_RETURN = 1 };

/* In place of a result pointer: the call leaves the block where it is and returns its size. */
#define RESULT_IS_SIZE 1
/* The block that it returns is as large as the text in it. */
#define RESULT_IS_TEXT 2

/* Texts are measured in pieces of STACK_COPY_BYTES; of one that is longer only these are counted. */
#define MAX_TEXT_PIECES 128

/*
 * Whether code at `sp` runs inside the pending call. Its frame must lie below that call's, or at the same
 * place where it was reached by a tail call, and the call must still be under way: then its return
 * address has been replaced by that of the uprobes trampoline, the start of a page. After a longjmp out
 * of an allocator the word is something else.
 */
static __always_inline bool is_nested(const struct pending_call *pending, u64 sp)
{
	u64 return_address = 0;

	if (!pending->entry_sp || sp > pending->entry_sp)
		return false;
	read_user(&return_address, sizeof(return_address), (void *)pending->entry_sp);
	return return_address != pending->return_address && (return_address & 0xfff) == 0;
}

/* In place of the thread's last allocation, while blocks are sampled: a call is under way. No block is there. */
#define CALL_UNDER_WAY 1

static __always_inline void mark_call(struct process *process, struct pending_call *pending, u64 id)
{
	u64 *last = &process->last_allocations[id % LAST_ALLOCATIONS];

	pending->allocation_before = *last | 1;
	*last = last_allocation(id, CALL_UNDER_WAY);
}

/* The call returns. Whether a function that it called has counted the block as not recorded. */
static __always_inline bool unmark_call(struct process *process, struct pending_call *pending, u64 id)
{
	u64 *last = &process->last_allocations[id % LAST_ALLOCATIONS], before = pending->allocation_before;

	/* 0: it began before blocks were sampled. */
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
	/* What became of realloc's old block is not known; most calls succeed. */
	if (pending->old_known)
		subtract_from_site(process, tgid, &pending->old_block, false);
	pending->entry_sp = 0;
}

/*
 * A block is about to be freed; the return of free tells nothing. A function that `calls_release` may go on
 * to another that has a probe, which must not take the same block for an unknown one.
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

	thread = calls_release ? current_thread(id) : threads.lookup(&id);
	/* Inside another allocator call it is that call's own business, such as a wrapper's. */
	if (!is_known && !(thread && (thread->pending.entry_sp || thread->released == address)))
		count_unmatched_free(process, id);
	if (thread)
		thread->released = calls_release ? address : 0;
	return WITHOUT_RETURN;
}

/*
 * An allocator function is entered: `size` bytes are wanted. realloc hands in `old_address`, and
 * posix_memalign the `result_pointer` through which it returns the address or RESULT_IS_*; 0 otherwise.
 * It may do its work by calling another that has a probe: `calls_allocator`.
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
	thread = current_thread(id);
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

/* The length of a text in the process, with its end. */
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
		/* The last byte read has been made an end. */
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

/* Put the new block of the pending call, whose stack has been walked, into the books. */
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
	/* No other thread can free the block yet: nobody has been told its address. */
	if (put_block(process, tgid, blocks, pending->new_address, &block))
		add_to_site(process, site, &block);
	return 0;
}

/* Walk the stack, or go on with it, and then record the block. */
static __always_inline int walk_and_record(struct pt_regs *ctx, struct process *process, u32 slot,
					   void *blocks, u64 id, struct thread *thread)
{
	walk_on(thread, &process->python, mappings_of(slot));
#ifdef WALK_BY_TAIL_CALLS
	if (thread->scratch.walk.end == WALK_GOES_ON)
		/* Does not return, unless there have been too many. */
		continuations.call(ctx, 0);
#endif
	return record_block(process, blocks, id, thread);
}

/* An allocator function returns. */
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
	/* The return has popped one word; any other stack pointer is that of a nested call. */
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
		/* A failed realloc leaves the old block as it was, but realloc(p, 0) has freed it. */
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
		/* It is recorded after all. */
		__sync_fetch_and_add(&call_counter(process)->unrecorded, -1);
	pending->new_address = address;
	begin_walk(thread, pending->function_ip, ctx);
	return walk_and_record(ctx, process, slot, blocks, id, thread);
}

/* leave, continued by a tail call. */
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
