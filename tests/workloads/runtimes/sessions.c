// SPDX-License-Identifier: GPL-2.0-or-later
#include "sessions.h"

#include "../workload.h"

static struct site site_keep = {.function = "session_keep"};
static struct site site_turn_over = {.function = "session_turn_over"};
static int is_serving;

SITE_FUNCTION void session_keep(long size_bytes)
{
	if (is_serving)
		KEEP(block_allocated(&site_keep, malloc((size_t)size_bytes), (size_t)size_bytes).address);
}

SITE_FUNCTION void session_turn_over(long size_bytes)
{
	struct block block;

	if (!is_serving)
		return;
	block = block_allocated(&site_turn_over, malloc((size_t)size_bytes), (size_t)size_bytes);
	free(block.address);
	block_freed(&block);
}

SITE_FUNCTION void sessions_call(void (*function)(long number), long number)
{
	function(number);
	NO_TAIL_CALL();
}

SITE_FUNCTION int sessions_serve(void (*step)(long number))
{
	int code;

	is_serving = 1;
	code = workload_serve(step);
	is_serving = 0;
	return code;
}
