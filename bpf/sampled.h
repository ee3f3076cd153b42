/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Blocks that a sampler inside the process announces, by the probes `otel_memory:alloc(block, size, weighted_bytes)`
 * and `otel_memory:free(block)`, for sampled blocks only. The sampler chooses the blocks and their weights by the
 * rule of sampling.h; everything else is as for blocks that are drawn here.
 *
 * Rules:
 *  - A probe is an instruction in the middle of a function and never gets a return probe.
 *  - The process is not trusted: figures that no block can have are ignored.
 *  - A free of an unknown block is ignored. No block counts as temporary, because the thread's other allocations in
 *    the meantime were not announced.
 */

/* The largest size and weight of a block: estimates fit into their words. */
#define ANNOUNCED_BYTES_MAX (1ULL << 46)

/* The arguments of a probe. */
struct announced_block {
	u64 address;
	u64 size;
	u64 weight;
};

static __always_inline u64 register_numbered(struct pt_regs *ctx, u8 number)
{
	switch (number) {
	case 0:
		return READ_REGISTER(ctx, ax);
	case 1:
		return READ_REGISTER(ctx, cx);
	case 2:
		return READ_REGISTER(ctx, dx);
	case 3:
		return READ_REGISTER(ctx, bx);
	case 4:
		return READ_REGISTER(ctx, sp);
	case 5:
		return READ_REGISTER(ctx, bp);
	case 6:
		return READ_REGISTER(ctx, si);
	case 7:
		return READ_REGISTER(ctx, di);
	case 8:
		return READ_REGISTER(ctx, r8);
	case 9:
		return READ_REGISTER(ctx, r9);
	case 10:
		return READ_REGISTER(ctx, r10);
	case 11:
		return READ_REGISTER(ctx, r11);
	case 12:
		return READ_REGISTER(ctx, r12);
	case 13:
		return READ_REGISTER(ctx, r13);
	case 14:
		return READ_REGISTER(ctx, r14);
	case 15:
		return READ_REGISTER(ctx, r15);
	}
	return 0;
}

/* Reads an argument of a probe. Returns whether it was readable. */
static __always_inline bool read_operand(struct pt_regs *ctx, const struct probe_operand *operand, u64 *value)
{
	u64 word = operand->displacement;
	u8 unused = operand->unused_bits & 63;

	if (operand->kind != OPERAND_CONSTANT)
		word += register_numbered(ctx, operand->base);
	if (operand->kind == OPERAND_MEMORY) {
		word += register_numbered(ctx, operand->index) << (operand->scale_shift & 3);
		if (read_user(&word, sizeof(word), (void *)word))
			return false;
	}
	word <<= unused;
	*value = operand->is_signed ? (u64)((s64)word >> unused) : word >> unused;
	return true;
}

static __always_inline int release_announced(struct process *process, u32 tgid, void *blocks, u64 address)
{
	struct live_block block;

	if (take_block(blocks, address, &block))
		subtract_from_site(process, tgid, &block, false);
	return 0;
}

/* Derives the sampler's interval R from the weight of a small block: nearly R + s/2, if s is much smaller than R. */
static __always_inline void note_interval(struct process *process, u64 size, u64 weight)
{
	u64 interval = weight - size / 2;

	if (weight <= 4 * size)
		return;
	if (process->inside_reading != process->reading || interval > process->inside_interval_bytes) {
		process->inside_reading = process->reading;
		process->inside_interval_bytes = interval;
	}
}

static __always_inline int announce(struct pt_regs *ctx, struct process *process, u32 slot, u64 id, void *blocks,
				    const struct announced_block *said)
{
	struct pending_call *pending;
	struct thread *thread;

	if (said->size > ANNOUNCED_BYTES_MAX || said->weight > ANNOUNCED_BYTES_MAX ||
	    said->weight < sampled_bytes(said->size))
		return 0;
	thread = current_thread(process, id);
	if (!thread) {
		count_loss(process, LOSS_THREAD_FULL);
		return 0;
	}
	note_interval(process, said->size, said->weight);
	pending = &thread->pending;
	pending->size = said->size;
	pending->weight = said->weight;
	pending->new_address = said->address;
	begin_walk(thread, 0, ctx);
	walk_on(thread, &process->python, mappings_of(slot));
#if defined(WALK_BY_TAIL_CALLS) && !defined(ATTACH_BY_SESSION)
	/*
	 * With sessions, the continuation has another attach type, so the walk ends here. Sessions are newer than
	 * may_goto.
	 */
	if (thread->scratch.walk.end == WALK_GOES_ON)
		continuations.call(ctx, 0);
#endif
	return record_block(process, blocks, id, thread);
}

static __always_inline int enter_probe(struct pt_regs *ctx)
{
	u64 id = current_id(), cookie = bpf_get_attach_cookie(ctx);
	u32 role = cookie & ((1 << COOKIE_ROLE_BITS) - 1);
	u32 number = cookie >> COOKIE_ROLE_BITS & COOKIE_OPERANDS_MASK, slot;
	struct probe_operands *operands;
	struct announced_block said = {};
	struct process *process;
	void *blocks;

	process = linked_process(cookie, id, &slot);
	if (!process)
		return 0;
	count_hit(process);
#ifdef SYSCALLS_AT_SITES
	if (role == ROLE_SYSCALL_ENTRY || role == ROLE_SYSCALL_RETURN)
		return at_syscall_site(ctx, process, slot, id, role == ROLE_SYSCALL_RETURN, number);
#endif
	operands = probe_operands.lookup(&number);
	blocks = live.lookup(&slot);
	if (process->state != STATE_RECORDING || !operands || !blocks)
		return 0;
	if (!read_operand(ctx, &operands->arguments[0], &said.address) || !said.address)
		return 0;
	if (role == ROLE_SAMPLED_FREE)
		return release_announced(process, id >> 32, blocks, said.address);
	if (!read_operand(ctx, &operands->arguments[1], &said.size) ||
	    !read_operand(ctx, &operands->arguments[2], &said.weight)) {
		count_loss(process, LOSS_RESULT_UNREADABLE);
		return 0;
	}
	return announce(ctx, process, slot, id, blocks, &said);
}
