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
	SYSCALL_MUNMAP = 11,
	SYSCALL_MREMAP = 25,
};

#define ENOMEM 12

/*
 * What the syscall tracepoints hand over: perf_call_bpf_enter and _exit in kernel/trace/trace_syscalls.c.
 * The arguments are taken from the caller's registers, which keep them until the call returns.
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

static __always_inline bool is_failure(s64 result)
{
	return result < 0 && result >= -4095;
}

static __always_inline struct pt_regs *user_registers(void)
{
	return (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());
}

/*
 * Whether one more event of a process may go into the ring. All processes share it, and each may put in only so
 * many between two readings: a storm of one leaves room to the others.
 */
static __always_inline bool has_room(struct process *process)
{
	u32 reading = process->reading;

	if (process->space_reading != reading) {
		/* Of threads that come here at once one count or another is lost, which the limit can bear. */
		process->space_reading = reading;
		process->space_count = 0;
	}
	return ++process->space_count <= process->space_quota;
}

static __always_inline void report(struct process *process, u64 id, u32 number, u32 phase, s64 result,
				   u64 stack_id, bool inside_allocator)
{
	struct pt_regs *user = user_registers();
	/* Before the time, so that whoever read the peak earlier than that knows it to be of before the event. */
	s64 heap_peak_bytes = __sync_lock_test_and_set(&process->peak_live_bytes, process->live_bytes);
	struct space_event event = {
		.time_ns = bpf_ktime_get_ns(),
		.stack_id = stack_id,
		.arguments = { user->di, user->si, user->dx, user->r10, user->r8, user->r9 },
		.result = result,
		.heap_peak_bytes = heap_peak_bytes,
		.tgid = id >> 32,
		.tid = (u32)id,
		.syscall = number,
		.phase = phase,
		.inside_allocator = inside_allocator,
	};

	if (!is_attended(process, event.time_ns))
		return;
	if (!has_room(process) || space_events.ringbuf_output(&event, sizeof(event), BPF_RB_NO_WAKEUP)) {
		count_loss(process, LOSS_EVENT_FULL);
		raise_peak(&process->peak_live_bytes, heap_peak_bytes);
	}
}

/* A call is made that takes addresses away. */
static __always_inline int enter_syscall(struct syscall_enter *ctx)
{
	u64 id = current_id();
	struct process *process;
	u32 slot;

	process = current_process(id, &slot);
	if (!process)
		return 0;
	count_hit(process);
	if (process->state == STATE_RECORDING)
		report(process, id, ctx->number, SPACE_ENTRY, 0, 0, false);
	return 0;
}

static __always_inline int walk_and_report(struct syscall_exit *ctx, struct process *process, u32 slot,
					   u64 id, struct thread *thread)
{
	u64 stack_id;

	walk_on(thread, &process->python, mappings_of(slot));
#ifdef WALK_BY_TAIL_CALLS
	if (thread->scratch.walk.end == WALK_GOES_ON)
		space_continuations.call(ctx, 0);
#endif
	stack_id = end_walk(thread);
	if (thread->stack.end == END_READ_FAULT)
		count_loss(process, LOSS_STACK_UNREADABLE);
	keep_stack(process, id >> 32, stack_id, &thread->stack);
	report(process, id, ctx->number, SPACE_EXIT, ctx->result, stack_id, false);
	return 0;
}

/* A call returns. */
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
	if (is_failure(ctx->result)) {
		/* Of most calls nothing has happened then; some were announced, some have done a part. */
		if (ctx->number == SYSCALL_MUNMAP || ctx->number == SYSCALL_MREMAP || ctx->result == -ENOMEM)
			report(process, id, ctx->number, SPACE_EXIT, ctx->result, 0, false);
		return 0;
	}
	if (ctx->number == SYSCALL_MUNMAP)
		return 0;
	thread = current_thread(id);
	if (!thread) {
		count_loss(process, LOSS_THREAD_FULL);
		report(process, id, ctx->number, SPACE_EXIT, ctx->result, 0, false);
		return 0;
	}
	user = user_registers();
	if (is_nested(&thread->pending, user->sp)) {
		report(process, id, ctx->number, SPACE_EXIT, ctx->result, 0, true);
		return 0;
	}
	begin_walk_at(thread, 0, user->ip, user->sp, user->bp);
	return walk_and_report(ctx, process, slot, id, thread);
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
	return walk_and_report(ctx, process, slot, id, thread);
}
