"""A service that keeps something in one of several ways, or nothing, and makes much garbage.

    python3 services.py WHAT

WHAT is the name of a function below. Prints its pid.
"""

import asyncio
import collections
import functools
import os
import sys
import threading
import time

orders = []
sessions = {}
seen = set()
recent = collections.deque()
handlers = []
bounded = collections.OrderedDict()
log = collections.deque(maxlen=1_000_000)
pages = collections.deque()


class Order:
    def __init__(self, number):
        self.number = number
        self.lines = [f"line {number} {line}" for line in range(5)]


def render(number):
    """Garbage, and most of the allocations."""
    return "".join([f"<li>{number} {line}</li>" for line in range(200)])


def log_order(number):
    orders.append({"number": number, "total": number * 1.5})


def remember_session(number):
    sessions[f"session {number}"] = Order(number)


def note_seen(number):
    seen.add(f"customer {number}")


def queue_event(number):
    recent.append((number, f"event {number}"))


def add_handler(number):
    def handler(event):
        return event, number

    handlers.append(handler)


def cache_page(number):
    """A full cache: each new entry replaces the oldest."""
    bounded[number] = Order(number)
    while len(bounded) > 3000:
        bounded.popitem(last=False)


@functools.lru_cache(maxsize=1_000_000)
def fill_cache(number):
    """A cache that is full in an hour."""
    return bytes(600) + str(number).encode()


def fill_log(number):
    """A log that is full in an hour."""
    log.append(bytes(600) + str(number).encode())


def drop_cycles(number):
    """Pages that refer to themselves, and are old when they are dropped: a full collection frees them."""
    page = Order(number)
    page.page, page.content = page, bytes(600)
    pages.append(page)
    if len(pages) > 5_000:
        pages.popleft()


def churn(number):
    """Lives for a moment."""
    recent.append(Order(number))
    if len(recent) > 5000:
        recent.clear()


def run(keep):
    number = 0
    while True:
        for _ in range(20):
            number += 1
            render(number)
            keep(number)
        time.sleep(0.02)


async def answer(reader, writer):
    while line := await reader.readline():
        cache_page(int(line))
        writer.write(render(int(line)).encode())
        await writer.drain()
    writer.close()


async def ask(port, first):
    number = first
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(50):
            number += 1
            writer.write(f"{number}\n".encode())
            await reader.read(1 << 16)
            await asyncio.sleep(0.002)
        writer.close()


async def server():
    """An asyncio server and its clients, in one process."""
    listening = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    await asyncio.gather(*(ask(port, client * 10_000_000) for client in range(8)))


def main():
    what = globals()[sys.argv[1]]
    print(os.getpid(), flush=True)
    if what is server:
        asyncio.run(server())
    else:
        thread = threading.Thread(target=run, args=(what,))
        thread.start()
        thread.join()


main()
