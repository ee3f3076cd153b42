// SPDX-License-Identifier: GPL-2.0-or-later
/* Compiled without call frame information, with frame pointers: like hand-written assembly, or JITs. */
#include <stdlib.h>

#include "path.h"

HOP void chained(void)
{
	walk_on();
	USE(&path_number);
}

HOP void chained_deeper(void)
{
	char memory[300];

	USE(memory);
	chained();
	USE(memory);
}

static int compare(const void *left, const void *right)
{
	walk_on();
	return *(const int *)left - *(const int *)right;
}

HOP void chained_bsearch(void)
{
	int numbers[] = {1, 2, 3, 5, 7, 11, 13, 17, 19, 23}, key = 7;

	USE(bsearch(&key, numbers, 10, sizeof(*numbers), compare));
	USE(numbers);
}

const struct hop chained_hops[] = {
	{"chained", chained},
	{"chained-deeper", chained_deeper},
	{"chained-bsearch", chained_bsearch},
	{0},
};
