// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * operators - every operator new and delete of C++17, by name: plain, nothrow, aligned, sized.
 *
 *     operators [THREADS [fail]]
 *
 * Those of libstdc++ call malloc; allocators that bring their own do not. With `fail` some are asked for too
 * much (those of libstdc++ then allocate an exception).
 *
 * Notes: glibc_bytes, what glibc itself says has become outstanding since the first step began (mallinfo2:
 * rounded up, with what its threads keep for themselves).
 */
#include "kinds.h"

#include <malloc.h>
#include <new>

static const std::align_val_t aligned{UNIT};
static volatile size_t too_much = SIZE_MAX / 2;

KIND(new, ::operator new(size), ::operator delete(p))
KIND(new_sized, ::operator new(size), ::operator delete(p, size))
KIND(new_nothrow, ::operator new(size, std::nothrow), ::operator delete(p, std::nothrow))
KIND(new_aligned, ::operator new(size, aligned), ::operator delete(p, aligned))
KIND(new_aligned_sized, ::operator new(size, aligned), ::operator delete(p, size, aligned))
KIND(new_aligned_nothrow, ::operator new(size, aligned, std::nothrow),
     ::operator delete(p, aligned, std::nothrow))
KIND(array, ::operator new[](size), ::operator delete[](p))
KIND(array_sized, ::operator new[](size), ::operator delete[](p, size))
KIND(array_nothrow, ::operator new[](size, std::nothrow), ::operator delete[](p, std::nothrow))
KIND(array_aligned, ::operator new[](size, aligned), ::operator delete[](p, aligned))
KIND(array_aligned_sized, ::operator new[](size, aligned), ::operator delete[](p, size, aligned))
KIND(array_aligned_nothrow, ::operator new[](size, aligned, std::nothrow),
     ::operator delete[](p, aligned, std::nothrow))
/* In all of these allocators, blocks of malloc and of new are of one kind. */
KIND(malloc, malloc(size), free(p))

static const struct kind listed[] = {
	LISTED(new),
	LISTED(new_sized),
	LISTED(new_nothrow),
	LISTED(new_aligned),
	LISTED(new_aligned_sized),
	LISTED(new_aligned_nothrow),
	LISTED(array),
	LISTED(array_sized),
	LISTED(array_nothrow),
	LISTED(array_aligned),
	LISTED(array_aligned_sized),
	LISTED(array_aligned_nothrow),
	LISTED(malloc),
};

static bool with_failures;

SITE_FUNCTION static void fail()
{
	::operator delete(nullptr);
	::operator delete(nullptr, sizeof(long));
	::operator delete[](nullptr, aligned);
	if (!with_failures)
		return;
	if (::operator new(too_much, std::nothrow) || ::operator new[](too_much, aligned, std::nothrow))
		WORKLOAD_FATAL("operator new of a huge size succeeded");
}

static double glibc_bytes()
{
	struct mallinfo2 info = mallinfo2();

	return (double)(info.uordblks + info.hblkhd);
}

static void step(long)
{
	static double before = glibc_bytes();

	kinds_step();
	workload_note("glibc_bytes", glibc_bytes() - before);
}

int main(int argc, char **argv)
{
	with_failures = argc > 2;
	kinds_start(argc, argv, listed, sizeof(listed) / sizeof(listed[0]), fail);
	return workload_serve(step);
}
