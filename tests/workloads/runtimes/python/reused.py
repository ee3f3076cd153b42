"""Allocates in a function, releases it, and allocates in another one whose code object has its address.

Prints the pid and waits for a line; then allocates in the first function and prints that like paths.py. After
another line it releases that function, makes others until the code object of one has the same address, and
allocates in that one. Prints "reused" or "fresh" before the end. Runs on CPython 3.9 to 3.14.
"""

import json
import os
import sys

ATTEMPTS = 1_000

kept = []
ledger = []


def frames():
    """The frames of the caller and outwards: [[function, line], ...]."""
    frame, found = sys._getframe(1), []
    while frame is not None:
        code = frame.f_code
        found.append([getattr(code, "co_qualname", code.co_name), frame.f_lineno])
        frame = frame.f_back
    return found


def allocate(size_bytes):
    # One line: the frames are those at the moment of the allocation.
    ledger.append([size_bytes, frames()]), kept.append(bytearray(size_bytes))


def made(name, line):
    """A function that allocates so many bytes, with code of the same size for each name of five letters."""
    space = {"allocate": allocate}
    exec("\n" * (line - 1) + f"def {name}(size_bytes):\n    allocate(size_bytes)\n", space)
    return space.pop(name)


def made_at(address):
    """A later function, with its code object there if one is; all are kept, so each takes another place."""
    for _ in range(ATTEMPTS):
        kept.append(made("other", 20))
        if id(kept[-1].__code__) == address:
            break
    return kept[-1]


def call(function, size_bytes):
    function(size_bytes)


def report(*more):
    for line in (*map(json.dumps, ledger), *more, "end"):
        print(line, flush=True)
    ledger.clear()
    sys.stdin.readline()


def main():
    print(os.getpid(), flush=True)
    sys.stdin.readline()
    function = made("first", 10)
    address = id(function.__code__)
    # Several times: the stack walker remembers a code object after it has read it.
    for number in range(20):
        call(function, 20_000 + 16 * number)
    report()
    del function
    function = made_at(address)
    call(function, 30_000)
    report(json.dumps([0, id(function.__code__) == address]))


main()
