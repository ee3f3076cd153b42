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

/* Returns the thread of an announced block, whose stack is wanted; NULL: the block is not recorded. */
static __always_inline struct thread *announce(struct process *process, u64 id, const struct announced_block *said)
{
	struct pending_call *pending;
	struct thread *thread;

	if (said->size > ANNOUNCED_BYTES_MAX || said->weight > ANNOUNCED_BYTES_MAX ||
	    said->weight < sampled_bytes(said->size))
		return NULL;
	thread = current_thread(process, id);
	if (!thread) {
		count_loss(process, LOSS_THREAD_FULL);
		return NULL;
	}
	note_interval(process, said->size, said->weight);
	pending = &thread->pending;
	pending->size = said->size;
	pending->weight = said->weight;
	pending->new_address = said->address;
	return thread;
}

static __always_inline u32 role_of(u64 cookie)
{
	return cookie & ((1 << COOKIE_ROLE_BITS) - 1);
}

static __always_inline u32 number_of(u64 cookie)
{
	return cookie >> COOKIE_ROLE_BITS & COOKIE_OPERANDS_MASK;
}

/* A probe of the sampler. Returns the thread whose stack is wanted, if any. */
static __always_inline struct thread *enter_announcement(struct pt_regs *ctx, struct process *process, u64 id,
							 void *blocks, u64 cookie)
{
	struct announced_block said = {};
	struct probe_operands *operands;
	u32 number = number_of(cookie);

	operands = probe_operands.lookup(&number);
	if (!operands || !read_operand(ctx, &operands->arguments[0], &said.address) || !said.address)
		return NULL;
	if (role_of(cookie) == ROLE_SAMPLED_FREE) {
		release_announced(process, id >> 32, blocks, said.address);
		return NULL;
	}
	if (!read_operand(ctx, &operands->arguments[1], &said.size) ||
	    !read_operand(ctx, &operands->arguments[2], &said.weight)) {
		count_loss(process, LOSS_RESULT_UNREADABLE);
		return NULL;
	}
	return announce(process, id, &said);
}

#ifdef SYSCALLS_AT_SITES
static __always_inline u32 call_of(u64 cookie)
{
	return number_of(cookie) & ((1 << COOKIE_CALL_BITS) - 1);
}

/* Where the call of a site returns to. */
static __always_inline u64 return_of(struct pt_regs *ctx, u64 cookie)
{
	return PT_REGS_IP(ctx) - (number_of(cookie) >> COOKIE_CALL_BITS & 0xff);
}

/* An instruction that makes a system call, or one behind it: the registers are those of the call. */
static __always_inline struct thread *enter_site(struct pt_regs *ctx, struct process *process, u32 slot, u64 id,
						 u64 cookie)
{
	__sync_fetch_and_add(&process->site_hits, 1);
	if (role_of(cookie) == ROLE_SYSCALL_RETURN)
		return leave_call(process, slot, id, call_of(cookie), PT_REGS_RC(ctx), return_of(ctx, cookie), true);
	if (process->space_at_sites)
		enter_space_call(process, id, call_of(cookie));
	return NULL;
}

static __always_inline bool is_site(u64 cookie)
{
	return role_of(cookie) == ROLE_SYSCALL_ENTRY || role_of(cookie) == ROLE_SYSCALL_RETURN;
}
#endif

static __always_inline int enter_probe(struct pt_regs *ctx)
{
	u64 id = current_id(), cookie = bpf_get_attach_cookie(ctx);
	struct process *process;
	struct thread *thread;
	void *blocks;
	u32 slot;

	process = linked_process(cookie, id, &slot);
	if (!process)
		return 0;
	count_hit(process);
	blocks = live.lookup(&slot);
	if (process->state != STATE_RECORDING || !blocks)
		return 0;
#ifdef SYSCALLS_AT_SITES
	if (is_site(cookie))
		thread = enter_site(ctx, process, slot, id, cookie);
	else
#endif
		thread = enter_announcement(ctx, process, id, blocks, cookie);
	if (!thread)
		return 0;
	begin_walk(thread, 0, ctx);
#ifdef SYSCALLS_AT_SITES
	if (is_site(cookie))
		thread->scratch.walk.ip = return_of(ctx, cookie);
#endif
	walk_on(thread, &process->python, mappings_of(slot));
#if defined(WALK_BY_TAIL_CALLS) && !defined(ATTACH_BY_SESSION)
	/*
	 * With sessions, the continuation has another attach type, so the walk ends here. Sessions are newer than
	 * may_goto.
	 */
	if (thread->scratch.walk.end == WALK_GOES_ON)
		continuations.call(ctx, 0);
#endif
#ifdef SYSCALLS_AT_SITES
	/* Read anew: the verifier would follow the walk once for each known cookie. */
	cookie = bpf_get_attach_cookie(ctx);
	if (is_site(cookie))
		return record_syscall(ctx, process, slot, id, thread, call_of(cookie), PT_REGS_RC(ctx));
#endif
	return record_block(process, blocks, id, thread);
}
