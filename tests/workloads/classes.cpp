// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * classes - objects of C++ in blocks of all shapes. Each site keeps another number of blocks, so that it is
 * known without its name: all in the first step, and none after it. Where blocks hold several classes, the
 * number says how they are mixed.
 */
#include "workload.h"

#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>

namespace shop {

struct Session {
	virtual ~Session() { KEEP(this); }
	long state[6] = {};
};

struct Guest final : Session {
	long more[2] = {};
};

struct Priced {
	virtual double price() const { return 0; }
	virtual ~Priced() {}
	long cents = 0;
};

struct Order : Session, Priced {
	long id = 0;
};

struct Shared : virtual Priced {
	long id = 0;
};

template <typename T> struct Queue : Session {
	T value{};
};

struct alignas(16) Wide {
	virtual ~Wide() { KEEP(this); }
	long value = 0;
};

// None of these classes has a vtable, so none may be named.
struct Plain {
	const char *name = "a plain one";
	void (*call)() = nullptr;
	Plain *next = nullptr;
};

} // namespace shop

namespace {

struct Hidden {
	virtual ~Hidden() { KEEP(this); }
	long value = 0;
};

void *kept[4096];
int kept_count;

template <typename T> void keep(T *object)
{
	KEEP(object);
	kept[kept_count++ % 4096] = (void *)object;
}

SITE_FUNCTION void sessions() { keep(new shop::Session); }
SITE_FUNCTION void orders() { keep(new shop::Order); }
SITE_FUNCTION void virtual_bases() { keep(new shop::Shared); }
SITE_FUNCTION void queues() { keep(new shop::Queue<std::pair<int, std::string>>); }
SITE_FUNCTION void hidden() { keep(new Hidden); }
SITE_FUNCTION void arrays() { keep(new shop::Session[7]); }
SITE_FUNCTION void wide_arrays() { keep(new shop::Wide[3]); }
SITE_FUNCTION void shared() { keep(new (&kept[4000]) std::shared_ptr<shop::Guest>(std::make_shared<shop::Guest>())); }
SITE_FUNCTION void counts()
{
	static shop::Session session;

	keep(new (&kept[4000]) std::shared_ptr<shop::Session>(&session, [](shop::Session *) {}));
}
SITE_FUNCTION void plain() { keep(new shop::Plain); }
SITE_FUNCTION void buffers() { keep(strcpy((char *)malloc(200), "text")); }

std::list<shop::Guest> list;
std::map<long, shop::Session> map;
std::set<long> numbers;

SITE_FUNCTION void list_nodes() { list.emplace_back(); }
SITE_FUNCTION void map_nodes() { map[(long)map.size()]; }
SITE_FUNCTION void number_nodes() { numbers.insert((long)numbers.size()); }

// 97 of 100 are of one class; all come from one call.
SITE_FUNCTION void mixed(bool is_guest)
{
	void *memory = malloc(sizeof(shop::Guest));

	keep(is_guest ? new (memory) shop::Guest : new (memory) shop::Session);
}

void step(long)
{
	static const struct {
		void (*make)();
		int count;
	} sites[] = {{sessions, 53}, {orders, 59}, {virtual_bases, 61}, {queues, 67}, {hidden, 71}, {arrays, 73},
		     {wide_arrays, 79}, {shared, 83}, {counts, 89}, {plain, 97}, {buffers, 101}, {list_nodes, 103},
		     {map_nodes, 107}, {number_nodes, 109}};

	for (const auto &site : sites)
		for (int i = 0; i < site.count; i++)
			site.make();
	for (int i = 0; i < 1000; i++)
		mixed(i % 100 >= 3);
}

} // namespace

int main()
{
	return workload_serve(step);
}
