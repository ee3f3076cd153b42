// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * reachability - every way for a block to be lost, or not.
 *
 *     run           all of them, once
 *
 * Each case is a function, and each has sizes of its own.
 */
#define _GNU_SOURCE
#include "reachability.h"

#include <sys/mman.h>
#include <sys/syscall.h>

struct node {
	struct node *next, *other;
};

static struct site site_new_block = {.function = "new_block"};
/* Not static: the compiler must assume that the variables are read. */
void *globals[8];
__thread void *in_thread_memory;
static void *volatile *on_main_stack;
static void *handed_over;
static int never[2];
static int step_done;

/* Zeroed: earlier contents of the memory point to nothing. */
SITE_FUNCTION static struct node *new_block(size_t size)
{
	struct node *block = (struct node *)calloc(1, size);

	KEEP(block);
	site_allocated(&site_new_block, 1, (long)size);
	return block;
}

__attribute__((noipa)) static void lone_block(void)
{
	new_block(1009);
	DIRECT(1009, 1);
}

__attribute__((noipa)) static void many_blocks(void)
{
	for (int i = 0; i < 23; i++)
		new_block(1013);
	DIRECT(1013, 23);
}

__attribute__((noipa)) static void list_without_head(void)
{
	struct node *head = new_block(1019);

	for (int i = 0; i < 4; i++) {
		struct node *node = new_block(1021);

		node->next = head->next;
		head->next = node;
	}
	DIRECT(1019, 1);
	INDIRECT(1021, 4);
}

__attribute__((noipa)) static void circle(void)
{
	struct node *nodes[3];

	for (int i = 0; i < 3; i++)
		nodes[i] = new_block(1031);
	for (int i = 0; i < 3; i++)
		nodes[i]->next = nodes[(i + 1) % 3];
	DIRECT(1031, 1);
	INDIRECT(1031, 2);
}

__attribute__((noipa)) static void own_address(void)
{
	struct node *node = new_block(1033);

	node->next = node;
	DIRECT(1033, 1);
}

__attribute__((noipa)) static void circle_on_a_lead(void)
{
	struct node *a = new_block(1039), *b = new_block(1039), *lead = new_block(1049);

	a->next = b;
	b->next = a;
	lead->next = b;
	DIRECT(1049, 1);
	INDIRECT(1039, 2);
}

__attribute__((noipa)) static void diamond(void)
{
	struct node *top = new_block(1051), *left = new_block(1061), *right = new_block(1061);

	top->next = left;
	top->other = right;
	left->next = right->next = new_block(1063);
	DIRECT(1051, 1);
	INDIRECT(1061, 2);
	INDIRECT(1063, 1);
}

__attribute__((noipa)) static void from_a_variable(void)
{
	struct node *first = new_block(1069);

	globals[0] = first;
	first->other = new_block(1087);
	first->other->next = first;
	REACHABLE(1069, 1);
	REACHABLE(1087, 1);
}

__attribute__((noipa)) static void into_the_interior(void)
{
	struct node *block = new_block(1091);

	globals[1] = (char *)block + 100;
	block->next = new_block(1093);
	POSSIBLE(1091, 1);
	POSSIBLE(1093, 1);
}

__attribute__((noipa)) static void behind_the_end(void)
{
	/* A multiple of 8; otherwise the pointer would be unaligned. */
	globals[2] = (char *)new_block(1096) + 1096;
	DIRECT(1096, 1);
}

__attribute__((noipa)) static void not_aligned(void)
{
	static char unaligned[32] __attribute__((aligned(8)));
	void *block = new_block(1097);

	memcpy(unaligned + 3, &block, sizeof(block));
	KEEP(unaligned);
	DIRECT(1097, 1);
}

__attribute__((noipa)) static void disguised(void)
{
	globals[3] = (void *)~(uintptr_t)new_block(1103);
	DIRECT(1103, 1);
}

__attribute__((noipa)) static void from_a_stack(void)
{
	*on_main_stack = new_block(1109);
	REACHABLE(1109, 1);
}

__attribute__((noipa)) static void from_thread_memory(void)
{
	in_thread_memory = new_block(1117);
	REACHABLE(1117, 1);
}

__attribute__((noipa)) static void from_a_mapping(void)
{
	void **page = (void **)mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	page[7] = new_block(1123);
	REACHABLE(1123, 1);
}

__attribute__((noipa)) static void from_freed_memory(size_t holder_size, size_t payload_size)
{
	struct node *holder = new_block(holder_size);

	((void **)holder)[5] = new_block(payload_size);
	KEEP(holder);
	free(holder);
	site_freed(&site_new_block, 1, (long)holder_size);
}

/* Enough for the heap to grow, so that the next blocks are in memory taken since "ready". */
__attribute__((noipa)) static void room(void)
{
	for (int i = 4; i < 8; i++)
		globals[i] = new_block(60013);
	REACHABLE(60013, 4);
}

/* Only a register that calls preserve has the pointer, while the thread waits. */
static void *waits_with_a_register(void *argument)
{
	register void *kept __asm__("r12") = __atomic_exchange_n(&handed_over, NULL, __ATOMIC_ACQ_REL);
	char byte;
	long number = SYS_read;

	__atomic_store_n(&step_done, 1, __ATOMIC_RELEASE);
	__asm__ volatile("syscall"
			 : "+a"(number)
			 : "D"((long)never[0]), "S"(&byte), "d"(1L), "r"(kept)
			 : "rcx", "r11", "memory");
	KEEP(kept);
	return argument;
}

static void *waits_with_a_local(void *argument)
{
	void *volatile local[64] = {0};
	char byte;

	local[32] = __atomic_exchange_n(&handed_over, NULL, __ATOMIC_ACQ_REL);
	__atomic_store_n(&step_done, 1, __ATOMIC_RELEASE);
	(void)!read(never[0], &byte, 1);
	return local[32] ? argument : NULL;
}

__attribute__((noipa)) static void from_a_thread(void *(*body)(void *), size_t size)
{
	pthread_t thread;

	handed_over = new_block(size);
	__atomic_store_n(&step_done, 0, __ATOMIC_RELEASE);
	if (pthread_create(&thread, NULL, body, NULL))
		WORKLOAD_FATAL("pthread_create failed");
	while (!__atomic_load_n(&step_done, __ATOMIC_ACQUIRE))
		usleep(1000);
	usleep(20000);
}

static void step(long number)
{
	(void)number;
	lone_block();
	many_blocks();
	list_without_head();
	circle();
	own_address();
	circle_on_a_lead();
	diamond();
	from_a_variable();
	into_the_interior();
	behind_the_end();
	not_aligned();
	disguised();
	from_a_stack();
	from_thread_memory();
	from_a_mapping();
	from_freed_memory(4099, 1129);
	DIRECT(1129, 1);
	room();
	/* calloc takes no chunk of that size from where free puts it, so its contents stay. */
	from_freed_memory(499, 1171);
	DIRECT(1171, 1);
	from_a_thread(waits_with_a_local, 1153);
	REACHABLE(1153, 1);
	from_a_thread(waits_with_a_register, 1163);
	REACHABLE(1163, 1);
	ask_the_others();
}

int main(void)
{
	void *volatile local = NULL;

	on_main_stack = &local;
	if (pipe(never))
		WORKLOAD_FATAL("pipe failed");
	workload_serve(step);
	KEEP(local);
	_exit(0);
}
