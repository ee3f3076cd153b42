// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * announcing - a program with a sampler of its own, by the convention otel_memory (docs/inside.md).
 *
 *     announcing                                        run N: N blocks by each function; every second one ends
 *
 * Each function has the arguments of its probe somewhere else: in registers, in memory, in an array, as constants.
 * The blocks are addresses that nothing is at, each stands for itself alone, and nothing is announced unless
 * somebody looks. The program uses the C library's allocator as well, which is nobody's business then.
 */
#include "workload.h"

#define SEMAPHORE(name) \
	__attribute__((section(".probes"))) volatile unsigned short otel_memory_##name##_semaphore

SEMAPHORE(alloc);
SEMAPHORE(free);

#define PROBE(name, arguments)                                                     \
	"990: nop\n"                                                               \
	".pushsection .note.stapsdt, \"\", \"note\"\n"                             \
	".balign 4\n .4byte 992f - 991f, 994f - 993f, 3\n"                         \
	"991: .asciz \"stapsdt\"\n 992: .balign 4\n"                               \
	"993: .8byte 990b, 0, otel_memory_" #name "_semaphore\n"                   \
	".asciz \"otel_memory\"\n .asciz \"" #name "\"\n .asciz \"" arguments "\"\n" \
	"994: .balign 4\n .popsection\n"

#define CONSTANT_BYTES 48
#define BLOCKS_MAX 4096

static struct site site_registers = {.function = "announce_in_registers"};
static struct site site_memory = {.function = "announce_in_memory"};
static struct site site_array = {.function = "announce_in_an_array"};
static struct site site_constants = {.function = "announce_constants"};
static struct block blocks[BLOCKS_MAX];
static long count;
static uintptr_t next_address = 0x10000000;

SITE_FUNCTION static void announce_in_registers(uintptr_t address, int size, long weight)
{
	__asm__ volatile(PROBE(alloc, "8@%q0 -4@%k1 8@%q2") : : "r"(address), "r"(size), "r"(weight));
}

SITE_FUNCTION static void announce_in_memory(uintptr_t address, uint16_t size, long weight)
{
	volatile uintptr_t kept_address = address;
	volatile uint16_t kept_size = size;
	volatile long kept_weight = weight;

	__asm__ volatile(PROBE(alloc, "8@%0 2@%1 8@%2") : : "m"(kept_address), "m"(kept_size), "m"(kept_weight));
}

SITE_FUNCTION static void announce_in_an_array(uintptr_t address, long size, long weight)
{
	volatile long words[] = {0, (long)address, size, weight};
	long one = 1;

	__asm__ volatile(PROBE(alloc, "8@(%0,%1,8) 8@8(%0,%1,8) 8@16(%0,%1,8)") : : "r"(words), "r"(one) : "memory");
}

SITE_FUNCTION static void announce_constants(uintptr_t address)
{
	__asm__ volatile(PROBE(alloc, "8@%0 8@$48 -8@$0x30") : : "r"(address));
}

SITE_FUNCTION static void announce_end(uintptr_t address)
{
	__asm__ volatile(PROBE(free, "8@%0") : : "r"(address));
}

static void note(struct site *site, uintptr_t address, size_t size)
{
	if (count == BLOCKS_MAX)
		WORKLOAD_FATAL("too many blocks");
	blocks[count++] = block_allocated(site, (void *)address, size);
}

static void step(long number)
{
	long first = count;
	int size;

	if (!otel_memory_alloc_semaphore || !otel_memory_free_semaphore)
		return;
	for (long i = 0; i < number; i++) {
		size = 1000 + (int)i;
		note(&site_registers, next_address += 4096, (size_t)size);
		announce_in_registers(next_address, size, size);
		note(&site_memory, next_address += 4096, (size_t)size);
		announce_in_memory(next_address, (uint16_t)size, size);
		note(&site_array, next_address += 4096, (size_t)size);
		announce_in_an_array(next_address, size, size);
		note(&site_constants, next_address += 4096, CONSTANT_BYTES);
		announce_constants(next_address);
		free(malloc(100));
	}
	for (long i = first; i < count; i += 2) {
		announce_end((uintptr_t)blocks[i].address);
		block_freed(&blocks[i]);
	}
}

int main(void)
{
	return workload_serve(step);
}
