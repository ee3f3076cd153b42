// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * cxx - leaks of C++: each through another way to operator new, from functions in namespaces, at -O2.
 *
 *     cxx
 *
 * In each step every function keeps 23 blocks, and string_factory frees 101 more.
 * Site names are qualified names without parameters; shop::detail::label is there only inlined.
 */
#include "workload.h"

#include <memory>
#include <new>
#include <string>
#include <vector>

namespace {

constexpr int kept = 23;
constexpr int freed = 101;

// The library decides how large a block allocate_shared (and so make_shared) requests: measure it.
size_t asked_for;

template <typename T> struct Telling {
	using value_type = T;
	Telling() = default;
	template <typename U> Telling(const Telling<U> &) {}
	T *allocate(size_t n)
	{
		asked_for = n * sizeof(T);
		return std::allocator<T>().allocate(n);
	}
	void deallocate(T *p, size_t n) { std::allocator<T>().deallocate(p, n); }
	template <typename U> bool operator==(const Telling<U> &) const { return true; }
};

} // namespace

namespace shop {

struct Order {
	long id;
	double prices[5];
};

// Has a destructor, so new[] puts the number of elements before the array.
struct Line {
	long quantity;
	~Line() { KEEP(this); }
};

namespace detail {

// Inlined into SessionStore::remember, yet it is the allocating function: the debug information shows it.
__attribute__((always_inline)) inline std::string label(char letter, size_t length)
{
	return std::string(length, letter);
}

} // namespace detail

static struct site site_new = {"shop::Basket::add_order", 0, 0, 0, 0, 0, 0, nullptr};
static struct site site_array = {"shop::Basket::add_lines", 0, 0, 0, 0, 0, 0, nullptr};
static struct site site_string = {"shop::detail::label", 0, 0, 0, 0, 0, 0, nullptr};
static struct site site_vector = {"shop::SessionStore::history", 0, 0, 0, 0, 0, 0, nullptr};
static struct site site_shared = {"shop::share_order", 0, 0, 0, 0, 0, 0, nullptr};
static struct site site_nothrow = {"shop::try_order", 0, 0, 0, 0, 0, 0, nullptr};
static struct site site_factory = {"shop::string_factory<long>", 0, 0, 0, 0, 0, 0, nullptr};

class Basket {
    public:
	SITE_FUNCTION static void add_order()
	{
		KEEP(new Order{});
		site_allocated(&site_new, 1, sizeof(Order));
	}

	SITE_FUNCTION static void add_lines(int count)
	{
		KEEP(new Line[count]);
		site_allocated(&site_array, 1, (long)(sizeof(size_t) + count * sizeof(Line)));
	}
};

class SessionStore {
    public:
	SITE_FUNCTION static void remember(size_t length)
	{
		alignas(std::string) static char forgotten[sizeof(std::string)];
		auto *text = new (forgotten) std::string(detail::label('s', length)); // never destroyed

		KEEP(text);
		site_allocated(&site_string, 1, (long)text->capacity() + 1);
	}

	SITE_FUNCTION static void history(size_t length)
	{
		alignas(std::vector<long>) static char forgotten[sizeof(std::vector<long>)];
		auto *visits = new (forgotten) std::vector<long>;

		visits->reserve(length);
		KEEP(visits);
		site_allocated(&site_vector, 1, (long)(visits->capacity() * sizeof(long)));
	}
};

SITE_FUNCTION static void share_order(long bytes)
{
	alignas(std::shared_ptr<Order>) static char forgotten[sizeof(std::shared_ptr<Order>)];

	KEEP(new (forgotten) std::shared_ptr<Order>(std::make_shared<Order>()));
	site_allocated(&site_shared, 1, bytes);
}

SITE_FUNCTION static void try_order()
{
	KEEP(new (std::nothrow) Order{});
	site_allocated(&site_nothrow, 1, sizeof(Order));
}

template <typename T> SITE_FUNCTION static void string_factory(T length)
{
	std::string text(static_cast<size_t>(length), 't');
	long bytes = (long)text.capacity() + 1;

	KEEP(text.data());
	site_allocated(&site_factory, 1, bytes);
	site_freed(&site_factory, 1, bytes);
}

} // namespace shop

static long shared_bytes;

static void step(long)
{
	for (int i = 0; i < kept; i++) {
		shop::Basket::add_order();
		shop::Basket::add_lines(1 + i);
		shop::SessionStore::remember(100 + (size_t)i);
		shop::SessionStore::history(11 + (size_t)i);
		shop::share_order(shared_bytes);
		shop::try_order();
	}
	for (int i = 0; i < freed; i++)
		shop::string_factory<long>(40 + i);
}

int main()
{
	std::allocate_shared<shop::Order>(Telling<shop::Order>());
	shared_bytes = (long)asked_for;
	return workload_serve(step);
}
