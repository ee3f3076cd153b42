// SPDX-License-Identifier: GPL-2.0-or-later
//
// order_service - the program of `make demo`: a shop's order service in miniature, with a leak.
//
// Three threads take orders, price them and write statements. They allocate and free a few thousand
// times a second, which is normal. PriceCache fills during the first seconds and then keeps its size,
// which is normal, too. SessionStore::remember keeps a session for every order and never forgets one:
// this is the leak, about 250 KiB/s.

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace shop {

std::atomic<bool> stopping{false};

struct Order {
	long id;
	std::string customer;
	std::vector<std::string> articles;
};

// Makes a random order, as a parser would make one from a request. All of it is freed with the order.
class OrderParser {
    public:
	[[gnu::noinline]] std::unique_ptr<Order> parse(long id)
	{
		auto order = std::make_unique<Order>();

		order->id = id;
		order->customer = "customer-" + std::to_string(id % 977) + "@example.org";
		for (long line = 0; line < 1 + id % 5; line++)
			order->articles.push_back("article number " + std::to_string(id * 31 % 2003 + line));
		return order;
	}
};

// Bounded: at most one entry for each article that the shop sells.
class PriceCache {
    public:
	[[gnu::noinline]] double price(const std::string &article)
	{
		std::lock_guard<std::mutex> guard(lock);
		auto found = prices.find(article);

		if (found != prices.end())
			return found->second;
		return prices.emplace(article, double(article.size()) * 0.99).first->second;
	}

    private:
	std::mutex lock;
	std::unordered_map<std::string, double> prices;
};

struct Session {
	long order;
	std::string history;
};

class SessionStore {
    public:
	// Called for every order. Nothing ever calls forget().
	[[gnu::noinline]] void remember(long id, const std::string &customer)
	{
		std::lock_guard<std::mutex> guard(lock);
		auto *session = new Session{id, {}};

		session->history.assign(600 + customer.size(), '.'); // LEAK: never removed again
		sessions[id] = session;
	}

	[[gnu::noinline]] void forget(long id)
	{
		std::lock_guard<std::mutex> guard(lock);
		auto found = sessions.find(id);

		if (found == sessions.end())
			return;
		delete found->second;
		sessions.erase(found);
	}

	size_t size()
	{
		std::lock_guard<std::mutex> guard(lock);
		return sessions.size();
	}

    private:
	std::mutex lock;
	std::map<long, Session *> sessions;
};

class OrderService {
    public:
	[[gnu::noinline]] void handle_request(long id)
	{
		auto order = parser.parse(id);
		double sum = 0;

		for (const auto &article : order->articles)
			sum += cache.price(article);
		store.remember(id, order->customer);
		revenue += long(sum);
	}

	void take_orders(long first, long step)
	{
		for (long id = first; !stopping; id += step) {
			handle_request(id);
			std::this_thread::sleep_for(std::chrono::milliseconds(5));
		}
	}

	// Builds a large text and discards it, again and again.
	[[gnu::noinline]] void write_statements()
	{
		while (!stopping) {
			std::string statement;

			for (int line = 0; line < 500; line++)
				statement += "revenue " + std::to_string(revenue.load()) + "\n";
			std::this_thread::sleep_for(std::chrono::milliseconds(100));
		}
	}

	size_t sessions() { return store.size(); }

    private:
	OrderParser parser;
	PriceCache cache;
	SessionStore store;
	std::atomic<long> revenue{0};
};

} // namespace shop

int main()
{
	shop::OrderService service;

	std::signal(SIGTERM, [](int) { shop::stopping = true; });
	std::signal(SIGINT, [](int) { shop::stopping = true; });
	std::vector<std::thread> threads;
	for (long first = 0; first < 2; first++)
		threads.emplace_back([&service, first] { service.take_orders(first, 2); });
	threads.emplace_back([&service] { service.write_statements(); });

	for (auto &thread : threads)
		thread.join();
	std::printf("order_service: %zu sessions were never forgotten\n", service.sessions());
}
