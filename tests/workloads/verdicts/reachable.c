// SPDX-License-Identifier: GPL-2.0-or-later
/* reachable - a list that only grows beside blocks that nothing points to: both leak. */
#include "verdicts.h"

struct node {
	struct node *next;
	char text[240];
};

static struct node *list;

SITE_FUNCTION static void remember(void)
{
	struct node *node = malloc(sizeof(*node));

	node->next = list;
	list = node;
}

SITE_FUNCTION static void forget(void)
{
	void *block = malloc(300);

	KEEP(block);
}

SITE_FUNCTION static void use(void)
{
	void *block = malloc(1000);

	KEEP(block);
	free(block);
	NO_TAIL_CALL();
}

int main(void)
{
	ready(getpid());
	wait_for_line();
	for (;;) {
		remember();
		forget();
		for (int i = 0; i < 10; i++)
			use();
		sleep_ms(200);
	}
}
