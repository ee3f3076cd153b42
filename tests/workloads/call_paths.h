// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * call_paths.h - as many call stacks as are wanted: paths of calls to left() and right().
 *
 * left(n, bits) calls left() or right() for each bit of n, and then allocate_at_leaf(), which the program defines.
 */
#ifndef BPFLEAKD_CALL_PATHS_H
#define BPFLEAKD_CALL_PATHS_H

#include "workload.h"

static void allocate_at_leaf(void);
static void right(long path, int depth);

#define TURN(name)                                                      \
	SITE_FUNCTION static void name(long path, int depth)            \
	{                                                               \
		if (depth == 0)                                         \
			allocate_at_leaf();                             \
		else if (path & 1)                                      \
			right(path >> 1, depth - 1);                    \
		else                                                    \
			left(path >> 1, depth - 1);                     \
		NO_TAIL_CALL();                                         \
	}
TURN(left)
TURN(right)

/* The number of bits for this many stacks. */
static int bits_of(long stacks)
{
	int bits = 0;

	while ((1L << bits) < stacks)
		bits++;
	return bits;
}

#endif
