// A stack through C++: virtual calls, a destructor that runs while an exception unwinds, a catch block.
//
// "ready" is printed when the program sleeps, inside a destructor that an exception called.

#include <algorithm>
#include <cstdio>
#include <functional>
#include <stdexcept>
#include <string>
#include <unistd.h>
#include <vector>

struct Sleeper {
    ~Sleeper()
    {
        std::puts("ready");
        std::fflush(stdout);
        for (;;)
            pause();
    }
};

struct Base {
    virtual ~Base() = default;
    virtual int call(int depth) = 0;
};

struct Derived : Base {
    __attribute__((noinline)) int call(int depth) override
    {
        if (depth == 0) {
            Sleeper sleeper;
            throw std::runtime_error("thrown at the bottom");
        }
        std::vector<int> numbers(static_cast<std::size_t>(depth) + 3, depth);
        return call(depth - 1) + numbers.back();
    }
};

__attribute__((noinline)) int catches_and_goes_on(Base &base)
{
    try {
        throw std::string("caught at once");
    } catch (const std::string &text) {
        std::function<int(int)> function = [&](int depth) { return base.call(depth); };
        return function(static_cast<int>(text.size())) + 1;
    }
}

int main()
{
    Derived derived;
    try {
        std::vector<int> numbers{3, 1, 2};
        std::for_each(numbers.begin(), numbers.end(), [&](int &) { catches_and_goes_on(derived); });
    } catch (const std::exception &) {
        return 1;
    }
}
