// SPDX-License-Identifier: GPL-2.0-or-later
/* A plugin that leaks in FUNCTION. Built with other names, it is the same code at the same places of another file. */
#include <stdlib.h>

__attribute__((noipa)) void *FUNCTION(size_t size)
{
	void *block = malloc(size);

	__asm__ volatile("" : : "r"(block) : "memory");
	return block;
}

void *plugin_run(size_t size)
{
	void *block = FUNCTION(size);

	__asm__ volatile("" : : : "memory");
	return block;
}
