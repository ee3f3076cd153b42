/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The current task, as the daemon knows it. */

/*
 * tgid in the upper half, tid in the lower, as in the daemon's pid namespace: in a container these are not
 * the numbers that bpf_get_current_pid_tgid returns. 0 for a task outside that namespace.
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

static __always_inline void count_hit(struct process *process)
{
	__sync_fetch_and_add(&process->probe_hits, 1);
}

static __always_inline void count_loss(struct process *process, enum loss reason)
{
	__sync_fetch_and_add(&process->losses[reason], 1);
}
