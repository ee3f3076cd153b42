/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The steps of recording a block, each by itself, at the return of malloc. They are compiled behind the
 * daemon's own source, of which each is a part. What a step needs from others is the program that it is compared
 * with: bench/steps.py.
 *
 *   step_nothing         the run of a program
 *   step_process         the process of the task, and the count of hits
 *   step_thread          and the memory of the thread
 *   step_pending         and what is kept of a call from its entry to its return
 *   step_walk            the thread's, and the walk: frames, hash, why it ended
 *   step_hash            the thread's, and the hash of the frames of the last walk alone
 *   step_time            the process', the time, and whether a daemon lives
 *   step_live            the process', and a block put into the live table and taken out
 *   step_site            the process', and the site of a stack that is known
 *   step_counters        and a block added to its counters and subtracted, as free does
 *   step_temporary       the process', and whether the block freed is the one allocated last
 */

#define STEP_STACK_ID 23
#define STEP_ADDRESS 0x5000

static __always_inline struct process *step_begin(struct pt_regs *ctx, u64 *id, u32 *slot)
{
	struct process *process;

	*id = current_id();
	*slot = bpf_get_attach_cookie(ctx) >> COOKIE_SLOT_SHIFT;
	process = process_in(*slot, *id);
	if (!process || process->state != STATE_RECORDING)
		return NULL;
	count_hit(process);
	return process;
}

static __always_inline struct live_block step_block(u64 id)
{
	struct live_block block = {
		.size = 64, .weight = 64, .stack_id = STEP_STACK_ID, .tid = (u32)id, .kind = KIND_HEAP
	};

	return block;
}

int step_nothing(struct pt_regs *ctx)
{
	return 0;
}

int step_process(struct pt_regs *ctx)
{
	u64 id;
	u32 slot;

	return step_begin(ctx, &id, &slot) == NULL;
}

int step_thread(struct pt_regs *ctx)
{
	struct process *process;
	u64 id;
	u32 slot;

	process = step_begin(ctx, &id, &slot);
	return !process || !current_thread(process, id);
}

int step_pending(struct pt_regs *ctx)
{
	u64 id, sp = PT_REGS_SP(ctx);
	struct pending_call *pending;
	struct process *process;
	struct thread *thread;
	u32 slot;

	process = step_begin(ctx, &id, &slot);
	if (!process)
		return 0;
	thread = current_thread(process, id);
	if (!thread)
		return 0;
	pending = &thread->pending;
	if (pending->entry_sp)
		return 0;
	pending->old_known = 0;
	read_user(&pending->return_address, sizeof(pending->return_address), (void *)sp);
	pending->function_ip = PT_REGS_IP(ctx);
	pending->size = 64;
	pending->weight = 64;
	pending->old_address = 0;
	pending->result_pointer = 0;
	return 0;
}

int step_walk(struct pt_regs *ctx)
{
	struct process *process;
	struct thread *thread;
	u64 id;
	u32 slot;

	process = step_begin(ctx, &id, &slot);
	if (!process)
		return 0;
	thread = current_thread(process, id);
	if (!thread)
		return 0;
	begin_walk(thread, PT_REGS_IP(ctx), ctx);
	walk_on(thread, &process->python, mappings_of(slot));
	end_walk(process, thread);
	return 0;
}

int step_hash(struct pt_regs *ctx)
{
	volatile struct walk_state *walk;
	struct process *process;
	struct thread *thread;
	u32 slot, frame, round = 0;
	u64 id;

	process = step_begin(ctx, &id, &slot);
	if (!process)
		return 0;
	thread = current_thread(process, id);
	if (!thread)
		return 0;
	walk = &thread->scratch.walk;
	walk->hash = MAX_FRAMES;
	walk->depth = 0;
	for (;;) {
		BOUND(round, MAX_FRAMES, out);
		frame = walk->depth;
		if (frame >= thread->stack.depth)
			break;
		walk->depth = frame + 1;
		walk->hash = hash_frame(walk->hash, thread->stack.frames[frame & (MAX_FRAMES - 1)]);
	}
out:
	return 0;
}

int step_time(struct pt_regs *ctx)
{
	struct process *process;
	u64 id;
	u32 slot;

	process = step_begin(ctx, &id, &slot);
	return process && is_attended(process, bpf_ktime_get_ns());
}

int step_live(struct pt_regs *ctx)
{
	struct process *process;
	struct live_block block;
	void *blocks;
	u64 id;
	u32 slot;

	process = step_begin(ctx, &id, &slot);
	if (!process)
		return 0;
	blocks = live.lookup(&slot);
	if (!blocks)
		return 0;
	block = step_block(id);
	put_block(process, id >> 32, blocks, STEP_ADDRESS, &block);
	blocks = live.lookup(&slot);
	if (!blocks)
		return 0;
	return take_block(blocks, STEP_ADDRESS, &block);
}

static __always_inline struct site *step_site_of(struct process *process, u64 id)
{
	struct thread *thread;
	struct site_key key = { .tgid = id >> 32, .kind = KIND_HEAP, .stack_id = STEP_STACK_ID };
	u64 stack_id = STEP_STACK_ID;
	struct site *site = sites.lookup(&key);

	if (site)
		return site;
	thread = current_thread(process, id);
	return thread ? site_of(process, id >> 32, KIND_HEAP, &thread->stack, &stack_id) : NULL;
}

int step_site(struct pt_regs *ctx)
{
	struct process *process;
	u64 id;
	u32 slot;

	process = step_begin(ctx, &id, &slot);
	return process && step_site_of(process, id);
}

int step_counters(struct pt_regs *ctx)
{
	struct process *process;
	struct live_block block;
	struct site *site;
	u64 id;
	u32 slot;

	process = step_begin(ctx, &id, &slot);
	if (!process)
		return 0;
	site = step_site_of(process, id);
	if (!site)
		return 0;
	block = step_block(id);
	add_to_site(process, site, &block);
	subtract_from_site(process, id >> 32, &block, false);
	return 0;
}

int step_temporary(struct pt_regs *ctx)
{
	struct process *process;
	struct live_block block;
	u64 id;
	u32 slot;

	process = step_begin(ctx, &id, &slot);
	if (!process)
		return 0;
	block = step_block(id);
	note_last_allocation(process, NULL, id, STEP_ADDRESS);
	return is_temporary(process, id, &block, STEP_ADDRESS);
}
