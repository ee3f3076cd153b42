/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Open file descriptors, by the call site that opened them, as heap blocks are; only of processes whose descriptors
 * are recorded.
 *
 * Rules:
 *  - A descriptor is opened at the return of the call and closed at the entry of close(): no other thread can get its
 *    number in between.
 *  - Only the code path that successfully deletes a descriptor's entry subtracts it from its site.
 *  - Other ways to close (close_range, io_uring) are not seen here. The daemon compares the table with /proc/PID/fd,
 *    and a number that is reused replaces its entry.
 */

enum {
	SYSCALL_CLOSE = 3,
	SYSCALL_PIPE = 22,
	SYSCALL_DUP2 = 33,
	SYSCALL_SOCKETPAIR = 53,
	SYSCALL_FCNTL = 72,
	SYSCALL_SIGNALFD4 = 289,
	SYSCALL_PIPE2 = 293,
};

#define FCNTL_DUP 0		/* F_DUPFD */
#define FCNTL_DUP_CLOEXEC 1030	/* F_DUPFD_CLOEXEC */

/* The process' open descriptors; NULL: they are not recorded. */
static __always_inline void *descriptors_of(u32 slot)
{
	return descriptors.lookup(&slot);
}

/* Adds or subtracts one descriptor of a site. */
static __always_inline void count_descriptor(struct process *process, struct site *site, u64 stack_id, bool is_open)
{
	s64 live = __sync_fetch_and_add(&site->live_bytes, is_open ? 1 : -1) + 1;

	__sync_fetch_and_add(&site->live_count, is_open ? COUNT_UNIT : -(s64)COUNT_UNIT);
	if (is_open) {
		raise_peak(&site->peak_live_bytes, live);
		__sync_fetch_and_add(&site->allocated_bytes, 1);
		__sync_fetch_and_add(&site->allocated_count, COUNT_UNIT);
	}
	note_change(process, site, KIND_DESCRIPTOR, stack_id);
}

static __always_inline void close_descriptor(struct process *process, void *table, u32 descriptor)
{
	struct site_key key = { .tgid = process->tgid, .kind = KIND_DESCRIPTOR };
	struct live_block block;
	struct site *site;

	if (!take_block(table, descriptor, &block))
		return;
	key.stack_id = block.stack_id;
	site = sites.lookup(&key);
	if (site)
		count_descriptor(process, site, block.stack_id, false);
}

static __always_inline void open_descriptor(struct process *process, void *table, u32 descriptor, u64 id,
					    struct site *site, u64 stack_id, u64 now_ns)
{
	struct live_block block = {
		.size = 1,
		.weight = 1,
		.born_ns = now_ns,
		.stack_id = stack_id,
		.tid = (u32)id,
		.kind = KIND_DESCRIPTOR,
	};
	u64 key = descriptor;

	/* dup2 replaced the descriptor, or its close was missed. */
	close_descriptor(process, table, descriptor);
	if (bpf_map_update_elem(table, &key, &block, BPF_NOEXIST))
		count_loss(process, LOSS_DESCRIPTOR_FULL);
	else
		count_descriptor(process, site, stack_id, true);
}

/* Whether a call that returned `result` opened descriptors. */
static __always_inline bool opens_descriptors(u32 number, s64 result)
{
	struct pt_regs *user = user_registers();

	if (is_failure(result))
		return false;
	switch (number) {
	case SYSCALL_FCNTL:
		return user->si == FCNTL_DUP || user->si == FCNTL_DUP_CLOEXEC;
	case SYSCALL_SIGNALFD4:
		/* With any other descriptor, the call changes that one and returns it. */
		return (s32)user->di == -1;
	case SYSCALL_DUP2:
		return (u32)user->di != (u32)user->si;
	}
	return true;
}

/* Records the descriptors that a call opened; its stack is in `thread`. */
static __always_inline void record_descriptors(struct process *process, u32 slot, u64 id, u32 number, s64 result,
					       u64 stack_id, struct thread *thread)
{
	struct pt_regs *user = user_registers();
	void *table = descriptors_of(slot);
	u64 now_ns = bpf_ktime_get_ns(), pair = 0;
	struct site *site;
	bool is_pair = true;

	if (!table || !is_attended(process, now_ns))
		return;
	site = site_of(process, id >> 32, KIND_DESCRIPTOR, &thread->stack, &stack_id);
	if (!site)
		return;
	if (number == SYSCALL_SOCKETPAIR)
		pair = user->r10;
	else if (number == SYSCALL_PIPE || number == SYSCALL_PIPE2)
		pair = user->di;
	else
		is_pair = false;
	if (is_pair && read_user(&pair, sizeof(pair), (void *)pair)) {
		count_loss(process, LOSS_RESULT_UNREADABLE);
		return;
	}
	open_descriptor(process, table, is_pair ? (u32)pair : (u32)result, id, site, stack_id, now_ns);
	if (is_pair)
		open_descriptor(process, table, pair >> 32, id, site, stack_id, now_ns);
}
