// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * paths - walks call paths that it is told, and takes a sample at the end of each (path.h, sample.h).
 *
 *     paths           prints the names of the hops that there are
 *     paths FILE      says ready, waits for a line, walks each line of FILE ("qsort alloca throw") and stays
 *                     until its input ends
 *
 * The line "return" makes main return: what comes after it is walked by a handler of atexit.
 */
#include <algorithm>
#include <coroutine>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include "path.h"

namespace {

// Continues when it goes out of scope, possibly because of an exception.
struct WalksOnAtTheEnd {
	~WalksOnAtTheEnd()
	{
		walk_on();
		USE(this);
	}
};

[[gnu::noipa]] void throw_something(int depth)
{
	std::string text(static_cast<size_t>(depth) + 40, 'x');

	if (depth == 0)
		throw std::runtime_error(text);
	throw_something(depth - 1);
	USE(&text);
}

[[gnu::noipa]] void catch_it()
{
	try {
		throw_something(3);
	} catch (const std::exception &error) {
		walk_on();
		USE(&error);
	}
}

[[gnu::noipa]] void destructor_in_flight()
{
	try {
		WalksOnAtTheEnd guard;
		throw_something(2);
	} catch (...) {
		USE(&path_number);
	}
}

// The exception crosses frames of the C library before it is caught.
[[gnu::noipa]] void through_qsort()
{
	int numbers[] = {3, 1, 2};

	try {
		qsort(numbers, 3, sizeof(*numbers), [](const void *, const void *) -> int {
			WalksOnAtTheEnd guard;
			throw 23;
		});
	} catch (int number) {
		USE(&number);
	}
}

[[gnu::noipa]] void rethrow_nested()
{
	try {
		try {
			throw_something(1);
		} catch (...) {
			std::throw_with_nested(std::logic_error("outer"));
		}
	} catch (const std::exception &error) {
		try {
			std::rethrow_if_nested(error);
		} catch (const std::exception &inner) {
			walk_on();
			USE(&inner);
		}
	}
}

// Inlined three levels deep into the hop that calls it.
template <int depth> [[gnu::always_inline]] inline void inlined(std::vector<long> &numbers)
{
	numbers.push_back(depth);
	if constexpr (depth > 0)
		inlined<depth - 1>(numbers);
	else
		walk_on();
	USE(numbers.data());
}

[[gnu::noipa]] void inlining()
{
	std::vector<long> numbers;

	inlined<3>(numbers);
	USE(numbers.data());
}

[[gnu::noipa]] void sorting()
{
	std::vector<int> numbers(101);

	for (int i = 0; i < 101; i++)
		numbers[static_cast<size_t>(i)] = i * 37 % 101;
	std::sort(numbers.begin(), numbers.end(), [](int left, int right) {
		walk_on();
		return left < right;
	});
	USE(numbers.data());
}

[[gnu::noipa]] void wrapped()
{
	std::string text = "captured by value, and too long to lie in the string itself";
	std::function<void(int)> function = [text](int number) {
		walk_on();
		USE(text.data() + number);
	};

	function(path_number);
	USE(&function);
}

struct Left {
	virtual ~Left() = default;
	virtual void left() { USE(this); }
	long a = 1;
};

struct Right {
	virtual ~Right() = default;
	virtual void right() = 0;
	long b = 2;
};

struct Both final : Left, virtual Right {
	[[gnu::noipa]] void right() override
	{
		walk_on();
		USE(this);
	}
};

// Called through a thunk, which moves `this` and jumps.
[[gnu::noipa]] void call_right(Right *object)
{
	object->right();
	USE(object);
}

[[gnu::noipa]] void virtual_call()
{
	Both object;

	call_right(&object);
	USE(&object);
}

struct Less {
	bool operator()(const std::string &left, const std::string &right) const
	{
		walk_on();
		return left < right;
	}
};

[[gnu::noipa]] void in_a_map()
{
	std::map<std::string, int, Less> map;

	map["one"] = 1;
	map["two"] = 2;
	USE(&map);
}

[[gnu::noipa]] void in_a_std_thread()
{
	std::thread thread([](int number) {
		walk_on();
		USE(&number);
	}, path_number);

	thread.join();
}

[[gnu::noipa]] void shared_end()
{
	auto shared = std::make_shared<WalksOnAtTheEnd>();

	USE(shared.get());
}

struct Task {
	struct promise_type {
		Task get_return_object() { return {std::coroutine_handle<promise_type>::from_promise(*this)}; }
		std::suspend_always initial_suspend() noexcept { return {}; }
		std::suspend_always final_suspend() noexcept { return {}; }
		void return_void() {}
		void unhandled_exception() { std::terminate(); }
	};
	std::coroutine_handle<promise_type> handle;
};

Task coroutine_body(int number)
{
	co_await std::suspend_always{};
	walk_on();
	USE(&number);
}

[[gnu::noipa]] void coroutine()
{
	Task task = coroutine_body(path_number);

	task.handle.resume();
	task.handle.resume();
	task.handle.destroy();
}

const hop cxx_hops[] = {
	{"catch", catch_it},
	{"destructor", destructor_in_flight},
	{"throw-through-qsort", through_qsort},
	{"rethrow", rethrow_nested},
	{"inlining", inlining},
	{"sort", sorting},
	{"function", wrapped},
	{"virtual", virtual_call},
	{"map", in_a_map},
	{"std-thread", in_a_std_thread},
	{"shared", shared_end},
	{"coroutine", coroutine},
	{nullptr, nullptr},
};

const hop *const tables[] = {frame_hops, callback_hops, signal_hops, chained_hops, cxx_hops, nullptr};

void print_hops()
{
	for (const hop *const *table = tables; *table; table++)
		for (const hop *hop = *table; hop->name; hop++)
			std::printf("%s ", hop->name);
	std::puts("");
}

int file;

// Without stdio, which would have closed the file before the atexit handler continues with it.
bool read_line(int from, char *line, size_t size)
{
	size_t length = 0;

	for (char c; read(from, &c, 1) == 1;) {
		if (c == '\n') {
			line[length] = 0;
			return true;
		}
		if (length + 1 < size)
			line[length++] = c;
	}
	return false;
}

void serve()
{
	static char line[4096];

	while (read_line(file, line, sizeof(line))) {
		if (!std::strcmp(line, "return"))
			return;
		walk(line, tables);
	}
	while (read_line(0, line, sizeof(line)))
		continue;
}

} // namespace

int main(int argc, char **argv)
{
	char line[16];

	if (argc < 2) {
		print_hops();
		return 0;
	}
	file = open(argv[1], O_RDONLY | O_CLOEXEC);
	if (file < 0) {
		std::perror(argv[1]);
		return 2;
	}
	std::atexit(serve);
	std::puts("ready");
	std::fflush(stdout);
	read_line(0, line, sizeof(line));
	serve();
}
