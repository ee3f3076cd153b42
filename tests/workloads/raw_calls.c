// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * raw_calls - maps memory in two ways: through the C library, and by system calls of its own.
 *
 * `run N` does both N times; each maps 64 KiB. `run -N` maps N times through the C library. Before each of them, it
 * jumps to the place in mmap behind the system call, as if the kernel had mapped more addresses than exist.
 */
#define _GNU_SOURCE
#include "workload.h"

#include <sys/mman.h>
#include <sys/syscall.h>

enum { BYTES = 64 << 10 };

static struct site site_libc = {.function = "map_by_libc"}, site_self = {.function = "map_by_itself"};

SITE_FUNCTION static void map_by_libc(void)
{
	/* Different rights: the kernel merges what is alike. */
	static int rights;
	int protection = rights++ & 1 ? PROT_READ : PROT_READ | PROT_WRITE;
	void *start = mmap(NULL, BYTES, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	KEEP(start);
	site_allocated(&site_libc, 1, BYTES);
	NO_TAIL_CALL();
}

SITE_FUNCTION static void map_by_itself(void)
{
	register long flags __asm__("r10") = MAP_PRIVATE | MAP_ANONYMOUS;
	register long file __asm__("r8") = -1;
	register long offset __asm__("r9") = 0;
	/* Not a constant: the compiler may keep it anywhere. */
	volatile long number = SYS_mmap;
	long result = number;

	/* The address behind the call belongs to this function, not to what is inlined next. */
	__asm__ volatile("syscall\n\tnop"
			 : "+a"(result)
			 : "D"(0L), "S"((long)BYTES), "d"((long)PROT_READ), "r"(flags), "r"(file), "r"(offset)
			 : "rcx", "r11", "memory");
	KEEP(result);
	site_allocated(&site_self, 1, BYTES);
	NO_TAIL_CALL();
}

/* In mmap, behind the call; nothing of its frame is needed from there on. */
static const char *behind_call(void)
{
	const char *place = (const char *)mmap;

	while (place[0] != 0x0f || place[1] != 0x05)
		place++;
	return place + 2;
}

SITE_FUNCTION static void forge(void)
{
	register long flags __asm__("r10") = MAP_PRIVATE | MAP_ANONYMOUS;
	long result = 1L << 62;

	__asm__ volatile("call *%1"
			 : "+a"(result)
			 : "b"(behind_call()), "D"(0L), "S"(1L << 62), "d"((long)PROT_READ), "r"(flags)
			 : "rcx", "r8", "r9", "r11", "memory");
	KEEP(result);
	NO_TAIL_CALL();
}

static void step(long number)
{
	for (; number < 0; number++) {
		forge();
		map_by_libc();
	}
	for (long i = 0; i < number; i++) {
		map_by_libc();
		map_by_itself();
	}
}

int main(void)
{
	return workload_serve(step);
}
