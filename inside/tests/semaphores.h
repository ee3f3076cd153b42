/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The semaphores of the library's probes, raised without a tracer. Include after _GNU_SOURCE is defined. */
#ifndef BPFLEAK_TEST_SEMAPHORES_H
#define BPFLEAK_TEST_SEMAPHORES_H

#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define SEMAPHORES_MAX 256

static volatile unsigned short *semaphores[SEMAPHORES_MAX];

static int find_library(struct dl_phdr_info *info, size_t size, void *base)
{
	(void)size;
	if (!strstr(info->dlpi_name, "libbpfleak.so"))
		return 0;
	*(uintptr_t *)base = info->dlpi_addr;
	return 1;
}

/* `offsets` (hexadecimal) are addresses within libbpfleak.so. False: the library is not loaded. */
static bool find_semaphores(int count, char **offsets)
{
	uintptr_t base = 0;

	if (count <= 0)
		return true;
	dl_iterate_phdr(find_library, &base);
	for (int i = 0; base && i < count && i < SEMAPHORES_MAX; i++)
		semaphores[i] = (void *)(base + strtoul(offsets[i], NULL, 16));
	return base != 0;
}

static void raise_semaphores(unsigned short value)
{
	for (int i = 0; i < SEMAPHORES_MAX; i++)
		if (semaphores[i])
			*semaphores[i] = value;
}

#endif
