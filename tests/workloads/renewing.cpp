// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * renewing - what a process gains and loses, in blocks, by every way through the C library.
 *
 *     renewing
 *
 * 40,000 blocks are there before "ready". In each step
 *   - replace() frees 500 of them and makes as many,
 *   - keep() makes 300 by each of malloc, calloc, realloc, posix_memalign, strdup and operator new,
 *   - move() grows 500 of the blocks from before "ready" and of its own by realloc,
 *   - churn() makes and frees 20,000 by malloc and by operator new,
 *   - 16 threads one after the other fill their caches and end, which gives those to free() a second time.
 * The note gained_blocks says how many blocks there are more than before all steps.
 */
#include "workload.h"

#include <cstdlib>
#include <new>

namespace {

constexpr int OLD = 40000, REPLACED = 500, KEPT = 300, MOVED = 500, TEMPORARY = 20000, THREADS = 16;

char *old_blocks[OLD];
long replaced, gained;

void replace()
{
	for (int i = 0; i < REPLACED; i++, replaced++) {
		std::free(old_blocks[replaced % (OLD / 2)]);
		old_blocks[replaced % (OLD / 2)] = static_cast<char *>(std::malloc(120));
	}
}

void keep()
{
	void *block;

	for (int i = 0; i < KEPT; i++) {
		KEEP(std::malloc(40));
		KEEP(std::calloc(3, 40));
		KEEP(std::realloc(nullptr, 90));
		if (posix_memalign(&block, 64, 200))
			WORKLOAD_FATAL("no memory");
		KEEP(strdup("a text of some length"));
		KEEP(::operator new(70));
	}
	gained += 6 * KEPT;
}

void move(long step)
{
	for (int i = 0; i < MOVED; i++) {
		char *&block = old_blocks[OLD / 2 + (step * MOVED / 2 + i) % (OLD / 2)];

		block = static_cast<char *>(std::realloc(block, 130 + i % 7 * 400));
	}
}

void churn()
{
	for (int i = 0; i < TEMPORARY; i++) {
		void *block = std::malloc(50 + i % 900);

		KEEP(block);
		std::free(block);
		block = ::operator new(30 + i % 500);
		KEEP(block);
		::operator delete(block);
	}
}

void *short_life(void *)
{
	void *blocks[7 * 30];

	for (int i = 0; i < 7 * 30; i++)
		blocks[i] = std::malloc(static_cast<size_t>(i / 7) * 16 + 8);
	for (void *block : blocks)
		std::free(block);
	return nullptr;
}

void step(long number)
{
	pthread_t thread;

	replace();
	keep();
	move(number);
	churn();
	for (int i = 0; i < THREADS; i++)
		if (pthread_create(&thread, nullptr, short_life, nullptr) || pthread_join(thread, nullptr))
			WORKLOAD_FATAL("no thread");
	workload_note("gained_blocks", static_cast<double>(gained));
}

} // namespace

int main()
{
	for (char *&block : old_blocks)
		block = static_cast<char *>(std::malloc(100));
	return workload_serve(step);
}
