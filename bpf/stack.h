/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * No program runs on a private stack.
 *
 * Since Linux 6.13 (a76ab5731e32) the JIT gives a program of type kprobe, tracepoint or raw tracepoint that uses 64
 * bytes of stack or more a *private stack*: memory per CPU, on the ground that such programs do not nest there. Uprobe
 * programs can be preempted (8c7dcb84e3b7, 88bf18581375), tracepoint programs may come to be. The next thread on that
 * CPU would then run over the locals of the one that waits: wrong books, or a wild pointer in the kernel.
 *
 * Therefore, whatever a kernel does about private stacks:
 *  - Every program contains a tail call, reachable for the verifier. One with a tail call gets no private stack.
 *  - The tail call is where a program finds that it runs on another stack than its context, which the kernel keeps on
 *    the stack of the task. It does nothing then: it has no local that anything depends on so far.
 *  - The loader looks for the private stack in the machine code (src/bpfleakd/kernel/compilation/machine_code.py).
 *
 * A program array takes programs of one type and attach type, so that each kind of program has one (and bcc rewrites
 * no map in a macro). None is ever filled.
 */

/* A kernel stack has 4 pages; with KASAN 8. */
#define TASK_STACK_BYTES 0x8000

/* Whether this program's locals lie below its context, on the same stack. LLVM has no name for the frame pointer. */
static __always_inline bool is_on_task_stack(void *ctx)
{
	u64 distance;

	asm volatile("%0 = %1; %0 -= r10" : "=&r"(distance) : "r"(ctx));
	return distance < TASK_STACK_BYTES;
}

/* Every program calls one of these first, and returns if it may not run. */

BPF_PROG_ARRAY(no_heap_programs, 1);

static __always_inline bool heap_may_run(struct pt_regs *ctx)
{
	if (is_on_task_stack(ctx))
		return true;
	no_heap_programs.call(ctx, 0);
	return false;
}

#ifdef ATTACH_BY_SESSION
BPF_PROG_ARRAY(no_release_programs, 1);

static __always_inline bool release_may_run(struct pt_regs *ctx)
{
	if (is_on_task_stack(ctx))
		return true;
	no_release_programs.call(ctx, 0);
	return false;
}
#endif

#ifdef SHARED_PROGRAMS
BPF_PROG_ARRAY(no_shared_programs, 1);

static __always_inline bool shared_may_run(struct pt_regs *ctx)
{
	if (is_on_task_stack(ctx))
		return true;
	no_shared_programs.call(ctx, 0);
	return false;
}
#endif

BPF_PROG_ARRAY(no_syscall_programs, 1);

static __always_inline bool syscall_may_run(void *ctx)
{
	if (is_on_task_stack(ctx))
		return true;
	no_syscall_programs.call(ctx, 0);
	return false;
}

BPF_PROG_ARRAY(no_life_programs, 1);

static __always_inline bool life_may_run(void *ctx)
{
	if (is_on_task_stack(ctx))
		return true;
	no_life_programs.call(ctx, 0);
	return false;
}
