// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * crooked_stack: `run N` leaks N blocks of 101 bytes.
 *
 * A call from a stack that is not aligned, as interpreters and hand-written code make: return address and frame
 * pointer of `crooked` lie four bytes beside a word.
 */
#include "workload.h"

static struct site site_leak = {.function = "leak_on_a_crooked_stack"};

SITE_FUNCTION __attribute__((used)) void leak_on_a_crooked_stack(void)
{
	void *block = malloc(101);

	KEEP(block);
	site_allocated(&site_leak, 1, 101);
}

void call_crooked(void);

asm(".text\n"
    ".globl call_crooked\n"
    ".type call_crooked, @function\n"
    "call_crooked:\n"
    "	.cfi_startproc\n"
    "	push %rbp\n"
    "	.cfi_def_cfa_offset 16\n"
    "	.cfi_offset %rbp, -16\n"
    "	mov %rsp, %rbp\n"
    "	.cfi_def_cfa_register %rbp\n"
    "	sub $4, %rsp\n"
    "	call crooked\n"
    "	leave\n"
    "	.cfi_def_cfa %rsp, 8\n"
    "	ret\n"
    "	.cfi_endproc\n"
    "	.size call_crooked, .-call_crooked\n"
    ".type crooked, @function\n"
    "crooked:\n"
    "	.cfi_startproc\n"
    "	push %rbp\n"
    "	.cfi_def_cfa_offset 16\n"
    "	.cfi_offset %rbp, -16\n"
    "	mov %rsp, %rbp\n"
    "	.cfi_def_cfa_register %rbp\n"
    "	and $-16, %rsp\n"
    "	call leak_on_a_crooked_stack\n"
    "	leave\n"
    "	.cfi_def_cfa %rsp, 8\n"
    "	ret\n"
    "	.cfi_endproc\n"
    "	.size crooked, .-crooked\n");

static void step(long number)
{
	while (number-- > 0)
		call_crooked();
}

int main(void)
{
	return workload_serve(step);
}
