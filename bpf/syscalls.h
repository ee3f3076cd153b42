/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * System calls of traced processes: those that change address spaces (space.h), and those that open or close
 * descriptors (descriptors.h). They share programs, because each program with a walk costs the verifier 0.1 s.
 */

/*
 * The contexts of syscall tracepoints: perf_call_bpf_enter and _exit in kernel/trace/trace_syscalls.c. Programs at the
 * kernel's functions of system calls make such a context themselves. Arguments are read from the caller's registers,
 * which stay unchanged until the call returns.
 */
struct syscall_enter {
	u64 common;
	u32 number;
};

struct syscall_exit {
	u64 common;
	u32 number;
	u32 padding;
	s64 result;
};

/* Entry of a call that removes addresses. */
static __always_inline int enter_space_call(struct process *process, u64 id, u32 number)
{
	if (number == SYSCALL_MUNMAP && process->numbered_end)
		code_is_unmapped(id);
	report(process, id, number, SPACE_ENTRY, 0, 0, false);
	return 0;
}

/* Entry of a call that removes addresses or a descriptor. */
static __always_inline int enter_syscall(struct syscall_enter *ctx)
{
	u64 id = current_id();
	struct process *process;
	void *table;
	u32 slot;

	process = current_process(id, &slot);
	if (!process)
		return 0;
	if (ctx->number != SYSCALL_CLOSE && process->space_at_sites)
		return 0;
	count_hit(process);
	if (process->state != STATE_RECORDING)
		return 0;
	if (ctx->number != SYSCALL_CLOSE)
		return enter_space_call(process, id, ctx->number);
	table = descriptors_of(slot);
	if (table)
		close_descriptor(process, table, user_registers()->di);
	return 0;
}

/* What a call with a whole stack has done. */
static __always_inline int record_syscall(void *ctx, struct process *process, u32 slot, u64 id, struct thread *thread,
					  u32 number, s64 result)
{
	u64 stack_id = end_walk(process, thread), bytes;
	struct pt_regs *user = user_registers();

	if (thread->stack.end == END_READ_FAULT)
		count_loss(process, LOSS_STACK_UNREADABLE);
	if (changes_space(number)) {
		keep_stack(process, id >> 32, stack_id, &thread->stack);
		bytes = number == SYSCALL_BRK ? exchange_break(process, result) : user->si;
		report_range(process, id, number, SPACE_EXIT, result, stack_id, false, user->di, bytes);
		if (number == SYSCALL_MMAP && user->dx & PROT_EXEC) {
#ifdef WALK_BY_TAIL_CALLS
			code_programs.call(ctx, 0);
#else
			code_is_mapped(process, slot, id, thread, result);
#endif
		}
	} else {
		record_descriptors(process, slot, id, number, result, stack_id, thread);
	}
	return 0;
}

static __always_inline int walk_syscall(struct syscall_exit *ctx, struct process *process, u32 slot,
					u64 id, struct thread *thread)
{
	walk_on(thread, &process->python, mappings_of(slot));
#ifdef WALK_BY_TAIL_CALLS
	if (thread->scratch.walk.end == WALK_GOES_ON)
		syscall_continuations.call(ctx, 0);
#endif
	return record_syscall(ctx, process, slot, id, thread, ctx->number, ctx->result);
}

/*
 * A call has returned to `ip`. Returns the thread if its stack is wanted; otherwise everything is done. Changes of the
 * address space are either seen at sites or in the kernel.
 */
static __always_inline struct thread *leave_call(struct process *process, u32 slot, u64 id, u32 number, s64 result,
						 u64 ip, bool is_at_site)
{
	bool is_space = changes_space(number), is_commit;
	struct thread *thread;
	struct pt_regs *user;

	if (!is_space && (!descriptors_of(slot) || !opens_descriptors(number, result)))
		return NULL;
	/* Without a branch for each half: the verifier would follow the walk twice. */
	if (is_space & (is_at_site != (process->space_at_sites & 1)))
		return NULL;
	if (is_space && is_failure(result)) {
		if (is_partly_done(number, result))
			report(process, id, number, SPACE_EXIT, result, 0, false);
		return NULL;
	}
	if (number == SYSCALL_MUNMAP)
		return NULL;
	user = user_registers();
	if (number == SYSCALL_BRK && is_allocators_break(process, user->sp)) {
		note_break(process, result);
		return NULL;
	}
	thread = current_thread(process, id);
	if (!thread) {
		/*
		 * An allocator may have made the call: the thread's blocks are not recorded, so its mappings are not
		 * charged.
		 */
		count_loss(process, LOSS_THREAD_FULL);
		if (is_space)
			take_allocators_call(process, id, number, result);
		return NULL;
	}
	is_commit = makes_writable(number, user);
	if ((is_commit && is_allocators_commit(process, ip, user->sp)) ||
	    (is_space && is_nested(&thread->pending, user->sp))) {
		if (is_commit)
			report_commit(process, thread, id);
		else
			take_allocators_call(process, id, number, result);
		return NULL;
	}
	return thread;
}

/* Return of a call. */
static __always_inline int leave_syscall(struct syscall_exit *ctx)
{
	u64 id = current_id();
	struct process *process;
	struct thread *thread;
	struct pt_regs *user;
	u32 slot;

	process = current_process(id, &slot);
	if (!process)
		return 0;
	count_hit(process);
	if (process->state != STATE_RECORDING)
		return 0;
	user = user_registers();
	thread = leave_call(process, slot, id, ctx->number, ctx->result, user->ip, false);
	if (!thread)
		return 0;
	begin_walk_at(thread, 0, user->ip, user->sp, user->bp);
	return walk_syscall(ctx, process, slot, id, thread);
}

static __always_inline int leave_syscall_continued(struct syscall_exit *ctx)
{
	u64 id = current_id();
	struct process *process;
	struct thread *thread;
	u32 slot;

	process = current_process(id, &slot);
	if (!process)
		return 0;
	thread = threads.lookup(&id);
	if (!thread)
		return 0;
	return walk_syscall(ctx, process, slot, id, thread);
}

#ifdef WALK_BY_TAIL_CALLS
/* A separate program: the verifier follows all code after a walk once for each path through the walk. */
static __always_inline int note_code_of_syscall(struct syscall_exit *ctx)
{
	u64 id = current_id();
	struct process *process;
	struct thread *thread;
	u32 slot;

	process = current_process(id, &slot);
	if (!process)
		return 0;
	thread = threads.lookup(&id);
	if (thread)
		code_is_mapped(process, slot, id, thread, ctx->result);
	return 0;
}
#endif

#ifdef SYSCALLS_BY_FUNCTION
/* The kernel calls these functions for system calls only: the task's registers have the number. */
static __always_inline int enter_function_of_syscall(void)
{
	struct syscall_enter call = { .number = user_registers()->orig_ax };

	return enter_syscall(&call);
}

static __always_inline int leave_function_of_syscall(struct pt_regs *ctx)
{
	struct syscall_exit call = { .number = user_registers()->orig_ax, .result = PT_REGS_RC(ctx) };

	return leave_syscall(&call);
}
#endif
