/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The interface to the daemon: what a probed function or a static probe does, and where its arguments are. */
#ifndef BPFLEAKD_ABI_PROBES_H
#define BPFLEAKD_ABI_PROBES_H

/* What a probed function does with its arguments; FunctionRole in src/bpfleakd/model/code/probe.py. */
enum function_role {
	ROLE_SIZE_FIRST,
	ROLE_SIZE_SECOND,
	ROLE_CALLOC,
	ROLE_REALLOC,
	ROLE_POSIX_MEMALIGN,
	ROLE_RELEASE,
	ROLE_LIBRARIES_CHANGED,
	ROLE_REALLOC_ARRAY,
	ROLE_REALLOC_OR_FREE,
	ROLE_RESIZE,
	ROLE_STRDUP,
	/* Not functions, but the probes of a sampler inside the process: sampled.h. */
	ROLE_SAMPLED_ALLOC,
	ROLE_SAMPLED_FREE,
	ROLE_CODE_RELEASED,
	/* Not functions, but instructions that make a system call, and those behind: syscalls.h. */
	ROLE_SYSCALL_ENTRY,
	ROLE_SYSCALL_RETURN,
};

/* Where an argument of a function is at its probe point: the registers that a call may overwrite. */
enum argument_register {
	REGISTER_RDI,
	REGISTER_RSI,
	REGISTER_RDX,
	REGISTER_RCX,
	REGISTER_R8,
	REGISTER_R9,
	REGISTER_RAX,
	REGISTER_R10,
	REGISTER_R11,
};

/*
 * The cookie of a link: the role, and above it, lowest first, the registers of the role's arguments. cookie_of in
 * src/bpfleakd/kernel/abi.py.
 */
#define COOKIE_ROLE_BITS 8
#define COOKIE_REGISTER_BITS 4
/*
 * In place of registers: for the roles ROLE_SAMPLED_*, the entry of `probe_operands` that has their arguments; for the
 * roles ROLE_SYSCALL_*, the number of the call, and above it how many bytes behind its return the probe is.
 */
#define COOKIE_CALL_BITS 8
#define COOKIE_OPERANDS_MASK 0xffffff
/* The function frees, and may do so by calling another probed function. */
#define COOKIE_CALLS_RELEASE (1ULL << 32)
/* The function allocates, and may do so by calling another probed function. */
#define COOKIE_CALLS_ALLOCATOR (1ULL << 33)
/*
 * In the highest bits: the slot of the link's process, its index in the maps that are arrays; or the mark of a link
 * that many processes share, whose programs look the slot up.
 */
#define COOKIE_SLOT_SHIFT 40
#define COOKIE_SLOT_SHARED 0xffffff

/*
 * Where the arguments of a probe are, according to the probe's note: in a register, in memory that registers point
 * to, or a constant. Registers have the numbers of machine code (rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to r15).
 * src/bpfleakd/kernel/probes/operands.py.
 */
enum operand_kind {
	OPERAND_CONSTANT,
	OPERAND_REGISTER,
	OPERAND_MEMORY,
};

#define NO_REGISTER 0xff
#define PROBE_ARGUMENTS 3

struct probe_operand {
	__s64 displacement;	/* or the constant */
	__u8 kind;
	__u8 base;		/* for memory, base and index may be NO_REGISTER */
	__u8 index;
	__u8 scale_shift;
	__u8 unused_bits;	/* 64 minus the argument's bits */
	__u8 is_signed;
	__u16 reserved;
};

struct probe_operands {
	struct probe_operand arguments[PROBE_ARGUMENTS];
};

#endif
