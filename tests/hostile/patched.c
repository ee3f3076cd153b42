// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * patched - a program that replaces malloc in its own memory, as inline hooks do (Frida, live patches).
 *
 *     patched N       jumps from the Nth byte of malloc's code to a function of its own
 *
 * It prints a line for each 1,000 calls that were right.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static char room[1 << 20];
static size_t used;

static void *own_malloc(size_t size)
{
	used = (used + size + 15) & ~15ul;
	if (used >= sizeof(room))
		used = size;
	return room + used - size;
}

int main(int count, char **arguments)
{
	/* jmp *0(%rip), and the address. */
	unsigned char jump[14] = { 0xff, 0x25 };
	uint64_t target = (uintptr_t)own_malloc;
	char *code = (char *)dlsym(RTLD_DEFAULT, "malloc") + (count > 1 ? atoi(arguments[1]) : 0);
	void *page = (void *)((uintptr_t)code & -4096ul);
	static char line[] = "right\n";

	memcpy(jump + 6, &target, sizeof(target));
	if (mprotect(page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC))
		return 1;
	memcpy(code, jump, sizeof(jump));
	if (mprotect(page, 8192, PROT_READ | PROT_EXEC))
		return 1;
	for (;;) {
		for (int call = 0; call < 1000; call++) {
			char *block = malloc(16);

			if (block < room || block >= room + sizeof(room))
				return 2;
		}
		if (write(1, line, sizeof(line) - 1) < 0)
			return 0;
		usleep(20000);
	}
}
