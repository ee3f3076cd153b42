"""Walks pseudo-random call paths through the interpreter and back, forever, once a line has been read."""

import ctypes
import functools
import json
import random
import re
import sqlite3
import sys
import threading

libc = ctypes.CDLL(None)
Compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))


def by_key(go):
    sorted([3, 1, 2], key=functools.cmp_to_key(lambda a, b: (go(), a - b)[1]))


def by_regular_expression(go):
    re.sub("x", lambda match: str(go()), "axb")


def by_ctypes(go):
    numbers, called = (ctypes.c_int * 5)(4, 2, 5, 3, 1), []

    def compare(a, b):
        if not called:
            called.append(go())
        return a[0] - b[0]

    libc.qsort(numbers, 5, 4, Compare(compare))


def by_json(go):
    json.dumps({"a": object()}, default=lambda value: str(go()))


def by_json_hook(go):
    json.loads('{"a": [1, 2]}', object_hook=lambda pairs: go())


def by_sqlite(go):
    connection = sqlite3.connect(":memory:")
    connection.create_function("walk_on", 0, lambda: go() or 1)
    connection.execute("SELECT walk_on()").fetchall()
    connection.close()


def by_missing_key(go):
    class Missing(dict):
        def __missing__(self, key):
            return go()

    str.format_map("{x}", Missing())


def by_thread(go):
    thread = threading.Thread(target=go)
    thread.start()
    thread.join()


def by_generator(go):
    list(map(str, (go() for _ in range(2))))


HOPS = (
    by_key,
    by_regular_expression,
    by_ctypes,
    by_json,
    by_json_hook,
    by_sqlite,
    by_missing_key,
    by_thread,
    by_generator,
)


def walk(length, choice):
    if length == 0:
        [str(choice.random()) * 40 for _ in range(5)]
    else:
        choice.choice(HOPS)(functools.partial(walk, length - 1, choice))


def main():
    choice = random.Random(23)
    print("ready", flush=True)
    sys.stdin.readline()
    while True:
        walk(choice.randrange(6), choice)


main()
