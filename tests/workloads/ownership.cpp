// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * ownership - how C++ programs lose memory, and keep it.
 *
 *     run           all of it, once
 */
#include "reachability.h"

#include <array>
#include <map>
#include <memory>
#include <vector>

namespace {

template <size_t Size> struct Sized {
	std::array<char, Size> bytes;
};

/* Two objects that own each other: make_shared places the counters before the object, in one block. */
struct Partner {
	std::shared_ptr<Partner> other;
	std::array<char, 2003> bytes;
};

struct Node {
	std::unique_ptr<Node> next;
	std::array<char, 2011> bytes;
};

struct First {
	virtual ~First() = default;
	long number = 1;
};

struct Second {
	virtual ~Second() = default;
	long number = 2;
};

struct Both : First, Second {
	std::array<char, 2057> bytes;
};

struct WithDestructor {
	~WithDestructor() { KEEP(this); }
	std::array<char, 97> bytes;
};

constexpr size_t counted(size_t size) { return (size + 16 + 7) / 8 * 8; }

} // namespace

std::vector<std::unique_ptr<Sized<2017>>> kept;
std::map<int, Sized<2027>> by_number;

__attribute__((noipa)) static void partners(void)
{
	auto one = std::make_shared<Partner>(), two = std::make_shared<Partner>();

	static_assert(sizeof(Partner) == 2024 && counted(sizeof(Partner)) == 2040);
	one->other = two;
	two->other = one;
	DIRECT(2040, 1);
	INDIRECT(2040, 1);
}

__attribute__((noipa)) static void list(void)
{
	std::unique_ptr<Node> head;

	static_assert(sizeof(Node) == 2024);
	for (int i = 0; i < 7; i++) {
		auto node = std::make_unique<Node>();

		node->next = std::move(head);
		head = std::move(node);
	}
	KEEP(head.release());
	DIRECT(2024, 1);
	INDIRECT(2024, 6);
}

__attribute__((noipa)) static void kept_ones(void)
{
	for (int i = 0; i < 5; i++) {
		kept.push_back(std::make_unique<Sized<2017>>());
		by_number[i] = {};
	}
	REACHABLE(2017, 5);
}

/* A vector that is lost with its contents; its array has 23 pointers. */
__attribute__((noipa)) static void forgotten_vector(void)
{
	auto *numbers = new std::vector<Sized<2029> *>();

	numbers->reserve(259);
	for (int i = 0; i < 23; i++)
		numbers->push_back(new Sized<2029>());
	KEEP(numbers);
	INDIRECT(2029, 23);
	INDIRECT(2072, 1); /* 259 pointers */
}

/* Kept by pointers into the interior: to a second base class, and to an array behind its length. */
Second *second_base;
WithDestructor *elements;

__attribute__((noipa)) static void interiors(void)
{
	static_assert(sizeof(Both) == 2096);
	second_base = new Both();
	elements = new WithDestructor[21];
	KEEP(&second_base);
	KEEP(&elements);
	POSSIBLE(2096, 1);
	POSSIBLE(2045, 1); /* 8 + 21 * 97 */
}

static void step(long)
{
	interiors();
	partners();
	list();
	kept_ones();
	forgotten_vector();
	ask_the_others();
}

int main(void) { return workload_serve(step); }
