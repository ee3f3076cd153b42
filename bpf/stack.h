/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * No program runs on a private stack.
 *
 * Since Linux 6.13 (a76ab5731e32), the JIT gives programs of type kprobe, tracepoint or raw tracepoint that use 64
 * bytes of stack or more a *private stack*: memory per CPU, on the assumption that such programs do not nest on a
 * CPU. But uprobe programs can be preempted (8c7dcb84e3b7, 88bf18581375), and tracepoint programs may follow. The
 * next thread on that CPU would then overwrite the locals of the preempted program: wrong books, or a wild pointer in
 * the kernel.
 *
 * Therefore, whatever a kernel does about private stacks:
 *  - Every program contains a tail call that the verifier considers reachable. A program with a tail call gets no
 *    private stack.
 *  - The tail call is placed where a program detects that it runs on another stack than its context, which the kernel
 *    keeps on the task's stack. The program then does nothing; it has no meaningful locals yet.
 *  - The loader looks for the private stack in the machine code (src/bpfleakd/kernel/compilation/machine_code.py).
 *
 * A program array takes programs of one type and attach type, so each kind of program has its own (and bcc does not
 * rewrite maps in a macro). All remain empty.
 */

/* A kernel stack has 4 pages, with KASAN 8. */
#define TASK_STACK_BYTES 0x8000

/* Whether this program's locals lie below its context, on the same stack. LLVM has no name for the frame pointer. */
static __always_inline bool is_on_task_stack(void *ctx)
{
	u64 distance;

	asm volatile("%0 = %1; %0 -= r10" : "=&r"(distance) : "r"(ctx));
	return distance < TASK_STACK_BYTES;
}

/* Every program calls one of these first, and returns if the result is false. */

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
