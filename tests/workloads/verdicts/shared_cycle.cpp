// SPDX-License-Identifier: GPL-2.0-or-later
/* shared_cycle - two shared_ptr that hold each other, over and over; and two that do not. */
#include <memory>
#include <string>

extern "C" {
#include "verdicts.h"
}

struct Node {
	std::shared_ptr<Node> other;
	std::string name;
};

SITE_FUNCTION static void make_cycle()
{
	auto one = std::make_shared<Node>(), two = std::make_shared<Node>();

	one->name = "a name that is too long to be kept in place";
	one->other = two;
	two->other = one;
}

SITE_FUNCTION static void make_pair()
{
	auto one = std::make_shared<Node>(), two = std::make_shared<Node>();

	one->other = two;
	NO_TAIL_CALL();
}

int main()
{
	ready(getpid());
	wait_for_line();
	for (;;) {
		make_cycle();
		make_pair();
		sleep_ms(250);
	}
}
