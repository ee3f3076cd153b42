/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The programs: a few lines each, over the helpers of the headers.
 *
 *   heap_session             entry and return of heap functions (uprobe session, Linux 6.13): the entry
 *                            may decline the return
 *   heap_entry, heap_exit    the same as two programs (uprobe multi, perf events)
 *   space_enter, space_exit  mmap, munmap, mremap, brk, mprotect, madvise (syscall tracepoints)
 *   *_continue               where a walk takes several programs (before Linux 6.9)
 *   process_exec, thread_exit
 */
#include <uapi/linux/ptrace.h>
#include "abi.h"
#include "maps.h"
#include "current.h"
#include "walk.h"
#include "record.h"
#include "heap.h"
#include "space.h"

/*
 * What a probed function does with its arguments is the cookie of its link. The return, where it is
 * wanted, is the same for all.
 */
static __always_inline int enter_function(struct pt_regs *ctx)
{
	switch (bpf_get_attach_cookie(ctx)) {
	case ROLE_SIZE_FIRST:		/* malloc(size), valloc(size), pvalloc(size) */
		return enter(ctx, PT_REGS_PARM1(ctx), 0, 0);
	case ROLE_SIZE_SECOND:		/* aligned_alloc(alignment, size), memalign(alignment, size) */
		return enter(ctx, PT_REGS_PARM2(ctx), 0, 0);
	case ROLE_CALLOC:		/* calloc(count, size); where the product overflows it returns NULL */
		return enter(ctx, PT_REGS_PARM1(ctx) * PT_REGS_PARM2(ctx), 0, 0);
	case ROLE_REALLOC:		/* realloc(old, size) */
		return enter(ctx, PT_REGS_PARM2(ctx), PT_REGS_PARM1(ctx), 0);
	case ROLE_POSIX_MEMALIGN:	/* posix_memalign(result, alignment, size) */
		return enter(ctx, PT_REGS_PARM3(ctx), 0, PT_REGS_PARM1(ctx));
	case ROLE_RELEASE:		/* free(address) */
		return release(PT_REGS_PARM1(ctx));
	case ROLE_LIBRARIES_CHANGED:	/* _dl_debug_state(): where debuggers learn of dlopen and dlclose */
		return note_library_change();
	}
	return WITHOUT_RETURN;
}

/* Only what the method needs is compiled: each program that walks costs the verifier 0.1 s. */
#ifdef ATTACH_BY_SESSION
/* Runs at both ends of a call; only at the entry is the ip that of the probe. */
int heap_session(struct pt_regs *ctx)
{
	return PT_REGS_IP(ctx) == bpf_get_func_ip(ctx) ? enter_function(ctx) : leave(ctx);
}

#else
int heap_entry(struct pt_regs *ctx)
{
	enter_function(ctx);
	return 0;
}

int heap_exit(struct pt_regs *ctx)
{
	return leave(ctx);
}
#endif

#ifdef WALK_BY_TAIL_CALLS
int heap_continue(struct pt_regs *ctx)
{
	return leave_continued(ctx);
}
#endif

int space_enter(struct syscall_enter *ctx)
{
	return enter_syscall(ctx);
}

int space_exit(struct syscall_exit *ctx)
{
	return leave_syscall(ctx);
}

#ifdef WALK_BY_TAIL_CALLS
int space_continue(struct syscall_exit *ctx)
{
	return leave_syscall_continued(ctx);
}
#endif

/* A traced process called exec: stop at once, the daemon clears its tables. */
int process_exec(void *ctx)
{
	u32 tgid = current_id() >> 32;
	struct process *process = processes.lookup(&tgid);

	if (process)
		process->state = STATE_EXECED;
	return 0;
}

/* A thread ends: give its memory back. */
int thread_exit(void *ctx)
{
	u64 id = current_id();
	u32 tgid = id >> 32;
	struct process *process = processes.lookup(&tgid);
	struct thread *thread;

	if (!process)
		return 0;
	thread = threads.lookup(&id);
	/* In the middle of realloc: the old block is in nobody's table, nor may it be in the counters. */
	if (thread && thread->pending.entry_sp && thread->pending.old_known)
		give_up_pending(process, tgid, &thread->pending);
	threads.delete(&id);
	return 0;
}
