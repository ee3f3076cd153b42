// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * workload.h - how a test program and a test talk, and the ledger of what the program really did.
 *
 * Protocol, a line at a time:
 *
 *     program                      test
 *     ready            ->                      everything that is not to be counted has happened
 *                      <-          run [N]     one step; N means what the program says
 *     {"live_bytes": ...} ->                   the ledger, of all steps so far
 *                      <-          run | exit  end of input means exit
 *
 * The ledger is the truth that a monitor attached at "ready" has to report:
 *
 *     {"live_bytes", "live_count",
 *      "sites": {"function": {"live_bytes", "live_count", "allocated_bytes", "allocated_count"}},
 *      "threads": N, ...notes of the program...}
 *
 * Sizes are the requested ones. A site is the function that called the allocator. A realloc that succeeds
 * is a free at the block's old site and an allocation at the caller of realloc. allocated_* are null
 * where they depend on the libc's insides (asprintf).
 *
 * Rules: nothing in here allocates from the heap, directly or through libc (so no stdio), and threads
 * are started before "ready", since pthread_create allocates.
 *
 * Valid as C and as C++.
 */
#ifndef BPFLEAKD_WORKLOAD_H
#define BPFLEAKD_WORKLOAD_H

#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A function that must be found in stacks under its own name: never inlined, cloned or merged. */
#if defined(__clang__)
#define SITE_FUNCTION __attribute__((noinline, optnone))
#else
#define SITE_FUNCTION __attribute__((noipa))
#endif

/* Stops the compiler from reasoning about a pointer, so that it removes no malloc/free pair. */
#define KEEP(pointer) __asm__ volatile("" : : "r"(pointer) : "memory")

/* Put after a call whose frame must stay on the stack, so that it does not become a jump. */
#define NO_TAIL_CALL() __asm__ volatile("" : : : "memory")

#define WORKLOAD_FATAL(...) workload_fatal(__FILE__, __LINE__, __VA_ARGS__)

/* -- the ledger ------------------------------------------------------------------------------------ */

struct site {
	const char *function;
	int allocated_unknown; /* the libc decides how often it allocates: report null */
	long live_bytes;
	long live_count;
	long allocated_bytes;
	long allocated_count;
	int listed;
	struct site *next;
};

/* One outstanding block and its blamed function. */
struct block {
	void *address;
	size_t size;
	struct site *site;
};

#define WORKLOAD_MAX_NOTES 64

static struct site *workload_sites;
static struct {
	const char *name;
	double value;
} workload_notes[WORKLOAD_MAX_NOTES];
static int workload_note_count;
static int workload_thread_count;

static inline void workload_write(const char *text, size_t length)
{
	while (length > 0) {
		ssize_t written = write(1, text, length);

		if (written <= 0)
			_exit(3);
		text += written;
		length -= (size_t)written;
	}
}

__attribute__((format(printf, 3, 4), noreturn, unused)) static void
workload_fatal(const char *file, int line, const char *format, ...)
{
	static char text[1024];
	va_list arguments;
	int length = snprintf(text, sizeof(text), "%s:%d: ", file, line);

	va_start(arguments, format);
	length += vsnprintf(text + length, sizeof(text) - (size_t)length, format, arguments);
	va_end(arguments);
	(void)!write(2, text, (size_t)length);
	(void)!write(2, "\n", 1);
	_exit(2);
}

static inline void site_list(struct site *site)
{
	if (__atomic_exchange_n(&site->listed, 1, __ATOMIC_ACQ_REL))
		return;
	struct site *head = __atomic_load_n(&workload_sites, __ATOMIC_ACQUIRE);

	do
		site->next = head;
	while (!__atomic_compare_exchange_n(&workload_sites, &head, site, 0, __ATOMIC_ACQ_REL,
					    __ATOMIC_ACQUIRE));
}

/* `count` blocks of `bytes` in total were allocated at `site`. */
static inline void site_allocated(struct site *site, long count, long bytes)
{
	site_list(site);
	__atomic_add_fetch(&site->live_bytes, bytes, __ATOMIC_RELAXED);
	__atomic_add_fetch(&site->live_count, count, __ATOMIC_RELAXED);
	__atomic_add_fetch(&site->allocated_bytes, bytes, __ATOMIC_RELAXED);
	__atomic_add_fetch(&site->allocated_count, count, __ATOMIC_RELAXED);
}

/* `count` blocks of `bytes` in total that had been allocated at `site` were freed. */
static inline void site_freed(struct site *site, long count, long bytes)
{
	site_list(site);
	__atomic_sub_fetch(&site->live_bytes, bytes, __ATOMIC_RELAXED);
	__atomic_sub_fetch(&site->live_count, count, __ATOMIC_RELAXED);
}

__attribute__((unused)) static struct block block_allocated(struct site *site, void *address, size_t size)
{
	struct block block = {address, size, site};

	if (!address)
		WORKLOAD_FATAL("%s: no memory for %zu bytes", site->function, size);
	site_allocated(site, 1, (long)size);
	return block;
}

__attribute__((unused)) static void block_freed(struct block *block)
{
	site_freed(block->site, 1, (long)block->size);
	block->address = NULL;
}

/* A further field of the ledger, such as a speed. Set again, it is replaced. */
__attribute__((unused)) static void workload_note(const char *name, double value)
{
	int i;

	for (i = 0; i < workload_note_count; i++)
		if (!strcmp(workload_notes[i].name, name))
			break;
	if (i == WORKLOAD_MAX_NOTES)
		WORKLOAD_FATAL("too many notes");
	if (i == workload_note_count)
		workload_note_count++;
	workload_notes[i].name = name;
	workload_notes[i].value = value;
}

__attribute__((format(printf, 3, 4))) static inline int
workload_append(char *text, int length, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	int added = vsnprintf(text + length, 65536 - (size_t)length, format, arguments);
	va_end(arguments);
	if (length + added >= 65536)
		WORKLOAD_FATAL("the ledger is too long");
	return length + added;
}

__attribute__((unused)) static void workload_print_ledger(void)
{
	static char text[65536];
	long live_bytes = 0, live_count = 0;
	int length = 0;
	const char *comma = "";

	for (struct site *site = workload_sites; site; site = site->next) {
		live_bytes += site->live_bytes;
		live_count += site->live_count;
	}
	length = workload_append(text, length, "{\"live_bytes\": %ld, \"live_count\": %ld, \"threads\": %d",
				 live_bytes, live_count, workload_thread_count);
	for (int i = 0; i < workload_note_count; i++)
		length = workload_append(text, length, ", \"%s\": %.15g", workload_notes[i].name,
					 workload_notes[i].value);
	length = workload_append(text, length, ", \"sites\": {");
	for (struct site *site = workload_sites; site; site = site->next) {
		length = workload_append(text, length, "%s\"%s\": {\"live_bytes\": %ld, \"live_count\": %ld, ",
					 comma, site->function, site->live_bytes, site->live_count);
		if (site->allocated_unknown)
			length = workload_append(text, length,
						 "\"allocated_bytes\": null, \"allocated_count\": null}");
		else
			length = workload_append(text, length,
						 "\"allocated_bytes\": %ld, \"allocated_count\": %ld}",
						 site->allocated_bytes, site->allocated_count);
		comma = ", ";
	}
	length = workload_append(text, length, "}}\n");
	workload_write(text, (size_t)length);
}

/* -- threads that exist before "ready" and work on request ------------------------------------------- */

#define WORKLOAD_MAX_THREADS 64

static pthread_barrier_t workload_start, workload_end;
static void (*workload_thread_body)(int index);

__attribute__((unused)) static void *workload_thread(void *argument)
{
	for (;;) {
		pthread_barrier_wait(&workload_start);
		workload_thread_body((int)(intptr_t)argument);
		pthread_barrier_wait(&workload_end);
	}
	return NULL;
}

/* Starts `count` threads which all run body(index) at each workload_run_threads(). */
__attribute__((unused)) static void workload_start_threads(int count, void (*body)(int index))
{
	pthread_t thread;

	if (count < 1 || count > WORKLOAD_MAX_THREADS)
		WORKLOAD_FATAL("%d threads: 1 to %d are possible", count, WORKLOAD_MAX_THREADS);
	workload_thread_count = count;
	workload_thread_body = body;
	pthread_barrier_init(&workload_start, NULL, (unsigned)count + 1);
	pthread_barrier_init(&workload_end, NULL, (unsigned)count + 1);
	for (int i = 0; i < count; i++)
		if (pthread_create(&thread, NULL, workload_thread, (void *)(intptr_t)i))
			WORKLOAD_FATAL("pthread_create failed");
}

/* Lets every thread run its body once and waits for all of them. */
__attribute__((unused)) static void workload_run_threads(void)
{
	pthread_barrier_wait(&workload_start);
	pthread_barrier_wait(&workload_end);
}

/* -- the protocol ------------------------------------------------------------------------------------ */

/* Reads one line without stdio. Returns 0 at the end of input. */
static inline int workload_read_line(char *line, size_t size)
{
	size_t length = 0;
	char c;

	while (read(0, &c, 1) == 1) {
		if (c == '\n') {
			line[length] = 0;
			return 1;
		}
		if (length + 1 < size)
			line[length++] = c;
	}
	return 0;
}

/* Says ready, then a step for every "run [N]"; step(N) gets 0 where no number was given. */
__attribute__((unused)) static int workload_serve(void (*step)(long number))
{
	char line[128];

	if (!workload_thread_count)
		workload_thread_count = 1;
	workload_write("ready\n", 6);
	while (workload_read_line(line, sizeof(line))) {
		if (!strncmp(line, "run", 3)) {
			step(strtol(line + 3, NULL, 10));
			workload_print_ledger();
		} else if (!strcmp(line, "exit")) {
			break;
		} else {
			WORKLOAD_FATAL("not a command: %s", line);
		}
	}
	return 0;
}

__attribute__((unused)) static long workload_argument(int argc, char **argv, int index, long otherwise)
{
	return argc > index ? strtol(argv[index], NULL, 10) : otherwise;
}

#endif
