/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The address space: mmap, munmap, mremap, brk, mprotect and madvise of traced processes, reported to the daemon one
 * by one. The daemon works out which bytes belong to whom (src/bpfleakd/table/address_map.py), because BPF maps have
 * no look-up by range.
 *
 * Rules:
 *  - Calls that remove addresses are reported at their entry, calls that add addresses at their exit: no other
 *    thread's event about the same addresses can come in between.
 *  - Calls that an allocator makes are marked and have no stack: they belong to the heap.
 *  - Where it makes its memory accessible page by page, as glibc does in all threads but the first, calls are reported
 *    together: the first at once, what continues it by COMMIT_STEP_BYTES.
 *  - Where it moves the program break, as glibc does in the first thread, hundreds of times a second, only the result
 *    and the lowest break matter: they are noted in the process. The report of another's call has the break before it.
 */

enum {
	SYSCALL_MMAP = 9,
	SYSCALL_MPROTECT = 10,
	SYSCALL_MUNMAP = 11,
	SYSCALL_BRK = 12,
	SYSCALL_MREMAP = 25,
	SYSCALL_MADVISE = 28,
};

#define ENOMEM 12
#define PROT_WRITE 2
#define PROT_EXEC 4
#define MAP_ANONYMOUS 0x20

static __always_inline bool changes_space(u32 number)
{
	switch (number) {
	case SYSCALL_MMAP:
	case SYSCALL_MPROTECT:
	case SYSCALL_MUNMAP:
	case SYSCALL_BRK:
	case SYSCALL_MREMAP:
	case SYSCALL_MADVISE:
		return true;
	}
	return false;
}

static __always_inline bool is_failure(s64 result)
{
	return result < 0 && result >= -4095;
}

static __always_inline struct pt_regs *user_registers(void)
{
	return (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());
}

/*
 * Whether the ring has room for another event of this process. All processes share the ring, and each has a quota
 * between two readings, so a storm of one process leaves room to the others.
 */
static __always_inline bool has_room(struct process *process)
{
	u32 reading = process->reading;

	if (process->space_reading != reading) {
		/* Concurrent threads may lose counts here; the limit tolerates that. */
		process->space_reading = reading;
		process->space_count = 0;
	}
	return ++process->space_count <= process->space_quota;
}

/* Reports a call on the range from `start` on, of `bytes`. */
static __always_inline void report_range(struct process *process, u64 id, u32 number, u32 phase, s64 result,
					 u64 stack_id, bool inside_allocator, u64 start, u64 bytes)
{
	struct pt_regs *user = user_registers();
	/* Taken before the time: a peak that was read before that time is older than the event. */
	s64 heap_peak_bytes = __sync_lock_test_and_set(&process->peak_live_bytes, process->live_bytes);
	struct space_event event = {
		.time_ns = bpf_ktime_get_ns(),
		.stack_id = stack_id,
		.arguments = { start, bytes, user->dx, user->r10, user->r8, user->r9 },
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

static __always_inline void report(struct process *process, u64 id, u32 number, u32 phase, s64 result,
				   u64 stack_id, bool inside_allocator)
{
	struct pt_regs *user = user_registers();

	report_range(process, id, number, phase, result, stack_id, inside_allocator, user->di, user->si);
}

#define COMMIT_STEP_BYTES (1 << 20)

/* An allocator has made memory accessible. */
static __always_inline void report_commit(struct process *process, struct thread *thread, u64 id)
{
	struct pt_regs *user = user_registers();
	u64 start = user->di;
	u64 end = start + ((user->si + 0xfff) & -0x1000ULL);

	if (start == thread->commit_end) {
		thread->commit_end = end;
		if (end - thread->commit_start < COMMIT_STEP_BYTES)
			return;
		start = thread->commit_start;
	}
	thread->commit_start = end;
	thread->commit_end = end;
	report_range(process, id, SYSCALL_MPROTECT, SPACE_EXIT, 0, 0, true, start, end - start);
}

static __always_inline bool makes_writable(u32 number, const struct pt_regs *user)
{
	return number == SYSCALL_MPROTECT && user->dx & PROT_WRITE && !(user->dx & PROT_EXEC);
}

/* Whether an allocator that no probe shows has made a call that makes memory accessible. */
static __always_inline bool is_allocators_commit(const struct process *process, u64 ip, u64 sp)
{
	u64 caller = 0;
	int call;

	if (ip != process->commit_calls[0].ip)
		return false;
	read_user(&caller, sizeof(caller), (void *)sp);
#pragma unroll
	for (call = 0; call < COMMIT_CALLS; call++)
		if (caller == process->commit_calls[call].caller)
			return ip == process->commit_calls[call].ip;
	return false;
}

/* From the call of brk up to the return address of sbrk, glibc has five words. */
#define BREAK_WORDS 8

static __always_inline bool is_break_caller(const struct process *process, u64 address)
{
	bool is_found = false;
	int caller;

#pragma unroll
	for (caller = 0; caller < BREAK_CALLERS; caller++)
		is_found |= process->break_callers[caller] == address;
	return is_found & (address != 0);
}

/* Whether an allocator that no probe shows has called sbrk, which has called brk. */
static __always_inline bool is_allocators_break(const struct process *process, u64 sp)
{
	int word;

	if (!process->break_callers[0])
		return false;
	/* One at a time: there is no room on the stack of the program. */
#pragma unroll
	for (word = 0; word < BREAK_WORDS; word++) {
		u64 address = 0;

		read_user(&address, sizeof(address), (void *)(sp + 8 * word));
		if (is_break_caller(process, address))
			return true;
	}
	return false;
}

/* An allocator, which holds its lock meanwhile, has moved the program break. */
static __always_inline void note_break(struct process *process, u64 program_break)
{
	u64 lowest = process->lowest_break;

	if (!lowest || program_break < lowest)
		process->lowest_break = program_break;
	process->program_break = program_break;
}

/* An allocator has made a call, or may have. */
static __always_inline void take_allocators_call(struct process *process, u64 id, u32 number, s64 result)
{
	if (number == SYSCALL_BRK)
		note_break(process, result);
	else
		report(process, id, number, SPACE_EXIT, result, 0, true);
}

/* Another call has moved the program break, and is reported; returns the break before it, 0 if it is unknown. */
static __always_inline u64 exchange_break(struct process *process, u64 program_break)
{
	u64 before = process->program_break;

	process->lowest_break = 0;
	process->program_break = program_break;
	return before;
}

/* Whether a failed call is reported, without its stack: most failed calls have changed nothing. */
static __always_inline bool is_partly_done(u32 number, s64 result)
{
	return number == SYSCALL_MUNMAP || number == SYSCALL_MREMAP || result == -ENOMEM;
}

/* A process has mapped executable memory, and its call returns: code.h. */
static __always_inline void code_is_mapped(struct process *process, u32 slot, u64 id, struct thread *thread, u64 start)
{
	struct pt_regs *user = user_registers();
	struct code_key key = { .tgid = id >> 32, .start = start, .end = start + ((user->si + 0xfff) & -0x1000ULL) };
	bool is_file = !(user->r10 & MAP_ANONYMOUS);
	u64 file = 0;

	if (is_file) {
		file = file_of((u32)user->r8);
		identify(&key, file);
		key.offset = user->r9;
	}
	note_mapped_code(process, mappings_of(slot), &thread->scratch, &key, file, is_file);
}

/* A process that has numbered code unmaps memory. */
static __always_inline void code_is_unmapped(u64 id)
{
	struct pt_regs *user = user_registers();
	struct thread *thread = threads.lookup(&id);
	u64 end = user->di + user->si;
	u32 tgid = id >> 32;
	struct code_ranges *ranges = code_ranges.lookup(&tgid);

	if (thread && ranges)
		drop_numbered(&thread->scratch, ranges, user->di, end);
}
