"""Allocates at the end of random call paths, and says which Python frames each block has.

    python3 paths.py COUNT SEED [keep-code]

Prints the pid and waits for a line; then makes COUNT blocks of different sizes, and prints a line of JSON
for each: the size, and function and line of every frame by sys._getframe, innermost first. Then it waits for
another line.
With keep-code, code that is compiled on the way stays, and has a name later.
A hop does something with its frame and calls the next; the last one allocates. Runs on CPython 3.9 to 3.14.
"""

import asyncio
import contextlib
import contextvars
import ctypes
import functools
import json
import os
import random
import re
import sys
import threading
import weakref

FIRST_BYTES = 200_000
STEP_BYTES = 16

kept = []
kept_code = []
ledger = []
path = []


def frames(depth):
    """The frames of the caller and outwards: [[function, line], ...]."""
    frame = sys._getframe(depth)
    found = []
    while frame is not None:
        code = frame.f_code
        found.append([getattr(code, "co_qualname", code.co_name), frame.f_lineno])
        frame = frame.f_back
    return found


def allocate():
    # One line: the frames are those at the moment of the allocation.
    ledger.append([size(), frames(1)]), kept.append(bytearray(size()))


def size():
    return FIRST_BYTES + STEP_BYTES * len(kept)


def step():
    """Take the next hop, or allocate."""
    hop = path.pop() if path else allocate
    hop()


def plain():
    step()


def with_arguments(first=1, *rest, word=None, **more):
    x = [first, rest, word, more]
    step()
    return x


def comprehension():
    [step() for _ in range(1)]


def generator():
    def values():
        yield 1
        step()
        yield 2

    for _ in values():
        pass


def yield_from():
    def inner():
        step()
        yield 1

    def outer():
        yield from inner()

    list(outer())


def sort_key():
    sorted([3], key=lambda _: step() or 0)


def through_map():
    list(map(lambda _: step(), [1]))  # noqa: C417


def through_reduce():
    functools.reduce(lambda _a, _b: step(), [1, 2])


def through_re():
    re.sub("a", lambda _match: step() or "b", "a")


def through_partial():
    functools.partial(with_arguments, 2, word=3)()


def context():
    @contextlib.contextmanager
    def managed():
        step()
        yield

    with managed():
        pass


class Shop:
    def __init__(self):
        step()

    def __getattr__(self, name):
        step()
        return name

    @property
    def total(self):
        step()
        return 1

    @classmethod
    def open(cls):
        step()

    @staticmethod
    def close():
        step()

    def __iter__(self):
        step()
        return iter(())

    def __lt__(self, other):
        step()
        return True

    def __hash__(self):
        step()
        return 1


def made(how):
    shop = object.__new__(Shop)
    how(shop)


def constructor():
    Shop()


def missing_attribute():
    made(lambda shop: shop.nothing)


def a_property():
    made(lambda shop: shop.total)


def a_classmethod():
    Shop.open()


def a_staticmethod():
    Shop.close()


def iteration():
    made(lambda shop: list(shop))


def comparison():
    made(lambda shop: sorted([shop, shop]))


def hashing():
    made(lambda shop: {shop: 1})


def recursion(depth=5):
    if depth:
        recursion(depth - 1)
    else:
        step()


def evaluated():
    code = compile("def made_up():\n\n    step()\nmade_up()", "made.py", "exec")
    if "keep-code" in sys.argv:
        kept_code.append(code)
    exec(code, {"step": step})


def callback():
    ctypes.CFUNCTYPE(ctypes.c_int)(lambda: step() or 0)()


def error():
    try:
        raise ValueError
    except ValueError:
        step()
    finally:
        len("x")


def coroutine():
    async def inner():
        step()

    async def outer():
        await inner()

    with contextlib.suppress(StopIteration):
        outer().send(None)


def tasks():
    async def inner():
        step()

    async def outer():
        await asyncio.gather(inner())

    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(outer())
    finally:
        loop.close()


def resumed():
    """A chain of awaits that was suspended: the event loop resumes all of it."""

    async def inner():
        await asyncio.sleep(0)
        step()

    async def middle():
        await asyncio.wait_for(asyncio.shield(inner()), 60)
        await inner_again()

    async def inner_again():
        await asyncio.sleep(0)

    async def outer():
        await middle()

    in_event_loop(outer())


def awaiting_chain():
    async def chain(depth):
        if depth:
            await chain(depth - 1)
        else:
            await asyncio.sleep(0)
            step()

    in_event_loop(chain(6))


def async_generator():
    async def values():
        await asyncio.sleep(0)
        step()
        yield 1

    async def outer():
        async with async_context():
            async for _ in values():
                pass

    @contextlib.asynccontextmanager
    async def async_context():
        await asyncio.sleep(0)
        yield

    in_event_loop(outer())


def scheduled():
    async def outer():
        done = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(lambda: (step(), done.set_result(1)))
        await done

    in_event_loop(outer())


def in_event_loop(coroutine):
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(coroutine)
    finally:
        loop.close()


def class_body():
    class Body:
        step()


def metaclass():
    class Meta(type):
        def __new__(cls, name, bases, space):
            step()
            return super().__new__(cls, name, bases, space)

    Meta("Made", (), {})


def finalizer():
    class Dropped:
        def __del__(self):
            step()

    Dropped()


def weak_callback():
    class Dropped:
        pass

    one = Dropped()
    reference = weakref.ref(one, lambda _: step())
    del one
    return reference


def json_hook():
    json.loads('{"a": {"b": 1}, "c": 2}', object_hook=lambda pairs: step() if "c" in pairs else pairs)


def c_sort():
    order = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    done = []

    def compare(_one, _other):
        if not done:
            done.append(1)
            step()
        return 0

    ctypes.CDLL(None).qsort((ctypes.c_int * 2)(1, 2), 2, 4, order(compare))


def in_context():
    contextvars.copy_context().run(step)


def decorated():
    def decorator(function):
        @functools.wraps(function)
        def wrapper(*arguments, **more):
            return function(*arguments, **more)

        return wrapper

    @decorator
    @decorator
    def function():
        step()

    function()


def deep_recursion():
    recursion(12)


def thrown():
    def values():
        try:
            yield
        except ValueError:
            step()
            yield

    generator = values()
    next(generator)
    generator.throw(ValueError())


def delegated_send():
    def inner():
        yield (yield)
        step()

    def outer():
        yield from inner()

    generator = outer()
    next(generator)
    generator.send(1)
    next(generator, None)


def in_thread():
    thread = threading.Thread(target=step)
    thread.start()
    thread.join()


HOPS = [
    plain,
    with_arguments,
    comprehension,
    generator,
    yield_from,
    sort_key,
    through_map,
    through_reduce,
    through_re,
    through_partial,
    context,
    constructor,
    missing_attribute,
    a_property,
    a_classmethod,
    a_staticmethod,
    iteration,
    comparison,
    hashing,
    recursion,
    evaluated,
    callback,
    error,
    coroutine,
    in_thread,
    class_body,
    metaclass,
    finalizer,
    weak_callback,
    json_hook,
    c_sort,
    in_context,
    decorated,
    deep_recursion,
    thrown,
    delegated_send,
]
# One at the outer end: no event loop runs inside another.
LOOPS = [tasks, resumed, awaiting_chain, async_generator, scheduled]


def main():
    count, seed = int(sys.argv[1]), int(sys.argv[2])
    print(os.getpid(), flush=True)
    sys.stdin.readline()
    chance = random.Random(seed)
    for number in range(count):
        path[:] = [chance.choice(HOPS) for _ in range(chance.randrange(6))]
        if number % 10 == 0:
            path.append(LOOPS[number // 10 % len(LOOPS)])
        step()
    for size_bytes, found in ledger:
        print(json.dumps([size_bytes, found]))
    print("end", flush=True)
    sys.stdin.readline()


main()
