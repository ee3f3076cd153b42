/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The programs: a few lines each, on top of the helpers in the headers.
 *
 *    heap_session             entry and return of heap functions (uprobe session, Linux 6.13): the entry
 *                             may decline the return
 *    heap_release             functions that free, next to a session: entry only
 *    heap_entry, heap_exit    the same as two programs (uprobe multi, perf events)
 *    sampled_probe            probes of a sampler inside the process: entry only
 *    shared_entry, _exit      heap_entry and heap_exit for perf events that many processes share, next to the other
 *                             methods
 *    syscall_enter, _exit     calls that change address spaces, open or close descriptors: at the kernel's functions
 *                             (kprobe multi, Linux 6.14), or syscall tracepoints
 *    *_continue               continue a walk that needs several programs (before Linux 6.9)
 *    process_exec, thread_exit
 */
#include <uapi/linux/ptrace.h>
#include "abi.h"
#include "thread.h"
#include "stack.h"
#include "maps.h"
#include "current.h"
#include "walk.h"
#include "sampling.h"
#include "record.h"
#include "heap.h"
#include "space.h"
#include "descriptors.h"
#include "syscalls.h"

/* One load per register: LLVM would merge many into one load at a computed offset, which the verifier rejects. */
#define READ_REGISTER(ctx, field)                                                                        \
	({                                                                                               \
		u64 value_;                                                                              \
		asm volatile("%0 = *(u64 *)(%1 + %2)"                                                    \
			     : "=r"(value_)                                                              \
			     : "r"(ctx), "i"(__builtin_offsetof(struct pt_regs, field)));                \
		value_;                                                                                  \
	})

#include "sampled.h"

/* The argument at `index`, from the register that the link's cookie names. */
static __always_inline u64 argument(struct pt_regs *ctx, u64 cookie, u32 index)
{
	switch (cookie >> (COOKIE_ROLE_BITS + index * COOKIE_REGISTER_BITS) & ((1 << COOKIE_REGISTER_BITS) - 1)) {
	case REGISTER_RDI:
		return READ_REGISTER(ctx, di);
	case REGISTER_RSI:
		return READ_REGISTER(ctx, si);
	case REGISTER_RDX:
		return READ_REGISTER(ctx, dx);
	case REGISTER_RCX:
		return READ_REGISTER(ctx, cx);
	case REGISTER_R8:
		return READ_REGISTER(ctx, r8);
	case REGISTER_R9:
		return READ_REGISTER(ctx, r9);
	case REGISTER_RAX:
		return READ_REGISTER(ctx, ax);
	case REGISTER_R10:
		return READ_REGISTER(ctx, r10);
	case REGISTER_R11:
		return READ_REGISTER(ctx, r11);
	}
	return 0;
}

/* Bytes of an array; the largest number if the product overflows. */
static __always_inline u64 array_bytes(u64 count, u64 size)
{
	u64 most = ~0ULL;

	/* Hides the number: LLVM would make a 128-bit multiplication, for which BPF has no function. */
	asm volatile("" : "+r"(most));
	return count && size > most / count ? ~0ULL : count * size;
}

/*
 * Entry of a probed function. The link's cookie has the function's role and the registers of its arguments. The
 * return, if it is needed, is the same for all functions.
 */
static __always_inline int enter_function(struct pt_regs *ctx)
{
	u64 id = current_id(), cookie = bpf_get_attach_cookie(ctx);
	u64 first = argument(ctx, cookie, 0), second = argument(ctx, cookie, 1);
	u64 size = second, old = 0, result = 0;
	struct process *process;
	u32 slot;

	process = linked_process(cookie, id, &slot);
	if (!process)
		return WITHOUT_RETURN;
	count_hit(process);
	switch (cookie & ((1 << COOKIE_ROLE_BITS) - 1)) {
	case ROLE_SIZE_FIRST:		/* malloc(size), mallocx(size, flags), operator new(size) */
	case ROLE_SIZE_SECOND:		/* aligned_alloc(alignment, size), mi_heap_malloc(heap, size) */
		size = first;
		break;
	case ROLE_CALLOC:		/* calloc(count, size): returns NULL if the product overflows */
		size = array_bytes(first, second);
		break;
	case ROLE_REALLOC:		/* realloc(old, size), rallocx(old, size, flags) */
		old = first;
		break;
	case ROLE_REALLOC_ARRAY:	/* reallocarray(old, count, size) */
		old = first;
		size = array_bytes(second, argument(ctx, cookie, 2));
		break;
	case ROLE_REALLOC_OR_FREE:	/* reallocf(old, size): frees the old block even if it fails */
		release(ctx, process, slot, id, first, true);
		break;
	case ROLE_RESIZE:		/* xallocx(block, size, ...): returns the block's new size */
		old = first;
		result = RESULT_IS_SIZE;
		break;
	case ROLE_STRDUP:		/* mi_strdup(text): if its allocation is inlined */
		result = RESULT_IS_TEXT;
		break;
	case ROLE_POSIX_MEMALIGN:	/* posix_memalign(result, alignment, size) */
		result = first;
		break;
	case ROLE_RELEASE:		/* free(block), sdallocx(block, size, flags), operator delete(block) */
		return release(ctx, process, slot, id, first, cookie & COOKIE_CALLS_RELEASE);
	case ROLE_LIBRARIES_CHANGED:	/* _dl_debug_state(): where debuggers learn of dlopen and dlclose */
		return note_library_change(process);
	case ROLE_CODE_RELEASED:	/* the deallocator of Python's code objects */
		return note_code_release(process);
	default:
		return WITHOUT_RETURN;
	}
	return enter(ctx, process, slot, id, size, old, result, cookie & COOKIE_CALLS_ALLOCATOR);
}

/* Only the programs that the method needs are compiled: each program with a walk costs the verifier 0.1 s. */
#ifdef ATTACH_BY_SESSION
/* Runs at both ends of a call; the ip equals the probe's address only at the entry. */
int heap_session(struct pt_regs *ctx)
{
	if (!heap_may_run(ctx))
		return WITHOUT_RETURN;
	return PT_REGS_IP(ctx) == bpf_get_func_ip(ctx) ? enter_function(ctx) : leave(ctx);
}

/*
 * Functions that free. In a session, the kernel would run the return for other processes too: it treats a session
 * whose filter excluded the process as one that wants the return.
 */
int heap_release(struct pt_regs *ctx)
{
	if (release_may_run(ctx))
		enter_function(ctx);
	return 0;
}

#else
int heap_entry(struct pt_regs *ctx)
{
	if (heap_may_run(ctx))
		enter_function(ctx);
	return 0;
}

int heap_exit(struct pt_regs *ctx)
{
	return heap_may_run(ctx) ? leave(ctx) : 0;
}
#endif

int sampled_probe(struct pt_regs *ctx)
{
#ifdef ATTACH_BY_SESSION
	return release_may_run(ctx) ? enter_probe(ctx) : 0;
#else
	return heap_may_run(ctx) ? enter_probe(ctx) : 0;
#endif
}

#ifdef SHARED_PROGRAMS
int shared_entry(struct pt_regs *ctx)
{
	if (shared_may_run(ctx))
		enter_function(ctx);
	return 0;
}

int shared_exit(struct pt_regs *ctx)
{
	return shared_may_run(ctx) ? leave(ctx) : 0;
}
#endif

#ifdef WALK_BY_TAIL_CALLS
int heap_continue(struct pt_regs *ctx)
{
	return heap_may_run(ctx) ? leave_continued(ctx) : 0;
}
#endif

#ifdef SYSCALLS_BY_FUNCTION
int syscall_enter(struct pt_regs *ctx)
{
	return syscall_may_run(ctx) ? enter_function_of_syscall() : 0;
}

int syscall_exit(struct pt_regs *ctx)
{
	return syscall_may_run(ctx) ? leave_function_of_syscall(ctx) : 0;
}

#else
int syscall_enter(struct syscall_enter *ctx)
{
	return syscall_may_run(ctx) ? enter_syscall(ctx) : 0;
}

int syscall_exit(struct syscall_exit *ctx)
{
	return syscall_may_run(ctx) ? leave_syscall(ctx) : 0;
}
#endif

#ifdef WALK_BY_TAIL_CALLS
int syscall_continue(struct syscall_exit *ctx)
{
	return syscall_may_run(ctx) ? leave_syscall_continued(ctx) : 0;
}

int syscall_code(struct syscall_exit *ctx)
{
	return syscall_may_run(ctx) ? note_code_of_syscall(ctx) : 0;
}
#endif

/* A traced process called exec: recording stops at once; the daemon clears the tables. */
static __always_inline int stop_process(void)
{
	struct process *process;
	u32 slot;

	process = current_process(current_id(), &slot);
	if (process)
		process->state = STATE_EXECED;
	return 0;
}

int process_exec(void *ctx)
{
	return life_may_run(ctx) ? stop_process() : 0;
}

/* Deletes the entries of a thread that exits. */
static __always_inline int forget_thread(void)
{
	u64 id = current_id();
	struct process *process;
	struct thread *thread;
	u32 slot;

	process = current_process(id, &slot);
	if (!process)
		return 0;
	thread = threads.lookup(&id);
	/* In the middle of realloc the old block is in no table, so it must not stay in the counters. */
	if (thread && thread->pending.entry_sp && thread->pending.old_known)
		give_up_pending(process, id >> 32, &thread->pending);
	if (threads.delete(&id) == 0)
		__sync_fetch_and_add(&process->thread_count, -1);
	unproven_frees.delete(&id);
	return 0;
}

int thread_exit(void *ctx)
{
	return life_may_run(ctx) ? forget_thread() : 0;
}
