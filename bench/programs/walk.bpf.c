/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Programs that do one thing at the return of malloc, to be measured apart. They are compiled behind the
 * daemon's own source, whose walker and maps they use.
 *
 *   bench_nothing        finds the thread's memory, as the others do
 *   bench_walk           and walks the stack: frames, hash, why it ended
 *   bench_get_stack      and lets the kernel follow the frame pointers
 *   bench_get_stackid    the same, and the kernel makes a number of it
 */
#define roundup_pow_of_two(n) (1UL << (64 - __builtin_clzl((n) - 1)))
BPF_STACK_TRACE(bench_stacks, 10240);

/* The current thread's memory, and its process; NULL if there is none. */
static __always_inline struct thread *thread_and_process(struct pt_regs *ctx, struct process **process, u32 *slot)
{
	u64 id = current_id();

	*process = linked_process(bpf_get_attach_cookie(ctx), id, slot);
	return *process ? current_thread(*process, id) : NULL;
}

int bench_nothing(struct pt_regs *ctx)
{
	struct process *process;
	u32 slot;

	return thread_and_process(ctx, &process, &slot) == NULL;
}

int bench_walk(struct pt_regs *ctx)
{
	struct process *process;
	struct thread *thread;
	u32 slot;

	if (!heap_may_run(ctx))
		return 0;
	thread = thread_and_process(ctx, &process, &slot);
	if (!thread)
		return 0;
	begin_walk(thread, PT_REGS_IP(ctx), ctx);
	walk_on(thread, &process->python, mappings_of(slot));
	end_walk(process, thread);
	return 0;
}

int bench_get_stack(struct pt_regs *ctx)
{
	struct process *process;
	u32 slot;
	struct thread *thread = thread_and_process(ctx, &process, &slot);
	long bytes;

	if (!thread)
		return 0;
	bytes = bpf_get_stack(ctx, thread->stack.frames, sizeof(thread->stack.frames), BPF_F_USER_STACK);
	thread->stack.depth = bytes < 0 ? 0 : bytes / sizeof(u64);
	return 0;
}

int bench_get_stackid(struct pt_regs *ctx)
{
	struct process *process;
	u32 slot;
	struct thread *thread = thread_and_process(ctx, &process, &slot);

	if (!thread)
		return 0;
	thread->stack.depth = bench_stacks.get_stackid(ctx, BPF_F_USER_STACK);
	return 0;
}
