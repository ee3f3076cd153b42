/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The programs: a line or two each, over the helpers of the headers.
 *
 * A function that allocates has two programs, and every kernel uses one of two ways to run them:
 *   *_session    entry and return in one (uprobe session, Linux 6.13); may decline the return
 *   *_entry      the entry alone, with leave_exit for the return (uprobe multi, perf events)
 */
#include <uapi/linux/ptrace.h>
#include "abi.h"
#include "maps.h"
#include "current.h"
#include "walk.h"
#include "record.h"
#include "heap.h"

/* In a session the same program runs at both ends; only at the entry is the ip that of the probe. */
static __always_inline bool is_return(struct pt_regs *ctx)
{
	return PT_REGS_IP(ctx) != bpf_get_func_ip(ctx);
}

/* malloc(size), valloc(size), pvalloc(size) */
static __always_inline int enter_size_first(struct pt_regs *ctx)
{
	return enter(ctx, PT_REGS_PARM1(ctx), 0, 0);
}

/* calloc(count, size): where the product overflows calloc fails, so that its size is never used. */
static __always_inline int enter_calloc(struct pt_regs *ctx)
{
	return enter(ctx, PT_REGS_PARM1(ctx) * PT_REGS_PARM2(ctx), 0, 0);
}

/* aligned_alloc(alignment, size), memalign(alignment, size) */
static __always_inline int enter_size_second(struct pt_regs *ctx)
{
	return enter(ctx, PT_REGS_PARM2(ctx), 0, 0);
}

/* posix_memalign(result, alignment, size) */
static __always_inline int enter_posix_memalign(struct pt_regs *ctx)
{
	return enter(ctx, PT_REGS_PARM3(ctx), 0, PT_REGS_PARM1(ctx));
}

/* realloc(old, size) */
static __always_inline int enter_realloc(struct pt_regs *ctx)
{
	return enter(ctx, PT_REGS_PARM2(ctx), PT_REGS_PARM1(ctx), 0);
}

int size_first_session(struct pt_regs *ctx)
{
	return is_return(ctx) ? leave(ctx) : enter_size_first(ctx);
}

int calloc_session(struct pt_regs *ctx)
{
	return is_return(ctx) ? leave(ctx) : enter_calloc(ctx);
}

int size_second_session(struct pt_regs *ctx)
{
	return is_return(ctx) ? leave(ctx) : enter_size_second(ctx);
}

int posix_memalign_session(struct pt_regs *ctx)
{
	return is_return(ctx) ? leave(ctx) : enter_posix_memalign(ctx);
}

int realloc_session(struct pt_regs *ctx)
{
	return is_return(ctx) ? leave(ctx) : enter_realloc(ctx);
}

int size_first_entry(struct pt_regs *ctx)
{
	enter_size_first(ctx);
	return 0;
}

int calloc_entry(struct pt_regs *ctx)
{
	enter_calloc(ctx);
	return 0;
}

int size_second_entry(struct pt_regs *ctx)
{
	enter_size_second(ctx);
	return 0;
}

int posix_memalign_entry(struct pt_regs *ctx)
{
	enter_posix_memalign(ctx);
	return 0;
}

int realloc_entry(struct pt_regs *ctx)
{
	enter_realloc(ctx);
	return 0;
}

/* The return of any of them. */
int leave_exit(struct pt_regs *ctx)
{
	return leave(ctx);
}

/* free(address) and its like, which need no return. */
int release_entry(struct pt_regs *ctx)
{
	return release(PT_REGS_PARM1(ctx));
}

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

	if (processes.lookup(&tgid))
		threads.delete(&id);
	return 0;
}
