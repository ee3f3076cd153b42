// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * deployed - a program of which there are two versions: the test compiles it with -DVERSION=1 and 2.
 *
 *     run N       N blocks for each call site that the version has
 *
 * In the second version one function is new, one is gone, and the two others have moved.
 */
#include "workload.h"

static struct site site_session = {.function = "keep_session"};
static struct site site_cache = {.function = "fill_cache"};
static struct site site_version = {.function = VERSION == 1 ? "taken_out" : "brought_in"};

#if VERSION == 2
/* Before the others, and larger than the removed one. */
SITE_FUNCTION static void *brought_in(void)
{
	void *address = malloc(211);

	for (volatile int i = 0; i < 23; i++)
		KEEP(address);
	return address;
}
#endif

SITE_FUNCTION static void *keep_session(size_t size)
{
	void *address = malloc(size);

	KEEP(address);
	return address;
}

SITE_FUNCTION static void *fill_cache(void)
{
	void *address = malloc(101);

	KEEP(address);
	return address;
}

#if VERSION == 1
SITE_FUNCTION static void *taken_out(void)
{
	void *address = malloc(211);

	KEEP(address);
	return address;
}
#endif

static void step(long number)
{
	for (long i = 0; i < number; i++) {
		block_allocated(&site_session, keep_session(VERSION * 1009), VERSION * 1009);
		block_allocated(&site_cache, fill_cache(), 101);
#if VERSION == 1
		block_allocated(&site_version, taken_out(), 211);
#else
		block_allocated(&site_version, brought_in(), 211);
#endif
	}
}

int main(void)
{
	return workload_serve(step);
}
