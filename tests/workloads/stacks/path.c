// SPDX-License-Identifier: GPL-2.0-or-later
/* The walker: reads the path and calls its hops. */
#include <string.h>
#include <unistd.h>

#include "path.h"
#include "sample.h"

enum { MAX_HOPS = 256 };

volatile int path_number = 1;

static void (*hops[MAX_HOPS])(void);
static int hop_count, position;

DEFINE_TAKE_SAMPLE

void walk_on(void)
{
	if (position < hop_count) {
		hops[position++]();
		USE(&position);
	} else if (position == hop_count) {
		position++;
		take_sample();
		USE(&position);
	}
}

static void (*find(const char *name, size_t length, const struct hop *const *tables))(void)
{
	for (; *tables; tables++)
		for (const struct hop *hop = *tables; hop->name; hop++)
			if (strlen(hop->name) == length && !memcmp(hop->name, name, length))
				return hop->go;
	(void)!write(2, name, length);
	(void)!write(2, ": no such hop\n", 14);
	_exit(2);
}

void walk(const char *path, const struct hop *const *tables)
{
	hop_count = position = 0;
	while (*path && hop_count < MAX_HOPS) {
		size_t length = strcspn(path, " ");

		if (length)
			hops[hop_count++] = find(path, length, tables);
		path += length + (path[length] == ' ');
	}
	walk_on();
	USE(&position);
}
