/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Allocates before any constructor has run and after all destructors of its own: the library, whose constructor comes
 * later, must find the next allocator by itself, and know the blocks of its own pages for ever.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCKS 64
#define BYTES 1000

static unsigned char *kept[BLOCKS];

static void check(int condition)
{
	if (!condition)
		abort();
}

static void before_constructors(int argc, char **argv, char **variables)
{
	unsigned char *zeroed = calloc(10, 100);
	void *aligned;

	(void)argc, (void)argv, (void)variables;
	for (int i = 0; i < BLOCKS; i++)
		kept[i] = memset(malloc(BYTES + i), i, BYTES + i);
	for (int i = 0; i < 1000; i++)
		check(!zeroed[i]);
	free(realloc(zeroed, 5000));
	check(!posix_memalign(&aligned, 256, 300) && (unsigned long)aligned % 256 == 0);
	free(aligned);
}

__attribute__((section(".preinit_array"), used)) static void (*preinit)(int, char **, char **) = before_constructors;

__attribute__((constructor(101))) static void first_constructor(void)
{
	kept[1] = realloc(kept[1], 9000);
	check(kept[1] && kept[1][BYTES] == 1);
}

__attribute__((destructor(101))) static void last_destructor(void)
{
	for (int i = 0; i < BLOCKS; i++) {
		check(kept[i][BYTES - 1] == i);
		free(kept[i]);
	}
	free(malloc(100));
}

int main(void)
{
	puts("main");
	return 0;
}
