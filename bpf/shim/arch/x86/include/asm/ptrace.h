#ifndef SHIM_ASM_PTRACE_H
#define SHIM_ASM_PTRACE_H

/* The registers that a uprobe program gets: x86-64's struct pt_regs, a stable kernel ABI. */
struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx;
	unsigned long r11, r10, r9, r8, ax, cx, dx, si, di;
	unsigned long orig_ax;
	unsigned long ip, cs, flags, sp, ss;
};

#endif
