/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The address space: mmap, munmap, mremap, brk, mprotect and madvise of traced processes, reported to the
 * daemon one by one. Which bytes are whose is worked out there (src/bpfleakd/table/address_map.py): maps
 * have no look-up by range.
 *
 * Rules:
 *  - What takes addresses away is reported at its entry, what gives them at its exit: no other thread's
 *    event about the same addresses can come in between.
 *  - What an allocator does for itself is marked and has no stack: it is the heap's.
 */

enum {
	SYSCALL_MMAP = 9,
	SYSCALL_MPROTECT = 10,
	SYSCALL_MUNMAP = 11,
	SYSCALL_BRK = 12,
	SYSCALL_MREMAP = 25,
	SYSCALL_MADVISE = 28,
};

/* What the syscall tracepoints hand over: perf_call_bpf_enter and _exit in kernel/trace/trace_syscalls.c. */
struct syscall_enter {
	u64 common;
	u32 number;
	u32 padding;
	u64 arguments[6];
};

struct syscall_exit {
	u64 common;
	u32 number;
	u32 padding;
	s64 result;
};

static __always_inline bool is_failure(s64 result)
{
	return result < 0 && result >= -4095;
}

static __always_inline void report(struct process *process, u64 id, const struct thread *thread, u32 phase,
				   s64 result, u64 stack_id, bool inside_allocator)
{
	struct space_event event = {
		.time_ns = bpf_ktime_get_ns(),
		.stack_id = stack_id,
		.result = result,
		.tgid = id >> 32,
		.tid = (u32)id,
		.syscall = thread->syscall.number,
		.phase = phase,
		.inside_allocator = inside_allocator,
	};

	__builtin_memcpy(event.arguments, thread->syscall.arguments, sizeof(event.arguments));
	if (space_events.ringbuf_output(&event, sizeof(event), BPF_RB_NO_WAKEUP))
		count_loss(process, LOSS_EVENT_FULL);
}

/* A traced process enters one of the calls: keep the arguments for its exit. */
static __always_inline int enter_syscall(struct syscall_enter *ctx)
{
	u64 id = current_id();
	u32 tgid = id >> 32;
	struct process *process = processes.lookup(&tgid);
	struct thread *thread;

	if (!process || process->state != STATE_RECORDING)
		return 0;
	thread = current_thread(id);
	if (!thread) {
		count_loss(process, LOSS_THREAD_FULL);
		return 0;
	}
	thread->syscall.number = ctx->number;
	thread->syscall.arguments[0] = ctx->arguments[0];
	thread->syscall.arguments[1] = ctx->arguments[1];
	thread->syscall.arguments[2] = ctx->arguments[2];
	thread->syscall.arguments[3] = ctx->arguments[3];
	thread->syscall.arguments[4] = ctx->arguments[4];
	thread->syscall.arguments[5] = ctx->arguments[5];
	if (ctx->number == SYSCALL_MUNMAP || ctx->number == SYSCALL_MREMAP)
		report(process, id, thread, SPACE_ENTRY, 0, 0, thread->pending.entry_sp != 0);
	return 0;
}

static __always_inline int walk_and_report(void *ctx, struct process *process, u64 id, struct thread *thread)
{
	u64 stack_id;

	walk_on(thread, mappings_of(id >> 32));
#ifdef WALK_BY_TAIL_CALLS
	if (thread->scratch.walk.end == WALK_GOES_ON)
		space_continuations.call(ctx, 0);
#endif
	stack_id = end_walk(thread);
	if (thread->stack.end == END_READ_FAULT)
		count_loss(process, LOSS_STACK_UNREADABLE);
	keep_stack(process, id >> 32, stack_id, &thread->stack);
	report(process, id, thread, SPACE_EXIT, thread->syscall.result, stack_id, false);
	return 0;
}

/* The call returns. */
static __always_inline int leave_syscall(struct syscall_exit *ctx)
{
	u64 id = current_id();
	u32 tgid = id >> 32;
	struct process *process = processes.lookup(&tgid);
	struct thread *thread;
	struct pt_regs *user;

	if (!process || process->state != STATE_RECORDING)
		return 0;
	thread = threads.lookup(&id);
	if (!thread || thread->syscall.number != ctx->number)
		return 0;
	thread->syscall.result = ctx->result;
	if (ctx->number == SYSCALL_MUNMAP || is_failure(ctx->result)) {
		/* Only what was announced at the entry has to be taken back. */
		if (is_failure(ctx->result) &&
		    (ctx->number == SYSCALL_MUNMAP || ctx->number == SYSCALL_MREMAP))
			report(process, id, thread, SPACE_EXIT, ctx->result, 0, false);
		return 0;
	}
	if (thread->pending.entry_sp) {
		report(process, id, thread, SPACE_EXIT, ctx->result, 0, true);
		return 0;
	}
	user = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());
	begin_walk_at(thread, 0, user->ip, user->sp, user->bp);
	return walk_and_report(ctx, process, id, thread);
}

static __always_inline int leave_syscall_continued(void *ctx)
{
	u64 id = current_id();
	u32 tgid = id >> 32;
	struct process *process = processes.lookup(&tgid);
	struct thread *thread = threads.lookup(&id);

	if (!process || !thread)
		return 0;
	return walk_and_report(ctx, process, id, thread);
}
