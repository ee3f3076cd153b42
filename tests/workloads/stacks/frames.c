// SPDX-License-Identifier: GPL-2.0-or-later
/* Frames of every kind that a C compiler makes. */
#include <alloca.h>
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "path.h"

HOP void plain(void)
{
	walk_on();
	USE(&path_number);
}

/* All six registers that a function must preserve are pushed. */
HOP void registers(void)
{
	long a = path_number, b = a * 3, c = b ^ 5, d = c + a, e = d * b, f = e - c;

	__asm__ volatile("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d), "+r"(e), "+r"(f));
	walk_on();
	__asm__ volatile("" : : "r"(a), "r"(b), "r"(c), "r"(d), "r"(e), "r"(f));
}

HOP void large(void)
{
	char memory[20011];

	memory[path_number] = 1;
	USE(memory);
	walk_on();
	USE(memory);
}

/* Only one of two branches has a frame, with the prologue in it. */
HOP void shrink_wrapped(void)
{
	if (path_number) {
		long memory[path_number * 3 & 7];

		USE(memory);
		walk_on();
		USE(memory);
	}
}

HOP void with_alloca(void)
{
	char *memory = alloca(100 + (size_t)path_number);

	memset(memory, 1, 100);
	walk_on();
	USE(memory);
}

HOP void variable_array(void)
{
	int numbers[path_number + 22];

	for (int i = 0; i < path_number + 22; i++)
		numbers[i] = i;
	USE(numbers);
	walk_on();
	USE(numbers);
}

HOP void realigned(void)
{
	char memory[192] __attribute__((aligned(64)));

	memset(memory, path_number, sizeof(memory));
	USE(memory);
	walk_on();
	USE(memory);
}

/* The caller's stack pointer is in memory: arguments on the stack, an aligned frame of unknown size. */
__attribute__((noipa)) static void realigned_with_arguments(int a, int b, int c, int d, int e, int f, long g,
							      long h)
{
	char memory[128] __attribute__((aligned(128)));
	char *more = alloca((size_t)a + 16);

	memset(memory, b + c + d + e + f, sizeof(memory));
	memset(more, (int)(g + h), (size_t)a + 16);
	walk_on();
	USE(memory);
	USE(more);
}

HOP void realigned_alloca(void)
{
	realigned_with_arguments(path_number, 2, 3, 4, 5, 6, 7, 8);
	USE(&path_number);
}

__attribute__((force_align_arg_pointer)) HOP void force_aligned(void)
{
	walk_on();
	USE(&path_number);
}

__attribute__((target("avx2"))) static __attribute__((noipa)) void with_avx2(void)
{
	__m256i vectors[4];
	char *more = alloca((size_t)path_number + 40);

	for (int i = 0; i < 4; i++)
		vectors[i] = _mm256_set1_epi32(path_number + i);
	USE(vectors);
	USE(more);
	walk_on();
	USE(vectors);
	USE(more);
}

HOP void avx2(void)
{
	if (__builtin_cpu_supports("avx2"))
		with_avx2();
	else
		realigned();
	USE(&path_number);
}

__attribute__((noipa)) static void recurse(int depth)
{
	if (depth)
		recurse(depth - 1);
	else
		walk_on();
	USE(&path_number);
}

HOP void recursion(void)
{
	recurse(7);
	USE(&path_number);
}

HOP void deep_recursion(void)
{
	recurse(150);
	USE(&path_number);
}

/* Ends in a jump: it is not on the stack, but its caller must be. */
HOP void tail_call(void)
{
	walk_on();
}

/* The call is the last instruction: the return address is beyond the function. */
__attribute__((noreturn, noipa)) static void walk_on_for_ever(void **target)
{
	walk_on();
	__builtin_longjmp(target, 1);
}

HOP void noreturn(void)
{
	void *target[5];

	if (!__builtin_setjmp(target))
		walk_on_for_ever(target);
	USE(&path_number);
}

/* The stack pointer changes between two instructions of one function. */
HOP void push_and_pop(void)
{
	__asm__ volatile("subq $24, %%rsp\n\t.cfi_adjust_cfa_offset 24\n\t"
			 "call walk_on@PLT\n\t"
			 "addq $24, %%rsp\n\t.cfi_adjust_cfa_offset -24"
			 :
			 :
			 : "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "memory", "cc");
}

/* Stack arguments are pushed, so the frame grows during the call. */
__attribute__((noipa)) static long many_arguments(long a, long b, long c, long d, long e, long f, long g, long h,
						    long i)
{
	walk_on();
	return a + b + c + d + e + f + g + h + i + path_number;
}

HOP void stack_arguments(void)
{
	long sum = many_arguments(1, 2, 3, 4, 5, 6, path_number, path_number + 1, path_number + 2);

	USE(sum);
}

/* rbp holds a number, not a frame. */
HOP void rbp_as_number(void)
{
	__asm__ volatile("pushq %%rbp\n\t.cfi_adjust_cfa_offset 8\n\t.cfi_rel_offset rbp, 0\n\t"
			 "movq $0x123456789, %%rbp\n\t"
			 "call walk_on@PLT\n\t"
			 "popq %%rbp\n\t.cfi_adjust_cfa_offset -8\n\t.cfi_restore rbp"
			 :
			 :
			 : "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "memory", "cc");
}

__attribute__((optimize("no-omit-frame-pointer"))) HOP void frame_pointer(void)
{
	walk_on();
	USE(&path_number);
}

__attribute__((optimize("O0"))) HOP void unoptimized(void)
{
	volatile int number = path_number;

	walk_on();
	USE(&number);
}

/* `cold` code is in another section, far from the rest of its function. */
__attribute__((cold, noipa)) static void unlikely(void)
{
	walk_on();
	USE(&path_number);
}

HOP void cold(void)
{
	long memory[23];

	USE(memory);
	if (__builtin_expect(path_number, 0)) {
		unlikely();
		USE(memory);
	}
}

const struct hop frame_hops[] = {
	{"plain", plain},
	{"registers", registers},
	{"large", large},
	{"shrink-wrapped", shrink_wrapped},
	{"alloca", with_alloca},
	{"variable-array", variable_array},
	{"realigned", realigned},
	{"realigned-alloca", realigned_alloca},
	{"force-aligned", force_aligned},
	{"avx2", avx2},
	{"recursion", recursion},
	{"deep-recursion", deep_recursion},
	{"tail-call", tail_call},
	{"noreturn", noreturn},
	{"push-and-pop", push_and_pop},
	{"stack-arguments", stack_arguments},
	{"rbp-as-number", rbp_as_number},
	{"frame-pointer", frame_pointer},
	{"unoptimized", unoptimized},
	{"cold", cold},
	{0},
};
