// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * no_allocator - a program without any libc, that says "ready" and sleeps. Built with -nostdlib -static.
 */
#define CALL(number, first, second, third)                                                               \
	({                                                                                               \
		long result_;                                                                            \
		__asm__ volatile("syscall"                                                               \
				 : "=a"(result_)                                                         \
				 : "a"((long)(number)), "D"(first), "S"(second), "d"(third)              \
				 : "rcx", "r11", "memory");                                              \
		result_;                                                                                 \
	})

enum { SYS_READ = 0, SYS_WRITE = 1, SYS_EXIT_GROUP = 231 };

void _start(void)
{
	char c;

	CALL(SYS_WRITE, 1L, "ready\n", 6L);
	CALL(SYS_READ, 0L, &c, 1L);
	CALL(SYS_EXIT_GROUP, 0L, 0L, 0L);
	__builtin_unreachable();
}
