/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Uses every function of the allocator from many threads at once, and checks what it gets: contents, alignment, zeroes,
 * sizes, errors. Blocks go from thread to thread, children are forked in the middle and use theirs, threads come and
 * go, and the semaphores of the library's probes are raised and lowered all the while.
 *
 * usage: stress THREADS ROUNDS LARGEST [SEMAPHORE...]	(addresses within libbpfleak.so)
 */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "semaphores.h"

#define SHARED_SLOTS 512
#define CHILDREN 4

#define CHECK(condition)                                                                      \
	do {                                                                                  \
		if (!(condition)) {                                                           \
			dprintf(2, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno); \
			abort();                                                              \
		}                                                                             \
	} while (0)

struct block {
	unsigned char *bytes;
	size_t size;
	unsigned char seed;
};

static struct block *_Atomic shared[SHARED_SLOTS];
static size_t largest;
/* Others lack valloc and pvalloc, and do not set errno everywhere. */
static bool is_glibc;
/* Where a size is a power of two, mimalloc 2.0.9 by itself does not keep to the alignment that it is asked for. */
static bool is_mimalloc;
static long rounds;
static atomic_bool is_over;
static atomic_ulong sampled_blocks;

static uint64_t next_random(uint64_t *state)
{
	*state = *state * 6364136223846793005ULL + 1442695040888963407ULL;
	return *state >> 33;
}

/* All bytes of a small block; of a large one its ends and a byte in each half page. */
static size_t stride_of(size_t size)
{
	return size <= 8192 ? 1 : 2039;
}

static unsigned char byte_at(unsigned char seed, size_t index)
{
	return (unsigned char)(seed + index * 31);
}

static void fill(struct block *block)
{
	for (size_t i = 0; i < block->size; i += stride_of(block->size))
		block->bytes[i] = byte_at(block->seed, i);
	if (block->size)
		block->bytes[block->size - 1] = byte_at(block->seed, block->size - 1);
}

/* `known` bytes of it are as a block of `filled` bytes was filled. */
static void check(const struct block *block, size_t filled, size_t known)
{
	for (size_t i = 0; i < known; i += stride_of(filled))
		CHECK(block->bytes[i] == byte_at(block->seed, i));
	if (filled && filled <= known)
		CHECK(block->bytes[filled - 1] == byte_at(block->seed, filled - 1));
}

static void check_zero(const unsigned char *bytes, size_t size)
{
	for (size_t i = 0; i < size; i += stride_of(size))
		CHECK(!bytes[i]);
	if (size)
		CHECK(!bytes[size - 1]);
}

/* Most are small, and one in 4096 is up to the largest. */
static size_t some_size(uint64_t *random)
{
	uint64_t kind = next_random(random) & 4095;

	if (kind == 0)
		return next_random(random) % (largest + 1);
	if (kind < 64)
		return next_random(random) % (256 << 10);
	if (kind < 512)
		return next_random(random) % 8192;
	return next_random(random) % 300;
}

static void *aligned(uint64_t *random, size_t size)
{
	size_t alignment = (size_t)16 << next_random(random) % 10;
	void *block = NULL;

	/* Of no bytes some allocators return NULL. */
	size += size == 0;
	if (is_mimalloc)
		size = (size | 1) + 2;

	switch (next_random(random) % (is_glibc ? 5 : is_mimalloc ? 2 : 3)) {
	case 0:
		CHECK(!posix_memalign(&block, alignment, size));
		break;
	case 1:
		block = memalign(alignment, size);
		break;
	case 2:
		block = aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
		break;
	case 3:
		alignment = 4096;
		block = valloc(size);
		break;
	case 4:
		alignment = 4096;
		block = pvalloc(size ? size : 1);
		break;
	}
	CHECK(block && (uintptr_t)block % alignment == 0);
	return block;
}

static void allocate(struct block *block, uint64_t *random)
{
	block->size = some_size(random);
	block->seed = (unsigned char)next_random(random);
	switch (next_random(random) % 6) {
	case 0:
		block->bytes = calloc(block->size / 8 + 1, 8);
		CHECK(block->bytes);
		check_zero(block->bytes, block->size);
		break;
	case 1:
		block->bytes = aligned(random, block->size);
		break;
	case 2:
		block->bytes = realloc(NULL, block->size);
		break;
	case 3:
		block->bytes = (unsigned char *)strdup("a text of thirty-two characters.");
		CHECK(!strcmp((char *)block->bytes, "a text of thirty-two characters."));
		block->size = 33;
		break;
	default:
		block->bytes = malloc(block->size);
		/* Sampled blocks are larger than they have to be. */
		if (block->size < 512 && block->bytes && malloc_usable_size(block->bytes) > 1024)
			atomic_fetch_add(&sampled_blocks, 1);
	}
	CHECK(block->bytes);
	CHECK((uintptr_t)block->bytes % (block->size < 16 ? 8 : 16) == 0);
	CHECK(malloc_usable_size(block->bytes) >= block->size);
	fill(block);
}

static void resize(struct block *block, uint64_t *random)
{
	size_t before = block->size, size = some_size(random) + 1;
	/* Now and then one that cannot be had: the block is as it was. */
	bool fails = next_random(random) % 16 == 0;
	unsigned char *bytes;

	if (fails) {
		errno = 0;
		if (next_random(random) & 1)
			bytes = realloc(block->bytes, PTRDIFF_MAX - 4096UL * (next_random(random) % 7));
		else
			bytes = reallocarray(block->bytes, SIZE_MAX / 16, 17);
		CHECK(!bytes && (errno == ENOMEM || !is_glibc));
		check(block, before, before);
		return;
	}
	bytes = next_random(random) & 1 ? realloc(block->bytes, size) : reallocarray(block->bytes, 1, size);
	CHECK(bytes);
	block->bytes = bytes;
	check(block, before, before < size ? before : size);
	block->size = size;
	fill(block);
}

static void check_errors(void)
{
	void *block = &block;

	errno = 0;
	CHECK(!malloc(PTRDIFF_MAX) && (errno == ENOMEM || !is_glibc));
	CHECK(!calloc(SIZE_MAX / 2, 3) && (errno == ENOMEM || !is_glibc));
	if (is_glibc)
		CHECK(!malloc(SIZE_MAX) && !malloc(SIZE_MAX - 1));
	CHECK(posix_memalign(&block, 3, 10) == EINVAL && block == &block);
	CHECK(posix_memalign(&block, 16, PTRDIFF_MAX) == ENOMEM && block == &block);
	free(NULL);
	errno = 77;
	free(malloc(10));
	CHECK(errno == 77);
}

static void *work(void *argument)
{
	uint64_t random = (uint64_t)(uintptr_t)argument * 2654435761U + (uint64_t)getpid();

	for (long round = 0; round < rounds; round++) {
		struct block *block = atomic_exchange(&shared[next_random(&random) % SHARED_SLOTS], NULL);

		if (!block) {
			block = malloc(sizeof(*block));
			CHECK(block);
			allocate(block, &random);
		} else {
			check(block, block->size, block->size);
			if (next_random(&random) % 3 == 0) {
				resize(block, &random);
			} else {
				free(block->bytes);
				free(block);
				continue;
			}
		}
		block = atomic_exchange(&shared[next_random(&random) % SHARED_SLOTS], block);
		if (block) {
			check(block, block->size, block->size);
			free(block->bytes);
			free(block);
		}
		if (round % 1024 == 0)
			check_errors();
	}
	return NULL;
}

static void on_signal(int number)
{
	(void)number;
	for (int i = 0; i < 64; i++)
		free(memset(malloc(1000), i, 1000));
}

static void at_thread_end(void *block)
{
	free(block);
	free(malloc(5000));
}

static pthread_key_t key;

static void *live_shortly(void *unused)
{
	(void)unused;
	pthread_setspecific(key, malloc(4000));
	raise(SIGUSR1);
	return NULL;
}

/* Threads that come and go. */
static void *spawn(void *unused)
{
	pthread_t thread;

	(void)unused;
	while (!is_over) {
		CHECK(!pthread_create(&thread, NULL, live_shortly, NULL));
		CHECK(!pthread_join(thread, NULL));
	}
	return NULL;
}

static void run(int threads)
{
	pthread_t ids[256];

	for (int i = 0; i < threads; i++)
		CHECK(!pthread_create(&ids[i], NULL, work, (void *)(uintptr_t)(i + 1)));
	for (int i = 0; i < threads; i++)
		CHECK(!pthread_join(ids[i], NULL));
}

static void fork_and_run(void)
{
	pid_t child = fork();
	int status;

	CHECK(child >= 0);
	if (!child) {
		alarm(300);
		/* Other threads may have been in the middle of taking a block: it is in nobody's hands. */
		rounds /= 8;
		run(2);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void *toggle(void *unused)
{
	(void)unused;
	while (!is_over) {
		raise_semaphores(1);
		usleep(20000);
		raise_semaphores(0);
		usleep(1000);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t toggler, spawner, main_work;
	int threads = atoi(argv[1]);

	rounds = atol(argv[2]);
	is_glibc = !getenv("STRESS_OTHER_ALLOCATOR");
	is_mimalloc = !is_glibc && strstr(getenv("STRESS_OTHER_ALLOCATOR"), "mimalloc");
	largest = strtoul(argv[3], NULL, 0);
	CHECK(find_semaphores(argc - 4, argv + 4));
	CHECK(!pthread_key_create(&key, at_thread_end));
	signal(SIGUSR1, on_signal);
	check_errors();
	CHECK(!pthread_create(&toggler, NULL, toggle, NULL));
	CHECK(!pthread_create(&spawner, NULL, spawn, NULL));
	CHECK(!pthread_create(&main_work, NULL, (void *(*)(void *))run, (void *)(uintptr_t)threads));
	for (int i = 0; i < CHILDREN; i++)
		fork_and_run();
	pthread_join(main_work, NULL);
	is_over = true;
	pthread_join(toggler, NULL);
	pthread_join(spawner, NULL);
	printf("%lu small blocks sampled\n", atomic_load(&sampled_blocks));
	CHECK(!is_glibc || argc <= 4 || sampled_blocks);
	return 0;
}
