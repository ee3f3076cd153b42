/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The current task, in the daemon's terms. */

/*
 * tgid in the upper half, tid in the lower, both in the daemon's PID namespace: in a container they differ from what
 * bpf_get_current_pid_tgid returns. 0 for a task outside that namespace.
 */
static __always_inline u64 current_id(void)
{
#ifdef PID_NAMESPACE_INODE
	struct bpf_pidns_info here = {};

	if (bpf_get_ns_current_pid_tgid(PID_NAMESPACE_DEVICE, PID_NAMESPACE_INODE, &here, sizeof(here)))
		return 0;
	return ((u64)here.tgid << 32) | here.pid;
#else
	return bpf_get_current_pid_tgid();
#endif
}

/* The process in a slot, if the current task `id` belongs to it: a child may run in its parent's memory. */
static __always_inline struct process *process_in(u32 slot, u64 id)
{
	struct process *process = processes.lookup(&slot);

	return process && process->tgid == (u32)(id >> 32) ? process : NULL;
}

/* The process of the current task, where no link has the slot; NULL: it is not traced. */
static __always_inline struct process *current_process(u64 id, u32 *slot)
{
	u32 tgid = id >> 32;
	u32 *known = slots.lookup(&tgid);

	if (!known)
		return NULL;
	*slot = *known;
	return process_in(*slot, id);
}

/* The process of the current task, by the cookie of the link that led here. */
static __always_inline struct process *linked_process(u64 cookie, u64 id, u32 *slot)
{
	*slot = cookie >> COOKIE_SLOT_SHIFT;
	return *slot == COOKIE_SLOT_SHARED ? current_process(id, slot) : process_in(*slot, id);
}

static __always_inline struct call_counter *call_counter(struct process *process)
{
	return &process->calls[bpf_get_smp_processor_id() & (CALL_COUNTERS - 1)];
}

static __always_inline void count_hit(struct process *process)
{
	__sync_fetch_and_add(&call_counter(process)->probe_hits, 1);
}

/*
 * bpf_probe_read_user and _user_str. When bcc sees calls of these names, it reads all of kallsyms to check whether
 * the kernel has them, which takes 0.35 s; every kernel since Linux 5.5 does.
 */
static long (*read_user)(void *to, u32 bytes, const void *from) = (void *)BPF_FUNC_probe_read_user;
static long (*read_user_text)(void *to, u32 bytes, const void *from) = (void *)BPF_FUNC_probe_read_user_str;

/* For sampling.h. */
#define random_u32 bpf_get_prandom_u32

static __always_inline void count_loss(struct process *process, enum loss reason)
{
	__sync_fetch_and_add(&process->losses[reason], 1);
}
